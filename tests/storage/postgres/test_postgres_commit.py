"""Connections lost during COMMIT: the change happens once, or the caller gets an error."""

import socket
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import postgres
import pytest
from postgres_tools import (
    DURABLE,
    Hook,
    Proxy,
    ProxyConnection,
    call,
    drop_commit,
    drop_reply,
    new_database,
    new_database_with_tables,
    open_app,
    query,
    run_proxy,
    set_timeout,
)

from athena.core.threads import run_sync
from athena.errors import Unavailable
from athena.storage.database import Transaction
from athena.storage.postgres import store
from wait_tools import LONG, wait_until


@pytest.fixture
def url(server: postgres.Server) -> str:
    return new_database_with_tables(server)


@pytest.fixture
def proxy(server: postgres.Server) -> Generator[Proxy]:
    with run_proxy(server) as made:
        yield made


def stored_rows(url: str) -> list[tuple[str, int, int]]:
    """Return each text with its occurrences and the length of its history."""
    return query(
        url,
        """SELECT content, occurrences, (SELECT count(*) FROM history h WHERE h.memory = m.id)
           FROM memories m ORDER BY id""",
    )


def commit_later(line: ProxyConnection, commit: bytes) -> None:
    """Disconnect the client at once, and deliver its commit to the server later."""
    with suppress(OSError):
        line.client.shutdown(socket.SHUT_RDWR)
    time.sleep(0.7)
    drop_reply(line, commit)


def commit_then_shutdown(line: ProxyConnection, commit: bytes) -> None:
    """Let the server commit, and tell the client that the server is shutting down."""
    line.upstream.sendall(commit)
    line.upstream.recv(65_536)
    said = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    line.client.sendall(b"E" + (len(said) + 4).to_bytes(4, "big") + said)
    time.sleep(0.05)
    line.cut()


@pytest.mark.parametrize("moment", [drop_reply, drop_commit, commit_later, commit_then_shutdown])
def test_unanswered_commit_of_store_happens_once(url: str, proxy: Proxy, moment: Hook) -> None:
    with open_app(proxy.url(url)) as app:
        call(app, "remember", content="before")
        proxy.at_commit(moment)
        stored = call(app, "remember", content="the kettle stands by the window")
        assert proxy.happened
        assert stored.outcome == "new"
        assert stored_rows(url) == [("before", 1, 1), ("the kettle stands by the window", 1, 1)]
        assert call(app, "recall", query="kettle")[0].hash == stored.hash
        assert call(app, "verify").ok


def test_proxy_changes_nothing(server: postgres.Server, url: str) -> None:
    with run_proxy(server, tcp=True) as proxy, open_app(proxy.url(url)) as app:
        for moment in (drop_reply, drop_commit):
            proxy.at_commit(moment)
            assert call(app, "remember", content=f"kettle {moment.__name__}").outcome == "new"
        assert [row[1:] for row in stored_rows(url)] == [(1, 1), (1, 1)]
        assert len(call(app, "recall", query="kettle")) == 2
        assert call(app, "health").location.startswith("postgresql://127.0.0.1:")
        assert call(app, "verify").ok


@pytest.mark.parametrize("moment", [drop_reply, drop_commit])
def test_unanswered_commit_of_change_happens_once(url: str, proxy: Proxy, moment: Hook) -> None:
    with open_app(proxy.url(url)) as app:
        number = call(app, "remember", content="the kettle is red").id
        proxy.at_commit(moment, b"INSERT INTO history")
        call(app, "update_memory", memory_id=number, content="the kettle is blue")
        proxy.at_commit(moment, b"INSERT INTO history")
        assert call(app, "forget", memory_id=number) is True
        proxy.at_commit(moment, b"INSERT INTO history")
        assert len(call(app, "undo")) == 1
        assert proxy.happened
        actions = [change.action for change in call(app, "memory_history", memory_id=number)]
        assert actions == ["remembered", "updated", "forgotten", "undone"]
        assert [m.content for m in call(app, "list_memories")] == ["the kettle is blue"]
        assert call(app, "verify").ok


def test_many_lost_answers_happen_once(url: str, proxy: Proxy) -> None:
    with open_app(proxy.url(url)) as app, ThreadPoolExecutor(6) as pool:
        call(app, "remember", content="before")
        moments = [drop_reply, drop_commit] * 6

        def again(line: ProxyConnection, commit: bytes) -> None:
            moment = moments.pop()
            if moments:
                proxy.at_commit(again)
            moment(line, commit)

        proxy.at_commit(again)
        stored = list(pool.map(lambda i: call(app, "remember", content=f"item {i}"), range(40)))
        assert not moments
        assert {one.outcome for one in stored} == {"new"}
        assert sorted(stored_rows(url)) == sorted([("before", 1, 1), *((f"item {i}", 1, 1) for i in range(40))])
        assert call(app, "verify").ok


