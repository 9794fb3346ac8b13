"""Error messages of programs: correct lines, useful hints, and a report of everything that is lost."""

from collections.abc import Generator
from typing import Any

import pytest
from small_world import KEY, HeldWorld, World, run, run_until_timeout

from athena.programs.sandbox import Limits, Sandbox

BOTH = pytest.mark.parametrize("engine_name", ["monty", "python"])


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(turn_s=0.3, cpu_s=1.0), key=KEY)
    yield made
    made.close()


def run_error(sandbox: Sandbox, code: str, **given: Any) -> Any:
    error = run(sandbox, code, **given).error
    assert error is not None
    return error


# --- parallel ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "code",
    [
        "parallel([lambda n=n: slow.wait(seconds=0.05, value=n) for n in [1, 2]])",
        "import functools\nparallel([functools.partial(slow.wait, 0.05, n) for n in [1, 2]])",
        "at = iter([1, 2])\nparallel([lambda: slow.wait(0.05, next(at))] * 2)",
        "parallel((lambda: slow.wait(0.05, 1), lambda: slow.wait(0.05, 2)))",
    ],
)
def test_parallel_calls_functions_concurrently(sandbox: Sandbox, engine_name: str, code: str) -> None:
    world = HeldWorld(at_once=2)
    done = run(sandbox, code, world, engine=engine_name)
    assert done.value == [1, 2], done.error
    assert world.most_at_once == 2


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    return slow.wait(0.05, 1)\nparallel([f] * 2)",
        "f = lambda: slow.wait(0.05, 1)\njobs = [f, f]\nparallel(jobs)",
        "from functools import partial\ndef f(n, m):\n    return slow.wait(n, m)\nparallel([partial(f, 0.05, 1)] * 2)",
        "def f():\n    return slow.wait(0.05, 1)\nlist(parallel({'a': f, 'b': f}).values())",
    ],
)
def test_parallel_calls_named_functions_concurrently(sandbox: Sandbox, code: str) -> None:
    world = HeldWorld(at_once=2)
    done = run(sandbox, code, world)
    assert done.value == [1, 1], done.error
    assert world.most_at_once == 2


def test_functions_of_parallel_keep_their_meaning(sandbox: Sandbox) -> None:
    """A function that catches errors sees them, and one that calls another gets its value."""
    code = """
def safe():
    try:
        return slow.fail(message="no")
    except ToolError:
        return "caught"
def inner():
    return slow.wait(0, 2)
def outer():
    return 1 + inner()
later = [safe, outer, inner]
[parallel(later), inner(), [f() for f in later]]
"""
    done = run(sandbox, code)
    assert done.value == [["caught", 3, 2], 2, ["caught", 3, 2]], done.error
    wrong = "def f():\n    return slow.fail(message='no')\nparallel([f] * 2, return_errors=True)"
    assert ["error" in one for one in run(sandbox, wrong).value] == [True, True]


@BOTH
def test_parallel_accepts_any_callable(sandbox: Sandbox, engine_name: str) -> None:
    code = """
def one():
    return len(memory.recall("alice"))
later = [lambda: len(memory.recall("bob"))]
[parallel([one, one]), parallel(later), parallel([crm.contacts.list])[0]["more"], parallel({"a": lambda: 1 / 0, "b": 2},
    return_errors=True)]
"""
    done = run(sandbox, code, engine=engine_name)
    assert done.value == [[1, 1], [1], True, {"a": {"error": "division by zero"}, "b": 2}], done.error
    assert run_error(sandbox, "\nparallel([lambda: 1 / 0])", engine=engine_name)["line"] == 2
    assert "asyncio.gather" in run_error(sandbox, "async def f(): pass\nparallel([f()])", engine=engine_name)["message"]


@pytest.mark.parametrize(
    "given",
    ["memory.remember('x'), memory.remember('y')", "lambda: memory.remember('x')", "memory.recall", "[], n=1", ""],
)
def test_invalid_parallel_fails_before_calls(sandbox: Sandbox, given: str) -> None:
    world = World()
    done = run(sandbox, f"parallel({given})", world)
    assert done.error is not None
    assert "one list" in done.error["message"]
    assert world.log == []


# --- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", ["", "\n \n", "# only a note"])
def test_empty_program_keeps_later_line_numbers(sandbox: Sandbox, nothing: str) -> None:
    state = run(sandbox, "def f(a):\n    return parallel([slow.wait(0.01, a), slow.wait(0.01, a)])").state
    state = run(sandbox, nothing, state=state).state
    assert run_error(sandbox, "x = 1\ny = 2\nz = x + None", engine="monty", state=state)["line"] == 3
    assert run(sandbox, "f(4)", state=state).value == [4, 4]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("def g(n):\n    return 1\nx = 1\ng(1)\n\ng(1, 2)", 6),
        ("\ndef h():\n    f()\nh()", 3),
        ("f(a=1)\nf()", 2),
        ("if True:\n    f()\nelse:\n    f()", None),  # Monty does not report which, and we do not guess
    ],
)
def test_wrong_call_error_has_its_line(sandbox: Sandbox, code: str, line: int | None) -> None:
    state = run(sandbox, "# a\n\ndef f(a):\n    return a").state
    assert run_error(sandbox, code, engine="monty", state=state)["line"] == line
    first = line or 2
    assert run_error(sandbox, code, state=state)["line"] == first, "CPython knows better, if nothing was called yet"


# --- variables --------------------------------------------------------------------------------------------------------


@BOTH
def test_variable_named_like_category_is_reported(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "crm = [1]\nx = crm", engine=engine_name)
    assert done.lost == ("crm (the name of a category)",)
    assert run(sandbox, "x", state=done.state, engine=engine_name).lost == ()


# --- names and limits -------------------------------------------------------------------------------------------------


@BOTH
def test_namespace_repr_lists_content(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "print(crm)\nlook = crm\n[crm, look.contacts.list()['more']]", engine=engine_name)
    assert "contacts, orders" in done.output, done.error
    assert done.value == ["<namespace crm: contacts, orders>", True]


def test_dir_lists_operations(sandbox: Sandbox) -> None:
    assert run(sandbox, "dir(crm)").value == ["contacts", "orders"]


def test_timeout_error_names_last_call(sandbox: Sandbox) -> None:
    turn = run_error(sandbox, "memory.recall('alice')\nwhile True: pass")
    assert turn["message"] == "more than 0.3 s of computing between two calls (limit turn_s)"
    assert "the last call was memory.recall" in turn["hint"]
    done, world, timeout_s = run_until_timeout(sandbox, "slow.wait(seconds=0)")
    world.go.set()
    assert done.error is not None
    assert done.error["message"] == f"stopped after {timeout_s:g} s (limit timeout_s)"
    assert "the last call was slow.wait" in str(done.error["hint"])
