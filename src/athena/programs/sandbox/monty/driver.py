"""Drive one program on Monty: answer its calls and name lookups until it ends."""

import re
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, lru_cache
from typing import Any

from athena.programs.sandbox.calls import MAX_PATH_CHARS, CallError, CallResult, RunCalls, TooManyUnknownCalls
from athena.programs.sandbox.json_values import JsonBudget
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty.client import MontyCrashed, MontyFailed, MontyRaised, Reply
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

_UUID_NAMESPACE = uuid.UUID("6f0d2d3e-0000-5000-8000-000000000001")  # as in worker/monty_client.py
NO_CONCURRENT_SPANS = ConcurrentSpans()
_FEED_PATTERN = re.compile(r"<python-input-(\d+)>")


@cache
def path_to_id(path: str) -> str:
    """Return the id that the namespace of a path has in every session."""
    return str(uuid.uuid5(_UUID_NAMESPACE, path))


class MontyDriver:
    """One program in one session."""

    def __init__(self, engine: Monty, running: ActiveRun, timer: TimerThread, key: bytes, owner: str) -> None:
        self.engine, self.running, self.key, self.owner = engine, running, key, owner
        self.calls: RunCalls = running.calls
        self.names = running.calls.names
        self.paths_by_id = {path_to_id(path): path for path in self.names.namespaces}
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
        self.paths_by_id |= {path_to_id(path): path for path in state.spaces}
        if state.dump and state.dump_of != self.engine.dump_format:
            state.shrink_to_plain(state.known, "another version of Athena kept it")
        self.feed = state.feeds or INITIAL_FEED_COUNT
        self.spans_by_feed = self._parse_spans(state.spots)
        worker = self.engine.acquire_worker(
            self._is_over, (lambda client: client.load(state.dump)) if state.dump else None
        )
        return self._run_on_worker(worker, lambda: self._start_program(source), source)

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
        worker = self.engine.acquire_worker(self._is_over, lambda client: client.request("restore", blob=dump))
        self.paths_by_id |= {path_to_id(path): path for path in head["paths"]}

        def resume_call() -> Reply:
            if approved:
                return self._make_call(head["path"], [], head["arguments"])
            trouble = CallError("ToolError", "denied", refusal or DENIED_MESSAGE)
            return self._resume(self.parallel_calls.to_reply(CallResult(error=trouble)))

        return self._run_on_worker(worker, resume_call, source)

    def _parse_spans(self, sealed: Mapping[str, Any]) -> dict[int, ConcurrentSpans]:
        return {int(feed): ConcurrentSpans.from_json(value) for feed, value in sealed.items()} | {
            0: self.engine.prelude_spans
        }

    def _is_over(self) -> bool:
        return self.calls.is_closed

    def _run_on_worker(self, worker: MontyWorker, first: Any, source: ProgramSource) -> EngineResult:
        self.worker, self.client = worker, worker.client
        self.client.on_output = self._write_output
        self.running.set_kill(self.client.kill)
        before = self.client.read_cpu_s() if self.calls.depth else 0.0
        try:
            try:
                end = self._run_to_end(first())
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
            except MontyRaised as error:
                return self._create_failed_result(error, source)
            ended = self._create_result(end)
            ended.state, ended.lost = self._seal_variables(source)
            return ended
        except MontyCrashed as error:
            worker.must_kill = True
            return EngineResult("monty", error=describe_crash(error), worker_died=True)
        except MontyFailed as error:
            worker.must_kill = True
            return EngineResult(
                "monty", error=create_failure("WorkerDied", f"the engine failed: {error}"), worker_died=True
            )
        finally:
            self.running.clear_kill()
            self.parallel_calls.close()
            self.calls.close()
            if self.calls.depth:
                self.calls.add_cpu_s(max(0.0, self.client.read_cpu_s() - before))
            self.engine.release_worker(worker)

    def _start_program(self, source: ProgramSource) -> Reply:
        self._define_sources()
        state = self.state
        inputs = {name: state.plain[name] for name in state.newer if name in state.plain}
        namespaces = {name: self._list_members(name) for name in state.hidden if name in self.names.namespaces}
        self.code = source.text
        self.spans_by_feed[self.feed] = source.concurrent_spans
        self.feed += 1
        return self.client.feed(source.to_monty_source(), inputs=inputs, namespaces=namespaces)

    def _define_sources(self) -> None:
        """Run the definitions that were made on CPython since; skip those that Monty cannot read."""
        self.is_internal = True
        for name in self.state.newer_sources:
            self.feed += 1
            with suppress(MontyRaised):
                self._run_to_end(self.client.feed(self.state.sources[name], quiet=True))
        self.is_internal = False

    def _write_output(self, text: str, dropped: int) -> None:
        if text:
            self.running.output.write(text)
        if dropped:
            self.running.output.add_dropped(dropped)

    def _resume(self, reply: Mapping[str, Any]) -> Reply:
        return self.client.request("resume", reply=dict(reply))

    # --- calls and name lookups ---------------------------------------------------------------------------------------

    def _run_to_end(self, report: Reply) -> Reply:
        while (kind := report["op"]) != "end":
            if kind == "call":
                report = self._dispatch_call(report)
            elif kind == "name":
                report = self._resolve_name(report)
            else:
                replies = self.parallel_calls.wait_awaited(report["ids"])
                report = self.client.request("resume_futures", replies=replies)
        return report

    def _resolve_name(self, report: Reply) -> Reply:
        name, owner = report["name"], report["owner"]
        namespace = self.paths_by_id.get(owner) if owner else None
        path = f"{namespace}.{name}" if namespace else name
        kind = None if self.is_internal else self.names.classify_path(path)
        if kind == "namespace":
            self.paths_by_id[path_to_id(path)] = path
            self.state.spaces = list(dict.fromkeys([*self.state.spaces, path]))[:MAX_KNOWN_NAMES]
            return self._resume_name("namespace", path, self._list_members(path))
        if namespace and kind is None and not self.is_internal:
            self.calls.count_miss(path)
            if name in PLAIN_METHODS:  # their arguments are not measured
                return self._resume_name("unknown", path)
            path = path[:MAX_PATH_CHARS]
        if kind == "function" or (namespace and not self.is_internal):  # an unknown one says so when it is called
            return self._resume_name("function", path)
        return self._resume_name("unknown", path)

    def _resume_name(self, kind: str, path: str, operations: str = "") -> Reply:
        return self.client.request("resume_name", kind=kind, path=path, operations=operations)

    def _list_members(self, path: str) -> str:
        return ", ".join(self.names.members.get(path, ()))

    def _dispatch_call(self, report: Reply) -> Reply:
        name, owner = report["name"], report["owner"]
        if report["is_system"]:
            return self._call_system(report)
        namespace = self.paths_by_id.get(owner, "?") if owner else ""
        path = f"{namespace}.{name}" if namespace else name
        if self.is_internal:
            return self._resume({"exc_type": "RuntimeError", "message": "not here"})
        if "pending" in report:
            return self._collect_parallel(report)
        if self.names.classify_path(path) != "function":
            return self._resume(self._report_unknown(path))
        if "too_large" in report:
            message = f"an argument of {path} is too large: {report['too_large']}"
            error = CallError("ToolError", "limit_exceeded", message, "pass less at a time")
            return self._resume(self.parallel_calls.to_reply(CallResult(error=error)))
        filename, start, end = report["where"]
        spans = self.spans_by_feed.get(_parse_feed(filename), NO_CONCURRENT_SPANS)
        if (start, end) in spans.parallel:
            return self._resume({"pending": self.parallel_calls.start_held(path, report["args"], report["kwargs"])})
        if (start, end) in spans.awaited or report["eager"]:
            self.parallel_calls.start_awaited(report["id"], path, report["args"], report["kwargs"])
            return self._resume({"future": True})
        return self._make_call(path, report["args"], report["kwargs"])

    def _make_call(self, path: str, args: list[Any], kwargs: Mapping[str, Any]) -> Reply:
        try:
            result = self.calls.make_call(path, args, kwargs, pausable=self.parallel_calls.is_idle)
        except PauseRequired as required:
            raise _PauseRequested(self._seal_pause(required)) from None
        return self._resume(self.parallel_calls.to_reply(result))

    def _collect_parallel(self, report: Reply) -> Reply:
        """Answer `parallel(...)`: wait for all, then raise the first error or give all results."""
        if report["pending"] is None:
            return self._resume({"exc_type": "TypeError", "message": prelude.PARALLEL_USAGE})
        done = self.parallel_calls.collect(report["pending"])
        error = next((call for call in done.values() if call.error is not None), None)
        if error is not None and not report["return_errors"]:
            return self._resume(self.parallel_calls.to_reply(error))
        results = {number: {"error": call.error.text} if call.error else call.value for number, call in done.items()}
        return self.client.request("resume_parallel", results=results)

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

    def _call_system(self, report: Reply) -> Reply:
        """Sleep for the program; let Monty refuse every other system call."""
        if "sleep" not in report["name"] or "args" not in report:
            return self.client.request("resume_system")
        given = next(iter((*report["args"], *report["kwargs"].values())), 0.0)
        seconds = max(0.0, float(given)) if isinstance(given, int | float | str) else 0.0
        if "asyncio" in report["name"]:
            self.parallel_calls.start_sleep(report["id"], seconds)
            return self._resume({"future": True})
        self.parallel_calls.sleep(seconds)
        return self._resume({"return_value": None})

    # --- the result ---------------------------------------------------------------------------------------------------

    def _create_result(self, end: Reply) -> EngineResult:
        return EngineResult("monty", value=end["value"], is_cut=end["cut"], full_length=end.get("whole"))

    def _create_failed_result(self, error: MontyRaised, source: ProgramSource) -> EngineResult:
        failed = to_failure(error, self.feed - 1, source, self.running.limits, self.parallel_calls.errors_by_text)
        if failed["type"] in ("MemoryError", "TimeoutError"):  # its memory may be half written
            self.worker.must_kill = True
            return EngineResult("monty", error=failed, worker_died=bool(self.running.stop_reason), state_unchanged=True)
        unread = error.is_unread or "monty syntax parser" in failed["message"]
        state, lost = (None, ()) if unread else self._seal_variables(source)
        return EngineResult("monty", error=failed, state=state, lost=lost)

    def _seal_variables(self, source: ProgramSource) -> tuple[bytes | None, tuple[str, ...]]:
        """Seal the variables for the next run and name those that are lost; None leaves them unchanged."""
        state, limits, hidden = self.state, self.running.limits, source.list_hidden(self.names.roots)
        known = list(dict.fromkeys([*state.known, *state.plain, *source.top_level_names]))[:MAX_KNOWN_NAMES]
        if not known and not state.dump:
            return None, hidden
        self.is_internal = True
        self.feed += 1
        try:
            end = self._run_to_end(self.client.feed(prelude.build_keep_source(known), form="variables", quiet=True))
            dump = self.client.dump(limits.state_bytes)
        except MontyRaised:  # the program replaced a function that we need, or its memory is full
            return None, (*source.top_level_names, *hidden)
        finally:
            self.is_internal = False
        defined, plain, names = source.lasting_definitions, _list_accepted(end["variables"]), end["names"]
        # a source stands for its name only while nothing else was bound to it
        rebound = {*plain, *source.top_level_names}
        sources = {name: text for name, text in state.sources.items() if name not in rebound} | defined
        new = State(
            plain={name: value for name, value in plain.items() if name not in defined},
            known=known,
            sources=keep_newest_sources(sources, limits.source_bytes),
            hidden=sorted({*state.hidden, *source.top_level_names} & self.names.roots),
            spaces=state.spaces,
            dump=dump or b"",
            dump_of=self.engine.dump_format,
            feeds=self.feed,
            spots={
                str(feed): spans.to_json()
                for feed, spans in self.spans_by_feed.items()
                if feed and (spans.awaited or spans.parallel)
            },
            missing={name: why for name, why in state.missing.items() if name not in names},
        )
        sealed, lost = new.to_sealed(self.key, self.owner), []
        if dump is None or len(sealed) > limits.state_bytes:
            lost = new.shrink_to_plain(names, TOO_LARGE_REASON)
            sealed = new.to_sealed(self.key, self.owner)
        if len(sealed) > limits.state_bytes:
            return None, (*source.top_level_names, *hidden)
        return sealed, (*lost, *hidden)

    def _seal_pause(self, required: PauseRequired) -> Pause:
        max_bytes = self.running.limits.state_bytes
        dump = self.client.dump(max_bytes * 2)
        if dump is None:
            size = f"{max_bytes >> 20} MB (state_bytes)"
            raise CannotPause(f"{required.path} waits for a person, and the program holds more than {size}")
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
        return create_pause(self.key, self.owner, head, dump, required, max_bytes)


@lru_cache(maxsize=256)
def _parse_feed(filename: str) -> int:
    """Return the number of the session's source that a file name stands for; -1 if it is none."""
    match = _FEED_PATTERN.fullmatch(filename)
    return int(match[1]) if match else -1


class _PauseRequested(Exception):
    def __init__(self, pause: Pause) -> None:
        self.pause = pause


def _list_accepted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables that CPython can read, as far as they fit."""
    budget = JsonBudget()
    return {name: value for name, value in values.items() if budget.accepts(value)}
