"""The documentation is correct: code blocks run, links resolve, and the reference is complete."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import click
import postgres
import psycopg
import pytest

from athena.cli.commands import athena
from athena.core.version import __version__
from athena.operations import CATALOG

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:\.venv/bin/)?athena (.+)$", re.MULTILINE)


def run(*command: str, folder: Path) -> str:
    """Run a program to its end and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, f"{command[:6]} exits with {done.returncode}:\n{done.stdout}"
    return done.stdout


def readme_blocks(kind: str) -> list[str]:
    return [match["body"] for match in BLOCK.finditer(README) if match["kind"] == kind]


def without_scores_and_days(text: str) -> str:
    return re.sub(r"\b\d{4}-\d\d-\d\d\b", "DAY", re.sub(r"\b[01]\.\d\d\b", "SCORE", text))


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_schema_names_are_unique(reference: ModuleType) -> None:
    found: dict[str, Any] = {}
    for operation in CATALOG:
        for annotation in (*(p.annotation for p in operation.parameters), operation.result_type):
            reference.collect(annotation, found)
    assert len(found) > 20

    class Task(TypedDict):
        other: str

    with pytest.raises(ValueError, match="two shapes are named Task"):
        reference.collect(Task, found)


def test_readme_starts_with_setup_and_tests() -> None:
    first = readme_blocks("sh")[0]
    assert "make run" in first
    assert "make test" in first
    assert README.index("make run") < 200


def test_readme_python_prints_its_comments(tmp_path: Path) -> None:
    source = "\n".join(readme_blocks("python"))
    expected = re.findall(r"  # -> (.+)$", source, re.MULTILINE)
    printed = run(sys.executable, "-c", source, folder=tmp_path).splitlines()
    assert len(expected) >= 5
    remaining = iter(printed)
    for line in expected:
        assert line in remaining, f"{line!r} is not printed, or not in this order, by:\n{source}\nit prints\n{printed}"


@pytest.mark.parametrize("name", ["memory.md", "programs.md"])
def test_pages_python_prints_its_comments(tmp_path: Path, name: str) -> None:
    page = (ROOT / "docs" / name).read_text("utf-8")
    source = "\n".join(match["body"] for match in BLOCK.finditer(page) if match["kind"] == "python")
    expected = re.findall(r"  # -> (.+)$", source, re.MULTILINE)
    assert len(expected) >= 8
    assert run(sys.executable, "-c", source, folder=tmp_path).splitlines() == expected


def test_readme_commands_print_shown_output(tmp_path: Path) -> None:
    shown = iter(readme_blocks("text"))
    ran = 0
    for block in readme_blocks("sh"):
        if commands := COMMAND.findall(block):
            written = [run(sys.executable, "-m", "athena", *shlex.split(one), folder=tmp_path) for one in commands]
            assert without_scores_and_days("".join(written)) == without_scores_and_days(next(shown))
            ran += len(commands)
    assert ran >= 5


def test_tour_leaves_users_store_alone(tmp_path: Path) -> None:
    written = run(sys.executable, str(ROOT / "examples" / "tour.py"), folder=tmp_path)
    home = Path(os.environ["ATHENA_HOME"])
    assert str(home / "athena.db") in written
    assert not home.exists()
    by_meaning = written.partition("3. Search by meaning")[2].partition("\n4. ")[0]
    assert "Mara owns payments" in by_meaning
    assert "session cookies" in written
    assert "was: 'Deploys run on Fridays" in written
    assert "undid: forgotten" in written
    assert "[SECRET:github-token]" in written
    assert "\x1b" not in written


def test_tour_on_postgres_leaves_nothing(tmp_path: Path, server: postgres.Server) -> None:
    url = server.create("tour")
    os.environ["ATHENA_DATABASE_URL"] = url
    try:
        written = run(sys.executable, str(ROOT / "examples" / "tour.py"), folder=tmp_path)
    finally:
        del os.environ["ATHENA_DATABASE_URL"]
    assert "Mara owns payments" in written
    assert "Your own memories will be in postgresql:///tour" in written
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM athena.memories").fetchone() == (0,)


