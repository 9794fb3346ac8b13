"""SQL of the history: each change of a memory, its time, its call, and the state before it."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core.hashing import MIN_HASH_CHARS
from athena.memory.rows import BOUNDED_BATCH_ROWS, MemoryRow, join_ids
from athena.memory.values import Change, ChangingCall, RecentChange, format_preview, strip_reserved_keys
from athena.storage.database import IMPORT_COUNTER, Transaction
from athena.storage.filters import bind_list, split_batches

MAX_ID = 2**62
PREVIEWED_CHARS = 500
CALLS_LOOKED_AT = 2_000  # of the newest, for those that changed something just now


class ChangeRow(NamedTuple):
    """A recorded change, with what undo needs."""

    id: int
    scope: int
    memory: int
    action: str
    before: dict[str, Any] | None


INSERT_CHANGE_SQL = """INSERT INTO history (scope, memory, call, at, action, digest, before, undone)
           VALUES (:scope, :memory, :call, :at, :action, :digest, :before, :undone)"""


async def insert_change(
    tx: Transaction,
    scope: int,
    memory: int,
    call: int,
    at: float,
    action: str,
    before: dict[str, Any] | None,
    undone: bool = False,
) -> None:
    """Record a change, with the digest of the old text, so that its old hash still finds the memory."""
    old = None if before is None else json.dumps(before, ensure_ascii=False)
    digest = before.get("digest") if before else None
    row = {"scope": scope, "memory": memory, "call": call, "at": at, "action": action, "digest": digest}
    await tx.execute_many(INSERT_CHANGE_SQL, [{**row, "before": old, "undone": int(undone)}])


async def insert_row_change(
    tx: Transaction, row: MemoryRow, call: int, at: float, action: str, *, undone: bool = False
) -> None:
    """Record a change that is about to be made to a row, with the row as it is now."""
    await insert_change(tx, row.scope, row.memory.id, call, at, action, row.to_snapshot(), undone)


async def insert_row_changes(tx: Transaction, rows: Sequence[MemoryRow], call: int, at: float, action: str) -> None:
    """Record the same change of several rows, each with the row as it is now."""
    shared = {"call": call, "at": at, "action": action, "undone": 0}
    await tx.execute_many(
        INSERT_CHANGE_SQL,
        (
            {
                **shared,
                "scope": row.scope,
                "memory": row.memory.id,
                "digest": row.digest,
                "before": json.dumps(row.to_snapshot(), ensure_ascii=False),
            }
            for row in rows
        ),
    )


async def list_changes(
    tx: Transaction, scope: int, memory: int, limit: int | None = None, offset: int = 0
) -> tuple[list[Change], int]:
    """Return the changes that callers may see, the oldest first, and their number; `offset` is from the latest."""
    (total,) = await tx.fetch_required(
        "SELECT count(*) FROM history WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory
    )
    changes: list[Change] = []
    left = total if limit is None else limit
    last_id, skipped = MAX_ID, offset
    while left > 0:  # few at once: each may have the whole text
        rows = await tx.fetch(
            """SELECT h.id, h.at, h.action, c.operation, h.before, c.surface
               FROM history h LEFT JOIN calls c ON c.id = h.call
               WHERE h.scope = :scope AND h.memory = :memory AND h.id < :last
               ORDER BY h.id DESC LIMIT :limit OFFSET :offset""",
            scope=scope,
            memory=memory,
            last=last_id,
            limit=min(BOUNDED_BATCH_ROWS, left),
            offset=skipped,
        )
        if not rows:
            break
        last_id, skipped, left = rows[-1][0], 0, left - len(rows)
        changes += [
            Change(at, action, operation or "", _parse_before(before), surface or "")
            for _, at, action, operation, before, surface in rows
        ]
    return changes[::-1], int(total)


async def list_actions(tx: Transaction, scope: int, memory: int) -> list[tuple[int, str]]:
    """Return the numbers and the actions of the changes of a memory, the oldest first."""
    query = "SELECT id, action FROM history WHERE scope = :scope AND memory = :memory ORDER BY id"
    return await tx.fetch(query, scope=scope, memory=memory)


async def fetch_before(tx: Transaction, scope: int, change: int) -> dict[str, Any]:
    """Return what a memory was before a change; nothing where it was not there."""
    query = "SELECT before FROM history WHERE scope = :scope AND id = :id"
    (before,) = await tx.fetch_required(query, scope=scope, id=change)
    return json.loads(before) if before else {}


async def fetch_version(tx: Transaction, scope: int, memory: int, prefix: str) -> dict[str, Any] | None:
    """Return the last state in which a memory had a text whose digest starts with a prefix; None if there is none."""
    row = await tx.fetch_one(
        """SELECT before FROM history WHERE scope = :scope AND memory = :memory AND before IS NOT NULL
           AND digest >= :low AND digest < :high ORDER BY id DESC LIMIT 1""",
        scope=scope,
        memory=memory,
        low=prefix,
        high=prefix + "g",
    )
    return None if row is None else json.loads(row[0])


async def list_recent_changes(
    tx: Transaction, scope_ids: Sequence[int], after: int | None, limit: int
) -> list[RecentChange]:
    """Return the latest changes of all kinds, the newest first; with `after`, only those with a higher number."""
    names, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT h.id, h.at, h.action, c.surface, s.kind, h.memory,
                   substr(m.content, 1, :longest)
           FROM history h JOIN scopes s ON s.id = h.scope LEFT JOIN calls c ON c.id = h.call
           LEFT JOIN memories m ON m.scope = h.scope AND m.id = h.memory
           WHERE h.scope IN ({names}) AND h.id > :after ORDER BY h.id DESC LIMIT :limit""",
        after=-1 if after is None else after,
        limit=limit,
        longest=PREVIEWED_CHARS,
        **bound,
    )
    return [
        RecentChange(number, at, action, surface or "", kind, memory, format_preview(content or ""))
        for number, at, action, surface, kind, memory, content in rows
    ]


