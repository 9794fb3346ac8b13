"""All configured servers: what was approved of them joins the catalog, and calls find their way.

Nothing heavy is imported here: most processes never connect a server, and many have none.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.catalog import Catalog
from athena.core.foreign_operation import Defined
from athena.core.operation import Effect
from athena.errors import AthenaError, Conflict, Denied, InvalidInput, Misconfigured, NotFound
from athena.gateway.values import ConnectedServer, Status

if TYPE_CHECKING:
    from athena.gateway.approvals import Pin, Pins, PinStore, Tools, Why
    from athena.gateway.config import Config, Entry
    from athena.gateway.connections import Hub
    from athena.gateway.loop import Pending

NEVER = "not approved yet"
ENABLE = 'take "disabled" out of servers.json'
ANOTHER = "its command or address is not the one that was approved"
TOLD = 10  # refused tools that are named
NAMED = 60  # characters of a name that nobody has approved

Forward = Callable[[Any, "Tool", dict[str, Any]], Awaitable[Any]]  # a context, a tool, its arguments


class Tool(NamedTuple):
    """One tool of a server, as a call needs it."""

    server: str
    name: str  # the server's own
    path: str  # ours
    reads: bool
    approval: bool


class Known(NamedTuple):
    """A server with what was approved of it."""

    entry: "Entry"
    pins: "Pins | None"
    trouble: str = ""  # why none of its tools can be called

    @property
    def usable(self) -> bool:
        return self.pins is not None and not self.trouble and not self.entry.disabled

    @property
    def offered(self) -> "dict[str, Pin]":
        if self.pins is None or not self.usable:
            return {}
        return {name: pin for name, pin in self.pins.tools.items() if name not in self.pins.refused}

    def away(self, name: str) -> dict[str, tuple[str, str]]:
        """Say what of it cannot be called, why, and what to do."""
        from athena.gateway import approvals  # only where there are servers

        approve = f"a person looks at it: athena servers approve {name}"
        if self.entry.disabled:
            return {name: (f"the server {name} is disabled", ENABLE)}
        if self.trouble or self.pins is None:
            return {name: (f"the server {name} waits for a person: {self.trouble}", approve)}
        return {
            f"{name}.{approvals.called(self.pins, tool)}": (
                f"{name}.{approvals.called(self.pins, tool)} waits for a person: it {approvals.HOW[why]}",
                approve,
            )
            for tool, why in self.pins.refused.items()
        }


class Gateway:
    """The servers of one home; without a home there are none."""

    def __init__(
        self,
        home: str | None,
        forward: Forward,
        ours: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.home, self._forward, self._environment = home, forward, environment
        self._ours = frozenset(ours)  # names that no server can have
        self._guard = threading.RLock()
        self._seen: object = None
        self._known: dict[str, Known] = {}
        self._problem: AthenaError | None = None  # with the file of servers
        self._catalog: Catalog | None = None  # the one that was brought up to date
        self._made: Hub | None = None

    @property
    def config(self) -> "Config":
        from athena.gateway.config import Config  # only where there are servers

        if self.home is None:
            raise Conflict("this store has no home, and so no servers", hint="open it with settings")
        return Config(self.home)

    @property
    def _store(self) -> "PinStore":
        from athena.gateway.approvals import PinStore  # only where there are servers

        return PinStore(self.config.home)

    @property
    def _hub(self) -> "Hub":
        from athena.gateway.connections import Hub  # brings asyncio

        with self._guard:
            if self._made is None or self._made.pid != os.getpid():  # no connection survives a fork
                self._made = Hub(self._environment, self._refused, self._auth, self.config.home, self._look)
            return self._made

    # --- the catalog --------------------------------------------------------------------------------------------------

    def refresh(self, catalog: Catalog) -> None:
        """Bring in what has changed on disk since the last look."""
        if self.home is None or (seen := self._state_of_files(self.home)) == self._seen:
            return
        with self._guard:
            if seen == self._seen:
                return
            before = self._known
            self._known = self._read(there=seen[0] is not None)
            for name in before.keys() - self._known.keys():
                catalog.remove(name)
            for name, known in self._known.items():
                if before.get(name) != known:
                    catalog.put(name, f"The MCP server {name}.", self._operations(name, known), known.away(name))
            catalog.note("" if self._problem is None else str(self._problem))
            self._seen, self._catalog = seen, catalog
            if self._made is not None and self._made.pid == os.getpid():
                self._made.keep({name: known.entry for name, known in self._known.items() if known.usable})

    def _look(self) -> None:
        if self._catalog is not None:
            self.refresh(self._catalog)

    def _state_of_files(self, home: str) -> tuple[object, object]:
        return _state(os.path.join(home, "servers.json")), _state(os.path.join(home, "pins"))

    def _read(self, *, there: bool) -> dict[str, Known]:
        self._problem = None
        if not there:
            return {}
        from athena.gateway import naming  # only where there are servers

        try:
            entries = self.config.entries()
        except AthenaError as error:
            self._problem = error
            return {}
        names = naming.assigned(list(entries), self._ours)
        return {names[key]: self._approved(names[key], entry) for key, entry in entries.items()}

    def _approved(self, name: str, entry: "Entry") -> Known:
        try:
            found = self._store.read(name)
        except Misconfigured as error:
            return Known(entry, None, str(error))
        if found is None:
            why = self._store.failure(name)
            return Known(entry, None, f"{NEVER}; the last try: {why}" if why else NEVER)
        return Known(entry, found, "" if found.fingerprint == entry.fingerprint else ANOTHER)

    def _operations(self, name: str, known: Known) -> list[Defined]:
        return [self._operation(name, known.entry, wire, pin) for wire, pin in known.offered.items()]

    def _operation(self, name: str, entry: "Entry", wire: str, pin: "Pin") -> Defined:
        from athena.gateway.approvals import definition_of

        definition = definition_of(name, pin, entry.approval)
        tool = Tool(name, wire, f"{name}.{pin.called}", definition.effect is Effect.READ, definition.approval)

        async def run(ctx: Any, arguments: dict[str, Any]) -> Any:
            return await self._forward(ctx, tool, arguments)

        return Defined(definition, run)

    # --- calls --------------------------------------------------------------------------------------------------------

    def start(self, tool: Tool, arguments: dict[str, Any]) -> "Pending[Any]":
        """Begin a call; whoever waits for it may cancel it."""
        known = self.known(tool.server)
        if known.trouble or known.pins is None:
            hint = f"a person looks at it: athena servers approve {tool.server}"
            raise Denied(f"the server {tool.server} cannot be used: {known.trouble}", hint=hint)
        if known.entry.disabled:
            raise Denied(f"the server {tool.server} is disabled", hint=ENABLE)
        if lacking := known.entry.unset(self._environment):
            raise Misconfigured(f"the server {tool.server} {_needs(lacking)}", hint=self._how_to_set(lacking[0]))
        return self._hub.call(tool.server, known.entry, known.pins, tool.name, tool.path, arguments, again=tool.reads)

    def _how_to_set(self, variable: str) -> str:
        """Say where a variable has to be set: a server has the environment of whoever started it."""
        from athena.core.home import lock  # only where something is wrong
        from athena.gateway.config import unset_hint

        server = lock.holder(self.config.home)
        if server is None or server["pid"] != os.getpid():
            return unset_hint(variable)
        stop = "athena daemon stop" if server.get("daemon") else "stop it"
        return f"Athena's server is process {os.getpid()}: {stop}, then start it again where {variable} is set"

    def _refused(self, name: str, found: "Mapping[str, Why]") -> None:
        """Keep what is not as it was approved from being found and called, in every process."""
        if (known := self._known.get(name)) is not None and known.pins is not None:
            self._store.refuse(name, known.pins.at, dict(found))

    def _auth(self, name: str, entry: "Entry") -> Any:
        """Return what sends the token of a login, if there is one."""
        from athena.gateway import oauth  # with the SDK

        return oauth.silent(self.config.home, name, entry.expanded(self._environment).given["url"])

    # --- what there is ------------------------------------------------------------------------------------------------

    def known(self, name: str) -> Known:
        """Return a server by its name, or by the one in the file."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        for each, known in self._known.items():
            if name in (each, known.entry.name):
                return known
        there = ", ".join(self._known) or "none; a person adds one: athena servers add"
        raise NotFound(f"there is no server {name!r:.80}", hint=f"there are: {there}")

    def named(self, key: str) -> str:
        """Return a server's name, by that or by the one in the file."""
        wanted = self.known(key)
        return next(name for name, known in self._known.items() if known is wanted)

    @property
    def renamed(self) -> dict[str, str]:
        """The names in the file that programs cannot use, each with the one that they do."""
        return {known.entry.name: name for name, known in self._known.items() if known.entry.name != name}

    def servers(self) -> list[ConnectedServer]:
        """Say how every server is, without connecting any."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        return [self._shown(name, known) for name, known in sorted(self._known.items())]

    def _shown(self, name: str, known: Known) -> ConnectedServer:
        approved = known.pins
        refused = _told(approved.refused) if approved else []
        status, detail = self._status(name, known, bool(refused))
        if approved is not None and approved.left_out:
            detail = f"{detail}; {approved.left_out} tools were left out, too many or too large".removeprefix("; ")
        theirs = {} if approved is None else {_fit(tool): ours for tool, ours in approved.renamed.items()}
        renamed = ({} if known.entry.name == name else {known.entry.name: name}) | theirs
        return ConnectedServer(name, known.entry.kind, status, len(known.offered), detail, refused, renamed)

    def _status(self, name: str, known: Known, refused: bool) -> tuple[Status, str]:
        if known.entry.disabled:
            return "disabled", ""
        if known.trouble:
            return "waiting", f"{known.trouble}: athena servers approve {name}"
        if lacking := known.entry.unset(self._environment):
            return "failing", f"it {_needs(lacking)}; {self._how_to_set(lacking[0])}"
        connected, error = (False, "") if self._made is None else self._made.standing(name)
        if error:
            return "failing", error
        if refused:
            return "changed", f"some tools are not as they were approved: athena servers approve {name}"
        return ("connected" if connected else "ready"), ""

    async def check(self) -> dict[str, str]:
        """Connect all servers that may be, and return what is wrong with each."""
        ready = {
            name: (known.entry, known.pins)
            for name, known in self._known.items()
            if known.pins is not None and known.usable
        }
        return await self._hub.check(ready) if ready else {}

    # --- what a person does -------------------------------------------------------------------------------------------

    async def offered(self, name: str) -> "tuple[Tools, int]":
        """Connect a server that may not be approved yet and return what it offers now."""
        try:
            return await self._hub.look(name, self.known(name).entry)
        except AthenaError as error:
            self._store.failed(name, str(error))
            raise

    def add(self, entries: "list[Entry]") -> None:
        """Write servers down; one that was never approved makes room for another of its name."""
        there = {known.entry.name for known in self._known.values()}
        self.config.put(entries, [name for name in there if self.is_new(name)])

    def is_new(self, key: str) -> bool:
        """Tell whether nobody has approved anything of a server, or there is none."""
        found = [known for known in self._known.values() if known.entry.name == key]
        return all(known.pins is None and known.trouble.startswith(NEVER) for known in found)

    def approve(self, name: str, offered: "Tools", left_out: int) -> "Pins":
        """Pin what a person has seen."""
        from athena.gateway import approvals

        known = self.known(name)
        made = approvals.made(known.entry.fingerprint, offered, left_out, known.pins)
        self._store.write(name, made)
        return made

    def login(self, name: str, show: Callable[[str], None]) -> None:
        """Have a person log in to a server over HTTP; `show` is given the address to open."""
        entry = self.known(name).entry
        if entry.kind != "http":
            raise InvalidInput(f"{name} is a program of this machine: there is nothing to log in to")
        self._hub.login(name, entry, self.config.home, show)

    def remove(self, name: str) -> None:
        """Forget a server, what was approved of it, and its login."""
        from athena.gateway.config import LOGINS

        self.config.remove(self.known(name).entry.name)
        self._store.remove(name)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.config.home, LOGINS, f"{name}.json"))

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _needs(variables: list[str]) -> str:
    named = " and ".join(f"${{{name}}}" for name in variables)
    return f"needs {named}, which {'is' if len(variables) == 1 else 'are'} not set"


def _told(refused: "Mapping[str, Why]") -> list[str]:
    """Name what was refused, in few words: nobody has approved these names."""
    told = [f"{_fit(tool)}: {why}" for tool, why in islice(refused.items(), TOLD)]
    return [*told, f"and {len(refused) - TOLD} more"] if len(refused) > TOLD else told


def _fit(name: str) -> str:
    """Return a server's own name for a tool, fit to be shown."""
    from athena.gateway import sanitize  # only where there are servers

    return sanitize.line(name, NAMED) or "without a name"


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
