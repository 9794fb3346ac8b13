"""Canaries: secrets and personal values through every way into the store; none is found outside of the vault."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from privacy_tools import PrivateApp, open_private_app

from athena.core.threads import run_sync
from athena.core.values import Call, Scope
from athena.errors import AthenaError
from athena.memory.transfer.records import ImportedEntity, ImportedMemory, RecordImport
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
        key = "".join(chooser.choice(letters) for _ in range(36))
        values.append(
            (
                f"canary{number}.{chooser.randrange(10**8)}@example.com",
                f"+49 30 {2_000_000 + number}",
                card + str(-total % 10),
                f"2001:db8:{number % 65536:x}::{chooser.randrange(1, 65536):x}",
                f"ghp_{key}",
                f"password={key[:18]}#9",
            )[number % 6]
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
    "tool": lambda app, value, text: app.call(
        "mcp", "crm.add_contact", email="x@example.org", name=text, key=f"t {text}"
    ),
}


@pytest.mark.parametrize("mode", ["boundary", "strict"])
def test_canaries_are_only_in_the_vault(tmp_path: Path, mode: PrivacyMode) -> None:
    values = create_values(rounds(4 * len(PLANTERS), 10_000))
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (tmp_path / "contacts.json").write_text("[]")
    seen: list[object] = []
    with open_private_app(Sqlite(home / "athena.db"), tmp_path, mode) as app:
        app.add_server("crm")
        ways = list(PLANTERS.items())
        for number, value in enumerate(values):
            name, plant = ways[number % len(ways)]
            answer = plant(app, value, f"note {number} via {name}: {value} is what they gave us.")
            if name not in ("person", "batch"):  # people see what they wrote
                seen.append(answer)
        seen += [app.call("mcp", name) for name in ("list_memories", "recall_events", "read_graph", "list_tasks")]
        seen.append(app.call("mcp", "recall", query="what they gave us", k=50))
        text = repr(seen)
        leaked = [value for value in values if _strip(value) in text]
        assert leaked == []
        while_open = read_all_files(home)
    data = while_open + read_all_files(home)
    assert [value for value in values if _strip(value).encode() in data] == []
    assert b"[EMAIL_1]" in data


def _strip(value: str) -> str:
    return value.removeprefix("password=")