def _parse_before(before: str | None) -> dict[str, Any] | None:
    if before is None:
        return None
    fields: dict[str, Any] = json.loads(before)
    if digest := fields.pop("digest", None):
        fields["hash"] = digest[:MIN_HASH_CHARS]
    if "metadata" in fields:
        fields["metadata"] = strip_reserved_keys(fields["metadata"])
    return fields


class CallOrigin(NamedTuple):
    """Which operation changed something, and where it was called."""

    operation: str
    surface: str


class LastCall(NamedTuple):
    """The newest call of a project whose changes are not undone."""

    id: int
    origin: CallOrigin


async def fetch_last_origin(tx: Transaction, scope: int, memory: int) -> CallOrigin | None:
    """Return the origin of the last change of a memory that is not undone; None if there is none."""
    row = await tx.fetch_one(
        """SELECT c.operation, c.surface FROM history h JOIN calls c ON c.id = h.call
           WHERE h.scope = :scope AND h.memory = :memory AND h.undone = 0 ORDER BY h.id DESC LIMIT 1""",
        scope=scope,
        memory=memory,
    )
    return None if row is None else CallOrigin(*row)


async def fetch_last_call(tx: Transaction, project: str, surfaces: Sequence[str] | None) -> LastCall | None:
    """Return the newest call in a project, of some surfaces or of all, with a change that is not undone."""
    names, bound = bind_list("surface", surfaces or ())
    condition = "" if surfaces is None else f"AND c.surface IN ({names})"
    row = await tx.fetch_one(
        f"""SELECT c.id, c.operation, c.surface FROM history h JOIN calls c ON c.id = h.call
            WHERE h.undone = 0 AND c.scope = :project {condition} ORDER BY h.call DESC LIMIT 1""",
        project=project,
        **bound,
    )
    return None if row is None else LastCall(row[0], CallOrigin(*row[1:]))


async def list_changing_calls(
    tx: Transaction, project: str, surfaces: Sequence[str], since: float
) -> list[ChangingCall]:
    """Return the calls of some surfaces since a time that changed something and are not undone, the newest first."""
    names, bound = bind_list("surface", surfaces)
    rows = await tx.fetch(
        f"""SELECT c.id, c.operation, c.at FROM (SELECT * FROM calls ORDER BY id DESC LIMIT :most) c
            WHERE c.scope = :project AND c.surface IN ({names}) AND c.at >= :since
            AND EXISTS (SELECT 1 FROM history h WHERE h.call = c.id AND h.undone = 0) ORDER BY c.id DESC""",
        project=project,
        since=since,
        most=CALLS_LOOKED_AT,
        **bound,
    )
    return [ChangingCall(*row) for row in rows]


