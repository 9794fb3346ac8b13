"""Servers, databases and roles that do not work: a one-line error with a hint, in time, without the password."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote

import postgres
import psycopg
import pytest
from postgres_tools import call, database_name, new_database, open_app, query

from athena import api
from athena.core.threads import run_sync
from athena.errors import Misconfigured, Unavailable
from athena.storage.postgres.connection import parse_connection_url
from athena.storage.postgres.store import Postgres
from wait_tools import LONG, wait_until

SECRET = "hunter2-is-secret"
UNAVAILABLE, MISCONFIGURED = 7, 8
HBA = """
local all banned reject
local all postgres trust
local all all scram-sha-256
"""


@pytest.fixture(scope="module")
def password_server(server: postgres.Server) -> Generator[postgres.Server]:
    """Return a server that requires a password from everybody but its owner."""
    with postgres.running(postgres.QUICK) as started:
        (started.data / "pg_hba.conf").write_text(HBA)
        query(started.url(), "SELECT pg_reload_conf()")
        for role in ("keeper", "visitor", "banned"):
            query(started.url(), f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
        yield started


def as_role(url: str, role: str, password: str | None = SECRET) -> str:
    return url.replace("postgres@", f"{role}:{quote(password, safe='')}@" if password else f"{role}@")


def assert_complaint(url: str, code: int, *words: str, command: tuple[str, ...] = ("-m", "athena", "list")) -> None:
    """Assert that a command prints the problem of a database and a hint, and nothing else."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=LONG,
        env=environment | {"ATHENA_DATABASE_URL": url},
    )  # fmt: skip
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "hint"], done.stderr
    assert done.returncode == code, done.stderr
    for word in words:
        assert word.lower() in done.stderr.lower()
    for part in ("Traceback", "psycopg", SECRET, SECRET[8:]):
        assert part not in done.stderr


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_wrong_port_is_reported() -> None:
    port = free_port()
    assert_complaint(f"postgresql://keeper:{SECRET}@127.0.0.1:{port}/athena", UNAVAILABLE, str(port), "refused")


def test_wrong_host_is_reported() -> None:
    assert_complaint(f"postgresql://keeper:{SECRET}@no-such-host.invalid/athena", UNAVAILABLE, "no-such-host.invalid")


def test_missing_socket_is_reported() -> None:
    assert_complaint("postgresql:///athena?host=%2Fno%2Fsuch%2Ffolder", UNAVAILABLE, "/no/such/folder")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_silent_or_foreign_server_is_reported(answer: bytes) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)
        listening.settimeout(0.1)
        over = threading.Event()
        held: list[socket.socket] = []

        def answering() -> None:
            while not over.is_set():
                try:
                    held.append(listening.accept()[0])
                except TimeoutError:
                    continue
                if answer:
                    held[-1].sendall(answer)
                    held[-1].shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=answering)
        thread.start()
        port = listening.getsockname()[1]
        try:
            assert_complaint(
                f"postgresql://u:{SECRET}@127.0.0.1:{port}/athena?connect_timeout=2", UNAVAILABLE, str(port)
            )
        finally:
            over.set()
            thread.join()
            for one in held:
                one.close()


def test_missing_database_is_reported(password_server: postgres.Server) -> None:
    assert_complaint(password_server.url("nowhere"), MISCONFIGURED, "nowhere", "does not exist", "createdb")


@pytest.mark.parametrize(
    ("role", "password"),
    [("keeper", "wrong"), ("keeper", None), ("nobody_we_know", SECRET), ("banned", SECRET)],
    ids=["wrong password", "no password", "unknown role", "rejected role"],
)
def test_refused_user_is_reported(password_server: postgres.Server, role: str, password: str | None) -> None:
    url = as_role(password_server.url("postgres"), role, password)
    assert_complaint(url, MISCONFIGURED, "refuses this user", "ATHENA_DATABASE_URL")


