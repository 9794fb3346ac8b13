"""Copy values between host and worker as plain JSON, within a budget."""

import json
import math
from collections.abc import Mapping
from typing import Any

from athena.core import tokens

MAX_JSON_DEPTH = 100
_MAX_INT_BITS = 13_000  # bits; Python refuses to write longer ones as text
CUT_MARK = "cut__"


class ValueTooLarge(Exception):
    """A value exceeds its budget."""


class JsonCopier:
    """Copies values as plain JSON until the budget is used up."""

    __slots__ = ("_nodes", "_size", "_whole")

    def __init__(self, nodes: int, size: int) -> None:
        self._whole = nodes, size
        self._nodes, self._size = nodes, size

    def copy(self, value: Any, depth: int = 0) -> Any:
        self._nodes -= 1
        if self._nodes < 0:
            raise ValueTooLarge(f"more than {self._whole[0]:,} values (limit value_nodes)")
        kind = type(value)
        if kind is str:
            return self._copy_text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if value.bit_length() < _MAX_INT_BITS else f"an integer of {value.bit_length():,} bits"
        if kind is float:
            return value if math.isfinite(value) else str(value)
        if depth >= MAX_JSON_DEPTH:
            raise ValueTooLarge(f"nested more than {MAX_JSON_DEPTH} levels deep")
        if kind is dict or isinstance(value, Mapping):
            return {self._copy_key(key): self.copy(inner, depth + 1) for key, inner in value.items()}
        if kind is list or isinstance(value, tuple | set | frozenset | list):
            return [self.copy(inner, depth + 1) for inner in value]
        return self.copy(_simplify_value(value), depth + 1)

    def _copy_text(self, text: str) -> str:
        self._size -= len(text)
        if self._size < 0:
            raise ValueTooLarge(f"more than {self._whole[1]:,} bytes (limit value_bytes)")
        if text.isascii():
            return text
        return text.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be sent anywhere

    def _copy_key(self, key: Any) -> str:
        if type(key) is str:
            return self._copy_text(key)
        if key is None or isinstance(key, bool | int | float):
            return str(self.copy(json.dumps(key) if not isinstance(key, int) or key.bit_length() < 999 else "int"))
        return self._copy_text(str(key)[:200])


def _simplify_value(value: Any) -> Any:
    """Return the nearest value that JSON has."""
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


def to_plain_json(value: Any, nodes: int, size: int) -> Any:
    """Return a value as plain JSON, or raise ValueTooLarge."""
    kind = type(value)
    if value is None or kind is bool:
        return value
    return JsonCopier(nodes, size).copy(value)


class JsonBudget:
    """Accepts values that are JSON already, until the budget for all of them is used up."""

    def __init__(self, nodes: int = 100_000, size: int = 1 << 20) -> None:
        self._nodes, self._size = nodes, size

    def accepts(self, value: Any) -> bool:
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
                if item.bit_length() >= _MAX_INT_BITS:
                    return False
            elif item is not None and kind is not bool:
                return False
            if self._nodes < 0 or self._size < 0 or depth > MAX_JSON_DEPTH:
                return False
        return True


def shorten_again(shortened: Any, value: Any) -> Any:
    """Return the beginning of another value under the header that `shorten_value` wrote for the first one.

    The beginning of the first one may end inside of a value that must not be shown.
    """
    if not isinstance(shortened, str):
        return None
    header, _, beginning = shortened.partition("\n")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"{header}\n{text[: len(beginning)]}"


def shorten_value(value: Any, max_chars: int, max_tokens: int, full_length: int | None = None) -> tuple[Any, bool]:
    """Return a plain value for a model, or the beginning of its JSON under a header if it is too long."""
    if value is None or isinstance(value, bool | int | float):
        return value, False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= max_chars and full_length is None and tokens.fits_token_limit(text, max_tokens):
        return value, False
    beginning = tokens.truncate_to_tokens(text[:max_chars], max_tokens)
    kept_note = "" if full_length is None else f" of which the first {len(value):,} are kept,"
    size = len(value) if full_length is None else full_length
    description = f"an object of {size:,} keys" if isinstance(value, dict) else f"a list of {size:,} items"
    description = f"a text of {size:,} characters" if isinstance(value, str) else description
    header = f"[cut: {description},{kept_note} {len(text):,} characters as JSON; the first {len(beginning):,} follow]"
    return f"{header}\n{beginning}", True
