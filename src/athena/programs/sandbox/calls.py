"""The calls of one run: check and bind arguments, count, enforce limits, refuse calls after the end."""

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from athena.core.threads import ThreadPool
from athena.errors import AthenaError, InvalidInput
from athena.programs.sandbox.json_values import ValueTooLarge, to_plain_json
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import Function, Namespace
from athena.programs.sandbox.values import CallCounts, HostCall, NeedsApproval, PauseRequired

MAX_NESTED_CALLS = 2  # calls of one program at once that run programs themselves
MAX_PATH_CHARS = 300
MAX_MISSES = 1_000  # calls of unknown names
MAX_HINTED_MISSES = 50  # unknown names that get a suggestion


class CallError(NamedTuple):
    """The error of a call, as the program sees it."""

    exception_type: str
    code: str
    message: str
    hint: str | None = None

    @property
    def text(self) -> str:
        message_text = self.message if self.exception_type != "ToolError" else f"{self.code}: {self.message}"
        return f"{message_text} (hint: {self.hint})" if self.hint else message_text


class TooManyUnknownCalls(Exception):
    """A program called too many unknown names, and is ended."""


class CallResult(NamedTuple):
    value: Any = None
    error: CallError | None = None


class _CurrentCalls(threading.local):
    calls: "RunCalls | None" = None


_current = _CurrentCalls()


def current_calls() -> "RunCalls | None":
    """Return the calls of the run that this thread serves."""
    return _current.calls


def is_run_closed() -> bool:
    """Return whether the run that this thread serves has ended; then nothing may be changed for it any more."""
    return _current.calls is not None and _current.calls.is_closed


