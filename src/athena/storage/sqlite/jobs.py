"""The queue of writes before the writer thread: callers' jobs in order, and deferred ones that nobody waits for."""

import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from athena.core.threads import ThreadFuture
from athena.storage.database import Transaction, Work

MAX_JOBS_PER_COMMIT = 256


class WriteJob:
    """One caller's write: work in a transaction, or statements that must run outside of one."""

    __slots__ = ("deferred_sync", "error", "outcome", "statements", "value", "work")

    def __init__(
        self,
        work: Work[Any],
        outcome: ThreadFuture[Any] | None = None,
        statements: tuple[str, ...] = (),
        *,
        deferred_sync: bool = False,
    ) -> None:
        self.work = work
        self.outcome = outcome
        self.statements = statements
        self.deferred_sync = deferred_sync
        self.value: Any = None
        self.error: BaseException | None = None

    def deliver_result(self) -> None:
        outcome, self.outcome = self.outcome, None
        if outcome is None:
            return
        if self.error is not None:
            outcome.set_exception(self.error)
        else:
            outcome.set_result(self.value)


async def commit_only(_: Transaction) -> None:
    """Do nothing: a job whose only purpose is its commit."""


STOP_JOB = WriteJob(commit_only)


class JobQueue:
    def __init__(self, defer_delay_s: float) -> None:
        self._defer_delay_s = defer_delay_s
        self._jobs: SimpleQueue[WriteJob | None] = SimpleQueue()
        self._deferred: list[WriteJob] = []
        self._dedupe_keys: set[str] = set()  # of the deferred jobs
        self._deferred_due_at = 0.0  # when the oldest deferred job must be committed
        self._lock = threading.Lock()
        self.is_empty = self._jobs.empty
        self.put = self._jobs.put  # None makes the writer thread look at the deferred jobs and their due time

    def defer(self, work: Work[None], dedupe_key: str) -> int:
        """Queue a deferred job and return how many there are; 0 where one with the same key is queued already."""
        with self._lock:
            if dedupe_key in self._dedupe_keys:
                return 0
            if dedupe_key:
                self._dedupe_keys.add(dedupe_key)
            if not self._deferred:
                self._deferred_due_at = time.monotonic() + self._defer_delay_s
            self._deferred.append(WriteJob(work))
            return len(self._deferred)

    def take(self) -> tuple[list[WriteJob], bool]:
        """Wait for jobs and take all that are queued, deferred ones only when they are due; and whether to stop."""
        queued: list[WriteJob] = []
        try:
            while not queued:
                timeout = max(0.0, self._deferred_due_at - time.monotonic()) if self._deferred else None
                if job := self._jobs.get(timeout=timeout):
                    queued.append(job)
            while len(queued) < MAX_JOBS_PER_COMMIT:
                if job := self._jobs.get_nowait():
                    queued.append(job)
        except Empty:
            pass
        jobs = [job for job in queued if job is not STOP_JOB]
        stop = len(jobs) < len(queued)
        return jobs + self._take_deferred(stop), stop

    def _take_deferred(self, stop: bool) -> list[WriteJob]:
        """Return the deferred jobs once they are due or MAX_JOBS_PER_COMMIT, so that a caller seldom waits for them."""
        with self._lock:
            if not stop and len(self._deferred) < MAX_JOBS_PER_COMMIT and time.monotonic() < self._deferred_due_at:
                return []
            deferred, self._deferred = self._deferred, []
            self._dedupe_keys.clear()
            return deferred
