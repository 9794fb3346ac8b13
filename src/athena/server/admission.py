"""Admission of calls to a server: limit how many run at once, and count them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from athena.core.catalog import AnyOperation, Catalog
from athena.core.metrics import Metrics
from athena.core.operation import Caller, Effect
from athena.core.threads import ThreadPool, run_sync
from athena.core.types import is_long
from athena.errors import AthenaError
from athena.server.guard import STOPPING_MESSAGE
from athena.server.log import log_call
from athena.server.turns import ServerBusy, Turns

T = TypeVar("T")

MAX_LONG_CALLS = 2  # at once: long arguments take long to search for secrets, and no other call waits meanwhile
MAX_LONG_ANSWERS = 2  # written at once
MAX_EXECUTE_CALLS = 400  # the sandbox has limits of its own, and lets at most 100 wait for one workspace
JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class CallDispatcher:
    """Runs operations for every surface of a server.

    At most `max_concurrent` reads run at once, and as many writes; other calls wait for their turn.
    """

    def __init__(self, catalog: Catalog, *, is_stopping: Callable[[], bool], max_concurrent: int) -> None:
        self._full_catalog = catalog
        # without what is a person's alone: the holder of a token may be the agent itself
        self._offered_catalog = catalog.exclude_personal()
        self.metrics = Metrics()
        self.is_stopping = is_stopping
        self._turns = Turns(("read", "write"), max_concurrent)
        self._execute_turns = Turns(("execute",), MAX_EXECUTE_CALLS)  # programs mostly wait: they hold up no other call
        # calls with long arguments, and those that read the whole store: neither fills the pool of all others
        self._long_calls, self._checks = (ThreadPool(MAX_LONG_CALLS, name) for name in ("athena-long", "athena-check"))
        self._free_places = {pool: asyncio.Semaphore(MAX_LONG_CALLS) for pool in (self._long_calls, self._checks)}
        self._long_answers = ThreadPool(MAX_LONG_ANSWERS, "athena-answer")
        self.active_count = 0
        self.last_active_at = time.monotonic()

    def load_catalog(self) -> Catalog:
        """Return the operations that are offered now, those of connected servers as they are configured."""
        self._full_catalog.refresh()
        if self._offered_catalog.version != self._full_catalog.version:
            self._offered_catalog = self._full_catalog.exclude_personal()
        return self._offered_catalog

    async def dispatch(self, operation: AnyOperation, arguments: Mapping[str, Any], caller: Caller) -> Any:
        """Call an operation when it is its turn, and count the call."""
        began = time.perf_counter()
        outcome, failure = "done", None
        self.active_count += 1
        try:
            is_own = not operation.is_foreign and operation.effect is not Effect.EXECUTE
            if operation.reads_all or (is_own and is_long(arguments)):
                return await self._call_in_thread(operation, arguments, caller)
            async with self._take_turn(operation):
                if operation.is_foreign:  # the wait may have been long: its server may be disabled or removed by now
                    operation = self.load_catalog().get_operation(operation.name)
                return await operation(caller, **arguments)
        except AthenaError as error:
            outcome, failure = error.code, error
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.active_count -= 1
            self.last_active_at = time.monotonic()
            elapsed_s = time.perf_counter() - began
            self.metrics.count_call(operation.name, caller.surface, outcome, elapsed_s)
            log_call(operation.name, caller.surface, outcome, elapsed_s, failure)

    async def _call_in_thread(self, operation: AnyOperation, arguments: Mapping[str, Any], caller: Caller) -> Any:
        """Run a call that takes long away from the event loop; it ends with its caller, as a program's does."""
        pool = self._checks if operation.reads_all else self._long_calls
        places, loop = self._free_places[pool], asyncio.get_running_loop()
        is_started = is_left = False

        def call() -> Any:
            try:
                return run_sync(operation(caller, **arguments), is_stopped=lambda: is_left)
            finally:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(places.release)

        await places.acquire()  # before its turn: a long call that waits holds up no short one
        try:
            async with self._take_turn(operation):
                is_started = True
                return await pool.start_call(call)
        except asyncio.CancelledError:
            is_left = True
            raise
        finally:
            if not is_started:
                places.release()

    async def write_answer(self, result: Any, write: Callable[[bool], T]) -> T:
        """Run a function that writes a result for its caller; `write` is told whether the result is long.

        A long one is written on another thread: no other call waits meanwhile.
        """
        if not is_long(result):
            return write(False)
        return await self._long_answers.start_call(write, True)

    @asynccontextmanager
    async def _take_turn(self, operation: AnyOperation) -> AsyncIterator[None]:
        # a call of another server mostly waits, too, and one that reads the whole store has a place of its own
        if operation.is_foreign or operation.effect is Effect.EXECUTE or operation.reads_all:
            turn = self._execute_turns.take("execute")
        else:
            turn = self._turns.take("read" if operation.effect is Effect.READ else "write")
        async with turn:
            if self.is_stopping():
                raise ServerBusy(STOPPING_MESSAGE, hint="try again in a moment")
            yield


def dump_json(value: Any, *, in_pieces: bool = False) -> bytes:
    """Write plain JSON values; a long one in pieces, since no other thread runs while the encoder writes all of it."""
    if in_pieces:
        return b"".join([piece.encode() for piece in JSON_ENCODER.iterencode(value)])
    return JSON_ENCODER.encode(value).encode()
