"""Compare the knowledge graph with the reference memory server: open nodes and add observations."""

import asyncio
import itertools
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

from athena.app.connect import AppConnection
from athena.core.threads import run_sync
from bench.machine import ROOT
from bench.result import Result, Row, Table
from bench.run import PROJECT, Run
from bench.timing import format_ms, time_call

sys.path.append(str(ROOT / "scripts"))

import node_packages
from reference_server import Reference

PAIRS = 50
AHEAD_SMALL, AHEAD_LARGE, GROWTH = 3.0, 50.0, 1.5
CONCURRENT_CALLERS = 8  # concurrent callers
_serial = itertools.count()


def run(run: Run) -> Result:
    sizes = (50, 300, 1_000) if run.quick else (50, 1_000, 10_000)
    rounds = 3 if run.quick else 9
    try:
        command: list[str] | None = node_packages.command()
        absent = ""
    except node_packages.Unobtainable as error:
        command, absent = None, str(error)
    times = {size: _measure(run, size, rounds, command) for size in sizes}
    return Result(
        "The knowledge graph",
        f"{PAIRS} times `open_nodes` of one entity and `add_observations` of one new observation, one after the other, "
        f"in graphs of {', '.join(f'{size:,}' for size in sizes)} entities with an observation and a relation each: "
        f"through the engine in this process, and `{node_packages.MEMORY}` {node_packages.REFERENCE.version} over its "
        f"standard input and output. In turn, {rounds} rounds; the least time counts as that of a quiet machine, for "
        "both.",
        _rows(times, sizes, absent),
        [
            _table(times),
            "Every write of ours waits until the disk has it; the reference writes its file without asking for that, "
            f"so a busy disk slows only us. 'Disk alone' is {PAIRS} appends of 4 KB, each synced: the least that as "
            f"many durable writes can take. 'At once' is the same work by {CONCURRENT_CALLERS} callers, whose writes "
            "share commits; the reference would lose observations that way, since each call rewrites the whole file.",
        ],
    )


def _rows(times: dict[int, dict[str, list[float]]], sizes: tuple[int, ...], absent: str) -> list[Row]:
    rows = []
    for size, ahead in ((sizes[0], AHEAD_SMALL), (sizes[-1], AHEAD_LARGE)):
        what, bar = f"{PAIRS} x (open + add) in a graph of {size:,}", f"at least {ahead:.0f}x faster than the reference"
        theirs, ours = times[size].get("reference"), times[size]["one caller"]
        if theirs is None:
            rows.append(Row(what, bar, f"not measured here: {absent}", None))
            continue
        least = min(theirs) / min(ours)
        rows.append(Row(what, bar, f"{least:.1f}x (median {median(theirs) / median(ours):.1f}x)", least >= ahead))
    small, large = (min(times[size]["one caller"]) for size in (sizes[0], sizes[-1]))
    what = f"The same, from {sizes[0]} to {sizes[-1]:,} entities"
    rows.append(Row(what, f"grows less than {GROWTH}x", f"{large / small:.2f}x", large / small < GROWTH))
    return rows


def _table(times: dict[int, dict[str, list[float]]]) -> Table:
    lines = [
        (f"{size:,}", name, format_ms(min(values)), format_ms(median(values)))
        for size, found in times.items()
        for name, values in found.items()
    ]
    return Table(("entities", f"{PAIRS} pairs by", "least", "median"), lines)


def _measure(run: Run, size: int, rounds: int, command: list[str] | None) -> dict[str, list[float]]:
    file = run.folder / f"graph-{size}.jsonl"
    found: dict[str, list[float]] = {"one caller": [], f"{CONCURRENT_CALLERS} at once": [], "disk alone": []}
    with run.open_store(run.folder / f"graph-{size}") as app:
        ours = AthenaGraph(app)
        ours.fill(size)
        theirs = None
        if command is not None:
            write_reference(file, size)
            theirs = Reference(command, file)
            found["reference"] = []
        for number in range(rounds + 1):  # the first round warms up both
            for name, seconds in _round(run.folder, ours, theirs, size).items():
                if number:
                    found[name].append(seconds)
            ours.settle()
        if theirs is not None:
            theirs.close()
    return found


def _round(folder: Path, ours: "AthenaGraph", theirs: Reference | None, size: int) -> dict[str, float]:
    taken = {
        "one caller": time_call(_pairs, ours.call, size),
        f"{CONCURRENT_CALLERS} at once": time_call(ours.together, size),
        "disk alone": time_call(_disk, folder),
    }
    if theirs is not None:
        taken["reference"] = time_call(_pairs, theirs.call, size)
    return taken


def _pairs(call: Any, size: int) -> None:
    for i in range(PAIRS):
        for name, arguments in make_pair(i * 37 % size):
            call(name, arguments)


def make_pair(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Return two calls: open one entity, and add a new observation to it."""
    name = f"entity {number}"
    new = {"entityName": name, "contents": [f"seen at the harbour for the {next(_serial)}th time"]}
    return [("open_nodes", {"names": [name]}), ("add_observations", {"observations": [new]})]


def _disk(folder: Path) -> None:
    sync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync
    with open(folder / "appended", "ab", buffering=0) as file:
        for _ in range(PAIRS):
            file.write(bytes(4096))
            sync(file.fileno())


class AthenaGraph:
    """Run the graph operations in this process."""

    def __init__(self, app: Any) -> None:
        self._connection = AppConnection(lambda: app, PROJECT, "python")

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        return run_sync(self._connection.call(name, arguments)).data

    def fill(self, size: int) -> None:
        for first in range(0, size, 5_000):
            numbers = range(first, min(size, first + 5_000))
            self.call("create_entities", {"entities": [_entity(i) for i in numbers]})
            self.call("create_relations", {"relations": [_relation(i, size) for i in numbers]})
        self.settle()

    def settle(self) -> None:
        """Wait until indexes and embeddings are up to date, so that no background work runs while timing."""
        self.call("search_graph", {"query": "harbour", "max_results": 1})
        while self.call("reembed", {"limit": 256})["remaining"]:
            pass

    def together(self, size: int) -> None:
        asyncio.run(self._together(size))

    async def _together(self, size: int) -> None:
        waiting = iter(range(PAIRS))

        async def work() -> None:
            for i in waiting:
                for name, arguments in make_pair(i * 37 % size):
                    await self._connection.call(name, arguments)

        await asyncio.gather(*(work() for _ in range(CONCURRENT_CALLERS)))


def _entity(i: int) -> dict[str, Any]:
    return {"name": f"entity {i}", "entityType": "ship", "observations": [f"was built in yard {i % 97} for trade"]}


def _relation(i: int, size: int) -> dict[str, Any]:
    return {"from": f"entity {i}", "to": f"entity {(i + 1) % size}", "relationType": "sails with"}


def write_reference(file: Path, size: int) -> None:
    """Write the file of the reference server in its own format."""
    lines = [json.dumps({"type": "entity", **_entity(i)}) for i in range(size)]
    lines += [json.dumps({"type": "relation", **_relation(i, size)}) for i in range(size)]
    file.write_text("\n".join(lines), "utf-8")
