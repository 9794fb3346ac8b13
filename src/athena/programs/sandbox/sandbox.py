"""Run programs: check them, choose the engine, wait for a free slot, enforce the timeout, return one result."""

import atexit
import builtins
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TypedDict

from athena.core.threads import ThreadPool
from athena.errors import AthenaError, Conflict, InvalidInput, LimitExceeded, Misconfigured
from athena.programs.sandbox import routing
from athena.programs.sandbox.calls import RunCalls, bind_current_calls, current_calls
from athena.programs.sandbox.check import find_problems
from athena.programs.sandbox.cpython import CPython, Replay
from athena.programs.sandbox.jail import NO_LAYERS, Layers, list_layer_choices
from athena.programs.sandbox.journal import JOURNAL_FORMAT, parse_entries
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.monty import types
from athena.programs.sandbox.monty.driver import MontyDriver
from athena.programs.sandbox.monty.engine import Monty
from athena.programs.sandbox.names import Namespace
from athena.programs.sandbox.run import KILL_GRACE_S, ActiveRun, EngineResult, Output
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.spawner import Spawner
from athena.programs.sandbox.state import State, read_pause, unpack_content
from athena.programs.sandbox.timer import TimerThread
from athena.programs.sandbox.values import (
    MAX_HINT_CHARS,
    Failure,
    HostCall,
    Program,
    ProgramRejected,
    Run,
    create_failure,
)

