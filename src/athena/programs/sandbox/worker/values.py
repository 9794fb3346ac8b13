"""Values of a program as plain JSON, cut to their limits before they leave the jail."""

from __future__ import annotations

import json
import math
from itertools import islice

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from typing import Any


_MAX_KEY_BITS = 999  # of an integer that is written out as a key


class ArgumentTooLarge(Exception):
    """A value exceeds its budget."""


class PendingValue:
    """A value that `result` waits for."""

    def result(self) -> Any:
        raise NotImplementedError


def _simplify_value(value: Any) -> Any:
    """Return the nearest value that JSON has; a program's own class may raise anything meanwhile."""
    if isinstance(value, PendingValue):
        return value.result()
    try:
        return _simplify_object(value)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"[:200]


def _simplify_object(value: Any) -> Any:
    if isinstance(value, type):
        return f"<class {value.__name__!r}>"[:2000]
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data.hex()
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"[:2000]
    if hasattr(type(value), "isoformat"):  # of its type: a tool has every attribute
        return str(value.isoformat())
    if isinstance(attributes := getattr(value, "attributes", None), dict):  # an object of Monty's
        return attributes
    if hasattr(value, "__dataclass_fields__"):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if hasattr(type(value), "__members__"):  # an enumeration
        return value.value
    if hasattr(type(value), "tolist"):
        return value.tolist()
    if isinstance(value, range) or hasattr(type(value), "__next__") or type(value).__name__.startswith("dict_"):
        return list(islice(value, 200_001))
    return str(value)[:2000]


class BoundedCopier:
    """Copies a value as plain JSON; cuts it at its budget, or raises."""

    def __init__(self, nodes: int, size: int, cut: bool) -> None:
        self.nodes, self.size, self.may_cut, self.cut = nodes, size, cut, False

    def note_overflow(self, message: str) -> None:
        if not self.may_cut:
            raise ArgumentTooLarge(message)
        self.cut = True

    def copy_text(self, value: str) -> str:
        self.size -= len(value)
        if self.size < 0:
            self.note_overflow("too many bytes")
            return value[: max(0, self.size + len(value))]
        return str(value)

    def copy(self, value: Any, depth: int = 0) -> Any:
        self.nodes -= 1
        if type(value) is str:  # most values are texts
            return self.copy_text(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if value.bit_length() < 13_000 else f"an integer of {value.bit_length():,} bits"
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self.copy_text(value)
        if depth > 95:
            self.note_overflow("too deep")
            return "..."
        if isinstance(value, dict):
            copied: dict[str, Any] = {}
            for key, inner in value.items():
                if self.nodes <= 0 or self.size <= 0:
                    self.note_overflow("too many values")
                    break
                copied[self.copy_text(_key_text(key))] = self.copy(inner, depth + 1)
            return copied
        if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
            items: list[Any] = []
            for inner in value:
                if self.nodes <= 0 or self.size <= 0:
                    self.note_overflow("too many values")
                    break
                items.append(self.copy(inner, depth + 1))
            return items
        return self.copy(_simplify_value(value), depth + 1)


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int) and key.bit_length() >= _MAX_KEY_BITS:
        return f"an integer of {key.bit_length():,} bits"
    return json.dumps(key) if key is None or isinstance(key, (bool, int, float)) else str(key)[:200]
