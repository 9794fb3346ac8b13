"""Certain type errors of a program, found before it runs."""

import builtins
import json
import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any

from athena.programs.sandbox.names import Function, Namespace
from athena.programs.sandbox.values import Failure, create_failure

UNDEFINED_NAME = "never_runs__"  # an undefined name in the first line: the checker refuses the program, so nothing runs
NAMESPACE_PREFIX = "space__"
_TYPE_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_CERTAIN_CODES = frozenset(
    {"unknown-argument", "missing-argument", "too-many-positional-arguments", "unresolved-attribute"}
)
_TYPE_CODES = frozenset({"invalid-argument-type", "invalid-return-type"})
_EXPECTED_FOUND_PATTERN = re.compile(r"xpected `(?P<wanted>[^`]*)`, found `(?P<found>[^`]*)`")
_NAMESPACE_CLASS_PATTERN = re.compile(rf"{NAMESPACE_PREFIX}(\w+)")


def build_stubs(names: Namespace) -> str:
    """Return stubs of everything that a program can call."""
    inside: dict[str, list[str]] = {}
    for path, function in names.items():
        namespace, _, name = path.partition(".")
        nested = name.partition(".")
        lines = inside.setdefault(namespace, [])
        if nested[1]:
            lines.append(f"    {nested[0]}: Any")
        elif name:
            lines.append(f"    def {name}({_format_parameters(function)}) -> Any: ...")
    written = ["from typing import Any, Callable, Literal", "class ToolError(Exception): ..."]
    written.append("def parallel(calls: Any, *more: Any, **other: Any) -> list[Any]: ...")
    for namespace, functions in inside.items():
        written += [
            f"class {NAMESPACE_PREFIX}{namespace}:",
            *dict.fromkeys(functions),
            f"{namespace}: {NAMESPACE_PREFIX}{namespace}",
        ]
    return "\n".join(written) + "\n"


def parse_report(report: str) -> list[Failure]:
    """Parse the checker's report; skip the kinds of which it is often wrong."""
    return [
        create_failure(
            "TypeError",
            _NAMESPACE_CLASS_PATTERN.sub(r"\1", diagnostic["message"].replace("`", "'")),
            diagnostic["location"]["row"] - 1,
        )
        for diagnostic in _iter_certain(json.loads(report))
    ]


def _iter_certain(report: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for diagnostic in report:
        kind, message = diagnostic["code"], diagnostic["message"]
        if kind == "unresolved-reference":
            name = message.partition("`")[2].partition("`")[0]
            if name != UNDEFINED_NAME and not hasattr(builtins, name):
                yield diagnostic
        elif (kind in _CERTAIN_CODES and (NAMESPACE_PREFIX in message or kind != "unresolved-attribute")) or (
            kind in _TYPE_CODES and _are_disjoint(message)
        ):
            yield diagnostic


def _are_disjoint(message: str) -> bool:
    """Return whether the actual and the expected type have no member in common."""
    if not (match := _EXPECTED_FOUND_PATTERN.search(message)):
        return False
    expected_type, actual_type = _union_members(match["wanted"]), _union_members(match["found"])
    return not (expected_type & actual_type or {"Any", "object", "Unknown"} & (expected_type | actual_type))


def _union_members(written: str) -> set[str]:
    """Return the names of a union's members without their type arguments."""
    flat = re.sub(r"Literal\[[\"'][^\]]*\]|LiteralString", "str", written)
    flat = re.sub(r"Literal\[(?:True|False)[^\]]*\]", "bool", flat)
    flat = re.sub(r"Literal\[-?\d[^\]]*\]", "int", flat)
    while flat != (flat := re.sub(r"\[[^\[\]]*\]", "", flat)):
        pass
    members = {member.strip() for member in flat.split("|")}
    if "float" in members:
        members |= {"int"}
    if "int" in members:
        members |= {"bool"}
    return members


def _format_parameters(function: Function) -> str:
    needed = set(function.required)
    written = [
        f"{name}: {_format_type(schema)}" + ("" if name in needed else " = ...")
        for name, schema in function.parameters.get("properties", {}).items()
        if name.isidentifier() and not keyword.iskeyword(name)
    ]
    first = [parameter for parameter in written if not parameter.endswith("= ...")]
    rest = [parameter for parameter in written if parameter.endswith("= ...")]
    if first + rest != written:  # a required parameter after an optional one: by name only
        written = ["*", *written]
    if function.accepts_extra or len(written) < len(needed):
        written.append("**more: Any")
    return ", ".join(["self", *written])


def _format_type(schema: Mapping[str, Any]) -> str:
    """Write a type widely: a list for any kind of list, a dictionary for any object."""
    if "enum" in schema:
        plain = [value for value in schema["enum"] if isinstance(value, str | int | bool)]
        return f"Literal[{', '.join(map(repr, plain))}]" if plain and len(plain) == len(schema["enum"]) else "Any"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(_format_type(member) for member in schema[union])) or "Any"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(_format_type({**schema, "type": member}) for member in kind)) or "Any"
    if kind == "array":
        return "list[Any] | tuple[Any, ...] | set[Any]"
    if kind == "object":
        return "dict[Any, Any]"
    return _TYPE_NAMES.get(str(kind), "Any")
