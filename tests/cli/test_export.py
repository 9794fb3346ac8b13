"""`athena export` and `athena import`: a round trip through each format, and what they refuse."""

import json
import os
import random
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_commands import Terminal

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.memory.transfer import markdown
from athena.memory.transfer.records import ImportedEntity, ImportedMemory
from athena.storage import jsonl
from conftest import Engine, rounds

TEXTS = [
    "Deploys run on Fridays at 15:00",
    "---\nno front matter\n---\n\n- a list\r\n  and more\n\n",
    "数据库在柏林 🚀 naïve «x»\n\ttab \\N 'quoted' \"twice\"",
    "password rules are in the handbook",  # a name that folders of documents would refuse
    "  spaces around  ",
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def filled(run: Terminal) -> list[str]:
    """Fill the store in use and return the hashes of its memories."""
    hashes = [
        api.store(text, tags=["ops", f"t{i}"], memory_type="decision" if i else "note", metadata={"n": i, "ü": ["x"]})
        for i, text in enumerate(TEXTS)
    ]
    api.call("relate_memories", memory_id=hashes[0], other_id=hashes[1], relation="about")
    api.call("update_memory", memory_id=hashes[2], importance=0.9)
    observations = ["likes tea", "line one\nline two\n\n  indented", "- a dash"]
    api.call("create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": observations}])
    relation = {"from": "Ann", "to": "Acme & Söhne <x>", "relationType": "works at", "since": 1_700_000_000.5}
    orphan = {"from": "Nobody", "to": "Ann", "relationType": "knows"}
    api.call("create_relations", relations=[relation, orphan])
    api.call("create_task", title="water the plants")
    return hashes


@pytest.fixture
def wipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: Engine) -> Callable[[], None]:
    """Put an empty store in place of the one in use."""

    def use_empty_store() -> None:
        connect.close()
        if engine.kind == "postgres":
            engine.empty()  # type: ignore[attr-defined]
        else:
            monkeypatch.setenv("ATHENA_HOME", str(tmp_path / "other home"))

    return use_empty_store


def read_memories() -> dict[str, Any]:
    """Return what people see of each memory, by its hash."""
    found = {}
    for memory in api.call("list_memories", k=1_000):
        whole = api.call("get_memory", memory_id=memory["hash"])
        related = sorted((item["relation"], item["hash"]) for item in whole["related"])
        found[memory["hash"]] = {**whole, "id": None, "related": related}
    return found


def test_export_and_import_give_same_store(
    run: Terminal, filled: list[str], wipe: Callable[[], None], tmp_path: Path
) -> None:
    api.call("learn", session_id="s1", messages=[{"role": "user", "text": "I prefer short commit messages."}])
    api.call("refuse_learned", memory_id=api.call("list_learned")[0]["hash"])
    before, graph, tasks = read_memories(), api.call("read_graph"), api.call("list_tasks")
    history = api.call("memory_history", memory_id=filled[2])
    file = str(tmp_path / "all.jsonl")
    connect.close()
    result = run("export", file)
    assert (result.code, result.err) == (0, "")
    assert "memories" in result.out
    assert os.stat(file).st_mode & 0o777 == 0o600
    wipe()
    assert run("import", file, "--dry-run").out.startswith("would take in the whole store: ")
    assert api.health().count == 0
    connect.close()
    result = run("import", file)
    assert (result.code, result.err) == (0, "")
    assert read_memories() == before
    assert (api.call("read_graph"), api.call("list_tasks")) == (graph, tasks)
    assert api.call("memory_history", memory_id=filled[2]) == history
    assert [rule["example"] for rule in api.call("list_learning_rules")] == ["I prefer short commit messages."]
    assert api.search("when do we deploy").memories[0].hash == filled[0]
    connect.close()
    assert run("import", file).out == "nothing new\n"
    assert read_memories() == before


