"""The calls of one run: counted, named, checked, kept within their limits, and refused once the run is over."""

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from athena.core.threads import Crew
from athena.errors import AthenaError, InvalidInput
from athena.programs.sandbox.json_values import TooLarge, plain
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import Function, Names
from athena.programs.sandbox.program import Call, Made, NeedsApproval

NESTED = 2  # calls of one program at once that run programs themselves
LONGEST_NAME = 300  # characters of a path
MISSES = 1_000  # calls of names that there are not
HINTED = 50  # of them that are told what they may have meant


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


class Exhausted(Exception):
    """A program that only asks for what there is not: it is ended."""


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
    def __init__(
        self, names: Names, call: Call, limits: Limits, crew: Crew, depth: int = 0, parent: "Calls | None" = None
    ) -> None:
        self.names, self.limits, self.depth, self.parent = names, limits, depth, parent
        self.root: Calls = self if parent is None else parent.root
        self.deadline = float("inf")
        self.count = 0
        self.total = 0  # with those of the programs inside of this one
        self.last = ""  # the latest that has begun
        self.cpu_s = 0.0  # of the programs inside of this one
        self._misses = 0
        self._closed = False
        self._inner: list[Callable[[], None]] = []  # ends a program inside of this one
        self._nested = 0
        self._call, self._crew = call, crew
        self._guard = threading.Lock()
        self._made: dict[str, list[int]] = {}  # done, failed, started
        self._under_way = 0
        self._changed = threading.Condition(self._guard)

    @property
    def closed(self) -> bool:
        return self._closed or (self.parent is not None and self.parent.closed)

    def adopt(self, cancel: Callable[[], None]) -> None:
        """Take in a program inside of this one: it ends with this one at the latest."""
        with self._guard:
            if not self.closed:
                self._inner.append(cancel)
                return
        cancel()

    def release(self, cancel: Callable[[], None]) -> None:
        with self._guard:
            if cancel in self._inner:
                self._inner.remove(cancel)

    def spent(self, cpu_s: float) -> None:
        """Count what a program inside of another one has computed."""
        if self.parent is not None:
            with self.root._guard:
                self.root.cpu_s += cpu_s

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
        self.count = self.total = count
        self._made = {path: [one["done"], one["failed"], one["done"] + one["failed"]] for path, one in made.items()}

    def close(self) -> None:
        """Let no further call begin."""
        with self._guard:
            self._closed = True
            inner, self._inner = self._inner, []
            self._changed.notify_all()
        for cancel in inner:
            cancel()

    def reopen(self) -> None:
        """Let another engine run the program, none of whose calls has begun."""
        with self._guard:
            self._closed = False

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
        runs = prepared[1].runs

        def room() -> bool:
            return self._under_way < self.limits.parallel and not (runs and self._nested >= NESTED)

        with self._changed:
            self._changed.wait_for(lambda: self.closed or room())
            self._under_way += 1
            self._nested += runs

        def job() -> None:
            try:
                settled = self._made_now(*prepared, pausable=False, counted=True)
            finally:
                with self._changed:
                    self._under_way -= 1
                    self._nested -= runs
                    self._changed.notify_all()
            done(settled)

        self._crew.submit(job)

    def missed(self, path: str) -> tuple[str, str | None]:
        """Count a name that there is not, and say so; what was meant is looked for a few times only."""
        self._misses += 1
        if self._misses > MISSES:
            raise Exhausted(f"more than {MISSES:,} calls of operations that there are not")
        if len(path) > LONGEST_NAME or self._misses > HINTED:
            return f"there is no operation {path[:LONGEST_NAME]!r}", None
        return self.names.unknown(path)

    def _prepared(
        self, path: str, args: Sequence[Any], given: Mapping[str, Any]
    ) -> tuple[str, Function, dict[str, Any]] | Settled:
        function = None if len(path) > LONGEST_NAME else self.names.find(path)
        if function is None:
            message, hint = self.missed(path)
            kind = "AttributeError" if "." in path else "NameError"
            return Settled(trouble=Trouble(kind, "not_found", message, hint))
        self.count += 1
        with self.root._guard:
            self.root.total += 1
        if self.root.total > self.limits.calls:
            message = f"more than {self.limits.calls:,} calls in one program (limit calls)"
            return Settled(trouble=Trouble("ToolError", "limit_exceeded", message, "do it in several programs"))
        try:
            named = self.names.arguments(path, function, args, given)
            limits = self.limits
            return path, function, plain(named, limits.value_nodes, limits.value_bytes)
        except TooLarge as error:
            message = f"an argument of {path} is too large: {error}"
            return Settled(trouble=Trouble("ToolError", "limit_exceeded", message, "pass less at a time"))
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
            self.last = function.path
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
                    self.root.total -= 1
                    if tally == [0, 0, 0]:
                        self._made.pop(function.path, None)
                raise
            how = 'call it outside of parallel() and await, in a program for engine="monty"'
            trouble = Trouble("ToolError", error.code, f"{error}; this program cannot wait for that", how)
        except AthenaError as error:
            hint = error.hint
            said = any(part in (hint or "") for part in ("parameters:", f"{function.path}("))  # how it is called
            if isinstance(error, InvalidInput) and not said:
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
