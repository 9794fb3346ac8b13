"""Runs: results, variables, refusals and timeouts."""

import json
import os
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from small_world import KEY, NAMES, HeldWorld, World, run, run_until_timeout, schema
from test_sandbox_kill import child_processes

from athena.errors import InvalidInput, LimitExceeded
from athena.programs.sandbox import Function, Limits, Namespace, NeedsApproval, Program, Sandbox, is_run_closed
from athena.programs.sandbox.check import find_problems
from athena.programs.sandbox.source import ProgramSource
from wait_tools import LONG, wait_until

BOTH = pytest.mark.parametrize("engine_name", ["monty", "python"])


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def patient_sandbox() -> Generator[Sandbox]:
    """Return a sandbox with long time limits."""
    made = Sandbox(Limits(wall_s=600, cpu_s=600, turn_s=600), key=KEY)
    yield made
    made.close()


@BOTH
def test_run_returns_output_value_calls(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "print('seen')\nx = memory.recall('alice', k=1)\nlen(x)", engine=engine_name)
    assert (done.status, done.success, done.output, done.result, done.value) == ("done", True, "seen\n", 1, 1)
    assert done.calls == 1
    assert done.call_counts == {"memory.recall": {"done": 1, "failed": 0, "unknown": 0}}
    assert done.engine == engine_name
    assert done.elapsed_ms > 0


@BOTH
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at /proc")
def test_worker_inherits_no_files(engine_name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").touch()
    opened = os.open(tmp_path / "secret", os.O_RDONLY)
    high = os.dup2(opened, 300)
    os.set_inheritable(opened, True)

    def count_openers(*_: Any) -> list[bool]:
        """Return, for each process of the sandbox, whether it has the file open."""
        opened = []
        for pid in child_processes(os.getpid()):
            with suppress(OSError):  # it has just ended
                files = map(os.path.realpath, Path(f"/proc/{pid}/fd").iterdir())
                opened.append(str(tmp_path / "secret") in files)
        return opened

    with_workers = Sandbox(Limits(), key=KEY)  # its workers start while the file is open
    try:
        done = with_workers.run(Program("memory.recall('x')", NAMES, engine_name), count_openers)  # type: ignore[arg-type]
        assert done.error is None
        assert done.value
        assert True not in done.value
    finally:
        with_workers.close()
        os.close(opened)
        os.close(high)


@BOTH
def test_error_has_type_line_no_value(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "x = 1\n\ndef f():\n    return 1 / 0\n\nf()", engine=engine_name)
    assert done.status == "failed"
    assert done.error is not None
    assert (done.error["type"], done.error["line"]) == ("ZeroDivisionError", 4)
    assert done.result is None


@BOTH
def test_failed_call_has_hint(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "print('é')\ngraph.open_nodes(names=['zed'])", engine=engine_name)
    assert done.error is not None
    assert done.error["type"] == "ToolError"
    assert done.error["message"] == "not_found: there is no node 'zed'"
    assert done.error["line"] == 2
    assert "graph.search_nodes finds names" in str(done.error["hint"])


@BOTH
def test_invalid_input_lists_parameters(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "memory.remember(' ')", engine=engine_name)
    assert done.error is not None
    assert "parameters: content, tags?" in str(done.error["hint"])
    odd = run(sandbox, "memory.remember(**{'text': 'x'})", engine=engine_name)
    assert odd.error is not None
    assert "no parameter 'text'" in odd.error["message"]


@BOTH
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("graph.open_node(names=['a'])", "did you mean graph.open_nodes"),
        ("graph.open_nodes(name=['a'])", "did you mean 'names'"),
        ("graph.open_nodes()", "parameters: names"),
        ("graph.open_nodes(['a'], 2)", "parameters: names"),
        ("graph.open_nodes(names='alice')", "parameters: names"),
        ("memory.recall(query='x', k='5')", "parameters: query, k?, tags?"),
        ("crm.contact.list()", "did you mean crm.contacts.list"),
        ("import requests", "standard library"),
    ],
)
def test_errors_are_found_before_run(sandbox: Sandbox, engine_name: str, code: str, said: str) -> None:
    world = World()
    done = run(sandbox, f"memory.remember('first')\nif False:\n    {code}", world, engine=engine_name)
    assert done.status == "failed"
    assert done.error is not None
    assert said in str(done.error["hint"])
    assert done.error["line"] == 3
    assert (done.engine, done.calls, world.log) == ("", 0, [])


