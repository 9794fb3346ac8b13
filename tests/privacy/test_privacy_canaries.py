"""Canaries: secrets and personal values through every way into the store; none is found outside of the vault."""

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.threads import run_sync
from athena.core.values import Call, Scope
from athena.errors import AthenaError
from athena.memory.transfer import exports
from athena.memory.transfer.records import ImportedEntity, ImportedMemory, RecordImport
from athena.memory.transfer.server_memory import write_server_memory
from athena.storage import jsonl
from athena.storage.privacy_guard import PrivacyMode
from athena.storage.sqlite.store import Sqlite
from canary_tools import read_all_files
from conftest import rounds

Planter = Callable[[PrivateApp, str, str], object]


def create_values(count: int) -> list[str]:
    """Return personal values and secrets, each with digits of its own."""
    chooser = random.Random(count)
    letters = "abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
    values = []
    for number in range(count):
        card = f"4{chooser.randrange(10**14):014d}"
        total = sum(sum(divmod(2 * int(d), 10)) if i % 2 == 0 else int(d) for i, d in enumerate(reversed(card)))
        card += str(-total % 10)
        account = f"37040044{chooser.randrange(10**10):010d}"
        key = "".join(chooser.choice(letters) for _ in range(36))
        values.append(
            (
                f"canary{number}.{chooser.randrange(10**8)}@example.com",
                f"+49 30 {2_000_000 + number}",
                card,
                f"2001:db8:{number % 65536:x}::{chooser.randrange(1, 65536):x}",
                f"ghp_{key}",
                f"password={key[:18]}#9",
                f"CANARY{number}.{chooser.randrange(10**8)}@EXAMPLE.COM",
                f"DE{98 - int(account + '131400') % 97:02d}{account}",
                f"{212 + number % 400}-{10 + number % 89}-{1000 + chooser.randrange(8_999)}",
                f"+1\u00a0(212)\u2009555\u2011{number % 10_000:04d}",
                " ".join(card[at : at + 4] for at in range(0, 16, 4)),
            )[number % 11]
        )
    return values


def import_records(app: PrivateApp, value: str, text: str) -> None:
    store, guard = app.app.store, app.app.guard
    call = Call("import", "cli", Scope("p"), store.clock())
    run = RecordImport(store, call, hide=guard.hide)
    entity = ImportedEntity("x", f"entity {value}", "thing", (text,))
    run_sync(run.store_records([ImportedMemory("x", f"imported: {text}", metadata={"from": value}), entity]))


def cause_error(app: PrivateApp, value: str, text: str) -> None:
    with pytest.raises(AthenaError):
        app.call("mcp", "get_memory", key=f"{value}", memory_id=text)


def ingest(app: PrivateApp, value: str, text: str) -> None:
    folder = app.folder / "documents"
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.md"
    path.write_text(f"# Notes\n\n{text}\n\n- {value}\n")
    app.call("cli", "ingest_document", path=str(path))


def ingest_named(app: PrivateApp, value: str, text: str) -> None:
    """Ingest a file that is named after the value."""
    folder = app.folder / "named"
    folder.mkdir(exist_ok=True)
    path = folder / f"{value}.csv"
    path.write_text(f"name,contact\nx,{value}\n")
    app.call("cli", "ingest_document", path=str(path))


def save_skill(app: PrivateApp, value: str, text: str) -> object:
    """Save a skill with the value in a comment, a default, a docstring and its description, and run it."""
    number = value if value.isdigit() else 0
    code = (
        f'def greet(who: str = {value!r}) -> list:\n    """Greet {value}."""\n    # {text}\n'
        f"    return [who, f'to {value}', {number}]\n"
    )
    saved = app.call("mcp", "save_skill", name="greet", code=code, description=text[:150], example="greet('x')")
    done = app.call("mcp", "run_skill", name="greet", arguments={"who": value})
    return saved, done, app.call("mcp", "get_skill", name="greet")


def name_things(app: PrivateApp, value: str, text: str) -> list[object]:
    """Put the value where names stand: of files, workspaces, sessions, types and people."""
    done: list[object] = []
    for name, arguments in (
        ("write_file", {"path": f"of {value}.txt", "content": "x"}),
        ("execute_code", {"code": "1", "workspace": value[:60]}),
        ("record_event", {"event_type": value[:60], "content": "x", "session_id": value}),
        ("remember", {"content": f"y {len(value)}", "memory_type": value[:60], "metadata": {value: [value]}}),
        ("create_relations", {"relations": [{"from": value, "to": value, "relationType": f"is {value}"}]}),
    ):
        try:
            done.append(app.call("mcp", name, **arguments))
        except AthenaError as error:  # a name that must not have such characters
            done.append(f"{error} {error.hint}")
    return done


