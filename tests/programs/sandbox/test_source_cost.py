"""Analysing a program takes time proportional to its length, however it is written."""

import time
from collections.abc import Callable

import pytest
from small_world import NAMES

from athena.programs.sandbox import routing
from athena.programs.sandbox.check import find_problems
from athena.programs.sandbox.source import ProgramSource
from conftest import sample

SMALL, LARGE = 8_000, 32_000
MOST = 8.0  # maximal ratio for four times the length; quadratic work takes sixteen times as long
FLOOR_S = 0.01


def repeat_unit(unit: str, size: int, head: str = "", tail: str = "") -> str:
    return head + "".join(unit.replace("#", str(place)) for place in range(size // (len(unit) + 3))) + tail


def nest_blocks(unit: str, size: int, levels: int, inside: str) -> str:
    """Return nested blocks with as many lines in the innermost as fit."""
    lines = [" " * level + unit.replace("#", str(level)) for level in range(levels)]
    room = max(1, (size - sum(map(len, lines))) // (len(inside) + levels + 1))
    return "\n".join([*lines, *[" " * levels + inside] * room])


def nest_try(size: int) -> str:
    """Return `try` statements nested in their handlers."""
    lines = [" " * level + line for level in range(90) for line in ("try: pass", "except E as e:")]
    room = max(1, (size - sum(map(len, lines))) // 94)
    return "\n".join([*lines, *[" " * 90 + "f.x"] * room])


def nest_brackets(start: str, end: str, size: int, inside: str, levels: int = 90) -> str:
    return start * levels + inside * (size // len(inside)) + end * levels


SOURCES: dict[str, Callable[[int], str]] = {
    "definitions": lambda size: repeat_unit("def f#(x):\n    return x\n", size),
    "classes": lambda size: repeat_unit("class A#:\n    def f(self): pass\n", size),
    "imports": lambda size: repeat_unit("import json\n", size),
    "one import of many": lambda size: repeat_unit("sub as a#, ", size, "from re import ", "sub"),
    "many names of a package": lambda size: repeat_unit("os.path, ", size, "import ", "os"),
    "replacements": lambda size: repeat_unit("re.sub('a', 'b', 'c')\n", size, "import re\n"),
    "replacements by names": lambda size: repeat_unit("re.sub('a', f, 'c')\n", size, "import re\n"),
    "calls of operations": lambda size: repeat_unit("memory.recall(q#)\n", size),
    "unknown operations": lambda size: repeat_unit("memory.recal#(1)\n", size),
    "wrong arguments": lambda size: repeat_unit("memory.recall(qery=#)\n", size),
    "awaited calls": lambda size: repeat_unit("await f(x, y)\n", size),
    "gathered calls": lambda size: repeat_unit("f(x, y), ", size, "asyncio.gather(", ")"),
    "calls at once": lambda size: repeat_unit("lambda: f(x, y), ", size, "parallel([", "])"),
    "calls at once inside of each other": lambda size: nest_brackets("parallel([", "])", size, "lambda: f(x), "),
    "long chains": lambda size: "\n".join(["x" + ".a" * 900] * (size // 1_800)),
    "long chains of operations": lambda size: "\n".join(["memory" + ".a" * 900] * (size // 1_800)),
    "long chains of calls": lambda size: "\n".join(["x" + ".a()" * 450] * (size // 1_800)),
    "one dotted import": lambda size: "import a" + ".a" * (size // 2),
    "one dotted import from": lambda size: "from a" + " . \\\n a" * (size // 7) + " import b",
    "dotted imports": lambda size: "\n".join(["import x" + ".a" * 900] * (size // 1_800)),
    "one name of many marks": lambda size: "a" + "\u0301\u0323" * (size // 4),
    "spaces before dots": lambda size: repeat_unit("a" + " " * 20 + ".", size, tail="b"),
    "sums": lambda size: "\n".join(["x = 0" + "+a" * 900] * (size // 1_800)),
    "generators inside of each other": lambda size: nest_brackets("(x for x in [", "])", size, "f(), "),
    "keys inside of each other": lambda size: nest_brackets("max(a, key=[", "])", size, "x.y, "),
    "handlers inside of each other": nest_try,
    "blocks": lambda size: nest_blocks("if x:", size, 90, "a.b(c)"),
    "tries": lambda size: nest_blocks("for e in x:", size, 90, "import json"),
    "lists": lambda size: nest_brackets("[", "]", size, "f(a), "),
    "names": lambda size: repeat_unit("a#=b#\n", size),
    "deletions": lambda size: repeat_unit("del a#\n", size),
    "globals": lambda size: repeat_unit("def f#():\n global a#\n", size),
    "texts": lambda size: repeat_unit("'a#'\n", size),
    "formatted texts": lambda size: repeat_unit("f'{a#} {b}'\n", size),
    "one long text": lambda size: f"x = '{'a' * size}'",
    "one long line": lambda size: repeat_unit("f(a#);", size),
    "wide characters": lambda size: repeat_unit("x='é€';f(a)\n", size // 2),
    "comprehensions": lambda size: repeat_unit("[f(x) for x in a if x]\n", size),
    "generators": lambda size: repeat_unit("any(f(x) for x in a if x)\n", size),
    "loops": lambda size: repeat_unit("for i, x in enumerate(a):\n f(x)\n", size),
    "loops inside of each other": lambda size: nest_blocks("for i#, x# in enumerate(a#):", size, 90, "f(map(g, x))"),
    "loops over maps": lambda size: nest_blocks("for x# in map(lambda y: y + z, a#):", size, 90, "f(x)"),
    "one comprehension of many loops": lambda size: repeat_unit("for a in map(str, a) ", size, "[a ", "]"),
    "changes in loops": lambda size: repeat_unit("for i, x in enumerate(a):\n a[i] = x\n", size),
    "names of loops": lambda size: repeat_unit("for x in map(lambda y: y, a):\n b = x\n", size),
    "many values in a next": lambda size: repeat_unit("next((x for x in a if x.b), None)\n", size),
    "returns": lambda size: repeat_unit("if a#: return f(x)\n", size),
    "returns in tries": lambda size: nest_blocks("with a#:", size, 90, "return f(x)"),
    "matches": lambda size: repeat_unit("match a:\n case {'b': c#}: pass\n", size),
    "lambdas": lambda size: repeat_unit("f(lambda x: x.y(#))\n", size),
    "lambdas inside of each other": lambda size: nest_brackets("(lambda x: [", "])", size, "f(x), "),
    "empty lines": lambda size: "\n" * size,
    "brackets that never close": lambda size: "[" * 150 + "f(a), " * (size // 6),
}


def seconds(text: str) -> float:
    began = time.process_time()
    try:
        source = ProgramSource(text, 64_000)
    except Exception:  # noqa: BLE001  # refused, which is an answer too
        return time.process_time() - began
    assert source.bound_names is not None
    assert source.top_level_names is not None
    assert source.definitions is not None
    assert source.to_monty_source()
    assert source.concurrent_spans is not None
    routing.find_cpython_reason(source, NAMES)
    find_problems(source, NAMES, known=())
    return time.process_time() - began


@pytest.mark.parametrize("name", sample(SOURCES, 18))
def test_source_analysis_time_is_linear(name: str) -> None:
    small, large = SOURCES[name](SMALL), SOURCES[name](LARGE)
    # several tries, since other processes use the machine too
    tries = ((seconds(large) + FLOOR_S) / (seconds(small) + FLOOR_S) for _ in range(5))
    assert any(longer < MOST for longer in tries)


def test_many_imported_names_kept_once() -> None:
    source = ProgramSource(f"from re import {', '.join(f'sub as a{n}' for n in range(1_000))}", 64_000)
    assert source.definitions["a7"] == "from re import sub as a7"
    assert sum(map(len, source.definitions.values())) < 4 * len(source.text)


def test_names_of_package_are_kept_together() -> None:
    assert ProgramSource("import os.path, os.x\nimport re", 1_000).definitions == {
        "os": "import os.path\nimport os.x",
        "re": "import re",
    }


def test_texts_may_have_dots_and_marks() -> None:
    text = "'" + "a. b. " * 5_000 + "e\u0301" * 2_000 + "漢字" * 2_000 + "'"
    assert ProgramSource(text, 64_000).tree.body


@pytest.mark.parametrize("calls", ["+".join(["[f()]"] * 1_500), f"[{'1 if x else ' * 1_500}f()]"])
def test_deeply_nested_calls_are_found(calls: str) -> None:
    source = ProgramSource(f"parallel({calls})", LARGE)
    assert len(source.concurrent_spans.parallel) == calls.count("f()")
    assert routing.find_cpython_reason(source, NAMES) == ""
