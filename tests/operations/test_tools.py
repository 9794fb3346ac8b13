"""Tools: search, descriptions and export as files, on every engine and as servers come and go."""

from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core import tokens
from athena.core.operation import ONLY_PERSONS, Effect
from athena.core.threads import run_sync
from athena.discovery import export
from athena.errors import Conflict, InvalidInput, NotFound
from athena.operations import CATALOG, tools
from athena.storage import usage
from athena.storage.database import Transaction
from discovery_tools import make_tool


def call(app: App, operation: str, surface: str = "python", /, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(operation)(app.create_context("test", surface), **arguments))


def test_search_has_three_detail_levels(app: App) -> None:
    (name,) = call(app, "search_tools", query="recall a memory", k=1, detail="names", category="memory")
    assert name == "memory.recall  # Find the memories that fit a question best"
    (line,) = call(app, "search_tools", query="recall a memory", k=1, category="memory")
    assert line.startswith("memory.recall(query: str, k: int = 5, tags: str | list[str] = None,")
    assert "list[Hit]" in line
    (full,) = call(app, "search_tools", query="recall a memory", k=1, detail="full", category="memory")
    assert full == call(app, "describe_tool", name="recall")
    compile(full + "\n    ...", "stub", "exec")
    with pytest.raises(NotFound, match="colours"):
        call(app, "search_tools", query="x", category="colours")


def test_answer_stays_within_budget(app: App) -> None:
    every = call(app, "search_tools", query="memory", k=30)
    assert len(every) == 30
    levels = ("names", "signatures", "full")
    everything = {one: call(app, "search_tools", query="memory", k=30, detail=one) for one in levels}
    for budget in (10, 40, 150, 600):
        for detail in levels:
            found = call(app, "search_tools", query="memory", k=30, budget=budget, detail=detail)
            told = [line for line in found if not line.startswith("# ") or "\ndef " in line]
            assert sum(tokens.count_tokens(line) + 1 for line in told) <= budget
            assert len(told) == 30 or found[-1].startswith(f"# {30 - len(told)} more: ")
            assert all(line in everything[detail] or line in everything["names"] for line in told)
    assert call(app, "search_tools", "mcp", query="memory", k=30)[-1].startswith("# ")
    assert call(app, "search_tools", query="memory", k=2, budget=5_000) == every[:2]


@pytest.mark.sqlite_only("ranking is the same on both")
def test_server_tools_come_and_go(app: App) -> None:
    def first() -> list[str]:
        return [line for line in call(app, "search_tools", query="issue a passport to a citizen") if "bureau" in line]

    assert first() == []
    passport = make_tool("bureau.issue_passport", "Issue a passport", citizen="Whose.")
    app.catalog.replace_category("bureau", "Papers.", [passport, make_tool("bureau.search", "Find a file")])
    assert first()[0] == "bureau.issue_passport(citizen: str = None)  # Issue a passport"
    assert "def issue_passport(" in call(app, "describe_tool", name="bureau.issue_passport")
    app.catalog.remove_category("bureau")
    assert first() == []


def test_describe_accepts_names_and_lists(app: App) -> None:
    one = call(app, "describe_tool", name="recall")
    assert one.startswith("# memory.recall\n")
    assert one == call(app, "describe_tool", name="memory.recall")
    assert call(app, "describe_tool", name=["tools.search", "recall"]).endswith(one)
    skill = call(app, "describe_tool", name="skills.weekly_summary")
    assert "def weekly_summary(days: int = 7, limit: int = 20) -> dict:" in skill
    assert ">>> skills.weekly_summary(days=7)" in skill
    assert skill == call(app, "describe_tool", name="weekly_summary")
    with pytest.raises(NotFound) as caught:
        call(app, "describe_tool", name="memory.remembr")
    assert "remember" in (caught.value.hint or "")


