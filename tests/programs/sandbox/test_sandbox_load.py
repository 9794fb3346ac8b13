"""A hundred concurrent programs: bounded, in turn, and without starving other work."""

import os
import threading
import time

from small_world import KEY, NAMES, HeldWorld, World, run
from test_sandbox_kill import child_processes

from athena.programs.sandbox import Limits, Program, Sandbox


def test_programs_run_in_turn() -> None:
    sandbox = Sandbox(Limits(runs=1), key=KEY)
    world = HeldWorld()
    started = [sandbox.start(Program(f"slow.wait(seconds=0, value={n})", NAMES), world) for n in range(20)]
    world.go.set()
    assert [running.result().result for running in started] == list(range(20))
    assert [arguments["value"] for _, arguments in world.log] == list(range(20)), "first come, first served"
    sandbox.close()


def test_hundred_programs_stay_within_bounds() -> None:
    others = child_processes(os.getpid())
    sandbox = Sandbox(Limits(), key=KEY)
    run(sandbox, "1")
    workers: list[int] = []
    steps: list[float] = []
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.02):
            workers.append(len(child_processes(os.getpid()) - others))

    def other_work() -> None:  # like a recall: short and frequent
        while not watching.wait(0.005):
            began = time.monotonic()
            sum(range(2_000))
            steps.append(time.monotonic() - began)

    watchers = [threading.Thread(target=one) for one in (watch, other_work)]
    for one in watchers:
        one.start()
    world, first = World(), time.monotonic()
    started = [
        sandbox.start(Program(f"slow.wait(seconds=0.02, value={n})\nsum(range(20000))", NAMES), world)
        for n in range(100)
    ]
    results = [running.result() for running in started]
    whole = time.monotonic() - first
    watching.set()
    for one in watchers:
        one.join()
    assert [done.status for done in results] == ["done"] * 100
    assert world.most_at_once <= sandbox.limits.runs
    assert max(workers) <= 5 * sandbox.limits.runs  # some are still exiting, which takes a while on a busy machine
    assert sorted(steps)[int(len(steps) * 0.95)] < whole / 20
    sandbox.close()


def test_concurrent_engines_answer_correctly() -> None:
    sandbox = Sandbox(Limits(), key=KEY)
    started = [
        (n, sandbox.start(Program(f"x = {n}\nx * 2", NAMES, engine=("monty", "python")[n % 4 == 0]), World()))
        for n in range(40)
    ]
    assert all(running.result().result == n * 2 for n, running in started)
    sandbox.close()
