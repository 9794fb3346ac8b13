"""Writes of a program are synced to disk before anybody gets its result, but not one by one."""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest

from athena.app.compose import App
from athena.core.foreign_operation import ForeignOperation, ToolDefinition
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.errors import Unavailable
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL

WRITES = 20


class Disk:
    """Counts writes to the log and syncs."""

    def __init__(self) -> None:
        self.pending = 0
        self.waits = 0

    def wrote(self) -> None:
        self.pending += 1

    def synced(self) -> None:
        self.waits += 1
        self.pending = 0


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk = disk
        self._log = str(name.filename() if isinstance(name, apsw.URIFilename) else name).endswith("-wal")

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  # SQLite's name
        super().xWrite(data, offset)
        if self._log:
            self._disk.wrote()

    def xSync(self, flags: int) -> None:  # noqa: N802
        super().xSync(flags)
        if self._log:
            self._disk.synced()


class _Files(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__("watched", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802
        return _File(self._disk, name, flags)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Generator[Disk]:
    watched = Disk()
    whole = sqlite_connection.fsync_log

    def sync(path: str) -> None:
        whole(path)
        assert path.endswith("-wal")
        watched.synced()

    monkeypatch.setattr(sqlite_connection, "fsync_log", sync)  # to record it
    files = _Files(watched)
    yield watched
    files.unregister()


@pytest.fixture
def app(tmp_path: Path, disk: Disk) -> Generator[App]:
    made = App(Sqlite(tmp_path / "athena.db"), MODEL, key=lambda: bytes(32))
    yield made
    made.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return to_json(run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments)))


async def work(tx: Any) -> None:
    await tx.execute("INSERT INTO counters (name, value) SELECT 'at ' || count(*), 1 FROM counters")


async def count(tx: Any) -> int:
    return int((await tx.fetch_one("SELECT count(*) FROM counters WHERE name LIKE 'at %'"))[0])


def test_callers_write_waits_for_disk(app: App, disk: Disk) -> None:
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": []}])
    before = disk.waits
    for i in range(WRITES):
        call(app, "add_observations", observations=[{"entityName": "Ann", "contents": [f"number {i}"]}])
        assert disk.pending == 0
    assert disk.waits - before >= WRITES


def test_program_syncs_once_before_end(app: App, disk: Disk) -> None:
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": []}])
    before = disk.waits
    program = f"""
for i in range({WRITES}):
    graph.add_observations(observations=[{{"entityName": "Ann", "contents": [f"number {{i}}"]}}])
"""
    assert call(app, "execute_code", code=program)["error"] is None
    assert disk.pending == 0
    assert 0 < disk.waits - before < WRITES / 2


def test_program_syncs_before_foreign_call(app: App, disk: Disk) -> None:
    seen = []

    async def tell(ctx: Any, arguments: dict[str, Any]) -> Any:
        seen.append(disk.pending)

    tool = ForeignOperation(
        ToolDefinition("others", "tell", "Tell them.", arguments={"type": "object", "properties": {}}), tell
    )
    app.catalog.replace_category("others", "Somebody else.", [tool])
    program = """
for i in range(3):
    graph.create_entities(entities=[{"name": f"Ann {i}", "entityType": "person", "observations": []}])
    others.tell()
"""
    assert call(app, "execute_code", code=program)["error"] is None
    assert seen == [0, 0, 0]


def test_deferred_write_is_visible_then_synced(app: App, disk: Disk) -> None:
    database = app.store.database
    run_sync(database.deferred_sync.write(work))
    assert disk.pending > 0
    assert run_sync(database.read(count)) == 1
    run_sync(database.write(work))
    assert (disk.pending, run_sync(database.read(count))) == (0, 2)
    run_sync(database.deferred_sync.write(work))
    run_sync(database.sync())
    assert (disk.pending, run_sync(database.read(count))) == (0, 3)


def test_second_caller_waits_for_sync(app: App, disk: Disk) -> None:
    database = app.store.database

    async def write_the_same(tx: Any) -> int:
        return int(await tx.execute("UPDATE counters SET value = value WHERE name LIKE 'at %'"))

    for number, found in enumerate((count, write_the_same), start=1):
        run_sync(database.deferred_sync.write(work))
        assert disk.pending > 0
        assert run_sync(database.write(found)) == number
        assert disk.pending == 0


def test_reading_program_syncs_at_end(app: App, disk: Disk) -> None:
    call(app, "remember", content="The lamp is lit at dusk.")
    program = "events.briefing(session_id='s1')['text']"
    assert "lamp" in call(app, "execute_code", code=program)["result"]
    assert disk.pending == 0


def test_symlinked_store_syncs_real_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "athena.db").symlink_to(tmp_path / "disk" / "real.db")
    store = Sqlite(tmp_path / "athena.db")
    synced: list[int] = []
    fsync = os.fsync

    def watched(file: int) -> None:
        fsync(file)
        synced.append(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", watched)
    run_sync(store.deferred_sync.write(work))
    run_sync(store.sync())
    run_sync(store.sync())  # nothing is left to sync
    assert synced == [(tmp_path / "disk" / "real.db-wal").stat().st_ino]
    store.close()


def test_interrupted_write_still_syncs(app: App, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    database, change = app.store.database, sqlite_connection.set_sync_on_commit
    run_sync(database.write(work))

    def interrupted(connection: apsw.Connection, durable: bool) -> None:
        change(connection, durable)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(sqlite_connection, "set_sync_on_commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_sync(database.deferred_sync.write(work))
    run_sync(database.write(work))
    assert (disk.pending, run_sync(database.read(count))) == (0, 2)


def test_failed_sync_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be written"):
        sqlite_connection.fsync_log(str(tmp_path))
