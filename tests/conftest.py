"""Shared fixtures: real stores on both engines, and the bundled model."""

import gc
import os
import random
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import postgres
import psycopg
import pytest

from athena import testing
from athena.app import compose, connect
from athena.app.compose import App
from athena.cli import approval
from athena.embedding.embedder import TokenStates
from athena.embedding.minilm import MiniLM
from athena.storage.database import Database
from athena.storage.postgres.store import Postgres
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from person_tools import Person
from server_forge import ServerForge

pytest_plugins = ["page_fixtures"]
FULL = os.environ.get("ATHENA_TEST_FULL") == "1"
THROUGH_SERVER = os.environ.get("ATHENA_TEST_THROUGH_SERVER") == "1"  # tests of api and cli only by a running server
HERE = Path(__file__).parent
# Tests that touch no store, or test one engine only.
ONE_ENGINE = (
    "api/test_broken_stores.py",
    "api/test_imports.py",
    "cli/test_evaluate.py",
    "cli/test_servers_command.py",
    "core",
    "discovery",
    "embedding",
    "gateway",
    "hooks/test_hook_client.py",
    "memory/consolidation/test_patterns.py",
    "documents/test_file_access.py",
    "documents/test_formats.py",
    "documents/test_hostile_files.py",
    "memory/sessions/test_classifier.py",
    "memory/sessions/test_extract.py",
    "memory/sessions/test_fragments.py",
    "memory/sessions/test_statements.py",
    "memory/sessions/test_adapter_data.py",
    "memory/test_durability.py",
    "memory/test_passages.py",
    "memory/test_ranking.py",
    "memory/time",
    "attacks",
    "programs/sandbox",
    "server/test_daemon.py",
    "server/test_turns.py",
    "storage/postgres",
    "storage/sqlite",
    "test_architecture.py",
    "test_campaign.py",
    "test_contract.py",
    "test_docs.py",
    "storage/test_sql.py",
)
DEFERRED_DELAY_S = 0.1  # delay of deferred writes in tests, in seconds
TRUNCATE_ROWS = 1_000  # a table with this many rows is truncated, a smaller one is emptied with DELETE
# Tests of arguments, time, threads and processes: other tests run the same tables on both engines. In some modules a
# few tests have the mark `both_engines`: together they run every statement that the whole module runs.
ONE_ENGINE_WHEN_QUICK = (
    ()
    if FULL
    else (
        "api/test_invalid_input.py",
        "api/test_concurrency_api.py",  # storage/postgres/test_postgres_processes.py has its own
        "api/test_fork_api.py",
        "api/test_long_texts_api.py",
        "api/test_search_api.py",
        "api/test_unusual_input.py",  # storage/postgres/test_postgres_limits.py has its own megabytes of text
        "memory/consolidation/test_consolidate.py",
        "memory/consolidation/test_consolidation_safety.py",
        "memory/consolidation/test_pattern_wording.py",
        "memory/graph",
        "memory/sessions",
        "memory/test_expertise.py",
        "memory/test_lists.py",
        "memory/test_long_memories.py",  # megabytes of text
        "memory/test_reembedding.py::test_server_reembeds_by_itself",  # as in the background, on both engines
        "memory/test_reembedding.py::test_mcp_server_reembeds_by_itself",
        "memory/test_scores.py",
        "memory/test_tasks.py",
        "cli/test_approval.py",  # what a person is shown; programs/test_programs.py approves on both engines
        "cli/test_commands.py",
        "cli/test_learned.py",
        "cli/test_process.py",
        "hooks/test_hook_events.py",
        "hooks/test_injected_lines.py",
        "hooks/test_transcript_canaries.py",
        "operations/test_hostile_text.py",
        "programs/test_programs.py",
        "programs/test_program_limits.py",
        "programs/test_program_hints.py",
        "programs/test_secrets_at_rest.py",
        "programs/test_skills.py",
        "programs/test_workspace.py",
        "server/page",
        "server/test_long_arguments.py",
    )
)
MAX_KNOWN_TOKENS = 60_000  # 90 MB
MAX_KNOWN_CHARS = 1_000
T = TypeVar("T")


