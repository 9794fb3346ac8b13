"""The calls of a Monty program that run at once: those it awaits, and the elements of `parallel([...])`."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from athena.programs.sandbox.calls import Calls, Settled, Trouble
from athena.programs.sandbox.monty.prelude import WRONG
from athena.programs.sandbox.timer import Alarm, Watch

_CROSSING = {"ToolError": "RuntimeError"}  # only built-in exceptions cross into Monty
_ENDED = Settled(trouble=Trouble("ToolError", "closed", "the run has ended"))


class Pending:
    """A call that runs on its own thread; the program holds it until `parallel` asks for its result."""

    __slots__ = ("settled",)

    def __init__(self) -> None:
        self.settled: Settled | None = None

    def __str__(self) -> str:
        return "<a call that runs; parallel() gives its result>"


class Together:
    def __init__(self, calls: Calls, watch: Watch) -> None:
        self._calls, self._watch = calls, watch
        self._changed = threading.Condition()
        self._futures: dict[int, Settled | None] = {}
        self._pending: list[Pending] = []
        self._sleeping: list[Alarm] = []
        self.troubles: dict[str, Trouble] = {}  # by their text, which is all of them that Monty keeps

    def answer(self, settled: Settled) -> Any:
        """Write the end of a call as Monty takes it."""
        trouble = settled.trouble
        if trouble is None:
            return {"return_value": settled.value}
        if len(self.troubles) < 1_000:
            self.troubles[trouble.text] = trouble
        return {"exc_type": _CROSSING.get(trouble.kind, trouble.kind), "message": trouble.text}

    @property
    def idle(self) -> bool:
        """Tell whether nothing runs and nothing waits to be collected."""
        return not self._futures and all(one.settled is not None for one in self._pending)

    def hold(self, path: str, args: Sequence[Any], given: Mapping[str, Any]) -> Pending:
        """Begin a call whose result `parallel` will ask for."""
        held = Pending()
        self._pending.append(held)

        def deliver(settled: Settled) -> None:
            with self._changed:
                held.settled = settled
                self._changed.notify_all()

        self._calls.begin(path, args, given, deliver)
        return held

    def promise(self, number: int, path: str, args: Sequence[Any], given: Mapping[str, Any]) -> None:
        """Begin a call that the program awaits."""
        self._futures[number] = None
        self._calls.begin(path, args, given, lambda settled: self._resolve(number, settled))

    def promise_time(self, number: int, seconds: float) -> None:
        self._futures[number] = None
        end = time.monotonic() + seconds
        if end < self._calls.deadline:  # else the run ends before it
            self._sleeping.append(self._watch.at(end, lambda: self._resolve(number, Settled())))

    def close(self) -> None:
        """Wake nobody any more."""
        for alarm in self._sleeping:
            alarm.cancel()
        self._sleeping.clear()

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends before."""
        end = time.monotonic() + seconds
        while not self._calls.closed and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.05))

    def settled(self, wanted: list[int]) -> dict[int, Any]:
        """Wait for one or more of the awaited calls."""
        self._wait(lambda: any(self._futures.get(number) is not None for number in wanted))
        with self._changed:
            done = {number: found for number in wanted if (found := self._futures.get(number)) is not None}
            for number in done:
                del self._futures[number]
        if not done:
            return {number: self.answer(_ENDED) for number in wanted}
        return {number: self.answer(found) for number, found in done.items()}

    def collect(self, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        """Answer `parallel(...)`: wait for all, then raise the first error or give all results."""
        items = args[0] if len(args) == 1 else None
        if not isinstance(items, list | tuple | dict) or set(given) - {"return_errors"}:
            return {"exc_type": "TypeError", "message": WRONG}
        values = list(items.values()) if isinstance(items, dict) else list(items)
        held = [value for value in values if isinstance(value, Pending)]
        self._wait(lambda: all(one.settled is not None for one in held))
        done = [value.settled or _ENDED if isinstance(value, Pending) else Settled(value) for value in values]
        collected = set(map(id, held))
        self._pending = [one for one in self._pending if id(one) not in collected]
        wrong = [one.trouble for one in done if one.trouble is not None]
        if wrong and not given.get("return_errors"):
            return self.answer(Settled(trouble=wrong[0]))
        results = [{"error": one.trouble.text} if one.trouble else one.value for one in done]
        return {"return_value": dict(zip(items, results, strict=True)) if isinstance(items, dict) else results}

    def _resolve(self, number: int, settled: Settled) -> None:
        with self._changed:
            self._futures[number] = settled
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool]) -> None:
        with self._changed:
            while not ready() and not self._calls.closed:
                self._changed.wait(0.1)  # a run that is stopped wakes nobody here; it is reported without us
