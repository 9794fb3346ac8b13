"""The host's side of Monty's client process (`worker/monty_client.py`): requests, replies, and how it ends."""

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from athena.errors import Unavailable
from athena.programs.sandbox.json_values import CUT_MARK
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.spawner import ProcessHandle

_SCRIPT_PATH = Path(__file__).parents[1] / "worker" / "monty_client.py"
_MAX_REPLY_BYTES = 64 << 20
_SERVER_TIMEOUT_S = 60.0
_SERVER_TRIES = 3
_FRAME_HEAD = struct.Struct(">II")
_SERVER_REQUEST = struct.Struct(">ci")  # as in worker/monty_client.py
_SERVER_REPLY = struct.Struct(">i")
Reply = dict[str, Any]


class MontyCrashed(Exception):
    """The worker or the client process ended."""

    def __init__(self, text: str, *, timed_out: bool = False) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class MontyRaised(Exception):
    """The program ended with an exception, or cannot be read."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply["message"])
        self.type, self.message = str(reply["type"]), str(reply["message"])
        self.frames: list[tuple[str, int]] = [(frame[0], frame[1]) for frame in reply["frames"]]
        self.is_unread: bool = reply["is_unread"]


class MontyFailed(Exception):
    """Monty could not transfer a value, or has a bug."""


class ClientServer:
    """The process that forks clients: it has imported what they need. It ends with this process, or when it is idle."""

    def __init__(self) -> None:
        python = getattr(sys, "_base_executable", None) or sys.executable
        paths = [str(_SCRIPT_PATH.parent), *(path for path in map(os.path.abspath, filter(None, sys.path)))]
        self._channel, other_end = socket.socketpair()
        self._channel.settimeout(_SERVER_TIMEOUT_S)
        with other_end:
            self._process = subprocess.Popen(
                [python, "-I", "-S", "-B", str(_SCRIPT_PATH), str(os.getpid()), json.dumps(paths)],
                stdin=other_end.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={}, cwd="/",
            )  # fmt: skip
        self._guard = threading.Lock()
        self._abandoned: deque[int] = deque()  # clients that were not ended before they were garbage

    def start_client(self) -> tuple[int, int, int]:
        """Return the pid of a new client, and the pipes to and from it."""
        client_in, to_client = os.pipe()
        from_client, client_out = os.pipe()
        pid = 0
        try:
            pid = self._request(b"s", 0, [client_in, client_out])
        finally:
            for pipe in (client_in, client_out, *(() if pid > 0 else (to_client, from_client))):
                os.close(pipe)
        if pid <= 0:
            raise Unavailable(f"no process can be started: {os.strerror(-pid)}", hint="end other programs")
        return pid, to_client, from_client

    def end_client(self, pid: int) -> int:
        """Kill a client and return its exit code; if it had ended, the code that it ended with."""
        with suppress(OSError):
            return self._request(b"e", pid)
        return -signal.SIGKILL  # it ended with the server

    def abandon_client(self, pid: int, *pipes: int) -> None:
        """Close a client's pipes, at which it ends. A garbage collection may call this, so it waits for no lock."""
        _close_pipes(*pipes)
        self._abandoned.append(pid)

    def _request(self, operation: bytes, pid: int, pipes: list[int] | None = None) -> int:
        with self._guard:
            while self._abandoned:
                self._exchange(b"e", self._abandoned.popleft())
            return self._exchange(operation, pid, pipes)

    def _exchange(self, operation: bytes, pid: int, pipes: list[int] | None = None) -> int:
        try:
            socket.send_fds(self._channel, [_SERVER_REQUEST.pack(operation, pid)], pipes or [])
            reply = self._channel.recv(_SERVER_REPLY.size)
            if len(reply) != _SERVER_REPLY.size:
                raise OSError("the server of Monty's clients has ended")
        except OSError:
            self._channel.close()  # a late reply must not answer the next request
            raise
        return int(_SERVER_REPLY.unpack(reply)[0])

    def close(self) -> None:
        """End the server; the kernel ends its clients."""
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def forget(self) -> None:
        """Leave the server to the process that this one was forked from."""
        self._channel.close()
        self._process.returncode = 0


def _close_pipes(*pipes: int) -> None:
    for pipe in pipes:
        os.close(pipe)


