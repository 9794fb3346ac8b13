"""All configured servers: what was approved of them joins the catalog, and calls find their way.

Nothing heavy is imported here: most processes never connect a server, and many have none.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from athena.core.catalog import Catalog
from athena.core.foreign_operation import ForeignOperation
from athena.core.operation import Effect
from athena.core.threads import get_running_loop
from athena.core.types import to_json
from athena.core.values import Call
from athena.errors import (
    ApprovalNeeded,
    AthenaError,
    Conflict,
    Denied,
    InvalidInput,
    LimitExceeded,
    Misconfigured,
    NotFound,
)
from athena.gateway.values import ConnectedServer, Status
from athena.storage import calls
from athena.storage.database import Database, Transaction

if TYPE_CHECKING:
    from athena.gateway.approvals import ApprovalStore, ApprovedTool, RefusalReason, ServerApprovals, ToolDefinitions
    from athena.gateway.config import Entry, ServersFile
    from athena.gateway.connections import ConnectionPool, LoopTask

NEVER_APPROVED = "not approved yet"
ENABLE_HINT = 'take "disabled" out of servers.json'
FINGERPRINT_CHANGED = "its command or address is not the one that was approved"
MAX_LISTED_REFUSALS = 10  # refused tools that are named
MAX_TOOL_NAME_CHARS = 60  # characters of a name that nobody has approved
APPROVAL_SURFACES = ("program", "cli")  # a program pauses for a person; on the command line a person makes the call
RUN_POLL_INTERVAL_S = 0.2


class ToolCaller(Protocol):
    """The parts of an operation's context that a call of a remote tool needs."""

    @property
    def surface(self) -> str: ...

    @property
    def call(self) -> Call: ...

    @property
    def database(self) -> Database: ...

    @property
    def is_run_closed(self) -> Callable[[], bool]:
        """Return whether the calling program has ended."""
        ...


class RemoteTool(NamedTuple):
    """One tool of a server, as a call needs it."""

    server: str
    name: str  # the server's own
    path: str  # ours
    is_read_only: bool
    needs_approval: bool


class RegisteredServer(NamedTuple):
    """A server with what was approved of it."""

    config: "Entry"
    approvals: "ServerApprovals | None"
    problem: str = ""  # why none of its tools can be called

    @property
    def is_usable(self) -> bool:
        return self.approvals is not None and not self.problem and not self.config.is_disabled

    @property
    def callable_tools(self) -> "dict[str, ApprovedTool]":
        if self.approvals is None or not self.is_usable:
            return {}
        return {name: pin for name, pin in self.approvals.tools.items() if name not in self.approvals.refused}

    def explain_unavailable(self, name: str) -> dict[str, tuple[str, str]]:
        """Say what of it cannot be called, why, and what to do."""
        from athena.gateway import approvals  # only where there are servers

        approve = f"a person looks at it: athena servers approve {name}"
        if self.config.is_disabled:
            return {name: (f"the server {name} is disabled", ENABLE_HINT)}
        if self.problem or self.approvals is None:
            return {name: (f"the server {name} waits for a person: {self.problem}", approve)}
        return {
            f"{name}.{approvals.get_program_name(self.approvals, tool)}": (
                f"{name}.{approvals.get_program_name(self.approvals, tool)} waits for a person: it {approvals.REFUSAL_MESSAGES[why]}",
                approve,
            )
            for tool, why in self.approvals.refused.items()
        }


