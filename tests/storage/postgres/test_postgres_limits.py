"""Limits of PostgreSQL on texts, names and settings, and servers with unusual configuration."""

import random
import subprocess
import time

import postgres
import psycopg
import pytest
from postgres_tools import (
    call,
    database_name,
    finish_script,
    new_database,
    new_database_with_tables,
    open_app,
    query,
    read_line,
    start_script,
    write_line,
)

from athena import api
from athena.core.threads import run_sync
from athena.errors import InvalidInput, Unavailable
from athena.storage import migrations
from athena.storage.database import Transaction
from athena.storage.postgres.store import Postgres
from conftest import rounds
from wait_tools import wait_until


@pytest.fixture
def url(server: postgres.Server) -> str:
    return new_database_with_tables(server)


def test_text_without_spaces_is_found(url: str) -> None:
    """It is one passage with more distinct words than a tsvector can hold."""
    with open_app(url) as app:
        numbers = ",".join(str(i) for i in range(rounds(30_000, 150_000)))
        letters = ",".join(f"{i:b}".replace("0", "ж").replace("1", "щ") * 12 for i in range(rounds(1_500, 9_000)))
        for text, early in ((numbers, "1777"), (letters, letters.split(",")[5])):
            stored = call(app, "remember", content=text)
            assert call(app, "get_memory", memory_id=stored.id).content == text
            assert call(app, "recall", query=early, k=1)[0].id == stored.id
            call(app, "update_memory", memory_id=stored.id, tags=["numbers"])
        assert call(app, "verify").problems == ()


@pytest.mark.parametrize("which", ["session", "project", "key"])
def test_oversized_index_key_is_reported(url: str, which: str) -> None:
    chance = random.Random(1)
    name = "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(1_000 if which == "project" else 9_000))
    with open_app(url, patience=100) as app:
        began = time.monotonic()
        with pytest.raises(InvalidInput, match=r"PostgreSQL|session_id, .* takes 27,000 bytes"):
            call(
                app,
                "remember",
                content="text",
                project=name if which == "project" else "test",
                key=name if which == "key" else None,
                metadata={"session_id": name} if which == "session" else {},
            )
        assert time.monotonic() - began < 50, "it was tried again"
        call(app, "remember", content="the next one")
        assert call(app, "verify").problems == ()


FOREIGN_PARTS = (  # each fits the types of a call of ours better than the server's own
    "CREATE FUNCTION public.steal(smallint, numeric) RETURNS numeric LANGUAGE plpgsql AS $$ BEGIN RAISE 'ran'; END $$",
    "CREATE OPERATOR public.* (LEFTARG = smallint, RIGHTARG = numeric, FUNCTION = public.steal)",
    """CREATE FUNCTION public.pg_advisory_xact_lock(integer) RETURNS void LANGUAGE plpgsql
       AS $$ BEGIN RAISE 'ran'; END $$""",
)


def test_operators_in_the_schema_of_pgvector_do_not_run_with_our_rights(url: str) -> None:
    for statement in FOREIGN_PARTS:
        query(url, statement)
    with open_app(url) as app:
        call(app, "remember", content="the quick brown fox")
        assert [hit.content for hit in call(app, "recall", query="a brown animal")] == ["the quick brown fox"]
        assert call(app, "verify").problems == ()


ODD = {
    "client_encoding": "LATIN1",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "backslash_quote": "on",
    "escape_string_warning": "off",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "serializable",
    "DateStyle": "German",
    "TimeZone": "Asia/Tokyo",
    "IntervalStyle": "sql_standard",
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashagg": "off",
    "plan_cache_mode": "force_generic_plan",
    "work_mem": "64kB",
    "row_security": "off",
    "array_nulls": "off",
    "jit": "on",
}


def test_unusual_database_settings_change_nothing(url: str) -> None:
    for setting, value in ODD.items():
        try:
            query(url, f"ALTER DATABASE {database_name(url)} SET {setting} = '{value}'")
        except psycopg.errors.UndefinedObject:
            continue  # unknown to this version of the server
    with open_app(url) as app:
        texts = [
            "Größe: 5 € – 日本語のメモ 🦊",
            "it's a \\ 'quoted' \\\\ text",
            "100% of %s and :name and %(x)s",
            "plain",
        ]
        for text in texts:
            number = call(app, "remember", content=text, tags=["ключ", "ß"], metadata={"session_id": "日本"}).id
            assert call(app, "get_memory", memory_id=number).content == text
            assert call(app, "recall", query=text, k=1)[0].id == number
        for _ in range(8):  # statements are prepared after a few executions
            assert call(app, "recall", query="日本語", k=1)[0].content == texts[0]
        number = call(app, "remember", content="to be changed").id
        call(app, "update_memory", memory_id=number, content="changed", importance=0.123456789)
        assert call(app, "get_memory", memory_id=number).importance == 0.123456789
        call(app, "forget", memory_id=number)
        call(app, "undo")
        assert call(app, "purge", memory_ids=[number], expect=1) == 1
        assert call(app, "verify").problems == ()


def test_client_encoding_variable_changes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    monkeypatch.setenv("ATHENA_DATABASE_URL", url)
    short = api.store("日本語のメモ 🦊")
    assert api.get(short).content == "日本語のメモ 🦊"
    assert api.search("日本語").memories[0].hash == short


