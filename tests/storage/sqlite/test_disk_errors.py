"""A disk that fails for a moment, or a log that somebody cuts off, is not reported as something else."""

import os
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from campaign.disk_faults import faulty_disk

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import AthenaError, Unavailable
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, rounds


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))


def fill(path: Path) -> None:
    app = App(Sqlite(path), MODEL)
    for number in range(60):
        call(app, "remember", content=f"the lamp of keeper {number} is lit near the harbour {number * 7}")
    call(app, "recall", query="lamp")
    app.close()


@pytest.mark.parametrize(
    ("step", "code"), [("read", None), ("write", None), ("write", apsw.SQLITE_FULL), ("sync", None)]
)
def test_failing_disk_is_never_called_damage(tmp_path: Path, step: Any, code: int | None) -> None:
    """Each step fails once, in a store of its own; what failed may be tried again, and leaves nothing behind."""
    fill(tmp_path / "sound.db")
    errors: list[AthenaError] = []
    for first in range(1, rounds(45, 300), rounds(1 if step == "sync" else 3, 1)):
        folder = tmp_path / str(first)
        folder.mkdir()
        shutil.copy(tmp_path / "sound.db", folder / "athena.db")
        with faulty_disk(folder) as disk:
            app = App(Sqlite(folder / "athena.db"), MODEL)
            fault = disk.fail(step, first, code=code)
            try:
                call(app, "remember", content=f"keeper {first}")
                call(app, "recall", query=f"lamp harbour {first}")
                call(app, "verify")
            except AthenaError as error:
                errors.append(error)
            fault.times = 0
            call(app, "remember", content=f"after {first}")
            verdict = call(app, "verify")
            app.close()
            assert verdict.ok, (first, verdict.problems)
            if fault.seen < first:
                break  # there are no more steps
    assert len(errors) > (1 if step == "sync" else 3)
    wrong = [str(error) for error in errors if not isinstance(error, Unavailable) or "damaged" in str(error)]
    assert not wrong


@pytest.mark.parametrize("overwritten", [False, True])
def test_log_that_is_cut_off_is_named(tmp_path: Path, overwritten: bool) -> None:
    app = App(Sqlite(tmp_path / "athena.db"), MODEL)
    for number in range(20):
        call(app, "remember", content=f"the lamp of keeper {number}")
    log = tmp_path / "athena.db-wal"
    size = log.stat().st_size
    os.truncate(log, 0)
    if overwritten:  # another process writes behind the end
        os.truncate(log, size)
    for name, arguments in (("list_memories", {}), ("recall", {"query": "lamp"}), ("remember", {"content": "after"})):
        with pytest.raises(Unavailable, match="its log"):
            call(app, name, **arguments)
    app.close()