class CachedMiniLM(MiniLM):
    """The bundled model; it reads a short text once, since tests repeat theirs."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, TokenStates] = {}
        self._known_tokens = 0

    def embed_tokens(self, texts: Sequence[str]) -> list[TokenStates]:
        known = self._known
        new = [text for text in dict.fromkeys(texts) if text not in known]
        read = dict(zip(new, super().embed_tokens(new), strict=True))
        found = [read[text] if text in read else known[text] for text in texts]
        if self._known_tokens > MAX_KNOWN_TOKENS:
            self._known, self._known_tokens = {}, 0
        for text, tokens in read.items():
            if len(text) <= MAX_KNOWN_CHARS:
                self._known[text] = tokens
                self._known_tokens += len(tokens.ids)
        return found


MODEL = CachedMiniLM()


def rounds(quick: int, full: int) -> int:
    """Return how often a long test repeats: `quick` in `make test`, `full` in `make test-full`."""
    return full if FULL else quick


def sample(cases: Iterable[T], quick: int) -> list[T]:
    """Return some of many like cases in `make test`, always the same, and all of them in `make test-full`."""
    every = list(cases)
    return every if FULL else [every[at] for at in sorted(random.Random(quick).sample(range(len(every)), quick))]


def skip_or_fail(what: str) -> NoReturn:
    """Skip a test that needs something this machine lacks; in CI, fail instead."""
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class Engine:
    """Opens stores for a test: one SQLite file each, or one PostgreSQL database per worker."""

    kind = "sqlite"

    def open(self, file: Path | str) -> Database:
        return Sqlite(file, defer_delay_s=DEFERRED_DELAY_S)

    def in_memory(self) -> Database:
        return Sqlite(IN_MEMORY_PATH, defer_delay_s=DEFERRED_DELAY_S)

    def read_all_bytes(self, home: Path) -> bytes:
        """Return all bytes that the store has written."""
        connect.close()
        return b"".join(file.read_bytes() for file in sorted(home.iterdir()))


class PostgresEngine(Engine):
    kind = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def open(self, file: Path | str) -> Database:
        return Postgres(self.url, defer_delay_s=DEFERRED_DELAY_S)

    def in_memory(self) -> Database:
        return Postgres(self.url, defer_delay_s=DEFERRED_DELAY_S)

    def read_all_bytes(self, home: Path) -> bytes:
        connect.close()
        tables = self._connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'athena'").fetchall()
        rows = [self._connection.execute(f"SELECT t::text FROM athena.{name} t".encode()) for (name,) in tables]
        return "\n".join(text for table in rows for (text,) in table).encode()

    def close(self) -> None:
        self._connection.close()

    def empty(self) -> None:
        """Empty all tables, but keep the schema."""
        self._connection.execute(  # a process of the previous test may still be connected
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
        # TRUNCATE recreates the files of each table and index, so DELETE is faster for few rows.
        count = "SELECT '{0}', (SELECT count(*) FROM (SELECT FROM athena.{0} LIMIT {1}) AS first)"
        counts = " UNION ALL ".join(count.format(row[0], TRUNCATE_ROWS) for row in rows)
        held = [(name, many) for name, many in self._connection.execute(counts.encode()).fetchall() if many]
        large = ", ".join(f"athena.{name}" for name, many in held if many == TRUNCATE_ROWS)
        truncate = f"TRUNCATE {large} CASCADE;" if large else ""
        # other tables refer to scopes
        small = sorted((name for name, many in held if many < TRUNCATE_ROWS), key="scopes".__eq__)
        delete = "".join(f"DELETE FROM athena.{name};" for name in small)
        statements = f"""{drop} {truncate} {delete}
            SELECT setval(format('athena.%I', sequencename)::regclass, start_value, false)
            FROM pg_sequences WHERE schemaname = 'athena' AND last_value IS NOT NULL;
            DELETE FROM athena.counters WHERE name NOT IN ('version', 'schema');
            INSERT INTO athena.counters VALUES ('purges', 0), ('stamp', 0)"""
        self._connection.execute(statements.encode())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on both engines that asks for one: a test of `athena.api` asks with `usefixtures`."""
    where = f"{metafunc.definition.path.relative_to(HERE).as_posix()}::{metafunc.function.__name__}"
    find_mark = metafunc.definition.get_closest_marker
    is_quick = where.startswith(ONE_ENGINE_WHEN_QUICK) and find_mark("both_engines") is None
    is_on_one = where.startswith(ONE_ENGINE) or is_quick or find_mark("sqlite_only") is not None
    if "engine" in metafunc.fixturenames and not is_on_one:
        metafunc.parametrize("engine", ["sqlite", "postgres"], indirect=True, scope="function")
    if "seeded" in metafunc.fixturenames and FULL:
        metafunc.parametrize("seeded", ["sqlite", "postgres"], indirect=True, scope="session")

    find_server = metafunc.definition.path.relative_to(HERE).parts[0] in ("api", "cli")
    if find_server and find_mark("in_process") is None and (FULL or THROUGH_SERVER or find_mark("both_ways")):
        metafunc.fixturenames.append("way")
        metafunc.parametrize("way", ["server"] if THROUGH_SERVER else ["process", "server"], indirect=True)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from visiting the collected tests and modules again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def server() -> Generator[postgres.Server]:
    """Start a PostgreSQL server for this worker, for tests that do not kill it."""
    with postgres.running(postgres.QUICK) as started:
        yield started