def test_transaction_timeout_is_reported(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
    query(url, f"ALTER DATABASE {database_name(url)} SET transaction_timeout = '600ms'")
    with open_app(url, patience=1) as app:

        async def slowly(tx: Transaction) -> None:
            await tx.fetch("SELECT pg_sleep(10)")

        for run in (app.store.database.read, app.store.database.write):
            with pytest.raises(Unavailable, match="too long"):
                run_sync(run(slowly))
        assert call(app, "recall", query="before")


def test_exit_during_index_build_is_quick(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as holding:
        process = start_script(
            """
            import sys
            from athena import api
            from athena.storage.postgres import vectors
            api.store_batch([f"item {i} of the list" for i in range(60)])
            vectors.MAX_SCANNED_PASSAGES = 10
            print("ready", flush=True)
            sys.stdin.readline()
            assert api.search("item 7").memories
            print("searched", flush=True)
            sys.stdin.readline()
            """,
            ATHENA_DATABASE_URL=url,
        )
        assert read_line(process) == "ready"
        holding.execute("BEGIN")
        holding.execute("LOCK TABLE athena.passages IN ROW EXCLUSIVE MODE")
        write_line(process, "go")
        assert read_line(process) == "searched"
        wait_until(lambda: query(url, "SELECT 1 FROM pg_stat_progress_create_index"))
        write_line(process, "go")
        assert finish_script(process) == []  # although the index build is blocked
        holding.execute("COMMIT")
    wait_until(
        lambda: query(
            url, "SELECT 1 FROM pg_index WHERE indisvalid AND indexrelid::regclass::text LIKE '%%passages_near%%'"
        )
    )


def test_dump_and_restore_keeps_store(server: postgres.Server, url: str) -> None:
    with open_app(url) as app:
        for i in range(5):
            call(app, "remember", content=f"lantern {i} by the door", tags=["x"], metadata={"session_id": f"s{i % 2}"})
        call(app, "forget", memory_id=2)
    copy = new_database(server)
    tool = postgres.find_binaries()
    dumped = subprocess.run([tool / "pg_dump", "-d", url], capture_output=True, check=True)
    restoring = [str(tool / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", copy]
    subprocess.run(restoring, input=dumped.stdout, capture_output=True, check=True)
    with open_app(copy) as app:
        assert call(app, "verify").problems == ()
        assert len(call(app, "recall", query="lantern by the door")) == 4
        assert call(app, "remember", content="after the restore").outcome == "new"
        assert call(app, "restore_memory", memory_id=2)
        assert call(app, "health").count == 6
        assert call(app, "verify").problems == ()


@pytest.mark.parametrize(
    "key",
    [
        None,
        "k1",
    ],
)
def test_purge_leaves_nothing_in_tables(url: str, key: str | None) -> None:
    with open_app(url) as app:
        number = call(app, "remember", content="xyzzy one", tags=["xyzzy"], metadata={"session_id": "xyzzy"}).id
        call(app, "update_memory", memory_id=number, content="xyzzy two")
        call(app, "undo", key=key)
        call(app, "recall", query="xyzzy")
        call(app, "forget", memory_id=number)
        assert call(app, "purge", memory_ids=[number], expect=1) == 1
    dumped = subprocess.run([postgres.find_binaries() / "pg_dump", "-d", url], capture_output=True, check=True)
    assert b"xyzzy" not in dumped.stdout
    assert b"remember" in dumped.stdout


def test_health_tells_that_server_takes_no_writes(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
        assert call(app, "health").status == "healthy"
        for value, status in (("on", "error"), ("off", "healthy")):
            setting = f"ALTER DATABASE {database_name(url)} SET default_transaction_read_only = {value}"
            with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
                admin.execute(setting.encode())
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            if value == "on":
                with pytest.raises(Unavailable):
                    call(app, "remember", content="refused")
            health = call(app, "health")
            assert health.status == status, health.problems
        assert not [problem for problem in health.problems if "stored" in problem]


def test_kept_counts_are_summed_up(url: str) -> None:
    with open_app(url) as app:
        stored = [call(app, "remember", content=f"note {i}", tags=["lamps"]) for i in range(12)]
        call(app, "update_memory", memory_id=stored[0].id, content="a longer note than before", tags=["port"])
        call(app, "forget_batch", memory_ids=[one.id for one in stored[5:]])
        names = "SELECT facet || ' ' || name FROM counts GROUP BY facet, name HAVING count(*) > 1"
        before = call(app, "stats")
        assert query(url, names)
        for _ in range(2):
            run_sync(app.store.database.write(app.store.database.fulltext.fold_tallies))  # type: ignore[attr-defined]
            assert query(url, names) == []
            assert {**call(app, "stats"), "bytes": 0} == {**before, "bytes": 0}
            assert call(app, "verify").problems == ()
        call(app, "purge", memory_ids=[stored[0].id], expect=1)
        assert query(url, "SELECT 1 FROM counts WHERE name = 'port'") == []  # a purge leaves no trace of a tag
        assert call(app, "verify").problems == ()


def test_older_digests_of_arguments_are_gone(server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_database(server)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "STEPS", migrations.STEPS[:6])
        Postgres(url).close()
    with psycopg.connect(url, autocommit=True) as raw:
        raw.execute("INSERT INTO athena.receipts VALUES ('p', 'k', 'remember', 'a hash without a key', '[1]', 0)")
        raw.execute(
            """INSERT INTO athena.runs (scope, id, workspace, status, process, started, calls, engine, fingerprint)
               VALUES ('p', 'r', 'w', 'done', 'h:1', 0, 0, 'monty', 'a hash without a key')"""
        )
        Postgres(url).close()
        assert raw.execute("SELECT fingerprint, result FROM athena.receipts").fetchall() == [("", "[1]")]
        assert raw.execute("SELECT fingerprint FROM athena.runs").fetchall() == [("",)]