PLANTERS: dict[str, Planter] = {
    "remember": lambda app, value, text: app.call("mcp", "remember", content=text, metadata={"from": value}),
    "person": lambda app, value, text: app.call("cli", "remember", content=f"typed: {text}", tags=[value[:60]]),
    "batch": lambda app, value, text: app.call("python", "remember_batch", items=[text, {"content": f"b {text}"}]),
    "ingest": ingest,
    "event": lambda app, value, text: app.call("mcp", "record_event", event_type="note", content=text),
    "hook": lambda app, value, text: app.call(
        "hook", "record_event", event_type="tool", content=text, metadata={"v": value}
    ),
    "file": lambda app, value, text: app.call("mcp", "write_file", path="a.json", content={"text": text, "v": value}),
    "csv": lambda app, value, text: app.call("mcp", "write_file", path="a.csv", content=[{"text": text, "v": value}]),
    "program": lambda app, value, text: app.run(
        f"kept = {text!r}\nprint(kept)\nworkspace.write(path='b.txt', content=kept)"
    ),
    "failure": lambda app, value, text: app.run(f"x = [{value!r}]\nraise ValueError({text!r})"),
    "long": lambda app, value, text: app.run(f"[{text!r}] * 2_000"),
    "answer": lambda app, value, text: app.run(f"{{'v': {value!r}}}", key=f"key {value}"),
    "task": lambda app, value, text: app.call("mcp", "create_task", title=text[:190]),
    "graph": lambda app, value, text: app.call(
        "mcp", "create_entities", entities=[{"name": f"e {value}", "entityType": "thing", "observations": [text]}]
    ),
    "learn": lambda app, value, text: app.call(
        "hook",
        "learn",
        session_id=f"s {len(text)}",
        messages=[{"role": "user", "text": f"We decided that {text}"}, {"role": "assistant", "text": text}],
    ),
    "error": cause_error,
    "question": lambda app, value, text: app.call("mcp", "recall", query=text),
    "update": lambda app, value, text: app.call(
        "mcp",
        "update_memory",
        memory_id=app.call("mcp", "remember", content=f"plain {len(text)}").id,
        content=text + "!",
    ),
    "import": import_records,
    "named document": ingest_named,
    "skill": save_skill,
    "names": name_things,
    "person of the graph": lambda app, value, text: app.call(
        "mcp", "create_entities", entities=[{"name": f"P {value}", "entityType": "person", "observations": [text]}]
    ),
    "page": lambda app, value, text: app.call("page", "remember", content=f"on the page: {text}"),
    "http": lambda app, value, text: app.call("http", "remember", content=f"over HTTP: {text}"),
    "reminder": lambda app, value, text: app.call("hook", "remind", session_id="s", prompt=text),
    "briefing": lambda app, value, text: (
        app.call("cli", "remember", content=f"Always: {text}", tags=["important"]),
        app.call("hook", "briefing", session_id=f"b {len(text)} {value}"),
    )[1],
    "keys and numbers": lambda app, value, text: app.run(
        f"n = {value if value.isdigit() else 7}\nprint({{{value!r}: n}}, n * 1.0)\n[{{{value!r}: n}}, n * 1.0, n * -1]"
    ),
    "two prints": lambda app, value, text: app.run(
        f"print({value[: len(value) // 2]!r}, end='')\nprint({value[len(value) // 2 :]!r})"
    ),
    "unreadable program": lambda app, value, text: app.run(f"print({text!r}"),
    "column": lambda app, value, text: app.call("mcp", "remember", content=f"id,contact\n{len(text)},{value}"),
    "base64": lambda app, value, text: app.run(f"import base64\nbase64.b64encode({text!r}.encode()).decode()"),
    "tool": lambda app, value, text: app.call(
        "mcp", "crm.add_contact", email="x@example.org", name=text, key=f"t {text}"
    ),
}


@pytest.mark.parametrize("mode", ["boundary", "strict"])
def test_canaries_are_only_in_the_vault(tmp_path: Path, mode: PrivacyMode) -> None:
    values = create_values(rounds(3 * len(PLANTERS), 10_000))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (tmp_path / "contacts.json").write_text("[]")
    seen: list[object] = []
    with open_private_app(Sqlite(home / "athena.db"), tmp_path, mode) as app:
        app.add_server("crm")
        ways = list(PLANTERS.items())
        for number, value in enumerate(values):
            name, plant = ways[number % len(ways)]
            if number % 100 == 0:  # programs and models may say few new values in an hour
                app.later_s += 3_601
            answer = plant(app, value, f"note {number} via {name}: {value} is what they gave us.")
            if name not in ("person", "batch", "page", "http"):  # people see what they wrote
                seen.append(answer)
        seen += [app.call("mcp", name) for name in ("list_memories", "recall_events", "read_graph", "list_tasks")]
        seen.append(app.call("mcp", "recall", query="what they gave us", k=50))
        seen += [app.call("mcp", name) for name in ("list_files", "list_documents", "list_tags", "find_skills")]
        seen.append(app.call("hook", "briefing", session_id="last"))
        data = repr(seen).encode()
        assert list_leaks(data, values) == []
        assert list_leaks(read_all_files(home), values) == []
        export(app, tmp_path / "exports")
    assert list_leaks(read_all_files(home), values) == []
    exported = read_all_files(tmp_path / "exports")
    assert list_leaks(exported, values) == []
    assert b"[EMAIL_1]" in exported


def export(app: PrivateApp, folder: Path) -> None:
    """Write every kind of export, and a backup."""
    store = app.app.store
    folder.mkdir()
    with (folder / "all.jsonl").open("wb") as rows:
        jsonl.write_store(store.database, rows, store.clock())
    with (folder / "graph.graphml").open("w") as graph, (folder / "server.jsonl").open("w") as lines:
        run_sync(exports.write_graphml(store, "p", graph))
        run_sync(write_server_memory(store, "p", lines))
    run_sync(exports.write_markdown(store, ["p"], str(folder / "notes")))
    with sqlite3.connect(app.folder / "home" / "athena.db") as live, sqlite3.connect(folder / "backup.db") as backup:
        live.backup(backup)


def list_leaks(data: bytes, values: list[str]) -> list[str]:
    """Return the values that some bytes hold, also as Python and JSON write them."""
    forms = {value: {_strip(value), repr(_strip(value))[1:-1], json.dumps(_strip(value))[1:-1]} for value in values}
    return [value for value, written in forms.items() if any(form.encode() in data for form in written)]


def _strip(value: str) -> str:
    return value.removeprefix("password=")
