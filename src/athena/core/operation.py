"""Operations: typed functions that are declared once and offered on every surface."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from functools import cached_property
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, get_type_hints

from athena.core import types
from athena.core.text import make_value_storable
from athena.core.words import resolve_parameter_aliases, suggest_name
from athena.errors import AthenaError, Denied, InvalidInput


class Effect(StrEnum):
    READ = "read"  # changes nothing
    WRITE = "write"  # adds or edits; can be undone
    DESTROY = "destroy"  # loses information
    EXECUTE = "execute"  # runs code or reaches outside
    APPROVE = "approve"  # decides in a person's place: offered to people only


class CallerKind(StrEnum):
    PERSON = "person"  # at a terminal, or at the page in a browser
    API = "api"  # an application: the Python API, HTTP
    PROGRAM = "program"  # in the sandbox
    MODEL = "model"  # over MCP
    HOOK = "hook"  # of a coding agent


class Reach(StrEnum):
    """What an operation touches beyond the records of its own project."""

    FILES = "files"  # reads files of this machine
    PROJECTS = "projects"  # reads or changes other projects
    SETTINGS = "settings"  # changes what later calls may do
    VOICE = "voice"  # stores texts as the words of a person, or decides in a person's place
    NETWORK = "network"  # sends data to another machine or program


class Values(StrEnum):
    """Which values an operation works with where privacy is on; see docs/privacy.md."""

    STORED = "stored"  # tokens: it stores or reads texts
    PROGRAM = "program"  # those of programs: it runs one, and its result is a model's
    REAL = "real"  # the values themselves: a tool of a server
    AS_GIVEN = "as given"  # nothing is replaced: it finds personal data itself


ONLY_PERSONS = frozenset({CallerKind.PERSON})
PEOPLE = frozenset({CallerKind.PERSON, CallerKind.API})
EVERYONE = PEOPLE | {CallerKind.PROGRAM, CallerKind.MODEL}
EVERYONE_AND_HOOKS = EVERYONE | {CallerKind.HOOK}


class Caller(Protocol):
    """The caller of an operation: its surface and kind, and the log of its calls."""

    @property
    def surface(self) -> str: ...

    @property
    def caller(self) -> CallerKind: ...

    def begin_call(self, operation: "Operation[Any, ..., Any]", arguments: Mapping[str, Any], guarded: Any) -> Self:
        """Return the caller as the operation gets it, with the record of this call; tokens stand in `arguments`."""
        ...

    def end_call(self, operation: "Operation[Any, ..., Any]", outcome: str) -> None:
        """Log how the call of this caller ended: `done`, or the code of its error."""
        ...

    def record_usage(self, operation: str, arguments: Mapping[str, Any], result: Any) -> None:
        """Log how many tokens the arguments and the result have."""
        ...

    def guard_values(
        self, operation: "Operation[Any, ..., Any]", arguments: dict[str, Any]
    ) -> AbstractAsyncContextManager["GuardedCall"]:
        """Turn arguments into the values that the operation works with, and its result and errors into the caller's."""
        ...