@BOTH
def test_unknown_name_at_runtime_gets_suggestion(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "getattr(graph, 'open_nods')(names=['alice'])", engine=engine_name)
    assert done.error is not None
    assert done.error["type"] == "AttributeError"
    assert "graph.open_nodes" in str(done.error["hint"] or done.error["message"])


def test_guarded_import_may_fail(sandbox: Sandbox) -> None:
    done = run(sandbox, "try:\n    import numpy\nexcept ImportError:\n    numpy = None\nnumpy is None")
    assert done.result is True


@BOTH
def test_large_value_is_truncated_and_kept(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "[{'n': i} for i in range(3000)]", engine=engine_name)
    assert done.truncated
    assert done.result.startswith("[cut: a list of 3,000 items, ")
    assert len(done.result) < 8_200
    assert done.value == [{"n": i} for i in range(3000)]
    assert not run(sandbox, "'word ' * 1_400", engine=engine_name).truncated


@BOTH
def test_values_arrive_as_plain_json(sandbox: Sandbox, engine_name: str) -> None:
    code = """
import datetime, decimal
[(1, 2), {3}, {1: 'a', None: 2, (1, 2): 3}, b'x', datetime.date(2026, 1, 2), decimal.Decimal('1.5')]
"""
    done = run(sandbox, code, engine=engine_name)
    assert done.value == [[1, 2], [3], {"1": "a", "null": 2, "(1, 2)": 3}, "x", "2026-01-02", "1.5"]


@BOTH
def test_operation_result_cannot_break_program(sandbox: Sandbox, engine_name: str) -> None:
    done = run(sandbox, "odd.surrogate()['text']", engine=engine_name)
    assert done.result == "half ? a pair"
    huge = run(sandbox, "try:\n    odd.huge()\nexcept ToolError as e:\n    print(e)\n1", engine=engine_name)
    assert "was done, but its result is too large" in huge.output
    bug = run(sandbox, "odd.bug()", engine=engine_name)
    assert bug.error is not None
    assert bug.error["message"] == "internal: odd.bug failed unexpectedly (KeyError)"
    assert "secret" not in repr(bug)


@BOTH
def test_slow_calls_run_concurrently_but_limited(sandbox: Sandbox, engine_name: str) -> None:
    world = HeldWorld(at_once=8)
    code = "parallel([slow.wait(seconds=0.1, value=i) for i in range(32)])"
    done = run(sandbox, code, world, engine=engine_name)
    assert done.value == list(range(32))
    assert 8 <= world.most_at_once <= sandbox.limits.parallel


@BOTH
def test_nested_calls_stay_in_order(sandbox: Sandbox, engine_name: str) -> None:
    code = """
def one(n):
    memory.remember(f"start {n}")
    memory.remember(f"end {n}")
    return n
parallel([one(i) for i in range(3)])
parallel([memory.recall("alice")[0]["content"], lambda: memory.recall("bob")])
"""
    world = World()
    done = run(sandbox, code, world, engine=engine_name)
    assert done.error is None, done.error
    kept = [arguments["content"] for path, arguments in world.log if path == "memory.remember"]
    assert kept == ["start 0", "end 0", "start 1", "end 1", "start 2", "end 2"]
    assert world.most_at_once <= 2


@BOTH
def test_parallel_raises_first_error_at_end(sandbox: Sandbox, engine_name: str) -> None:
    world = World()
    code = "parallel([slow.fail(message='a'), slow.wait(seconds=0.1), memory.remember('kept')])"
    done = run(sandbox, code, world, engine=engine_name)
    assert done.error is not None
    assert done.error["message"] == "conflict: a"
    assert done.call_counts["slow.wait"] == {"done": 1, "failed": 0, "unknown": 0}


