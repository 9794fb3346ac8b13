"""A CPython program that waits for approval: it is run again, and gets its earlier replies from a journal."""

import time
from collections.abc import Generator
from typing import Any

import pytest
from small_world import KEY, NAMES, HeldWorld, World, run

from athena.errors import Conflict, InvalidInput
from athena.programs.sandbox import Limits, Program, Run, Sandbox
from athena.programs.sandbox.state import pack_content, read_pause, seal, unpack_content
from athena.programs.sandbox.values import HostCall
from wait_tools import wait_until

PAYING = """
import statistics
x = [1, 2]
print('before')
first = memory.remember('first')['number']
paid = bank.pay(amount=40 + len(x))
print('after')
memory.remember(f'paid {paid}')
[x, first, paid, statistics.mean(x)]
"""


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(Limits(), key=KEY)
    yield made
    made.close()


def resume(sandbox: Sandbox, paused: Run, world: HostCall, **more: Any) -> Run:
    assert paused.pause is not None, paused.error
    return sandbox.resume(paused.pause.snapshot, world, NAMES, **({"approved": True} | more))


def test_run_resumes_in_other_sandbox(sandbox: Sandbox) -> None:
    world = World()
    done = run(sandbox, PAYING, world)
    assert (done.engine, done.status, done.output, done.error) == ("python", "needs_approval", "before\n", None)
    assert done.pause is not None
    assert (done.pause.path, done.pause.arguments) == ("bank.pay", {"amount": 42})
    assert done.pause.request == {"amount": 42}
    assert done.call_counts == {"memory.remember": {"done": 1, "failed": 0, "unknown": 0}}
    world.approved = True
    other = Sandbox(Limits(), key=KEY)
    end = resume(other, done, world)
    assert (end.status, end.result) == ("done", [[1, 2], 4, {"paid": 42}, 1.5]), end.error
    assert (end.engine, end.output, end.calls) == ("python", "before\nafter\n", 3)
    assert world.count("memory.remember") == 2, "the first one was not made again"
    assert run(other, "x", state=end.state).result == [1, 2]
    other.close()


def test_run_can_pause_several_times(sandbox: Sandbox) -> None:
    world = World()
    code = """
import statistics
total = 0
for n in range(1, 4):
    memory.remember(f'step {n}')
    total += bank.pay(amount=n)['paid']
    print('paid', n)
total
"""
    waits = run(sandbox, code, world)
    for n in range(1, 4):
        assert (waits.status, waits.pause and waits.pause.arguments) == ("needs_approval", {"amount": n}), waits.error
        assert waits.output == "".join(f"paid {one}\n" for one in range(1, n))
        waits = resume(sandbox, waits, Approving(world))
    assert (waits.status, waits.result, waits.calls) == ("done", 6, 6)
    assert waits.output == "paid 1\npaid 2\npaid 3\n"
    assert [text for text in world.memories if text.startswith("step")] == ["step 1", "step 2", "step 3"]


class Approving:
    """Approves one payment, and no other."""

    def __init__(self, world: World) -> None:
        self.world, self.left = world, 1

    def __call__(self, path: str, arguments: dict[str, Any]) -> Any:
        if path == "bank.pay" and self.left:
            self.left = 0
            return {"paid": arguments["amount"]}
        return self.world(path, arguments)


