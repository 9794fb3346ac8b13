"""Operations as Python source: what an agent reads is how its program calls."""

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
    """Write how a program calls an operation, what comes back, and what it does, in one line."""
    arguments = ", ".join(_format_parameter(p) for p in operation.parameters)
    result = types.to_source(operation.result_type)
    returned = "" if result == "Any" else f" -> {result}"
    return f"{operation.path}({arguments}){returned}  # {_collapse_whitespace(operation.summary)}"


def format_name_line(operation: AnyOperation) -> str:
    """Write how a program names an operation, and what it does in a few words."""
    return f"{operation.path}  # {_collapse_whitespace(operation.short_summary)}"


def render_operation(operation: AnyOperation, *, strict: bool = False) -> str:
    """Write one operation as a function with its types and help; `strict` with types that Python knows alone."""
    written = _to_strict_type if strict else _to_valid_type
    arguments = ", ".join(
        f"{p.name}: {written(p.annotation)}{_format_none_suffix(p) if strict else ''}"
        + ("" if p.required else f" = {p.default!r}")
        for p in operation.parameters
    )
    head = f"def {operation.bare_name}({arguments}) -> {written(operation.result_type)}:"
    lines = [operation.summary]
    if operation.documentation.details:
        lines += ["", *operation.documentation.details.splitlines()]
    if operation.approval:
        lines += ["", APPROVAL_NOTE]
    if helped := [p for p in operation.parameters if p.help]:
        lines += ["", *(f"{p.name}: {p.help}" for p in helped)]
    if strict:
        shaped = [*((p.name, p.annotation) for p in operation.parameters), ("returns", operation.result_type)]
        lines += [f"{name}: {types.to_source(kind)}" for name, kind in shaped if "{" in types.to_source(kind)]
    lines += [f">>> {example}" for example in operation.documentation.examples]
    return f"{head}\n{format_docstring(lines)}"


def format_docstring(lines: list[str]) -> str:
    """Write a function's help, whatever marks are in it."""
    quoted = "\n".join(f"    {one}".rstrip() for one in lines).replace("\\", "\\\\").replace('"""', "'''")
    return f'    """{quoted.strip()}\n    """'


def _format_parameter(p: Parameter) -> str:
    """Write a parameter; that it may be None goes without saying where that is its default."""
    written = types.to_source(p.annotation)
    if p.required:
        return f"{p.name}: {written}"
    return f"{p.name}: {written.removesuffix(' | None') if p.default is None else written} = {p.default!r}"


def _to_valid_type(annotation: object) -> str:
    """Write a type so that Python can read it; what it cannot is put in quotes."""
    written = types.to_source(annotation)
    try:
        compile(written, "type", "eval")
    except (SyntaxError, ValueError):
        return repr(written)
    return written


def _to_strict_type(annotation: object) -> str:
    """Write a type as Python has it: an object with fields of a server's own is a dict."""
    written, before = types.to_source(annotation), ""
    while written != before:
        before, written = written, INLINE_OBJECT_PATTERN.sub("dict[str, Any]", written)
    try:
        compile(written, "type", "eval")
    except (SyntaxError, ValueError):
        return "Any"
    return written


def _format_none_suffix(p: Parameter) -> str:
    """Write that a parameter may be None, where that is its default and its type does not say so."""
    return "" if p.required or p.default is not None or "None" in types.to_source(p.annotation) else " | None"


def _collapse_whitespace(text: str) -> str:
    return " ".join(text.split())


def render_module(operations: Iterable[AnyOperation], *, strict: bool = False) -> str:
    """Write operations as one source file: the shapes they take and return first, then the functions."""
    chosen = list(operations)
    records: dict[str, str] = {}
    for operation in chosen:
        for annotation in (*(p.annotation for p in operation.parameters), operation.result_type):
            _collect_records(annotation, records)
    return (
        "\n\n".join([*records.values(), *(render_operation(operation, strict=strict) for operation in chosen)]) + "\n"
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
    if any(map(keyword.iskeyword, fields)):  # "from", which a class cannot have
        inner = ", ".join(f"{key!r}: {kind}" for key, kind in fields.items())
        return f"{name} = TypedDict({name!r}, {{{inner}}})"
    return "\n".join([f"class {name}(TypedDict):", *(f"    {key}: {kind}" for key, kind in fields.items())])