class _SharedServer:
    """The server of all sandboxes of this process."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._server: ClientServer | None = None

    def start_client(self) -> tuple[ClientServer, tuple[int, int, int]]:
        """Start a client; replace a server that has ended."""
        with self._guard:
            for _ in range(_SERVER_TRIES):
                self._server = self._server or ClientServer()
                try:
                    return self._server, self._server.start_client()
                except OSError:
                    self._server.close()
                    self._server = None
        raise Unavailable("the sandbox's workers end as soon as they start", hint="athena doctor")

    def close(self) -> None:
        with self._guard:
            if self._server is not None:
                self._server.close()
            self._server = None

    def forget(self) -> None:
        if self._server is not None:
            self._server.forget()
        self._server = None
        self._guard = threading.Lock()  # a thread of the parent may have held the other


_shared_server = _SharedServer()
atexit.register(_shared_server.close)
os.register_at_fork(after_in_child=_shared_server.forget)


class MontyClient:
    """A client process with one Monty worker: one session at a time, and one request at a time."""

    def __init__(self) -> None:
        self._server, (self.pid, self._in, self._out) = _shared_server.start_client()
        self._at_garbage: weakref.finalize[..., MontyClient] = weakref.finalize(
            self, self._server.abandon_client, self.pid, self._in, self._out
        )
        self._buffer = bytearray()
        self._is_broken = False
        self.on_output: Callable[[str, int], None] = lambda _text, _dropped: None
        self.session_count = 0
        self._guard = threading.Lock()
        self._exit_code: int | None = None
        self._client_handle = ProcessHandle(self.pid)
        self._worker_handle: ProcessHandle | None = None

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, op: str, *, blob: bytes = b"", **fields: Any) -> Reply:
        """Send a request and wait for its reply; raise what it reports."""
        return self.request_blob(op, blob=blob, **fields)[0]

    def request_blob(self, op: str, *, blob: bytes = b"", **fields: Any) -> tuple[Reply, bytes]:
        if self._is_broken:
            raise MontyCrashed("the client of Monty ended")
        self._is_broken = True  # until the reply is complete
        data = json.dumps({"op": op, **fields}).encode()
        self._write(_FRAME_HEAD.pack(len(data), len(blob)) + data + blob)
        while True:
            reply, answer = self._read_frame()
            if reply["op"] != "out":
                break
            self.on_output(reply["text"], 0)
        self._is_broken = False
        if "dropped" in reply:
            self.on_output("", reply["dropped"])
        if reply["op"] == "raised":
            raise MontyRaised(reply)
        if reply["op"] == "crashed":
            self._is_broken = True
            raise MontyCrashed(reply["text"], timed_out=reply["timed_out"])
        if reply["op"] == "failed":
            raise MontyFailed(reply["text"])
        return reply, answer

    def enter(self, limits: Limits, resources: Mapping[str, Any], stubs: str | None = None) -> None:
        """Begin a session."""
        values = {
            "nodes": limits.value_nodes,
            "size": limits.value_bytes,
            "output": limits.output_chars,
            "cpu_s": limits.cpu_s,
            "cut_mark": CUT_MARK,
        }
        reply = self.request("enter", limits=values, resources=dict(resources), stubs=stubs)
        self.session_count += 1
        self._release_worker()
        self._worker_handle = ProcessHandle(reply["pid"]) if reply["pid"] else None

    def exit(self) -> bool:
        """End the session; return whether another can begin."""
        self.on_output = lambda _text, _dropped: None
        with suppress(MontyCrashed, MontyRaised, MontyFailed):
            self.request("exit")
            return True
        return False

    def load(self, dump: bytes) -> None:
        """Load the memory of an earlier session."""
        self.request("load", blob=dump)

    def dump(self, max_bytes: int) -> bytes | None:
        """Return the memory of the session; None if it is too large."""
        reply, data = self.request_blob("dump", most=max_bytes)
        return data if reply["size"] <= max_bytes else None

    def feed(
        self, source: str, *, form: str = "json", inputs: Mapping[str, Any] | None = None,
        namespaces: Mapping[str, str] | None = None, quiet: bool = False,
    ) -> Reply:  # fmt: skip
        return self.request(
            "feed", source=source, form=form, inputs=dict(inputs or {}), namespaces=dict(namespaces or {}), quiet=quiet
        )

    # --- the process --------------------------------------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """Return whether the process and its worker still run; True where the system cannot tell."""
        is_worker_alive = self._worker_handle is None or self._worker_handle.is_alive
        return not self._is_broken and self._client_handle.is_alive and is_worker_alive

    def read_cpu_s(self) -> float:
        """Return the CPU time of the process and its worker."""
        worker_s = self._worker_handle.read_cpu_s() if self._worker_handle else 0.0
        return worker_s + self._client_handle.read_cpu_s()

    def kill(self) -> None:
        """Kill the process; the kernel kills its worker."""
        if self._worker_handle is not None:
            self._worker_handle.kill()
        if self._client_handle.has_descriptor:
            self._client_handle.kill()
        else:
            self._end_process()

    def terminate(self) -> None:
        """Kill the process and close its pipes."""
        self.kill()
        self._end_process()
        self._release_worker()
        self._client_handle.release()
        if self._at_garbage.detach():
            _close_pipes(self._in, self._out)

    def _end_process(self) -> int:
        with self._guard:
            if self._exit_code is None:
                self._exit_code = self._server.end_client(self.pid)
                if self._at_garbage.detach():  # from now on its pid may be another client's
                    self._at_garbage = weakref.finalize(self, _close_pipes, self._in, self._out)
            return self._exit_code

    def _release_worker(self) -> None:
        if self._worker_handle is not None:
            self._worker_handle.release()
            self._worker_handle = None

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._in, data)
            while written < len(data):
                written += os.write(self._in, memoryview(data)[written:])
        except OSError:  # it has ended
            raise self._describe_exit() from None

    def _read_frame(self) -> tuple[Reply, bytes]:
        self._fill_buffer(8)
        size, blob_size = _FRAME_HEAD.unpack_from(self._buffer)
        if size > _MAX_REPLY_BYTES:
            raise MontyCrashed("a reply of Monty's client is too large")
        end = 8 + size + blob_size
        self._fill_buffer(end)
        data, blob = self._buffer[8 : 8 + size], bytes(self._buffer[8 + size : end])
        del self._buffer[:end]
        try:
            reply: Reply = json.loads(data)
        except (ValueError, RecursionError):
            raise MontyCrashed("a reply of Monty's client cannot be read") from None
        return reply, blob

    def _fill_buffer(self, length: int) -> None:
        while len(self._buffer) < length:
            chunk = os.read(self._out, max(1 << 16, min(length - len(self._buffer), 1 << 20)))
            if not chunk:
                raise self._describe_exit()
            self._buffer += chunk

    def _describe_exit(self) -> MontyCrashed:
        code = self._end_process()
        return MontyCrashed(f"the client of Monty ended ({code})", timed_out=code == -signal.SIGPROF)
