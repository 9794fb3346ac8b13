"""Run the benchmarks and write docs/benchmarks.md."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from bench import (
    batch,
    briefing,
    cold,
    discovery,
    documents,
    footprint,
    gateway,
    graph,
    growth,
    hooks,
    http,
    imports,
    machine,
    mcp,
    patterns,
    postgres,
    privacy,
    processes,
    reembedding,
    report,
    sandbox,
    search,
    store,
    tokens,
    workers,
)
from bench.result import Result
from bench.run import PROJECT, Run

DOCS = machine.ROOT / "docs"
BENCHMARKS: dict[str, ModuleType] = {
    "imports": imports,
    "cold": cold,
    "search": search,
    "store": store,
    "graph": graph,
    "growth": growth,
    "reembedding": reembedding,
    "processes": processes,
    "postgres": postgres,
    "http": http,
    "workers": workers,
    "hooks": hooks,
    "sandbox": sandbox,
    "batch": batch,
    "documents": documents,
    "mcp": mcp,
    "gateway": gateway,
    "footprint": footprint,
    "tokens": tokens,
    "briefing": briefing,
    "discovery": discovery,
    "patterns": patterns,
    "privacy": privacy,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="measure these and print the page")
    parser.add_argument("--write", action="store_true", help="put what --only measured into the page")
    parser.add_argument(
        "--quick", action="store_true", help="small stores and few rounds: to see that it works; prints"
    )
    given = parser.parse_args()
    os.environ["ATHENA_PROJECT"] = PROJECT
    results: dict[str, Result] = {}
    loads: dict[str, str] = {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="athena-bench-") as folder:
        run = Run(Path(folder), quick=given.quick)
        for name in given.only or BENCHMARKS:
            print(f"{time.monotonic() - began:4.0f} s  {name}", file=sys.stderr, flush=True)
            before = machine.Load.now()
            results[name] = BENCHMARKS[name].run(run)
            loads[name] = machine.Load.now().since(before)
    page = report.render_page(results, loads, machine.describe_machine())
    if given.only and given.write and not given.quick:
        old = (DOCS / "benchmarks.md").read_text("utf-8")
        _write(report.merge_pages(old, page, BENCHMARKS), results)
    elif given.only or given.quick:
        print(page)
    else:
        _write(page, results)
    print(f"{time.monotonic() - began:4.0f} s  done", file=sys.stderr)


def _write(page: str, results: dict[str, Result]) -> None:
    (DOCS / "images").mkdir(parents=True, exist_ok=True)
    (DOCS / "benchmarks.md").write_text(page, "utf-8")
    for result in results.values():
        for name, image in result.images.items():
            (DOCS / "images" / name).write_text(image, "utf-8")


if __name__ == "__main__":
    main()
