"""The names that a program can call, their parameters, and suggestions for wrong names."""

from collections.abc import ItemsView, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from athena.core.words import find_similar_names
from athena.errors import InvalidInput

RESERVED_NAMES = frozenset({"parallel", "ToolError"})


@dataclass(frozen=True)
class Function:
    """One name that a program can call."""

    path: str  # "graph.open_nodes"
    parameters: Mapping[str, Any] = field(default_factory=dict)  # JSON Schema of an object, in order
    other_names: tuple[str, ...] = ()  # in the same place: "tools.search" for "tools.search_tools"
    doc: str = ""
    needs_approval: bool = False  # a person may have to agree first
    runs_program: bool = False  # it runs a program itself
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of parameters

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
        """Format the parameters for an error message; optional ones get a question mark."""
        needed = set(self.required)
        return ", ".join(name if name in needed else f"{name}?" for name in self.parameter_names) or "none"


class Namespace:
    """All functions by path, short name and namespace."""

    def __init__(
        self,
        functions: Iterable[Function] = (),
        synonyms: Mapping[str, str] | None = None,
        unavailable: Mapping[str, tuple[str, str]] | None = None,
        note: str = "",
    ) -> None:
        self.note = note  # shown with every unknown name
        self.growing = ""  # a namespace to which the program itself may add functions
        self._synonyms = synonyms or {}  # wrong names, with or without a namespace, to right ones
        self._unavailable = unavailable or {}  # names that cannot be called now: why, and what to do
        self._functions: dict[str, Function] = {}
        self._namespaces: set[str] = set()
        self._near: dict[str, list[str]] = {}
        for function in functions:
            self._add_function(function.path, function)
            namespace = function.path.rpartition(".")[0]
            for name in function.other_names:
                self._add_function(name if "." in name or not namespace else f"{namespace}.{name}", function)

    def copy_for_run(self, growing: str) -> "Namespace":
        """Return a copy to which a run can add functions, in one namespace."""
        copy = Namespace((), self._synonyms, self._unavailable, self.note)
        copy._functions, copy._namespaces = dict(self._functions), set(self._namespaces)
        copy.growing = growing
        return copy

    def add_function(self, function: Function) -> None:
        """Add a function that a program has made, or replace it."""
        self._functions[function.path] = function
        self.__dict__.pop("members", None)

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
        """The names in each namespace."""
        names_by_namespace: dict[str, list[str]] = {}
        for path in (*self._namespaces, *self._functions):
            namespace, _, last = path.rpartition(".")
            if namespace:
                names_by_namespace.setdefault(namespace, []).append(last)
        return {namespace: sorted(set(names)) for namespace, names in names_by_namespace.items()}

    def items(self) -> ItemsView[str, Function]:
        return self._functions.items()

    def find(self, path: str) -> Function | None:
        return self._functions.get(path)

    def suggest_names(self, path: str) -> list[str]:
        """Return the names that a wrong one may have meant."""
        namespace, _, last = path.rpartition(".")
        if target := self._find_synonym(path, namespace, last):
            return [target]
        siblings = [name for name in self._functions if name.rpartition(".")[0] == namespace]
        matches = find_similar_names(last, [name.rpartition(".")[2] for name in siblings], 3, 0.5)
        if matches:
            return [f"{namespace}.{name}" if namespace else name for name in matches]
        by_last: dict[str, str] = {}
        for name in (*self._functions, *self._namespaces):
            by_last.setdefault(name.rpartition(".")[2], name)
        return [by_last[name] for name in find_similar_names(last, by_last, 3, 0.7)]

    def _find_synonym(self, path: str, namespace: str, last: str) -> str | None:
        """Look a wrong name up in the synonyms; a name without a namespace leads to none other."""
        if (target := self._synonyms.get(path)) in self._functions:
            return target
        target = self._synonyms.get(last)
        fits = namespace not in self._namespaces or (target or "").rpartition(".")[0] == namespace
        return target if fits and target in self._functions else None

    def explain_unavailable(self, path: str) -> tuple[str, str] | None:
        """Return why a known name cannot be called now, and what to do."""
        return self._unavailable.get(path) or self._unavailable.get(path.partition(".")[0])

    def describe_unknown(self, path: str) -> tuple[str, str]:
        """Return a message and a hint for an unknown name."""
        if unavailable := self.explain_unavailable(path):
            return unavailable
        suggestions = self.suggest_names(path)
        namespace = path.rpartition(".")[0]
        siblings = sorted(name for name in self._functions if name.rpartition(".")[0] == namespace)
        if suggestions:
            hint = f"did you mean {' or '.join(suggestions)}?"
        elif namespace in self._namespaces and siblings:
            hint = f"there are {', '.join(siblings[:30])}"
        else:
            hint = f"there are {', '.join(sorted(self.roots))}"
        return f"there is no operation {path!r}", f"{self.note}; {hint}" if self.note else hint

    def bind_arguments(
        self, path: str, function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Bind arguments to parameters; raise InvalidInput with the signature if they do not fit."""
        order = function.parameter_names
        if len(args) > len(order):
            raise InvalidInput(
                f"{path} takes at most {len(order)} arguments", hint=f"parameters: {function.format_signature()}"
            )
        named = dict(zip(order, args, strict=False))
        for given, value in kwargs.items():
            name = function.aliases.get(given, given)
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
