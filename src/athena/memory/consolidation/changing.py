"""What patterns do to memories: merge, strengthen, fade and promote. Each step is in the history and can be undone."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.memory import write
from athena.memory.consolidation.keeping import QUOTES
from athena.memory.consolidation.mining import identity
from athena.memory.consolidation.pattern import Pattern
from athena.memory.consolidation.reading import PATTERN
from athena.memory.prepare import Prepared, prepare
from athena.memory.store import Store
from athena.model.memory import Draft, Memory, tag_key
from athena.storage import history, memories
from athena.storage.database import Transaction
from athena.storage.memories import Kept
from athena.storage.topics import CONTRADICTED

MORE, LESS = 0.05, 0.5  # what support adds to importance, and what a contradiction leaves of it
MOST = 0.95
RELATED = "related"  # the history's word for a link, as undo knows it
LESSON = "lesson"
BESIDE = 0.3  # the importance of a lesson: less than that of what somebody wrote
ENOUGH = 5  # support of a sequence that becomes a memory
LIFT = 2.0  # so many times likelier the outcome must be than usual


class Hand(NamedTuple):
    """Who changes memories, where and when."""

    store: Store
    tx: Transaction
    scope: int  # of the project's memories
    call: int
    now: float

    async def kept(self, number: int) -> Kept | None:
        found = await memories.find(self.tx, [self.scope], "m.id = :id", id=number)
        return found[0] if found and found[0].deleted is None else None

    async def note(self, kept: Kept, action: str) -> None:
        await history.add(self.tx, self.scope, kept.memory.id, self.call, self.now, action, kept.snapshot())

    async def link(self, number: int, other: int, relation: str) -> None:
        if await memories.link(self.tx, self.scope, number, other, relation, self.now):
            before = {"other": other, "relation": relation}
            await history.add(self.tx, self.scope, number, self.call, self.now, RELATED, before)


async def merge(hand: Hand, groups: Sequence[Sequence[int]]) -> int:
    """Keep the newest of each group, with the tags and facts of all, and forget the others."""
    gone = 0
    for ids in groups:
        found = [one for number in ids if (one := await hand.kept(number)) is not None]
        kept = [one for one in found if identity(one.memory) == identity(found[0].memory)]  # as they are by now
        if len(kept) < 2:
            continue
        for one in kept:
            await hand.note(one, "merged" if one is kept[0] else "merged away")
        await write.rewrite(hand.store, hand.tx, kept[0], _rewritten(kept), hand.now)
        for one in kept[1:]:
            await write.hide(hand.store, hand.tx, one, hand.now)
        gone += len(kept) - 1
    return gone


def _rewritten(kept: list[Kept]) -> Prepared:
    one = prepare(_joined([k.memory for k in kept]), kept[0].memory.created)
    return one._replace(happened=kept[0].happened)


def _joined(group: list[Memory]) -> Draft:
    tags = {tag_key(tag): tag for memory in reversed(group) for tag in memory.tags}
    facts: dict[str, Any] = {}
    for memory in reversed(group):
        facts |= memory.metadata
    newest = group[0]
    importance = max(memory.importance for memory in group)
    return Draft(newest.content, tuple(tags.values())[:100], newest.memory_type, facts, importance)


async def strengthen(hand: Hand, number: int) -> bool:
    """Let a memory that others bear out count for a little more."""
    kept = await hand.kept(number)
    if kept is None or kept.memory.importance >= MOST:
        return False
    return await _weigh(hand, kept, min(kept.memory.importance + MORE, MOST), "strengthened")


async def fade(hand: Hand, pattern: Pattern) -> bool:
    """Let a memory that a newer one contradicts count for less, and say by which."""
    older, newer = [await hand.kept(number) for number in pattern.evidence]
    if older is None or newer is None:
        return False
    await hand.link(older.memory.id, newer.memory.id, CONTRADICTED)
    return await _weigh(hand, older, round(older.memory.importance * LESS, 4), "faded")


async def _weigh(hand: Hand, kept: Kept, importance: float, action: str) -> bool:
    await hand.note(kept, action)
    await memories.change(hand.tx, kept, {"importance": importance, "updated": hand.now})
    return True


def is_lesson(pattern: Pattern) -> bool:
    """Tell whether a pattern says what to do or to leave: steps that make success or failure much likelier."""
    return pattern.type == "sequence" and pattern.support >= ENOUGH and pattern.details["lift"] >= LIFT


async def promote(hand: Hand, pattern: Pattern, earlier: int | None) -> int:
    """Make a memory of a pattern, or bring the one that was made of it up to date."""
    draft = Draft(
        pattern.summary, (), LESSON,
        {PATTERN: pattern.type, "support": pattern.support, "confidence": pattern.confidence}, BESIDE,
    )  # fmt: skip
    one = prepare(draft, hand.now)
    kept = await hand.kept(earlier) if earlier is not None else None
    twin = await memories.find(hand.tx, [hand.scope], "m.digest = :digest", digest=one.digest)
    kept = kept or (twin[0] if twin else None)
    if kept is None:
        number = await write.add(hand.store, hand.tx, hand.scope, one, hand.now)
        await history.add(hand.tx, hand.scope, number, hand.call, hand.now, "promoted", None)
    else:
        number = kept.memory.id
        if kept.deleted is None and kept.memory.content == pattern.summary:
            return number
        if twin and twin[0].memory.id != number and twin[0].deleted is None:
            return number  # somebody wrote the very same
        await hand.note(kept, "promoted")
        await write.rewrite(hand.store, hand.tx, kept, one, hand.now)
    for quoted in pattern.quotes:
        await hand.link(number, quoted, QUOTES)
    return number
