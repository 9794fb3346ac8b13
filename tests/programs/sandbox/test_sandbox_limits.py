"""Limits of the sandbox: hints, names, arguments, forged variables and queues."""

import threading
from typing import Any

import pytest

from athena.programs.sandbox import Function, Limits, Namespace, Program, Sandbox, jail
from athena.programs.sandbox.calls import MAX_MISSES
from athena.programs.sandbox.values import MAX_HINT_CHARS
from conftest import sample

NAMES = Namespace([Function("memory.recall", {"properties": {"query": {}}, "required": ["query"]})])
FORGED = """
import os, struct, json
d = json.dumps({"op": "done", "value": 1, "variables": VARIABLES}).encode()
os.write(1, struct.pack(">I", len(d)) + d)
while True: pass
"""


@pytest.fixture(scope="module")
def sandbox() -> Any:
    made = Sandbox(Limits(), key=b"k" * 32)
    yield made
    made.close()


def answer(path: str, arguments: dict[str, Any]) -> Any:
    return 1


def test_hints_are_short(sandbox: Sandbox) -> None:
    long = sandbox.run(Program("raise ValueError('x (hint: ' + 'A' * 10**6 + ')')", NAMES), answer)
    assert long.error is not None
    assert len(long.error["hint"] or "") <= MAX_HINT_CHARS
    forged = "import os,struct,json\nd=json.dumps({'op':'done','error':'E','message':'m','hint':'B'*10**6}).encode()\n"
    forged += "os.write(1,struct.pack('>I',len(d)))\nwhile d: d=d[os.write(1,d):]\nwhile True: pass"
    done = sandbox.run(Program(forged, NAMES, engine="python"), answer)
    assert done.error is not None
    assert len(done.error["hint"] or "") <= MAX_HINT_CHARS


@pytest.mark.parametrize("engine", ["monty", "python"])
def test_unknown_names_are_limited(sandbox: Sandbox, engine: Any) -> None:
    flood = "n = 0\nwhile True:\n    n += 1\n    try: getattr(memory, 'ab' * 100 + str(n))()\n"
    flood += "    except AttributeError: pass"
    done = sandbox.run(Program(flood, NAMES, engine=engine), answer)
    assert done.error is not None
    assert (done.error["type"], f"{MAX_MISSES:,}" in done.error["message"]) == ("LimitExceeded", True)
    few = "try:\n    getattr(memory, 'x' * 100_000)()\nexcept AttributeError as e:\n    said = str(e)\nlen(said)"
    short = sandbox.run(Program(few, NAMES, engine="monty"), answer)
    assert short.error is None
    assert short.result < 1_000


def test_forged_variables_are_dropped(sandbox: Sandbox) -> None:
    forged = {
        "a b; c": 1,
        "": 1,
        "x\n": 1,
        "__defer__": 1,
        "parallel": 2,
        "ToolError": 3,
        "memory": 4,
        "if": 5,
        "good": 6,
    }
    program = Program(FORGED.replace("VARIABLES", repr(forged)), NAMES, engine="python")
    done = sandbox.run(program, answer)
    for engine in ("monty", "python"):
        after = sandbox.run(Program("[good, parallel([memory.recall(query='x')])]", NAMES, engine, done.state), answer)
        assert after.result == [6, [1]], after.error


@pytest.mark.parametrize("code", ["raise ValueError([1, 2])", "raise KeyError(3)", "raise ValueError({'a': [1]}, 2)"])
def test_exceptions_with_objects_are_reported(sandbox: Sandbox, code: str) -> None:
    done = sandbox.run(Program(f"memory.recall(query=1)\n{code}", NAMES, engine="monty"), answer)
    assert done.error is not None
    assert (done.error["type"], "one text" in done.error["message"]) == ("TypeError", True), done.error
    assert "engine=" in (done.error["hint"] or "")
    done = sandbox.run(Program(f"memory.recall(query=1)\n{code}", NAMES), answer)
    assert done.error is not None
    assert (done.error["type"], done.engine) == (code[6:].partition("(")[0], "python")


def test_queued_program_times_out() -> None:
    sandbox = Sandbox(Limits(runs=1), key=b"k" * 32)
    begun, go = threading.Event(), threading.Event()

    def hold(path: str, arguments: dict[str, Any]) -> Any:
        begun.set()
        return go.wait(60)

    first = sandbox.start(Program("memory.recall(query='x')", NAMES), hold)
    assert begun.wait(60)
    second = sandbox.run(Program("1 + 1", NAMES, timeout_s=0.4), answer)  # ends while the first one still runs
    go.set()
    assert second.error is not None
    assert "had no turn" in second.error["message"]
    assert first.result().result is True
    sandbox.close()


BOMB = "a = []\nfor i in range(24):\n    a = [a, a]\n"


@pytest.mark.parametrize(
    "call",
    sample(
        [
            "memory.recall(query=a)",
            "memory.recall(a)",
            "memory.recall(*[a])",
            "memory.recall(**{'query': a})",
            "f = memory.recall\nf(a)",
            "m = memory\nm.recall(a)",
            "m = memory\nm.append(a)",
            "getattr(memory, 'recall')(a)",
            "memory.nothing(a)",
            "parallel(a)",
            "parallel([memory.recall(query=a)])",
            "list(map(memory.recall, [a]))",
            "def g(h, x):\n    return h(x)\ng(memory.recall, a)",
            "memory.recall('x' * 20_000_000)",
            "def len(x): return 0\ndef isinstance(*x): return True\nmemory.recall(a)",
            "raise ValueError(a)",
            "raise ValueError('x' * 20_000_000)",
        ],
        8,
    ),
)
def test_arguments_are_measured_before_sending(sandbox: Sandbox, call: str) -> None:
    sandbox.run(Program("memory.recall(query=1)", NAMES), answer)
    before = _peak()
    done = sandbox.run(Program(BOMB + call, NAMES, engine="monty"), answer)
    assert done.error is not None
    assert _peak() - before < 20 << 10
    if "raise" not in call and "append" not in call and "nothing" not in call:
        assert (done.error["type"], bool(done.error["hint"])) == ("ToolError", True), done.error


def _peak() -> int:
    """Return the peak memory of this process since the last call, in KB."""
    with open("/proc/self/status") as file:
        found = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return found


def test_fitting_arguments_are_unchanged(sandbox: Sandbox) -> None:
    seen: list[Any] = []
    code = "rows = [{'n': i, 'who': ('a', None)} for i in range(3)]\nmemory.recall(query=rows)\n"
    code += "memory.recall(*[{'x': 1.5}])"
    done = sandbox.run(Program(code, NAMES, engine="monty"), lambda _, given: seen.append(given["query"]))
    assert done.error is None
    assert seen == [[{"n": i, "who": ["a", None]} for i in range(3)], {"x": 1.5}]


def test_cpython_reports_oversized_argument(sandbox: Sandbox) -> None:
    done = sandbox.run(Program("memory.recall('x' * 20_000_000)", NAMES, engine="python"), answer)
    assert done.error is not None
    assert (done.error["type"], done.error["hint"]) == ("ToolError", "pass less at a time")
    assert "hint" not in done.error["message"]


def test_isolation_report_matches_worker() -> None:
    tried = jail.probe_layers()["tried"]
    assert tried
    for one in tried:
        sandbox = Sandbox(Limits(), key=b"k" * 32, layer_choices=[tuple(one["layers"])])
        assert sandbox.probe_engines()["python"]["works"] == one["works"], one
        assert one["works"] or one["why"]
        sandbox.close()
