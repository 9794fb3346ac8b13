"""Making less of more: memories that say the same become one, and what recurs is named.

Four strategies, from careful to thorough: `minimal` only reports what is all but identical, `speed` merges it,
`balanced` also reports close paraphrases and topics that recur, `quality` looser likenesses too. Only memories with
the very same text, but for case, spacing and a full stop, are ever merged: to a model, "every Friday" and "every
Thursday" are nearly the same.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, NamedTuple

from athena.memory import write
from athena.memory.duplicates import Group, find
from athena.memory.prepare import Prepared, prepare
from athena.memory.store import Store
from athena.model.call import Call
from athena.model.memory import Draft, Filter, Memory, preview, tag_key
from athena.storage import calls, history, memories, scopes
from athena.storage.database import Transaction
from athena.storage.memories import Kept

Strategy = Literal["minimal", "speed", "balanced", "quality"]
DAY = 86_400.0
DOCUMENT = "document"
RECURRING = 3  # memories that make a topic


class Plan(NamedTuple):
    alike: float  # from this likeness on, a group is reported
    merges: bool
    topics: bool


PLANS: dict[str, Plan] = {
    "minimal": Plan(0.97, merges=False, topics=False),
    "speed": Plan(0.97, merges=True, topics=False),
    "balanced": Plan(0.93, merges=True, topics=True),
    "quality": Plan(0.88, merges=True, topics=True),
}


@dataclass(frozen=True, slots=True)
class Pattern:
    type: str  # near_duplicate, topic
    summary: str
    confidence: float
    support: int
    evidence: tuple[int, ...]
    merged: bool


@dataclass(frozen=True, slots=True)
class Consolidated:
    strategy: str
    examined: int
    merged: int
    patterns: tuple[Pattern, ...]


async def consolidate(store: Store, strategy: Strategy, days_back: float, dry_run: bool, call: Call) -> Consolidated:
    """Look at the memories of the last days; merging can be undone as one change."""
    plan = PLANS[strategy]
    since = store.clock() - days_back * DAY
    recent = await store.database.read(lambda tx: memories.newest(tx, Filter(call.scope, since=since), 10_000))
    ours = {memory.id for memory in recent if memory.project == call.scope.project}
    groups = [g for g in await find(store, call.scope, plan.alike, 1_000) if any(m.id in ours for m in g.memories)]
    merging = [same for g in groups for same in _same_words(g) if {m.id for m in same} <= ours] if plan.merges else []
    merged = 0 if dry_run or not merging else await _merge(store, merging, call)
    gone = {m.id for same in merging for m in same} if merged else set()
    patterns = [_duplicate(group, merged=any(m.id in gone for m in group.memories)) for group in groups]
    if plan.topics:
        patterns += _topics(recent)
    return Consolidated(strategy, len(recent), merged, tuple(patterns))


def _same_words(group: Group) -> list[list[Memory]]:
    """Return those of a group that may become one, together."""
    found: dict[tuple[object, ...], list[Memory]] = {}
    for memory in group.memories:
        if memory.memory_type != DOCUMENT:
            found.setdefault(_identity(memory), []).append(memory)
    return [same for same in found.values() if len(same) > 1]


def _identity(memory: Memory) -> tuple[object, ...]:
    """Return what two memories share that are the same but for case, spacing and a full stop at the end."""
    words = " ".join(memory.content.casefold().split()).rstrip(".! ")
    return words, memory.metadata.get("session_id"), memory.metadata.get("source"), memory.memory_type


def _duplicate(group: Group, *, merged: bool) -> Pattern:
    newest, count = group.memories[0], len(group.memories)
    summary = f"{count} memories say nearly the same: {preview(newest.content, 120)}"
    return Pattern("near_duplicate", summary, group.likeness, count, tuple(m.id for m in group.memories), merged)


def _topics(recent: list[Memory]) -> list[Pattern]:
    """Name pairs of tags that stand together more often than their own counts explain."""
    tagged = {memory.id: {tag_key(tag) for tag in memory.tags} for memory in recent}
    single = Counter(tag for tags in tagged.values() for tag in tags)
    pairs = Counter(pair for tags in tagged.values() for pair in combinations(sorted(tags), 2))
    found = []
    for (one, other), together in pairs.most_common():
        expected = single[one] * single[other] / len(recent)
        if together < RECURRING or together < 2 * expected:
            continue
        evidence = tuple(number for number, tags in tagged.items() if {one, other} <= tags)
        share = together / min(single[one], single[other])
        summary = f"'{one}' and '{other}' come up together in {together} memories"
        found.append(Pattern("topic", summary, round(share * (1 - 1 / (together + 1)), 4), together, evidence, False))
    return found[:50]


async def _merge(store: Store, groups: list[list[Memory]], call: Call) -> int:
    """Keep the newest of each group, with the tags and facts of all, and forget the others."""
    now = store.clock()

    async def work(tx: Transaction) -> int:
        async def join(number: int) -> int:
            numbers = await scopes.visible(tx, call.scope)
            gone = 0
            for group in groups:
                ids = [m.id for m in group]
                kept = [k for n in ids for k in await memories.find(tx, numbers, "m.id = :id", id=n) if not k.deleted]
                kept = [k for k in kept if _identity(k.memory) == _identity(group[0])]  # as they are by now
                if len(kept) < 2:
                    continue
                for one in kept:
                    action = "merged" if one is kept[0] else "merged away"
                    await history.add(tx, one.scope, one.memory.id, number, now, action, one.snapshot())
                await write.rewrite(store, tx, kept[0], _rewritten(kept), now)
                for one in kept[1:]:
                    await write.hide(store, tx, one, now)
                gone += len(kept) - 1
            return gone

        return int(await calls.once(tx, call, join))

    return await store.database.write(work)


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
