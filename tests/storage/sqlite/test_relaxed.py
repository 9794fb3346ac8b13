"""A program's writes: on the disk before anybody is told of them, and not one by one."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest

from athena.app import App
from athena.kernel.defined import Defined, Definition
from athena.kernel.shapes import plain
from athena.storage.sqlite import opening
from athena.storage.sqlite.store import Sqlite
from athena.threads import drive
from conftest import _model

WRITES = 20


class Disk:
    """What was written to the log, and which of it the disk was waited for."""

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
    whole = opening.sync

    def sync(path: str) -> None:
        whole(path)
        assert path.endswith("-wal")
        watched.synced()

    monkeypatch.setattr(opening, "sync", sync)  # to see it
    files = _Files(watched)
    yield watched
    files.unregister()


@pytest.fixture
def app(tmp_path: Path, disk: Disk) -> Generator[App]:
    made = App(Sqlite(tmp_path / "athena.db"), _model, key=lambda: bytes(32))
    yield made
    made.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return plain(drive(app.catalog.find(name)(app.context("test", "python"), **arguments)))


def test_each_write_of_a_caller_waits_for_the_disk(app: App, disk: Disk) -> None:
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": []}])
    before = disk.waits
    for i in range(WRITES):
        call(app, "add_observations", observations=[{"entityName": "Ann", "contents": [f"number {i}"]}])
        assert disk.pending == 0
    assert disk.waits - before >= WRITES


def test_a_program_waits_once_and_its_end_is_told_after_that(app: App, disk: Disk) -> None:
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": []}])
    before = disk.waits
    program = f"""
for i in range({WRITES}):
    graph.add_observations(observations=[{{"entityName": "Ann", "contents": [f"number {{i}}"]}}])
"""
    assert call(app, "execute_code", code=program)["error"] is None
    assert disk.pending == 0
    assert 0 < disk.waits - before < WRITES / 2


def test_before_a_program_reaches_others_what_it_wrote_is_on_the_disk(app: App, disk: Disk) -> None:
    seen = []

    async def tell(ctx: Any, arguments: dict[str, Any]) -> Any:
        seen.append(disk.pending)

    told = Defined(Definition("others", "tell", "Tell them.", arguments={"type": "object", "properties": {}}), tell)
    app.catalog.put("others", "Somebody else.", [told])
    program = """
for i in range(3):
    graph.create_entities(entities=[{"name": f"Ann {i}", "entityType": "person", "observations": []}])
    others.tell()
"""
    assert call(app, "execute_code", code=program)["error"] is None
    assert seen == [0, 0, 0]


def test_a_relaxed_write_is_seen_at_once_and_a_caller_who_comes_after_it_waits_for_both(app: App, disk: Disk) -> None:
    database = app.store.database

    numbers = iter("123")

    async def work(tx: Any) -> None:
        await tx.execute("INSERT INTO counters (name, value) VALUES (:name, 1)", name=f"at {next(numbers)}")

    async def count(tx: Any) -> int:
        return int((await tx.fetch_one("SELECT count(*) FROM counters WHERE name LIKE 'at %'"))[0])

    drive(database.relaxed.write(work))
    assert disk.pending > 0
    assert drive(database.read(count)) == 1
    drive(database.write(work))
    assert (disk.pending, drive(database.read(count))) == (0, 2)
    drive(database.relaxed.write(work))
    drive(database.sync())
    assert (disk.pending, drive(database.read(count))) == (0, 3)
