"""Writes of a program are synced to disk before anybody gets its result, but not one by one."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest
from campaign.disk_faults import FaultyDisk, faulty_disk

from athena.app.compose import App
from athena.core.foreign_operation import ForeignOperation, ToolDefinition
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL

WRITES = 20


class Disk:
    """Counts the syncs of the log, and its pages that are not synced."""

    def __init__(self, files: FaultyDisk) -> None:
        self._files = files

    @property
    def pending(self) -> int:
        return self._files.pending("-wal")

    @property
    def waits(self) -> int:
        return sum(step == "sync" and path.endswith("-wal") for step, path in self._files.steps)


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Disk]:
    with faulty_disk(tmp_path) as files:
        yield Disk(files)


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


def test_symlinked_store_syncs_real_log(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "athena.db").symlink_to(tmp_path / "disk" / "real.db")
    with faulty_disk(tmp_path / "disk") as files:
        store = Sqlite(tmp_path / "athena.db")
        run_sync(store.deferred_sync.write(work))
        files.steps.clear()
        run_sync(store.sync())
        run_sync(store.sync())  # nothing is left to sync
        assert files.steps == [("sync", str(tmp_path / "disk" / "real.db-wal"))]
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
