"""Calls that nobody waits for, and what all calls spent: written down together, a little later."""

import threading
from functools import partial

from athena.core.values import Call
from athena.storage import calls, usage
from athena.storage.database import Database, Transaction
from athena.storage.sqlite import fork
from athena.storage.usage import DAY_S, TokenUsage

MAX_BATCH_ENTRIES = 1_000  # entries of a page


class _LogBatch:
    """What is written at once."""

    def __init__(self) -> None:
        self.entries = 0
        self.calls: list[tuple[Call, str, float]] = []
        self.usage: dict[tuple[str, int, str, str], list[int]] = {}  # calls, given, returned, shown


class CallLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._batch: _LogBatch | None = None
        fork.fork_aware_stores.add(self)

    def log_call(self, call: Call, outcome: str, elapsed_ms: float) -> None:
        """Note that there was a call, and what came of it."""
        with self._lock:
            self._get_batch().calls.append((call, outcome, elapsed_ms))

    def log_usage(self, project: str, at: float, operation: str, surface: str, spent: TokenUsage) -> None:
        """Note how many tokens went in and out."""
        with self._lock:
            sums = self._get_batch().usage.setdefault((project, int(at // DAY_S), operation, surface), [0, 0, 0, 0])
            for i, more in enumerate((1, *spent)):
                sums[i] += more

    def _get_batch(self) -> _LogBatch:
        """Return the page to write on: a new one where it is full, or on its way into the store."""
        page = self._batch
        if page is None or page.entries >= MAX_BATCH_ENTRIES:
            self._batch = page = _LogBatch()
            # Two, which are written apart where that fails: others count into the same rows.
            self._database.defer_write(partial(self._write_calls, page))
            self._database.defer_write(partial(self._write_usage, page))
        page.entries += 1
        return page

    def _seal_batch(self, page: _LogBatch) -> None:
        """Let nobody write on a page any more."""
        with self._lock:
            if self._batch is page:
                self._batch = None

    async def _write_calls(self, page: _LogBatch, tx: Transaction) -> None:
        self._seal_batch(page)
        for call, outcome, elapsed_ms in page.calls:
            await calls.record_call(tx, call, outcome, elapsed_ms)

    async def _write_usage(self, page: _LogBatch, tx: Transaction) -> None:
        self._seal_batch(page)
        # In one order, since each holds its rows until the end.
        for (project, day, operation, surface), (number, *spent) in sorted(page.usage.items()):
            await usage.add_usage(tx, project, day, operation, surface, TokenUsage(*spent), number)

    # --- around a fork ------------------------------------------------------------------------------------------------

    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None:
        """In the child: what is noted here the parent writes, and another thread may have been writing just then."""
        self._lock, self._batch = threading.Lock(), None
