"""The process that holds Monty's client. It turns the values of programs into Python objects, then into plain JSON.

Python hashes the keys that a program chose, and a hostile program can make that slow. So it happens here, in a process
that the host kills like a worker, and never in the host. The process runs no code of programs.

The imports take long. So the host starts this script once; it imports what a client needs, and forks a client for each
request on descriptor 0. It has no thread, so the fork is safe, and no pipe but those of the client that it forks.

Frames on the two pipes of a client: the lengths of two parts, JSON, bytes. Each request gets one reply; printed text
comes before it.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import os
import signal
import socket
import struct
import sys
import types
import typing
import uuid
from contextlib import suppress
from functools import cache

MYPY = False
if MYPY:
    from collections.abc import Callable
    from typing import Any

_UUID_NAMESPACE = uuid.UUID("6f0d2d3e-0000-5000-8000-000000000001")
_PARALLEL_NAMES = ("parallel", "parallel__")  # the second is called by the prelude's own
_SPARE_CPU_S = 2.0  # of this process, besides the program's own limit
_PR_SET_PDEATHSIG = 1
_MAX_IDLE_S = 3.0  # of a server without clients: the next sandbox of this process may come soon
_FRAME_HEAD = struct.Struct(">II")  # the lengths of the two parts
_encode_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_REQUEST = struct.Struct(">ci")  # s: start a client; e: end the one with this pid
_REPLY = struct.Struct(">i")  # the pid, or the exit code


class _NamespaceObject:
    __slots__ = ("operations", "path")

    def __init__(self, path: str, operations: str) -> None:
        self.path, self.operations = path, operations

    def __str__(self) -> str:
        return f"<namespace {self.path}: {self.operations}>"


_NamespaceObject.__name__ = "namespace"  # as Monty shows it


class _PendingCall:
    """A call that the host makes meanwhile; the program holds it until `parallel` asks for its result."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __str__(self) -> str:
        return "<a call that runs; parallel() gives its result>"


@cache
def _path_uuid(path: str) -> uuid.UUID:
    return uuid.uuid5(_UUID_NAMESPACE, path)


@cache
def _create_namespace(path: str, operations: str) -> Any:
    """Create a namespace that has the same id in every session, so that it survives a dump."""
    kind = pm.ClassType(_NamespaceObject, id=_path_uuid("#"))
    instance = _NamespaceObject(path, operations)
    return pm.ClassInstance(instance, eager_attrs={"operations"}, id=_path_uuid(path), class_type=kind)


def _create_stand_in(path: str) -> Any:
    def stand_in(*_: object, **__: object) -> None:
        raise RuntimeError

    stand_in.__name__ = stand_in.__qualname__ = path
    return stand_in


