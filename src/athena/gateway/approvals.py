"""The tools of each server that a person approved: their definitions, one file a server."""

import json
import os
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from athena.core.files import create_private_folder, lock_file, write_file_atomically
from athena.core.foreign_operation import ToolDefinition, assign_identifiers, to_identifier
from athena.core.hashing import hash_text
from athena.core.operation import Effect
from athena.errors import Misconfigured
from athena.gateway import definitions, sanitize
from athena.gateway.config import ApprovalPolicy, ServerEntry

APPROVALS_FOLDER = "pins"  # the name of the folder in existing data folders, so it cannot change
MAX_TOOLS = 1_000  # of one server
MAX_DEFINITION_CHARS = 64 << 10
MAX_ALL_DEFINITIONS_CHARS = 4 << 20  # of one server
MAX_EXTRA_FIELD_CHARS = 2_000
MAX_REMOTE_NAME_CHARS = 200
MAX_FAILURE_CHARS = 500
MAX_LISTED_PATHS = 5
WHOLE_FORMAT = 2  # of approvals that cover the whole definition; older ones cover OLD_FIELDS
OLD_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
ENABLE_HINT = 'take "disabled" out of servers.json'
RefusalReason = Literal["new", "changed", "gone"]
REFUSAL_MESSAGES: dict[RefusalReason, str] = {
    "new": "was never approved",
    "gone": "is not offered any more",
    "changed": "has changed since it was approved",
}
ToolDefinitions = dict[str, dict[str, Any]]  # by the tool's name on the server


class Refusal(NamedTuple):
    """Why a tool cannot be called until a person approves it."""

    reason: RefusalReason
    paths: tuple[str, ...] = ()  # the parts of the approved definition that differ

    @property
    def message(self) -> str:
        return REFUSAL_MESSAGES[self.reason] + self._format_paths()

    def __str__(self) -> str:
        return self.reason + self._format_paths()

    def _format_paths(self) -> str:
        shown = ", ".join(self.paths[:MAX_LISTED_PATHS])
        more = len(self.paths) - MAX_LISTED_PATHS
        return f": {shown}{f' and {more} more' if more > 0 else ''}" if shown else ""


class ApprovedTool(NamedTuple):
    program_name: str  # the name that programs use
    definition: Mapping[str, Any]  # all that anybody sees or uses of the tool


class ServerApprovals(NamedTuple):
    """The approved tools of one server, and the tools that are refused."""

    fingerprint: str  # of the server's configuration
    at: float
    tools: Mapping[str, ApprovedTool]
    refused: Mapping[str, Refusal] = {}  # tools that differed from the approved ones at the last listing
    left_out: int = 0  # tools that were too many or too large
    format: int = WHOLE_FORMAT
    passphrase: str = ""  # the identity of the one that the approval was given with; empty if none was set

    @property
    def renamed_tools(self) -> dict[str, str]:
        return {name: tool.program_name for name, tool in self.tools.items() if name != tool.program_name}


class RegisteredServer(NamedTuple):
    """A configured server and its approved tools."""

    config: ServerEntry
    approvals: ServerApprovals | None
    problem: str = ""  # why none of its tools can be called
    failure: str = ""  # of the last try to list its tools, for people: it may quote the server

    @property
    def is_usable(self) -> bool:
        return self.approvals is not None and not self.problem and not self.config.is_disabled

    @property
    def callable_tools(self) -> dict[str, ApprovedTool]:
        if self.approvals is None or not self.is_usable:
            return {}
        return {name: tool for name, tool in self.approvals.tools.items() if name not in self.approvals.refused}

    def explain_unavailable(self, name: str) -> dict[str, tuple[str, str]]:
        """Return a reason and a hint for the server, or for each tool of it, that cannot be called."""
        hint = format_approve_hint(name)
        if self.config.is_disabled:
            return {name: (f"the server {name} is disabled", ENABLE_HINT)}
        if self.problem or self.approvals is None:
            return {name: (f"the server {name} waits for a person: {self.problem}", hint)}
        reasons: dict[str, tuple[str, str]] = {}
        for tool, refusal in self.approvals.refused.items():
            path = f"{name}.{get_program_name(self.approvals, tool)}"
            subject = path if tool in self.approvals.tools else f"a new tool of {name}"  # nobody approved its name
            reasons[path] = (f"{subject} waits for a person: it {refusal.message}", hint)
        return reasons


