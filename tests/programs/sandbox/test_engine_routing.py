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


def test_no_module_is_missing(sandbox: Sandbox) -> None:
    """Fail when a newer Monty supports more."""
    left = [one for one in sys.stdlib_module_names if not one.startswith("_") and one not in routing.MONTY_MODULES]
    there = [one for one in sorted(left) if run(sandbox, f"import {one}", engine="monty").error is None]
    assert there == ["posixpath"]


def test_listed_builtins_are_missing_in_monty(sandbox: Sandbox) -> None:
    for name in sorted(routing.MISSING_BUILTINS):
        assert hasattr(builtins, name)
        assert run(sandbox, name, engine="monty").error is not None, name


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("x = 1\ndel x", "del"),
        ("def f():\n    yield 1", "yield"),
        ("class A(Exception): pass", "classes with a base"),
        ("class A:\n    @property\n    def x(self): return 1", "decorated methods"),
        ("class A:\n    def __lt__(self, o): return True", "__lt__"),
        ("import statistics", "import statistics"),
        ("from functools import wraps", "functools.wraps"),
        ("import functools\n@functools.wraps\ndef f(): pass", "functools.wraps"),
        ("import re\nre.compile('a', re.VERBOSE)", "re.VERBOSE"),
        ("import re\nre.sub('a', lambda m: 'b', 'a')", "re.sub with a function"),
        ("import json\njson.dumps(1, default=str)", "dumps(default=)"),
        ("callable(5)", "callable"),
        ("sorted(['b'], key=str.lower)", ".lower as a value"),
        ("max([1], key=lambda n: memory.recall(str(n)))", "an operation called in max(key=)"),
        ("try:\n    pass\nexcept ToolError as e:\n    e.code", "code of an exception"),
        ("(5).bit_length()", ".bit_length"),
        ("[].__class__.__mro__", ".__mro__"),
    ],
)
def test_unsupported_syntax_is_detected(sandbox: Sandbox, code: str, reason: str) -> None:
    assert cpython_reason(code) == reason


@pytest.mark.parametrize(
    "code",
    [
        "graph.items",
        "class A:\n    n = 1\n    def __init__(self): self.items = [1]\na = A()\na.items",
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
