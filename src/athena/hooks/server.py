"""The daemon's end of the hooks: an event in, what the session should know out."""

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from athena.app import settings as configuration
from athena.app.compose import App, hook_rules
from athena.core.call import HOOK
from athena.core.home import sockets
from athena.core.home.paths import DEFAULT_PROJECT, HOOK_SOCKET
from athena.core.metrics import Metrics
from athena.core.scope import Scope
from athena.errors import AthenaError, Misconfigured
from athena.hooks import events
from athena.hooks.client import EVENTS, HELLO, LARGEST, PIECE
from athena.hooks.events import KEY
from athena.memory.savings import note_hook

HEAD = 64 << 10  # bytes of an event's name and its environment
BACKLOG = 256
ARRIVES = 10.0  # seconds in which an event must have arrived
ENDING = 5.0  # seconds that events in flight may take when the server stops
KEPT = 50  # environments whose settings are remembered
Log = Callable[[dict[str, Any]], None]


class Refused(Exception):
    """The event is not answered here; the client asks elsewhere."""


class HookServer:
    """Answers the events of this user's sessions, by a Unix socket of its own."""

    def __init__(self, app: App, home: str, metrics: Metrics, log: Log, stopping: Callable[[], bool]) -> None:
        self._app, self._home, self._metrics, self._log, self._stopping = app, home, metrics, log, stopping
        self._orders = Orders(home)
        self._socket = sockets.bind(home, HOOK_SOCKET)
        self._socket.listen(BACKLOG)
        self.path = self._socket.getsockname()
        self._server: asyncio.Server | None = None
        self.inside = 0
        self.last = time.monotonic()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=self._socket, limit=PIECE, backlog=BACKLOG)

    async def close(self) -> None:
        """Take no more events, and answer those that are here."""
        if self._server is not None:
            self._server.close()
        deadline = time.monotonic() + ENDING
        while self.inside and time.monotonic() < deadline:  # noqa: ASYNC110  # a moment, once
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if sockets.user(writer.get_extra_info("socket")) != os.getuid() or self._stopping():
                return
            writer.write(HELLO)
            writer.write(await self._said(reader))
            await writer.drain()
        except OSError:
            pass  # the session did not wait
        finally:
            self.last = time.monotonic()
            writer.close()

    async def _said(self, reader: asyncio.StreamReader) -> bytes:
        began = time.perf_counter()
        event, link = "", "daemon"
        try:
            async with asyncio.timeout(ARRIVES):
                event, around, given = await _read(reader)
            if not event:
                return b""  # somebody knocked, or did not wait
            self.inside += 1
            try:
                said = await self._answer(event, around, given)
            finally:
                self.inside -= 1
            note_hook(self._app.store, Scope.named(DEFAULT_PROJECT), event, link, time.perf_counter() - began)
        except Refused as refused:
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
                self._metrics.called(event, HOOK, link, time.perf_counter() - began)
        return b"ok %d\n" % len(said) + said

    async def _answer(self, event: str, around: dict[str, str], given: bytes) -> bytes:
        if event not in EVENTS:
            raise Refused("there is no such event")
        key = around.pop(KEY, None)  # of each event its own, and nothing that settings are told apart by
        settings = self._orders.of(around)
        if (settings.db_path, settings.database_url) != self._orders.served:
            raise Refused("the daemon serves another database")
        if not settings.hooks_enabled:
            if settings.hooks_mcp_url:
                raise Refused("hooks are off")
            return b""
        context = self._app.context(DEFAULT_PROJECT, HOOK)
        project = around.get("ATHENA_PROJECT", "").strip() or None
        async with asyncio.timeout(settings.hooks_timeout_ms / 1000):
            return await events.answer(event, given, context, hook_rules(settings), project=project, key=key)


class Orders:
    """The settings of a client's environment, which are read again when the file has changed."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._known: dict[tuple[tuple[str, str], ...], configuration.Settings] = {}
        self._stamp = configuration.stamp(home)
        own = configuration.load()
        self.served = own.db_path, own.database_url

    def of(self, around: Mapping[str, str]) -> configuration.Settings:
        if (stamp := configuration.stamp(self._home)) != self._stamp or len(self._known) > KEPT:
            self._known.clear()
            self._stamp = stamp
        key = tuple(sorted(around.items()))
        if key not in self._known:
            self._known[key] = configuration.load({**around, "ATHENA_HOME": self._home})
        return self._known[key]


class Event(NamedTuple):
    name: str
    around: dict[str, str]
    given: bytes


async def _read(reader: asyncio.StreamReader) -> Event:
    try:
        first = await reader.readuntil(b"\n")
        size = int(first) if len(first) < 9 and first[:-1].isdigit() else HEAD + 1
        if size > HEAD:
            raise Misconfigured("no event begins like this")
        head = await reader.readexactly(size)
        given = await _rest(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Event("", {}, b"")
    name, *pairs = head.decode("utf-8", "surrogateescape").split("\0")
    return Event(name, dict(pair.partition("=")[::2] for pair in pairs), given)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    pieces, size = [], 0
    while piece := await reader.read(PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST:
            raise Refused("the input is too long")
    return b"".join(pieces)
