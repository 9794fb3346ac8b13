"""Keeping the patterns of a run and doing what they call for, all in one transaction.

Consolidation overrules nobody: a pattern is acted on once, and never again after somebody took that back.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.memory import history_rows, rows, write
from athena.memory.consolidation import patterns as consolidation_patterns
from athena.memory.consolidation import rows as storage
from athena.memory.consolidation.events import compute_signature
from athena.memory.consolidation.patterns import ACTED_KEY
from athena.memory.consolidation.read import INPUT_KINDS, PATTERN_KEY, ConsolidationInput
from athena.memory.consolidation.stages import StrategyPlan, compute_identity
from athena.memory.consolidation.values import Pattern
from athena.memory.prepare import PreparedMemory, prepare_memory
from athena.memory.rows import CONTRADICTED_BY, MERGED_INTO, QUOTES_RELATION, RELATED_ACTION, Kept
from athena.memory.store import Store
from athena.memory.values import Draft, Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

SUPPORT_IMPORTANCE_GAIN, CONTRADICTED_FACTOR = (
    0.05,
    0.5,
)  # what support adds to importance, and what a contradiction leaves of it
MAX_IMPORTANCE = 0.95
DEFAULT_IMPORTANCE = Draft("").importance  # what a memory counts for where its owner says nothing
STRENGTHENED, FADED, UNFADED, PROMOTED = "strengthened", "faded", "no longer faded", "promoted"
LESSON_TYPE = "lesson"
LESSON_IMPORTANCE = 0.3  # the importance of a lesson: less than that of what somebody wrote
MIN_LESSON_SUPPORT = 5  # support of a sequence that becomes a memory
MIN_LESSON_LIFT = 2.0  # so many times likelier the outcome must be than usual


class ChangeContext(NamedTuple):
    """Who changes memories, where and when."""

    store: Store
    tx: Transaction
    scope_id: int  # of the project's memories
    call_id: int
    now: float

    async def find_live(self, number: int) -> Kept | None:
        found = await rows.find_memory_rows(self.tx, [self.scope_id], "m.id = :id", id=number)
        return found[0] if found and found[0].deleted is None else None

    async def add_history(self, kept: Kept, action: str) -> None:
        await history_rows.insert_change(
            self.tx, self.scope_id, kept.memory.id, self.call_id, self.now, action, kept.to_snapshot()
        )

    async def add_link(self, number: int, other: int, relation: str) -> None:
        if await rows.insert_link(self.tx, self.scope_id, number, other, relation, self.now):
            before = {"other": other, "relation": relation}
            await history_rows.insert_change(
                self.tx, self.scope_id, number, self.call_id, self.now, RELATED_ACTION, before
            )


async def merge_duplicates(hand: ChangeContext, groups: Sequence[Sequence[int]]) -> int:
    """Keep the newest of each group, with the tags and facts of all, and forget the others."""
    gone = 0
    for ids in groups:
        found = [one for number in ids if (one := await hand.find_live(number)) is not None]
        kept = [
            one for one in found if compute_identity(one.memory) == compute_identity(found[0].memory)
        ]  # as they are by now
        if len(kept) < 2:
            continue
        for one in kept:
            await hand.add_history(one, "merged" if one is kept[0] else "merged away")
        await write.rewrite_memory(hand.store, hand.tx, kept[0], _prepare_merged(kept), hand.now)
        for one in kept[1:]:
            await write.hide_memory(hand.store, hand.tx, one, hand.now)
            await hand.add_link(one.memory.id, kept[0].memory.id, MERGED_INTO)  # a purge of that one takes this one too
        gone += len(kept) - 1
    return gone


def _prepare_merged(kept: list[Kept]) -> PreparedMemory:
    one = prepare_memory(_merge_drafts([k.memory for k in kept]), kept[0].memory.created)
    return one._replace(happened=kept[0].happened)


def _merge_drafts(group: list[Memory]) -> Draft:
    tags = {tag_key(tag): tag for memory in reversed(group) for tag in memory.tags}
    facts: dict[str, Any] = {}
    for memory in reversed(group):
        facts |= memory.metadata
    newest = group[0]
    importance = max(memory.importance for memory in group)
    return Draft(newest.content, tuple(tags.values())[:100], newest.memory_type, facts, importance)


async def strengthen(hand: ChangeContext, number: int) -> bool:
    """Let a memory that others bear out count for a little more."""
    kept = await hand.find_live(number)
    if kept is None or kept.memory.importance >= MAX_IMPORTANCE:
        return False
    return await _set_importance(
        hand, kept, min(kept.memory.importance + SUPPORT_IMPORTANCE_GAIN, MAX_IMPORTANCE), STRENGTHENED
    )


async def record_contradiction(hand: ChangeContext, pattern: Pattern) -> bool:
    """Say which newer memory contradicts an older one; where that is certain, let the older count for less, once."""
    older, newer = [await hand.find_live(number) for number in pattern.evidence]
    if older is None or newer is None or (_is_agent_statement(newer.memory) and not _is_agent_statement(older.memory)):
        return False
    first = not await rows.has_live_link(hand.tx, hand.scope_id, older.memory.id, CONTRADICTED_BY)
    await hand.add_link(older.memory.id, newer.memory.id, CONTRADICTED_BY)
    if not (first and pattern.details.get("certain")) or await _find_owner_importance(hand, older) > DEFAULT_IMPORTANCE:
        return False
    return await _set_importance(hand, older, older.memory.importance * CONTRADICTED_FACTOR, FADED)


def _is_agent_statement(memory: Memory) -> bool:
    """Tell whether a memory is what an agent said, which may be what any page says: it takes no other's place."""
    return memory.metadata.get("role") == "assistant"


