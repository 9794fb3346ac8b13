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

MAX_CHECK_DEPTH = 24  # levels that are checked
MAX_CHECK_STEPS = 10_000  # that the checks of one call take at most: a schema may branch at every level
MAX_WRITTEN_DEPTH = 4  # levels that are written out
MAX_SOURCE_CHARS = 600  # characters of a type that is written out
MAX_SCHEMA_NODES = 400  # parts of a schema that are looked at to write a type out
MIN_SOURCE_SHARE = 10  # parts, and characters, of each where a tool has very many parameters
MAX_WRITTEN_CHOICES = 12  # that are written out
MAX_NUMBER_BITS = 4_096  # bits of a number: more digits are a problem to whoever reads them
MAX_HINT_NAMES = 60  # names in a hint
_LIST_KEYWORDS = ("enum", "required")  # lists that a step goes through
PYTHON_TYPE_NAMES: dict[str, str] = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
SCHEMA_TYPE_DESCRIPTIONS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


class StepBudget:
    """How much more checking there may be; what comes later is left to whoever declared it."""

    def __init__(self, left: int = MAX_CHECK_STEPS) -> None:
        self.left = left


class JsonSchemaType:
    """A JSON Schema that stands where an annotation would; it has a share of the room that a signature may take."""

    def __init__(self, schema: Any, root: Any = None, among: int = 1) -> None:
        self.schema: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.root = self.schema if root is None else root
        self._share = 1 + among // 10  # ten take what they need; of more, each takes less

    @property
    def help(self) -> str:
        text = self.schema.get("description")
        return " ".join(text.split()) if isinstance(text, str) else ""

    @cached_property
    def source(self) -> str:
        """Write it, with fewer levels where it would be long."""
        room, longest = (max(MIN_SOURCE_SHARE, most // self._share) for most in (MAX_SCHEMA_NODES, MAX_SOURCE_CHARS))
        for deep in range(MAX_WRITTEN_DEPTH, -1, -1):
            try:
                if len(written := _SourceWriter(self.root, room, longest).write_schema(self.schema, deep)) <= longest:
                    return written
            except _SourceTooLong:
                continue
        return "Any"

    def check_value(self, value: Any, where: str, steps: StepBudget | None = None) -> Any:
        """Return the value, or say what does not fit."""
        _ValueChecker(self.root, steps or StepBudget()).check_value(self.schema, value, where, MAX_CHECK_DEPTH)
        return value

    def accepts_null(self, steps: StepBudget) -> bool:
        try:
            self.check_value(None, "", steps)
        except InvalidInput:
            return False
        return True


def _resolve_reference(schema: Any, root: Any) -> dict[str, Any]:
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


def _get_options(schema: dict[str, Any]) -> list[Any]:
    found = schema.get("anyOf") or schema.get("oneOf")
    return found if isinstance(found, list) else []


def _list_types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [one for one in kind if isinstance(one, str)]
    return ["object"] if isinstance(schema.get("properties"), dict) else []


def get_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of an object."""
    found = schema.get("properties")
    return {name: part for name, part in found.items() if isinstance(name, str)} if isinstance(found, dict) else {}


def get_required_names(schema: dict[str, Any]) -> list[str]:
    """Return which properties of an object must be there."""
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


# --- as Python ------------------------------------------------------------------------------------------------------


class _SourceTooLong(Exception):
    """There is no room for so many levels."""


class _SourceWriter:
    """One attempt to write a schema out, given up as soon as there is no room for it."""

    def __init__(self, root: Any, nodes: int, characters: int) -> None:
        self._root, self._nodes, self._characters = root, nodes, characters
        self._open_references: list[str] = []  # references that are being written out

    def write_schema(self, schema: Any, deep: int) -> str:
        target = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(target, str):
            return self._write_node(schema, deep)
        if target in self._open_references:
            return self._write_node(_resolve_reference(schema, self._root), 0)
        self._open_references.append(target)
        try:
            return self._write_node(_resolve_reference(schema, self._root), deep)
        finally:
            self._open_references.pop()

    def _write_node(self, schema: Any, deep: int) -> str:
        self._nodes -= 1
        if self._nodes < 0:
            raise _SourceTooLong
        found = schema if isinstance(schema, dict) else {}
        if "const" in found:
            return self._charge_chars(f"Literal[{found['const']!r:.60}]")
        choices = found.get("enum")
        if isinstance(choices, list) and choices:
            return self._charge_chars(_format_literal(choices))
        if options := _get_options(found):
            return (
                _join_types(self.write_schema(option, deep - 1) for option in options[:MAX_WRITTEN_CHOICES])
                if deep > 0
                else "Any"
            )
        return _join_types(self._write_type(kind, found, deep) for kind in _list_types(found)) or "Any"

    def _charge_chars(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise _SourceTooLong
        return text

    def _write_type(self, kind: str, schema: dict[str, Any], deep: int) -> str:
        if kind in PYTHON_TYPE_NAMES:
            return self._charge_chars(PYTHON_TYPE_NAMES[kind])
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.write_schema(items, deep - 1)}]" if isinstance(items, dict) and deep > 0 else "list"
        if kind != "object":
            return "Any"
        parts = schema.get("properties")
        if isinstance(parts, dict) and parts and deep > 0:
            if len(parts) > self._nodes:
                raise _SourceTooLong
            must = frozenset(get_required_names(schema))
            inner = (
                self._charge_chars(f"{name}{'' if name in must else '?'}: ") + self.write_schema(part, deep - 1)
                for name, part in parts.items()
            )
            return f"{{{', '.join(inner)}}}"
        values = schema.get("additionalProperties")
        known = isinstance(values, dict) and values and deep > 0
        return f"dict[str, {self.write_schema(values, deep - 1)}]" if known else "dict"


def _format_literal(choices: list[Any]) -> str:
    written = [f"{choice!r:.60}" for choice in choices[:MAX_WRITTEN_CHOICES] if choice is not None]
    more = ", ..." if len(choices) > MAX_WRITTEN_CHOICES else ""
    text = f"Literal[{', '.join(written)}{more}]" if written else ""
    return _join_types([text, "None"] if None in choices else [text])


def _join_types(kinds: Iterable[str]) -> str:
    found = [kind for kind in dict.fromkeys(kinds) if kind]
    return "Any" if "Any" in found else " | ".join(sorted(found, key=lambda kind: kind == "None"))


# --- checked --------------------------------------------------------------------------------------------------------


class _ValueChecker:
    """One check of one value, which gives up after so many steps."""

    def __init__(self, root: Any, steps: StepBudget) -> None:
        self._root, self._steps = root, steps

    def check_value(self, schema: Any, value: Any, where: str, deep: int) -> None:
        if deep <= 0 or self._steps.left <= 0:
            return
        found = _resolve_reference(schema, self._root)
        self._steps.left -= 1 + sum(len(found[key]) // 20 for key in _LIST_KEYWORDS if isinstance(found.get(key), list))
        _check_choice(found, value, where)
        if options := _get_options(found):
            self._check_options(options, value, where, deep)
        kinds = _list_types(found)
        if not kinds:
            return
        if not any(_is_of_type(kind, value) for kind in kinds):
            wanted = " or ".join(SCHEMA_TYPE_DESCRIPTIONS.get(kind, kind[:40]) for kind in kinds)
            raise InvalidInput(f"{where} must be {wanted}, not {'null' if value is None else type(value).__name__}")
        _check_bounds(found, value, where)
        if isinstance(value, Mapping):
            self._check_object(found, value, where, deep)
        elif isinstance(value, list | tuple) and isinstance(found.get("items"), dict):
            for place, item in enumerate(value):
                if self._steps.left <= 0:
                    return
                self.check_value(found["items"], item, f"{where}[{place}]", deep - 1)

    def _check_options(self, options: list[Any], value: Any, where: str, deep: int) -> None:
        wrong: InvalidInput | None = None
        for option in options[:50]:
            try:
                return self.check_value(option, value, where, deep - 1)
            except InvalidInput as error:
                # The one whose kind fits says best what is wrong.
                kinds = _list_types(_resolve_reference(option, self._root))
                if wrong is None or any(_is_of_type(kind, value) for kind in kinds):
                    wrong = error
        if wrong is not None:
            raise wrong
        return None

    def _check_object(self, schema: dict[str, Any], value: Mapping[Any, Any], where: str, deep: int) -> None:
        found = schema.get("properties")
        parts = found if isinstance(found, dict) else {}
        takes = f"it takes {', '.join(map(str, islice(parts, MAX_HINT_NAMES)))}" if parts else None
        for name in get_required_names(schema):
            if name not in value:
                raise InvalidInput(f"{where} lacks {name!r:.60}", hint=takes)
        for name, item in value.items():
            if self._steps.left <= 0:
                return
            if not isinstance(name, str):
                raise InvalidInput(f"{where}: keys must be text, not {type(name).__name__}")
            if name in parts:
                self.check_value(parts[name], item, f"{where}.{name}", deep - 1)
            elif schema.get("additionalProperties") is False:
                raise InvalidInput(f"{where} has no {name!r:.60}", hint=takes)


def _check_choice(schema: dict[str, Any], value: Any, where: str) -> None:
    if "const" in schema and not _is_equal(value, schema["const"]):
        raise InvalidInput(f"{where} must be {schema['const']!r:.60}, not {_format_value(value)}")
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and not any(_is_equal(value, one) for one in choices):
        listed = ", ".join(f"{one!r:.40}" for one in choices[:30])
        raise InvalidInput(f"{where} must be one of {listed}, not {_format_value(value)}")


def _check_bounds(schema: dict[str, Any], value: Any, where: str) -> None:
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{where} must be a finite number")
    if isinstance(value, int) and value.bit_length() > MAX_NUMBER_BITS:
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


def _format_value(value: Any) -> str:
    """Write a value in a few characters, without writing it out first."""
    if isinstance(value, str):
        return f"{value[:40]!r:.40}"
    small = isinstance(value, bool | float | None) or (isinstance(value, int) and abs(value) < 1 << 60)
    return f"{value!r:.40}" if small else type(value).__name__


def _is_equal(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _is_of_type(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return kind not in SCHEMA_TYPE_DESCRIPTIONS
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {"string": str, "number": int | float, "array": list | tuple, "object": Mapping}
    return isinstance(value, kinds[kind]) if kind in kinds else True
