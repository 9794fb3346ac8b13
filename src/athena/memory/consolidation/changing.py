"""What patterns do to memories: merge, strengthen, fade and promote. Each step is in the history and can be undone."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.memory import history, link_rows, rows, write_rows
from athena.memory.consolidation.findings import Pattern
from athena.memory.consolidation.read import PATTERN
from athena.memory.consolidation.stages import identity
from athena.memory.link_rows import CONTRADICTED, MERGED_INTO, QUOTES, RELATED
from athena.memory.prepare import Prepared, prepare
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import Draft, Memory, tag_key
from athena.storage.database import Transaction

MORE, LESS = 0.05, 0.5  # what support adds to importance, and what a contradiction leaves of it
MOST = 0.95
ORDINARY = Draft("").importance  # what a memory counts for where its owner says nothing
STRENGTHENED, FADED, UNFADED, PROMOTED = "strengthened", "faded", "no longer faded", "promoted"
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
        found = await rows.find(self.tx, [self.scope], "m.id = :id", id=number)
        return found[0] if found and found[0].deleted is None else None

    async def note(self, kept: Kept, action: str) -> None:
        await history.add(self.tx, self.scope, kept.memory.id, self.call, self.now, action, kept.snapshot())

    async def link(self, number: int, other: int, relation: str) -> None:
        if await link_rows.link(self.tx, self.scope, number, other, relation, self.now):
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
        await write_rows.rewrite(hand.store, hand.tx, kept[0], _rewritten(kept), hand.now)
        for one in kept[1:]:
            await write_rows.hide(hand.store, hand.tx, one, hand.now)
            await hand.link(one.memory.id, kept[0].memory.id, MERGED_INTO)  # a purge of that one takes this one too
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
    return await _weigh(hand, kept, min(kept.memory.importance + MORE, MOST), STRENGTHENED)


async def oppose(hand: Hand, pattern: Pattern) -> bool:
    """Say which newer memory contradicts an older one; where that is certain, let the older count for less, once."""
    older, newer = [await hand.kept(number) for number in pattern.evidence]
    if older is None or newer is None or (_is_hearsay(newer.memory) and not _is_hearsay(older.memory)):
        return False
    first = not await link_rows.linked(hand.tx, hand.scope, older.memory.id, CONTRADICTED)
    await hand.link(older.memory.id, newer.memory.id, CONTRADICTED)
    if not (first and pattern.details.get("certain")) or await _given(hand, older) > ORDINARY:
        return False
    return await _weigh(hand, older, older.memory.importance * LESS, FADED)


def _is_hearsay(memory: Memory) -> bool:
    """Tell whether a memory is what an agent said, which may be what any page says: it takes no other's place."""
    return memory.metadata.get("role") == "assistant"


async def _given(hand: Hand, kept: Kept) -> float:
    """Return the importance that a memory's owner gave it, before consolidation weighed it."""
    given: float | None = None
    for change in await history.of_memory(hand.tx, hand.scope, kept.memory.id):
        if change.action not in (STRENGTHENED, FADED, UNFADED, RELATED):
            given = None
        elif given is None and change.before and "importance" in change.before:
            given = float(change.before["importance"])
    return kept.memory.importance if given is None else given


async def unfade(hand: Hand) -> None:
    """Give memories back what they counted for, where all that contradicted them is gone."""
    for step in await history.last_steps(hand.tx, hand.scope, FADED, UNFADED):
        kept = await hand.kept(step.memory) if step.action == FADED else None
        if kept is None or await link_rows.linked(hand.tx, hand.scope, step.memory, CONTRADICTED):
            continue
        before = (step.before or {})["importance"]
        if kept.memory.importance == round(before * LESS, 4):  # nobody has weighed it since
            await _weigh(hand, kept, before, UNFADED)


async def _weigh(hand: Hand, kept: Kept, importance: float, action: str) -> bool:
    await hand.note(kept, action)
    await rows.change(hand.tx, kept, {"importance": round(importance, 4), "updated": hand.now})
    return True


def is_lesson(pattern: Pattern) -> bool:
    """Tell whether a pattern says what to do or to leave: steps that make success or failure much likelier."""
    return pattern.type == "sequence" and pattern.support >= ENOUGH and pattern.details["lift"] >= LIFT


async def promote(hand: Hand, pattern: Pattern, earlier: int | None) -> tuple[int | None, bool]:
    """Make a memory of a pattern, or bring the one made of it up to date; tell which it is, and whether it is new.

    What somebody wrote, changed or forgot is left alone.
    """
    draft = Draft(
        pattern.summary, (), LESSON,
        {PATTERN: pattern.type, "support": pattern.support, "confidence": pattern.confidence}, BESIDE,
    )  # fmt: skip
    one = prepare(draft, hand.now)
    twin = await rows.find(hand.tx, [hand.scope], "m.digest = :digest", digest=one.digest)
    if earlier is None:
        if twin:
            return twin[0].memory.id if twin[0].deleted is None else None, False
        earlier = await write_rows.add(hand.store, hand.tx, hand.scope, one, hand.now)
        await history.add(hand.tx, hand.scope, earlier, hand.call, hand.now, PROMOTED, None)
        new = True
    else:
        kept = await hand.kept(earlier)
        if kept is None or twin or not await _untouched(hand, earlier):
            return earlier, False
        await hand.note(kept, PROMOTED)
        await write_rows.rewrite(hand.store, hand.tx, kept, one, hand.now)
        new = False
    for quoted in pattern.quotes:
        await hand.link(earlier, quoted, QUOTES)
    return earlier, new


async def _untouched(hand: Hand, number: int) -> bool:
    """Tell whether nobody but consolidation ever changed a memory that it made."""
    changes = await history.of_memory(hand.tx, hand.scope, number)
    return [one.action for one in changes][:1] == [PROMOTED] and {one.action for one in changes} <= {PROMOTED, RELATED}
