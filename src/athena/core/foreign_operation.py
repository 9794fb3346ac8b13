"""An operation that is not a function of ours: somebody else defined it, with a JSON Schema."""

import keyword
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from athena.core.json_schema import JsonSchemaType, StepBudget, get_properties, get_required_names
from athena.core.operation import Docstring, Effect, Operation, Parameter, suggest_name
from athena.errors import InvalidInput

SendCall = Callable[..., Awaitable[Any]]  # the context, then a mapping of arguments


class ToolDefinition(NamedTuple):
    """What a stranger says about one of its tools, with the name that we gave it."""

    category: str
    name: str  # an identifier, the only one in its category
    summary: str
    details: str = ""
    arguments: Mapping[str, Any] = {}  # JSON Schema of an object
    result: Mapping[str, Any] = {}  # JSON Schema; empty: anything
    effect: Effect = Effect.EXECUTE
    approval: bool = False


class ForeignOperation(Operation[Any, ..., Any]):
    """An operation from its definition; in the catalog it has its category before its name."""

    is_foreign = True

    def __init__(self, definition: ToolDefinition, run: SendCall) -> None:
        self.definition = definition
        self.effect, self.approval, self.programs = definition.effect, definition.approval, True
        self.category, self.bare_name, self.short_name = definition.category, definition.name, ""
        self.name = f"{definition.category}.{definition.name}"
        self._send = run

    async def run(self, ctx: Any, /, **arguments: Any) -> Any:
        return await self._send(ctx, {self._remote_names.get(name, name): value for name, value in arguments.items()})

    def check_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments to send, or say which one is wrong; an optional one that is None is left out."""
        ours = {theirs: name for name, theirs in self._remote_names.items()}
        checked: dict[str, Any] = {}
        steps = StepBudget()
        try:
            for name, value in given.items():
                known = self._by_name.get(ours.get(name, name))
                if known is None:
                    if not self._allows_extra:
                        raise InvalidInput(
                            f"there is no parameter {name!r:.60}{suggest_name(name, self.parameter_names)}"
                        )
                    checked[name] = value
                elif value is not None or known.required or known.annotation.accepts_null(steps):
                    checked[known.name] = known.annotation.check_value(value, known.name, steps)
            if missing := [p.name for p in self.parameters if p.required and p.name not in checked]:
                raise InvalidInput(f"{missing[0]} is missing")
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}: {error}", hint=error.hint or self.signature) from None
        return checked

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        schema = dict(self.definition.arguments)
        must, found = frozenset(get_required_names(schema)), get_properties(schema)
        ordered = sorted(found, key=lambda name: name not in must)
        ours = assign_identifiers(ordered)
        return tuple(
            Parameter(
                ours[name], JsonSchemaType(found[name], schema, len(found)), name in must, _pick_default(found[name])
            )
            for name in ordered
        )

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @cached_property
    def _remote_names(self) -> dict[str, str]:
        """Our name to theirs, where they differ."""
        schema = dict(self.definition.arguments)
        must = frozenset(get_required_names(schema))
        ordered = sorted(get_properties(schema), key=lambda name: name not in must)
        return {ours: name for name, ours in assign_identifiers(ordered).items() if ours != name}

    @property
    def _allows_extra(self) -> bool:
        """Tell whether arguments are welcome that are not named; without a schema we cannot know better."""
        return self.definition.arguments.get("additionalProperties") not in (None, False) or not self.parameters

    @cached_property
    def result_type(self) -> Any:
        return JsonSchemaType(dict(self.definition.result))

    @cached_property
    def documentation(self) -> Docstring:
        return Docstring(self.definition.summary, self.definition.details, ())

    @cached_property
    def arguments_schema(self) -> dict[str, Any]:
        made = {
            "type": "object",
            "properties": {p.name: p.annotation.schema for p in self.parameters},
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": self._allows_extra,
        }
        shared = {
            key: self.definition.arguments[key] for key in ("$defs", "definitions") if key in self.definition.arguments
        }
        return made | shared


def assign_identifiers(names: list[str], *, taken: frozenset[str] = frozenset()) -> dict[str, str]:
    """Give each name one that Python can write: `get-issue` becomes get_issue, a second one get_issue_2."""
    made: dict[str, str] = {}
    used = set(taken)
    counts: dict[str, int] = {}  # how far each was counted: a stranger may give thousands of names that are alike
    for name in sorted(names, key=lambda name: name != to_identifier(name)):  # what is right already keeps its name
        wanted = chosen = to_identifier(name)
        while chosen in used:
            counts[wanted] = counts.get(wanted, 1) + 1
            chosen = f"{wanted}_{counts[wanted]}"
        used.add(chosen)
        made[name] = chosen
    return made


def to_identifier(name: str) -> str:
    """Return the nearest name that Python can write."""
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", lambda m: "_" if m[0] else "", name[:200])
    plain = plain.strip("_")[:60] or "unnamed"
    if plain[0].isdigit():
        plain = f"n{plain}"
    return f"{plain}_" if keyword.iskeyword(plain) else plain


def _pick_default(schema: Any) -> Any:
    """Return a default that is short and plain enough to write down; the other side knows its own."""
    value = schema.get("default") if isinstance(schema, dict) else None
    plain = isinstance(value, str | int | float | bool | type(None)) or value in ([], {})
    return value if plain and len(repr(value)) <= 60 else None
