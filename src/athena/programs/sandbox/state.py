"""Variables between runs and paused runs, sealed with a key against forgery and changes."""

import hashlib
import hmac
import json
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from athena.errors import InvalidInput
from athena.programs.sandbox.values import Failure, Pause, PauseRequired, create_failure

_SEAL_HEADER = b"ATHENA1\n"
_SIGN_KEY_BYTES = 32


_NONCE_BYTES = 12


def seal(key: bytes, kind: str, owner: str, content: bytes) -> bytes:
    """Sign content for one purpose and one owner; the part of a key beyond 32 bytes encrypts it first."""
    content = _encrypt(key[_SIGN_KEY_BYTES:], content)
    return _SEAL_HEADER + _sign_content(key, kind, owner, content) + content


def is_encrypting(key: bytes) -> bool:
    """Return whether a key encrypts what it seals."""
    return len(key) > _SIGN_KEY_BYTES


def _encrypt(key: bytes, content: bytes) -> bytes:
    if not key:
        return content
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only where privacy is on

    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, content, None)


def _decrypt(key: bytes, content: bytes) -> bytes:
    if not key:
        return content
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], None)


def unseal(key: bytes, kind: str, owner: str, sealed: bytes) -> bytes:
    content = sealed[len(_SEAL_HEADER) + 32 :]
    if sealed[: len(_SEAL_HEADER)] != _SEAL_HEADER or not hmac.compare_digest(
        sealed[len(_SEAL_HEADER) : len(_SEAL_HEADER) + 32], _sign_content(key, kind, owner, content)
    ):
        raise InvalidInput(
            f"this {kind} was changed, or belongs to another workspace or installation",
            hint="start without it; nothing was run",
        )
    return _decrypt(key[_SIGN_KEY_BYTES:], content)


def _sign_content(key: bytes, kind: str, owner: str, content: bytes) -> bytes:
    about = json.dumps([kind, owner]).encode()
    # the whole key signs, so that what was sealed in another mode is not taken for this one's
    return hmac.new(key, struct.pack(">I", len(about)) + about + content, hashlib.sha256).digest()


def pack_content(head: Mapping[str, Any], body: bytes) -> bytes:
    return pack_json(json.dumps(head, separators=(",", ":")).encode(), body)


def pack_json(head: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(head)) + head + body


def unpack_content(content: bytes) -> tuple[Any, bytes]:
    (length,) = struct.unpack_from(">I", content)
    return json.loads(content[4 : 4 + length]), content[4 + length :]