# --- variables ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engines", [("monty", "monty"), ("python", "python"), ("monty", "python"), ("python", "monty")], ids=str
)
def test_variables_survive_on_either_engine(sandbox: Sandbox, engines: tuple[str, str]) -> None:
    first, second = engines
    one = run(sandbox, "x = {'n': [1, 2]}\ntext = 'é'\ndef double(v):\n    return v * 2", engine=first)
    two = run(sandbox, "x['n'].append(3)\ndouble(len(x['n'])), text", engine=second, state=one.state)
    assert two.result == [6, "é"], two.error
    three = run(sandbox, "x['n'].append(double(2))\nx", engine=first, state=two.state)
    assert three.result == {"n": [1, 2, 3, 4]}, three.error


def test_unkept_cpython_variables_are_named(sandbox: Sandbox) -> None:
    done = run(sandbox, "import collections\nc = collections.Counter('aab')\nn = 5", engine="python")
    assert done.lost == ("c",)
    assert run(sandbox, "n", state=done.state).result == 5


@BOTH
def test_failed_run_keeps_earlier_variables(sandbox: Sandbox, engine_name: str) -> None:
    state = run(sandbox, "x = 1", engine=engine_name).state
    failed = run(sandbox, "x = 2\n1 / 0", engine=engine_name, state=state)
    assert run(sandbox, "x", state=failed.state).result == 2
    ended = run(sandbox, "x = 3\nwhile True: pass", engine=engine_name, state=failed.state, timeout_s=0.3)
    assert ended.error is not None
    assert "variables are as before this run" in str(ended.error["hint"])
    assert run(sandbox, "x", state=ended.state).result == 2


def test_overwritten_namespace_returns_next_run(sandbox: Sandbox) -> None:
    one = run(sandbox, "graph = graph.open_nodes(names=['alice'])\nlen(graph['entities'])")
    assert one.result == 1
    assert run(sandbox, "len(graph.open_nodes(names=['bob'])['entities'])", state=one.state).result == 1


def test_operations_in_variables_survive(sandbox: Sandbox) -> None:
    code = (
        "look = graph.open_nodes\ndef all_of(ns):\n    return parallel([slow.wait(seconds=0.05, value=n) for n in ns])"
    )
    one = run(sandbox, code)
    world = HeldWorld(at_once=2)
    two = run(sandbox, "[len(look(names=['alice'])['entities']), all_of([1, 2, 3, 4])]", world, state=one.state)
    assert two.result == [1, [1, 2, 3, 4]], two.error
    assert world.most_at_once > 1, "an earlier function's parallel() still runs at once"


def test_state_of_other_version_keeps_variables() -> None:
    older = Sandbox(Limits(memory_mb=99), key=KEY)
    state = run(older, "x = [1, 2]\ndef f(): return 5").state
    older.close()
    newer = Sandbox(Limits(), key=KEY)
    done = run(newer, "[x, f()]", state=state)
    assert done.result == [[1, 2], 5], done.error
    newer.close()


