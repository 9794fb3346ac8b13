"""Certain errors of a program, found before it runs: wrong names, arguments and imports."""

import ast
import builtins
import sys
from collections.abc import Collection, Iterator
from itertools import chain, islice
from typing import Any

from athena.core.words import find_similar_names
from athena.programs.sandbox.monty.prelude import PARALLEL_USAGE as WRONG_PARALLEL
from athena.programs.sandbox.names import RESERVED_NAMES, Function, Namespace
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.values import Failure, create_failure

# With these a program can bind names that its syntax tree does not show.
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
    """Yield the first use of each unbound name; nothing if that is not certain."""
    if any(map(_is_unreadable, source.nodes)):
        return
    bound = source.bound_names | names.roots | RESERVED_NAMES | set(known)
    uses = [use for use in _iter_name_uses(source.tree) if use[0].id not in bound and not _is_builtin(use[0].id)]
    expected = any(_expects_failure(node) for node in source.nodes) if uses else False
    seen: set[str] = set()
    for name, guarded, inner in sorted(uses, key=lambda use: (use[0].lineno, use[0].col_offset)):
        # A function may be called inside of a try.
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
    """Yield every use of a name, whether a NameError is caught there, and whether it is inside of a function.

    Annotations do not count, because one of the engines never evaluates them.
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
    """Return whether a NameError in a block may be caught."""
    if isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
        return any(_may_catch_name_error(handler.type) for handler in node.handlers)  # type: ignore[attr-defined]
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(
            isinstance(item.context_expr, ast.Call) and not _is_open_call(item.context_expr) for item in node.items
        )
    return False


def _is_open_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "open"


def _may_catch_name_error(kind: ast.expr | None) -> bool:
    """Return whether a handler may catch a NameError: it names it, or a name that may be anything."""
    if isinstance(kind, ast.Tuple):
        return any(map(_may_catch_name_error, kind.elts))
    if isinstance(kind, ast.Name):
        return kind.id in _NAME_ERROR_CATCHERS or kind.id not in _OTHER_EXCEPTIONS
    return not isinstance(kind, ast.Attribute)


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_UNKNOWN_VALUE = object()
_MAX_PROBLEMS = 50


def find_problems(
    source: ProgramSource, names: Namespace, *, approvals: bool = True, known: Collection[str] | None = None
) -> list[Failure]:
    """Return the errors of a program, in the order of its lines.

    `approvals` says whether the run can wait for a person; `known` names the variables of earlier runs.
    """
    unbound = () if known is None else _check_unbound_names(source, names, known)
    problems = chain(
        _check_calls(source, names, approvals),
        _check_parallel_calls(source, names),
        _check_imports(source, names),
        unbound,
    )
    first_problems = list(islice(problems, _MAX_PROBLEMS))  # finding suggestions takes time
    return sorted(first_problems, key=lambda problem: problem["line"] or 0)


def dotted_name(node: ast.AST) -> str | None:
    """Return `a.b.c` for a chain of plain names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _check_calls(source: ProgramSource, names: Namespace, approvals: bool) -> Iterator[Failure]:
    roots = names.roots - source.bound_names  # a name that the program binds is no namespace
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        path = dotted_name(node.func)
        if path is None or path.partition(".")[0] not in roots:
            continue
        function = names.find(path)
        if function is None:
            if "." in path and path.rpartition(".")[0] != names.growing:
                message, hint = names.describe_unknown(path)
                yield create_failure("AttributeError", message, node.lineno, hint)
            continue
        if function.needs_approval and not approvals and not _is_dry_run(node):
            message = f"{path} may have to wait for a person's approval, and a skill that a program calls cannot wait"
            yield create_failure("ApprovalNeeded", message, node.lineno, "run the skill, or call it, outside")
        yield from _check_arguments(node, path, function)


def _check_unbound_names(source: ProgramSource, names: Namespace, known: Collection[str]) -> Iterator[Failure]:
    for node in find_unbound_names(source, names, known):
        if explanation := names.explain_unavailable(node.id):
            yield create_failure("NameError", explanation[0], node.lineno, explanation[1])
            continue
        hint = f"import {node.id} first" if node.id in sys.stdlib_module_names else names.note or None
        yield create_failure("NameError", f"name {node.id!r} is not defined", node.lineno, hint)


def _check_parallel_calls(source: ProgramSource, names: Namespace) -> Iterator[Failure]:
    """Find wrong calls of `parallel`, before their arguments are called."""
    for node in source.nodes:
        if not isinstance(node, ast.Call) or dotted_name(node.func) != "parallel" or "parallel" in source.bound_names:
            continue
        is_wrong = any(word.arg not in (None, "return_errors") for word in node.keywords)
        if not any(isinstance(argument, ast.Starred) for argument in node.args):
            is_wrong |= len(node.args) != 1 or _is_single_call(node.args[0], names)
        if is_wrong:
            hint = "write parallel([one(), other()]), with brackets"
            yield create_failure("TypeError", WRONG_PARALLEL, node.lineno, hint)


def _is_single_call(node: ast.expr, names: Namespace) -> bool:
    return isinstance(node, ast.Constant | ast.Lambda) or names.find(dotted_name(node) or "") is not None


def _is_dry_run(node: ast.Call) -> bool:
    return any(
        keyword.arg == "dry_run" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )


