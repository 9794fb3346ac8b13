"""Variables between runs as JSON: other types are tagged objects, never code or a pickle.

The jailed worker and the host both import it, so it needs the standard library only; it trusts no input.
"""

from __future__ import annotations

import math

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from typing import Any

KIND_KEY = "$kind"
MAX_TAG_DEPTH = 50
_MAX_TAGGED_INT_BITS = 13_000  # bits; Python refuses to write longer ones as text
_MAX_EQUAL_HASHES = 50  # of keys in one container: Python compares each with all others
_COLLECTION_TYPES = {"tuple": tuple, "set": set, "frozenset": frozenset}


class UntaggableValue(Exception):
    """A value cannot be kept."""


def _check_hashes(keys: list[Any]) -> None:
    """Refuse keys that a program chose so that a container of them takes forever to build."""
    if len(keys) <= _MAX_EQUAL_HASHES:
        return
    counts: dict[int, int] = {}
    for key in keys:
        counts[hash(key)] = counts.get(hash(key), 0) + 1
    if max(counts.values()) > _MAX_EQUAL_HASHES:
        raise UntaggableValue("too many of its keys have the same hash")


class Tagger:
    """Tags values until the budget for all of them is used up."""

    def __init__(self, nodes: int = 100_000, size: int = 1 << 20) -> None:
        self.nodes, self.size = nodes, size

    def tag_value(self, value: Any) -> Any:
        before = self.nodes, self.size
        try:
            return self._tag_part(value, 0)
        except UntaggableValue:
            self.nodes, self.size = before
            raise

    def _tag_part(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.nodes -= 1
        if kind is str:
            self.size -= len(value)
        if self.nodes < 0 or self.size < 0:
            raise UntaggableValue("the variables are too large together")
        if value is None or kind is bool:
            return value
        if kind is str:
            if not value.isascii() and value.encode("utf-8", "replace").decode() != value:
                raise UntaggableValue("it is not valid text")
            return value
        if kind is int:
            if value.bit_length() >= _MAX_TAGGED_INT_BITS:
                raise UntaggableValue("it is too long an integer")
            return value
        if kind is float:
            return value if math.isfinite(value) else {KIND_KEY: "float", "value": str(value)}
        if depth >= MAX_TAG_DEPTH:
            raise UntaggableValue(f"it is nested more than {MAX_TAG_DEPTH} levels deep")
        if kind is list:
            return [self._tag_part(inner, depth + 1) for inner in value]
        if kind is dict:
            return self._tag_dict(value, depth)
        return self._tag_other(value, kind, depth)

    def _tag_dict(self, value: dict[Any, Any], depth: int) -> Any:
        if KIND_KEY not in value and all(type(key) is str for key in value):
            return {self._tag_part(key, depth): self._tag_part(inner, depth + 1) for key, inner in value.items()}
        _check_hashes(list(value))
        pairs = [[self._tag_part(key, depth + 1), self._tag_part(inner, depth + 1)] for key, inner in value.items()]
        return {KIND_KEY: "dict", "value": pairs}

    def _tag_other(self, value: Any, kind: type, depth: int) -> Any:
        name = kind.__name__
        if _COLLECTION_TYPES.get(name) is kind:
            if kind is not tuple:
                _check_hashes(list(value))
            return {KIND_KEY: name, "value": [self._tag_part(inner, depth + 1) for inner in value]}
        if kind is bytes:
            self.size -= len(value) * 2
            return {KIND_KEY: "bytes", "value": value.hex()}
        if kind.__module__ == "datetime":
            import datetime

            if kind is datetime.timedelta:
                return {KIND_KEY: name, "value": [value.days, value.seconds, value.microseconds]}
            zone = getattr(value, "tzinfo", None)
            if kind in (datetime.datetime, datetime.date) and (zone is None or type(zone) is datetime.timezone):
                return {KIND_KEY: name, "value": value.isoformat()}
        raise UntaggableValue(f"it is of a kind that is not ({name})")


def untag_value(value: Any) -> Any:
    """Return the value of tagged JSON; leave malformed tags as they are, and raise UntaggableValue for hostile ones."""
    try:
        return _untag_part(value)
    except (ValueError, TypeError, OverflowError, KeyError, IndexError, AttributeError):
        return value


def _untag_part(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag_part(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if KIND_KEY not in value:
        return {key: _untag_part(inner) for key, inner in value.items()}
    kind, content = value[KIND_KEY], value["value"]
    if kind == "dict":
        keys = [_untag_part(key) for key, _ in content]
        _check_hashes(keys)
        return {key: _untag_part(inner) for key, (_, inner) in zip(keys, content, strict=True)}
    if kind in _COLLECTION_TYPES:
        items = [_untag_part(inner) for inner in content]
        if kind != "tuple":
            _check_hashes(items)
        return _COLLECTION_TYPES[kind](items)
    if kind == "float":
        return float(content)
    if kind == "bytes":
        return bytes.fromhex(content)
    import datetime

    if kind == "timedelta":
        days, seconds, microseconds = content
        return datetime.timedelta(days, seconds, microseconds)
    return {"datetime": datetime.datetime, "date": datetime.date}[kind].fromisoformat(content)
