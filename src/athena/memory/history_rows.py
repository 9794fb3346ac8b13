"""What was changed, when, by which call, and what it was before."""

import json
from typing import Any, NamedTuple

from athena.memory.values import Change, strip_reserved_keys


class ChangeRow(NamedTuple):
    """One recorded change, as undo needs it."""

    id: int
    scope: int
    memory: int
    action: str
    before: dict[str, Any] | None


async def insert_change(
    tx: Any,
    scope: int,
    memory: int,
    call: int,
    at: float,
    action: str,
    before: dict[str, Any] | None,
    undone: bool = False,
) -> None:
    """Record a change. The old text's digest is kept beside it, so that an old hash still leads somewhere."""
    await tx.execute(
        """INSERT INTO history (scope, memory, call, at, action, digest, before, undone)
           VALUES (:scope, :memory, :call, :at, :action, :digest, :before, :undone)""",
        scope=scope,
        memory=memory,
        call=call,
        at=at,
        action=action,
        digest=before.get("digest") if before else None,
        before=json.dumps(before, ensure_ascii=False) if before is not None else None,
        undone=int(undone),
    )


async def list_changes(tx: Any, scope: int, memory: int) -> list[Change]:
    rows = await tx.fetch(
        """SELECT h.at, h.action, c.operation, h.before FROM history h LEFT JOIN calls c ON c.id = h.call
           WHERE h.scope = :scope AND h.memory = :memory ORDER BY h.id""",
        scope=scope,
        memory=memory,
    )
    return [Change(at, action, operation or "", _parse_before(before)) for at, action, operation, before in rows]


def _parse_before(before: str | None) -> dict[str, Any] | None:
    if before is None:
        return None
    fields: dict[str, Any] = json.loads(before)
    fields.pop("digest", None)
    if "metadata" in fields:
        fields["metadata"] = strip_reserved_keys(fields["metadata"])
    return fields


async def fetch_last_call_changes(tx: Any, project: str) -> list[ChangeRow]:
    """Return the steps of the newest call made in a project that is not undone, the latest first."""
    rows = await tx.fetch(
        """SELECT id, scope, memory, action, before FROM history WHERE undone = 0 AND call =
             (SELECT h.call FROM history h JOIN calls c ON c.id = h.call
              WHERE h.undone = 0 AND c.scope = :project ORDER BY h.call DESC LIMIT 1)
           ORDER BY id DESC""",
        project=project,
    )
    return [ChangeRow(i, s, m, action, json.loads(before) if before else None) for i, s, m, action, before in rows]


async def has_later_change(tx: Any, step: ChangeRow) -> bool:
    """Tell whether a later change of the same memory stands."""
    row = await tx.fetch_one(
        "SELECT 1 FROM history WHERE scope = :scope AND memory = :memory AND id > :id AND undone = 0 LIMIT 1",
        scope=step.scope,
        memory=step.memory,
        id=step.id,
    )
    return row is not None


async def was_ever_undone(tx: Any, scope: int, memory: int) -> bool:
    """Tell whether a change of a memory was ever taken back."""
    row = await tx.fetch_one(
        "SELECT 1 FROM history WHERE scope = :scope AND memory = :memory AND undone = 1 LIMIT 1",
        scope=scope,
        memory=memory,
    )
    return row is not None


async def list_last_changes(tx: Any, scope: int, one: str, other: str) -> list[ChangeRow]:
    """Return of each memory in a scope the last step of either action that stands."""
    rows = await tx.fetch(
        """SELECT id, scope, memory, action, before FROM history
           WHERE scope = :scope AND action IN (:one, :other) AND undone = 0 ORDER BY id""",
        scope=scope,
        one=one,
        other=other,
    )
    found = {m: ChangeRow(i, s, m, action, json.loads(before) if before else None) for i, s, m, action, before in rows}
    return list(found.values())


async def mark_change_undone(tx: Any, step: ChangeRow) -> None:
    await tx.execute("UPDATE history SET undone = 1 WHERE scope = :scope AND id = :id", scope=step.scope, id=step.id)


async def delete_changes_with_word(tx: Any, scope: int, memory: int, action: str, word: str) -> None:
    """Remove the steps of one action of a memory that hold a word of letters and digits."""
    await tx.execute(
        """DELETE FROM history WHERE scope = :scope AND memory = :memory AND action = :action AND before LIKE :word""",
        scope=scope,
        memory=memory,
        action=action,
        word=f"%{word}%",
    )


async def delete_changes(tx: Any, scope: int, memory: int) -> None:
    """Remove all that was ever recorded about a memory."""
    await tx.execute("DELETE FROM history WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
