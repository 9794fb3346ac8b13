"""Types from the JSON Schema of another server: check values, and write the types as Python.

The schema is not trusted: it may refer to itself, contradict itself, or be no schema at all. What we do not understand
is `Any`, and the server checks it itself. Patterns are not checked, since one can take for ever.
"""

import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from athena.errors import InvalidInput

MAX_CHECK_DEPTH = 24
MAX_CHECK_STEPS = 10_000  # of one call: a schema may branch at every level
MAX_WRITTEN_DEPTH = 4
MAX_SOURCE_CHARS = 600
MAX_SCHEMA_NODES = 400
MIN_SOURCE_SHARE = 10  # nodes, and characters, of a parameter of a tool that has very many
MAX_WRITTEN_CHOICES = 12
MAX_NUMBER_BITS = 4_096  # converting a longer number to digits takes too long
MAX_HINT_NAMES = 60
MAX_CHECKED_OPTIONS = 50
MAX_ERROR_CHOICES = 30
MAX_REFERENCE_HOPS = 8
_LIST_KEYWORDS = ("enum", "required")  # a step reads these lists to their end, so that long ones cost more
TOKEN_PATTERN = re.compile(r"\[[A-Z][A-Z0-9_]{0,39}[_:]\w{1,64}\]", re.ASCII)  # a value takes its place after the check
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
    """The steps left for the checks of one call; without steps left, values pass unchecked."""

    def __init__(self, left: int = MAX_CHECK_STEPS) -> None:
        self.left = left


