"""Driving one program on Monty: answer each of its questions, in order, until it ends."""

import re
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from athena.programs.sandbox.calls import LONGEST_NAME, Calls, Exhausted, Settled, Trouble
from athena.programs.sandbox.json_values import CUT, TooLarge, plain
from athena.programs.sandbox.monty import prelude
from athena.programs.sandbox.monty.engine import FEEDS, Monty, Seat
from athena.programs.sandbox.monty.errors import died, told
from athena.programs.sandbox.monty.parallel import Together
from athena.programs.sandbox.pausing import Unpaused, paused
from athena.programs.sandbox.program import NeedsApproval, Pause, failure
from athena.programs.sandbox.run import Ended, Running
from athena.programs.sandbox.source import METHODS, Source, Spots
from athena.programs.sandbox.state import MOST_KNOWN, TOO_LARGE, State, bounded, unpacked
from athena.programs.sandbox.timer import Watch
from athena.programs.sandbox.worker.tagging import Tagger, Unkept, untagged

if TYPE_CHECKING:
    import pydantic_monty

_FAMILY = uuid.UUID("6f0d2d3e-0000-5000-8000-000000000001")
NO_SPOTS = Spots()
_FEED = re.compile(r"<python-input-(\d+)>")


class _Namespace:
    __slots__ = ("operations", "path")

    def __init__(self, path: str, operations: str) -> None:
        self.path, self.operations = path, operations

    def __str__(self) -> str:
        return f"<namespace {self.path}: {self.operations}>"


_Namespace.__name__ = "namespace"  # as Monty shows it


@cache
def _identity(path: str) -> uuid.UUID:
    return uuid.uuid5(_FAMILY, path)


@cache
def _namespace(path: str, operations: str) -> Any:
    """Make a namespace that is the same object in every session, so that it survives a dump."""
    import pydantic_monty as pm

    kind = pm.ClassType(_Namespace, id=_identity("#"))
    shown = _Namespace(path, operations)
    return pm.ClassInstance(shown, eager_attrs={"operations"}, id=_identity(path), class_type=kind)


def _function(path: str) -> Any:
    def stand_in(*_: object, **__: object) -> None:
        raise RuntimeError

    stand_in.__name__ = stand_in.__qualname__ = path
    return stand_in


