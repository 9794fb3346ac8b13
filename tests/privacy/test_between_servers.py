"""A program moves contacts between two servers; their values are on the receiving server and nowhere else."""

import json
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from privacy_tools import open_private_app

from athena.storage.privacy_guard import PrivacyMode
from athena.storage.sqlite.store import Sqlite
from canary_tools import read_all_files
from conftest import rounds

MOVE = """
moved = 0
while True:
    page = crm.list_contacts(offset=moved, limit=100)["contacts"]
    if not page:
        break
    for contact in page:
        answer = mail.add_contact(name=contact["name"], email=contact["email"], phone=contact["phone"])
        print(answer)
        moved += 1
    last = page[-1]
events.record_event(event_type="move", content=f"moved up to {last['email']}, {last['phone']}")
memory.remember(content=f"the last contact was {last['email']} with {last['phone']}")
workspace.write(path="last.json", content=page or [last])
{"moved": moved, "last": last}
"""


def create_contacts(count: int) -> list[dict[str, str]]:
    chooser = random.Random(23)
    return [
        {
            "name": f"Contact {number}",
            "email": f"user{number}.{chooser.randrange(10**6)}@{chooser.choice(('example.com', 'mail.example.org'))}",
            "phone": f"+1 {chooser.choice((212, 415, 617))} 555 {number:04d}",
        }
        for number in range(count)
    ]


def list_leaks(data: bytes, contacts: list[dict[str, str]]) -> list[str]:
    return [value for contact in contacts for value in (contact["email"], contact["phone"]) if value.encode() in data]


@pytest.mark.parametrize("mode", ["boundary", "strict"])
def test_contacts_reach_the_other_server_and_nobody_else(tmp_path: Path, mode: PrivacyMode) -> None:
    contacts = create_contacts(rounds(60, 1_000))
    source = tmp_path / "contacts.json"
    source.write_text(json.dumps(contacts))
    seen: list[Any] = []
    database = tmp_path / "home" / "athena.db"
    database.parent.mkdir(mode=0o700)
    with open_private_app(Sqlite(database), tmp_path, mode) as app:
        app.add_server("crm")
        target = app.add_server("mail")
        seen.append(app.run(MOVE))
        assert seen[0].error is None, seen[0]
        assert seen[0].result["moved"] == len(contacts)
        seen.append(app.run("print(last)\nraise ValueError(str(last))"))
        seen.append(app.run("crm.list_contacts(limit=1000)['contacts']"))  # long: it has a handle
        seen.append(app.call("mcp", "read_file", path=seen[-1].handle, raw=True) if seen[-1].handle else None)
        seen.append(app.call("mcp", "crm.list_contacts"))
        seen += [app.call("mcp", name) for name in ("list_memories", "recall_events", "list_files", "list_tokens")]
        seen.append(app.call("mcp", "recall", query=contacts[-1]["email"]))
        with sqlite3.connect(database) as live, sqlite3.connect(tmp_path / "backup.db") as backup:
            live.backup(backup)
        assert "[EMAIL_" in repr(seen)
        assert list_leaks(repr(seen).encode(), contacts) == []
        assert list_leaks((tmp_path / "backup.db").read_bytes(), contacts) == []
        assert list_leaks(read_all_files(tmp_path / "home"), contacts) == []  # with its log, while it is open
    assert list_leaks(read_all_files(tmp_path / "home"), contacts) == []
    received = [json.loads(line) for line in target.read_text().splitlines()]
    assert received == contacts
