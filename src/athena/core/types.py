"""The types of parameters and results: check values, describe them as JSON Schema, write them as Python.

Typed calls and JSON go through the same checks, so that both are refused with the same words. A validation library
would cost more at start than everything else that a command loads.
"""

import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from athena.core.json_schema import JsonSchemaType
from athena.errors import InvalidInput

ValueCheck = Callable[[Any, str], Any]
MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 500_000
MAX_FIELDS = 20_000  # of a message of a protocol
VALUE_MARKS = (b",", b"[", b"{")  # one of them is before every value but the first
LONG_VALUE_CHARS = 8_000
CHARS_PER_VALUE = 10  # a number or a list takes about as long as so many characters
JSON_TEXT_PATTERN = rb'"[^"]*(?:"|\Z)'  # also one without an end, so that the work is linear
JSON_TYPE_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
TYPE_DESCRIPTIONS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


class Param(NamedTuple):
    """Marker for `Annotated`: the help of a parameter, and bounds on its value or its length."""

    help: str
    least: float | None = None
    most: float | None = None
    verbatim: bool = False  # keeps characters that no database can store: the operation takes care of them


def split_annotation(annotation: Any) -> tuple[Any, Param | None]:
    """Return the type of an annotation and its `Param`, if it has one."""
    if get_origin(annotation) in (NotRequired, Required):  # __required_keys__ of the record has it
        return split_annotation(get_args(annotation)[0])
    if get_origin(annotation) is Annotated:
        kind, *extra = get_args(annotation)
        return kind, next((e for e in extra if isinstance(e, Param)), None)
    if isinstance(annotation, JsonSchemaType):
        return annotation, Param(annotation.help)
    return annotation, None


@cache
def create_checker(annotation: Any) -> ValueCheck:
    """Return a function that returns a valid value, converted if need be, or raises `InvalidInput`."""
    kind, param = split_annotation(annotation)
    inner = _create_type_checker(kind)
    if param is None or (param.least is None and param.most is None):
        return inner
    least, most = param.least, param.most

    def check_bounds(value: Any, where: str) -> Any:
        value = inner(value, where)
        if value is None:
            return value
        sized = type(value) in (str, list, dict) or isinstance(value, (str, Sequence, Mapping))
        size = len(value) if sized else value
        if (least is None or size >= least) and (most is None or size <= most):
            return value
        if sized and size == 0:
            raise InvalidInput(f"{where} must not be empty")
        subject = f"{where} has a length of {size:,}; it" if sized else f"{where} is {size:,}; it"
        bound = f"at least {least:,}" if least is not None and size < least else f"at most {most:,}"
        raise InvalidInput(f"{subject} must be {bound}")

    return check_bounds


def _create_type_checker(kind: Any) -> ValueCheck:
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, JsonSchemaType):
        return kind.check_value
    if kind is Any or kind is object:
        return lambda value, where: value
    if kind in JSON_TYPE_NAMES:
        return _create_scalar_checker(kind)
    if kind is None:
        return _create_scalar_checker(type(None))
    if origin in (Union, types.UnionType):
        return _create_union_checker(args)
    if origin is Literal:
        return _create_literal_checker(args)
    if origin in (list, tuple, Sequence):
        return _create_list_checker(args[0])
    if origin in (dict, Mapping):
        return _create_mapping_checker(args[1])
    if is_typeddict(kind):
        return _create_record_checker(kind)
    raise TypeError(f"an operation cannot take a {kind!r}")


class _WrongType(InvalidInput):
    """The value has another type; another member of a union may still accept it."""

    def __init__(self, where: str, wanted: str, value: Any) -> None:
        actual = "null" if value is None else type(value).__name__
        super().__init__(f"{where} must be {wanted}, not {actual}")
        self.where = where


def _create_scalar_checker(kind: Any) -> ValueCheck:
    def check_scalar(value: Any, where: str) -> Any:
        if type(value) is kind:
            if kind is float and not math.isfinite(value):
                raise InvalidInput(f"{where} must be a finite number")
            return value
        if kind is float and type(value) is int:
            try:
                return float(value)
            except OverflowError:
                raise InvalidInput(f"{where} must be a finite number") from None
        if kind is int and type(value) is float and value.is_integer():
            return int(value)  # to JSON, 5 and 5.0 are the same
        if kind is not bool and isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)  # a subclass, such as a str enum or a numpy number
        raise _WrongType(where, TYPE_DESCRIPTIONS[kind], value)

    return check_scalar


