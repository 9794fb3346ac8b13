"""Where a program relies on values that come one at a time: Monty makes a list of them at once.

`any`, `all` and `next` of a generator are rewritten for Monty so that they stop where Python does. What else is lazy
stays there only where nobody could tell the difference.
"""

import ast
import builtins
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from athena.programs.sandbox.source import ProgramSource


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHORT_CIRCUIT_BUILTINS = frozenset({"any", "all", "next"})
LAZY_BUILTINS = frozenset({"map", "filter", "zip", "enumerate", "reversed"})
_COMPREHENSION_NODES = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# They take all there is, in order, and do nothing in between.
_EXHAUSTING_BUILTINS = frozenset({"list", "tuple", "set", "frozenset", "dict", "sum", "max", "min", "sorted"})
_EXHAUSTING_IMPORTS = frozenset({"Counter", "deque", "fsum", "prod"})
_EXHAUSTING_METHODS = frozenset({"join", "extend", "update"})
_ITERTOOLS_NAMES = _split_words(
    """accumulate chain from_iterable combinations compress dropwhile filterfalse groupby islice pairwise permutations
    product starmap takewhile zip_longest"""
)
# What may be called early or in vain: it changes nothing, and nobody sees it.
_PURE_BUILTINS = _split_words(
    """abs bool bytes chr dict divmod float format frozenset hash hex int isinstance len list max min oct ord pow range
    repr round set sorted str sum tuple type zip enumerate reversed map filter any all"""
)
_MUTATING_METHODS = _split_words(
    """add append appendleft clear difference_update discard extend insert intersection_update pop popitem popleft
    remove reverse setdefault sort symmetric_difference_update update"""
)
_PURE_METHODS = (
    frozenset(name for kind in (str, bytes, list, dict, set) for name in dir(kind) if not name.startswith("_"))
    | {"group", "groups", "isoformat", "strftime", "date", "days", "total_seconds"}
) - _MUTATING_METHODS


def find_short_circuits(
    tree: ast.Module, nodes: list[ast.AST], bound: set[str]
) -> list[tuple[ast.Call, ast.GeneratorExp]]:
    """Find the generators of which `any`, `all` or `next` takes what it needs, where they can be rewritten."""
    if not SHORT_CIRCUIT_BUILTINS - bound:
        return []
    unfit, barred = _NodePositions(nodes, _binds_or_suspends), _find_unrewritable(tree)
    found = []
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or id(node) in barred:
            continue
        name, given = node.func.id, node.args
        most = 2 if name == "next" else 1
        if name not in SHORT_CIRCUIT_BUILTINS - bound or node.keywords or not 0 < len(given) <= most:
            continue
        first = given[0]
        if (
            isinstance(first, ast.GeneratorExp)
            and not isinstance(given[-1], ast.Starred)
            and not unfit.has_any_inside(first)
        ):
            found.append((node, first))
    return found


def _binds_or_suspends(node: ast.AST) -> bool:
    return isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)


def _find_unrewritable(tree: ast.Module) -> set[int]:
    """Find what stands in a class, whose names a function inside does not see, or in a text, where places differ."""
    barred: set[int] = set()
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, inside = todo.pop()
        if inside:
            barred.add(id(node))
        if isinstance(node, ast.ClassDef | ast.JoinedStr):
            inside = True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):  # a text holds none
            inside = False
        todo += ((child, inside) for child in ast.iter_child_nodes(node))
    return barred


