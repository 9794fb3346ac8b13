"""Skills as rows: the name is the row's session, the uses are how often it occurred after the first time."""

from typing import Any, NamedTuple

from athena.memory import rows as memory_rows
from athena.memory.rows import COLUMNS, FROM
from athena.memory.values import Memory

_SAVED = "h.action IN ('remembered', 'updated', 'revived') AND h.undone = 0"


class Row(NamedTuple):
    memory: Memory
    uses: int
    version: int


async def named(tx: Any, scope_numbers: list[int], name: str) -> Row | None:
    """Return the skill of a name: the project's own before one that is known everywhere."""
    found = await listed(tx, scope_numbers, "AND m.session = :name", name=name)
    return found[0] if found else None


async def listed(tx: Any, scope_numbers: list[int], more: str = "", **values: Any) -> list[Row]:
    """Return skills, the project's own first."""
    found: list[Row] = []
    for number in scope_numbers:
        rows = await tx.fetch(
            f"""SELECT {COLUMNS}, m.occurrences,
                   (SELECT count(*) FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND {_SAVED})
                {FROM} WHERE m.scope = :scope AND m.deleted IS NULL {more} ORDER BY m.id""",
            scope=number,
            **values,
        )
        found += [Row(memory_rows.as_memory(row), int(row[10]) - 1, int(row[11])) for row in rows]
    return found


async def lock(tx: Any, scope: int) -> None:
    """Let nobody else save a skill in this scope until this transaction ends."""
    await tx.execute("UPDATE scopes SET kind = kind WHERE id = :scope", scope=scope)
