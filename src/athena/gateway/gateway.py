"""The configured MCP servers: put their approved tools into the catalog, call them, and report each server's status.

Most processes never connect a server, so asyncio and the MCP SDK are imported with the first connection.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from athena.core.approval import (
    OTHER_PASSPHRASE,
    PASSPHRASE_FILE,
    Approval,
    Approver,
    digest_subject,
    format_call_subject,
)
from athena.core.catalog import Catalog
from athena.core.foreign_operation import ForeignOperation
from athena.core.home import lock
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
from athena.gateway import sanitize
from athena.gateway.approvals import (
    ENABLE_HINT,
    ApprovalStore,
    ApprovedTool,
    Refusal,
    RegisteredServer,
    ServerApprovals,
    ToolDefinitions,
    compare_tools,
    create_approvals,
    create_definition,
    format_approve_hint,
    hash_definition,
)
from athena.gateway.config import (
    LOGINS_FOLDER,
    PrivacyChange,
    ServerEntry,
    ServersFile,
    assign_names,
    format_unset_hint,
)
from athena.gateway.values import ConnectedServer, HideWords, RemoteTool, Status, ToolResult
from athena.storage import calls
from athena.storage.database import Database, Transaction
from athena.storage.privacy import SERVER_MARK_PREFIX

if TYPE_CHECKING:
    from athena.gateway.connections import ConnectionPool, LoopTask

NEVER_APPROVED = "not approved yet"
APPROVE_WORDS = "; to approve it: "  # between what is wrong with a server and the command
FINGERPRINT_CHANGED = "its command or address is not the one that was approved"
MAX_LISTED_REFUSALS = 10
MAX_ATTACHMENTS = 20  # of one answer
MAX_TOOL_NAME_CHARS = 60  # of a name without approval
RUN_POLL_INTERVAL_S = 0.2


class ToolCaller(Protocol):
    """The parts of an operation's context that a call of a remote tool needs."""

    @property
    def surface(self) -> str: ...

    @property
    def call(self) -> Call: ...

    @property
    def approval(self) -> Approval | None: ...
    @property
    def checked_arguments(self) -> Mapping[str, Any]: ...  # with tokens in place of values

    @property
    def database(self) -> Database: ...

    @property
    def is_run_closed(self) -> Callable[[], bool]:
        """Return whether the calling program has ended."""
        ...

    async def store_attachment(self, path: str, data: str, private: str) -> str:
        """Store binary data, as base64, in the caller's workspace, with a private mark; return why not, if so."""
        ...

    async def hide_answer(self, value: Any) -> Any: ...
    def hide_words(self, words: str) -> str: ...
    async def reveal_values(self, value: Any) -> Any: ...


