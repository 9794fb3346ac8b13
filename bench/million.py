"""Measure a store of a million memories, and write the figures into docs/scaling.md.

python -m bench.million FOLDER      FOLDER keeps the store: a run that is stopped goes on, and another measures again
"""

import json
import os
import sys
from pathlib import Path

from athena import api
from bench import corpus, footprint, growth
from bench.machine import ROOT, Load, describe_machine
from bench.report import render_table
from bench.result import Table
from bench.run import PROJECT, Run
from bench.stores import FILE
from bench.timing import format_ms, python_command, run_process

MEMORIES = 1_000_000
GROWN_AT_ONCE = 50_000
SEARCHES = 20
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- million: written by `python -m bench.million` -->", "<!-- end of million -->"
PROGRAM = "from bench.growth import measure; measure(is_read_whole=False)"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    home = Path(sys.argv[1]).resolve()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"ATHENA_PROJECT": PROJECT, "ATHENA_HOME": str(home)}
    run = Run(home.parent, quick=False)
    build_store(run, home, MEMORIES)
    before = Load.now()
    environment = run.environment(home)
    asked = json.dumps(corpus.make_queries(SEARCHES, 200))
    figures = growth.measure_processes(environment, home, PROGRAM)
    _, (resident, peak) = json.loads(
        run_process([*python_command(footprint.PROGRAM), asked], environment, str(home)).output
    )
    lines = [(f"CPU of {name}", format_ms(figures[name])) for name in growth.BARS if name in figures]
    lines += [
        (f"memory of a process after {SEARCHES} searches", f"{resident / 1e6:,.0f} MB, {peak / 1e6:,.0f} MB at most"),
        ("size of the file", f"{os.path.getsize(home / FILE) / 1e9:.2f} GB"),
    ]
    facts = dict(describe_machine())
    write_table(
        f"Measured on {facts['date']} at commit {facts['commit']}; {facts['CPU']}; {Load.now().since(before)}.\n\n"
        + render_table(Table(("1,000,000 memories", ""), lines))
    )


def build_store(run: Run, home: Path, size: int) -> None:
    """Grow the store in the folder to its size, from what an earlier run has left there."""
    with run.open_store(home):
        count = int(str(api.call("stats")["memories"]))
    for smaller in range(count, size, GROWN_AT_ONCE):
        growth.grow(home, smaller, min(size, smaller + GROWN_AT_ONCE))
        print(f"{min(size, smaller + GROWN_AT_ONCE):,} memories", file=sys.stderr, flush=True)


def write_table(text: str) -> None:
    page = PAGE.read_text("utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main()
