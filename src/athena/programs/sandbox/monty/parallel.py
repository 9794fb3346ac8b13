"""Concurrent calls of a Monty program: those it awaits, and the elements of `parallel([...])`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from athena.programs.sandbox.calls import CallError, CallResult, RunCalls
from athena.programs.sandbox.timer import Alarm, TimerThread

_BUILTIN_EXCEPTIONS = {"ToolError": "RuntimeError"}  # only built-in exceptions cross into Monty
_RUN_ENDED = CallResult(error=CallError("ToolError", "closed", "the run has ended"))


class ParallelCalls:
    def __init__(self, calls: RunCalls, timer: TimerThread) -> None:
        self._calls, self._timer = calls, timer
        self._changed = threading.Condition()
        self._futures: dict[int, CallResult | None] = {}
        self._held: dict[int, CallResult | None] = {}  # by number; None while it runs
        self._held_count = 0
        self._alarms: list[Alarm] = []
        self.errors_by_text: dict[str, CallError] = {}  # Monty keeps only the text of an exception

    def to_reply(self, result: CallResult) -> Any:
        """Return the result of a call in Monty's form."""
        trouble = result.error
        if trouble is None:
            return {"return_value": result.value}
        if len(self.errors_by_text) < 1_000:
            self.errors_by_text[trouble.text] = trouble
        return {
            "exc_type": _BUILTIN_EXCEPTIONS.get(trouble.exception_type, trouble.exception_type),
            "message": trouble.text,
        }

    @property
    def is_idle(self) -> bool:
        """Return whether no call runs and no result waits to be collected."""
        return not self._futures and all(result is not None for result in self._held.values())

    def start_held(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Start a call whose result `parallel` will collect, and return its number."""
        self._held_count += 1
        number = self._held_count
        self._held[number] = None

        def deliver(result: CallResult) -> None:
            with self._changed:
                self._held[number] = result
                self._changed.notify_all()

        self._calls.start_call(path, args, kwargs, deliver)
        return number

    def start_awaited(self, call_id: int, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Start a call that the program awaits."""
        self._futures[call_id] = None
        self._calls.start_call(path, args, kwargs, lambda result: self._resolve_future(call_id, result))

    def start_sleep(self, call_id: int, seconds: float) -> None:
        self._futures[call_id] = None
        end = time.monotonic() + seconds
        if end < self._calls.deadline:  # else the run ends before it
            self._alarms.append(self._timer.schedule_at(end, lambda: self._resolve_future(call_id, CallResult())))

    def close(self) -> None:
        """Cancel all sleeps."""
        for alarm in self._alarms:
            alarm.cancel()
        self._alarms.clear()

    def sleep(self, seconds: float) -> None:
        """Sleep until the time is over or the run ends."""
        end = time.monotonic() + seconds
        while not self._calls.is_closed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def wait_awaited(self, call_ids: list[int]) -> dict[int, Any]:
        """Wait for one or more of the awaited calls."""
        self._wait_until(lambda: any(self._futures.get(call_id) is not None for call_id in call_ids))
        with self._changed:
            done = {call_id: result for call_id in call_ids if (result := self._futures.get(call_id)) is not None}
            for call_id in done:
                del self._futures[call_id]
        if not done:
            return {call_id: self.to_reply(_RUN_ENDED) for call_id in call_ids}
        return {call_id: self.to_reply(result) for call_id, result in done.items()}

    def collect(self, numbers: list[int]) -> dict[int, CallResult]:
        """Wait for these calls, and return their results."""
        self._wait_until(lambda: all(self._held.get(number, _RUN_ENDED) is not None for number in numbers))
        with self._changed:
            done = {number: self._held.get(number) or _RUN_ENDED for number in numbers}
            self._held = {number: result for number, result in self._held.items() if number not in done}
        return done

    def _resolve_future(self, call_id: int, result: CallResult) -> None:
        with self._changed:
            self._futures[call_id] = result
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready() and not self._calls.is_closed:
                self._changed.wait(0.1)  # stopping a run does not notify this condition
