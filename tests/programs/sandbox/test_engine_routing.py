"""The tables of features that Monty lacks match the installed Monty."""

import builtins
import importlib
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from small_world import KEY, NAMES, run

from athena.programs.sandbox import Limits, Sandbox, routing
from athena.programs.sandbox.source import ProgramSource


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


def cpython_reason(code: str) -> str:
    return routing.find_cpython_reason(ProgramSource(code, 10_000), NAMES)


def run_monty(sandbox: Sandbox, code: str) -> Any:
    done = run(sandbox, code, engine="monty")
    assert done.error is None, done.error
    return done.value


def test_listed_modules_can_be_imported(sandbox: Sandbox) -> None:
    for module in routing.MONTY_MODULES:
        assert run(sandbox, f"import {module}", engine="monty").error is None or module == "__future__", module


def test_listed_names_exist(sandbox: Sandbox) -> None:
    for module, names in routing.MONTY_MODULES.items():
        if module in ("__future__", "os"):
            continue
        lines = [f"import {module}", "missing = []"]
        for name in sorted(names):
            lines += ["try:", f"    {module}.{name}", "except AttributeError:", f"    missing.append({name!r})"]
        assert run_monty(sandbox, "\n".join([*lines, "missing"])) == [], module


def test_listed_builtins_are_missing_in_monty(sandbox: Sandbox) -> None:
    for name in sorted(routing.MONTY_BUILTINS):
        assert hasattr(builtins, name)
        assert run(sandbox, f"[{name}]\n1", engine="monty").error is None, name


def test_listed_methods_exist(sandbox: Sandbox) -> None:
    samples = """
import collections, datetime, hashlib, re
samples = ['', b'', [], {}, set(), (), 1, 1.0, re.match('a', 'a'), re.compile('a'), datetime.datetime.now(),
           datetime.date.today(), datetime.timedelta(1), collections.Counter(), collections.deque([1]),
           hashlib.md5(b'x'), datetime.datetime, datetime.date, dict]
found = 0
for sample in samples:
    try:
        sample.METHOD(1, 2, 3, 4, 5, 6, 7, 8, 9)
        found += 1
    except AttributeError:
        pass
    except Exception:
        found += 1
found
"""
    for name in sorted(routing.MONTY_METHODS):
        assert run_monty(sandbox, samples.replace("METHOD", name)) > 0, name


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1\ndel x", "del"),
        ("def f():\n    yield 1", "yield"),
        ("class A(Exception): pass", "a class"),
        ("class A:\n    @property\n    def x(self): return 1", "a class"),
        ("class A:\n    def __lt__(self, o): return True", "a class"),
        ("import statistics", "import statistics"),
        ("from collections import ChainMap", "collections.ChainMap"),
        ("@print\ndef f(): pass", "a decorator"),
        ("import re\nre.compile('a', re.VERBOSE)", "re.VERBOSE"),
        ("import re\nre.sub('a', lambda m: 'b', 'a')", "re.sub with a function"),
        ("import json\njson.dumps(1, default=str)", "dumps(default=)"),
        ("callable(5)", "callable"),
        ("sorted(['b'], key=str.lower)", ".lower as a value"),
        ("max([1], key=lambda n: memory.recall(str(n)))", "an operation called in key="),
        ("try:\n    pass\nexcept ToolError as e:\n    e.code", ".code"),
        ("(5).bit_length()", ".bit_length"),
        ("[].__class__.__mro__", ".__mro__"),
        ("any(x for x in [1])", "a generator"),
        ("g = zip([1], [2])", "zip() that is kept or passed on"),
        ("with x: pass", "with"),
        ("next([1])", "next"),
        ("x = 1\nx.y = 2", ".y"),
        ("match x:\n    case str(): pass", "matchclass"),
    ],
)
def test_unsupported_syntax_is_detected(sandbox: Sandbox, code: str, reason: str) -> None:
    assert cpython_reason(code) == reason


@pytest.mark.parametrize(
    "code",
    [
        "graph.items",
        "sum(x for x in [1])",
        "for i, x in enumerate([1]): print(i, x)",
        "import re\nre.sub('a', 'b', 'a')",
        "sorted([1], key=lambda n: memory.recall(str(n)))",
        "def callable(x): return True\ncallable(5)",
        "memory.translate('x')",
        "from datetime import datetime\ndatetime.now().isoformat()",
        "from __future__ import annotations\nx: int = 1",
    ],
)
def test_supported_syntax_is_not_reported(code: str) -> None:
    assert cpython_reason(code) == ""


def test_listed_names_exist_in_cpython() -> None:
    for module, names in routing.MONTY_MODULES.items():
        real = importlib.import_module(module)
        assert [name for name in names if not hasattr(real, name)] == [], module


def test_import_loads_neither_monty_nor_ctypes() -> None:
    program = (
        "import athena.programs.sandbox, sys\n"
        "from athena.programs.sandbox import Limits, Sandbox\n"
        "Sandbox(Limits(), key=b'x')\n"
        "print([m for m in ('pydantic_monty', 'ctypes', 'asyncio', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
