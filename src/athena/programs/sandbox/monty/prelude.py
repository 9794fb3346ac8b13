"""The prelude: functions that every Monty program has, as Monty source."""

import zlib

from athena.programs.sandbox.json_values import CUT_MARK, MAX_JSON_DEPTH
from athena.programs.sandbox.limits import Limits
from athena.programs.sandbox.source import ConcurrentSpans

# Monty 1.4 crashes if a class and its instance leave the worker together, so classes leave as their names.
# `map`, `filter` and `sorted` are Python here because Monty's own cannot wait for an operation inside of them.
# `parallel` calls the functions in its list; operations that it calls begin at once, see `spots`.
_PRELUDE_TEMPLATE = """
ToolError = RuntimeError

def map(f, *its):
    return [f(*arg__(a)) for a in zip(*its)]

def filter(f, it):
    return [x for x in it if (f(arg__(x)) if f is not None else x)]

def sorted(it, *, key=None, reverse=False):
    xs = list(it)
    if key is None:
        xs.sort(reverse=reverse)
        return xs
    ks = [key(arg__(x)) for x in xs]
    places = list(range(len(xs)))
    places.sort(key=lambda i: ks[i], reverse=reverse)
    return [xs[i] for i in places]

def parallel(*given, return_errors=False, str=str, type=type, isinstance=isinstance, enumerate=enumerate, list=list,
             tuple=tuple, dict=dict, zip=zip, len=len, Exception=Exception, TypeError=TypeError):
    if len(given) != 1 or not isinstance(given[0], (list, tuple, dict)):
        raise TypeError('WRONG_PARALLEL')
    calls = given[0]
    values = list(calls.values()) if isinstance(calls, dict) else list(calls)
    failed = {}
    for i, call in enumerate(values):
        kind = str(type(call))
        if kind == "<class 'coroutine'>":
            raise TypeError('WRONG_COROUTINE')
        if kind in ("<class 'function'>", "<class 'functools.partial'>", "<class 'type'>"):
            try:
                values[i] = call()
            except Exception as error:
                failed[i] = error
                values[i] = None
    done = parallel__(values, return_errors=return_errors or len(failed) > 0)
    for i, error in failed.items():
        if not return_errors:
            raise error
        done[i] = {'error': str(error)}
    return dict(zip(calls, done)) if isinstance(calls, dict) else done

def round(number, ndigits=None, round=round, isinstance=isinstance, float=float, int=int, abs=abs, str=str,
          min=min):
    if ndigits is None or not isinstance(number, float) or not isinstance(ndigits, int):
        return round(number, ndigits)
    if ndigits > 300 or number != number or abs(number) == float('inf'):
        return number
    if ndigits >= 0:
        return float(f'{number:.{ndigits}f}')
    whole, unit = int(abs(number)), 10 ** min(-ndigits, 400)
    least = whole % unit
    up = least * 2 > unit or (least * 2 == unit and (abs(number) > whole or whole // unit % 2 == 1))
    made = float(whole - least + (unit if up else 0))
    return -made if number < 0 or str(number) == '-0.0' else made

async def ready__(v):
    return v

def wait__(v, NoneType=type(None), bool=bool, int=int, float=float, str=str, bytes=bytes, dict=dict, list=list,
           tuple=tuple, set=set, isinstance=isinstance):
    return ready__(v) if isinstance(v, (NoneType, bool, int, float, str, bytes, dict, list, tuple, set)) else v

def waits__(values):
    return [wait__(v) for v in values]

def arg__(v, NoneType=type(None), bool=bool, int=int, float=float, str=str, bytes=bytes, dict=dict, list=list,
          tuple=tuple, set=set, frozenset=frozenset, isinstance=isinstance, len=len, RuntimeError=RuntimeError):
    if isinstance(v, (NoneType, bool, int, float)):
        return v
    nodes, size, todo = MOST_NODES, MOST_SIZE, [v]
    while todo:
        x = todo.pop()
        nodes -= 1
        if isinstance(x, (str, bytes)):
            size -= len(x)
        elif isinstance(x, dict):
            nodes -= len(x)
            if nodes >= 0:
                todo.extend(x.keys())
                todo.extend(x.values())
        elif isinstance(x, (list, tuple, set, frozenset)):
            if nodes >= len(x):
                todo.extend(x)
            else:
                nodes = -1
        if nodes < 0 or size < 0:
            raise RuntimeError('limit_exceeded: an argument is too large: more than MOST_NODES values '
                               'or MOST_SIZE bytes (hint: pass less at a time)')
    return v

def cap__(v, strict=False, bool=bool, int=int, float=float, str=str, bytes=bytes, dict=dict, list=list, tuple=tuple,
          set=set, frozenset=frozenset, isinstance=isinstance, len=len, type=type):
    if v is None or isinstance(v, (bool, int, float)):
        return v
    left = [NODES, SIZE, 0, 0]
    def part(x, depth):
        left[0] -= 1
        if x is None or isinstance(x, (bool, int, float)):
            return x
        if isinstance(x, (str, bytes)):
            left[1] -= len(x)
            if left[1] >= 0:
                return x
            left[2] = 1
            return x[:len(x) + left[1]]
        pairs = isinstance(x, dict)
        if type(x) is not list and type(x) is not dict:
            if not strict or str(type(x)) not in KEPT_KINDS:
                left[3] = 1
            if type(x) is type(int):
                return str(x)
            if not pairs and not isinstance(x, (list, tuple, set, frozenset)):
                return x
        if depth >= DEEPEST:
            left[2] = 1
            return '...'
        r = {} if pairs else []
        for y in x:
            if left[0] <= 0 or left[1] <= 0:
                left[2] = 1
                break
            if pairs:
                if isinstance(y, tuple):
                    part(y, depth + 1)
                left[1] -= len(y) if isinstance(y, (str, bytes)) else 20
                r[part(y, depth + 1) if strict else y] = part(x[y], depth + 1)
            else:
                r.append(part(y, depth + 1))
        if strict and not pairs:
            return {tuple: tuple, set: set, frozenset: frozenset}.get(type(x), list)(r)
        return r
    r = part(v, 0)
    if strict:
        return ('CUT',) if left[2] or left[3] else r
    return ('CUT', r, len(v)) if left[2] else r
"""
PRELUDE_VERSION = zlib.crc32(_PRELUDE_TEMPLATE.encode())  # a dump of another version is not loaded
_KEPT_TYPES = ("tuple", "set", "frozenset", "datetime.datetime", "datetime.date", "datetime.timedelta")
_DEFERRED_CALL_TEXT = "values[i] = call()"
PARALLEL_USAGE = "parallel() takes one list, tuple or dict of calls or functions, and return_errors=False"
COROUTINE_USAGE = "parallel() takes calls of operations and functions; for coroutines there is await asyncio.gather()"


