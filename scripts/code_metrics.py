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
# Why an import of our own code stands inside a function, and what that saves: importer, imported module, reason.
LAZY_IMPORTS: dict[str, dict[str, str]] = {
    "athena": {
        "athena.api": "needed by `athena.open` alone: 15 ms less for `import athena`",
        "athena.client": "needed by `athena.AthenaClient` alone: 34 ms less for `import athena`",
    },
    "athena.api": {
        "athena.core.unknown_names": "imports all methods of clients, only after an error: 24 ms less",
        "athena.memory.values": "imports dataclasses, only once a result is returned: 18 ms less",
    },
    "athena.app.compose": {
        "athena.app.backups": "imports the copying of stores, only where a person looks at the backups: 5 ms less",
        "athena.app.edit_hooks": "imports learning, the graph and consolidation, only with the first edit: 30 ms less",
        "athena.discovery.finder": "only with the first search for tools: 10 ms less",
        "athena.embedding.remote": "imports http.client, only where the settings name a model server: 13 ms less",
        "athena.programs.runner": "imports the sandbox, only with the first program: 54 ms less",
        "athena.storage.postgres.store": "imports psycopg, which may not be installed: 200 ms less with SQLite",
    },
    "athena.app.connect": {
        "athena.app.settings": "loaded with the app; only where no daemon runs: 8 ms less",
        "athena.core.home.daemon": "only where no daemon runs: 7 ms less",
        "athena.app.compose": "imports the store and all operations, only with the first call: 120 ms less",
        "athena.embedding.minilm": "loads the model on a thread, only where no daemon runs: 30 ms less",
    },
    "athena.cli": {
        "athena.cli.commands": "imports click, which `athena mcp` and `--version` do not need: 35 ms less",
        "athena.cli.mcp": "imports asyncio and the server, only where `athena mcp` finds no daemon: 200 ms less",
        "athena.cli.quick": "needed by `athena recall` alone: 20 ms less for `athena --version`",
        "athena.cli.mcp_proxy": "needed by `athena mcp` alone: 10 ms less for `athena --version`",
    },
    "athena.cli.commands": {
        "athena.operations": "imports all operations, only for an unknown command: 130 ms less",
    },
    "athena.cli.mcp_proxy": {
        "athena.core.home.daemon": "needed only where no daemon runs: 7 ms less for `athena mcp`",
    },
    "athena.cli.serve": {
        "athena.server.serve": "imports Starlette and uvicorn, which `athena token` does not need: 300 ms less",
    },
    "athena.cli.streams": {
        "athena.core.text": "few texts have characters to escape: 12 ms less for `athena recall`",
    },
    "athena.core.home.paths": {
        "athena.core.files": "needed once in the life of a data folder: one module less for every client",
    },
    "athena.documents.ingest": {
        "athena.documents.parsing": "imports the sandbox, only with the first file: 30 ms less",
    },
    "athena.gateway.gateway": {
        "athena.gateway.connections": "imports asyncio, only where servers are connected: 20 ms less",
    },
    "athena.hooks.events": {
        "athena.memory.sessions.extract": "compiles many patterns, only at the end of a turn: 12 ms less",
    },
    "athena.hooks.fallback": {
        "athena.app.settings": "not needed to import this module, which hook clients do: 2 ms less",
        "athena.hooks.in_process": "imports the store, only when it is this hook's turn: 120 ms less",
        "athena.hooks.other_server": "imports the hooks' events and HTTP, only to ask another server: 130 ms less",
    },
    "athena.memory.time": {
        "athena.memory.time.phrase": "its tables are needed only where a call names a time in words: 4 ms less",
    },
    "athena.operations.context": {
        "athena.memory.sessions.values": "imports dataclasses, only for the answers of hooks: 7 ms less",
    },
    "athena.operations.consolidation": {
        "athena.memory.consolidation.run": "compiles many patterns, only to consolidate: 11 ms less",
    },
    "athena.operations.events": {
        "athena.memory.sessions.lessons": "compiles many patterns, only to learn from a session: 18 ms less",
    },
    "athena.server.daemon_main": {
        "athena.server.serve": "imported once the daemon has its lock and its parent has gone on: 300 ms less to wait",
    },
    "athena.server.mcp.http": {
        "athena.server.mcp.server": "imports the MCP SDK, in a thread after the start: 900 ms less",
    },
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
        Metric("modules", len(trees), 417),
        Metric("lines", sum(path.read_text("utf-8").count("\n") for path in trees), 81_350),
        Metric("packages at the root", len([path for path in SOURCE.iterdir() if (path / "__init__.py").exists()]), 13),
        Metric("modules at the root", len(list(SOURCE.glob("*.py"))), 8),
        Metric("longest module", max(path.read_text("utf-8").count("\n") for path in trees), 500, "lines"),
        Metric("modules under 120 lines with one importer", len(single), None),
        Metric("import layers", len(contract["layers"]), 13),
        Metric("ignored imports", len(contract.get("ignore_imports", ())), 0),
        Metric("import cycles", len(find_cycles(graph)), 0),
        Metric("imports of our own code inside functions", len(find_lazy_imports(trees)), 35),
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
    explained = {(importer, imported) for importer, reasons in LAZY_IMPORTS.items() for imported in reasons}
    return [
        *(f"{importer} imports {imported} inside a function: add a reason" for importer, imported in found - explained),
        *(
            f"{importer} no longer imports {imported} inside a function: remove its reason"
            for importer, imported in explained - found
        ),
    ]


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
