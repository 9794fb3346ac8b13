"""The connection to one server: made at the first need, made again after a failure, but not without a pause.

Everything here runs on the gateway's own event loop.
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
from athena.gateway.config import Entry
from athena.gateway.monitor import ConnectionMonitor

_import_lock = threading.Lock()


def import_mcp_sdk() -> None:
    with _import_lock:
        import mcp.client
        import mcp.server.lowlevel  # noqa: F401


MAX_CONCURRENT_CALLS = 16  # calls of one server
RETRY_DELAYS_S = (1.0, 2.0, 5.0, 15.0, 60.0)  # seconds after one failure, two, ...
MAX_UNANSWERED_CALLS = 3  # calls in a row that may fail without an answer before the connection is given up
MAX_TOOL_PAGES = 100  # of a list of tools
TOOL_RECHECK_INTERVAL_S = 300.0  # seconds after which the tools are compared again
CONNECTION_CLOSED_CODE, REQUEST_TIMEOUT_CODE = -32000, -32001  # the SDK's own codes


class ConnectionLost(Exception):
    """The connection ended while a call was under way."""


class SessionExpired(ConnectionLost):
    """The server does not know us any more, and so has done nothing."""


class ServerConnection:
    def __init__(
        self,
        name: str,
        entry: Entry,
        environment: Mapping[str, str],
        verify: Callable[[approvals.ToolListing], Mapping[str, approvals.RefusalReason]],
        auth: Callable[[], Any],
        approved: Any = None,
        kept: str | None = None,
    ) -> None:
        self.name, self.config, self._environ, self._verify, self._auth = name, entry, environment, verify, auth
        self.approvals = approved  # what the tools are compared with
        self._data_folder = kept  # the folder of Athena's own files
        self.error = ""  # why the last attempt failed
        self._refusals: Mapping[str, approvals.RefusalReason] = {}
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
        self._mode = "auto"  # until it is known to speak an older revision

    @property
    def is_connected(self) -> bool:
        return self._client is not None and not self._monitor.ended.is_set()

    @property
    def retry_delay_s(self) -> float:
        """Return for how many seconds more nothing is tried."""
        return max(0.0, self._retry_at - time.monotonic())

    def invalidate_tools(self) -> None:
        """Have the tools compared before the next call: a person has approved others."""
        self._monitor.tools_changed = True

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(self, tool: str, arguments: dict[str, Any], begun: Callable[[], None], *, again: bool) -> Any:
        """Call a tool; `again` allows a second attempt when the connection is lost, for what changes nothing.

        `begun` is told before anything is sent.
        """
        try:
            return await self._attempt_call(tool, arguments, begun, again)
        except ConnectionLost as lost:
            if again or isinstance(lost, SessionExpired):
                with suppress(ConnectionLost):
                    return await self._attempt_call(tool, arguments, begun, again)
            broken = f"the server {self.name} broke off during {tool}: {lost}"
            raise Unavailable(broken, hint=UNCERTAIN_HINT, retry=False) from None

    async def _attempt_call(self, tool: str, arguments: dict[str, Any], begun: Callable[[], None], reads: bool) -> Any:
        client = await self.ensure_connected()
        watch = self._monitor  # of this connection; another call may meet the next one
        before = watch.stderr_bytes  # what it said before is not about this call
        if why := self._refusals.get(tool):
            raise create_refusal_error(self.name, tool, why)
        try:
            async with (
                self._call_slots,
                asyncio.timeout(self.config.timeout_s),
            ):  # the time of those before it is not its own
                if watch.ended.is_set():
                    raise SessionExpired("it has ended")
                watch.reset_counts()
                begun()
                asked = asyncio.ensure_future(client.call_tool(tool, arguments))
                result = await self._wait_for_response(asked, watch)
        except TimeoutError:
            raise await self._record_timeout(tool, watch, before, reads) from None
        except AthenaError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
            raise await self._classify_failure(tool, error, watch, before) from None
        self._unanswered = self._failures = 0
        return result

    async def _wait_for_response(self, asked: "asyncio.Future[Any]", watch: ConnectionMonitor) -> Any:
        """Wait for an answer; who has left will not give it."""
        ended = asyncio.ensure_future(watch.ended.wait())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                await asyncio.wait({asked}, timeout=0.2)  # the last words may be on their way
            if not asked.done():
                raise ConnectionLost(_format_reason("it has ended", watch))
            return asked.result()
        finally:
            ended.cancel()
            if not asked.done():
                asked.cancel()
                await asyncio.wait({asked}, timeout=1.0)

    async def _record_timeout(self, tool: str, watch: ConnectionMonitor, before: int, reads: bool) -> AthenaError:
        """Give up a server that has not answered for the third time."""
        said = watch.format_last_output(before)
        if self._is_current(watch):
            self._unanswered += 1
            if self._unanswered >= MAX_UNANSWERED_CALLS or watch.ended.is_set():
                self._schedule_retry(_format_reason(f"it did not answer {self._unanswered} calls in a row", watch))
                self._unanswered = 0
                await self._disconnect()
        longer = f'ask for less, or let it take longer: "timeout" in servers.json, for {self.name}'
        return Unavailable(
            f"the server {self.name} did not answer {tool} within {self.config.timeout_s:g} s{said}",
            hint=longer if reads else f"{UNCERTAIN_HINT}; {longer}",
            retry=False,
        )

    async def _classify_failure(self, tool: str, error: Exception, watch: ConnectionMonitor, before: int) -> Exception:
        """Say what came of a call that the SDK could not finish."""
        code, words = getattr(error, "code", None), sanitize.sanitize_line(str(error), 300)
        if watch.violation:
            if self._is_current(watch):
                await self._disconnect()
            return LimitExceeded(f"the server {self.name} was cut off at {tool}: {watch.violation}", hint=ASK_LESS_HINT)
        if isinstance(error, ConnectionLost) or code == CONNECTION_CLOSED_CODE or watch.ended.is_set():
            if self._is_current(watch):
                self._unanswered += 1
                if self._unanswered >= MAX_UNANSWERED_CALLS:
                    self._schedule_retry(_format_reason("it ended during calls", watch))
                await self._disconnect()
            return error if isinstance(error, ConnectionLost) else ConnectionLost(_format_reason(words, watch))
        if watch.http_status == 404:  # a server that was started anew knows no session of before
            if self._is_current(watch):
                await self._disconnect()
            return SessionExpired("it answered 404")
        if watch.http_status in (401, 403):
            return _create_login_error(self.name, watch.http_status)
        if watch.http_status >= 300:
            return Unavailable(
                f"the server {self.name} answered {tool} with HTTP {watch.http_status}: {words}",
                hint="look at its log, or try again later",
                retry=False,
            )
        if code is not None and code != stdio.PARSE_ERROR_CODE:  # the server's own answer
            return Unavailable(f"the server {self.name} refused {tool}: {words}", hint=LIST_SERVERS_HINT, retry=False)
        said = watch.format_last_output(before)
        return Unavailable(
            f"the server {self.name} answered {tool} with what is no result: {words}{said}",
            hint=LIST_SERVERS_HINT,
            retry=False,
        )

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def ensure_connected(self) -> Any:
        """Return the client of a server that is connected and whose tools are as they were approved."""
        async with self._connecting:  # nobody holds it for longer than a start may take
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
                    hint=f"it is tried again in {self.retry_delay_s:.0f} s; athena servers list says more",
                )
            try:
                async with asyncio.timeout(self.config.startup_timeout_s):
                    self._client = await self._connect()
                    await self._compare_tools(self._client)
            except (Misconfigured, InvalidInput) as error:  # the entry must be mended first
                self.error = str(error)
                raise
            except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
                raise await self._record_connect_failure(error) from None
            self.error, self._failures = "", 0
            return self._client

    @property
    def _is_recently_compared(self) -> bool:
        """Tell whether there is no need to compare the tools again."""
        return not self._monitor.tools_changed and time.monotonic() <= self._compared_at + TOOL_RECHECK_INTERVAL_S

    async def _recheck_tools(self) -> bool:
        """Compare the tools on a connection that is open; False where it turns out that it was not."""
        try:
            async with asyncio.timeout(self.config.startup_timeout_s):
                await self._compare_tools(self._client)
        except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
            if not self._monitor.violation and (self._monitor.ended.is_set() or self._monitor.http_status == 404):
                return False  # nothing was asked of it yet, so another connection will do
            raise await self._record_connect_failure(error, "did not list its tools") from None
        return True

    async def _connect(self) -> Any:
        self._monitor, self._stop = ConnectionMonitor(), asyncio.Event()
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._connection_task = asyncio.create_task(
            self._hold_connection(self._create_transport(), made, self._stop, self._monitor.ended)
        )
        try:
            return await made
        except asyncio.CancelledError:
            self._connection_task.cancel()
            raise

    def _create_transport(self) -> Any:
        given = self.config.expand_variables(self._environ).options
        if self.config.transport == "http":
            auth = None if "Authorization" in (given.get("headers") or {}) else self._auth()
            return http.open_http_streams(
                given["url"], given.get("headers") or {}, self.config.timeout_s, self._monitor, auth
            )
        environment = stdio.build_environment(self._environ, given.get("env") or {})
        folder = config.resolve_working_directory(self.name, given, environment, self._data_folder)
        program = _find_program(given["command"], folder, environment)
        if program is None:
            raise Misconfigured(
                f"the server {self.name} cannot start: there is no program {given['command']!r:.200}",
                hint="install it, or write its whole path in servers.json",
            )
        words = [program, *(given.get("args") or ())]
        return stdio.open_stdio_streams(words, environment, folder, self._monitor)

    async def _hold_connection(
        self, transport: Any, made: "asyncio.Future[Any]", stop: asyncio.Event, ended: asyncio.Event
    ) -> None:
        """Hold a connection open until it ends or is not needed; the SDK wants it opened and closed by one task.

        What it is given is its own: one that closes slowly must not end the next.
        """
        try:
            import_mcp_sdk()
            from mcp import Client
            from mcp_types import Implementation
            from mcp_types.version import MODERN_PROTOCOL_VERSIONS

            async with Client(
                transport, mode=self._mode, client_info=Implementation(name="athena", version=__version__), cache=None
            ) as it:
                # It would try patterns that a stranger wrote, and one of those can take for ever.
                it.session.validate_tool_result = _skip_validation  # type: ignore[method-assign]
                self._mode = "auto" if it.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"
                if not made.done():
                    made.set_result(it)
                over = [asyncio.ensure_future(one.wait()) for one in (stop, ended)]
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                for one in over:
                    one.cancel()
        except BaseException as error:  # noqa: BLE001  # told to whoever waits
            if not made.done():
                made.set_exception(error if isinstance(error, Exception) else ConnectionLost("it was given up"))
        finally:
            ended.set()

    async def _compare_tools(self, client: Any) -> None:
        """List the tools and have them compared with those that were approved."""
        self._refusals = self._verify(await self._list_tools(client))
        self._monitor.tools_changed, self._compared_at = False, time.monotonic()

    async def _list_tools(self, client: Any) -> approvals.ToolListing:
        """Go through the pages for as long as there is room for more."""
        offered = approvals.ToolListing()
        cursor: str | None = None
        for _ in range(MAX_TOOL_PAGES):
            self._monitor.reset_counts()
            page = await self._wait_for_response(asyncio.ensure_future(client.list_tools(cursor=cursor)), self._monitor)
            for one in page.tools:
                offered.add_tool(one.model_dump(by_alias=True, exclude_none=True, mode="json"))
            cursor = page.next_cursor
            if not cursor or offered.is_full:
                break
        if cursor:
            offered.left_out += 1  # at least: nobody asks for the rest
        return offered

    # --- failing ------------------------------------------------------------------------------------------------------

    async def _record_connect_failure(self, error: Exception, late: str = "did not introduce itself") -> AthenaError:
        status = self._monitor.http_status
        if isinstance(error, TimeoutError):
            words = f"it {late} within {self.config.startup_timeout_s:g} s"
        else:
            words = sanitize.sanitize_line(str(_unwrap_error(error)), 300) or type(error).__name__
        if self._connection_task is not None:  # its last words may be on their way
            await asyncio.wait({self._connection_task}, timeout=0.3)
        reason = _format_reason(words, self._monitor)
        await self._disconnect()
        self._schedule_retry(reason)
        if isinstance(leaf := _unwrap_error(error), AthenaError):
            return leaf
        if status in (401, 403):
            self.error = f"it answered {status}"
            return _create_login_error(self.name, status)
        shown = f" (HTTP {status})" if status else ""
        ask, end = ("is it running at", "?") if self.config.transport == "http" else ("try what it runs by hand:", "")
        return Unavailable(
            f"the server {self.name} cannot be connected{shown}: {reason}",
            hint=f"{ask} {sanitize.sanitize_line(redaction.redact(self.config.target).text, 200)}{end}",
            retry=False,  # who tries again at once only meets the pause
        )

    def _schedule_retry(self, reason: str) -> None:
        """Pause before the next attempt, longer each time."""
        pause = RETRY_DELAYS_S[min(self._failures, len(RETRY_DELAYS_S) - 1)]
        self._failures += 1
        self._mode = "auto"
        self._retry_at = time.monotonic() + pause * (0.8 + 0.4 * random.random())
        self.error = reason

    def _is_current(self, watch: ConnectionMonitor) -> bool:
        """Tell whether a connection is still open for us: what ends all calls under way must be dealt with once."""
        return watch is self._monitor and self._client is not None

    async def _disconnect(self) -> None:
        """Let go of the connection."""
        self._client = None
        keeper, self._connection_task = self._connection_task, None
        if keeper is None:
            return
        self._stop.set()
        await asyncio.wait({keeper}, timeout=0.5)
        if not keeper.done():
            keeper.cancel()
            await asyncio.wait({keeper}, timeout=0.5)

    async def close(self) -> None:
        """End it for good: whoever still calls does not start it again."""
        self._closed = True
        await self._disconnect()


UNCERTAIN_HINT = "it may have been done or not: look before you call it again"
LIST_SERVERS_HINT = "athena servers list says how it is"
ASK_LESS_HINT = "ask it for less"


def _format_reason(words: str, watch: ConnectionMonitor) -> str:
    return (watch.violation or words) + watch.format_last_output()


def _find_program(command: str, folder: str, environment: Mapping[str, str]) -> str | None:
    """Return what a command starts: a path is one from the server's folder, never from ours."""
    if os.path.dirname(command):
        command = os.path.join(folder, os.path.expanduser(command))
    return shutil.which(command, path=environment.get("PATH"))


async def _skip_validation(name: str, result: Any) -> None:
    """Take a result as it is."""


def create_refusal_error(server: str, tool: str, why: approvals.RefusalReason) -> Denied:
    return Denied(
        f"{server}: the tool {tool!r:.100} {approvals.REFUSAL_MESSAGES[why]}",
        hint=f"a person looks at it: athena servers approve {server}",
    )


def _create_login_error(server: str, status: int) -> Denied:
    return Denied(
        f"the server {server} answered {status}: it does not let us in",
        hint=f"a person logs in: athena servers login {server}; or check the header with its token",
    )


def _unwrap_error(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
