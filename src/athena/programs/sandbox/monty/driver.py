"""Drive one program on Monty: answer its calls and name lookups until it ends."""

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from athena.programs.sandbox.calls import MAX_PATH_CHARS, CallError, CallResult, RunCalls, TooManyUnknownCalls
from athena.programs.sandbox.json_values import CUT_MARK, ValueTooLarge, to_plain_json
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty.engine import INITIAL_FEED_COUNT, Monty, MontyWorker
from athena.programs.sandbox.monty.errors import describe_crash, to_failure
from athena.programs.sandbox.monty.parallel import ParallelCalls
from athena.programs.sandbox.run import ActiveRun, EngineResult
from athena.programs.sandbox.source import PLAIN_METHODS, ConcurrentSpans, ProgramSource
from athena.programs.sandbox.state import (
    MAX_KNOWN_NAMES,
    TOO_LARGE_REASON,
    CannotPause,
    State,
    create_pause,
    keep_newest_sources,
)
from athena.programs.sandbox.timer import TimerThread
from athena.programs.sandbox.values import DENIED_MESSAGE, Pause, PauseRequired, create_failure
from athena.programs.sandbox.worker.tagging import Tagger, UntaggableValue, untag_value

if TYPE_CHECKING:
    import pydantic_monty

_UUID_NAMESPACE = uuid.UUID("6f0d2d3e-0000-5000-8000-000000000001")
NO_CONCURRENT_SPANS = ConcurrentSpans()
_FEED_PATTERN = re.compile(r"<python-input-(\d+)>")


class _NamespaceObject:
    __slots__ = ("operations", "path")

    def __init__(self, path: str, operations: str) -> None:
        self.path, self.operations = path, operations

    def __str__(self) -> str:
        return f"<namespace {self.path}: {self.operations}>"


_NamespaceObject.__name__ = "namespace"  # as Monty shows it


@cache
def _path_uuid(path: str) -> uuid.UUID:
    return uuid.uuid5(_UUID_NAMESPACE, path)


@cache
def _create_namespace(path: str, operations: str) -> Any:
    """Create a namespace that has the same id in every session, so that it survives a dump."""
    import pydantic_monty as pm

    kind = pm.ClassType(_NamespaceObject, id=_path_uuid("#"))
    instance = _NamespaceObject(path, operations)
    return pm.ClassInstance(instance, eager_attrs={"operations"}, id=_path_uuid(path), class_type=kind)


def _create_stand_in(path: str) -> Any:
    def stand_in(*_: object, **__: object) -> None:
        raise RuntimeError

    stand_in.__name__ = stand_in.__qualname__ = path
    return stand_in


