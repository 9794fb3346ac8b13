"""Run programs: choose the engine, wait for a turn, keep the time, and give one answer whatever happens."""

import atexit
import builtins
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TypedDict

from athena.core.threads import Crew
from athena.errors import AthenaError, Conflict, InvalidInput, LimitExceeded, Misconfigured
from athena.programs.sandbox import routing
from athena.programs.sandbox.calls import Calls, current, working_for
from athena.programs.sandbox.check import problems
from athena.programs.sandbox.cpython import CPython
from athena.programs.sandbox.jail import BARE, Layers, choices
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty import types
from athena.programs.sandbox.monty.driver import Drive
from athena.programs.sandbox.monty.engine import Monty
from athena.programs.sandbox.names import Names
from athena.programs.sandbox.pausing import opened_pause
from athena.programs.sandbox.program import LONGEST_HINT, Call, Failure, Program, Rejected, Run, failure
from athena.programs.sandbox.run import GRACE_S, Ended, Output, Running
from athena.programs.sandbox.source import Source
from athena.programs.sandbox.spawner import Keeper
from athena.programs.sandbox.state import State
from athena.programs.sandbox.timer import Watch

# What Monty may say of something that CPython can do. A program that made no call may be run there from its start.
_RETRIED = frozenset(
    {
        "NotImplementedError",
        "SyntaxError",
        "AttributeError",
        "ImportError",
        "ModuleNotFoundError",
        "TypeError",
        "ValueError",
    }
)


class EngineReport(TypedDict):
    works: bool
    version: str
    layers: list[str]
    why: str


class _Inside:
    """What belongs to one process: threads and workers do not survive a fork."""

    def __init__(self, limits: Limits, jails: Sequence[Layers], allow_bare: bool) -> None:
        self.pid = os.getpid()
        self.keeper = Keeper()
        self.watch = Watch()
        self.monty = Monty(limits, self.keeper, [*jails, BARE] if allow_bare else jails)
        self.python = CPython(limits, self.keeper, jails)
        self.runners = Crew(limits.runs, "athena-run")
        # For each depth, since a call may wait for the calls of a program inside of it.
        self.callers = [Crew(limits.parallel * 2, f"athena-call-{depth}") for depth in range(limits.depth)]
        self.waiting = 0
        self.guard = threading.Lock()
        self.running: weakref.WeakSet[Running] = weakref.WeakSet()

    def close(self) -> None:
        for one in list(self.running):
            one.cancel()
        self.keeper.tell(self.monty.close)
        self.keeper.tell(self.python.close)
        self.keeper.close(2.0)
        self.watch.close()
        for crew in (self.runners, *self.callers):
            crew.close()


