"""Which engine a program needs, read from its syntax tree.

Monty starts faster and can wait for a person, so it is the default. These tables say what Monty 1.4 lacks, as
measured; `tests/programs/sandbox/test_engine_routing.py` fails when another version of Monty has more or less.
"""

import ast
import builtins
from bisect import bisect_left
from collections.abc import Callable
from functools import cached_property

from athena.programs.sandbox import lazy
from athena.programs.sandbox.names import Namespace
from athena.programs.sandbox.patterns import RegexCheck
from athena.programs.sandbox.source import ProgramSource
from athena.programs.sandbox.values import ProgramRejected


def _word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What can be imported in Monty, and what is in it.
MONTY_MODULES: dict[str, frozenset[str]] = {
    module: _word_set(names)
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

MISSING_BUILTINS = _word_set(
    """BaseExceptionGroup BlockingIOError BrokenPipeError BufferError BytesWarning ChildProcessError
    ConnectionAbortedError ConnectionError ConnectionRefusedError ConnectionResetError DeprecationWarning EOFError
    EncodingWarning EnvironmentError ExceptionGroup FloatingPointError FutureWarning GeneratorExit IOError ImportWarning
    IndentationError InterruptedError PendingDeprecationWarning ProcessLookupError ReferenceError ResourceWarning
    RuntimeWarning StopAsyncIteration SyntaxWarning SystemError TabError UnicodeError UnicodeTranslateError
    UnicodeWarning UserWarning Warning aiter anext ascii bytearray callable classmethod compile delattr dir exit
    globals issubclass memoryview quit staticmethod super vars"""
)
# Methods that none of Monty's types has under this name.
MISSING_METHODS = _word_set(
    """add_note bit_count bit_length combine ctime default_factory denominator difference_update endpos expand
    format_map from_bytes from_float fromisocalendar fromordinal fromtimestamp groupindex intersection_update
    is_integer isocalendar lastgroup lastindex maketrans numerator regs scanner subn symmetric_difference_update
    timetuple to_bytes toordinal translate utcfromtimestamp utcnow utctimetuple with_traceback"""
)
# Special methods of a program's own classes that Monty calls.
MONTY_SPECIAL_METHODS = _word_set(
    """__init__ __repr__ __str__ __eq__ __hash__ __bool__ __call__ __enter__ __exit__ __iter__ __next__ __contains__
    __getitem__ __setitem__ __add__ __format__ __matmul__"""
)
# Keyword arguments of calls by this name that Monty lacks.
MISSING_KEYWORDS = {
    "dumps": _word_set("default cls allow_nan check_circular skipkeys"),
    "loads": _word_set("object_hook cls parse_float parse_int object_pairs_hook parse_constant"),
    "gather": _word_set("return_exceptions"),
    "dataclass": _word_set("order slots kw_only"),
}
_ALLOWED_DUNDERS = _word_set("__name__ __class__")
# Methods that cannot be passed on without being called: `key=str.lower`, `key=d.get`.
_METHOD_VALUES = frozenset(
    name for kind in (str, bytes, list, dict, set, tuple) for name in dir(kind) if not name.startswith("_")
)
_MONTY_CODECS = _word_set("utf-8 utf8 utf_8 ascii us-ascii")
_ENDLESS_ITERATORS = _word_set("count cycle repeat")
_EXCEPTION_ATTRIBUTES = _word_set("code hint add_note __cause__ __context__ __traceback__")
_MISSING_SYNTAX: dict[type[ast.AST], str] = {
    ast.Delete: "del",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.AsyncFor: "async for",
    ast.AsyncWith: "async with",
    ast.TryStar: "except*",
}
if hasattr(ast, "TypeAlias"):
    _MISSING_SYNTAX[ast.TypeAlias] = "type aliases"


def find_cpython_reason(source: ProgramSource, names: Namespace) -> str:
    """Return why a program needs CPython; empty if Monty can run it."""
    return _EngineCheck(source, names).find_reason()


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


def _check_exception(node: ast.Call) -> str:
    """Find an exception that is given more than one text, as far as that is written out."""
    kind = getattr(builtins, node.func.id, None) if isinstance(node.func, ast.Name) else None
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        return ""
    texts = [one for one in node.args if not isinstance(one, _NON_TEXT_NODES)]
    texts = [one for one in texts if not (isinstance(one, ast.Constant) and not isinstance(one.value, str))]
    return "an exception that holds more than one text" if len(node.args) > min(1, len(texts)) else ""


_NON_TEXT_NODES = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.Starred)