def test_export_is_added_to_store_that_has_others(
    run: Terminal, filled: list[str], wipe: Callable[[], None], tmp_path: Path
) -> None:
    before, graph = read_memories(), api.call("read_graph")
    connect.close()
    run("export", file := str(tmp_path / "all.jsonl"))
    wipe()
    api.store("Ann drinks tea")
    connect.close()
    planned = run("import", file, "--dry-run").out
    assert planned == "would be new: 5 memories, 1 entity, 3 observations, 2 relations\n"
    result = run("import", file)
    assert result.out == "new: 5 memories, 1 entity, 3 observations, 3 relations\n"
    assert "left out tasks: 1; only an import into an empty store takes them" in result.err
    after = read_memories()
    assert {name: after[name] for name in before} == before
    assert api.call("read_graph") == graph
    assert run("import", file).out == "nothing new\n"
    assert read_memories() == after
    assert run("undo").code == 0
    assert set(read_memories()) == set(after) - set(before), "one undo takes back a whole import"
    assert api.call("read_graph") == {"entities": [], "relations": []}


def test_markdown_folder_imports_back(
    run: Terminal, filled: list[str], wipe: Callable[[], None], tmp_path: Path
) -> None:
    before, graph = read_memories(), api.call("read_graph")
    folder = tmp_path / "notes"
    result = run("export", str(folder))
    assert (
        result.out == f"wrote 5 memories, 1 entity, 3 relations, 1 event, task, pattern or skill left out to {folder}\n"
    )
    files = sorted(path.name for path in folder.rglob("*.md"))
    assert any(name.startswith("deploys-run-on-fridays-at-15-00-") for name in files)
    wipe()
    result = run("import", str(folder))
    assert (result.err, result.out) == ("", "new: 5 memories, 1 entity, 3 observations, 3 relations\n")
    assert read_memories() == before
    assert api.call("read_graph") == graph
    assert run("import", str(folder)).out == "nothing new\n"
    assert read_memories() == before


