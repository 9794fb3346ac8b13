"""SQLite through apsw, which brings a current SQLite to every platform.

One at a time holds the pen. A caller who finds it free, and nobody waiting, writes on its own thread; all others hand
their work to the writer's thread, several to a commit. Readers each have a connection. Statements are read to their
end, one a call, because apsw runs them lazily.

A commit waits for the disk unless all in it is relaxed. The log is a sequence: what a commit makes durable includes
all commits before it, and if the machine fails, a relaxed one is lost only with all that came after it.
"""

import os
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

import apsw

from athena.core.threads import SharedLock, ThreadFuture, check_may_wait, get_running_loop, run_in_thread, run_sync
from athena.errors import AthenaError, Unavailable
from athena.storage.database import CopyRole, Database, Row, Work
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite import fork
from athena.storage.sqlite.connection import BUSY_TIMEOUT_S, IN_MEMORY_PATH, translate_errors
from athena.storage.sqlite.fulltext import SqliteFullText
from athena.storage.sqlite.schema import migrate
from athena.storage.sqlite.table_copy import SqliteTableCopy
from athena.storage.sqlite.vectors import SqliteVectorIndex


class WriteJob:
    """What one caller wants done: work in a transaction, or statements that must stand outside of one."""

    __slots__ = ("deferred_sync", "error", "outcome", "statements", "value", "work")

    def __init__(
        self,
        work: Work[Any],
        outcome: ThreadFuture[Any] | None,
        outside: tuple[str, ...] = (),
        *,
        relaxed: bool = False,
    ) -> None:
        self.work = work
        self.outcome = outcome
        self.statements = outside
        self.deferred_sync = relaxed
        self.value: Any = None
        self.error: BaseException | None = None

    def deliver_result(self) -> None:
        outcome, self.outcome = self.outcome, None
        if outcome is None:
            return
        if self.error is not None:
            outcome.set_exception(self.error)
        else:
            outcome.set_result(self.value)


async def commit_only(_: Any) -> None:
    """A job that only brings a commit about."""


STOP_JOB = WriteJob(commit_only, None)


T = TypeVar("T")
MAX_JOBS_PER_COMMIT = 256  # jobs in one commit, at most
LOCK_PROBE_TIMEOUT_S = 0.2  # seconds that somebody who need not write waits to
DEFERRED_WRITE_DELAY_S = 2.0  # seconds that a deferred write may wait for company
NO_WAIT_REASON = "a transaction's work may wait only for its transaction"


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


