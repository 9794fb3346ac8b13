"""Variables between runs as JSON: what JSON lacks is written as an object with a mark, never as code or a pickle.

Read by the jailed worker and by the host, so the standard library alone; nothing that is read is believed.
"""

from __future__ import annotations

import math

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from typing import Any

MARK = "$kind"
DEEPEST = 50
_LONGEST_INT = 13_000  # bits; Python refuses to write longer ones as text
_ITEMS = {"tuple": tuple, "set": set, "frozenset": frozenset}


class Unkept(Exception):
    """A value that cannot be kept; the message says why."""


class Tagger:
    """Writes values until the budget for all of them is used up."""

    def __init__(self, nodes: int = 100_000, size: int = 1 << 20) -> None:
        self.nodes, self.size = nodes, size

    def tagged(self, value: Any) -> Any:
        before = self.nodes, self.size
        try:
            return self._part(value, 0)
        except Unkept:
            self.nodes, self.size = before
            raise

    def _part(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.nodes -= 1
        if kind is str:
            self.size -= len(value)
        if self.nodes < 0 or self.size < 0:
            raise Unkept("the variables are too large together")
        if value is None or kind is bool:
            return value
        if kind is str:
            if not value.isascii() and value.encode("utf-8", "replace").decode() != value:
                raise Unkept("it is not valid text")
            return value
        if kind is int:
            if value.bit_length() >= _LONGEST_INT:
                raise Unkept("it is too long an integer")
            return value
        if kind is float:
            return value if math.isfinite(value) else {MARK: "float", "value": str(value)}
        if depth >= DEEPEST:
            raise Unkept(f"it is nested more than {DEEPEST} levels deep")
        if kind is list:
            return [self._part(inner, depth + 1) for inner in value]
        if kind is dict:
            return self._dict(value, depth)
        return self._other(value, kind, depth)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if MARK not in value and all(type(key) is str for key in value):
            return {self._part(key, depth): self._part(inner, depth + 1) for key, inner in value.items()}
        pairs = [[self._part(key, depth + 1), self._part(inner, depth + 1)] for key, inner in value.items()]
        return {MARK: "dict", "value": pairs}

    def _other(self, value: Any, kind: type, depth: int) -> Any:
        name = kind.__name__
        if _ITEMS.get(name) is kind:
            return {MARK: name, "value": [self._part(inner, depth + 1) for inner in value]}
        if kind is bytes:
            self.size -= len(value) * 2
            return {MARK: "bytes", "value": value.hex()}
        if kind.__module__ == "datetime":
            import datetime

            if kind is datetime.timedelta:
                return {MARK: name, "value": [value.days, value.seconds, value.microseconds]}
            zone = getattr(value, "tzinfo", None)
            if kind in (datetime.datetime, datetime.date) and (zone is None or type(zone) is datetime.timezone):
                return {MARK: name, "value": value.isoformat()}
        raise Unkept(f"it is of a kind that is not ({name})")


def untagged(value: Any) -> Any:
    """Return the value that was written; what is not as it was written stays as it stands."""
    try:
        return _read(value)
    except (ValueError, TypeError, OverflowError, KeyError, IndexError, AttributeError):
        return value


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if MARK not in value:
        return {key: _read(inner) for key, inner in value.items()}
    kind, held = value[MARK], value["value"]
    if kind == "dict":
        return {_read(key): _read(inner) for key, inner in held}
    if kind in _ITEMS:
        return _ITEMS[kind](_read(inner) for inner in held)
    if kind == "float":
        return float(held)
    if kind == "bytes":
        return bytes.fromhex(held)
    import datetime

    if kind == "timedelta":
        days, seconds, microseconds = held
        return datetime.timedelta(days, seconds, microseconds)
    return {"datetime": datetime.datetime, "date": datetime.date}[kind].fromisoformat(held)
