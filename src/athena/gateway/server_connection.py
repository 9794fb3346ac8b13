"""The connection to one server: connect with the first call, reconnect after a failure with growing delays.

Everything here runs on the gateway's event loop.
"""

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from athena.core import redaction
from athena.core.version import __version__
from athena.errors import AthenaError, Denied, InvalidInput, LimitExceeded, Misconfigured, Unavailable
from athena.gateway import approvals, config, http, sanitize, stdio
from athena.gateway.config import ServerEntry
from athena.gateway.monitor import ConnectionMonitor

MAX_CONCURRENT_CALLS = 16  # of one server
RETRY_DELAYS_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # after one failure, two, ...
MAX_UNANSWERED_CALLS = 3  # in a row, before the connection is closed
MAX_TOOL_PAGES = 100
MAX_ERROR_CHARS = 300
MAX_NAMED_MISTAKES = 100  # of an answer
TOOL_RECHECK_INTERVAL_S = 300.0
UNHEARD_RECHECK_INTERVAL_S = 5.0  # for a server that announces changes on a stream that we do not open
LAST_OUTPUT_WAIT_S = 0.3  # output of a server that has ended may still be in its pipes
DISCONNECT_TIMEOUT_S = 0.5
CONNECTION_CLOSED_CODE = -32000  # of the SDK
UNCERTAIN_HINT = "it may have been done or not: look before you call it again"
LIST_SERVERS_HINT = "athena servers list says how it is"
ASK_LESS_HINT = "ask it for less"

_import_lock = threading.Lock()


def import_mcp_sdk() -> None:
    """Import the MCP SDK in one thread at a time.

    Its modules import each other in circles: a second thread would find them half loaded, for good.
    """
    with _import_lock:
        import mcp.client
        import mcp.server.lowlevel  # noqa: F401


class ConnectionLost(Exception):
    """The connection ended during a call."""


class SessionExpired(ConnectionLost):
    """The server does not know the session any more, so it has done nothing."""