def test_role_without_create_is_reported(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    assert_complaint(as_role(url, "visitor"), MISCONFIGURED, "vector", "CREATE EXTENSION")
    query(url, "CREATE EXTENSION vector")
    assert_complaint(as_role(url, "visitor"), MISCONFIGURED, "right", "GRANT")


def test_role_needs_only_schema_rights(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, "CREATE EXTENSION vector")
    query(url, "CREATE SCHEMA athena AUTHORIZATION keeper")
    with open_app(as_role(url, "keeper")) as app:
        call(app, "remember", content="the kettle stands by the window")
        assert call(app, "recall", query="kettle")
        assert call(app, "forget", memory_id=1)
        assert call(app, "purge", expect=1) == 1
        assert call(app, "verify").ok


def test_role_with_create_makes_schema(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, "CREATE EXTENSION vector")
    query(url, f"GRANT CREATE ON DATABASE {database_name(url)} TO keeper")
    with open_app(as_role(url, "keeper")) as app:
        call(app, "remember", content="the kettle stands by the window")
        assert call(app, "verify").ok


def test_role_without_access_is_reported(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    with open_app(url):
        pass
    assert_complaint(as_role(url, "visitor"), MISCONFIGURED, "right", "GRANT")


def test_missing_pgvector_is_reported(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, f"ALTER DATABASE {database_name(url)} SET extension_control_path = '/no/such/folder'")
    assert_complaint(url, MISCONFIGURED, "no pgvector", "install")


def test_old_pgvector_is_reported(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, "CREATE EXTENSION vector")
    query(url, "UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    assert_complaint(url, MISCONFIGURED, "0.7.4", "too old")


def test_pgvector_in_other_schema_is_found(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, 'CREATE SCHEMA "Ext ""quoted"""')
    query(url, 'CREATE EXTENSION vector SCHEMA "Ext ""quoted"""')
    with open_app(url) as app:
        call(app, "remember", content="the kettle stands by the window")
        assert call(app, "recall", query="where is the pot for tea")
        assert call(app, "verify").ok


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_wrong_encoding_is_reported(password_server: postgres.Server, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    query(password_server.url(), f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    assert_complaint(password_server.url(name), MISCONFIGURED, encoding, "UTF8")


def test_newer_store_is_refused_unchanged(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    with open_app(url) as app:
        call(app, "remember", content="before")
    query(url, "UPDATE counters SET value = value + 1 WHERE name = 'version'")
    version = query(url, "SELECT value FROM counters WHERE name = 'version'")
    assert_complaint(url, MISCONFIGURED, "newer", "upgrade")
    assert query(url, "SELECT value FROM counters WHERE name = 'version'") == version
    assert query(url, "SELECT content FROM memories") == [("before",)]


def test_foreign_schema_is_refused_unchanged(password_server: postgres.Server) -> None:
    url = new_database(password_server)
    query(url, "CREATE SCHEMA athena")
    query(url, "CREATE TABLE athena.memories (invoice INTEGER)")
    query(url, "INSERT INTO athena.memories VALUES (7)")
    assert_complaint(url, MISCONFIGURED, "athena", "memories")
    assert query(url, "SELECT * FROM athena.memories") == [(7,)]


def test_read_only_server_refuses_writes(password_server: postgres.Server) -> None:
    empty, used = new_database(password_server), new_database(password_server)
    with open_app(used) as app:
        call(app, "remember", content="before")
    for url in (empty, used):
        query(password_server.url(), f"ALTER DATABASE {database_name(url)} SET default_transaction_read_only = on")
    assert_complaint(empty, UNAVAILABLE, "read-only", "replica")
    assert_complaint(used, UNAVAILABLE, "read-only", "replica", command=("-m", "athena", "remember", "a text"))
    with open_app(used) as app:
        assert [m.content for m in call(app, "list_memories")] == ["before"]
        assert call(app, "recall", query="before")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://keeper:{SECRET}%zz@127.0.0.1/athena",
        f"postgresql://keeper:{SECRET}/more@127.0.0.1/athena",
        f"postgresql://keeper:x@{SECRET}@127.0.0.1/athena",
        f"postgresql://keeper:1234/{SECRET}@127.0.0.1/athena",
        f"postgresql://keeper:{SECRET}@127.0.0.1:port/athena",
    ],
    ids=["percent", "slash", "at", "digits", "port"],
)
def test_invalid_url_error_hides_password(url: str) -> None:
    assert_complaint(url, MISCONFIGURED, "ATHENA_DATABASE_URL", "postgresql://")


@pytest.mark.parametrize("end", ["/a?b@127.0.0.1/athena", "@127.0.0.1/athena?no_such_option=1", "@[::1/athena"])
def test_unreadable_url_is_not_repeated(end: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Postgres(f"postgresql://keeper:{SECRET}{end}")
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_other_database_url_is_reported() -> None:
    assert_complaint(f"mysql://keeper:{SECRET}@127.0.0.1/athena", MISCONFIGURED, "postgresql://")


@pytest.mark.parametrize("module", ["psycopg", "psycopg_pool"])
def test_missing_driver_is_reported(module: str) -> None:
    script = f"import sys; sys.modules['{module}'] = None; sys.argv = ['athena', 'list']; import athena.__main__"
    environment = os.environ | {"ATHENA_DATABASE_URL": f"postgresql://keeper:{SECRET}@127.0.0.1/athena"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == MISCONFIGURED
    assert "pip install 'athena-memory[postgres]'" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_shown_location_hides_password(password_server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_database(password_server)
    query(url, "CREATE EXTENSION vector")
    query(url, f"GRANT CREATE ON DATABASE {database_name(url)} TO keeper")
    monkeypatch.setenv("ATHENA_DATABASE_URL", as_role(url, "keeper"))
    api.store("the kettle stands by the window")
    for words in (["doctor"], ["call", "health"], ["call", "stats"]):
        done = subprocess.run([sys.executable, "-m", "athena", *words], capture_output=True, text=True, timeout=60)
        assert SECRET not in done.stdout + done.stderr


def test_repeatable_read_default_works(password_server: postgres.Server) -> None:
    """A process that waits for another to create the store must then see the new tables."""
    url = new_database(password_server)
    query(
        password_server.url(),
        f"ALTER DATABASE {database_name(url)} SET default_transaction_isolation = 'repeatable read'",
    )
    errors: list[BaseException] = []

    def open_one() -> None:
        try:
            Postgres(url).close()
        except BaseException as error:  # noqa: BLE001  # shown below
            errors.append(error)

    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [0x41746865])  # all wait, then continue one by one
        threads = [threading.Thread(target=open_one) for _ in range(4)]
        for thread in threads:
            thread.start()
        waiting = "SELECT count(*) >= 4 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        wait_until(lambda: query(url, waiting) == [(True,)])
    for thread in threads:
        thread.join(LONG)
    assert errors == []


@pytest.fixture(scope="module")
def primary() -> Generator[postgres.Server]:
    """Return a server with few databases: to copy those of all other tests takes long."""
    with postgres.running(postgres.QUICK) as started:
        yield started


@pytest.fixture
def replica(primary: postgres.Server) -> Generator[postgres.Server]:
    """Return a read-only server that replicates another."""
    folder = Path(tempfile.mkdtemp(prefix="athena-pg-"))
    owner = primary.folder.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    primary._run("pg_basebackup", "-D", str(folder / "data"), "-d", primary.url(), "-R", "--no-sync", "-c", "fast")
    made = postgres.Server(folder, (*postgres.QUICK, "hot_standby_feedback=on"))
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_replica_does_not_tell_what_was_committed(primary: postgres.Server, request: pytest.FixtureRequest) -> None:
    url = new_database(primary)
    Postgres(url).close()
    follower: postgres.Server = request.getfixturevalue("replica")
    store = Postgres(follower.url(database_name(url)), reconnect_timeout_s=0.2)
    try:
        with pytest.raises(Unavailable, match="may be stored or not"):
            store._was_committed((str(uuid.uuid4()), "3"), 0)
    finally:
        store.close()


def test_of_several_hosts_the_one_that_takes_writes_is_used(
    primary: postgres.Server, request: pytest.FixtureRequest
) -> None:
    url = new_database(primary)
    Postgres(url).close()
    follower: postgres.Server = request.getfixturevalue("replica")
    both = follower.url(database_name(url), primary).removesuffix("&target_session_attrs=read-write")
    with open_app(both) as app:
        call(app, "remember", content="the kettle stands by the window")
        assert call(app, "recall", query="kettle")[0].content == "the kettle stands by the window"
    assert parse_connection_url(f"{both}&target_session_attrs=any")["target_session_attrs"] == "any"
    assert "target_session_attrs" not in parse_connection_url(url)


def test_replica_is_readable_only(primary: postgres.Server, request: pytest.FixtureRequest) -> None:
    url = new_database(primary)
    with open_app(url) as app:
        call(app, "remember", content="the kettle stands by the window")
    follower: postgres.Server = request.getfixturevalue("replica")
    there = follower.url(database_name(url))
    assert_complaint(there, UNAVAILABLE, "read-only", "replica", command=("-m", "athena", "remember", "a text"))
    assert_complaint(follower.url("postgres"), UNAVAILABLE, "read-only", "replica")
    with open_app(there) as copy, open_app(url) as app:
        assert call(copy, "recall", query="kettle")[0].content == "the kettle stands by the window"
        new = call(app, "remember", content="a lantern in the hall")
        wait_until(lambda: new.id in {hit.id for hit in call(copy, "recall", query="lantern")})
        assert call(copy, "health").status == "healthy"
        assert call(copy, "stats")["memories"] == 2


def test_database_with_other_tables_is_refused(server: postgres.Server) -> None:
    url = new_database(server)
    Postgres(url).close()
    assert query(url, "SELECT count(*) FROM athena.counters WHERE name = 'schema'") == [(1,)]
    query(url, "DELETE FROM athena.counters WHERE name = 'schema'")
    Postgres(url).close()
    assert query(url, "SELECT count(*) FROM athena.counters WHERE name = 'schema'") == [(1,)]
    query(url, "DELETE FROM athena.counters WHERE name = 'schema'")
    query(url, "ALTER TABLE athena.injections DROP COLUMN private")
    with pytest.raises(Misconfigured, match=r"other tables than this version: injections\.private"):
        Postgres(url)


def test_check_names_what_runs_with_our_writes(server: postgres.Server) -> None:
    url = new_database(server)
    store = Postgres(url)
    try:
        assert run_sync(store.read(store.find_problems)) == []
        query(url, "CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
        query(url, "CREATE TRIGGER evil BEFORE INSERT ON athena.memories FOR EACH ROW EXECUTE FUNCTION forge()")
        query(url, "CREATE RULE bad AS ON DELETE TO athena.tags DO INSTEAD NOTHING")
        query(url, "CREATE POLICY hide ON athena.runs USING (false)")
        assert sorted(run_sync(store.read(store.find_problems))) == [
            "policy hide on runs was put there, not by Athena",
            "rule bad on tags was put there, not by Athena",
            "trigger evil on memories was put there, not by Athena",
        ]
    finally:
        store.close()
