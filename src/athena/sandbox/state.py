"""What a workspace remembers between runs, sealed: whoever lacks the key can neither read it as ours nor change it."""

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from athena.errors import InvalidInput

_MARK = b"ATHENA1\n"


def seal(key: bytes, kind: str, owner: str, content: bytes) -> bytes:
    """Sign content for one purpose and one owner."""
    return _MARK + _signature(key, kind, owner, content) + content


def unseal(key: bytes, kind: str, owner: str, sealed: bytes) -> bytes:
    content = sealed[len(_MARK) + 32 :]
    if sealed[: len(_MARK)] != _MARK or not hmac.compare_digest(
        sealed[len(_MARK) : len(_MARK) + 32], _signature(key, kind, owner, content)
    ):
        raise InvalidInput(
            f"this {kind} was changed, or belongs to another workspace or installation",
            hint="start without it; nothing was run",
        )
    return content


def _signature(key: bytes, kind: str, owner: str, content: bytes) -> bytes:
    about = json.dumps([kind, owner]).encode()
    return hmac.new(key, struct.pack(">I", len(about)) + about + content, hashlib.sha256).digest()


def packed(head: Mapping[str, Any], body: bytes) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return struct.pack(">I", len(text)) + text + body


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack_from(">I", content)
    head: dict[str, Any] = json.loads(content[4 : 4 + length])
    return head, content[4 + length :]


@dataclass(slots=True)
class State:
    """The variables of a workspace: Monty's own memory where it can be read back, and plain values always.

    The two engines take turns. What CPython changed since Monty's memory was written is listed in `newer` and given
    to Monty with its next program. Functions and imports are kept as source, for the engine that lacks them.
    """

    plain: dict[str, Any] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)  # every name that a program has given a value
    newer: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # definitions by name
    newer_sources: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # namespaces that a program has given another value
    dump: bytes = b""
    dump_of: str = ""  # the engine and the limits that wrote it
    feeds: int = 0  # how many sources Monty's memory has seen
    spots: dict[str, Any] = field(default_factory=dict)  # calls of earlier sources that run at once: see lexical.py

    def beside(self, values: Mapping[str, Any]) -> "State":
        """Put more variables beside those that are there."""
        self.plain |= values
        self.known = list(dict.fromkeys([*self.known, *values]))
        self.newer = list(dict.fromkeys([*self.newer, *values]))
        return self

    def sealed(self, key: bytes, owner: str) -> bytes:
        head = {name: getattr(self, name) for name in _HEAD}
        return seal(key, "state", owner, packed(head, self.dump))

    @classmethod
    def opened(cls, key: bytes, owner: str, sealed: bytes | None) -> "State":
        if not sealed:
            return cls()
        head, dump = unpacked(unseal(key, "state", owner, sealed))
        return cls(**head, dump=dump)

    def forget_dump(self) -> None:
        """Go on with the plain values alone: Monty's memory cannot be read by this version of it."""
        self.dump, self.dump_of, self.feeds, self.spots = b"", "", 0, {}
        self.newer, self.newer_sources = list(self.plain), list(self.sources)


_HEAD = ("plain", "known", "newer", "sources", "newer_sources", "hidden", "dump_of", "feeds", "spots")
