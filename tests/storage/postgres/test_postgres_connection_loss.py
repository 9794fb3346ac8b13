"""A server that stops and returns: callers get an error in time, and stores reconnect by themselves."""

import asyncio
import random
import signal
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import postgres
import psycopg
import pytest
from postgres_tools import (
    MORTAL,
    call,
    database_name,
    finish_script,
    new_database,
    new_database_with_tables,
    open_app,
    query,
    read_line,
    run_proxy,
    run_script,
    set_timeout,
    start_script,
    write_line,
)

import athena
from athena import api
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Misconfigured, Unavailable
from athena.storage.database import Transaction
from athena.storage.postgres.store import MAX_POOL_CONNECTIONS
from wait_tools import LONG, wait_until

# A store waits for a lock, and so does deferred work.
WAITING = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
             AND query LIKE 'INSERT INTO memories%'"""
CHRONICLE = " ".join(f"On day {i} the wind came from the west and the lamps were lit early." for i in range(600))


@pytest.fixture(scope="module")
def killable_server() -> Generator[postgres.Server]:
    """Return a server that may be killed and that runs again at the end of each test."""
    with postgres.running(MORTAL) as started:
        yield started


@pytest.fixture
def url(killable_server: postgres.Server) -> str:
    return new_database_with_tables(killable_server)


def fill_pool(app: App) -> None:
    """Open as many connections as allowed, and leave them idle."""
    together = threading.Barrier(MAX_POOL_CONNECTIONS)

    def hold(_: int) -> None:
        async def work(tx: object) -> None:
            together.wait(LONG)

        run_sync(app.store.database.read(work))

    with ThreadPoolExecutor(MAX_POOL_CONNECTIONS) as pool:
        list(pool.map(hold, range(MAX_POOL_CONNECTIONS)))


def test_stopped_server_fails_fast_and_recovers(killable_server: postgres.Server, url: str) -> None:
    with open_app(url) as app:
        first = call(app, "remember", content="the kettle stands by the window")
        set_timeout(app, 0.5)
        killable_server.kill()
        try:
            for name, arguments in (
                ("remember", {"content": "a lantern"}),
                ("recall", {"query": "kettle"}),
                ("update_memory", {"memory_id": first.id, "content": "the kettle is gone"}),
            ):
                began = time.monotonic()
                with pytest.raises(Unavailable) as caught:
                    call(app, name, **arguments)
                assert time.monotonic() - began < LONG / 2
                assert caught.value.retry
                assert caught.value.hint
                assert "does not answer" in str(caught.value)
            told = call(app, "health")
            assert told.status == "error"
            assert "does not answer" in told.problems[0]
        finally:
            killable_server.start()
        set_timeout(app, LONG)
        assert call(app, "recall", query="kettle")[0].hash == first.hash  # at the first try
        assert call(app, "remember", content="a lantern").outcome == "new"
        assert call(app, "health").status == "healthy"
        assert call(app, "verify").ok


def test_call_waits_for_short_restart(killable_server: postgres.Server, url: str) -> None:
    with open_app(url, patience=LONG) as app, ThreadPoolExecutor(6) as pool:
        call(app, "remember", content="before")
        killable_server.kill()
        storing = [pool.submit(call, app, "remember", content=f"item {i}") for i in range(5)]
        asking = pool.submit(call, app, "recall", query="before")
        time.sleep(0.4)
        killable_server.start()
        assert [one.result(LONG).outcome for one in storing] == ["new"] * 5
        assert asking.result(LONG)
        assert query(url, "SELECT count(*), max(occurrences) FROM memories") == [(6, 1)]


@pytest.mark.parametrize("how", ["restart", "crash", "terminate"])
def test_broken_idle_connections_are_replaced(killable_server: postgres.Server, url: str, how: str) -> None:
    with open_app(url) as app:
        gone = call(app, "remember", content="to be purged")
        call(app, "remember", content="the kettle stands by the window")
        call(app, "forget", memory_id=gone.id)
        for name, arguments in (("recall", {"query": "kettle"}), ("purge", {"expect": 1})):
            fill_pool(app)
            if how == "restart":
                killable_server.stop()
                killable_server.start()
            elif how == "crash":
                killable_server.kill()
                killable_server.start()
            else:
                query(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'athena'")
            assert call(app, name, **arguments)
        assert call(app, "remember", content="a lantern").outcome == "new"
        assert call(app, "verify").ok


def test_repeated_disconnects_lose_nothing(killable_server: postgres.Server, url: str) -> None:
    with run_proxy(killable_server) as proxy, open_app(proxy.url(url)) as app, ThreadPoolExecutor(5) as pool:
        call(app, "remember", content="before")

        def disturb() -> None:
            chance = random.Random(3)
            for _ in range(8):
                time.sleep(chance.uniform(0.02, 0.12))
                proxy.cut()

        disturbing = pool.submit(disturb)
        stored = list(pool.map(lambda i: call(app, "remember", content=f"item {i}"), range(60)))
        disturbing.result(LONG)
        assert {one.outcome for one in stored} == {"new"}
        rows = query(
            url, "SELECT content, occurrences, (SELECT count(*) FROM history h WHERE h.memory = m.id) FROM memories m"
        )
        assert sorted(rows) == sorted([("before", 1, 1), *((f"item {i}", 1, 1) for i in range(60))])
        assert call(app, "verify").ok


def test_few_connections_serve_many_threads(killable_server: postgres.Server) -> None:
    url = new_database(killable_server)
    query(url, "CREATE EXTENSION vector")
    query(url, "CREATE ROLE narrow LOGIN CONNECTION LIMIT 2")
    query(url, f"GRANT CREATE ON DATABASE {database_name(url)} TO narrow")
    with open_app(url.replace("postgres@", "narrow@")) as app, ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda i: call(app, "remember", content=f"item {i}"), range(30)))
        assert {one.outcome for one in stored} == {"new"}
        assert call(app, "verify").ok


def test_program_started_without_server_recovers(
    killable_server: postgres.Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATHENA_DATABASE_URL", url)
    killable_server.kill()
    try:
        with pytest.raises(Unavailable, match="does not answer"):
            api.store("too early")
    finally:
        killable_server.start()
    short = api.store("in time")
    assert [m.hash for m in api.search("time").memories] == [short]


def test_deferred_work_is_written_at_exit(url: str) -> None:
    run_script(
        """
        from athena import api
        api.store("the kettle stands by the window")
        for _ in range(3):
            api.search("kettle")
        """,
        ATHENA_DATABASE_URL=url,
    )
    assert query(url, "SELECT operation, count(*) FROM calls GROUP BY 1 ORDER BY 1") == [("recall", 3), ("remember", 1)]
    assert query(url, "SELECT strength > 0 FROM memories") == [(True,)]


@pytest.mark.parametrize(
    "busy",
    [
        False,
        True,
    ],
)
def test_program_exits_without_server(killable_server: postgres.Server, url: str, busy: bool) -> None:
    process = start_script(
        """
        import sys
        from athena import api; from athena.app import connect

        async def note(tx):
            await tx.execute("SELECT 1")

        api.store("the kettle stands by the window")
        api.store(sys.argv[1])
        api.search("kettle")  # what it notes is written a little later
        print("ready", flush=True)
        sys.stdin.readline()
        app = connect.shared_app()
        app.store.database._timeout_s = 600  # nor for this
        for _ in range(100):  # each is tried for a second or more, but at the end all of them get no more than that
            app.store.database.defer_write(note)
        """,
        CHRONICLE if busy else "short",
        ATHENA_DATABASE_URL=url,
    )
    assert read_line(process) == "ready"
    killable_server.kill()
    try:
        write_line(process, "go")
        assert finish_script(process) == []  # not after the minutes that its work would take
    finally:
        killable_server.start()


def test_closed_store_raises_error(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
    with pytest.raises(Unavailable, match="closed"):
        call(app, "remember", content="after")
    app.close()


def test_interrupt_survives_failed_cancel(url: str) -> None:
    async def work(tx: Any) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            await tx.fetch("SELECT 1/0")

    with open_app(url) as app, pytest.raises(KeyboardInterrupt):
        run_sync(app.store.database.write(work))


def test_interrupted_wait_can_continue(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
    process = start_script(
        """
        import signal, sys
        from athena import api
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
        api.search("before")
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            api.store("while it is locked")
        except KeyboardInterrupt:
            print("stopped", flush=True)
        sys.stdin.readline()
        print(api.store("afterwards"), flush=True)
        """,
        ATHENA_DATABASE_URL=url,
    )
    assert read_line(process) == "ready"
    with psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE athena.memories IN EXCLUSIVE MODE")
        write_line(process, "go")
        wait_until(lambda: query(url, WAITING))
        process.send_signal(signal.SIGINT)
        assert read_line(process) == "stopped"
    write_line(process, "go")
    assert len(finish_script(process)) == 1
    assert sorted(row[0] for row in query(url, "SELECT content FROM memories")) == ["afterwards", "before"]


def test_long_held_lock_is_reported(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
        set_timeout(app, 0.5)
        with psycopg.connect(url) as holding:
            holding.execute("LOCK TABLE athena.memories IN EXCLUSIVE MODE")

            async def patient(tx: Transaction) -> None:
                await tx.execute("SET LOCAL lock_timeout = '300ms'")
                await tx.execute("UPDATE memories SET occurrences = 2")

            with pytest.raises(Unavailable, match="too long") as caught:
                run_sync(app.store.database.write(patient))
            assert caught.value.retry
            set_timeout(app, LONG)
            assert call(app, "recall", query="before"), "reading goes on"
        assert call(app, "remember", content="after").outcome == "new"


def test_exhausted_pool_fails_then_recovers(url: str) -> None:
    with open_app(url, patience=LONG) as app, ThreadPoolExecutor(MAX_POOL_CONNECTIONS) as pool:
        call(app, "remember", content="before")
        full, leave = threading.Barrier(MAX_POOL_CONNECTIONS + 1), threading.Event()

        async def hold(tx: object) -> None:
            full.wait(LONG)
            leave.wait(LONG)

        held = [pool.submit(lambda: run_sync(app.store.database.read(hold))) for _ in range(MAX_POOL_CONNECTIONS)]
        full.wait(LONG)
        set_timeout(app, 0.5)
        with pytest.raises(Unavailable, match="in use"):
            call(app, "recall", query="before")
        set_timeout(app, LONG)
        leave.set()
        for one in held:
            one.result(LONG)
        assert call(app, "recall", query="before")


def test_cancelled_stores_do_not_block_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_DATABASE_URL", url)
    api.store("before")

    async def impatient(number: int) -> bool:
        async with athena.open() as memory:
            try:
                await asyncio.wait_for(memory.store(f"impatient {number}"), 0.2)
            except TimeoutError:
                return True
        return False

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(impatient(number) for number in range(6)))

    with psycopg.connect(url) as holding:
        holding.execute("LOCK TABLE athena.memories IN EXCLUSIVE MODE")
        assert asyncio.run(all_of_them()) == [True] * 6
    assert api.store("afterwards") == api.search("afterwards").memories[0].hash
    rows = query(url, "SELECT content, occurrences FROM memories")  # some of them were in progress
    assert {("before", 1), ("afterwards", 1)} <= set(rows)
    assert {times for _, times in rows} == {1}


def test_dropped_tables_are_reported(url: str) -> None:
    with open_app(url) as app:
        call(app, "remember", content="before")
        query(url, "DROP SCHEMA athena CASCADE")
        for name, arguments in (("recall", {"query": "before"}), ("remember", {"content": "after"})):
            with pytest.raises(Misconfigured, match="lacks a table"):
                call(app, name, **arguments)
    with open_app(url) as app:
        assert call(app, "remember", content="after").outcome == "new"
        assert call(app, "verify").ok