def test_caught_refusal_is_replayed(sandbox: Sandbox) -> None:
    code = """
import statistics
try:
    bank.pay(amount=1)
except ToolError as error:
    answer = [str(error), error.code]
answer + [bank.pay(amount=2)]
"""
    waits = resume(sandbox, run(sandbox, code), World(), approved=False, refusal="not today")
    assert waits.pause is not None
    assert waits.pause.arguments == {"amount": 2}
    end = resume(sandbox, waits, Approving(World()))
    assert end.result == ["denied: not today", "denied", {"paid": 2}]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import uuid\nmemory.remember(str(uuid.uuid4()))\nbank.pay(amount=1)", "call 1, memory.remember, has other"),
        ("import uuid\nbank.pay(amount=uuid.uuid4().int % 10**9)", "call 1, bank.pay, has other arguments now"),
        (
            "import time\nif time.time() < LATER: memory.recall('a')\nbank.pay(amount=1)",
            "call 1 was memory.recall and is now bank.pay",
        ),
        ("import time\nif time.time() < LATER: bank.pay(amount=1)", "call 1 was bank.pay and was not made now"),
        ("import time\n1 / (time.time() < LATER)\nbank.pay(amount=1)", "not made now (ZeroDivisionError: "),
    ],
)
def test_changed_calls_in_replay_are_refused(sandbox: Sandbox, code: str, said: str) -> None:
    world = World()
    later = time.time() + 4
    done = run(sandbox, f"import statistics\nx = 5\n{code.replace('LATER', repr(later))}", world)
    assert done.status == "needs_approval", done.error
    world.approved = True
    call_count = len(world.log)
    if "LATER" in code:
        wait_until(lambda: time.time() > later)
    end = resume(sandbox, done, world)
    assert end.error is not None
    assert (end.status, end.error["type"], end.engine) == ("failed", "ReplayDiffers", "python")
    assert end.error["message"].startswith("the program made other calls than before it waited: ")
    assert said in end.error["message"]
    assert "variables are as before this run" in str(end.error["hint"])
    assert len(world.log) == call_count, "nothing was called"


def test_set_order_is_stable_in_replay(sandbox: Sandbox) -> None:
    code = "import statistics\nfor word in {f'word {n}' for n in range(50)}: memory.remember(word)\nbank.pay(amount=1)"
    world = World()
    done = run(sandbox, code, world)
    world.approved = True
    end = resume(sandbox, done, world)
    assert end.result == {"paid": 1}, end.error
    assert world.count("memory.remember") == 50


def test_parallel_calls_are_replayed(sandbox: Sandbox) -> None:
    world = World()
    code = """
import statistics, functools
found = parallel([slow.wait(seconds=0.03 * (n % 3), value=n) for n in range(40)])
more = parallel({"a": memory.recall("alice"), "b": slow.fail(message="no")}, return_errors=True)
large = parallel([memory.remember("x" * 400_000) for _ in range(6)])
[bank.pay(amount=len(found))['paid'], sum(found), more["b"], len(large)]
"""
    done = run(sandbox, code, world)
    assert done.status == "needs_approval", done.error
    made, world.approved = len(world.log), True
    end = resume(sandbox, done, world)
    assert end.result == [40, sum(range(40)), {"error": "conflict: no"}, 6], end.error
    assert len(world.log) == made + 1


def test_pause_waits_for_running_calls(sandbox: Sandbox) -> None:
    world = HeldWorld(at_once=1)
    code = """
import asyncio
task = asyncio.create_task(slow.wait(seconds=0.2, value=7))
await asyncio.sleep(0)
paid = bank.pay(amount=1)
[paid, await task]
"""
    done = run(sandbox, code, world, engine="python")
    assert done.status == "needs_approval", done.error
    assert done.call_counts["slow.wait"] == {"done": 1, "failed": 0, "unknown": 0}
    world.approved = True
    end = resume(sandbox, done, world)
    assert end.result == [{"paid": 1}, 7], end.error
    assert world.count("slow.wait") == 1


def test_approval_in_parallel_is_error(sandbox: Sandbox) -> None:
    done = run(sandbox, "import statistics\nparallel([bank.pay(amount=1)], return_errors=True)")
    assert done.engine == "python"
    assert "cannot wait" in done.result[0]["error"]


def test_errors_and_unknown_names_are_replayed(sandbox: Sandbox) -> None:
    code = """
import statistics
said = []
for call in (lambda: graph.open_nodes(names=['zed']), lambda: getattr(graph, 'nothing')()):
    try:
        call()
    except Exception as error:
        said.append(type(error).__name__)
[said, bank.pay(amount=1)['paid']]
"""
    world = World()
    done = run(sandbox, code, world)
    made, world.approved = len(world.log), True
    assert resume(sandbox, done, world).result == [["ToolError", "AttributeError"], 1]
    assert len(world.log) == made + 1


