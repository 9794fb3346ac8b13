"""Call operations through the running server of a data folder, over a Unix socket. Standard library only.

A frame is four bytes with a length, then JSON. Client and server greet each other once a connection; then each call is
one frame, and its answer one or more: an empty one while the call is under way, parts of a long list, and a last one.
"""

from __future__ import annotations

import _socket  # `socket` imports several modules more
import os
import sys
import threading
import time
from _socket import AF_UNIX, MSG_PEEK, SOCK_STREAM, socket

from athena import errors
from athena.core.home.paths import CALL_SOCKET, socket_path
from athena.core.threads import get_running_loop, run_in_thread
from athena.core.version import __version__
from athena.errors import AthenaError

TYPE_CHECKING = False  # importing typing is too slow here
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

LENGTH_BYTES = 4
MAX_REQUEST_BYTES = 16 << 20  # a call with longer arguments is made in the caller's own process
READ_CHUNK_BYTES = 256 << 10
HELLO_TIMEOUT_S = 2.0  # a server that hangs costs this, once in AVOID_S
AVOID_S = 30.0  # how long a server is not asked after it did not answer
REFUSED_AVOID_S = 1.0  # and after it refused this process
SILENCE_TIMEOUT_S = 30.0  # a working server says every few seconds that it still works
MAX_IDLE_CONNECTIONS = 8
SO_PEERCRED = getattr(_socket, "SO_PEERCRED", None)  # macOS has none


class EngineUnusable(Exception):
    """No server answers this call: none runs, it stops, or it refuses; nothing was done."""

    def __init__(self, reason: str, *, is_absent: bool = False) -> None:
        super().__init__(reason)
        self.is_absent = is_absent  # no server runs


class AnswerLost(Exception):
    """The server ended before it answered: the call may have been done or not."""


