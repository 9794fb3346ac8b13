"""Regular expressions in a program: where Monty finds other matches than Python."""

import ast
import warnings
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from athena.programs.sandbox.source import ProgramSource

_REPEATING_FUNCTIONS = frozenset({"sub", "split", "findall", "finditer"})
_MAX_PATTERN_CHARS = 500  # characters of a pattern that is read
_MATCH_METHODS = frozenset({"start", "end", "span"})


class RegexCheck:
    """The patterns of a program, as far as they are written out.

    After a match Python also takes an empty one in the same place, and Monty does not: `re.sub("a*", "-", "baac")`.
    """

    def __init__(self, source: "ProgramSource") -> None:
        self.source = source
        self._empty_cache: dict[str, bool] = {}

    def find_reason(self, node: ast.Call) -> str:
        """Say why a call needs CPython."""
        name = _callee_name(node.func)
        if name in _MATCH_METHODS and node.args and isinstance(node.args[0], ast.Constant):
            return f".{name} of a group with a name" if isinstance(node.args[0].value, str) else ""
        if name not in _REPEATING_FUNCTIONS or not self.regex_names:
            return ""
        pattern = self._find_pattern(node)
        if pattern is None:
            return ""
        text = self._literal_text(pattern)
        return f"re.{name} with a pattern that may match nothing" if text is None or self._may_be_empty(text) else ""

    @cached_property
    def regex_names(self) -> set[str]:
        """What `re` and its functions are called here."""
        found = set()
        for node in self.source.nodes:
            if isinstance(node, ast.Import):
                found |= {alias.asname or alias.name for alias in node.names if alias.name == "re"}
            elif isinstance(node, ast.ImportFrom) and node.module == "re":
                found |= {alias.asname or alias.name for alias in node.names}
        return found

    @cached_property
    def single_values(self) -> dict[str, ast.expr | None]:
        """What names stand for that are given one value in one place; None for all others."""
        found: dict[str, ast.expr | None] = dict.fromkeys(self.source.bound_names)
        times: dict[str, int] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                times[node.id] = times.get(node.id, 0) + 1
            elif isinstance(node, ast.arg):
                times[node.arg] = 2
        for node in self.source.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                found[name] = node.value if times[name] == 1 and len(node.targets) == 1 else None
        return found

    def _find_pattern(self, node: ast.Call) -> ast.expr | None:
        """Return what a call looks for; None if it is not one of regular expressions."""
        function = node.func
        if isinstance(function, ast.Name):
            return node.args[0] if function.id in self.regex_names and node.args else None
        assert isinstance(function, ast.Attribute)
        holder = function.value
        if isinstance(holder, ast.Name) and holder.id in self.regex_names:
            return _pattern_argument(node)
        if isinstance(holder, ast.Name):
            holder = self.single_values.get(holder.id) or holder
        compiled = isinstance(holder, ast.Call) and _callee_name(holder.func) == "compile"
        if compiled:
            return _pattern_argument(holder)  # type: ignore[arg-type]
        return None if function.attr == "split" else holder  # what else has `sub` or `findall` is a pattern

    def _literal_text(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            node = self.single_values.get(node.id) or node
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def _may_be_empty(self, pattern: str) -> bool:
        if pattern not in self._empty_cache:
            self._empty_cache[pattern] = len(pattern) > _MAX_PATTERN_CHARS or _can_match_empty(pattern)
        return self._empty_cache[pattern]


def _can_match_empty(pattern: str) -> bool:
    """Tell whether a pattern matches nothing and something; it is read and not used: using it may take for ever."""
    try:
        from re import _parser  # type: ignore[attr-defined]  # it alone knows how much a pattern matches

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            least, most = _parser.parse(pattern).getwidth()
    except Exception:  # noqa: BLE001  # not a pattern, or of a Python that has no such thing: CPython will tell
        return True
    return bool(least == 0 and most > 0)


def _pattern_argument(node: ast.Call) -> ast.expr:
    named = [one.value for one in node.keywords if one.arg == "pattern"]
    return node.args[0] if node.args else named[0] if named else ast.Name("?", ast.Load())


def _callee_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
