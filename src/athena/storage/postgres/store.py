"""The PostgreSQL engine, through psycopg, for any number of processes on one database.

A transaction runs on the caller's thread, on a connection from a small pool, and caches nothing that could become
stale. Writes see one snapshot (`REPEATABLE READ`); a write that loses a race is run again from its beginning. A
connection that is lost before COMMIT was sent costs a retry. One that is lost during COMMIT is resolved by looking
for the row that each transaction inserts into `commits`; a transaction id would not do, because after a crash the
server assigns the ids of lost transactions again.
"""

import logging
import random
import threading
import time
from contextlib import ExitStack
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from athena.core.threads import run_in_thread, run_sync, start_in_thread
from athena.errors import AthenaError, Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.database import CopyRole, Database, Row, Transaction, Work, require_row
from athena.storage.postgres import connection as postgres_connection
from athena.storage.postgres.connection import RACE_ERRORS, PostgresTransaction, translate_errors
from athena.storage.postgres.fulltext import PostgresFullText
from athena.storage.postgres.selection import HnswIndex
from athena.storage.postgres.table_copy import PostgresTableCopy
from athena.storage.postgres.vectors import PostgresVectorIndex
from athena.storage.sqlite import fork

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # callers get an error instead
T = TypeVar("T")
RECONNECT_TIMEOUT_S = 10.0  # how long a caller waits for a server that is gone
POOL_TIMEOUT_S = 1.0  # after which a connection is requested anew: the pool's own pauses grow with every try
MAX_RETRY_PAUSE_S = 0.5
MIN_RACE_ATTEMPTS = 3  # even where these take longer than the timeout
MAX_POOL_CONNECTIONS = 8
DEFERRED_WRITE_DELAY_S = 2.0  # how long a deferred write waits for others to commit with
MAX_JOBS_PER_COMMIT = 256
GRAPH_RETRY_DELAY_S = 10.0
CLOSE_TIMEOUT_S = 1.0
UNFINISHED_COPY_HINT = "run athena migrate again to finish it"
TALLY_FOLD_WRITES = 200  # rows of `tallies` after which they are folded into one for each scope
BEGIN_SQL = b"BEGIN ISOLATION LEVEL REPEATABLE READ"
BEGIN_READ_SQL = (BEGIN_SQL + b" READ ONLY",)
INSERT_MARK_SQL = b"INSERT INTO commits (token) SELECT gen_random_uuid()"
NO_COPY_SQL = b" WHERE NOT EXISTS (SELECT 1 FROM counters WHERE name = 'copy source')"
RETURN_MARK_SQL = b" RETURNING token::text, pg_current_xact_id()::text"
BEGIN_WRITE_SQL = BEGIN_SQL, INSERT_MARK_SQL + NO_COPY_SQL + RETURN_MARK_SQL
BEGIN_COPY_SQL = BEGIN_SQL, INSERT_MARK_SQL + RETURN_MARK_SQL
# No caller waits for a deferred write, so it need not be durable at once, and must not hold up others for long.
BEGIN_DEFERRED_SQL = BEGIN_SQL, b"SET LOCAL synchronous_commit = off", b"SET LOCAL lock_timeout = 200"
RELATION_KEY_SQL = "hashtextextended(source || ' ' || target || ' ' || relation, scope) >> 1"
UNIQUENESS_DDL = (
    "CREATE TABLE commits (token UUID PRIMARY KEY DEFAULT gen_random_uuid(), at TIMESTAMPTZ NOT NULL DEFAULT now())",
    # Concurrent transactions do not see each other's rows, and might choose the same short hash,
    "CREATE UNIQUE INDEX memories_named ON memories (scope, hash) WHERE deleted IS NULL",
    # inject the same memory into one session,
    "CREATE UNIQUE INDEX injections_once ON injections (scope, session, memory) WHERE over = 0",
    # or store one relation with overlapping times.
    f"""ALTER TABLE relations ADD CONSTRAINT relations_apart EXCLUDE USING gist (
        (int8range({RELATION_KEY_SQL}, {RELATION_KEY_SQL}, '[]')) WITH &&,
        (numrange(began::numeric, ended::numeric)) WITH &&
    ) WHERE (removed IS NULL)""",
)
NO_WAIT_REASON = "a transaction's work may wait only for its transaction"
# SKIP_LOCKED: a table that is locked while its HNSW graph is built is left to the server's autovacuum.
VACUUM_SQL = b"VACUUM (SKIP_LOCKED) " + b", ".join(
    b"athena." + name for name in (b"memories", b"passages", b"tokens", b"words", b"tags", b"links", b"history")
)
# what runs with every statement on our tables, or hides rows of them; Athena creates none of it
FOREIGN_PARTS_SQL = """
    SELECT 'trigger', t.tgname, 'on', c.relname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND c.relnamespace = to_regnamespace(:schema)
    UNION ALL SELECT 'rule', r.rulename, 'on', c.relname FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
    WHERE c.relkind IN ('r', 'p') AND c.relnamespace = to_regnamespace(:schema)
    UNION ALL SELECT 'policy', p.polname, 'on', c.relname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid
    WHERE c.relnamespace = to_regnamespace(:schema)"""
