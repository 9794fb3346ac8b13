"""Patterns, which are kept as memories of a kind of their own: how sure each is, is its importance."""

from typing import Any

from athena.model.memory import Memory
from athena.storage.memories import COLUMNS, FROM, as_memory


async def listed(
    tx: Any, scope_numbers: list[int], kind: str | None, least: float, limit: int, offset: int
) -> tuple[list[Memory], int]:
    """Return patterns, the surest first, and how many there are."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    condition = f"m.scope IN ({inside}) AND m.deleted IS NULL AND m.importance >= :least"
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
