"""One run: its timeout, its output, how it is stopped, and the one result that it returns."""

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

KILL_GRACE_S = 0.05  # how long a stopped run waits for its killed worker
StopReason = Literal["", "timeout", "own_time", "cancelled", "waited"]


CUT_MARK = "\n[cut: "


def drop_cut_word(output: str) -> str:
    """Return what was printed without the last word, if it was cut there: half of an address is not recognized."""
    text, mark, note = output.rpartition(CUT_MARK)
    if not mark or not note.endswith("workspace.write]"):
        return output
    return f"{text.rpartition(' ')[0] if ' ' in text[-200:] else text[:-200]}{mark}{note}"


class Output:
    """The printed text up to a limit; the rest is counted."""

    def __init__(self, max_chars: int, text: str = "") -> None:
        self._max_chars, self._parts, self._length = max_chars, [text] if text else [], len(text)
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
        """All printed characters, also those that were dropped."""
        return self._length + self._dropped

    def add_dropped(self, characters: int) -> None:
        self._dropped += characters

    @property
    def text(self) -> str:
        text = "".join(self._parts)
        if not self._dropped:
            return text
        more = f"{self._dropped:,} more characters were printed (limit output_chars)"
        return f"{text}{CUT_MARK}{more}; write long text to a file: workspace.write]"


@dataclass(slots=True)
class EngineResult:
    """The result of one engine."""

    engine: str
    value: Any = None
    is_cut: bool = False  # the value is incomplete
    full_length: int | None = None  # of the complete value
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
    after_stop: Callable[[], None] | None = None  # set while it runs

    def result(self) -> Run:
        """Wait for the end."""
        self.outcome.wait()
        return self.outcome.result()

    def cancel(self) -> None:
        """Stop the program now. Calls under way run to their end; no new call begins."""
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
        else:  # it never started
            self.report_abandoned()

    def reopen(self) -> bool:
        """Allow another engine to run the program, which has made no call."""
        with self._guard:
            if self.stop_reason or self._done:
                return False
            self.calls.reopen()
            return True

    @property
    def is_done(self) -> bool:
        return self._done

    def set_kill(self, kill: Callable[[], None]) -> None:
        """Set the function that kills the worker."""
        with self._guard:
            self._kill = kill
            stopped = self.stop_reason
        if stopped:
            kill()

    def clear_kill(self) -> None:
        """Forget the worker: it may serve another run now, so it must not be killed."""
        with self._guard:
            self._kill = None

    def report_abandoned(self) -> None:
        """Report a stopped run whose call has not returned."""
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
        """Create the result of this run."""
        self.calls.close()
        counts = self.calls.counts_by_path
        open_calls = sorted(path for path, outcomes in counts.items() if outcomes["unknown"])
        error, status = ended.error, "done"
        if self.stop_reason and (ended.worker_died or ended.error is not None):
            error = _describe_stop(self.stop_reason, self.timeout_s, self.limits)
        if error is not None:
            status = "unknown" if open_calls else "failed"
            error = _add_history(error, counts, open_calls, ended, self.calls.last_path)
        if ended.pause is not None:
            status = "needs_approval"
        result, cut = None, False
        if error is None:
            chars = self.limits.result_chars
            # no model reads the result of a nested program
            max_tokens = 4 * chars if self.calls.depth else self.limits.result_tokens
            result, cut = shorten_value(ended.value, chars, max_tokens, ended.full_length)
        return Run(
            status=_cast_status(status),
            output=self.output.text,
            result=result,
            value=ended.value if error is None else None,
            truncated=cut or ended.is_cut,
            error=error,
            elapsed_ms=round((time.monotonic() - self.started_at) * 1000, 3),
            calls=sum(outcomes["done"] + outcomes["failed"] + outcomes["unknown"] for outcomes in counts.values()),
            call_counts=counts,
            state=self.state_before if ended.state is None else ended.state,
            lost=ended.lost,
            engine=ended.engine,
            reason=self.reason,
            pause=ended.pause,
        )


def _cast_status(status: str) -> Status:
    return status  # type: ignore[return-value]


def _describe_stop(why: StopReason, timeout_s: float, limits: Limits) -> Failure:
    limit = "timeout_s" if timeout_s < limits.wall_s else "wall_s"
    if why == "own_time":
        message = f"stopped after {limits.own_s:g} s besides waiting for servers (limit own_s)"
        return create_failure("TimeoutError", message, hint="do it in several programs", limit="own_s")
    if why == "cancelled":
        return create_failure("Cancelled", "the run was cancelled")
    if why == "waited":
        message = f"other programs ran for {timeout_s:.3g} s, so this one had no turn (limit {limit})"
        return create_failure("TimeoutError", message, hint="try again in a moment", limit="wall_s")
    seconds = f"{timeout_s:.2f}".rstrip("0").rstrip(".")
    return create_failure("TimeoutError", f"stopped after {seconds} s (limit {limit})", limit="wall_s")


def _add_history(error: Failure, counts: Any, open_calls: list[str], ended: EngineResult, last: str) -> Failure:
    """Add to an error which calls were made, so that the agent does not simply run the program again."""
    hints = [error["hint"]] if error["hint"] else []
    if ended.engine and (ended.worker_died or ended.state_unchanged):
        hints.append("variables are as before this run")
    if error["type"] == "TimeoutError" and last:
        hints.append(f"the last call was {last}")
    if done := [f"{path} x{outcomes['done']}" for path, outcomes in counts.items() if outcomes["done"]]:
        hints.append(f"calls already made: {', '.join(done[:20])}")
    if open_calls:
        hints.append(f"not known whether these were done: {', '.join(open_calls)}")
    with suppress(KeyError):
        error = error.copy()
    error["hint"] = "; ".join(hints)[:MAX_HINT_CHARS] or None
    return error
