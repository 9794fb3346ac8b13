"""An event loop on a thread of its own, for connections that outlive the call that made them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from athena.core.threads import ThreadFuture

T = TypeVar("T")


class LoopTask(Generic[T]):
    """Work that was handed to the loop: waited for from anywhere, and cancelled from anywhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> None:
        self.outcome: ThreadFuture[T] = ThreadFuture()
        self.begun: threading.Event | None = None  # set once something may have been done
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._create_task, work)

    def _create_task(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(self._run_work(work))

    async def _run_work(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self.outcome.set_result(await work)
        except BaseException as error:  # noqa: BLE001  # delivered, not swallowed
            self.outcome.set_exception(error)

    def cancel(self) -> None:
        def cancel_task() -> None:
            if self._task is not None:
                self._task.cancel()

        self._loop.call_soon_threadsafe(cancel_task)


class EventLoopThread:
    """Started with the first work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> LoopTask[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="athena-gateway", daemon=True)
                self._thread.start()
            return LoopTask(self._loop, work())

    def stop(self, last: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> None:
        """Do one last thing, within some time, and end."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        LoopTask(loop, last()).outcome.wait(seconds)
        LoopTask(loop, _cancel_all()).outcome.wait(seconds)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(seconds)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)
