"""Write operations as Python stubs, as agents read them."""

import keyword
import re
from collections.abc import Iterable
from typing import get_args, get_type_hints, is_typeddict

from athena.core import types
from athena.core.catalog import AnyOperation
from athena.core.operation import Parameter

INLINE_OBJECT_PATTERN = re.compile(r"\{[^{}]*\}")
APPROVAL_NOTE = "Needs approval in programs: one that calls it waits for a person."


def format_call_line(operation: AnyOperation) -> str:
    """Return one line: the call of an operation, its result type and its summary."""
    arguments = ", ".join(_format_parameter(p) for p in operation.parameters)
    result = types.to_source(operation.result_type)
    returned = "" if result == "Any" else f" -> {result}"
    return f"{operation.path}({arguments}){returned}  # {_collapse_whitespace(operation.summary)}"


def format_name_line(operation: AnyOperation) -> str:
    """Return one line: the path of an operation and its short summary."""
    return f"{operation.path}  # {_collapse_whitespace(operation.short_summary)}"


def render_operation(operation: AnyOperation, *, strict: bool = False) -> str:
    """Return an operation as a function with types and help; `strict` uses only types that Python knows."""
    write_type = _to_strict_type if strict else _to_valid_type
    arguments = ", ".join(
        f"{p.name}: {write_type(p.annotation)}{_format_none_suffix(p) if strict else ''}"
        + ("" if p.required else f" = {p.default!r}")
        for p in operation.parameters
    )
    head = f"def {operation.bare_name}({arguments}) -> {write_type(operation.result_type)}:"
    lines = [operation.summary]
    if operation.documentation.details:
        lines += ["", *operation.documentation.details.splitlines()]
    if operation.approval:
        lines += ["", APPROVAL_NOTE]
    if documented := [p for p in operation.parameters if p.help]:
        lines += ["", *(f"{p.name}: {p.help}" for p in documented)]
    if strict:
        typed = [*((p.name, p.annotation) for p in operation.parameters), ("returns", operation.result_type)]
        lines += [f"{name}: {types.to_source(kind)}" for name, kind in typed if "{" in types.to_source(kind)]
    lines += [f">>> {example}" for example in operation.documentation.examples]
    return f"{head}\n{format_docstring(lines)}"


def format_docstring(lines: list[str]) -> str:
    """Return a docstring; quotes and backslashes in the lines are escaped."""
    quoted = "\n".join(f"    {line}".rstrip() for line in lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'    """{quoted.strip()}\n    """'


def _format_parameter(p: Parameter) -> str:
    """Return a parameter with its type; `| None` is left out where None is the default."""
    source = types.to_source(p.annotation)
    if p.required:
        return f"{p.name}: {source}"
    return f"{p.name}: {source.removesuffix(' | None') if p.default is None else source} = {p.default!r}"


def _to_valid_type(annotation: object) -> str:
    """Return a type as source that Python can parse, in quotes if it cannot."""
    source = types.to_source(annotation)
    try:
        compile(source, "type", "eval")
    except (SyntaxError, ValueError):
        return repr(source)
    return source


def _to_strict_type(annotation: object) -> str:
    """Return a type as Python has it; objects with named fields become dicts."""
    source, before = types.to_source(annotation), ""
    while source != before:
        before, source = source, INLINE_OBJECT_PATTERN.sub("dict[str, Any]", source)
    try:
        compile(source, "type", "eval")
    except (SyntaxError, ValueError):
        return "Any"
    return source


def _format_none_suffix(p: Parameter) -> str:
    """Return ` | None` where None is the default but not part of the type."""
    return "" if p.required or p.default is not None or "None" in types.to_source(p.annotation) else " | None"


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def render_module(operations: Iterable[AnyOperation], *, strict: bool = False) -> str:
    """Return operations as one source file: first the record types, then the functions."""
    operations = list(operations)
    records: dict[str, str] = {}
    for operation in operations:
        for annotation in (*(p.annotation for p in operation.parameters), operation.result_type):
            _collect_records(annotation, records)
    return (
        "\n\n".join([*records.values(), *(render_operation(operation, strict=strict) for operation in operations)])
        + "\n"
    )


def _collect_records(annotation: object, records: dict[str, str]) -> None:
    kind = types.split_annotation(annotation)[0]
    for inner in get_args(kind):
        _collect_records(inner, records)
    if (is_typeddict(kind) or hasattr(kind, "__dataclass_fields__")) and kind.__name__ not in records:
        hints = get_type_hints(kind, include_extras=True)
        for hint in hints.values():
            _collect_records(hint, records)
        records[kind.__name__] = _render_record(
            kind.__name__, {key: types.to_source(hint) for key, hint in hints.items()}
        )


def _render_record(name: str, fields: dict[str, str]) -> str:
    if any(map(keyword.iskeyword, fields)):  # a class cannot have a field called "from"
        inner = ", ".join(f"{key!r}: {kind}" for key, kind in fields.items())
        return f"{name} = TypedDict({name!r}, {{{inner}}})"
    return "\n".join([f"class {name}(TypedDict):", *(f"    {key}: {kind}" for key, kind in fields.items())])
