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
    from athena.programs.sandbox.source import Source


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FIRSTS = frozenset({"any", "all", "next"})
LAZY = frozenset({"map", "filter", "zip", "enumerate", "reversed"})
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# They take all there is, in order, and do nothing in between.
_FULL = frozenset({"list", "tuple", "set", "frozenset", "dict", "sum", "max", "min", "sorted"})
_FULL_IMPORTED = frozenset({"Counter", "deque", "fsum", "prod"})
_FULL_METHODS = frozenset({"join", "extend", "update"})
_ITERTOOLS = _words(
    """accumulate chain from_iterable combinations compress dropwhile filterfalse groupby islice pairwise permutations
    product starmap takewhile zip_longest"""
)
# What may be called early or in vain: it changes nothing, and nobody sees it.
_PURE = _words(
    """abs bool bytes chr dict divmod float format frozenset hash hex int isinstance len list max min oct ord pow range
    repr round set sorted str sum tuple type zip enumerate reversed map filter any all"""
)
_CHANGING = _words(
    """add append appendleft clear difference_update discard extend insert intersection_update pop popitem popleft
    remove reverse setdefault sort symmetric_difference_update update"""
)
_PURE_METHODS = (
    frozenset(name for kind in (str, bytes, list, dict, set) for name in dir(kind) if not name.startswith("_"))
    | {"group", "groups", "isoformat", "strftime", "date", "days", "total_seconds"}
) - _CHANGING


def firsts(tree: ast.Module, nodes: list[ast.AST], bound: set[str]) -> list[tuple[ast.Call, ast.GeneratorExp]]:
    """Find the generators of which `any`, `all` or `next` takes what it needs, where they can be rewritten."""
    if not FIRSTS - bound:
        return []
    unfit, barred = _Places(nodes, _binds), _barred(tree)
    found = []
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or id(node) in barred:
            continue
        name, given = node.func.id, node.args
        most = 2 if name == "next" else 1
        if name not in FIRSTS - bound or node.keywords or not 0 < len(given) <= most:
            continue
        first = given[0]
        if isinstance(first, ast.GeneratorExp) and not isinstance(given[-1], ast.Starred) and not unfit.inside(first):
            found.append((node, first))
    return found


def _binds(node: ast.AST) -> bool:
    return isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom)


def _barred(tree: ast.Module) -> set[int]:
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


class _Places:
    """Where some nodes are, to be asked often."""

    def __init__(self, nodes: list[ast.AST], wanted: Callable[[ast.AST], bool]) -> None:
        self._starts = sorted((node.lineno, node.col_offset) for node in nodes if wanted(node))  # type: ignore[attr-defined]

    def inside(self, node: ast.AST) -> bool:
        return self.between(_start(node), _end(node))

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        found = bisect_left(self._starts, start)
        return found < len(self._starts) and self._starts[found] < end


def _start(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.col_offset  # type: ignore[attr-defined]


def _end(node: ast.AST) -> tuple[int, int]:
    return node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]