class JsonSchemaType:
    """A JSON Schema in place of an annotation; `siblings` parameters share the room of one signature."""

    def __init__(self, schema: Any, root: Any = None, siblings: int = 1) -> None:
        self.schema: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self.root = self.schema if root is None else root
        self._share = 1 + siblings // 10  # up to ten parameters have full room

    @property
    def help(self) -> str:
        text = self.schema.get("description")
        return " ".join(text.split()) if isinstance(text, str) else ""

    @cached_property
    def source(self) -> str:
        """The type as Python source, with as many levels as fit."""
        max_nodes = max(MIN_SOURCE_SHARE, MAX_SCHEMA_NODES // self._share)
        max_chars = max(MIN_SOURCE_SHARE, MAX_SOURCE_CHARS // self._share)
        for depth in range(MAX_WRITTEN_DEPTH, -1, -1):
            try:
                source = _SourceWriter(self.root, max_nodes, max_chars).write_schema(self.schema, depth)
                if len(source) <= max_chars:
                    return source
            except _SourceTooLong:
                continue
        return "Any"

    def check_value(self, value: Any, where: str, steps: StepBudget | None = None) -> Any:
        """Return the value, or raise InvalidInput."""
        _ValueChecker(self.root, steps or StepBudget()).check_value(self.schema, value, where, MAX_CHECK_DEPTH)
        return value

    def accepts_null(self, steps: StepBudget) -> bool:
        try:
            self.check_value(None, "", steps)
        except InvalidInput:
            return False
        return True


def _resolve_reference(schema: Any, root: Any) -> dict[str, Any]:
    """Follow references inside the document; a reference to nothing, or outside, allows every value."""
    for _ in range(MAX_REFERENCE_HOPS):
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
    options = schema.get("anyOf") or schema.get("oneOf")
    return options if isinstance(options, list) else []


def _list_types(schema: dict[str, Any]) -> list[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return [kind]
    if isinstance(kind, list):
        return [name for name in kind if isinstance(name, str)]
    return ["object"] if isinstance(schema.get("properties"), dict) else []


def get_properties(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of an object."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: part for name, part in properties.items() if isinstance(name, str)}


def get_required_names(schema: dict[str, Any]) -> list[str]:
    """Return the names of the required properties of an object."""
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


class _SourceTooLong(Exception):
    """The source would be too long with so many levels."""


class _SourceWriter:
    """One attempt to write a schema as Python; raises _SourceTooLong when the room is used up."""

    def __init__(self, root: Any, nodes: int, characters: int) -> None:
        self._root, self._nodes, self._characters = root, nodes, characters
        self._open_references: list[str] = []  # to find a reference to itself

    def write_schema(self, schema: Any, depth: int) -> str:
        target = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(target, str):
            return self._write_node(schema, depth)
        if target in self._open_references:
            return self._write_node(_resolve_reference(schema, self._root), 0)
        self._open_references.append(target)
        try:
            return self._write_node(_resolve_reference(schema, self._root), depth)
        finally:
            self._open_references.pop()

    def _write_node(self, schema: Any, depth: int) -> str:
        self._nodes -= 1
        if self._nodes < 0:
            raise _SourceTooLong
        schema = schema if isinstance(schema, dict) else {}
        if "const" in schema:
            return self._charge_chars(f"Literal[{schema['const']!r:.60}]")
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return self._charge_chars(_format_literal(choices))
        if options := _get_options(schema):
            if depth <= 0:
                return "Any"
            return _join_types(self.write_schema(option, depth - 1) for option in options[:MAX_WRITTEN_CHOICES])
        return _join_types(self._write_type(kind, schema, depth) for kind in _list_types(schema)) or "Any"

    def _charge_chars(self, text: str) -> str:
        self._characters -= len(text)
        if self._characters < 0:
            raise _SourceTooLong
        return text

    def _write_type(self, kind: str, schema: dict[str, Any], depth: int) -> str:
        if kind in PYTHON_TYPE_NAMES:
            return self._charge_chars(PYTHON_TYPE_NAMES[kind])
        if kind == "array":
            items = schema.get("items")
            return f"list[{self.write_schema(items, depth - 1)}]" if isinstance(items, dict) and depth > 0 else "list"
        if kind != "object":
            return "Any"
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties and depth > 0:
            if len(properties) > self._nodes:
                raise _SourceTooLong
            required = frozenset(get_required_names(schema))
            inner = (
                self._charge_chars(f"{name}{'' if name in required else '?'}: ") + self.write_schema(part, depth - 1)
                for name, part in properties.items()
            )
            return f"{{{', '.join(inner)}}}"
        values = schema.get("additionalProperties")
        known = isinstance(values, dict) and values and depth > 0
        return f"dict[str, {self.write_schema(values, depth - 1)}]" if known else "dict"


def _format_literal(choices: list[Any]) -> str:
    literals = [f"{choice!r:.60}" for choice in choices[:MAX_WRITTEN_CHOICES] if choice is not None]
    more = ", ..." if len(choices) > MAX_WRITTEN_CHOICES else ""
    text = f"Literal[{', '.join(literals)}{more}]" if literals else ""
    return _join_types([text, "None"] if None in choices else [text])


def _join_types(kinds: Iterable[str]) -> str:
    names = [kind for kind in dict.fromkeys(kinds) if kind]
    return "Any" if "Any" in names else " | ".join(sorted(names, key=lambda kind: kind == "None"))


class _ValueChecker:
    """Checks one value, and stops without a verdict when the steps are used up."""

    def __init__(self, root: Any, steps: StepBudget) -> None:
        self._root, self._steps = root, steps

    def check_value(self, schema: Any, value: Any, where: str, depth: int) -> None:
        if depth <= 0 or self._steps.left <= 0:
            return
        schema = _resolve_reference(schema, self._root)
        lists = [schema[key] for key in _LIST_KEYWORDS if isinstance(schema.get(key), list)]
        self._steps.left -= 1 + sum(len(items) // 20 for items in lists)
        has_token = isinstance(value, str) and TOKEN_PATTERN.search(value) is not None
        if not has_token:
            _check_choice(schema, value, where)
        if options := _get_options(schema):
            self._check_options(options, value, where, depth)
        kinds = _list_types(schema)
        if not kinds:
            return
        if not any(_is_of_type(kind, value) for kind in kinds):
            wanted = " or ".join(SCHEMA_TYPE_DESCRIPTIONS.get(kind, kind[:40]) for kind in kinds)
            raise InvalidInput(f"{where} must be {wanted}, not {'null' if value is None else type(value).__name__}")
        if not has_token:
            _check_bounds(schema, value, where)
        if isinstance(value, Mapping):
            self._check_object(schema, value, where, depth)
        elif isinstance(value, list | tuple) and isinstance(schema.get("items"), dict):
            for index, item in enumerate(value):
                if self._steps.left <= 0:
                    return
                self.check_value(schema["items"], item, f"{where}[{index}]", depth - 1)

    def _check_options(self, options: list[Any], value: Any, where: str, depth: int) -> None:
        best_error: InvalidInput | None = None
        for option in options[:MAX_CHECKED_OPTIONS]:
            try:
                return self.check_value(option, value, where, depth - 1)
            except InvalidInput as error:
                # the error of an option whose type fits says best what is wrong
                kinds = _list_types(_resolve_reference(option, self._root))
                if best_error is None or any(_is_of_type(kind, value) for kind in kinds):
                    best_error = error
        if best_error is not None:
            raise best_error
        return None

    def _check_object(self, schema: dict[str, Any], value: Mapping[Any, Any], where: str, depth: int) -> None:
        properties = get_properties(schema)
        hint = f"it takes {', '.join(islice(properties, MAX_HINT_NAMES))}" if properties else None
        for name in get_required_names(schema):
            if name not in value:
                raise InvalidInput(f"{where} lacks {name!r:.60}", hint=hint)
        for name, item in value.items():
            if self._steps.left <= 0:
                return
            if not isinstance(name, str):
                raise InvalidInput(f"{where}: keys must be text, not {type(name).__name__}")
            if name in properties:
                self.check_value(properties[name], item, f"{where}.{name}", depth - 1)
            elif schema.get("additionalProperties") is False:
                raise InvalidInput(f"{where} has no {name!r:.60}", hint=hint)


def _check_choice(schema: dict[str, Any], value: Any, where: str) -> None:
    if "const" in schema and not _is_equal(value, schema["const"]):
        raise InvalidInput(f"{where} must be {schema['const']!r:.60}, not {_format_value(value)}")
    choices = schema.get("enum")
    if isinstance(choices, list) and choices and not any(_is_equal(value, choice) for choice in choices):
        names = ", ".join(f"{choice!r:.40}" for choice in choices[:MAX_ERROR_CHOICES])
        raise InvalidInput(f"{where} must be one of {names}, not {_format_value(value)}")


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
    """Return a short text for a value, without converting a large one to text first."""
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
