"""Calls that nobody waits for, and what all calls spent: written down together, a little later."""

import threading
from functools import partial

from athena.core.call import Call
from athena.storage import calls, usage
from athena.storage.database import Database, Transaction
from athena.storage.sqlite import fork
from athena.storage.usage import DAY, Spent

FULL = 1_000  # entries of a page


class _Page:
    """What is written at once."""

    def __init__(self) -> None:
        self.entries = 0
        self.calls: list[tuple[Call, str, float]] = []
        self.spent: dict[tuple[str, int, str, str], list[int]] = {}  # calls, given, returned, shown


class Ledger:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._page: _Page | None = None
        fork.stores.add(self)

    def note(self, call: Call, outcome: str, elapsed_ms: float) -> None:
        """Note that there was a call, and what came of it."""
        with self._guard:
            self._open().calls.append((call, outcome, elapsed_ms))

    def spend(self, project: str, at: float, operation: str, surface: str, spent: Spent) -> None:
        """Note how many tokens went in and out."""
        with self._guard:
            sums = self._open().spent.setdefault((project, int(at // DAY), operation, surface), [0, 0, 0, 0])
            for i, more in enumerate((1, *spent)):
                sums[i] += more

    def _open(self) -> _Page:
        """Return the page to write on: a new one where it is full, or on its way into the store."""
        page = self._page
        if page is None or page.entries >= FULL:
            self._page = page = _Page()
            # Two, which are written apart where that fails: others count into the same rows.
            self._database.later(partial(self._write_calls, page))
            self._database.later(partial(self._write_spent, page))
        page.entries += 1
        return page

    def _turn(self, page: _Page) -> None:
        """Let nobody write on a page any more."""
        with self._guard:
            if self._page is page:
                self._page = None

    async def _write_calls(self, page: _Page, tx: Transaction) -> None:
        self._turn(page)
        for call, outcome, elapsed_ms in page.calls:
            await calls.record(tx, call, outcome, elapsed_ms)

    async def _write_spent(self, page: _Page, tx: Transaction) -> None:
        self._turn(page)
        # In one order, since each holds its rows until the end.
        for (project, day, operation, surface), (number, *spent) in sorted(page.spent.items()):
            await usage.add(tx, project, day, operation, surface, Spent(*spent), number)

    # --- around a fork ------------------------------------------------------------------------------------------------

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def abandon(self) -> None:
        """In the child: what is noted here the parent writes, and another thread may have been writing just then."""
        self._guard, self._page = threading.Lock(), None