_inherited_pools: list[ConnectionPool] = []  # of a parent process: collecting one would end the parent's connections


class Postgres:
    """A store in a database of a PostgreSQL server."""

    engine = "postgres"

    def __init__(
        self,
        url: str,
        reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
        *,
        copying: CopyRole = "",
        partitions: int = 0,
        defer_delay_s: float = DEFERRED_WRITE_DELAY_S,
    ) -> None:
        self.url = url
        self._timeout_s = reconnect_timeout_s
        self._defer_delay_s = defer_delay_s
        self.fulltext = PostgresFullText()
        self.vectors = PostgresVectorIndex()
        self.table_copy = PostgresTableCopy(self.fulltext)
        # Random, so that processes which write only once fold now and then too.
        self.fulltext.unfolded_tallies = random.randrange(TALLY_FOLD_WRITES)
        self._closed = False
        self._deferred: list[Work[None]] = []
        self._dedupe_keys: set[str] = set()  # of the deferred jobs
        self._guard = threading.Condition()
        self._deferred_thread: threading.Thread | None = None
        self._begin_write = BEGIN_COPY_SQL if copying == "to" else BEGIN_WRITE_SQL
        self._writes = 0
        self._last_write_failed = False
        self._index_retry_at = 0.0  # when to try again an index that could not be built
        self.slowdown_reason = ""
        self.last_conflict_at = float("-inf")
        indexes = (*self.fulltext.schema, *self.vectors.schema, *UNIQUENESS_DDL)
        self._vector_schema = postgres_connection.migrate_database(url, indexes, copying=copying, partitions=partitions)
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

    async def measure_size(self, tx: Transaction) -> int:
        row = await tx.fetch_required(
            """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND c.relkind = 'r'""",
            schema=postgres_connection.SCHEMA,
        )
        return int(row[0])

    async def find_problems(self, tx: Transaction) -> list[str]:
        """Return what runs with our statements and is not ours, and the invalid indexes.

        Graphs are invalid while they are built.
        """
        foreign = await tx.fetch(FOREIGN_PARTS_SQL, schema=postgres_connection.SCHEMA)
        rows = await tx.fetch(
            """SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = :schema AND NOT i.indisvalid
               AND c.relname NOT LIKE 'passages_near%'""",
            schema=postgres_connection.SCHEMA,
        )
        await tx.execute("SET LOCAL statement_timeout = 0")  # the checks after this read every row
        problems = [migrations.describe_foreign(map(str, part)) for part in foreign]
        return problems + [
            f"index {row[0]} is not valid; run: REINDEX INDEX {postgres_connection.SCHEMA}.{row[0]}" for row in rows
        ]

    async def read(self, work: Work[T]) -> T:
        result = await run_in_thread(self._run_transaction, BEGIN_READ_SQL, work)
        index, self.vectors.missing_index = self.vectors.missing_index, None
        if index is not None and time.monotonic() > self._index_retry_at:
            self._index_retry_at = time.monotonic() + GRAPH_RETRY_DELAY_S  # or sooner, once it is built
            start_in_thread(self._build_index, index)
        return result

    async def write(self, work: Work[T]) -> T:
        try:
            result = await run_in_thread(self._run_transaction, self._begin_write, work)
        except (Unavailable, Misconfigured):
            self._last_write_failed = True
            raise
        self._last_write_failed = False
        self._writes += 1
        if self.fulltext.unfolded_tallies >= TALLY_FOLD_WRITES or self._writes >= 5 * TALLY_FOLD_WRITES:
            self.fulltext.unfolded_tallies = self._writes = 0
            self.defer_write(self._fold_and_prune)
        return result

    @property
    def deferred_sync(self) -> Database:
        return self  # every commit is synced: the server can fail while this process goes on

    async def sync(self) -> None:
        """Do nothing: every write has waited for the server's disk."""

    async def can_write_now(self) -> bool:
        return True  # writers do not exclude each other

    async def check_writable(self) -> str:
        async def commit_only(_: Transaction) -> None: ...

        if self._last_write_failed:
            await self.write(commit_only)
        return ""

    def defer_write(self, work: Work[None], *, dedupe_key: str = "") -> None:
        with self._guard:
            if self._closed or dedupe_key in self._dedupe_keys:
                return
            if dedupe_key:
                self._dedupe_keys.add(dedupe_key)
            self._deferred.append(work)
            if self._deferred_thread is None:
                self._deferred_thread = threading.Thread(
                    target=self._run_deferred_writes, name="athena-deferred", daemon=True
                )
                self._deferred_thread.start()
            if len(self._deferred) in (1, MAX_JOBS_PER_COMMIT):
                self._guard.notify_all()

    async def compact(self) -> bool:
        """Vacuum, so that the server reuses the space of deleted rows; its log and backups stay as they are."""
        await run_in_thread(self._run_autocommit, VACUUM_SQL)
        return True

    def release_unused(self) -> bool:
        return False  # the pool does it by itself

    def close(self) -> None:
        """Commit the deferred writes, in a second at most, and close the connections."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._guard.notify_all()
        if self._deferred_thread is not None:
            self._deferred_thread.join(CLOSE_TIMEOUT_S)
        fork.fork_aware_stores.discard(self)
        self._pool.close(CLOSE_TIMEOUT_S)

    def before_fork(self) -> None:
        """Do nothing: a fork does not affect the parent's sockets."""

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Close the store without closing its connections: the sockets are the parent's."""
        self._closed = True
        self._guard = threading.Condition()
        _inherited_pools.append(self._pool)

    def _run_transaction(self, begin: tuple[bytes, ...], work: Work[T]) -> T:
        """Run work in a transaction, and again where that is safe, until it succeeds or the timeout is over."""
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
                failure: Exception = error
            except errors.DataException as error:
                if self.vectors.mixed:
                    raise
                # A vector of another size: from now on the queries compare only those of the right size.
                self.vectors.mixed, failure = True, error
            except Unavailable as error:
                if not error.retry or self._closed:
                    raise
                failure = error
            if time.monotonic() > deadline and (tries >= MIN_RACE_ATTEMPTS or isinstance(failure, Unavailable)):
                break
            time.sleep(min(MAX_RETRY_PAUSE_S, 0.005 * 2 ** min(tries, 8)) * random.random())
        if isinstance(failure, Unavailable):
            raise failure
        raise Unavailable("others keep changing the same memories", hint="try again") from failure

    def _try_transaction(self, begin: tuple[bytes, ...], work: Work[T], deadline: float) -> T:
        try:
            connection = self._pool.getconn(min(POOL_TIMEOUT_S, max(0.1, deadline - time.monotonic())))
        except (PoolTimeout, PoolClosed):
            if time.monotonic() + MAX_RETRY_PAUSE_S >= deadline:  # the last try
                postgres_connection.check_reachable(self.url)  # it raises the reason, which the pool does not tell
            raise Unavailable("all connections to the database are in use", hint="try again") from None
        mark: psycopg.Cursor[Any] | None = None
        commit_mark: Row | None = None
        is_committing = False
        try:
            with ExitStack() as stack:
                tx = PostgresTransaction(connection, self._vector_schema, stack)
                *_, cursor = [tx.begin(statement) for statement in begin]
                mark = cursor if begin in (BEGIN_WRITE_SQL, BEGIN_COPY_SQL) else None
                result = run_sync(work(tx.limit_reads() if begin == BEGIN_READ_SQL else tx), closed_to=NO_WAIT_REASON)
                tx.wait_for_answers()
                commit_mark = None if mark is None else require_row(mark.fetchone(), "the mark of a commit")
                is_committing = True
                tx.begin(b"COMMIT")  # its answer comes at the end of the pipeline
            return result
        except BaseException as error:
            is_lost = is_committing and isinstance(error, psycopg.OperationalError) and connection.broken
            if not is_lost:
                _roll_back(connection)
                if mark is not None and mark.rowcount == 0:
                    raise Misconfigured("a copy into this store is not finished", hint=UNFINISHED_COPY_HINT) from None
                if isinstance(error.__context__, KeyboardInterrupt):  # raised while the driver tried to cancel
                    raise error.__context__ from None
                raise
        finally:
            self._pool.putconn(connection)
        if commit_mark is None or self._was_committed(commit_mark, deadline):
            return result
        raise Unavailable("the connection was lost; nothing was stored", hint="try again")

    def _was_committed(self, commit_mark: Row, deadline: float) -> bool:
        """Find out whether a transaction whose COMMIT was not answered has been committed."""
        token, transaction_id = commit_mark
        deadline = max(deadline, time.monotonic()) + self._timeout_s
        while time.monotonic() < deadline:
            try:
                with psycopg.connect(
                    **postgres_connection.parse_connection_url(self.url), autocommit=True
                ) as connection:
                    if not _is_replica(connection) and not _is_in_progress(connection, transaction_id):
                        query = f"SELECT 1 FROM {postgres_connection.SCHEMA}.commits WHERE token = %s"
                        return connection.execute(query.encode(), [token]).fetchone() is not None
            except psycopg.Error:  # the server is not back yet
                pass
            time.sleep(0.05)
        raise Unavailable(
            "the connection was lost at the last step, and the server does not answer: it may be stored or not",
            hint="do the same again: a text is kept once, and an idempotency key makes a call count once",
        )

    async def _fold_and_prune(self, tx: Transaction) -> None:
        """Fold the tallies, and delete commit rows that are too old for `_was_committed` to ask for."""
        await self.fulltext.fold_tallies(tx)
        await tx.execute("DELETE FROM commits WHERE at < now() - interval '10 minutes'")

    def _run_autocommit(self, statement: bytes) -> None:
        """Run a statement that must be outside of a transaction."""
        with (
            translate_errors(self.url),
            psycopg.connect(**postgres_connection.parse_connection_url(self.url), autocommit=True) as connection,
        ):
            connection.execute(statement)

    def _build_index(self, index: HnswIndex) -> None:
        """Build an HNSW index without blocking writers; only one process builds it."""
        try:
            with psycopg.connect(**postgres_connection.parse_connection_url(self.url), autocommit=True) as connection:
                postgres_connection.configure_connection(connection)
                if index.try_lock(connection):
                    index.build_index(connection, self._vector_schema)
            self.slowdown_reason, self._index_retry_at = "", time.monotonic() + DEFERRED_WRITE_DELAY_S
        except psycopg.Error as error:  # until the next try searches scan
            message = str(error).strip().partition("\n")[0]
            self.slowdown_reason = f"large projects are searched slowly, their graph cannot be built: {message}"

    def _run_deferred_writes(self) -> None:
        """Commit deferred writes, several at once."""
        while True:
            with self._guard:
                self._guard.wait_for(lambda: self._deferred or self._closed)
                self._guard.wait_for(
                    lambda: len(self._deferred) >= MAX_JOBS_PER_COMMIT or self._closed, self._defer_delay_s
                )
                jobs, self._deferred = self._deferred[:MAX_JOBS_PER_COMMIT], self._deferred[MAX_JOBS_PER_COMMIT:]
                self._dedupe_keys.clear()
                closed = self._closed
            if jobs:
                self._commit_deferred(jobs)
            elif closed:
                return

    def _commit_deferred(self, jobs: list[Work[None]]) -> None:
        """Run deferred jobs in one transaction; if it fails, each alone, so that only those that fail are dropped."""

        async def run_all_jobs(tx: Transaction) -> None:
            for job in jobs:
                await job(tx)

        for _ in range(3):
            try:
                return self._try_transaction(BEGIN_DEFERRED_SQL, run_all_jobs, time.monotonic() + 1.0)
            except (psycopg.Error, AthenaError):  # only records of calls and usage: losing some is harmless
                if len(jobs) > 1:
                    for job in jobs:
                        self._commit_deferred([job])
                    return None
                time.sleep(0.05 * random.random())
        return None


def _is_replica(connection: psycopg.Connection[Any]) -> bool:
    """Return whether a server follows another: it may not have applied yet what was committed there."""
    return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


def _is_in_progress(connection: psycopg.Connection[Any], transaction_id: str) -> bool:
    try:
        row = connection.execute("SELECT pg_xact_status(%s::xid8)", [transaction_id]).fetchone()
    except errors.InvalidParameterValue:
        return False  # the server crashed since, and has no such transaction
    return row is not None and row[0] == "in progress"


def _roll_back(connection: psycopg.Connection[Any]) -> None:
    """Roll back with a text that the driver has not seen, so that it forgets all statements that it has prepared.

    After an error the server has skipped the rest of a pipeline, and so what was to be prepared there.
    """
    if not connection.closed:
        try:
            connection.execute(f"ROLLBACK -- {time.monotonic_ns()}".encode())
        except psycopg.Error:
            connection.close()