class _EngineCheck:
    def __init__(self, source: ProgramSource, names: Namespace) -> None:
        self.source, self.regex_check = source, RegexCheck(source)
        self.operation_roots = names.roots - source.bound_names
        self.modules: dict[str, str] = {}  # what an import is called here
        self.called_ids: set[int] = set()  # attributes that are called, or lead to another one
        self.stored_attributes: set[str] = set()  # attributes that the program gives a value
        for node in source.nodes:
            if isinstance(node, ast.Import):
                self.modules |= {(alias.asname or alias.name): alias.name for alias in node.names}
            elif isinstance(node, ast.Call):
                self.called_ids.add(id(node.func))
            elif isinstance(node, ast.Attribute):
                self.called_ids.add(id(node.value))
                if isinstance(node.ctx, ast.Store):
                    self.stored_attributes.add(node.attr)

    # What is asked of many nodes is found once: a hostile program has thousands of them, one inside of the other.

    @cached_property
    def function_names(self) -> set[str]:
        return {one.name for one in self.source.nodes if isinstance(one, ast.FunctionDef)}

    @cached_property
    def chain_roots(self) -> dict[int, str]:
        """The first name of each attribute's chain: `a` of `a.b.c`."""
        found: dict[int, str] = {}
        for node in reversed(self.source.nodes):  # what is inside first
            if isinstance(node, ast.Attribute):
                inner = node.value
                found[id(node)] = inner.id if isinstance(inner, ast.Name) else found.get(id(inner), "")
        return found

    @cached_property
    def operation_positions(self) -> list[int]:
        """Where operations are named."""
        return self._find_positions(lambda node: self.chain_roots.get(id(node)) in self.operation_roots)

    @cached_property
    def endless_positions(self) -> list[int]:
        return self._find_positions(
            lambda node: isinstance(node, ast.Call) and _final_name(node.func) in _ENDLESS_ITERATORS
        )

    @cached_property
    def exception_uses(self) -> dict[tuple[str, str], list[int]]:
        """Where something is asked of a name that only CPython's exceptions have."""
        found: dict[tuple[str, str], list[int]] = {}
        for node in self.source.nodes:
            if (
                isinstance(node, ast.Attribute)
                and node.attr in _EXCEPTION_ATTRIBUTES
                and isinstance(node.value, ast.Name)
            ):
                found.setdefault((node.value.id, node.attr), []).append(self.source.get_span(node)[0])
        return {asked: sorted(places) for asked, places in found.items()}

    def _find_positions(self, wanted: Callable[[ast.AST], bool]) -> list[int]:
        return sorted(self.source.get_span(node)[0] for node in self.source.nodes if wanted(node))

    def _contains_position(self, node: ast.AST, places: list[int]) -> bool:
        """Tell whether one of these places is inside of a node."""
        start, end = self.source.get_span(node)
        found = bisect_left(places, start)
        return found < len(places) and places[found] < end

    def find_reason(self) -> str:
        for node in self.source.nodes:
            if reason := _MISSING_SYNTAX.get(type(node)) or self._check_node(node):
                return reason
        return lazy.LazinessCheck(self.source, self.operation_roots, self.chain_roots, set(self.modules)).find_reason()

    def _check_node(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self._check_name(node)
        if isinstance(node, ast.Attribute):
            return self._check_attribute(node)
        if isinstance(node, ast.Call):
            return self._check_call(node) or _check_exception(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return _check_import(node)
        if isinstance(node, ast.ClassDef):
            return _check_class(node)
        if isinstance(node, ast.comprehension):
            return "an asynchronous comprehension" if node.is_async else ""
        if isinstance(node, ast.GeneratorExp):
            return "a generator over something endless" if self._contains_position(node, self.endless_positions) else ""
        return self._check_handler(node) if isinstance(node, ast.ExceptHandler) else ""

    def _check_name(self, node: ast.Name) -> str:
        missing = (
            node.id in MISSING_BUILTINS and isinstance(node.ctx, ast.Load) and node.id not in self.source.bound_names
        )
        return node.id if missing and hasattr(builtins, node.id) else ""

    def _check_attribute(self, node: ast.Attribute) -> str:
        if self.chain_roots[id(node)] in self.operation_roots:
            return ""
        module = self.modules.get(_final_name(node.value)) if isinstance(node.value, ast.Name) else None
        if module in MONTY_MODULES:
            return "" if node.attr in MONTY_MODULES[module] else f"{module}.{node.attr}"
        if node.attr in MISSING_METHODS:
            return f".{node.attr}"
        if node.attr.startswith("__") and node.attr not in _ALLOWED_DUNDERS:
            return f".{node.attr}"
        if node.attr == "__name__" and not isinstance(node.value, ast.Call) and _final_name(node.value) != "__class__":
            return "the name of a function"
        passed_on = (
            isinstance(node.ctx, ast.Load)
            and id(node) not in self.called_ids
            and node.attr not in self.stored_attributes
        )
        return f".{node.attr} as a value" if passed_on and node.attr in _METHOD_VALUES else ""

    def _check_call(self, node: ast.Call) -> str:
        name = _final_name(node.func)
        if reason := self.regex_check.find_reason(node) or _check_codec(node, name):
            return reason
        if missing := [one.arg for one in node.keywords if one.arg in MISSING_KEYWORDS.get(name, ())]:
            return f"{name}({missing[0]}=)"
        if name == "sub" and any(self._is_function(argument) for argument in node.args[:2]):
            return "re.sub with a function"
        if name == "bytes" and node.args and isinstance(node.args[0], ast.List | ast.Tuple | ast.ListComp):
            return "bytes of numbers"
        keys = [one.value for one in node.keywords if one.arg == "key"]
        if name in ("max", "min", "sort", "groupby") and any(
            self._contains_position(key, self.operation_positions) for key in keys
        ):
            return f"an operation called in {name}(key=)"
        return ""

    def _is_function(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Lambda):
            return True
        return isinstance(node, ast.Name) and node.id in self.function_names

    def _check_handler(self, node: ast.ExceptHandler) -> str:
        """Find what is asked of an exception: Monty keeps its type and its text alone."""
        for name, attribute in ((node.name, one) for one in sorted(_EXCEPTION_ATTRIBUTES)):
            if self._contains_position(node, self.exception_uses.get((name or "", attribute), [])):
                return f"{attribute} of an exception"
        return ""


def _check_codec(node: ast.Call, name: str) -> str:
    """Find another encoding than those that Monty has."""
    if name not in ("encode", "decode") or not isinstance(node.func, ast.Attribute):
        return ""
    given = [*node.args[:1], *(one.value for one in node.keywords if one.arg == "encoding")]
    if not given:
        return ""
    codec = given[0].value if isinstance(given[0], ast.Constant) else None
    return "" if isinstance(codec, str) and codec.lower() in _MONTY_CODECS else f".{name} with another encoding"


def _final_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _check_import(node: ast.Import | ast.ImportFrom) -> str:
    if isinstance(node, ast.Import):
        missing = [alias.name for alias in node.names if alias.name not in MONTY_MODULES and alias.name != "os.path"]
        return f"import {missing[0]}" if missing else ""
    module = node.module or ""
    if module == "os.path":
        return ""
    if module not in MONTY_MODULES:
        return f"import {module}"
    missing = [alias.name for alias in node.names if alias.name not in MONTY_MODULES[module]]
    return f"{module}.{missing[0]}" if missing else ""


def _check_class(node: ast.ClassDef) -> str:
    if node.bases or node.keywords:
        return "classes with a base"
    for part in node.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            if part.decorator_list:
                return "decorated methods"
            if part.name.startswith("__") and part.name not in MONTY_SPECIAL_METHODS:
                return part.name
        elif not isinstance(part, ast.Pass | ast.Assign | ast.AnnAssign | ast.Expr):
            return "a class that holds more than methods and values"
        elif isinstance(part, ast.Assign) and _final_name(part.targets[0]).startswith("__"):
            return _final_name(part.targets[0])
    return ""
