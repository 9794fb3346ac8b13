"""Looking at the patterns that were found."""

from collections.abc import Sequence
from typing import Any

from athena.core.hashing import hash_text
from athena.core.values import Page, Scope
from athena.errors import NotFound
from athena.memory import history_rows, rows, write
from athena.memory import rows as memory_rows
from athena.memory.consolidation import rows as consolidation_rows
from athena.memory.consolidation.read import INPUT_KINDS
from athena.memory.consolidation.values import Evidence, Found, Pattern, WithEvidence
from athena.memory.lookup import Ref, locate
from athena.memory.prepare import prepare_memory
from athena.memory.rows import QUOTED_RELATION, QUOTES_RELATION, Kept
from athena.memory.store import Store
from athena.memory.values import RESERVED_PREFIX, Draft, Memory, format_preview
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
        number = await write.insert_memory(store, tx, scope, one, now)
        await history_rows.insert_change(tx, scope, number, call, now, "found", None)
        done = "new"
    else:
        number = kept.memory.id
        m = kept.memory
        same = (m.content, m.metadata, m.importance) == (draft.content, facts, draft.importance)
        if kept.deleted is None and same:
            return number, "known"
        await history_rows.insert_change(tx, scope, number, call, now, "found again", kept.to_snapshot())
        await write.rewrite_memory(store, tx, kept, one, now)
        done = "new" if kept.deleted is not None else "changed"
    await _update_quotes(tx, scope, number, pattern.quotes, now)
    return number, done


async def _update_quotes(tx: Transaction, scope: int, number: int, quotes: Sequence[int], now: float) -> None:
    """Link a pattern to what it repeats; what it repeated before stays linked, since its history holds the words."""
    for other in await rows.list_linked_ids(tx, scope, number, QUOTES_RELATION):
        if other not in quotes:
            await rows.delete_link(tx, scope, number, other, QUOTES_RELATION)
            await rows.insert_link(tx, scope, number, other, QUOTED_RELATION, now)
    for other in quotes:
        await rows.insert_link(tx, scope, number, other, QUOTES_RELATION, now)


async def browse_patterns(
    store: Store, scope: Scope, kind: str | None, least: float, limit: int, offset: int
) -> Page[Found]:
    """Return patterns, the surest first."""

    async def read_page(tx: Transaction) -> Page[Found]:
        numbers = await scopes.fetch_visible_ids(tx, scope.with_kind("pattern"))
        rows, total = await consolidation_rows.list_pattern_rows(tx, numbers, kind, least, limit, offset)
        return Page([row_to_pattern(row) for row in rows], total)

    return await store.database.read(read_page)


async def get_pattern(store: Store, ref: Ref, scope: Scope) -> WithEvidence:
    async def read_pattern(tx: Transaction) -> WithEvidence:
        found = row_to_pattern((await locate(tx, scope.with_kind("pattern"), ref)).memory)
        if not await consolidation_rows.has_all_sources(tx, found.id or 0):
            raise NotFound(f"what pattern {ref!r:.40} rests on is gone", hint="list_patterns shows those that stand")
        rests: list[Evidence] = []
        for kind in INPUT_KINDS:
            rows = await memory_rows.fetch_memories(
                tx, await scopes.fetch_visible_ids(tx, scope.with_kind(kind)), found.evidence
            )
            rests += [
                Evidence(m.id, kind, format_preview(m.content), m.created, m.metadata.get("outcome"))
                for m in rows.values()
            ]
        fields: dict[str, Any] = {name: getattr(found, name) for name in Found.__dataclass_fields__}
        return WithEvidence(**fields, found_in=tuple(sorted(rests, key=lambda one: one.id)))

    return await store.database.read(read_pattern)
