"""One jailed CPython process and its pipes: frames of JSON, none of which the host believes."""

import json
import os
import re
import struct
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

from athena.programs.sandbox.spawner import ProcessHandle

_MAX_FRAME_BYTES = 16 << 20  # a complete value, escaped
MAX_SMALL_FRAME_BYTES = 256 << 10  # of frames without these prefixes
_LARGE_FRAME_PREFIXES = (b'{"op": "call"', b'{"op": "done"')
_LARGE_FRAME_BYTES_PER_S = 32 << 20
_MAX_FRAME_PARTS = 600_000  # values and keys; they cost far more than their text
# A string without an end matches too: each byte is read once.
_STRING_PATTERN = re.compile(rb'"(?>[^"\\]*)(?>(?:\\.[^"\\]*)*)(?:"|\\?\Z)', re.DOTALL)


class WorkerBroken(Exception):
    """The worker ended, or sent an invalid frame."""


class PythonWorker:
    """One jailed process and its two pipes."""

    def __init__(self, argv: list[str]) -> None:
        # The launcher sets its own environment; this one is for a worker that starts without it (macOS).
        environ = {"PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ, bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._buffer = bytearray()
        self.frame_bytes = b""  # the last frame, as it was read
        self._write_lock = threading.Lock()
        self._closed = False
        self.handle = ProcessHandle(self.process.pid)

    def read_frame(self) -> dict[str, Any]:
        """Wait for the next frame, which may be hostile."""
        length = struct.unpack(">I", self._read_bytes(4))[0]
        if length > _MAX_FRAME_BYTES:
            raise WorkerBroken("a frame is too large")
        data = self._read_bytes(length)
        if length > MAX_SMALL_FRAME_BYTES:
            if not data.startswith(_LARGE_FRAME_PREFIXES):
                raise WorkerBroken("a frame of this kind is never so large")
            time.sleep(
                length / _LARGE_FRAME_BYTES_PER_S
            )  # parsing it holds the GIL, so a worker may not make us do that all the time
        if _has_too_many_parts(data):
            raise WorkerBroken("a frame has too many parts")
        try:
            frame = json.loads(data, parse_constant=str)
        except (ValueError, RecursionError):
            raise WorkerBroken("a frame cannot be read") from None
        if not isinstance(frame, dict):
            raise WorkerBroken("a frame is not an object")
        self.frame_bytes = data
        return frame

    def _read_bytes(self, length: int) -> bytes:
        while len(self._buffer) < length:
            chunk = os.read(self._out, 1 << 16)
            if not chunk:
                raise WorkerBroken("ended")
            self._buffer += chunk
        data = bytes(self._buffer[:length])
        del self._buffer[:length]
        return data

    def write_frame(self, data: bytes) -> None:
        view = memoryview(struct.pack(">I", len(data)) + data)
        with self._write_lock:
            if self._closed:
                return
            try:
                while view:
                    view = view[os.write(self._in, view) :]
            except OSError:  # it has ended; reading will fail
                return

    def wait_ready(self) -> None:
        if self.read_frame().get("op") != "ready":
            raise WorkerBroken("it did not start")

    def terminate(self) -> int:
        """Kill the process, close its pipes and return its exit code."""
        self.handle.kill()
        code = self.process.wait()
        with self._write_lock:
            self._closed = True
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
        self.handle.release()
        return code


def _has_too_many_parts(data: bytes) -> bool:
    """Return whether parsing a frame would take long; it holds the GIL."""
    if len(data) < _MAX_FRAME_PARTS:
        return False
    if data.count(b'"') - data.count(b'\\"') > 2 * _MAX_FRAME_PARTS:
        return True
    if _count_separators(data) <= _MAX_FRAME_PARTS:
        return False
    return _count_separators(_STRING_PATTERN.sub(b"", data)) > _MAX_FRAME_PARTS


def _count_separators(data: bytes) -> int:
    return sum(map(data.count, (b",", b"[", b"{")))


class ReadyWorker(PythonWorker):
    """A worker whose first frame has already been read."""

    def __init__(self) -> None:
        raise NotImplementedError

    @classmethod
    def from_worker(cls, worker: PythonWorker) -> PythonWorker:
        worker.__class__ = cls
        return worker

    def wait_ready(self) -> None:
        return
