"""`athena serve --workers`: what a second process that searches changes, on the cores of this machine."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import corpus
from bench.http import (
    CLIENTS,
    DISTINCT_QUESTIONS,
    TOKEN,
    Load,
    ServerUrl,
    generate_calls,
    request,
    run_clients,
    start_server,
)
from bench.result import Result, Table
from bench.run import Run
from bench.timing import format_ms, percentile

WORKERS = (1, 2, 4)
Choice = Callable[[], tuple[str, dict[str, object]]]
READERS_READY_S = 3.0


class Measured(NamedTuple):
    load: Load
    own_cpu_s: float  # of the server without its readers, for a request


def run(run: Run) -> Result:
    seconds, rounds = (2.0, 1) if run.quick else (3.0, 3)
    questions = cycle(dict.fromkeys(corpus.make_queries(DISTINCT_QUESTIONS, run.ordinary)))
    mixed = generate_calls(list(dict.fromkeys(corpus.make_queries(DISTINCT_QUESTIONS, run.ordinary))), int(time.time()))
    calls: dict[str, tuple[int, Choice]] = {
        "recall, 16 clients": (16, lambda: ("recall", {"query": next(questions), "k": 5})),
        f"recall 4 : remember 1, {CLIENTS} clients": (CLIENTS, lambda: next(mixed)),
    }
    loads: dict[tuple[str, int], list[Measured]] = {(name, count): [] for name in calls for count in WORKERS}
    with ExitStack() as servers:
        urls = [servers.enter_context(serve(run, count)) for count in WORKERS]
        for url in urls:
            time.sleep(READERS_READY_S)
            measure(url, 16, calls["recall, 16 clients"][1], 1.0)
        for _ in range(rounds):
            for name, (clients, choose) in calls.items():
                for url, count in zip(urls, WORKERS, strict=True):
                    loads[name, count].append(measure(url, clients, choose, seconds))
    return Result(
        "Workers",
        f"`athena serve --workers` 1, 2 and 4 in turn, {run.ordinary:,} memories, {os.cpu_count()} cores, questions "
        "that were never asked before. One process makes the requests and uses a part of the same cores. CPU is that "
        "of the server and its readers together; medians of the rounds. What the server itself uses for a request "
        "tells how many it can hand out in a second on a machine with more cores.",
        [],
        [
            Table(
                ("calls", "workers", "a second", "CPU a request", "of it the server", "median", "p99", "errors"),
                [(name, str(count), *format_loads(loads[name, count])) for name, count in loads],
            )
        ],
    )


def format_loads(rounds: list[Measured]) -> tuple[str, ...]:
    loads = [one.load for one in rounds]
    times = [taken for load in loads for taken in load.times]
    cpu_s = median(load.cpu_per_call_s for load in loads)
    errors = sum(len(load.errors) for load in loads)
    rate = f"{median(load.rate for load in loads):,.0f}"
    own_cpu_s = median(one.own_cpu_s for one in rounds)
    return (
        rate,
        format_ms(cpu_s),
        format_ms(own_cpu_s),
        format_ms(median(times)),
        format_ms(percentile(times, 0.99)),
        str(errors),
    )


@contextmanager
def serve(run: Run, workers: int) -> Generator[ServerUrl]:
    environment = run.environment(run.stores.copy(run.ordinary)) | {"ATHENA_TOKEN": TOKEN}
    command = [sys.executable, "-m", "athena", "serve", "--port", "0", "--workers", str(workers)]
    with start_server(command, environment) as url:
        yield url


def measure(url: ServerUrl, clients: int, choose: Choice, seconds: float) -> Measured:
    def write_request(_: int) -> bytes:
        name, arguments = choose()
        return request(url, f"/tools/{name}/execute", arguments)

    before, own_before = read_cpu_s(url), url.read_cpu_s()
    load = asyncio.run(run_clients(url, clients, seconds, write_request))
    own_cpu_s = url.read_cpu_s() - own_before
    return Measured(load._replace(server_cpu_s=read_cpu_s(url) - before), own_cpu_s / max(1, len(load.times)))


def read_cpu_s(url: ServerUrl) -> float:
    """Return the CPU time of a server and of the readers that it has started."""
    children = Path(f"/proc/{url.process_id}/task/{url.process_id}/children").read_text().split()
    return url.read_cpu_s() + sum(ServerUrl(url, int(child)).read_cpu_s() for child in children)
