"""SQL of skills: a skill is a memory whose session is its name and whose occurrences after the first are its uses."""

from typing import Any, NamedTuple

from athena.errors import LimitExceeded
from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS
from athena.memory.values import Memory
from athena.storage.database import Transaction

MAX_SKILLS, MAX_SKILLS_CHARS = 1_000, 4_000_000  # of a project
_SAVED_CHANGE_SQL = "h.action IN ('remembered', 'updated', 'revived') AND h.undone = 0"


class SkillRow(NamedTuple):
    memory: Memory
    uses: int
    version: int


async def fetch_skill(tx: Transaction, scope_ids: list[int], name: str) -> SkillRow | None:
    """Return the skill of a name: a person's before a program's, and the project's own before one of the user."""
    skills = await list_skill_rows(tx, scope_ids, "AND m.session = :name", name=name)
    return skills[0] if skills else None


async def list_skill_rows(tx: Transaction, scope_ids: list[int], condition: str = "", **values: Any) -> list[SkillRow]:
    """Return the skills of the scopes in their order, which has the project's own first; those of a person before all.

    The first of a name is the one that runs: what a program saved hides nothing of a person.
    """
    skills: list[SkillRow] = []
    for scope_id in scope_ids:
        rows = await tx.fetch(
            f"""SELECT {MEMORY_COLUMNS}, m.occurrences,
                   (SELECT count(*) FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND {_SAVED_CHANGE_SQL})
                {FROM_MEMORIES} WHERE m.scope = :scope AND m.deleted IS NULL {condition} ORDER BY m.id""",
            scope=scope_id,
            **values,
        )
        skills += [SkillRow(memory_rows.memory_from_row(row), int(row[-2]) - 1, int(row[-1])) for row in rows]
    return sorted(skills, key=lambda skill: skill.memory.author != "person")


async def check_room(tx: Transaction, scope: int, name: str, chars: int) -> None:
    """Raise LimitExceeded if a scope has no room for a skill: every program that names skills loads them all."""
    row = await tx.fetch_required(
        """SELECT count(*), coalesce(sum(length(content)), 0) FROM memories
           WHERE scope = :scope AND deleted IS NULL AND session <> :name""",
        scope=scope,
        name=name,
    )
    count, used = int(row[0]), int(row[1])
    if count >= MAX_SKILLS or used + chars > MAX_SKILLS_CHARS:
        raise LimitExceeded(
            f"this project has {count:,} other skills with {used:,} characters; "
            f"at most {MAX_SKILLS:,} with {MAX_SKILLS_CHARS:,} are kept",
            hint="delete_skill makes room",
        )


async def lock_skills(tx: Transaction, scope: int) -> None:
    """Lock the skills of a scope until this transaction ends: an update of its row makes other writers wait."""
    await tx.execute("UPDATE scopes SET kind = kind WHERE id = :scope", scope=scope)