class Gateway:
    """The servers of one data folder; without a folder there are none."""

    def __init__(
        self,
        home: str | None,
        approver: Approver,
        reserved_names: Iterable[str] = (),
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.home, self._approver, self._environ = home, approver, environ
        self._reserved_names = frozenset(reserved_names)  # our own categories
        self._lock = threading.RLock()
        self._file_state: object = None
        self._servers: dict[str, RegisteredServer] = {}
        self._problem: AthenaError | None = None  # with servers.json
        self._catalog: Catalog | None = None  # the catalog that was last refreshed
        self._connections: ConnectionPool | None = None

    @property
    def servers_file(self) -> ServersFile:
        if self.home is None:
            raise Conflict("this store has no home, and so no servers", hint="open it with settings")
        return ServersFile(self.home)

    @property
    def _approval_store(self) -> ApprovalStore:
        return ApprovalStore(self.servers_file.home)

    @property
    def _pool(self) -> "ConnectionPool":
        from athena.gateway.connections import ConnectionPool  # imports asyncio

        with self._lock:
            if self._connections is None or self._connections.pid != os.getpid():  # no connection survives a fork
                self._connections = ConnectionPool(
                    self._environ, self.servers_file.home, self._store_refusals, self._refresh_if_changed
                )
            return self._connections

    # --- the catalog --------------------------------------------------------------------------------------------------

    def refresh_catalog(self, catalog: Catalog) -> None:
        """Update the catalog if servers.json or the approvals changed since the last refresh."""
        if self.home is None or (file_state := _stat_files(self.home)) == self._file_state:
            return
        with self._lock:
            if file_state == self._file_state:
                return
            before = self._servers
            self._servers = self._load_servers()
            for name in before.keys() - self._servers.keys():
                catalog.remove_category(name)
            for name, server in self._servers.items():
                if before.get(name) != server:
                    operations = [
                        self._create_operation(name, server.config, remote_name, tool)
                        for remote_name, tool in server.callable_tools.items()
                    ]
                    reasons = server.explain_unavailable(name)
                    catalog.replace_category(name, f"The MCP server {name}.", operations, reasons)
            catalog.set_problem("" if self._problem is None else str(self._problem))
            self._file_state, self._catalog = file_state, catalog
            if self._connections is not None and self._connections.pid == os.getpid():
                self._connections.close_stale(
                    {name: server.config for name, server in self._servers.items() if server.is_usable}
                )

    def _refresh_if_changed(self) -> None:
        if self._catalog is not None:
            self.refresh_catalog(self._catalog)

    def _load_servers(self) -> dict[str, RegisteredServer]:
        self._problem = None
        try:
            entries = self.servers_file.read_entries()
        except AthenaError as error:
            self._problem = error
            return {}
        names = assign_names(list(entries), self._reserved_names)
        return {names[key]: self._load_server(names[key], entry) for key, entry in entries.items()}

    def _load_server(self, name: str, entry: ServerEntry) -> RegisteredServer:
        try:
            approvals = self._approval_store.read(name)
            is_trusted = approvals is None or approvals.passphrase == self._approver.identify_passphrase()
        except Misconfigured as error:
            return RegisteredServer(entry, None, str(error))
        if approvals is None:
            return RegisteredServer(entry, None, NEVER_APPROVED, self._approval_store.read_failure(name))
        if not is_trusted:
            return RegisteredServer(entry, None, OTHER_PASSPHRASE)
        is_same = approvals.fingerprint == entry.fingerprint
        return RegisteredServer(entry, approvals, "" if is_same else FINGERPRINT_CHANGED)

    def _create_operation(
        self, server: str, entry: ServerEntry, remote_name: str, approved: ApprovedTool
    ) -> ForeignOperation:
        definition = create_definition(server, approved, entry.approval)._replace(
            private_mark=f"{SERVER_MARK_PREFIX}{server}" if entry.is_private else "",
            accepted_marks=entry.accepted_marks,
            received_kinds=entry.get_received_kinds(remote_name),
        )
        path = f"{server}.{approved.program_name}"
        is_read_only = definition.effect is Effect.READ
        tool = RemoteTool(server, remote_name, path, is_read_only, definition.approval, definition.private_mark)
        return ForeignOperation(definition, partial(self.call_tool, tool))

    # --- calls --------------------------------------------------------------------------------------------------------

    async def call_tool(self, tool: RemoteTool, caller: ToolCaller, arguments: dict[str, Any]) -> Any:
        """Call a server's tool and record the call; with an idempotency key, call it at most once."""
        if tool.needs_approval and caller.surface != "program":  # a program has waited for its approval
            if caller.approval is None:
                hint = "call it in a program, which can wait for it"
                raise ApprovalNeeded(f"{tool.path} needs a person's approval", hint=hint)
            shown = to_json(caller.checked_arguments)  # in `arguments` values have taken the place of tokens
            self._approver.redeem(caller.approval, format_call_subject(tool.path, shown))
        if caller.call.key is not None:
            return await self._call_tool_once(tool, caller, arguments)
        result = await _wait_for_result(tool, self.start_call(tool, to_json(arguments), caller.hide_words), caller)
        if not tool.is_read_only:
            caller.database.defer_write(partial(_record_call, caller.call))
        return result

    async def _call_tool_once(self, tool: RemoteTool, caller: ToolCaller, arguments: dict[str, Any]) -> Any:
        """Take the key before anything is sent; give it back if the server did nothing."""
        call, database = caller.call, caller.database
        receipt = await database.write(lambda tx: calls.begin_call(tx, call))
        if receipt is not None:
            return await caller.reveal_values(json.loads(receipt))
        pending: LoopTask[ToolResult] | None = None
        try:
            pending = self.start_call(tool, to_json(arguments), caller.hide_words)
            result = to_json(await _wait_for_result(tool, pending, caller))
        except BaseException as error:
            was_sent = pending is not None and pending.start.give_up()
            if tool.is_read_only or not was_sent or isinstance(error, InvalidInput):  # the tool refused the arguments
                await database.write(lambda tx: calls.abandon_call(tx, call))
            raise
        stored = await caller.hide_answer(result)
        await database.write(lambda tx: calls.finish_call(tx, call, stored))
        return result

    def start_call(self, tool: RemoteTool, arguments: dict[str, Any], hide: HideWords) -> "LoopTask[ToolResult]":
        """Start a call on the gateway's event loop and return its task, which any thread can wait for or cancel."""
        self._refresh_if_changed()
        server = self.get_server(tool.server)
        if server.problem or server.approvals is None:
            hint = format_approve_hint(tool.server)
            raise Denied(f"the server {tool.server} cannot be used: {server.problem}", hint=hint)
        if server.config.is_disabled:
            raise Denied(f"the server {tool.server} is disabled", hint=ENABLE_HINT)
        if unset := server.config.list_unset_variables(self._environ):
            message = f"the server {tool.server} {_format_unset_variables(unset)}"
            raise Misconfigured(message, hint=self._format_set_hint(unset[0]))
        return self._pool.start_call(tool, server.config, server.approvals, arguments, hide)

    def _format_set_hint(self, variable: str) -> str:
        """Say where to set a variable: servers get the environment of the process that starts them."""
        if (holder := lock.read_holder(self.servers_file.home)) is None or holder["pid"] != os.getpid():
            return format_unset_hint(variable)
        stop = "athena daemon stop" if holder.get("daemon") else "stop it"
        return f"Athena's server is process {os.getpid()}: {stop}, then start it again where {variable} is set"

    def lacks_variables(self) -> bool:
        """Return whether a server needs variables that this process does not have; another may have them."""
        return any(server.config.list_unset_variables(self._environ) for server in self._servers.values())

    def _store_refusals(self, name: str, refused: Mapping[str, Refusal]) -> None:
        """Store the tools that differ from the approved ones, so that no process offers or calls them."""
        if (server := self._servers.get(name)) is not None and server.approvals is not None:
            self._approval_store.write_refusals(name, server.approvals.at, dict(refused))

    # --- status -------------------------------------------------------------------------------------------------------

    def get_server(self, name: str) -> RegisteredServer:
        """Return a server by its name in programs or in servers.json."""
        return self._servers[self.resolve_name(name)]

    def resolve_name(self, key: str) -> str:
        """Return the name that programs use for a server, given that name or the one in servers.json."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        for name, server in self._servers.items():
            if key in (name, server.config.name):
                return name
        names = ", ".join(self._servers) or "none; a person adds one: athena servers add"
        raise NotFound(f"there is no server {key!r:.80}", hint=f"there are: {names}")

    @property
    def renamed_servers(self) -> dict[str, str]:
        """The names in servers.json that programs cannot write, each with the name that they use instead."""
        return {server.config.name: name for name, server in self._servers.items() if server.config.name != name}

    def list_servers(self, *, for_person: bool = False, with_new_names: bool = True) -> list[ConnectedServer]:
        """Return the status of every server without connecting any; what servers said is for people alone."""
        if self._problem is not None:
            raise Misconfigured(str(self._problem), hint=self._problem.hint)
        servers = sorted(self._servers.items())
        return [self._describe_server(name, server, for_person, with_new_names) for name, server in servers]

    def _describe_server(
        self, name: str, server: RegisteredServer, for_person: bool, with_new_names: bool
    ) -> ConnectedServer:
        approvals = server.approvals
        refused = _format_refusals(approvals, with_new_names) if approvals else []
        status, detail = self._compute_status(name, server, bool(refused), for_person)
        renamed = {} if server.config.name == name else {server.config.name: name}
        if approvals is not None:
            renamed |= {_format_tool_name(theirs): ours for theirs, ours in approvals.renamed_tools.items()}
            if approvals.left_out:
                detail = f"{detail}; {approvals.left_out} tools were left out, too many or too large".removeprefix("; ")
        tool_count = len(server.callable_tools)
        return ConnectedServer(name, server.config.transport, status, tool_count, detail, refused, renamed)

    def _compute_status(
        self, name: str, server: RegisteredServer, has_refused: bool, for_person: bool
    ) -> tuple[Status, str]:
        if server.config.is_disabled:
            return "disabled", ""
        if server.problem:
            failure = f"; the last try: {server.failure}" if server.failure and for_person else ""
            return "waiting", f"{server.problem}{failure}{APPROVE_WORDS}athena servers approve {name}"
        if unset := server.config.list_unset_variables(self._environ):
            return "failing", f"it {_format_unset_variables(unset)}; {self._format_set_hint(unset[0])}"
        pool = self._connections
        is_connected, error = (False, "") if pool is None else pool.get_status(name, for_person=for_person)
        if error:
            return "failing", error
        if has_refused:
            return "changed", f"some tools are not as they were approved{APPROVE_WORDS}athena servers approve {name}"
        return ("connected" if is_connected else "ready"), ""

    async def check_servers(self) -> dict[str, str]:
        """Connect every usable server and return the problem of each, empty if there is none."""
        usable = {
            name: (server.config, server.approvals)
            for name, server in self._servers.items()
            if server.approvals is not None and server.is_usable
        }
        return await self._pool.check_servers(usable) if usable else {}

    def read_log(self, name: str) -> str:
        """Return the end of what a server wrote to its standard error, or why it could not be listed."""
        tail = b"" if self._connections is None else self._connections.get_log(name)
        return tail.decode("utf-8", "replace") or self._approval_store.read_failure(name)

    # --- commands of a person -----------------------------------------------------------------------------------------

    async def fetch_tools(self, name: str) -> tuple[ToolDefinitions, int]:
        """Connect a server, approved or not, and return the tools that it offers now and how many were left out.

        Every process refuses from now on what differs from the approved tools, whatever a person decides.
        """
        server = self.get_server(name)
        try:
            offered, left_out = await self._pool.fetch_tools(name, server.config)
        except AthenaError as error:
            self._approval_store.write_failure(name, str(error))
            raise
        if server.approvals is not None and server.is_usable:
            self._store_refusals(name, compare_tools(server.approvals, offered))
        return offered, left_out

    def add_servers(self, entries: list[ServerEntry]) -> None:
        """Add servers to servers.json; an entry replaces one of its name that was never approved."""
        names = {server.config.name for server in self._servers.values()}
        self.servers_file.add_entries(entries, [name for name in names if self.is_unapproved(name)])

    def is_unapproved(self, key: str) -> bool:
        """Return whether no tool of the server in servers.json was ever approved; True if there is no such server."""
        servers = [server for server in self._servers.values() if server.config.name == key]
        return all(server.approvals is None and server.problem.startswith(NEVER_APPROVED) for server in servers)

    def preview_operations(self, name: str, offered: ToolDefinitions) -> dict[str, ForeignOperation]:
        """Return the operations that these tools would be if a person approved them."""
        server = self.get_server(name)
        approved = create_approvals("", offered, 0, server.approvals)
        return {
            tool: self._create_operation(name, server.config, tool, approved.tools[tool]) for tool in approved.tools
        }

    def format_subject(self, name: str, offered: ToolDefinitions) -> str:
        """Return the subject of an approval of these tools, of the server as it is configured now."""
        parts = (text for tool in sorted(offered) for text in (tool, hash_definition(offered[tool])))
        return f"server {digest_subject(name, self.get_server(name).config.fingerprint, *parts)}"

    def approve_tools(
        self, name: str, offered: ToolDefinitions, left_out: int, approval: Approval | None
    ) -> ServerApprovals:
        """Store the definitions that a person approved."""
        self._approver.redeem(approval, self.format_subject(name, offered))
        server, passphrase = self.get_server(name), self._approver.identify_passphrase()
        approvals = create_approvals(server.config.fingerprint, offered, left_out, server.approvals, passphrase)
        self._approval_store.write(name, approvals)
        return approvals

    def set_privacy(self, change: PrivacyChange, approval: Approval | None) -> None:
        """Store which private data a server may get, as a person approved it."""
        self._approver.redeem(approval, change.subject)
        self.servers_file.update_entry(change.before.name, change.options)

    def move_approvals(self, old: str) -> None:
        """Let the approvals hold on with the passphrase that was set just now; `old` is the one before."""
        if self.home is None:
            return
        self._refresh_if_changed()
        for name in self._servers:
            with suppress(Misconfigured):  # a broken file approves nothing
                self._approval_store.move_passphrase(name, old, self._approver.identify_passphrase())

    def login(self, name: str, show: Callable[[str], None]) -> None:
        """Let a person log in to an HTTP server; `show` gets the address to open."""
        entry = self.get_server(name).config
        if entry.transport != "http":
            raise InvalidInput(f"{name} is a program of this machine: there is nothing to log in to")
        self._pool.login(name, entry, show)

    def remove_server(self, name: str) -> None:
        """Remove a server, its approvals and its login."""
        self.servers_file.remove_entry(self.get_server(name).config.name)
        self._approval_store.remove(name)
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.servers_file.home, LOGINS_FOLDER, f"{name}.json"))

    def close(self) -> None:
        if self._connections is not None:
            self._connections.close()


async def _wait_for_result(tool: RemoteTool, pending: "LoopTask[ToolResult]", caller: ToolCaller) -> Any:
    """Wait for the result; cancel the call when the caller stops waiting or its program ends."""
    try:
        if get_running_loop() is not None:
            return await _store_attachments(tool, await pending.outcome, caller)
        while not pending.outcome.wait(RUN_POLL_INTERVAL_S):
            if caller.is_run_closed():
                raise LimitExceeded("the run has ended", hint="nothing more is done for it")
        return await _store_attachments(tool, pending.outcome.result(), caller)
    except BaseException:
        pending.cancel()
        raise


async def _store_attachments(tool: RemoteTool, result: ToolResult, caller: ToolCaller) -> Any:
    """Store the binary data of a result where its handles say, and return the value."""
    for position, (handle, data) in enumerate(result.attachments):
        if "path" not in handle:
            continue
        if position >= MAX_ATTACHMENTS:
            problem = f"an answer keeps at most {MAX_ATTACHMENTS} attachments"
        else:
            problem = await caller.store_attachment(handle["path"], data, tool.private_mark)
        if problem:
            del handle["path"]
            handle["note"] = f"it was not kept: {problem}"
    return result.value


async def _record_call(call: Call, tx: Transaction) -> None:
    await calls.record_call(tx, call, "done")


def _format_unset_variables(variables: list[str]) -> str:
    names = " and ".join(f"${{{name}}}" for name in variables)
    return f"needs {names}, which {'is' if len(variables) == 1 else 'are'} not set"


def _format_refusals(approvals: ServerApprovals, with_new_names: bool) -> list[str]:
    """Return a line for each of the first refused tools; names without an approval are cut short, or only counted."""
    shown = [tool for tool in approvals.refused if with_new_names or tool in approvals.tools][:MAX_LISTED_REFUSALS]
    lines = [f"{_format_tool_name(tool)}: {approvals.refused[tool]}" for tool in shown]
    rest = len(approvals.refused) - len(lines)
    return [*lines, f"and {rest} more" if lines else f"{rest} new"] if rest else lines


def _format_tool_name(name: str) -> str:
    return sanitize.sanitize_line(name, MAX_TOOL_NAME_CHARS) or "without a name"


def _stat_files(home: str) -> tuple[object, ...]:
    return tuple(_stat_file(os.path.join(home, name)) for name in ("servers.json", "pins", PASSPHRASE_FILE))


def _stat_file(path: str) -> tuple[int, int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size, facts.st_ino
