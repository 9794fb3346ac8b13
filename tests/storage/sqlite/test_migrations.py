"""A file of an older version gets the newest schema, with values for the new columns."""

from pathlib import Path

import apsw
import pytest

from athena.storage import migrations
from athena.storage.sqlite.store import Sqlite

INSERT_MEMORY = """INSERT INTO memories (id, scope, digest, hash, content, label, tags, memory_type, metadata, happened,
    created, updated, importance) VALUES (?, 1, ?, ?, 'text', '', '[]', ?, '{}', 0, 0, 0, 0.5)"""


def test_authors_of_older_memories_come_from_their_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "STEPS", migrations.STEPS[:1])
        Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        raw.execute("INSERT INTO scopes (id, name, kind) VALUES (1, 'p', 'memory')")
        for memory_id, surface, memory_type in ((1, "cli", "note"), (2, "mcp", "note"), (3, "cli", "document")):
            raw.execute(INSERT_MEMORY, (memory_id, f"d{memory_id}", f"h{memory_id}", memory_type))
            raw.execute(
                "INSERT INTO calls (id, scope, operation, surface, at, outcome) VALUES (?, 'p', ?, ?, 0, 'done')",
                (memory_id, "ingest_document" if memory_type == "document" else "remember", surface),
            )
            raw.execute(
                "INSERT INTO history (scope, memory, call, at, action) VALUES (1, ?, ?, 0, 'remembered')",
                (memory_id, memory_id),
            )
    raw.close()
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        assert list(raw.execute("SELECT author, private FROM memories ORDER BY id")) == [
            ("person", ""),
            ("agent", ""),
            ("document", "files"),
        ]
    raw.close()
