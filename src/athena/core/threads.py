"""Run coroutines without an event loop, and blocking functions on other threads.

All our functions are coroutines, but a synchronous caller should not pay for an event loop: `run_sync` runs a
coroutine on the caller's thread, where each wait blocks. The same coroutine awaited from asyncio yields to the loop.
The threads are daemons: those of a `ThreadPoolExecutor` delay the exit of the interpreter until their last job ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from _queue import SimpleQueue  # `queue` has the same class, and loads more at every start
from contextlib import suppress
from functools import partial

from athena.errors import LimitExceeded

TYPE_CHECKING = False  # importing typing takes as long as all else here
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from typing import Any, Generic, ParamSpec, TypeVar

    T = TypeVar("T")
    P = ParamSpec("P")
else:
    T = None

    class Generic:
        """Stands for typing's at run time."""

        __slots__ = ()

        def __class_getitem__(cls, _: object) -> type:
            return cls


class _ThreadMode(threading.local):
    is_sync = False
    no_wait_reason = ""
    is_stopped: Callable[[], bool] | None = None


_mode = _ThreadMode()


def get_running_loop() -> Any:
    """Return the event loop that awaits this code, or None inside `run_sync`."""
    asyncio = sys.modules.get("asyncio")  # without asyncio no loop can run
    return None if _mode.is_sync or asyncio is None else asyncio._get_running_loop()


def run_sync(work: Coroutine[Any, Any, T], *, closed_to: str = "", is_stopped: Callable[[], bool] | None = None) -> T:
    """Run a coroutine to its end on this thread; `closed_to` is a reason to forbid waits, as in a transaction.

    Once `is_stopped` returns True, the next step of the work raises an error, see `check_stopped`.
    """
    before = _mode.is_sync, _mode.no_wait_reason, _mode.is_stopped
    _mode.is_sync, _mode.no_wait_reason, _mode.is_stopped = True, closed_to or before[1], is_stopped or before[2]
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        _mode.is_sync, _mode.no_wait_reason, _mode.is_stopped = before
    work.close()
    raise RuntimeError("this coroutine waits for something that only an event loop can deliver")


def check_may_wait() -> None:
    """Raise an error where a wait would never end, as inside a transaction."""
    if _mode.no_wait_reason:
        raise RuntimeError(f"no waiting here: {_mode.no_wait_reason}")


def check_stopped() -> None:
    """Raise an error if nobody waits for the work of this thread any more: called at each step of long work."""
    if _mode.is_stopped is not None and _mode.is_stopped():
        raise LimitExceeded("the run has ended", hint="nothing more is done for it")


class ThreadFuture(Generic[T]):
    """The future result of a thread: a value or an error, set once."""

    __slots__ = ("_error", "_gate", "_guard", "_ready", "_value", "_wake")

    def __init__(self) -> None:
        self._ready = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._guard = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def set_result(self, value: T) -> None:
        self._value = value
        self._notify_waiters()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._notify_waiters()

    def wait(self, timeout: float = -1) -> bool:
        """Block until it is set; return False after the timeout."""
        check_may_wait()
        if acquired := self._gate.acquire(timeout=timeout):
            self._gate.release()
        return acquired

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None only where T allows it

    async def wait_async(self, seconds: float) -> bool:
        """Wait until it is set; return False after the timeout."""
        if get_running_loop() is None:
            return self.wait(seconds)
        import asyncio  # loaded already, since a loop runs

        try:
            async with asyncio.timeout(seconds):
                await self
        except TimeoutError:
            return False
        return True

    def __await__(self) -> Generator[Any, None, T]:
        loop = get_running_loop()
        if loop is None:
            self.wait()
            return self.result()
        future = loop.create_future()

        def wake_loop() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

        with self._guard:
            if self._ready:
                future.set_result(None)
            else:
                self._wake = wake_loop
        yield from future
        return self.result()

    def _notify_waiters(self) -> None:
        with self._guard:
            self._ready = True
        self._gate.release()
        if self._wake is not None:
            self._wake()


