"""PostgreSQL through psycopg, for any number of processes on one database.

A transaction runs on the caller's thread, on a connection from a small pool, and holds nothing in memory that
could go stale. Writes see one snapshot (`REPEATABLE READ`): whoever loses a race is run again from its beginning.
A connection that is lost before its commit was sent costs a retry; one that is lost while it commits is resolved
by asking the server what became of that transaction.
"""

import logging
import random
import re
import threading
import time
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from athena.errors import AthenaError, Unavailable
from athena.storage import forking
from athena.storage.database import Row, Work
from athena.storage.postgres import opening
from athena.storage.postgres.fulltext import PostgresWords
from athena.storage.postgres.graph import Graph
from athena.storage.postgres.opening import LOST_RACE, translated
from athena.storage.postgres.vectors import PostgresVectors
from athena.threads import aside, drive, start

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # callers are told by an error
T = TypeVar("T")
PATIENCE = 10.0  # seconds in which a server that is gone may come back before a caller is told
CONNECTIONS = 8  # of one process
SOON = 2.0  # seconds that a deferred write may wait for company
GROUP = 256  # deferred writes in one commit, at most
FOLDED = 200  # writes after which the tallies are folded
READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITING = b"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()::text"
ONLY_THE_TRANSACTION = "a transaction's work may wait only for its transaction"
NAMED = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)|%")


@lru_cache(maxsize=2_000)
def _spelled(statement: str) -> bytes:
    """Write `:name` as psycopg does."""
    return NAMED.sub(lambda found: f"%({found[1]})s" if found[1] else "%%", statement).encode()


class PostgresTransaction:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._cursor = connection.cursor(binary=True)

    async def execute(self, sql: str, **values: Any) -> int:
        return self._cursor.execute(_spelled(sql), values).rowcount

    async def fetch(self, sql: str, **values: Any) -> list[Row]:
        return self._cursor.execute(_spelled(sql), values).fetchall()

    async def fetch_one(self, sql: str, **values: Any) -> Row | None:
        return self._cursor.execute(_spelled(sql), values).fetchone()

    async def each(self, sql: str, rows: list[dict[str, Any]]) -> None:
        """Run a statement once for each row, without waiting for one answer before the next."""
        if len(rows) == 1:
            self._cursor.execute(_spelled(sql), rows[0])
        elif rows:
            self._cursor.executemany(_spelled(sql), rows)


class _Unsure(Exception):
    """The connection was lost while a transaction committed."""


