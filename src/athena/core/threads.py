"""Waiting for work on another thread, with an event loop or without one.

All our functions are coroutines, but a synchronous caller should not pay for an event loop: `drive` runs a
coroutine on the caller's own thread and lets each wait block it. The same coroutine awaited from asyncio
yields to the loop instead. Threads are daemons of our own: a `ThreadPoolExecutor` holds up the exit of the
interpreter until its last job is done.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _Mode(threading.local):
    driving = False
    closed_to = ""


_mode = _Mode()


def running_loop() -> Any:
    """Return the event loop that this code is awaited from, or None when a caller's thread drives it."""
    asyncio = sys.modules.get("asyncio")  # if nobody imported it, no loop can be running
    return None if _mode.driving or asyncio is None else asyncio._get_running_loop()


def drive(work: Coroutine[Any, Any, T], *, closed_to: str = "") -> T:
    """Run a coroutine to its end on this thread; `closed_to` forbids waiting and says why."""
    before = _mode.driving, _mode.closed_to
    _mode.driving, _mode.closed_to = True, closed_to or before[1]
    try:
        work.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        _mode.driving, _mode.closed_to = before
    work.close()
    raise RuntimeError("this coroutine waits for something that only an event loop can deliver")


def check_may_wait() -> None:
    """Refuse to wait where that would never end, as inside of a transaction."""
    if _mode.closed_to:
        raise RuntimeError(f"no waiting here: {_mode.closed_to}")


class Outcome(Generic[T]):
    """What a thread will deliver: a value or an error, once."""

    __slots__ = ("_error", "_gate", "_guard", "_ready", "_value", "_wake")

    def __init__(self) -> None:
        self._ready = False
        self._gate = threading.Lock()
        self._gate.acquire()
        self._guard = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def deliver(self, value: T) -> None:
        self._value = value
        self._open()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._open()

    def wait(self, timeout: float = -1) -> bool:
        """Block until it is there; False when the time ran out."""
        check_may_wait()
        if there := self._gate.acquire(timeout=timeout):
            self._gate.release()
        return there

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None only where T allows it

    async def within(self, seconds: float) -> bool:
        """Wait for it so long; False when the time ran out."""
        if running_loop() is None:
            return self.wait(seconds)
        import asyncio  # it runs already

        try:
            async with asyncio.timeout(seconds):
                await self
        except TimeoutError:
            return False
        return True

    def __await__(self) -> Generator[Any, None, T]:
        loop = running_loop()
        if loop is None:
            self.wait()
            return self.result()
        future = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

        with self._guard:
            if self._ready:
                future.set_result(None)
            else:
                self._wake = wake
        yield from future
        return self.result()

    def _open(self) -> None:
        with self._guard:
            self._ready = True
        self._gate.release()
        if self._wake is not None:
            self._wake()


class Crew:
    """A few threads that take jobs from one queue, in order; grown on demand."""

    def __init__(self, most: int = 4, name: str = "athena") -> None:
        self.pid = os.getpid()
        self.most, self.name = most, name
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.size = self.idle = self.waiting = 0  # threads, those without a job, and jobs that none has begun
        self.guard = threading.Lock()

    def submit(self, job: Callable[[], None]) -> None:
        with self.guard:
            self.waiting += 1
            self.jobs.put(job)
            if self.waiting > self.idle and self.size < self.most:
                self.size += 1
                self.idle += 1
                threading.Thread(target=self._work, name=f"{self.name}-{self.size}", daemon=True).start()

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Run a blocking function on one of these threads."""
        outcome: Outcome[T] = Outcome()

        def job() -> None:
            try:
                value = function(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001  # delivered, not swallowed
                outcome.fail(error)
            else:
                outcome.deliver(value)

        self.submit(job)
        return outcome

    def close(self) -> None:
        """Let the threads end after what they are busy with and what waits."""
        with self.guard:
            for _ in range(self.size):
                self.jobs.put(None)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            with self.guard:  # both at once: a job that was just taken must not pass for a thread that is free
                self.idle -= 1
                self.waiting -= 1
            job()
            with self.guard:
                self.idle += 1


_crew = Crew()


def start(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
    """Run a blocking function on another thread."""
    global _crew
    if _crew.pid != os.getpid():  # threads do not survive a fork
        _crew = Crew()
    return _crew.start(function, *args, **kwargs)


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function without blocking an event loop; in place where there is none."""
    if running_loop() is None:
        return function(*args, **kwargs)
    return await start(function, *args, **kwargs)


async def pause(seconds: float) -> None:
    """Sleep, on an event loop or without one."""
    if running_loop() is None:
        time.sleep(seconds)  # noqa: ASYNC251  # no loop is held up
    else:
        import asyncio  # it runs already

        await asyncio.sleep(seconds)


class Turnstile:
    """Lets any number of threads through until it is shut."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = False

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self, timeout: float) -> None:
        """Let nobody in, and wait until all are out or the time is over."""
        with self._changed:
            self._shut = True
            self._changed.wait_for(lambda: not self._inside, timeout)

    def open(self) -> None:
        with self._changed:
            self._shut = False
            self._changed.notify_all()
