"""Runs of programs: which there were, how they ended, and what one waits for.

The words of a program are kept only as far as going on needs them: in the snapshot of one that waits for a person,
and in the answer of one that has waited, or may be asked for again with its key. A purge empties both.
"""

from typing import Any, NamedTuple

from athena.core.values import Scope

RUN_TTL_S = 30 * 86_400.0  # seconds
ANSWER_TTL_S = 86_400.0  # seconds that an answer can be asked for again


class RunRow(NamedTuple):
    id: str
    workspace: str
    status: str
    process: str  # where it runs: host and process
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


RUN_COLUMNS = ", ".join(RunRow._fields)
_RUN_LIST_COLUMNS = RUN_COLUMNS.replace("snapshot, answer", "NULL, NULL")


def _parse_run(found: Any) -> RunRow:
    made = RunRow(*found)
    return made._replace(snapshot=None if made.snapshot is None else bytes(made.snapshot))


async def fetch_run(tx: Any, scope: Scope, number: str) -> RunRow | None:
    row = await tx.fetch_one(
        f"SELECT {RUN_COLUMNS} FROM runs WHERE scope = :scope AND id = :id", scope=scope.project, id=number
    )
    return None if row is None else _parse_run(row)


async def list_runs(tx: Any, scope: Scope, limit: int, status: str | None) -> list[RunRow]:
    """Return the latest runs, without snapshots and answers."""
    only = "" if status is None else "AND status = :status"
    bound = {} if status is None else {"status": status}
    rows = await tx.fetch(
        f"SELECT {_RUN_LIST_COLUMNS} FROM runs WHERE scope = :scope {only} ORDER BY started DESC, id LIMIT :limit",
        scope=scope.project,
        limit=limit,
        **bound,
    )
    return [_parse_run(row) for row in rows]


async def insert_run(tx: Any, scope: Scope, run: RunRow) -> bool:
    """Write down a run that is new; False if there is one of that name, which stays as it is."""
    given = ", ".join(f":{name}" for name in RunRow._fields)
    added: int = await tx.execute(
        f"INSERT INTO runs (scope, {RUN_COLUMNS}) VALUES (:scope, {given}) ON CONFLICT (scope, id) DO NOTHING",
        scope=scope.project,
        **run._asdict(),
    )
    return added > 0


async def upsert_run(tx: Any, scope: Scope, run: RunRow) -> None:
    """Write down how a run stands, by whoever began it."""
    given = ", ".join(f":{name}" for name in RunRow._fields)
    changed = ", ".join(f"{name} = excluded.{name}" for name in RunRow._fields[1:])
    await tx.execute(
        f"""INSERT INTO runs (scope, {RUN_COLUMNS}) VALUES (:scope, {given})
            ON CONFLICT (scope, id) DO UPDATE SET {changed}""",
        scope=scope.project,
        **run._asdict(),
    )
    if run.id.startswith("00"):  # now and then
        await _prune_runs(tx, scope, run.started)


async def count_runs(tx: Any, scope: Scope, status: str) -> int:
    row = await tx.fetch_one(
        "SELECT count(*) FROM runs WHERE scope = :scope AND status = :status", scope=scope.project, status=status
    )
    return int(row[0])


async def claim_run(tx: Any, scope: Scope, number: str, process: str, now: float) -> bool:
    """Take a run that waits for a person, so that nobody else goes on with it too, and it never goes on twice."""
    taken: int = await tx.execute(
        """UPDATE runs SET status = 'running', process = :process, claimed = :now, snapshot = NULL, waits_for = NULL
           WHERE scope = :scope AND id = :id AND status = 'needs_approval'""",
        scope=scope.project,
        id=number,
        process=process,
        now=now,
    )
    return taken > 0


async def clear_run_contents(tx: Any, scope: Scope) -> None:
    """Let go of what was kept of programs and their answers; what waited cannot go on any more."""
    await tx.execute(
        """UPDATE runs SET status = 'failed', error = 'Purged', waits_for = NULL, snapshot = NULL
           WHERE scope = :scope AND status = 'needs_approval'""",
        scope=scope.project,
    )
    await tx.execute("UPDATE runs SET answer = NULL WHERE scope = :scope", scope=scope.project)


async def _prune_runs(tx: Any, scope: Scope, now: float) -> None:
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