class Drive:
    """One program in one session."""

    def __init__(self, engine: Monty, running: Running, watch: Watch, key: bytes, owner: str) -> None:
        self.engine, self.running, self.key, self.owner = engine, running, key, owner
        self.calls: Calls = running.calls
        self.names = running.calls.names
        self.paths = {_identity(path): path for path in self.names.spaces}
        self.spots: dict[int, Spots] = {}
        self.feed = 0
        self.state = State()
        self.code = ""
        self.together = Together(running.calls, watch)
        self.quiet = False  # our own source runs: it may call nothing

    # --- from start to end ------------------------------------------------------------------------------------------

    def run(self, source: Source, state: State) -> Ended:
        self.engine.open()
        self.state = state
        self.paths |= {_identity(path): path for path in state.spaces}
        if state.dump and state.dump_of != self.engine.wrote:
            state.forget_dump()
        self.feed = state.feeds or FEEDS
        self.spots = self._read_spots(state.spots)
        seat, _ = (
            self.engine.seated(lambda session: session.load_session(state.dump), self._over)
            if state.dump
            else self.engine.new(self._over)
        )
        return self._seated(seat, lambda: self._first(seat, source), source)

    def resume(self, content: bytes, *, approved: bool, refusal: str) -> Ended:
        self.engine.open()
        head, dump = unpacked(content)
        self.state = State(**head["state"], dump=b"")
        self.code, self.feed = head["code"], head["feed"]
        self.spots = self._read_spots(head["spots"])
        if head["wrote"] != self.engine.wrote:
            message = "this paused run belongs to another version of the engine; nothing was run"
            return Ended("monty", error=failure("Conflict", message, hint="run the program again from its start"))
        source = Source(self.code, self.running.limits.source_bytes)
        seat, loaded = self.engine.seated(
            lambda session: session.load_snapshot(dump, print_callback=self._print), self._over
        )
        snapshot: Any = loaded
        self.paths |= {_identity(path): path for path in head["paths"]}

        def first() -> Any:
            if approved:
                return self._answered(snapshot, head["path"], (), head["arguments"])
            trouble = Trouble("ToolError", "denied", refusal or "a person refused this call")
            return snapshot.resume(self.together.answer(Settled(trouble=trouble)))

        return self._seated(seat, first, source)

    def _read_spots(self, kept: Mapping[str, Any]) -> dict[int, Spots]:
        return {int(feed): Spots.from_json(value) for feed, value in kept.items()} | {0: self.engine.at_once}

    def _over(self) -> bool:
        return self.calls.closed

    def _seated(self, seat: Seat, first: Any, source: Source) -> Ended:
        import pydantic_monty as pm

        self.seat = seat
        self.running.seat(seat.victim.kill)
        before = seat.victim.cpu_s() if self.calls.depth else 0.0
        try:
            try:
                value = self._drive(first())
            except _Paused as paused:
                seat.spoilt = True  # it still waits for its answer, which another session will get
                return Ended("monty", pause=paused.pause)
            except Unpaused as error:
                seat.spoilt = True
                hint = "call it in a program of its own, with less"
                return Ended("monty", error=failure("LimitExceeded", str(error), hint=hint), undone=True)
            except Exhausted as error:
                seat.spoilt = True
                return Ended("monty", error=failure("LimitExceeded", str(error), limit="calls"), undone=True)
            except (pm.MontyRuntimeError, pm.MontySyntaxError) as error:
                return self._failed(error, source)
            ended = self._value(value)
            ended.state, ended.lost = self._kept(source)
            return ended
        except pm.MontyCrashedError as error:
            return Ended("monty", error=died(error), died=True)
        except (
            pm.MontyError,
            RuntimeError,
            ValueError,
            TypeError,
        ) as error:  # of Monty's own: a value that cannot cross
            seat.spoilt = True
            return Ended("monty", error=failure("WorkerDied", f"the engine failed: {error}"), died=True)
        finally:
            self.running.leave()
            self.together.close()
            self.calls.close()
            if self.calls.depth:
                self.calls.spent(max(0.0, seat.victim.cpu_s() - before))
            self.engine.give_back(seat)

    def _first(self, seat: Seat, source: Source) -> Any:
        session = seat.session
        self._define(session)
        inputs: dict[str, Any] = {
            name: untagged(self.state.plain[name]) for name in self.state.newer if name in self.state.plain
        }
        inputs |= {name: self._namespace(name) for name in self.state.hidden if name in self.names.spaces}
        self.code = source.text
        self.spots[self.feed] = source.spots
        self.feed += 1
        return session.feed_start(source.for_monty(), inputs=inputs or None, print_callback=self._print)

    def _define(self, session: "pydantic_monty.MontySession") -> None:
        """Repeat the definitions that were made on CPython since; those that Monty cannot read stay there."""
        import pydantic_monty as pm

        self.quiet = True
        for name in self.state.newer_sources:
            self.feed += 1
            with suppress(pm.MontyRuntimeError, pm.MontySyntaxError):
                self._drive(session.feed_start(self.state.sources[name], print_callback=lambda *_: None))
        self.quiet = False

    def _print(self, _: str, text: str) -> None:
        self.running.output.write(text)

    # --- the program's questions --------------------------------------------------------------------------------------

    def _drive(self, snapshot: Any) -> Any:
        import pydantic_monty as pm

        while True:
            if isinstance(snapshot, pm.FunctionSnapshot):
                snapshot = self._called(snapshot)
            elif isinstance(snapshot, pm.MontyComplete):
                return snapshot.output
            elif isinstance(snapshot, pm.NameLookupSnapshot):
                snapshot = self._looked_up(snapshot)
            else:
                snapshot = snapshot.resume(self.together.settled(snapshot.pending_call_ids))

    def _looked_up(self, snapshot: "pydantic_monty.NameLookupSnapshot") -> Any:
        place = self.paths.get(owner) if (owner := snapshot.object_id) else None
        path = f"{place}.{snapshot.variable_name}" if place else snapshot.variable_name
        kind = None if self.quiet else self.names.kind(path)
        if kind == "namespace":
            self.paths[_identity(path)] = path
            self.state.spaces = list(dict.fromkeys([*self.state.spaces, path]))[:MOST_KNOWN]
            return snapshot.resume(value=self._namespace(path))
        if place and kind is None and not self.quiet:
            self.calls.missed(path)
            if snapshot.variable_name in METHODS:  # their arguments are not measured
                return snapshot.resume()
            path = path[:LONGEST_NAME]
        if kind == "function" or (place and not self.quiet):  # an unknown one says so when it is called
            return snapshot.resume(value=_function(path))
        return snapshot.resume()

    def _namespace(self, path: str) -> Any:
        return _namespace(path, ", ".join(self.names.inside.get(path, ())))

    def _called(self, snapshot: "pydantic_monty.FunctionSnapshot") -> Any:
        name = str(snapshot.function_name)
        if snapshot.is_os_function:
            return self._system(snapshot, name)
        place = self.paths.get(owner, "?") if (owner := snapshot.object_id) else ""
        path = f"{place}.{name}" if place else name
        if self.quiet:
            return snapshot.resume({"exc_type": "RuntimeError", "message": "not here"})
        if path in ("parallel", "parallel__"):  # the second is called by the prelude's own
            return snapshot.resume(self.together.collect(snapshot.args, snapshot.kwargs))
        if self.names.kind(path) != "function":
            return snapshot.resume(self._unknown(path))
        position = snapshot.position
        spots = self.spots.get(_feed_of(position.filename), NO_SPOTS)
        where = (position.start, position.end)
        if where in spots.parallel:
            import pydantic_monty as pm

            held = self.together.hold(path, snapshot.args, snapshot.kwargs)
            return snapshot.resume({"return_value": pm.ClassInstance(held)})
        if where in spots.awaited or snapshot.allow_eager_await:
            self.together.promise(snapshot.call_id, path, snapshot.args, snapshot.kwargs)
            return snapshot.resume({"future": ...})
        return self._answered(snapshot, path, snapshot.args, snapshot.kwargs)

    def _answered(self, snapshot: Any, path: str, args: Sequence[Any], given: Mapping[str, Any]) -> Any:
        try:
            settled = self.calls.settle(path, args, given, pausable=self.together.idle)
        except NeedsApproval as error:
            function = self.names.find(path)
            assert function is not None
            limits = self.running.limits
            arguments = plain(self.names.arguments(path, function, args, given), limits.value_nodes, limits.value_bytes)
            raise _Paused(self._pause(snapshot.dump(), path, arguments, error)) from None
        return snapshot.resume(self.together.answer(settled))

    def _unknown(self, path: str) -> Any:
        if "." in path or path in self.names.roots:
            message, hint = self.calls.missed(path)
            return {"exc_type": "AttributeError", "message": f"{message} (hint: {hint})" if hint else message}
        self.calls.missed(path[:LONGEST_NAME])
        near = self.names.near(path[:LONGEST_NAME])
        said = [f"did you mean {' or '.join(near)}?"] if near else []
        hint = f" (hint: {'; '.join(filter(None, [*said, self.names.note]))})" if said or self.names.note else ""
        return {"exc_type": "NameError", "message": f"name {path!r} is not defined{hint}"}

    def _system(self, snapshot: "pydantic_monty.FunctionSnapshot", name: str) -> Any:
        """Sleep for the program; everything else of the system is refused as Monty does by default."""
        if "sleep" not in name:
            return snapshot.resume_auto()
        seconds = max(0.0, float(next(iter((*snapshot.args, *snapshot.kwargs.values())), 0.0)))
        if "asyncio" in name:
            self.together.promise_time(snapshot.call_id, seconds)
            return snapshot.resume({"future": ...})
        self.together.sleep(seconds)
        return snapshot.resume({"return_value": None})

    # --- what is left -------------------------------------------------------------------------------------------------

    def _value(self, value: Any) -> Ended:
        cut = isinstance(value, tuple) and len(value) == 3 and value[0] == CUT
        limits = self.running.limits
        try:
            copied = plain(value[1] if cut else value, limits.value_nodes, limits.value_bytes)
            whole = value[2] if cut and isinstance(value[2], int) else None
        except (TooLarge, RecursionError) as error:
            return Ended("monty", value=f"[cut: {error}]", cut=True)
        return Ended("monty", value=copied, cut=cut, whole=whole)

    def _failed(self, error: Any, source: Source) -> Ended:
        failed = told(error, self.feed - 1, source, self.running.limits, self.together.troubles)
        if failed["type"] in ("MemoryError", "TimeoutError"):  # its memory may be half written
            self.seat.spoilt = True
            return Ended("monty", error=failed, died=bool(self.running.stopped), undone=True)
        unread = type(error).__name__ == "MontySyntaxError" or "monty syntax parser" in failed["message"]
        state, lost = (None, ()) if unread else self._kept(source)
        return Ended("monty", error=failed, state=state, lost=lost)

    def _kept(self, source: Source) -> tuple[bytes | None, tuple[str, ...]]:
        """Write down the variables for the next run, and name those that are lost; None leaves all as they were."""
        import pydantic_monty as pm

        state, limits, hidden = self.state, self.running.limits, source.hides(self.names.roots)
        known = list(dict.fromkeys([*state.known, *state.plain, *source.kept]))[:MOST_KNOWN]
        if not known and not state.dump:
            return None, hidden
        session = self.seat.session
        self.quiet = True
        self.feed += 1
        try:
            values = self._drive(session.feed_start(prelude.keeping(known), print_callback=lambda *_: None))
            dump = session.dump()
        except pm.MontyRuntimeError:  # the program broke what we need, or its memory is full
            return None, (*source.kept, *hidden)
        finally:
            self.quiet = False
        defined, plain = source.definitions, _tagged(values)
        sources = {name: text for name, text in state.sources.items() if name not in plain} | defined
        new = State(
            plain={name: value for name, value in plain.items() if name not in defined},
            known=known,
            sources=bounded(sources, limits.source_bytes),
            hidden=sorted({*state.hidden, *source.kept} & self.names.roots),
            spaces=state.spaces,
            dump=dump,
            dump_of=self.engine.wrote,
            feeds=self.feed,
            spots={
                str(feed): spots.to_json()
                for feed, spots in self.spots.items()
                if feed and (spots.awaited or spots.parallel)
            },
            missing={name: why for name, why in state.missing.items() if name not in values},
        )
        kept, lost = new.sealed(self.key, self.owner), []
        if len(kept) > limits.state_bytes:
            lost = new.shrink(values, TOO_LARGE)
            kept = new.sealed(self.key, self.owner)
        if len(kept) > limits.state_bytes:
            return None, (*source.kept, *hidden)
        return kept, (*lost, *hidden)

    def _pause(self, dump: bytes, path: str, arguments: dict[str, Any], error: NeedsApproval) -> Pause:
        state = {name: getattr(self.state, name) for name in State.__slots__ if name != "dump"}
        head = {
            "path": path,
            "arguments": arguments,
            "state": state,
            "code": self.code,
            "feed": self.feed,
            "spots": {str(feed): spots.to_json() for feed, spots in self.spots.items()},
            "paths": sorted(self.paths.values()),
            "wrote": self.engine.wrote,
            "output": self.running.output.text,
            "count": self.calls.count,
            "made": self.calls.made,
            "before": (self.running.before or b"").hex(),
        }
        return paused(self.key, self.owner, head, dump, error.request, self.running.limits.state_bytes)


@lru_cache(maxsize=256)
def _feed_of(filename: str) -> int:
    """Return which text of the session a place is in; -1 where it is none of ours."""
    match = _FEED.fullmatch(filename)
    return int(match[1]) if match else -1


class _Paused(Exception):
    def __init__(self, pause: Pause) -> None:
        self.pause = pause


def _tagged(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of Monty's variables that CPython can have too."""
    found, tagger = {}, Tagger()
    for name, value in values.items():
        if value != (CUT,):
            with suppress(Unkept):
                found[name] = tagger.tagged(value)
    return found
