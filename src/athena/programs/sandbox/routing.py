"""Which engine a program needs, read from its syntax tree.

Monty starts faster and can wait for a person, so it is the default. These tables say what Monty 1.4 lacks, as
measured; `tests/sandbox/test_needs.py` fails when another version of Monty has more or less.
"""

import ast
import builtins
from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property

from athena.programs.sandbox import lazy
from athena.programs.sandbox.names import Names
from athena.programs.sandbox.patterns import Patterns
from athena.programs.sandbox.program import Rejected
from athena.programs.sandbox.source import Source


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What can be imported in Monty, and what is in it.
MODULES: dict[str, frozenset[str]] = {
    module: _words(names)
    for module, names in {
        "asyncio": "gather run sleep",
        "base64": """a85decode a85encode b16decode b16encode b32decode b32encode b32hexdecode b32hexencode b64decode
            b64encode b85decode b85encode decodebytes encodebytes standard_b64decode standard_b64encode
            urlsafe_b64decode urlsafe_b64encode""",
        "binascii": """Error Incomplete a2b_base64 a2b_hex a2b_qp a2b_uu b2a_base64 b2a_hex b2a_qp b2a_uu crc32 crc_hqx
            hexlify unhexlify""",
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "collections": "Counter defaultdict deque namedtuple",
        "copy": "copy deepcopy",
        "csv": """Dialect DictReader DictWriter Error QUOTE_ALL QUOTE_MINIMAL QUOTE_NONE QUOTE_NONNUMERIC excel
            excel_tab field_size_limit get_dialect list_dialects reader unix_dialect writer""",
        "dataclasses": "FrozenInstanceError MISSING dataclass field is_dataclass",
        "datetime": "date datetime time timedelta timezone",
        "decimal": """BasicContext Clamped Context ConversionSyntax Decimal DecimalException DecimalTuple
            DefaultContext DivisionByZero DivisionImpossible DivisionUndefined ExtendedContext FloatOperation Inexact
            InvalidContext InvalidOperation MAX_EMAX MAX_PREC MIN_EMIN MIN_ETINY Overflow ROUND_05UP ROUND_CEILING
            ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP Rounded Subnormal Underflow
            getcontext localcontext setcontext""",
        "functools": "cache lru_cache partial reduce",
        "hashlib": """algorithms_available algorithms_guaranteed blake2b blake2s md5 new pbkdf2_hmac sha1 sha224 sha256
            sha384 sha3_224 sha3_256 sha3_384 sha3_512 sha512 shake_128 shake_256""",
        "itertools": """accumulate chain combinations combinations_with_replacement compress count cycle dropwhile
            filterfalse groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest""",
        "json": "JSONDecodeError dump dumps load loads",
        "math": """acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e erf erfc exp
            exp2 expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf isclose isfinite isinf isnan isqrt lcm
            ldexp lgamma log log10 log1p log2 modf nan nextafter perm pi pow prod radians remainder sin sinh sqrt tan
            tanh tau trunc ulp""",
        "os": "getenv linesep listdir path remove sep",  # refused, which is quicker than on CPython
        "pathlib": "Path",
        "random": """Random betavariate choice choices expovariate gammavariate gauss getrandbits getstate
            lognormvariate normalvariate paretovariate randbytes randint random randrange sample seed setstate shuffle
            triangular uniform vonmisesvariate weibullvariate""",
        "re": """A ASCII DOTALL I IGNORECASE M MULTILINE Match NOFLAG Pattern S compile error escape findall finditer
            fullmatch match search split sub""",
        "sys": "byteorder float_info maxsize maxunicode platform version version_info",
        "time": """altzone asctime ctime daylight gmtime localtime mktime monotonic monotonic_ns perf_counter
            perf_counter_ns process_time process_time_ns sleep strftime strptime thread_time thread_time_ns time
            time_ns timezone tzname""",
        "tomllib": "TOMLDecodeError load loads",
        "typing": """Annotated Any Callable ClassVar Dict Final FrozenSet Generator Generic Iterable Iterator List
            Literal Mapping Never NoReturn Optional Protocol Self Sequence Set TYPE_CHECKING Tuple Type TypeVar
            Union""",
        "unicodedata": "category combining is_normalized lookup name normalize unidata_version",
        "__future__": "annotations",
    }.items()
}

