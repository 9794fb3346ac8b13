"""The thread that starts and ends all workers.

The kernel ends a worker when the thread that started it ends, so that no worker outlives us. Hence all are started
from one thread, and that thread lives as long as they do.
"""

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

from athena.core.threads import ThreadFuture

T = TypeVar("T")


class Spawner:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run_loop, name="athena-keeper", daemon=True)
        self._thread.start()

    def run_job(self, job: Callable[[], T]) -> T:
        """Run a job on the spawner's thread and return its result."""
        if threading.current_thread() is self._thread:
            return job()
        outcome: ThreadFuture[T] = ThreadFuture()

        def deliver_result() -> None:
            try:
                outcome.set_result(job())
            except BaseException as error:  # noqa: BLE001  # delivered, not swallowed
                outcome.set_exception(error)

        self._enqueue(deliver_result)
        outcome.wait()
        return outcome.result()

    def submit_job(self, job: Callable[[], object]) -> None:
        """Queue a job and ignore its errors."""

        def run_quietly() -> None:
            with suppress(Exception):
                job()

        self._enqueue(run_quietly)

    def close(self, wait_s: float) -> None:
        """End the thread after the queued jobs."""
        with self._guard:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(wait_s)

    def _enqueue(self, work: Callable[[], None]) -> None:
        with self._guard:
            if not self._closed:
                return self._jobs.put(work)
        return work()  # the thread has ended, but workers must still be ended

    def _run_loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class ProcessHandle:
    """A process that can be killed safely: by pidfd, never another process with a reused pid."""

    __slots__ = ("_descriptor", "_guard", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._guard = threading.Lock()
        self._descriptor = -1
        with suppress(OSError, AttributeError):  # not Linux, or a kernel older than 5.3
            self._descriptor = os.pidfd_open(pid)

    @property
    def has_descriptor(self) -> bool:
        """Return whether it is known by a pidfd, so that `kill` is safe even if somebody else has waited for it."""
        return self._descriptor >= 0

    @property
    def is_alive(self) -> bool:
        """Return whether it still runs; True where the system cannot tell."""
        if self._descriptor < 0:
            return True
        return not select.select([self._descriptor], [], [], 0)[0]

    def read_cpu_s(self) -> float:
        """Return its CPU time; 0 where the system cannot tell."""
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{self.pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def kill(self) -> None:
        with self._guard, suppress(OSError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            elif self.pid > 0:
                os.kill(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Close the pidfd and forget the process."""
        with self._guard:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self.pid = -1, 0