class Gateway:
    """The servers of one home; without a home there are none."""

    def __init__(
        self,
        home: str | None,
        ours: Iterable[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.home, self._environ = home, environment
        self._reserved_names = frozenset(ours)  # names that no server can have
        self._lock = threading.RLock()
        self._file_state: object = None
        self._servers: dict[str, RegisteredServer] = {}
        self._problem: AthenaError | None = None  # with the file of servers
        self._catalog: Catalog | None = None  # the one that was brought up to date
        self._connections: ConnectionPool | None = None

    @property
    def servers_file(self) -> "ServersFile":
        from athena.gateway.config import ServersFile  # only where there are servers

        if self.home is None:
            raise Conflict("this store has no home, and so no servers", hint="open it with settings")
        return ServersFile(self.home)

    @property
    def _approval_store(self) -> "ApprovalStore":
        from athena.gateway.approvals import ApprovalStore  # only where there are servers

        return ApprovalStore(self.servers_file.home)

    @property
    def _pool(self) -> "ConnectionPool":
        from athena.gateway.connections import ConnectionPool  # brings asyncio

        with self._lock:
            if self._connections is None or self._connections.pid != os.getpid():  # no connection survives a fork
                self._connections = ConnectionPool(
                    self._environ,
                    self._store_refusals,
                    self._load_auth,
                    self.servers_file.home,
                    self._refresh_if_changed,
                )
            return self._connections

    # --- the catalog --------------------------------------------------------------------------------------------------

    def refresh_catalog(self, catalog: Catalog) -> None:
        """Bring in what has changed on disk since the last look."""
        if self.home is None or (seen := self._stat_files(self.home)) == self._file_state:
            return
        with self._lock:
            if seen == self._file_state:
                return
            before = self._servers
            self._servers = self._load_servers(there=seen[0] is not None)
            for name in before.keys() - self._servers.keys():
                catalog.remove_category(name)
            for name, known in self._servers.items():
                if before.get(name) != known:
                    catalog.replace_category(
                        name,
                        f"The MCP server {name}.",
                        self._create_operations(name, known),
                        known.explain_unavailable(name),
                    )
            catalog.set_note("" if self._problem is None else str(self._problem))
            self._file_state, self._catalog = seen, catalog
            if self._connections is not None and self._connections.pid == os.getpid():
                self._connections.close_stale(
                    {name: known.config for name, known in self._servers.items() if known.is_usable}
                )

    def _refresh_if_changed(self) -> None:
        if self._catalog is not None:
            self.refresh_catalog(self._catalog)

    def _stat_files(self, home: str) -> tuple[object, object]:
        return _stat_file(os.path.join(home, "servers.json")), _stat_file(os.path.join(home, "pins"))

    def _load_servers(self, *, there: bool) -> dict[str, RegisteredServer]:
        self._problem = None
        if not there:
            return {}
        from athena.gateway import config as gateway_config  # only where there are servers

        try:
            entries = self.servers_file.read_entries()
        except AthenaError as error:
            self._problem = error
            return {}
        names = gateway_config.assign_names(list(entries), self._reserved_names)
        return {names[key]: self._load_server(names[key], entry) for key, entry in entries.items()}

    def _load_server(self, name: str, entry: "Entry") -> RegisteredServer:
        try:
            found = self._approval_store.read(name)
        except Misconfigured as error:
            return RegisteredServer(entry, None, str(error))
        if found is None:
            why = self._approval_store.read_failure(name)
            return RegisteredServer(entry, None, f"{NEVER_APPROVED}; the last try: {why}" if why else NEVER_APPROVED)
        return RegisteredServer(entry, found, "" if found.fingerprint == entry.fingerprint else FINGERPRINT_CHANGED)

    def _create_operations(self, name: str, known: RegisteredServer) -> list[ForeignOperation]:
        return [self._create_operation(name, known.config, wire, pin) for wire, pin in known.callable_tools.items()]

    def _create_operation(self, name: str, entry: "Entry", wire: str, pin: "ApprovedTool") -> ForeignOperation:
        from athena.gateway.approvals import create_definition

        definition = create_definition(name, pin, entry.approval)
        tool = RemoteTool(
            name, wire, f"{name}.{pin.program_name}", definition.effect is Effect.READ, definition.approval
        )
        return ForeignOperation(definition, partial(self.call_tool, tool))

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(self, tool: RemoteTool, caller: ToolCaller, arguments: dict[str, Any]) -> Any:
        """Call a server's tool and record the call; with an idempotency key, call it at most once."""
        if tool.needs_approval and caller.surface not in APPROVAL_SURFACES:
            raise ApprovalNeeded(
                f"{tool.path} needs a person's approval", hint="call it in a program, which can wait for it"
            )
        call, database = caller.call, caller.database
        if call.key is not None:
            return await self._call_tool_once(tool, caller, arguments)
        result = await _wait_for_result(self.start_call(tool, to_json(arguments)), caller)
        if not tool.is_read_only:
            database.defer_write(partial(_record_call, call))
        return result

    async def _call_tool_once(self, tool: RemoteTool, caller: ToolCaller, arguments: dict[str, Any]) -> Any:
        """Take the key before anything is sent; give it back if the server did nothing."""
        call, database = caller.call, caller.database
        receipt = await database.write(lambda tx: calls.begin_call(tx, call))
        if receipt is not None:
            return json.loads(receipt)
        pending: LoopTask[Any] | None = None
        try:
            pending = self.start_call(tool, to_json(arguments))
            result = to_json(await _wait_for_result(pending, caller))
        except BaseException as error:
            was_sent = pending is not None and pending.begun.is_set()
            if tool.is_read_only or not was_sent or isinstance(error, InvalidInput):  # the tool refused the arguments
                await database.write(lambda tx: calls.abandon_call(tx, call))
            raise
        await database.write(lambda tx: calls.finish_call(tx, call, result))
        return result

    def start_call(self, tool: RemoteTool, arguments: dict[str, Any]) -> "LoopTask[Any]":
        """Send a call to the event loop and return its task, which any thread can wait for or cancel."""
        known = self.get_server(tool.server)
        if known.problem or known.approvals is None:
            hint = f"a person looks at it: athena servers approve {tool.server}"
            raise Denied(f"the server {tool.server} cannot be used: {known.problem}", hint=hint)
        if known.config.is_disabled:
            raise Denied(f"the server {tool.server} is disabled", hint=ENABLE_HINT)
        if lacking := known.config.list_unset_variables(self._environ):
            raise Misconfigured(
                f"the server {tool.server} {_format_missing_variables(lacking)}", hint=self._format_set_hint(lacking[0])
            )
        return self._pool.start_call(
            tool.server, known.config, known.approvals, tool.name, tool.path, arguments, again=tool.is_read_only
        )

    def _format_set_hint(self, variable: str) -> str:
        """Say where a variable has to be set: a server has the environment of whoever started it."""
        from athena.core.home import lock  # only where something is wrong
        from athena.gateway.config import format_unset_hint

        server = lock.read_holder(self.servers_file.home)
        if server is None or server["pid"] != os.getpid():
            return format_unset_hint(variable)
        stop = "athena daemon stop" if server.get("daemon") else "stop it"
        return f"Athena's server is process {os.getpid()}: {stop}, then start it again where {variable} is set"

    def _store_refusals(self, name: str, found: "Mapping[str, RefusalReason]") -> None:
        """Keep what is not as it was approved from being found and called, in every process."""
        if (known := self._servers.get(name)) is not None and known.approvals is not None:
            self._approval_store.write_refusals(name, known.approvals.at, dict(found))

    def _load_auth(self, name: str, entry: "Entry") -> Any:
        """Return what sends the token of a login, if there is one."""
        from athena.gateway import oauth  # with the SDK

        return oauth.create_silent_auth(
            self.servers_file.home, name, entry.expand_variables(self._environ).options["url"]
        )

    # --- what there is ------------------------------------------------------------------------------------------------

    def get_server(self, name: str) -> RegisteredServer:
        """Return a server by its name, or by the one in the file."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        for each, known in self._servers.items():
            if name in (each, known.config.name):
                return known
        there = ", ".join(self._servers) or "none; a person adds one: athena servers add"
        raise NotFound(f"there is no server {name!r:.80}", hint=f"there are: {there}")

    def resolve_name(self, key: str) -> str:
        """Return a server's name, by that or by the one in the file."""
        wanted = self.get_server(key)
        return next(name for name, known in self._servers.items() if known is wanted)

    @property
    def renamed_servers(self) -> dict[str, str]:
        """The names in the file that programs cannot use, each with the one that they do."""
        return {known.config.name: name for name, known in self._servers.items() if known.config.name != name}

    def list_servers(self) -> list[ConnectedServer]:
        """Say how every server is, without connecting any."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        return [self._describe_server(name, known) for name, known in sorted(self._servers.items())]

    def _describe_server(self, name: str, known: RegisteredServer) -> ConnectedServer:
        approved = known.approvals
        refused = _format_refusals(approved.refused) if approved else []
        status, detail = self._compute_status(name, known, bool(refused))
        if approved is not None and approved.left_out:
            detail = f"{detail}; {approved.left_out} tools were left out, too many or too large".removeprefix("; ")
        theirs = (
            {} if approved is None else {_format_tool_name(tool): ours for tool, ours in approved.renamed_tools.items()}
        )
        renamed = ({} if known.config.name == name else {known.config.name: name}) | theirs
        return ConnectedServer(
            name, known.config.transport, status, len(known.callable_tools), detail, refused, renamed
        )

    def _compute_status(self, name: str, known: RegisteredServer, refused: bool) -> tuple[Status, str]:
        if known.config.is_disabled:
            return "disabled", ""
        if known.problem:
            return "waiting", f"{known.problem}: athena servers approve {name}"
        if lacking := known.config.list_unset_variables(self._environ):
            return "failing", f"it {_format_missing_variables(lacking)}; {self._format_set_hint(lacking[0])}"
        connected, error = (False, "") if self._connections is None else self._connections.get_status(name)
        if error:
            return "failing", error
        if refused:
            return "changed", f"some tools are not as they were approved: athena servers approve {name}"
        return ("connected" if connected else "ready"), ""

    async def check_servers(self) -> dict[str, str]:
        """Connect all servers that may be, and return what is wrong with each."""
        ready = {
            name: (known.config, known.approvals)
            for name, known in self._servers.items()
            if known.approvals is not None and known.is_usable
        }
        return await self._pool.check_servers(ready) if ready else {}

    # --- what a person does -------------------------------------------------------------------------------------------

    async def fetch_tools(self, name: str) -> "tuple[ToolDefinitions, int]":
        """Connect a server that may not be approved yet and return what it offers now."""
        try:
            return await self._pool.fetch_tools(name, self.get_server(name).config)
        except AthenaError as error:
            self._approval_store.write_failure(name, str(error))
            raise

    def add_servers(self, entries: "list[Entry]") -> None:
        """Write servers down; one that was never approved makes room for another of its name."""
        there = {known.config.name for known in self._servers.values()}
        self.servers_file.add_entries(entries, [name for name in there if self.is_unapproved(name)])

    def is_unapproved(self, key: str) -> bool:
        """Tell whether nobody has approved anything of a server, or there is none."""
        found = [known for known in self._servers.values() if known.config.name == key]
        return all(known.approvals is None and known.problem.startswith(NEVER_APPROVED) for known in found)

    def approve_tools(self, name: str, offered: "ToolDefinitions", left_out: int) -> "ServerApprovals":
        """Pin what a person has seen."""
        from athena.gateway import approvals

        known = self.get_server(name)
        made = approvals.create_approvals(known.config.fingerprint, offered, left_out, known.approvals)
        self._approval_store.write(name, made)
        return made

    def login(self, name: str, show: Callable[[str], None]) -> None:
        """Have a person log in to a server over HTTP; `show` is given the address to open."""
        entry = self.get_server(name).config
        if entry.transport != "http":
            raise InvalidInput(f"{name} is a program of this machine: there is nothing to log in to")
        self._pool.login(name, entry, self.servers_file.home, show)

    def remove_server(self, name: str) -> None:
        """Forget a server, what was approved of it, and its login."""
        from athena.gateway.config import LOGINS_FOLDER

        self.servers_file.remove_entry(self.get_server(name).config.name)
        self._approval_store.remove(name)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.servers_file.home, LOGINS_FOLDER, f"{name}.json"))

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()


async def _wait_for_result(pending: "LoopTask[Any]", caller: ToolCaller) -> Any:
    """Wait for the result; cancel the call when the caller stops waiting or its program ends."""
    try:
        if get_running_loop() is not None:
            return await pending.outcome
        while not pending.outcome.wait(RUN_POLL_INTERVAL_S):
            if caller.is_run_closed():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
        return pending.outcome.result()
    except BaseException:
        pending.cancel()
        raise


async def _record_call(call: Call, tx: Transaction) -> None:
    await calls.record_call(tx, call, "done")


def _format_missing_variables(variables: list[str]) -> str:
    named = " and ".join(f"${{{name}}}" for name in variables)
    return f"needs {named}, which {'is' if len(variables) == 1 else 'are'} not set"


def _format_refusals(refused: "Mapping[str, RefusalReason]") -> list[str]:
    """Name what was refused, in few words: nobody has approved these names."""
    told = [f"{_format_tool_name(tool)}: {why}" for tool, why in islice(refused.items(), MAX_LISTED_REFUSALS)]
    return [*told, f"and {len(refused) - MAX_LISTED_REFUSALS} more"] if len(refused) > MAX_LISTED_REFUSALS else told


def _format_tool_name(name: str) -> str:
    """Return a server's own name for a tool, fit to be shown."""
    from athena.gateway import sanitize  # only where there are servers

    return sanitize.sanitize_line(name, MAX_TOOL_NAME_CHARS) or "without a name"


def _stat_file(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
