"""The second engine: CPython in a worker process of its own for each program, behind the jail and never without."""

import json
import keyword
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from athena.errors import Misconfigured, Unavailable
from athena.programs.sandbox import jail
from athena.programs.sandbox.calls import LONGEST_NAME, Calls, Exhausted, Settled
from athena.programs.sandbox.json_values import Sieve, TooLarge, plain
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.names import RESERVED
from athena.programs.sandbox.program import Failure, failure
from athena.programs.sandbox.run import Ended, Running
from athena.programs.sandbox.source import Source
from athena.programs.sandbox.spawner import Keeper, Victim
from athena.programs.sandbox.state import MOST_KNOWN, NOT_PLAIN, TOO_LARGE, State, bounded

READY = 2  # workers that wait for a program
_WORKER = Path(__file__).with_name("worker")
_LARGEST = 16 << 20  # of one frame: a whole value, escaped
_SMALL = 256 << 10  # of a frame of any other kind than these
_LONG_ONES = (b'{"op": "call"', b'{"op": "done"')
_PACE = 32 << 20  # bytes of such frames in a second
_MOST_PARTS = 500_000  # containers in one frame: they cost far more memory than their text


class _Broken(Exception):
    """The worker ended, or sent what no worker of ours sends."""


class Worker:
    """One jailed process and its two pipes."""

    def __init__(self, words: list[str]) -> None:
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._buffer = bytearray()
        self._writing = threading.Lock()
        self._closed = False
        self.victim = Victim(self.process.pid)

    def read(self) -> dict[str, Any]:
        """Wait for the next frame; believe nothing of it."""
        length = struct.unpack(">I", self._take(4))[0]
        if length > _LARGEST:
            raise _Broken("a frame is too large")
        data = self._take(length)
        if length > _SMALL:
            if not data.startswith(_LONG_ONES):
                raise _Broken("a frame of this kind is never so large")
            time.sleep(length / _PACE)  # reading it holds up everybody: nobody may have us do that all the time
        if data.count(b"[") + data.count(b"{") > _MOST_PARTS:
            raise _Broken("a frame has too many parts")
        try:
            frame = json.loads(data, parse_constant=str)
        except (ValueError, RecursionError):
            raise _Broken("a frame cannot be read") from None
        if not isinstance(frame, dict):
            raise _Broken("a frame is not an object")
        return frame

    def _take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            part = os.read(self._out, 1 << 16)
            if not part:
                raise _Broken("ended")
            self._buffer += part
        taken = bytes(self._buffer[:length])
        del self._buffer[:length]
        return taken

    def write(self, frame: dict[str, Any]) -> None:
        data = json.dumps(frame).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        with self._writing:
            if self._closed:
                return
            try:
                while view:
                    view = view[os.write(self._in, view) :]
            except OSError:  # it has ended; the reader finds out
                return

    def ready(self) -> None:
        if self.read().get("op") != "ready":
            raise _Broken("it did not start")

    def end(self) -> int:
        """Kill it if it lives, and leave nothing of it behind."""
        self.victim.kill()
        code = self.process.wait()
        with self._writing:
            self._closed = True
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
        self.victim.release()
        return code


