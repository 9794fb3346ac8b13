"""After a failed sync nothing is acknowledged that a power cut could lose; images of cut disks prove it."""

import random
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest
from campaign.disk_faults import FaultyDisk, faulty_disk

from athena.core.threads import run_sync
from athena.errors import AthenaError, Unavailable
from athena.storage.sqlite.store import Sqlite
from conftest import rounds

STEPS_PER_ROUND = 24
IMAGES_PER_ROUND = 6


@pytest.fixture
def disk(tmp_path: Path) -> Generator[FaultyDisk]:
    (tmp_path / "live").mkdir()
    with faulty_disk(tmp_path / "live") as disk:
        yield disk


def open_store(disk: FaultyDisk) -> Sqlite:
    return Sqlite(Path(disk.folder) / "athena.db")


def add(name: str, padding: int = 0) -> Any:
    async def work(tx: Any) -> None:
        await tx.execute("INSERT INTO counters VALUES (:name, 1)", name=name)
        if padding:
            await tx.execute("INSERT INTO models (name) VALUES (:name)", name=name + "x" * padding)

    return work


async def read_names(tx: Any) -> set[str]:
    return {row[0] for row in await tx.fetch("SELECT name FROM counters WHERE name LIKE 'n%'")}


async def check_file(tx: Any) -> list[str]:
    return [row[0] for row in await tx.fetch("PRAGMA integrity_check")]


def read_image(folder: Path) -> tuple[set[str], list[str]]:
    store = Sqlite(folder / "athena.db")
    try:
        return run_sync(store.read(read_names)), run_sync(store.read(check_file))
    finally:
        store.close()


class Writer:
    """Writes, relaxed or not, and knows which writes it was promised."""

    def __init__(self, store: Sqlite) -> None:
        self.store = store
        self.written = 0
        self.relaxed: list[str] = []
        self.acknowledged: set[str] = set()
        self.failed = 0

    def take_step(self, kind: str, padding: int) -> None:
        name = f"n{self.written}"
        self.written += 1
        try:
            if kind == "relaxed":
                run_sync(self.store.deferred_sync.write(add(name, padding)))
                self.relaxed.append(name)
                return
            if kind == "write":
                run_sync(self.store.write(add(name, padding)))
                self.acknowledged.add(name)
            else:
                run_sync(self.store.sync())
        except AthenaError:
            self.failed += 1
            return
        self.acknowledged.update(self.relaxed)
        self.relaxed.clear()


def run_round(folder: Path, seed: int) -> tuple[list[tuple[Path, set[str]]], int]:
    """Write while syncs fail; return images of the disk with what was acknowledged then, and the failed writes."""
    rng = random.Random(seed)
    cuts: list[tuple[Path, set[str]]] = []
    due = set(rng.sample(range(1, 120), IMAGES_PER_ROUND))
    with faulty_disk(folder) as disk:
        store = open_store(disk)
        writer = Writer(store)
        for _ in range(rng.randrange(1, 4)):
            suffix, times = rng.choice(("-wal", "-wal", ".db")), rng.choice((1, 1, 1, 2, 3))
            disk.fail("sync", rng.randrange(1, 16), times, suffix)

        def cut_if_due(step: str, path: str) -> None:
            if len(disk.steps) in due:
                cuts.append((disk.cut_power(folder / f"image {len(disk.steps)}", rng), set(writer.acknowledged)))

        disk.steps.clear()
        disk.on_step.append(cut_if_due)
        for _ in range(STEPS_PER_ROUND):
            kind = rng.choice(("relaxed", "relaxed", "relaxed", "write", "write", "sync"))
            writer.take_step(kind, rng.choice((0, 0, 3_000, 60_000)))
        cuts.append((disk.cut_power(folder / "last", rng), set(writer.acknowledged)))
        disk.on_step.clear()
        disk.faults.clear()
        store.close()
    return cuts, writer.failed


def test_power_cuts_after_failed_syncs_lose_nothing_acknowledged(tmp_path: Path) -> None:
    images = failures = 0
    for seed in range(rounds(12, 800)):
        (tmp_path / str(seed)).mkdir()
        cuts, failed = run_round(tmp_path / str(seed), seed)
        failures += failed
        for image, acknowledged in cuts:
            images += 1
            names, problems = read_image(image)
            assert acknowledged <= names, (seed, image.name, sorted(acknowledged - names))
            assert problems == ["ok"], (seed, image.name)
        shutil.rmtree(tmp_path / str(seed))
    assert images > rounds(36, 2_400)
    assert failures > rounds(3, 200)


def test_hole_in_log_is_closed_before_next_acknowledgement(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk)
    run_sync(store.deferred_sync.write(add("n relaxed")))
    disk.fail("sync", suffix="-wal")
    with pytest.raises(Unavailable, match="cannot be read or written"):
        run_sync(store.write(add("n failed")))
    run_sync(store.write(add("n acknowledged")))
    image = disk.cut_power(tmp_path / "image", random.Random(1))
    assert read_image(image) == ({"n relaxed", "n acknowledged"}, ["ok"])
    store.close()


