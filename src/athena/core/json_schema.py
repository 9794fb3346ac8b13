"""A type that somebody else declared as JSON Schema: written as Python, and checked as we check our own.

The schema is a stranger's: it may refer to itself, contradict itself, or be no schema at all. What is not understood
is `Any` and is left to whoever declared it. Patterns are not tried, since one can take for ever.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from athena.errors import InvalidInput

DEEPEST = 24  # levels that are checked
STEPS = 10_000  # that the checks of one call take at most: a schema may branch at every level
SHOWN = 4  # levels that are written out
LONGEST = 600  # characters of a type that is written out
NODES = 400  # parts of a schema that are looked at to write a type out
SHORTEST = 10  # parts, and characters, of each where a tool has very many parameters
CHOICES = 12  # that are written out
LARGEST = 4_096  # bits of a number: more digits are a problem to whoever reads them
TAKEN = 60  # names in a hint
_LONG = ("enum", "required")  # lists that a step goes through
KINDS: dict[str, str] = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
SPOKEN = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


class Steps:
    """How much more checking there may be; what comes later is left to whoever declared it."""

    def __init__(self, left: int = STEPS) -> None:
        self.left = left


class Declared:
    """A JSON Schema that stands where an annotation would; it has a share of the room that a signature may take."""

    def __init__(self, schema: Any, root: Any = None, among: int = 1) -> None:
        self.schema: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.root = self.schema if root is None else root
        self._among = 1 + among // 10  # ten take what they need; of more, each takes less

    @property
    def help(self) -> str:
        text = self.schema.get("description")
        return " ".join(text.split()) if isinstance(text, str) else ""

    @cached_property
    def source(self) -> str:
        """Write it, with fewer levels where it would be long."""
        room, longest = (max(SHORTEST, most // self._among) for most in (NODES, LONGEST))
        for deep in range(SHOWN, -1, -1):
            try:
                if len(written := _Writing(self.root, room, longest).source(self.schema, deep)) <= longest:
                    return written
            except _TooLong:
                continue
        return "Any"

    def check(self, value: Any, where: str, steps: Steps | None = None) -> Any:
        """Return the value, or say what does not fit."""
        _Checking(self.root, steps or Steps()).check(self.schema, value, where, DEEPEST)
        return value

    def nullable(self, steps: Steps) -> bool:
        try:
            self.check(None, "", steps)
        except InvalidInput:
            return False
        return True


def _resolved(schema: Any, root: Any) -> dict[str, Any]:
    """Follow references inside of the document; one that leads nowhere, or outside, allows everything."""
    for _ in range(8):
        if not isinstance(schema, dict):
            return {}
        target = schema.get("$ref")
        if not isinstance(target, str):
            return schema
        schema = root if target.startswith("#") else None
        for part in target.split("/")[1:]:
            if not isinstance(schema, dict):
                break
            schema = schema.get(part.replace("~1", "/").replace("~0", "~"))
    return {}


def _options(schema: dict[str, Any]) -> list[Any]:
    found = schema.get("anyOf") or schema.get("oneOf")
    return found if isinstance(found, list) else []


def _kinds(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    return ["object"] if isinstance(schema.get("properties"), dict) else []


def fields(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of an object."""
    found = schema.get("properties")
    return {name: part for name, part in found.items() if isinstance(name, str)} if isinstance(found, dict) else {}


