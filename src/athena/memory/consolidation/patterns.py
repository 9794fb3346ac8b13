"""Store patterns and read them back; a pattern is a memory of kind `pattern`."""

from collections.abc import Sequence
from typing import Any

from athena.core.hashing import hash_text
from athena.core.values import Page, Scope
from athena.errors import NotFound
from athena.memory import history_rows, link_rows, write
from athena.memory import rows as memory_rows
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.read import INPUT_KINDS
from athena.memory.consolidation.values import Evidence, Found, Pattern, WithEvidence
from athena.memory.lookup import Ref, locate
from athena.memory.prepare import prepare_memory
from athena.memory.rows import QUOTED_BEFORE_RELATION, QUOTES_RELATION, MemoryRow
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, Draft, Memory, format_preview
from athena.storage import scopes
from athena.storage.database import Transaction

MAX_EVIDENCE_IDS = 200  # the newest; `support` has the full count
ACTED_KEY = f"{RESERVED_PREFIX}acted"  # marks a pattern that memories were changed for
RESERVED_KEYS = ("session_id", "support", "evidence", "memory", "merged")


def build_pattern_key(pattern: Pattern) -> str:
    return f"pattern:{hash_text(pattern.about, pattern.type)[:24]}"


def row_to_pattern(row: Memory, *, new: bool = False) -> Found:
    """Return a stored pattern as its result value."""
    facts = row.metadata
    details = {
        name: value
        for name, value in facts.items()
        if name not in RESERVED_KEYS and not name.startswith(RESERVED_PREFIX)
    }
    return Found(
        row.id, row.memory_type, row.content, row.importance, int(facts.get("support", 0)),
        tuple(facts.get("evidence", ())), bool(facts.get("merged")), new, facts.get("memory"), details,
    )  # fmt: skip


async def find_pattern_row(tx: Transaction, scope: Scope, pattern: Pattern) -> MemoryRow | None:
    """Return the row of a pattern, even if it was forgotten."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("pattern"))
    rows = await memory_rows.find_memory_rows(tx, scope_ids, "m.session = :key", key=build_pattern_key(pattern))
    return rows[0] if rows else None


async def save_pattern(
    store: Store,
    tx: Transaction,
    scope_id: int,
    pattern: Pattern,
    row: MemoryRow | None,
    more_facts: dict[str, Any],
    call_id: int,
) -> tuple[int, str]:
    """Insert a pattern or update its row; return its id and whether it is new, known or changed."""
    now = store.clock()
    marks = await consolidation_rows.fetch_marks(tx, pattern.evidence)  # its details count what all of it says
    facts = {
        "session_id": build_pattern_key(pattern),
        "support": pattern.support,
        "evidence": list(pattern.evidence[-MAX_EVIDENCE_IDS:]),
        **pattern.details,
        **more_facts,
    }
    if row is not None and row.deleted is None:
        old_facts = row.memory.metadata
        facts = {name: old_facts[name] for name in ("memory", "merged", ACTED_KEY) if name in old_facts} | facts
    draft = Draft(pattern.summary, (pattern.type,), pattern.type, facts, pattern.confidence)
    prepared = prepare_memory(draft, now)
    if row is None:
        pattern_id = await write.insert_memory(store, tx, scope_id, prepared, now)
        await history_rows.insert_change(tx, scope_id, pattern_id, call_id, now, "found", None)
        state = "new"
    else:
        old = row.memory
        pattern_id = old.id
        is_same = (old.content, old.metadata, old.importance) == (draft.content, facts, draft.importance)
        if row.deleted is None and is_same:
            await memory_rows.add_marks(tx, pattern_id, marks)
            return pattern_id, "known"
        await history_rows.insert_change(tx, scope_id, pattern_id, call_id, now, "found again", row.to_snapshot())
        await write.rewrite_memory(store, tx, row, prepared, now)
        state = "new" if row.deleted is not None else "changed"
    await _update_quotes(tx, scope_id, pattern_id, pattern.quotes, now)
    await memory_rows.add_marks(tx, pattern_id, marks)
    return pattern_id, state


async def _update_quotes(tx: Transaction, scope_id: int, pattern_id: int, quotes: Sequence[int], now: float) -> None:
    """Link a pattern to the memories that it quotes.

    Memories that only its history quotes stay linked by another relation, so that purging them reaches the history.
    """
    for memory_id in await link_rows.list_linked_ids(tx, scope_id, pattern_id, QUOTES_RELATION):
        if memory_id not in quotes:
            await link_rows.delete_link(tx, scope_id, pattern_id, memory_id, QUOTES_RELATION)
            await link_rows.insert_link(tx, scope_id, pattern_id, memory_id, QUOTED_BEFORE_RELATION, now)
    for memory_id in quotes:
        await link_rows.insert_link(tx, scope_id, pattern_id, memory_id, QUOTES_RELATION, now)


async def browse_patterns(
    store: Store, scope: Scope, pattern_type: str | None, min_confidence: float, limit: int, offset: int
) -> Page[Found]:
    """Return one page of patterns, the most certain first."""

    async def read_page(tx: Transaction) -> Page[Found]:
        scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("pattern"))
        rows, total = await consolidation_rows.list_pattern_rows(
            tx, scope_ids, pattern_type, min_confidence, limit, offset
        )
        return Page([row_to_pattern(row) for row in rows], total)

    return await store.database.read(read_page)


async def get_pattern(store: Store, ref: Ref, scope: Scope) -> WithEvidence:
    async def read_pattern(tx: Transaction) -> WithEvidence:
        pattern = row_to_pattern((await locate(tx, scope.with_kind("pattern"), ref)).memory)
        if not await consolidation_rows.has_all_sources(tx, pattern.id or 0):
            raise NotFound(
                f"the evidence of pattern {ref!r:.40} was deleted", hint="list_patterns shows the valid ones"
            )
        evidence: list[Evidence] = []
        for kind in INPUT_KINDS:
            scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind(kind))
            memories = await memory_rows.fetch_memories(tx, scope_ids, pattern.evidence)
            evidence += [
                Evidence(m.id, kind, format_preview(m.content), m.created, m.metadata.get("outcome"))
                for m in memories.values()
            ]
        fields: dict[str, Any] = {name: getattr(pattern, name) for name in Found.__dataclass_fields__}
        return WithEvidence(**fields, found_in=tuple(sorted(evidence, key=lambda item: item.id)))

    return await store.database.read(read_pattern)
