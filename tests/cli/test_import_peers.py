"""`athena import` of other programs' files: those in `data/peers` were written by the programs themselves."""

import json
import lzma
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from test_commands import Terminal

from athena import api
from conftest import HERE

PEERS = HERE / "data" / "peers"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def list_memories() -> dict[str, dict[str, Any]]:
    return {memory["content"]: dict(memory) for memory in api.call("list_memories", k=1_000)}


def import_twice(run: Terminal, *arguments: str) -> dict[str, Any]:
    """Import a file with a dry run first and again after it; return what the import said."""
    would = json.loads(run("import", *arguments, "--dry-run", "--json").out)
    assert list_memories() == {}
    report: dict[str, Any] = json.loads(run("import", *arguments, "--json").out)
    assert would["memories"] == report["memories"]
    before = list_memories()
    assert "nothing new" in run("import", *arguments).out
    assert list_memories() == before
    return report


@pytest.fixture
def service_database(tmp_path: Path) -> Path:
    path = tmp_path / "sqlite_vec.db"
    path.write_bytes(lzma.decompress((PEERS / "mcp-memory-service.db.xz").read_bytes()))
    return path


def check_service_memories() -> None:
    memories = list_memories()
    assert len(memories) == 3
    billing = memories["The billing service listens on port 8123."]
    assert sorted(billing["tags"]) == ["billing", "infra", "ports"]
    assert billing["memory_type"] == "observation"
    assert billing["metadata"] == {"source": "ops call", "severity": 2}
    assert billing["created"] == 1_717_236_000.5
    plain = memories["Ümläute & emoji 🚢 stay as they are."]
    assert (plain["tags"], plain["memory_type"], plain["updated"]) == ([], "note", 1_717_408_800.25)


@pytest.mark.both_engines
def test_mcp_memory_service_database(run: Terminal, service_database: Path) -> None:
    report = import_twice(run, str(service_database))
    assert (report["memories"], report["relations"]) == (3, 1)
    assert report["skipped"] == ["deleted memories: 1"]
    check_service_memories()
    deploys = list_memories()["Deploys are frozen between 20 December and 3 January."]
    related = api.call("get_memory", memory_id=deploys["id"])["related"]
    assert [item["relation"] for item in related] == ["supports"]
    assert sorted(path.name for path in service_database.parent.iterdir() if "sqlite_vec" in path.name) == [
        "sqlite_vec.db"
    ]
    api.call("undo", anyone=True)
    assert list_memories() == {}


def test_mcp_memory_service_export(run: Terminal) -> None:
    assert import_twice(run, str(PEERS / "mcp-memory-service.json"))["memories"] == 3
    check_service_memories()


def test_mem0(run: Terminal) -> None:
    assert import_twice(run, str(PEERS / "mem0.json"))["memories"] == 2
    seats = list_memories()["Ann prefers window seats"]
    assert seats["metadata"] == {"category": "travel", "user_id": "ann"}
    assert seats["created"] == seats["updated"] == 1_794_871_424.096103


def test_server_memory(run: Terminal) -> None:
    out = run("import", str(PEERS / "server-memory.jsonl")).out
    assert out.strip() == "new: 2 entities, 4 observations, 1 relation"
    graph = api.call("read_graph")
    assert {entity["name"]: entity["observations"] for entity in graph["entities"]} == {
        "Ann": ["sails on Sundays", "lives in Bath", "has two dogs"],
        "Lamp shop": ["opened in 1998 ☀"],
    }
    assert "nothing new" in run("import", str(PEERS / "server-memory.jsonl")).out


def test_basic_memory_links_become_relations(run: Terminal) -> None:
    report = import_twice(run, str(PEERS / "basic-memory"))
    assert (report["memories"], report["relations"]) == (2, 2)
    assert report["skipped"] == ["[[Gooseneck Kettle]]: a link to a memory that is not there"]
    coffee = next(memory for text, memory in list_memories().items() if text.startswith("# Coffee"))
    assert coffee["tags"] == ["coffee", "brewing", "technique"]
    related = api.call("get_memory", memory_id=coffee["id"])["related"]
    assert sorted(item["relation"] for item in related) == ["links to", "relates_to"]


