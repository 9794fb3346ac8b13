"""SQLite through apsw, which brings a current SQLite to every platform.

One thread writes, several callers to a commit; readers each have a connection. Statements are read to their
end, one a call, because apsw runs them lazily.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import apsw

from athena.errors import AthenaError, Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.database import Row, Work
from athena.storage.fulltext import SqliteWords, spaced
from athena.storage.vectors import SqliteVectors
from athena.threads import Outcome, aside, drive

T = TypeVar("T")
MEMORY = ":memory:"
GROUP = 256  # jobs in one commit, at most
PATIENCE = 15.0  # seconds to wait for another process that writes
SOON = 2.0  # seconds that a deferred write may wait for company
ONLY_THE_TRANSACTION = "a transaction's work may wait only for its transaction"


class SqliteTransaction:
    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def execute(self, sql: str, **values: Any) -> int:
        self.connection.execute(sql, values).fetchall()
        return self.connection.changes()

    async def fetch(self, sql: str, **values: Any) -> list[Row]:
        return self.connection.execute(sql, values).fetchall()

    async def fetch_one(self, sql: str, **values: Any) -> Row | None:
        rows = self.connection.execute(sql, values).fetchall()
        return rows[0] if rows else None


class _Job:
    """What one caller wants done: work in a transaction, or statements that must stand outside of one."""

    __slots__ = ("error", "outcome", "outside", "value", "work")

    def __init__(self, work: Work[Any], outcome: Outcome[Any] | None, outside: tuple[str, ...] = ()) -> None:
        self.work = work
        self.outcome = outcome
        self.outside = outside
        self.value: Any = None
        self.error: BaseException | None = None

    def tell(self) -> None:
        if self.outcome is None:
            return
        if self.error is not None:
            self.outcome.fail(self.error)
        else:
            self.outcome.deliver(self.value)


class Sqlite:
    """A store in one file, or in memory for tests."""

    kind = "sqlite"

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.words = SqliteWords()
        self.vectors = SqliteVectors()
        self._idle: list[apsw.Connection] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._deferred: list[_Job] = []
        self._guard = threading.Lock()
        self._writer: threading.Thread | None = None
        self._closed = False
        first = self._open(create=True)
        with translated(self.path):
            _migrate(first, self.path, (*self.words.schema, *self.vectors.schema))
        self._only = first if self.path == MEMORY else None
        if self._only is None:
            self._idle.append(first)

    def location(self) -> str:
        return self.path

    def size(self) -> int:
        return sum(os.path.getsize(f) for end in ("", "-wal") if os.path.exists(f := self.path + end))

    async def read(self, work: Work[T]) -> T:
        if self._only is not None:
            return await self.write(work)
        return await aside(self._read, work)

    async def write(self, work: Work[T]) -> T:
        outcome: Outcome[T] = Outcome()
        self._submit(_Job(work, outcome))
        return await outcome

    def later(self, work: Work[None]) -> None:
        with self._guard:
            if self._closed:
                return
            self._deferred.append(_Job(work, None))
            waiting = len(self._deferred)
        if waiting >= GROUP:
            self._submit(_Job(_nothing, None))
        elif waiting == 1:
            self._submit(None)

    async def compact(self) -> None:
        """Rewrite the file and empty the log."""
        outcome: Outcome[None] = Outcome()
        self._submit(_Job(_nothing, outcome, ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")))
        await outcome

    def close(self) -> None:
        """Finish what was asked for and let go of the file; waits a second at most for another writer."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            writer = self._writer
        if writer is not None:
            self._jobs.put(STOP)
            writer.join(1.0)
        elif self._only is not None:
            self._only.close()
        for connection in self._idle:
            connection.close()

    def _submit(self, job: _Job | None) -> None:
        with self._guard:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again", retry=False)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="athena-writer", daemon=True)
                self._writer.start()
        self._jobs.put(job)

    def _read(self, work: Work[T]) -> T:
        with self._guard:
            connection = self._idle.pop() if self._idle else None
        with translated(self.path):
            connection = connection or self._open()
            try:
                connection.execute("BEGIN").fetchall()
                return drive(work(SqliteTransaction(connection)), closed_to=ONLY_THE_TRANSACTION)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK").fetchall()
                with self._guard:
                    keep = not self._closed
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()

    def _write(self) -> None:
        connection = self._only
        while True:
            jobs, stop = self._take()
            if jobs:
                try:
                    if connection is None:
                        connection = self._open()
                    self._commit(connection, [job for job in jobs if not job.outside])
                    for job in jobs:
                        if job.outside:
                            self._maintain(connection, job)
                except AthenaError as error:  # the file cannot be opened any more
                    for job in jobs:
                        job.error = error
                        job.tell()
            if stop:
                if connection is not None:
                    connection.close()
                return

    def _take(self) -> tuple[list[_Job], bool]:
        """Wait for work and take all that is there; deferred work alone is taken after a while."""
        waiting: list[_Job] = []
        try:
            while not waiting:
                # None only says that there is deferred work now, and so a time limit on this wait.
                if job := self._jobs.get(timeout=SOON if self._deferred else None):
                    waiting.append(job)
            while len(waiting) < GROUP:
                if job := self._jobs.get_nowait():
                    waiting.append(job)
        except Empty:
            pass
        with self._guard:
            deferred, self._deferred = self._deferred, []
        jobs = [job for job in waiting if job is not STOP]
        return jobs + deferred, len(jobs) < len(waiting)

    def _maintain(self, connection: apsw.Connection, job: _Job) -> None:
        try:
            with translated(self.path):
                for statement in job.outside:
                    connection.execute(statement).fetchall()
        except AthenaError as error:
            job.error = error
        job.tell()

    def _commit(self, connection: apsw.Connection, jobs: list[_Job]) -> None:
        """Run jobs in one transaction, each in a savepoint of its own, and tell each caller its outcome."""
        if not jobs:
            return
        tx = SqliteTransaction(connection)
        try:
            with translated(self.path):
                connection.execute("BEGIN IMMEDIATE").fetchall()
                for job in jobs:
                    self._run(tx, job)
                connection.execute("COMMIT").fetchall()
        except Exception as error:  # noqa: BLE001  # the group is lost; each caller is told below
            if connection.in_transaction:
                connection.execute("ROLLBACK").fetchall()
            if len(jobs) > 1:  # e.g. a full disk drops the whole group: each may still fit alone
                for job in jobs:
                    job.error = None
                    self._commit(connection, [job])
                return
            jobs[0].error = jobs[0].error or error
        for job in jobs:
            job.tell()

    def _run(self, tx: SqliteTransaction, job: _Job) -> None:
        connection = tx.connection
        connection.execute("SAVEPOINT job").fetchall()
        try:
            with translated(self.path):
                job.value = drive(job.work(tx), closed_to=ONLY_THE_TRANSACTION)
        except BaseException as error:  # told to the caller
            job.error = error
            if not connection.in_transaction:
                raise  # SQLite gave up the whole transaction
            connection.execute("ROLLBACK TO job").fetchall()
        connection.execute("RELEASE job").fetchall()

    def _open(self, *, create: bool = False) -> apsw.Connection:
        with translated(self.path):
            if create and self.path != MEMORY:
                _make_private(self.path)
            connection = apsw.Connection(self.path, statementcachesize=200)
            connection.set_busy_handler(_wait_for_others())
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            connection.create_scalar_function(
                "spaced", lambda *text: spaced(str(text[0])), 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS
            )
            for name, value in (
                ("synchronous", 2),
                ("secure_delete", 1),
                ("cell_size_check", 1),
                ("temp_store", 2),
            ):
                connection.pragma(name, value)
            if connection.pragma("synchronous") != 2:
                raise Misconfigured("SQLite does not take synchronous=FULL", hint="is another library setting it?")
            if self.path != MEMORY and (mode := _use_wal(connection)) != "wal":
                raise Misconfigured(
                    f"{self.path} cannot use a write-ahead log (it is {mode})",
                    hint="put ATHENA_HOME on a local disk: network file systems cannot share a log",
                )
            return connection


