"""Save the patterns of a run and change memories accordingly, all in one transaction.

A pattern is acted on once, and never again after a user has undone that.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core.values import Author, Scope
from athena.memory import history_rows, link_rows, topic_rows, write
from athena.memory import rows as memory_rows
from athena.memory.consolidation import patterns as consolidation_patterns
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.events import compute_signature
from athena.memory.consolidation.patterns import ACTED_KEY
from athena.memory.consolidation.read import INPUT_KINDS, PATTERN_KEY, ConsolidationInput
from athena.memory.consolidation.stages import StrategyPlan, compute_identity
from athena.memory.consolidation.values import Pattern
from athena.memory.prepare import PreparedMemory, prepare_memory
from athena.memory.rows import CONTRADICTED_BY, MERGED_INTO, QUOTES_RELATION, RELATED_ACTION, MemoryRow
from athena.memory.store import Store
from athena.memory.values import Draft, Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

SUPPORT_IMPORTANCE_GAIN = 0.05
CONTRADICTED_FACTOR = 0.5  # of the importance of a contradicted memory
MAX_IMPORTANCE = 0.95
DEFAULT_IMPORTANCE = Draft("").importance
STRENGTHENED, FADED, UNFADED, PROMOTED = "strengthened", "faded", "no longer faded", "promoted"  # actions in history
LESSON_TYPE = "lesson"
LESSON_IMPORTANCE = 0.3  # less than that of a memory that a person or agent wrote
MIN_LESSON_SUPPORT = 5
MIN_LESSON_LIFT = 2.0  # how many times likelier than usual the outcome must be


class ChangeContext(NamedTuple):
    """The transaction, scope, call and time of the changes."""

    store: Store
    tx: Transaction
    scope_id: int  # of the project's memories
    call_id: int
    now: float

    async def find_live(self, memory_id: int) -> MemoryRow | None:
        rows = await memory_rows.find_memory_rows(self.tx, [self.scope_id], "m.id = :id", id=memory_id)
        return rows[0] if rows and rows[0].deleted is None else None

    async def add_history(self, row: MemoryRow, action: str) -> None:
        await history_rows.insert_change(
            self.tx, self.scope_id, row.memory.id, self.call_id, self.now, action, row.to_snapshot()
        )

    async def add_link(self, memory_id: int, other_id: int, relation: str) -> None:
        await link_rows.insert_recorded_link(
            self.tx, self.scope_id, memory_id, other_id, relation, self.now, self.call_id
        )

    async def is_contradicted(self, memory_id: int) -> bool:
        return bool(await topic_rows.fetch_contradictions(self.tx, [self.scope_id], [memory_id]))


async def merge_duplicates(context: ChangeContext, groups: Sequence[Sequence[int]]) -> int:
    """Merge each group into its newest memory, with the tags and facts of all; return how many were removed."""
    removed = 0
    for ids in groups:
        live = [row for memory_id in ids if (row := await context.find_live(memory_id)) is not None]
        # Compared again, because a memory may have changed since the run read it.
        rows = [row for row in live if compute_identity(row.memory) == compute_identity(live[0].memory)]
        if len(rows) < 2:
            continue
        for row in rows:
            await context.add_history(row, "merged" if row is rows[0] else "merged away")
        await write.rewrite_memory(context.store, context.tx, rows[0], _prepare_merged(rows), context.now)
        marks = " ".join(row.private for row in rows)  # the tags and facts of all are its own now
        await memory_rows.add_marks(context.tx, rows[0].memory.id, marks.strip())
        for row in rows[1:]:
            await write.hide_memory(context.store, context.tx, row, context.now)
            # Purging the merged memory must purge this one, too.
            await context.add_link(row.memory.id, rows[0].memory.id, MERGED_INTO)
        removed += len(rows) - 1
    return removed


def _prepare_merged(rows: list[MemoryRow]) -> PreparedMemory:
    prepared = prepare_memory(_merge_drafts([row.memory for row in rows]), rows[0].memory.created)
    return prepared._replace(happened=rows[0].happened)


def _merge_drafts(memories: list[Memory]) -> Draft:
    tags = {tag_key(tag): tag for memory in reversed(memories) for tag in memory.tags}
    facts: dict[str, Any] = {}
    for memory in reversed(memories):
        facts |= memory.metadata
    newest = memories[0]
    importance = max(memory.importance for memory in memories)
    said_by_person = any(memory.author == "person" for memory in memories)  # they are the same text
    author: Author = "person" if said_by_person else newest.author
    return Draft(newest.content, tuple(tags.values())[:100], newest.memory_type, facts, importance, author=author)


async def strengthen(context: ChangeContext, memory_id: int, marks: str) -> bool:
    """Raise the importance of a memory that others support, with these marks; return whether it changed."""
    row = await context.find_live(memory_id)
    if row is None or row.memory.importance >= MAX_IMPORTANCE:
        return False
    importance = min(row.memory.importance + SUPPORT_IMPORTANCE_GAIN, MAX_IMPORTANCE)
    return await _set_importance(context, row, importance, STRENGTHENED, marks)


async def record_contradiction(context: ChangeContext, pattern: Pattern) -> bool:
    """Link an older memory to the newer one that contradicts it; if certain, halve its importance once.

    Return whether the importance changed.
    """
    older, newer = [await context.find_live(memory_id) for memory_id in pattern.evidence]
    if older is None or newer is None or (_is_agent_statement(newer.memory) and not _is_agent_statement(older.memory)):
        return False
    is_first = not await context.is_contradicted(older.memory.id)
    await context.add_link(older.memory.id, newer.memory.id, CONTRADICTED_BY)
    if (
        not (is_first and pattern.details.get("certain"))
        or await _find_owner_importance(context, older) > DEFAULT_IMPORTANCE
    ):
        return False
    return await _set_importance(context, older, older.memory.importance * CONTRADICTED_FACTOR, FADED, newer.private)


def _is_agent_statement(memory: Memory) -> bool:
    """Return whether no person said it: agents repeat what any page says, so it overrules no person."""
    return memory.author != "person"


async def _find_owner_importance(context: ChangeContext, row: MemoryRow) -> float:
    """Return the importance that a memory had before consolidation changed it."""
    importance: float | None = None
    for change, action in await history_rows.list_actions(context.tx, context.scope_id, row.memory.id):
        if action not in (STRENGTHENED, FADED, UNFADED, RELATED_ACTION):
            importance = None
        elif importance is None:
            importance = (await history_rows.fetch_before(context.tx, context.scope_id, change)).get("importance")
    return row.memory.importance if importance is None else float(importance)


async def restore_faded(context: ChangeContext) -> None:
    """Restore the importance of faded memories whose contradicting memories are all deleted."""
    for change in await history_rows.list_last_changes(context.tx, context.scope_id, FADED, UNFADED):
        row = await context.find_live(change.memory) if change.action == FADED else None
        if row is None or await context.is_contradicted(change.memory):
            continue
        before = (await history_rows.fetch_before(context.tx, change.scope, change.id))["importance"]
        if row.memory.importance == round(before * CONTRADICTED_FACTOR, 4):  # unchanged since
            await _set_importance(context, row, before, UNFADED, row.private)


async def _set_importance(context: ChangeContext, row: MemoryRow, importance: float, action: str, marks: str) -> bool:
    """Change the importance for a reason with these marks: a program may have left the reason as a sign."""
    await context.add_history(row, action)
    await memory_rows.add_marks(context.tx, row.memory.id, marks)
    await memory_rows.update_memory_row(context.tx, row, {"importance": round(importance, 4), "updated": context.now})
    return True


def is_lesson(pattern: Pattern) -> bool:
    """Return whether a pattern tells what to do or to avoid: steps that make an outcome much likelier."""
    return (
        pattern.type == "sequence"
        and pattern.support >= MIN_LESSON_SUPPORT
        and pattern.details["lift"] >= MIN_LESSON_LIFT
    )


async def promote(context: ChangeContext, pattern: Pattern, memory_id: int | None) -> tuple[int | None, bool]:
    """Store a pattern as a memory or update that memory; return its id and whether it is new.

    A memory that a person or agent wrote, changed or forgot stays as it is.
    """
    draft = Draft(
        pattern.summary, (), LESSON_TYPE,
        {PATTERN_KEY: pattern.type, "support": pattern.support, "confidence": pattern.confidence}, LESSON_IMPORTANCE,
    )  # fmt: skip
    prepared = prepare_memory(draft, context.now)
    equal_rows = await memory_rows.find_memory_rows(
        context.tx, [context.scope_id], "m.digest = :digest", digest=prepared.digest
    )
    if memory_id is None:
        if equal_rows:
            return equal_rows[0].memory.id if equal_rows[0].deleted is None else None, False
        memory_id = await write.insert_memory(context.store, context.tx, context.scope_id, prepared, context.now)
        await history_rows.insert_change(
            context.tx, context.scope_id, memory_id, context.call_id, context.now, PROMOTED, None
        )
        is_new = True
    else:
        row = await context.find_live(memory_id)
        if row is None or equal_rows or not await _is_untouched(context, memory_id):
            return memory_id, False
        await context.add_history(row, PROMOTED)
        await write.rewrite_memory(context.store, context.tx, row, prepared, context.now)
        is_new = False
    for quoted_id in pattern.quotes:
        await context.add_link(memory_id, quoted_id, QUOTES_RELATION)
    return memory_id, is_new


async def _is_untouched(context: ChangeContext, memory_id: int) -> bool:
    """Return whether only consolidation has changed a memory that it created."""
    actions = [action for _, action in await history_rows.list_actions(context.tx, context.scope_id, memory_id)]
    return actions[:1] == [PROMOTED] and set(actions) <= {PROMOTED, RELATED_ACTION}


async def apply_patterns(
    context: ChangeContext, scope: Scope, patterns: list[Pattern], supported: dict[str, list[int]], plan: StrategyPlan
) -> dict[str, Any]:
    """Save the patterns and change memories accordingly; return counts and ids, no texts."""
    result: dict[str, Any] = {"merged": 0, "strengthened": 0, "faded": 0, "promoted": 0, "patterns": [], "new": []}
    pattern_scope_id = await scopes.ensure_scope(context.tx, scope.with_kind("pattern"))
    live_ids = await _find_live_evidence(context.tx, scope, patterns)
    to_strengthen: dict[int, str] = {}
    if plan.min_acting_confidence is not None:
        await restore_faded(context)
    for pattern in patterns:
        if not live_ids.issuperset(pattern.quotes or pattern.evidence):
            continue  # forgotten or purged since the run read it
        row = await consolidation_patterns.find_pattern_row(context.tx, scope, pattern)
        facts: dict[str, Any] = {}
        if row is None or not await history_rows.was_ever_undone(context.tx, row.scope, row.memory.id):
            facts = await _apply_pattern(context, pattern, row, plan, supported, result, to_strengthen)
        pattern_id, state = await consolidation_patterns.save_pattern(
            context.store, context.tx, pattern_scope_id, pattern, row, facts, context.call_id
        )
        result["patterns"].append(pattern_id)
        result["new"] += [pattern_id] if state == "new" else []
    for memory_id, marks in to_strengthen.items():  # each once, and after all that fade
        result["strengthened"] += await strengthen(context, memory_id, marks)
    return result


async def _apply_pattern(
    context: ChangeContext,
    pattern: Pattern,
    row: MemoryRow | None,
    plan: StrategyPlan,
    supported: dict[str, list[int]],
    result: dict[str, Any],
    to_strengthen: dict[int, str],
) -> dict[str, Any]:
    """Change memories for a pattern; return the metadata that its row gets for that."""
    facts: dict[str, Any] = {}
    same = pattern.details.get("same")
    if plan.merges_duplicates and same and (removed := await merge_duplicates(context, same)):
        result["merged"] += removed
        facts["merged"] = True
    if plan.min_acting_confidence is None or pattern.confidence < plan.min_acting_confidence:
        return facts
    old_facts = row.memory.metadata if row is not None else {}
    if not old_facts.get(ACTED_KEY):
        faded = pattern.type == "contradiction" and await record_contradiction(context, pattern)
        result["faded"] += faded
        if faded or pattern.type != "contradiction":
            marks = await consolidation_rows.fetch_marks(context.tx, pattern.evidence)
            for target in supported.get(consolidation_patterns.build_pattern_key(pattern), ()):
                to_strengthen[target] = f"{to_strengthen.get(target, '')} {marks}".strip()
    if is_lesson(pattern) and (not old_facts.get(ACTED_KEY) or old_facts.get("memory") is not None):
        memory_id, is_new = await promote(context, pattern, old_facts.get("memory"))
        result["promoted"] += is_new
        facts |= {"memory": memory_id} if memory_id is not None else {}
    return facts | {ACTED_KEY: True}


async def _find_live_evidence(tx: Transaction, scope: Scope, patterns: list[Pattern]) -> set[int]:
    """Return the ids of the patterns' quotes or evidence that still exist."""
    scope_ids = [scope_id for kind in INPUT_KINDS for scope_id in await scopes.fetch_own_ids(tx, scope.with_kind(kind))]
    wanted = {memory_id for pattern in patterns for memory_id in pattern.quotes or pattern.evidence}
    return await consolidation_rows.find_live_ids(tx, scope_ids, wanted)


def find_supported_memories(patterns: list[Pattern], run_input: ConsolidationInput) -> dict[str, list[int]]:
    """Return the memories that each pattern supports: the repeated one, the newer one, or those about what recurs."""
    supported: dict[str, list[int]] = {}
    signatures = [(memory.id, compute_signature(memory.text)) for memory in run_input.memories]
    for pattern in patterns:
        key = consolidation_patterns.build_pattern_key(pattern)
        if pattern.type == "near_duplicate":
            supported[key] = [pattern.evidence[0]]
        elif pattern.type == "contradiction":
            supported[key] = [pattern.evidence[-1]]
        elif pattern.type == "recurring":
            core = frozenset(pattern.about.partition(": ")[2].split())
            supported[key] = [memory_id for memory_id, words in signatures if core <= words] if len(core) > 1 else []
    return supported
