"""The connections that are open, one a server, on an event loop of their own."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from athena.core.threads import ThreadFuture
from athena.errors import AthenaError, Conflict
from athena.gateway import approvals, values
from athena.gateway.approvals import ServerApprovals, ToolDefinitions, ToolListing
from athena.gateway.config import SELF_REFERENCE_MESSAGE, Entry
from athena.gateway.server_connection import ServerConnection

T = TypeVar("T")


class LoopTask(Generic[T]):
    """Work that was handed to the loop: waited for from anywhere, and cancelled from anywhere."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], begun: threading.Event | None = None
    ) -> None:
        self.outcome: ThreadFuture[T] = ThreadFuture()
        self.begun = begun or threading.Event()  # set before the first byte is sent, so the server may have acted
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
    """Started with the first work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]], begun: threading.Event | None = None) -> LoopTask[T]:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="athena-gateway", daemon=True)
                self._thread.start()
            return LoopTask(self._loop, work(), begun)

    def stop(self, last: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> None:
        """Do one last thing, within some time, and end."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        LoopTask(loop, last()).outcome.wait(seconds)
        LoopTask(loop, _cancel_all()).outcome.wait(seconds)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(seconds)
        if not thread.is_alive():
            loop.close()


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)


CLOSE_TIMEOUT_S = 1.0  # seconds that closing may take
CONFIG_POLL_INTERVAL_S = 1.0  # seconds between two looks at what a person has changed

OnRefused = Callable[[str, Mapping[str, approvals.RefusalReason]], None]  # a server, and what is not as it was approved


class ConnectionPool:
    def __init__(
        self,
        environment: Mapping[str, str],
        refused: OnRefused,
        auth: Callable[[str, Entry], Any],
        kept: str,
        look: Callable[[], None],
    ) -> None:
        self._data_folder = kept  # the folder of Athena's own files
        self._refresh_config = look  # whether a person has changed something
        self._polling: asyncio.Task[None] | None = None
        self._environ, self._on_refused, self._load_auth = environment, refused, auth
        self._connections: dict[str, ServerConnection] = {}
        self._loop = EventLoopThread()
        self.pid = os.getpid()
        _silence_sdk_logs()

    def start_call(
        self, server: str, entry: Entry, approved: ServerApprovals, tool: str, path: str, given: Any, again: bool
    ) -> LoopTask[Any]:
        """Begin a call; whoever waits for it may cancel it."""

        begun = threading.Event()

        async def call_tool() -> Any:
            link = self._get_connection(server, entry, approved)
            return values.convert_tool_result(path, await link.call_tool(tool, given, begun.set, again=again))

        return self._loop.submit(call_tool, begun)

    async def check_servers(self, servers: Mapping[str, tuple[Entry, ServerApprovals]]) -> dict[str, str]:
        """Connect servers, all at once, and return what is wrong with each."""

        async def check_server(name: str) -> str:
            try:
                await self._get_connection(name, *servers[name]).ensure_connected()
                return ""
            except AthenaError as error:
                return f"{error}; {error.hint or ''}"

        async def check_all() -> list[str]:
            return await asyncio.gather(*map(check_server, servers))

        return dict(zip(servers, await self._loop.submit(check_all).outcome, strict=True))

    async def fetch_tools(self, server: str, entry: Entry) -> tuple[ToolDefinitions, int]:
        """Connect a server that may not be approved yet and return what it offers now."""

        found: list[ToolListing] = []

        def collect_tools(offered: ToolListing) -> Mapping[str, approvals.RefusalReason]:
            found.append(offered)
            return {}

        async def list_tools() -> tuple[ToolDefinitions, int]:
            link = ServerConnection(
                server,
                entry,
                self._environ,
                collect_tools,
                lambda: self._load_auth(server, entry),
                kept=self._data_folder,
            )
            try:
                client = await link.ensure_connected()
                if client.server_info is not None and client.server_info.name == "athena":
                    raise Conflict(f"the server {server}: {SELF_REFERENCE_MESSAGE}", hint="there is nothing to connect")
            finally:
                await link.close()
            return found[-1].tools, found[-1].left_out

        return await self._loop.submit(list_tools).outcome

    def login(self, server: str, entry: Entry, home: str, show: Callable[[str], None]) -> None:
        """Connect a server with a person at hand who logs in."""
        from athena.gateway import oauth  # only a person's command comes here

        async def connect_with_login() -> None:
            given = entry.expand_variables(self._environ).options
            auth, page = await oauth.create_login_auth(home, server, given["url"], show)
            patient = Entry(
                entry.name, {**entry.options, "startupTimeout": oauth.LOGIN_TIMEOUT_S, "timeout": oauth.LOGIN_TIMEOUT_S}
            )
            link = ServerConnection(server, patient, self._environ, lambda _: {}, lambda: auth)
            try:
                await link.ensure_connected()
            finally:
                await link.close()
                page.close()

        pending = self._loop.submit(connect_with_login)
        try:
            while not pending.outcome.wait(0.2):  # a signal must find its way in
                pass
        except BaseException:
            pending.cancel()
            raise
        pending.outcome.result()

    def get_status(self, server: str) -> tuple[bool, str]:
        """Tell whether a server is connected, and what is wrong with it."""
        if (link := self._connections.get(server)) is None:
            return False, ""
        again = f"; tried again in {link.retry_delay_s:.0f} s" if link.retry_delay_s else ""
        return link.is_connected, f"{link.error}{again}" if link.error else ""

    def close_stale(self, wanted: Mapping[str, Entry]) -> None:
        """Let go of every server that is none of these, or is another than it was."""

        async def close_connections() -> None:
            stale = [
                name
                for name, link in self._connections.items()
                if name not in wanted or link.config.fingerprint != wanted[name].fingerprint
            ]
            await asyncio.gather(*(self._connections.pop(name).close() for name in stale), return_exceptions=True)

        if self._connections:
            self._loop.submit(close_connections)

    async def _poll_config(self) -> None:
        """While servers run, notice what a person changes, also when nobody calls."""
        while self._connections:
            await asyncio.sleep(CONFIG_POLL_INTERVAL_S)
            self._refresh_config()

    def _get_connection(self, server: str, entry: Entry, approved: ServerApprovals) -> ServerConnection:
        link = self._connections.get(server)
        if link is not None and link.config == entry and link.approvals is approved:
            return link
        if link is not None and link.config == entry:
            if link.approvals.tools != approved.tools:
                link.invalidate_tools()
            link.approvals = approved
            return link
        if link is not None:
            self._closing = asyncio.get_running_loop().create_task(link.close())

        def verify_tools(offered: ToolListing) -> Mapping[str, approvals.RefusalReason]:
            found = approvals.compare_tools(made.approvals, offered.tools)
            self._on_refused(server, found)
            return found

        made = self._connections[server] = ServerConnection(
            server,
            entry,
            self._environ,
            verify_tools,
            lambda: self._load_auth(server, entry),
            approved,
            self._data_folder,
        )
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll_config())
        return made

    def close(self) -> None:
        """Let go of every server; each is ended by its minder, if it does not leave."""
        if self.pid != os.getpid():
            return
        links, self._connections = list(self._connections.values()), {}

        async def close_all() -> None:
            await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

        self._loop.stop(close_all, CLOSE_TIMEOUT_S)


def _silence_sdk_logs() -> None:
    """Keep the SDK's own log away from people: what matters is in the errors."""
    for name in ("mcp", "client", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
