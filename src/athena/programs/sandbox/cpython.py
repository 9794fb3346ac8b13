"""The CPython engine: one jailed worker process for each program, never without a jail."""

import json
import keyword
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from athena.errors import Misconfigured, Unavailable
from athena.programs.sandbox import jail
from athena.programs.sandbox.calls import MAX_PATH_CHARS, CallError, CallResult, TooManyUnknownCalls
from athena.programs.sandbox.check import IMPORTS_HINT
from athena.programs.sandbox.journal import JOURNAL_FORMAT, CallJournal, JournalEntry, ReplayDiffers
from athena.programs.sandbox.json_values import JsonBudget, ValueTooLarge, to_plain_json
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import RESERVED_NAMES
from athena.programs.sandbox.python_worker import MAX_SMALL_FRAME_BYTES, PythonWorker, ReadyWorker, WorkerBroken
from athena.programs.sandbox.run import ActiveRun, EngineResult, Output
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.spawner import Spawner
from athena.programs.sandbox.state import (
    MAX_KNOWN_NAMES,
    NOT_PLAIN_REASON,
    TOO_LARGE_REASON,
    CannotPause,
    State,
    create_pause,
    keep_newest_sources,
    pack_json,
)
from athena.programs.sandbox.values import DENIED_MESSAGE, Failure, PauseRequired, create_failure

READY_WORKER_COUNT = 2
_WORKER_PATH = Path(__file__).with_name("worker")
_REPLAY_HINT = (
    "run the program again; time, random numbers and ids of its own differ from run to run, so keep them out of the "
    "arguments of calls before one that waits"
)


@dataclass(frozen=True, slots=True)
class Replay:
    """A paused run that goes on: its journal, and the person's decision about its last call."""

    entries: list[JournalEntry]
    approved: bool
    refusal: str


