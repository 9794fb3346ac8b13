"""SQL of program runs: their status, and the snapshot of a run that waits for approval.

A program's source and values are kept only as long as they are needed: in the snapshot of a run that waits for a
person, and in the answer of one that has waited, or may be asked for again with its key. A purge empties both.
"""

from typing import NamedTuple

from athena.core.values import Scope
from athena.storage import privacy
from athena.storage.database import Row, Transaction

RUN_TTL_S = 30 * 86_400.0
PURGED = "Purged"  # the error of runs whose contents a purge deleted
ANSWER_TTL_S = 86_400.0  # how long the answer of a run can be asked for again


class RunRow(NamedTuple):
    id: str
    workspace: str
    status: str
    process: str  # host and process id of the process that runs it
    started: float
    elapsed_ms: float | None = None
    calls: int = 0
    engine: str = ""
    error: str | None = None  # its type
    fingerprint: str = ""  # of the arguments, where the call has a key
    waits_for: str | None = None
    snapshot: bytes | None = None
    answer: str | None = None
    claimed: float | None = None  # when it went on after it had waited
    private: str = ""  # marks of the private sources that it read


RUN_COLUMNS = ", ".join(RunRow._fields)
_RUN_LIST_COLUMNS = RUN_COLUMNS.replace("snapshot, answer", "NULL, NULL")
_INSERT_RUN_SQL = f"""INSERT INTO runs (scope, {RUN_COLUMNS})
    VALUES (:scope, {", ".join(f":{name}" for name in RunRow._fields)}) ON CONFLICT (scope, id)"""
_UPDATED_COLUMNS = ", ".join(f"{name} = excluded.{name}" for name in RunRow._fields[1:])


def _parse_run(row: Row) -> RunRow:
    run = RunRow(*row)
    privacy.note_read(run.private)
    return run._replace(snapshot=None if run.snapshot is None else bytes(run.snapshot))


async def fetch_run(tx: Transaction, scope: Scope, run_id: str) -> RunRow | None:
    row = await tx.fetch_one(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE scope = :scope AND id = :id", scope=scope.project, id=run_id
    )
    return None if row is None else _parse_run(row)


async def list_runs(tx: Transaction, scope: Scope, limit: int, status: str | None) -> list[RunRow]:
    """Return the latest runs, without snapshots and answers."""
    condition = "" if status is None else "AND status = :status"
    bound = {} if status is None else {"status": status}
    rows = await tx.fetch(
        f"SELECT {_RUN_LIST_COLUMNS} FROM runs WHERE scope = :scope {condition} ORDER BY started DESC, id LIMIT :limit",
        scope=scope.project,
        limit=limit,
        **bound,
    )
    return [_parse_run(row) for row in rows]


async def insert_run(tx: Transaction, scope: Scope, run: RunRow) -> bool:
    """Insert a run; False if its id exists, whose row stays as it is."""
    added = await tx.execute(f"{_INSERT_RUN_SQL} DO NOTHING", scope=scope.project, **run._asdict())
    return added > 0


async def upsert_run(tx: Transaction, scope: Scope, run: RunRow) -> None:
    """Insert or update a run; only the process that runs it may do so."""
    await tx.execute(f"{_INSERT_RUN_SQL} DO UPDATE SET {_UPDATED_COLUMNS}", scope=scope.project, **run._asdict())
    if run.id.startswith("00"):  # ids are random, so that this is one run in 256
        await _prune_runs(tx, scope, run.started)


async def count_runs(tx: Transaction, scope: Scope, status: str) -> int:
    row = await tx.fetch_required(
        "SELECT count(*) FROM runs WHERE scope = :scope AND status = :status", scope=scope.project, status=status
    )
    return int(row[0])


async def claim_run(tx: Transaction, scope: Scope, run: RunRow, process: str, now: float) -> bool:
    """Mark a run that waits for approval as running; False if it no longer waits there, so that it goes on once."""
    claimed = await tx.execute(
        """UPDATE runs SET status = 'running', process = :process, claimed = :now, snapshot = NULL, waits_for = NULL
           WHERE scope = :scope AND id = :id AND status = 'needs_approval' AND snapshot = :snapshot""",
        scope=scope.project,
        id=run.id,
        process=process,
        now=now,
        snapshot=run.snapshot,
    )
    return claimed > 0


async def clear_run_contents(tx: Transaction, scope: Scope) -> None:
    """Delete snapshots and answers; runs that waited for approval fail."""
    await tx.execute(
        """UPDATE runs SET status = 'failed', waits_for = NULL, snapshot = NULL
           WHERE scope = :scope AND status = 'needs_approval'""",
        scope=scope.project,
    )
    await tx.execute(
        "UPDATE runs SET answer = NULL, error = coalesce(error, :purged) WHERE scope = :scope AND status <> 'running'",
        scope=scope.project,
        purged=PURGED,
    )


async def _prune_runs(tx: Transaction, scope: Scope, now: float) -> None:
    await tx.execute(
        "DELETE FROM runs WHERE scope = :scope AND started < :oldest AND status <> 'needs_approval'",
        scope=scope.project,
        oldest=now - RUN_TTL_S,
    )
    await tx.execute(
        "UPDATE runs SET answer = NULL WHERE scope = :scope AND started < :oldest AND answer IS NOT NULL",
        scope=scope.project,
        oldest=now - ANSWER_TTL_S,
    )
