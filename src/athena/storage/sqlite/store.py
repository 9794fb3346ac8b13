"""The SQLite engine, through apsw, which brings a current SQLite to every platform.

One thread at a time writes, the one that holds the write lock. A caller who finds the lock free and no job queued
writes on its own thread; all others queue a job for the writer thread, which runs several in one commit group. Each
reader has its own connection; a brief read uses the writer's, if nobody writes.

A commit syncs the log to disk unless all its jobs defer the sync. The log is a sequence: a sync makes all earlier
commits durable too, and if the machine fails, an unsynced commit is lost only together with all later ones.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, TypeVar, cast

import apsw

from athena.core.threads import (
    SharedLock,
    ThreadFuture,
    check_may_wait,
    check_stopped,
    get_running_loop,
    run_in_thread,
    run_sync,
    start_in_thread,
)
from athena.errors import AthenaError, Unavailable
from athena.storage.database import CopyRole, Database, Transaction, Work
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite import fork
from athena.storage.sqlite.connection import (
    BUSY_TIMEOUT_S,
    IN_MEMORY_PATH,
    ConnectionPool,
    SqliteTransaction,
    StoreBusyError,
    translate_errors,
)
from athena.storage.sqlite.files import StoreFiles, is_log_doubtful
from athena.storage.sqlite.fulltext import SqliteFullText
from athena.storage.sqlite.jobs import MAX_JOBS_PER_COMMIT, STOP_JOB, JobQueue, WriteJob, commit_only
from athena.storage.sqlite.log import WriteAheadLog
from athena.storage.sqlite.schema import find_unreadable_texts, list_schema_problems, migrate
from athena.storage.sqlite.table_copy import SqliteTableCopy
from athena.storage.sqlite.vectors import KeptTokens, SqliteVectorIndex

T = TypeVar("T")
LOCK_PROBE_TIMEOUT_S = 0.2  # how long `can_write_now` waits for the write lock
DEFERRED_WRITE_DELAY_S = 2.0  # how long a deferred write waits for others to commit with
CLOSE_TIMEOUT_S = 1.0
NO_WAIT_REASON = "a transaction's work may wait only for its transaction"


class Sqlite:
    """A store in one file, or in memory for tests."""

    engine = "sqlite"
    slowdown_reason = ""
    last_conflict_at = float("-inf")  # writers wait for the lock, so no write is ever retried

    def __init__(
        self, path: str | Path, *, copying: CopyRole = "", defer_delay_s: float = DEFERRED_WRITE_DELAY_S
    ) -> None:
        self.path = str(path)
        self.fulltext = SqliteFullText()
        self.vectors = SqliteVectorIndex()
        self.table_copy = SqliteTableCopy(self.path)
        self._pool = ConnectionPool()
        self._jobs = JobQueue(defer_delay_s)
        self._state_lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._write_connection: apsw.Connection | None = None
        self._unsynced_connection: apsw.Connection | None = None  # the one that does not sync on commit now
        self._fork_lock = SharedLock()
        self._closed = False
        self._copying: CopyRole = copying
        self._reopen_lock = threading.Lock()
        self._last_write_failed = False
        self._read_only = sqlite_connection.is_on_read_only_disk(self.path)
        first = self._open_store()
        self._memory_connection = first if self.path == IN_MEMORY_PATH else None
        # where the path is a symbolic link, the log is beside its target
        self._log = WriteAheadLog(str(first.filename_wal), self._open_connection)
        if self._memory_connection is None:
            self._files = StoreFiles(self.path, self._log.path)
            self._pool.put(first)
        fork.fork_aware_stores.add(self)

    def _open_store(self) -> apsw.Connection:
        """Open the first connection: create or migrate the file if needed, and check that it can be used."""
        sqlite_connection.check_exists(self.path, self._copying)
        if self._read_only:
            sqlite_connection.check_readable_alone(self.path)
        elif self.path != IN_MEMORY_PATH and is_log_doubtful(self.path):
            sqlite_connection.check_log_fits(self.path)
        first = self._open_connection(create=True)
        with translate_errors(self.path):
            migrate(first, self.path, self.fulltext.schema)
            sqlite_connection.check_copy_complete(first, self.path, self._copying)
        return first

    def describe_location(self) -> str:
        return self.path

    async def find_problems(self, tx: Transaction) -> list[str]:
        """Run SQLite's own check of the file, and read all texts."""
        assert isinstance(tx, SqliteTransaction)
        if changed := list_schema_problems(tx.connection, self.fulltext.schema):
            return changed
        await self.fulltext.refresh(tx)
        problems: list[str] = []
        with contextlib.suppress(UnicodeDecodeError):  # of a row's checksum; the texts are read next
            rows = await tx.fetch("PRAGMA integrity_check(20)")
            problems = [f"the file is damaged: {row[0]}" for row in rows if row[0] != "ok"]
        return problems or find_unreadable_texts(tx.connection)

    async def measure_size(self, tx: Transaction) -> int:
        return sum(os.path.getsize(f) for end in ("", "-wal") if os.path.exists(f := self.path + end))  # noqa: ASYNC240  # on a thread of its own

    # --- reads --------------------------------------------------------------------------------------------------------

    async def read(self, work: Work[T]) -> T:
        if self._memory_connection is not None:
            return await self.write(lambda tx: work(cast(SqliteTransaction, tx).limit_reads()))
        check_stopped()
        if get_running_loop() is None:  # as run_in_thread does, but skips one call on the hot path
            return self._run_read(work)
        return await start_in_thread(self._run_read, work)

    def _run_read(self, work: Work[T]) -> T:
        self._reopen_if_replaced()
        with self._fork_lock, translate_errors(self.path):
            connection = self._pool.take() or self._open_connection()
            is_usable = True
            try:
                connection.execute("BEGIN").fetchall()
                return run_sync(work(SqliteTransaction(connection).limit_reads()), closed_to=NO_WAIT_REASON)
            except apsw.Error as error:
                is_usable = not sqlite_connection.leaves_bad_state(error)
                raise
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK").fetchall()
                if is_usable:
                    self._pool.put(connection)
                else:
                    connection.close()
                for scope, write_blocks in self.vectors.take_due_blocks().items():
                    self.defer_write(write_blocks, dedupe_key=f"vector blocks {scope}")

    # --- writes -------------------------------------------------------------------------------------------------------

    async def write(self, work: Work[T], *, deferred_sync: bool = False) -> T:
        check_stopped()
        sqlite_connection.check_writes_allowed(self.path, self._read_only)
        if get_running_loop() is None and self._jobs.is_empty():
            self._reopen_if_replaced()
        if get_running_loop() is None and self._jobs.is_empty() and self._write_lock.acquire(blocking=False):
            # On the caller's own thread: changing threads would take as long as the disk.
            job = WriteJob(work, deferred_sync=deferred_sync)
            try:
                check_may_wait()
                with self._fork_lock:
                    self._check_open()
                    self._run_jobs([job])
            finally:
                self._write_lock.release()
            if job.error is not None:
                raise job.error
            value: T = job.value
            return value
        outcome: ThreadFuture[T] = ThreadFuture()
        self._submit_job(WriteJob(work, outcome, deferred_sync=deferred_sync))
        return await outcome

    @property
    def deferred_sync(self) -> Database:
        return cast(Database, DeferredSyncSqlite(self))

    async def sync(self) -> None:
        if self._log.has_unsynced_commits:
            await run_in_thread(self._sync_pending)

    async def can_write_now(self) -> bool:
        if self._read_only:
            return False
        return self._memory_connection is not None or await run_in_thread(self._try_write_lock)

    async def check_writable(self) -> str:
        if self._memory_connection is not None:
            return ""
        sqlite_connection.check_writes_allowed(self.path, self._read_only)
        await run_in_thread(self._reopen_if_replaced)
        if self._last_write_failed or self._log.is_suspect:
            await self.write(_write_and_remove)
        return self._files.describe_low_space()

    def defer_write(self, work: Work[None], *, dedupe_key: str = "") -> None:
        if self._closed or self._read_only:
            return
        deferred_count = self._jobs.defer(work, dedupe_key)
        if deferred_count >= MAX_JOBS_PER_COMMIT:
            self._submit_job(WriteJob(commit_only))
        elif deferred_count == 1:
            self._submit_job(None)

    async def compact(self) -> bool:
        """Rewrite the file and empty the log; False where another process keeps the log from being emptied."""
        sqlite_connection.check_writes_allowed(self.path, self._read_only)
        outcome: ThreadFuture[bool] = ThreadFuture()
        self._submit_job(WriteJob(commit_only, outcome, ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")))
        return await outcome

    def release_unused(self) -> bool:
        with self._fork_lock:
            if is_released := self.fulltext.kept.release_unused():  # no search has come for a while
                self.vectors.kept_tokens = KeptTokens()
            return self._pool.close_unused() | is_released

    def close(self) -> None:
        """Commit the queued jobs and close the file; waits at most a second for another writer."""
        with self._state_lock:
            if self._closed:
                return
            self._closed, writer = True, self._writer
            self._jobs.put(STOP_JOB)
        fork.fork_aware_stores.discard(self)
        if writer is not None:
            writer.join(CLOSE_TIMEOUT_S)
        elif self._write_lock.acquire(timeout=CLOSE_TIMEOUT_S):
            self._close_writer()  # there is no writer thread to do it
            self._write_lock.release()
        self._pool.close()

    # --- around a fork ------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait until no thread uses the file, and close all connections to it."""
        if self._memory_connection is not None:
            return
        self._reopen_lock.acquire()
        self._fork_lock.acquire_exclusive(BUSY_TIMEOUT_S)
        self._close_writer()
        self._pool.close_idle()
        self._files.forget_log()

    def after_fork_in_parent(self) -> None:
        if self._memory_connection is None:
            self._fork_lock.release_exclusive()
            self._reopen_lock.release()

    def after_fork_in_child(self) -> None:
        """Close the store: the child has none of the threads, and no copy of a store in memory."""
        self._closed = True
        self._pool = ConnectionPool()
        self._pool.close()
        self._fork_lock = SharedLock()
        self._state_lock, self._write_lock, self._reopen_lock = threading.Lock(), threading.Lock(), threading.Lock()

    # --- files that were deleted or replaced --------------------------------------------------------------------------

    def _reopen_if_replaced(self) -> None:
        """Open the files anew where somebody has deleted or replaced one of them; raise where the store is gone."""
        if self._memory_connection is not None or self._closed or self._files.are_same():
            return
        with self._reopen_lock:
            if self._files.are_same():
                return
            try:
                if not self._fork_lock.acquire_exclusive(BUSY_TIMEOUT_S):
                    raise Unavailable(f"{self.path} was replaced, and is still in use", hint="try again")
                with translate_errors(self.path):
                    self._reopen()
            finally:
                self._fork_lock.release_exclusive()

    def _reopen(self) -> None:
        connections = [*self._pool.idle, *([self._write_connection] if self._write_connection else [])]
        if connections:
            # What is in the log goes into the file that we have open. If that is the one with this name, it is saved;
            # and no other file gets the log of this one.
            connections[-1].wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        for connection in connections:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # it would delete another file's log
        self._pool.close_idle()
        if self._write_connection is not None:
            self._write_connection.close()
            self._write_connection = None
        self._log.close()
        if not os.path.exists(self.path):
            raise Unavailable(
                f"{self.path} was removed while it was open",
                hint="put it back, or restore a backup with `athena restore`; a new start would begin with nothing",
                retry=False,
            )
        if self._files.is_other_file():
            self.vectors, self.fulltext = SqliteVectorIndex(), SqliteFullText()  # their caches are of the other file
        self._pool.put(self._open_store())
        self._files.remember()

    # --- the writer thread and commits --------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed", hint="open it again", retry=False)

    def _submit_job(self, job: WriteJob | None) -> None:
        """Queue a job; None makes the writer thread look at the deferred jobs and their due time."""
        with self._state_lock:
            self._check_open()
            if self._writer is None:
                self._writer = threading.Thread(target=self._run_writer, name="athena-writer", daemon=True)
                self._writer.start()
            self._jobs.put(job)

    def _run_writer(self) -> None:
        while True:
            jobs, stop = self._jobs.take()
            try:
                self._reopen_if_replaced()
            except AthenaError as error:
                _fail_jobs(jobs, error)
                jobs = []
            with self._fork_lock, self._write_lock:
                if jobs:
                    self._run_jobs(jobs)
                if stop:
                    self._close_writer()
                    return

    def _run_jobs(self, jobs: list[WriteJob]) -> None:
        try:
            with translate_errors(self.path):
                connection = self._get_write_connection()
                self._commit_jobs(connection, [job for job in jobs if not job.statements])
                for job in jobs:
                    if job.statements:
                        self._run_statements(self._get_write_connection(), job)
                self._log.checkpoint_if_due(self._get_write_connection())
        except Exception as error:  # noqa: BLE001  # the writer thread must survive any error; each caller gets it
            _fail_jobs(jobs, error)
        if self._log.has_failed and self._write_connection is not None:
            with contextlib.suppress(AthenaError), translate_errors(self.path):  # the next write gets the error
                self._log.repair(self._write_connection)

    def _get_write_connection(self) -> apsw.Connection:
        if self._write_connection is None:
            self._write_connection = self._memory_connection or self._open_connection()
            self._log.watch(self._write_connection)
        return self._write_connection

    def _renew_write_connection(self) -> apsw.Connection:
        """Replace the write connection: after a failed read FTS5 keeps wrong totals, and would write them."""
        bad, self._write_connection = self._write_connection, None
        if bad is not None and bad is not self._memory_connection:
            bad.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            bad.close()
        return self._get_write_connection()

    def _close_writer(self) -> None:
        """Make all commits durable and close the write connection; callers hold the write lock."""
        connection, self._write_connection = self._memory_connection or self._write_connection, None
        if connection is None:
            return
        if self._memory_connection is None:
            try:
                with translate_errors(self.path):
                    self._log.make_durable(connection)
            except AthenaError:  # a checkpoint must not copy what may not be on the disk
                for other in (connection, *self._pool.idle):
                    other.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self._log.close()
        connection.close()

    def _run_statements(self, connection: apsw.Connection, job: WriteJob) -> None:
        try:
            with translate_errors(self.path):
                results = [connection.execute(statement).fetchall() for statement in job.statements]
                # The first column of a checkpoint's row is 1 where a reader blocked it.
                job.value = not any(row[0] for rows in results for row in rows)
        except AthenaError as error:
            if sqlite_connection.is_disk_error(error):
                self._log.mark_failed_checkpoint(connection)
            job.error = error
        job.deliver_result()

    def _commit_jobs(self, connection: apsw.Connection, jobs: list[WriteJob]) -> None:
        """Run jobs in one transaction, each in a savepoint if there are several, and deliver each its result."""
        if not jobs:
            return
        tx, deferred_sync = SqliteTransaction(connection), all(job.deferred_sync for job in jobs)
        try:
            with translate_errors(self.path):
                if connection.in_transaction:  # left by a job that an interrupt ended
                    connection.execute("ROLLBACK").fetchall()
                self._log.prepare_commit(connection, deferred_sync)
                self._set_deferred_sync(connection, deferred_sync)
                connection.execute("BEGIN IMMEDIATE").fetchall()
                pages_before = 0 if deferred_sync else _count_pages_written(connection)
                if len(jobs) == 1:
                    jobs[0].value = run_sync(jobs[0].work(tx), closed_to=NO_WAIT_REASON)
                else:
                    for job in jobs:
                        self._run_in_savepoint(tx, job)
                connection.execute("COMMIT").fetchall()
                has_written = deferred_sync or _count_pages_written(connection) > pages_before
                self._log.count_commit(connection, deferred_sync, has_written=has_written)
        except BaseException as error:  # noqa: BLE001  # delivered to the callers below
            if connection.in_transaction:
                connection.execute("ROLLBACK").fetchall()
            if sqlite_connection.is_disk_error(error):
                self._log.mark_failed()
            if sqlite_connection.leaves_bad_state(error):
                connection = self._renew_write_connection()
            if len(jobs) > 1:  # e.g. a full disk fails the whole group: each job may still fit alone
                for job in jobs:
                    job.error = None
                    self._commit_jobs(connection, [job])
                return
            jobs[0].error = jobs[0].error or error
            self._last_write_failed = isinstance(error, Unavailable) and not isinstance(error, StoreBusyError)
        for job in jobs:
            job.deliver_result()

    def _run_in_savepoint(self, tx: SqliteTransaction, job: WriteJob) -> None:
        connection = tx.connection
        connection.execute("SAVEPOINT job").fetchall()
        try:
            with translate_errors(self.path):
                job.value = run_sync(job.work(tx), closed_to=NO_WAIT_REASON)
        except BaseException as error:  # delivered to the caller after the commit
            job.error = error
            if not connection.in_transaction:
                raise  # SQLite rolled back the whole transaction
            connection.execute("ROLLBACK TO job").fetchall()
        connection.execute("RELEASE job").fetchall()

    def _set_deferred_sync(self, connection: apsw.Connection, deferred_sync: bool) -> None:
        if deferred_sync is (connection is self._unsynced_connection):
            return
        # Set first and cleared last: after an interrupt between these lines the connection must not count as synced.
        self._unsynced_connection = connection
        sqlite_connection.set_sync_on_commit(connection, not deferred_sync)
        if not deferred_sync:
            self._unsynced_connection = None

    def _sync_pending(self) -> None:
        with self._fork_lock, self._write_lock, translate_errors(self.path):
            if self._write_connection is not None:
                self._log.make_durable(self._write_connection)

    def _try_write_lock(self) -> bool:
        """Take and release the file's write lock; False where that takes longer than LOCK_PROBE_TIMEOUT_S."""
        self._reopen_if_replaced()
        if not self._write_lock.acquire(timeout=LOCK_PROBE_TIMEOUT_S):
            return False
        try:
            with self._fork_lock, translate_errors(self.path):
                if self._closed:
                    return False
                return sqlite_connection.can_begin_write(self._get_write_connection(), LOCK_PROBE_TIMEOUT_S)
        finally:
            self._write_lock.release()

    def _open_connection(self, *, create: bool = False) -> apsw.Connection:
        with translate_errors(self.path):
            return sqlite_connection.connect(self.path, create=create, read_only=self._read_only)


def _fail_jobs(jobs: list[WriteJob], error: BaseException) -> None:
    for job in jobs:
        job.error = job.error or error
        job.deliver_result()


async def _write_and_remove(tx: Transaction) -> None:
    """Write something, to learn whether that is possible."""
    await tx.execute("INSERT INTO counters VALUES ('write check', 1)")
    await tx.execute("DELETE FROM counters WHERE name = 'write check'")


def _count_pages_written(connection: apsw.Connection) -> int:
    """Return how many pages a connection has written to the log; a row rewritten unchanged adds none."""
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]


class DeferredSyncSqlite:
    """The same store, with writes that do not wait for the disk."""

    def __init__(self, store: Sqlite) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T]) -> T:
        return await self._store.write(work, deferred_sync=True)