async def _find_owner_importance(hand: ChangeContext, kept: Kept) -> float:
    """Return the importance that a memory's owner gave it, before consolidation weighed it."""
    given: float | None = None
    for change in await history_rows.list_changes(hand.tx, hand.scope_id, kept.memory.id):
        if change.action not in (STRENGTHENED, FADED, UNFADED, RELATED_ACTION):
            given = None
        elif given is None and change.before and "importance" in change.before:
            given = float(change.before["importance"])
    return kept.memory.importance if given is None else given


async def restore_faded(hand: ChangeContext) -> None:
    """Give memories back what they counted for, where all that contradicted them is gone."""
    for step in await history_rows.list_last_changes(hand.tx, hand.scope_id, FADED, UNFADED):
        kept = await hand.find_live(step.memory) if step.action == FADED else None
        if kept is None or await rows.has_live_link(hand.tx, hand.scope_id, step.memory, CONTRADICTED_BY):
            continue
        before = (step.before or {})["importance"]
        if kept.memory.importance == round(before * CONTRADICTED_FACTOR, 4):  # nobody has weighed it since
            await _set_importance(hand, kept, before, UNFADED)


async def _set_importance(hand: ChangeContext, kept: Kept, importance: float, action: str) -> bool:
    await hand.add_history(kept, action)
    await rows.update_memory_row(hand.tx, kept, {"importance": round(importance, 4), "updated": hand.now})
    return True


def is_lesson(pattern: Pattern) -> bool:
    """Tell whether a pattern says what to do or to leave: steps that make success or failure much likelier."""
    return (
        pattern.type == "sequence"
        and pattern.support >= MIN_LESSON_SUPPORT
        and pattern.details["lift"] >= MIN_LESSON_LIFT
    )


async def promote(hand: ChangeContext, pattern: Pattern, earlier: int | None) -> tuple[int | None, bool]:
    """Make a memory of a pattern, or bring the one made of it up to date; tell which it is, and whether it is new.

    What somebody wrote, changed or forgot is left alone.
    """
    draft = Draft(
        pattern.summary, (), LESSON_TYPE,
        {PATTERN_KEY: pattern.type, "support": pattern.support, "confidence": pattern.confidence}, LESSON_IMPORTANCE,
    )  # fmt: skip
    one = prepare_memory(draft, hand.now)
    twin = await rows.find_memory_rows(hand.tx, [hand.scope_id], "m.digest = :digest", digest=one.digest)
    if earlier is None:
        if twin:
            return twin[0].memory.id if twin[0].deleted is None else None, False
        earlier = await write.insert_memory(hand.store, hand.tx, hand.scope_id, one, hand.now)
        await history_rows.insert_change(hand.tx, hand.scope_id, earlier, hand.call_id, hand.now, PROMOTED, None)
        new = True
    else:
        kept = await hand.find_live(earlier)
        if kept is None or twin or not await _is_untouched(hand, earlier):
            return earlier, False
        await hand.add_history(kept, PROMOTED)
        await write.rewrite_memory(hand.store, hand.tx, kept, one, hand.now)
        new = False
    for quoted in pattern.quotes:
        await hand.add_link(earlier, quoted, QUOTES_RELATION)
    return earlier, new