async def was_imported(tx: Transaction, call: int) -> bool:
    """Return whether a call came with the import of a whole store."""
    row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=IMPORT_COUNTER)
    return row is not None and call <= row[0]


async def list_call_changes(tx: Transaction, call: int) -> list[ChangeRow]:
    """Return the changes of a call that are not undone, the latest first, without what was before."""
    rows = await tx.fetch(
        "SELECT id, scope, memory, action FROM history WHERE undone = 0 AND call = :call ORDER BY id DESC", call=call
    )
    return [ChangeRow._make([*row, None]) for row in rows]


async def fetch_last_call_id(tx: Transaction, scope: int, memory: int) -> int:
    """Return the id of the call that last changed a memory."""
    row = await tx.fetch_required(
        "SELECT max(call) FROM history WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory
    )
    return int(row[0])


async def has_later_change(tx: Transaction, change: ChangeRow) -> bool:
    """Return whether the same memory has a later change that is not undone."""
    row = await tx.fetch_one(
        "SELECT 1 FROM history WHERE scope = :scope AND memory = :memory AND id > :id AND undone = 0 LIMIT 1",
        scope=change.scope,
        memory=change.memory,
        id=change.id,
    )
    return row is not None


async def was_ever_undone(tx: Transaction, scope: int, memory: int) -> bool:
    """Return whether a change of a memory was ever undone."""
    row = await tx.fetch_one(
        "SELECT 1 FROM history WHERE scope = :scope AND memory = :memory AND undone = 1 LIMIT 1",
        scope=scope,
        memory=memory,
    )
    return row is not None


async def list_last_changes(tx: Transaction, scope: int, action: str, other_action: str) -> list[ChangeRow]:
    """Return, for each memory in a scope, its last change of either action that is not undone, without its state."""
    rows = await tx.fetch(
        """SELECT id, scope, memory, action FROM history
           WHERE scope = :scope AND action IN (:action, :other_action) AND undone = 0 ORDER BY id""",
        scope=scope,
        action=action,
        other_action=other_action,
    )
    changes = [ChangeRow._make([*row, None]) for row in rows]
    return list({change.memory: change for change in changes}.values())


async def mark_change_undone(tx: Transaction, change: ChangeRow) -> None:
    await tx.execute(
        "UPDATE history SET undone = 1 WHERE scope = :scope AND id = :id", scope=change.scope, id=change.id
    )


async def delete_changes_with_word(tx: Transaction, scope: int, memory: int, action: str, word: str) -> None:
    """Delete the changes of one action of a memory that hold a word; it may have no LIKE wildcard."""
    await tx.execute(
        """DELETE FROM history WHERE scope = :scope AND memory = :memory AND action = :action AND before LIKE :word""",
        scope=scope,
        memory=memory,
        action=action,
        word=f"%{word}%",
    )


async def delete_changes(tx: Transaction, scope: int, memory: int) -> None:
    """Delete the whole history of a memory."""
    await tx.execute("DELETE FROM history WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)


async def find_forgotten_digests(
    tx: Transaction, scope_ids: list[int], digests: list[str], but_by: Sequence[str] = ()
) -> set[str]:
    """Return which of these digests belong to memories that somebody forgot, and that were not taken back since.

    Those that one of the operations `but_by` forgot last are left out.
    """
    forgotten: set[str] = set()
    operations, bound_operations = bind_list("operation", but_by)
    condition = f"AND coalesce(c.operation, '') NOT IN ({operations})" if but_by else ""
    for batch in split_batches(digests):
        placeholders, bound = bind_list("digest", batch)
        rows = await tx.fetch(
            f"""SELECT DISTINCT m.digest FROM memories m
                JOIN history h ON h.scope = m.scope AND h.memory = m.id AND h.id = (
                    SELECT max(f.id) FROM history f WHERE f.scope = m.scope AND f.memory = m.id
                    AND f.action = 'forgotten' AND f.undone = 0)
                LEFT JOIN calls c ON c.id = h.call
                WHERE m.scope IN ({join_ids(scope_ids)}) AND m.digest IN ({placeholders}) AND m.deleted IS NOT NULL
                {condition}""",
            **bound,
            **bound_operations,
        )
        forgotten.update(row[0] for row in rows)
    return forgotten