class CPython:
    name = "python"

    def __init__(self, limits: Limits, spawner: Spawner, layer_choices: Sequence[jail.Layers]) -> None:
        self.limits, self._spawner, self._layer_choices = limits, spawner, layer_choices
        self.layers: jail.Layers | None = None
        self.version = ".".join(map(str, sys.version_info[:3]))
        self._ready_workers: list[PythonWorker] = []
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Find the strongest jail in which a worker starts, once."""
        with self._opening:
            if self.layers is None:
                self._spawner.run_job(self._find_layers)

    def _find_layers(self) -> None:
        for layers in self._layer_choices:
            worker = self._start_worker(layers)
            try:
                worker.wait_ready()
            except WorkerBroken:
                worker.terminate()
                continue
            self.layers = layers
            self._add_ready(ReadyWorker.from_worker(worker))
            return
        raise Misconfigured(
            "no jail for CPython works on this machine", hint="athena doctor says which layers are missing"
        )

    def _start_worker(self, layers: jail.Layers) -> PythonWorker:
        limits, files = self.limits, [str(_WORKER_PATH)]
        spec = jail.build_python_spec(
            ["-P", "-s", "-S", "-B", "-X", "utf8", str(_WORKER_PATH)],  # not -I: it would ignore PYTHONHASHSEED
            cpu_s=int(limits.cpu_s) + 1,
            memory_mb=limits.python_memory_mb,
            files=files,
        )
        return PythonWorker(jail.build_command(spec, layers))

    def _create_worker(self) -> PythonWorker:
        if self._closed or self.layers is None:
            raise Unavailable("the sandbox is closed")
        return self._start_worker(self.layers)

    def _refill_ready(self) -> None:
        if self._closed or len(self._ready_workers) >= READY_WORKER_COUNT:
            return
        self._add_ready(self._create_worker())
        if len(self._ready_workers) < READY_WORKER_COUNT:
            self._spawner.submit_job(self._refill_ready)  # after the jobs that are already queued

    def _add_ready(self, worker: PythonWorker) -> None:
        with self._guard:
            if not self._closed:
                self._ready_workers.append(worker)
                return
        worker.terminate()  # the sandbox was closed meanwhile

    def _acquire_worker(self) -> PythonWorker:
        """Return a ready worker; replace one that died while idle, for nothing has run in it."""
        self.open()
        for _ in range(READY_WORKER_COUNT + 4):
            worker = self._pop_ready() or self._spawner.run_job(lambda: self._pop_ready() or self._create_worker())
            if worker.process.poll() is None:
                try:
                    worker.wait_ready()
                    return worker
                except WorkerBroken:
                    pass
            self._spawner.submit_job(worker.terminate)
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _pop_ready(self) -> PythonWorker | None:
        with self._guard:
            return self._ready_workers.pop(0) if self._ready_workers else None

    def discard_ready(self) -> None:
        """End the idle workers: the cause of one death may have killed all."""
        with self._guard:
            waiting, self._ready_workers = self._ready_workers, []
        for worker in waiting:
            self._spawner.submit_job(worker.terminate)

    def close(self) -> None:
        """End all workers, on the spawner's thread."""
        with self._guard:
            self._closed = True
            waiting, self._ready_workers = self._ready_workers, []
        for worker in waiting:
            worker.terminate()

    # --- one program --------------------------------------------------------------------------------------------------

    def run(
        self,
        source: ProgramSource,
        running: ActiveRun,
        state: State,
        key: bytes,
        owner: str,
        *,
        inputs: Mapping[str, Any],
        replay: Replay | None = None,
    ) -> EngineResult:
        """Run a program, or replay a paused one up to the call that waited and go on from there."""
        worker = self._acquire_worker()
        running.set_kill(worker.handle.kill)
        last_frame: dict[str, Any] | None = None
        may_pause = not running.calls.depth
        journal = CallJournal(self.limits.journal_bytes if may_pause else 0, replay.entries if replay else ())
        try:
            worker.write_frame(json.dumps(self._build_program_frame(source, running, state)).encode())
            self._spawner.submit_job(self._refill_ready)  # not before: starting a process takes some milliseconds
            last_frame = _PythonCalls(worker, running, journal, replay, may_pause).answer_all()
        except WorkerBroken:
            pass
        except PauseRequired as required:
            return self._create_paused_result(required, source, running, journal, key, owner, inputs)
        except ReplayDiffers as differs:
            message = f"the program made other calls than before it waited: {differs}; the approved call was not made"
            error = create_failure("ReplayDiffers", message, hint=_REPLAY_HINT)
            return EngineResult("python", error=error, state_unchanged=True)
        except TooManyUnknownCalls as error:
            return EngineResult(
                "python", error=create_failure("LimitExceeded", str(error), limit="calls"), state_unchanged=True
            )
        finally:
            running.clear_kill()
            running.calls.close()
            spent = worker.handle.read_cpu_s()
            if running.calls.depth:
                running.calls.add_cpu_s(spent)
            code = self._spawner.run_job(worker.terminate)
        if last_frame is None:
            return EngineResult("python", error=_describe_exit(code, spent, self.limits), worker_died=True)
        return self._create_result(last_frame, source, running, state, key, owner)

    def _create_paused_result(
        self,
        required: PauseRequired,
        source: ProgramSource,
        running: ActiveRun,
        journal: CallJournal,
        key: bytes,
        owner: str,
        inputs: Mapping[str, Any],
    ) -> EngineResult:
        if running.stop_reason:
            return EngineResult("python", worker_died=True)
        head = {
            "engine": "python",
            "wrote": JOURNAL_FORMAT,
            "code": source.text,
            "inputs": dict(inputs),
            "output": running.output.text,
            "count": running.calls.count,
            "made": running.calls.counts_by_path,
        }
        try:
            if journal.is_full:
                size = f"{self.limits.journal_bytes >> 20} MB (limit journal_bytes)"
                raise CannotPause(f"{required.path} waits for a person, and the calls before it returned over {size}")
            body = pack_json(journal.to_json(), running.state_before or b"")
            pause = create_pause(key, owner, head, body, required, self.limits.state_bytes)
        except CannotPause as error:
            return EngineResult("python", error=error.failure, state_unchanged=True)
        return EngineResult("python", pause=pause)

    def _build_program_frame(self, source: ProgramSource, running: ActiveRun, state: State) -> dict[str, Any]:
        limits = self.limits
        return {
            "code": source.text,
            "roots": sorted(running.calls.names.roots),
            "inside": running.calls.names.members,
            "variables": {name: value for name, value in state.plain.items() if name not in running.calls.names.roots},
            "definitions": list(state.sources.values()),
            "sources": [*state.sources, *source.definitions],  # kept as source for the next run
            "limits": {
                "output": limits.output_chars,
                "nodes": limits.value_nodes,
                "size": limits.value_bytes,
                "parallel": limits.parallel,
            },
        }

    def _create_result(
        self,
        last_frame: dict[str, Any],
        source: ProgramSource,
        running: ActiveRun,
        state: State,
        key: bytes,
        owner: str,
    ) -> EngineResult:
        dropped = last_frame.get("dropped")
        if isinstance(dropped, int) and dropped > 0:
            running.output.add_dropped(dropped)
        error = _parse_failure(last_frame, self.limits)
        if error is not None and error["type"] == "MemoryError":
            return EngineResult("python", error=error, state_unchanged=True)
        sealed, names = self._seal_variables(last_frame, source, running.calls.names.roots, state, key, owner)
        if error is not None:
            return EngineResult("python", error=error, state=sealed, lost=names)
        try:
            value = to_plain_json(last_frame.get("value"), self.limits.value_nodes, self.limits.value_bytes)
        except ValueTooLarge as large:
            return EngineResult("python", value=f"[cut: {large}]", is_cut=True, state=sealed, lost=names)
        full_length = last_frame.get("whole")
        long = full_length if isinstance(full_length, int) and isinstance(value, str | list | dict) else None
        return EngineResult(
            "python", value=value, is_cut=last_frame.get("cut") is True, full_length=long, state=sealed, lost=names
        )

    def _seal_variables(
        self, last_frame: dict[str, Any], source: ProgramSource, roots: set[str], state: State, key: bytes, owner: str
    ) -> tuple[bytes | None, tuple[str, ...]]:
        """Seal the variables for the next run and name those that are lost; None leaves them unchanged."""
        variables, hidden, sieve = last_frame.get("variables"), source.list_hidden(roots), JsonBudget()
        if not isinstance(variables, dict):
            return None, (*source.top_level_names, *hidden)
        values = {
            name: value for name, value in variables.items() if _is_variable(name, roots) and sieve.accepts(value)
        }
        dropped = [name for name in (*variables, *_clean_names(last_frame.get("lost"))) if name not in values]
        lost = [name for name in dropped if _is_variable(name, roots)]
        changed = [name for name, value in values.items() if name not in state.plain or state.plain[name] != value]
        gone = {*_clean_names(last_frame.get("gone")), *lost} - set(values)
        sources = {name: text for name, text in state.sources.items() if name not in gone} | source.definitions
        sources = {name: text for name, text in sources.items() if name not in changed}
        gone |= {name for name in state.plain if name not in values and name not in sources and name not in roots}
        known = _merge_distinct((name for name in state.known if name not in gone), values, lost, source.definitions)
        new = replace(
            state,
            plain={name: value for name, value in state.plain.items() if name in roots} | values,
            known=known[:MAX_KNOWN_NAMES],
            newer=_merge_distinct(state.newer, changed),
            sources=keep_newest_sources(sources, self.limits.source_bytes),
            newer_sources=[name for name in sources if name in state.newer_sources or name in source.definitions],
            missing={name: why for name, why in state.missing.items() if name not in values}
            | dict.fromkeys(lost, NOT_PLAIN_REASON),
        )
        new.newer_sources = [name for name in new.newer_sources if name in new.sources]
        if new.dump and gone.intersection(state.known):  # Monty cannot forget a name
            only_monty = (name for name in known if name not in new.missing)
            lost += new.shrink_to_plain(only_monty, f"{min(gone)} was deleted on CPython")
        if not (new.plain or new.sources or new.dump or new.known or state.known):
            return None, (*lost, *hidden)
        sealed = new.to_sealed(key, owner)
        if len(sealed) > self.limits.state_bytes and new.dump:
            lost += new.shrink_to_plain(state.known, TOO_LARGE_REASON)
            sealed = new.to_sealed(key, owner)
        if len(sealed) > self.limits.state_bytes:
            return None, (*source.top_level_names, *hidden)
        return sealed, (*lost, *hidden)


