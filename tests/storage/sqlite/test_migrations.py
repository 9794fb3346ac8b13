"""A file of an older version gets the newest schema, with values for the new columns."""

import hashlib
from pathlib import Path

import apsw
import pytest

from athena.errors import Misconfigured
from athena.storage import migrations
from athena.storage.sqlite.connection import create_functions
from athena.storage.sqlite.store import Sqlite

INSERT_MEMORY = """INSERT INTO memories (id, scope, digest, hash, content, label, tags, memory_type, metadata, happened,
    created, updated, importance) VALUES (?, 1, ?, ?, 'text', '', '[]', ?, '{}', 0, 0, 0, 0.5)"""
INSERT_RUN = """INSERT INTO runs (scope, id, workspace, status, process, started, calls, engine, fingerprint, answer)
    VALUES ('p', 'r', 'w', 'done', 'h:1', 0, 0, 'monty', ?, '{}')"""


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


def test_older_memories_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "STEPS", migrations.STEPS[:2])
        Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        raw.execute("INSERT INTO scopes (id, name, kind) VALUES (1, 'p', 'memory')")
        for memory_id, memory_type in ((1, "note"), (2, "note"), (3, "decision"), (4, "note")):
            raw.execute(INSERT_MEMORY, (memory_id, f"d{memory_id}", f"h{memory_id}", memory_type))
            raw.execute("INSERT INTO tags (scope, tag, memory) VALUES (1, 'lamps', ?)", (memory_id,))
        raw.execute("UPDATE memories SET happened = 86400.0 * id")
        raw.execute("UPDATE memories SET deleted = 5 WHERE id = 4")
    raw.close()
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        assert list(raw.execute("SELECT memory, happened FROM tags ORDER BY memory")) == [
            (memory_id, 86400.0 * memory_id) for memory_id in (1, 2, 3)
        ]
        assert list(raw.execute("SELECT facet, name, memories, characters FROM counts ORDER BY facet, name")) == [
            ("day", "1", 1, 0),
            ("day", "2", 1, 0),
            ("day", "3", 1, 0),
            ("tag", "lamps", 3, 0),
            ("type", "decision", 1, 4),
            ("type", "note", 2, 8),
        ]
    raw.close()


def test_older_digests_of_arguments_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were hashes without a key: short arguments could be guessed. Their receipts keep the answers."""
    path, digests = tmp_path / "a.db", [hashlib.sha256(name).hexdigest() for name in (b"receipt", b"run")]
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "STEPS", migrations.STEPS[:6])
        Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        create_functions(raw)
        raw.execute("INSERT INTO receipts VALUES ('p', 'k', 'remember', ?, '[1]', 0)", (digests[0],))
        raw.execute(INSERT_RUN, (digests[1],))
    raw.close()
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        assert list(raw.execute("SELECT fingerprint, result FROM receipts")) == [("", "[1]")]
        assert list(raw.execute("SELECT fingerprint, answer FROM runs")) == [("", "{}")]
    raw.close()
    assert not [digest for digest in digests if digest.encode() in path.read_bytes()]


# What is in a released version; an edited step would leave stores with the same format number and other tables.
FROZEN_STEPS = (
    "d6d552e1cb479e43",
    "79bec306fe1151f6",
)


def test_released_steps_are_not_edited() -> None:
    digests = [hashlib.sha256(" ".join(step.split()).encode()).hexdigest()[:16] for step in migrations.STEPS]
    assert tuple(digests[: len(FROZEN_STEPS)]) == FROZEN_STEPS, "add a step instead, and its digest here once released"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("ALTER TABLE injections DROP COLUMN private", "injections"),
        ("DROP INDEX memories_by_time", "memories_by_time"),
        ("DROP TABLE receipts", "receipts"),
    ],
)
def test_store_with_other_tables_is_refused(tmp_path: Path, change: str, name: str) -> None:
    path = tmp_path / "a.db"
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        raw.execute(change).fetchall()
        raw.execute("DELETE FROM counters WHERE name = 'schema'").fetchall()  # as earlier versions wrote it
    raw.close()
    with pytest.raises(Misconfigured, match=f"other tables than this version: {name}") as refused:
        Sqlite(path)
    assert "with the Athena that wrote it" in (refused.value.hint or "")


def test_store_without_fingerprint_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Sqlite(path).close()
    query = "SELECT value FROM counters WHERE name = 'schema'"
    with apsw.Connection(str(path)) as raw:
        first = raw.execute(query).get
        raw.execute("DELETE FROM counters WHERE name = 'schema'").fetchall()
        raw.execute("CREATE INDEX extra ON memories (created)").fetchall()  # harmless
    raw.close()
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        assert raw.execute(query).get == first is not None
    raw.close()


def test_edited_step_is_noticed_after_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with monkeypatch.context() as patch:
        edited = migrations.STEPS[0].replace("reason TEXT NOT NULL,", "")
        patch.setattr(migrations, "STEPS", (edited,))
        Sqlite(path).close()
    with pytest.raises(Misconfigured, match="injections"):
        Sqlite(path)
    with apsw.Connection(str(path)) as raw:
        assert raw.pragma("user_version") == 1  # nothing was changed
    raw.close()
