"""`athena.api` from threads, event loops, forks and several processes: acknowledged writes are never lost."""

import asyncio
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import athena
from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from conftest import rounds

pytestmark = pytest.mark.usefixtures("engine")


def start_script(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script in a process of its own, with this test's home."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish_script(process: subprocess.Popen[str], timeout: float = 60) -> list[str]:
    """Wait for a script, assert that it succeeded, and return the lines that it printed."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still running after {timeout} s:\n{''.join(process.communicate())}")
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    assert err == ""
    return out.splitlines()


def run(script: str) -> list[str]:
    return finish_script(start_script(script))


def verify() -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, None, "python").call("verify", {})).data


def test_next_script_finds_stored_memory() -> None:
    stored = run("from athena import api; print(api.store('Deploys run on Fridays', tags='deploy'))")
    found = run("from athena import api; print(api.search('when do we deploy'))")
    assert found[0].startswith(stored[0])
    assert found[0].endswith("[deploy] Deploys run on Fridays")
    assert api.get(stored[0]).content == "Deploys run on Fridays"


def test_api_works_inside_running_loop() -> None:
    async def main() -> list[str]:
        short = api.store("from inside a loop")
        await asyncio.sleep(0)
        assert [m.hash for m in api.search_iter("loop")] == [short]
        async with athena.open() as memory:
            other = await memory.store("awaited")
            assert api.get(other).content == "awaited"
            assert (await memory.search("loop")).memories[0].hash == short
        return [short, other]

    assert sorted(asyncio.run(main())) == sorted(m.hash for m in api.search_iter("anything"))


def test_event_loop_runs_while_operations_wait() -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        async with athena.open() as memory:
            beside = asyncio.create_task(tick())
            await asyncio.gather(*(memory.store(f"item {i}") for i in range(100)))
            found = await asyncio.gather(*(memory.search(f"item {i}") for i in range(100)))
            beside.cancel()
            assert all(one.total == 100 for one in found)
        return ticks

    assert asyncio.run(main()) > 3


@pytest.mark.sqlite_only("the lock of a file")
def test_cancelled_store_does_not_block_next() -> None:
    # In their own processes: when one of these tests fails, its threads stay blocked for good.
    lines = run(
        """
        import asyncio, os, threading, apsw, athena
        from athena import api
        api.store("first")
        other = apsw.Connection(os.path.join(os.environ["ATHENA_HOME"], "athena.db"))
        other.execute("BEGIN IMMEDIATE").fetchall()

        async def impatient():
            async with athena.open() as memory:
                await asyncio.wait_for(memory.store("second"), 0.3)

        try:
            asyncio.run(impatient())
        except TimeoutError:
            print("gave up", flush=True)
        other.execute("ROLLBACK").fetchall()
        other.close()
        api.store("third")
        print("stored the next", flush=True)
        """
    )
    assert lines == ["gave up", "stored the next"]
    assert {m.preview for m in api.search("any", min_score=0).memories} >= {"first", "third"}


def test_cancelled_work_does_not_block_search() -> None:
    lines = run(
        """
        import asyncio, threading, athena
        from athena import api; from athena.core import threads
        api.store_batch([f"item {i}" for i in range(20)])
        gate = threading.Event()

        async def impatient():
            await asyncio.wait_for(threads.run_in_thread(gate.wait, 300), 0.05)

        async def patient():
            async with athena.open() as memory:
                print((await memory.search("item")).total, flush=True)

        for _ in range(8):
            try:
                asyncio.run(impatient())
            except TimeoutError:
                pass
        gate.set()
        asyncio.run(patient())
        """
    )
    assert lines == ["20"]


def test_threads_store_and_search_concurrently() -> None:
    def work(number: int) -> list[str]:
        kept = []
        for i in range(25):
            kept.append(api.store(f"thread {number} item {i}", tags=f"t{number}"))
            assert api.search(f"thread {number} item {i}", limit=3).memories
        return kept

    with ThreadPoolExecutor(8) as pool:
        hashes = [short for kept in pool.map(work, range(8)) for short in kept]
    assert len(set(hashes)) == 200
    assert api.health().count == 200
    assert {m.hash for m in api.search_iter("thread")} == set(hashes)
    assert all(api.search_by_tag(f"t{n}").total == 25 for n in range(8))
    assert verify()["ok"]


def test_threads_storing_same_text_share_memory() -> None:
    with ThreadPoolExecutor(8) as pool:
        hashes = set(pool.map(lambda i: api.store("the same", tags=f"t{i}"), range(40)))
    assert len(hashes) == 1
    assert api.health().count == 1
    assert len(api.get(hashes.pop()).tags) == 40
    assert verify()["ok"]


def test_threads_share_in_memory_store(isolated: App) -> None:
    with ThreadPoolExecutor(8) as pool:
        hashes = set(pool.map(lambda i: api.store(f"item {i}"), range(60)))
        assert len(hashes) == 60
        assert {one.total for one in pool.map(lambda i: api.search(f"item {i}"), range(20))} == {60}


STORING = """
    import sys
    from athena import api
    number = sys.argv[1]
    for i in range(50):
        print(api.store(f"process {number} item {i}", tags=["all", f"p{number}"]))
        api.store("known to all", tags=f"p{number}")
        if i % 10 == 0:
            assert api.search(f"process {number} item {i}").memories
"""


def test_concurrent_processes_lose_nothing() -> None:
    processes = [start_script(STORING, str(number)) for number in range(4)]
    hashes = [short for process in processes for short in finish_script(process)]
    assert len(set(hashes)) == 200
    assert api.health().count == 201
    assert {m.hash for m in api.search_by_tag("all", limit=500).memories} == set(hashes)
    assert [api.search_by_tag(f"p{n}").total for n in range(4)] == [51] * 4
    assert verify()["ok"]


def test_processes_see_each_others_changes() -> None:
    short = api.store("red balloon")
    assert api.search("balloon").total == 1
    other = run(f"from athena import api; print(api.store('green kite')); print(api.update('{short}', 'blue'))")
    assert {m.hash for m in api.search("kite").memories} == set(other)
    assert api.get(short).content == "blue"
    run(f"from athena import api; print(api.delete_batch({other!r}))")
    assert api.search("kite").memories == ()


@pytest.mark.parametrize("leaving", ["", "import os; os._exit(0)", "api.close()", "raise SystemExit(0)"])
def test_exit_after_store_loses_nothing(leaving: str) -> None:
    stored = run(
        f"""
        from athena import api
        print(api.store("kept before leaving"), flush=True)
        print(*api.store_batch([f"item {{i}}" for i in range(20)]), sep="\\n", flush=True)
        {leaving}
        """
    )
    assert {m.hash for m in api.search_iter("kept")} == set(stored)
    assert len(stored) == 21


@pytest.mark.parametrize("leaving", ["", "api.close()"])
def test_exit_while_embedding_is_clean(leaving: str) -> None:
    stored = run(
        f"""
        from athena import api
        for n in range(3):
            days = (f"On day {{i}} the wind came from the west." for i in range({rounds(250, 700)}))
            print(api.store(f"Diary {{n}}. " + " ".join(days)))
        {leaving}
        """
    )
    assert {m.hash for m in api.search("wind").memories} == set(stored)


def test_exit_while_threads_search_is_clean() -> None:
    for _ in range(4):  # several tries, since the outcome depends on timing
        assert run(
            """
            import threading
            from athena import api
            api.store_batch([f"item {i}" for i in range(50)])
            busy = threading.Semaphore(0)

            def search():
                while True:
                    api.search("some item or other")
                    busy.release()

            for _ in range(2):
                threading.Thread(target=search, daemon=True).start()
            for _ in range(20):
                busy.acquire()
            print("leaving", flush=True)
            """
        ) == ["leaving"]


def test_killed_process_loses_nothing_acknowledged() -> None:
    process = start_script(
        """
        from athena import api
        for i in range(10_000):
            print(api.store(f"item {i}"), flush=True)
        """
    )
    assert process.stdout is not None
    stored = [process.stdout.readline().strip() for _ in range(40)]
    process.kill()
    stored += process.communicate(timeout=60)[0].split()
    assert len(stored) >= 40
    assert {m.hash for m in api.search_iter("item", batch_size=5_000)} >= {one for one in stored if len(one) == 8}
    assert verify()["ok"]
