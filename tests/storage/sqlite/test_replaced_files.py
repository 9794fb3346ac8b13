"""Files that are deleted or replaced while a store is open, and disks without room: told, saved, and reopened."""

import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest
from campaign.disk_faults import faulty_disk

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Unavailable
from athena.storage.sqlite import files
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL


@pytest.fixture
def app(tmp_path: Path) -> Generator[App]:
    app = App(Sqlite(tmp_path / "athena.db"), MODEL)
    yield app
    app.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))


def remember(app: App, *texts: str) -> None:
    for text in texts:
        call(app, "remember", content=text)


def list_texts(app: App) -> set[str]:
    return {memory.content for memory in call(app, "list_memories", k=100)}


def read_copy(tmp_path: Path, name: str = "copy") -> set[str]:
    """Return what a process finds that is started after this one was killed."""
    (tmp_path / name).mkdir()
    for file in tmp_path.glob("athena.db*"):
        if not file.name.endswith("-shm"):
            shutil.copy(file, tmp_path / name / file.name)
    other = App(Sqlite(tmp_path / name / "athena.db"), MODEL)
    try:
        assert call(other, "verify").ok
        return list_texts(other)
    finally:
        other.close()


def test_deleted_log_loses_no_acknowledged_write(app: App, tmp_path: Path) -> None:
    remember(app, "before 1", "before 2")
    os.unlink(tmp_path / "athena.db-wal")
    remember(app, "after 1", "after 2")
    everything = {"before 1", "before 2", "after 1", "after 2"}
    assert list_texts(app) == everything
    assert read_copy(tmp_path) == everything
    assert call(app, "health").status == "healthy"


def test_replaced_log_is_not_written(app: App, tmp_path: Path) -> None:
    remember(app, "before")
    (tmp_path / "new").write_bytes(b"")
    os.replace(tmp_path / "new", tmp_path / "athena.db-wal")
    remember(app, "after")
    assert read_copy(tmp_path) == {"before", "after"}


def test_deleted_file_refuses_reads_and_writes_until_it_is_back(app: App, tmp_path: Path) -> None:
    remember(app, "before")
    os.rename(tmp_path / "athena.db", tmp_path / "away")
    for attempt in (lambda: remember(app, "lost"), lambda: list_texts(app)):
        with pytest.raises(Unavailable, match="was removed while it was open") as refused:
            attempt()
        assert "put it back" in (refused.value.hint or "")
    health = call(app, "health")
    assert (health.status, "was removed" in health.problems[0]) == ("error", True)
    assert not (tmp_path / "athena.db").exists()
    os.rename(tmp_path / "away", tmp_path / "athena.db")
    assert list_texts(app) == {"before"}
    remember(app, "after")
    assert call(app, "health").status == "healthy"


def test_replaced_file_is_opened_without_log_of_earlier_one(app: App, tmp_path: Path) -> None:
    other = App(Sqlite(tmp_path / "other.db"), MODEL)
    remember(other, *(f"the harbour of town {i}" for i in range(30)))
    call(other, "recall", query="harbour")
    other.close()
    remember(app, *(f"the lamp of keeper {i}" for i in range(40)))
    call(app, "recall", query="lamp")
    os.replace(tmp_path / "other.db", tmp_path / "athena.db")
    assert {memory.content for memory in call(app, "recall", query="harbour", k=3)} <= list_texts(app)
    assert "the harbour of town 7" in list_texts(app)
    remember(app, "the mole")
    assert call(app, "verify").ok
    assert len(read_copy(tmp_path)) == 31


def test_full_disk_is_told_until_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with faulty_disk(tmp_path / "live") as disk:
        app = App(Sqlite(tmp_path / "live" / "athena.db"), MODEL)
        remember(app, "before")
        assert call(app, "health").status == "healthy"
        fault = disk.fail("write", times=100_000, code=apsw.SQLITE_FULL)
        with pytest.raises(Unavailable, match="disk is full"):
            remember(app, "too much")
        health = call(app, "health")
        assert (health.status, "disk is full" in health.problems[0]) == ("error", True)
        assert list_texts(app) == {"before"}
        fault.times = 0
        assert call(app, "health").status == "healthy"
        remember(app, "after")
        app.close()


def test_disk_that_fails_to_sync_is_told(tmp_path: Path) -> None:
    (tmp_path / "live").mkdir()
    with faulty_disk(tmp_path / "live") as disk:
        app = App(Sqlite(tmp_path / "live" / "athena.db"), MODEL)
        fault = disk.fail("sync", times=100_000)
        with pytest.raises(Unavailable):
            remember(app, "not confirmed")
        health = call(app, "health")
        assert (health.status, "does not confirm" in health.problems[0]) == ("error", True)
        fault.times = 0
        assert call(app, "health").status == "healthy"
        app.close()


def test_little_space_is_a_warning(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MIN_FREE_BYTES", 2**60)
    health = call(app, "health")
    assert (health.status, "almost full" in health.problems[0]) == ("degraded", True)