def build_prelude(limits: Limits) -> str:
    # A value that is cut gets half of the budget, so that the copy fits into the limits of the host.
    values: dict[str, int | str] = {"MOST_NODES": limits.value_nodes, "MOST_SIZE": limits.value_bytes}
    values |= {
        "NODES": limits.value_nodes // 2,
        "SIZE": limits.value_bytes // 2,
        "DEEPEST": MAX_JSON_DEPTH - 5,
        "CUT": CUT_MARK,
    }
    values["KEPT_KINDS"] = str(tuple(f"<class '{kind}'>" for kind in _KEPT_TYPES))
    values |= {"WRONG_PARALLEL": PARALLEL_USAGE, "WRONG_COROUTINE": COROUTINE_USAGE}
    text = _PRELUDE_TEMPLATE
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def find_prelude_spans(limits: Limits) -> ConcurrentSpans:
    """Return the span of the call in `parallel` that must not wait for its result."""
    text = build_prelude(limits)
    end = text.index(_DEFERRED_CALL_TEXT) + len(_DEFERRED_CALL_TEXT)
    return ConcurrentSpans(parallel=frozenset({(end - len("call()"), end)}))


def build_keep_source(names: list[str]) -> str:
    """Return a program whose value is the plain ones of these variables."""
    lines = ["def keep__():", "    r = {}"]
    for name in names:
        lines += ["    try:", f"        r[{name!r}] = cap__({name}, True)", "    except NameError:", "        pass"]
    return "\n".join([*lines, "    return r", "keep__()"])
