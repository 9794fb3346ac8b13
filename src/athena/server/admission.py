"""Calls from outside: each waits for its turn, and is counted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from athena.core.catalog import AnyOperation, Catalog, invoke
from athena.core.metrics import Metrics
from athena.core.operation import Caller, Effect
from athena.errors import AthenaError, Unavailable
from athena.server.guard import STOPPING_MESSAGE

SLOT_TIMEOUT_S = 20.0  # seconds that a call waits for its turn
MAX_EXECUTE_CALLS = (
    400  # programs that run or wait in the sandbox, which has turns of its own; 100 of them for one workspace
)


class CallDispatcher:
    """The way of every surface of a server to the operations.

    So many reads run `at_once`, and so many writes; the others wait for their turn, but not for long.
    """

    def __init__(self, catalog: Catalog, *, stopping: Callable[[], bool], at_once: int) -> None:
        self._full_catalog, self._offered_catalog = (
            catalog,
            catalog.exclude_effect(Effect.APPROVE),
        )  # a surface's token is the agent's too
        self.metrics = Metrics()
        self.is_stopping = stopping
        self._read_slots, self._write_slots = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
        self._execute_slots = asyncio.Semaphore(MAX_EXECUTE_CALLS)
        self.active_count = 0
        self.last_active_at = time.monotonic()

    @property
    def catalog(self) -> Catalog:
        """What is offered now: connected servers come and go."""
        if self._offered_catalog.version != self._full_catalog.version:
            self._offered_catalog = self._full_catalog.exclude_effect(Effect.APPROVE)
        return self._offered_catalog

    async def dispatch(self, operation: AnyOperation, arguments: Mapping[str, Any], caller: Caller) -> Any:
        began = time.perf_counter()
        outcome = "done"
        self.active_count += 1
        try:
            async with self._reserve_slot(operation):
                return await invoke(self.catalog, operation.name, arguments, caller)
        except AthenaError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.active_count -= 1
            self.last_active_at = time.monotonic()
            self.metrics.count_call(operation.name, caller.surface, outcome, time.perf_counter() - began)

    @asynccontextmanager
    async def _reserve_slot(self, operation: AnyOperation) -> AsyncIterator[None]:
        """Wait until there is room; a long write keeps no read waiting, and a program nobody."""
        effect = Effect.EXECUTE if operation.is_foreign else operation.effect  # who waits for others holds up nobody
        turns = {Effect.READ: self._read_slots, Effect.EXECUTE: self._execute_slots}.get(effect, self._write_slots)
        try:
            async with asyncio.timeout(SLOT_TIMEOUT_S):
                await turns.acquire()
        except TimeoutError:
            raise Unavailable("the server is busy with other calls", hint="try again in a moment") from None
        try:
            if self.is_stopping():
                raise Unavailable(STOPPING_MESSAGE, hint="try again in a moment")
            yield
        finally:
            turns.release()
