"""A program's syntax tree, changed so that it has a value, may return, and makes calls at once."""

from __future__ import annotations

import ast
import types

MYPY = False
if MYPY:  # typing costs some milliseconds of every cold start
    from typing import Any

NAME = "<program>"
_STARTING = ("gather", "create_task", "ensure_future", "wait_for", "shield")  # of asyncio


class Rewriter(ast.NodeTransformer):
    """Gives a program a value, lets it return, and lets the elements of `parallel([...])` run at once."""

    def __init__(self, roots: set[str]) -> None:
        self.roots, self.depth = roots, 0

    def visit_FunctionDef(self, node: ast.AST) -> ast.AST:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1
        return node

    visit_AsyncFunctionDef = visit_Lambda = visit_ClassDef = visit_FunctionDef

    def visit_Return(self, node: ast.Return) -> object:
        self.generic_visit(node)
        if self.depth:
            return node
        keep = ast.Assign([ast.Name("__result__", ast.Store())], node.value or ast.Constant(None))
        leave = ast.Raise(ast.Name("__Return__", ast.Load()), None)
        return [ast.copy_location(keep, node), ast.copy_location(leave, node)]

    def ours(self, node: ast.AST) -> bool:
        while isinstance(node, ast.Attribute):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.roots

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and self.ours(node.value.func):
            return node.value
        node.value = ast.copy_location(ast.Call(ast.Name("__wait__", ast.Load()), [node.value], []), node.value)
        return node

    def direct(self, node: Any) -> Any:
        if isinstance(node, ast.Call) and self.ours(node.func):
            deferred = ast.Call(ast.Name("__defer__", ast.Load()), [node.func, *node.args], node.keywords)
            return ast.copy_location(deferred, node)
        if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Call):  # `parallel` calls it, nobody else can
            node.body = self.direct(node.body)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            node.elts = [self.direct(one) for one in node.elts]
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            node.elt = self.direct(node.elt)
        elif isinstance(node, ast.Dict):
            node.values = [self.direct(one) for one in node.values]
        elif isinstance(node, (ast.DictComp, ast.Starred)):
            node.value = self.direct(node.value)
        elif isinstance(node, ast.IfExp):
            node.body, node.orelse = self.direct(node.body), self.direct(node.orelse)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if name == "parallel" or (name in _STARTING and not self.ours(function)):
            node.args = [self.direct(one) for one in node.args]
        return node


def compiled(text: str, roots: set[str]) -> types.CodeType:
    tree = ast.parse(text, NAME)
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = tree.body[-1]
        tree.body[-1] = ast.copy_location(ast.Assign([ast.Name("__result__", ast.Store())], last.value), last)
    tree = ast.fix_missing_locations(Rewriter(roots).visit(tree))
    made: types.CodeType = compile(tree, NAME, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return made
