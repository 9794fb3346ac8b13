"""The SQLite engine: commits, snapshots, errors and durability."""

import asyncio
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

from athena.core.threads import run_sync
from athena.errors import Conflict, Misconfigured, Unavailable
from athena.storage.migrations import STEPS
from athena.storage.sqlite.store import Sqlite
from wait_tools import LONG, wait_until


@pytest.fixture
def database(tmp_path: Path) -> Any:
    made = Sqlite(tmp_path / "athena.db")
    yield made
    made.close()


def add_counter(name: str, value: int = 0) -> Any:
    async def work(tx: Any) -> int:
        await tx.execute("INSERT INTO counters VALUES (:name, :value)", name=name, value=value)
        return value

    return work


def counter_names(database: Sqlite) -> set[str]:
    async def work(tx: Any) -> set[str]:
        return {row[0] for row in await tx.fetch("SELECT name FROM counters")} - {"stamp", "purges", "schema"}

    return run_sync(database.read(work))


def test_write_survives_reopening(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "a.db")
    assert run_sync(database.write(add_counter("x", 7))) == 7
    database.close()
    again = Sqlite(tmp_path / "a.db")
    assert counter_names(again) == {"x"}
    again.close()


def test_failed_write_rolls_back_alone(database: Sqlite) -> None:
    async def half(tx: Any) -> None:
        await tx.execute("INSERT INTO counters VALUES ('half', 1)")
        raise Conflict("no")

    async def together() -> list[Any]:
        jobs = [database.write(add_counter("a")), database.write(half), database.write(add_counter("b"))]
        return await asyncio.gather(*jobs, return_exceptions=True)

    first, failed, last = asyncio.run(together())
    assert (first, last) == (0, 0)
    assert isinstance(failed, Conflict)
    assert counter_names(database) == {"a", "b"}


def test_engine_error_reaches_own_caller(database: Sqlite) -> None:
    async def wrong(tx: Any) -> None:
        await tx.execute("INSERT INTO nowhere VALUES (1)")

    async def together() -> Any:
        return await asyncio.gather(database.write(wrong), database.write(add_counter("a")), return_exceptions=True)

    failed, done = asyncio.run(together())
    assert isinstance(failed, apsw.SQLError)
    assert done == 0
    assert counter_names(database) == {"a"}


def test_callers_share_commits(database: Sqlite) -> None:
    commits: list[int] = []

    async def hook(tx: Any) -> None:
        def count() -> bool:
            commits.append(1)
            return False

        tx.connection.set_commit_hook(count)

    run_sync(database.write(hook))

    async def together() -> None:
        await asyncio.gather(*(database.write(add_counter(f"n{i}")) for i in range(200)))

    asyncio.run(together())
    assert len(counter_names(database)) == 200
    assert len(commits) < 100


def test_work_that_waits_is_refused(database: Sqlite) -> None:
    async def nested(tx: Any) -> None:
        await database.write(add_counter("inner"))

    with pytest.raises(RuntimeError, match="may wait only for its transaction"):
        run_sync(database.write(nested))
    assert "outer" not in counter_names(database)
    run_sync(database.write(add_counter("after")))
    assert "after" in counter_names(database)


def test_full_disk_fails_only_large_write(database: Sqlite) -> None:
    async def limit(tx: Any) -> None:
        (pages,) = await tx.fetch_one("PRAGMA page_count")
        await tx.execute(f"PRAGMA max_page_count = {pages + 4}")

    async def large(tx: Any) -> None:
        await tx.execute("INSERT INTO models (name) VALUES (:name)", name="x" * 200_000)

    run_sync(database.write(limit))

    async def together() -> list[Any]:
        jobs = [database.write(add_counter("small")), database.write(large), database.write(add_counter("smaller"))]
        return await asyncio.gather(*jobs, return_exceptions=True)

    small, failed, smaller = asyncio.run(together())
    assert (small, smaller) == (0, 0)
    assert isinstance(failed, Unavailable)
    assert "disk is full" in str(failed)
    assert counter_names(database) == {"small", "smaller"}


def test_deferred_work_is_done_on_close(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "a.db")

    async def quiet(tx: Any) -> None:
        await add_counter("later")(tx)

    database.defer_write(quiet)
    database.close()
    again = Sqlite(tmp_path / "a.db")
    assert counter_names(again) == {"later"}
    again.close()


def test_deferred_work_does_not_block_writes(database: Sqlite) -> None:
    async def quiet(tx: Any) -> None:
        await add_counter("later")(tx)

    database.defer_write(quiet)
    run_sync(database.write(add_counter("now")))
    assert counter_names(database) == {"now"}

    def came() -> bool:
        run_sync(database.write(add_counter(f"and then {time.monotonic()}")))  # however many others write meanwhile
        return "later" in counter_names(database)

    wait_until(came)


