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

from athena.core.threads import run_in_thread, run_sync, start_in_thread
from athena.errors import AthenaError, Misconfigured, Unavailable
from athena.storage.database import CopyRole, Database, Row, Work
from athena.storage.postgres import connection as postgres_connection
from athena.storage.postgres.connection import RACE_ERRORS, translate_errors
from athena.storage.postgres.fulltext import PostgresFullText
from athena.storage.postgres.table_copy import PostgresTableCopy
from athena.storage.postgres.vectors import Graph, PostgresVectorIndex
from athena.storage.sqlite import fork

logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())  # callers are told by an error
T = TypeVar("T")
RECONNECT_TIMEOUT_S = 10.0  # seconds in which a server that is gone may come back before a caller is told
POOL_TIMEOUT_S = 1.0  # seconds after which a connection is asked for anew: the pool itself would wait longer every time
MAX_RETRY_PAUSE_S = 0.5  # seconds between two tries, at most
MIN_RACE_ATTEMPTS = 3  # of work that loses a race, at least: it may itself take longer than that
MAX_POOL_CONNECTIONS = 8  # of one process
DEFERRED_WRITE_DELAY_S = 2.0  # seconds that a deferred write may wait for company
MAX_JOBS_PER_COMMIT = 256  # deferred writes in one commit, at most
GRAPH_RETRY_DELAY_S = 10.0  # seconds before a graph is tried again
UNFINISHED_COPY_HINT = "run athena migrate again to finish it"
TALLY_FOLD_WRITES = 200  # memories written after which the tallies are folded
BEGIN_READ_SQL = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITE_SQL = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO commits (token) SELECT gen_random_uuid()
WHERE NOT EXISTS (SELECT 1 FROM counters WHERE name = 'copy source')
RETURNING token::text, pg_current_xact_id()::text"""
BEGIN_COPY_SQL = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
INSERT INTO commits DEFAULT VALUES RETURNING token::text, pg_current_xact_id()::text"""
# Nobody waits for it, so it waits for nobody: neither for the disk nor, for long, for another's rows.
BEGIN_DEFERRED_SQL = b"""BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL synchronous_commit = off; SET LOCAL lock_timeout = 200"""
RELATION_KEY_SQL = "hashtextextended(source || ' ' || target || ' ' || relation, scope) >> 1"
UNIQUENESS_DDL = (
    "CREATE TABLE commits (token UUID PRIMARY KEY DEFAULT gen_random_uuid(), at TIMESTAMPTZ NOT NULL DEFAULT now())",
    # Two that write at once do not see each other, and might choose the same short name.
    "CREATE UNIQUE INDEX memories_named ON memories (scope, hash) WHERE deleted IS NULL",
    # Nor would they see that they tell one session the same.
    "CREATE UNIQUE INDEX injections_once ON injections (scope, session, memory) WHERE over = 0",
    # Nor would they see that they tell of one relation at overlapping times.
    f"""ALTER TABLE relations ADD CONSTRAINT relations_apart EXCLUDE USING gist (
        (int8range({RELATION_KEY_SQL}, {RELATION_KEY_SQL}, '[]')) WITH &&, (numrange(began::numeric, ended::numeric)) WITH &&
    ) WHERE (removed IS NULL)""",
)
NO_WAIT_REASON = "a transaction's work may wait only for its transaction"
NAMED_PARAMETER_PATTERN = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)|%")


@lru_cache(maxsize=2_000)
def _to_psycopg_sql(statement: str) -> bytes:
    """Write `:name` as psycopg does."""
    return NAMED_PARAMETER_PATTERN.sub(lambda found: f"%({found[1]})s" if found[1] else "%%", statement).encode()


class PostgresTransaction:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._cursor = connection.cursor(binary=True)

    async def execute(self, sql: str, **values: Any) -> int:
        return self._cursor.execute(_to_psycopg_sql(sql), values).rowcount

    async def fetch(self, sql: str, **values: Any) -> list[Row]:
        return self._cursor.execute(_to_psycopg_sql(sql), values).fetchall()

    async def fetch_one(self, sql: str, **values: Any) -> Row | None:
        return self._cursor.execute(_to_psycopg_sql(sql), values).fetchone()

    async def each(self, sql: str, rows: list[dict[str, Any]]) -> None:
        """Run a statement once for each row, without waiting for one answer before the next."""
        if len(rows) == 1:
            self._cursor.execute(_to_psycopg_sql(sql), rows[0])
        elif rows:
            self._cursor.executemany(_to_psycopg_sql(sql), rows)


