"""Rewrite a program so that it has a value, may return at the top level, and makes concurrent calls."""

from __future__ import annotations

import ast
import types

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from typing import Any

PROGRAM_FILENAME = "<program>"
_CATCHING_NODES = (ast.Try, ast.With, ast.AsyncWith, getattr(ast, "TryStar", ast.Try))
_ASYNCIO_STARTERS = ("gather", "create_task", "ensure_future", "wait_for", "shield")  # of asyncio


class ProgramRewriter(ast.NodeTransformer):
    """Gives a program a value, allows return, and makes the elements of `parallel([...])` concurrent."""

    def __init__(self, roots: set[str], wrapped: bool) -> None:
        self.roots, self.wrapped, self.depth = roots, wrapped, 0
        self.is_catching = False  # inside of a function with `try` or `with`, which must see the end of each call

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        before = self.is_catching
        self.is_catching = any(isinstance(inner, _CATCHING_NODES) for inner in ast.walk(node))
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        self.is_catching = before
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.visit_FunctionDef(node)
        node.body = self.end_with_call(node.body)
        return node

    def end_with_call(self, node: Any) -> Any:
        """Let `parallel` go on while the call runs that is a function's value."""
        if not isinstance(node, ast.Call) or not self.is_operation(node.func):
            return node
        return ast.copy_location(
            ast.Call(ast.Name("__end__", ast.Load()), [node.func, *node.args], node.keywords), node
        )

    def visit_Return(self, node: ast.Return) -> object:
        self.generic_visit(node)
        if self.depth:
            node.value = node.value if self.is_catching else self.end_with_call(node.value)
            return node
        keep = ast.Assign([ast.Name("__result__", ast.Store())], node.value or ast.Constant(None))
        leave = ast.Return(None) if self.wrapped else ast.Raise(ast.Name("__Return__", ast.Load()), None)
        return [ast.copy_location(keep, node), ast.copy_location(leave, node)]

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if self.wrapped and not self.depth else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if self.depth or not self.wrapped or not isinstance(node.target, ast.Name):
            return node
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)  # a global name has no annotation

    def is_operation(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.roots

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self.is_operation(node.value.func):
            return node.value
        node.value = ast.copy_location(ast.Call(ast.Name("__wait__", ast.Load()), [node.value], []), node.value)
        return node

    def defer_calls(self, node: Any) -> Any:
        if isinstance(node, ast.Call) and self.is_operation(node.func):
            deferred = ast.Call(ast.Name("__defer__", ast.Load()), [node.func, *node.args], node.keywords)
            return ast.copy_location(deferred, node)
        if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):  # only `parallel` can call it
            node.body = self.defer_calls(node.body)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            node.elts = [self.defer_calls(element) for element in node.elts]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            node.elt = self.defer_calls(node.elt)
        elif isinstance(node, ast.Dict):
            node.values = [self.defer_calls(element) for element in node.values]
        elif isinstance(node, (ast.DictComp, ast.Starred)):
            node.value = self.defer_calls(node.value)
        elif isinstance(node, ast.IfExp):
            node.body, node.orelse = self.defer_calls(node.body), self.defer_calls(node.orelse)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name == "parallel" or (name in _ASYNCIO_STARTERS and not self.is_operation(function)):
            node.args = [self.defer_calls(element) for element in node.args]
        return node


_SCOPE_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def _list_top_level(tree: ast.Module) -> list[ast.AST]:
    """List the nodes outside of functions and classes."""
    nodes: list[ast.AST] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        nodes.append(node)
        if not isinstance(node, _SCOPE_NODES):
            todo += ast.iter_child_nodes(node)
    return nodes


def _returns_inside_try(nodes: list[ast.AST]) -> bool:
    """Return whether the program returns from inside of a try or with."""
    if any(isinstance(node, ast.alias) and node.name == "*" for node in nodes):
        return False  # not allowed in a function
    catching = [node for node in nodes if isinstance(node, _CATCHING_NODES)]
    return bool(catching) and any(isinstance(node, ast.Return) for node in nodes)


def _find_bound_names(nodes: list[ast.AST]) -> set[str]:
    names = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    names |= {node.name for node in nodes if isinstance(node, _SCOPE_NODES[:3])}
    names |= {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    for node in nodes:
        name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)) and name:
            names.add(name)
    return names


def _wrap_in_function(tree: ast.Module, names: set[str]) -> ast.Module:
    """Wrap a program in a function with global names, so that it can return."""
    waits = any(isinstance(node, (ast.Await, ast.AsyncFor, ast.AsyncWith)) for node in _list_top_level(tree))
    wrapper = ast.parse(f"{'async ' if waits else ''}def __program__(): pass\n{'await ' if waits else ''}__program__()")
    function = wrapper.body[0]
    assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    function.body = [ast.Global(sorted({*names, "__result__"})), *tree.body]
    future = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    function.body = [node for node in function.body if node not in future]
    wrapper.body = [*future, *wrapper.body]
    return wrapper


def compile_program(text: str, roots: set[str]) -> types.CodeType:
    tree = ast.parse(text, PROGRAM_FILENAME)
    nodes = _list_top_level(tree)
    wrapped, names = _returns_inside_try(nodes), _find_bound_names(nodes)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("__result__", ast.Store())], last.value), last)
    tree = ProgramRewriter(roots, wrapped).visit(tree)
    if wrapped:
        tree = _wrap_in_function(tree, names)
    tree = ast.fix_missing_locations(tree)
    code: types.CodeType = compile(
        tree, PROGRAM_FILENAME, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    return code