class ToolListing:
    """The tools that a server offers, up to our limits; they are added one by one, since a list may have no end."""

    def __init__(self) -> None:
        self.tools: ToolDefinitions = {}
        self.left_out = 0
        self._chars_left = MAX_ALL_DEFINITIONS_CHARS

    @property
    def is_full(self) -> bool:
        return self._chars_left <= 0 or len(self.tools) >= MAX_TOOLS

    def add_tool(self, tool: Mapping[str, Any]) -> None:
        fields = {key: value for key, value in tool.items() if value is not None}
        definition = {key: value if key in OLD_FIELDS else _shorten_field(value) for key, value in fields.items()}
        name = definition.get("name")
        has_valid_name = isinstance(name, str) and 0 < len(name) <= MAX_REMOTE_NAME_CHARS
        size = len(json.dumps(definition)) if has_valid_name and not self.is_full else 0
        if not 0 < size <= min(MAX_DEFINITION_CHARS, self._chars_left) or name in self.tools:  # the first name counts
            self.left_out += 1
            return
        self._chars_left -= size
        self.tools[str(name)] = definition


def _shorten_field(value: Any) -> Any:
    """Return a field that nobody reads, or its hash if it is long: an icon may be a whole picture."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) <= MAX_EXTRA_FIELD_CHARS else {"sha256": hash_text(text)}


def create_approvals(
    fingerprint: str,
    offered: ToolDefinitions,
    left_out: int = 0,
    before: ServerApprovals | None = None,
    passphrase: str = "",
) -> ServerApprovals:
    """Approve all offered tools; a tool that was approved before keeps its name."""
    old_names = {name: before.tools[name].program_name for name in offered if before and name in before.tools}
    new_names = assign_identifiers(
        [name for name in sorted(offered) if name not in old_names], taken=frozenset(old_names.values())
    )
    names = old_names | new_names
    tools = {name: ApprovedTool(names[name], definition) for name, definition in offered.items()}
    return ServerApprovals(fingerprint, time.time(), tools, {}, left_out, passphrase=passphrase)


def compare_tools(approvals: ServerApprovals, offered: ToolDefinitions, *, whole: bool = False) -> dict[str, Refusal]:
    """Return the tools that differ from the approved ones; with `whole`, also in fields that old approvals lack."""
    refused = {name: Refusal("gone") for name in approvals.tools if name not in offered}
    for name, definition in offered.items():
        if name not in approvals.tools:
            refused[name] = Refusal("new")
            continue
        if approvals.format < WHOLE_FORMAT and not whole:
            definition = {key: value for key, value in definition.items() if key in OLD_FIELDS}
        approved = approvals.tools[name].definition
        if not definitions.is_same(approved, definition):
            refused[name] = Refusal("changed", definitions.list_approved_paths(approved, definition))
    return refused


def hash_definition(definition: Mapping[str, Any]) -> str:
    """Return the hash of a definition exactly as a person saw it."""
    return hash_text(json.dumps(definition, sort_keys=True))


def format_approve_hint(server: str) -> str:
    return f"a person looks at it: athena servers approve {server}"


def get_program_name(approvals: ServerApprovals, tool: str) -> str:
    """Return a tool's name in programs; for a tool that is not approved, the name that it would get."""
    return approvals.tools[tool].program_name if tool in approvals.tools else to_identifier(tool)


def create_definition(server: str, tool: ApprovedTool, policy: ApprovalPolicy) -> ToolDefinition:
    """Return the definition of the operation that calls a tool, with its texts sanitized."""
    definition = tool.definition
    hints = definition.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    is_read_only = hints.get("readOnlyHint") is True
    is_destructive = not is_read_only and hints.get("destructiveHint") is not False  # MCP's default is True
    summary, details = sanitize.split_description(definition.get("description") or definition.get("title") or "")
    return ToolDefinition(
        server,
        tool.program_name,
        summary or f"The tool {tool.program_name} of {server}.",
        details,
        sanitize.sanitize_schema(definition.get("inputSchema")),
        unwrap_result_schema(sanitize.sanitize_schema(definition.get("outputSchema"))),
        Effect.READ if is_read_only else Effect.EXECUTE,
        policy == "always" or (policy == "destructive" and is_destructive),
    )


