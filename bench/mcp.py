"""Tokens of the MCP tool list, and the time until a client gets its first answer."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from athena.core import tokens
from athena.core.home import lock
from bench import corpus, rival
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import (
    FinishedProcess,
    format_least_and_median,
    format_ms,
    python_command,
    run_interleaved,
    run_process,
)

TOKENS, TIMES, SHARE = 600, 3.0, 0.1
COMMAND = [sys.executable, "-c", "from athena.cli import main; main()", "mcp"]  # as the console script does
BEGIN = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
BARE = "python -c pass"
BAREST = "python -I -S -c pass"


def run(run: Run) -> Result:
    home = run.stores.copy(run.ordinary)
    environment = run.environment(home)
    query = corpus.make_queries(1, run.ordinary)[0]
    cold = [_time_cold_start(environment, home, query) for _ in range(2 if run.quick else 5)]
    _time_first_answer(environment, query)  # starts the daemon
    _wait_until_warm(environment, query)
    contestants: dict[str, Callable[[], FinishedProcess]] = {
        BAREST: partial(run_process, [sys.executable, "-I", "-S", "-c", "pass"], environment, str(run.folder)),
        BARE: partial(run_process, python_command("pass"), environment, str(run.folder)),
        "athena mcp": partial(_time_first_answer, environment, query),
    }
    theirs, absent = "", "a quick run does not install it"
    if not run.quick:
        try:
            interpreter, version = rival.install(run.folder)
            theirs = f"import of {rival.NAME} {version}"
            contestants[theirs] = partial(
                run_process, [str(interpreter), "-c", rival.PROGRAM], environment, str(run.folder)
            )
        except rival.Unobtainable as error:
            absent = str(error)
    ran = run_interleaved(contestants, 5 if run.quick else 20)
    sizes = {tools: _measure_tool_list(environment, tools) for tools in ("default", "code", "all")}
    _stop(home)
    walls = {name: [one.wall for one in runs] for name, runs in ran.items()}
    ratio = min(walls["athena mcp"]) / min(walls[BARE])
    rows = [
        Row(
            "Tools of the default surface",
            f"at most {TOKENS} tokens",
            str(sizes["default"][1]),
            sizes["default"][1] <= TOKENS,
        ),
        Row(
            "`athena mcp` to the first answer, with a server that runs",
            f"at most {TIMES:.0f}x `{BARE}`",
            f"{ratio:.1f}x: {format_least_and_median(walls['athena mcp'])}",
            ratio <= TIMES,
        ),
        _compare(walls, theirs, absent),
        Row("The same without a server, which is started", "stated", format_least_and_median(cold), None),
    ]
    return Result(
        "MCP",
        "Tokens (o200k): the `tools` of a real `tools/list`, as compact JSON. Time: from the start of the process to "
        f"the answer of a `recall` over {run.ordinary:,} memories, handshake included; a bare Python until its end. "
        "Each in turn; the least time counts as that of a quiet machine.",
        rows,
        [
            Table(
                ("surface", "tools", "tokens"),
                [(name, str(count), f"{size:,}") for name, (count, size) in sizes.items()],
            ),
            Table(
                ("process", "least", "median"),
                [(name, format_ms(min(times)), format_ms(median(times))) for name, times in walls.items()],
            ),
        ],
    )


def _compare(walls: dict[str, list[float]], theirs: str, absent: str) -> Row:
    what = f"The same against the import of `{rival.NAME}` alone, which its server needs before it can answer"
    bar = f"under {SHARE:.0%}"
    if not theirs:
        return Row(what, bar, f"not measured here: {absent}", None)
    share = min(walls["athena mcp"]) / min(walls[theirs])
    return Row(what, bar, f"{share:.1%}", share < SHARE)


def _format_request(number: int, method: str, **parameters: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}).encode() + b"\n"


def _time_first_answer(environment: dict[str, str], query: str) -> FinishedProcess:
    """Start a process, open a session, recall something, and return the seconds until the answer."""
    told = _format_request(0, "initialize", **BEGIN) + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    told += _format_request(1, "tools/call", name="recall", arguments={"query": query, "k": 5})
    answers = _exchange_lines(COMMAND, environment, told, 2)
    wall = answers.pop()
    return FinishedProcess(wall, 0.0, answers[-1]["result"]["content"][0]["text"], "")


def _exchange_lines(command: list[str], environment: dict[str, str], told: bytes, count: int) -> list[Any]:
    """Return the given number of answers of a process, and the seconds until the last one."""
    began = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(told)
        child.stdin.flush()
        lines = [child.stdout.readline() for _ in range(count)]
        wall = time.perf_counter() - began
        child.stdin.close()
    return [*map(json.loads, lines), wall]


def _time_cold_start(environment: dict[str, str], home: Path, query: str) -> float:
    wall = _time_first_answer(environment, query).wall
    _stop(home)
    return wall


def _wait_until_warm(environment: dict[str, str], query: str) -> None:
    """Wait until the server has loaded everything in the background."""
    before = float("inf")
    for _ in range(20):
        now = _time_first_answer(environment, query).wall
        if now > 0.9 * before:
            return
        before = now
        time.sleep(0.3)


def _measure_tool_list(environment: dict[str, str], tools: str) -> tuple[int, int]:
    told = _format_request(0, "initialize", **BEGIN) + b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'
    answers = _exchange_lines([*COMMAND, "--tools", tools], environment, told + _format_request(1, "tools/list"), 2)
    listed = answers[1]["result"]["tools"]
    return len(listed), tokens.count_tokens_exactly(json.dumps(listed, ensure_ascii=False, separators=(",", ":")))


def _stop(home: Path) -> None:
    if found := lock.find_server(str(home)):
        lock.stop_server(str(home), found, 30)