def needed(schema: dict[str, Any]) -> list[str]:
    """Return which properties of an object must be there."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


# --- as Python ------------------------------------------------------------------------------------------------------


class _TooLong(Exception):
    """There is no room for so many levels."""


class _Writing:
    """One attempt to write a schema out, given up as soon as there is no room for it."""

    def __init__(self, root: Any, nodes: int, characters: int) -> None:
        self._root, self._nodes, self._characters = root, nodes, characters
        self._inside: list[str] = []  # references that are being written out

    def source(self, schema: Any, deep: int) -> str:
        target = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(target, str):
            return self._written(schema, deep)
        if target in self._inside:
            return self._written(_resolved(schema, self._root), 0)
        self._inside.append(target)
        try:
            return self._written(_resolved(schema, self._root), deep)
        finally:
            self._inside.pop()

    def _written(self, schema: Any, deep: int) -> str:
        self._nodes -= 1
        if self._nodes < 0:
            raise _TooLong
        found = schema if isinstance(schema, dict) else {}
        if "const" in found:
            return self._spent(f"Literal[{found['const']!r:.60}]")
        choices = found.get("enum")
        if isinstance(choices, list) and choices:
            return self._spent(_literal(choices))
        if options := _options(found):
            return _joined(self.source(option, deep - 1) for option in options[:CHOICES]) if deep > 0 else "Any"
        return _joined(self._kind(kind, found, deep) for kind in _kinds(found)) or "Any"

    def _spent(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise _TooLong
        return text

    def _kind(self, kind: str, schema: dict[str, Any], deep: int) -> str:
        if kind in KINDS:
            return self._spent(KINDS[kind])
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.source(items, deep - 1)}]" if isinstance(items, dict) and deep > 0 else "list"
        if kind != "object":
            return "Any"
        parts = schema.get("properties")
        if isinstance(parts, dict) and parts and deep > 0:
            if len(parts) > self._nodes:
                raise _TooLong
            must = frozenset(needed(schema))
            inner = (
                self._spent(f"{name}{'' if name in must else '?'}: ") + self.source(part, deep - 1)
                for name, part in parts.items()
            )
            return f"{{{', '.join(inner)}}}"
        values = schema.get("additionalProperties")
        known = isinstance(values, dict) and values and deep > 0
        return f"dict[str, {self.source(values, deep - 1)}]" if known else "dict"


def _literal(choices: list[Any]) -> str:
    written = [f"{choice!r:.60}" for choice in choices[:CHOICES] if choice is not None]
    more = ", ..." if len(choices) > CHOICES else ""
    text = f"Literal[{', '.join(written)}{more}]" if written else ""
    return _joined([text, "None"] if None in choices else [text])


def _joined(kinds: Iterable[str]) -> str:
    found = [kind for kind in dict.fromkeys(kinds) if kind]
    return "Any" if "Any" in found else " | ".join(sorted(found, key=lambda kind: kind == "None"))


# --- checked --------------------------------------------------------------------------------------------------------


class _Checking:
    """One check of one value, which gives up after so many steps."""

    def __init__(self, root: Any, steps: Steps) -> None:
        self._root, self._steps = root, steps

    def check(self, schema: Any, value: Any, where: str, deep: int) -> None:
        if deep <= 0 or self._steps.left <= 0:
            return
        found = _resolved(schema, self._root)
        self._steps.left -= 1 + sum(len(found[key]) // 20 for key in _LONG if isinstance(found.get(key), list))
        _check_choice(found, value, where)
        if options := _options(found):
            self._options(options, value, where, deep)
        kinds = _kinds(found)
        if not kinds:
            return
        if not any(_fits(kind, value) for kind in kinds):
            wanted = " or ".join(SPOKEN.get(kind, kind[:40]) for kind in kinds)
            raise InvalidInput(f"{where} must be {wanted}, not {'null' if value is None else type(value).__name__}")
        _check_bounds(found, value, where)
        if isinstance(value, Mapping):
            self._object(found, value, where, deep)
        elif isinstance(value, list | tuple) and isinstance(found.get("items"), dict):
            for place, item in enumerate(value):
                if self._steps.left <= 0:
                    return
                self.check(found["items"], item, f"{where}[{place}]", deep - 1)

    def _options(self, options: list[Any], value: Any, where: str, deep: int) -> None:
        wrong: InvalidInput | None = None
        for option in options[:50]:
            try:
                return self.check(option, value, where, deep - 1)
            except InvalidInput as error:
                # The one whose kind fits says best what is wrong.
                kinds = _kinds(_resolved(option, self._root))
                if wrong is None or any(_fits(kind, value) for kind in kinds):
                    wrong = error
        if wrong is not None:
            raise wrong
        return None

    def _object(self, schema: dict[str, Any], value: Mapping[Any, Any], where: str, deep: int) -> None:
        found = schema.get("properties")
        parts = found if isinstance(found, dict) else {}
        takes = f"it takes {', '.join(map(str, islice(parts, TAKEN)))}" if parts else None
        for name in needed(schema):
            if name not in value:
                raise InvalidInput(f"{where} lacks {name!r:.60}", hint=takes)
        for name, item in value.items():
            if self._steps.left <= 0:
                return
            if not isinstance(name, str):
                raise InvalidInput(f"{where}: keys must be text, not {type(name).__name__}")
            if name in parts:
                self.check(parts[name], item, f"{where}.{name}", deep - 1)
            elif schema.get("additionalProperties") is False:
                raise InvalidInput(f"{where} has no {name!r:.60}", hint=takes)


def _check_choice(schema: dict[str, Any], value: Any, where: str) -> None:
    if "const" in schema and not _same(value, schema["const"]):
        raise InvalidInput(f"{where} must be {schema['const']!r:.60}, not {_short(value)}")
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and not any(_same(value, one) for one in choices):
        listed = ", ".join(f"{one!r:.40}" for one in choices[:30])
        raise InvalidInput(f"{where} must be one of {listed}, not {_short(value)}")


def _check_bounds(schema: dict[str, Any], value: Any, where: str) -> None:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} must be a finite number")
    if isinstance(value, int) and value.bit_length() > LARGEST:
        raise InvalidInput(f"{where} is too large a number")
    sized = isinstance(value, str | list | tuple)
    suffix = "Length" if isinstance(value, str) else "Items" if sized else "imum"
    if not sized and not isinstance(value, int | float):
        return
    size = len(value) if sized else value
    subject = f"{where} has a length of {size:,}; it" if sized else f"{where} is {size:,}; it"
    least, most = schema.get(f"min{suffix}"), schema.get(f"max{suffix}")
    if isinstance(least, int | float) and size < least:
        raise InvalidInput(f"{subject} must be at least {least:,}")
    if isinstance(most, int | float) and size > most:
        raise InvalidInput(f"{subject} must be at most {most:,}")


def _short(value: Any) -> str:
    """Write a value in a few characters, without writing it out first."""
    if isinstance(value, str):
        return f"{value[:40]!r:.40}"
    small = isinstance(value, bool | float | None) or (isinstance(value, int) and abs(value) < 1 << 60)
    return f"{value!r:.40}" if small else type(value).__name__


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _fits(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return kind not in SPOKEN
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {"string": str, "number": int | float, "array": list | tuple, "object": Mapping}
    return isinstance(value, kinds[kind]) if kind in kinds else True
