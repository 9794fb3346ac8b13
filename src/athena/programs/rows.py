"""Skills as rows: the name is the row's session, the uses are how often it occurred after the first time."""

from typing import Any, NamedTuple

from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS
from athena.memory.values import Memory

_SAVED_CHANGE_SQL = "h.action IN ('remembered', 'updated', 'revived') AND h.undone = 0"


class SkillRow(NamedTuple):
    memory: Memory
    uses: int
    version: int


async def fetch_skill(tx: Any, scope_numbers: list[int], name: str) -> SkillRow | None:
    """Return the skill of a name: the project's own before one that is known everywhere."""
    found = await list_skill_rows(tx, scope_numbers, "AND m.session = :name", name=name)
    return found[0] if found else None


async def list_skill_rows(tx: Any, scope_numbers: list[int], more: str = "", **values: Any) -> list[SkillRow]:
    """Return skills, the project's own first."""
    found: list[SkillRow] = []
    for number in scope_numbers:
        rows = await tx.fetch(
            f"""SELECT {MEMORY_COLUMNS}, m.occurrences,
                   (SELECT count(*) FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND {_SAVED_CHANGE_SQL})
                {FROM_MEMORIES} WHERE m.scope = :scope AND m.deleted IS NULL {more} ORDER BY m.id""",
            scope=number,
            **values,
        )
        found += [SkillRow(memory_rows.memory_from_row(row), int(row[10]) - 1, int(row[11])) for row in rows]
    return found


async def lock_skills(tx: Any, scope: int) -> None:
    """Let nobody else save a skill in this scope until this transaction ends."""
    await tx.execute("UPDATE scopes SET kind = kind WHERE id = :scope", scope=scope)
