"""Forms made from the declaration of an operation or a skill, and the arguments that a filled form holds."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from athena.core.catalog import AnyOperation
from athena.core.hashing import MIN_HASH_CHARS
from athena.errors import InvalidInput

FieldKind = Literal["text", "long", "number", "switch", "choice", "lines", "json"]
LONG_FIELDS = {"content", "code", "details", "text", "description"}
MAX_NUMBER_DIGITS = 15
LABELS = {
    "memory_type": "Type",
    "memory_id": "Memory",
    "k": "How many",
    "since": "From",
    "until": "Until",
    "depends_on": "Waits for",
    "entityType": "Type",
    "entity_type": "Type",
}


class FormField(NamedTuple):
    """One field of a form, as the template draws it."""

    name: str
    label: str
    help: str
    kind: FieldKind
    required: bool
    value: str
    options: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    step: str = "any"


def format_label(name: str) -> str:
    return LABELS.get(name) or name.replace("_", " ").capitalize()


def describe_problem(error: InvalidInput, operations: Iterable[AnyOperation]) -> InvalidInput:
    """Return what is wrong with a form in the form's words: the label of a field, no operation and no signature."""
    text, hint = str(error), error.hint
    for operation in operations:
        text = text.removeprefix(f"{operation.name}: ")
        name, _, rest = text.partition(" ")
        if name in operation.arguments_schema.get("properties", {}) and rest:
            text = f"{format_label(name)} {rest}"
        hint = None if hint == operation.signature else hint
    return InvalidInput(text, hint=hint)


def create_fields(
    schema: Mapping[str, Any], values: Mapping[str, Any] | None = None, names: Iterable[str] | None = None
) -> list[FormField]:
    """Return the fields for a JSON Schema of arguments; `values` fill them in, `names` choose and order them."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required, values = set(schema.get("required", ())), values or {}
    chosen = properties if names is None else [name for name in names if name in properties]
    return [_create_field(name, properties[name], name in required, values) for name in chosen]


def _create_field(name: str, schema: Mapping[str, Any], required: bool, values: Mapping[str, Any]) -> FormField:
    kinds, options = _list_types(schema), _list_options(schema)
    value = values.get(name, schema.get("default"))
    kind: FieldKind
    if options:
        kind = "choice"
    elif "boolean" in kinds:
        kind = "switch"
    elif "string" in kinds:
        kind = "long" if name in LONG_FIELDS else "text"
    elif kinds & {"integer", "number"}:
        kind = "number"
    elif "array" in kinds and _list_types(_find_part(schema, "array").get("items", {})) & {"string", "integer"}:
        kind = "lines"
    else:
        kind = "json"
    part = _find_part(schema, "integer" if "integer" in kinds else "number")
    return FormField(
        name,
        format_label(name),
        str(schema.get("description", "")),
        kind,
        required,
        _to_text(value, kind),
        options,
        part.get("minimum"),
        part.get("maximum"),
        "1" if "integer" in kinds and "number" not in kinds else "any",
    )


def _to_text(value: Any, kind: FieldKind) -> str:
    if value is None:
        return ""
    if kind == "lines":
        return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    if kind == "json":
        return json.dumps(value, ensure_ascii=False)
    if kind == "switch":
        return "on" if value else ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def parse_arguments(schema: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that a form holds; an empty field that is not required is left out."""
    arguments: dict[str, Any] = {}
    required = set(schema.get("required", ()))
    for field in create_fields(schema):
        if field.name not in form and field.kind != "switch":
            continue
        text = form.get(field.name, "")
        if field.kind == "switch":
            arguments[field.name] = text == "on"
        elif text.strip() or field.name in required:
            arguments[field.name] = _parse_text(field, text, schema["properties"][field.name])
    return arguments


def parse_whole(text: str | None, default: int = 0) -> int:
    """Return the whole number that an address or a form holds; `default` for anything else, and for one too long."""
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= MAX_NUMBER_DIGITS
    return int(text) if text is not None and is_number else default


def parse_ref(text: str) -> int | str:
    """Return the id or the hash that an address or a form names."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < MIN_HASH_CHARS else text


def parse_updated(form: Mapping[str, str]) -> float:
    """Return when the thing that a form shows was changed last, so that the form overwrites no later change."""
    try:
        return float(form.get("updated", ""))
    except ValueError:
        raise InvalidInput("the form does not say what it shows", hint="go back, load the page again") from None


def _parse_text(field: FormField, text: str, schema: Mapping[str, Any]) -> Any:
    if field.kind == "lines":
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        items = _list_types(_find_part(schema, "array").get("items", {}))
        return [int(line) if "integer" in items and line.isascii() and line.isdigit() else line for line in lines]
    if field.kind == "number":
        try:
            return int(text) if field.step == "1" else float(text)
        except ValueError:
            raise InvalidInput(f"{field.label} must be a number") from None
    if field.kind == "json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{field.label} must be JSON", hint='for example ["a", "b"]') from None
    return text.replace("\r\n", "\n")


def _list_types(schema: Mapping[str, Any]) -> set[str]:
    own = schema.get("type", ())
    types = {own} if isinstance(own, str) else set(own)
    for part in schema.get("anyOf", ()):
        types |= _list_types(part)
    return types


def _list_options(schema: Mapping[str, Any]) -> tuple[str, ...]:
    for part in (schema, *schema.get("anyOf", ())):
        if isinstance(part.get("enum"), list):
            return tuple(str(option) for option in part["enum"] if option is not None)
    return ()


def _find_part(schema: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the part of a union that has a type."""
    parts = (part for part in schema.get("anyOf", ()) if part.get("type") == kind)
    return schema if "anyOf" not in schema else next(parts, {})
