"""Starts of processes that a running server answers: the command line and the code API, beside a bare Python."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import FinishedProcess, format_ms, python_command, run_interleaved, run_process

BARE = "python -c pass"
SEARCH = "from athena import api; print(api.search({query!r}))"
MEMORY = SEARCH + "; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
COMMAND = [sys.executable, "-c", "from athena.cli import main; main()"]
MAX_MEMORY_MB = 40
# What is started, and at most how many times the time of a bare Python it may take.
BARS = {"`athena --version`": 2.0, "`import athena.api`": 2.5, "`athena recall`": 4.0, "a first `api.search`": 6.0}


def run(run: Run) -> Result:
    home = run.stores.home(run.ordinary)
    query = corpus.make_queries(1, run.ordinary)[0]
    environment, folder = run.environment(home), str(run.folder)
    commands: Mapping[str, list[str]] = {
        BARE: python_command("pass"),
        "`athena --version`": [*COMMAND, "--version"],
        "`import athena.api`": python_command("import athena.api"),
        "`athena recall`": [*COMMAND, "recall", query],
        "a first `api.search`": python_command(SEARCH.format(query=query)),
    }
    contestants: dict[str, Callable[[], FinishedProcess]] = {
        name: partial(run_process, command, environment, folder) for name, command in commands.items()
    }
    run_process([*COMMAND, "daemon", "start"], environment, folder)
    try:
        run_process(commands["`athena recall`"], environment, folder)  # the server loads the model
        ran = run_interleaved(contestants, 5 if run.quick else 20)
        megabytes = _measure_memory(query, environment, folder)
    finally:
        run_process([*COMMAND, "daemon", "stop"], environment, folder)
    bare = median(process.cpu for process in ran[BARE])
    rows = [
        Row(name, f"at most {bar:g}x `{BARE}`", f"{ratio:.2f}x", ratio <= bar)
        for name, bar in BARS.items()
        for ratio in [median(process.cpu for process in ran[name]) / bare]
    ]
    memory = "not measured here: /proc is missing" if megabytes is None else f"{megabytes:.0f} MB"
    is_small = None if megabytes is None else megabytes <= MAX_MEMORY_MB
    rows.append(Row("Memory of a process that searches", f"at most {MAX_MEMORY_MB} MB", memory, is_small))
    return Result(
        "Starts with a running server",
        f"Whole processes, from their start to their end, {len(ran[BARE])} of each, in turn, on {run.ordinary:,} "
        "memories with a daemon. Ratios of the medians of their own CPU time; what the daemon does for them is not in "
        "it, but in the wall time.",
        rows,
        [_list_processes(ran)],
    )


def _measure_memory(query: str, environment: Mapping[str, str], folder: str) -> float | None:
    """Return the peak of the resident memory of a process that searches."""
    if sys.platform != "linux":
        return None
    return int(run_process(python_command(MEMORY.format(query=query)), environment, folder).output.split()[-1]) / 1024


def _list_processes(ran: Mapping[str, list[FinishedProcess]]) -> Table:
    bare = [process.wall for process in ran[BARE]]
    lines = []
    for name, processes in ran.items():
        walls, cpus = [process.wall for process in processes], [process.cpu for process in processes]
        ratio = f"{median(walls) / median(bare):.2f}x"
        lines.append((name, format_ms(median(cpus)), format_ms(median(walls)), ratio, format_ms(min(walls))))
    return Table(("process", "CPU time, median", "wall time, median", "ratio", "wall time, least"), lines)
