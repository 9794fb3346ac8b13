"""Choose the engine of a program from its syntax tree: Monty if it surely runs there, else CPython.

Monty starts a program faster, but it is not all of Python: it makes a list of every generator at once, and lacks many
modules and methods. So the tables list the constructs that may run on Monty; all others run on CPython, which
is always correct. `tests/programs/sandbox/test_engine_routing.py` compares the tables with the installed Monty.
"""

import ast
import builtins
import warnings
from datetime import date, datetime, timedelta
from typing import NamedTuple

from athena.programs.sandbox.names import Namespace
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.values import ProgramRejected


def split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MONTY_MODULES: dict[str, frozenset[str]] = {
    module: split_words(names)
    for module, names in {
        "asyncio": "gather run sleep",
        "base64": "b64decode b64encode urlsafe_b64decode urlsafe_b64encode",
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "collections": "Counter defaultdict deque",
        "copy": "copy deepcopy",
        "datetime": "date datetime time timedelta timezone",
        "hashlib": "md5 sha1 sha256 sha512",
        "json": "JSONDecodeError dumps loads",
        "math": """acos asin atan atan2 ceil comb copysign cos degrees dist e exp fabs factorial floor fmod fsum gcd
            hypot inf isclose isfinite isinf isnan isqrt lcm log log10 log2 nan perm pi pow prod radians sin sqrt tan
            tau trunc""",
        "re": """A ASCII DOTALL I IGNORECASE M MULTILINE S compile error escape findall finditer fullmatch match search
            split sub""",
        "time": "monotonic perf_counter sleep strftime time",
        "typing": "Any Callable Dict Iterable List Literal Mapping Optional Sequence Set Tuple Union",
        "__future__": "annotations",
    }.items()
}
MONTY_BUILTINS = split_words(
    """ArithmeticError AssertionError AttributeError BaseException Exception ImportError IndexError KeyError LookupError
    NameError NotImplementedError OSError OverflowError RuntimeError StopIteration TimeoutError TypeError ValueError
    ZeroDivisionError abs all any bool chr dict divmod enumerate filter float format frozenset hex int isinstance
    len list map max min oct ord pow print range repr reversed round set sorted str sum tuple type zip"""
)
# Methods of plain values, matches, dates, counters and hashes. They must be called: Monty cannot pass one on.
MONTY_METHODS = split_words(
    """add append appendleft astimezone capitalize casefold center clear copy count date decode difference digest
    discard elements encode endswith expandtabs extend find findall finditer format fromisoformat fromkeys fullmatch
    get group groupdict groups hexdigest index insert intersection isalnum isalpha isascii isdecimal isdigit
    isdisjoint isidentifier islower isnumeric isoformat isoweekday isspace issubset issuperset istitle isupper items
    join keys ljust lower lstrip match most_common now partition pop popitem popleft remove removeprefix removesuffix
    replace reverse rfind rindex rjust rpartition rsplit rstrip search setdefault sort split splitlines startswith
    strftime strip strptime sub subtract swapcase symmetric_difference time timestamp title today total total_seconds
    union update upper values weekday zfill"""
)
MONTY_FIELDS = split_words("day days hour microsecond minute month second seconds tzinfo utc year max min")
MISSING_KEYWORDS = {
    "dumps": split_words("default cls allow_nan check_circular skipkeys"),
    "loads": split_words("object_hook cls parse_float parse_int object_pairs_hook parse_constant"),
    "gather": split_words("return_exceptions"),
}
_CHECKED_MODULES = split_words("re json asyncio")  # their calls are checked by name: `from json import dumps as d`
_MONTY_CODECS = split_words("utf-8 utf8 ascii")
_PLAIN_STATEMENTS = split_words(
    """Module Expr Assign AugAssign AnnAssign For While If Try ExceptHandler Raise Return Pass Break Continue Assert
    FunctionDef AsyncFunctionDef Global Nonlocal Import ImportFrom Match MatchAs MatchMapping MatchOr MatchSequence
    MatchSingleton MatchStar MatchValue match_case arguments arg keyword alias comprehension"""
)
_PLAIN_METHODS = frozenset(
    name for kind in (str, bytes, int, float, list, tuple, dict, set, datetime, date, timedelta) for name in dir(kind)
)
_YIELDS = (ast.Yield, ast.YieldFrom)
_PLAIN_PARTS = (ast.expr, ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop)
_NODE_REASONS = {"Delete": "del", "YieldFrom": "yield", "ClassDef": "a class"}
_TAKES_ALL = split_words("list tuple set frozenset dict sum max min sorted")  # they take every value, in order
_LAZY_BUILTINS = split_words("map filter zip enumerate reversed")
_LAZY_WITHOUT_FUNCTION = split_words("zip enumerate reversed")  # making their values has no side effect
_MUTATORS = split_words(
    """add append appendleft clear discard extend insert pop popitem popleft remove reverse setdefault sort subtract
    update"""
)
_PATTERN_FUNCTIONS = split_words("compile sub split findall finditer")
_KEY_FUNCTIONS = split_words("max min sort")  # Monty's cannot wait for an operation; `sorted` is in our prelude
_MAX_PATTERN_CHARS = 500
_OTHER_VALUES = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.Starred)
_CHANGED_LOOP = "a loop that changes what it goes over"
_DIFFERENCES = ("a generator", "kept or passed on", "may match nothing", _CHANGED_LOOP, "yield", "than one text")


