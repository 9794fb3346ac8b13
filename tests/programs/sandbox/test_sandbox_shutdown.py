"""How runs end: flooding workers, ignored signals, timers and closing."""

import gc
import threading
import time
import weakref
from collections.abc import Generator
from dataclasses import replace

import pytest
from small_world import KEY, NAMES, QUICK, World, run

from athena.programs.sandbox import Limits, Program, Sandbox
from athena.programs.sandbox.timer import TimerThread
from athena.programs.sandbox.values import EngineName
from wait_tools import wait_until

FLOOD = """
import os, struct
text = ('{"op":"out","text":[' + ",".join('"%06d"' % i for i in range(100_000)) + ']}').encode()
frame = struct.pack(">I", len(text)) + text
while True:
    rest = memoryview(frame)
    while rest:
        rest = rest[os.write(1, rest):]
"""
SMALL_FLOOD = FLOOD.replace("range(100_000)", "range(100)")


@pytest.fixture(scope="module")
def sandbox() -> Generator[Sandbox]:
    made = Sandbox(QUICK, key=KEY)
    yield made
    made.close()


@pytest.mark.parametrize("code", [FLOOD, SMALL_FLOOD], ids=["large frames", "frames of no text"])
def test_flooding_worker_is_killed(code: str) -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    done = run(sandbox, code, engine="python")
    sandbox.close()
    assert done.error is not None
    assert done.error["type"] == "WorkerDied", "and it did not meet a limit of time"


def test_endless_printing_is_stopped(sandbox: Sandbox) -> None:
    code = SMALL_FLOOD.replace('"text":[', '"text":"').replace("']}'", "'\"}'").replace('"%06d"', "%06d")
    done = run(sandbox, code, engine="python")
    assert done.error is not None
    assert done.error["type"] == "WorkerDied"
    assert len(done.output) < QUICK.output_chars + 200


def test_lone_surrogate_can_be_printed(sandbox: Sandbox) -> None:
    half = """json.loads('"\\\\ud83d"')"""
    done = run(sandbox, f"import json\nprint({half}, 'b')\nraise ValueError({half})", engine="python")
    assert done.error is not None
    (done.output + done.error["message"]).encode()
    assert " b" in done.output


def test_ignored_timeout_signal_names_limit() -> None:
    limits = replace(QUICK, cpu_s=1.0, wall_s=15.0)
    sandbox = Sandbox(limits, key=KEY)
    code = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
    done = run(sandbox, code, engine="python")
    sandbox.close()
    assert done.error is not None
    assert (done.error["type"], done.error["limit"]) == ("TimeoutError", "cpu_s")


@pytest.mark.parametrize("engine", ["monty", "python"])
def test_close_ends_runs_and_threads(engine: EngineName) -> None:
    before = threading.active_count()
    sandbox = Sandbox(Limits(), key=KEY)
    run(sandbox, "parallel([memory.recall(query='a'), memory.recall(query='b')])", engine=engine)
    code = "import time\nfor i in range(100):\n    time.sleep(0.1)\n    memory.recall(query='a')"
    running = sandbox.start(Program(code, NAMES, engine=engine), World())
    time.sleep(0.3)
    sandbox.close()
    assert running.result().status in ("failed", "unknown")
    wait_until(lambda: threading.active_count() <= before)


def test_cancelled_timer_holds_no_reference() -> None:
    watch = TimerThread()

    class Large:
        pass

    held = Large()
    known = weakref.ref(held)
    alarm = watch.schedule_at(time.monotonic() + 1_000, lambda held=held: None)  # type: ignore[misc]
    del held
    alarm.cancel()
    gc.collect()
    assert known() is None
    watch.close()


def test_many_sleeps_need_no_timer(sandbox: Sandbox) -> None:
    code = "import asyncio\nawait asyncio.gather(*[asyncio.sleep(1e9) for _ in range(300)])"
    done = run(sandbox, code, timeout_s=1.0)
    assert done.error is not None
    assert done.error["type"] == "TimeoutError"
    inside = sandbox._open_process_state()
    assert len(inside.timer._alarms) < 50


def test_oversized_state_cannot_wait_for_approval() -> None:
    sandbox = Sandbox(replace(QUICK, state_bytes=100_000), key=KEY)
    held = run(sandbox, "held = ['x' * 100 + str(i) for i in range(5_000)]\nbank.pay(amount=1)\nlen(held)")
    shown = run(sandbox, "graph.delete_entities(names=['x' * 100_000])\nbank.pay(amount=2)", engine="monty")
    sandbox.close()
    assert held.pause is None
    assert held.error is not None
    assert held.error["type"] == "LimitExceeded"
    assert "state_bytes" in held.error["message"]
    assert shown.pause is not None


def test_initial_variables_may_exceed_program_size(sandbox: Sandbox) -> None:
    for engine in ("monty", "python"):
        done = run(sandbox, "len(text)", inputs={"text": "a'\"\n" * 50_000}, engine=engine)
        assert (done.result, done.error) == (200_000, None)