def test_usage_is_counted_per_project(app: App) -> None:
    today = int(app.store.clock() // usage.DAY_S)

    async def work(tx: Transaction) -> None:
        await usage.add_usage(tx, "test", today, "timeline", "python", usage.TokenUsage(1, 1, 0))
        await usage.add_usage(tx, "test", today, "timeline", "mcp", usage.TokenUsage(1, 1, 0))
        await usage.add_usage(tx, "test", today - 100, "verify", "mcp", usage.TokenUsage(1, 1, 0))

    run_sync(app.store.database.write(work))
    assert run_sync(tools.count_uses(app.create_context("test", "python"))) == {"timeline": 2}
    assert run_sync(tools.count_uses(app.create_context("other", "python"))) == {}


@pytest.fixture
def stubs(app: App) -> dict[str, str]:
    app.catalog.replace_category(
        "bureau",
        'Papers, and """odd\\ things.',
        [make_tool("bureau.Run", 'Say """no"""\\'), make_tool("bureau.run", "")],
    )
    return run_sync(tools.export_stubs(app.create_context("test", "cli")))


def read_folder(folder: Path) -> dict[str, str]:
    return {
        file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in folder.rglob("*") if file.is_file()
    }


@pytest.mark.sqlite_only("files only")
def test_export_writes_file_per_tool(stubs: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    assert export.write_folder(str(folder), stubs).written == len(stubs)
    found = read_folder(folder)
    assert {path: text for path, text in found.items() if path != export.MANIFEST_FILE} == stubs
    names = [path for path in found if path.endswith(".pyi")]
    shown = [one for one in CATALOG if one.callers != ONLY_PERSONS or one.effect == Effect.APPROVE]
    assert len(names) == len(shown) + 3 + 2
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        compile(found[name], name, "exec")
    assert "memory.recall(query: str" in found["memory/README.md"]
    assert "[bureau](bureau/README.md), 2 tools" in found["README.md"]
    assert list(tmp_path.iterdir()) == [folder] or not [one for one in tmp_path.iterdir() if "tools." in one.name]


@pytest.mark.sqlite_only("files only")
def test_export_updates_folder(stubs: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    export.write_folder(str(folder), stubs)
    before = read_folder(folder)
    assert export.write_folder(str(folder), stubs) == (0, len(stubs), 0)
    assert read_folder(folder) == before
    (folder / "mine.txt").write_text("kept")
    fewer = {path: text for path, text in stubs.items() if not path.startswith("bureau/")}
    fewer["README.md"] += "changed\n"
    assert export.write_folder(str(folder), fewer) == (1, len(fewer) - 1, 3)
    assert not (folder / "bureau").exists()
    assert {
        path: text for path, text in read_folder(folder).items() if path not in (export.MANIFEST_FILE, "mine.txt")
    } == fewer
    assert (folder / "mine.txt").read_text() == "kept"


@pytest.mark.sqlite_only("files only")
def test_export_keeps_foreign_files(stubs: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "novel.txt").write_text("chapter 1")
    with pytest.raises(Conflict, match="other files"):
        export.write_folder(str(folder), stubs)
    with pytest.raises(InvalidInput, match="no folder"):
        export.write_folder(str(folder / "novel.txt"), stubs)
    (folder / "novel.txt").unlink()
    export.write_folder(str(folder), stubs)
    (folder / "graph" / "mentions.pyi").write_text("mine now")
    with pytest.raises(Conflict, match=r"graph/mentions\.pyi"):
        export.write_folder(str(folder), stubs)
    assert (folder / "graph" / "mentions.pyi").read_text() == "mine now"
    assert export.write_folder(str(folder), stubs, force=True).written == 1
    (folder / "new").mkdir()
    (folder / "new" / "tool.pyi").write_text("mine")
    with pytest.raises(Conflict, match="not ours"):
        export.write_folder(str(folder), stubs | {"new/tool.pyi": "theirs"}, force=True)
    assert (folder / "new" / "tool.pyi").read_text() == "mine"
    away = tmp_path / "away"
    away.mkdir()
    (folder / "other").symlink_to(away)
    with pytest.raises(Conflict, match="not ours"):
        export.write_folder(str(folder), stubs | {"other/tool.pyi": "theirs"})
    assert list(away.iterdir()) == []