NO_BUILTINS = _words(
    """BaseExceptionGroup BlockingIOError BrokenPipeError BufferError BytesWarning ChildProcessError
    ConnectionAbortedError ConnectionError ConnectionRefusedError ConnectionResetError DeprecationWarning EOFError
    EncodingWarning EnvironmentError ExceptionGroup FloatingPointError FutureWarning GeneratorExit IOError ImportWarning
    IndentationError InterruptedError PendingDeprecationWarning ProcessLookupError ReferenceError ResourceWarning
    RuntimeWarning StopAsyncIteration SyntaxWarning SystemError TabError UnicodeError UnicodeTranslateError
    UnicodeWarning UserWarning Warning aiter anext ascii bytearray callable classmethod compile delattr dir exit
    globals issubclass memoryview quit staticmethod super vars"""
)
# Methods that none of Monty's types has under this name.
NO_METHODS = _words(
    """add_note bit_count bit_length combine ctime default_factory denominator difference_update endpos expand
    format_map from_bytes from_float fromisocalendar fromordinal fromtimestamp groupindex intersection_update
    is_integer isocalendar lastgroup lastindex maketrans numerator regs scanner subn symmetric_difference_update
    timetuple to_bytes toordinal translate utcfromtimestamp utcnow utctimetuple with_traceback"""
)
# Special methods of a program's own classes that Monty calls.
METHODS = _words(
    """__init__ __repr__ __str__ __eq__ __hash__ __bool__ __call__ __enter__ __exit__ __iter__ __next__ __contains__
    __getitem__ __setitem__ __add__ __format__ __matmul__"""
)
# Keyword arguments of calls by this name that Monty lacks.
NO_KEYWORDS = {
    "dumps": _words("default cls allow_nan check_circular skipkeys"),
    "loads": _words("object_hook cls parse_float parse_int object_pairs_hook parse_constant"),
    "gather": _words("return_exceptions"),
    "dataclass": _words("order slots kw_only"),
}
_DUNDERS = _words("__name__ __class__")
# Methods that cannot be passed on without being called: `key=str.lower`, `key=d.get`.
_METHOD_VALUES = frozenset(
    name for kind in (str, bytes, list, dict, set, tuple) for name in dir(kind) if not name.startswith("_")
)
_CODECS = _words("utf-8 utf8 utf_8 ascii us-ascii")
_ENDLESS = _words("count cycle repeat")
_OF_EXCEPTIONS = _words("code hint add_note __cause__ __context__ __traceback__")
_SYNTAX: dict[type[ast.AST], str] = {
    ast.Delete: "del",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.TryStar: "except*",
}
if hasattr(ast, "TypeAlias"):
    _SYNTAX[ast.TypeAlias] = "type aliases"


def cpython(source: Source, names: Names) -> str:
    """Return why a program needs CPython; empty if Monty can run it."""
    return _Reader(source, names).reason()


def earlier(used: set[str], sources: dict[str, str], names: Names) -> str:
    """Return why the definitions of earlier programs that a program uses need CPython."""
    todo, seen = sorted(used & sources.keys()), set(used)
    while todo:
        name = todo.pop()
        try:
            source = Source(sources[name], len(sources[name]) * 4)
        except Rejected:
            continue
        if reason := cpython(source, names):
            return f"{name}(): {reason}" if name in used else f"{name}: {reason}"
        todo += sorted((source.used & sources.keys()) - seen)
        seen |= source.used
    return ""


def _exception(node: ast.Call) -> str:
    """Find an exception that is given more than one text, as far as that is written out."""
    kind = getattr(builtins, node.func.id, None) if isinstance(node.func, ast.Name) else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return ""
    texts = [one for one in node.args if not isinstance(one, _NO_TEXT)]
    texts = [one for one in texts if not (isinstance(one, ast.Constant) and not isinstance(one.value, str))]
    return "an exception that holds more than one text" if len(node.args) > min(1, len(texts)) else ""


_NO_TEXT = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.Starred)