class MontyClient:
    """One session at a time; `do_...` answer the requests of the host."""

    def __init__(self, read_from: int, write_to: int) -> None:
        self._in, self._out = read_from, write_to
        self._pool: Any = None
        self._session: Any = None
        self._snapshot: Any = None
        self._form = "json"  # of the value at the end
        self._limits: dict[str, Any] = {}
        self._chars_left = self._dropped = 0
        self._names: dict[tuple[str | None, str], Any] = {}  # that the host knows, by the owner's id and the name

    def serve(self) -> None:
        """Answer requests until the host closes the pipe."""
        while (request := self._read_request()) is not None:
            fields, blob = request
            operation: Callable[..., Any] = getattr(self, f"do_{fields.pop('op')}")
            try:
                reply = operation(blob, **fields)
            except (pm.MontyRuntimeError, pm.MontySyntaxError) as error:
                reply = _describe_exception(error), b""
            except pm.MontyCrashedError as error:
                reply = {"op": "crashed", "text": str(error)[:2000], "timed_out": bool(error.timed_out)}, b""
            except (pm.MontyError, RuntimeError, ValueError, TypeError, OSError, TimeoutError) as error:
                reply = {"op": "failed", "text": str(error)[:2000]}, b""
            self._send(*(reply if isinstance(reply, tuple) else (reply, b"")))

    # --- sessions -----------------------------------------------------------------------------------------------------

    def do_open(self, _: bytes, binary: str, options: dict[str, Any]) -> Any:
        self._pool = pm.Monty(binary_path=binary, **options)
        self._pool.__enter__()
        return {"op": "ok", "version": pm.__version__}

    def do_enter(self, _: bytes, limits: dict[str, Any], resources: dict[str, Any], stubs: str | None = None) -> Any:
        self._limits, self._chars_left, self._dropped = limits, limits["output"], 0
        session = self._pool.checkout(
            limits=resources,
            os_policy={"sleep": "call_host"},
            type_check=stubs is not None,
            type_check_stubs=stubs,
            type_check_format="json",
        )
        session.__enter__()
        self._session, self._snapshot = session, None
        # Not a resource limit, which Monty's worker would inherit.
        signal.setitimer(signal.ITIMER_PROF, limits["cpu_s"] + _SPARE_CPU_S)
        return {"op": "ok", "pid": session.worker_pid or 0}

    def do_exit(self, _: bytes) -> Any:
        signal.setitimer(signal.ITIMER_PROF, 0)
        session, self._session, self._snapshot = self._session, None, None
        session.__exit__(None, None, None)
        return {"op": "ok"}

    def do_load(self, blob: bytes) -> Any:
        self._session.load_session(blob)
        return {"op": "ok"}

    def do_dump(self, _: bytes, most: int) -> Any:
        """Return the memory of the session, unless it is too large."""
        data = (self._snapshot or self._session).dump()
        return {"op": "ok", "size": len(data)}, data if len(data) <= most else b""

    def do_check(self, _: bytes, source: str) -> Any:
        """Return the type checker's report."""
        try:
            self._session.feed_run(source)
        except pm.MontyTypingError as error:
            return {"op": "ok", "report": error.display()}
        except pm.MontyError:  # it does not read all of Python
            pass
        return {"op": "ok", "report": "[]"}

    # --- one program --------------------------------------------------------------------------------------------------

    def do_feed(
        self, _: bytes, source: str, form: str, inputs: dict[str, Any], namespaces: dict[str, str], quiet: bool
    ) -> Any:
        """Run a source until it ends or needs the host; `form` is that of its value: json or variables."""
        self._form, self._names = form, {}
        values: dict[str, Any] = {}
        for name, value in inputs.items():
            try:
                values[name] = untag_value(value)
            except UntaggableValue:
                continue
        values |= {name: _create_namespace(name, operations) for name, operations in namespaces.items()}
        write = _ignore_output if quiet else self._write_output
        return self._report(self._session.feed_start(source, inputs=values or None, print_callback=write))

    def do_restore(self, blob: bytes) -> Any:
        """Load a program that waits in the middle of a call."""
        self._form, self._names = "json", {}
        self._snapshot = self._session.load_snapshot(blob, print_callback=self._write_output)
        return {"op": "ok"}

    def do_resume(self, _: bytes, reply: dict[str, Any]) -> Any:
        return self._report(self._snapshot.resume(_to_answer(reply)))

    def do_resume_system(self, _: bytes) -> Any:
        return self._report(self._snapshot.resume_auto())

    def do_resume_futures(self, _: bytes, replies: dict[str, Any]) -> Any:
        return self._report(
            self._snapshot.resume({int(number): _to_answer(reply) for number, reply in replies.items()})
        )

    def do_resume_parallel(self, _: bytes, results: dict[str, Any]) -> Any:
        """Return the elements of `parallel`, with the results in the place of its calls."""
        items = self._snapshot.args[0]
        elements = list(items.values()) if isinstance(items, dict) else list(items)
        done = [results[str(item.number)] if isinstance(item, _PendingCall) else item for item in elements]
        value = dict(zip(items, done, strict=True)) if isinstance(items, dict) else done
        return self._report(self._snapshot.resume({"return_value": value}))

    def do_resume_name(self, _: bytes, kind: str, path: str, operations: str = "") -> Any:
        """Answer a lookup; the same name is not asked for again in this program unless it is unknown."""
        if kind == "unknown":
            return self._report(self._snapshot.resume())
        value = _create_namespace(path, operations) if kind == "namespace" else _create_stand_in(path)
        self._names[_to_text(self._snapshot.object_id), self._snapshot.variable_name] = value
        return self._report(self._snapshot.resume(value=value))

    # --- replies ------------------------------------------------------------------------------------------------------

    def _report(self, snapshot: Any) -> dict[str, Any]:
        self._snapshot = None
        while isinstance(snapshot, pm.NameLookupSnapshot):
            key = _to_text(snapshot.object_id), snapshot.variable_name
            if key not in self._names:
                self._snapshot = snapshot
                return {"op": "name", "name": key[1], "owner": key[0]}
            snapshot = snapshot.resume(value=self._names[key])
        if isinstance(snapshot, pm.MontyComplete):
            return self._report_variables(snapshot.output) if self._form == "variables" else self._report_end(snapshot)
        self._snapshot = snapshot
        if isinstance(snapshot, pm.FunctionSnapshot):
            return self._report_call(snapshot)
        return {"op": "futures", "ids": snapshot.pending_call_ids}

    def _report_call(self, snapshot: Any) -> dict[str, Any]:
        name, args, kwargs = str(snapshot.function_name), snapshot.args, snapshot.kwargs
        position = snapshot.position
        report = {
            "op": "call",
            "name": name,
            "is_system": bool(snapshot.is_os_function),
            "owner": _to_text(snapshot.object_id),
            "id": snapshot.call_id,
            "where": [position.filename, position.start, position.end],
            "eager": bool(snapshot.allow_eager_await),
        }
        if name in _PARALLEL_NAMES and report["owner"] is None:
            return report | _describe_parallel(args, kwargs)
        copier = BoundedCopier(self._limits["nodes"], self._limits["size"], cut=False)
        try:
            plain = copier.copy([list(args), {str(key): value for key, value in kwargs.items()}])
        except ArgumentTooLarge as error:
            return report | {"too_large": str(error)}
        return report | {"args": plain[0], "kwargs": plain[1]}

    def _report_end(self, snapshot: Any) -> dict[str, Any]:
        value = snapshot.output
        is_cut = isinstance(value, tuple) and len(value) == 3 and value[0] == self._limits["cut_mark"]
        copier = BoundedCopier(self._limits["nodes"], self._limits["size"], cut=False)
        try:
            report = {"op": "end", "value": copier.copy(value[1] if is_cut else value), "cut": is_cut}
        except ArgumentTooLarge as error:
            return {"op": "end", "value": f"[cut: {error}]", "cut": True}
        if is_cut and isinstance(value[2], int):
            report["whole"] = value[2]
        return report

    def _report_variables(self, values: dict[str, Any]) -> dict[str, Any]:
        tagged, tagger = {}, Tagger()
        for name, value in values.items():
            if value != (self._limits["cut_mark"],):
                try:
                    tagged[name] = tagger.tag_value(value)
                except UntaggableValue:
                    continue
        return {"op": "end", "variables": tagged, "names": list(values)}

    # --- frames -------------------------------------------------------------------------------------------------------

    def _write_output(self, _: str, text: str) -> None:
        accepted = text[: self._chars_left]
        self._dropped += len(text) - len(accepted)
        self._chars_left -= len(accepted)
        if accepted:
            self._send({"op": "out", "text": accepted})

    def _read_request(self) -> tuple[dict[str, Any], bytes] | None:
        """Read a request; the host sends none before the reply to the last one, so all that comes belongs to it."""
        data, missing = bytearray(), 8
        while missing > 0:
            part = os.read(self._in, max(1 << 16, min(missing, 1 << 20)))
            if not part:
                return None
            data += part
            if len(data) >= 8:
                size, blob_size = _FRAME_HEAD.unpack_from(data)
                missing = 8 + size + blob_size - len(data)
        return json.loads(data[8 : 8 + size]), bytes(data[8 + size :])

    def _send(self, fields: dict[str, Any], blob: bytes = b"") -> None:
        if self._dropped and fields["op"] != "out":
            fields["dropped"], self._dropped = self._dropped, 0
        data = _encode_json(fields).encode("utf-8", "replace")
        view = memoryview(_FRAME_HEAD.pack(len(data), len(blob)) + data + blob)
        while view:
            view = view[os.write(self._out, view) :]


