"""The daemon's side of the hooks: a Unix socket that takes events and returns answers."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from athena.app import settings as configuration
from athena.app.compose import App, get_opening_settings
from athena.app.settings import create_hook_rules
from athena.core.home import sockets
from athena.core.home.paths import DEFAULT_PROJECT, HOOK_SOCKET
from athena.core.metrics import Metrics
from athena.core.values import HOOK_SURFACE, Scope
from athena.errors import AthenaError, Misconfigured
from athena.hooks import events
from athena.hooks.client import DAEMON_LINK, EVENTS, HELLO, MAX_EVENT_BYTES, READ_CHUNK_BYTES, log_hook
from athena.hooks.events import HOOK_ID_VARIABLE
from athena.hooks.fallback import describe_error
from athena.memory.savings import record_hook

MAX_HEAD_BYTES = 64 << 10  # the event's name and environment
BACKLOG = 256
RECEIVE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
MAX_CACHED_SETTINGS = 50
LEARNING_EVENTS = ("post-compact", "session-end")  # they may take longer than a client waits, and end all the same
MAX_LEARNED_AT_ONCE = 50  # sessions that are learned or wait for it; the hook of one more learns it itself
LEARNING_WAIT_SHARE = 0.6  # of the time that a hook may take
WriteLog = Callable[[dict[str, Any]], None]


class HookRefused(Exception):
    """The daemon does not answer this event; the client falls back."""


class HookServer:
    """Answer the events of this user's sessions on a Unix socket."""

    def __init__(
        self,
        app: App,
        home: str,
        metrics: Metrics,
        log: WriteLog,
        stopping: Callable[[], bool],
        *,
        is_daemon: bool = False,
    ) -> None:
        self._is_daemon = is_daemon  # whose environment is that of the client that started it
        self._app, self._home, self._metrics, self._log, self._stopping = app, home, metrics, log, stopping
        self._settings_cache = SettingsCache(home)
        self._socket = sockets.bind_socket(home, HOOK_SOCKET)
        self._socket.listen(BACKLOG)
        self.path = self._socket.getsockname()
        self._server: asyncio.Server | None = None
        self.active_events = self._learned_count = 0
        self.last_active = time.monotonic()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(
            self._serve_connection, sock=self._socket, limit=READ_CHUNK_BYTES, backlog=BACKLOG
        )

    async def close(self) -> None:
        """Accept no more events and wait for those in progress."""
        if self._server is not None:
            self._server.close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self.active_events and time.monotonic() < deadline:  # noqa: ASYNC110  # once, at the end
            await asyncio.sleep(0.01)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if sockets.get_peer_uid(writer.get_extra_info("socket")) != os.getuid() or self._stopping():
                return
            writer.write(HELLO)
            writer.write(await self._build_response(reader))
            await writer.drain()
        except OSError:
            pass  # the client did not wait
        finally:
            self.last_active = time.monotonic()
            writer.close()

    async def _build_response(self, reader: asyncio.StreamReader) -> bytes:
        started_at = time.perf_counter()
        event, link = "", DAEMON_LINK
        try:
            async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                event, environ, payload = await _read_request(reader)
            if not event:
                return b""  # the client only tested the connection, or did not wait
            self.active_events += 1
            try:
                output = await self._answer_event(event, environ, payload)
            finally:
                self.active_events -= 1
            elapsed_s = time.perf_counter() - started_at
            record_hook(self._app.store, Scope.from_name(DEFAULT_PROJECT), event, link, elapsed_s)
        except HookRefused as refused:
            link = "refused"
            return f"no {refused}\n".encode()
        except (AthenaError, TimeoutError) as error:
            link = "failed"
            reason = "it took too long" if isinstance(error, TimeoutError) else " ".join(describe_error(error).split())
            return f"no {reason}\n".encode("utf-8", "replace")
        except Exception as error:  # noqa: BLE001  # our bug must not break the session
            link = "failed"
            self._log({"event": "hook failed", "hook": event, "error": describe_error(error)})
            return f"no {type(error).__name__} in the daemon\n".encode()
        finally:
            if event in EVENTS:
                self._metrics.count_call(event, HOOK_SURFACE, link, time.perf_counter() - started_at)
        return b"ok %d\n" % len(output) + output

    async def _answer_event(self, event: str, environ: dict[str, str], payload: bytes) -> bytes:
        if event not in EVENTS:
            raise HookRefused("there is no such event")
        key = environ.pop(HOOK_ID_VARIABLE, None)  # differs for each event, so it must not be in the cache key
        settings = self._settings_cache.load_settings(environ)
        if (settings.db_path, settings.database_url) != self._settings_cache.served_database:
            raise HookRefused("the daemon serves another database")
        if self._is_daemon and get_opening_settings(settings) != self._settings_cache.opening_settings:
            raise HookRefused("the daemon has settings of the client that started it")
        if environ.get("ATHENA_PRIVACY") and settings.privacy != self._app.guard.mode:
            raise HookRefused("the daemon has another privacy mode")
        if not self._app.guard.is_current():
            raise HookRefused("the settings of privacy have changed")
        if not settings.hooks_enabled:
            if settings.hooks_mcp_url:
                raise HookRefused("hooks are off")
            return b""
        if event in LEARNING_EVENTS and self._learned_count >= MAX_LEARNED_AT_ONCE:
            raise HookRefused("many sessions are being learned")
        context = self._app.create_context(DEFAULT_PROJECT, HOOK_SURFACE)
        project = environ.get("ATHENA_PROJECT", "").strip() or None
        rules, timeout_s = create_hook_rules(settings), settings.hooks_timeout_ms / 1000
        answer = events.answer_event(
            event,
            payload,
            context,
            rules,
            project=project,
            key=key,
            on_malformed=lambda why: log_hook(self._home, event, DAEMON_LINK, time.monotonic(), why),
        )
        if event in LEARNING_EVENTS:
            return await self._learn_beyond_answer(event, answer, LEARNING_WAIT_SHARE * timeout_s)
        async with asyncio.timeout(timeout_s):
            return await answer

    async def _learn_beyond_answer(self, event: str, answer: Coroutine[Any, Any, bytes], wait_s: float) -> bytes:
        """Wait a while for what a session leaves behind; then answer, and let it go on."""
        task = asyncio.create_task(answer)
        self.active_events += 1  # the daemon must not end for want of work
        self._learned_count += 1
        task.add_done_callback(lambda _: self._end_learning(event, task))
        done, _ = await asyncio.wait({task}, timeout=wait_s)
        return task.result() if done else b""

    def _end_learning(self, event: str, task: asyncio.Task[bytes]) -> None:
        self.active_events -= 1
        self._learned_count -= 1
        self.last_active = time.monotonic()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log({"event": "hook failed", "hook": event, "error": describe_error(error)})


