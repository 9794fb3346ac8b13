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

from athena.core.threads import Outcome, Turnstile, aside, check_may_wait, drive, running_loop
from athena.errors import AthenaError, Unavailable
from athena.storage.database import Copying, Database, Row, Work
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite import fork
from athena.storage.sqlite.connection import MEMORY, PATIENCE, translated
from athena.storage.sqlite.fulltext import SqliteWords
from athena.storage.sqlite.job import STOP, Job, nothing
from athena.storage.sqlite.relaxed import Relaxed
from athena.storage.sqlite.schema import migrate
from athena.storage.sqlite.table_copy import SqliteBulk
from athena.storage.sqlite.vectors import SqliteVectors

T = TypeVar("T")
GROUP = 256  # jobs in one commit, at most
BRIEF = 0.2  # seconds that somebody who need not write waits to
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


class Sqlite:
    """A store in one file, or in memory for tests."""

    kind = "sqlite"
    hindrance = ""
    contended = float("-inf")  # who writes has the store alone

    def __init__(self, path: str | Path, *, copying: Copying = "", soon: float = SOON) -> None:
        self.path = str(path)
        self._soon = soon
        self.words = SqliteWords()
        self.vectors = SqliteVectors()
        self.bulk = SqliteBulk(self.path)
        self._idle: list[apsw.Connection] = []
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._deferred: list[Job] = []
        self._named: set[str] = set()  # those of them of which one is enough
        self._due = 0.0  # when the first of them has waited long enough
        self._guard = threading.Lock()
        self._pen = threading.Lock()
        self._writer: threading.Thread | None = None
        self._writing: apsw.Connection | None = None
        self._hasty: apsw.Connection | None = None  # the one that does not wait for the disk now
        self._loose = 0  # commits that did not wait for the disk
        self._firm = 0  # those of them that it has by now, at least
        self._turnstile = Turnstile()
        self._closed = False
        sqlite_connection.check_there(self.path, copying)
        first = self._open(create=True)
        with translated(self.path):
            migrate(first, (*self.words.schema, *self.vectors.schema))
            sqlite_connection.check_whole(first, self.path, copying)
        self._only = first if self.path == MEMORY else None
        self._log = str(first.filename_wal)  # where the path is a link, it is beside what that leads to
        self._inode = 0 if self._only else os.stat(self.path).st_ino
        if self._only is None:
            self._idle.append(first)
        fork.stores.add(self)

    def location(self) -> str:
        return self.path

    async def problems(self, tx: Any) -> list[str]:
        """Ask SQLite whether its file is sound."""
        rows = await tx.fetch("PRAGMA integrity_check(20)")
        return [f"the file is damaged: {row[0]}" for row in rows if row[0] != "ok"]

    async def size(self, tx: Any) -> int:
        return sum(os.path.getsize(f) for end in ("", "-wal") if os.path.exists(f := self.path + end))  # noqa: ASYNC240  # on a thread of its own

    async def read(self, work: Work[T]) -> T:
        if self._only is not None:
            return await self.write(work)
        return await aside(self._read, work)

    async def write(self, work: Work[T], *, relaxed: bool = False) -> T:
        if running_loop() is None and self._jobs.empty() and self._pen.acquire(blocking=False):
            return self._write_now(work, relaxed)
        outcome: Outcome[T] = Outcome()
        self._submit(Job(work, outcome, relaxed=relaxed))
        return await outcome

    @property
    def relaxed(self) -> Database:
        return cast(Database, Relaxed(self))

    async def sync(self) -> None:
        if self._firm < self._loose:
            await aside(self._sync)

    def _sync(self) -> None:
        loose = self._loose
        if self._only is None:
            sqlite_connection.sync(self._log)
        self._firm = loose

    def _write_now(self, work: Work[T], relaxed: bool) -> T:
        """Write on the caller's own thread, which holds the pen; changing threads would take as long as the disk."""
        job = Job(work, None, relaxed=relaxed)
        try:
            check_may_wait()
            with self._turnstile:
                if self._closed:
                    raise Unavailable("the store is closed", hint="open it again", retry=False)
                self._finish([job])
        finally:
            self._pen.release()
        if job.error is not None:
            raise job.error
        value: T = job.value
        return value

    async def free(self) -> bool:
        return self._only is not None or await aside(self._try)

    def _try(self) -> bool:
        """Take the file's lock and let it go; False where that takes more than a moment."""
        if not self._pen.acquire(timeout=BRIEF):
            return False
        try:
            with self._turnstile, translated(self.path):
                if self._closed:
                    return False
                self._writing = self._writing or self._open()
                return sqlite_connection.is_free(self._writing, BRIEF)
        finally:
            self._pen.release()

    def later(self, work: Work[None], *, once: str = "") -> None:
        with self._guard:
            if self._closed or once in self._named:
                return
            if once:
                self._named.add(once)
            if not self._deferred:
                self._due = time.monotonic() + self._soon
            self._deferred.append(Job(work, None))
            waiting = len(self._deferred)
        if waiting >= GROUP:
            self._submit(Job(nothing, None))
        elif waiting == 1:
            self._submit(None)

    async def compact(self) -> bool:
        """Rewrite the file and empty the log; False where another process keeps it from being emptied."""
        outcome: Outcome[bool] = Outcome()
        self._submit(Job(nothing, outcome, ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")))
        return await outcome

    def close(self) -> None:
        """Finish what was asked for and let go of the file; waits a second at most for another writer."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            writer = self._writer
            self._jobs.put(STOP)
        fork.stores.discard(self)
        if writer is not None:
            writer.join(1.0)
        elif self._pen.acquire(timeout=1.0):  # nobody else will close what callers wrote with
            if connection := self._only or self._writing:
                connection.close()
            self._pen.release()
        for connection in self._idle:
            connection.close()

    def _submit(self, job: Job | None) -> None:
        with self._guard:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again", retry=False)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="athena-writer", daemon=True)
                self._writer.start()
            self._jobs.put(job)

    def pause(self) -> None:
        """Before a fork: let everybody out and close all connections to the file."""
        if self._only is not None:
            return
        self._turnstile.shut(PATIENCE)
        for connection in [*self._idle, *([self._writing] if self._writing else [])]:
            connection.close()
        self._idle.clear()
        self._writing = None

    def go_on(self) -> None:
        self._turnstile.open()

    def abandon(self) -> None:
        """In the child: the threads are gone, and a store in memory with them."""
        self._closed = True
        self._turnstile = Turnstile()
        self._guard, self._pen = threading.Lock(), threading.Lock()

    def _read(self, work: Work[T]) -> T:
        with self._turnstile:
            return self._read_now(work)

    def _read_now(self, work: Work[T]) -> T:
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
        while True:
            jobs, stop = self._take()
            with self._turnstile, self._pen:
                if jobs:
                    self._finish(jobs)
                if stop:
                    if connection := self._only or self._writing:
                        connection.close()
                    return

    def _finish(self, jobs: list[Job]) -> None:
        try:
            with translated(self.path):
                self._writing = self._only or self._writing or self._open()
                self._check_still_there()
                self._commit(self._writing, [job for job in jobs if not job.outside])
                for job in jobs:
                    if job.outside:
                        self._maintain(self._writing, job)
        except Exception as error:  # noqa: BLE001  # this thread must outlive whatever happens; all are told
            for job in jobs:
                job.error = job.error or error
                job.tell()

    def _check_still_there(self) -> None:
        """Refuse to write to a file that was deleted or replaced while it is open: nobody would find it again."""
        if self._only is not None:
            return
        try:
            now = os.stat(self.path).st_ino
        except FileNotFoundError:
            now = -1
        if now != self._inode:
            raise Unavailable(f"{self.path} was removed or replaced while it was open", hint="start again", retry=False)

    def _take(self) -> tuple[list[Job], bool]:
        """Wait for work and take all that is there; deferred work only when its time has come."""
        waiting: list[Job] = []
        try:
            while not waiting:
                # None only says that there is deferred work now, and so a time limit on this wait.
                patience = max(0.0, self._due - time.monotonic()) if self._deferred else None
                if job := self._jobs.get(timeout=patience):
                    waiting.append(job)
            while len(waiting) < GROUP:
                if job := self._jobs.get_nowait():
                    waiting.append(job)
        except Empty:
            pass
        jobs = [job for job in waiting if job is not STOP]
        stop = len(jobs) < len(waiting)
        return jobs + self._take_deferred(stop), stop

    def _take_deferred(self, stop: bool) -> list[Job]:
        """Return deferred work once it has waited long enough, or is much, so that a caller seldom waits for it."""
        with self._guard:
            if not stop and len(self._deferred) < GROUP and time.monotonic() < self._due:
                return []
            deferred, self._deferred = self._deferred, []
            self._named.clear()
            return deferred

    def _maintain(self, connection: apsw.Connection, job: Job) -> None:
        try:
            with translated(self.path):
                rows = [connection.execute(statement).fetchall() for statement in job.outside]
                job.value = not any(
                    row[0] for answer in rows for row in answer
                )  # the checkpoint says if it was kept out
        except AthenaError as error:
            job.error = error
        job.tell()

    def _commit(self, connection: apsw.Connection, jobs: list[Job]) -> None:
        """Run jobs in one transaction, several each in a savepoint of its own, and tell each caller its outcome."""
        if not jobs:
            return
        tx, relaxed = SqliteTransaction(connection), all(job.relaxed for job in jobs)
        try:
            with translated(self.path):
                if connection.in_transaction:  # an interrupt cut somebody short
                    connection.execute("ROLLBACK").fetchall()
                self._relax(connection, relaxed)
                connection.execute("BEGIN IMMEDIATE").fetchall()
                before = _written(connection)
                if len(jobs) == 1:
                    jobs[0].value = drive(jobs[0].work(tx), closed_to=ONLY_THE_TRANSACTION)
                else:
                    for job in jobs:
                        self._run(tx, job)
                connection.execute("COMMIT").fetchall()
                self._committed(relaxed, wrote=_written(connection) > before)
        except BaseException as error:  # noqa: BLE001  # the group is lost; each caller is told below
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

    def _relax(self, connection: apsw.Connection, relaxed: bool) -> None:
        if relaxed is (connection is self._hasty):
            return
        self._hasty = connection  # until it certainly is not: an interrupt can come after each line
        sqlite_connection.set_durable(connection, not relaxed)
        if not relaxed:
            self._hasty = None

    def _committed(self, relaxed: bool, *, wrote: bool) -> None:
        if relaxed:
            self._loose += 1
        elif wrote:
            self._firm = self._loose
        elif self._firm < self._loose:  # so it has not waited for what it found there
            self._sync()

    def _run(self, tx: SqliteTransaction, job: Job) -> None:
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
            return sqlite_connection.connect(self.path, create=create)


def _written(connection: apsw.Connection) -> int:
    """Return how many pages a connection has put into the log: none for a row that is written as it was."""
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