@cache
def _to_text(owner: Any) -> str | None:
    return str(owner) if owner else None


def _to_answer(reply: dict[str, Any]) -> Any:
    if "pending" in reply:
        return {"return_value": pm.ClassInstance(_PendingCall(reply["pending"]))}
    return {"future": ...} if "future" in reply else reply


def _describe_parallel(args: Any, kwargs: Any) -> dict[str, Any]:
    items = args[0] if len(args) == 1 else None
    if not isinstance(items, (list, tuple, dict)) or set(kwargs) - {"return_errors"}:
        return {"pending": None}
    elements = items.values() if isinstance(items, dict) else items
    numbers = [item.number for item in elements if isinstance(item, _PendingCall)]
    return {"pending": numbers, "return_errors": bool(kwargs.get("return_errors"))}


def _describe_exception(error: Any) -> dict[str, Any]:
    """Describe an exception of a program; use Monty's traceback if Python cannot build the exception."""
    try:
        exception = error.exception()
        kind, message = type(exception).__name__, str(exception)
    except Exception:
        kind, _, message = str(error).strip().rpartition("\n")[2].partition(": ")
        if not kind.isidentifier():
            kind, message = "Exception", str(error)[-500:]
    frames = [[frame.filename, frame.line] for frame in error.traceback()]
    is_unread = isinstance(error, pm.MontySyntaxError)
    return {"op": "raised", "type": kind, "message": message[:20_000], "frames": frames[-100:], "is_unread": is_unread}


