"""One run from start to end: its time, its output, and the one answer it gives whatever happens."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from athena.core.text import make_storable
from athena.core.threads import ThreadFuture
from athena.programs.sandbox.calls import RunCalls
from athena.programs.sandbox.json_values import shorten_value
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.values import MAX_HINT_CHARS, Failure, Pause, Run, Status, create_failure

KILL_GRACE_S = 0.05  # for a killed worker to be noticed before the run is reported without it
StopReason = Literal["", "timeout", "cancelled", "waited"]


class Output:
    """What a program printed, up to its limit; the rest is counted."""

    def __init__(self, most: int, text: str = "") -> None:
        self._max_chars, self._parts, self._length = most, [text] if text else [], len(text)
        self._dropped = 0

    def write(self, text: str) -> None:
        room = self._max_chars - self._length
        if room < len(text):
            self._dropped += len(text) - max(room, 0)
            text = text[: max(room, 0)]
        if text:
            self._parts.append(make_storable(text))
            self._length += len(text)

    @property
    def total_chars(self) -> int:
        """How much was printed."""
        return self._length + self._dropped

    def add_dropped(self, characters: int) -> None:
        self._dropped += characters

    @property
    def text(self) -> str:
        whole = "".join(self._parts)
        if not self._dropped:
            return whole
        more = f"{self._dropped:,} more characters were printed (limit output_chars)"
        return f"{whole}\n[cut: {more}; write long text to a file: workspace.write]"


@dataclass(slots=True)
class EngineResult:
    """What an engine says of a program that it ran."""

    engine: str
    value: Any = None
    is_cut: bool = False  # the value is not all there was
    full_length: int | None = None  # how long all of it was
    error: Failure | None = None
    state: bytes | None = None
    lost: tuple[str, ...] = ()
    pause: Pause | None = None
    worker_died: bool = False  # the worker ended before the program
    state_unchanged: bool = False  # the variables are as before


@dataclass(slots=True, eq=False, weakref_slot=True)
class ActiveRun:
    calls: RunCalls
    limits: Limits
    state_before: bytes | None  # the variables as they were
    timeout_s: float
    output: Output
    reason: str = ""
    engine: str = ""
    stop_reason: StopReason = ""
    outcome: ThreadFuture[Run] = field(default_factory=ThreadFuture)
    started_at: float = field(default_factory=time.monotonic)
    _guard: Any = field(default_factory=threading.Lock)
    _kill: Callable[[], None] | None = None
    _done: bool = False
    after_stop: Callable[[], None] | None = None  # set while it has its turn

    def result(self) -> Run:
        """Wait for the end."""
        self.outcome.wait()
        return self.outcome.result()

    def cancel(self) -> None:
        """Stop the program now; calls under way end by themselves, no further one begins."""
        self.stop("cancelled")

    def stop(self, why: StopReason) -> None:
        with self._guard:
            if self._done or self.stop_reason:
                return
            self.stop_reason = why
            kill = self._kill
        self.calls.close()
        if kill is not None:
            kill()
        if self.after_stop is not None:
            self.after_stop()
        else:  # it never had its turn
            self.report_abandoned()

    def reopen(self) -> bool:
        """Let the program start anew, none of whose calls has begun."""
        with self._guard:
            if self.stop_reason or self._done:
                return False
            self.calls.reopen()
            return True

    @property
    def is_done(self) -> bool:
        return self._done

    def set_kill(self, kill: Callable[[], None]) -> None:
        """Say how the worker is ended, now that there is one."""
        with self._guard:
            self._kill = kill
            stopped = self.stop_reason
        if stopped:
            kill()

    def clear_kill(self) -> None:
        """The worker is given back: from now on it must not be killed for this run."""
        with self._guard:
            self._kill = None

    def report_abandoned(self) -> None:
        """Report a stopped run whose call does not come back."""
        self.finish(self.create_run(EngineResult(self.engine, worker_died=True)))

    def finish(self, run: Run) -> None:
        with self._guard:
            if self._done:
                return
            self._done = True
        self.calls.close()
        self.outcome.set_result(run)

    def fail(self, error: BaseException) -> None:
        with self._guard:
            if self._done:
                return
            self._done = True
        self.calls.close()
        self.outcome.set_exception(error)

    def create_run(self, ended: EngineResult) -> Run:
        """Put together what the caller is told."""
        self.calls.close()
        made = self.calls.counts_by_path
        open_calls = sorted(path for path, one in made.items() if one["unknown"])
        error, status = ended.error, "done"
        if self.stop_reason and (ended.worker_died or ended.error is not None):
            error = _describe_stop(
                self.stop_reason, self.timeout_s, "timeout_s" if self.timeout_s < self.limits.wall_s else "wall_s"
            )
        if error is not None:
            status = "unknown" if open_calls else "failed"
            error = _add_history(error, made, open_calls, ended, self.calls.last_path)
        if ended.pause is not None:
            status = "needs_approval"
        result, cut = None, False
        if error is None:
            chars = self.limits.result_chars
            budget = 4 * chars if self.calls.depth else self.limits.result_tokens  # a program inside has no reader
            result, cut = shorten_value(ended.value, chars, budget, ended.full_length)
        return Run(
            status=_cast_status(status),
            output=self.output.text,
            result=result,
            value=ended.value if error is None else None,
            truncated=cut or ended.is_cut,
            error=error,
            elapsed_ms=round((time.monotonic() - self.started_at) * 1000, 3),
            calls=sum(one["done"] + one["failed"] + one["unknown"] for one in made.values()),
            made=made,
            state=self.state_before if ended.state is None else ended.state,
            lost=ended.lost,
            engine=ended.engine,
            reason=self.reason,
            pause=ended.pause,
        )


def _cast_status(status: str) -> Status:
    return status  # type: ignore[return-value]


def _describe_stop(why: StopReason, timeout_s: float, limit: str) -> Failure:
    if why == "cancelled":
        return create_failure("Cancelled", "the run was cancelled")
    if why == "waited":
        message = f"other programs ran for {timeout_s:.3g} s, so this one had no turn (limit {limit})"
        return create_failure("TimeoutError", message, hint="try again in a moment", limit="wall_s")
    shown = f"{timeout_s:.2f}".rstrip("0").rstrip(".")
    return create_failure("TimeoutError", f"stopped after {shown} s (limit {limit})", limit="wall_s")


def _add_history(error: Failure, made: Any, open_calls: list[str], ended: EngineResult, last: str) -> Failure:
    """Tell the agent what has already happened: it must not simply run the program again."""
    told = [error["hint"]] if error["hint"] else []
    if ended.engine and (ended.worker_died or ended.state_unchanged):
        told.append("variables are as before this run")
    if error["type"] == "TimeoutError" and last:
        told.append(f"the last call was {last}")
    if done := [f"{path} x{one['done']}" for path, one in made.items() if one["done"]]:
        told.append(f"calls already made: {', '.join(done[:20])}")
    if open_calls:
        told.append(f"not known whether these were done: {', '.join(open_calls)}")
    with suppress(KeyError):
        error = error.copy()
    error["hint"] = "; ".join(told)[:MAX_HINT_CHARS] or None
    return error
