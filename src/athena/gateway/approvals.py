"""What a person has approved of a server: the definitions of its tools, each with its hash, kept beside the config."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from athena.core.foreign_operation import ToolDefinition, assign_identifiers, to_identifier
from athena.core.hashing import hash_text
from athena.core.operation import Effect
from athena.errors import Misconfigured
from athena.gateway import sanitize
from athena.gateway.config import ApprovalPolicy, lock_file, write_private_file

APPROVALS_FOLDER = "pins"
MAX_TOOLS = 1_000  # of one server
MAX_DEFINITION_CHARS = 64 << 10  # characters of one definition
MAX_ALL_DEFINITIONS_CHARS = 4 << 20  # characters of all definitions of one server
MAX_FAILURE_CHARS = 500  # characters of why a server could not be looked at
DEFINITION_FIELDS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
RefusalReason = Literal["new", "changed", "gone"]
ToolDefinitions = dict[str, dict[str, Any]]  # a tool's own name to its definition


class ApprovedTool(NamedTuple):
    """One tool as it was approved."""

    program_name: str  # the name that programs use
    hash: str
    definition: Mapping[str, Any]


class ServerApprovals(NamedTuple):
    """What was approved of one server."""

    fingerprint: str  # of its configuration
    at: float
    tools: Mapping[str, ApprovedTool]
    refused: Mapping[str, RefusalReason] = {}  # what it offered when last seen that is not what was approved
    left_out: int = 0  # tools that were too many or too large

    @property
    def renamed_tools(self) -> dict[str, str]:
        return {name: pin.program_name for name, pin in self.tools.items() if name != pin.program_name}


def create_approvals(
    fingerprint: str, offered: ToolDefinitions, left_out: int = 0, before: ServerApprovals | None = None
) -> ServerApprovals:
    """Approve what is offered; a tool that was approved before keeps the name it has."""
    kept = {name: before.tools[name].program_name for name in offered if before and name in before.tools}
    named = kept | assign_identifiers(
        [name for name in sorted(offered) if name not in kept], taken=frozenset(kept.values())
    )
    tools = {name: ApprovedTool(named[name], hash_definition(one), one) for name, one in offered.items()}
    return ServerApprovals(fingerprint, time.time(), tools, {}, left_out)


def hash_definition(definition: Mapping[str, Any]) -> str:
    return hash_text(json.dumps(definition, sort_keys=True))


class ToolListing:
    """What a server offers, as far as it can be kept; taken in one by one, since a list may have no end."""

    def __init__(self) -> None:
        self.tools: ToolDefinitions = {}
        self.left_out = 0
        self._chars_left = MAX_ALL_DEFINITIONS_CHARS

    @property
    def is_full(self) -> bool:
        return self._chars_left <= 0 or len(self.tools) >= MAX_TOOLS

    def add_tool(self, one: Mapping[str, Any]) -> None:
        definition = {key: one[key] for key in DEFINITION_FIELDS if one.get(key) is not None}
        name = definition.get("name")
        fits = isinstance(name, str) and 0 < len(name) <= 200
        size = len(json.dumps(definition)) if fits and not self.is_full else 0
        if not 0 < size <= min(MAX_DEFINITION_CHARS, self._chars_left) or name in self.tools:
            self.left_out += 1  # of two with the same name the first counts
            return
        self._chars_left -= size
        self.tools[str(name)] = definition


def filter_definitions(offered: Iterable[Mapping[str, Any]]) -> tuple[ToolDefinitions, int]:
    """Return the definitions that can be kept, and how many cannot."""
    found = ToolListing()
    for one in offered:
        found.add_tool(one)
    return found.tools, found.left_out


def compare_tools(pins: ServerApprovals, offered: ToolDefinitions) -> dict[str, RefusalReason]:
    """Tell what is not as it was approved."""
    found: dict[str, RefusalReason] = {name: "gone" for name in pins.tools if name not in offered}
    for name, definition in offered.items():
        if name not in pins.tools:
            found[name] = "new"
        elif pins.tools[name].hash != hash_definition(definition):
            found[name] = "changed"
    return found


REFUSAL_MESSAGES: dict[RefusalReason, str] = {
    "new": "was never approved",
    "gone": "is not offered any more",
    "changed": "has changed since it was approved",
}


def get_program_name(pins: ServerApprovals, tool: str) -> str:
    """Return the name of a tool in programs, or the one that it would have."""
    return pins.tools[tool].program_name if tool in pins.tools else to_identifier(tool)


def create_definition(server: str, pin: ApprovedTool, approval: ApprovalPolicy) -> ToolDefinition:
    """Return a tool as an operation's definition, in words that are fit to be shown."""
    given = pin.definition
    hints = given.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    reads = hints.get("readOnlyHint") is True
    destroys = not reads and hints.get("destructiveHint") is not False  # which MCP takes for granted
    summary, details = sanitize.split_description(given.get("description") or given.get("title") or "")
    return ToolDefinition(
        server,
        pin.program_name,
        summary or f"The tool {pin.program_name} of {server}.",
        details,
        sanitize.sanitize_schema(given.get("inputSchema")),
        unwrap_result_schema(sanitize.sanitize_schema(given.get("outputSchema"))),
        Effect.READ if reads else Effect.EXECUTE,
        approval == "always" or (approval == "destructive" and destroys),
    )