class _PythonCalls:
    """Answers the calls of one program: from the journal as far as it is a replay, else by making them."""

    def __init__(
        self, worker: PythonWorker, running: ActiveRun, journal: CallJournal, replay: Replay | None, may_pause: bool
    ) -> None:
        self._worker, self._running, self._calls, self._journal = worker, running, running.calls, journal
        self._replay, self._may_pause = replay, may_pause
        self._replayed_output = Output(running.limits.output_chars)

    def answer_all(self) -> dict[str, Any]:
        """Answer every call until the program is done; return its last frame."""
        while True:
            frame = self._worker.read_frame()
            kind = frame.get("op")
            if kind == "call":
                self._answer_call(frame)
            elif kind == "out":
                self._write_output(frame.get("text"))
            elif kind == "done":
                if self._journal.is_replaying:
                    error = f" ({frame['error']}: {frame.get('message')})"[:300] if "error" in frame else ""
                    raise ReplayDiffers(f"{self._journal.describe_missing()}{error}")
                return frame
            else:
                raise WorkerBroken("an unknown frame")

    def _answer_call(self, frame: dict[str, Any]) -> None:
        call_id, path = frame.get("id"), frame.get("path")
        args, kwargs = frame.get("args"), frame.get("kwargs")
        if not (isinstance(call_id, int) and isinstance(path, str) and isinstance(args, list)):
            raise WorkerBroken("a call cannot be read")
        if not isinstance(kwargs, dict) or len(path) > MAX_PATH_CHARS:
            raise WorkerBroken("a call cannot be read")
        entry, has_waited = self._journal.begin_call(path, self._worker.frame_bytes)
        deliver = partial(self._deliver_result, entry, call_id)
        if entry.reply is not None:
            reply = partial(self._send_reply, call_id, entry.reply)
            # The worker goes on writing while its parallel calls run, so only another thread may wait for it to read.
            self._calls.run_in_background(reply) if frame.get("at_once") is True else reply()
        elif has_waited and self._replay is not None and not self._replay.approved:
            refusal = self._replay.refusal or DENIED_MESSAGE
            deliver(CallResult(error=CallError("ToolError", "denied", refusal)))
        elif frame.get("at_once") is True:
            self._calls.start_call(path, args, kwargs, deliver)
        else:
            try:
                deliver(self._calls.make_call(path, args, kwargs, pausable=self._may_pause))
            except PauseRequired:
                self._journal.wait_for_replies(lambda: self._calls.is_closed)
                raise

    def _deliver_result(self, entry: JournalEntry, call_id: int, result: CallResult) -> None:
        reply: dict[str, Any] = {"value": result.value}
        if (error := result.error) is not None:
            reply = {"error": error.text, "code": error.code, "kind": error.exception_type, "hint": error.hint}
        data = json.dumps(reply).encode()
        self._journal.record_reply(entry, data)
        self._send_reply(call_id, data)

    def _send_reply(self, call_id: int, reply: bytes) -> None:
        self._worker.write_frame(b'{"id": %d, "reply": %s}' % (call_id, reply))

    def _write_output(self, text: Any) -> None:
        # The caller has already seen the output from before the pause.
        output = self._replayed_output if self._journal.is_replaying else self._running.output
        max_chars = 2 * self._running.limits.output_chars + MAX_SMALL_FRAME_BYTES
        if not isinstance(text, str) or output.total_chars > max_chars:
            raise WorkerBroken("it printed more than a worker may send")
        output.write(text)