def commit_then_refuse(line: ProxyConnection, commit: bytes) -> None:
    """Let the server commit, and be unreachable for the client from then on."""
    line.proxy.refusing = True
    drop_reply(line, commit)


def test_unknown_commit_raises_error(url: str, proxy: Proxy) -> None:
    with open_app(proxy.url(url)) as app:
        call(app, "remember", content="before")
        set_timeout(app, 1)
        proxy.at_commit(commit_then_refuse)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="may be stored or not") as caught:
            call(app, "remember", content="the kettle stands by the window", key="k1")
        assert time.monotonic() - began < LONG / 2
        assert caught.value.retry
        assert "again" in str(caught.value.hint)
        proxy.refusing = False
        set_timeout(app, LONG)
        stored = call(app, "remember", content="the kettle stands by the window", key="k1")  # as the hint says
        assert stored.outcome == "new"
        assert stored_rows(url) == [("before", 1, 1), ("the kettle stands by the window", 1, 1)]
        assert call(app, "verify").ok


@pytest.mark.parametrize("others", [0, 12])
def test_crashed_commit_is_not_acknowledged(others: int) -> None:
    """After a crash the server may reuse the id of a lost transaction for another that commits."""
    with postgres.running(DURABLE) as server, run_proxy(server) as proxy:
        url = new_database(server)
        with open_app(proxy.url(url), LONG) as app, open_app(url, LONG) as other, ThreadPoolExecutor(1) as pool:
            call(app, "remember", content="before")
            call(other, "remember", content="before")

            def power_cut(line: ProxyConnection, commit: bytes) -> None:
                server.kill()
                proxy.refusing = True
                line.cut()

            proxy.at_commit(power_cut)
            storing = pool.submit(call, app, "remember", content="the kettle stands by the window")
            wait_until(lambda: proxy.refusing)
            server.start()
            for i in range(others):
                call(other, "remember", content=f"other {i}")
            proxy.refusing = False
            assert storing.result(LONG).outcome == "new"
            assert ("the kettle stands by the window", 1, 1) in stored_rows(url)
            assert len(stored_rows(url)) == 2 + others
            assert call(app, "verify").ok


def test_commit_records_are_pruned(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_app(url) as app:
        call(app, "remember", content="first")
        query(url, "UPDATE commits SET at = at - interval '1 hour'")
        assert query(url, "SELECT count(*) FROM commits")[0][0] >= 1
        monkeypatch.setattr(store, "TALLY_FOLD_WRITES", 2)  # smaller, to be quick
        for i in range(4):
            call(app, "remember", content=f"item {i}")
    assert query(url, "SELECT count(*) FROM commits WHERE at < now() - interval '10 minutes'") == [(0,)]


def test_slow_work_is_still_resolved(url: str, proxy: Proxy) -> None:
    with open_app(proxy.url(url)) as app:
        number: int = call(app, "remember", content="before").id
        set_timeout(app, 0.2)

        async def slowly(tx: Transaction) -> int:
            await tx.fetch("SELECT pg_sleep(0.6)")
            await tx.execute("UPDATE memories SET occurrences = occurrences + 1 WHERE id = :id", id=number)
            return number

        proxy.at_commit(drop_reply, b"pg_sleep")
        assert run_sync(app.store.database.write(slowly)) == number
        assert stored_rows(url) == [("before", 2, 1)]


def test_slow_work_losing_race_is_retried(url: str) -> None:
    with open_app(url) as app:
        number = call(app, "remember", content="before").id
        set_timeout(app, 0.2)
        tries: list[int] = []

        async def slowly(tx: Transaction) -> None:
            await tx.fetch("SELECT occurrences FROM memories")
            if not tries:
                query(url, "UPDATE memories SET occurrences = occurrences + 10")
            tries.append(1)
            await tx.fetch("SELECT pg_sleep(0.4)")
            await tx.execute("UPDATE memories SET occurrences = occurrences + 1 WHERE id = :id", id=number)

        run_sync(app.store.database.write(slowly))
        assert stored_rows(url) == [("before", 12, 1)]
        assert len(tries) == 2
