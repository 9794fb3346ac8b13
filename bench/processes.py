"""Several processes that store at the same time."""

import json
import subprocess
import sys
import time
from statistics import median
from typing import Any

from athena import api
from athena.errors import AthenaError
from bench import corpus
from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_ms, percentile

WRITERS = 4
BAR = 0.150  # seconds


def run(run: Run) -> Result:
    each = 30 if run.quick else 250
    home = run.stores.copy(run.ordinary)
    texts = corpus.load_notes(run.ordinary + WRITERS * (each + 1))[run.ordinary :]
    shares = [json.dumps(texts[i::WRITERS]) for i in range(WRITERS)]
    reports, seconds = run_processes(run.environment(home), "bench.writer", shares)
    times = [one for report in reports for one in report["times"]]
    errors = [error for report in reports for error in report["errors"]]
    hashes = [short for report in reports for short in report["hashes"]]
    with run.open_store(home):
        missing = [short for short in hashes if not _is_kept(short)]
    slow = percentile(times, 0.99)
    lines = [
        (
            str(i),
            format_ms(median(r["times"])),
            format_ms(percentile(r["times"], 0.99)),
            format_ms(max(r["times"])),
            str(len(r["errors"])),
        )
        for i, r in enumerate(reports, 1)
    ]
    everything = (format_ms(median(times)), format_ms(slow), format_ms(max(times)), str(len(errors)))
    return Result(
        "Four processes that store at once",
        f"{WRITERS} processes, each with a model of its own, store {each} notes one by one into the same store of "
        f"{run.ordinary:,}, as fast as they can, all at once; then every acknowledged hash is looked up.",
        [
            Row(f"{WRITERS} processes storing at once, p99", f"under {format_ms(BAR)}", format_ms(slow), slow < BAR),
            Row(
                "The same: errors, and acknowledged memories that are missing",
                "none",
                f"{len(errors)} errors, {len(missing)} of {len(hashes):,} missing",
                not errors and not missing,
            ),
        ],
        [
            Table(("process", "median", "p99", "slowest", "errors"), [*lines, ("all", *everything)]),
            f"Together {len(times) / seconds:,.0f} stores a second. With fewer cores than processes, much of the time "
            "is waiting for a core, not for the store.",
            *(f"Error: {error}" for error in sorted(set(errors))[:5]),
        ],
    )


def _is_kept(short: str) -> bool:
    try:
        return api.get(short).hash.startswith(short)
    except AthenaError:
        return False


def run_processes(environment: dict[str, str], program: str, shares: list[str]) -> tuple[list[dict[str, Any]], float]:
    """Start one process per share, release them together, and collect their reports."""
    command = [sys.executable, "-m", program]
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=environment["HOME"])
        for _ in shares
    ]
    try:
        for writer, share in zip(writers, shares, strict=True):
            _write_line(writer, share)
        for writer in writers:
            _read_line(writer)
        began = time.perf_counter()
        for writer in writers:
            _write_line(writer, "go")
        reports = [json.loads(_read_line(writer)) for writer in writers]
        seconds = time.perf_counter() - began
    finally:
        for writer in writers:
            writer.communicate(timeout=60)
    return reports, seconds


def _write_line(writer: "subprocess.Popen[str]", line: str) -> None:
    assert writer.stdin is not None
    writer.stdin.write(line + "\n")
    writer.stdin.flush()


def _read_line(writer: "subprocess.Popen[str]") -> str:
    assert writer.stdout is not None
    if not (line := writer.stdout.readline()):
        raise SystemExit("a writing process ended early; its error is above")
    return line