def _ignore_output(*_: object) -> None:
    pass


# --- the server -------------------------------------------------------------------------------------------------------


def _serve_forks(channel: socket.socket, host: int) -> tuple[int, int]:
    """Fork and end clients as the host asks; return the pipes in a client, and end the process in the server."""
    clients: set[int] = set()
    channel.settimeout(_MAX_IDLE_S)
    while True:
        try:
            message, pipes, *_ = socket.recv_fds(channel, _REQUEST.size, 2)
        except TimeoutError:
            if os.getppid() != host or not any(map(_is_running, clients)):
                os._exit(0)
            continue
        if len(message) != _REQUEST.size:  # the host has ended
            os._exit(0)
        operation, pid = _REQUEST.unpack(message)
        if operation == b"s":
            server = os.getpid()
            try:
                answer = os.fork()
            except OSError as error:
                answer = -(error.errno or errno.EAGAIN)
            if not answer:
                channel.close()
                _end_with_parent(server)
                return pipes[0], pipes[1]
            if answer > 0:
                clients.add(answer)
            for pipe in pipes:
                os.close(pipe)
        elif pid not in clients:
            answer = -errno.ESRCH  # it was ended before
        else:
            clients.remove(pid)  # so it is ours, and no other process has its number before the next line has waited
            os.kill(pid, signal.SIGKILL)
            answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        channel.sendall(_REPLY.pack(answer))


def _is_running(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def _end_with_parent(parent: int) -> None:
    """Ask the kernel to end this process with its parent (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # it had ended before


if __name__ == "__main__":
    sys.path += json.loads(sys.argv[2])
    host_channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    # They would be half of the start: Monty takes types from the one, and a class that we do not use needs the other.
    sys.modules |= {"typing_extensions": typing, "asyncio": types.ModuleType("asyncio")}
    import pydantic_monty as pm

    del sys.modules["typing_extensions"], sys.modules["asyncio"]
    from tagging import Tagger, UntaggableValue, untag_value  # type: ignore[import-not-found]
    from values import ArgumentTooLarge, BoundedCopier  # type: ignore[import-not-found]

    gc.freeze()  # a collection in a client would copy the memory that it shares with the server
    client_pipes = _serve_forks(host_channel, int(sys.argv[1]))
    for client_pipe in client_pipes:
        os.set_inheritable(client_pipe, False)  # a worker must not have it
    MontyClient(*client_pipes).serve()
    os._exit(0)