def test_oversized_journal_ends_run() -> None:
    sandbox = Sandbox(Limits(journal_bytes=5_000), key=KEY)
    code = "import statistics\nfor n in range({times}): memory.recall('alice')\nbank.pay(amount=1)"
    assert run(sandbox, code.format(times=3)).status == "needs_approval"
    done = run(sandbox, code.format(times=100))
    assert done.error is not None
    assert (done.status, done.error["type"]) == ("failed", "LimitExceeded")
    assert "limit journal_bytes" in done.error["message"]
    sandbox.close()


def test_replay_uses_initial_variables(sandbox: Sandbox) -> None:
    state = run(sandbox, "import heapq\nxs = [1]\ndef double(n): return n * 2", engine="python").state
    world = World()
    code = "import statistics\nxs.append(double(more))\nbank.pay(amount=xs[-1])\nxs"
    done = run(sandbox, code, world, state=state, inputs={"more": 4})
    assert done.pause is not None
    assert done.pause.arguments == {"amount": 8}
    world.approved = True
    end = resume(sandbox, done, world)
    assert end.result == [1, 8], end.error
    assert run(sandbox, "xs", state=end.state).result == [1, 8]


def test_tampered_pause_is_refused(sandbox: Sandbox) -> None:
    done = run(sandbox, PAYING)
    assert done.pause is not None
    whole = done.pause.snapshot
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        changed = bytearray(whole)
        changed[place] ^= 4
        with pytest.raises(InvalidInput):
            sandbox.resume(bytes(changed), World(), NAMES, approved=True)
    with pytest.raises(InvalidInput):
        sandbox.resume(whole, World(), NAMES, approved=True, owner="other")


def test_pause_of_other_format_is_refused(sandbox: Sandbox) -> None:
    done = run(sandbox, PAYING)
    assert done.pause is not None
    sandbox.check_paused(done.pause.snapshot, "")
    head, body = read_pause(KEY, "", done.pause.snapshot)
    assert [path for path, _, _ in unpack_content(body)[0]] == ["memory.remember", "bank.pay"]
    other = seal(KEY, "pause", "", pack_content(head | {"wrote": "journal 0"}, body))
    with pytest.raises(Conflict, match="another version"):
        sandbox.check_paused(other, "")


def test_killed_replay_makes_no_call(sandbox: Sandbox) -> None:
    world = World()
    code = "import time\nmemory.remember('x')\ntime.sleep(1)\nbank.pay(amount=1)"
    done = run(sandbox, code, world, engine="python")
    assert done.pause is not None
    world.approved = True
    call_count = len(world.log)
    running = sandbox.start_resumed(done.pause.snapshot, world, NAMES, approved=True)
    wait_until(lambda: running._kill is not None)
    assert running._kill is not None
    running._kill()
    end = running.result()
    assert (end.status, end.error and end.error["type"]) == ("failed", "WorkerDied")
    assert len(world.log) == call_count


def test_nested_program_cannot_pause(sandbox: Sandbox) -> None:
    world = World()

    def call(path: str, arguments: dict[str, Any]) -> Any:
        if path == "memory.recall":
            inner = sandbox.run(Program("import statistics\nf = bank.pay\nf(amount=1)", NAMES), call)
            return (inner.status, inner.error and inner.error["message"])
        return world(path, arguments)

    done = sandbox.run(Program("import statistics\nmemory.recall('x')", NAMES), call)
    assert done.result[0] == "failed"
    assert "cannot wait" in done.result[1]


def test_timed_out_replay_makes_no_call(sandbox: Sandbox) -> None:
    world = World()
    done = run(sandbox, "import statistics, time\ntime.sleep(0.5)\nbank.pay(amount=1)", world)
    assert done.pause is not None
    world.approved = True
    call_count = len(world.log)
    end = sandbox.resume(done.pause.snapshot, world, NAMES, approved=True, timeout_s=0.2)
    assert (end.status, end.error and end.error["type"]) == ("failed", "TimeoutError")
    assert len(world.log) == call_count
