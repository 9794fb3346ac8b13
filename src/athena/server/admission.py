"""Calls from outside: each waits for its turn, and is counted."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from athena.core.catalog import AnyOperation, Catalog
from athena.core.invoke import invoke
from athena.core.metrics import Metrics
from athena.core.operation import Caller, Effect
from athena.errors import AthenaError, Unavailable
from athena.server.guard import STOPPING

PATIENCE = 20.0  # seconds that a call waits for its turn
RUNNING = 400  # programs that run or wait in the sandbox, which has turns of its own; 100 of them for one workspace


class Calls:
    """The way of every surface of a server to the operations.

    So many reads run `at_once`, and so many writes; the others wait for their turn, but not for long.
    """

    def __init__(self, catalog: Catalog, *, stopping: Callable[[], bool], at_once: int) -> None:
        self._whole, self._offered = catalog, catalog.without(Effect.APPROVE)  # a surface's token is the agent's too
        self.metrics = Metrics()
        self.stopping = stopping
        self._reading, self._writing = asyncio.Semaphore(at_once), asyncio.Semaphore(at_once)
        self._running = asyncio.Semaphore(RUNNING)
        self.inside = 0
        self.last = time.monotonic()

    @property
    def catalog(self) -> Catalog:
        """What is offered now: connected servers come and go."""
        if self._offered.version != self._whole.version:
            self._offered = self._whole.without(Effect.APPROVE)
        return self._offered

    async def make(self, operation: AnyOperation, arguments: Mapping[str, Any], caller: Caller) -> Any:
        began = time.perf_counter()
        outcome = "done"
        self.inside += 1
        try:
            async with self._turn(operation):
                return await invoke(self.catalog, operation.name, arguments, caller)
        except AthenaError as error:
            outcome = error.code
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self.inside -= 1
            self.last = time.monotonic()
            self.metrics.called(operation.name, caller.surface, outcome, time.perf_counter() - began)

    @asynccontextmanager
    async def _turn(self, operation: AnyOperation) -> AsyncIterator[None]:
        """Wait until there is room; a long write keeps no read waiting, and a program nobody."""
        effect = Effect.EXECUTE if operation.foreign else operation.effect  # who waits for others holds up nobody
        turns = {Effect.READ: self._reading, Effect.EXECUTE: self._running}.get(effect, self._writing)
        try:
            async with asyncio.timeout(PATIENCE):
                await turns.acquire()
        except TimeoutError:
            raise Unavailable("the server is busy with other calls", hint="try again in a moment") from None
        try:
            if self.stopping():
                raise Unavailable(STOPPING, hint="try again in a moment")
            yield
        finally:
            turns.release()
