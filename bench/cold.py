"""Time a semantic search in a fresh process, as a script or a hook runs it."""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

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

BAR = 0.250  # seconds
AHEAD = 4.0
PROGRAM = "from athena import api; print(api.search({query!r}))"
STAGED = "from bench.stages import main; main({query!r})"
IMPORTED = re.compile(r"import time:\s*(\d+) \|\s*\d+ \|\s*(\w+)")
NAMES = {
    "search: model": "first encoding of the question",
    "search: news": "read the vectors into memory",
    "search: words": "search by words",
    "search: vectors": "search by meaning",
    "search: rows": "fetch the five memories",
    "search: ranking": "rank",
    "search: the rest": "the rest of the search",
}


def run(run: Run) -> Result:
    home = run.stores.home(run.ordinary)
    query = corpus.make_queries(1, run.ordinary)[0]
    environment, folder = run.environment(home), str(run.folder)
    ours = f"search of {run.ordinary:,}"
    contestants: dict[str, Callable[[], FinishedProcess]] = {
        "python -c pass": partial(run_process, python_command("pass"), environment, folder),
        ours: partial(run_process, python_command(PROGRAM.format(query=query)), environment, folder),
    }
    theirs, absent = "", "a quick run does not install it"
    if not run.quick:
        try:
            interpreter, version = rival.install(run.folder)
            theirs = f"import of {rival.NAME} {version}"
            contestants[theirs] = partial(run_process, [str(interpreter), "-c", rival.PROGRAM], environment, folder)
        except rival.Unobtainable as error:
            absent = str(error)
    ran = run_interleaved(contestants, 4 if run.quick else 15)
    assert all(len(r.output.splitlines()) == 5 for r in ran[ours])
    walls = {name: [r.wall for r in runs] for name, runs in ran.items()}
    least = min(walls[ours])
    rows = [
        Row(
            f"A fresh process that searches {run.ordinary:,} memories by meaning",
            f"at most {format_ms(BAR)} on a quiet machine",
            format_least_and_median(walls[ours]),
            least <= BAR,
        ),
        _compare(walls, ours, theirs, absent),
    ]
    return Result(
        "A fresh process that searches",
        f"`python -c 'from athena import api; print(api.search(...))'` on {run.ordinary:,} memories: the whole "
        f"process, {len(ran[ours])} of each kind, in turn. The least time counts as that of a quiet machine, for both.",
        rows,
        [
            _processes(ran),
            *([_fairness()] if theirs else []),
            "Where the time goes (median of several processes that mark each step; the marks cost a few milliseconds):",
            _stages(run, home, query),
            "What is imported, by `-X importtime`, which itself slows imports down:",
            _imports(run, home, query),
        ],
    )


def _compare(walls: dict[str, list[float]], ours: str, theirs: str, absent: str) -> Row:
    what, bar = f"The same against the import of `{rival.NAME}` alone", f"at least {AHEAD:.0f}x faster"
    if not theirs:
        return Row(what, bar, f"not measured here: {absent}", None)
    ratio = median(walls[theirs]) / median(walls[ours])
    least = min(walls[theirs]) / min(walls[ours])
    return Row(what, bar, f"{least:.1f}x (median {ratio:.1f}x)", least >= AHEAD)


def _fairness() -> str:
    return (
        f"`{rival.NAME}` sleeps for 0.1 s in its `validate_and_create_path`, several times in one import (seen in "
        "12.2.0), so its wall time is well above its CPU time. Both are shown; the bar is about what a caller waits. "
        "A busy machine makes our process slower, but not those sleeps."
    )


def _processes(ran: dict[str, list[FinishedProcess]]) -> Table:
    lines = [
        (
            name,
            format_ms(min(r.wall for r in runs)),
            format_ms(median(r.wall for r in runs)),
            format_ms(median(r.cpu for r in runs)),
        )
        for name, runs in ran.items()
    ]
    return Table(("process", "wall time, least", "median", "CPU time, median"), lines)


def _stages(run: Run, home: Path, query: str) -> Table:
    stages: dict[str, list[float]] = {}
    for number in range(3 if run.quick else 9):
        began = time.monotonic()
        ran = run_process(python_command(STAGED.format(query=query)), run.environment(home), str(run.folder))
        ended = time.monotonic()
        if not number:
            continue
        told = json.loads(ran.output)
        spent = {"start of Python": told["began"] - began, **told["spent"], "end of the process": ended - told["ended"]}
        for name, seconds in spent.items():
            stages.setdefault(name, []).append(seconds)
    lines = [(NAMES.get(name, name), format_ms(median(times)), format_ms(min(times))) for name, times in stages.items()]
    lines.append(("sum", format_ms(sum(map(median, stages.values()))), format_ms(sum(map(min, stages.values())))))
    return Table(("step", "median", "least"), lines)


def _imports(run: Run, home: Path, query: str) -> Table:
    command = [sys.executable, "-X", "importtime", "-c", PROGRAM.format(query=query)]
    samples: list[Counter[str]] = []
    for _ in range(2 if run.quick else 5):
        spent: Counter[str] = Counter()
        for line in run_process(command, run.environment(home), str(run.folder)).errors.splitlines():
            if match := IMPORTED.match(line):
                microseconds, package = match.groups()
                spent[package if package in KNOWN else "Python's own"] += int(microseconds)
        samples.append(spent)
    names = sorted(samples[0], key=lambda name: -median(s[name] for s in samples))
    return Table(
        ("package", "its own modules, median", "least"),
        [
            (n, format_ms(median(s[n] for s in samples) / 1e6), format_ms(min(s[n] for s in samples) / 1e6))
            for n in names
        ],
    )


KNOWN = ("athena", "numpy", "onnxruntime", "tokenizers", "apsw", "click", "huggingface_hub", "regex")
