"""The calls of a Monty program that run at once: those it awaits, and the elements of `parallel([...])`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from athena.programs.sandbox.calls import CallError, CallResult, RunCalls
from athena.programs.sandbox.monty.prelude import PARALLEL_USAGE
from athena.programs.sandbox.timer import Alarm, TimerThread

_BUILTIN_EXCEPTIONS = {"ToolError": "RuntimeError"}  # only built-in exceptions cross into Monty
_RUN_ENDED = CallResult(error=CallError("ToolError", "closed", "the run has ended"))


class PendingCall:
    """A call that runs on its own thread; the program holds it until `parallel` asks for its result."""

    __slots__ = ("settled",)

    def __init__(self) -> None:
        self.settled: CallResult | None = None

    def __str__(self) -> str:
        return "<a call that runs; parallel() gives its result>"


class ParallelCalls:
    def __init__(self, calls: RunCalls, watch: TimerThread) -> None:
        self._calls, self._timer = calls, watch
        self._changed = threading.Condition()
        self._futures: dict[int, CallResult | None] = {}
        self._pending: list[PendingCall] = []
        self._alarms: list[Alarm] = []
        self.errors_by_text: dict[str, CallError] = {}  # by their text, which is all of them that Monty keeps

    def to_reply(self, settled: CallResult) -> Any:
        """Write the end of a call as Monty takes it."""
        trouble = settled.error
        if trouble is None:
            return {"return_value": settled.value}
        if len(self.errors_by_text) < 1_000:
            self.errors_by_text[trouble.text] = trouble
        return {
            "exc_type": _BUILTIN_EXCEPTIONS.get(trouble.exception_type, trouble.exception_type),
            "message": trouble.text,
        }

    @property
    def is_idle(self) -> bool:
        """Tell whether nothing runs and nothing waits to be collected."""
        return not self._futures and all(one.settled is not None for one in self._pending)

    def start_held(self, path: str, args: Sequence[Any], given: Mapping[str, Any]) -> PendingCall:
        """Begin a call whose result `parallel` will ask for."""
        held = PendingCall()
        self._pending.append(held)

        def deliver(settled: CallResult) -> None:
            with self._changed:
                held.settled = settled
                self._changed.notify_all()

        self._calls.start_call(path, args, given, deliver)
        return held

    def start_awaited(self, number: int, path: str, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Begin a call that the program awaits."""
        self._futures[number] = None
        self._calls.start_call(path, args, given, lambda settled: self._resolve_future(number, settled))

    def start_sleep(self, number: int, seconds: float) -> None:
        self._futures[number] = None
        end = time.monotonic() + seconds
        if end < self._calls.deadline:  # else the run ends before it
            self._alarms.append(self._timer.schedule_at(end, lambda: self._resolve_future(number, CallResult())))

    def close(self) -> None:
        """Wake nobody any more."""
        for alarm in self._alarms:
            alarm.cancel()
        self._alarms.clear()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends before."""
        end = time.monotonic() + seconds
        while not self._calls.is_closed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def wait_awaited(self, wanted: list[int]) -> dict[int, Any]:
        """Wait for one or more of the awaited calls."""
        self._wait_until(lambda: any(self._futures.get(number) is not None for number in wanted))
        with self._changed:
            done = {number: found for number in wanted if (found := self._futures.get(number)) is not None}
            for number in done:
                del self._futures[number]
        if not done:
            return {number: self.to_reply(_RUN_ENDED) for number in wanted}
        return {number: self.to_reply(found) for number, found in done.items()}

    def collect(self, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Answer `parallel(...)`: wait for all, then raise the first error or give all results."""
        items = args[0] if len(args) == 1 else None
        if not isinstance(items, list | tuple | dict) or set(given) - {"return_errors"}:
            return {"exc_type": "TypeError", "message": PARALLEL_USAGE}
        values = list(items.values()) if isinstance(items, dict) else list(items)
        held = [value for value in values if isinstance(value, PendingCall)]
        self._wait_until(lambda: all(one.settled is not None for one in held))
        done = [
            value.settled or _RUN_ENDED if isinstance(value, PendingCall) else CallResult(value) for value in values
        ]
        collected = set(map(id, held))
        self._pending = [one for one in self._pending if id(one) not in collected]
        wrong = [one.error for one in done if one.error is not None]
        if wrong and not given.get("return_errors"):
            return self.to_reply(CallResult(error=wrong[0]))
        results = [{"error": one.error.text} if one.error else one.value for one in done]
        return {"return_value": dict(zip(items, results, strict=True)) if isinstance(items, dict) else results}

    def _resolve_future(self, number: int, settled: CallResult) -> None:
        with self._changed:
            self._futures[number] = settled
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready() and not self._calls.is_closed:
                self._changed.wait(0.1)  # a run that is stopped wakes nobody here; it is reported without us