def test_single_caller_writes_on_own_thread(database: Sqlite) -> None:
    async def where(tx: Any) -> str:
        return threading.current_thread().name

    assert run_sync(database.write(where)) == threading.current_thread().name


def test_interrupted_write_rolls_back(database: Sqlite) -> None:
    async def interrupted(tx: Any) -> None:
        await add_counter("half")(tx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sync(database.write(interrupted))
    assert counter_names(database) == set()
    others = [
        threading.Thread(target=lambda i=i: run_sync(database.write(add_counter(f"other {i}")))) for i in range(8)
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(LONG)
    assert run_sync(database.write(add_counter("after"))) == 0
    assert len(counter_names(database)) == 9


def test_closed_store_raises_error(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "a.db")
    database.close()
    with pytest.raises(Unavailable, match="closed"):
        run_sync(database.write(add_counter("x")))


def test_files_are_private_to_owner(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "deep" / "er" / "athena.db")
    run_sync(database.write(add_counter("x")))
    files = list((tmp_path / "deep" / "er").iterdir())
    assert files
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "deep" / "er").stat().st_mode) == 0o700
    database.close()


def test_engine_is_configured_for_durability(database: Sqlite) -> None:
    async def settings(tx: Any) -> dict[str, Any]:
        wanted = ("journal_mode", "synchronous", "secure_delete", "mmap_size", "user_version")
        return {name: ((await tx.fetch_one(f"PRAGMA {name}")) or (0,))[0] for name in wanted}

    for found in (run_sync(database.read(settings)), run_sync(database.write(settings))):
        durable = {"journal_mode": "wal", "synchronous": 2, "secure_delete": 1, "mmap_size": 0}
        assert found == durable | {"user_version": len(STEPS)}


def test_concurrent_creation_succeeds(tmp_path: Path) -> None:
    made: list[Sqlite] = []
    gate = threading.Barrier(8)

    def create() -> None:
        gate.wait()
        made.append(Sqlite(tmp_path / "athena.db"))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    for i, database in enumerate(made):
        run_sync(database.write(add_counter(f"n{i}")))
    assert len(counter_names(made[0])) == 8
    for database in made:
        database.close()


def test_newer_store_is_refused_unchanged(tmp_path: Path) -> None:
    Sqlite(tmp_path / "a.db").close()
    with apsw.Connection(str(tmp_path / "a.db")) as raw:
        raw.pragma("user_version", 99)
    raw.close()
    with pytest.raises(Misconfigured, match="newer Athena"):
        Sqlite(tmp_path / "a.db")


def test_readers_see_snapshot_during_writes(database: Sqlite) -> None:
    run_sync(database.write(add_counter("a")))
    inside, go_on = threading.Event(), threading.Event()

    async def look_twice(tx: Any) -> tuple[int, int]:
        (before,) = await tx.fetch_one("SELECT count(*) FROM counters")
        inside.set()
        go_on.wait(LONG)
        (after,) = await tx.fetch_one("SELECT count(*) FROM counters")
        return before, after

    seen: list[tuple[int, int]] = []
    reader = threading.Thread(target=lambda: seen.append(run_sync(database.read(look_twice))))
    reader.start()
    inside.wait(LONG)
    run_sync(database.write(add_counter("b")))
    go_on.set()
    reader.join()
    assert seen[0][0] == seen[0][1]
    assert counter_names(database) == {"a", "b"}


def test_failed_creation_names_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="cannot be opened"):
        Sqlite(tmp_path / "file" / "athena.db")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("query", "plan"),
    [
        ("SELECT content FROM memories WHERE scope IN (1, 2) AND id IN (1, 2, 3, 4, 5, 6, 7, 8, 9)", "PRIMARY KEY"),
        ("SELECT code FROM passages WHERE scope = 1 AND id = 5", "PRIMARY KEY"),
        ("SELECT id FROM passages WHERE scope = 1 AND memory = 5", "passages_of_memory (scope=? AND memory=?)"),
        ("SELECT id FROM passages WHERE scope = 1 AND stamp > 5", "passages_changed (scope=? AND stamp>?)"),
        ("SELECT id FROM history WHERE scope = 1 AND memory = 5", "history_of_memory (scope=? AND memory=?)"),
        ("SELECT id FROM memories WHERE scope = 1 AND deleted IS NULL ORDER BY happened DESC", "memories_by_time"),
    ],
    ids=str,
)
def test_no_query_scans_whole_project(tmp_path: Path, query: str, plan: str) -> None:
    store = Sqlite(tmp_path / "athena.db")
    rows = run_sync(store.read(lambda tx: tx.fetch(f"EXPLAIN QUERY PLAN {query}")))
    store.close()
    assert plan in rows[0][3]
    assert "SCAN" not in rows[0][3]
