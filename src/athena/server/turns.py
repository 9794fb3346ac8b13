"""Turns: calls run in the order in which they arrived, a few of each kind at once."""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from athena.errors import Unavailable

TURN_TIMEOUT_S = 20.0  # how long a call waits at most
STUCK_AFTER_S = 0.5  # without a call of a kind that begins or ends, its long calls hold up no other kind
PACE_WEIGHT = 0.05  # of the newest interval between two ends of calls, in their mean
FIRST_PACE_S = 0.02  # the mean before a call has ended: a burst after the start does not wait in vain, either


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
        self._limit = limit
        self._running = dict.fromkeys(kinds, 0)
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
            if self._running[kind] < self._limit:
                return kind
            if time.monotonic() - self._changed_at[kind] < STUCK_AFTER_S:
                return None
        return None


def _create_busy_error(wait_s: float) -> ServerBusy:
    error = ServerBusy("the server is busy with other calls", hint="try again in a moment")
    error.retry_after_s = max(1, math.ceil(min(wait_s, TURN_TIMEOUT_S)))
    return error