class Postgres:
    """A store in a database of a PostgreSQL server."""

    engine = "postgres"

    def __init__(
        self,
        url: str,
        patience: float = RECONNECT_TIMEOUT_S,
        *,
        copying: CopyRole = "",
        soon: float = DEFERRED_WRITE_DELAY_S,
    ) -> None:
        self.url = url
        self._timeout_s = patience
        self._delay_s = soon
        self.fulltext = PostgresFullText()
        self.vectors = PostgresVectorIndex()
        self.table_copy = PostgresTableCopy(self.fulltext)
        self.fulltext.unfolded_tallies = random.randrange(
            TALLY_FOLD_WRITES
        )  # so that processes which write once fold too, now and then
        self._closed = False
        self._deferred: list[Work[None]] = []
        self._once_names: set[str] = set()  # those of them of which one is enough
        self._guard = threading.Condition()
        self._deferred_thread: threading.Thread | None = None
        self._begin_write = BEGIN_COPY_SQL if copying == "to" else BEGIN_WRITE_SQL
        self._writes = 0
        self._graph_retry_at = 0.0  # when a graph that could not be drawn is tried again
        self.slowdown_reason = ""
        self.last_conflict_at = float("-inf")
        postgres_connection.migrate_database(
            url, (*self.fulltext.schema, *self.vectors.schema, *UNIQUENESS_DDL), copying=copying
        )
        self._pool = ConnectionPool(
            kwargs=postgres_connection.parse_connection_url(url) | {"autocommit": True},
            min_size=1,
            max_size=MAX_POOL_CONNECTIONS,
            configure=postgres_connection.configure_connection,
            reconnect_timeout=POOL_TIMEOUT_S,
            open=True,
        )
        fork.fork_aware_stores.add(self)

    def describe_location(self) -> str:
        return postgres_connection.format_location(self.url)

    async def measure_size(self, tx: Any) -> int:
        row = await tx.fetch_one(
            """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relkind = 'r'""",
            schema=postgres_connection.SCHEMA,
        )
        return int(row[0])

    async def find_problems(self, tx: Any) -> list[str]:
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
        made = await run_in_thread(self._run_transaction, BEGIN_READ_SQL, work)
        graph, self.vectors.missing_index = self.vectors.missing_index, None
        if graph is not None and time.monotonic() > self._graph_retry_at:
            self._graph_retry_at = time.monotonic() + GRAPH_RETRY_DELAY_S  # or until it is drawn
            start_in_thread(self._build_graph, graph)
        return made

    async def write(self, work: Work[T]) -> T:
        made = await run_in_thread(self._run_transaction, self._begin_write, work)
        self._writes += 1
        if self.fulltext.unfolded_tallies >= TALLY_FOLD_WRITES or self._writes >= 5 * TALLY_FOLD_WRITES:
            self.fulltext.unfolded_tallies = self._writes = 0
            self.defer_write(self._fold_and_prune)
        return made

    @property
    def deferred_sync(self) -> Database:
        return self  # a server can fail while the program goes on

    async def sync(self) -> None:
        """Every write has waited for the server's disk."""

    async def can_write_now(self) -> bool:
        return True  # many write at once

    def defer_write(self, work: Work[None], *, once: str = "") -> None:
        with self._guard:
            if self._closed or once in self._once_names:
                return
            if once:
                self._once_names.add(once)
            self._deferred.append(work)
            if self._deferred_thread is None:
                self._deferred_thread = threading.Thread(
                    target=self._run_deferred_writes, name="athena-later", daemon=True
                )
                self._deferred_thread.start()
            if len(self._deferred) in (1, MAX_JOBS_PER_COMMIT):
                self._guard.notify_all()

    async def compact(self) -> bool:
        """Let the server forget removed rows: their space is reused. Its log and its backups are its own matter."""
        await run_in_thread(self._run_autocommit, VACUUM_SQL)
        return True

    def close(self) -> None:
        """Finish what was put off, a second at most, and let go of the connections."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._guard.notify_all()
        if self._deferred_thread is not None:
            self._deferred_thread.join(1.0)
        fork.fork_aware_stores.discard(self)
        self._pool.close(1.0)

    def before_fork(self) -> None:
        """A fork is harmless to the parent's sockets."""

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """In the child: the sockets are the parent's, so nothing may be sent or closed on them."""
        self._closed = True
        self._guard = threading.Condition()
        _inherited_pools.append(self._pool)

    def _run_transaction(self, begin: bytes, work: Work[T]) -> T:
        """Run work in a transaction, again where that is safe, until it is done or the time is over."""
        deadline = time.monotonic() + self._timeout_s
        tries = 0
        while True:
            if self._closed:
                raise Unavailable("the store is closed", hint="open it again", retry=False)
            tries += 1
            try:
                with translate_errors(self.url):
                    return self._try_transaction(begin, work, deadline)
            except RACE_ERRORS as error:
                self.last_conflict_at = time.monotonic()
                trouble: Exception = error
            except errors.DataException as error:
                if self.vectors.mixed:
                    raise
                self.vectors.mixed, trouble = True, error  # vectors of two sizes: from now on it looks at that
            except Unavailable as error:
                if not error.retry or self._closed:
                    raise
                trouble = error
            if time.monotonic() > deadline and (tries >= MIN_RACE_ATTEMPTS or isinstance(trouble, Unavailable)):
                break
            time.sleep(min(MAX_RETRY_PAUSE_S, 0.005 * 2 ** min(tries, 8)) * random.random())
        if isinstance(trouble, Unavailable):
            raise trouble
        raise Unavailable("others keep changing the same memories", hint="try again") from trouble

    def _try_transaction(self, begin: bytes, work: Work[T], deadline: float) -> T:
        try:
            connection = self._pool.getconn(min(POOL_TIMEOUT_S, max(0.1, deadline - time.monotonic())))
        except (PoolTimeout, PoolClosed):
            if time.monotonic() + MAX_RETRY_PAUSE_S >= deadline:  # the last try
                postgres_connection.check_reachable(self.url)  # says why, where the pool only says that it waited
            raise Unavailable("all connections to the database are in use", hint="try again") from None
        try:
            cursor = connection.execute(begin, prepare=False)  # it may be two statements
            mark = None
            if begin in (BEGIN_WRITE_SQL, BEGIN_COPY_SQL) and cursor.nextset() and (mark := cursor.fetchone()) is None:
                raise Misconfigured("a copy into this store is not finished", hint=UNFINISHED_COPY_HINT)
            made = run_sync(work(PostgresTransaction(connection)), closed_to=NO_WAIT_REASON)
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
        if self._was_committed(mark, deadline):
            return made
        raise Unavailable("the connection was lost; nothing was stored", hint="try again")

    def _was_committed(self, mark: Row, deadline: float) -> bool:
        """Ask what became of a transaction whose commit was not answered."""
        token, number = mark
        deadline = max(deadline, time.monotonic()) + self._timeout_s
        while time.monotonic() < deadline:
            try:
                with psycopg.connect(
                    **postgres_connection.parse_connection_url(self.url), autocommit=True
                ) as connection:
                    if not _is_in_progress(connection, number):
                        left = f"SELECT 1 FROM {postgres_connection.SCHEMA}.commits WHERE token = %s"
                        return connection.execute(left.encode(), [token]).fetchone() is not None
            except psycopg.Error:
                pass
            time.sleep(0.05)
        raise Unavailable(
            "the connection was lost at the last step, and the server does not answer: it may be stored or not",
            hint="do the same again: a text is kept once, and an idempotency key makes a call count once",
        )

    async def _fold_and_prune(self, tx: Any) -> None:
        """Put the tallies together, and forget commits that nobody can be unsure of any more."""
        await self.fulltext.fold_tallies(tx)
        await tx.execute("DELETE FROM commits WHERE at < now() - interval '10 minutes'")

    def _run_autocommit(self, statement: bytes) -> None:
        """Run what must stand outside of a transaction."""
        with (
            translate_errors(self.url),
            psycopg.connect(**postgres_connection.parse_connection_url(self.url), autocommit=True) as connection,
        ):
            connection.execute(statement)

    def _build_graph(self, graph: Graph) -> None:
        """Build a graph of vectors without keeping anybody from writing; only one process does."""
        try:
            with psycopg.connect(**postgres_connection.parse_connection_url(self.url), autocommit=True) as connection:
                postgres_connection.configure_connection(connection)
                if graph.try_lock(connection):
                    graph.build_index(connection)
            self.slowdown_reason, self._graph_retry_at = "", time.monotonic() + DEFERRED_WRITE_DELAY_S
        except psycopg.Error as error:  # searches scan meanwhile, and it is tried again
            said = str(error).strip().partition("\n")[0]
            self.slowdown_reason = f"large projects are searched slowly, their graph cannot be drawn: {said}"

    def _run_deferred_writes(self) -> None:
        """Commit what was put off, in company."""
        while True:
            with self._guard:
                self._guard.wait_for(lambda: self._deferred or self._closed)
                self._guard.wait_for(lambda: len(self._deferred) >= MAX_JOBS_PER_COMMIT or self._closed, self._delay_s)
                jobs, self._deferred = self._deferred[:MAX_JOBS_PER_COMMIT], self._deferred[MAX_JOBS_PER_COMMIT:]
                self._once_names.clear()
                closed = self._closed
            if jobs:
                self._commit_deferred(jobs)
            elif closed:
                return

    def _commit_deferred(self, jobs: list[Work[None]]) -> None:
        """Run deferred jobs in one transaction; where that fails each alone, so that only what cannot be is let go."""

        async def run_all_jobs(tx: Any) -> None:
            for job in jobs:
                await job(tx)

        for _ in range(3):
            try:
                return self._try_transaction(BEGIN_DEFERRED_SQL, run_all_jobs, time.monotonic() + 1.0)
            except (psycopg.Error, AthenaError):  # notes about calls and use, which a store can do without
                if len(jobs) > 1:
                    for job in jobs:
                        self._commit_deferred([job])
                    return None
                time.sleep(0.05 * random.random())
        return None


def _is_in_progress(connection: psycopg.Connection[Any], number: str) -> bool:
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


_inherited_pools: list[Any] = []  # pools of a parent process: letting go of one would end its connections
# A table that is locked, since its graph is being drawn, is left to the server's own vacuum.
VACUUM_SQL = b"VACUUM (SKIP_LOCKED) " + b", ".join(
    b"athena." + name for name in (b"memories", b"passages", b"tokens", b"words", b"tags", b"links", b"history")
)
