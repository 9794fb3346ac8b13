"""Running coroutines without an event loop, worker threads and waiting."""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from athena.core.threads import ThreadFuture, ThreadPool, run_in_thread, run_sync, start_in_thread
from wait_tools import LONG, wait_until


async def slow_double(number: int) -> int:
    return await start_in_thread(lambda: number * 2)


def test_run_sync_needs_no_loop() -> None:
    assert run_sync(slow_double(21)) == 42


def test_same_coroutine_runs_on_loop() -> None:
    async def many() -> list[int]:
        return await asyncio.gather(*(slow_double(i) for i in range(100)))

    assert asyncio.run(many()) == [i * 2 for i in range(100)]


def test_run_sync_works_inside_loop() -> None:
    async def inside() -> int:
        return run_sync(slow_double(4))

    assert asyncio.run(inside()) == 8


def test_error_reaches_waiting_caller() -> None:
    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        run_sync(run_in_thread(fail))

    async def awaited() -> None:
        await start_in_thread(fail)

    with pytest.raises(KeyError, match="why"):
        asyncio.run(awaited())


def test_coroutine_needing_loop_is_refused() -> None:
    with pytest.raises(RuntimeError, match="only an event loop"):
        run_sync(asyncio.sleep(0))


def test_waiting_work_is_refused() -> None:
    async def waits() -> None:
        await ThreadFuture[None]()

    with pytest.raises(RuntimeError, match="no waiting here: because"):
        run_sync(waits(), closed_to="because")


def test_wait_can_end_early() -> None:
    assert ThreadFuture[None]().wait(0.01) is False


def test_cancelled_task_does_not_disturb_worker() -> None:
    gate = threading.Event()

    async def cancelled() -> None:
        task = asyncio.create_task(_wait_for(start_in_thread(gate.wait)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        assert await start_in_thread(lambda: "next") == "next"

    asyncio.run(cancelled())


async def _wait_for(outcome: ThreadFuture[bool]) -> bool:
    return await outcome


def test_threads_work_in_forked_child() -> None:
    assert run_sync(slow_double(1)) == 2
    if (child := os.fork()) == 0:
        os._exit(0 if run_sync(slow_double(3)) == 6 else 1)
    assert os.waitpid(child, 0)[1] == 0


class Stopping:
    """A queue whose readers pause after they took an item, as any thread may."""

    def __init__(self) -> None:
        self._held: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.put, self.qsize = self._held.put, self._held.qsize
        self.taken, self.go = threading.Event(), threading.Event()

    def get(self) -> Callable[[], None] | None:
        job = self._held.get()
        self.taken.set()
        self.go.wait(LONG)
        return job


def test_job_does_not_wait_behind_another() -> None:
    crew = ThreadPool(2)
    queue: Any = Stopping()
    crew._jobs = queue
    first, second = threading.Event(), threading.Event()
    crew.submit(lambda: wait_until(first.is_set))
    assert queue.taken.wait(LONG)
    crew.submit(second.set)
    queue.go.set()
    assert second.wait(LONG / 6)
    first.set()
    crew.close()
