"""SQL of skills: a skill is a memory whose session is its name and whose occurrences after the first are its uses."""

import json
from typing import Any, NamedTuple

from athena.errors import LimitExceeded
from athena.memory.rows import FROM_MEMORIES
from athena.storage import privacy
from athena.storage.database import Transaction

MAX_SKILLS, MAX_SKILLS_CHARS = 1_000, 4_000_000  # of a project, with what is derived from their code
_SAVED_CHANGE_SQL = "h.action IN ('remembered', 'updated', 'revived') AND h.undone = 0"


class SkillRow(NamedTuple):
    """A skill without its code, which is read once for each `version_key`."""

    id: int
    name: str
    project: str
    author: str
    updated: float
    uses: int
    version: int
    version_key: tuple[Any, ...]


async def list_skill_rows(tx: Transaction, scope_ids: list[int], condition: str = "", **values: Any) -> list[SkillRow]:
    """Return the skills of the scopes in their order, which has the project's own first; those of a person before all.

    The first of a name is the one that runs: what a program saved hides nothing of a person.
    """
    skills: list[SkillRow] = []
    for scope_id in scope_ids:
        rows = await tx.fetch(
            f"""SELECT m.id, m.session, s.name, m.author, m.updated, m.occurrences - 1,
                   (SELECT count(*) FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND {_SAVED_CHANGE_SQL}),
                   (SELECT max(h.id) FROM history h WHERE h.scope = m.scope AND h.memory = m.id), m.digest, m.private
                {FROM_MEMORIES} WHERE m.scope = :scope AND m.deleted IS NULL {condition} ORDER BY m.id""",
            scope=scope_id,
            **values,
        )
        for *columns, last_change, digest, private in rows:
            privacy.note_read(private)
            skills.append(SkillRow._make([*columns, (columns[0], columns[4], last_change, digest)]))
    return sorted(skills, key=lambda skill: skill.author != "person")


async def check_room(tx: Transaction, scope: int, name: str, content: str, metadata: dict[str, Any]) -> None:
    """Raise LimitExceeded if a scope has no room for a skill: every program that names skills loads them all."""
    chars = len(content) + len(json.dumps(metadata))
    row = await tx.fetch_required(
        """SELECT count(*), coalesce(sum(length(content) + length(metadata)), 0) FROM memories
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