class SettingsCache:
    """The settings for each client environment, read again when the config file changes."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._by_environ: dict[tuple[tuple[str, str], ...], configuration.Settings] = {}
        self._stamp = configuration.read_config_stamp(home)
        own = configuration.load_settings()
        self.served_database = own.db_path, own.database_url
        self.opening_settings = get_opening_settings(own)

    def load_settings(self, environ: Mapping[str, str]) -> configuration.Settings:
        stamp = configuration.read_config_stamp(self._home)
        if stamp != self._stamp or len(self._by_environ) > MAX_CACHED_SETTINGS:
            self._by_environ.clear()
            self._stamp = stamp
        key = tuple(sorted(environ.items()))
        if key not in self._by_environ:
            self._by_environ[key] = configuration.load_settings({**environ, "ATHENA_HOME": self._home})
        return self._by_environ[key]


class HookRequest(NamedTuple):
    name: str
    environ: dict[str, str]
    payload: bytes


async def _read_request(reader: asyncio.StreamReader) -> HookRequest:
    try:
        first_line = await reader.readuntil(b"\n")
        size = int(first_line) if len(first_line) < 9 and first_line[:-1].isdigit() else MAX_HEAD_BYTES + 1
        if size > MAX_HEAD_BYTES:
            raise Misconfigured("no event begins like this")
        head = await reader.readexactly(size)
        payload = await _read_payload(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        return HookRequest("", {}, b"")
    name, *pairs = head.decode("utf-8", "surrogateescape").split("\0")
    return HookRequest(name, dict(pair.partition("=")[::2] for pair in pairs), payload)


async def _read_payload(reader: asyncio.StreamReader) -> bytes:
    pieces, size = [], 0
    while piece := await reader.read(READ_CHUNK_BYTES):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_EVENT_BYTES:
            raise HookRefused("the input is too long")
    return b"".join(pieces)