@BOTH
def test_tampered_state_is_refused(sandbox: Sandbox, engine_name: str) -> None:
    state = run(sandbox, "x = 1", engine=engine_name).state
    assert state is not None
    for place in range(0, len(state), max(1, len(state) // 60)):
        changed = bytearray(state)
        changed[place] ^= 1
        with pytest.raises(InvalidInput):
            run(sandbox, "x", state=bytes(changed))
    with pytest.raises(InvalidInput):
        run(sandbox, "x", state=state, owner="somebody else")
    with pytest.raises(InvalidInput):
        Sandbox(Limits(), key=b"another").run(Program("x", NAMES, state=state), World())


# --- time -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "code",
    ["while True: pass", "while True:\n    try:\n        slow.wait(seconds=0.01)\n    except BaseException: pass"],
)
def test_run_stops_at_timeout(patient_sandbox: Sandbox, engine_name: str, code: str) -> None:
    running = patient_sandbox.start(Program(code, NAMES, engine=engine_name, timeout_s=0.5), World())  # type: ignore[arg-type]
    done = running.result()
    assert done.error is not None
    assert (done.error["type"], done.error["limit"]) == ("TimeoutError", "wall_s")
    assert done.error["message"] == "stopped after 0.5 s (limit timeout_s)"


@BOTH
def test_unfinished_call_is_reported_unknown(sandbox: Sandbox, engine_name: str) -> None:
    code = "memory.remember('before')\nparallel([slow.wait(seconds=0) for _ in range(100)])\nmemory.remember('after')"
    done, world, _ = run_until_timeout(sandbox, code, engine=engine_name)  # while none of the calls has returned
    assert done.status == "unknown"
    assert done.call_counts["slow.wait"]["unknown"] > 0
    assert done.error is not None
    assert "not known whether these were done: slow.wait" in str(done.error["hint"])
    assert "memory.remember x1" in str(done.error["hint"])
    call_count = len(world.log)
    world.go.set()
    wait_until(lambda: world.at_once == 0)
    time.sleep(0.3)
    assert len(world.log) == call_count
    assert world.count("slow.wait") <= sandbox.limits.parallel


@BOTH
def test_run_can_be_cancelled(patient_sandbox: Sandbox, engine_name: str) -> None:
    world = World()
    code = "memory.recall('alice')\nwhile True: pass"
    running = patient_sandbox.start(Program(code, NAMES, engine=engine_name), world)  # type: ignore[arg-type]
    wait_until(lambda: world.log)
    running.cancel()
    done = running.result()
    assert done.error is not None
    assert done.error["type"] == "Cancelled"


def test_waiting_run_can_be_cancelled() -> None:
    sandbox = Sandbox(Limits(runs=1), key=KEY)
    world = HeldWorld()
    first = sandbox.start(Program("slow.wait(seconds=0)", NAMES), world)
    second = sandbox.start(Program("memory.remember('x')", NAMES), world)
    assert world.begun.wait(LONG)
    second.cancel()
    first.cancel()
    assert (second.result().status, first.result().status) == ("failed", "unknown")
    assert world.at_once == 1, "nobody waited for the call"
    world.go.set()
    time.sleep(0.3)
    assert world.count("memory.remember") == 0
    sandbox.close()


def test_call_sees_that_run_ended(sandbox: Sandbox) -> None:
    seen: list[bool] = []
    begun, ended, noticed = (threading.Event() for _ in range(3))

    def call(path: str, arguments: dict[str, Any]) -> int:
        seen.append(is_run_closed())
        begun.set()
        ended.wait(LONG)
        seen.append(is_run_closed())
        noticed.set()
        return 1

    running = sandbox.start(Program("slow.wait(seconds=0)", NAMES), call)
    assert begun.wait(LONG)
    running.cancel()
    assert running.result().status == "unknown"
    ended.set()
    assert noticed.wait(LONG)
    assert seen == [False, True]


def test_program_may_sleep(sandbox: Sandbox) -> None:
    code = "import time, asyncio\ntime.sleep(0.05)\nawait asyncio.gather(*[asyncio.sleep(0.5) for _ in range(100)])\n1"
    began = time.monotonic()
    assert run(sandbox, code).result == 1
    assert 0.55 <= time.monotonic() - began < 25, "and not for 50 s, one after the other"


# --- retries --------------------------------------------------------------------------------------------------------


def test_cpython_retry_only_before_first_call(sandbox: Sandbox) -> None:
    world = World()
    unforeseen = "x = '{0.numerator}'.format(5)"
    before = run(sandbox, f"{unforeseen}\nmemory.remember('a')\nx", world)
    assert (before.engine, before.result, world.count("memory.remember")) == ("python", "5", 1)
    world = World()
    after = run(sandbox, f"memory.remember('a')\n{unforeseen}", world)
    assert (after.engine, after.status, world.count("memory.remember")) == ("monty", "failed", 1)


def test_nested_programs_are_limited() -> None:
    sandbox = Sandbox(Limits(runs=1, wall_s=5), key=KEY)
    names = Namespace([Function("code.run", schema(depth="integer"))])

    def call(path: str, arguments: dict[str, Any]) -> Any:
        inner = sandbox.run(Program(f"code.run(depth={arguments['depth'] + 1})", names), call)
        return inner.error["message"] if inner.error else inner.result

    done = sandbox.run(Program("code.run(depth=0)", names), call)
    assert "limit depth" in str(done.result)
    sandbox.close()


# --- approval -------------------------------------------------------------------------------------------------------

PAYING = """
x = [1, 2]
print('before')
paid = bank.pay(amount=40 + len(x))
print('after')
memory.remember(f'paid {paid}')
[x, paid]
"""


def test_run_resumes_after_approval_elsewhere(sandbox: Sandbox) -> None:
    world = World()
    done = run(sandbox, PAYING, world)
    assert (done.status, done.output, done.error) == ("needs_approval", "before\n", None)
    assert done.pause is not None
    assert (done.pause.path, done.pause.arguments) == ("bank.pay", {"amount": 42})
    assert done.pause.request == {"amount": 42}
    assert "memory.remember" not in done.call_counts
    other = Sandbox(Limits(), key=KEY)
    again = other.resume(done.pause.snapshot, world, NAMES, approved=True)
    assert again.status == "needs_approval", "nobody has agreed yet"
    world.approved = True
    end = other.resume(done.pause.snapshot, world, NAMES, approved=True)
    assert (end.status, end.result) == ("done", [[1, 2], {"paid": 42}])
    assert end.output == "before\nafter\n"
    assert end.calls == 2
    assert run(other, "x", state=end.state).result == [1, 2]
    other.close()


def test_refusal_can_be_caught(sandbox: Sandbox) -> None:
    code = "try:\n    bank.pay(amount=1)\nexcept ToolError as e:\n    answer = str(e)\nanswer"
    done = run(sandbox, code)
    assert done.pause is not None
    end = sandbox.resume(done.pause.snapshot, World(), NAMES, approved=False, refusal="not today")
    assert end.result == "denied: not today"


def test_tampered_pause_is_refused(sandbox: Sandbox) -> None:
    done = run(sandbox, PAYING)
    assert done.pause is not None
    whole = done.pause.snapshot
    for place in range(0, len(whole), len(whole) // 100):
        changed = bytearray(whole)
        changed[place] ^= 4
        with pytest.raises(InvalidInput):
            sandbox.resume(bytes(changed), World(), NAMES, approved=True)
    with pytest.raises(InvalidInput):
        sandbox.resume(whole, World(), NAMES, approved=True, owner="other")
    with pytest.raises(InvalidInput):
        sandbox.resume(run(sandbox, "x = 1").state or b"", World(), NAMES, approved=True)


def test_approval_in_parallel_is_error(sandbox: Sandbox) -> None:
    done = run(sandbox, "parallel([bank.pay(amount=1)], return_errors=True)")
    assert "cannot wait" in done.result[0]["error"]


# --- limits ---------------------------------------------------------------------------------------------------------


@BOTH
def test_limit_errors_name_limit(engine_name: str) -> None:
    limits = Limits(calls=5, cpu_s=1, turn_s=0.4, source_bytes=200, output_chars=50)
    sandbox = Sandbox(limits, key=KEY)
    calls = run(sandbox, "for i in range(9): memory.recall('x')", engine=engine_name)
    assert "limit calls" in str(calls.error)
    assert calls.calls == 5
    source = run(sandbox, "x = 1\n" * 50, engine=engine_name)
    assert source.error is not None
    assert source.error["limit"] == "source_bytes"
    loop = run(sandbox, "while True: pass", engine=engine_name)
    assert loop.error is not None
    assert loop.error["limit"] in ("turn_s", "cpu_s")
    loud = run(sandbox, "print('x' * 1000)", engine=engine_name)
    assert "limit output_chars" in loud.output
    sandbox.close()


def test_unknown_engine_and_timeout_refused(sandbox: Sandbox) -> None:
    with pytest.raises(InvalidInput):
        run(sandbox, "1", engine="ruby")
    with pytest.raises(InvalidInput):
        run(sandbox, "1", timeout_s=-1)


def test_queue_of_programs_is_bounded() -> None:
    sandbox = Sandbox(Limits(runs=1, waiting=2), key=KEY)
    slow, world = Program("slow.wait(seconds=0)", NAMES), HeldWorld()
    started = [sandbox.start(slow, world) for _ in range(3)]
    with pytest.raises(LimitExceeded) as refused:
        sandbox.start(slow, world)
    assert refused.value.retry
    world.go.set()
    assert [one.result().status for one in started] == ["done"] * 3
    assert run(sandbox, "1 + 1").result == 2
    sandbox.close()


def test_check_runs_nothing(sandbox: Sandbox) -> None:
    assert sandbox.check_program(Program("graph.open_nodes(names=['a'])", NAMES)) == []
    found = sandbox.check_program(Program("graph.open_nodes(nams=['a'])\nmemory.recall()", NAMES))
    assert [one["line"] for one in found] == [1, 2]
    assert sandbox.check_program(Program("x = (", NAMES))[0]["type"] == "SyntaxError"


NOWHERE = {
    "memory.remember('x')\nfilez.read()": ("filez", 2),
    "memory.remember('x')\nprint(json.dumps({}))": ("json", 2),
    "def f():\n    return nothing\nmemory.remember('x')\nf()": ("nothing", 2),
    "try:\n    x = 1\nexcept ToolError:\n    x = 2\nx + y": ("y", 5),
    "class E(Exception): pass\ntry:\n    1\nexcept ValueError:\n    y": ("y", 5),
}


@BOTH
@pytest.mark.parametrize("code", NOWHERE)
def test_unbound_name_is_found_before_run(sandbox: Sandbox, engine_name: str, code: str) -> None:
    world = World()
    done = run(sandbox, code, world, engine=engine_name)
    name, line = NOWHERE[code]
    assert done.error is not None
    assert (done.error["message"], done.error["line"]) == (f"name {name!r} is not defined", line)
    assert world.log == []
    if name == "json":
        assert done.error["hint"] == "import json first; nothing was run"


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    y\nexcept NameError:\n    y = 1\ny",
        "try:\n    z\nexcept (ValueError, Exception):\n    pass",
        "try:\n    z\nexcept:\n    pass",
        "class Mine(NameError): pass\ntry:\n    z\nexcept Mine:\n    pass",
        "def f():\n    return z\ntry:\n    f()\nexcept Exception:\n    pass",
        "from contextlib import suppress\nwith suppress(NameError):\n    z",
        "exec('z = 1')\nz",
        "globals()['z'] = 1\nz",
        "from math import *\npi",
        "import sys\nsys.modules['__main__'].z = 1\nz",
        "def f(a: Whatever) -> List[int]:\n    b: Odd = a\n    return b\nf(1)",
        "[n for n in [1] if (m := n)]\nm",
        "match {'a': 1}:\n    case {'a': a, **rest}:\n        (a, rest)",
        "import os.path\nos.sep",
        "print(__name__)\nlambda *a, k=1, **kw: (a, k, kw)",
        "kept + given",
    ],
)
def test_possibly_bound_name_is_allowed(code: str) -> None:
    assert find_problems(ProgramSource(code, 10_000), NAMES, known={"kept", "given"}) == []


