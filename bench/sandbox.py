"""Overhead of a program: start, run and call."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from athena.programs.sandbox import Function, Limits, Namespace, Program, Sandbox
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, percentile, time_call

NAMES = Namespace(
    [
        Function(
            "graph.look", {"properties": {"name": {"type": "string"}, "n": {"type": "integer"}}, "required": ["name"]}
        )
    ]
)
RUN, CALL, CALL_US, COLD_MS = 3.0, 1.5, 250, 100


def look(path: str, arguments: dict[str, Any]) -> Any:
    return {"name": arguments["name"], "n": arguments["n"], "tags": ["a", "b"]}


def run(run: Run) -> Result:
    import pydantic_monty  # a server has imported it already, so it is not timed

    rounds, calls = (30, 300) if run.quick else (300, 3_000)
    colds = {
        engine: [_time_cold_start(engine) for _ in range(3 if run.quick else 10)] for engine in ("monty", "python")
    }
    sandbox = Sandbox(Limits(), key=b"bench")
    with pydantic_monty.Monty(max_processes=4) as pool:

        def bare() -> None:
            with pool.checkout() as session:
                session.feed_run("1 + 1")

        def ours() -> None:
            sandbox.run(Program("1 + 1", NAMES), look)

        def full() -> None:
            sandbox.run(Program("1 + 1", NAMES, engine="python"), look)

        times = _time_in_turn({"bare": bare, "monty": ours}, rounds, pause=0.005)
        # Timed alone: the next worker starts in the background, which would slow the others.
        times |= _time_in_turn({"python": full}, rounds // 5, pause=0.25)
        hot = {name: [time_call(one) for _ in range(rounds)] for name, one in (("bare", bare), ("monty", ours))}
        with pool.checkout(limits={"max_suspensions": 10**9}) as session:
            each = _time_calls(sandbox, session, calls, 3 if run.quick else 9)
    state = sandbox.run(Program("xs = [{'n': i} for i in range(100)]\nname = 'x'", NAMES), look).state
    kept = [time_call(sandbox.run, Program("len(xs)", NAMES, state=state), look) for _ in range(rounds)]
    layers = sandbox.probe_engines()["monty"]["layers"]
    sandbox.close()
    warm = median(times["monty"]) / median(times["bare"])
    ratio = median(each["monty"]) / median(each["bare"])
    rows = [
        Row("warm `1 + 1`", f"at most {RUN:g}x a bare Monty checkout", f"{warm:.1f}x", warm <= RUN),
        Row(
            "a call of an operation in a program",
            f"at most {CALL:g}x a bare Monty host call",
            f"{ratio:.2f}x",
            ratio <= CALL,
        ),
        Row(
            "a call of an operation in a program, beyond the operation",
            f"at most {CALL_US} us",
            f"{median(each['monty']) * 1e6:.0f} us",
            median(each["monty"]) * 1e6 <= CALL_US,
        ),
        Row(
            "cold start with jail, Monty",
            f"under {COLD_MS} ms",
            format_ms(median(colds["monty"])),
            median(colds["monty"]) * 1000 < COLD_MS,
        ),
        Row("cold start with jail, CPython", "-", format_ms(median(colds["python"])), None),
    ]
    shown = {"bare Monty": "bare", "Monty in the sandbox": "monty", "CPython in the sandbox": "python"}
    lines = [
        (
            title,
            format_ms(median(times[name])),
            format_ms(percentile(times[name], 0.95)),
            f"{median(each[name]) * 1e6:.0f} us",
        )
        for title, name in shown.items()
    ]
    further = {
        "Monty in the sandbox, with 100 records from the run before": kept,
        "bare Monty, without a pause": hot["bare"],
        "Monty in the sandbox, without a pause": hot["monty"],
    }
    lines += [
        (title, format_ms(median(found)), format_ms(percentile(found, 0.95)), "-") for title, found in further.items()
    ]
    return Result(
        "Programs",
        f"`1 + 1` in turn on a bare Monty pool and in the sandbox ({rounds} rounds with a pause of 5 ms, as between an "
        "agent's programs; without one, a bare pool keeps using one worker that is still in the caches); a loop of "
        f"{calls:,} calls of a function that does nothing; a start from nothing to the first answer. Layers of the "
        f"jail: {', '.join(layers)}.",
        rows,
        [Table(("", "warm run", "95 %", "each call"), lines)],
    )


def _time_cold_start(engine: str) -> float:
    sandbox = Sandbox(Limits(), key=b"bench")
    began = time.perf_counter()
    done = sandbox.run(Program("1 + 1", NAMES, engine="monty" if engine == "monty" else "python"), look)
    took = time.perf_counter() - began
    sandbox.close()
    assert done.result == 2
    return took


def _time_in_turn(contestants: dict[str, Callable[[], object]], rounds: int, pause: float) -> dict[str, list[float]]:
    for one in contestants.values():
        one()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, one in contestants.items():
            time.sleep(pause)
            times[name].append(time_call(one))
    return times


def _time_calls(sandbox: Sandbox, session: Any, calls: int, rounds: int) -> dict[str, list[float]]:
    code = f"for i in range({calls}):\n    graph.look(name='a', n=i)"
    bare = code.replace("graph.look", "look")
    times: dict[str, list[float]] = {"bare": [], "monty": [], "python": []}
    for _ in range(rounds):
        host = {"look": lambda name, n: look("", {"name": name, "n": n})}
        times["bare"].append(time_call(session.feed_run, bare, external_lookup=host) / calls)
        for engine in ("monty", "python"):
            program = Program(code, NAMES, engine="monty" if engine == "monty" else "python")
            times[engine].append(time_call(sandbox.run, program, look) / calls)
    return times