class _Reader:
    def __init__(self, source: Source, names: Names) -> None:
        self.source, self.patterns = source, Patterns(source)
        self.ours = names.roots - source.bound
        self.modules: dict[str, str] = {}  # what an import is called here
        self.called: set[int] = set()  # attributes that are called, or lead to another one
        self.stored: set[str] = set()  # attributes that the program gives a value
        for node in source.nodes:
            if isinstance(node, ast.Import):
                self.modules |= {(alias.asname or alias.name): alias.name for alias in node.names}
            elif isinstance(node, ast.Call):
                self.called.add(id(node.func))
            elif isinstance(node, ast.Attribute):
                self.called.add(id(node.value))
                if isinstance(node.ctx, ast.Store):
                    self.stored.add(node.attr)

    # What is asked of many nodes is found once: a hostile program has thousands of them, one inside of the other.

    @cached_property
    def functions(self) -> set[str]:
        return {one.name for one in self.source.nodes if isinstance(one, ast.FunctionDef)}

    @cached_property
    def roots(self) -> dict[int, str]:
        """The first name of each attribute's chain: `a` of `a.b.c`."""
        found: dict[int, str] = {}
        for node in reversed(self.source.nodes):  # what is inside first
            if isinstance(node, ast.Attribute):
                inner = node.value
                found[id(node)] = inner.id if isinstance(inner, ast.Name) else found.get(id(inner), "")
        return found

    @cached_property
    def operations(self) -> list[int]:
        """Where operations are named."""
        return self._places(lambda node: self.roots.get(id(node)) in self.ours)

    @cached_property
    def endless(self) -> list[int]:
        return self._places(lambda node: isinstance(node, ast.Call) and _last(node.func) in _ENDLESS)

    @cached_property
    def asked_of(self) -> dict[tuple[str, str], list[int]]:
        """Where something is asked of a name that only CPython's exceptions have."""
        found: dict[tuple[str, str], list[int]] = {}
        for node in self.source.nodes:
            if isinstance(node, ast.Attribute) and node.attr in _OF_EXCEPTIONS and isinstance(node.value, ast.Name):
                found.setdefault((node.value.id, node.attr), []).append(self.source.span(node)[0])
        return {asked: sorted(places) for asked, places in found.items()}

    def _places(self, wanted: Callable[[ast.AST], bool]) -> list[int]:
        return sorted(self.source.span(node)[0] for node in self.source.nodes if wanted(node))

    def _holds(self, node: ast.AST, places: list[int]) -> bool:
        """Tell whether one of these places is inside of a node."""
        start, end = self.source.span(node)
        found = bisect_left(places, start)
        return found < len(places) and places[found] < end

    def reason(self) -> str:
        for node in self.source.nodes:
            if reason := _SYNTAX.get(type(node)) or self._of(node):
                return reason
        return lazy.Reader(self.source, self.ours, self.roots, set(self.modules)).reason()

    def _of(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node) or _exception(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return _import(node)
        if isinstance(node, ast.ClassDef):
            return _class(node)
        if isinstance(node, ast.comprehension):
            return "an asynchronous comprehension" if node.is_async else ""
        if isinstance(node, ast.GeneratorExp):
            return "a generator over something endless" if self._holds(node, self.endless) else ""
        return self._caught(node) if isinstance(node, ast.ExceptHandler) else ""

    def _name(self, node: ast.Name) -> str:
        missing = node.id in NO_BUILTINS and isinstance(node.ctx, ast.Load) and node.id not in self.source.bound
        return node.id if missing and hasattr(builtins, node.id) else ""

    def _attribute(self, node: ast.Attribute) -> str:
        if self.roots[id(node)] in self.ours:
            return ""
        module = self.modules.get(_last(node.value)) if isinstance(node.value, ast.Name) else None
        if module in MODULES:
            return "" if node.attr in MODULES[module] else f"{module}.{node.attr}"
        if node.attr in NO_METHODS:
            return f".{node.attr}"
        if node.attr.startswith("__") and node.attr not in _DUNDERS:
            return f".{node.attr}"
        if node.attr == "__name__" and not isinstance(node.value, ast.Call) and _last(node.value) != "__class__":
            return "the name of a function"
        passed_on = isinstance(node.ctx, ast.Load) and id(node) not in self.called and node.attr not in self.stored
        return f".{node.attr} as a value" if passed_on and node.attr in _METHOD_VALUES else ""

    def _call(self, node: ast.Call) -> str:
        name = _last(node.func)
        if reason := self.patterns.reason(node) or _codec(node, name):
            return reason
        if missing := [one.arg for one in node.keywords if one.arg in NO_KEYWORDS.get(name, ())]:
            return f"{name}({missing[0]}=)"
        if name == "sub" and any(self._is_function(argument) for argument in node.args[:2]):
            return "re.sub with a function"
        if name == "bytes" and node.args and isinstance(node.args[0], ast.List | ast.Tuple | ast.ListComp):
            return "bytes of numbers"
        keys = [one.value for one in node.keywords if one.arg == "key"]
        if name in ("max", "min", "sort", "groupby") and any(self._holds(key, self.operations) for key in keys):
            return f"an operation called in {name}(key=)"
        return ""

    def _is_function(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Lambda):
            return True
        return isinstance(node, ast.Name) and node.id in self.functions

    def _caught(self, node: ast.ExceptHandler) -> str:
        """Find what is asked of an exception: Monty keeps its type and its text alone."""
        for name, attribute in ((node.name, one) for one in sorted(_OF_EXCEPTIONS)):
            if self._holds(node, self.asked_of.get((name or "", attribute), [])):
                return f"{attribute} of an exception"
        return ""


def _codec(node: ast.Call, name: str) -> str:
    """Find another encoding than those that Monty has."""
    if name not in ("encode", "decode") or not isinstance(node.func, ast.Attribute):
        return ""
    given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "encoding")]
    if not given:
        return ""
    codec = given[0].value if isinstance(given[0], ast.Constant) else None
    return "" if isinstance(codec, str) and codec.lower() in _CODECS else f".{name} with another encoding"


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _import(node: ast.Import | ast.ImportFrom) -> str:
    if isinstance(node, ast.Import):
        missing = [alias.name for alias in node.names if alias.name not in MODULES and alias.name != "os.path"]
        return f"import {missing[0]}" if missing else ""
    module = node.module or ""
    if module == "os.path":
        return ""
    if module not in MODULES:
        return f"import {module}"
    missing = [alias.name for alias in node.names if alias.name not in MODULES[module]]
    return f"{module}.{missing[0]}" if missing else ""


def _class(node: ast.ClassDef) -> str:
    if node.bases or node.keywords:
        return "classes with a base"
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            if part.decorator_list:
                return "decorated methods"
            if part.name.startswith("__") and part.name not in METHODS:
                return part.name
        elif not isinstance(part, ast.Pass | ast.Assign | ast.AnnAssign | ast.Expr):
            return "a class that holds more than methods and values"
        elif isinstance(part, ast.Assign) and _last(part.targets[0]).startswith("__"):
            return _last(part.targets[0])
    return ""