class Postgres:
    """A store in a database of a PostgreSQL server."""

    kind = "postgres"

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        self.url = url
        self._patience = patience
        self.words = PostgresWords()
        self.vectors = PostgresVectors()
        self._closed = False
        self._deferred: list[Work[None]] = []
        self._guard = threading.Condition()
        self._later: threading.Thread | None = None
        self._writes = 0
        opening.bring_into_shape(url, (*self.words.schema, *self.vectors.schema))
        self._pool = ConnectionPool(
            kwargs=opening.parameters(url) | {"autocommit": True},
            min_size=1,
            max_size=CONNECTIONS,
            configure=opening.prepare,
            reconnect_timeout=patience,
            open=True,
        )
        forking.stores.add(self)

    def location(self) -> str:
        return opening.shown(self.url)

    async def size(self, tx: Any) -> int:
        row = await tx.fetch_one(
            """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relkind = 'r'""",
            schema=opening.SCHEMA,
        )
        return int(row[0])

    async def problems(self, tx: Any) -> list[str]:
        rows = await tx.fetch(
            """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND NOT i.indisvalid""",
            schema=opening.SCHEMA,
        )
        return [f"index {row[0]} is not valid; run: REINDEX INDEX {opening.SCHEMA}.{row[0]}" for row in rows]

    async def read(self, work: Work[T]) -> T:
        made = await aside(self._transact, READING, work)
        if self.vectors.wanted is not None:
            graph, self.vectors.wanted = self.vectors.wanted, None
            start(self._draw, graph)
        return made

    async def write(self, work: Work[T]) -> T:
        made = await aside(self._transact, WRITING, work)
        self._writes += 1
        if self._writes % FOLDED == 0:
            self.later(self.words.fold)
        return made

    def later(self, work: Work[None]) -> None:
        with self._guard:
            if self._closed:
                return
            self._deferred.append(work)
            if self._later is None:
                self._later = threading.Thread(target=self._do_later, name="athena-later", daemon=True)
                self._later.start()
            if len(self._deferred) in (1, GROUP):
                self._guard.notify_all()

    async def compact(self) -> bool:
        """Let the server forget removed rows: their space is reused. Its log and its backups are its own matter."""
        await aside(self._outside, VACUUM)
        return True

    def close(self) -> None:
        """Finish what was put off, a second at most, and let go of the connections."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._guard.notify_all()
        if self._later is not None:
            self._later.join(1.0)
        forking.stores.discard(self)
        self._pool.close(1.0)

    def pause(self) -> None:
        """A fork is harmless to the parent's sockets."""

    def go_on(self) -> None: ...

    def abandon(self) -> None:
        """In the child: the sockets are the parent's, so nothing may be sent or closed on them."""
        self._closed = True
        self._guard = threading.Condition()
        _inherited.append(self._pool)

    def _transact(self, begin: bytes, work: Work[T]) -> T:
        """Run work in a transaction, again where that is safe, until it is done or the time is over."""
        deadline = time.monotonic() + self._patience
        tries = 0
        while True:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again", retry=False)
            tries += 1
            try:
                with translated(self.url):
                    return self._attempt(begin, work, deadline)
            except LOST_RACE as error:
                trouble: Exception = error
            except Unavailable as error:
                if not error.retry or self._closed:
                    raise
                trouble = error
            if time.monotonic() > deadline:
                break
            time.sleep(min(0.5, 0.005 * 2 ** min(tries, 8)) * random.random())
        if isinstance(trouble, Unavailable):
            raise trouble
        raise Unavailable("others keep changing the same memories", hint="try again") from trouble

    def _attempt(self, begin: bytes, work: Work[T], deadline: float) -> T:
        try:
            connection = self._pool.getconn(max(0.1, deadline - time.monotonic()))
        except (PoolTimeout, PoolClosed):
            opening.reach(self.url)  # says why, where the pool only says that it waited
            raise Unavailable("all connections to the database are in use", hint="try again") from None
        try:
            cursor = connection.execute(begin, prepare=False)  # it may be two statements
            number = str((cursor.fetchone() or [""])[0]) if cursor.nextset() else ""
            made = drive(work(PostgresTransaction(connection)), closed_to=ONLY_THE_TRANSACTION)
            try:
                connection.execute("COMMIT")
            except psycopg.OperationalError:
                if not number:
                    return made
                if not connection.broken:
                    raise
            else:
                return made
        except BaseException:
            _roll_back(connection)
            raise
        finally:
            self._pool.putconn(connection)
        if self._happened(number, deadline):
            return made
        raise Unavailable("the connection was lost; nothing was stored", hint="try again")

    def _happened(self, number: str, deadline: float) -> bool:
        """Ask what became of a transaction whose commit was not answered."""
        while time.monotonic() < deadline + self._patience:
            try:
                with psycopg.connect(**opening.parameters(self.url), autocommit=True) as connection:
                    row = connection.execute("SELECT pg_xact_status(%s::xid8)", [number]).fetchone()
                status = row[0] if row else None
                if status != "in progress":
                    return bool(status == "committed")
            except psycopg.OperationalError:
                pass
            time.sleep(0.05)
        raise Unavailable(
            "the connection was lost while it was being stored, and the server does not answer",
            hint="do the same again: a text is kept once, and an idempotency key makes a call count once",
        )

    def _outside(self, statement: bytes) -> None:
        """Run what must stand outside of a transaction."""
        with translated(self.url), self._pool.connection(self._patience) as connection:
            connection.execute(statement)

    def _draw(self, graph: Graph) -> None:
        """Build a graph of vectors without keeping anybody from writing; only one process does."""
        try:
            with psycopg.connect(**opening.parameters(self.url), autocommit=True) as connection:
                opening.prepare(connection)
                if graph.is_free(connection):
                    graph.draw(connection)
        except psycopg.Error:
            pass  # searches scan meanwhile, and the next one asks again

    def _do_later(self) -> None:
        """Commit what was put off, in company."""
        while True:
            with self._guard:
                self._guard.wait_for(lambda: self._deferred or self._closed)
                self._guard.wait_for(lambda: len(self._deferred) >= GROUP or self._closed, SOON)
                jobs, self._deferred = self._deferred[:GROUP], self._deferred[GROUP:]
                closed = self._closed
            if jobs:
                self._finish(jobs)
            elif closed:
                return

    def _finish(self, jobs: list[Work[None]]) -> None:
        """Run deferred jobs in one transaction; nobody waits for them, so one that fails is let go."""

        async def together(tx: PostgresTransaction) -> None:
            for job in jobs:
                await tx.execute("SAVEPOINT job")
                try:
                    await job(tx)
                except AthenaError:
                    await tx.execute("ROLLBACK TO job")

        for _ in range(3):
            try:
                with translated(self.url):
                    return self._attempt(WRITING, together, time.monotonic() + 1.0)  # type: ignore[arg-type]
            except LOST_RACE:
                continue
            except Exception:  # noqa: BLE001  # notes about calls and use, which a store can do without
                return None
        return None


def _roll_back(connection: psycopg.Connection[Any]) -> None:
    if not connection.closed:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()


_inherited: list[Any] = []  # pools of a parent process: letting go of one would end its connections
VACUUM = b"VACUUM " + b", ".join(
    b"athena." + name for name in (b"memories", b"passages", b"tokens", b"words", b"tags", b"links", b"history")
)