class Sandbox:
    """Where programs run. Cheap to make: nothing is started before the first program."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        key: bytes,  # seals variables and paused runs
        jails: Sequence[Layers] | None = None,  # the walls that will do, strongest first; None: whatever there is
        allow_bare: bool = False,  # Monty may run behind its own walls alone
    ) -> None:
        self.limits = limits or Limits()
        self._key, self._jails, self._allow_bare = key, jails, allow_bare
        self._inside: _Inside | None = None
        self._guard = threading.Lock()
        self._closed = False

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, program: Program, call: Call) -> Run:
        """Run a program to its end; blocks. Raises only what is no fault of the program."""
        return self.start(program, call).result()

    def start(self, program: Program, call: Call) -> Running:
        """Begin a program; it can be waited for, awaited by its outcome, and cancelled."""
        running = self._running(program.names, call, program.state, program.timeout_s)
        self._submit(running, lambda: self._run(program, running))
        return running

    def resume(
        self, snapshot: bytes, call: Call, names: Names, *, approved: bool, refusal: str = "", owner: str = "",
        timeout_s: float | None = None,
    ) -> Run:  # fmt: skip
        """Go on with a paused run, to its end; blocks."""
        return self.go_on(
            snapshot, call, names, approved=approved, refusal=refusal, owner=owner, timeout_s=timeout_s
        ).result()

    def check_paused(self, snapshot: bytes, owner: str) -> None:
        """Refuse a paused run that cannot be gone on with here."""
        inside = self._opened()
        inside.monty.open()
        if opened_pause(self._key, owner, snapshot)[0]["wrote"] != inside.monty.wrote:
            message = "this paused run belongs to another version of the engine; nothing was run"
            raise Conflict(message, hint="run the program again from its start")

    def go_on(
        self, snapshot: bytes, call: Call, names: Names, *, approved: bool, refusal: str = "", owner: str = "",
        timeout_s: float | None = None,
    ) -> Running:  # fmt: skip
        """Go on with a paused run: make the call that waits, if it is approved, and the rest of the program."""
        head, content = opened_pause(self._key, owner, snapshot)
        running = self._running(names, call, bytes.fromhex(head["before"]) or None, timeout_s)
        running.output = Output(self.limits.output_chars, head["output"])
        running.calls.restore(head["count"], head["made"])
        running.engine, running.reason = "monty", "it was paused there"

        def work() -> Ended:
            inside = self._opened()
            drive = Drive(inside.monty, running, inside.watch, self._key, owner)
            return drive.resume(content, approved=approved, refusal=refusal)

        self._submit(running, work)
        return running

    def check(self, program: Program) -> list[Failure]:
        """Say what is certainly wrong with a program; nothing of it is run."""
        try:
            source = Source(program.code, self.limits.source_bytes)
        except Rejected as rejected:
            return [rejected.failure]
        engine = self._choose(program, source, State())[0]
        return problems(source, program.names, approvals=engine == "monty")

    def check_types(self, code: str, names: Names) -> list[Failure]:
        """Say where a program's types certainly do not fit; nothing of it is run."""
        return types.wrong(self._opened().monty.types(code, types.stubs(names)))

    # --- engines ------------------------------------------------------------------------------------------------------

    def probe(self) -> dict[str, EngineReport]:
        """Start each engine's real worker and say behind which walls it runs; for `athena doctor`."""
        inside = self._opened()
        report: dict[str, EngineReport] = {}
        for engine in (inside.monty, inside.python):
            why = ""
            try:
                engine.open()
            except AthenaError as error:
                why = str(error)
            layers = list(engine.layers or ())
            report[engine.name] = {"works": not why, "version": engine.version, "layers": layers, "why": why}
        return report

    def warm(self) -> None:
        """Start the default engine before it is needed."""
        self._opened().monty.open()

    def close(self) -> None:
        """End all workers."""
        with self._guard:
            self._closed = True
            inside, self._inside = self._inside, None
        if inside is not None and inside.pid == os.getpid():
            inside.close()

    def _opened(self) -> _Inside:
        with self._guard:
            if self._closed:
                raise Misconfigured("this sandbox was closed")
            if self._inside is None or self._inside.pid != os.getpid():
                if self._inside is not None:
                    _inherited.append(self._inside)  # the parent's: to let go of it would end the parent's workers
                self._inside = _Inside(self.limits, self._walls(), self._allow_bare)
                _open.add(self)
            return self._inside

    def _walls(self) -> Sequence[Layers]:
        return choices() if self._jails is None else self._jails

    # --- one run ------------------------------------------------------------------------------------------------------

    def _running(self, names: Names, call: Call, before: bytes | None, timeout_s: float | None) -> Running:
        inside, outer = self._opened(), current()
        depth = outer.depth + 1 if outer else 0
        if depth >= self.limits.depth:
            raise LimitExceeded(f"programs inside of programs, more than {self.limits.depth} deep (limit depth)")
        wall = min(timeout_s or self.limits.wall_s, self.limits.wall_s)
        if wall <= 0:
            raise InvalidInput("timeout_s must be more than 0")
        if outer is not None:
            wall = max(0.001, min(wall, outer.deadline - time.monotonic()))
            if outer.root.cpu_s > self.limits.cpu_s:
                message = f"the programs inside of this one have computed for {self.limits.cpu_s:g} s (limit cpu_s)"
                raise LimitExceeded(message, hint="do less in one program")
        calls = Calls(names, call, self.limits, inside.callers[depth], depth, outer)
        made = Running(calls, self.limits, before, wall, Output(self.limits.output_chars))
        inside.running.add(made)
        return made

    def _submit(self, running: Running, work: Callable[[], Ended]) -> None:
        """Wait for a turn, in order. A run inside of another one has its turn already."""
        inside = self._opened()
        if (outer := running.calls.parent) is not None:
            outer.adopt(running.cancel)
            try:
                self._timed(running, work)
            finally:
                outer.release(running.cancel)
            return
        with inside.guard:
            if inside.waiting >= self.limits.waiting + self.limits.runs:
                message = f"{self.limits.waiting} programs wait already (limit waiting)"
                raise LimitExceeded(message, hint="try again in a few seconds", retry=True)
            inside.waiting += 1

        def give_up() -> None:
            if running.after_stop is None:
                running.stop("waited")

        late = inside.watch.at(time.monotonic() + running.timeout_s, give_up)

        def job() -> None:
            late.cancel()
            try:
                self._timed(running, work)
            finally:
                with inside.guard:
                    inside.waiting -= 1

        inside.runners.submit(job)

    def _timed(self, running: Running, work: Callable[[], Ended]) -> None:
        inside = self._opened()
        running.began = time.monotonic()
        end = running.began + running.timeout_s
        running.calls.deadline = end

        def report_soon() -> None:
            inside.watch.at(time.monotonic() + GRACE_S, running.abandon)

        running.after_stop = report_soon
        if running.done:  # cancelled while it waited
            return
        alarm = inside.watch.at(end, lambda: running.stop("timeout"))
        try:
            with working_for(running.calls):
                ended = Ended("", died=True) if running.stopped else work()
            running.finish(running.report(ended))
        except Rejected as rejected:
            running.finish(running.report(Ended("", error=rejected.failure)))
        except BaseException as error:  # noqa: BLE001  # the caller's to see
            running.fail(error)
        finally:
            alarm.cancel()

    def _run(self, program: Program, running: Running) -> Ended:
        source = Source(program.code, self.limits.source_bytes)
        state = self._state(program)
        engine, running.reason = self._choose(program, source, state)
        waits = engine == "monty" and not running.calls.depth
        if found := problems(source, program.names, approvals=waits, known=state.names):
            raise Rejected(_all(found))
        running.engine = engine
        ended = self._on(engine, program, running, source, state)
        if self._harmless(running) and ended.died and ended.error is not None and ended.error["type"] == "WorkerDied":
            # The worker may have been killed while it waited for us. Nothing has been done, so it may be done again.
            if not running.reopen():
                return ended
            running.output = Output(self.limits.output_chars)
            inside = self._opened()
            (inside.python if ended.engine == "python" else inside.monty).distrust()
            ended = self._on(engine, program, running, source, self._state(program))
        if engine == "monty" and program.engine == "auto" and self._may_retry(ended, running):
            ended = self._again(program, running, source, ended)
        error = ended.error
        if error is not None and error["type"] == "NameError":
            name = error["message"].partition("'")[2].partition("'")[0]
            error["hint"] = "; ".join(filter(None, [state.unkept(name, ended.engine), error["hint"]])) or None
        return ended

    def _state(self, program: Program) -> State:
        """Return the variables that a program begins with."""
        return State.opened(self._key, program.owner, program.state).beside(program.inputs)

    def _on(self, engine: str, program: Program, running: Running, source: Source, state: State) -> Ended:
        if engine == "python":
            return self._on_cpython(program, running, source, state)
        try:
            return self._on_monty(program, running, source, state)
        except Misconfigured as error:
            if program.engine == "monty":
                raise
            running.engine, running.reason = "python", str(error)
            try:
                return self._opened().python.run(source, running, state, self._key, program.owner)
            except Misconfigured:
                raise error from None

    def _choose(self, program: Program, source: Source, state: State) -> tuple[str, str]:
        if program.engine not in ("auto", "monty", "python"):
            raise InvalidInput(f"there is no engine {program.engine!r:.40}", hint="auto, monty or python")
        if program.engine != "auto":
            return program.engine, "asked for"
        if reason := routing.cpython(source, program.names):
            return "python", reason
        if reason := routing.earlier(source.used, state.sources, program.names):
            return "python", reason
        return "monty", ""

    def _on_monty(self, program: Program, running: Running, source: Source, state: State) -> Ended:
        inside = self._opened()
        return Drive(inside.monty, running, inside.watch, self._key, program.owner).run(source, state)

    def _on_cpython(self, program: Program, running: Running, source: Source, state: State) -> Ended:
        try:
            return self._opened().python.run(source, running, state, self._key, program.owner)
        except Misconfigured as error:
            if program.engine == "python":
                raise
            hint = f"{error}; write it without: {running.reason}"
            raise Rejected(failure("Unsupported", f"this program needs CPython: {running.reason}", hint=hint)) from None

    @staticmethod
    def _harmless(running: Running) -> bool:
        """Tell whether a program has made no call: what has been done is never done twice."""
        return not (running.stopped or running.calls.count or running.calls.made)

    @classmethod
    def _may_retry(cls, ended: Ended, running: Running) -> bool:
        error = ended.error
        if error is None or ended.died or not cls._harmless(running):
            return False
        if error["type"] == "NameError":
            return any(hasattr(builtins, word) for word in error["message"].split("'")[1:2])
        return error["type"] in _RETRIED or "monty" in error["message"]

    def _again(self, program: Program, running: Running, source: Source, first: Ended) -> Ended:
        """Run on CPython what Monty could not; if that fails too, the first answer stands."""
        assert first.error is not None
        if not running.reopen():
            return first
        printed, running.output = running.output, Output(self.limits.output_chars)
        state = self._state(program)
        try:
            second = self._opened().python.run(source, running, state, self._key, program.owner)
        except Misconfigured:
            running.output = printed
            return first
        unread = first.error["type"] == "NotImplementedError"
        if second.error is None or second.died or running.calls.made or unread:
            running.engine, running.reason = "python", f"Monty: {first.error['message'][:200]}"
            return second
        running.output = printed
        if second.error["type"] == first.error["type"]:  # CPython always knows the place
            first.error["line"] = second.error["line"]
        return first


def _all(found: list[Failure]) -> Failure:
    """Tell of the first problem, and of the others in its hint."""
    first = found[0].copy()
    others = [f"line {one['line']}: {one['message']}" for one in found[1:10]]
    if others:
        first["hint"] = "; ".join(filter(None, [first["hint"], f"also {'; '.join(others)}"]))
    said = [first["hint"][: LONGEST_HINT - 20]] if first["hint"] else []
    first["hint"] = "; ".join([*said, "nothing was run"])
    return first


_inherited: list[_Inside] = []
_open: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open):
        sandbox.close()