async def _nothing(_: Any) -> None:
    """A job that only brings a commit about."""


STOP = _Job(_nothing, None)


def _make_private(path: str) -> None:
    """Create the file for its owner alone; SQLite gives the log the same rights."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except PermissionError:
        if not os.access(path, os.R_OK):
            raise Misconfigured(
                f"no right to use {path}", hint="check the folder's owner, or set ATHENA_HOME to one of yours"
            ) from None
        raise Unavailable(
            f"{path} is read-only here", hint="check the file's and the folder's rights", retry=False
        ) from None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be opened: {error.strerror}", hint="set ATHENA_HOME elsewhere") from None


def _use_wal(connection: apsw.Connection) -> str:
    """Switch to a write-ahead log; two processes that both create the file meet here."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))


def _wait_for_others() -> Callable[[int], bool]:
    """Return a busy handler with short random pauses: SQLite's own grow to 100 ms, which shows in the tail."""
    began = 0.0

    def wait(tries: int) -> bool:
        nonlocal began
        if tries == 0:
            began = time.monotonic()
        elif time.monotonic() - began > PATIENCE:
            return False
        time.sleep(random.uniform(0.0002, 0.002 if tries < 50 else 0.01))
        return True

    return wait


def _migrate(connection: apsw.Connection, path: str, indexes: tuple[str, ...]) -> None:
    def version() -> int:
        return int(connection.pragma("user_version") or 0)

    newest = len(migrations.STEPS)
    if version() == newest:
        return
    if version() > newest:
        raise Misconfigured(
            f"{path} was written by a newer Athena (format {version()}, this one knows {newest})",
            hint="upgrade with: pip install --upgrade athena-memory",
        )
    connection.execute("BEGIN IMMEDIATE").fetchall()
    try:
        if version() == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise Misconfigured(f"{path} is a database of another program", hint="set ATHENA_DB_PATH elsewhere")
        for number in range(version(), newest):
            for statement in migrations.statements(number, _dialect, indexes):
                connection.execute(statement).fetchall()
        connection.pragma("user_version", newest)
        connection.execute("COMMIT").fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK").fetchall()


_dialect = {
    "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "key": "INTEGER PRIMARY KEY",
    "blob": "BLOB",
    "clustered": "WITHOUT ROWID",
}


@contextmanager
def translated(path: str) -> Generator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except apsw.NotADBError:
        raise Misconfigured(
            f"{path} is not an Athena database", hint="move it away, or set ATHENA_DB_PATH elsewhere"
        ) from None
    except apsw.CorruptError as error:
        raise Unavailable(
            f"{path} is damaged: {error}", hint="run `athena call verify`; restore a backup", retry=False
        ) from error
    except apsw.FullError:
        raise Unavailable("the disk is full; nothing was stored", hint="free some space and try again") from None
    except apsw.BusyError:
        raise Unavailable("another process holds the store", hint="try again; is a long job running?") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError):
        raise Unavailable(f"{path} is read-only here", hint="check the file's rights", retry=False) from None
    except apsw.CantOpenError:
        raise Misconfigured(f"{path} cannot be opened", hint="check the folder's rights and free space") from None
    except apsw.IOError as error:
        raise Unavailable(f"{path} cannot be read or written: {error}", hint="check the disk") from error
