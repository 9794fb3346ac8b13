"""Patterns, which are kept as memories of a kind of their own: how sure each is, is its importance."""

from collections.abc import Iterable
from typing import Any

from athena.memory.link_rows import QUOTES_RELATION
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, memory_from_row
from athena.memory.values import Memory
from athena.storage.database import bind_list as named
from athena.storage.database import split_batches

# What a pattern repeats the words of is all there.
SOURCES_EXIST_SQL = f"""NOT EXISTS (SELECT 1 FROM links l WHERE l.scope = m.scope AND l.memory = m.id AND l.relation = '{QUOTES_RELATION}'
    AND NOT EXISTS (SELECT 1 FROM memories q WHERE q.id = l.other AND q.deleted IS NULL))"""


async def list_pattern_rows(
    tx: Any, scope_numbers: list[int], kind: str | None, least: float, limit: int, offset: int
) -> tuple[list[Memory], int]:
    """Return patterns, the surest first, and how many there are."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    condition = f"m.scope IN ({inside}) AND m.deleted IS NULL AND m.importance >= :least AND {SOURCES_EXIST_SQL}"
    values: dict[str, Any] = {"least": least}
    if kind is not None:
        condition += " AND m.memory_type = :kind"
        values["kind"] = kind
    rows = await tx.fetch(
        f"SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition} ORDER BY m.importance DESC, m.id LIMIT :limit OFFSET :offset",
        limit=limit,
        offset=offset,
        **values,
    )
    total = await tx.fetch_one(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return [memory_from_row(row) for row in rows], int(total[0])


async def has_all_sources(tx: Any, pattern: int) -> bool:
    """Tell whether all that a pattern repeats the words of is still there."""
    return (
        await tx.fetch_one(f"SELECT 1 FROM memories m WHERE m.id = :id AND {SOURCES_EXIST_SQL}", id=pattern) is not None
    )


async def find_live_ids(tx: Any, scope_numbers: list[int], numbers: Iterable[int]) -> set[int]:
    """Return which of these are still there."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: set[int] = set()
    for piece in split_batches(list(numbers)):
        names, bound = named("id", piece)
        rows = await tx.fetch(
            f"SELECT id FROM memories WHERE scope IN ({inside}) AND id IN ({names}) AND deleted IS NULL", **bound
        )
        found |= {row[0] for row in rows}
    return found
