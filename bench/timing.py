"""Clocks, processes and the statistics that the report uses."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, ParamSpec

P = ParamSpec("P")


class FinishedProcess(NamedTuple):
    """A finished process."""

    wall: float  # seconds
    cpu: float  # user and system time of all threads
    output: str
    errors: str


def run_process(command: Sequence[str], environment: Mapping[str, str], folder: str) -> FinishedProcess:
    """Run a process and time it; raise if it fails."""
    with tempfile.TemporaryFile() as errors:  # a file, since a full pipe that nobody reads would block the child
        began = time.perf_counter()
        child = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=errors)
        assert child.stdout is not None
        with child.stdout:
            output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if child.returncode:
        raise SystemExit(f"{command[-1]!r} ended with {child.returncode}:\n{said}")
    return FinishedProcess(wall, usage.ru_utime + usage.ru_stime, output.decode(), said)


def python_command(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def run_interleaved(
    contestants: Mapping[str, Callable[[], FinishedProcess]], rounds: int
) -> dict[str, list[FinishedProcess]]:
    """Run the contestants in turn, round after round, so that other load affects all alike."""
    for run in contestants.values():  # the first run fills the disk cache and writes the bytecode
        run()
    results: dict[str, list[FinishedProcess]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            results[name].append(run())
    return results


def time_call(function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    function(*args, **kwargs)
    return time.perf_counter() - began


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def format_ms(seconds: float) -> str:
    """Format seconds as milliseconds with significant digits only."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"


def format_least_and_median(values: Sequence[float]) -> str:
    return f"{format_ms(min(values))} (median {format_ms(median(values))})"