def find_cpython_reason(source: ProgramSource, names: Namespace) -> str:
    """Return why a program runs on CPython; empty if Monty can run it."""
    return _MontyCheck(source, names).find_reason()


def can_try_monty(reason: str) -> bool:
    """Return whether Monty runs such a program or raises an error, and never gives another result than Python."""
    reason = reason.rpartition(": ")[2]
    return not reason.startswith("import ") and not reason.endswith(_DIFFERENCES)


def find_earlier_reason(used: set[str], sources: dict[str, str], names: Namespace) -> str:
    """Return why the definitions of earlier programs that a program uses need CPython."""
    todo, seen = sorted(used & sources.keys()), set(used)
    while todo:
        name = todo.pop()
        try:
            source = ProgramSource(sources[name], len(sources[name]) * 4)
        except ProgramRejected:
            continue
        if reason := find_cpython_reason(source, names):
            return f"{name}(): {reason}" if name in used else f"{name}: {reason}"
        todo += sorted((source.used_names & sources.keys()) - seen)
        seen |= source.used_names
    return ""


class _NodeContext(NamedTuple):
    """The context of a node."""

    parent: ast.AST
    in_key: bool = False  # inside of key= of max, min or sort
    looped: frozenset[str] = frozenset()  # names that a surrounding loop goes over by enumerate, zip or reversed


