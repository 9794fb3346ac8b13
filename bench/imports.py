"""Time and memory of `import athena.api`."""

from functools import partial
from statistics import median

from bench.result import Result, Row, Table
from bench.run import Run
from bench.timing import format_least_and_median, format_ms, python_command, run_interleaved, run_process

BAR = 3.0
PROGRAMS = {"python -c pass": "pass", "import athena.api": "import athena.api"}


def run(run: Run) -> Result:
    environment = run.environment(run.folder)
    ran = run_interleaved(
        {
            name: partial(run_process, python_command(code), environment, str(run.folder))
            for name, code in PROGRAMS.items()
        },
        5 if run.quick else 20,
    )
    bare, ours = (ran[name] for name in PROGRAMS)
    typical = median(r.wall for r in ours) / median(r.wall for r in bare)
    least = min(r.wall for r in ours) / min(r.wall for r in bare)
    table = Table(
        ("process", "wall time, least", "median", "CPU time, median"),
        [
            (
                f"`{name}`",
                format_ms(min(r.wall for r in runs)),
                format_ms(median(r.wall for r in runs)),
                format_ms(median(r.cpu for r in runs)),
            )
            for name, runs in ran.items()
        ],
    )
    spread = f"Ratio of the medians {typical:.2f}, of the least times {least:.2f}."
    measured = f"{typical:.2f}x: {format_least_and_median([r.wall for r in ours])}"
    return Result(
        "Importing the code API",
        f"Whole processes, from their start to their end, {len(ours)} of each, in turn.",
        [Row("`import athena.api`", f"at most {BAR:.0f}x `python -c pass`", measured, typical <= BAR)],
        [table, spread],
    )