class ThreadPool:
    """A few daemon threads that take jobs from one queue, in order; started on demand."""

    def __init__(self, max_threads: int = 4, name: str = "athena") -> None:
        self.pid = os.getpid()
        self._max_threads, self._name = max_threads, name
        self._jobs: SimpleQueue[tuple[Callable[[], Any], ThreadFuture[Any] | None] | None] = SimpleQueue()
        self._thread_count = self._idle_count = self._queued_count = 0
        self._lock = threading.Lock()

    def submit(self, job: Callable[[], object]) -> None:
        """Run a function that must not raise, without waiting for it."""
        self._enqueue(job, None)

    def start_call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> ThreadFuture[T]:
        """Run a blocking function on one of these threads, and return the future of its result."""
        future: ThreadFuture[T] = ThreadFuture()
        self._enqueue(partial(function, *args, **kwargs), future)
        return future

    def resize(self, change: int) -> None:
        """Allow more threads, or fewer: then each that is too many ends after its job."""
        with self._lock:
            self._max_threads += change
            if change > 0:
                self._start_thread_if_needed()

    def close(self) -> None:
        """Let the threads end after the jobs that run or wait."""
        with self._lock:
            for _ in range(self._thread_count):
                self._jobs.put(None)

    def _enqueue(self, job: Callable[[], Any], future: ThreadFuture[Any] | None) -> None:
        with self._lock:
            self._queued_count += 1
            self._jobs.put((job, future))
            self._start_thread_if_needed()

    def _start_thread_if_needed(self) -> None:
        if self._queued_count > self._idle_count and self._thread_count < self._max_threads:
            self._thread_count += 1
            self._idle_count += 1
            name = f"{self._name}-{self._thread_count}"
            threading.Thread(target=self._run_worker, name=name, daemon=True).start()

    def _run_worker(self) -> None:
        while (item := self._jobs.get()) is not None:
            with self._lock:  # both at once, or a job that was just taken would count as an idle thread
                self._idle_count -= 1
                self._queued_count -= 1
            job, future = item
            if future is None:
                job()
            else:
                try:
                    value = job()
                except BaseException as error:  # noqa: BLE001  # delivered, not swallowed
                    future.set_exception(error)
                else:
                    future.set_result(value)
                    del value
            del item, job, future  # an idle thread must not keep arguments and results alive
            with self._lock:
                if self._thread_count > self._max_threads:
                    self._thread_count -= 1
                    return
                self._idle_count += 1


_pools = {name: ThreadPool(name=name) for name in ("athena", "athena-work")}


def _get_pool(name: str) -> ThreadPool:
    if _pools[name].pid != os.getpid():  # threads do not survive a fork
        _pools[name] = ThreadPool(name=name)
    return _pools[name]


def start_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> ThreadFuture[T]:
    """Run a blocking function on another thread."""
    return _get_pool("athena").start_call(function, *args, **kwargs)


async def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function on another thread if an event loop would be blocked, else on this one."""
    check_stopped()
    if get_running_loop() is None:
        return function(*args, **kwargs)
    return await start_in_thread(function, *args, **kwargs)


async def run_long_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do the same for what may take more than a moment, on threads of its own: all reads need the others."""
    check_stopped()
    if get_running_loop() is None:
        return function(*args, **kwargs)
    return await _get_pool("athena-work").start_call(function, *args, **kwargs)


async def sleep(seconds: float) -> None:
    """Sleep, on an event loop or without one."""
    if get_running_loop() is None:
        time.sleep(seconds)  # noqa: ASYNC251  # there is no loop to block
    else:
        import asyncio  # loaded already, since a loop runs

        await asyncio.sleep(seconds)


class SharedLock:
    """A lock that any number of threads hold together, until one takes it exclusively."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holders = 0
        self._is_exclusive = False

    def __enter__(self) -> None:
        with self._changed:
            while self._is_exclusive:
                self._changed.wait()
            self._holders += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._holders -= 1
            if self._is_exclusive:
                self._changed.notify_all()

    def acquire_exclusive(self, timeout: float) -> bool:
        """Block new holders, and wait until the present ones are gone or the timeout is over; False if it was over."""
        with self._changed:
            self._is_exclusive = True
            return self._changed.wait_for(lambda: not self._holders, timeout)

    def release_exclusive(self) -> None:
        with self._changed:
            self._is_exclusive = False
            self._changed.notify_all()
