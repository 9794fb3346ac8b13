"""What every Monty program finds defined, as source for Monty."""

from athena.sandbox.limits import Limits
from athena.sandbox.plain import CUT, DEEPEST

# `map`, `filter` and `sorted` are Python here because Monty's own cannot wait for an operation inside of them.
_SOURCE = """
ToolError = RuntimeError

def map(f, *its):
    return [f(*a) for a in zip(*its)]

def filter(f, it):
    return [x for x in it if (f(x) if f is not None else x)]

def sorted(it, *, key=None, reverse=False):
    xs = list(it)
    if key is None:
        xs.sort(reverse=reverse)
        return xs
    ks = [key(x) for x in xs]
    places = list(range(len(xs)))
    places.sort(key=lambda i: ks[i], reverse=reverse)
    return [xs[i] for i in places]

def cap__(v):
    if v is None or isinstance(v, (bool, int, float)):
        return v
    nodes = NODES
    size = SIZE
    level = [v]
    depth = 0
    while level:
        below = []
        for x in level:
            nodes -= 1
            if isinstance(x, (str, bytes)):
                size -= len(x)
            elif isinstance(x, dict):
                nodes -= len(x)
                if nodes < 0:
                    return cut__(v)
                for k in x:
                    if isinstance(k, (str, bytes)):
                        size -= len(k)
                    below.append(x[k])
            elif isinstance(x, (list, tuple, set, frozenset)):
                if nodes < len(x):
                    return cut__(v)
                below.extend(x)
            if size < 0:
                return cut__(v)
        depth += 1
        if nodes < 0 or depth > DEEPEST:
            return cut__(v)
        level = below
    return v

def cut__(v):
    left = [NODES, SIZE]
    def part(x, depth):
        left[0] -= 1
        if x is None or isinstance(x, (bool, int, float)):
            return x
        if isinstance(x, (str, bytes)):
            p = x[:max(left[1], 0)]
            left[1] -= len(p)
            return p
        if depth >= DEEPEST:
            return '...'
        if isinstance(x, dict):
            r = {}
            for k in x:
                if left[0] <= 0 or left[1] <= 0:
                    break
                r[k] = part(x[k], depth + 1)
            return r
        if isinstance(x, (list, tuple, set, frozenset)):
            r = []
            for y in x:
                if left[0] <= 0 or left[1] <= 0:
                    break
                r.append(part(y, depth + 1))
            return r
        return x
    return ('CUT', part(v, 0))

def small__(found):
    kept = {}
    left = [100000, 1000000]
    def plain(x, depth):
        left[0] -= 1
        if left[0] < 0 or depth > 50:
            return False
        if x is None or isinstance(x, (bool, int, float)):
            return True
        if type(x) is str:
            left[1] -= len(x)
            return left[1] >= 0
        if type(x) is list:
            for y in x:
                if not plain(y, depth + 1):
                    return False
            return True
        if type(x) is dict:
            for k in x:
                if type(k) is not str or not plain(x[k], depth + 1):
                    return False
            return True
        return False
    for name in found:
        nodes, size = left
        if plain(found[name], 0):
            kept[name] = found[name]
        else:
            left[0] = nodes
            left[1] = size
    return kept
"""


def source(limits: Limits) -> str:
    # Half of the budget for what is cut: the copy must not outgrow what the host takes.
    values = {"NODES": limits.value_nodes // 2, "SIZE": limits.value_bytes // 2, "DEEPEST": DEEPEST - 5, "CUT": CUT}
    text = _SOURCE
    for name, value in values.items():
        text = text.replace(name, str(value))
    return text


def keeping(names: list[str]) -> str:
    """Write a program whose value is these variables, as far as they are plain."""
    lines = ["def keep__():", "    r = {}"]
    for name in names:
        lines += ["    try:", f"        r[{name!r}] = {name}", "    except NameError:", "        pass"]
    return "\n".join([*lines, "    return small__(r)", "keep__()"])
