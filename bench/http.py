"""HTTP throughput and latency, compared with the engine in process and with an empty route."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import NamedTuple

from athena.app import connect
from athena.core.threads import run_sync
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import PROJECT, Run
from bench.timing import format_ms, percentile

CLIENTS = 200
CALLS_PER_REMEMBER = 5  # one of this many calls is a remember
MAX_CPU_S = {"distinct": 0.0066, "repeated": 0.0033}  # of the server, for a request
REPEATED_QUESTIONS, DISTINCT_QUESTIONS = 200, 40_000
CONNECTIONS = 8
TOKEN = "0" * 64
BARE = """
import socket, uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route
async def same(request): return JSONResponse({"name": "recall"})
app = Starlette(routes=[Route("/tools/recall", same)])
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
print(f"http://localhost:{port}", flush=True)
uvicorn.run(app, port=port, access_log=False, log_level="error")
"""


class Load(NamedTuple):
    """Latencies and counts that concurrent callers measured."""

    times: list[float]
    errors: list[str]
    seconds: float
    server_cpu_s: float = float("nan")  # where the system tells it

    @property
    def cpu_per_call_s(self) -> float:
        return self.server_cpu_s / max(1, len(self.times))

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds


def run(run: Run) -> Result:
    seconds = 5.0 if run.quick else 60.0
    rounds = 2 if run.quick else 5
    home = run.stores.copy(run.ordinary)
    with serve_bare() as other, serve_athena(run, home) as ours:
        asyncio.run(measure_reads(ours, 0.5))
        pairs = [(asyncio.run(measure_reads(ours, 1.0)), asyncio.run(measure_reads(other, 1.0))) for _ in range(rounds)]
    route, empty = (median(load.rate for load in side) for side in zip(*pairs, strict=True))
    inside = max((run_in_process(run, threads, seconds / 4) for threads in (1, 2, 8)), key=lambda load: load.rate)
    with serve_athena(run, run.stores.copy(run.ordinary)) as ours:
        questions = {
            "distinct": list(dict.fromkeys(corpus.make_queries(DISTINCT_QUESTIONS, run.ordinary))),
            "repeated": corpus.make_queries(REPEATED_QUESTIONS, run.ordinary),
        }
        measure_mixed(questions["repeated"], ours, 2.0)
        loads = {kind: measure_mixed(asked, ours, seconds / 2) for kind, asked in questions.items()}
    load = Load(
        [taken for one in loads.values() for taken in one.times],
        [error for one in loads.values() for error in one.errors],
        sum(one.seconds for one in loads.values()),
    )
    middle, slow = median(load.times), percentile(load.times, 0.99)
    return Result(
        "Over HTTP",
        f"`athena serve` with {run.ordinary:,} memories. `GET /tools/recall` in turn with a bare Starlette route, both "
        f"on uvicorn, {CONNECTIONS} connections. Then {CLIENTS} clients at once for {seconds:.0f} s, four recalls to "
        "one remember, each waiting for its answer before it asks again, half of the time with questions that were "
        "never asked before, then with 200 that repeat; against the same calls in one process by 1, 2 "
        "and 8 threads, the fastest of them. The callers use a part of the same cores.",
        [
            Row(
                "`GET /tools/recall`",
                "at least 50 % of a bare Starlette route's rate",
                f"{route / empty:.0%}: {route:,.0f} a second against {empty:,.0f}",
                route >= empty / 2,
            ),
            Row(f"{CLIENTS} clients for {seconds:.0f} s: errors", "none", str(len(load.errors)), not load.errors),
            Row(
                "The same: p99",
                "under 10x the median",
                f"{slow / middle:.1f}x: {format_ms(slow)} against {format_ms(middle)}",
                slow < 10 * middle,
            ),
            Row(
                "The same: calls a second",
                "at least 60 % of the engine's in-process",
                f"{load.rate / inside.rate:.0%}: {load.rate:,.0f} against {inside.rate:,.0f}",
                load.rate >= 0.6 * inside.rate,
            ),
            *(
                Row(
                    f"The same: CPU of the server a request, {kind} questions",
                    f"at most {format_ms(bar)}",
                    format_ms(loads[kind].cpu_per_call_s),
                    loads[kind].cpu_per_call_s <= bar,
                )
                for kind, bar in MAX_CPU_S.items()
            ),
        ],
        [
            Table(
                ("calls", "a second", "median", "p99"),
                [
                    ("in-process, the fastest", f"{inside.rate:,.0f}", *_format_latencies(inside)),
                    *(
                        (f"{CLIENTS} clients over HTTP, {kind} questions", f"{one.rate:,.0f}", *_format_latencies(one))
                        for kind, one in loads.items()
                    ),
                ],
            ),
            *(f"Error: {error}" for error in sorted(set(load.errors))[:5]),
        ],
    )


def _format_latencies(load: Load) -> tuple[str, str]:
    return format_ms(median(load.times)), format_ms(percentile(load.times, 0.99))


class ServerUrl(str):
    """The address of a server, with the id of its process."""

    process_id: int

    def __new__(cls, url: str, process_id: int) -> "ServerUrl":
        self = super().__new__(cls, url)
        self.process_id = process_id
        return self

    def read_cpu_s(self) -> float:
        """Return the CPU time that the server has used; not a number where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return float("nan")
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def start_server(command: list[str], environment: dict[str, str]) -> Generator["ServerUrl"]:
    """Start a server that prints its address first, and yield the address."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=environment["HOME"]
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        url = next(word for word in words if word.startswith("http")).rstrip(";")
        await_port(url)
        yield ServerUrl(url, process.pid)
    finally:
        process.terminate()
        process.communicate(timeout=60)


def await_port(url: str) -> None:
    for _ in range(100):
        try:
            return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise SystemExit(f"{url} does not answer")


@contextmanager
def serve_athena(run: Run, home: Path) -> Generator[ServerUrl]:
    environment = run.environment(home) | {"ATHENA_TOKEN": TOKEN}
    with start_server([sys.executable, "-m", "athena", "serve", "--port", "0"], environment) as url:
        yield url


@contextmanager
def serve_bare() -> Generator[ServerUrl]:
    with start_server([sys.executable, "-c", BARE], {"PATH": os.environ["PATH"], "HOME": "/"}) as url:
        yield url


def request(url: str, path: str, body: dict[str, object] | None = None) -> bytes:
    text = b"" if body is None else json.dumps(body).encode()
    kind = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n" if body is not None else ""
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {url.removeprefix('http://')}\r\n"
    return f"{head}Authorization: Bearer {TOKEN}\r\n{kind}\r\n".encode() + text


async def measure_reads(url: str, seconds: float) -> Load:
    asked = request(url, "/tools/recall")
    return await run_clients(url, CONNECTIONS, seconds, lambda _: asked)


def measure_mixed(questions: list[str], url: ServerUrl, seconds: float) -> Load:
    calls = cycle(generate_calls(questions, int(time.time())))

    def next_one(_: int) -> bytes:
        name, arguments = next(calls)
        return request(url, f"/tools/{name}/execute", arguments)

    before = url.read_cpu_s()
    load = asyncio.run(run_clients(url, CLIENTS, seconds, next_one))
    return load._replace(server_cpu_s=url.read_cpu_s() - before)


def generate_calls(questions: list[str], seed: int) -> Generator[tuple[str, dict[str, object]]]:
    for i in range(100_000):
        if i % CALLS_PER_REMEMBER:
            yield "recall", {"query": questions[i % len(questions)], "k": 5}
        else:
            yield "remember", {"content": f"{questions[i % len(questions)]} (note {seed}-{i})"}


async def run_clients(url: str, clients: int, seconds: float, next_one: Callable[[int], bytes]) -> Load:
    """Send requests from many clients, each on its own connection, until the time is up."""
    port = int(url.rpartition(":")[2])
    times: list[float] = []
    errors: list[str] = []
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(next_one(number))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            times.append(time.perf_counter() - began)
            if not head.startswith(b"HTTP/1.1 200"):
                errors.append(body.decode()[:200])
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(clients)))
    return Load(times, errors, time.perf_counter() - began)


def run_in_process(run: Run, threads: int, seconds: float) -> Load:
    """Make the same calls in this process."""
    times: list[float] = []
    calls = iter(generate_calls(corpus.make_queries(REPEATED_QUESTIONS, run.ordinary), threads))
    turn = threading.Lock()
    with run.open_store(run.stores.copy(run.ordinary)):
        connection = connect.AppConnection(connect.shared_app, PROJECT, "http")
        run_sync(connection.call("recall", {"query": "warm", "k": 5}))
        end = time.perf_counter() + seconds

        def work() -> None:
            while (began := time.perf_counter()) < end:
                with turn:
                    name, arguments = next(calls)
                run_sync(connection.call(name, arguments))
                times.append(time.perf_counter() - began)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return Load(times, [], time.perf_counter() - began)