def _check_arguments(node: ast.Call, path: str, function: Function) -> Iterator[Failure]:
    order, hint = function.parameter_names, f"parameters: {function.format_signature()}"
    arguments: dict[str, ast.expr] = {}
    certain = not any(isinstance(value, ast.Starred) for value in node.args) and all(
        keyword.arg for keyword in node.keywords
    )
    for position, value in enumerate(node.args):
        if isinstance(value, ast.Starred):
            break
        if position >= len(order):
            yield create_failure("TypeError", f"{path} takes at most {len(order)} arguments", value.lineno, hint)
            break
        arguments[order[position]] = value
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        name = function.aliases.get(keyword.arg, keyword.arg)
        if name not in order and not function.accepts_extra:
            near = _suggest_parameters(
                keyword.arg, function, [*arguments, *(other.arg for other in node.keywords if other.arg)]
            )
            meant = f"did you mean {near[0]!r}? " if near else ""
            yield create_failure(
                "TypeError", f"{path} has no parameter {keyword.arg!r}", keyword.value.lineno, meant + hint
            )
            arguments.setdefault(near[0] if near else keyword.arg, keyword.value)
        elif name in arguments:
            yield create_failure("TypeError", f"{path} is given {name!r} twice", keyword.value.lineno, hint)
        else:
            arguments[name] = keyword.value
    missing = [name for name in function.required if name not in arguments]
    if certain and missing:
        yield create_failure("TypeError", f"{path} needs {', '.join(missing)}", node.lineno, hint)
    properties = function.parameters.get("properties", {})
    for name, value in arguments.items():
        if name in properties and (expected := _describe_mismatch(value, properties[name])):
            yield create_failure("TypeError", f"{path}: {name!r} must be {expected}", value.lineno, hint)


def _suggest_parameters(name: str, function: Function, argument_names: Collection[str]) -> list[str]:
    """Suggest a parameter for a wrong name, first among those that are missing."""
    missing = [parameter for parameter in function.required if parameter not in argument_names]
    near = find_similar_names(name, missing, 1, 0.4) or find_similar_names(name, function.parameter_names, 1, 0.5)
    return near or (missing if len(missing) == 1 else [])


def _describe_mismatch(node: ast.expr, schema: dict[str, Any]) -> str | None:
    """Describe the expected type if a literal argument cannot fit."""
    kind, value = _read_literal(node)
    if kind is None or any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref")):
        return None
    if "enum" in schema:
        if value is _UNKNOWN_VALUE or value in schema["enum"]:
            return None
        return f"one of {', '.join(map(repr, schema['enum']))}, not {value!r}"
    type_name = schema.get("type")
    if type_name is None:
        return None
    options = [type_name] if isinstance(type_name, str) else list(type_name)
    fits = [_PYTHON_TYPES[option] for option in options if option in _PYTHON_TYPES]
    if len(fits) < len(options) or any(kind in types and (kind is not bool or bool in types) for types in fits):
        return None
    value_text = "" if value is _UNKNOWN_VALUE else f" {value!r:.60}"
    return f"{' or '.join(options)}, not {kind.__name__}{value_text}"


def _read_literal(node: ast.expr) -> tuple[type | None, Any]:
    if isinstance(node, ast.Constant):
        return type(node.value), node.value
    if isinstance(node, ast.JoinedStr):
        return str, _UNKNOWN_VALUE
    if isinstance(node, ast.List | ast.ListComp):
        return list, _UNKNOWN_VALUE
    if isinstance(node, ast.Tuple):
        return tuple, _UNKNOWN_VALUE
    if isinstance(node, ast.Dict | ast.DictComp):
        return dict, _UNKNOWN_VALUE
    if isinstance(node, ast.Set | ast.SetComp):
        return set, _UNKNOWN_VALUE
    return None, _UNKNOWN_VALUE


def _check_imports(source: ProgramSource, names: Namespace) -> Iterator[Failure]:
    """Find imports of unknown modules, except inside of a try."""
    tried: set[int] = set()
    for node in source.nodes:  # outer ones first, so that inner ones are not walked again
        if isinstance(node, ast.Try) and id(node) not in tried:
            tried.update(id(inner) for part in node.body for inner in ast.walk(part))
    for node in source.nodes:
        if id(node) in tried:
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "."]
        else:
            continue
        for name in modules:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names:
                hint = _describe_name_for_import(node, name, names) or IMPORTS_HINT
                yield create_failure("ImportError", f"there is no module {name!r} in the sandbox", node.lineno, hint)


def _describe_name_for_import(node: ast.Import | ast.ImportFrom, module: str, names: Namespace) -> str | None:
    """Return how a program calls what it tries to import, if that is a name that it has anyway."""
    imported = node.names[0].name if isinstance(node, ast.ImportFrom) else ""
    path = ".".join(filter(None, [*module.split("."), imported.replace("*", "")]))
    path = path.removeprefix("athena.").removeprefix("api.")
    root, _, member = path.partition(".")
    if root not in names.roots:
        return None
    call = f" and call {root}.{member}(...)" if member else ""
    return f"{root} is there without an import: leave this line out{call}"


IMPORTS_HINT = (
    "Python's standard library is there (json, re, datetime, collections, itertools, math, statistics, csv, random, "
    "textwrap, dataclasses, ...) and nothing else; operations are names, not imports"
)
