"""Concurrent calls of a Monty program: those it awaits, and the elements of `parallel([...])`."""

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
    def __init__(self, calls: RunCalls, timer: TimerThread) -> None:
        self._calls, self._timer = calls, timer
        self._changed = threading.Condition()
        self._futures: dict[int, CallResult | None] = {}
        self._pending: list[PendingCall] = []
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
        return not self._futures and all(call.settled is not None for call in self._pending)

    def start_held(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PendingCall:
        """Start a call whose result `parallel` will collect."""
        pending = PendingCall()
        self._pending.append(pending)

        def deliver(result: CallResult) -> None:
            with self._changed:
                pending.settled = result
                self._changed.notify_all()

        self._calls.start_call(path, args, kwargs, deliver)
        return pending

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

    def collect(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer `parallel(...)`: wait for all, then raise the first error or give all results."""
        items = args[0] if len(args) == 1 else None
        if not isinstance(items, list | tuple | dict) or set(kwargs) - {"return_errors"}:
            return {"exc_type": "TypeError", "message": PARALLEL_USAGE}
        values = list(items.values()) if isinstance(items, dict) else list(items)
        pending = [value for value in values if isinstance(value, PendingCall)]
        self._wait_until(lambda: all(call.settled is not None for call in pending))
        done = [
            value.settled or _RUN_ENDED if isinstance(value, PendingCall) else CallResult(value) for value in values
        ]
        collected = set(map(id, pending))
        self._pending = [call for call in self._pending if id(call) not in collected]
        errors = [call.error for call in done if call.error is not None]
        if errors and not kwargs.get("return_errors"):
            return self.to_reply(CallResult(error=errors[0]))
        results = [{"error": call.error.text} if call.error else call.value for call in done]
        return {"return_value": dict(zip(items, results, strict=True)) if isinstance(items, dict) else results}

    def _resolve_future(self, call_id: int, result: CallResult) -> None:
        with self._changed:
            self._futures[call_id] = result
            self._changed.notify_all()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready() and not self._calls.is_closed:
                self._changed.wait(0.1)  # stopping a run does not notify this condition
