"""The open connections, one per server, on a dedicated event-loop thread."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from athena.core.threads import ThreadFuture
from athena.errors import AthenaError, Conflict
from athena.gateway import approvals, oauth, sanitize, values
from athena.gateway.approvals import Refusal, ServerApprovals, ToolDefinitions, ToolListing
from athena.gateway.config import SELF_REFERENCE_MESSAGE, ServerEntry
from athena.gateway.server_connection import ServerConnection

T = TypeVar("T")
CLOSE_TIMEOUT_S = 1.0
MAX_LOG_BYTES = 2_000
CONFIG_POLL_INTERVAL_S = 1.0
LOGIN_POLL_INTERVAL_S = 0.2
SDK_LOGGERS = ("mcp", "client", "httpx2", "httpcore2")

# gets a server and its tools that differ from the approved ones
OnRefused = Callable[[str, Mapping[str, Refusal]], None]


class CallStart:
    """Whether a call has begun: one that was given up before begins no more, so that both sides know it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_begun = self._is_given_up = False

    def begin(self) -> None:
        """Note, before the first byte is sent, that the server may execute the call from now on."""
        with self._lock:
            if self._is_given_up:
                raise asyncio.CancelledError
            self._has_begun = True

    def give_up(self) -> bool:
        """Let the call begin no more; return whether it has begun."""
        with self._lock:
            self._is_given_up = True
            return self._has_begun


