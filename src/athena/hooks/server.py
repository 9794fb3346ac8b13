"""The daemon's end of the hooks: an event in, what the session should know out."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from athena.app import settings as configuration
from athena.app.compose import App
from athena.app.settings import create_hook_rules
from athena.core.home import sockets
from athena.core.home.paths import DEFAULT_PROJECT, HOOK_SOCKET
from athena.core.metrics import Metrics
from athena.core.values import HOOK_SURFACE, Scope
from athena.errors import AthenaError, Misconfigured
from athena.hooks import events
from athena.hooks.client import EVENTS, HELLO, MAX_EVENT_BYTES, READ_CHUNK_BYTES
from athena.hooks.events import HOOK_ID_VARIABLE
from athena.memory.savings import record_hook

MAX_HEAD_BYTES = 64 << 10  # bytes of an event's name and its environment
BACKLOG = 256
RECEIVE_TIMEOUT_S = 10.0  # seconds in which an event must have arrived
CLOSE_TIMEOUT_S = 5.0  # seconds that events in flight may take when the server stops
MAX_CACHED_SETTINGS = 50  # environments whose settings are remembered
WriteLog = Callable[[dict[str, Any]], None]


class HookRefused(Exception):
    """The event is not answered here; the client asks elsewhere."""


class HookServer:
    """Answers the events of this user's sessions, by a Unix socket of its own."""

    def __init__(self, app: App, home: str, metrics: Metrics, log: WriteLog, stopping: Callable[[], bool]) -> None:
        self._app, self._home, self._metrics, self._log, self._stopping = app, home, metrics, log, stopping
        self._settings_cache = SettingsCache(home)
        self._socket = sockets.bind_socket(home, HOOK_SOCKET)
        self._socket.listen(BACKLOG)
        self.path = self._socket.getsockname()
        self._server: asyncio.Server | None = None
        self.active_events = 0
        self.last_active = time.monotonic()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._serve_connection, sock=self._socket, limit=READ_CHUNK_BYTES, backlog=BACKLOG
        )

    async def close(self) -> None:
        """Take no more events, and answer those that are here."""
        if self._server is not None:
            self._server.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self.active_events and time.monotonic() < deadline:  # noqa: ASYNC110  # a moment, once
            await asyncio.sleep(0.01)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if sockets.get_peer_uid(writer.get_extra_info("socket")) != os.getuid() or self._stopping():
                return
            writer.write(HELLO)
            writer.write(await self._build_response(reader))
            await writer.drain()
        except OSError:
            pass  # the session did not wait
        finally:
            self.last_active = time.monotonic()
            writer.close()

    async def _build_response(self, reader: asyncio.StreamReader) -> bytes:
        began = time.perf_counter()
        event, link = "", "daemon"
        try:
            async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                event, around, given = await _read_request(reader)
            if not event:
                return b""  # somebody knocked, or did not wait
            self.active_events += 1
            try:
                said = await self._answer_event(event, around, given)
            finally:
                self.active_events -= 1
            record_hook(self._app.store, Scope.from_name(DEFAULT_PROJECT), event, link, time.perf_counter() - began)
        except HookRefused as refused:
            link = "refused"
            return f"no {refused}\n".encode()
        except (AthenaError, TimeoutError) as error:
            link = "failed"
            return f"no {' '.join(str(error).split()) or 'it took too long'}\n".encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  # a bug of ours, and none of the session's
            link = "failed"
            self._log({"event": "hook failed", "hook": event, "error": f"{type(error).__name__}: {error}"})
            return f"no {type(error).__name__} in the daemon\n".encode()
        finally:
            if event in EVENTS:
                self._metrics.count_call(event, HOOK_SURFACE, link, time.perf_counter() - began)
        return b"ok %d\n" % len(said) + said

    async def _answer_event(self, event: str, around: dict[str, str], given: bytes) -> bytes:
        if event not in EVENTS:
            raise HookRefused("there is no such event")
        key = around.pop(HOOK_ID_VARIABLE, None)  # of each event its own, and nothing that settings are told apart by
        settings = self._settings_cache.load_settings(around)
        if (settings.db_path, settings.database_url) != self._settings_cache.served_database:
            raise HookRefused("the daemon serves another database")
        if not settings.hooks_enabled:
            if settings.hooks_mcp_url:
                raise HookRefused("hooks are off")
            return b""
        context = self._app.create_context(DEFAULT_PROJECT, HOOK_SURFACE)
        project = around.get("ATHENA_PROJECT", "").strip() or None
        async with asyncio.timeout(settings.hooks_timeout_ms / 1000):
            return await events.answer_event(
                event, given, context, create_hook_rules(settings), project=project, key=key
            )


class SettingsCache:
    """The settings of a client's environment, which are read again when the file has changed."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._by_environ: dict[tuple[tuple[str, str], ...], configuration.Settings] = {}
        self._stamp = configuration.read_config_stamp(home)
        own = configuration.load_settings()
        self.served_database = own.db_path, own.database_url

    def load_settings(self, around: Mapping[str, str]) -> configuration.Settings:
        if (stamp := configuration.read_config_stamp(self._home)) != self._stamp or len(
            self._by_environ
        ) > MAX_CACHED_SETTINGS:
            self._by_environ.clear()
            self._stamp = stamp
        key = tuple(sorted(around.items()))
        if key not in self._by_environ:
            self._by_environ[key] = configuration.load_settings({**around, "ATHENA_HOME": self._home})
        return self._by_environ[key]


class Event(NamedTuple):
    name: str
    environ: dict[str, str]
    payload: bytes


async def _read_request(reader: asyncio.StreamReader) -> Event:
    try:
        first = await reader.readuntil(b"\n")
        size = int(first) if len(first) < 9 and first[:-1].isdigit() else MAX_HEAD_BYTES + 1
        if size > MAX_HEAD_BYTES:
            raise Misconfigured("no event begins like this")
        head = await reader.readexactly(size)
        given = await _read_payload(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Event("", {}, b"")
    name, *pairs = head.decode("utf-8", "surrogateescape").split("\0")
    return Event(name, dict(pair.partition("=")[::2] for pair in pairs), given)


async def _read_payload(reader: asyncio.StreamReader) -> bytes:
    pieces, size = [], 0
    while piece := await reader.read(READ_CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_EVENT_BYTES:
            raise HookRefused("the input is too long")
    return b"".join(pieces)