class CPython:
    name = "python"

    def __init__(self, limits: Limits, keeper: Keeper, jails: Sequence[jail.Layers]) -> None:
        self.limits, self._keeper, self._jails = limits, keeper, jails
        self.layers: jail.Layers | None = None
        self.version = ".".join(map(str, sys.version_info[:3]))
        self._ready: list[Worker] = []
        self._guard = threading.Lock()
        self._opening = threading.Lock()
        self._closed = False

    def open(self) -> None:
        """Find the strongest walls that the real worker works behind, once."""
        with self._opening:
            if self.layers is None:
                self._keeper.ask(self._open)

    def _open(self) -> None:
        for layers in self._jails:
            worker = self._start(layers)
            try:
                worker.ready()
            except _Broken:
                worker.end()
                continue
            self.layers = layers
            with self._guard:
                self._ready.append(_Answered.made(worker))
            return
        raise Misconfigured(
            "no jail for CPython works on this machine", hint="athena doctor says which layers are missing"
        )

    def _start(self, layers: jail.Layers) -> Worker:
        limits, files = self.limits, [str(_WORKER)]
        cell = jail.python_cell(
            ["-I", "-S", "-B", "-X", "utf8", str(_WORKER)],
            cpu_s=int(limits.cpu_s) + 1,
            memory_mb=limits.python_memory_mb,
            files=files,
        )
        return Worker(jail.command(cell, layers))

    def _new(self) -> Worker:
        if self._closed or self.layers is None:
            raise Unavailable("the sandbox is closed")
        return self._start(self.layers)

    def _refill(self) -> None:
        if self._closed or len(self._ready) >= READY:
            return
        worker = self._new()
        with self._guard:
            self._ready.append(worker)
        if len(self._ready) < READY:
            self._keeper.tell(self._refill)  # after whoever waits already

    def _taken(self) -> Worker:
        """Give a worker that is ready; one that died while it waited is replaced: nothing has run in it."""
        self.open()
        for _ in range(READY + 4):
            worker = self._waiting() or self._keeper.ask(lambda: self._waiting() or self._new())
            if worker.process.poll() is None:
                try:
                    worker.ready()
                    return worker
                except _Broken:
                    pass
            self._keeper.tell(worker.end)
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def _waiting(self) -> Worker | None:
        with self._guard:
            return self._ready.pop(0) if self._ready else None

    def distrust(self) -> None:
        """Let go of those that wait: what ended one of them may have ended all, and not have shown yet."""
        with self._guard:
            waiting, self._ready = self._ready, []
        for worker in waiting:
            self._keeper.tell(worker.end)

    def close(self) -> None:
        """End all workers; on the keeper's thread."""
        self._closed = True
        with self._guard:
            waiting, self._ready = self._ready, []
        for worker in waiting:
            worker.end()

    # --- one program --------------------------------------------------------------------------------------------------

    def run(self, source: Source, running: Running, state: State, key: bytes, owner: str) -> Ended:
        worker = self._taken()
        running.seat(worker.victim.kill)
        last: dict[str, Any] | None = None
        try:
            worker.write(self._program(source, running, state))
            self._keeper.tell(self._refill)  # not before: starting a process takes some milliseconds
            last = _conversation(worker, running)
        except _Broken:
            pass
        except Exhausted as error:
            return Ended("python", error=failure("LimitExceeded", str(error), limit="calls"), undone=True)
        finally:
            running.leave()
            running.calls.close()
            spent = worker.victim.cpu_s()
            if running.calls.depth:
                running.calls.spent(spent)
            code = self._keeper.ask(worker.end)
        if last is None:
            return Ended("python", error=_ended(code, spent, self.limits), died=True)
        return self._ended(last, source, running, state, key, owner)

    def _program(self, source: Source, running: Running, state: State) -> dict[str, Any]:
        limits = self.limits
        return {
            "code": source.text,
            "roots": sorted(running.calls.names.roots),
            "inside": running.calls.names.inside,
            "variables": {name: value for name, value in state.plain.items() if name not in running.calls.names.roots},
            "definitions": list(state.sources.values()),
            "sources": [*state.sources, *source.definitions],  # what the next run is given in this way
            "limits": {
                "output": limits.output_chars,
                "nodes": limits.value_nodes,
                "size": limits.value_bytes,
                "parallel": limits.parallel,
            },
        }

    def _ended(
        self, last: dict[str, Any], source: Source, running: Running, state: State, key: bytes, owner: str
    ) -> Ended:
        dropped = last.get("dropped")
        if isinstance(dropped, int) and dropped > 0:
            running.output.drop(dropped)
        error = _told(last, self.limits)
        if error is not None and error["type"] == "MemoryError":
            return Ended("python", error=error, undone=True)
        kept, names = self._kept(last, source, running.calls.names.roots, state, key, owner)
        if error is not None:
            return Ended("python", error=error, state=kept, lost=names)
        try:
            value = plain(last.get("value"), self.limits.value_nodes, self.limits.value_bytes)
        except TooLarge as large:
            return Ended("python", value=f"[cut: {large}]", cut=True, state=kept, lost=names)
        whole = last.get("whole")
        long = whole if isinstance(whole, int) and isinstance(value, str | list | dict) else None
        return Ended("python", value=value, cut=last.get("cut") is True, whole=long, state=kept, lost=names)

    def _kept(
        self, last: dict[str, Any], source: Source, roots: set[str], state: State, key: bytes, owner: str
    ) -> tuple[bytes | None, tuple[str, ...]]:
        """Write down the variables for the next run, and name those that are lost; None leaves all as they were."""
        found, hidden, sieve = last.get("variables"), source.hides(roots), Sieve()
        if not isinstance(found, dict):
            return None, (*source.kept, *hidden)
        values = {name: one for name, one in found.items() if _is_variable(name, roots) and sieve.keeps(one)}
        dropped = [name for name in (*found, *_named(last.get("lost"))) if name not in values]
        lost = [name for name in dropped if _is_variable(name, roots)]
        changed = [name for name, value in values.items() if name not in state.plain or state.plain[name] != value]
        gone = {*_named(last.get("gone")), *lost} - set(values)
        sources = {name: text for name, text in state.sources.items() if name not in gone} | source.definitions
        sources = {name: text for name, text in sources.items() if name not in changed}
        gone |= {name for name in state.plain if name not in values and name not in sources and name not in roots}
        known = _distinct((one for one in state.known if one not in gone), values, lost, source.definitions)
        new = replace(
            state,
            plain={name: value for name, value in state.plain.items() if name in roots} | values,
            known=known[:MOST_KNOWN],
            newer=_distinct(state.newer, changed),
            sources=bounded(sources, self.limits.source_bytes),
            newer_sources=[name for name in sources if name in state.newer_sources or name in source.definitions],
            missing={name: why for name, why in state.missing.items() if name not in values}
            | dict.fromkeys(lost, NOT_PLAIN),
        )
        new.newer_sources = [name for name in new.newer_sources if name in new.sources]
        if new.dump and gone.intersection(state.known):  # Monty cannot forget a name
            only_monty = (one for one in known if one not in new.missing)
            lost += new.shrink(only_monty, f"{min(gone)} was taken away on CPython")
        if not (new.plain or new.sources or new.dump or new.known or state.known):
            return None, (*lost, *hidden)
        kept = new.sealed(key, owner)
        if len(kept) > self.limits.state_bytes and new.dump:
            lost += new.shrink(state.known, TOO_LARGE)
            kept = new.sealed(key, owner)
        if len(kept) > self.limits.state_bytes:
            return None, (*source.kept, *hidden)
        return kept, (*lost, *hidden)