def unwrap_result_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `result` if that is the only property: some servers wrap every value in such an object."""
    properties = schema.get("properties")
    if not isinstance(properties, dict) or list(properties) != ["result"]:
        return schema
    definitions: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**definitions, **properties["result"]} if isinstance(properties["result"], dict) else {}


class ApprovalStore:
    """The approvals of one data folder, a file for each server."""

    def __init__(self, home: str) -> None:
        self.folder = os.path.join(home, APPROVALS_FOLDER)
        self._lock_path = f"{self.folder}.lock"

    def read(self, server: str) -> ServerApprovals | None:
        path = self._file_path(server)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Misconfigured(f"{path} cannot be read: {error.strerror}") from None
        try:
            stored = json.loads(data)
            tools = {name: ApprovedTool(tool["as"], dict(tool["definition"])) for name, tool in stored["tools"].items()}
            paths = stored.get("differences", {})
            refused = {name: Refusal(reason, tuple(paths.get(name, ()))) for name, reason in stored["refused"].items()}
            return ServerApprovals(
                stored["fingerprint"],
                stored["at"],
                tools,
                refused,
                stored["left_out"],
                stored.get("format", 1),
                stored.get("passphrase", ""),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = f"approve it again: athena servers approve {server}"
            raise Misconfigured(f"{path} is broken", hint=hint) from None

    def write(self, server: str, approvals: ServerApprovals) -> None:
        with lock_file(self._lock_path):
            self._write_approvals(server, approvals)
            self._delete_file(server, "failed")

    def write_refusals(self, server: str, approved_at: float, refused: dict[str, Refusal]) -> None:
        """Store the refused tools, unless a person approved the server again meanwhile."""
        with lock_file(self._lock_path):
            approvals = self.read(server)
            if approvals is not None and approvals.at == approved_at and approvals.refused != refused:
                self._write_approvals(server, approvals._replace(refused=refused))

    def move_passphrase(self, server: str, old: str, new: str) -> None:
        """Let approvals that were given with one passphrase hold with another one, which a person has set."""
        with lock_file(self._lock_path):
            approvals = self.read(server)
            if approvals is not None and approvals.passphrase == old:
                self._write_approvals(server, approvals._replace(passphrase=new))

    def write_failure(self, server: str, reason: str) -> None:
        """Store why the tools of a server could not be listed."""
        self._write_file(self._file_path(server, "failed"), reason[:MAX_FAILURE_CHARS])

    def read_failure(self, server: str) -> str:
        """Return why the tools of a server could not be listed the last time; empty if they could."""
        try:
            with open(self._file_path(server, "failed"), encoding="utf-8", errors="replace") as file:
                return sanitize.sanitize_line(file.read(MAX_FAILURE_CHARS), MAX_FAILURE_CHARS)
        except OSError:
            return ""

    def remove(self, server: str) -> None:
        with lock_file(self._lock_path):
            for extension in ("json", "failed"):
                self._delete_file(server, extension)

    def _write_approvals(self, server: str, approvals: ServerApprovals) -> None:
        fields = approvals._asdict() | {
            "tools": {
                name: {"as": tool.program_name, "definition": dict(tool.definition)}
                for name, tool in approvals.tools.items()
            },
            "refused": {name: refusal.reason for name, refusal in approvals.refused.items()},
            "differences": {name: refusal.paths for name, refusal in approvals.refused.items() if refusal.paths},
        }
        self._write_file(self._file_path(server), json.dumps(fields, indent=1))

    def _write_file(self, path: str, text: str) -> None:
        create_private_folder(self.folder)
        write_file_atomically(path, text.encode())

    def _delete_file(self, server: str, extension: str) -> None:
        if os.path.exists(path := self._file_path(server, extension)):
            os.unlink(path)

    def _file_path(self, server: str, extension: str = "json") -> str:
        return os.path.join(self.folder, f"{server}.{extension}")