class Reader:
    """Says where a program would notice that Monty makes lists."""

    def __init__(self, source: "Source", ours: set[str], roots: dict[int, str], modules: set[str]) -> None:
        self.source, self.ours, self.roots, self.modules = source, ours, roots, modules
        self.rewritten = {id(generator) for _, generator in source.firsts}

    def reason(self) -> str:
        for node in self.source.nodes:
            if isinstance(node, ast.GeneratorExp):
                why = "" if id(node) in self.rewritten else self._used(node)
            elif isinstance(node, ast.Call):
                name = self._built_in(node.func)
                why = self._used(node) if name in LAZY else self._next(node) if name == "next" else ""
            elif isinstance(node, ast.Name) and self._built_in(node) in LAZY:
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
    def loud(self) -> _Places:
        """Calls that somebody may notice."""
        return _Places(self.source.nodes, self._is_loud)

    @cached_property
    def own(self) -> _Places:
        """Calls of functions that the program defines, which may change what it has."""
        return _Places(self.source.nodes, lambda one: isinstance(one, ast.Call) and not self._is_known(one))

    @cached_property
    def endless(self) -> _Places:
        endless = ("count", "cycle", "repeat")
        return _Places(self.source.nodes, lambda one: isinstance(one, ast.Call) and _last(one.func) in endless)

    @cached_property
    def returned(self) -> set[int]:
        return {id(one) for one in self.source.returns}

    @cached_property
    def iterates(self) -> bool:
        """Tell whether the program holds an iterator by its name."""
        for node in self.source.nodes:
            if isinstance(node, ast.Call) and self._built_in(node.func) == "iter":
                parent = self.parents[id(node)]
                if not (isinstance(parent, ast.Call) and self._built_in(parent.func) == "next"):
                    return True
        return False

    @cached_property
    def stores(self) -> dict[str, list[tuple[int, int]]]:
        """Where a name is given a value."""
        found: dict[str, list[tuple[int, int]]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(_start(node))
        return {name: sorted(places) for name, places in found.items()}

    @cached_property
    def changes(self) -> dict[str, list[tuple[tuple[int, int], ast.AST]]]:
        """Where what a name stands for is changed."""
        found: dict[str, list[tuple[tuple[int, int], ast.AST]]] = {}
        for node in self.source.nodes:
            inner: ast.AST | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
                inner = node.func.value
            elif isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
                inner = node
            if inner is not None and (name := _root(inner)):
                found.setdefault(name, []).append((_start(node), node))
        return {name: sorted(places, key=lambda pair: pair[0]) for name, places in found.items()}

    def _built_in(self, node: ast.AST) -> str:
        named = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in self.source.bound
        return node.id if named and hasattr(builtins, node.id) else ""  # type: ignore[attr-defined]

    def _is_known(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Name):
            return bool(self._built_in(node.func)) or node.func.id in self.ours
        return isinstance(node.func, ast.Attribute)

    def _is_loud(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return _binds(node)
        if isinstance(node.func, ast.Attribute):
            root = self.roots.get(id(node.func), "")
            if root in self.ours:
                return True
            return node.func.attr not in _PURE_METHODS and root not in self.modules
        return self._built_in(node.func) not in _PURE

    def _quiet(self, node: ast.AST) -> bool:
        """Tell whether nobody notices when its values are made; what it goes through is made at once in any case."""
        if isinstance(node, ast.GeneratorExp):
            over = node.generators[0].iter
            return not (self.loud.inside(node.elt) or self.loud.between(_end(over), _end(node)))
        assert isinstance(node, ast.Call)
        if self._built_in(node.func) not in ("map", "filter") or not node.args:
            return True
        function = node.args[0]
        if isinstance(function, ast.Lambda):
            return not self.loud.inside(function)
        return isinstance(function, ast.Constant) or self._built_in(function) in _PURE

    def _next(self, node: ast.Call) -> str:
        given = node.args[0] if node.args else None
        if given is None or id(given) in self.rewritten:
            return ""
        return "" if isinstance(given, ast.Call) and self._built_in(given.func) == "iter" else "next()"

    def _used(self, node: ast.expr) -> str:
        """Say why a lazy value has to be lazy, by what is done with it."""
        what = "a generator" if isinstance(node, ast.GeneratorExp) else f"{_last(node.func)}()"  # type: ignore[attr-defined]
        if what not in ("a generator", "zip()") and self.endless.inside(node):
            return f"{what} over something endless"
        parent = self.parents[id(node)]
        if isinstance(parent, ast.keyword):
            parent = self.parents[id(parent)]
        if isinstance(parent, ast.Call):
            return "" if parent.func is not node and self._given(node, parent) else f"{what} that is passed on"
        if isinstance(parent, ast.For) and parent.iter is node:
            calm = not self.iterates and self._undisturbed(node, parent.target, _start(parent.body[0]), _end(parent))
            return "" if calm else f"a loop over {what}"
        if isinstance(parent, ast.comprehension):
            whole = self.parents[id(parent)]
            calm = self._undisturbed(node, parent.target, _start(whole), _end(whole), bound=False)
            return "" if parent.iter is node and calm else f"a loop over {what}"
        return "" if self._taken(node, parent) else f"{what} that is kept"

    def _taken(self, node: ast.expr, parent: ast.AST) -> bool:
        """Tell whether all of it is taken at once, other than by a call."""
        if isinstance(parent, ast.Starred):
            return True
        if isinstance(parent, ast.Assign):
            return len(parent.targets) == 1 and isinstance(parent.targets[0], ast.Tuple | ast.List)
        if isinstance(parent, ast.Expr):
            return parent is self.source.tree.body[-1]
        if isinstance(parent, ast.Return):
            return id(parent) in self.returned
        if isinstance(parent, ast.Compare):
            return parent.left is not node and isinstance(parent.ops[-1], ast.In | ast.NotIn) and self._quiet(node)
        return False

    def _given(self, node: ast.expr, call: ast.Call) -> bool:
        """Tell whether a call takes all of it, or takes it in a way that nobody notices."""
        name = self._built_in(call.func)
        if name in _FULL:
            return True
        if name in ("any", "all") or name in LAZY:
            return self._quiet(node)
        if isinstance(call.func, ast.Name):
            imported = call.func.id in self.source.definitions
            if (
                call.func.id in self.ours
                or self._is_parallel(call.func.id)
                or (imported and call.func.id in _FULL_IMPORTED)
            ):
                return True
            return imported and call.func.id in _ITERTOOLS and self._quiet(node)
        if not isinstance(call.func, ast.Attribute):
            return False
        method, root = call.func.attr, self.roots.get(id(call.func), "")
        if root in self.ours:
            return True
        if root in self.modules:
            return method in _FULL_IMPORTED or (method in _ITERTOOLS and self._quiet(node))
        if method == "from_iterable":
            return self._quiet(node)
        return method in _FULL_METHODS and _root(call.func.value) not in set(_read(node))

    def _is_parallel(self, name: str) -> bool:
        return name == "parallel" and name not in self.source.bound

    def _undisturbed(
        self, node: ast.expr, target: ast.expr, start: tuple[int, int], end: tuple[int, int], *, bound: bool = True
    ) -> bool:
        """Tell whether a loop changes nothing that its values are made from."""
        if not self._quiet(node):
            return False
        late = isinstance(node, ast.GeneratorExp) or (
            isinstance(node, ast.Call) and any(isinstance(one, ast.Lambda) for one in node.args)
        )
        if late and self.own.between(start, end):
            return False
        first = target.elts[0] if isinstance(target, ast.Tuple | ast.List) and target.elts else target
        for name in set(_read(node)):
            stored = self.stores.get(name, []) if late and bound else []
            at = bisect_left(stored, start)
            if at < len(stored) and stored[at] < end:
                return False
            places = self.changes.get(name, [])
            for place, change in places[bisect_left(places, start, key=lambda pair: pair[0]) :]:
                if place >= end:
                    break
                if not _at_hand(change, first):
                    return False
        return True


def _at_hand(change: ast.AST, first: ast.expr) -> bool:
    """Tell whether this is `xs[i] = ...` in `for i, x in enumerate(xs)`."""
    at = change.slice if isinstance(change, ast.Subscript) and isinstance(change.value, ast.Name) else None
    return isinstance(at, ast.Name) and isinstance(first, ast.Name) and at.id == first.id


def _read(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
