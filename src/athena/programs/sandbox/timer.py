"""A timer thread: runs short callbacks at their time."""

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

PRUNE_AT_ALARM_COUNT = 1_000  # then cancelled alarms are removed


class Alarm:
    """A callback at a time, unless it is cancelled."""

    __slots__ = ("action", "off", "when")

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when, self.action, self.off = when, action, False

    def cancel(self) -> None:
        self.off = True
        self.action = _noop  # the callback may reference a run


def _noop() -> None:
    pass


class TimerThread:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._order = count()
        self._asleep_until = 0.0
        self._thread: threading.Thread | None = None
        self._closed = False
        self._prune_at = PRUNE_AT_ALARM_COUNT

    def schedule_at(self, when: float, action: Callable[[], None]) -> Alarm:
        """Do something at a moment of `time.monotonic`."""
        alarm = Alarm(when, action)
        with self._changed:
            if len(self._alarms) > self._prune_at:
                self._alarms = [entry for entry in self._alarms if not entry[2].off]
                heapq.heapify(self._alarms)
                self._prune_at = max(PRUNE_AT_ALARM_COUNT, 2 * len(self._alarms))
            heapq.heappush(self._alarms, (when, next(self._order), alarm))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_loop, name="athena-watch", daemon=True)
                self._thread.start()
            elif when < self._asleep_until:
                self._changed.notify()
        return alarm

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run_loop(self) -> None:
        while True:
            with self._changed:
                while not self._closed and (wait := self._next_delay_s()) > 0:
                    self._asleep_until = time.monotonic() + wait
                    self._changed.wait(wait)
                if self._closed:
                    return
                alarm = heapq.heappop(self._alarms)[2]
            if not alarm.off:
                alarm.action()

    def _next_delay_s(self) -> float:
        while self._alarms and self._alarms[0][2].off:
            heapq.heappop(self._alarms)
        return self._alarms[0][0] - time.monotonic() if self._alarms else 3_600.0