def unwrap_result_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a result is really: some servers can only send objects, and wrap all else in one."""
    inner = schema.get("properties")
    if not isinstance(inner, dict) or list(inner) != ["result"]:
        return schema
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**shared, **inner["result"]} if isinstance(inner["result"], dict) else {}


class ApprovalStore:
    """The pins of one home, a file each."""

    def __init__(self, home: str) -> None:
        self.folder = os.path.join(home, APPROVALS_FOLDER)

    def read(self, server: str) -> ServerApprovals | None:
        path = self._file_path(server)
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Misconfigured(f"{path} cannot be read: {error.strerror}") from None
        try:
            whole = json.loads(raw)
            tools = {
                name: ApprovedTool(one["as"], one["hash"], one["definition"]) for name, one in whole["tools"].items()
            }
            return ServerApprovals(whole["fingerprint"], whole["at"], tools, whole["refused"], whole["left_out"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = f"approve it again: athena servers approve {server}"
            raise Misconfigured(f"{path} is broken", hint=hint) from None

    def write_refusals(self, server: str, at: float, refused: dict[str, RefusalReason]) -> None:
        """Note what is not as it was approved then, unless a person has decided meanwhile."""
        with lock_file(self.folder):
            kept = self.read(server)
            if kept is not None and kept.at == at and kept.refused != refused:
                self._write_file(server, kept._replace(refused=refused))

    def write(self, server: str, pins: ServerApprovals) -> None:
        with lock_file(self.folder):
            self._write_file(server, pins)
            self._delete_file(server, "failed")

    def _write_file(self, server: str, pins: ServerApprovals) -> None:
        tools = {
            name: {"as": pin.program_name, "hash": pin.hash, "definition": dict(pin.definition)}
            for name, pin in pins.tools.items()
        }
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        write_private_file(self._file_path(server), json.dumps(pins._asdict() | {"tools": tools}, indent=1))

    def write_failure(self, server: str, why: str) -> None:
        """Note why a server could not be looked at."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        write_private_file(self._file_path(server, "failed"), why[:MAX_FAILURE_CHARS])

    def read_failure(self, server: str) -> str:
        """Return why a server could not be looked at the last time, if that is so."""
        try:
            with open(self._file_path(server, "failed"), encoding="utf-8", errors="replace") as file:
                return sanitize.sanitize_line(file.read(MAX_FAILURE_CHARS), MAX_FAILURE_CHARS)
        except OSError:
            return ""

    def remove(self, server: str) -> None:
        with lock_file(self.folder):
            for kind in ("json", "failed"):
                self._delete_file(server, kind)

    def _delete_file(self, server: str, kind: str) -> None:
        if os.path.exists(path := self._file_path(server, kind)):
            os.unlink(path)

    def _file_path(self, server: str, kind: str = "json") -> str:
        return os.path.join(self.folder, f"{server}.{kind}")
