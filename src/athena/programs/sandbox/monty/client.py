"""The host's side of Monty's client process (`worker/monty_client.py`): requests, replies, and how it ends."""

import json
import os
import signal
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from athena.programs.sandbox.json_values import CUT_MARK
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.spawner import ProcessHandle

_SCRIPT_PATH = Path(__file__).parents[1] / "worker" / "monty_client.py"
_MAX_REPLY_BYTES = 64 << 20
_EXIT_TIMEOUT_S = 5.0
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


class MontyClient:
    """A client process with one Monty worker: one session at a time, and one request at a time."""

    def __init__(self) -> None:
        python = getattr(sys, "_base_executable", None) or sys.executable
        paths = [str(_SCRIPT_PATH.parent), *(path for path in map(os.path.abspath, filter(None, sys.path)))]
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-B", str(_SCRIPT_PATH), str(os.getpid()), json.dumps(paths)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/", bufsize=0,
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._buffer = bytearray()
        self._is_broken = False
        self.on_output: Callable[[str, int], None] = lambda _text, _dropped: None
        self.session_count = 0
        self._client_handle = ProcessHandle(self.process.pid)
        self._end_process = weakref.finalize(self, _end_process, self.process)  # also if nobody calls terminate
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
        self._write(struct.pack(">II", len(data), len(blob)) + data + blob)
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
        self._client_handle.kill()

    def terminate(self) -> None:
        """Kill the process and close its pipes, on the spawner's thread."""
        self.kill()
        self._end_process()
        self._release_worker()
        self._client_handle.release()

    def _release_worker(self) -> None:
        if self._worker_handle is not None:
            self._worker_handle.release()
            self._worker_handle = None

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._in, view) :]
        except OSError:  # it has ended
            raise self._describe_exit() from None

    def _read_frame(self) -> tuple[Reply, bytes]:
        size, blob_size = struct.unpack(">II", self._read_exactly(8))
        if size > _MAX_REPLY_BYTES:
            raise MontyCrashed("a reply of Monty's client is too large")
        data, blob = self._read_exactly(size), self._read_exactly(blob_size)
        try:
            reply: Reply = json.loads(data)
        except (ValueError, RecursionError):
            raise MontyCrashed("a reply of Monty's client cannot be read") from None
        return reply, blob

    def _read_exactly(self, length: int) -> bytes:
        while len(self._buffer) < length:
            chunk = os.read(self._out, max(1 << 16, min(length - len(self._buffer), 1 << 20)))
            if not chunk:
                raise self._describe_exit()
            self._buffer += chunk
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def _describe_exit(self) -> MontyCrashed:
        code = 0
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(_EXIT_TIMEOUT_S)
        return MontyCrashed(f"the client of Monty ended ({code})", timed_out=code == -signal.SIGPROF)


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(OSError):
            pipe.close()