class MontyDriver:
    """One program in one session."""

    def __init__(self, engine: Monty, running: ActiveRun, timer: TimerThread, key: bytes, owner: str) -> None:
        self.engine, self.running, self.key, self.owner = engine, running, key, owner
        self.calls: RunCalls = running.calls
        self.names = running.calls.names
        self.paths_by_id = {_path_uuid(path): path for path in self.names.namespaces}
        self.spans_by_feed: dict[int, ConcurrentSpans] = {}
        self.feed = 0
        self.state = State()
        self.code = ""
        self.parallel_calls = ParallelCalls(running.calls, timer)
        self.is_internal = False  # our own source runs, which may call nothing

    # --- from start to end ------------------------------------------------------------------------------------------

    def run(self, source: ProgramSource, state: State) -> EngineResult:
        self.engine.open()
        self.state = state
        self.paths_by_id |= {_path_uuid(path): path for path in state.spaces}
        if state.dump and state.dump_of != self.engine.dump_format:
            state.shrink_to_plain(state.known, "another version of Athena kept it")
        self.feed = state.feeds or INITIAL_FEED_COUNT
        self.spans_by_feed = self._parse_spans(state.spots)
        worker, _ = (
            self.engine.acquire_loaded(lambda session: session.load_session(state.dump), self._is_over)
            if state.dump
            else self.engine.acquire_new(self._is_over)
        )
        return self._run_on_worker(worker, lambda: self._start_program(worker, source), source)

    def resume(self, head: Mapping[str, Any], dump: bytes, *, approved: bool, refusal: str) -> EngineResult:
        self.engine.open()
        self.state = State(**head["state"], dump=b"")
        self.code, self.feed = head["code"], head["feed"]
        self.spans_by_feed = self._parse_spans(head["spots"])
        if head["wrote"] != self.engine.dump_format:
            message = "this paused run belongs to another version of the engine; nothing was run"
            return EngineResult(
                "monty", error=create_failure("Conflict", message, hint="run the program again from its start")
            )
        source = ProgramSource(self.code, self.running.limits.source_bytes)
        worker, loaded = self.engine.acquire_loaded(
            lambda session: session.load_snapshot(dump, print_callback=self._write_output), self._is_over
        )
        snapshot: Any = loaded
        self.paths_by_id |= {_path_uuid(path): path for path in head["paths"]}

        def resume_call() -> Any:
            if approved:
                return self._make_call(snapshot, head["path"], (), head["arguments"])
            trouble = CallError("ToolError", "denied", refusal or DENIED_MESSAGE)
            return snapshot.resume(self.parallel_calls.to_reply(CallResult(error=trouble)))

        return self._run_on_worker(worker, resume_call, source)

    def _parse_spans(self, sealed: Mapping[str, Any]) -> dict[int, ConcurrentSpans]:
        return {int(feed): ConcurrentSpans.from_json(value) for feed, value in sealed.items()} | {
            0: self.engine.prelude_spans
        }

    def _is_over(self) -> bool:
        return self.calls.is_closed

    def _run_on_worker(self, worker: MontyWorker, first: Any, source: ProgramSource) -> EngineResult:
        import pydantic_monty as pm

        self.worker = worker
        self.running.set_kill(worker.handle.kill)
        before = worker.handle.read_cpu_s() if self.calls.depth else 0.0
        try:
            try:
                value = self._run_to_end(first())
            except _PauseRequested as paused:
                worker.must_kill = True  # it still waits for the reply, which another session will get
                return EngineResult("monty", pause=paused.pause)
            except CannotPause as error:
                worker.must_kill = True
                return EngineResult("monty", error=error.failure, state_unchanged=True)
            except TooManyUnknownCalls as error:
                worker.must_kill = True
                return EngineResult(
                    "monty", error=create_failure("LimitExceeded", str(error), limit="calls"), state_unchanged=True
                )
            except (pm.MontyRuntimeError, pm.MontySyntaxError) as error:
                return self._create_failed_result(error, source)
            ended = self._create_result(value)
            ended.state, ended.lost = self._seal_variables(source)
            return ended
        except pm.MontyCrashedError as error:
            return EngineResult("monty", error=describe_crash(error), worker_died=True)
        except (
            pm.MontyError,
            RuntimeError,
            ValueError,
            TypeError,
        ) as error:  # Monty's own: a value that it cannot transfer
            worker.must_kill = True
            return EngineResult(
                "monty", error=create_failure("WorkerDied", f"the engine failed: {error}"), worker_died=True
            )
        finally:
            self.running.clear_kill()
            self.parallel_calls.close()
            self.calls.close()
            if self.calls.depth:
                self.calls.add_cpu_s(max(0.0, worker.handle.read_cpu_s() - before))
            self.engine.release_worker(worker)

    def _start_program(self, worker: MontyWorker, source: ProgramSource) -> Any:
        session = worker.session
        self._define_sources(session)
        inputs: dict[str, Any] = {
            name: untag_value(self.state.plain[name]) for name in self.state.newer if name in self.state.plain
        }
        inputs |= {name: self._get_namespace(name) for name in self.state.hidden if name in self.names.namespaces}
        self.code = source.text
        self.spans_by_feed[self.feed] = source.concurrent_spans
        self.feed += 1
        return session.feed_start(source.to_monty_source(), inputs=inputs or None, print_callback=self._write_output)

    def _define_sources(self, session: "pydantic_monty.MontySession") -> None:
        """Run the definitions that were made on CPython since; skip those that Monty cannot read."""
        import pydantic_monty as pm

        self.is_internal = True
        for name in self.state.newer_sources:
            self.feed += 1
            with suppress(pm.MontyRuntimeError, pm.MontySyntaxError):
                self._run_to_end(session.feed_start(self.state.sources[name], print_callback=lambda *_: None))
        self.is_internal = False

    def _write_output(self, _: str, text: str) -> None:
        self.running.output.write(text)

    # --- calls and name lookups ---------------------------------------------------------------------------------------

    def _run_to_end(self, snapshot: Any) -> Any:
        import pydantic_monty as pm

        while True:
            if isinstance(snapshot, pm.FunctionSnapshot):
                snapshot = self._dispatch_call(snapshot)
            elif isinstance(snapshot, pm.MontyComplete):
                return snapshot.output
            elif isinstance(snapshot, pm.NameLookupSnapshot):
                snapshot = self._resolve_name(snapshot)
            else:
                snapshot = snapshot.resume(self.parallel_calls.wait_awaited(snapshot.pending_call_ids))

    def _resolve_name(self, snapshot: "pydantic_monty.NameLookupSnapshot") -> Any:
        namespace = self.paths_by_id.get(owner) if (owner := snapshot.object_id) else None
        path = f"{namespace}.{snapshot.variable_name}" if namespace else snapshot.variable_name
        kind = None if self.is_internal else self.names.classify_path(path)
        if kind == "namespace":
            self.paths_by_id[_path_uuid(path)] = path
            self.state.spaces = list(dict.fromkeys([*self.state.spaces, path]))[:MAX_KNOWN_NAMES]
            return snapshot.resume(value=self._get_namespace(path))
        if namespace and kind is None and not self.is_internal:
            self.calls.count_miss(path)
            if snapshot.variable_name in PLAIN_METHODS:  # their arguments are not measured
                return snapshot.resume()
            path = path[:MAX_PATH_CHARS]
        if kind == "function" or (namespace and not self.is_internal):  # an unknown one says so when it is called
            return snapshot.resume(value=_create_stand_in(path))
        return snapshot.resume()

    def _get_namespace(self, path: str) -> Any:
        return _create_namespace(path, ", ".join(self.names.members.get(path, ())))

    def _dispatch_call(self, snapshot: "pydantic_monty.FunctionSnapshot") -> Any:
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            return self._call_system(snapshot, name)
        namespace = self.paths_by_id.get(owner, "?") if (owner := snapshot.object_id) else ""
        path = f"{namespace}.{name}" if namespace else name
        if self.is_internal:
            return snapshot.resume({"exc_type": "RuntimeError", "message": "not here"})
        if path in ("parallel", "parallel__"):  # the second is called by the prelude's own
            return snapshot.resume(self.parallel_calls.collect(snapshot.args, snapshot.kwargs))
        if self.names.classify_path(path) != "function":
            return snapshot.resume(self._report_unknown(path))
        position = snapshot.position
        spans = self.spans_by_feed.get(_parse_feed(position.filename), NO_CONCURRENT_SPANS)
        where = (position.start, position.end)
        if where in spans.parallel:
            import pydantic_monty as pm

            pending = self.parallel_calls.start_held(path, snapshot.args, snapshot.kwargs)
            return snapshot.resume({"return_value": pm.ClassInstance(pending)})
        if where in spans.awaited or snapshot.allow_eager_await:
            self.parallel_calls.start_awaited(snapshot.call_id, path, snapshot.args, snapshot.kwargs)
            return snapshot.resume({"future": ...})
        return self._make_call(snapshot, path, snapshot.args, snapshot.kwargs)

    def _make_call(self, snapshot: Any, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            result = self.calls.make_call(path, args, kwargs, pausable=self.parallel_calls.is_idle)
        except PauseRequired as required:
            raise _PauseRequested(self._seal_pause(snapshot.dump(), required)) from None
        return snapshot.resume(self.parallel_calls.to_reply(result))

    def _report_unknown(self, path: str) -> Any:
        if "." in path or path in self.names.roots:
            message, hint = self.calls.count_miss(path)
            return {"exc_type": "AttributeError", "message": f"{message} (hint: {hint})" if hint else message}
        self.calls.count_miss(path[:MAX_PATH_CHARS])
        near = self.names.suggest_names(path[:MAX_PATH_CHARS])
        suggestion = [f"did you mean {' or '.join(near)}?"] if near else []
        hint = (
            f" (hint: {'; '.join(filter(None, [*suggestion, self.names.note]))})"
            if suggestion or self.names.note
            else ""
        )
        return {"exc_type": "NameError", "message": f"name {path!r} is not defined{hint}"}

    def _call_system(self, snapshot: "pydantic_monty.FunctionSnapshot", name: str) -> Any:
        """Sleep for the program; let Monty refuse every other system call."""
        if "sleep" not in name:
            return snapshot.resume_auto()
        seconds = max(0.0, float(next(iter((*snapshot.args, *snapshot.kwargs.values())), 0.0)))
        if "asyncio" in name:
            self.parallel_calls.start_sleep(snapshot.call_id, seconds)
            return snapshot.resume({"future": ...})
        self.parallel_calls.sleep(seconds)
        return snapshot.resume({"return_value": None})

    # --- the result ---------------------------------------------------------------------------------------------------

    def _create_result(self, value: Any) -> EngineResult:
        cut = isinstance(value, tuple) and len(value) == 3 and value[0] == CUT_MARK
        limits = self.running.limits
        try:
            copied = to_plain_json(value[1] if cut else value, limits.value_nodes, limits.value_bytes)
            full_length = value[2] if cut and isinstance(value[2], int) else None
        except (ValueTooLarge, RecursionError) as error:
            return EngineResult("monty", value=f"[cut: {error}]", is_cut=True)
        return EngineResult("monty", value=copied, is_cut=cut, full_length=full_length)

    def _create_failed_result(self, error: Any, source: ProgramSource) -> EngineResult:
        failed = to_failure(error, self.feed - 1, source, self.running.limits, self.parallel_calls.errors_by_text)
        if failed["type"] in ("MemoryError", "TimeoutError"):  # its memory may be half written
            self.worker.must_kill = True
            return EngineResult("monty", error=failed, worker_died=bool(self.running.stop_reason), state_unchanged=True)
        unread = type(error).__name__ == "MontySyntaxError" or "monty syntax parser" in failed["message"]
        state, lost = (None, ()) if unread else self._seal_variables(source)
        return EngineResult("monty", error=failed, state=state, lost=lost)

    def _seal_variables(self, source: ProgramSource) -> tuple[bytes | None, tuple[str, ...]]:
        """Seal the variables for the next run and name those that are lost; None leaves them unchanged."""
        import pydantic_monty as pm

        state, limits, hidden = self.state, self.running.limits, source.list_hidden(self.names.roots)
        known = list(dict.fromkeys([*state.known, *state.plain, *source.top_level_names]))[:MAX_KNOWN_NAMES]
        if not known and not state.dump:
            return None, hidden
        session = self.worker.session
        self.is_internal = True
        self.feed += 1
        try:
            values = self._run_to_end(
                session.feed_start(prelude.build_keep_source(known), print_callback=lambda *_: None)
            )
            dump = session.dump()
        except pm.MontyRuntimeError:  # the program replaced a function that we need, or its memory is full
            return None, (*source.top_level_names, *hidden)
        finally:
            self.is_internal = False
        defined, plain = source.definitions, _tag_values(values)
        sources = {name: text for name, text in state.sources.items() if name not in plain} | defined
        new = State(
            plain={name: value for name, value in plain.items() if name not in defined},
            known=known,
            sources=keep_newest_sources(sources, limits.source_bytes),
            hidden=sorted({*state.hidden, *source.top_level_names} & self.names.roots),
            spaces=state.spaces,
            dump=dump,
            dump_of=self.engine.dump_format,
            feeds=self.feed,
            spots={
                str(feed): spans.to_json()
                for feed, spans in self.spans_by_feed.items()
                if feed and (spans.awaited or spans.parallel)
            },
            missing={name: why for name, why in state.missing.items() if name not in values},
        )
        sealed, lost = new.to_sealed(self.key, self.owner), []
        if len(sealed) > limits.state_bytes:
            lost = new.shrink_to_plain(values, TOO_LARGE_REASON)
            sealed = new.to_sealed(self.key, self.owner)
        if len(sealed) > limits.state_bytes:
            return None, (*source.top_level_names, *hidden)
        return sealed, (*lost, *hidden)

    def _seal_pause(self, dump: bytes, required: PauseRequired) -> Pause:
        state = {name: getattr(self.state, name) for name in State.__slots__ if name != "dump"}
        head = {
            "engine": "monty",
            "state": state,
            "code": self.code,
            "feed": self.feed,
            "spots": {str(feed): spans.to_json() for feed, spans in self.spans_by_feed.items()},
            "paths": sorted(self.paths_by_id.values()),
            "wrote": self.engine.dump_format,
            "output": self.running.output.text,
            "count": self.calls.count,
            "made": self.calls.counts_by_path,
            "before": (self.running.state_before or b"").hex(),
        }
        return create_pause(self.key, self.owner, head, dump, required, self.running.limits.state_bytes)


@lru_cache(maxsize=256)
def _parse_feed(filename: str) -> int:
    """Return the number of the session's source that a file name stands for; -1 if it is none."""
    match = _FEED_PATTERN.fullmatch(filename)
    return int(match[1]) if match else -1


class _PauseRequested(Exception):
    def __init__(self, pause: Pause) -> None:
        self.pause = pause


def _tag_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of Monty's variables that CPython can read."""
    tagged, tagger = {}, Tagger()
    for name, value in values.items():
        if value != (CUT_MARK,):
            with suppress(UntaggableValue):
                tagged[name] = tagger.tag_value(value)
    return tagged
