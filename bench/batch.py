"""Batch task: find and update many records, with one program and with one call per record on the reference server."""

import json
import sys
import time
from typing import Any

from athena.core import tokens
from bench import graph
from bench.machine import ROOT
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, time_call

sys.path.append(str(ROOT / "scripts"))

import node_packages
from reference_server import Reference

REQUIRED_SPEEDUP = {50: 3.0, 10_000: 20.0}  # required speed-up over the reference, by number of records
MAX_REFERENCE_RECORDS = 500  # the reference updates at most this many records; its time is then scaled up
MODEL_S = 4.3  # assumed seconds of a model per call, an estimate that the report shows separately
PROGRAM = """done = 0
for i in range({count}):
    found = graph.open_nodes(names=[f"entity {{i}}"])["entities"][0]
    graph.add_observations(observations=[{{"entityName": found["name"], "contents": ["status: checked {mark}"]}}])
    done += 1
done
"""
BATCHED = """names = [f"entity {{i}}" for i in range({count})]
done = 0
for start in range(0, {count}, 500):
    found = graph.open_nodes(names=names[start:start + 500])["entities"]
    graph.add_observations(observations=[
        {{"entityName": one["name"], "contents": ["status: checked {mark} at once"]}} for one in found
    ])
    done += len(found)
done
"""


def run(run: Run) -> Result:
    sizes = (5, 50) if run.quick else (5, 50, 1_000, 10_000)
    try:
        command: list[str] | None = node_packages.command()
        absent = ""
    except node_packages.Unobtainable as error:
        command, absent = None, str(error)
    found = {size: _measure(run, size, command) for size in sizes}
    rows = []
    for size, bar in REQUIRED_SPEEDUP.items():
        if size not in found:
            continue
        what, wanted = f"find and update {size:,} records", f"at least {bar:g}x faster than the reference"
        ratio = found[size]["ratio"]
        said = f"not measured here: {absent}" if ratio is None else f"{ratio:.1f}x"
        rows.append(Row(what, wanted, said, None if ratio is None else ratio >= bar))
        if ratio is not None:
            at_once = found[size]["theirs"] / found[size]["at once"]
            rows.append(Row(f"{what}, 500 in a call", wanted, f"{at_once:.1f}x", at_once >= bar))
    last = found[sizes[-1]]
    rows.append(
        Row(
            f"calls of the model for {sizes[-1]:,} records",
            "1 instead of 2 for each record",
            f"1 instead of {2 * sizes[-1]:,}",
            last["calls"] == 2 * sizes[-1],
        )
    )
    lines = [_line(size, one) for size, one in found.items()]
    head = (
        "records",
        "program",
        "a record",
        "500 in a call",
        "reference",
        "a record",
        "tokens",
        "tokens of the reference",
        "a model's time",
    )
    return Result(
        "The batch task",
        "For each record `open_nodes` and `add_observations` of one new observation, in a graph of as many records: by "
        "one `execute_code`, every write durable, record by record and 500 in a call, and by the reference "
        "call by call over its standard input and "
        f"output. The reference updates at most {MAX_REFERENCE_RECORDS:,} records, and its time is scaled from those; "
        "every call rewrites its whole file, so the file is as large as it would be. Tokens (o200k) are those of "
        "arguments and results that a model writes and reads. Up to six rounds in turn; the least time counts, "
        "for both.",
        rows,
        [
            Table(head, lines),
            f"'A model's time' is not measured: it is {MODEL_S} s for each call that the reference needs beyond our "
            "one, an estimate from an earlier experiment, and is in none of the other figures.",
        ],
    )


def _line(size: int, one: dict[str, Any]) -> tuple[str, ...]:
    theirs = one["theirs"]
    scaled = " (scaled)" if size > MAX_REFERENCE_RECORDS else ""
    return (
        f"{size:,}",
        format_ms(one["ours"]),
        format_ms(one["ours"] / size),
        format_ms(one["at once"]),
        "-" if theirs is None else format_ms(theirs) + scaled,
        "-" if theirs is None else format_ms(theirs / size),
        f"{one['tokens']:,}",
        "-" if theirs is None else f"{one['their tokens']:,}{scaled}",
        f"{MODEL_S * (2 * size - 1):,.0f} s more",
    )


def _measure(run: Run, size: int, command: list[str] | None) -> dict[str, Any]:
    rounds = 6 if size <= 50 else 3 if size <= 1_000 else 1
    file = run.folder / f"batch-{size}.jsonl"
    times: list[float] = []
    at_once: list[float] = []
    theirs: list[float] = []
    made: dict[str, Any] = {"theirs": None, "their tokens": 0, "ratio": None}
    with run.open_store(run.folder / f"batch-{size}") as app:
        ours = graph.AthenaGraph(app)
        ours.fill(size)
        ours.call("execute_code", {"code": "1 + 1"})  # start the workers, as in a running server
        reference = None
        if command is not None:
            graph.write_reference(file, size)
            reference = Reference(command, file)
        for number in range(rounds):
            at_once.append(_execute(ours, BATCHED, size, number)[0])
            took, answer, made["tokens"] = _execute(ours, PROGRAM, size, number)
            times.append(took)
            made["calls"] = answer["calls"]
            if reference is not None:
                theirs.append(_update_records(reference, size, number, made))
            ours.settle()
        if reference is not None:
            reference.close()
    made["ours"], made["at once"] = min(times), min(at_once)  # the least time, since other processes only add to it
    if theirs:
        made["theirs"] = min(theirs)
        made["ratio"] = made["theirs"] / made["ours"]
    return made


def _execute(ours: graph.AthenaGraph, program: str, size: int, number: int) -> tuple[float, dict[str, Any], int]:
    """Run a program to its end and return seconds, answer and tokens."""
    given = {"code": program.format(count=size, mark=number), "timeout_s": 60.0}
    began = time.perf_counter()
    answer = ours.call("execute_code", given)
    took = time.perf_counter() - began
    if answer["result"] != size:
        raise RuntimeError(f"the program did not end: {answer['error']}")
    return (
        took,
        answer,
        tokens.count_tokens_exactly(json.dumps(given)) + tokens.count_tokens_exactly(json.dumps(answer)),
    )


def _update_records(reference: Reference, size: int, number: int, made: dict[str, Any]) -> float:
    """Update records call by call, count the tokens and return the total seconds."""
    some = min(size, MAX_REFERENCE_RECORDS)
    said: list[str] = []

    def work() -> None:
        for i in range(some):
            name = f"entity {i * (size // some)}"
            for tool, arguments in (
                ("open_nodes", {"names": [name]}),
                (
                    "add_observations",
                    {"observations": [{"entityName": name, "contents": [f"status: checked {number}"]}]},
                ),
            ):
                said.append(json.dumps(arguments))
                said.append(json.dumps(reference.call(tool, arguments)))

    took = time_call(work) * size / some
    made["their tokens"] = round(sum(map(tokens.count_tokens_exactly, said)) * size / some)
    return took