def test_obsidian_links_by_path_alias_and_heading(run: Terminal, tmp_path: Path) -> None:
    notes = {
        "Home.md": "See [[people/Ann|my sister]], [[Bobby#Work]], ![[x.png]] and `[[no link]]`. #family",
        "people/Ann.md": "---\ncreated: 2024-01-02\n---\nSails.\n\n```\n[[Home]] #code\n```\n",
        "people/Bob.md": "---\naliases: [Bobby, Rob]\n---\nWorks.",
    }
    for name, text in notes.items():
        (tmp_path / "vault" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vault" / name).write_text(text)
    report = import_twice(run, str(tmp_path / "vault"))
    assert (report["memories"], report["relations"]) == (3, 2)
    assert report["skipped"] == ["[[x.png]]: a link to a memory that is not there"]
    memories = list_memories()
    assert memories[notes["Home.md"]]["tags"] == ["family"]
    assert next(m for text, m in memories.items() if text.startswith("Sails"))["tags"] == []


CLAUDE_MEM_SCHEMA = """
CREATE TABLE sdk_sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, content_session_id TEXT NOT NULL,
    memory_session_id TEXT UNIQUE, project TEXT NOT NULL, started_at TEXT NOT NULL, started_at_epoch INTEGER NOT NULL);
CREATE TABLE observations (id INTEGER PRIMARY KEY AUTOINCREMENT, memory_session_id TEXT NOT NULL, project TEXT NOT NULL,
    text TEXT, type TEXT NOT NULL, title TEXT, subtitle TEXT, facts TEXT, narrative TEXT, concepts TEXT,
    files_read TEXT, files_modified TEXT, prompt_number INTEGER, created_at TEXT NOT NULL,
    created_at_epoch INTEGER NOT NULL);
CREATE TABLE session_summaries (id INTEGER PRIMARY KEY AUTOINCREMENT, memory_session_id TEXT UNIQUE NOT NULL,
    project TEXT NOT NULL, request TEXT, investigated TEXT, learned TEXT, completed TEXT, next_steps TEXT,
    files_read TEXT, files_edited TEXT, notes TEXT, created_at TEXT NOT NULL, created_at_epoch INTEGER NOT NULL);
"""


def test_claude_mem(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "claude-mem.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(CLAUDE_MEM_SCHEMA)
        connection.execute(
            """INSERT INTO observations (memory_session_id, project, type, title, narrative, facts, concepts,
               files_modified, created_at, created_at_epoch) VALUES ('s1', 'shop', 'bugfix', 'Cart total was wrong',
               'Rounding happened twice.', '["Totals are cents", "Tests cover it"]', '["gotcha"]', '["cart.py"]',
               '2026-01-02T03:04:05Z', 1767323045000)"""
        )
        connection.execute(
            """INSERT INTO session_summaries (memory_session_id, project, request, learned, created_at,
               created_at_epoch) VALUES ('s1', 'shop', 'Fix the cart', 'Use integers', 'x', 1767323046500)"""
        )
    connection.close()
    run("import", str(path), "--dry-run")
    assert run("import", str(path)).out.strip() == "new: 2 memories"
    memories = api.call("list_memories", project="shop", k=10)
    assert [memory["created"] for memory in memories] == [1_767_323_046.5, 1_767_323_045.0]
    fix = memories[1]
    assert fix["content"] == "Cart total was wrong\n\nRounding happened twice.\n\n- Totals are cents\n- Tests cover it"
    assert (fix["memory_type"], fix["tags"]) == ("bugfix", ["gotcha"])
    assert fix["metadata"] == {"files_modified": ["cart.py"], "session": "s1"}
    assert "nothing new" in run("import", str(path), "--project", "shop").out
    assert run("import", str(path), "--project", "other").out.strip() == "new: 2 memories"
    assert len(api.call("list_memories", project="other", k=10)) == 2


def test_chat_exports(run: Terminal, tmp_path: Path) -> None:
    def node(parent: str | None, role: str, text: str) -> dict[str, Any]:
        message = {"author": {"role": role}, "content": {"parts": [text]}, "create_time": 1_700_000_000.5}
        return {"parent": parent, "message": message}

    chatgpt = {
        "title": "Boats",
        "conversation_id": "c1",
        "current_node": "d",
        "mapping": {
            "a": {"parent": None, "message": None},
            "b": node("a", "user", "Which boat is fast?"),
            "c": node("b", "assistant", "An answer that was replaced."),
            "d": node("b", "assistant", "The blue one."),
            "e": node("b", "system", "hidden"),
        },
    }
    (tmp_path / "conversations.json").write_text(json.dumps([chatgpt, {"title": "empty"}]))
    report = import_twice(run, str(tmp_path / "conversations.json"))
    assert (report["memories"], report["skipped"]) == (2, ["conversation 2: it has no messages"])
    question = list_memories()["Which boat is fast?"]
    assert question["created"] == 1_700_000_000.5
    assert (question["metadata"]["session_id"], question["metadata"]["role"]) == ("c1", "user")
    claude = {
        "uuid": "u1",
        "name": "Tea",
        "chat_messages": [
            {"sender": "human", "created_at": "2024-05-01T10:00:00Z", "content": [{"type": "text", "text": "Green?"}]},
            {"sender": "assistant", "created_at": "2024-05-01T10:00:05Z", "text": "Yes, green."},
        ],
    }
    (tmp_path / "claude.json").write_text(json.dumps([claude]))
    assert json.loads(run("import", str(tmp_path / "claude.json"), "--json").out)["memories"] == 2
    assert list_memories()["Green?"]["created"] == 1_714_557_600.0


def test_csv(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text('Text,Tags,Date,Owner\n"A, quoted fact","a, b",2024-05-01T00:00:00Z,Ann\n,,,\nOther,,,\n')
    report = import_twice(run, str(path))
    assert (report["memories"], report["skipped"]) == (2, ["line 3: it has no text"])
    fact = list_memories()["A, quoted fact"]
    assert (fact["tags"], fact["metadata"]) == (["a", "b"], {"owner": "Ann"})
    assert fact["created"] == 1_714_521_600.0
    path.write_text("a,b\n1,2\n")
    assert "has no column with the text" in run("import", str(path)).err


def test_dry_run_shows_the_mapping(run: Terminal, service_database: Path) -> None:
    out = run("import", str(service_database), "--dry-run").out
    assert "memory_graph: relations" in out
    assert "would be new: 3 memories" in out


@pytest.mark.parametrize("content", [b"SQLite format 3\0 broken", b"{", b'{"a": 1}', b"[1, 2]", b'{"memories": [1]}'])
def test_broken_files_are_refused_or_listed(run: Terminal, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    done = run("import", str(path))
    assert "Traceback" not in done.out + done.err
    assert done.err
    assert list_memories() == {}
