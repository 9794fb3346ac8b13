"""Operations that connected servers define, with a JSON Schema for their arguments."""

import keyword
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from athena.core.json_schema import JsonSchemaType, StepBudget, get_properties, get_required_names
from athena.core.operation import EVERYONE, Docstring, Effect, Operation, Parameter, Reach, Values
from athena.core.words import suggest_name
from athena.errors import InvalidInput

SendCall = Callable[..., Awaitable[Any]]  # takes the context and a mapping of arguments


class ToolDefinition(NamedTuple):
    """A tool as its server describes it, with the name that we gave it."""

    category: str
    name: str  # a Python identifier, unique in its category
    summary: str
    details: str = ""
    arguments: Mapping[str, Any] = {}  # JSON Schema of an object
    result: Mapping[str, Any] = {}  # JSON Schema; an empty one allows everything
    effect: Effect = Effect.EXECUTE
    approval: bool = False
    private_mark: str = ""
    accepted_marks: frozenset[str] = frozenset()
    received_kinds: frozenset[str] | None = None  # of personal data; None: all


class ForeignOperation(Operation[Any, ..., Any]):
    """An operation made of a tool definition; its name in the catalog is `category.name`."""

    is_foreign = True
    values = Values.REAL

    def __init__(self, definition: ToolDefinition, run: SendCall) -> None:
        self.definition = definition
        self.effect, self.approval = definition.effect, definition.approval
        self.private_mark, self.accepted_marks = definition.private_mark, definition.accepted_marks
        self.received_kinds = definition.received_kinds
        self.callers, self.reach = EVERYONE, frozenset({Reach.NETWORK})
        self.category, self.bare_name, self.short_name = definition.category, definition.name, ""
        self.name = f"{definition.category}.{definition.name}"
        self._send = run

    async def run(self, ctx: Any, /, **arguments: Any) -> Any:
        return await self._send(ctx, {self._remote_names.get(name, name): value for name, value in arguments.items()})

    def check_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to send, or raise InvalidInput; an optional one that is None is left out."""
        local_names = {remote: local for local, remote in self._remote_names.items()}
        checked: dict[str, Any] = {}
        steps = StepBudget()
        try:
            for name, value in arguments.items():
                parameter = self._by_name.get(local_names.get(name, name))
                if parameter is None:
                    if not self._allows_extra:
                        raise InvalidInput(
                            f"there is no parameter {name!r:.60}{suggest_name(name, self.parameter_names)}"
                        )
                    checked[name] = value
                elif value is not None or parameter.required or parameter.annotation.accepts_null(steps):
                    checked[parameter.name] = parameter.annotation.check_value(value, parameter.name, steps)
            if missing := [p.name for p in self.parameters if p.required and p.name not in checked]:
                raise InvalidInput(f"{missing[0]} is missing")
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}: {error}", hint=error.hint or self.signature) from None
        return checked

    @cached_property
    def parameter_aliases(self) -> dict[str, str]:
        return {}  # its owner names the parameters

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        schema = dict(self.definition.arguments)
        required, properties = frozenset(get_required_names(schema)), get_properties(schema)
        ordered = sorted(properties, key=lambda name: name not in required)
        identifiers = assign_identifiers(ordered)
        return tuple(
            Parameter(
                identifiers[name],
                JsonSchemaType(properties[name], schema, len(properties)),
                name in required,
                _pick_default(properties[name]),
            )
            for name in ordered
        )

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @cached_property
    def _remote_names(self) -> dict[str, str]:
        """Our parameter name to the server's, where they differ."""
        schema = dict(self.definition.arguments)
        required = frozenset(get_required_names(schema))
        ordered = sorted(get_properties(schema), key=lambda name: name not in required)
        return {local: remote for remote, local in assign_identifiers(ordered).items() if local != remote}

    @property
    def _allows_extra(self) -> bool:
        """Return whether the server takes arguments that the schema does not name, or has no schema."""
        return self.definition.arguments.get("additionalProperties") not in (None, False) or not self.parameters

    @cached_property
    def result_type(self) -> Any:
        return JsonSchemaType(dict(self.definition.result))

    @cached_property
    def documentation(self) -> Docstring:
        return Docstring(self.definition.summary, self.definition.details, ())

    @cached_property
    def arguments_schema(self) -> dict[str, Any]:
        schema = {
            "type": "object",
            "properties": {p.name: p.annotation.schema for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": self._allows_extra,
        }
        shared = {
            key: self.definition.arguments[key] for key in ("$defs", "definitions") if key in self.definition.arguments
        }
        return schema | shared


def assign_identifiers(names: list[str], *, taken: frozenset[str] = frozenset()) -> dict[str, str]:
    """Give each name a unique Python identifier: `get-issue` becomes get_issue, a second one get_issue_2."""
    identifiers: dict[str, str] = {}
    used = set(taken)
    counts: dict[str, int] = {}  # the last suffix of each: a server may have thousands of similar names
    for name in sorted(names, key=lambda name: name != to_identifier(name)):  # a valid identifier keeps its name
        wanted = chosen = to_identifier(name)
        while chosen in used:
            counts[wanted] = counts.get(wanted, 1) + 1
            chosen = f"{wanted}_{counts[wanted]}"
        used.add(chosen)
        identifiers[name] = chosen
    return identifiers


def to_identifier(name: str) -> str:
    """Return a Python identifier that resembles a name."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", lambda m: "_" if m[0] else "", name[:200])
    plain = plain.strip("_")[:60] or "unnamed"
    if plain[0].isdigit():
        plain = f"n{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def _pick_default(schema: Any) -> Any:
    """Return the default of a parameter if it is short and plain enough for a signature, else None."""
    value = schema.get("default") if isinstance(schema, dict) else None
    is_plain = isinstance(value, str | int | float | bool | type(None)) or value in ([], {})
    return value if is_plain and len(repr(value)) <= 60 else None