def test_failed_sync_that_is_mended_is_no_error(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk)
    run_sync(store.deferred_sync.write(add("n relaxed")))
    disk.fail("sync", suffix="-wal")
    run_sync(store.sync())
    assert read_image(disk.cut_power(tmp_path / "image", random.Random(1)))[0] == {"n relaxed"}
    store.close()


def test_failed_write_does_not_come_back(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk)
    run_sync(store.write(add("n first")))
    disk.fail("sync", suffix="-wal")
    with pytest.raises(Unavailable):
        run_sync(store.write(add("n failed")))
    for seed in range(10):
        image = disk.cut_power(tmp_path / f"image {seed}", random.Random(seed))
        assert read_image(image)[0] == {"n first"}
    store.close()


def test_disk_that_stays_broken_stops_acknowledgements(disk: FaultyDisk) -> None:
    store = open_store(disk)
    run_sync(store.deferred_sync.write(add("n relaxed")))
    fault = disk.fail("sync", times=1_000)
    with pytest.raises(Unavailable, match="cannot be read or written"):
        run_sync(store.write(add("n 1")))
    for work in (store.write, store.deferred_sync.write):
        with pytest.raises(Unavailable, match="does not confirm") as refused:
            run_sync(work(add("n 2")))
        assert "disk" in (refused.value.hint or "")
    with pytest.raises(Unavailable, match="does not confirm"):
        run_sync(store.sync())
    assert run_sync(store.read(read_names)) == {"n relaxed"}  # reads go on
    fault.times = 0
    run_sync(store.write(add("n 3")))
    assert run_sync(store.read(read_names)) == {"n relaxed", "n 3"}
    store.close()


def test_next_process_mends_log_of_dead_one(disk: FaultyDisk, tmp_path: Path) -> None:
    dead = open_store(disk)  # never closed, as after a kill
    run_sync(dead.deferred_sync.write(add("n relaxed")))
    fault = disk.fail("sync", times=1_000)
    with pytest.raises(Unavailable):
        run_sync(dead.write(add("n failed")))
    fault.times = 0
    other = open_store(disk)
    run_sync(other.write(add("n acknowledged")))
    names, problems = read_image(disk.cut_power(tmp_path / "image", random.Random(1)))
    assert ("n acknowledged" in names, problems) == (True, ["ok"])
    other.close()
    dead.close()


def test_failed_sync_in_checkpoint_is_noticed(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk)
    run_sync(store.deferred_sync.write(add("n small")))
    disk.fail("sync", suffix="-wal")
    run_sync(store.deferred_sync.write(add("n large", 5_000_000)))  # large enough for a checkpoint, whose sync fails
    run_sync(store.write(add("n acknowledged")))
    image = disk.cut_power(tmp_path / "image", random.Random(1))
    assert read_image(image) == ({"n small", "n large", "n acknowledged"}, ["ok"])
    store.close()


def test_failed_sync_of_file_after_partial_checkpoint_loses_no_page(disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk)
    run_sync(store.write(add("n first", 200_000)))
    reader = apsw.Connection(store.path)
    reader.execute("BEGIN").fetchall()
    reader.execute("SELECT * FROM counters").fetchall()
    run_sync(store.write(add("n large", 5_000_000)))  # its checkpoint stops at the reader's snapshot, and syncs no page
    reader.execute("ROLLBACK").fetchall()
    disk.fail("sync", suffix=".db")
    run_sync(store.write(add("n next")))  # its checkpoint fails
    run_sync(store.write(add("n later")))
    reader.close()
    run_sync(store.compact())
    names, problems = read_image(disk.cut_power(tmp_path / "image", random.Random(1)))
    assert (names, problems) == ({"n first", "n large", "n next", "n later"}, ["ok"])
    store.close()


def test_log_whose_pages_were_dropped_is_not_used_further(disk: FaultyDisk) -> None:
    store = open_store(disk)
    run_sync(store.write(add("n first")))
    run_sync(store.deferred_sync.write(add("n relaxed")))
    fault = disk.fail("sync", suffix="-wal")
    path = Path(store.path + "-wal")
    durable = disk.files[str(path)].durable

    def evict(step: str, name: str) -> None:  # the kernel reads the page back from the disk, which has it not
        if fault.seen and name == str(path):
            with path.open("r+b") as file:
                file.write(durable)
                file.truncate(len(durable))

    disk.on_step.append(evict)
    with pytest.raises(Unavailable):
        run_sync(store.sync())
    with pytest.raises(Unavailable, match="lost part of its log") as refused:
        run_sync(store.write(add("n later")))
    assert not refused.value.retry
    store.close()
    disk.on_step.clear()
    again = open_store(disk)
    assert run_sync(again.read(read_names)) == {"n first"}
    again.close()
