"""What a program can call, as plain data: names with dots, the arguments they take, and what is near a wrong name."""

from collections.abc import ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from athena.errors import InvalidInput

RESERVED_NAMES = frozenset({"parallel", "ToolError"})


@dataclass(frozen=True)
class Function:
    """One name that a program can call."""

    path: str  # "graph.open_nodes"
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema of an object, in order
    short: str | None = None  # another name in the same place: "tools.search" for "tools.search_tools"
    doc: str = ""
    needs_approval: bool = False  # a person may have to agree first
    runs_program: bool = False  # it runs a program itself

    @cached_property
    def parameter_names(self) -> list[str]:
        return list(self.parameters.get("properties", ()))

    @cached_property
    def required(self) -> list[str]:
        return list(self.parameters.get("required", ()))

    @property
    def accepts_extra(self) -> bool:
        return bool(self.parameters.get("additionalProperties"))

    def format_signature(self) -> str:
        """Write the parameters for an error message: those that may be left out with a question mark."""
        needed = set(self.required)
        return ", ".join(name if name in needed else f"{name}?" for name in self.parameter_names) or "none"


class Namespace:
    """All functions, by every name they answer to."""

    def __init__(
        self,
        functions: Iterable[Function] = (),
        synonyms: Mapping[str, str] | None = None,
        away: Mapping[str, tuple[str, str]] | None = None,
        note: str = "",
    ) -> None:
        self.note = note  # said to whoever asks for what is not there
        self._synonyms = synonyms or {}  # wrong names, with or without their place, to right ones
        self._unavailable = away or {}  # names that cannot be called now: why, and what to do
        self._functions: dict[str, Function] = {}
        self._namespaces: set[str] = set()
        self._near: dict[str, list[str]] = {}
        for function in functions:
            self._add_function(function.path, function)
            if function.short:
                place = function.path.rpartition(".")[0]
                self._add_function(
                    function.short if "." in function.short or not place else f"{place}.{function.short}", function
                )

    def _add_function(self, path: str, function: Function) -> None:
        if path.partition(".")[0] in RESERVED_NAMES:
            raise ValueError(f"{path!r} would hide a name that every program has")
        self._functions.setdefault(path, function)
        parts = path.split(".")[:-1]
        self._namespaces.update(".".join(parts[: end + 1]) for end in range(len(parts)))

    @property
    def roots(self) -> set[str]:
        return {path.partition(".")[0] for path in self._functions}

    @property
    def namespaces(self) -> set[str]:
        return self._namespaces

    def classify_path(self, path: str) -> Literal["namespace", "function"] | None:
        if path in self._namespaces:
            return "namespace"
        return "function" if path in self._functions or path in ("parallel", "parallel__") else None

    @cached_property
    def members(self) -> dict[str, list[str]]:
        """What stands in each namespace, by name."""
        found: dict[str, list[str]] = {}
        for path in (*self._namespaces, *self._functions):
            place, _, last = path.rpartition(".")
            if place:
                found.setdefault(place, []).append(last)
        return {place: sorted(set(names)) for place, names in found.items()}

    def items(self) -> ItemsView[str, Function]:
        return self._functions.items()

    def find(self, path: str) -> Function | None:
        return self._functions.get(path)

    def suggest_names(self, path: str) -> list[str]:
        """Return the names that a wrong one may have meant."""
        from difflib import get_close_matches  # only on a miss

        place, _, last = path.rpartition(".")
        if meant := self._find_synonym(path, place, last):
            return [meant]
        inside = [name for name in self._functions if name.rpartition(".")[0] == place]
        found = get_close_matches(last, [name.rpartition(".")[2] for name in inside], 3, 0.5)
        if found:
            return [f"{place}.{name}" if place else name for name in found]
        by_last: dict[str, str] = {}
        for name in (*self._functions, *self._namespaces):
            by_last.setdefault(name.rpartition(".")[2], name)
        return [by_last[name] for name in get_close_matches(last, by_last, 3, 0.7)]

    def _find_synonym(self, path: str, place: str, last: str) -> str | None:
        """Look a wrong name up in the synonyms; a word without its place does not lead into another one."""
        if (meant := self._synonyms.get(path)) in self._functions:
            return meant
        meant = self._synonyms.get(last)
        fits = place not in self._namespaces or (meant or "").rpartition(".")[0] == place
        return meant if fits and meant in self._functions else None

    def explain_unavailable(self, path: str) -> tuple[str, str] | None:
        """Say why something that there is cannot be called now, and what to do."""
        return self._unavailable.get(path) or self._unavailable.get(path.partition(".")[0])

    def describe_unknown(self, path: str) -> tuple[str, str]:
        """Say that there is no such name, and what there is."""
        if away := self.explain_unavailable(path):
            return away
        near = self.suggest_names(path)
        place = path.rpartition(".")[0]
        inside = sorted(name for name in self._functions if name.rpartition(".")[0] == place)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        elif place in self._namespaces and inside:
            hint = f"there are {', '.join(inside[:30])}"
        else:
            hint = f"there are {', '.join(sorted(self.roots))}"
        return f"there is no operation {path!r}", f"{self.note}; {hint}" if self.note else hint

    def bind_arguments(
        self, path: str, function: Function, args: Sequence[Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Give each argument its name; what does not fit is an error that lists what does."""
        order = function.parameter_names
        if len(args) > len(order):
            raise InvalidInput(
                f"{path} takes at most {len(order)} arguments", hint=f"parameters: {function.format_signature()}"
            )
        named = dict(zip(order, args, strict=False))
        for name, value in given.items():
            if name in named:
                raise InvalidInput(
                    f"{path} was given {name!r} twice", hint=f"parameters: {function.format_signature()}"
                )
            if name not in order and not function.accepts_extra:
                raise InvalidInput(
                    f"{path} has no parameter {name!r}", hint=f"parameters: {function.format_signature()}"
                )
            named[name] = value
        if missing := [name for name in function.required if name not in named]:
            raise InvalidInput(f"{path} needs {', '.join(missing)}", hint=f"parameters: {function.format_signature()}")
        return named