class Sqlite:
    """A store in one file, or in memory for tests."""

    engine = "sqlite"
    slowdown_reason = ""
    last_conflict_at = float("-inf")  # who writes has the store alone

    def __init__(self, path: str | Path, *, copying: CopyRole = "", soon: float = DEFERRED_WRITE_DELAY_S) -> None:
        self.path = str(path)
        self._delay_s = soon
        self.fulltext = SqliteFullText()
        self.vectors = SqliteVectorIndex()
        self.table_copy = SqliteTableCopy(self.path)
        self._idle_connections: list[apsw.Connection] = []
        self._jobs: SimpleQueue[WriteJob | None] = SimpleQueue()
        self._deferred: list[WriteJob] = []
        self._once_names: set[str] = set()  # those of them of which one is enough
        self._deferred_due_at = 0.0  # when the first of them has waited long enough
        self._guard = threading.Lock()
        self._write_lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._write_connection: apsw.Connection | None = None
        self._unsynced_connection: apsw.Connection | None = None  # the one that does not wait for the disk now
        self._unsynced_commits = 0  # commits that did not wait for the disk
        self._synced_commits = 0  # those of them that it has by now, at least
        self._fork_lock = SharedLock()
        self._closed = False
        sqlite_connection.check_exists(self.path, copying)
        first = self._open_connection(create=True)
        with translate_errors(self.path):
            migrate(first, (*self.fulltext.schema, *self.vectors.schema))
            sqlite_connection.check_copy_complete(first, self.path, copying)
        self._memory_connection = first if self.path == IN_MEMORY_PATH else None
        self._wal_path = str(first.filename_wal)  # where the path is a link, it is beside what that leads to
        self._inode = 0 if self._memory_connection else os.stat(self.path).st_ino
        if self._memory_connection is None:
            self._idle_connections.append(first)
        fork.fork_aware_stores.add(self)

    def describe_location(self) -> str:
        return self.path

    async def find_problems(self, tx: Any) -> list[str]:
        """Ask SQLite whether its file is sound."""
        rows = await tx.fetch("PRAGMA integrity_check(20)")
        return [f"the file is damaged: {row[0]}" for row in rows if row[0] != "ok"]

    async def measure_size(self, tx: Any) -> int:
        return sum(os.path.getsize(f) for end in ("", "-wal") if os.path.exists(f := self.path + end))  # noqa: ASYNC240  # on a thread of its own

    async def read(self, work: Work[T]) -> T:
        if self._memory_connection is not None:
            return await self.write(work)
        return await run_in_thread(self._read_in_thread, work)

    async def write(self, work: Work[T], *, relaxed: bool = False) -> T:
        if get_running_loop() is None and self._jobs.empty() and self._write_lock.acquire(blocking=False):
            return self._write_on_this_thread(work, relaxed)
        outcome: ThreadFuture[T] = ThreadFuture()
        self._submit_job(WriteJob(work, outcome, relaxed=relaxed))
        return await outcome

    @property
    def deferred_sync(self) -> Database:
        return cast(Database, DeferredSyncSqlite(self))

    async def sync(self) -> None:
        if self._synced_commits < self._unsynced_commits:
            await run_in_thread(self._sync_log)

    def _sync_log(self) -> None:
        loose = self._unsynced_commits
        if self._memory_connection is None:
            sqlite_connection.fsync_log(self._wal_path)
        self._synced_commits = loose

    def _write_on_this_thread(self, work: Work[T], relaxed: bool) -> T:
        """Write on the caller's own thread, which holds the pen; changing threads would take as long as the disk."""
        job = WriteJob(work, None, relaxed=relaxed)
        try:
            check_may_wait()
            with self._fork_lock:
                if self._closed:
                    raise Unavailable("the store is closed", hint="open it again", retry=False)
                self._run_jobs([job])
        finally:
            self._write_lock.release()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    async def can_write_now(self) -> bool:
        return self._memory_connection is not None or await run_in_thread(self._try_write_lock)

    def _try_write_lock(self) -> bool:
        """Take the file's lock and let it go; False where that takes more than a moment."""
        if not self._write_lock.acquire(timeout=LOCK_PROBE_TIMEOUT_S):
            return False
        try:
            with self._fork_lock, translate_errors(self.path):
                if self._closed:
                    return False
                self._write_connection = self._write_connection or self._open_connection()
                return sqlite_connection.can_begin_write(self._write_connection, LOCK_PROBE_TIMEOUT_S)
        finally:
            self._write_lock.release()

    def defer_write(self, work: Work[None], *, once: str = "") -> None:
        with self._guard:
            if self._closed or once in self._once_names:
                return
            if once:
                self._once_names.add(once)
            if not self._deferred:
                self._deferred_due_at = time.monotonic() + self._delay_s
            self._deferred.append(WriteJob(work, None))
            waiting = len(self._deferred)
        if waiting >= MAX_JOBS_PER_COMMIT:
            self._submit_job(WriteJob(commit_only, None))
        elif waiting == 1:
            self._submit_job(None)

    async def compact(self) -> bool:
        """Rewrite the file and empty the log; False where another process keeps it from being emptied."""
        outcome: ThreadFuture[bool] = ThreadFuture()
        self._submit_job(WriteJob(commit_only, outcome, ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")))
        return await outcome

    def close(self) -> None:
        """Finish what was asked for and let go of the file; waits a second at most for another writer."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            writer = self._writer
            self._jobs.put(STOP_JOB)
        fork.fork_aware_stores.discard(self)
        if writer is not None:
            writer.join(1.0)
        elif self._write_lock.acquire(timeout=1.0):  # nobody else will close what callers wrote with
            if connection := self._memory_connection or self._write_connection:
                connection.close()
            self._write_lock.release()
        for connection in self._idle_connections:
            connection.close()

    def _submit_job(self, job: WriteJob | None) -> None:
        with self._guard:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again", retry=False)
            if self._writer is None:
                self._writer = threading.Thread(target=self._run_writer, name="athena-writer", daemon=True)
                self._writer.start()
            self._jobs.put(job)

    def before_fork(self) -> None:
        """Before a fork: let everybody out and close all connections to the file."""
        if self._memory_connection is not None:
            return
        self._fork_lock.acquire_exclusive(BUSY_TIMEOUT_S)
        for connection in [*self._idle_connections, *([self._write_connection] if self._write_connection else [])]:
            connection.close()
        self._idle_connections.clear()
        self._write_connection = None

    def after_fork_in_parent(self) -> None:
        self._fork_lock.release_exclusive()

    def after_fork_in_child(self) -> None:
        """In the child: the threads are gone, and a store in memory with them."""
        self._closed = True
        self._fork_lock = SharedLock()
        self._guard, self._write_lock = threading.Lock(), threading.Lock()

    def _read_in_thread(self, work: Work[T]) -> T:
        with self._fork_lock:
            return self._run_read(work)

    def _run_read(self, work: Work[T]) -> T:
        with self._guard:
            connection = self._idle_connections.pop() if self._idle_connections else None
        with translate_errors(self.path):
            connection = connection or self._open_connection()
            try:
                connection.execute("BEGIN").fetchall()
                return run_sync(work(SqliteTransaction(connection)), closed_to=NO_WAIT_REASON)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK").fetchall()
                with self._guard:
                    keep = not self._closed
                    if keep:
                        self._idle_connections.append(connection)
                if not keep:
                    connection.close()

    def _run_writer(self) -> None:
        while True:
            jobs, stop = self._take_jobs()
            with self._fork_lock, self._write_lock:
                if jobs:
                    self._run_jobs(jobs)
                if stop:
                    if connection := self._memory_connection or self._write_connection:
                        connection.close()
                    return

    def _run_jobs(self, jobs: list[WriteJob]) -> None:
        try:
            with translate_errors(self.path):
                self._write_connection = self._memory_connection or self._write_connection or self._open_connection()
                self._check_still_there()
                self._commit_jobs(self._write_connection, [job for job in jobs if not job.statements])
                for job in jobs:
                    if job.statements:
                        self._run_statements(self._write_connection, job)
        except Exception as error:  # noqa: BLE001  # this thread must outlive whatever happens; all are told
            for job in jobs:
                job.error = job.error or error
                job.deliver_result()

    def _check_still_there(self) -> None:
        """Refuse to write to a file that was deleted or replaced while it is open: nobody would find it again."""
        if self._memory_connection is not None:
            return
        try:
            now = os.stat(self.path).st_ino
        except FileNotFoundError:
            now = -1
        if now != self._inode:
            raise Unavailable(f"{self.path} was removed or replaced while it was open", hint="start again", retry=False)

    def _take_jobs(self) -> tuple[list[WriteJob], bool]:
        """Wait for work and take all that is there; deferred work only when its time has come."""
        waiting: list[WriteJob] = []
        try:
            while not waiting:
                # None only says that there is deferred work now, and so a time limit on this wait.
                patience = max(0.0, self._deferred_due_at - time.monotonic()) if self._deferred else None
                if job := self._jobs.get(timeout=patience):
                    waiting.append(job)
            while len(waiting) < MAX_JOBS_PER_COMMIT:
                if job := self._jobs.get_nowait():
                    waiting.append(job)
        except Empty:
            pass
        jobs = [job for job in waiting if job is not STOP_JOB]
        stop = len(jobs) < len(waiting)
        return jobs + self._take_deferred(stop), stop

    def _take_deferred(self, stop: bool) -> list[WriteJob]:
        """Return deferred work once it has waited long enough, or is much, so that a caller seldom waits for it."""
        with self._guard:
            if not stop and len(self._deferred) < MAX_JOBS_PER_COMMIT and time.monotonic() < self._deferred_due_at:
                return []
            deferred, self._deferred = self._deferred, []
            self._once_names.clear()
            return deferred

    def _run_statements(self, connection: apsw.Connection, job: WriteJob) -> None:
        try:
            with translate_errors(self.path):
                rows = [connection.execute(statement).fetchall() for statement in job.statements]
                job.value = not any(
                    row[0] for answer in rows for row in answer
                )  # the checkpoint says if it was kept out
        except AthenaError as error:
            job.error = error
        job.deliver_result()

    def _commit_jobs(self, connection: apsw.Connection, jobs: list[WriteJob]) -> None:
        """Run jobs in one transaction, several each in a savepoint of its own, and tell each caller its outcome."""
        if not jobs:
            return
        tx, relaxed = SqliteTransaction(connection), all(job.deferred_sync for job in jobs)
        try:
            with translate_errors(self.path):
                if connection.in_transaction:  # an interrupt cut somebody short
                    connection.execute("ROLLBACK").fetchall()
                self._set_deferred_sync(connection, relaxed)
                connection.execute("BEGIN IMMEDIATE").fetchall()
                before = _count_pages_written(connection)
                if len(jobs) == 1:
                    jobs[0].value = run_sync(jobs[0].work(tx), closed_to=NO_WAIT_REASON)
                else:
                    for job in jobs:
                        self._run_in_savepoint(tx, job)
                connection.execute("COMMIT").fetchall()
                self._count_commit(relaxed, wrote=_count_pages_written(connection) > before)
        except BaseException as error:  # noqa: BLE001  # the group is lost; each caller is told below
            if connection.in_transaction:
                connection.execute("ROLLBACK").fetchall()
            if len(jobs) > 1:  # e.g. a full disk drops the whole group: each may still fit alone
                for job in jobs:
                    job.error = None
                    self._commit_jobs(connection, [job])
                return
            jobs[0].error = jobs[0].error or error
        for job in jobs:
            job.deliver_result()

    def _set_deferred_sync(self, connection: apsw.Connection, relaxed: bool) -> None:
        if relaxed is (connection is self._unsynced_connection):
            return
        self._unsynced_connection = connection  # until it certainly is not: an interrupt can come after each line
        sqlite_connection.set_durable(connection, not relaxed)
        if not relaxed:
            self._unsynced_connection = None

    def _count_commit(self, relaxed: bool, *, wrote: bool) -> None:
        if relaxed:
            self._unsynced_commits += 1
        elif wrote:
            self._synced_commits = self._unsynced_commits
        elif self._synced_commits < self._unsynced_commits:  # so it has not waited for what it found there
            self._sync_log()

    def _run_in_savepoint(self, tx: SqliteTransaction, job: WriteJob) -> None:
        connection = tx.connection
        connection.execute("SAVEPOINT job").fetchall()
        try:
            with translate_errors(self.path):
                job.value = run_sync(job.work(tx), closed_to=NO_WAIT_REASON)
        except BaseException as error:  # told to the caller
            job.error = error
            if not connection.in_transaction:
                raise  # SQLite gave up the whole transaction
            connection.execute("ROLLBACK TO job").fetchall()
        connection.execute("RELEASE job").fetchall()

    def _open_connection(self, *, create: bool = False) -> apsw.Connection:
        with translate_errors(self.path):
            return sqlite_connection.connect(self.path, create=create)


def _count_pages_written(connection: apsw.Connection) -> int:
    """Return how many pages a connection has put into the log: none for a row that is written as it was."""
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]


class DeferredSyncSqlite:
    """A store whose writes do not wait for the disk."""

    def __init__(self, store: "Sqlite") -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T]) -> T:
        return await self._store.write(work, relaxed=True)
