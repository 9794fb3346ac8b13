"""Calls of operations by processes of the owner: `athena.api` and commands, over a Unix socket.

The frames are those of `athena.app.engine`. The server refuses what the caller's own process has to do: what concerns
its files, its settings or an approval, and every call where the caller's settings are not the server's.
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

from athena.app import settings as configuration
from athena.app.compose import App
from athena.app.engine import LENGTH_BYTES, MAX_REQUEST_BYTES
from athena.app.settings import Settings
from athena.core.catalog import AnyOperation
from athena.core.home import sockets
from athena.core.home.paths import CALL_SOCKET, find_home_problem
from athena.core.operation import Effect, Reach
from athena.core.threads import start_in_thread
from athena.core.types import to_json
from athena.core.version import __version__
from athena.errors import AthenaError, Misconfigured
from athena.hooks.fallback import describe_error
from athena.server.admission import JSON_ENCODER, CallDispatcher, ServerBusy

SURFACES = ("cli", "python")  # of a person's terminal and of applications; a model has its own socket
HELLO_TIMEOUT_S = 10.0
HEARTBEAT_S = 5.0  # how often a caller hears that its call is under way
MAX_CALL_CONNECTIONS = 400
MAX_CACHED_CALLERS = 50
BACKLOG = 256
LARGE_REQUEST_BYTES = 256 << 10  # parsed on another thread
BATCH_ITEMS = 500  # of a list in one frame
CLOSE_TIMEOUT_S = 10.0  # for calls in flight when the server stops
OWN_REACH = {Reach.FILES, Reach.SETTINGS}  # what belongs to the caller's process
HEARTBEAT = bytes(LENGTH_BYTES)
# settings that do not change how an operation answers
SERVER_SETTINGS = ("host", "port", "auth", "consolidate", "hooks_", "backup_", "daemon_")


class CallRefused(Exception):
    """The server does not answer this call; the caller does it in its own process."""


class CallerCheck:
    """Compares the settings of callers with those that the server was opened with."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stamp = configuration.read_config_stamp(settings.home)
        self._reasons: dict[tuple[tuple[str, str], ...], str] = {}

    def find_difference(self, environ: Mapping[str, str]) -> str:
        """Return why a caller with these variables would open another app; empty if it would open this one."""
        home = self._settings.home
        if find_home_problem(home) is not None:
            return "the data folder is not safe"
        stamp = configuration.read_config_stamp(home)
        if stamp != self._stamp or len(self._reasons) > MAX_CACHED_CALLERS:
            self._reasons.clear()
            self._stamp = stamp
        key = tuple(sorted(environ.items()))
        if key not in self._reasons:
            self._reasons[key] = self._compare_settings(environ)
        return self._reasons[key]

    def _compare_settings(self, environ: Mapping[str, str]) -> str:
        if self._settings.db_path == ":memory:" and not self._settings.database_url:
            return "the server's store is its own memory"
        own_home = os.path.expanduser("~")
        if (environ.get("HOME") or own_home) != own_home or environ.get("TZ") != os.environ.get("TZ"):
            return "the server has another home folder or time zone"
        try:
            other = configuration.load_settings({**environ, "ATHENA_HOME": self._settings.home})
        except Misconfigured:
            return "the caller's settings do not work"
        for name, value in other._asdict().items():
            if not name.startswith(SERVER_SETTINGS) and value != getattr(self._settings, name):
                return f"the server has another {name}"
        return ""