class Engine:
    """The running server of a data folder; threads and event loops share its connections."""

    def __init__(self, home: str, environ: Mapping[str, str]) -> None:
        """`environ` are the variables that select a store and its settings; the server compares them with its own."""
        self._path = socket_path(home, CALL_SOCKET)
        self._environ = dict(environ)
        self._lock = threading.Lock()
        self._idle: list[socket] = []
        self._open: set[socket] = set()
        self._avoided_until = 0.0
        self._is_closed = False

    def connect(self) -> None:
        """Make sure that the server answers calls of this process; raise EngineUnusable if not."""
        self._release(self._take_idle() or self._open_connection())

    async def call(self, request: bytes) -> dict[str, Any]:
        """Send a call and return the fields of its answer; raise the error that the operation raised."""
        connection = await self._send_request(request)
        try:
            answer = await _receive_answer(connection)
        except (OSError, EOFError, ValueError) as error:  # ValueError: an answer that broke off is no JSON
            self._discard(connection)
            raise AnswerLost(str(error)) from None
        except BaseException:  # cancelled: the server sees the end of the connection and stops the call
            self._discard(connection)
            raise
        self._release(connection)
        if "refused" in answer:
            raise EngineUnusable(str(answer["refused"]))
        if "failed" in answer:
            raise AnswerLost(f"{answer['failed']} in the server")
        if "error" in answer:
            raise create_error(answer["error"])
        return answer

    async def _send_request(self, request: bytes) -> socket:
        while True:
            connection = self._take_idle()
            is_new = connection is None
            if connection is None:
                connection = await run_in_thread(self._open_connection)
            try:
                await _send(connection, request)
                return connection
            except OSError as error:  # it has not got the whole call
                self._discard(connection)
                if is_new:
                    raise EngineUnusable(str(error)) from None
            except BaseException:
                self._discard(connection)
                raise

    def close(self) -> None:
        """Close the connections that are not in use; calls under way still get their answer."""
        with self._lock:
            self._is_closed = True
            connections, self._idle = self._idle, []
            self._open.difference_update(connections)
        for connection in connections:
            connection.close()

    def drop_connections(self) -> None:
        """In a forked child: close our ends of all connections, which the parent goes on using."""
        for connection in self._open:  # without the lock, which a thread of the parent may have held
            connection.close()

    def _open_connection(self) -> socket:
        if time.monotonic() < self._avoided_until:
            raise EngineUnusable("it did not answer before")
        connection = socket(AF_UNIX, SOCK_STREAM)
        try:
            connection.settimeout(HELLO_TIMEOUT_S)
            try:
                connection.connect(self._path)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                raise EngineUnusable(str(error), is_absent=True) from None
            if not _is_own_peer(connection, self._path):
                raise EngineUnusable("somebody else listens at the socket")
            connection.sendall(encode_frame({"version": __version__, "environ": self._environ}))
            answer = _parse_json(_receive_frame(connection))
        except TimeoutError:
            self._avoided_until = time.monotonic() + AVOID_S
            connection.close()
            raise EngineUnusable("the server does not answer") from None
        except (OSError, EOFError, ValueError) as error:
            connection.close()
            raise EngineUnusable(f"the server hung up: {error}") from None
        except BaseException:
            connection.close()
            raise
        if "refused" in answer:
            self._avoided_until = time.monotonic() + REFUSED_AVOID_S
            connection.close()
            raise EngineUnusable(str(answer["refused"]))
        with self._lock:
            self._open.add(connection)
        return connection

    def _take_idle(self) -> socket | None:
        """Return a connection that is not in use, if the server has not closed it meanwhile."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            connection.setblocking(False)
            try:
                connection.recv(1, MSG_PEEK)
            except BlockingIOError:
                return connection
            except OSError:
                pass
            self._discard(connection)  # closed, or it says something that nobody asked for

    def _release(self, connection: socket) -> None:
        with self._lock:
            if not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _discard(self, connection: socket) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()


def encode_frame(value: Any) -> bytes:
    """Return a value as a frame."""
    import json  # takes longer to import than all else here; only with the first call

    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def encode_call(name: str, arguments: Mapping[str, Any], project: str, surface: str, key: str) -> bytes | None:
    """Return the frame of a call; None where JSON would change an argument, or there is too much of it."""
    if not _is_json([name, arguments, project]) or type(arguments) is not dict:
        return None
    fields = {"operation": name, "arguments": arguments, "project": project, "surface": surface, "key": key}
    try:
        frame = encode_frame(fields)
    except (ValueError, RecursionError):  # half of a surrogate pair, or a number of thousands of digits
        return None
    return frame if len(frame) <= MAX_REQUEST_BYTES else None


def _is_json(value: Any) -> bool:
    """Return whether a value is the same after a way through JSON."""
    kind = type(value)
    if kind in (str, int, bool, type(None)):
        return True
    if kind is float:
        return bool(value - value == 0.0)  # finite
    try:
        if kind in (list, tuple):
            return all(map(_is_json, value))
        return kind is dict and all(type(name) is str and _is_json(item) for name, item in value.items())
    except RecursionError:
        return False


def create_error(fields: Mapping[str, Any]) -> AthenaError:
    """Return the error that a server raised."""
    kinds = {
        kind.code: kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AthenaError)
    }
    kind = kinds.get(fields["code"], AthenaError)
    error = kind(fields["message"], hint=fields["hint"], retry=fields["retry"])
    error.retry_after_s = fields["retry_after_s"]
    return error


def _is_own_peer(connection: socket, path: str) -> bool:
    if SO_PEERCRED is None:  # only its owner creates a socket in such a folder
        return os.stat(os.path.dirname(path)).st_uid in (os.getuid(), 0)
    credentials = connection.getsockopt(_socket.SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()


def _parse_json(text: bytes) -> Any:
    import json  # loaded with the first call

    return json.loads(text)


# --- bytes, with an event loop or without -----------------------------------------------------------------------------


async def _send(connection: socket, data: bytes) -> None:
    loop = get_running_loop()
    if loop is None:
        connection.settimeout(SILENCE_TIMEOUT_S)
        connection.sendall(data)
        return
    import asyncio  # loaded already, since a loop runs

    connection.setblocking(False)
    async with asyncio.timeout(SILENCE_TIMEOUT_S):
        await loop.sock_sendall(connection, data)


async def _receive_answer(connection: socket) -> dict[str, Any]:
    """Read the frames of one answer; the parts of a list become its data."""
    buffer = bytearray()
    items: list[Any] = []
    while True:
        while len(buffer) < LENGTH_BYTES or len(buffer) < (end := LENGTH_BYTES + _read_length(buffer)):
            buffer += await _receive(connection)
        body = bytes(buffer[LENGTH_BYTES:end])
        del buffer[:end]
        if not body:
            continue  # the call is under way
        answer: dict[str, Any] = _parse_json(body)
        if "items" not in answer:
            return answer | {"data": items} if items else answer
        items += answer["items"]


async def _receive(connection: socket) -> bytes:
    loop = get_running_loop()
    if loop is None:
        connection.settimeout(SILENCE_TIMEOUT_S)
        data = connection.recv(READ_CHUNK_BYTES)
    else:
        import asyncio  # loaded already, since a loop runs

        async with asyncio.timeout(SILENCE_TIMEOUT_S):
            data = await loop.sock_recv(connection, READ_CHUNK_BYTES)
    if not data:
        raise EOFError("the server hung up")
    return bytes(data)


def _receive_frame(connection: socket) -> bytes:
    """Read one short frame."""
    data = b""
    while len(data) < LENGTH_BYTES or len(data) < LENGTH_BYTES + _read_length(data):
        if not (piece := connection.recv(READ_CHUNK_BYTES)):
            raise EOFError("nothing came")
        data += piece
    return data[LENGTH_BYTES:]


def _read_length(data: bytes | bytearray) -> int:
    return int.from_bytes(data[:LENGTH_BYTES], "big")