class _MontyCheck:
    """Reads each node once, so that the time grows with the length of the program alone."""

    def __init__(self, source: ProgramSource, names: Namespace) -> None:
        self.bound = source.bound_names
        self.operation_roots = names.roots - self.bound
        for node in source.nodes:  # `m = memory`
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names.roots:
                self.operation_roots |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.tree = source.tree
        self.modules: dict[str, str] = {}  # modules by the name that the program gives them
        for node in source.nodes:
            if isinstance(node, ast.Import):
                self.modules |= {(alias.asname or alias.name): alias.name for alias in node.names}
        self.roots: dict[int, str] = {}  # the first name of each attribute's chain: `a` of `a.b.c`
        for node in reversed(source.nodes):  # inner nodes first
            if isinstance(node, ast.Attribute):
                inner = node.value
                self.roots[id(node)] = inner.id if isinstance(inner, ast.Name) else self.roots.get(id(inner), "")

    def find_reason(self) -> str:
        todo: list[tuple[ast.AST, _NodeContext]] = [(self.tree, _NodeContext(self.tree))]
        while todo:
            node, context = todo.pop()
            if reason := self._check_node(node, context):
                return reason
            looped = context.looped | self._list_looped_names(node)
            for child in reversed(list(ast.iter_child_nodes(node))):  # the first problem is reported first
                in_key = context.in_key
                if isinstance(child, ast.keyword) and child.arg == "key" and _last_name(node) in _KEY_FUNCTIONS:
                    in_key = True
                    if not (isinstance(child.value, ast.Lambda) or self._builtin_name(child.value)):
                        return f"a function passed as key= of {_last_name(node)}"
                todo.append((child, _NodeContext(node, in_key, looped)))
        return ""

    def _check_node(self, node: ast.AST, context: _NodeContext) -> str:
        kind = type(node).__name__
        if kind not in _PLAIN_STATEMENTS and (not isinstance(node, _PLAIN_PARTS) or isinstance(node, _YIELDS)):
            return _NODE_REASONS.get(kind, kind.lower())
        if isinstance(node, ast.Name):
            return self._check_name(node, context)
        if isinstance(node, ast.Attribute):
            return self._check_attribute(node, context)
        if isinstance(node, ast.Call):
            return self._check_call(node, context)
        if isinstance(node, ast.GeneratorExp):
            return "" if self._is_taken_at_once(node, context.parent) else "a generator"
        if isinstance(node, ast.Import | ast.ImportFrom):
            return _check_import(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return "a decorator" if node.decorator_list else ""
        if isinstance(node, ast.comprehension):
            return "an asynchronous comprehension" if node.is_async else ""
        return self._check_change(node, context)

    def _builtin_name(self, node: ast.AST) -> str:
        is_builtin = isinstance(node, ast.Name) and node.id not in self.bound and hasattr(builtins, node.id)
        return node.id if is_builtin else ""  # type: ignore[attr-defined]

    def _check_name(self, node: ast.Name, context: _NodeContext) -> str:
        name = self._builtin_name(node)
        if name and name not in MONTY_BUILTINS:
            return name
        if name in _LAZY_BUILTINS and not _is_callee(node, context.parent):
            return f"{name} as a value"
        return ""

    def _check_attribute(self, node: ast.Attribute, context: _NodeContext) -> str:
        is_called = _is_callee(node, context.parent)
        if self.roots[id(node)] in self.operation_roots:
            return "an operation called in key=" if context.in_key else ""
        module = self.modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
        if module in MONTY_MODULES:
            passed_on = node.attr in _PATTERN_FUNCTIONS and not is_called
            return f"{module}.{node.attr}" if passed_on or node.attr not in MONTY_MODULES[module] else ""
        if not isinstance(node.ctx, ast.Load) or not (node.attr in MONTY_METHODS or node.attr in MONTY_FIELDS):
            return "" if is_called and self._is_earlier_namespace(node) else f".{node.attr}"
        return "" if is_called or node.attr in MONTY_FIELDS else f".{node.attr} as a value"

    def _is_earlier_namespace(self, node: ast.Attribute) -> bool:
        """Return whether a call may go to an alias of an earlier program (`m = memory`), which only Monty keeps."""
        root = self.roots[id(node)]
        is_earlier = bool(root) and root not in self.bound and not hasattr(builtins, root)
        return is_earlier and not node.attr.startswith("_") and node.attr not in _PLAIN_METHODS

    def _check_call(self, node: ast.Call, context: _NodeContext) -> str:
        name, builtin = _last_name(node), self._builtin_name(node.func)
        if missing := [keyword.arg for keyword in node.keywords if keyword.arg in MISSING_KEYWORDS.get(name, ())]:
            return f"{name}({missing[0]}=)"
        if context.in_key and isinstance(node.func, ast.Name) and not builtin:
            return "a function called in key="
        if name == "parallel" and any(map(_has_named_item, node.args)):
            return "functions passed to parallel() by name"
        if builtin in _LAZY_BUILTINS:
            return self._check_lazy_call(node, builtin, context)
        if builtin and builtin[0].isupper():
            return _check_exception(node)
        if isinstance(node.func, ast.Attribute):
            if name in ("encode", "decode") and not _has_monty_codec(node):
                return f".{name} with another encoding"
            if name in _MUTATORS and _root_name(node.func.value) in context.looped:
                return _CHANGED_LOOP
        return self._check_pattern(node, name) if name in _PATTERN_FUNCTIONS else ""

    def _check_lazy_call(self, node: ast.Call, name: str, context: _NodeContext) -> str:
        parent = context.parent
        if self._is_taken_at_once(node, parent):
            return ""
        if name in _LAZY_WITHOUT_FUNCTION:
            if isinstance(parent, ast.For | ast.comprehension) and parent.iter is node:
                return ""
            if isinstance(parent, ast.Call) and self._builtin_name(parent.func) in _LAZY_BUILTINS:
                return ""
        return f"{name}() that is kept or passed on"

    def _is_taken_at_once(self, node: ast.expr, parent: ast.AST) -> bool:
        """Return whether every value of a generator, map or zip is taken before anything else happens."""
        if isinstance(parent, ast.Call) and parent.func is not node:
            if self._builtin_name(parent.func) in _TAKES_ALL or _last_name(parent) == "Counter":
                return True
            return isinstance(parent.func, ast.Attribute) and parent.func.attr == "join"
        return isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple) and len(parent.targets) == 1

    def _list_looped_names(self, node: ast.AST) -> frozenset[str]:
        """Return the names whose values a loop goes over by a builtin that is lazy in Python and not in Monty."""
        loops = [node] if isinstance(node, ast.For) else getattr(node, "generators", [])
        todo: list[ast.expr] = [loop.iter for loop in loops]
        names: set[str] = set()
        while todo:
            value = todo.pop()
            if isinstance(value, ast.Call) and self._builtin_name(value.func) in _LAZY_BUILTINS:
                names.update(map(_root_name, value.args))
                todo += value.args  # `enumerate(zip(a, b))`
        return frozenset(names - {""})

    def _check_change(self, node: ast.AST, context: _NodeContext) -> str:
        target = node.target if isinstance(node, ast.AugAssign) else node
        is_change = target is not node or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store))
        return _CHANGED_LOOP if is_change and _root_name(target) in context.looped else ""

    def _check_pattern(self, node: ast.Call, name: str) -> str:
        """Find a pattern that may match nothing: after a match Monty skips the empty one in the same place."""
        root = self.roots.get(id(node.func), "")
        is_method = isinstance(node.func, ast.Attribute) and self.modules.get(root) != "re"
        values = [*map(_constant, node.args), None, None]
        if name == "sub" and not isinstance(values[0 if is_method else 1], str):
            return "re.sub with a function"
        if is_method or isinstance(node.func, ast.Name):
            return ""  # of a text, or of a pattern that was checked where it was compiled
        is_safe = isinstance(values[0], str) and not _can_match_nothing(values[0])
        return "" if is_safe else f"re.{name} with a pattern that may match nothing"