def _merge_distinct(*many: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(chain(*many)))


def _clean_names(names: Any) -> list[str]:
    return [name[:MAX_PATH_CHARS] for name in names[:1_000] if isinstance(name, str)] if isinstance(names, list) else []


def _is_variable(name: str, roots: set[str]) -> bool:
    """Return whether this is a name that a program may bind; the worker may send anything."""
    named = name.isidentifier() and len(name) <= MAX_PATH_CHARS and not keyword.iskeyword(name)
    return named and not name.startswith("__") and name not in roots and name not in RESERVED_NAMES


def _parse_failure(last_frame: dict[str, Any], limits: Limits) -> Failure | None:
    if "error" not in last_frame:
        return None
    kind, message, line = str(last_frame["error"])[:100], str(last_frame.get("message", "")), last_frame.get("line")
    where = line if isinstance(line, int) else None
    hint = str(last_frame["hint"]) if last_frame.get("hint") else None
    if hint and message.endswith(f" (hint: {hint})"):
        message = message.removesuffix(f" (hint: {hint})")
    if kind == "MemoryError":
        limit_message = f"more than {limits.python_memory_mb} MB of memory (limit python_memory_mb)"
        return create_failure(kind, limit_message, where, "work on less at a time", "python_memory_mb")
    if kind in ("ImportError", "ModuleNotFoundError") and hint is None:
        hint = IMPORTS_HINT
    return create_failure(kind, message, where, hint)


def _describe_exit(code: int, spent: float, limits: Limits) -> Failure:
    if code == -signal.SIGXCPU or spent > limits.cpu_s:  # a program may ignore the signal, and is killed then
        return create_failure("TimeoutError", f"more than {limits.cpu_s:g} s of computing (limit cpu_s)", limit="cpu_s")
    if code == -signal.SIGKILL:
        return create_failure("WorkerDied", "the process that ran the program was killed")
    return create_failure("WorkerDied", f"the process that ran the program exited ({code})")