@pytest.fixture(scope="session")
def _postgres_engine(server: postgres.Server) -> Generator[PostgresEngine]:
    postgres_engine = PostgresEngine(server.create("athena"))
    yield postgres_engine
    postgres_engine.close()


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Engine:
    if getattr(request, "param", "sqlite") == "sqlite":
        return Engine()
    postgres_engine: PostgresEngine = request.getfixturevalue("_postgres_engine")
    postgres_engine.empty()
    return postgres_engine


def list_own_variables() -> set[str]:
    return {name for name in os.environ if name.startswith("ATHENA_")}


INHERITED_VARIABLES = list_own_variables()


def remove_left_variables() -> None:
    """Remove the settings that code under test has put into the environment of this process."""
    for name in list_own_variables() - INHERITED_VARIABLES:
        del os.environ[name]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Generator[None]:
    """Keep every test away from the store of the user who runs it."""
    # not an argument: every test would then ask for an engine, and run on both
    engine = request.getfixturevalue("engine") if "engine" in request.fixturenames else None
    for name in list_own_variables() & INHERITED_VARIABLES:
        monkeypatch.delenv(name)
    remove_left_variables()
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ATHENA_PROJECT", "test")
    monkeypatch.setenv("ATHENA_VAULT_KEY_FOLDER", str(tmp_path / "keys"))
    monkeypatch.setattr(compose, "MiniLM", lambda: MODEL)  # each app would load the same model anew
    if isinstance(engine, PostgresEngine):
        monkeypatch.setenv("ATHENA_DATABASE_URL", engine.url)
    yield
    connect.close()
    remove_left_variables()  # the next fixture of a module would start its server with them


@pytest.fixture(scope="session")
def forge() -> Generator[ServerForge]:
    """Start servers for tests of this worker."""
    servers = ServerForge()
    yield servers
    servers.close()


@pytest.fixture
def way(request: pytest.FixtureRequest, _own_home: None) -> Generator[str]:
    """Let `athena.api` and commands use a running server of the test's data folder, or their own process."""
    if getattr(request, "param", "process") == "process":
        yield "process"
        return
    forge: ServerForge = request.getfixturevalue("forge")
    pid = forge.start(Path(os.environ["ATHENA_HOME"]))
    yield "server"
    forge.stop(pid)


@pytest.fixture
def isolated(engine: Engine, request: pytest.FixtureRequest) -> Generator[App]:
    """Return an empty store behind `athena.api`."""
    if "way" in request.fixturenames and request.getfixturevalue("way") == "server":
        yield connect.shared_app()  # of the same store, beside the server
        return
    with testing.isolated(MODEL, database=engine.in_memory()) as app:
        yield app


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    """Return an app with an empty store."""
    app = App(engine.open(tmp_path / "athena.db"), MODEL)
    yield app
    app.close()


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Generator[Person]:
    """Put a person at the terminal of this process, who says yes."""
    made = Person()
    monkeypatch.setattr(approval, "TERMINAL_PATH", made.path)
    yield made
    made.close()


class MovingTime:
    """A clock that a test moves."""

    now = 1_794_700_800.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> MovingTime:
    return MovingTime()


@pytest.fixture
def timed_app(tmp_path: Path, engine: Engine, time: MovingTime) -> Generator[App]:
    """Return an app whose clock the test moves."""
    app = App(engine.open(tmp_path / "athena.db"), MODEL, time)
    yield app
    app.close()
