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


def test_chat_exports_with_messages_of_another_form(run: Terminal, tmp_path: Path) -> None:
    """What is no message is left out; the others are taken in."""
    odd: list[Any] = [
        None,
        7,
        "a line",
        ["x"],
        {"content": 7},
        {"content": "text"},
        {"sender": "human", "text": "Tea?"},
    ]
    (tmp_path / "claude.json").write_text(json.dumps([{"uuid": "u1", "chat_messages": odd}]))
    assert json.loads(run("import", str(tmp_path / "claude.json"), "--json").out)["memories"] == 1
    said = {"author": {"role": "user"}, "content": {"parts": ["Which boat?"]}}
    nodes = {"a": 7, "b": {"parent": "a", "message": {"author": "me", "content": ["x"]}}, "c": {"message": said}}
    chat = {"mapping": nodes | {"c": {"parent": "b", "message": said}}, "current_node": "c"}
    (tmp_path / "conversations.json").write_text(json.dumps([chat]))
    assert json.loads(run("import", str(tmp_path / "conversations.json"), "--json").out)["memories"] == 1
    assert {"Tea?", "Which boat?"} <= list_memories().keys()


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def build_claude_code_lines(folder: Path) -> list[Any]:
    """Return a transcript with the fields that Claude Code writes."""
    common = {"cwd": str(folder), "sessionId": "c0ffee00-1", "isSidechain": False, "version": "2.0.1"}

    def say(role: str, content: Any, second: int, **more: Any) -> dict[str, Any]:
        stamp = f"2026-03-04T05:06:{second:02}.250Z"
        return {"type": role, "message": {"role": role, "content": content}, "timestamp": stamp, **common, **more}

    return [
        {"type": "summary", "summary": "Boats", "leafUuid": "x"},
        say("user", "Which boat is fast?", 1),
        say("assistant", [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "The blue one."}], 2),
        say("assistant", [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}], 3),
        say("user", [{"type": "tool_result", "tool_use_id": "t1", "content": "secret list"}], 4),
        say("user", "talk of a subagent", 5, isSidechain=True),
        say("user", "<command-name>/clear</command-name>", 6),
        "{cut off",
        say("user", "Long: " + "x" * 30_000, 7),
    ]


def build_codex_lines(folder: Path) -> list[Any]:
    """Return a transcript with the fields that Codex writes."""

    def say(role: str, kind: str, text: str) -> dict[str, Any]:
        payload = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        return {"timestamp": "2026-03-05T00:00:00Z", "type": "response_item", "payload": payload}

    return [
        {"timestamp": "2026-03-05T00:00:00Z", "type": "session_meta", "payload": {"id": "dead-1", "cwd": str(folder)}},
        say("user", "input_text", "Paint the hull red"),
        say("assistant", "output_text", "Painted."),
        {"type": "event_msg", "payload": {"type": "agent_message", "message": "Painted."}},
        {"type": "response_item", "payload": {"type": "function_call", "name": "shell", "arguments": "{}"}},
    ]


def test_transcripts_of_coding_clients(run: Terminal, tmp_path: Path) -> None:
    talk = write_lines(tmp_path / "talk" / "c0ffee00-1.jsonl", build_claude_code_lines(tmp_path))
    report = import_twice(run, str(talk))
    assert (report["memories"], report["skipped"]) == (3, [f"{talk}: 1 line is no JSON"])
    memories = list_memories()
    assert {*memories} == {"Which boat is fast?", "The blue one.", "Long: " + "x" * 30_000}
    question = memories["Which boat is fast?"]
    assert question["created"] == 1_772_600_761.25
    assert (question["metadata"]["session_id"], question["metadata"]["role"]) == ("c0ffee00-1", "user")
    rollout = write_lines(tmp_path / "talk" / "2026" / "rollout-2026-x.jsonl", build_codex_lines(tmp_path))
    assert "commands, tool calls" in run("import", str(rollout), "--dry-run").out
    assert run("import", str(tmp_path / "talk"), "--from", "codex").out == "new: 2 memories\n"
    assert list_memories()["Painted."]["metadata"] == {
        "session_id": "dead-1",
        "client": "codex",
        "role": "assistant",
        "date": 1_772_668_800.0,
    }
    assert run("import", str(rollout)).out == "nothing new\n"
    assert run("undo").code == 0
    assert "Painted." not in list_memories()


def test_transcripts_go_to_the_project_of_their_folder(run: Terminal, tmp_path: Path) -> None:
    (tmp_path / "repo" / ".git").mkdir(parents=True)
    talk = write_lines(tmp_path / "a.jsonl", build_codex_lines(tmp_path / "repo"))
    assert run("import", str(talk)).out == "new: 2 memories\n"
    assert list_memories() == {}
    assert len(api.call("list_memories", project=str(tmp_path / "repo"))) == 2


def test_csv(run: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "notes.csv"
    path.write_text('Text,Tags,Date,Owner\n"A, quoted fact","a, b",2024-05-01T00:00:00Z,Ann\n,,,\nOther,,,\n')
    report = import_twice(run, str(path))
    assert (report["memories"], report["skipped"]) == (2, ["line 3: it has no text"])
    fact = list_memories()["A, quoted fact"]
    assert (fact["tags"], fact["metadata"]) == (["a", "b"], {"owner": "Ann"})
    assert fact["created"] == 1_714_521_600.0
    path.write_text("text,owner\nDeploys run on Friday, 15:00,Ann\n")
    cut = run("import", str(path))
    assert (cut.out, "line 2: it has more cells than columns" in cut.err) == ("nothing new\n", True)
    path.write_text("a,b\n1,2\n")
    assert "has no column with the text" in run("import", str(path)).err


def test_dry_run_shows_the_mapping(run: Terminal, service_database: Path) -> None:
    out = run("import", str(service_database), "--dry-run").out
    assert "memory_graph: relations" in out
    assert "would be new: 3 memories" in out
    assert "observations: observations" in run("import", str(PEERS / "server-memory.jsonl"), "--dry-run").out
    assert "[[link]]" in run("import", str(PEERS / "basic-memory"), "--dry-run").out


@pytest.mark.parametrize("content", [b"SQLite format 3\0 broken", b"{", b'{"a": 1}', b"[1, 2]", b'{"memories": [1]}'])
def test_broken_files_are_refused_or_listed(run: Terminal, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    done = run("import", str(path))
    assert "Traceback" not in done.out + done.err
    assert done.err
    assert list_memories() == {}
