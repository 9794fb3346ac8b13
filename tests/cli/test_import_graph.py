"""`athena import` reads the file of the reference graph server, once."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_commands import Terminal

from athena import api
from athena.app.compose import App
from athena.cli import memory as memory_commands
from athena.memory.transfer import server_memory

LINES: list[dict[str, Any]] = [
    {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["likes tea", ""]},
    {"type": "entity", "name": "Acme", "entityType": "company", "observations": []},
    {"type": "relation", "from": "Ann", "to": "Acme", "relationType": "works at"},
]


@pytest.fixture
def run(isolated: App, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def write_memory_file(folder: Path, *lines: object) -> str:
    file = folder / "memory.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    return str(file)


def test_memory_file_becomes_graph(run: Terminal, tmp_path: Path) -> None:
    file = write_memory_file(tmp_path, *LINES)
    assert run("import", file, "--from", "server-memory").out == "new: 2 entities, 1 observation, 1 relation\n"
    graph = api.call("read_graph")
    assert graph["entities"][0] == {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    assert graph["relations"] == [{"from": "Ann", "to": "Acme", "relationType": "works at"}]
    assert run("import", file).out == "nothing new\n"
    assert api.call("read_graph") == graph


def test_import_adds_only_new_lines(run: Terminal, tmp_path: Path) -> None:
    run("import", write_memory_file(tmp_path, *LINES))
    more = {**LINES[0], "observations": ["likes tea", "moved to Oslo"]}
    assert run("import", write_memory_file(tmp_path, more, *LINES[1:]), "--json").json == {
        "entities": 0,
        "observations": 1,
        "relations": 0,
    }


def test_undo_takes_back_whole_import(run: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_memory, "BATCH_LINES", 2)
    api.call("create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": ["is tall"]}])
    before = api.call("read_graph")
    towns = [{"type": "entity", "name": f"Town {i}", "entityType": "town", "observations": ["old"]} for i in range(5)]
    links = [
        {"type": "relation", "from": "Ann", "to": f"Town {i}", "relationType": "saw", "since": 7} for i in range(5)
    ]
    result = run("import", write_memory_file(tmp_path, *LINES, *towns, *links))
    assert result.out == "new: 6 entities, 6 observations, 6 relations\n"
    assert api.call("read_graph")["relations"][1]["since"] == 7.0
    monkeypatch.setattr(memory_commands, "MAX_LISTED_CHANGES", 5)
    lines = run("undo").out.splitlines()
    assert (len(lines), lines[-1].startswith("and "), lines[-1].endswith(" changes more")) == (6, True, True)
    assert api.call("read_graph") == before


@pytest.mark.parametrize("line", ["just text", ["a", "list"], {"type": "entity"}, {**LINES[0], "observations": "tea"}])
def test_invalid_line_imports_nothing(run: Terminal, tmp_path: Path, line: object) -> None:
    result = run("import", write_memory_file(tmp_path, *LINES, line))
    assert result.code != 0
    assert "line 4" in result.err
    assert api.call("read_graph")["entities"] == []


def test_missing_file_is_reported(run: Terminal, tmp_path: Path) -> None:
    result = run("import", str(tmp_path / "none.jsonl"))
    assert result.code != 0
    assert "none.jsonl" in result.err
