"""The source of a program: parsed once, and rewritten for Monty. Nothing here runs it."""

import ast
import builtins
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from athena.core.python_source import CostlySource, parse_python
from athena.programs.sandbox.values import ProgramRejected, create_failure

Span = tuple[int, int]  # in bytes, as Monty counts
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPE_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_CAP_PREFIX, _WRAP_SUFFIX = b"cap__((", b"))"
_ARGUMENT_PREFIX = b"arg__(("
_WAIT_PREFIX, _WAIT_ALL_PREFIX = b"wait__((", b"waits__(("
_SANDBOX_NAMES = {"cap__", "arg__", "keep__", "parallel__", "ready__", "wait__", "waits__"}
# Exceptions leave the worker with their text.
_BUILTIN_NAMES = frozenset(
    name for name, kind in vars(builtins).items() if not (isinstance(kind, type) and issubclass(kind, BaseException))
)
# Of plain values, which are called often. Of operations only `skills.find` has such a name.
PLAIN_METHODS = frozenset(name for kind in (str, list, dict, set, bytes) for name in dir(kind)) - {"find"}


@dataclass(frozen=True, slots=True)
class ConcurrentSpans:
    """The spans of concurrent calls: those that are awaited, and the elements of `parallel([...])`."""

    awaited: frozenset[Span] = field(default=frozenset())
    parallel: frozenset[Span] = field(default=frozenset())

    def to_json(self) -> list[list[Span]]:
        return [sorted(self.awaited), sorted(self.parallel)]

    @classmethod
    def from_json(cls, value: list[list[list[int]]]) -> "ConcurrentSpans":
        awaited, parallel = ([(span[0], span[1]) for span in spans] for spans in value)
        return cls(frozenset(awaited), frozenset(parallel))


