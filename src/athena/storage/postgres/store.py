"""PostgreSQL through psycopg, for any number of processes on one database.

A transaction runs on the caller's thread, on a connection from a small pool, and holds nothing in memory that
could go stale. Writes see one snapshot (`REPEATABLE READ`): whoever loses a race is run again from its beginning.
A connection that is lost before its commit was sent costs a retry; one that is lost while it commits is resolved
by looking for the row that each transaction leaves in `commits`. Its number alone would not do: after a crash the
server gives the numbers of lost transactions to new ones.
"""

import logging
import random
import re
import threading
import time
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from athena.core.threads import aside, drive, start
from athena.errors import AthenaError, Misconfigured, Unavailable
from athena.storage.database import Copying, Database, Row, Work
from athena.storage.postgres import connection as postgres_connection
from athena.storage.postgres.connection import LOST_RACE, translated
from athena.storage.postgres.fulltext import PostgresWords
from athena.storage.postgres.graph import Graph
from athena.storage.postgres.table_copy import PostgresBulk
from athena.storage.postgres.vectors import PostgresVectors
from athena.storage.sqlite import fork

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # callers are told by an error
T = TypeVar("T")
PATIENCE = 10.0  # seconds in which a server that is gone may come back before a caller is told
AGAIN = 1.0  # seconds after which a connection is asked for anew: the pool itself would wait longer every time
PAUSE = 0.5  # seconds between two tries, at most
TRIES = 3  # of work that loses a race, at least: it may itself take longer than that
CONNECTIONS = 8  # of one process
SOON = 2.0  # seconds that a deferred write may wait for company
GROUP = 256  # deferred writes in one commit, at most
LATER = 10.0  # seconds before a graph is tried again
AGAIN_COPY = "run athena migrate again to finish it"
FOLDED = 200  # memories written after which the tallies are folded
READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITING = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO commits (token) SELECT gen_random_uuid()
WHERE NOT EXISTS (SELECT 1 FROM counters WHERE name = 'copy source')
RETURNING token::text, pg_current_xact_id()::text"""
COPYING = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO commits DEFAULT VALUES RETURNING token::text, pg_current_xact_id()::text"""
# Nobody waits for it, so it waits for nobody: neither for the disk nor, for long, for another's rows.
DEFERRED = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = 200"""
WHICH = "hashtextextended(source || ' ' || target || ' ' || relation, scope) >> 1"
ONCE = (
    "CREATE TABLE commits (token UUID PRIMARY KEY DEFAULT gen_random_uuid(), at TIMESTAMPTZ NOT NULL DEFAULT now())",
    # Two that write at once do not see each other, and might choose the same short name.
    "CREATE UNIQUE INDEX memories_named ON memories (scope, hash) WHERE deleted IS NULL",
    # Nor would they see that they tell one session the same.
    "CREATE UNIQUE INDEX injections_once ON injections (scope, session, memory) WHERE over = 0",
    # Nor would they see that they tell of one relation at overlapping times.
    f"""ALTER TABLE relations ADD CONSTRAINT relations_apart EXCLUDE USING gist (
        (int8range({WHICH}, {WHICH}, '[]')) WITH &&, (numrange(began::numeric, ended::numeric)) WITH &&
    ) WHERE (removed IS NULL)""",
)
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


class Postgres:
    """A store in a database of a PostgreSQL server."""

    kind = "postgres"

    def __init__(self, url: str, patience: float = PATIENCE, *, copying: Copying = "", soon: float = SOON) -> None:
        self.url = url
        self._patience = patience
        self._soon = soon
        self.words = PostgresWords()
        self.vectors = PostgresVectors()
        self.bulk = PostgresBulk(self.words)
        self.words.unfolded = random.randrange(FOLDED)  # so that processes which write once fold too, now and then
        self._closed = False
        self._deferred: list[Work[None]] = []
        self._named: set[str] = set()  # those of them of which one is enough
        self._guard = threading.Condition()
        self._later: threading.Thread | None = None
        self._writing = COPYING if copying == "to" else WRITING
        self._writes = 0
        self._not_before = 0.0  # when a graph that could not be drawn is tried again
        self.hindrance = ""
        self.contended = float("-inf")
        postgres_connection.bring_into_shape(url, (*self.words.schema, *self.vectors.schema, *ONCE), copying=copying)
        self._pool = ConnectionPool(
            kwargs=postgres_connection.parameters(url) | {"autocommit": True},
            min_size=1,
            max_size=CONNECTIONS,
            configure=postgres_connection.prepare,
            reconnect_timeout=AGAIN,
            open=True,
        )
        fork.stores.add(self)

    def location(self) -> str:
        return postgres_connection.shown(self.url)

    async def size(self, tx: Any) -> int:
        row = await tx.fetch_one(
            """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relkind = 'r'""",
            schema=postgres_connection.SCHEMA,
        )
        return int(row[0])

    async def problems(self, tx: Any) -> list[str]:
        """Tell which indexes are broken; a graph is not valid while it is drawn, and drawn again if that failed."""
        rows = await tx.fetch(
            """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND NOT i.indisvalid
               AND c.relname NOT LIKE 'passages_near%'""",
            schema=postgres_connection.SCHEMA,
        )
        await tx.execute("SET LOCAL statement_timeout = 0")  # what follows looks at everything
        return [
            f"index {row[0]} is not valid; run: REINDEX INDEX {postgres_connection.SCHEMA}.{row[0]}" for row in rows
        ]

    async def read(self, work: Work[T]) -> T:
        made = await aside(self._transact, READING, work)
        graph, self.vectors.wanted = self.vectors.wanted, None
        if graph is not None and time.monotonic() > self._not_before:
            self._not_before = time.monotonic() + LATER  # or until it is drawn
            start(self._draw, graph)
        return made

    async def write(self, work: Work[T]) -> T:
        made = await aside(self._transact, self._writing, work)
        self._writes += 1
        if self.words.unfolded >= FOLDED or self._writes >= 5 * FOLDED:
            self.words.unfolded = self._writes = 0
            self.later(self._tidy)
        return made

    @property
    def relaxed(self) -> Database:
        return self  # a server can fail while the program goes on

    async def sync(self) -> None:
        """Every write has waited for the server's disk."""

    async def free(self) -> bool:
        return True  # many write at once

    def later(self, work: Work[None], *, once: str = "") -> None:
        with self._guard:
            if self._closed or once in self._named:
                return
            if once:
                self._named.add(once)
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
        fork.stores.discard(self)
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
                self.contended = time.monotonic()
                trouble: Exception = error
            except errors.DataException as error:
                if self.vectors.mixed:
                    raise
                self.vectors.mixed, trouble = True, error  # vectors of two sizes: from now on it looks at that
            except Unavailable as error:
                if not error.retry or self._closed:
                    raise
                trouble = error
            if time.monotonic() > deadline and (tries >= TRIES or isinstance(trouble, Unavailable)):
                break
            time.sleep(min(PAUSE, 0.005 * 2 ** min(tries, 8)) * random.random())
        if isinstance(trouble, Unavailable):
            raise trouble
        raise Unavailable("others keep changing the same memories", hint="try again") from trouble

    def _attempt(self, begin: bytes, work: Work[T], deadline: float) -> T:
        try:
            connection = self._pool.getconn(min(AGAIN, max(0.1, deadline - time.monotonic())))
        except (PoolTimeout, PoolClosed):
            if time.monotonic() + PAUSE >= deadline:  # the last try
                postgres_connection.reach(self.url)  # says why, where the pool only says that it waited
            raise Unavailable("all connections to the database are in use", hint="try again") from None
        try:
            cursor = connection.execute(begin, prepare=False)  # it may be two statements
            mark = None
            if begin in (WRITING, COPYING) and cursor.nextset() and (mark := cursor.fetchone()) is None:
                raise Misconfigured("a copy into this store is not finished", hint=AGAIN_COPY)
            made = drive(work(PostgresTransaction(connection)), closed_to=ONLY_THE_TRANSACTION)
            try:
                connection.execute("COMMIT")
            except psycopg.OperationalError:
                if mark is None:
                    return made
                if not connection.broken:
                    raise
            else:
                return made
        except BaseException as error:
            _roll_back(connection)
            if isinstance(error.__context__, KeyboardInterrupt):  # the driver's attempt to cancel met another error
                raise error.__context__ from None
            raise
        finally:
            self._pool.putconn(connection)
        if self._happened(mark, deadline):
            return made
        raise Unavailable("the connection was lost; nothing was stored", hint="try again")

    def _happened(self, mark: Row, deadline: float) -> bool:
        """Ask what became of a transaction whose commit was not answered."""
        token, number = mark
        deadline = max(deadline, time.monotonic()) + self._patience
        while time.monotonic() < deadline:
            try:
                with psycopg.connect(**postgres_connection.parameters(self.url), autocommit=True) as connection:
                    if not _in_progress(connection, number):
                        left = f"SELECT 1 FROM {postgres_connection.SCHEMA}.commits WHERE token = %s"
                        return connection.execute(left.encode(), [token]).fetchone() is not None
            except psycopg.Error:
                pass
            time.sleep(0.05)
        raise Unavailable(
            "the connection was lost at the last step, and the server does not answer: it may be stored or not",
            hint="do the same again: a text is kept once, and an idempotency key makes a call count once",
        )

    async def _tidy(self, tx: Any) -> None:
        """Put the tallies together, and forget commits that nobody can be unsure of any more."""
        await self.words.tend(tx)
        await tx.execute("DELETE FROM commits WHERE at < now() - interval '10 minutes'")

    def _outside(self, statement: bytes) -> None:
        """Run what must stand outside of a transaction."""
        with (
            translated(self.url),
            psycopg.connect(**postgres_connection.parameters(self.url), autocommit=True) as connection,
        ):
            connection.execute(statement)

    def _draw(self, graph: Graph) -> None:
        """Build a graph of vectors without keeping anybody from writing; only one process does."""
        try:
            with psycopg.connect(**postgres_connection.parameters(self.url), autocommit=True) as connection:
                postgres_connection.prepare(connection)
                if graph.is_free(connection):
                    graph.draw(connection)
            self.hindrance, self._not_before = "", time.monotonic() + SOON
        except psycopg.Error as error:  # searches scan meanwhile, and it is tried again
            said = str(error).strip().partition("\n")[0]
            self.hindrance = f"large projects are searched slowly, their graph cannot be drawn: {said}"

    def _do_later(self) -> None:
        """Commit what was put off, in company."""
        while True:
            with self._guard:
                self._guard.wait_for(lambda: self._deferred or self._closed)
                self._guard.wait_for(lambda: len(self._deferred) >= GROUP or self._closed, self._soon)
                jobs, self._deferred = self._deferred[:GROUP], self._deferred[GROUP:]
                self._named.clear()
                closed = self._closed
            if jobs:
                self._finish(jobs)
            elif closed:
                return

    def _finish(self, jobs: list[Work[None]]) -> None:
        """Run deferred jobs in one transaction; where that fails each alone, so that only what cannot be is let go."""

        async def together(tx: Any) -> None:
            for job in jobs:
                await job(tx)

        for _ in range(3):
            try:
                return self._attempt(DEFERRED, together, time.monotonic() + 1.0)
            except (psycopg.Error, AthenaError):  # notes about calls and use, which a store can do without
                if len(jobs) > 1:
                    for job in jobs:
                        self._finish([job])
                    return None
                time.sleep(0.05 * random.random())
        return None


def _in_progress(connection: psycopg.Connection[Any], number: str) -> bool:
    try:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", [number]).fetchone()
    except errors.InvalidParameterValue:
        return False  # the server crashed and knows of no such transaction
    return row is not None and row[0] == "in progress"


def _roll_back(connection: psycopg.Connection[Any]) -> None:
    if not connection.closed:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()


_inherited: list[Any] = []  # pools of a parent process: letting go of one would end its connections
# A table that is locked, since its graph is being drawn, is left to the server's own vacuum.
VACUUM = b"VACUUM (SKIP_LOCKED) " + b", ".join(
    b"athena." + name for name in (b"memories", b"passages", b"tokens", b"words", b"tags", b"links", b"history")
)
