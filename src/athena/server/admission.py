"""Admission of calls to a server: they run in the order of their arrival, a few of each kind at once; count them."""

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from athena.core.catalog import AnyOperation, Catalog
from athena.core.metrics import Metrics
from athena.core.operation import Caller, Effect
from athena.core.threads import ThreadPool, run_sync
from athena.core.types import is_long
from athena.errors import AthenaError, Unavailable
from athena.server.guard import STOPPING_MESSAGE
from athena.server.log import log_call

T = TypeVar("T")
OperationCall = Callable[[AnyOperation, Mapping[str, Any], Caller], Awaitable[Any]]

MAX_LONG_CALLS = 2  # at once: long arguments take long to search for secrets; beside the turns of all other calls
MAX_LONG_ANSWERS = 2  # written at once
MAX_EXECUTE_CALLS = 400  # the sandbox has limits of its own, and lets at most 100 wait for one workspace
TURN_TIMEOUT_S = 20.0  # how long a call waits at most
STUCK_AFTER_S = 0.5  # without a call of a kind that begins or ends, its long calls hold up no other kind
PACE_WEIGHT = 0.05  # of the newest interval between two ends of calls, in their mean
FIRST_PACE_S = 0.02  # the mean before a call has ended: a burst after the start does not wait in vain, either
JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class ServerBusy(Unavailable):
    """The server does not begin a call, because it has too many or is stopping; nothing was done."""


class Turns:
    """A queue in order of arrival. At most `limit` calls of a kind run at once.

    The oldest call goes first, and later calls of another kind do not overtake it, else a kind with few callers would
    hardly wait while one with many waits long. But where all calls of its kind that run are long, others go on.

    A call that would wait too long is refused at once. A call of the kind of which fewer wait is not: the newest of
    the other kind is refused in its place. Else callers that ask again at once would keep the queue full for ever,
    and a kind with few callers would hardly find a place.
    """

    def __init__(self, kinds: Iterable[str], limit: int) -> None:
        self._running = dict.fromkeys(kinds, 0)
        self._limits = dict.fromkeys(self._running, limit)
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {kind: deque() for kind in self._running}
        self._changed_at = dict.fromkeys(self._running, 0.0)  # when a call of the kind last began or ended
        self._arrivals = 0
        self._counts = dict.fromkeys(self._running, 0)  # of those that wait, without those whose caller has left
        self._timer: asyncio.TimerHandle | None = None
        self._ended_at: float | None = None  # when the last call ended, if others waited then
        self._pace_s = FIRST_PACE_S  # the mean time between two ends of calls while others wait

    @asynccontextmanager
    async def take(self, kind: str) -> AsyncIterator[None]:
        """Wait for the turn of a call, and hold it; raise Unavailable where that takes too long."""
        await self._wait(kind)
        try:
            yield
        finally:
            self._end(kind)

    def change_limit(self, kind: str, change: int) -> None:
        """Let more calls of a kind run at once, or fewer."""
        self._limits[kind] += change
        self._begin_next()

    def estimate_wait_s(self) -> float:
        """Return about how long a call that arrives now will wait."""
        return self._pace_s * sum(self._counts.values())

    async def _wait(self, kind: str) -> None:
        if (wait_s := self.estimate_wait_s()) > TURN_TIMEOUT_S and not self._refuse_other(kind, wait_s):
            raise _create_busy_error(wait_s)  # it would wait in vain
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        self._waiting[kind].append((self._arrivals, turn))
        self._counts[kind] += 1
        self._begin_next()
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await turn
        except BaseException as error:
            if turn.cancelled() or not turn.done():
                self._counts[kind] -= 1
            elif turn.exception() is None:  # it began while its caller left
                self._end(kind)
            turn.cancel()
            if isinstance(error, TimeoutError):
                raise _create_busy_error(self.estimate_wait_s()) from None
            raise

    def _refuse_other(self, kind: str, wait_s: float) -> bool:
        """Refuse the newest call of the kind of which most wait, if these are more than of this kind."""
        most = max(self._counts, key=self._counts.__getitem__)
        if self._counts[most] <= self._counts[kind] + 1:
            return False
        turns = self._waiting[most]
        while turns[-1][1].done():  # its caller has left
            turns.pop()
        _, turn = turns.pop()
        self._counts[most] -= 1
        turn.set_exception(_create_busy_error(wait_s))
        return True

    def _end(self, kind: str) -> None:
        now = time.monotonic()
        if self._ended_at is not None:
            self._pace_s += PACE_WEIGHT * (now - self._ended_at - self._pace_s)
        self._ended_at = now if any(self._waiting.values()) else None
        self._running[kind] -= 1
        self._changed_at[kind] = now
        self._begin_next()

    def _begin_next(self) -> None:
        """Begin the calls whose turn it is."""
        while kind := self._choose_kind():
            _, turn = self._waiting[kind].popleft()
            self._counts[kind] -= 1
            self._running[kind] += 1
            self._changed_at[kind] = time.monotonic()
            turn.set_result(None)
        if self._timer is None and any(self._waiting.values()):
            self._timer = asyncio.get_running_loop().call_later(STUCK_AFTER_S, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._begin_next()

    def _choose_kind(self) -> str | None:
        """Return the kind of the call that begins next; None where all have to wait."""
        for turns in self._waiting.values():
            while turns and turns[0][1].done():  # its caller has left
                turns.popleft()
        for kind in sorted((k for k, turns in self._waiting.items() if turns), key=lambda k: self._waiting[k][0][0]):
            if self._running[kind] < self._limits[kind]:
                return kind
            if time.monotonic() - self._changed_at[kind] < STUCK_AFTER_S:
                return None
        return None


def _create_busy_error(wait_s: float) -> ServerBusy:
    error = ServerBusy("the server is busy with other calls", hint="try again in a moment")
    error.retry_after_s = max(1, math.ceil(min(wait_s, TURN_TIMEOUT_S)))
    return error


class CallDispatcher:
    """Runs operations for every surface of a server.

    At most `max_concurrent` short reads run at once, and as many writes; other calls wait for their turn. Calls that
    take long have threads of their own, and take no turn from these.
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
        self.call_operation: OperationCall | None = None  # lets another process make the call

    def change_read_limit(self, change: int) -> None:
        """Let more reads run at once, or fewer: other processes answer some of them."""
        self._turns.change_limit("read", change)

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
                # one that is alone waits for nobody here, and would have to wait for another process to wake up
                if self.call_operation is None or self.active_count == 1:
                    return await operation(caller, **arguments)
                return await self.call_operation(operation, arguments, caller)
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

        await places.acquire()  # its turn: it takes none from the short calls, of which few may run at once
        try:
            self._refuse_if_stopping()
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
        # a call of another server mostly waits, too
        if operation.is_foreign or operation.effect is Effect.EXECUTE:
            turn = self._execute_turns.take("execute")
        else:
            turn = self._turns.take("read" if operation.effect is Effect.READ else "write")
        async with turn:
            self._refuse_if_stopping()
            yield

    def _refuse_if_stopping(self) -> None:
        if self.is_stopping():
            raise ServerBusy(STOPPING_MESSAGE, hint="try again in a moment")


def dump_json(value: Any, *, in_pieces: bool = False) -> bytes:
    """Write plain JSON values; a long one in pieces, since no other thread runs while the encoder writes all of it."""
    if in_pieces:
        return b"".join([piece.encode() for piece in JSON_ENCODER.iterencode(value)])
    return JSON_ENCODER.encode(value).encode()
