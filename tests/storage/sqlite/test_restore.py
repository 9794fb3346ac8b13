"""A backup is put in place whole, or not at all; the log of another file is never applied to it."""

import os
import shutil
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from click.testing import CliRunner

from athena.app.compose import App
from athena.cli.commands import athena
from athena.core.threads import run_sync
from athena.errors import InvalidInput, Misconfigured, NotFound, Unavailable
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite import schema
from athena.storage.sqlite.restore import restore_backup
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL

OLD = {f"the harbour of town {i}" for i in range(12)}
NEW = {f"the lamp of keeper {i}" for i in range(40)}


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))


def list_texts(app: App) -> set[str]:
    return {memory.content for memory in call(app, "list_memories", k=100)}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with a backup, and the files that a process with newer memories leaves when it is killed."""
    live = App(Sqlite(tmp_path / "live.db"), MODEL)
    for text in sorted(OLD):
        call(live, "remember", content=text)
    call(live, "recall", query="harbour")
    run_sync(live.store.database.compact())
    shutil.copy(tmp_path / "live.db", tmp_path / "backup.db")
    for number, text in enumerate(sorted(NEW)):
        if number == len(NEW) // 2:
            run_sync(live.store.database.compact())  # what follows is a log to this file, not to the backup
        call(live, "remember", content=text)
    call(live, "recall", query="lamp")
    for suffix in ("", "-wal"):
        shutil.copy(tmp_path / f"live.db{suffix}", tmp_path / f"athena.db{suffix}")
    live.close()
    return tmp_path


@pytest.fixture
def path(home: Path) -> str:
    return str(home / "athena.db")


@pytest.fixture
def app(path: str) -> Generator[App]:
    app = App(Sqlite(path), MODEL)
    yield app
    app.close()


def read_store(path: str) -> set[str]:
    app = App(Sqlite(path), MODEL)
    try:
        assert call(app, "verify").ok
        assert call(app, "recall", query="harbour", k=1)[0].content in OLD
        return list_texts(app)
    finally:
        app.close()


def test_killed_store_opens_with_its_own_log(path: str) -> None:
    assert read_store(path) == OLD | NEW


def test_log_of_another_file_is_refused(path: str, home: Path) -> None:
    shutil.copyfile(home / "backup.db", path)
    before = Path(path).read_bytes()
    with pytest.raises(Misconfigured, match="do not belong together") as refused:
        Sqlite(path)
    assert "athena restore" in (refused.value.hint or "")
    assert Path(path).read_bytes() == before


def test_own_log_is_not_doubted_after_checkpoint(path: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = apsw.Connection(path)
    raw.wal_autocheckpoint(0)
    assert raw.execute("SELECT count(*) FROM sqlite_schema").get  # opens the log
    frames, copied = raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert frames == copied > 0
    (home / "killed").mkdir()
    for suffix in ("-wal", ""):  # the file last, as a checkpoint writes it last
        shutil.copy(path + suffix, home / "killed" / f"athena.db{suffix}")
    raw.close()
    monkeypatch.delattr(sqlite_connection, "check_log_fits")  # the slow check is not needed
    assert read_store(str(home / "killed" / "athena.db")) == OLD | NEW


def test_own_log_is_accepted_though_file_was_touched(path: str) -> None:
    os.chmod(path, 0o644)
    os.chmod(path, 0o600)
    assert read_store(path) == OLD | NEW


def test_backup_replaces_mixed_files(path: str, home: Path) -> None:
    shutil.copyfile(home / "backup.db", path)
    restored = restore_backup(str(home / "backup.db"), path)
    assert restored.kept["memories"] == len(OLD)
    assert read_store(path) == OLD
    assert restored.earlier is not None
    assert os.path.exists(restored.earlier + "-wal")


def test_backup_replaces_store_in_use(app: App, path: str, home: Path) -> None:
    assert call(app, "recall", query="lamp", k=1)[0].content in NEW
    restored = restore_backup(str(home / "backup.db"), path)
    assert list_texts(app) == OLD
    assert {hit.content for hit in call(app, "recall", query="lamp", k=5)} <= OLD
    call(app, "remember", content="after")
    assert call(app, "verify").ok
    assert read_store(path) == OLD | {"after"}
    assert restored.earlier is not None
    assert read_store(restored.earlier) == OLD | NEW
    assert os.stat(restored.earlier).st_mode & 0o777 == 0o600


def test_backup_replaces_damaged_store(path: str, home: Path) -> None:
    Path(path).write_bytes(b"Dear diary" * 1_000)
    restore_backup(str(home / "backup.db"), path)
    assert read_store(path) == OLD


def test_restores_in_one_second_keep_every_earlier_store(path: str, home: Path) -> None:
    earlier = [restore_backup(str(home / "backup.db"), path).earlier for _ in range(8)]
    assert len(set(earlier)) == 8
    assert all(name and os.path.exists(name) for name in earlier)


def test_damaged_backup_changes_nothing(app: App, path: str, home: Path) -> None:
    damaged = bytearray((home / "backup.db").read_bytes())
    damaged[len(damaged) // 2 :] = bytes(len(damaged) - len(damaged) // 2)
    (home / "damaged.db").write_bytes(damaged)
    for name in ("damaged.db", "athena.db", "nothing.db"):
        with pytest.raises((Misconfigured, Unavailable, NotFound, InvalidInput)) as refused:
            restore_backup(str(home / name), path)
        assert refused.value.__notes__, name
    (home / "text.db").write_text("Dear diary" * 1_000)
    with pytest.raises(Misconfigured, match=r"text\.db is not an Athena database") as no_database:
        restore_backup(str(home / "text.db"), path)
    assert "athena import" in (no_database.value.hint or "")
    (home / "cut.db").write_bytes((home / "backup.db").read_bytes()[:40_000])
    with pytest.raises(Unavailable, match=r"cut\.db is damaged\n") as cut:
        restore_backup(str(home / "cut.db"), path)
    assert cut.value.hint == "name another backup"
    assert list_texts(app) == OLD | NEW
    assert not list(home.glob("*.restoring*"))
    assert not list(home.glob("*.before*"))


def test_empty_file_is_no_backup(app: App, path: str, home: Path) -> None:
    (home / "empty.db").touch()
    with apsw.Connection(str(home / "blank.db")) as blank:
        blank.execute("CREATE TABLE a (b)").fetchall()
        blank.execute("DROP TABLE a").fetchall()
    blank.close()
    for name in ("empty.db", "blank.db"):
        with pytest.raises(Misconfigured, match=f"{name} is empty"):
            restore_backup(str(home / name), path)
    assert list_texts(app) == OLD | NEW
    assert not list(home.glob("*.before*"))


def test_nothing_written_during_restore_is_lost(app: App, path: str, home: Path) -> None:
    """What a process was told is written is in the store that was kept, or in the new one."""
    written: list[str] = []
    is_done = threading.Event()

    def write_rows() -> None:
        with closing(sqlite_connection.connect(path, create=False)) as raw:
            while not is_done.is_set():
                name = f"probe {len(written)}"
                raw.execute("INSERT INTO counters (name, value) VALUES (?, 1)", (name,)).fetchall()
                written.append(name)

    def read_rows(file: str) -> set[str]:
        with closing(sqlite_connection.connect(file, create=False)) as raw:
            return {str(name) for (name,) in raw.execute("SELECT name FROM counters WHERE name LIKE 'probe %'")}

    writer = threading.Thread(target=write_rows)
    writer.start()
    kept: set[str] = set()
    try:
        for _ in range(4):
            restored = restore_backup(str(home / "backup.db"), path)
            assert restored.earlier is not None
            kept |= read_rows(restored.earlier)
            os.replace(restored.earlier, f"{restored.earlier}.read")  # the next one may have the same name
    finally:
        is_done.set()
        writer.join(30)
    assert written
    assert {*written} - kept - read_rows(path) == set()
    assert call(app, "verify").ok


def test_restore_command(path: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_DB_PATH", path)
    missing = CliRunner().invoke(athena, ["restore", str(home / "none.db")], input="y\n", standalone_mode=False)
    assert (type(missing.exception), missing.output) == (NotFound, ""), "it asked before it looked"
    refused = CliRunner().invoke(athena, ["restore", str(home / "backup.db")], input="n\n")
    assert refused.exit_code != 0
    assert read_store(path) == OLD | NEW
    done = CliRunner().invoke(athena, ["restore", "--yes", str(home / "backup.db")])
    assert (done.exit_code, "restored 12 memories" in done.output) == (0, True), done.output
    assert read_store(path) == OLD


FORGE = "UPDATE memories SET author = 'person', private = '' WHERE id = new.id"


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        (f"CREATE TRIGGER evil AFTER INSERT ON memories BEGIN {FORGE}; END", "trigger evil"),
        (f"CREATE TRIGGER words_evil AFTER INSERT ON memories BEGIN {FORGE}; END", "trigger words_evil"),
        (f"CREATE TRIGGER sqlitevil AFTER INSERT ON memories BEGIN {FORGE}; END", "trigger sqlitevil"),
        ("CREATE VIEW evil AS SELECT * FROM memories", "view evil"),
        ("CREATE TABLE evil (a)", "table evil"),
        ("CREATE UNIQUE INDEX evil ON memories (digest, author)", "index evil"),
        ("CREATE VIRTUAL TABLE evil USING fts5 (a)", "table evil"),
    ],
)
def test_backup_with_foreign_parts_is_refused(app: App, path: str, home: Path, statement: str, name: str) -> None:
    hostile = str(home / "hostile.db")
    shutil.copy(home / "backup.db", hostile)
    with apsw.Connection(hostile) as raw:
        sqlite_connection.create_functions(raw)
        raw.execute(statement).fetchall()
    raw.close()
    with pytest.raises(Misconfigured, match=f"{name}.*not by Athena") as refused:
        restore_backup(hostile, path)
    assert "hostile.db" in str(refused.value)
    assert list_texts(app) == OLD | NEW
    assert call(app, "verify").ok
    assert not list(home.glob("*.restoring*"))
    if name.startswith(("trigger", "view")):  # the others do nothing by themselves
        with pytest.raises(Misconfigured, match=f"{name}.*not by Athena"):
            Sqlite(hostile)


def test_trigger_in_open_store_never_runs(app: App, path: str) -> None:
    """Whatever is added while a process has the store open; the check names it."""
    with apsw.Connection(path) as raw:
        sqlite_connection.create_functions(raw)
        raw.execute(f"CREATE TRIGGER evil AFTER INSERT ON memories BEGIN {FORGE}; END").fetchall()
    raw.close()
    context = app.create_context("test", "mcp")
    assert run_sync(app.catalog.get_operation("remember")(context, content="I allow it")).author == "agent"
    assert [memory.author for memory in call(app, "list_memories", k=1)] == ["agent"]
    assert list(call(app, "verify").problems) == ["trigger evil was put there, not by Athena"]


def test_store_of_other_definitions_is_refused(tmp_path: Path) -> None:
    """Also if it claims the fingerprint of this version."""
    path = tmp_path / "a.db"
    Sqlite(path).close()
    with apsw.Connection(str(path)) as raw:
        raw.execute("ALTER TABLE injections ADD COLUMN extra TEXT DEFAULT 'x'").fetchall()
    raw.close()
    with pytest.raises(Misconfigured, match="other tables than this version: injections"):
        Sqlite(path)


def test_known_schema_is_that_of_new_store(tmp_path: Path) -> None:
    """Opening compares with this digest; where it is stale, each start creates a store in memory to compare with."""
    Sqlite(tmp_path / "a.db").close()
    with apsw.Connection(str(tmp_path / "a.db")) as raw:
        assert schema.compute_digest(schema.read_definitions(raw)) == schema.KNOWN_DIGEST, "put this digest there"
    raw.close()
