"""Variables of a program reach the next one on either engine, or the program gets a message."""

from collections.abc import Generator
from dataclasses import replace

import pytest
from small_world import KEY, run

from athena.programs.sandbox import Limits, Run, Sandbox
from athena.programs.sandbox.worker.tagging import KIND_KEY, Tagger, UntaggableValue, untag_value

ON_PYTHON = "import heapq\n"


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


def run_in_sequence(sandbox: Sandbox, *codes: str) -> list[Run]:
    """Run programs in sequence, each with the variables of the previous one."""
    state, runs = None, []
    for code in codes:
        runs.append(run(sandbox, code, state=state))
        state = runs[-1].state
    return runs


def test_oversized_variables_are_not_reverted(sandbox: Sandbox) -> None:
    small = Sandbox(replace(Limits(), state_bytes=1_000_000), key=KEY)
    try:
        _, second, third, fourth = run_in_sequence(small, "x = 1", "x = 2\nbig = 'a' * 3_000_000", "x", "big")
    finally:
        small.close()
    assert second.lost == ("big",)
    assert third.result == 2
    assert fourth.error is not None
    assert "too large" in (fourth.error["hint"] or "")


def test_deleted_variable_is_gone(sandbox: Sandbox) -> None:
    runs = run_in_sequence(sandbox, "x = 1\ny = 2", "del x", "y", "x")
    assert runs[2].result == 2
    assert runs[3].error is not None
    assert runs[3].error["type"] == "NameError"


def test_deleted_function_is_gone(sandbox: Sandbox) -> None:
    runs = run_in_sequence(sandbox, "def f(): return 1", "del f", f"{ON_PYTHON}f()", "f()")
    assert [one.error and one.error["type"] for one in runs[2:]] == ["NameError", "NameError"]


def test_unkept_variable_is_not_reverted(sandbox: Sandbox) -> None:
    runs = run_in_sequence(sandbox, "x = 1\ny = [3]", f"{ON_PYTHON}x = object()", "y", "x")
    assert runs[1].lost == ("x",)
    assert runs[2].result == [3]
    assert runs[3].error is not None
    assert "x had a value in an earlier program" in (runs[3].error["hint"] or "")


def test_rebound_variable_is_not_reverted(sandbox: Sandbox) -> None:
    runs = run_in_sequence(
        sandbox, "x = 1\ny = 1\nz = 1", f"{ON_PYTHON}x = heapq\ny = lambda: 5\ndef z(): return 7", "z()", "x", "y"
    )
    assert runs[1].lost == ("y",)
    assert runs[2].result == 7
    assert [one.error and one.error["type"] for one in runs[3:]] == ["NameError", "NameError"]


def test_variables_may_shadow_builtins(sandbox: Sandbox) -> None:
    runs = run_in_sequence(
        sandbox, "list = [1]\nset = (2,)\nstr = 'x'\ntype = 'y'\nlen = {3}\n[list, set]", "[list, set, str, type]"
    )
    assert [one.error for one in runs] == [None, None]
    assert runs[0].result == [[1], [2]]
    assert runs[1].result == [[1], [2], "x", "y"]


def test_lost_monty_variables_are_named(sandbox: Sandbox) -> None:
    runs = run_in_sequence(sandbox, "from collections import Counter\na = Counter('xyx')\nx = 1", "del x", "a['x']")
    assert runs[1].lost == ("a",)
    assert runs[2].error is not None
    assert "a had a value" in (runs[2].error["hint"] or "")


VALUES = """from datetime import date, datetime, timedelta, timezone
t = (1, (2, "x"))
s = {1, (2, 3)}
k = {1: "a", (1, 2): "b", None: "c"}
d = [datetime(2024, 1, 2, 3, 4, tzinfo=timezone.utc), date(2024, 1, 2), timedelta(days=-1, seconds=5)]
b = b"\\xff"
f = frozenset([1])
i = float("inf")
m = {"$kind": "set", "value": [1]}
"""
SAME = f"""from datetime import date, datetime, timedelta, timezone
[t == (1, (2, "x")), s == {{1, (2, 3)}}, k == {{1: "a", (1, 2): "b", None: "c"}}, b == b"\\xff",
 d == [datetime(2024, 1, 2, 3, 4, tzinfo=timezone.utc), date(2024, 1, 2), timedelta(days=-1, seconds=5)],
 f == frozenset([1]), i == float("inf"), m == {{"{KIND_KEY}": "set", "value": [1]}}, type(t) is tuple]
"""


@pytest.mark.parametrize("start", ["", ON_PYTHON], ids=["monty", "python"])
def test_non_json_values_cross_engines(sandbox: Sandbox, start: str) -> None:
    other = "" if start else ON_PYTHON
    runs = run_in_sequence(sandbox, start + VALUES, other + SAME, start + SAME, other + SAME)
    assert [one.error for one in runs] == [None] * 4
    assert {one.engine for one in runs} == {"monty", "python"}
    assert [one.result for one in runs[1:]] == [[True] * 9] * 3
    assert runs[0].lost == ()


def test_earlier_function_finds_its_import(sandbox: Sandbox) -> None:
    define = "def g(a): return heapq.nlargest(1, a)"
    runs = run_in_sequence(sandbox, f"{ON_PYTHON}{define}", "g([1, 2])", "def h(): return g([5])", "h()")
    assert [one.error for one in runs] == [None] * 4
    assert [one.result for one in runs] == [None, [2], None, [5]]


def test_monty_object_is_explained_on_cpython(sandbox: Sandbox) -> None:
    runs = run_in_sequence(
        sandbox, "from collections import Counter\na = Counter('xyx')", f"{ON_PYTHON}a['x']", "a['x']"
    )
    assert runs[1].error is not None
    assert 'engine="monty"' in (runs[1].error["hint"] or "")
    assert runs[2].result == 2


@pytest.mark.parametrize(
    "forged",
    [
        {KIND_KEY: "set", "value": [[1]]},
        {KIND_KEY: "os.system", "value": "id"},
        {KIND_KEY: "timedelta", "value": [10**30, 0, 0]},
        {KIND_KEY: "datetime", "value": 5},
        {KIND_KEY: "dict", "value": [1]},
        {KIND_KEY: ["x"], "value": 1},
        {KIND_KEY: "bytes", "value": "zz"},
        {KIND_KEY: "set"},
    ],
)
def test_foreign_state_is_kept_unchanged(forged: object) -> None:
    assert untag_value(forged) == forged


def test_variables_share_one_budget() -> None:
    tagger = Tagger(nodes=10, size=20)
    assert tagger.tag_value([1, 2, 3]) == [1, 2, 3]
    with pytest.raises(UntaggableValue, match="too large"):
        tagger.tag_value(list(range(20)))
    assert tagger.tag_value("a" * 15) == "a" * 15
    with pytest.raises(UntaggableValue, match="too large"):
        tagger.tag_value("a" * 15)