@dataclass(slots=True)
class State:
    """The variables of a workspace: a dump of Monty's memory, and the plain values for both engines.

    Each run may use the other engine. `newer` lists the variables that CPython changed since Monty's dump; Monty gets
    them with its next program. Functions and imports are stored as source, for the engine that lacks them.
    """

    plain: dict[str, Any] = field(default_factory=dict)
    known: list[str] = field(default_factory=list)  # every name that a program has given a value
    newer: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # definitions by name
    newer_sources: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # namespaces that a program has given another value
    spaces: list[str] = field(default_factory=list)  # namespaces that Monty's memory may hold
    dump: bytes = b""
    dump_of: str = ""  # the engine and the limits that wrote it
    feeds: int = 0  # how many sources Monty's memory has seen
    spots: dict[str, Any] = field(default_factory=dict)  # concurrent calls of earlier sources, see source.py
    missing: dict[str, str] = field(default_factory=dict)  # why a variable was not kept

    def add_variables(self, values: Mapping[str, Any]) -> "State":
        """Add variables."""
        self.plain |= values
        self.known = list(dict.fromkeys([*self.known, *values]))
        self.newer = list(dict.fromkeys([*self.newer, *values]))
        return self

    @property
    def known_names(self) -> set[str] | None:
        """Every name that may have a value; None if there are too many to list."""
        if len(self.known) >= MAX_KNOWN_NAMES:
            return None
        return {*self.known, *self.plain, *self.sources, *self.missing}

    def to_sealed(self, key: bytes, owner: str) -> bytes:
        head = {name: getattr(self, name) for name in _HEAD_FIELDS}
        return seal(key, "state", owner, pack_content(head, self.dump))

    @classmethod
    def from_sealed(cls, key: bytes, owner: str, sealed: bytes | None) -> "State":
        if not sealed:
            return cls()
        head, dump = unpack_content(unseal(key, "state", owner, sealed))
        return cls(**head, dump=dump)

    def forget_dump(self) -> None:
        """Drop Monty's dump, which this version cannot read, and keep the plain values."""
        self.dump, self.dump_of, self.feeds, self.spots = b"", "", 0, {}
        self.newer, self.newer_sources = list(self.plain), list(self.sources)

    def shrink_to_plain(self, names: Iterable[str], why: str) -> list[str]:
        """Drop Monty's dump; return which of these variables existed only there."""
        self.forget_dump()
        lost = [name for name in names if name not in self.plain and name not in self.sources]
        self.missing |= dict.fromkeys(lost, why)
        return lost

    def explain_missing(self, name: str, engine: str) -> str | None:
        """Explain why a variable of an earlier program is missing."""
        why = self.missing.get(name)
        if why is None and name in self.sources:
            why = f'this definition is not one for {engine}: try engine="{_OTHER_ENGINE.get(engine)}"'
        elif why is None and name in self.known and name not in self.plain and self.dump and engine == "python":
            why = 'only Monty can read it back: try engine="monty", or keep plain values (list, dict, set, tuple, ...)'
        elif why is None and len(self.known) >= MAX_KNOWN_NAMES and self.dump and engine == "python":
            why = f"CPython gets the first {MAX_KNOWN_NAMES:,} variables only"
        return None if why is None else f"{name} had a value in an earlier program, but: {why}"


MAX_KNOWN_NAMES = 1_000
TOO_LARGE_REASON = "the variables were too large together (limit state_bytes)"
NOT_PLAIN_REASON = "it is not plain (numbers, texts, lists, dicts, tuples, sets, bytes, dates)"
_OTHER_ENGINE = {"monty": "python", "python": "monty"}


def keep_newest_sources(sources: dict[str, str], max_chars: int) -> dict[str, str]:
    """Return the newest definitions, as many as fit."""
    newest: dict[str, str] = {}
    for name, text in reversed(sources.items()):
        max_chars -= len(text)
        if max_chars < 0:
            break
        newest[name] = text
    return dict(reversed(newest.items()))


# fmt: off
_HEAD_FIELDS = (
    "plain", "known", "newer", "sources", "newer_sources", "hidden", "spaces", "dump_of", "feeds", "spots", "missing",
)
# fmt: on


MAX_APPROVAL_BYTES = 64 << 10  # of the arguments that a person must read


class CannotPause(Exception):
    """A run that should wait for approval, and cannot."""

    @property
    def failure(self) -> Failure:
        return create_failure("LimitExceeded", str(self), hint="call it in a program of its own, with less")


def create_pause(
    key: bytes, owner: str, head: Mapping[str, Any], body: bytes, required: PauseRequired, max_state_bytes: int
) -> Pause:
    """Seal a paused run, unless it holds too much."""
    path, arguments = required.path, required.arguments
    content = pack_content({**head, "path": path, "arguments": arguments, "request": dict(required.request)}, body)
    if len(json.dumps(arguments)) > MAX_APPROVAL_BYTES:
        raise CannotPause(
            f"{path} waits for a person, who cannot look at more than {MAX_APPROVAL_BYTES:,} bytes of arguments"
        )
    if len(content) > max_state_bytes * 2:  # with the variables as they were
        megabytes = max_state_bytes >> 20
        raise CannotPause(f"{path} waits for a person, and the program holds more than {megabytes} MB (state_bytes)")
    return Pause(seal(key, "pause", owner, content), path, arguments, required.request)


def read_pause(key: bytes, owner: str, snapshot: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the body of a paused run."""
    content = unseal(key, "pause", owner, snapshot)
    try:
        return unpack_content(content)
    except (ValueError, KeyError) as error:
        raise InvalidInput(f"this paused run cannot be read: {error}") from None