# Monty's errors about features that CPython has. A program that made no call runs again on CPython from its start.
_RETRIED_ERRORS = frozenset(
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


OWN_TIME_POLL_S = 0.5  # while a program waits for a server


class EngineReport(TypedDict):
    works: bool
    version: str
    layers: list[str]
    why: str


class _ProcessState:
    """Threads and workers of one process; they do not survive a fork."""

    def __init__(self, limits: Limits, layer_choices: Sequence[Layers], allow_bare: bool) -> None:
        self.pid = os.getpid()
        self.spawner = Spawner()
        self.timer = TimerThread()
        self.monty = Monty(limits, [*layer_choices, NO_LAYERS] if allow_bare else layer_choices)
        self.python = CPython(limits, self.spawner, layer_choices)
        self.runners = ThreadPool(limits.runs, "athena-run")
        # A pool for each depth: a call may wait for the calls of a nested program.
        self.callers = [ThreadPool(limits.parallel * 2, f"athena-call-{depth}") for depth in range(limits.depth)]
        self.waiting_count = 0
        self._lent_count, self._max_lent = 0, limits.lent_runs  # slots of programs that wait for servers
        self.guard = threading.Lock()
        self.active_runs: weakref.WeakSet[ActiveRun] = weakref.WeakSet()

    def lend_slots(self, change: int) -> None:
        """Let more programs run at once, or fewer again, up to a limit."""
        with self.guard:
            before = min(self._lent_count, self._max_lent)
            self._lent_count += change
            self.runners.resize(min(self._lent_count, self._max_lent) - before)

    def close(self) -> None:
        for run in list(self.active_runs):
            run.cancel()
        self.spawner.submit_job(self.monty.close)
        self.spawner.submit_job(self.python.close)
        self.spawner.close(2.0)
        self.timer.close()
        for pool in (self.runners, *self.callers):
            pool.close()


class Sandbox:
    """Runs programs. Creating one is cheap: the first program starts the workers."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        key: bytes,  # seals variables and paused runs
        layer_choices: Sequence[Layers] | None = None,  # acceptable jails, strongest first; None: all of this machine
        allow_bare: bool = False,  # allow Monty without a jail
    ) -> None:
        self.limits = limits or Limits()
        self._key, self._layer_choices, self._allow_bare = key, layer_choices, allow_bare
        self._process_state: _ProcessState | None = None
        self._guard = threading.Lock()
        self._closed = False

    # --- running ------------------------------------------------------------------------------------------------------

    def run(self, program: Program, call: HostCall) -> Run:
        """Run a program and wait for its end; raise only errors that the program did not cause."""
        return self.start(program, call).result()

    def start(self, program: Program, call: HostCall) -> ActiveRun:
        """Start a program; its run can be awaited and cancelled."""
        running = self._create_active_run(program.names, call, program.state, program.timeout_s)
        self._submit_run(running, lambda: self._run_program(program, running))
        return running

    @contextmanager
    def wait_outside(self) -> Generator[None]:
        """Count a call of a server as waiting, and let another program run meanwhile."""
        process, calls = self._open_process_state(), current_calls()
        assert calls is not None
        if calls.begin_outside_call():
            process.lend_slots(1)
        try:
            yield
        finally:
            if calls.end_outside_call():
                process.lend_slots(-1)

    def resume(
        self, snapshot: bytes, call: HostCall, names: Namespace, *, approved: bool, refusal: str = "", owner: str = "",
        timeout_s: float | None = None,
    ) -> Run:  # fmt: skip
        """Resume a paused run and wait for its end."""
        return self.start_resumed(
            snapshot, call, names, approved=approved, refusal=refusal, owner=owner, timeout_s=timeout_s
        ).result()

    def check_paused(self, snapshot: bytes, owner: str) -> None:
        """Raise Conflict if this version cannot resume a paused run."""
        process = self._open_process_state()
        head, _ = read_pause(self._key, owner, snapshot)
        on_cpython = head.get("engine") == "python"
        (process.python if on_cpython else process.monty).open()
        if head["wrote"] != (JOURNAL_FORMAT if on_cpython else process.monty.dump_format):
            message = "this paused run belongs to another version of the engine; nothing was run"
            raise Conflict(message, hint="run the program again from its start")

    def start_resumed(
        self, snapshot: bytes, call: HostCall, names: Namespace, *, approved: bool, refusal: str = "", owner: str = "",
        timeout_s: float | None = None,
    ) -> ActiveRun:  # fmt: skip
        """Resume a paused run: make the call that waits if it is approved, then the rest of the program."""
        head, body = read_pause(self._key, owner, snapshot)
        engine = head.get("engine", "monty")
        journal, before = unpack_content(body) if engine == "python" else ([], bytes.fromhex(head["before"]))
        running = self._create_active_run(names, call, before or None, timeout_s)
        running.output = Output(self.limits.output_chars, head["output"])
        running.calls.restore_counts(head["count"], head["made"])
        running.engine, running.reason = engine, "it was paused there"

        def resume_on_monty() -> EngineResult:
            process = self._open_process_state()
            driver = MontyDriver(process.monty, running, process.timer, self._key, owner)
            return driver.resume(head, body, approved=approved, refusal=refusal)

        def replay_on_cpython() -> EngineResult:
            program = Program(head["code"], names, "python", before or None, None, owner, head["inputs"])
            source = ProgramSource(program.code, self.limits.source_bytes)
            replay = Replay(parse_entries(journal), approved, refusal)
            return self._run_cpython(program, running, source, self._load_state(program), replay)

        self._submit_run(running, replay_on_cpython if engine == "python" else resume_on_monty)
        return running

    def check_program(self, program: Program) -> list[Failure]:
        """Return the certain errors of a program, without running it."""
        try:
            source = ProgramSource(program.code, self.limits.source_bytes)
        except ProgramRejected as rejected:
            return [rejected.failure]
        return find_problems(source, program.names)

    def check_types(self, code: str, names: Namespace) -> list[Failure]:
        """Return certain type errors of a program, without running it."""
        return types.parse_report(self._open_process_state().monty.check_types(code, types.build_stubs(names)))

    # --- engines ------------------------------------------------------------------------------------------------------

    def probe_engines(self) -> dict[str, EngineReport]:
        """Start a worker of each engine and report the layers of its jail, for `athena doctor`."""
        process = self._open_process_state()
        report: dict[str, EngineReport] = {}
        for engine in (process.monty, process.python):
            why = ""
            try:
                engine.open()
            except AthenaError as error:
                why = str(error)
            layers = list(engine.layers or ())
            report[engine.name] = {"works": not why, "version": engine.version, "layers": layers, "why": why}
        return report

    def warm_up(self) -> None:
        """Start the default engine in advance."""
        self._open_process_state().monty.open()

    def close(self) -> None:
        """End all workers."""
        with self._guard:
            self._closed = True
            process, self._process_state = self._process_state, None
        if process is not None and process.pid == os.getpid():
            process.close()

    def _open_process_state(self) -> _ProcessState:
        with self._guard:
            if self._closed:
                raise Misconfigured("this sandbox was closed")
            if self._process_state is None or self._process_state.pid != os.getpid():
                if self._process_state is not None:
                    _inherited_states.append(
                        self._process_state
                    )  # keep the parent's: collecting it would end the parent's workers
                self._process_state = _ProcessState(self.limits, self._select_layers(), self._allow_bare)
                _open_sandboxes.add(self)
            return self._process_state

    def _select_layers(self) -> Sequence[Layers]:
        return list_layer_choices() if self._layer_choices is None else self._layer_choices

    # --- one run ------------------------------------------------------------------------------------------------------

    def _create_active_run(
        self, names: Namespace, call: HostCall, before: bytes | None, timeout_s: float | None
    ) -> ActiveRun:
        process, outer = self._open_process_state(), current_calls()
        depth = outer.depth + 1 if outer else 0
        if depth >= self.limits.depth:
            raise LimitExceeded(f"programs inside of programs, more than {self.limits.depth} deep (limit depth)")
        wall = min(timeout_s or self.limits.wall_s, self.limits.wall_s)
        if wall <= 0:
            raise InvalidInput("timeout_s must be more than 0")
        if outer is not None:
            wall = max(0.001, min(wall, outer.deadline - time.monotonic()))
            if outer.root.cpu_s > self.limits.cpu_s:
                message = f"the programs inside of this one have used {self.limits.cpu_s:g} s of CPU time (limit cpu_s)"
                raise LimitExceeded(message, hint="do less in one program")
        calls = RunCalls(names, call, self.limits, process.callers[depth], depth, outer)
        active_run = ActiveRun(calls, self.limits, before, wall, Output(self.limits.output_chars))
        process.active_runs.add(active_run)
        return active_run

    def _submit_run(self, running: ActiveRun, work: Callable[[], EngineResult]) -> None:
        """Queue a run for a free slot. A nested run uses the slot of its parent."""
        process = self._open_process_state()
        if (outer := running.calls.parent) is not None:
            outer.add_child(running.cancel)
            try:
                self._run_timed(running, work)
            finally:
                outer.remove_child(running.cancel)
            return
        with process.guard:
            if process.waiting_count >= self.limits.waiting + self.limits.runs:
                message = f"{self.limits.waiting} programs wait already (limit waiting)"
                raise LimitExceeded(message, hint="try again in a few seconds", retry=True)
            process.waiting_count += 1

        def give_up() -> None:
            if running.after_stop is None:
                running.stop("waited")

        late = process.timer.schedule_at(time.monotonic() + running.timeout_s, give_up)

        def run_turn() -> None:
            late.cancel()
            try:
                self._run_timed(running, work)
            finally:
                with process.guard:
                    process.waiting_count -= 1

        process.runners.submit(run_turn)

    def _run_timed(self, running: ActiveRun, work: Callable[[], EngineResult]) -> None:
        process = self._open_process_state()
        running.started_at = time.monotonic()
        end = running.started_at + running.timeout_s
        running.calls.deadline = end

        def report_soon() -> None:
            process.timer.schedule_at(time.monotonic() + KILL_GRACE_S, running.report_abandoned)

        running.after_stop = report_soon
        if running.is_done:  # cancelled while it waited
            return
        alarms = [process.timer.schedule_at(end, lambda: running.stop("timeout"))]

        def check_own_time() -> None:
            left_s = self.limits.own_s - (time.monotonic() - running.started_at - running.calls.outside_s)
            if left_s <= 0:
                running.stop("own_time")
            elif not running.is_done:
                when = time.monotonic() + max(left_s, OWN_TIME_POLL_S)
                alarms[1:] = [process.timer.schedule_at(when, check_own_time)]

        if running.timeout_s > self.limits.own_s and not running.calls.depth:
            check_own_time()
        try:
            with bind_current_calls(running.calls):
                ended = EngineResult("", worker_died=True) if running.stop_reason else work()
            running.finish(running.create_run(ended))
        except ProgramRejected as rejected:
            running.finish(running.create_run(EngineResult("", error=rejected.failure)))
        except BaseException as error:  # noqa: BLE001  # delivered to the caller
            if running.stop_reason and isinstance(error, AthenaError):  # it ended because it was stopped
                running.report_abandoned()
            else:
                running.fail(error)
        finally:
            for alarm in alarms:
                alarm.cancel()

    def _run_program(self, program: Program, running: ActiveRun) -> EngineResult:
        source = ProgramSource(program.code, self.limits.source_bytes)
        state = self._load_state(program)
        engine, running.reason = self._choose_engine(program, source, state)
        may_wait = not running.calls.depth
        if problems := find_problems(source, program.names, approvals=may_wait, known=state.known_names):
            raise ProgramRejected(_merge_problems(problems))
        running.engine = engine
        ended = self._run_on_engine(engine, program, running, source, state)
        if (
            self._is_harmless(running)
            and ended.worker_died
            and ended.error is not None
            and ended.error["type"] == "WorkerDied"
        ):
            # The worker may have died while it was idle. The program has made no call, so it may run again.
            if not running.reopen():
                return ended
            running.output = Output(self.limits.output_chars)
            process = self._open_process_state()
            (process.python if ended.engine == "python" else process.monty).discard_ready()
            ended = self._run_on_engine(engine, program, running, source, self._load_state(program))
        if engine == "monty" and program.engine == "auto" and self._may_retry(ended, running):
            ended = self._retry_on_cpython(program, running, source, ended)
        error = ended.error
        if error is not None and error["type"] == "NameError":
            name = error["message"].partition("'")[2].partition("'")[0]
            error["hint"] = "; ".join(filter(None, [state.explain_missing(name, ended.engine), error["hint"]])) or None
        return ended

    def _load_state(self, program: Program) -> State:
        """Return the variables that a program begins with."""
        return State.from_sealed(self._key, program.owner, program.state).add_variables(program.inputs)

    def _run_on_engine(
        self, engine: str, program: Program, running: ActiveRun, source: ProgramSource, state: State
    ) -> EngineResult:
        if engine == "python":
            return self._run_on_cpython(program, running, source, state)
        try:
            return self._run_on_monty(program, running, source, state)
        except Misconfigured as error:
            if program.engine == "monty":
                raise
            running.engine, running.reason = "python", str(error)
            try:
                return self._run_cpython(program, running, source, state)
            except Misconfigured:
                raise error from None

    def _run_cpython(
        self, program: Program, running: ActiveRun, source: ProgramSource, state: State, replay: Replay | None = None
    ) -> EngineResult:
        python = self._open_process_state().python
        return python.run(source, running, state, self._key, program.owner, inputs=program.inputs, replay=replay)

    def _choose_engine(self, program: Program, source: ProgramSource, state: State) -> tuple[str, str]:
        if program.engine not in ("auto", "monty", "python"):
            raise InvalidInput(f"there is no engine {program.engine!r:.40}", hint="auto, monty or python")
        if program.engine != "auto":
            return program.engine, "asked for"
        if reason := routing.find_cpython_reason(source, program.names):
            return "python", reason
        if reason := routing.find_earlier_reason(source.used_names, state.sources, program.names):
            return "python", reason
        return "monty", ""

    def _run_on_monty(self, program: Program, running: ActiveRun, source: ProgramSource, state: State) -> EngineResult:
        process = self._open_process_state()
        return MontyDriver(process.monty, running, process.timer, self._key, program.owner).run(source, state)

    def _run_on_cpython(
        self, program: Program, running: ActiveRun, source: ProgramSource, state: State
    ) -> EngineResult:
        try:
            return self._run_cpython(program, running, source, state)
        except Misconfigured as error:
            if program.engine == "python":
                raise
            if routing.can_try_monty(running.reason):
                running.engine, running.reason = "monty", str(error)
                with suppress(Misconfigured):
                    return self._run_on_monty(program, running, source, state)
            hint = f"{error}; write it without: {running.reason}"
            raise ProgramRejected(
                create_failure("Unsupported", f"this program needs CPython: {running.reason}", hint=hint)
            ) from None

    @staticmethod
    def _is_harmless(running: ActiveRun) -> bool:
        """Return whether a program has made no call, so that it may run again."""
        return not (running.stop_reason or running.calls.count or running.calls.counts_by_path)

    @classmethod
    def _may_retry(cls, ended: EngineResult, running: ActiveRun) -> bool:
        error = ended.error
        if error is None or ended.worker_died or not cls._is_harmless(running):
            return False
        if error["type"] == "NameError":
            return any(hasattr(builtins, word) for word in error["message"].split("'")[1:2])
        return error["type"] in _RETRIED_ERRORS or "monty" in error["message"]

    def _retry_on_cpython(
        self, program: Program, running: ActiveRun, source: ProgramSource, first: EngineResult
    ) -> EngineResult:
        """Run a program on CPython that Monty could not; if that fails too, return Monty's error."""
        assert first.error is not None
        if not running.reopen():
            return first
        first_output, running.output = running.output, Output(self.limits.output_chars)
        state = self._load_state(program)
        try:
            second = self._run_cpython(program, running, source, state)
        except Misconfigured:
            running.output = first_output
            return first
        is_unreadable = first.error["type"] == "NotImplementedError"
        if second.error is None or second.worker_died or running.calls.counts_by_path or is_unreadable:
            running.engine, running.reason = "python", f"Monty: {first.error['message'][:200]}"
            return second
        running.output = first_output
        if second.error["type"] == first.error["type"]:  # Monty does not always know the line
            first.error["line"] = second.error["line"]
        return first


def _merge_problems(problems: list[Failure]) -> Failure:
    """Return the first problem, with the others in its hint."""
    first = problems[0].copy()
    others = [f"line {problem['line']}: {problem['message']}" for problem in problems[1:10]]
    if others:
        first["hint"] = "; ".join(filter(None, [first["hint"], f"also {'; '.join(others)}"]))
    hints = [first["hint"][: MAX_HINT_CHARS - 20]] if first["hint"] else []
    first["hint"] = "; ".join([*hints, "nothing was run"])
    return first


_inherited_states: list[_ProcessState] = []
_open_sandboxes: "weakref.WeakSet[Sandbox]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sandbox in list(_open_sandboxes):
        sandbox.close()
