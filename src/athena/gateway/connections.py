"""The connections that are open, one a server, on an event loop of their own."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from athena.errors import AthenaError, Conflict
from athena.gateway import approvals, results
from athena.gateway.approvals import Offered, Pins, Tools
from athena.gateway.config import OURSELVES, Entry
from athena.gateway.loop import Loop, Pending
from athena.gateway.server_connection import Link

ENDING = 1.0  # seconds that closing may take
LOOK = 1.0  # seconds between two looks at what a person has changed

Refused = Callable[[str, Mapping[str, approvals.Why]], None]  # a server, and what is not as it was approved


class Hub:
    def __init__(
        self,
        environment: Mapping[str, str],
        refused: Refused,
        auth: Callable[[str, Entry], Any],
        kept: str,
        look: Callable[[], None],
    ) -> None:
        self._kept = kept  # the folder of Athena's own files
        self._look = look  # whether a person has changed something
        self._patrol: asyncio.Task[None] | None = None
        self._environment, self._refused, self._auth = environment, refused, auth
        self._links: dict[str, Link] = {}
        self._loop = Loop()
        self.pid = os.getpid()
        _quiet()

    def call(
        self, server: str, entry: Entry, approved: Pins, tool: str, path: str, given: Any, again: bool
    ) -> Pending[Any]:
        """Begin a call; whoever waits for it may cancel it."""

        begun = threading.Event()

        async def work() -> Any:
            link = self._link(server, entry, approved)
            return results.value(path, await link.call(tool, given, begun.set, again=again))

        pending = self._loop.submit(work)
        pending.begun = begun
        return pending

    async def check(self, servers: Mapping[str, tuple[Entry, Pins]]) -> dict[str, str]:
        """Connect servers, all at once, and return what is wrong with each."""

        async def one(name: str) -> str:
            try:
                await self._link(name, *servers[name]).ready()
                return ""
            except AthenaError as error:
                return f"{error}; {error.hint or ''}"

        async def every() -> list[str]:
            return await asyncio.gather(*map(one, servers))

        return dict(zip(servers, await self._loop.submit(every).outcome, strict=True))

    async def look(self, server: str, entry: Entry) -> tuple[Tools, int]:
        """Connect a server that may not be approved yet and return what it offers now."""

        found: list[Offered] = []

        def keep(offered: Offered) -> Mapping[str, approvals.Why]:
            found.append(offered)
            return {}

        async def work() -> tuple[Tools, int]:
            link = Link(server, entry, self._environment, keep, lambda: self._auth(server, entry), kept=self._kept)
            try:
                client = await link.ready()
                if client.server_info is not None and client.server_info.name == "athena":
                    raise Conflict(f"the server {server}: {OURSELVES}", hint="there is nothing to connect")
            finally:
                await link.close()
            return found[-1].tools, found[-1].left_out

        return await self._loop.submit(work).outcome

    def login(self, server: str, entry: Entry, home: str, show: Callable[[str], None]) -> None:
        """Connect a server with a person at hand who logs in."""
        from athena.gateway import oauth  # only a person's command comes here

        async def work() -> None:
            given = entry.expanded(self._environment).given
            auth, page = await oauth.interactive(home, server, given["url"], show)
            patient = Entry(entry.name, {**entry.given, "startupTimeout": oauth.PATIENCE, "timeout": oauth.PATIENCE})
            link = Link(server, patient, self._environment, lambda _: {}, lambda: auth)
            try:
                await link.ready()
            finally:
                await link.close()
                page.close()

        pending = self._loop.submit(work)
        try:
            while not pending.outcome.wait(0.2):  # a signal must find its way in
                pass
        except BaseException:
            pending.cancel()
            raise
        pending.outcome.result()

    def standing(self, server: str) -> tuple[bool, str]:
        """Tell whether a server is connected, and what is wrong with it."""
        if (link := self._links.get(server)) is None:
            return False, ""
        again = f"; tried again in {link.waits:.0f} s" if link.waits else ""
        return link.connected, f"{link.error}{again}" if link.error else ""

    def keep(self, wanted: Mapping[str, Entry]) -> None:
        """Let go of every server that is none of these, or is another than it was."""

        async def work() -> None:
            stale = [
                name
                for name, link in self._links.items()
                if name not in wanted or link.entry.fingerprint != wanted[name].fingerprint
            ]
            await asyncio.gather(*(self._links.pop(name).close() for name in stale), return_exceptions=True)

        if self._links:
            self._loop.submit(work)

    async def _look_around(self) -> None:
        """While servers run, notice what a person changes, also when nobody calls."""
        while self._links:
            await asyncio.sleep(LOOK)
            self._look()

    def _link(self, server: str, entry: Entry, approved: Pins) -> Link:
        link = self._links.get(server)
        if link is not None and link.entry == entry and link.approved is approved:
            return link
        if link is not None and link.entry == entry:
            if link.approved.tools != approved.tools:
                link.compare_again()
            link.approved = approved
            return link
        if link is not None:
            self._leaving = asyncio.get_running_loop().create_task(link.close())

        def verify(offered: Offered) -> Mapping[str, approvals.Why]:
            found = approvals.compared(made.approved, offered.tools)
            self._refused(server, found)
            return found

        made = self._links[server] = Link(
            server, entry, self._environment, verify, lambda: self._auth(server, entry), approved, self._kept
        )
        if self._patrol is None or self._patrol.done():
            self._patrol = asyncio.get_running_loop().create_task(self._look_around())
        return made

    def close(self) -> None:
        """Let go of every server; each is ended by its minder, if it does not leave."""
        if self.pid != os.getpid():
            return
        links, self._links = list(self._links.values()), {}

        async def last() -> None:
            await asyncio.gather(*(link.close() for link in links), return_exceptions=True)

        self._loop.stop(last, ENDING)


def _quiet() -> None:
    """Keep the SDK's own log away from people: what matters is in the errors."""
    for name in ("mcp", "client", "httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
