"""Patterns, which are kept as memories of a kind of their own: how sure each is, is its importance."""

from collections.abc import Iterable
from typing import Any

from athena.memory.link_rows import QUOTES
from athena.memory.rows import COLUMNS, FROM, as_memory
from athena.memory.values import Memory
from athena.storage.database import batched
from athena.storage.database import listed as named

# What a pattern repeats the words of is all there.
STANDS = f"""NOT EXISTS (SELECT 1 FROM links l WHERE l.scope = m.scope AND l.memory = m.id AND l.relation = '{QUOTES}'
    AND NOT EXISTS (SELECT 1 FROM memories q WHERE q.id = l.other AND q.deleted IS NULL))"""


async def listed(
    tx: Any, scope_numbers: list[int], kind: str | None, least: float, limit: int, offset: int
) -> tuple[list[Memory], int]:
    """Return patterns, the surest first, and how many there are."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    condition = f"m.scope IN ({inside}) AND m.deleted IS NULL AND m.importance >= :least AND {STANDS}"
    values: dict[str, Any] = {"least": least}
    if kind is not None:
        condition += " AND m.memory_type = :kind"
        values["kind"] = kind
    rows = await tx.fetch(
        f"SELECT {COLUMNS} {FROM} WHERE {condition} ORDER BY m.importance DESC, m.id LIMIT :limit OFFSET :offset",
        limit=limit,
        offset=offset,
        **values,
    )
    total = await tx.fetch_one(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return [as_memory(row) for row in rows], int(total[0])


async def stands(tx: Any, pattern: int) -> bool:
    """Tell whether all that a pattern repeats the words of is still there."""
    return await tx.fetch_one(f"SELECT 1 FROM memories m WHERE m.id = :id AND {STANDS}", id=pattern) is not None


async def live(tx: Any, scope_numbers: list[int], numbers: Iterable[int]) -> set[int]:
    """Return which of these are still there."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: set[int] = set()
    for piece in batched(list(numbers)):
        names, bound = named("id", piece)
        rows = await tx.fetch(
            f"SELECT id FROM memories WHERE scope IN ({inside}) AND id IN ({names}) AND deleted IS NULL", **bound
        )
        found |= {row[0] for row in rows}
    return found