class _NodePositions:
    """Where some nodes are, to be asked often."""

    def __init__(self, nodes: list[ast.AST], wanted: Callable[[ast.AST], bool]) -> None:
        self._starts = sorted((node.lineno, node.col_offset) for node in nodes if wanted(node))  # type: ignore[attr-defined]

    def has_any_inside(self, node: ast.AST) -> bool:
        return self.has_any_between(_start_position(node), _end_position(node))

    def has_any_between(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        found = bisect_left(self._starts, start)
        return found < len(self._starts) and self._starts[found] < end


def _start_position(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end_position(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


class LazinessCheck:
    """Says where a program would notice that Monty makes lists."""

    def __init__(self, source: "ProgramSource", ours: set[str], roots: dict[int, str], modules: set[str]) -> None:
        self.source, self.operation_roots, self.chain_roots, self.modules = source, ours, roots, modules
        self.rewritten_ids = {id(generator) for _, generator in source.short_circuits}

    def find_reason(self) -> str:
        for node in self.source.nodes:
            if isinstance(node, ast.GeneratorExp):
                why = "" if id(node) in self.rewritten_ids else self._check_use(node)
            elif isinstance(node, ast.Call):
                name = self._builtin_name(node.func)
                why = (
                    self._check_use(node) if name in LAZY_BUILTINS else self._check_next(node) if name == "next" else ""
                )
            elif isinstance(node, ast.Name) and self._builtin_name(node) in LAZY_BUILTINS:
                parent = self.parents.get(id(node))
                why = "" if isinstance(parent, ast.Call) and parent.func is node else f"{node.id} as a value"
            else:
                continue
            if why:
                return why
        return ""

    @cached_property
    def parents(self) -> dict[int, ast.AST]:
        return {id(child): node for node in self.source.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def noticeable_calls(self) -> _NodePositions:
        """Calls that somebody may notice."""
        return _NodePositions(self.source.nodes, self._is_noticeable)

    @cached_property
    def own_calls(self) -> _NodePositions:
        """Calls of functions that the program defines, which may change what it has."""
        return _NodePositions(self.source.nodes, lambda one: isinstance(one, ast.Call) and not self._is_known_call(one))

    @cached_property
    def endless_calls(self) -> _NodePositions:
        endless = ("count", "cycle", "repeat")
        return _NodePositions(
            self.source.nodes, lambda one: isinstance(one, ast.Call) and _last_name(one.func) in endless
        )

    @cached_property
    def returned_ids(self) -> set[int]:
        return {id(one) for one in self.source.returns}

    @cached_property
    def holds_iterator(self) -> bool:
        """Tell whether the program holds an iterator by its name."""
        for node in self.source.nodes:
            if isinstance(node, ast.Call) and self._builtin_name(node.func) == "iter":
                parent = self.parents[id(node)]
                if not (isinstance(parent, ast.Call) and self._builtin_name(parent.func) == "next"):
                    return True
        return False

    @cached_property
    def store_positions(self) -> dict[str, list[tuple[int, int]]]:
        """Where a name is given a value."""
        found: dict[str, list[tuple[int, int]]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(_start_position(node))
        return {name: sorted(places) for name, places in found.items()}

    @cached_property
    def change_positions(self) -> dict[str, list[tuple[tuple[int, int], ast.AST]]]:
        """Where what a name stands for is changed."""
        found: dict[str, list[tuple[tuple[int, int], ast.AST]]] = {}
        for node in self.source.nodes:
            inner: ast.AST | None = None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _MUTATING_METHODS
            ):
                inner = node.func.value
            elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                inner = node
            if inner is not None and (name := _root_name(inner)):
                found.setdefault(name, []).append((_start_position(node), node))
        return {name: sorted(places, key=lambda pair: pair[0]) for name, places in found.items()}

    def _builtin_name(self, node: ast.AST) -> str:
        named = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.source.bound_names
        return node.id if named and hasattr(builtins, node.id) else ""  # type: ignore[attr-defined]

    def _is_known_call(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Name):
            return bool(self._builtin_name(node.func)) or node.func.id in self.operation_roots
        return isinstance(node.func, ast.Attribute)

    def _is_noticeable(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return _binds_or_suspends(node)
        if isinstance(node.func, ast.Attribute):
            root = self.chain_roots.get(id(node.func), "")
            if root in self.operation_roots:
                return True
            return node.func.attr not in _PURE_METHODS and root not in self.modules
        return self._builtin_name(node.func) not in _PURE_BUILTINS

    def _is_unnoticed(self, node: ast.AST) -> bool:
        """Tell whether nobody notices when its values are made; what it goes through is made at once in any case."""
        if isinstance(node, ast.GeneratorExp):
            over = node.generators[0].iter
            return not (
                self.noticeable_calls.has_any_inside(node.elt)
                or self.noticeable_calls.has_any_between(_end_position(over), _end_position(node))
            )
        assert isinstance(node, ast.Call)
        if self._builtin_name(node.func) not in ("map", "filter") or not node.args:
            return True
        function = node.args[0]
        if isinstance(function, ast.Lambda):
            return not self.noticeable_calls.has_any_inside(function)
        return isinstance(function, ast.Constant) or self._builtin_name(function) in _PURE_BUILTINS

    def _check_next(self, node: ast.Call) -> str:
        given = node.args[0] if node.args else None
        if given is None or id(given) in self.rewritten_ids:
            return ""
        return "" if isinstance(given, ast.Call) and self._builtin_name(given.func) == "iter" else "next()"

    def _check_use(self, node: ast.expr) -> str:
        """Say why a lazy value has to be lazy, by what is done with it."""
        what = "a generator" if isinstance(node, ast.GeneratorExp) else f"{_last_name(node.func)}()"  # type: ignore[attr-defined]
        if what not in ("a generator", "zip()") and self.endless_calls.has_any_inside(node):
            return f"{what} over something endless"
        parent = self.parents[id(node)]
        if isinstance(parent, ast.keyword):
            parent = self.parents[id(parent)]
        if isinstance(parent, ast.Call):
            return "" if parent.func is not node and self._is_consumed_by(node, parent) else f"{what} that is passed on"
        if isinstance(parent, ast.For) and parent.iter is node:
            calm = not self.holds_iterator and self._is_undisturbed(
                node, parent.target, _start_position(parent.body[0]), _end_position(parent)
            )
            return "" if calm else f"a loop over {what}"
        if isinstance(parent, ast.comprehension):
            whole = self.parents[id(parent)]
            calm = self._is_undisturbed(node, parent.target, _start_position(whole), _end_position(whole), bound=False)
            return "" if parent.iter is node and calm else f"a loop over {what}"
        return "" if self._is_taken_at_once(node, parent) else f"{what} that is kept"

    def _is_taken_at_once(self, node: ast.expr, parent: ast.AST) -> bool:
        """Tell whether all of it is taken at once, other than by a call."""
        if isinstance(parent, ast.Starred):
            return True
        if isinstance(parent, ast.Assign):
            return len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Tuple | ast.List)
        if isinstance(parent, ast.Expr):
            return parent is self.source.tree.body[-1]
        if isinstance(parent, ast.Return):
            return id(parent) in self.returned_ids
        if isinstance(parent, ast.Compare):
            return (
                parent.left is not node and isinstance(parent.ops[-1], ast.In | ast.NotIn) and self._is_unnoticed(node)
            )
        return False

    def _is_consumed_by(self, node: ast.expr, call: ast.Call) -> bool:
        """Tell whether a call takes all of it, or takes it in a way that nobody notices."""
        name = self._builtin_name(call.func)
        if name in _EXHAUSTING_BUILTINS:
            return True
        if name in ("any", "all") or name in LAZY_BUILTINS:
            return self._is_unnoticed(node)
        if isinstance(call.func, ast.Name):
            imported = call.func.id in self.source.definitions
            if (
                call.func.id in self.operation_roots
                or self._is_parallel(call.func.id)
                or (imported and call.func.id in _EXHAUSTING_IMPORTS)
            ):
                return True
            return imported and call.func.id in _ITERTOOLS_NAMES and self._is_unnoticed(node)
        if not isinstance(call.func, ast.Attribute):
            return False
        method, root = call.func.attr, self.chain_roots.get(id(call.func), "")
        if root in self.operation_roots:
            return True
        if root in self.modules:
            return method in _EXHAUSTING_IMPORTS or (method in _ITERTOOLS_NAMES and self._is_unnoticed(node))
        if method == "from_iterable":
            return self._is_unnoticed(node)
        return method in _EXHAUSTING_METHODS and _root_name(call.func.value) not in set(_iter_read_names(node))

    def _is_parallel(self, name: str) -> bool:
        return name == "parallel" and name not in self.source.bound_names

    def _is_undisturbed(
        self, node: ast.expr, target: ast.expr, start: tuple[int, int], end: tuple[int, int], *, bound: bool = True
    ) -> bool:
        """Tell whether a loop changes nothing that its values are made from."""
        if not self._is_unnoticed(node):
            return False
        late = isinstance(node, ast.GeneratorExp) or (
            isinstance(node, ast.Call) and any(isinstance(one, ast.Lambda) for one in node.args)
        )
        if late and self.own_calls.has_any_between(start, end):
            return False
        first = target.elts[0] if isinstance(target, ast.Tuple | ast.List) and target.elts else target
        for name in set(_iter_read_names(node)):
            stored = self.store_positions.get(name, []) if late and bound else []
            at = bisect_left(stored, start)
            if at < len(stored) and stored[at] < end:
                return False
            places = self.change_positions.get(name, [])
            for place, change in places[bisect_left(places, start, key=lambda pair: pair[0]) :]:
                if place >= end:
                    break
                if not _is_current_item(change, first):
                    return False
        return True


def _is_current_item(change: ast.AST, first: ast.expr) -> bool:
    """Tell whether this is `xs[i] = ...` in `for i, x in enumerate(xs)`."""
    at = change.slice if isinstance(change, ast.Subscript) and isinstance(change.value, ast.Name) else None
    return isinstance(at, ast.Name) and isinstance(first, ast.Name) and at.id == first.id


def _iter_read_names(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def _root_name(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