class ProgramSource:
    """A program's text and its syntax tree."""

    def __init__(self, text: str, max_bytes: int) -> None:
        encoded = text.encode("utf-8", "replace")
        if len(encoded) > max_bytes:
            # Parsing megabytes of hostile source takes seconds and much memory.
            message = f"the program has {len(encoded):,} bytes, more than {max_bytes:,}"
            hint = "pass data as variables or files, not as source"
            raise ProgramRejected(create_failure("SyntaxError", message, hint=hint, limit="source_bytes"))
        self.text = encoded.decode()
        self.encoded = encoded
        self.tree = _parse_program(self.text)
        self.nodes = list(ast.walk(self.tree))
        if self.bound_names & _SANDBOX_NAMES:
            raise ProgramRejected(
                create_failure("SyntaxError", f"{min(self.bound_names & _SANDBOX_NAMES)} is reserved by the sandbox")
            )

    @cached_property
    def _line_offsets(self) -> list[int]:
        starts = [0]
        for line in self.encoded.splitlines(keepends=True):  # bytes split only at the line ends that the parser knows
            starts.append(starts[-1] + len(line))
        return starts

    def get_span(self, node: ast.AST) -> Span:
        """Return the span of a node in bytes."""
        start = self._line_offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._line_offsets[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end

    @cached_property
    def bound_names(self) -> set[str]:
        """Every name that the program binds anywhere."""
        return {name for node in self.nodes for name in _iter_bound_names(node)}

    def _iter_top_level(self) -> Iterator[ast.AST]:
        """Yield the nodes outside of functions, classes and comprehensions, in order."""
        todo: list[ast.AST] = list(reversed(self.tree.body))
        while todo:
            node = todo.pop()
            yield node
            if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
                todo += [inner.target for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr)]
            elif not isinstance(node, _SCOPE_NODES):
                todo += reversed(list(ast.iter_child_nodes(node)))

    @cached_property
    def top_level_names(self) -> list[str]:
        """The variables after the run: names bound outside of functions and classes."""
        names = dict.fromkeys(name for node in self._iter_top_level() for name in _iter_bound_names(node))
        for node in self.nodes:
            if isinstance(node, ast.Global):
                names.update(dict.fromkeys(node.names))
        return [name for name in names if not name.startswith("__") and name != "*"]

    def list_hidden(self, roots: set[str]) -> tuple[str, ...]:
        """List the variables that hide a namespace in this run and are not kept for the next."""
        return tuple(f"{name} (the name of a category)" for name in self.top_level_names if name in roots)

    @cached_property
    def used_names(self) -> set[str]:
        return {node.id for node in self.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}

    @cached_property
    def definitions(self) -> dict[str, str]:
        """The source of imports, and of functions and classes whose definition has no side effect, by name."""
        sources: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, text in _iter_imports(node):
                    together = "." in text and sources.get(name, "").startswith("import ")  # `import a.b, a.c`
                    sources[name] = f"{sources[name]}\n{text}" if together else text
            elif isinstance(node, FunctionNode | ast.ClassDef) and _only_defines(node):
                start, end = self.get_span(node)
                sources[node.name] = self.encoded[start:end].decode()
        return sources

    @cached_property
    def lasting_definitions(self) -> dict[str, str]:
        """The definitions of names that nothing else in the program binds: their sources say what the names are."""
        declared = {name for node in self.nodes if isinstance(node, ast.Global) for name in node.names}
        counts = Counter(
            name
            for node in self._iter_top_level()
            for name in {*_iter_bound_names(node)}
            if not isinstance(node, ast.alias) or not self.definitions.get(name, "").startswith(("import ", "from "))
        )
        is_import = {name: text.startswith(("import ", "from ")) for name, text in self.definitions.items()}
        return {
            name: text
            for name, text in self.definitions.items()
            if name not in declared and counts[name] == (0 if is_import[name] else 1)
        }

    # --- rewritten for Monty -------------------------------------------------------------------------------------

    @cached_property
    def _insertions(self) -> list[tuple[int, bytes]]:
        """The texts to insert, with their byte offsets."""
        insertions: list[tuple[int, int, int, bytes]] = []  # at one offset: ends before starts, the innermost last
        for start, end, before, after in self._iter_wraps():
            insertions += [(start, 1, -end, before), (end, 0, -start, after)]
        return [(offset, text) for offset, _, _, text in sorted(insertions)]

    def _iter_wraps(self) -> Iterator[tuple[int, int, bytes, bytes]]:
        last = self.tree.body[-1] if self.tree.body else None
        wrapped = [last] if isinstance(last, ast.Expr) else []
        for node in (*wrapped, *(statement.value for statement in self.returns if statement.value is not None)):
            yield (
                *self.get_span(node),
                _CAP_PREFIX,
                _WRAP_SUFFIX,
            )  # the program's value is cut before it leaves the worker
        for node in self._iter_arguments():
            yield *self.get_span(node), _ARGUMENT_PREFIX, _WRAP_SUFFIX
        for node in self._iter_awaited():
            inner = node.value if isinstance(node, ast.Starred) else node
            yield (
                *self.get_span(inner),
                _WAIT_ALL_PREFIX if isinstance(node, ast.Starred) else _WAIT_PREFIX,
                _WRAP_SUFFIX,
            )

    def _iter_awaited(self) -> Iterator[ast.expr]:
        """Yield awaited expressions that may be plain values already, as results of operations are."""
        plain = {node.name for node in self.nodes if isinstance(node, ast.FunctionDef)}
        for node in self.nodes:
            awaited: list[ast.expr] = []
            if isinstance(node, ast.Await):
                awaited = [node.value]
            elif isinstance(node, ast.Call) and _called_name(node) == "gather":
                awaited = node.args
            for expression in awaited:
                if not isinstance(expression, ast.Call) or (
                    isinstance(expression.func, ast.Name) and expression.func.id in plain
                ):
                    yield expression
            function = node.func if isinstance(node, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr == "run" and isinstance(function.value, ast.Name):
                yield from node.args[:1] if function.value.id == "asyncio" else ()  # type: ignore[attr-defined]

    @cached_property
    def _insertion_offsets(self) -> tuple[list[int], list[int]]:
        """The offsets of all insertions, and the length of those before each."""
        lengths = accumulate((len(text) for _, text in self._insertions), initial=0)
        return [offset for offset, _ in self._insertions], list(lengths)

    def _iter_arguments(self) -> Iterator[ast.expr]:
        """Yield possible arguments of operations: Monty measures them before the host gets them.

        A name with a value may stand for an operation, and so may every attribute but the methods of plain values.
        """
        for node in self.nodes:
            if not isinstance(node, ast.Call) or not self._may_cross(node.func):
                continue
            for argument in (*node.args, *(word.value for word in node.keywords)):
                value = argument.value if isinstance(argument, ast.Starred) else argument
                if not isinstance(value, ast.Constant | ast.JoinedStr | ast.GeneratorExp | ast.Lambda):
                    yield value

    def _may_cross(self, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return function.id not in self._local_names
        if not isinstance(function, ast.Attribute):
            return True
        if isinstance(function.value, ast.Name):
            if function.value.id in self._local_names:  # a module or a class
                return False
            if function.value.id not in self.bound_names:  # a namespace
                return True
        return function.attr not in PLAIN_METHODS

    @cached_property
    def _local_names(self) -> set[str]:
        """Names that cannot be operations: builtins, modules and the program's own functions."""
        assigned: set[str] = set()
        defined: set[str] = set()
        for node in self.nodes:
            (defined if isinstance(node, FunctionNode | ast.ClassDef | ast.alias) else assigned).update(
                _iter_bound_names(node)
            )
        return (defined | _BUILTIN_NAMES) - assigned

    @cached_property
    def returns(self) -> list[ast.Return]:
        """The return statements outside of functions."""
        statements: list[ast.Return] = []
        todo: list[ast.AST] = [self.tree] if any(isinstance(node, ast.Return) for node in self.nodes) else []
        while todo:
            node = todo.pop()
            if isinstance(node, ast.Return):
                statements.append(node)
            elif not isinstance(node, _SCOPE_NODES):
                todo += ast.iter_child_nodes(node)
        return statements

    def to_monty_source(self) -> str:
        """Return the source with all insertions."""
        if not self.tree.body:  # Monty does not count an empty source
            return "pass"
        parts, last = [], 0
        for offset, inserted in self._insertions:
            parts += [self.encoded[last:offset], inserted]
            last = offset
        return b"".join([*parts, self.encoded[last:]]).decode()

    @cached_property
    def concurrent_spans(self) -> ConcurrentSpans:
        """The spans of concurrent calls in `to_monty_source`."""
        awaited: set[Span] = set()
        parallel: set[Span] = set()
        for node in self.nodes:
            if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
                awaited.add(self._shift_span(node.value))
            elif isinstance(node, ast.Call) and _called_name(node) in ("parallel", "gather"):
                spans = parallel if _called_name(node) == "parallel" else awaited
                parts = [part for argument in node.args for part in _split_lists(argument)]
                spans.update(self._shift_span(call) for part in parts for call in iter_direct_calls(part))
        return ConcurrentSpans(frozenset(awaited), frozenset(parallel))

    def _shift_span(self, node: ast.AST) -> Span:
        start, end = self.get_span(node)
        places, lengths = self._insertion_offsets
        return start + lengths[bisect_right(places, start)], end + lengths[bisect_left(places, end)]


def _parse_program(text: str) -> ast.Module:
    try:
        return parse_python(text)
    except CostlySource as error:
        raise ProgramRejected(create_failure("SyntaxError", str(error), hint="no program needs that")) from None
    except SyntaxError as error:
        raise ProgramRejected(create_failure("SyntaxError", error.msg or "invalid syntax", error.lineno)) from None
    except (ValueError, RecursionError, MemoryError) as error:
        message = f"the program cannot be parsed: {type(error).__name__} {error}".strip()
        raise ProgramRejected(
            create_failure("SyntaxError", message, hint="it is nested too deeply or holds a zero byte")
        ) from None


def _iter_bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node itself binds."""
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
    elif isinstance(node, FunctionNode | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _iter_imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Yield each imported name with an import statement for it alone."""
    start = "import" if isinstance(node, ast.Import) else f"from {'.' * node.level}{node.module or ''} import"
    for alias in node.names:
        if alias.name != "*":
            renamed = f" as {alias.asname}" if alias.asname else ""
            yield (alias.asname or alias.name).partition(".")[0], f"{start} {alias.name}{renamed}"


def _only_defines(node: FunctionNode | ast.ClassDef) -> bool:
    if node.decorator_list:
        return False
    if isinstance(node, ast.ClassDef):
        calm = FunctionNode | ast.Pass | ast.AnnAssign | ast.Assign | ast.Expr
        return (
            not node.keywords
            and all(
                isinstance(inner, calm) and (not isinstance(inner, FunctionNode) or _only_defines(inner))
                for inner in node.body
            )
            and not any(
                isinstance(inner, ast.Call)
                for part in node.body
                if not isinstance(part, FunctionNode)
                for inner in ast.walk(part)
            )
        )
    defaults = [*node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
    return not any(isinstance(inner, ast.Call) for value in defaults for inner in ast.walk(value))


def _called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Name):
        return node.func.id
    # asyncio.gather; a method called `parallel` is not the sandbox's
    return node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr == "gather" else ""


def _split_lists(node: ast.expr) -> list[ast.expr]:
    """Return the lists of `[f] * 2 + [g]`."""
    todo, lists = [node], []
    while todo:
        part = todo.pop()
        if isinstance(part, ast.BinOp):  # a sum of a thousand lists is as many levels deep
            todo += [part.right, part.left]
        else:
            lists.append(part)
    return lists


def iter_direct_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls whose value is itself an element, not those inside of an argument or an expression."""
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Call):
            yield part
        elif isinstance(part, ast.Lambda):  # only `parallel` can call it
            todo += [part.body] if isinstance(part.body, ast.Call) else []
        elif isinstance(part, ast.List | ast.Tuple | ast.Set):
            todo += reversed(part.elts)
        elif isinstance(part, ast.ListComp | ast.GeneratorExp):
            todo.append(part.elt)
        elif isinstance(part, ast.Dict):
            todo += reversed(part.values)
        elif isinstance(part, ast.DictComp | ast.Starred):
            todo.append(part.value)
        elif isinstance(part, ast.IfExp):
            todo += [part.orelse, part.body]
