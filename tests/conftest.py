"""What the tests share: real stores on both engines, and the bundled model."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import postgres
import psycopg
import pytest

from athena import testing
from athena.app import connect
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.storage.database import Database
from athena.storage.postgres.store import Postgres
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite

FULL = os.environ.get("ATHENA_TEST_FULL") == "1"
HERE = Path(__file__).parent
# Tests of what touches no store, or of what only one engine has.
ON_ONE = (
    "api/test_broken_stores.py",
    "api/test_imports.py",
    "cli/test_evaluate.py",
    "discovery",
    "embedding",
    "gateway",
    "kernel",
    "memory/test_candidates.py",
    "memory/test_kill.py",
    "memory/test_passages.py",
    "memory/test_patterns.py",
    "memory/test_ranking.py",
    "memory/test_timephrase.py",
    "sandbox",
    "storage/sqlite",
    "storage/postgres",
    "test_architecture.py",
    "test_contract.py",
    "test_daemon.py",
    "test_docs.py",
    "test_secrets.py",
    "test_sql.py",
    "test_hookclient.py",
    "test_threads.py",
    "test_tokens.py",
)
SOON = 0.1  # seconds until what nobody waits for is written, when a test waits for it
MANY = 1_000  # rows of a table that is better made anew than emptied
# What is about arguments, time, threads and processes: the tables behind it are tried on both engines by other tests.
QUICKLY_ON_ONE = (
    ()
    if FULL
    else (
        "api/test_bad_input.py",
        "api/test_concurrency_api.py",  # storage/postgres/test_postgres_processes.py has its own
        "api/test_fork_api.py",
        "cli/test_commands.py",
        "cli/test_process.py",
        "surfaces/test_hooks.py",
        "test_programs_rough.py",
    )
)
_model = MiniLM()


def rounds(quick: int, full: int) -> int:
    """Return how often a long test repeats: a part of it in `make test`, all of it in `make test-full`."""
    return full if FULL else quick


def missing(what: str) -> NoReturn:
    """Skip a test whose real part is not on this machine; where everything is to be there, fail."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class Engine:
    """Where a test's stores are: each on its own file, or all in one database of this worker's server."""

    kind = "sqlite"

    def open(self, file: Path | str) -> Database:
        return Sqlite(file, soon=SOON)

    def in_memory(self) -> Database:
        return Sqlite(IN_MEMORY_PATH, soon=SOON)

    def written(self, home: Path) -> bytes:
        """Return everything that was written down."""
        connect.close()
        return b"".join(file.read_bytes() for file in sorted(home.iterdir()))


class PostgresEngine(Engine):
    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def open(self, file: Path | str) -> Database:
        return Postgres(self.url, soon=SOON)

    def in_memory(self) -> Database:
        return Postgres(self.url, soon=SOON)

    def written(self, home: Path) -> bytes:
        connect.close()
        tables = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'athena'").fetchall()
        rows = [self._connection.execute(f"SELECT t::text FROM athena.{name} t".encode()) for (name,) in tables]
        return "\n".join(text for table in rows for (text,) in table).encode()

    def close(self) -> None:
        self._connection.close()

    def empty(self) -> None:
        """Leave the database as a new one, but for its shape."""
        self._connection.execute(  # a process of the test before may still be at its last words
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND application_name = 'athena'"
        )
        rows = self._connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'athena' AND tablename <> 'counters'"
        ).fetchall()
        if not rows:
            return
        graphs = self._connection.execute("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'passages_near%'")
        drop = "".join(f"DROP INDEX athena.{row[0]};" for row in graphs.fetchall())
        # To truncate is to make files anew, for each table and each index: a few rows are deleted sooner.
        count = "SELECT '{0}', (SELECT count(*) FROM (SELECT FROM athena.{0} LIMIT {1}) AS first)"
        counts = " UNION ALL ".join(count.format(row[0], MANY) for row in rows)
        held = [(name, many) for name, many in self._connection.execute(counts.encode()).fetchall() if many]
        large = ", ".join(f"athena.{name}" for name, many in held if many == MANY)
        truncate = f"TRUNCATE {large} CASCADE;" if large else ""
        small = sorted((name for name, many in held if many < MANY), key="scopes".__eq__)  # others refer to those
        delete = "".join(f"DELETE FROM athena.{name};" for name in small)
        statements = f"""{drop} {truncate} {delete}
            SELECT setval(format('athena.%I', sequencename)::regclass, start_value, false)
            FROM pg_sequences WHERE schemaname = 'athena' AND last_value IS NOT NULL;
            DELETE FROM athena.counters WHERE name <> 'version';
            INSERT INTO athena.counters VALUES ('purges', 0), ('stamp', 0)"""
        self._connection.execute(statements.encode())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what touches a store on both engines."""
    where = metafunc.definition.path.relative_to(HERE).as_posix()
    only = metafunc.definition.get_closest_marker("sqlite_only")
    if "engine" in metafunc.fixturenames and not where.startswith(ON_ONE + QUICKLY_ON_ONE) and only is None:
        metafunc.parametrize("engine", ["sqlite", "postgres"], indirect=True, scope="function")


@pytest.fixture(scope="session")
def server() -> Generator[postgres.Server]:
    """A PostgreSQL of this worker's own, for tests that do not kill it."""
    with postgres.running(postgres.QUICK) as started:
        yield started


@pytest.fixture(scope="session")
def _postgres_engine(server: postgres.Server) -> Generator[PostgresEngine]:
    made = PostgresEngine(server.create("athena"))
    yield made
    made.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    if getattr(request, "param", "sqlite") == "sqlite":
        return Engine()
    made: PostgresEngine = request.getfixturevalue("_postgres_engine")
    made.empty()
    return made


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> Generator[None]:
    """Keep every test away from the store of whoever runs it."""
    for name in [name for name in os.environ if name.startswith("ATHENA_") and name != "ATHENA_TEST_FULL"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATHENA_PROJECT", "test")
    if isinstance(engine, PostgresEngine):
        monkeypatch.setenv("ATHENA_DATABASE_URL", engine.url)
    yield
    connect.close()


@pytest.fixture
def isolated(engine: Engine) -> Generator[App]:
    """An empty store behind `athena.api`."""
    with testing.isolated(_model, database=engine.in_memory()) as app:
        yield app


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    """An empty store in a file, or on a server."""
    made = App(engine.open(tmp_path / "athena.db"), _model)
    yield made
    made.close()
