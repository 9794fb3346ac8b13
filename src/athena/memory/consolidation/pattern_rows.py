"""Patterns as they are kept: rows of a kind of their own, found again by what they are about."""

from collections.abc import Sequence
from typing import Any

from athena.core.hashing import digest
from athena.core.scope import Scope
from athena.memory import history, link_rows, rows, write_rows
from athena.memory.consolidation.findings import Pattern
from athena.memory.consolidation.values import Found
from athena.memory.link_rows import QUOTED, QUOTES
from athena.memory.prepare import prepare
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import OURS, Draft, Memory
from athena.storage import scopes
from athena.storage.database import Transaction

EVIDENCE = 200  # ids that are kept of a pattern, the newest; its support says how many there are
ACTED = f"{OURS}acted"  # metadata of a pattern on whose account memories were changed
OWN = ("session_id", "support", "evidence", "memory", "merged")


def key(pattern: Pattern) -> str:
    return f"pattern:{digest(pattern.about, pattern.type)[:24]}"


def shown(row: Memory, *, new: bool = False) -> Found:
    """Show a kept pattern."""
    facts = row.metadata
    details = {name: value for name, value in facts.items() if name not in OWN and not name.startswith(OURS)}
    return Found(
        row.id, row.memory_type, row.content, row.importance, int(facts.get("support", 0)),
        tuple(facts.get("evidence", ())), bool(facts.get("merged")), new, facts.get("memory"), details,
    )  # fmt: skip


async def known(tx: Transaction, scope: Scope, pattern: Pattern) -> Kept | None:
    """Return the row of a pattern, forgotten ones too."""
    numbers = await scopes.own(tx, scope.of("pattern"))
    found = await rows.find(tx, numbers, "m.session = :key", key=key(pattern))
    return found[0] if found else None


async def keep(
    store: Store, tx: Transaction, scope: int, pattern: Pattern, kept: Kept | None, more: dict[str, Any], call: int
) -> tuple[int, str]:
    """Write a pattern, or bring its row up to date; return its number and what that did."""
    now = store.clock()
    facts = {
        "session_id": key(pattern), "support": pattern.support, "evidence": list(pattern.evidence[-EVIDENCE:]),
        **pattern.details, **more,
    }  # fmt: skip
    if kept is not None and kept.deleted is None:
        facts = {
            name: kept.memory.metadata[name] for name in ("memory", "merged", ACTED) if name in kept.memory.metadata
        } | facts
    draft = Draft(pattern.summary, (pattern.type,), pattern.type, facts, pattern.confidence)
    one = prepare(draft, now)
    if kept is None:
        number = await write_rows.add(store, tx, scope, one, now)
        await history.add(tx, scope, number, call, now, "found", None)
        done = "new"
    else:
        number = kept.memory.id
        m = kept.memory
        same = (m.content, m.metadata, m.importance) == (draft.content, facts, draft.importance)
        if kept.deleted is None and same:
            return number, "known"
        await history.add(tx, scope, number, call, now, "found again", kept.snapshot())
        await write_rows.rewrite(store, tx, kept, one, now)
        done = "new" if kept.deleted is not None else "changed"
    await _quote(tx, scope, number, pattern.quotes, now)
    return number, done


async def _quote(tx: Transaction, scope: int, number: int, quotes: Sequence[int], now: float) -> None:
    """Link a pattern to what it repeats; what it repeated before stays linked, since its history holds the words."""
    for other in await link_rows.others(tx, scope, number, QUOTES):
        if other not in quotes:
            await link_rows.unlink(tx, scope, number, other, QUOTES)
            await link_rows.link(tx, scope, number, other, QUOTED, now)
    for other in quotes:
        await link_rows.link(tx, scope, number, other, QUOTES, now)
