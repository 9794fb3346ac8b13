"""What a person has approved of a server: the definitions of its tools, each with its hash, kept beside the config."""

import json
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from athena.core.foreign_operation import Definition, identifier, identifiers
from athena.core.hashing import digest
from athena.core.operation import Effect
from athena.errors import Misconfigured
from athena.gateway import sanitize
from athena.gateway.config import Approval, alone, write_privately

FOLDER = "pins"
MOST_TOOLS = 1_000  # of one server
LARGEST = 64 << 10  # characters of one definition
ALL_TOOLS = 4 << 20  # characters of all definitions of one server
FAILURE = 500  # characters of why a server could not be looked at
ABOUT = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
Why = Literal["new", "changed", "gone"]
Tools = dict[str, dict[str, Any]]  # a tool's own name to its definition


class Pin(NamedTuple):
    """One tool as it was approved."""

    called: str  # the name that programs use
    hash: str
    definition: Mapping[str, Any]


class Pins(NamedTuple):
    """What was approved of one server."""

    fingerprint: str  # of its configuration
    at: float
    tools: Mapping[str, Pin]
    refused: Mapping[str, Why] = {}  # what it offered when last seen that is not what was approved
    left_out: int = 0  # tools that were too many or too large

    @property
    def renamed(self) -> dict[str, str]:
        return {name: pin.called for name, pin in self.tools.items() if name != pin.called}


def made(fingerprint: str, offered: Tools, left_out: int = 0, before: Pins | None = None) -> Pins:
    """Approve what is offered; a tool that was approved before keeps the name it has."""
    kept = {name: before.tools[name].called for name in offered if before and name in before.tools}
    named = kept | identifiers([name for name in sorted(offered) if name not in kept], taken=frozenset(kept.values()))
    tools = {name: Pin(named[name], hashed(one), one) for name, one in offered.items()}
    return Pins(fingerprint, time.time(), tools, {}, left_out)


def hashed(definition: Mapping[str, Any]) -> str:
    return digest(json.dumps(definition, sort_keys=True))


class Offered:
    """What a server offers, as far as it can be kept; taken in one by one, since a list may have no end."""

    def __init__(self) -> None:
        self.tools: Tools = {}
        self.left_out = 0
        self._room = ALL_TOOLS

    @property
    def full(self) -> bool:
        return self._room <= 0 or len(self.tools) >= MOST_TOOLS

    def take(self, one: Mapping[str, Any]) -> None:
        definition = {key: one[key] for key in ABOUT if one.get(key) is not None}
        name = definition.get("name")
        fits = isinstance(name, str) and 0 < len(name) <= 200
        size = len(json.dumps(definition)) if fits and not self.full else 0
        if not 0 < size <= min(LARGEST, self._room) or name in self.tools:
            self.left_out += 1  # of two with the same name the first counts
            return
        self._room -= size
        self.tools[str(name)] = definition


def usable(offered: Iterable[Mapping[str, Any]]) -> tuple[Tools, int]:
    """Return the definitions that can be kept, and how many cannot."""
    found = Offered()
    for one in offered:
        found.take(one)
    return found.tools, found.left_out


def compared(pins: Pins, offered: Tools) -> dict[str, Why]:
    """Tell what is not as it was approved."""
    found: dict[str, Why] = {name: "gone" for name in pins.tools if name not in offered}
    for name, definition in offered.items():
        if name not in pins.tools:
            found[name] = "new"
        elif pins.tools[name].hash != hashed(definition):
            found[name] = "changed"
    return found


HOW: dict[Why, str] = {
    "new": "was never approved",
    "gone": "is not offered any more",
    "changed": "has changed since it was approved",
}


def called(pins: Pins, tool: str) -> str:
    """Return the name of a tool in programs, or the one that it would have."""
    return pins.tools[tool].called if tool in pins.tools else identifier(tool)


def definition_of(server: str, pin: Pin, approval: Approval) -> Definition:
    """Return a tool as an operation's definition, in words that are fit to be shown."""
    given = pin.definition
    hints = given.get("annotations")
    hints = hints if isinstance(hints, dict) else {}
    reads = hints.get("readOnlyHint") is True
    destroys = not reads and hints.get("destructiveHint") is not False  # which MCP takes for granted
    summary, details = sanitize.parts(given.get("description") or given.get("title") or "")
    return Definition(
        server,
        pin.called,
        summary or f"The tool {pin.called} of {server}.",
        details,
        sanitize.schema(given.get("inputSchema")),
        unwrapped(sanitize.schema(given.get("outputSchema"))),
        Effect.READ if reads else Effect.EXECUTE,
        approval == "always" or (approval == "destructive" and destroys),
    )


def unwrapped(schema: dict[str, Any]) -> dict[str, Any]:
    """Return what a result is really: some servers can only send objects, and wrap all else in one."""
    inner = schema.get("properties")
    if not isinstance(inner, dict) or list(inner) != ["result"]:
        return schema
    shared: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**shared, **inner["result"]} if isinstance(inner["result"], dict) else {}


class PinStore:
    """The pins of one home, a file each."""

    def __init__(self, home: str) -> None:
        self.folder = os.path.join(home, FOLDER)

    def read(self, server: str) -> Pins | None:
        path = self._path(server)
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Misconfigured(f"{path} cannot be read: {error.strerror}") from None
        try:
            whole = json.loads(raw)
            tools = {name: Pin(one["as"], one["hash"], one["definition"]) for name, one in whole["tools"].items()}
            return Pins(whole["fingerprint"], whole["at"], tools, whole["refused"], whole["left_out"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            hint = f"approve it again: athena servers approve {server}"
            raise Misconfigured(f"{path} is broken", hint=hint) from None

    def refuse(self, server: str, at: float, refused: dict[str, Why]) -> None:
        """Note what is not as it was approved then, unless a person has decided meanwhile."""
        with alone(self.folder):
            kept = self.read(server)
            if kept is not None and kept.at == at and kept.refused != refused:
                self._put(server, kept._replace(refused=refused))

    def write(self, server: str, pins: Pins) -> None:
        with alone(self.folder):
            self._put(server, pins)
            self._unlink(server, "failed")

    def _put(self, server: str, pins: Pins) -> None:
        tools = {
            name: {"as": pin.called, "hash": pin.hash, "definition": dict(pin.definition)}
            for name, pin in pins.tools.items()
        }
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        write_privately(self._path(server), json.dumps(pins._asdict() | {"tools": tools}, indent=1))

    def failed(self, server: str, why: str) -> None:
        """Note why a server could not be looked at."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        write_privately(self._path(server, "failed"), why[:FAILURE])

    def failure(self, server: str) -> str:
        """Return why a server could not be looked at the last time, if that is so."""
        try:
            with open(self._path(server, "failed"), encoding="utf-8", errors="replace") as file:
                return sanitize.line(file.read(FAILURE), FAILURE)
        except OSError:
            return ""

    def remove(self, server: str) -> None:
        with alone(self.folder):
            for kind in ("json", "failed"):
                self._unlink(server, kind)

    def _unlink(self, server: str, kind: str) -> None:
        if os.path.exists(path := self._path(server, kind)):
            os.unlink(path)

    def _path(self, server: str, kind: str = "json") -> str:
        return os.path.join(self.folder, f"{server}.{kind}")
