"""Rules on the shape of the code: layers, size of modules, and tests that cannot pass without checking something."""

import ast
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
WRAPPERS = {"enumerate", "sorted", "list", "itertools.pairwise"}  # as long as their argument, or nearly
VAGUE = {"utils", "helpers", "common", "manager", "service", "handler", "factory", "base"}


def test_imports_follow_layers() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as l; l()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_modules_are_short_and_well_named(module: Path) -> None:
    text = module.read_text("utf-8")
    assert text.count("\n") <= 500
    assert module.stem not in VAGUE
    assert ast.get_docstring(ast.parse(text)), "the first line says what it is for"


def test_only_process_start_reads_settings() -> None:
    """Engines, services and operations take plain arguments; only code that starts a process reads the settings."""
    graph = grimp.build_graph("athena")
    readers = {name.split(".")[1] for name in graph.find_modules_that_directly_import("athena.app.settings")}
    assert readers == {"app", "cli", "hooks", "server"}


def test_one_function_compares_spellings() -> None:
    """Others choose names and paths, and the time of difflib grows with the cube of their length."""
    users = [str(path.relative_to(ROOT / "src")) for path in MODULES if "difflib" in _list_imports(path)]
    assert users == ["athena/cli/clients/files.py", "athena/core/words.py"]  # the first shows a diff to a person


def _list_imports(path: Path) -> set[str]:
    """Return the modules that a file imports, also inside of functions."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_no_machine_path_is_named() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted", "registry" + ".npm", "/ro" + "ot/", "/wo" + "rk/"]
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    names = [name for name in tracked.stdout.split("\0") if name]
    assert len(names) > 300
    for name in names:
        file = ROOT / name
        if file.suffix in (".onnx", ".json", ".svg") or not file.exists():
            continue
        text = file.read_text("utf-8", errors="replace")
        assert not [host for host in hosts if host in text], name


@pytest.mark.parametrize("file", TESTS, ids=lambda path: str(path.relative_to(ROOT / "tests")))
def test_assertions_run_without_loop(file: Path) -> None:
    """A test whose assertions all lie in a loop over computed values passes when there are none."""
    functions = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.FunctionDef)]
    tests = [node for node in functions if node.name.startswith("test_")]
    assert functions
    assert [node.name for node in tests if _asserts_only_in_loop(node)] == []


def _asserts_only_in_loop(test: ast.FunctionDef) -> bool:
    assigned = {
        target.id: node.value
        for node in ast.walk(test)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return any(map(_is_assertion, ast.walk(test))) and not _surely_asserts(test.body, assigned)


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.withitem):
        return ast.unparse(node.context_expr).startswith(("pytest.raises", "pytest.warns"))
    return isinstance(node, ast.Assert)


def _surely_asserts(body: list[ast.stmt], assigned: dict[str, ast.expr]) -> bool:
    """Tell whether an assertion of these statements runs even when every computed collection is empty."""
    for node in body:
        if isinstance(node, ast.Assert):
            if not _is_vacuous(node.test, assigned):
                return True
            continue
        if isinstance(node, ast.With) and any(map(_is_assertion, node.items)):
            return True
        if isinstance(node, ast.For) and not _is_filled(node.iter, assigned):
            continue
        if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
            continue
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [part.body for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))]
        if any(_surely_asserts(block, assigned) for block in blocks):
            return True
    return False


def _is_vacuous(test: ast.expr, assigned: dict[str, ast.expr]) -> bool:
    """Tell whether this is `all(... for x in y)` where y may be empty."""
    if not (isinstance(test, ast.Call) and ast.unparse(test.func) == "all"):
        return False
    return not _is_filled(test.args[0], assigned)


def _is_filled(node: ast.expr, assigned: dict[str, ast.expr]) -> bool:
    """Tell whether a collection has elements for certain: a literal, a table of the module, or made from one."""
    match node:
        case ast.Tuple() | ast.List() | ast.Set():
            return any(not isinstance(element, ast.Starred) or _is_filled(element.value, {}) for element in node.elts)
        case ast.Dict():
            return bool(node.keys)
        case ast.Constant():
            return bool(node.value)
        case ast.Name() if node.id in assigned:
            return _is_filled(assigned[node.id], {})
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.ListComp(generators=parts) | ast.GeneratorExp(generators=parts):
            return all(_is_filled(part.iter, assigned) and not part.ifs for part in parts)
        case ast.Call(func=ast.Name(id="range")):
            return True
        case ast.Call(func=ast.Name(id="zip")) if node.keywords:  # strict=True raises where one is shorter
            return any(_is_filled(argument, assigned) for argument in node.args)
        case ast.Call(func=ast.Attribute(value=value, attr="items" | "keys" | "values")):
            return _is_filled(value, assigned)
        case ast.Call(args=[first, *_]) if ast.unparse(node.func) in WRAPPERS:
            return _is_filled(first, assigned)
    return False
