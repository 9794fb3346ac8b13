"""Names that a program uses and that stand for nothing: nowhere in it, not kept from before, not ours, not Python's."""

import ast
import builtins
from collections.abc import Collection, Iterator

from athena.programs.sandbox.names import RESERVED_NAMES, Namespace
from athena.programs.sandbox.source import ProgramSource

# With one of these a program can give a name a value that cannot be read from its text.
_UNREADABLE_NAMES = frozenset(
    ("exec", "eval", "compile", "globals", "locals", "vars", "dir", "setattr", "__import__", "__builtins__", "__exit__")
)
_UNREADABLE_MODULES = frozenset(
    ("builtins", "__main__", "importlib", "inspect", "ctypes", "gc", "code", "codeop", "runpy")
)
_UNREADABLE_ATTRIBUTES = frozenset({"modules", "_getframe", "__dict__", "__globals__", "f_globals", "f_locals"})
_TYPE_PARAMETER_NODES = tuple(getattr(ast, name) for name in ("TypeVar", "TypeAlias") if hasattr(ast, name))
_NAME_ERROR_CATCHERS = frozenset({"NameError", "Exception", "BaseException", "UnboundLocalError"})
_OTHER_EXCEPTIONS = frozenset(name for name in vars(builtins) if name.endswith(("Error", "Warning", "Iteration"))) | {
    "ToolError"
}
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def find_unbound_names(source: ProgramSource, names: Namespace, known: Collection[str]) -> Iterator[ast.Name]:
    """Yield where each such name is used first; nothing where that cannot be told for certain."""
    if any(map(_is_unreadable, source.nodes)):
        return
    bound = source.bound_names | names.roots | RESERVED_NAMES | set(known)
    found = [one for one in _iter_name_uses(source.tree) if one[0].id not in bound and not _is_builtin(one[0].id)]
    expected = any(_expects_failure(node) for node in source.nodes) if found else False
    seen: set[str] = set()
    for name, guarded, inner in sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset)):
        # A function may be called where its failure is caught.
        if not guarded and not (inner and expected) and name.id not in seen:
            seen.add(name.id)
            yield name


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name) or name.endswith("__")


def _is_unreadable(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id in _UNREADABLE_NAMES
    if isinstance(node, ast.Attribute):
        return node.attr in _UNREADABLE_ATTRIBUTES
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name in _UNREADABLE_NAMES
    if isinstance(node, ast.alias):
        return node.name == "*" or node.name.partition(".")[0] in _UNREADABLE_MODULES
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in _UNREADABLE_MODULES
    return isinstance(node, _TYPE_PARAMETER_NODES)


def _iter_name_uses(tree: ast.Module) -> Iterator[tuple[ast.Name, bool, bool]]:
    """Yield every use of a name: whether its failure is caught there, and whether it is inside of a function.

    Annotations are left out: one of the engines never looks at them.
    """
    todo: list[tuple[ast.AST, bool, bool]] = [(tree, False, False)]
    while todo:
        node, guarded, inner = todo.pop()
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                yield node, guarded, inner
            continue
        inner = inner or isinstance(node, _FUNCTION_NODES)
        within = set(map(id, node.body)) if _expects_failure(node) else ()  # type: ignore[attr-defined]
        left_out = (getattr(node, "annotation", None), getattr(node, "returns", None))
        todo += [
            (child, guarded or id(child) in within, inner)
            for child in ast.iter_child_nodes(node)
            if child not in left_out
        ]


def _expects_failure(node: ast.AST) -> bool:
    """Tell whether what stands in a block may fail for want of a name without ending the program."""
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        return any(_may_catch_name_error(one.type) for one in node.handlers)  # type: ignore[attr-defined]
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(isinstance(one.context_expr, ast.Call) and not _is_open_call(one.context_expr) for one in node.items)
    return False


def _is_open_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "open"


def _may_catch_name_error(kind: ast.expr | None) -> bool:
    """Tell whether a handler may catch a NameError: by its name, or by one that could stand for anything."""
    if isinstance(kind, ast.Tuple):
        return any(map(_may_catch_name_error, kind.elts))
    if isinstance(kind, ast.Name):
        return kind.id in _NAME_ERROR_CATCHERS or kind.id not in _OTHER_EXCEPTIONS
    return not isinstance(kind, ast.Attribute)