def test_second_markdown_export_follows_store(run: Terminal, filled: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    run("export", str(folder))
    before = {path: path.read_bytes() for path in folder.rglob("*.md")}
    (folder / "README.md").write_text("mine")
    api.delete(filled[0])
    run("export", str(folder))
    after = {path: path.read_bytes() for path in folder.rglob("*.md")}
    assert set(before) - set(after) == {path for path in before if path.name.startswith("deploys")}
    assert (folder / "README.md").read_text() == "mine"
    other = tmp_path / "other"
    other.mkdir()
    (other / "file.txt").write_text("mine")
    assert "holds other files" in run("export", str(other), "--format", "markdown").err


def test_markdown_export_removes_nothing_that_is_still_true(
    run: Terminal, filled: list[str], wipe: Callable[[], None], tmp_path: Path
) -> None:
    api.store("Reviews need two people", project="shop")
    folder = tmp_path / "notes"
    run("export", str(folder))
    before = {path: path.read_bytes() for path in folder.rglob("*.md")}
    run("export", str(folder), "--project", "shop")
    assert {path: path.read_bytes() for path in folder.rglob("*.md")} == before, "other projects are not gone"
    api.delete(filled[0])
    assert "1 file removed" in run("export", str(folder)).out
    wipe()
    refused = run("export", str(folder))
    assert (refused.code, "nothing to write" in refused.err, "athena import" in refused.err) == (4, True, True)
    assert len(list(folder.rglob("*.md"))) == len(before) - 1


def test_paths_that_cannot_be_used_are_explained(run: Terminal, filled: list[str], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for words in (
        ["import", str(tmp_path / "folder"), "--from", "csv"],
        ["import", str(tmp_path / "folder"), "--from", "athena"],
        ["export", str(tmp_path / "folder"), "--format", "jsonl", "--force"],
        ["export", "/dev/full", "--format", "markdown"],
    ):
        result = run(*words)
        assert (result.code, "folder" in result.err or "/dev/full" in result.err) == (8, True), words
        assert "hint:" in result.err
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.usefixtures("filled")
def test_graph_is_written_for_other_programs(run: Terminal, wipe: Callable[[], None], tmp_path: Path) -> None:
    graph = api.call("read_graph")
    result = run("export", str(tmp_path / "graph.graphml"))
    assert result.out == f"wrote 1 entity, 2 relations to {tmp_path / 'graph.graphml'}\n"
    root = ET.parse(tmp_path / "graph.graphml").getroot()
    space = {"g": "http://graphml.graphdrawing.org/xmlns"}
    names = {n.findtext("g:data[@key='name']", None, space) for n in root.findall(".//g:node", space)}
    assert names == {"Ann", "Nobody", "Acme & Söhne <x>"}
    assert len(root.findall(".//g:edge", space)) == 2
    file = str(tmp_path / "memory.jsonl")
    run("export", file, "--format", "server-memory")
    lines = [json.loads(line) for line in Path(file).read_text().splitlines()]
    assert [line["type"] for line in lines] == ["entity", "relation", "relation"]
    wipe()
    planned = run("import", file, "--dry-run").out
    assert planned.endswith("\nwould be new: 1 entity, 3 observations, 2 relations\n")
    assert run("import", file).out == "new: 1 entity, 3 observations, 2 relations\n"
    assert api.call("read_graph") == graph


def test_session_becomes_a_page(run: Terminal, isolated: App, tmp_path: Path) -> None:
    start = 1_772_600_000.0
    told = [("command", "pytest -q", "failure"), ("edit", "line one\n<b>line two</b>\n```\ncode\n```", None)]
    for number, (kind, content, outcome) in enumerate(told):
        happened = start + 100_000 * number
        details = {"outcome": outcome, "duration_ms": 1_500.0} if outcome else {}
        event = {"event_type": kind, "content": content, "happened": happened, "session_id": "abc-1", **details}
        api.call("record_events", items=[event])
    api.store("We ship on Fridays", tags="ops", memory_type="decision", metadata={"session_id": "abc-1"})
    api.store("Of another session", metadata={"session_id": "abd"})
    result = run("export", str(tmp_path / "talk.md"), "--session", "abc")
    assert result.out == f"wrote 1 memory, 2 events to {tmp_path / 'talk.md'}\n"
    page = (tmp_path / "talk.md").read_text()
    assert page.startswith("# Session abc-1\n\n")
    parts = [
        "command (failure, 1.5 s)",
        "> pytest -q",
        "edit",
        "````\nline one\n",
        "kept: decision (#ops)",
        "> We ship",
    ]
    assert [page.index(part) for part in parts] == sorted(page.index(part) for part in parts)
    assert "Of another" not in page
    assert run("export", str(tmp_path / "talk.html"), "--session", "abc-1").code == 0
    root = ET.fromstring(re.sub("<meta[^>]*>|<!doctype html>", "", (tmp_path / "talk.html").read_text()))
    texts = [element.text for element in root.iter("pre")]
    assert texts == [*(content for _, content, _ in told), "We ship on Fridays"]
    assert "2 sessions begin" in run("export", str(tmp_path / "x.md"), "--session", "ab").err
    assert "no session" in run("export", str(tmp_path / "x.md"), "--session", "zz").err
    assert not (tmp_path / "x.md").exists()


def test_existing_file_stays(run: Terminal, filled: list[str], tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text("mine")
    connect.close()
    result = run("export", str(file))
    assert (result.code, file.read_text()) == (4, "mine")
    assert "--force" in result.err
    assert run("export", str(file), "--force").code == 0
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


@pytest.mark.usefixtures("filled")
def test_file_that_another_user_prepared_is_not_written(run: Terminal, tmp_path: Path) -> None:
    file, part = tmp_path / "all.jsonl", tmp_path / "all.jsonl.part"
    part.touch()
    part.chmod(0o666)  # as in a folder that others may write to
    assert run("export", str(file)).code == 0
    assert (part.read_bytes(), file.stat().st_mode & 0o777) == (b"", 0o600)


def test_replace_keeps_earlier_store(run: Terminal, filled: list[str], tmp_path: Path, engine: Engine) -> None:
    if engine.kind != "sqlite":
        pytest.skip("a file is replaced")
    connect.close()
    run("export", file := str(tmp_path / "all.jsonl"))
    before = read_memories()
    extra = api.store("to be replaced")
    connect.close()
    result = run("import", file, "--replace", "--json")
    assert read_memories() == before
    connect.close()
    os.environ["ATHENA_DB_PATH"] = result.json["earlier"]
    try:
        assert api.get(extra).content == "to be replaced"
    finally:
        connect.close()
        del os.environ["ATHENA_DB_PATH"]


@pytest.mark.parametrize("name", ["all.json", "all.md", "all.csv", "all.txt"])
def test_export_is_recognised_by_its_first_line(
    run: Terminal, wipe: Callable[[], None], tmp_path: Path, name: str
) -> None:
    api.store("from the file")
    connect.close()
    run("export", file := str(tmp_path / name))
    wipe()
    result = run("import", file)
    assert (result.code, result.err) == (0, "")
    assert result.out == "took in the whole store: 1 memory\n"


def test_undo_does_not_reach_behind_an_import_of_a_whole_store(
    run: Terminal, wipe: Callable[[], None], tmp_path: Path
) -> None:
    run("remember", "first")
    run("remember", "second")
    connect.close()
    run("export", file := str(tmp_path / "all.jsonl"))
    wipe()
    run("import", file)
    result = run("undo")
    assert result.code != 0
    assert "the last change is the import of a whole store" in result.err
    assert len(api.call("list_memories")) == 2
    run("remember", "third")
    assert run("undo").code == 0
    assert {memory["content"] for memory in api.call("list_memories")} == {"first", "second"}
    assert "the import of a whole store" in run("undo", "--anyone").err


@pytest.mark.sqlite_only("a file is replaced")
def test_import_keeps_what_was_stored_after_the_store_was_empty(
    run: Terminal, wipe: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.store("from the file")
    connect.close()
    run("export", file := str(tmp_path / "all.jsonl"))
    wipe()
    build_store = jsonl.build_store

    def build_while_another_stores(*arguments: Any) -> None:
        build_store(*arguments)
        api.store("of another process")
        connect.close()

    monkeypatch.setattr(jsonl, "build_store", build_while_another_stores)
    earlier = run("import", file, "--json").json["earlier"]
    assert [memory["content"] for memory in api.call("list_memories")] == ["from the file"]
    connect.close()
    monkeypatch.setenv("ATHENA_DB_PATH", earlier)
    assert [memory["content"] for memory in api.call("list_memories")] == ["of another process"]
    connect.close()
    monkeypatch.delenv("ATHENA_DB_PATH")


@pytest.mark.parametrize("kept", ["file", "secret"])
def test_import_keeps_what_is_no_memory(run: Terminal, wipe: Callable[[], None], tmp_path: Path, kept: str) -> None:
    api.store("from the file")
    connect.close()
    run("export", file := str(tmp_path / "all.jsonl"))
    wipe()
    if kept == "file":
        api.call("write_file", path="report.txt", content="my only copy")
    else:
        run_sync(connect.shared_app().guard.vault.put_secret(Scope("p"), "mail_key", "s3cret", []))
    connect.close()
    assert run("import", file).out == "new: 1 memory\n"
    if kept == "file":
        assert api.call("read_file", path="report.txt") == "my only copy"
    else:
        assert run_sync(connect.shared_app().guard.vault.show(Scope("p"), "mail_key")) == "s3cret"


def test_obsidian_note_is_imported(run: Terminal, isolated: App, tmp_path: Path) -> None:
    vault = tmp_path / "vault"
    (vault / ".obsidian").mkdir(parents=True)
    (vault / ".obsidian" / "hidden.md").write_text("not a note")
    front = "title: Tea\ntags:\n  - drinks\n  - '#hot'\ncreated: 2024-03-05\naliases: [Chai, Thé]\n"
    note = f"---\n{front}---\n# Tea\nBoil it.\n"
    (vault / "Tea.md").write_text(note)
    rules = "---\nA text between rules.\n---\nAnd the rest: of it."
    (vault / "rules.md").write_text(rules)
    (vault / "nested.md").write_text("---\nauthor:\n  name: Ann\n  mail: a@b\n---\nNested\n")
    (vault / "plain.md").write_text("Only text\n")
    (vault / "empty.md").write_text("\n")
    (vault / "latin.md").write_bytes(b"caf\xe9")
    result = run("import", str(vault))
    assert result.out == "new: 4 memories\n"
    notes = {memory["content"]: memory["metadata"] for memory in api.call("list_memories", k=5)}
    assert notes[rules] == {"source": "rules.md", "title": "rules"}
    assert notes["Nested"]["author"] == "name: Ann\nmail: a@b"
    assert sorted(result.err.splitlines()) == ["left out empty.md: empty", "left out latin.md: not UTF-8 text"]
    tea = next(m for m in api.call("list_memories", k=5) if "Boil" in m["content"])
    assert tea["tags"] == ["drinks", "hot"]
    assert tea["metadata"] == {"source": "Tea.md", "title": "Tea", "aliases": ["Chai", "Thé"]}
    assert tea["created"] < 1_710_000_000
    assert run("import", str(vault)).out == "nothing new\n"


def run_and_kill(delay_s: float, *words: str) -> bool:
    """Run a command in a process of its own and kill it after a time; return whether it had ended by itself."""
    process = subprocess.Popen([sys.executable, "-m", "athena", *words], stdout=subprocess.DEVNULL)
    try:
        return process.wait(delay_s) == 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


@pytest.mark.sqlite_only("test_copying.py kills copies to PostgreSQL")
@pytest.mark.parametrize("form", ["all.jsonl", "notes"])
def test_killed_import_is_repeated_without_loss(run: Terminal, tmp_path: Path, form: str) -> None:
    api.store_batch([{"content": f"memory {i} of many", "tags": [f"t{i % 3}"]} for i in range(120)])
    before = read_memories()
    connect.close()
    run("export", source := str(tmp_path / form))
    os.environ["ATHENA_HOME"] = str(tmp_path / "undisturbed")  # the fixture restores it
    began = time.monotonic()
    assert run_and_kill(60, "import", source)
    whole_s = time.monotonic() - began
    chance = random.Random(22)
    for i in range(rounds(2, 50)):
        os.environ["ATHENA_HOME"] = str(tmp_path / f"home{i}")
        run_and_kill(chance.uniform(0.2, 1) * whole_s, "import", source)
        connect.close()
        assert run("import", source).code == 0
        assert read_memories() == before
        assert api.call("verify")["problems"] == []
        connect.close()
        assert [name for name in os.listdir(os.environ["ATHENA_HOME"]) if "ing" in name or "before" in name] == []


TIMES = st.floats(0, 4e9) | st.floats(-1e18, 1e18)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60)


@pytest.mark.sqlite_only("it touches no store")
@settings(max_examples=rounds(150, 5_000), deadline=None, phases=[Phase.generate])
@given(
    content=WORDS, tags=st.lists(WORDS, max_size=3), created=TIMES, items=st.lists(WORDS.filter(str.strip), max_size=4)
)
def test_any_text_survives_front_matter(content: str, tags: list[str], created: float, items: list[str]) -> None:
    fields = {"tags": markdown.encode_field(tags), "created": markdown.format_time(created)}
    record = markdown.parse_file("x.md", markdown.format_file(fields, content).decode(), 0.0)
    assert isinstance(record, ImportedMemory)
    assert (record.content, record.tags, record.created) == (content, tuple(tags), created)
    fields = {"entity": markdown.encode_field(content), "type": '"t"'}
    entity = markdown.parse_file("x.md", markdown.format_file(fields, markdown.format_items(items)).decode(), 0.0)
    assert isinstance(entity, ImportedEntity)
    assert (entity.name, list(entity.observations)) == (content, items)
