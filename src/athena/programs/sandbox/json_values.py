"""Values as plain JSON, within a budget: what crosses a wall is copied, counted and cut, never trusted."""

import json
import math
from collections.abc import Mapping
from typing import Any

from athena.core import tokens

DEEPEST = 100
_LONGEST_INT = 13_000  # bits; Python refuses to write longer ones as text
CUT = "cut__"


class TooLarge(Exception):
    """A value does not fit its budget; the message says in what way."""


class Copier:
    """Copies values as plain JSON until the budget is used up."""

    __slots__ = ("_nodes", "_size", "_whole")

    def __init__(self, nodes: int, size: int) -> None:
        self._whole = nodes, size
        self._nodes, self._size = nodes, size

    def copy(self, value: Any, depth: int = 0) -> Any:
        self._nodes -= 1
        if self._nodes < 0:
            raise TooLarge(f"more than {self._whole[0]:,} values (limit value_nodes)")
        kind = type(value)
        if kind is str:
            return self._text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if value.bit_length() < _LONGEST_INT else f"an integer of {value.bit_length():,} bits"
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if depth >= DEEPEST:
            raise TooLarge(f"nested more than {DEEPEST} levels deep")
        if kind is dict or isinstance(value, Mapping):
            return {self._key(key): self.copy(inner, depth + 1) for key, inner in value.items()}
        if kind is list or isinstance(value, tuple | set | frozenset | list):
            return [self.copy(inner, depth + 1) for inner in value]
        return self.copy(_simpler(value), depth + 1)

    def _text(self, text: str) -> str:
        self._size -= len(text)
        if self._size < 0:
            raise TooLarge(f"more than {self._whole[1]:,} bytes (limit value_bytes)")
        if text.isascii():
            return text
        return text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent anywhere

    def _key(self, key: Any) -> str:
        if type(key) is str:
            return self._text(key)
        if key is None or isinstance(key, bool | int | float):
            return str(self.copy(json.dumps(key) if not isinstance(key, int) or key.bit_length() < 999 else "int"))
        return self._text(str(key)[:200])


def _simpler(value: Any) -> Any:
    """Turn what JSON lacks into what it has."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"[:2_000]
    if callable(iso := getattr(value, "isoformat", None)):
        return str(iso())
    attributes = getattr(value, "attributes", None)  # an object of Monty's
    if isinstance(attributes, Mapping):
        return dict(attributes)
    if (fields := getattr(value, "__dataclass_fields__", None)) and not isinstance(value, type):
        return {name: getattr(value, name) for name in fields}
    return str(value)[:2_000]


def plain(value: Any, nodes: int, size: int) -> Any:
    """Return a value as plain JSON, or raise TooLarge."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    return Copier(nodes, size).copy(value)


class Sieve:
    """Lets through values that are JSON as they stand, until the budget for all of them is used up."""

    def __init__(self, nodes: int = 100_000, size: int = 1 << 20) -> None:
        self._nodes, self._size = nodes, size

    def keeps(self, value: Any) -> bool:
        before = self._nodes, self._size
        if self._fits(value):
            return True
        self._nodes, self._size = before
        return False

    def _fits(self, value: Any) -> bool:
        todo: list[tuple[Any, int]] = [(value, 0)]
        while todo:
            item, depth = todo.pop()
            self._nodes -= 1
            kind = type(item)
            if kind is str:
                self._size -= len(item)
                if not item.isascii() and item.encode("utf-8", "replace").decode() != item:
                    return False
            elif kind is dict:
                if self._nodes < len(item) or any(type(key) is not str for key in item):
                    return False
                self._size -= sum(map(len, item))
                todo += [(inner, depth + 1) for inner in item.values()]
            elif kind is list:
                if self._nodes < len(item):
                    return False
                todo += [(inner, depth + 1) for inner in item]
            elif kind is float:
                if not math.isfinite(item):
                    return False
            elif kind is int:
                if item.bit_length() >= _LONGEST_INT:
                    return False
            elif item is not None and kind is not bool:
                return False
            if self._nodes < 0 or self._size < 0 or depth > DEEPEST:
                return False
        return True


def shorten(value: Any, most: int, budget: int, whole: int | None = None) -> tuple[Any, bool]:
    """Return what a model is shown of a plain value: all of it, or its beginning under a header that says so.

    It has at most so many characters and so many tokens.
    """
    if value is None or isinstance(value, bool | int | float):
        return value, False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= most and whole is None and tokens.fits(text, budget):
        return value, False
    shown = tokens.head(text[:most], budget)
    kept = "" if whole is None else f" of which the first {len(value):,} are kept,"
    size = len(value) if whole is None else whole
    what = f"an object of {size:,} keys" if isinstance(value, dict) else f"a list of {size:,} items"
    what = f"a text of {size:,} characters" if isinstance(value, str) else what
    return f"[cut: {what},{kept} {len(text):,} characters as JSON; the first {len(shown):,} follow]\n{shown}", True
