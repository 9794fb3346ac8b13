"""The call log: calls and token usage are buffered and written together, a little later."""

import threading
from functools import partial

from athena.core.values import Call
from athena.storage import calls
from athena.storage.database import Database, Transaction
from athena.storage.sqlite import fork
from athena.storage.usage import DAY_S, TokenUsage, add_usage

MAX_BATCH_ENTRIES = 1_000


class _LogBatch:
    """The entries of one deferred write."""

    def __init__(self) -> None:
        self.entries = 0
        self.calls: list[tuple[Call, str, float]] = []
        # By project, day, operation and surface: call count, input, output and displayed tokens.
        self.usage: dict[tuple[str, int, str, str], list[int]] = {}


class CallLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._batch: _LogBatch | None = None
        fork.fork_aware_stores.add(self)

    def log_call(self, call: Call, outcome: str, elapsed_ms: float) -> None:
        """Buffer a call and its outcome."""
        with self._lock:
            self._get_batch().calls.append((call, outcome, elapsed_ms))

    def log_usage(
        self, project: str, at: float, operation: str, surface: str, usage: TokenUsage, calls: int = 1
    ) -> None:
        """Buffer the tokens of a call; with `calls=0`, more tokens of one that was logged."""
        with self._lock:
            sums = self._get_batch().usage.setdefault((project, int(at // DAY_S), operation, surface), [0, 0, 0, 0])
            for i, amount in enumerate((calls, *usage)):
                sums[i] += amount

    def _get_batch(self) -> _LogBatch:
        """Return the batch to add to: a new one if the last is full or being written."""
        batch = self._batch
        if batch is None or batch.entries >= MAX_BATCH_ENTRIES:
            self._batch = batch = _LogBatch()
            # Two jobs, so that a failed usage write, whose rows other processes update too, does not lose the calls.
            self._database.defer_write(partial(self._write_calls, batch))
            self._database.defer_write(partial(self._write_usage, batch))
        batch.entries += 1
        return batch

    def _seal_batch(self, batch: _LogBatch) -> None:
        """Let no more entries be added to a batch."""
        with self._lock:
            if self._batch is batch:
                self._batch = None

    async def _write_calls(self, batch: _LogBatch, tx: Transaction) -> None:
        self._seal_batch(batch)
        for call, outcome, elapsed_ms in batch.calls:
            await calls.record_call(tx, call, outcome, elapsed_ms)

    async def _write_usage(self, batch: _LogBatch, tx: Transaction) -> None:
        self._seal_batch(batch)
        # Sorted, because each row stays locked until the commit: processes with different orders would deadlock.
        for (project, day, operation, surface), (count, *tokens) in sorted(batch.usage.items()):
            await add_usage(tx, project, day, operation, surface, TokenUsage(*tokens), count)

    # --- around a fork ------------------------------------------------------------------------------------------------

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """Drop the buffer, which the parent writes, and replace the lock, which another thread may hold."""
        self._lock, self._batch = threading.Lock(), None
