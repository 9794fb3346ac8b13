"""The connection to one server: made at the first need, made again after a failure, but not without a pause.

Everything here runs on the gateway's own event loop.
"""

import asyncio
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from athena.core import redaction
from athena.core.version import __version__
from athena.errors import AthenaError, Denied, InvalidInput, LimitExceeded, Misconfigured, Unavailable
from athena.gateway import approvals, http, sanitize, sdk, stdio, working_directory
from athena.gateway.config import Entry
from athena.gateway.monitor import Watch

AT_ONCE = 16  # calls of one server
PAUSES = (1.0, 2.0, 5.0, 15.0, 60.0)  # seconds after one failure, two, ...
PATIENCE = 3  # calls in a row that may fail without an answer before the connection is given up
PAGES = 100  # of a list of tools
LOOK_AGAIN = 300.0  # seconds after which the tools are compared again
CLOSED, TIMED_OUT = -32000, -32001  # the SDK's own codes


class Lost(Exception):
    """The connection ended while a call was under way."""


class Forgotten(Lost):
    """The server does not know us any more, and so has done nothing."""


class Link:
    def __init__(
        self,
        name: str,
        entry: Entry,
        environment: Mapping[str, str],
        verify: Callable[[approvals.Offered], Mapping[str, approvals.Why]],
        auth: Callable[[], Any],
        approved: Any = None,
        kept: str | None = None,
    ) -> None:
        self.name, self.entry, self._environment, self._verify, self._auth = name, entry, environment, verify, auth
        self.approved = approved  # what the tools are compared with
        self._kept = kept  # the folder of Athena's own files
        self.error = ""  # why the last attempt failed
        self._refusals: Mapping[str, approvals.Why] = {}
        self._client: Any = None
        self._keeper: asyncio.Task[None] | None = None
        self._watch = Watch()
        self._stop = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._failures = 0
        self._silent = 0
        self._closed = False
        self._not_before = 0.0
        self._looked = 0.0
        self._mode = "auto"  # until it is known to speak an older revision

    @property
    def connected(self) -> bool:
        return self._client is not None and not self._watch.ended.is_set()

    @property
    def waits(self) -> float:
        """Return for how many seconds more nothing is tried."""
        return max(0.0, self._not_before - time.monotonic())

    def compare_again(self) -> None:
        """Have the tools compared before the next call: a person has approved others."""
        self._watch.changed = True

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: dict[str, Any], begun: Callable[[], None], *, again: bool) -> Any:
        """Call a tool; `again` allows a second attempt when the connection is lost, for what changes nothing.

        `begun` is told before anything is sent.
        """
        try:
            return await self._call(tool, arguments, begun, again)
        except Lost as lost:
            if again or isinstance(lost, Forgotten):
                with suppress(Lost):
                    return await self._call(tool, arguments, begun, again)
            broken = f"the server {self.name} broke off during {tool}: {lost}"
            raise Unavailable(broken, hint=UNCERTAIN, retry=False) from None

    async def _call(self, tool: str, arguments: dict[str, Any], begun: Callable[[], None], reads: bool) -> Any:
        client = await self.ready()
        watch = self._watch  # of this connection; another call may meet the next one
        before = watch.spoken  # what it said before is not about this call
        if why := self._refusals.get(tool):
            raise refusal(self.name, tool, why)
        try:
            async with self._room, asyncio.timeout(self.entry.timeout):  # the time of those before it is not its own
                if watch.ended.is_set():
                    raise Forgotten("it has ended")
                watch.begin()
                begun()
                asked = asyncio.ensure_future(client.call_tool(tool, arguments))
                result = await self._unless_ended(asked, watch)
        except TimeoutError:
            raise await self._silence(tool, watch, before, reads) from None
        except AthenaError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
            raise await self._broken(tool, error, watch, before) from None
        self._silent = self._failures = 0
        return result

    async def _unless_ended(self, asked: "asyncio.Future[Any]", watch: Watch) -> Any:
        """Wait for an answer; who has left will not give it."""
        ended = asyncio.ensure_future(watch.ended.wait())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                await asyncio.wait({asked}, timeout=0.2)  # the last words may be on their way
            if not asked.done():
                raise Lost(_reason("it has ended", watch))
            return asked.result()
        finally:
            ended.cancel()
            if not asked.done():
                asked.cancel()
                await asyncio.wait({asked}, timeout=1.0)

    async def _silence(self, tool: str, watch: Watch, before: int, reads: bool) -> AthenaError:
        """Give up a server that has not answered for the third time."""
        said = watch.heard(before)
        if self._has(watch):
            self._silent += 1
            if self._silent >= PATIENCE or watch.ended.is_set():
                self._failed(_reason(f"it did not answer {self._silent} calls in a row", watch))
                self._silent = 0
                await self._drop()
        longer = f'ask for less, or let it take longer: "timeout" in servers.json, for {self.name}'
        return Unavailable(
            f"the server {self.name} did not answer {tool} within {self.entry.timeout:g} s{said}",
            hint=longer if reads else f"{UNCERTAIN}; {longer}",
            retry=False,
        )

    async def _broken(self, tool: str, error: Exception, watch: Watch, before: int) -> Exception:
        """Say what came of a call that the SDK could not finish."""
        code, words = getattr(error, "code", None), sanitize.line(str(error), 300)
        if watch.trouble:
            if self._has(watch):
                await self._drop()
            return LimitExceeded(f"the server {self.name} was cut off at {tool}: {watch.trouble}", hint=LESS)
        if isinstance(error, Lost) or code == CLOSED or watch.ended.is_set():
            if self._has(watch):
                self._silent += 1
                if self._silent >= PATIENCE:
                    self._failed(_reason("it ended during calls", watch))
                await self._drop()
            return error if isinstance(error, Lost) else Lost(_reason(words, watch))
        if watch.status == 404:  # a server that was started anew knows no session of before
            if self._has(watch):
                await self._drop()
            return Forgotten("it answered 404")
        if watch.status in (401, 403):
            return _refused(self.name, watch.status)
        if watch.status >= 300:
            return Unavailable(
                f"the server {self.name} answered {tool} with HTTP {watch.status}: {words}",
                hint="look at its log, or try again later",
                retry=False,
            )
        if code is not None and code != stdio.UNREADABLE:  # the server's own answer
            return Unavailable(f"the server {self.name} refused {tool}: {words}", hint=HEALTH, retry=False)
        said = watch.heard(before)
        return Unavailable(
            f"the server {self.name} answered {tool} with what is no result: {words}{said}", hint=HEALTH, retry=False
        )

    # --- connecting ---------------------------------------------------------------------------------------------------

    async def ready(self) -> Any:
        """Return the client of a server that is connected and whose tools are as they were approved."""
        async with self._connecting:  # nobody holds it for longer than a start may take
            if self.connected and (self._as_approved or await self._still_good()):
                return self._client
            await self._drop()
            if self._closed:
                raise Unavailable(f"the server {self.name} was taken away meanwhile", hint=HEALTH, retry=False)
            if self.waits:
                raise Unavailable(
                    f"the server {self.name} does not work: {self.error}",
                    hint=f"it is tried again in {self.waits:.0f} s; athena servers list says more",
                )
            try:
                async with asyncio.timeout(self.entry.start):
                    self._client = await self._connect()
                    await self._compare(self._client)
            except (Misconfigured, InvalidInput) as error:  # the entry must be mended first
                self.error = str(error)
                raise
            except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
                raise await self._unconnected(error) from None
            self.error, self._failures = "", 0
            return self._client

    @property
    def _as_approved(self) -> bool:
        """Tell whether there is no need to compare the tools again."""
        return not self._watch.changed and time.monotonic() <= self._looked + LOOK_AGAIN

    async def _still_good(self) -> bool:
        """Compare the tools on a connection that is open; False where it turns out that it was not."""
        try:
            async with asyncio.timeout(self.entry.start):
                await self._compare(self._client)
        except Exception as error:  # noqa: BLE001  # whatever the SDK or a server comes up with
            if not self._watch.trouble and (self._watch.ended.is_set() or self._watch.status == 404):
                return False  # nothing was asked of it yet, so another connection will do
            raise await self._unconnected(error, "did not list its tools") from None
        return True

    async def _connect(self) -> Any:
        self._watch, self._stop = Watch(), asyncio.Event()
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep(self._transport(), made, self._stop, self._watch.ended))
        try:
            return await made
        except asyncio.CancelledError:
            self._keeper.cancel()
            raise

    def _transport(self) -> Any:
        given = self.entry.expanded(self._environment).given
        if self.entry.kind == "http":
            auth = None if "Authorization" in (given.get("headers") or {}) else self._auth()
            return http.streams(given["url"], given.get("headers") or {}, self.entry.timeout, self._watch, auth)
        environment = stdio.clean_environment(self._environment, given.get("env") or {})
        folder = working_directory.folder(self.name, given, environment, self._kept)
        program = _program(given["command"], folder, environment)
        if program is None:
            raise Misconfigured(
                f"the server {self.name} cannot start: there is no program {given['command']!r:.200}",
                hint="install it, or write its whole path in servers.json",
            )
        words = [program, *(given.get("args") or ())]
        return stdio.streams(words, environment, folder, self._watch)

    async def _keep(
        self, transport: Any, made: "asyncio.Future[Any]", stop: asyncio.Event, ended: asyncio.Event
    ) -> None:
        """Hold a connection open until it ends or is not needed; the SDK wants it opened and closed by one task.

        What it is given is its own: one that closes slowly must not end the next.
        """
        try:
            sdk.load()
            from mcp import Client
            from mcp_types import Implementation
            from mcp_types.version import MODERN_PROTOCOL_VERSIONS

            async with Client(
                transport, mode=self._mode, client_info=Implementation(name="athena", version=__version__), cache=None
            ) as it:
                # It would try patterns that a stranger wrote, and one of those can take for ever.
                it.session.validate_tool_result = _accept  # type: ignore[method-assign]
                self._mode = "auto" if it.protocol_version in MODERN_PROTOCOL_VERSIONS else "legacy"
                if not made.done():
                    made.set_result(it)
                over = [asyncio.ensure_future(one.wait()) for one in (stop, ended)]
                await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
                for one in over:
                    one.cancel()
        except BaseException as error:  # noqa: BLE001  # told to whoever waits
            if not made.done():
                made.set_exception(error if isinstance(error, Exception) else Lost("it was given up"))
        finally:
            ended.set()

    async def _compare(self, client: Any) -> None:
        """List the tools and have them compared with those that were approved."""
        self._refusals = self._verify(await self._listed(client))
        self._watch.changed, self._looked = False, time.monotonic()

    async def _listed(self, client: Any) -> approvals.Offered:
        """Go through the pages for as long as there is room for more."""
        offered = approvals.Offered()
        cursor: str | None = None
        for _ in range(PAGES):
            self._watch.begin()
            page = await self._unless_ended(asyncio.ensure_future(client.list_tools(cursor=cursor)), self._watch)
            for one in page.tools:
                offered.take(one.model_dump(by_alias=True, exclude_none=True, mode="json"))
            cursor = page.next_cursor
            if not cursor or offered.full:
                break
        if cursor:
            offered.left_out += 1  # at least: nobody asks for the rest
        return offered

    # --- failing ------------------------------------------------------------------------------------------------------

    async def _unconnected(self, error: Exception, late: str = "did not introduce itself") -> AthenaError:
        status = self._watch.status
        if isinstance(error, TimeoutError):
            words = f"it {late} within {self.entry.start:g} s"
        else:
            words = sanitize.line(str(_leaf(error)), 300) or type(error).__name__
        if self._keeper is not None:  # its last words may be on their way
            await asyncio.wait({self._keeper}, timeout=0.3)
        reason = _reason(words, self._watch)
        await self._drop()
        self._failed(reason)
        if isinstance(leaf := _leaf(error), AthenaError):
            return leaf
        if status in (401, 403):
            self.error = f"it answered {status}"
            return _refused(self.name, status)
        shown = f" (HTTP {status})" if status else ""
        ask, end = ("is it running at", "?") if self.entry.kind == "http" else ("try what it runs by hand:", "")
        return Unavailable(
            f"the server {self.name} cannot be connected{shown}: {reason}",
            hint=f"{ask} {sanitize.line(redaction.redact(self.entry.shown).text, 200)}{end}",
            retry=False,  # who tries again at once only meets the pause
        )

    def _failed(self, reason: str) -> None:
        """Pause before the next attempt, longer each time."""
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        self._failures += 1
        self._mode = "auto"
        self._not_before = time.monotonic() + pause * (0.8 + 0.4 * random.random())
        self.error = reason

    def _has(self, watch: Watch) -> bool:
        """Tell whether a connection is still open for us: what ends all calls under way must be dealt with once."""
        return watch is self._watch and self._client is not None

    async def _drop(self) -> None:
        """Let go of the connection."""
        self._client = None
        keeper, self._keeper = self._keeper, None
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
        await self._drop()


UNCERTAIN = "it may have been done or not: look before you call it again"
HEALTH = "athena servers list says how it is"
LESS = "ask it for less"


def _reason(words: str, watch: Watch) -> str:
    return (watch.trouble or words) + watch.heard()


def _program(command: str, folder: str, environment: Mapping[str, str]) -> str | None:
    """Return what a command starts: a path is one from the server's folder, never from ours."""
    if os.path.dirname(command):
        command = os.path.join(folder, os.path.expanduser(command))
    return shutil.which(command, path=environment.get("PATH"))


async def _accept(name: str, result: Any) -> None:
    """Take a result as it is."""


def refusal(server: str, tool: str, why: approvals.Why) -> Denied:
    return Denied(
        f"{server}: the tool {tool!r:.100} {approvals.HOW[why]}",
        hint=f"a person looks at it: athena servers approve {server}",
    )


def _refused(server: str, status: int) -> Denied:
    return Denied(
        f"the server {server} answered {status}: it does not let us in",
        hint=f"a person logs in: athena servers login {server}; or check the header with its token",
    )


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