class ServerConnection:
    def __init__(
        self,
        name: str,
        entry: ServerEntry,
        environ: Mapping[str, str],
        verify: Callable[[approvals.ToolListing], Mapping[str, approvals.Refusal]],
        load_auth: Callable[[], Any],
        approved: Any = None,
        data_folder: str | None = None,
    ) -> None:
        self.name, self.config, self._environ = name, entry, environ
        self._verify, self._load_auth, self._data_folder = verify, load_auth, data_folder
        self.approvals = approved  # `verify` compares the tools with these
        self.error = ""  # why it does not work, in our own words: every project reads them
        self.error_output = ""  # what the server said to that, for people
        self._refusals: Mapping[str, approvals.Refusal] = {}
        self._client: Any = None
        self._connection_task: asyncio.Task[None] | None = None
        self._monitor = ConnectionMonitor()
        self._stop = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._call_slots = asyncio.Semaphore(MAX_CONCURRENT_CALLS)
        self._failures = 0
        self._unanswered = 0
        self._closed = False
        self._retry_at = 0.0
        self._compared_at = 0.0
        self._has_unheard_changes = False
        self._mode = "auto"  # "legacy" once the server turned out to speak an older protocol version

    @property
    def is_connected(self) -> bool:
        return self._client is not None and not self._monitor.ended.is_set()

    @property
    def stderr_tail(self) -> bytes:
        return self._monitor.stderr_tail

    @property
    def retry_delay_s(self) -> float:
        """Seconds until the next attempt to connect is allowed."""
        return max(0.0, self._retry_at - time.monotonic())

    def invalidate_tools(self) -> None:
        """Compare the tools again before the next call, since a person approved others."""
        self._monitor.change_count += 1

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(
        self, tool: str, arguments: dict[str, Any], on_begin: Callable[[], None], *, may_retry: bool
    ) -> Any:
        """Call a tool. `may_retry`, for tools that change nothing, allows a second attempt if the connection is lost.

        `on_begin` runs before anything is sent.
        """
        try:
            return await self._attempt_call(tool, arguments, on_begin, may_retry)
        except ConnectionLost as lost:
            if may_retry or isinstance(lost, SessionExpired):
                with suppress(ConnectionLost):
                    return await self._attempt_call(tool, arguments, on_begin, may_retry)
            message = f"the server {self.name} broke off during {tool}: {lost}"
            raise Unavailable(message, hint=UNCERTAIN_HINT, retry=False) from None

    async def _attempt_call(
        self, tool: str, arguments: dict[str, Any], on_begin: Callable[[], None], is_read_only: bool
    ) -> Any:
        client = await self.ensure_connected()
        monitor = self._monitor  # of this connection: during the call another one may replace it
        with monitor.watch_call() as quote_output:
            try:
                async with self._call_slots:
                    if monitor.tools_changed and self._is_current(monitor):  # announced during the wait for a slot
                        await self.ensure_connected()
                    if refusal := self._refusals.get(tool):
                        raise create_refusal_error(self.name, tool, refusal)
                    if monitor.ended.is_set() or monitor is not self._monitor:
                        raise SessionExpired("it has ended")
                    monitor.reset_counts()
                    on_begin()
                    # the timeout starts after the wait for a slot, so that a call does not pay for those before it
                    async with asyncio.timeout(self.config.timeout_s):
                        request = asyncio.ensure_future(client.call_tool(tool, arguments))
                        result = await self._wait_for_response(request, monitor)
            except TimeoutError:
                raise await self._record_timeout(tool, monitor, quote_output(), is_read_only) from None
            except AthenaError:
                raise
            except Exception as error:  # noqa: BLE001  # the SDK and servers raise anything
                raise await self._classify_failure(tool, error, monitor, quote_output) from None
        self._unanswered = self._failures = 0
        return result

    async def _wait_for_response(self, request: "asyncio.Future[Any]", monitor: ConnectionMonitor) -> Any:
        """Wait for the response or for the end of the connection."""
        ended = asyncio.ensure_future(monitor.ended.wait())
        try:
            await asyncio.wait({request, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                await asyncio.wait({request}, timeout=0.2)  # the response may still be in the pipe
            if not request.done():
                raise ConnectionLost("it has ended")
            return request.result()
        finally:
            ended.cancel()
            monitor.exchange.is_over = True
            if not request.done():
                request.cancel()
                await asyncio.wait({request}, timeout=1.0)

    async def _record_timeout(
        self, tool: str, monitor: ConnectionMonitor, output: str, is_read_only: bool
    ) -> AthenaError:
        """Count an unanswered call, close the connection after the third in a row, and return the error."""
        if self._is_current(monitor):
            self._unanswered += 1
            if self._unanswered >= MAX_UNANSWERED_CALLS or monitor.ended.is_set():
                self._schedule_retry(f"it did not answer {self._unanswered} calls in a row", monitor)
                self._unanswered = 0
                await self._disconnect()
        hint = f'ask for less, or let it take longer: "timeout" in servers.json, for {self.name}'
        return Unavailable(
            f"the server {self.name} did not answer {tool} within {self.config.timeout_s:g} s{output}",
            hint=hint if is_read_only else f"{UNCERTAIN_HINT}; {hint}",
            retry=False,
        )

    async def _classify_failure(
        self, tool: str, error: Exception, monitor: ConnectionMonitor, quote_output: Callable[[], str]
    ) -> Exception:
        """Return the error to raise for a call that the SDK could not finish."""
        code, message = getattr(error, "code", None), _format_error(error)
        if monitor.violation:
            if self._is_current(monitor):
                await self._disconnect()
            return LimitExceeded(
                f"the server {self.name} was cut off at {tool}: {monitor.violation}", hint=ASK_LESS_HINT
            )
        if isinstance(error, ConnectionLost) or code == CONNECTION_CLOSED_CODE or monitor.ended.is_set():
            if self._is_current(monitor):
                self._unanswered += 1
                if self._unanswered >= MAX_UNANSWERED_CALLS:
                    self._schedule_retry("it ended during calls", monitor)
                await self._disconnect()
            return error if isinstance(error, SessionExpired) else ConnectionLost(message + quote_output())
        if monitor.exchange.session_expired:  # after a restart a server does not know its old sessions
            if self._is_current(monitor):
                await self._disconnect()
            return SessionExpired("it answered 404")
        if (status := monitor.exchange.error_status) in (401, 403):
            return _create_login_error(self.name, status)
        if status:
            return Unavailable(
                f"the server {self.name} answered {tool} with HTTP {status}: {message}",
                hint=f"look at its log; {UNCERTAIN_HINT}",
                retry=False,
            )
        if code is not None and code != stdio.PARSE_ERROR_CODE:  # a JSON-RPC error of the server
            return Unavailable(f"the server {self.name} refused {tool}: {message}", hint=LIST_SERVERS_HINT, retry=False)
        return Unavailable(
            f"the server {self.name} answered {tool} with what is no result: {message}{quote_output()}",
            hint=LIST_SERVERS_HINT,
            retry=False,
        )

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def ensure_connected(self) -> Any:
        """Return the SDK client of the server, connected and with its tools compared to the approved ones."""
        async with self._connecting:  # held for at most the startup timeout
            if self.is_connected and (self._is_recently_compared or await self._recheck_tools()):
                return self._client
            await self._disconnect()
            if self._closed:
                raise Unavailable(
                    f"the server {self.name} was taken away meanwhile", hint=LIST_SERVERS_HINT, retry=False
                )
            if self.retry_delay_s:
                raise Unavailable(
                    f"the server {self.name} does not work: {self.error}",
                    hint=f"it is tried again in {self.retry_delay_s:.0f} s; a person sees what it said: athena ui",
                )
            try:
                async with asyncio.timeout(self.config.startup_timeout_s):
                    self._client = await self._connect()
                    await self._compare_tools(self._client)
            except (Misconfigured, InvalidInput) as error:  # the entry is wrong: no delay, a person must edit it
                self.error, self.error_output = str(error), ""
                raise
            except Exception as error:  # noqa: BLE001  # the SDK and servers raise anything
                raise await self._record_connect_failure(error, "did not introduce itself") from None
            self.error, self._failures = "", 0
            return self._client

    @property
    def _is_recently_compared(self) -> bool:
        interval_s = UNHEARD_RECHECK_INTERVAL_S if self._has_unheard_changes else TOOL_RECHECK_INTERVAL_S
        return not self._monitor.tools_changed and time.monotonic() <= self._compared_at + interval_s

    async def _recheck_tools(self) -> bool:
        """Compare the tools on the open connection; return False if it has ended without our noticing."""
        try:
            async with asyncio.timeout(self.config.startup_timeout_s):
                await self._compare_tools(self._client)
        except Exception as error:  # noqa: BLE001  # the SDK and servers raise anything
            monitor = self._monitor
            if not monitor.violation and (monitor.ended.is_set() or monitor.exchange.error_status == 404):
                return False  # no call was sent yet, so a new connection can take it
            # what it wrote may be of calls of other projects
            raise await self._record_connect_failure(error, "did not list its tools", is_quoted=False) from None
        return True

    async def _connect(self) -> Any:
        self._monitor, self._stop = ConnectionMonitor(), asyncio.Event()
        connected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection_task = asyncio.create_task(
            self._hold_connection(self._create_transport(), connected, self._stop, self._monitor.ended)
        )
        try:
            return await connected
        except asyncio.CancelledError:
            self._connection_task.cancel()
            raise

    def _create_transport(self) -> Any:
        options = self.config.expand_variables(self._environ).options
        if self.config.transport == "http":
            headers = options.get("headers") or {}
            auth = None if "Authorization" in headers else self._load_auth()
            return http.open_http_streams(options["url"], headers, self.config.timeout_s, self._monitor, auth)
        environ = stdio.build_environment(self._environ, options.get("env") or {})
        folder = config.resolve_working_directory(self.name, options, environ, self._data_folder)
        program = _find_program(options["command"], folder, environ)
        if program is None:
            raise Misconfigured(
                f"the server {self.name} cannot start: there is no program {options['command']!r:.200}",
                hint="install it, or write its whole path in servers.json",
            )
        return stdio.open_stdio_streams([program, *(options.get("args") or ())], environ, folder, self._monitor)

    async def _hold_connection(
        self, transport: Any, connected: "asyncio.Future[Any]", stop: asyncio.Event, ended: asyncio.Event
    ) -> None:
        """Keep a connection open until `stop` or `ended` is set; the SDK requires that one task opens and closes it.

        The events are parameters because a connection that closes slowly must not touch those of the next one.
        """
        try:
            import_mcp_sdk()
            from mcp import Client  # the SDK is slow to import
            from mcp_types import Implementation
            from mcp_types.version import MODERN_PROTOCOL_VERSIONS

            async with Client(
                transport, mode=self._mode, client_info=Implementation(name="athena", version=__version__), cache=None
            ) as client:
                # the SDK would match patterns of the server's own schema, which can take for ever
                client.session.validate_tool_result = _skip_validation  # type: ignore[method-assign]
                self._mode = "auto" if client.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"
                tools = client.server_capabilities.tools
                is_heard = self.config.transport == "stdio" and self._mode == "legacy"
                self._has_unheard_changes = bool(tools and tools.list_changed and not is_heard)
                if not connected.done():
                    connected.set_result(client)
                waits = [asyncio.ensure_future(event.wait()) for event in (stop, ended)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
        except BaseException as error:  # noqa: BLE001  # `_connect` raises it
            if not connected.done():
                connected.set_exception(error if isinstance(error, Exception) else ConnectionLost("it was given up"))
        finally:
            ended.set()

    async def _compare_tools(self, client: Any) -> None:
        """List the tools and store which of them are not as approved."""
        monitor, change_count = self._monitor, self._monitor.change_count
        self._refusals = self._verify(await self._list_tools(client))
        monitor.compared_count, self._compared_at = change_count, time.monotonic()

    async def _list_tools(self, client: Any) -> approvals.ToolListing:
        """Read the pages of the tool list up to our limits."""
        listing = approvals.ToolListing()
        cursor: str | None = None
        for _ in range(MAX_TOOL_PAGES):
            self._monitor.reset_counts()
            page = await self._wait_for_response(asyncio.ensure_future(client.list_tools(cursor=cursor)), self._monitor)
            for tool in page.tools:
                listing.add_tool(tool.model_dump(by_alias=True, exclude_none=True, mode="json"))
            cursor = page.next_cursor
            if not cursor or listing.is_full:
                break
        if cursor:
            listing.left_out += 1  # at least one: the other pages are not read
        return listing

    # --- failures -----------------------------------------------------------------------------------------------------

    async def _record_connect_failure(
        self, error: Exception, missed_step: str, *, is_quoted: bool = True
    ) -> AthenaError:
        """Close the connection, schedule the next attempt, and return the error to raise."""
        status, cause = self._monitor.exchange.error_status, _unwrap_error(error)
        if isinstance(error, TimeoutError):
            message = own_words = f"it {missed_step} within {self.config.startup_timeout_s:g} s"
        else:
            message = _format_error(cause) or type(error).__name__
            own_words = f"it answered {status}" if status else f"it {missed_step}"
        if self._connection_task is not None:
            await asyncio.wait({self._connection_task}, timeout=LAST_OUTPUT_WAIT_S)
        await self._disconnect()
        self._schedule_retry(str(cause) if isinstance(cause, AthenaError) else own_words, self._monitor)
        if isinstance(cause, AthenaError):
            return cause
        if status in (401, 403):
            return _create_login_error(self.name, status)
        reason = (self._monitor.violation or message) + (self._monitor.format_last_output() if is_quoted else "")
        status_note = f" (HTTP {status})" if status else ""
        target = sanitize.sanitize_line(redaction.redact(self.config.target).text, 200)
        is_http = self.config.transport == "http"
        return Unavailable(
            f"the server {self.name} cannot be connected{status_note}: {reason}",
            hint=f"is it running at {target}?" if is_http else f"try what it runs by hand: {target}",
            retry=False,  # an immediate retry would only meet the delay
        )

    def _schedule_retry(self, reason: str, monitor: ConnectionMonitor) -> None:
        """Set a delay before the next attempt, longer each time; the reason has no word of the server."""
        delay_s = RETRY_DELAYS_S[min(self._failures, len(RETRY_DELAYS_S) - 1)]
        self._failures += 1
        self._mode = "auto"
        self._retry_at = time.monotonic() + delay_s * (0.8 + 0.4 * random.random())
        self.error, self.error_output = monitor.violation or reason, monitor.format_last_output()

    def _is_current(self, monitor: ConnectionMonitor) -> bool:
        """Return whether this is the open connection: when it ends, only the first of its calls may handle that."""
        return monitor is self._monitor and self._client is not None

    async def _disconnect(self) -> None:
        self._client = None
        task, self._connection_task = self._connection_task, None
        if task is None:
            return
        self._stop.set()
        await asyncio.wait({task}, timeout=DISCONNECT_TIMEOUT_S)
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=DISCONNECT_TIMEOUT_S)

    async def close(self) -> None:
        """Disconnect for good: later calls do not reconnect."""
        self._closed = True
        await self._disconnect()


def create_refusal_error(server: str, tool: str, refusal: approvals.Refusal) -> Denied:
    return Denied(
        f"{server}: the tool {tool!r:.100} {refusal.message}",
        hint=f"a person looks at it: athena servers approve {server}",
    )


def _create_login_error(server: str, status: int) -> Denied:
    return Denied(
        f"the server {server} answered {status}: it does not let us in",
        hint=f"a person logs in: athena servers login {server}; or check the header with its token",
    )


def _find_program(command: str, folder: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of a command's program; a relative path starts at the server's working directory."""
    if os.path.dirname(command):
        command = os.path.join(folder, os.path.expanduser(command))
    return shutil.which(command, path=environ.get("PATH"))


async def _skip_validation(name: str, result: Any) -> None:
    """Accept any result."""


def _format_error(error: BaseException) -> str:
    """Return what an error says; of an answer with hundreds of thousands of mistakes only how many there are."""
    count = error.error_count() if hasattr(error, "error_count") else 0
    text = f"{count:,} validation errors" if count else str(error)
    if 0 < count <= MAX_NAMED_MISTAKES:  # as a text it would quote parts of the answer
        mistakes = error.errors(include_url=False, include_context=False, include_input=False)  # type: ignore[attr-defined]
        text = "; ".join(f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}" for mistake in mistakes)
    return sanitize.sanitize_line(sanitize.hide_words.get()(text), MAX_ERROR_CHARS)


def _unwrap_error(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
