"""Reaching a PostgreSQL server: checked to be usable, brought to our shape, its errors turned into ours."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import conninfo, errors

from athena.errors import InvalidInput, Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.database import UNFINISHED_COPY_COUNTER, CopyRole, check_usable

MIN_SERVER_VERSION = 140_000  # PostgreSQL 14
MIN_PGVECTOR_VERSION = (0, 8)  # the first with iterative index scans
MIGRATION_LOCK_ID = 0x41746865  # "Athe": whoever brings a database into shape holds it
SCHEMA = "athena"
# What two that write at once may both insert; one of them then finds what the other left.
RACE_CONSTRAINTS = {"scopes_name_kind_key", "models_name_key", "memories_live", "memories_named"}
RACE_CONSTRAINTS |= {
    "tags_pkey",
    "links_pkey",
    "receipts_pkey",
    "tokens_pkey",
    "commits_pkey",
    "relations_live",
    "relations_apart",
    "waiting_pkey",
    "mentions_pkey",
    "consolidations_pkey",
    "workspaces_pkey",
    "files_pkey",
    "runs_pkey",
    "injections_once",
}
RACE_ERRORS = (
    errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation, errors.ExclusionViolation,
)  # fmt: skip
# Seconds, or milliseconds for the last: a server that vanished is noticed, not waited for.
CONNECTION_DEFAULTS = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "tcp_user_timeout": "15000",
}


def parse_connection_url(url: str) -> dict[str, Any]:
    """Read a URL or a connection string, with our own timeouts where it names none."""
    try:
        given: dict[str, Any] = conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        given = {"port": "?"}
    # A / or @ in a password cuts it in two. What came of it is not shown: it is a part of the password.
    cut = "@" in f"{given.get('host', '')}/{given.get('dbname', '')}".lstrip("@")
    if cut or not re.fullmatch("[0-9,]*", str(given.get("port", ""))):
        raise Misconfigured(
            "ATHENA_DATABASE_URL cannot be read",
            hint="it looks like postgresql://user:password@host:5432/database; in a password / is %2F and @ is %40",
        )
    return CONNECTION_DEFAULTS | {"application_name": "athena"} | given | {"client_encoding": "UTF8"}


def format_location(url: str) -> str:
    """Return where a URL leads, without its password."""
    given = parse_connection_url(url)
    host = given.get("host") or given.get("hostaddr") or "localhost"
    port = f":{given['port']}" if given.get("port") else ""
    name = given.get("dbname") or given.get("user") or ""
    return f"postgresql:///{name}?host={host}" if host.startswith("/") else f"postgresql://{host}{port}/{name}"


def check_reachable(url: str) -> None:
    """Connect and let go, to find out what keeps us from it."""
    with translate_errors(url):
        psycopg.connect(**parse_connection_url(url)).close()


def configure_connection(connection: psycopg.Connection[Any]) -> None:
    """Make a new connection ours: where its tables are, and what it may wait for."""
    row = connection.execute(
        "SELECT n.nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE e.extname = 'vector'"
    ).fetchone()
    vector = row[0].replace('"', '""') if row else "public"
    settings = (
        f'SET search_path TO {SCHEMA}, "{vector}"',
        "SET lock_timeout = '15s'",
        "SET statement_timeout = '60s'",  # lifted for what is known to take long
        "SET idle_in_transaction_session_timeout = '10min'",
        "SET jit = off",  # it takes longer than any statement of ours
        "SET max_parallel_workers_per_gather = 0",  # many short questions share the cores better than one spread out
        "SET client_min_messages = warning",
    )
    connection.execute("; ".join(settings).encode())


def migrate_database(url: str, indexes: tuple[str, ...], *, copying: CopyRole = "") -> None:
    """Check the server and run the steps that its database lacks, one process at a time."""
    with translate_errors(url), psycopg.connect(**parse_connection_url(url), autocommit=True) as connection:
        _check_server(connection)
        known, whole = _read_state(connection)
        check_usable(copying, format_location(url), there=known > 0, whole=whole)
        if known == len(migrations.STEPS):
            return
        connection.execute("SET lock_timeout = '60s'")
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED  # to see what others made meanwhile
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK_ID])
            _install_vector(connection)
            if connection.execute("SELECT to_regnamespace(%s)", [SCHEMA]).fetchone() == (None,):
                connection.execute(f"CREATE SCHEMA {SCHEMA}")  # even with IF NOT EXISTS it needs the right to
            configure_connection(connection)
            known, _ = _read_state(connection)
            for number in range(known, len(migrations.STEPS)):
                for statement in migrations.iter_statements(number, DIALECT, indexes):
                    # Sorted by bytes as SQLite does, whatever the database's language.
                    connection.execute(statement.replace(" TEXT", ' TEXT COLLATE "C"').encode())
            if known < len(migrations.STEPS):
                connection.execute(
                    """INSERT INTO counters VALUES ('version', %s)
                       ON CONFLICT (name) DO UPDATE SET value = excluded.value""",
                    [len(migrations.STEPS)],
                )


def _check_server(connection: psycopg.Connection[Any]) -> None:
    version = connection.info.server_version
    if version < MIN_SERVER_VERSION:
        raise Misconfigured(
            f"this server is PostgreSQL {version // 10_000}, which is too old",
            hint=f"use PostgreSQL {MIN_SERVER_VERSION // 10_000} or newer",
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise Misconfigured(
            f"this database is encoded in {encoding}", hint="create one with: CREATE DATABASE athena ENCODING 'UTF8'"
        )


def _read_state(connection: psycopg.Connection[Any]) -> tuple[int, bool]:
    """Return how many steps this database has seen, and whether it is whole; refuse what a newer Athena wrote."""
    row = connection.execute("SELECT to_regclass(%s)", [f"{SCHEMA}.counters"]).fetchone()
    if row is None or row[0] is None:
        return 0, True
    found: dict[str, int] = dict(connection.execute(f"SELECT name, value FROM {SCHEMA}.counters").fetchall())
    version = found.get("version", 0)
    if version > len(migrations.STEPS):
        raise Misconfigured(
            f"this database was written by a newer Athena (format {version}, this one knows {len(migrations.STEPS)})",
            hint="upgrade with: pip install --upgrade athena-memory",
        )
    return version, UNFINISHED_COPY_COUNTER not in found


def _install_vector(connection: psycopg.Connection[Any]) -> None:
    try:
        with connection.transaction():
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (errors.FeatureNotSupported, errors.UndefinedFile):
        major = connection.info.server_version // 10_000
        raise Misconfigured(
            "the server has no pgvector", hint=f"install it there, for example: apt install postgresql-{major}-pgvector"
        ) from None
    except errors.InsufficientPrivilege:
        raise Misconfigured(
            "the extension vector is not installed, and this user may not install it",
            hint="let an administrator run in this database: CREATE EXTENSION vector",
        ) from None
    row = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    version = str(row[0]) if row else "0"
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_PGVECTOR_VERSION:
        raise Misconfigured(
            f"pgvector {version} is too old",
            hint="install 0.8 or newer on the server, then run: ALTER EXTENSION vector UPDATE",
        )


@contextmanager
def translate_errors(url: str) -> Generator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except errors.UniqueViolation as error:
        if error.diag.constraint_name in RACE_CONSTRAINTS:
            raise  # to be run again
        raise Unavailable(
            f"the database refuses a number that is taken: {error.diag.constraint_name}",
            hint="was it restored in part? restore all of it, its sequences too",
            retry=False,
        ) from error
    except RACE_ERRORS:
        raise  # to be run again
    except errors.InsufficientPrivilege as error:
        raise Misconfigured(
            f"this user lacks a right on the database: {_format_error(error)}",
            hint="use the role that made the tables, or let it run the GRANTs in docs/scaling.md",
        ) from None
    except (errors.InvalidPassword, errors.InvalidAuthorizationSpecification) as error:
        raise Misconfigured(
            f"the server refuses this user: {_format_error(error)}",
            hint="check user and password in ATHENA_DATABASE_URL",
        ) from None
    except errors.InvalidCatalogName as error:
        raise Misconfigured(
            f"there is no such database: {_format_error(error)}",
            hint="create it with: createdb NAME, or correct the URL",
        ) from None
    except errors.ReadOnlySqlTransaction:
        raise Unavailable(
            "this server is read-only", hint="is the URL that of a replica? use the primary's", retry=False
        ) from None
    except errors.DiskFull:
        raise Unavailable("the server's disk is full; nothing was stored", hint="free some space there") from None
    except (errors.QueryCanceled, errors.LockNotAvailable, errors.TransactionTimeout):
        raise Unavailable("the server took too long", hint="try again; is a long job running?") from None
    except errors.UndefinedTable as error:
        raise Misconfigured(
            f"the database lacks a table of ours: {_format_error(error)}",
            hint="was it restored in part? restore all of it",
        ) from None
    except errors.ProgramLimitExceeded as error:
        raise InvalidInput(
            f"more than PostgreSQL can keep: {_format_error(error)}", hint="shorten the text or name"
        ) from None
    except errors.DuplicateTable as error:
        raise Misconfigured(
            f"the schema {SCHEMA} of this database holds something else: {_format_error(error)}",
            hint="use another database",
        ) from None
    except psycopg.OperationalError as error:
        raise _create_connect_error(url, error) from None


def _create_connect_error(url: str, error: psycopg.Error) -> Misconfigured | Unavailable:
    """Say why a server cannot be reached; before any answer, all that tells causes apart is the text."""
    said = _format_error(error)
    refused = ("password authentication failed", "no password supplied", 'role "', "pg_hba.conf")
    if any(words in said for words in refused) and "too many connections" not in said:
        return Misconfigured(f"the server refuses this user: {said}", hint="check ATHENA_DATABASE_URL")
    if "does not exist" in said and "database" in said:
        return Misconfigured(
            f"there is no such database: {said}", hint="create it with: createdb NAME, or correct ATHENA_DATABASE_URL"
        )
    return Unavailable(
        f"{format_location(url)} does not answer: {said}", hint="is PostgreSQL running there? check ATHENA_DATABASE_URL"
    )


def _format_error(error: psycopg.Error) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1 if "Multiple connection attempts" in lines[0] else 0].strip()[:300]


DIALECT = {
    "alone": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
    "identity": "BIGINT GENERATED BY DEFAULT AS IDENTITY",
    "key": "BIGINT NOT NULL",
    "scope_and_id": ", PRIMARY KEY (scope, id)",
    "scope_and_passage": ", PRIMARY KEY (scope, passage)",
    "blob": "BYTEA",
    "vector": "HALFVEC",
    "clustered": "",
}
