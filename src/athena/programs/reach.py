"""What a program can reach, read from its syntax tree: the names that it writes, and where it could run other code.

A program whose code is known as a whole uses only the builtins, modules and attributes that are listed as safe here.
All else may run text as code or find a name that it computes, so a review says so and shows everything.
"""

import ast
import builtins
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from athena.programs.sandbox.routing import MONTY_BUILTINS, MONTY_MODULES, split_words
from athena.programs.sandbox.source import FunctionNode, ProgramSource
from athena.programs.sandbox.values import ProgramRejected

MAX_REASONS = 5  # that one text gives
# `type` makes objects of other paths out of a namespace
_SAFE_BUILTINS = (MONTY_BUILTINS - {"type"}) | split_words(
    """ConnectionError EOFError FileNotFoundError KeyboardInterrupt NotImplemented PermissionError RecursionError
    StopAsyncIteration UnicodeDecodeError UnicodeError ascii bin bytearray bytes callable classmethod complex hash id
    issubclass iter next property slice staticmethod super"""
)
_SAFE_MODULES = {
    **{module: names - {"copy", "deepcopy"} for module, names in MONTY_MODULES.items()},
    "itertools": split_words(
        """accumulate batched chain combinations count cycle groupby islice pairwise permutations product repeat starmap
        takewhile tee zip_longest"""
    ),
    "random": split_words("choice randint random sample shuffle uniform"),
    "statistics": split_words("fmean mean median mode pstdev quantiles stdev variance"),
    "textwrap": split_words("dedent fill indent shorten wrap"),
}
_SAFE_DUNDERS = frozenset(("__name__", "__init__"))
_FRAME_PREFIXES = ("gi_", "cr_", "ag_", "tb_", "f_", "co_", "func_")
_WAITING_NODES = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFunctionDef, ast.ClassDef, ast.With, ast.AsyncWith)


@dataclass
class Reach:
    """What some texts can reach. `reasons` are empty where all of it is known by name."""

    names: set[str] = field(default_factory=set)  # identifiers, and texts that could be one
    reasons: list[str] = field(default_factory=list)  # why other code may run
    has_late_code: bool = False  # code may run when the program ends, or between its lines

    def add(self, other: "Reach") -> None:
        self.names |= other.names
        self.reasons += [reason for reason in other.reasons if reason not in self.reasons]
        self.has_late_code |= other.has_late_code


def find_reach(text: str, title: str, runners: Set[str]) -> Reach:
    """Return what a text can reach; `runners` are operations that run text as code."""
    try:
        source = ProgramSource(text, len(text) * 4 + 1)
    except ProgramRejected:
        return Reach(reasons=[f"{title} cannot be read by this version"], has_late_code=True)
    reach = Reach()
    modules: dict[str, str] = {}
    parents: dict[int, ast.AST] = {}
    for node in source.nodes:
        parents |= {id(child): node for child in ast.iter_child_nodes(node)}
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in source.nodes:
        reach.names.update(_iter_names(node))
        reach.has_late_code |= isinstance(node, _WAITING_NODES)
        word = _find_unsafe_word(node, parents, modules, runners)
        if word and len(reach.reasons) < MAX_REASONS:
            line = getattr(node, "lineno", None)
            reach.reasons.append(f"{title}, line {line}: {word}" if line else f"{title}: {word}")
    return reach


def has_frozen_values(text: str) -> bool:
    """Return whether a definition holds values from the time when it ran: then its text does not say what they are."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FunctionNode):
            values = (*node.args.defaults, *node.args.kw_defaults)
            if any(isinstance(part, ast.Name) for value in values if value for part in ast.walk(value)):
                return True
        if isinstance(node, ast.ClassDef):
            return True
    return False


def _iter_names(node: ast.AST) -> list[str]:
    names: list[str | None] = []
    if isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, ast.Attribute):
        names = [node.attr]
    elif isinstance(node, ast.alias):
        names = [*node.name.split("."), node.asname]
    elif isinstance(node, FunctionNode | ast.ClassDef | ast.ExceptHandler):
        names = [node.name]
    elif isinstance(node, ast.arg | ast.keyword):
        names = [node.arg]
    elif isinstance(node, ast.Global | ast.Nonlocal):
        names = [*node.names]
    elif isinstance(node, ast.MatchAs | ast.MatchStar):
        names = [node.name]
    elif isinstance(node, ast.MatchMapping):
        names = [node.rest]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        names = [node.value]
    return [name for name in names if name]


def _find_unsafe_builtin(names: Iterable[str]) -> str:
    """Return the first name of an unsafe builtin, also where the program binds it: a binding may come late or never."""
    return next((name for name in names if hasattr(builtins, name) and name not in _SAFE_BUILTINS), "")


def _find_unsafe_word(node: ast.AST, parents: dict[int, ast.AST], modules: dict[str, str], runners: Set[str]) -> str:
    """Return what lets this node run code that the text does not show; empty if nothing does."""
    parent = parents.get(id(node))
    if isinstance(node, ast.Name):
        if node.id.startswith("__") and node.id.endswith("__"):
            return node.id
        if node.id in modules and not isinstance(parent, ast.Attribute):
            return f"{node.id} as a value"
        if node.id in runners and not _has_constant_arguments(node, parent):
            return node.id
        is_type_name = isinstance(parent, ast.Call) and isinstance(parents.get(id(parent)), ast.Attribute)
        if node.id == "type" and is_type_name and parents[id(parent)].attr == "__name__":  # type: ignore[attr-defined]
            return ""
        return _find_unsafe_builtin([node.id])
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            return "" if node.attr in _SAFE_MODULES.get(module, ()) else f"{module}.{node.attr}"
        if node.attr in runners and not _has_constant_arguments(node, parent):
            return f".{node.attr}"
        return _check_attribute(node.attr)
    if isinstance(node, ast.Import):
        return ", ".join(alias.name for alias in node.names if alias.name not in _SAFE_MODULES)
    if isinstance(node, ast.ImportFrom):
        safe = _SAFE_MODULES.get(node.module or "", frozenset())
        return ", ".join(f"{node.module}.{alias.name}" for alias in node.names if alias.name not in safe)
    if isinstance(node, ast.MatchClass):
        return next(filter(None, map(_check_attribute, node.kwd_attrs)), "")
    return "" if isinstance(node, ast.Constant | ast.keyword) else _find_unsafe_builtin(_iter_names(node))


def _check_attribute(name: str) -> str:
    is_hidden = name.startswith("_") and name not in _SAFE_DUNDERS
    return f".{name}" if is_hidden or name.startswith(_FRAME_PREFIXES) else ""


def _has_constant_arguments(node: ast.expr, parent: ast.AST | None) -> bool:
    """Return whether this is the function of a call whose texts all stand in the program."""
    if not isinstance(parent, ast.Call) or parent.func is not node:
        return False
    values = [*parent.args, *(keyword.value for keyword in parent.keywords if keyword.arg != "arguments")]
    return all(keyword.arg for keyword in parent.keywords) and all(isinstance(value, ast.Constant) for value in values)