async def _is_untouched(hand: ChangeContext, number: int) -> bool:
    """Tell whether nobody but consolidation ever changed a memory that it made."""
    changes = await history_rows.list_changes(hand.tx, hand.scope_id, number)
    return [one.action for one in changes][:1] == [PROMOTED] and {one.action for one in changes} <= {
        PROMOTED,
        RELATED_ACTION,
    }


async def apply_patterns(
    hand: ChangeContext, scope: Scope, patterns: list[Pattern], supported: dict[str, list[int]], plan: StrategyPlan
) -> dict[str, Any]:
    """Do what the patterns call for; return counts and numbers, and no words."""
    done: dict[str, Any] = {"merged": 0, "strengthened": 0, "faded": 0, "promoted": 0, "patterns": [], "new": []}
    own = await scopes.ensure_scope(hand.tx, scope.with_kind("pattern"))
    live = await _find_live_evidence(hand.tx, scope, patterns)
    borne_out: dict[int, None] = {}
    if plan.min_acting_confidence is not None:
        await restore_faded(hand)
    for pattern in patterns:
        if not live.issuperset(pattern.quotes or pattern.evidence):
            continue  # forgotten or purged since it was read
        known = await consolidation_patterns.find_pattern_row(hand.tx, scope, pattern)
        more: dict[str, Any] = {}
        if known is None or not await history_rows.was_ever_undone(hand.tx, known.scope, known.memory.id):
            more = await _apply_pattern(hand, pattern, known, plan, supported, done, borne_out)
        number, what = await consolidation_patterns.save_pattern(
            hand.store, hand.tx, own, pattern, known, more, hand.call_id
        )
        done["patterns"].append(number)
        done["new"] += [number] if what == "new" else []
    for memory in borne_out:  # each once, and after all that fades
        done["strengthened"] += await strengthen(hand, memory)
    return done


async def _apply_pattern(
    hand: ChangeContext,
    pattern: Pattern,
    known: Kept | None,
    plan: StrategyPlan,
    supported: dict[str, list[int]],
    done: dict[str, Any],
    borne_out: dict[int, None],
) -> dict[str, Any]:
    """Change memories as a pattern calls for; return what its row is to say of that."""
    more: dict[str, Any] = {}
    if (
        plan.merges_duplicates
        and pattern.details.get("same")
        and (gone := await merge_duplicates(hand, pattern.details["same"]))
    ):
        done["merged"] += gone
        more["merged"] = True
    if plan.min_acting_confidence is None or pattern.confidence < plan.min_acting_confidence:
        return more
    facts = known.memory.metadata if known is not None else {}
    if not facts.get(ACTED_KEY):
        faded = pattern.type == "contradiction" and await record_contradiction(hand, pattern)
        done["faded"] += faded
        if faded or pattern.type != "contradiction":
            borne_out |= dict.fromkeys(supported.get(consolidation_patterns.build_pattern_key(pattern), ()))
    if is_lesson(pattern) and (not facts.get(ACTED_KEY) or facts.get("memory") is not None):
        memory, new = await promote(hand, pattern, facts.get("memory"))
        done["promoted"] += new
        more |= {"memory": memory} if memory is not None else {}
    return more | {ACTED_KEY: True}


async def _find_live_evidence(tx: Transaction, scope: Scope, patterns: list[Pattern]) -> set[int]:
    """Return what patterns rest on that is still there."""
    numbers = [number for kind in INPUT_KINDS for number in await scopes.fetch_own_ids(tx, scope.with_kind(kind))]
    return await storage.find_live_ids(tx, numbers, {n for one in patterns for n in one.quotes or one.evidence})


def find_supported_memories(patterns: list[Pattern], material: ConsolidationInput) -> dict[str, list[int]]:
    """Return for each pattern the memories that it bears out: what is said twice, is newer, or recurs."""
    found: dict[str, list[int]] = {}
    words = [(note.id, compute_signature(note.text)) for note in material.memories]
    for pattern in patterns:
        if pattern.type == "near_duplicate":
            found[consolidation_patterns.build_pattern_key(pattern)] = [pattern.evidence[0]]
        elif pattern.type == "contradiction":
            found[consolidation_patterns.build_pattern_key(pattern)] = [pattern.evidence[-1]]
        elif pattern.type == "recurring":
            core = frozenset(pattern.about.partition(": ")[2].split())
            found[consolidation_patterns.build_pattern_key(pattern)] = (
                [n for n, said in words if core <= said] if len(core) > 1 else []
            )
    return found