def test_report_names_layers(sandbox: Sandbox) -> None:
    report = sandbox.probe_engines()
    assert report["monty"]["works"]
    assert report["python"]["works"]
    assert "seccomp" in report["monty"]["layers"]


def test_approval_signal_is_athena_error() -> None:
    assert NeedsApproval("x", request={"a": 1}).code == "approval_needed"


ODD_VALUES = {
    "an enumeration": "import enum\nclass Colour(enum.Enum):\n    RED = 1\nColour",
    "a class": "class A: pass\nA",
    "a class that hides its name": "class M(type):\n    @property\n    def __name__(cls): raise ValueError\n"
    "class A(metaclass=M): pass\nA",
    "a module": "import json\njson",
    "a generator that fails": "def f():\n    yield 1\n    raise ValueError\nf()",
    "a function": "def f(): pass\nf",
    "no number": "float('nan')",
    "a long integer": "10**5000",
    "a long integer as key": "{10**5000: 1}",
    "a list in itself": "a = []\na.append(a)\na",
    "half a character": "'a\\ud800'",
    "an object without text": "class A:\n    def __str__(self): raise ValueError\nA()",
    "a list that cannot be read": "class A(list):\n    def __iter__(self): raise ValueError\nA([1])",
    "a text of negative length": "class A(str):\n    def __len__(self): return -5\nA('a')",
}


@pytest.mark.parametrize("code", ODD_VALUES.values(), ids=ODD_VALUES)
def test_odd_last_value_fails_no_run(sandbox: Sandbox, code: str) -> None:
    done = run(sandbox, f"graph.create_entities(entities=[{{'name': 'x'}}])\n{code}")
    assert (done.status, done.error) == ("done", None)
    json.dumps(done.result, allow_nan=False).encode()