def _create_union_checker(kinds: tuple[Any, ...]) -> ValueCheck:
    checks = [create_checker(kind) for kind in kinds]

    def check_union(value: Any, where: str) -> Any:
        deeper: InvalidInput | None = None
        for check in checks:
            try:
                return check(value, where)
            except InvalidInput as error:
                if not (isinstance(error, _WrongType) and error.where == where):
                    deeper = error  # the type fits, but not the value or something in it
        raise deeper or _WrongType(where, " or ".join(describe_type(kind) for kind in kinds), value)

    return check_union


def _create_literal_checker(values: tuple[Any, ...]) -> ValueCheck:
    def check_literal(value: Any, where: str) -> Any:
        if value in values and any(type(value) is type(v) for v in values):
            return value
        raise InvalidInput(f"{where} must be one of {', '.join(map(repr, values))}, not {value!r:.40}")

    return check_literal


def _create_list_checker(kind: Any) -> ValueCheck:
    check_item = create_checker(kind)

    def check_list(value: Any, where: str) -> Any:
        if type(value) is not list and (
            isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset))
        ):
            raise _WrongType(where, f"a list of {describe_type(kind)}", value)
        return [check_item(item, f"{where}[{i}]") for i, item in enumerate(value)]

    return check_list


def _create_mapping_checker(kind: Any) -> ValueCheck:
    check_item = create_checker(kind)

    def check_mapping(value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise _WrongType(where, "an object", value)
        for key in value:
            if not isinstance(key, str):
                raise InvalidInput(f"{where}: keys must be text, not {type(key).__name__}")
        return {key: check_item(item, f"{where}.{key}") for key, item in value.items()}

    return check_mapping


def _create_record_checker(kind: Any) -> ValueCheck:
    fields = {name: create_checker(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    required: frozenset[str] = kind.__required_keys__

    def check_record(value: Any, where: str) -> Any:
        if type(value) is not dict and not isinstance(value, Mapping):
            raise _WrongType(where, "an object", value)
        if missing := sorted(required - value.keys()):
            raise InvalidInput(f"{where} lacks {missing[0]!r}", hint=f"it takes {', '.join(fields)}")
        if unknown := sorted(map(str, value.keys() - fields.keys())):
            raise InvalidInput(f"{where} has no {unknown[0]!r:.60}", hint=f"it takes {', '.join(fields)}")
        return {name: fields[name](item, f"{where}.{name}") for name, item in value.items()}

    return check_record


def describe_type(kind: Any) -> str:
    """Return how an error message names a type."""
    kind = split_annotation(kind)[0]
    if kind in TYPE_DESCRIPTIONS:
        return TYPE_DESCRIPTIONS[kind]
    if kind is None:
        return "null"
    origin, args = get_origin(kind), get_args(kind)
    if origin in (list, tuple, Sequence):
        return f"a list of {describe_type(args[0])}"
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(a) for a in args)
    if origin is Literal:
        return f"one of {', '.join(map(repr, args))}"
    return "an object"


def to_json_schema(annotation: Any) -> dict[str, Any]:
    """Describe an annotation as JSON Schema."""
    if isinstance(annotation, JsonSchemaType):
        return dict(annotation.schema)
    kind, param = split_annotation(annotation)
    schema = _to_type_schema(kind)
    if param is None:
        return schema
    numbers = [part for part in schema.get("anyOf", ()) if part.get("type") in ("integer", "number")]
    for part in [schema] if "type" in schema else numbers:
        suffix = {"string": "Length", "array": "Items", "object": "Properties"}.get(part["type"], "imum")
        for bound, prefix in ((param.least, "min"), (param.most, "max")):
            if bound is not None:
                part[prefix + suffix] = int(bound) if bound == int(bound) else bound
    return schema | {"description": param.help}


def _to_type_schema(kind: Any) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if kind in JSON_TYPE_NAMES:
        return {"type": JSON_TYPE_NAMES[kind]}
    if kind is None:
        return {"type": "null"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [to_json_schema(a) for a in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": to_json_schema(args[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": to_json_schema(args[1])}
    if is_typeddict(kind) or hasattr(kind, "__dataclass_fields__"):
        hints = get_type_hints(kind, include_extras=True)
        required = [n for n in hints if n in getattr(kind, "__required_keys__", hints)]
        properties = {name: to_json_schema(hint) for name, hint in hints.items()}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {}


def to_source(annotation: Any) -> str:
    """Return an annotation as Python source."""
    kind = split_annotation(annotation)[0]
    origin, args = get_origin(kind), get_args(kind)
    if isinstance(kind, JsonSchemaType):
        return kind.source
    if kind is None or kind is type(None):
        return "None"
    if origin in (Union, types.UnionType):
        return " | ".join(to_source(a) for a in args)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if origin in (list, tuple, Sequence):
        return f"list[{to_source(args[0])}]"
    if origin in (dict, Mapping):
        return f"dict[str, {to_source(args[1])}]"
    return "Any" if kind is object else getattr(kind, "__name__", str(kind))


def to_json(value: Any) -> Any:
    """Convert a result to plain JSON values."""
    kind = type(value)
    if kind in JSON_TYPE_NAMES:
        return value
    if kind is list:
        return [item if type(item) is str else to_json(item) for item in value]
    if kind is dict:
        return {str(key): item if type(item) is str else to_json(item) for key, item in value.items()}
    if isinstance(value, (str, int, float)):
        return value
    if fields := getattr(type(value), "__dataclass_fields__", None):
        items = [(name, getattr(value, name)) for name in fields]
        return {name: item if type(item) in JSON_TYPE_NAMES else to_json(item) for name, item in items}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    return [to_json(item) for item in value]


def is_long(value: Any) -> bool:
    """Return whether the texts in a value are long together, or there are many values."""
    size, pending = 0, [value]
    while pending and size <= LONG_VALUE_CHARS:
        value = pending.pop()
        kind = type(value)
        if kind is str or isinstance(value, str):
            size += len(value)
            continue
        size += CHARS_PER_VALUE
        if kind in JSON_TYPE_NAMES:  # not one that holds others
            continue
        if isinstance(value, list | tuple | dict):
            if len(value) * CHARS_PER_VALUE > LONG_VALUE_CHARS:
                return True
            pending += [*value, *value.values()] if isinstance(value, dict) else value
        elif fields := getattr(type(value), "__dataclass_fields__", None):
            pending += [getattr(value, name) for name in fields]
    return size > LONG_VALUE_CHARS


def has_too_many_fields(message: Any, free_keys: Collection[str] = ()) -> bool:
    """Return whether a message has more than MAX_FIELDS values, without those below `free_keys`, which hold any data.

    Each value that a protocol declares is compared with all that it may be. For 250,000 wrong ones that takes seconds,
    and gigabytes for the errors.
    """
    count, rest = 0, [message] if isinstance(message, dict | list) else []
    while rest and count <= MAX_FIELDS:
        item = rest.pop()
        values = [v for k, v in item.items() if k not in free_keys] if isinstance(item, dict) else item
        count += len(values)
        rest += [value for value in values[:MAX_FIELDS] if isinstance(value, dict | list)]
    return count > MAX_FIELDS


def has_too_many_values(raw: bytes) -> bool:
    """Return whether a JSON document has more than MAX_JSON_VALUES values: `{},{}` takes fifty times its size."""
    if len(raw) <= MAX_JSON_VALUES or sum(map(raw.count, VALUE_MARKS)) <= MAX_JSON_VALUES:
        return False
    values = position = 0
    raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")  # then a text ends at the next quote
    for texts, match in enumerate(re.finditer(JSON_TEXT_PATTERN, raw), 1):  # commas in texts separate no values
        values += sum(raw.count(mark, position, match.start()) for mark in VALUE_MARKS)
        position = match.end()
        if values > MAX_JSON_VALUES or texts > 2 * MAX_JSON_VALUES:  # a value has at most a key and a text
            return True
    return values + sum(raw.count(mark, position) for mark in VALUE_MARKS) > MAX_JSON_VALUES


def is_too_deep(value: Any) -> bool:
    """Return whether a JSON document has more than MAX_JSON_DEPTH levels; works without recursion."""
    level = [value]
    for _ in range(MAX_JSON_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True
