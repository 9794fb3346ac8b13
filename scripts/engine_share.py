"""Print which sandbox engine each example program gets, and what a program costs on each engine.

`python scripts/engine_share.py [--times] [--json FILE]`. The programs are those of the tests (what agents write), of
the documentation and of the skills that come with Athena. `--json` writes the choice by program, to compare two
versions of the routing.
"""

import argparse
import ast
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests" / "sandbox")]

from agent_programs import PROGRAMS  # noqa: E402
from small_world import NAMES, World  # noqa: E402

from athena.operations import CATALOG  # noqa: E402
from athena.programs.namespace import build_names  # noqa: E402
from athena.programs.sandbox import Namespace, Program, Sandbox, routing  # noqa: E402
from athena.programs.sandbox.source import ProgramSource  # noqa: E402
from athena.programs.sandbox.values import ProgramRejected  # noqa: E402

RUN_FUNCTIONS = ("run", "value", "execute_code")
TIMED_ROUNDS = 5


def iter_programs() -> Iterator[tuple[str, str, Namespace]]:
    """Yield the set, the source and the names of every program."""
    names = build_names(CATALOG, {})
    for agent in PROGRAMS:
        yield "agents", agent.code, NAMES
    for file in sorted((ROOT / "tests").glob("test_programs*.py")):
        yield from (("api tests", code, names) for code in iter_run_arguments(ast.parse(file.read_text())))
    for file in sorted((ROOT / "tests" / "sandbox").glob("test_sandbox_*.py")):
        yield from (("sandbox tests", code, NAMES) for code in iter_run_arguments(ast.parse(file.read_text())))
    for file in sorted((ROOT / "docs").glob("*.md")):
        for block in file.read_text().split("```python\n")[1:]:
            try:
                tree = ast.parse(block.partition("```")[0])
            except SyntaxError:
                continue
            yield from (("documentation", code, names) for code in iter_run_arguments(tree))
    for file in sorted((ROOT / "src" / "athena").rglob("skills/*.py")):
        if file.stem != "__init__":
            yield "skills", file.read_text(), names


def iter_run_arguments(tree: ast.AST) -> Iterator[str]:
    """Yield the programs that are written out as an argument of `run` and its like."""
    for node in ast.walk(tree):
        function = node.func if isinstance(node, ast.Call) else None
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        if not isinstance(node, ast.Call) or name not in RUN_FUNCTIONS:
            continue
        if any(keyword.arg == "engine" for keyword in node.keywords):
            continue
        texts = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        yield from texts[:1]


def time_engines() -> None:
    """Print the median of each agent program's time on both engines, where both give the same answer."""
    times: dict[str, list[float]] = {"monty": [], "python": []}
    sandbox = Sandbox(key=b"k" * 32)
    for agent in PROGRAMS:
        taken: dict[str, float] = {}
        for engine in times:
            program = Program(agent.code, NAMES, engine=engine)  # type: ignore[arg-type]
            samples = []
            for _ in range(TIMED_ROUNDS):
                time.sleep(0.15)  # an agent pauses between two programs; meanwhile the next worker starts
                began = time.perf_counter()
                done = sandbox.run(program, World())
                samples.append(1_000 * (time.perf_counter() - began))
            if done.error is None and done.result == agent.answer:
                taken[engine] = median(samples)
        if len(taken) == len(times):
            for engine, milliseconds in taken.items():
                times[engine].append(milliseconds)
    sandbox.close()
    for engine, samples in times.items():
        print(f"{engine}: median {median(samples):.1f} ms a program ({len(samples)} programs that run on both)")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engines: dict[str, dict[str, str]] = {}
    for group, code, names in iter_programs():
        try:
            reason = routing.find_cpython_reason(ProgramSource(code, 64_000), names)
        except ProgramRejected:
            continue
        engines.setdefault(group, {})[code] = reason
    for group, reasons in engines.items():
        on_cpython = Counter(reason for reason in reasons.values() if reason)
        print(f"{group}: {len(reasons)} programs, {100 * on_cpython.total() / len(reasons):.0f} % on CPython")
        for reason, count in on_cpython.most_common(12):
            print(f"    {count:3} {reason}")
    if options.json:
        options.json.write_text(json.dumps(engines))
    if options.times:
        time_engines()


if __name__ == "__main__":
    main()
