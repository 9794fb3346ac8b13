"""Patterns as they are kept: rows of a kind of their own, found again by what they are about."""

from collections.abc import Sequence
from typing import Any

from athena.core.hashing import hash_text
from athena.core.scope import Scope
from athena.memory import history, link_rows, rows, write_rows
from athena.memory.consolidation.findings import Pattern
from athena.memory.consolidation.values import Found
from athena.memory.link_rows import QUOTED_RELATION, QUOTES_RELATION
from athena.memory.prepare import prepare_memory
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, Draft, Memory
from athena.storage import scopes
from athena.storage.database import Transaction

MAX_EVIDENCE_IDS = 200  # ids that are kept of a pattern, the newest; its support says how many there are
ACTED_KEY = f"{RESERVED_PREFIX}acted"  # metadata of a pattern on whose account memories were changed
RESERVED_KEYS = ("session_id", "support", "evidence", "memory", "merged")


def build_pattern_key(pattern: Pattern) -> str:
    return f"pattern:{hash_text(pattern.about, pattern.type)[:24]}"


def row_to_pattern(row: Memory, *, new: bool = False) -> Found:
    """Show a kept pattern."""
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


async def find_pattern_row(tx: Transaction, scope: Scope, pattern: Pattern) -> Kept | None:
    """Return the row of a pattern, forgotten ones too."""
    numbers = await scopes.fetch_own_ids(tx, scope.with_kind("pattern"))
    found = await rows.find_memory_rows(tx, numbers, "m.session = :key", key=build_pattern_key(pattern))
    return found[0] if found else None


async def save_pattern(
    store: Store, tx: Transaction, scope: int, pattern: Pattern, kept: Kept | None, more: dict[str, Any], call: int
) -> tuple[int, str]:
    """Write a pattern, or bring its row up to date; return its number and what that did."""
    now = store.clock()
    facts = {
        "session_id": build_pattern_key(pattern), "support": pattern.support, "evidence": list(pattern.evidence[-MAX_EVIDENCE_IDS:]),
        **pattern.details, **more,
    }  # fmt: skip
    if kept is not None and kept.deleted is None:
        facts = {
            name: kept.memory.metadata[name] for name in ("memory", "merged", ACTED_KEY) if name in kept.memory.metadata
        } | facts
    draft = Draft(pattern.summary, (pattern.type,), pattern.type, facts, pattern.confidence)
    one = prepare_memory(draft, now)
    if kept is None:
        number = await write_rows.insert_memory(store, tx, scope, one, now)
        await history.insert_change(tx, scope, number, call, now, "found", None)
        done = "new"
    else:
        number = kept.memory.id
        m = kept.memory
        same = (m.content, m.metadata, m.importance) == (draft.content, facts, draft.importance)
        if kept.deleted is None and same:
            return number, "known"
        await history.insert_change(tx, scope, number, call, now, "found again", kept.to_snapshot())
        await write_rows.rewrite_memory(store, tx, kept, one, now)
        done = "new" if kept.deleted is not None else "changed"
    await _update_quotes(tx, scope, number, pattern.quotes, now)
    return number, done


async def _update_quotes(tx: Transaction, scope: int, number: int, quotes: Sequence[int], now: float) -> None:
    """Link a pattern to what it repeats; what it repeated before stays linked, since its history holds the words."""
    for other in await link_rows.list_linked_ids(tx, scope, number, QUOTES_RELATION):
        if other not in quotes:
            await link_rows.delete_link(tx, scope, number, other, QUOTES_RELATION)
            await link_rows.insert_link(tx, scope, number, other, QUOTED_RELATION, now)
    for other in quotes:
        await link_rows.insert_link(tx, scope, number, other, QUOTES_RELATION, now)