class _Answered(Worker):
    """A worker whose first frame has been read already."""

    def __init__(self) -> None:
        raise NotImplementedError

    @classmethod
    def made(cls, worker: Worker) -> Worker:
        worker.__class__ = cls
        return worker

    def ready(self) -> None:
        return


def _conversation(worker: Worker, running: Running) -> dict[str, Any]:
    """Answer the program's calls until it is done."""
    calls: Calls = running.calls
    while True:
        frame = worker.read()
        kind = frame.get("op")
        if kind == "call":
            number, path = frame.get("id"), frame.get("path")
            args, given = frame.get("args"), frame.get("given")
            fits = isinstance(number, int) and isinstance(path, str) and isinstance(args, list)
            if not fits or not isinstance(given, dict) or len(str(path)) > 300:
                raise _Broken("a call cannot be read")
            if frame.get("at_once") is True:
                calls.begin(str(path), args or [], given, partial(_answer, worker, number))
            else:
                _answer(worker, number, calls.settle(str(path), args or [], given))
        elif kind == "out":
            text = frame.get("text")
            if not isinstance(text, str) or running.output.seen > 2 * running.limits.output_chars + _SMALL:
                raise _Broken("it prints more than any worker of ours lets through")
            running.output.write(text)
        elif kind == "done":
            return frame
        else:
            raise _Broken("an unknown frame")


def _answer(worker: Worker, number: Any, settled: Settled) -> None:
    frame: dict[str, Any] = {"id": number, "value": settled.value}
    if (trouble := settled.trouble) is not None:
        frame = {"id": number, "error": trouble.text, "code": trouble.code, "kind": trouble.kind, "hint": trouble.hint}
    worker.write(frame)


def _distinct(*many: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(chain(*many)))


def _named(names: Any) -> list[str]:
    return [name[:LONGEST_NAME] for name in names[:1_000] if isinstance(name, str)] if isinstance(names, list) else []


def _is_variable(name: str, roots: set[str]) -> bool:
    """Tell whether a program can have given a value to this: the worker may say anything."""
    named = name.isidentifier() and len(name) <= LONGEST_NAME and not keyword.iskeyword(name)
    return named and not name.startswith("__") and name not in roots and name not in RESERVED


def _told(last: dict[str, Any], limits: Limits) -> Failure | None:
    if "error" not in last:
        return None
    kind, message, line = str(last["error"])[:100], str(last.get("message", "")), last.get("line")
    where = line if isinstance(line, int) else None
    hint = str(last["hint"]) if last.get("hint") else None
    if hint and message.endswith(f" (hint: {hint})"):
        message = message.removesuffix(f" (hint: {hint})")
    if kind == "MemoryError":
        told = f"more than {limits.python_memory_mb} MB of memory (limit python_memory_mb)"
        return failure(kind, told, where, "work on less at a time", "python_memory_mb")
    if kind in ("ImportError", "ModuleNotFoundError") and hint is None:
        from athena.programs.sandbox.check import IMPORTS

        hint = IMPORTS
    return failure(kind, message, where, hint)


def _ended(code: int, spent: float, limits: Limits) -> Failure:
    if code == -signal.SIGXCPU or spent > limits.cpu_s:  # a program may ignore the signal, and is killed then
        return failure("TimeoutError", f"more than {limits.cpu_s:g} s of computing (limit cpu_s)", limit="cpu_s")
    if code == -signal.SIGKILL:
        return failure("WorkerDied", "the process that ran the program was killed")
    return failure("WorkerDied", f"the process that ran the program ended by itself ({code})")