class CallServer:
    """Answers calls on a Unix socket that only its owner can open."""

    def __init__(
        self,
        app: App,
        home: str,
        dispatcher: CallDispatcher,
        find_difference: Callable[[Mapping[str, str]], str],
        log: Callable[[dict[str, Any]], None],
    ) -> None:
        self._app, self._dispatcher, self._log = app, dispatcher, log
        self._find_difference = find_difference
        self._listener: socket.socket = sockets.bind_socket(home, CALL_SOCKET)
        self._listener.listen(BACKLOG)
        self.path = self._listener.getsockname()
        self._server: asyncio.Server | None = None
        self.connections: set[CallConnection] = set()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: CallConnection(self), sock=self._listener, backlog=BACKLOG)

    async def close(self) -> None:
        """Accept no more calls, and answer those in flight."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.close_when_idle()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self.connections and time.monotonic() < deadline:  # noqa: ASYNC110  # once, at the end
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    def accepts(self, peer: socket.socket) -> bool:
        """Return whether a process may call: one of the owner, while there is room and the server does not stop."""
        is_owner = sockets.get_peer_uid(peer) == os.getuid()
        return is_owner and len(self.connections) < MAX_CALL_CONNECTIONS and not self._dispatcher.is_stopping()

    def check_hello(self, hello: Any) -> str:
        """Return why the server refuses a caller; empty if it does not."""
        if not isinstance(hello, dict) or hello.get("version") != __version__:
            return "the server has another version"
        environ = hello.get("environ")
        if not (isinstance(environ, dict) and all(isinstance(value, str) for value in environ.values())):
            return "the caller's variables must be texts"
        return self._find_difference(environ)

    async def answer_call(self, request: Any) -> tuple[Any, dict[str, Any]]:
        """Make a call; return its result, and the other fields of the answer."""
        if not isinstance(request, dict) or request.get("surface") not in SURFACES:
            raise CallRefused("this is no call")
        if self._dispatcher.is_stopping():
            raise CallRefused("the server is stopping")
        catalog, name, arguments = self._app.catalog, request.get("operation"), request.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise CallRefused("a call has a name and arguments")
        catalog.refresh()
        operation = catalog.get_operation(name)
        self._refuse_own_work(operation)
        key = None if operation.effect is Effect.READ else request.get("key")
        context = self._app.create_context(request.get("project"), request["surface"], key)  # type: ignore[arg-type]  # checked there
        result = await self._dispatcher.dispatch(operation, arguments, context)
        fields = {"total": getattr(result, "total", None), "weaker": getattr(result, "weaker", 0)}
        return result, fields | {"is_model_off": self._app.store.encoder.last_error is not None}

    def _refuse_own_work(self, operation: AnyOperation) -> None:
        if operation.reach & OWN_REACH or operation.effect is Effect.APPROVE:
            raise CallRefused("this concerns files, settings or an approval of the caller")
        uses_servers = operation.is_foreign or operation.effect is Effect.EXECUTE
        if uses_servers and self._app.gateway.lacks_variables():
            raise CallRefused("a connected server needs variables that the caller may have")

    async def list_frames(self, result: Any, fields: dict[str, Any]) -> AsyncIterator[bytes]:
        """Yield the frames of an answer; a long list comes in parts."""
        if isinstance(result, list) and len(result) > BATCH_ITEMS:
            for at in range(0, len(result), BATCH_ITEMS):
                batch = result[at : at + BATCH_ITEMS]
                yield await self._dispatcher.write_answer(batch, partial(_dump_items, batch))
            result = []
        yield await self._dispatcher.write_answer(
            result, lambda is_long: encode_frame({"data": to_json(result), **fields}, in_pieces=is_long)
        )

    def log_bug(self, error: Exception) -> None:
        self._log({"event": "call failed", "error": describe_error(error)})


class CallConnection(asyncio.Protocol):
    """One connection: a hello, then calls one after the other. A caller that hangs up ends its call."""

    def __init__(self, server: CallServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]  # set at once
        self._input = bytearray()
        self._is_greeted = self._is_answering = self._is_closing = False
        self._task: asyncio.Task[None] | None = None  # of the call under way
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._timer: asyncio.TimerHandle | None = None

    # --- what the transport calls -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # of a stream
        if not self._server.accepts(transport.get_extra_info("socket")):
            self._transport.abort()
            return
        self._server.connections.add(self)
        self._timer = self._loop.call_later(HELLO_TIMEOUT_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._input += data
        if len(self._input) > LENGTH_BYTES + MAX_REQUEST_BYTES:
            self._transport.abort()
        elif self._task is None:
            self._read_frame()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._may_write.set()  # whoever waits sees that the transport is closing
        self._cancel_timer()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _read_frame(self) -> None:
        """Take a whole frame from the input, if there is one."""
        if len(self._input) < LENGTH_BYTES:
            return
        end = LENGTH_BYTES + int.from_bytes(self._input[:LENGTH_BYTES], "big")
        if end > LENGTH_BYTES + MAX_REQUEST_BYTES:
            self._transport.abort()
        elif len(self._input) >= end:
            body = bytes(self._input[LENGTH_BYTES:end])
            del self._input[:end]
            if self._is_greeted:
                self._task = self._loop.create_task(self._run_call(body))
            else:
                self._greet(body)

    def _greet(self, body: bytes) -> None:
        self._cancel_timer()
        try:
            reason = self._server.check_hello(json.loads(body))
        except (ValueError, RecursionError):
            reason = "this is no hello"
        self._is_greeted = True
        self._transport.write(encode_frame({"refused": reason} if reason else {}))
        if reason:
            self._transport.close()
        else:
            self._read_frame()

    async def _run_call(self, body: bytes) -> None:
        self._timer = self._loop.call_later(HEARTBEAT_S, self._send_heartbeat)
        try:
            await self._answer(body)
        except Exception as error:  # noqa: BLE001  # the caller does the call itself
            self._server.log_bug(error)
            self._transport.abort()
        finally:
            self._cancel_timer()
            self._task, self._is_answering = None, False
            if self._is_closing:
                self._transport.close()
            elif not self._transport.is_closing():
                self._read_frame()

    async def _answer(self, body: bytes) -> None:
        try:
            request = json.loads(body) if len(body) < LARGE_REQUEST_BYTES else await start_in_thread(json.loads, body)
            result, fields = await self._server.answer_call(request)
            async for frame in self._server.list_frames(result, fields):
                self._is_answering = True
                await self._write(frame)
        except (CallRefused, ServerBusy) as refused:
            await self._write(encode_frame({"refused": str(refused)}))
        except AthenaError as error:
            await self._write(encode_frame({"error": error.to_json() | {"retry_after_s": error.retry_after_s}}))
        except Exception as error:  # noqa: BLE001  # our bug: the caller's own process shows it
            self._server.log_bug(error)
            await self._write(encode_frame({"failed": type(error).__name__}))

    async def _write(self, frame: bytes) -> None:
        self._transport.write(frame)
        await self._may_write.wait()

    def _send_heartbeat(self) -> None:
        """Tell the caller that its call is under way."""
        if not self._is_answering:
            self._transport.write(HEARTBEAT)
        self._timer = self._loop.call_later(HEARTBEAT_S, self._send_heartbeat)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close_when_idle(self) -> None:
        """Close the connection now, or when the call under way is answered."""
        self._is_closing = True
        if self._task is None:
            self._transport.close()

    def abort(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._transport.abort()


def encode_frame(value: Any, *, in_pieces: bool = False) -> bytes:
    """Return JSON values as a frame; many of them in pieces, so that other threads run meanwhile."""
    pieces = JSON_ENCODER.iterencode(value) if in_pieces else [JSON_ENCODER.encode(value)]
    body = b"".join([piece.encode("utf-8", "surrogatepass") for piece in pieces])
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def _dump_items(items: list[Any], is_long: bool) -> bytes:
    return encode_frame({"items": to_json(items)}, in_pieces=is_long)
