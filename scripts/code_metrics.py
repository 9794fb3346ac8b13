"""Measure the shape of the code and compare it with the limits that we set ourselves.

python scripts/code_metrics.py            print the table
python scripts/code_metrics.py --check    exit with 1 if a limit is exceeded or a lazy import has no reason
"""

import argparse
import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "athena"
MAX_SMALL_MODULE_LINES = 120
# Why an import of our own code stands inside a function: module that imports, module imported, reason.
LAZY_IMPORTS: dict[tuple[str, str], str] = {
    (
        "athena.cli",
        "athena.cli.commands",
    ): "imports click, 70 ms, which `athena mcp` and `--version` do not need",
    ("athena.cli", "athena.cli.mcp"): "imports asyncio and the server, only where `athena mcp` finds no daemon",
    ("athena.cli", "athena.cli.mcp_proxy"): "needed by `athena mcp` alone",
    ("athena.cli.commands", "athena.cli.output"): "imports the values of memories, only to print an error",
    ("athena.cli.commands", "athena.operations"): "imports all operations, only for an unknown command",
    ("athena.cli.mcp_proxy", "athena.core.home.daemon"): "only where no daemon runs: `athena mcp` must start fast",
    ("athena.cli.serve", "athena.server.serve"): "imports Starlette and uvicorn, which `athena token` does not need",
}


class Metric(NamedTuple):
    name: str
    value: float
    limit: float | None
    unit: str = ""

    @property
    def is_kept(self) -> bool:
        return self.limit is None or self.value <= self.limit


def measure() -> list[Metric]:
    """Return all figures, each with its limit where it has one."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    functions = [name for tree in trees.values() for name in list_function_names(tree)]
    one_word = [name for name in functions if "_" not in name.strip("_")]
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"][0]
    graph = grimp.build_graph("athena")
    single = [path for path in trees if is_small_with_one_importer(graph, path)]
    return [
        Metric("modules", len(trees), 265),
        Metric("lines", sum(path.read_text("utf-8").count("\n") for path in trees), 43_000),
        Metric("packages at the root", len([path for path in SOURCE.iterdir() if (path / "__init__.py").exists()]), 13),
        Metric("modules at the root", len(list(SOURCE.glob("*.py"))), 8),
        Metric("longest module", max(path.read_text("utf-8").count("\n") for path in trees), 500, "lines"),
        Metric("modules under 120 lines with one importer", len(single), None),
        Metric("import layers", len(contract["layers"]), 13),
        Metric("ignored imports", len(contract.get("ignore_imports", ())), 0),
        Metric("import cycles", len(find_cycles(graph)), 0),
        Metric("imports of our own code inside functions", len(find_lazy_imports(trees)), 25),
        Metric("function names of one word", round(100 * len(one_word) / len(functions)), 50, "%"),
        Metric("parameters `tx: Any`", sum(count_untyped_transactions(tree) for tree in trees.values()), 0),
    ]


def list_function_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
            yield node.name


def count_untyped_transactions(tree: ast.Module) -> int:
    return sum(
        isinstance(node, ast.arg)
        and node.arg == "tx"
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Any"
        for node in ast.walk(tree)
    )


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_small_with_one_importer(graph: grimp.ImportGraph, path: Path) -> bool:
    name = module_name(path)
    if path.name == "__init__.py" or name not in graph.modules:
        return False
    small = path.read_text("utf-8").count("\n") < MAX_SMALL_MODULE_LINES
    return small and len(graph.find_modules_that_directly_import(name)) == 1


def find_lazy_imports(trees: dict[Path, ast.Module]) -> set[tuple[str, str]]:
    """Return who imports what of our own code inside a function."""
    pairs: set[tuple[str, str]] = set()
    for path, tree in trees.items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "athena":
                    pairs |= {(module_name(path), imported_module(node, alias)) for alias in node.names}
    return pairs


def imported_module(node: ast.ImportFrom, alias: ast.alias) -> str:
    whole = f"{node.module}.{alias.name}"
    base = SOURCE.parent / Path(*whole.split("."))
    return whole if base.with_suffix(".py").exists() or base.is_dir() else str(node.module)


def find_cycles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the groups of modules that import each other, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    cycles: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for imported in graph.find_modules_directly_imported_by(module):
            if imported not in index:
                visit(imported)
                low[module] = min(low[module], low[imported])
            elif imported in stack:
                low[module] = min(low[module], index[imported])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                cycles.append(sorted(group))

    for module in sorted(graph.modules):
        if module not in index:
            visit(module)
    return cycles


def check_lazy_imports() -> list[str]:
    """Return what is wrong with the list of reasons."""
    found = find_lazy_imports({path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))})
    missing = [f"{importer} imports {imported} inside a function: add a reason" for importer, imported in found]
    return sorted(line for line, pair in zip(missing, found, strict=True) if pair not in LAZY_IMPORTS) + sorted(
        f"{importer} no longer imports {imported} inside a function: remove its reason"
        for importer, imported in LAZY_IMPORTS.keys() - found
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    arguments = parser.parse_args()
    metrics = measure()
    for metric in metrics:
        limit = "" if metric.limit is None else f"  (at most {metric.limit:,g}{metric.unit.replace('lines', '')})"
        mark = " " if metric.is_kept else "!"
        print(f"{mark} {metric.name:45} {metric.value:>8,g}{metric.unit.replace('lines', '')}{limit}")
    problems = check_lazy_imports()
    print("\n".join(problems))
    return int(arguments.check and (bool(problems) or not all(metric.is_kept for metric in metrics)))


if __name__ == "__main__":
    sys.exit(main())
