"""The calls of one run: counted, named, checked, kept within their limits, and refused once the run is over."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from athena.errors import AthenaError, InvalidInput
from athena.sandbox.limits import Limits
from athena.sandbox.names import Function, Names
from athena.sandbox.plain import TooLarge, plain
from athena.sandbox.program import Call, Made, NeedsApproval
from athena.threads import Crew


class Trouble(NamedTuple):
    """A call that failed, as the program is told."""

    kind: str  # the exception's type
    code: str
    message: str
    hint: str | None = None

    @property
    def text(self) -> str:
        told = self.message if self.kind != "ToolError" else f"{self.code}: {self.message}"
        return f"{told} (hint: {self.hint})" if self.hint else told


class Settled(NamedTuple):
    value: Any = None
    trouble: Trouble | None = None


class _Here(threading.local):
    calls: "Calls | None" = None


_here = _Here()


def current() -> "Calls | None":
    """Return the calls of the run that this thread works for."""
    return _here.calls


def closed() -> bool:
    """Tell whether the run that this thread works for has ended: then start nothing that changes anything."""
    return _here.calls is not None and _here.calls.closed


class Calls:
    def __init__(self, names: Names, call: Call, limits: Limits, crew: Crew, depth: int = 0) -> None:
        self.names, self.limits, self.depth = names, limits, depth
        self.closed = False
        self.deadline = float("inf")
        self.count = 0
        self._call, self._crew = call, crew
        self._guard = threading.Lock()
        self._made: dict[str, list[int]] = {}  # done, failed, started
        self._under_way = 0
        self._changed = threading.Condition(self._guard)

    @property
    def made(self) -> dict[str, Made]:
        with self._guard:
            return {
                path: {"done": done, "failed": failed, "unknown": started - done - failed}
                for path, (done, failed, started) in self._made.items()
            }

    @property
    def under_way(self) -> bool:
        return self._under_way > 0

    def restore(self, count: int, made: Mapping[str, Made]) -> None:
        """Go on counting where a paused run stopped."""
        self.count = count
        self._made = {path: [one["done"], one["failed"], one["done"] + one["failed"]] for path, one in made.items()}

    def close(self) -> None:
        """Let no further call begin."""
        with self._guard:
            self.closed = True
            self._changed.notify_all()

    def reopen(self) -> None:
        """Let another engine run the program, none of whose calls has begun."""
        with self._guard:
            self.closed = False

    def settle(self, path: str, args: Sequence[Any], given: Mapping[str, Any], *, pausable: bool = False) -> Settled:
        """Make a call and wait for it; raises NeedsApproval only where the run can be paused."""
        prepared = self._prepared(path, args, given)
        return prepared if isinstance(prepared, Settled) else self._made_now(*prepared, pausable=pausable)

    def begin(self, path: str, args: Sequence[Any], given: Mapping[str, Any], done: Callable[[Settled], None]) -> None:
        """Make a call on another thread; waits until there are few enough at once."""
        prepared = self._prepared(path, args, given)
        if isinstance(prepared, Settled):
            done(prepared)
            return
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._under_way < self.limits.parallel)
            self._under_way += 1

        def job() -> None:
            try:
                settled = self._made_now(*prepared, pausable=False, counted=True)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._changed.notify_all()
            done(settled)

        self._crew.submit(job)

    def _prepared(
        self, path: str, args: Sequence[Any], given: Mapping[str, Any]
    ) -> tuple[str, Function, dict[str, Any]] | Settled:
        self.count += 1
        if self.count > self.limits.calls:
            message = f"more than {self.limits.calls:,} calls in one program (limit calls)"
            return Settled(trouble=Trouble("ToolError", "limit_exceeded", message, "do it in several programs"))
        function = self.names.find(path)
        if function is None:
            self.count -= 1
            message, hint = self.names.unknown(path)
            kind = "AttributeError" if "." in path else "NameError"
            return Settled(trouble=Trouble(kind, "not_found", message, hint))
        try:
            named = self.names.arguments(path, function, args, given)
            limits = self.limits
            return path, function, plain(named, limits.value_nodes, limits.value_bytes)
        except TooLarge as error:
            message = f"an argument of {path} is too large: {error}"
            return Settled(trouble=Trouble("ToolError", "limit_exceeded", message))
        except InvalidInput as error:
            return Settled(trouble=Trouble("ToolError", error.code, str(error), error.hint))

    def _made_now(
        self, path: str, function: Function, arguments: dict[str, Any], *, pausable: bool, counted: bool = False
    ) -> Settled:
        with self._guard:
            if self.closed:
                return Settled(trouble=Trouble("ToolError", "closed", "the run has ended"))
            tally = self._made.setdefault(function.path, [0, 0, 0])
            tally[2] += 1
            self._under_way += not counted
        trouble: Trouble | None = None
        value: Any = None
        try:
            with working_for(self):
                value = self._call(function.path, arguments)
            value = plain(value, self.limits.value_nodes, self.limits.value_bytes)
        except NeedsApproval as error:
            if pausable:
                with self._guard:  # it did not begin
                    tally[2] -= 1
                    self.count -= 1
                    if tally == [0, 0, 0]:
                        self._made.pop(function.path, None)
                raise
            how = 'call it outside of parallel() and await, in a program for engine="monty"'
            trouble = Trouble("ToolError", error.code, f"{error}; this program cannot wait for that", how)
        except AthenaError as error:
            hint = error.hint
            if isinstance(error, InvalidInput) and "parameters:" not in (hint or ""):
                hint = "; ".join(filter(None, [hint, f"parameters: {function.signature()}"]))
            trouble = Trouble("ToolError", error.code, str(error), hint)
        except TooLarge as error:
            message = f"{path} was done, but its result is too large: {error}"
            trouble = Trouble("ToolError", "limit_exceeded", message, "ask for less at a time")
        except Exception as error:  # noqa: BLE001  # an operation's bug is the program's failed call, not our end
            trouble = Trouble("ToolError", "internal", f"{path} failed unexpectedly ({type(error).__name__})")
        finally:
            with self._guard:
                self._under_way -= not counted
        with self._guard:
            tally[1 if trouble else 0] += 1
        return Settled(value, trouble)


@contextmanager
def working_for(calls: Calls) -> Generator[None]:
    before, _here.calls = _here.calls, calls
    try:
        yield
    finally:
        _here.calls = before