class RunCalls:
    def __init__(
        self,
        names: Namespace,
        call: HostCall,
        limits: Limits,
        pool: ThreadPool,
        depth: int = 0,
        parent: "RunCalls | None" = None,
    ) -> None:
        self.names, self.limits, self.depth, self.parent = names, limits, depth, parent
        self.root: RunCalls = self if parent is None else parent.root
        self.deadline = float("inf")
        self.count = 0
        self.total = 0  # including nested programs
        self.last_path = ""  # of the latest call
        self.cpu_s = 0.0  # of nested programs
        self._outside_count, self._outside_since, self._outside_s = 0, 0.0, 0.0  # calls of servers
        self._miss_count = 0
        self._closed = False
        self._child_cancels: list[Callable[[], None]] = []  # each ends a nested program
        self._nested_count = 0
        self._call, self._crew = call, pool
        self._guard = threading.Lock()
        self._tallies: dict[str, list[int]] = {}  # done, failed, started
        self._running_count = 0
        self._changed = threading.Condition(self._guard)

    @property
    def is_closed(self) -> bool:
        return self._closed or (self.parent is not None and self.parent.is_closed)

    def add_child(self, cancel: Callable[[], None]) -> None:
        """Register a nested program, to cancel it when this one ends."""
        with self._guard:
            if not self.is_closed:
                self._child_cancels.append(cancel)
                return
        cancel()

    def remove_child(self, cancel: Callable[[], None]) -> None:
        with self._guard:
            if cancel in self._child_cancels:
                self._child_cancels.remove(cancel)

    def add_cpu_s(self, cpu_s: float) -> None:
        """Add the CPU time of a nested program."""
        if self.parent is not None:
            with self.root._guard:
                self.root.cpu_s += cpu_s

    def begin_outside_call(self) -> bool:
        """Begin a call of a server; return whether the whole run waits for no other one."""
        root = self.root
        with root._guard:
            root._outside_count += 1
            if root._outside_count == 1:
                root._outside_since = time.monotonic()
            return root._outside_count == 1

    def end_outside_call(self) -> bool:
        """End a call of a server; return whether the whole run waits for no other one."""
        root = self.root
        with root._guard:
            root._outside_count -= 1
            if root._outside_count == 0:
                root._outside_s += time.monotonic() - root._outside_since
            return root._outside_count == 0

    @property
    def outside_s(self) -> float:
        """The time in which the whole run waited for servers."""
        with self.root._guard:
            running_s = time.monotonic() - self.root._outside_since if self.root._outside_count else 0.0
            return self.root._outside_s + running_s

    @property
    def counts_by_path(self) -> dict[str, CallCounts]:
        with self._guard:
            return {
                path: {"done": done, "failed": failed, "unknown": started - done - failed}
                for path, (done, failed, started) in self._tallies.items()
            }

    @property
    def has_running_calls(self) -> bool:
        return self._running_count > 0

    def restore_counts(self, count: int, counts_by_path: Mapping[str, CallCounts]) -> None:
        """Restore the counts of a paused run."""
        self.count = self.total = count
        self._tallies = {
            path: [counts["done"], counts["failed"], counts["done"] + counts["failed"]]
            for path, counts in counts_by_path.items()
        }

    def close(self) -> None:
        """Refuse every further call."""
        with self._guard:
            self._closed = True
            cancels, self._child_cancels = self._child_cancels, []
            self._changed.notify_all()
        for cancel in cancels:
            cancel()

    def reopen(self) -> None:
        """Accept calls again, for another engine."""
        with self._guard:
            self._closed = False

    def make_call(
        self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, pausable: bool = False
    ) -> CallResult:
        """Make a call and wait for it; raises PauseRequired only where the run can be paused."""
        prepared = self._prepare_call(path, args, kwargs)
        return prepared if isinstance(prepared, CallResult) else self._perform_call(*prepared, pausable=pausable)

    def start_call(
        self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any], done: Callable[[CallResult], None]
    ) -> None:
        """Make a call on another thread, after waiting for a free slot (limit parallel)."""
        prepared = self._prepare_call(path, args, kwargs)
        if isinstance(prepared, CallResult):
            done(prepared)
            return
        runs = prepared[1].runs_program

        def has_room() -> bool:
            return self._running_count < self.limits.parallel and not (runs and self._nested_count >= MAX_NESTED_CALLS)

        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or has_room())
            self._running_count += 1
            self._nested_count += runs

        def run_call() -> None:
            try:
                result = self._perform_call(*prepared, pausable=False, counted=True)
            finally:
                with self._changed:
                    self._running_count -= 1
                    self._nested_count -= runs
                    self._changed.notify_all()
            done(result)

        self._crew.submit(run_call)

    def run_in_background(self, work: Callable[[], None]) -> None:
        self._crew.submit(work)

    def count_miss(self, path: str) -> tuple[str, str | None]:
        """Count a call of an unknown name; return the message and, for the first ones, a suggestion."""
        self._miss_count += 1
        if self._miss_count > MAX_MISSES:
            raise TooManyUnknownCalls(f"more than {MAX_MISSES:,} calls of unknown operations")
        if len(path) > MAX_PATH_CHARS or self._miss_count > MAX_HINTED_MISSES:
            return f"there is no operation {path[:MAX_PATH_CHARS]!r}", None
        return self.names.describe_unknown(path)

    def _prepare_call(
        self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[str, Function, dict[str, Any]] | CallResult:
        function = None if len(path) > MAX_PATH_CHARS else self.names.find(path)
        if function is None:
            message, hint = self.count_miss(path)
            kind = "AttributeError" if "." in path else "NameError"
            return CallResult(error=CallError(kind, "not_found", message, hint))
        self.count += 1
        with self.root._guard:
            self.root.total += 1
        if self.root.total > self.limits.calls:
            message = f"more than {self.limits.calls:,} calls in one program (limit calls)"
            return CallResult(error=CallError("ToolError", "limit_exceeded", message, "do it in several programs"))
        try:
            named = self.names.bind_arguments(path, function, args, kwargs)
            limits = self.limits
            return path, function, to_plain_json(named, limits.value_nodes, limits.value_bytes)
        except ValueTooLarge as error:
            message = f"an argument of {path} is too large: {error}"
            return CallResult(error=CallError("ToolError", "limit_exceeded", message, "pass less at a time"))
        except InvalidInput as error:
            return CallResult(error=CallError("ToolError", error.code, str(error), error.hint))

    def _perform_call(
        self, path: str, function: Function, arguments: dict[str, Any], *, pausable: bool, counted: bool = False
    ) -> CallResult:
        with self._guard:
            if self.is_closed:
                return CallResult(error=CallError("ToolError", "closed", "the run has ended"))
            counts = self._tallies.setdefault(function.path, [0, 0, 0])
            counts[2] += 1
            self.last_path = function.path
            self._running_count += not counted
        call_error: CallError | None = None
        value: Any = None
        try:
            before, _current.calls = _current.calls, self
            try:
                value = self._call(function.path, arguments)
            finally:
                _current.calls = before
            value = to_plain_json(value, self.limits.value_nodes, self.limits.value_bytes)
        except NeedsApproval as error:
            if pausable:
                with self._guard:  # it did not begin
                    counts[2] -= 1
                    self.count -= 1
                    self.root.total -= 1
                    if counts == [0, 0, 0]:
                        self._tallies.pop(function.path, None)
                raise PauseRequired(function.path, arguments, error.request) from None
            message = f"{error}; this program cannot wait for approval"
            call_error = CallError("ToolError", error.code, message, "call it outside of parallel() and await")
        except AthenaError as error:
            hint = error.hint
            has_signature = any(part in (hint or "") for part in ("parameters:", f"{function.path}("))
            if isinstance(error, InvalidInput) and not has_signature:
                hint = "; ".join(filter(None, [hint, f"parameters: {function.format_signature()}"]))
            call_error = CallError("ToolError", error.code, str(error), hint)
        except ValueTooLarge as error:
            message = f"{path} was done, but its result is too large: {error}"
            call_error = CallError("ToolError", "limit_exceeded", message, "ask for less at a time")
        except Exception as error:  # noqa: BLE001  # an operation's bug is the program's failed call, not our end
            call_error = CallError("ToolError", "internal", f"{path} failed unexpectedly ({type(error).__name__})")
        finally:
            with self._guard:
                self._running_count -= not counted
        with self._guard:
            counts[1 if call_error else 0] += 1
        return CallResult(value, call_error)


@contextmanager
def bind_current_calls(calls: RunCalls) -> Generator[None]:
    before, _current.calls = _current.calls, calls
    try:
        yield
    finally:
        _current.calls = before