class GuardedCall(Protocol):
    """The values of one call on their way in and out."""

    arguments: dict[str, Any]

    async def resolve(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return checked arguments as a server gets them, with the values behind tokens."""
        ...

    async def release(self, result: Any) -> Any:
        """Return a result as the caller may see it."""
        ...


class Parameter(NamedTuple):
    name: str
    annotation: Any
    required: bool
    default: Any

    @property
    def help(self) -> str:
        param = types.split_annotation(self.annotation)[1]
        return param.help if param else ""

    @property
    def description(self) -> str:
        """The help, with the bounds."""
        kind, param = types.split_annotation(self.annotation)
        least, most = (None, None) if param is None else (param.least, param.most)
        unit = {"str": " characters", "int": "", "float": ""}.get(
            types.to_source(kind).removesuffix(" | None"), " items"
        )
        if (least, most) in ((None, None), (0, 1)):  # the help says "from 0 to 1" already
            return self.help
        if most is None:
            return f"{self.help} (not empty)" if unit and least == 1 else f"{self.help} (at least {least:,}{unit})"
        return f"{self.help} ({f'at most {most:,}' if least is None else f'{least:,} to {most:,}'}{unit})"


C = TypeVar("C", bound=Caller)
P = ParamSpec("P")
R = TypeVar("R")


class Operation(Generic[C, P, R]):
    """A function with what every surface needs to know about it."""

    asks = ""  # short requests between semicolons, as people would type them; tool search compares a request with them
    is_foreign = False  # True for the tool of a connected server
    reads_all = False
    private_mark = ""  # marks the run that calls it: its results are private
    aliases: tuple[str, ...] = ()  # other names, which every surface accepts
    accepted_marks: frozenset[str] = frozenset()  # of a server's tool: what a run may have read before it calls it
    received_kinds: frozenset[str] | None = None  # of a server's tool: the personal data that it may get; None: all

    def __init__(
        self,
        run: Callable[Concatenate[C, P], Awaitable[R]],
        effect: Effect,
        short: str = "",
        *,
        callers: frozenset[CallerKind] = frozenset(),
        reach: frozenset[Reach] = frozenset(),
        approval: bool = False,
        asks: str = "",
        aliases: tuple[str, ...] = (),
        values: Values = Values.STORED,
        reads_all: bool = False,
    ) -> None:
        self.run = run
        self.values = values
        self.reads_all = reads_all
        self.effect = effect
        self.callers = callers
        self.reach = reach
        self.approval = approval
        self.asks = asks
        self.aliases = aliases
        self.name: str = run.__name__  # unique in the catalog
        self.bare_name = self.name  # unique in its category
        self.short_name = short
        self.category = run.__module__.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"<operation {self.path}>"

    @property
    def path(self) -> str:
        """The name that programs use."""
        return f"{self.category}.{self.bare_name}"

    @property
    def names(self) -> tuple[str, ...]:
        """All its names in its category."""
        return tuple(filter(None, (self.bare_name, self.short_name, *self.aliases)))

    async def __call__(self, ctx: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Check permission and arguments, record the call, run. Every call goes through here."""
        if ctx.caller not in self.callers:
            hint = "a person runs: athena approve ID" if self.effect is Effect.APPROVE else self.format_callers_hint()
            raise Denied(f"a {ctx.caller} may not call {self.path}", hint=hint)
        async with ctx.guard_values(self, dict(zip(self.parameter_names, args, strict=False)) | kwargs) as guarded:
            checked = arguments = self.check_arguments(guarded.arguments)
            if self.is_foreign:
                arguments = await guarded.resolve(checked)
            recorded, outcome = ctx.begin_call(self, checked, guarded), "done"
            try:
                result: R = await guarded.release(await self.run(recorded, **arguments))  # type: ignore[call-arg]
            except AthenaError as error:
                outcome = error.code
                raise
            finally:
                recorded.end_call(self, outcome)
        ctx.record_usage(self.name, arguments, result)
        return result

    def format_callers_hint(self) -> str:
        """Say for whom the operation is."""
        return f"it is for: {', '.join(sorted(self.callers))}" if self.callers else "it declares no callers"

    def check_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the checked arguments, or raise InvalidInput with the signature as hint."""
        checked: dict[str, Any] = {}
        labels: dict[str, str] = {}  # the names that the caller uses instead of the parameters'
        try:
            if unknown := [name for name in arguments if name not in self.parameter_names]:
                labels = self._match_aliases(unknown, arguments)
                arguments = {name: arguments[labels.get(name, name)] for name in (*arguments, *labels)}
            for name, check, required, verbatim in self._checkers:
                if name in arguments:
                    value = arguments[name]
                    storable = value if verbatim else make_value_storable(value, types.MAX_JSON_DEPTH)
                    checked[name] = check(storable, labels.get(name, name))
                elif required:
                    raise InvalidInput(f"{name} is missing")
        except InvalidInput as error:
            raise InvalidInput(f"{self.name}: {error}", hint=error.hint or self.signature) from None
        return checked

    def _match_aliases(self, unknown: list[str], arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameters that unknown names stand for, each with its name; raise InvalidInput for others."""
        labels: dict[str, str] = {}
        for alias in unknown:
            name = self.parameter_aliases.get(alias)
            if name is None:
                raise InvalidInput(f"there is no parameter {alias!r:.60}{suggest_name(alias, self.parameter_names)}")
            if name in arguments or name in labels:
                raise InvalidInput(f"{alias} and {labels.get(name, name)} are the same parameter: give one of them")
            labels[name] = alias
        return labels

    @cached_property
    def parameter_aliases(self) -> dict[str, str]:
        """Other names that a call may use for its parameters, each with the parameter."""
        return resolve_parameter_aliases(self.parameter_names)

    @cached_property
    def parameter_names(self) -> tuple[str, ...]:
        code = self.run.__code__  # `inspect.signature` gives the same, but costs 5 ms to import
        return tuple(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        code = self.run.__code__
        positional = code.co_varnames[: code.co_argcount]
        values: tuple[Any, ...] = self.run.__defaults__ or ()
        defaults: dict[str, Any] = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
        defaults |= self.run.__kwdefaults__ or {}
        return tuple(
            Parameter(name, self._type_hints[name], name not in defaults, defaults.get(name))
            for name in self.parameter_names
        )

    @cached_property
    def _type_hints(self) -> dict[str, Any]:
        return get_type_hints(self.run, include_extras=True)

    @cached_property
    def _checkers(self) -> tuple[tuple[str, types.ValueCheck, bool, bool], ...]:
        params = [types.split_annotation(p.annotation)[1] for p in self.parameters]
        return tuple(
            (p.name, types.create_checker(p.annotation), p.required, param is not None and param.verbatim)
            for p, param in zip(self.parameters, params, strict=True)
        )

    @property
    def result_type(self) -> Any:
        return self._type_hints["return"]

    @cached_property
    def documentation(self) -> "Docstring":
        return Docstring.parse(self.run.__doc__ or "")

    @property
    def summary(self) -> str:
        return self.documentation.summary

    @property
    def short_summary(self) -> str:
        """The first clause of the summary, for long lists."""
        return re.split(r"[;:,.] |\.$", self.summary)[0]

    @cached_property
    def example_arguments(self) -> dict[str, Any]:
        """The arguments of the first example, as JSON values."""
        from ast import Call, literal_eval, parse  # needed only to describe operations

        call = parse((self.documentation.examples or ("f()",))[0], mode="eval").body
        if not isinstance(call, Call):
            return {}
        arguments = dict(zip(self.parameter_names, map(literal_eval, call.args), strict=False))
        return arguments | {keyword.arg: literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}

    @cached_property
    def signature(self) -> str:
        """The call as Python source, with types and defaults."""
        return f"{self.path}({', '.join(_format_parameter(p) for p in self.parameters)})"

    @cached_property
    def arguments_schema(self) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for p in self.parameters:
            properties[p.name] = types.to_json_schema(p.annotation)
            if not p.required and p.default is not None:
                properties[p.name]["default"] = types.to_json(p.default)
        return {
            "type": "object",
            "properties": properties,
            "required": [p.name for p in self.parameters if p.required],
            "additionalProperties": False,
        }


class Docstring(NamedTuple):
    """The parts of a docstring: first line, other prose, and the `>>>` lines."""

    summary: str
    details: str
    examples: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        lines = [line.strip() for line in text.strip().splitlines()]
        examples = tuple(line.removeprefix(">>> ") for line in lines if line.startswith(">>> "))
        prose = [line for line in lines[1:] if not line.startswith(">>> ")]
        return cls(lines[0] if lines else "", "\n".join(prose).strip(), examples)


def _format_parameter(p: Parameter) -> str:
    source = f"{p.name}: {types.to_source(p.annotation)}"
    return source if p.required else f"{source} = {p.default!r}"


def operation(
    effect: Effect,
    *,
    callers: frozenset[CallerKind] = frozenset(),
    reach: Iterable[Reach] = (),
    short: str = "",
    approval: bool = False,
    asks: str = "",
    aliases: tuple[str, ...] = (),
    values: Values = Values.STORED,
    reads_all: bool = False,
) -> Callable[[Callable[Concatenate[C, P], Awaitable[R]]], Operation[C, P, R]]:
    """Declare an operation; `short` is a second name in its category, `aliases` are other names everywhere.

    Nobody but `callers` may call it, and it touches nothing beyond its project except what `reach` says. With
    `approval` a program that calls it waits until a person approves.
    `asks` are two to five short requests between semicolons, as people would type them; tool search compares with them.
    `values` says whether it works with personal values or with their tokens.
    `reads_all` says that it reads the whole store: a server runs it beside the calls that take a moment.
    """
    more: dict[str, Any] = {"approval": approval, "asks": asks, "aliases": aliases, "values": values}
    more |= {"callers": callers, "reach": frozenset(reach), "reads_all": reads_all}
    return lambda run: Operation(run, effect, short, **more)