def test_reference_is_current(tmp_path: Path) -> None:
    run(sys.executable, str(ROOT / "scripts" / "reference.py"), "--check", folder=tmp_path)


def test_stale_reference_is_noticed(tmp_path: Path) -> None:
    old = tmp_path / "reference.md"
    old.write_text("# Reference\n", "utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "reference.py"), "--check", "--page", str(old)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "out of date" in done.stderr


def test_reference_lists_operations_and_parameters() -> None:
    for operation in CATALOG:
        _, found, rest = REFERENCE.partition(f"\n#### {operation.name}\n")
        section = rest.partition("\n###")[0]
        assert found, f"{operation.name} is not in the reference"
        assert operation.summary in section
        assert f"Effect: `{operation.effect}`" in section
        assert operation.documentation.examples[0] in section
        for parameter in operation.parameters:
            assert f"| `{parameter.name}` |" in section
            assert parameter.help in section


def test_reference_and_readme_list_settings(reference: ModuleType) -> None:
    variables = [setting.variable for setting in reference.read_settings()] + [*reference.OTHER_VARIABLES]
    keys = [setting.key for setting in reference.read_settings() if setting.key]
    assert variables
    assert keys
    for name in variables + keys:
        assert f"| `{name}` |" in REFERENCE, f"{name} is not in the reference"
        assert f"| `{name}` |" in README, f"{name} is not in the README"


def test_reference_lists_errors(reference: ModuleType) -> None:
    kinds = reference.read_errors()
    assert len(kinds) >= 10
    for kind in kinds:
        assert f"| `{kind.__name__}` | `{kind.code}` | {kind.http} | {kind.exit} |" in REFERENCE


def test_reference_lists_commands_with_examples() -> None:
    every = dict(commands(athena, "athena"))
    assert len(every) > 20
    for path, command in every.items():
        assert f"\n### {path}\n" in REFERENCE, f"{path} is not in the reference"
        assert path in (command.help or ""), f"{path} --help has no example"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    assert text
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, place = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name} links to {target}, which is not there"
        if place:
            assert place in heading_anchors(file), f"{page.name} links to {target}, which has no such heading"


def test_pages_are_reachable_from_readme() -> None:
    todo, seen = [ROOT / "README.md"], set()
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            text = BLOCK.sub("", page.read_text("utf-8"))
            linked = [one.partition("#")[0] for one in re.findall(r"\]\(([^)\s:]+)\)", text)]
            todo += [(page.parent / name).resolve() for name in linked if name]
    assert [page.name for page in ROOT.glob("docs/**/*.md") if page.resolve() not in seen] == []


def heading_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_changelog_mentions_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings
    assert headings[0] in ("Unreleased", __version__)


def test_index_lists_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text("utf-8")
    pages = sorted(folder.glob("[0-9]*.md"))
    assert pages
    for page in pages:
        assert f"({page.name})" in index, f"{page.name} is not in the index"


def test_registry_name_and_version_agree() -> None:
    data = json.loads((ROOT / "server.json").read_text("utf-8"))
    (package,) = data["packages"]
    assert f"mcp-name: {data['name']} " in README
    assert data["version"] == package["version"] == __version__
    assert len(data["description"]) <= 100
    assert [word["value"] for word in package["packageArguments"]] == ["mcp"]
    ours = json.loads((ROOT / ".mcp.json").read_text("utf-8"))["mcpServers"]["athena"]
    assert (ours["command"], ours["args"]) == (".venv/bin/athena", ["mcp"])


def test_security_names_tests_that_exist() -> None:
    """Each line of what is protected names its test."""
    page = (ROOT / "SECURITY.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line and "| Test |" not in line]
    assert len(rows) > 20
    for row in rows:
        names = re.findall(r"`(tests/[^`]+)`", row.rsplit("|", 2)[1])
        assert names, row
        for name in names:
            path, _, function = name.partition("::")
            assert (ROOT / path).exists(), name
            assert not function or f"def {function}(" in (ROOT / path).read_text("utf-8"), name