class LoopTask(Generic[T]):
    """A coroutine on the event loop, which any thread can wait for and cancel."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], start: CallStart | None = None
    ) -> None:
        self.outcome: ThreadFuture[T] = ThreadFuture()
        self.start = start or CallStart()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._create_task, work)

    def _create_task(self, work: Coroutine[Any, Any, T]) -> None:
        self._task = self._loop.create_task(self._run_work(work))

    async def _run_work(self, work: Coroutine[Any, Any, T]) -> None:
        try:
            self.outcome.set_result(await work)
        except BaseException as error:  # noqa: BLE001  # delivered, not swallowed
            self.outcome.set_exception(error)

    def cancel(self) -> None:
        def cancel_task() -> None:
            if self._task is not None:
                self._task.cancel()

        self._loop.call_soon_threadsafe(cancel_task)


class EventLoopThread:
    """An event loop in a daemon thread, started with the first work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]], start: CallStart | None = None) -> LoopTask[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="athena-gateway", daemon=True)
                self._thread.start()
            return LoopTask(self._loop, work(), start)

    def stop(self, last_work: Callable[[], Coroutine[Any, Any, Any]], timeout_s: float) -> None:
        """Run one last coroutine, cancel all others and end the thread; each step may take `timeout_s`."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        LoopTask(loop, last_work()).outcome.wait(timeout_s)
        LoopTask(loop, _cancel_all()).outcome.wait(timeout_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_s)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_S)


class ConnectionPool:
    def __init__(
        self, environ: Mapping[str, str], home: str, on_refused: OnRefused, refresh_config: Callable[[], None]
    ) -> None:
        self._environ, self._home = environ, home
        self._on_refused, self._refresh_config = on_refused, refresh_config
        self._poll_task: asyncio.Task[None] | None = None
        self._close_task: asyncio.Task[None] | None = None  # referenced here, or it could be collected while it runs
        self._connections: dict[str, ServerConnection] = {}
        self._loop = EventLoopThread()
        self.pid = os.getpid()
        for name in SDK_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # our errors say what matters

    def start_call(
        self,
        tool: values.RemoteTool,
        entry: ServerEntry,
        server_approvals: ServerApprovals,
        arguments: Any,
        hide: values.HideWords,
    ) -> LoopTask[values.ToolResult]:
        """Start a call on the event loop, connecting the server first if needed; `hide` gets what the server says."""
        start = CallStart()

        async def call_tool() -> values.ToolResult:
            sanitize.hide_words.set(hide)
            connection = self._get_connection(tool.server, entry, server_approvals)
            result = await connection.call_tool(tool.name, arguments, start.begin, may_retry=tool.is_read_only)
            return values.convert_tool_result(tool.path, result)

        return self._loop.submit(call_tool, start)

    async def check_servers(self, servers: Mapping[str, tuple[ServerEntry, ServerApprovals]]) -> dict[str, str]:
        """Connect the servers, all at once, and return the problem of each, empty if there is none."""

        async def check_server(name: str) -> str:
            try:
                await self._get_connection(name, *servers[name]).ensure_connected()
                return ""
            except AthenaError as error:
                return f"{error}; {error.hint or ''}"

        async def check_all() -> list[str]:
            return await asyncio.gather(*map(check_server, servers))

        return dict(zip(servers, await self._loop.submit(check_all).outcome, strict=True))

    async def fetch_tools(self, server: str, entry: ServerEntry) -> tuple[ToolDefinitions, int]:
        """Connect a server, approved or not, and return the tools that it offers and how many were left out."""
        listings: list[ToolListing] = []

        def collect_tools(listing: ToolListing) -> Mapping[str, Refusal]:
            listings.append(listing)
            return {}

        async def list_tools() -> tuple[ToolDefinitions, int]:
            connection = ServerConnection(
                server,
                entry,
                self._environ,
                collect_tools,
                lambda: self._load_auth(server, entry),
                data_folder=self._home,
            )
            try:
                client = await connection.ensure_connected()
                if client.server_info is not None and client.server_info.name == "athena":
                    raise Conflict(f"the server {server}: {SELF_REFERENCE_MESSAGE}", hint="there is nothing to connect")
            finally:
                await connection.close()
            return listings[-1].tools, listings[-1].left_out

        return await self._loop.submit(list_tools).outcome

    def login(self, server: str, entry: ServerEntry, show: Callable[[str], None]) -> None:
        """Connect a server while a person logs in at the address that `show` gets."""

        async def connect_with_login() -> None:
            url = entry.expand_variables(self._environ).options["url"]
            auth, callback_server = await oauth.create_login_auth(self._home, server, url, show)
            timeouts = {"startupTimeout": oauth.LOGIN_TIMEOUT_S, "timeout": oauth.LOGIN_TIMEOUT_S}
            login_entry = ServerEntry(entry.name, {**entry.options, **timeouts})
            connection = ServerConnection(server, login_entry, self._environ, lambda _: {}, lambda: auth)
            try:
                await connection.ensure_connected()
            finally:
                await connection.close()
                callback_server.close()

        pending = self._loop.submit(connect_with_login)
        try:
            while not pending.outcome.wait(LOGIN_POLL_INTERVAL_S):  # between waits Python handles Ctrl-C
                pass
        except BaseException:
            pending.cancel()
            raise
        pending.outcome.result()

    def get_status(self, server: str, *, for_person: bool = False) -> tuple[bool, str]:
        """Return whether a server is connected, and its last error; only people read what the server said to it."""
        if (connection := self._connections.get(server)) is None:
            return False, ""
        delay_s = connection.retry_delay_s
        retry = f"; retrying in {delay_s:.0f} s" if delay_s else ""
        error = connection.error and connection.error + (connection.error_output if for_person else "") + retry
        return connection.is_connected, error

    def get_log(self, server: str) -> bytes:
        """Return the end of what a server wrote to its standard error."""
        connection = self._connections.get(server)
        return b"" if connection is None else connection.stderr_tail[-MAX_LOG_BYTES:]

    def close_stale(self, current: Mapping[str, ServerEntry]) -> None:
        """Close the connections of servers that were removed, disabled or changed."""

        async def close_connections() -> None:
            stale = [
                name
                for name, connection in self._connections.items()
                if name not in current or connection.config.fingerprint != current[name].fingerprint
            ]
            await asyncio.gather(*(self._connections.pop(name).close() for name in stale), return_exceptions=True)

        if self._connections:
            self._loop.submit(close_connections)

    def close(self) -> None:
        """Close every connection; supervisors kill servers that do not exit."""
        if self.pid != os.getpid():
            return
        connections, self._connections = list(self._connections.values()), {}

        async def close_all() -> None:
            await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)

        self._loop.stop(close_all, CLOSE_TIMEOUT_S)

    def _get_connection(self, server: str, entry: ServerEntry, server_approvals: ServerApprovals) -> ServerConnection:
        connection = self._connections.get(server)
        if connection is not None and connection.config == entry:
            if connection.approvals is not server_approvals:
                if connection.approvals.tools != server_approvals.tools:
                    connection.invalidate_tools()
                connection.approvals = server_approvals
            return connection
        if connection is not None:
            self._close_task = asyncio.get_running_loop().create_task(connection.close())

        def verify_tools(listing: ToolListing) -> Mapping[str, Refusal]:
            refused = approvals.compare_tools(new_connection.approvals, listing.tools)
            self._on_refused(server, refused)
            return refused

        new_connection = self._connections[server] = ServerConnection(
            server,
            entry,
            self._environ,
            verify_tools,
            lambda: self._load_auth(server, entry),
            server_approvals,
            self._home,
        )
        if self._poll_task is None or self._poll_task.done():
            self._poll_task = asyncio.get_running_loop().create_task(self._poll_config())
        return new_connection

    def _load_auth(self, server: str, entry: ServerEntry) -> Any:
        """Return an HTTP auth object that sends and renews the login's token; None without a login."""
        return oauth.create_silent_auth(self._home, server, entry.expand_variables(self._environ).options["url"])

    async def _poll_config(self) -> None:
        """While servers run, apply changes of servers.json and of the approvals, even if there are no calls."""
        while self._connections:
            await asyncio.sleep(CONFIG_POLL_INTERVAL_S)
            self._refresh_config()