def _has_named_item(node: ast.AST) -> bool:
    """Return whether `parallel` may get functions that are written elsewhere: Monty calls these one after another."""
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Name):
            return True
        if isinstance(part, ast.List | ast.Tuple | ast.Set):
            todo += part.elts
        elif isinstance(part, ast.Dict):
            todo += part.values
        elif isinstance(part, ast.ListComp | ast.GeneratorExp):
            todo.append(part.elt)
        elif isinstance(part, ast.DictComp | ast.Starred):
            todo.append(part.value)
        elif isinstance(part, ast.BinOp):
            todo += [part.left, part.right]
    return False


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else "" if isinstance(node, ast.JoinedStr) else None


def _is_callee(node: ast.expr, parent: ast.AST) -> bool:
    return isinstance(parent, ast.Call) and parent.func is node


def _check_exception(node: ast.Call) -> str:
    """Find an exception that gets anything but one text: Monty's hold no more."""
    is_text = not node.args or isinstance(_constant(node.args[0]), str) or not isinstance(node.args[0], _OTHER_VALUES)
    return "" if is_text and len(node.args) < 2 else "an exception that holds more than one text"


def _check_import(node: ast.Import | ast.ImportFrom) -> str:
    if isinstance(node, ast.Import):
        missing = [alias.name for alias in node.names if alias.name not in MONTY_MODULES]
        return f"import {missing[0]}" if missing else ""
    module = node.module or ""
    if module not in MONTY_MODULES or module in _CHECKED_MODULES:
        return f"import {module}" if module not in MONTY_MODULES else f"from {module} import"
    missing = [alias.name for alias in node.names if alias.name not in MONTY_MODULES[module]]
    return f"{module}.{missing[0]}" if missing else ""


def _has_monty_codec(node: ast.Call) -> bool:
    values = [_constant(value) for value in (*node.args, *(keyword.value for keyword in node.keywords))]
    return all(str(value).lower() in _MONTY_CODECS for value in values)


def _can_match_nothing(pattern: str) -> bool:
    if len(pattern) > _MAX_PATTERN_CHARS:
        return True
    try:
        from re import _parser  # type: ignore[attr-defined]  # it alone knows how much a pattern matches

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(_parser.parse(pattern).getwidth()[0] == 0)
    except Exception:  # noqa: BLE001  # not a pattern: CPython says so
        return True


def _last_name(node: ast.AST) -> str:
    """Return `c` of `a.b.c(...)`."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _root_name(node: ast.AST) -> str:
    """Return the variable that a value belongs to: `a` of `a.b[c].items()`; empty for a new value."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        if isinstance(node, ast.Call):
            if not isinstance(node.func, ast.Attribute):
                return ""
            node = node.func
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
