"""Cut the power and fail steps of the disk below SQLite; what was acknowledged is in every image, and each is sound."""

import random
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.storage.sqlite.store import Sqlite
from campaign.disk_faults import FaultyDisk, Step, faulty_disk
from campaign.model import Findings, Model
from campaign.processes import PROJECT, open_app
from campaign.result import Failure, Tally
from campaign.work import ModelJournal, Writer

STEPS = 24
MAX_DISK_STEPS = 1_500  # in which the power is cut
IMAGES = 10
BATCH_SIZE = 6
RELAXED_SHARE = 0.4
FAULT_STEPS: tuple[Step, ...] = ("sync", "sync", "sync", "write", "truncate", "delete", "read")


class PowerCuts:
    seconds = 0.0

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_small(self) -> None:
        """Do nothing: a round is small."""

    def run_round(self, seed: int, tally: Tally) -> None:
        rng = random.Random(seed)
        shutil.rmtree(self.folder / "live", ignore_errors=True)
        shutil.rmtree(self.folder / "images", ignore_errors=True)
        (self.folder / "live").mkdir(parents=True)
        path = self.folder / "live" / "athena.db"
        model = Model()
        images: list[tuple[Path, Model]] = []
        with faulty_disk(path.parent) as disk:
            app = open_app(Sqlite(path), rng)
            due = sorted(rng.sample(range(MAX_DISK_STEPS), IMAGES))

            def cut_if_due(*_: Any) -> None:
                if due and len(disk.steps) >= due[0]:
                    while due and len(disk.steps) >= due[0]:
                        due.pop(0)
                    images.append((disk.cut_power(self.folder / "images" / str(len(images)), rng), model.copy()))

            disk.steps.clear()
            disk.on_step.append(cut_if_due)
            failed = self._write(app, disk, model, rng)
            images.append((disk.cut_power(self.folder / "images" / "last", rng), model.copy()))
            disk.on_step.clear()
            disk.faults.clear()
            app.close()
        tally.add(rounds=1, images=len(images), acknowledged=model.acknowledged, failed_calls=failed)
        tally.add(failed_steps=sum(min(fault.times, max(0, fault.seen - fault.first + 1)) for fault in self._faults))
        for image, expected in [*images, (path.parent, model)]:
            findings = _compare(image / "athena.db", expected)
            if findings:
                raise Failure(Findings(*(tuple(f"{image.name}: {one}" for one in found) for found in findings)))

    def _write(self, app: App, disk: FaultyDisk, model: Model, rng: random.Random) -> int:
        """Make calls while steps of the disk fail; return how many calls failed."""
        self._faults = [] if rng.random() < 0.2 else [_add_fault(disk, rng) for _ in range(rng.randrange(1, 4))]
        journal = ModelJournal(model)
        context = app.create_context(PROJECT, "python")
        relaxed = app.store._replace(database=app.store.database.deferred_sync)

        def call(name: str, /, **arguments: Any) -> Any:
            from dataclasses import replace

            from athena.core.catalog import invoke
            from athena.core.types import to_json

            caller = replace(context, store=relaxed) if journal.is_relaxed else context
            return to_json(run_sync(invoke(app.catalog, name, arguments, caller)))

        writer = Writer("p", rng, call, journal, BATCH_SIZE)
        failed = 0
        for _ in range(STEPS):
            journal.is_relaxed = rng.random() < RELAXED_SHARE
            failed += not writer.take_step()
        return failed


def _add_fault(disk: FaultyDisk, rng: random.Random) -> Any:
    step, times = rng.choice(FAULT_STEPS), rng.choice((1, 1, 1, 2, 3))
    suffix = rng.choice(("-wal", "-wal", ".db", ""))
    code = apsw.SQLITE_FULL if step == "write" and rng.random() < 0.5 else None
    return disk.fail(step, rng.randrange(1, 400 if step in ("write", "read") else 20), times, suffix, code)


def _compare(path: Path, expected: Model) -> Findings:
    try:
        app = open_app(Sqlite(path))
    except AthenaError as error:
        return Findings(alarms=(f"the image is refused: {error}",))
    try:
        return expected.compare(app)
    except AthenaError as error:
        return Findings(alarms=(f"the image cannot be read: {error}",))
    finally:
        app.close()


@contextmanager
def open_rounds(folder: Path) -> Generator[PowerCuts]:
    yield PowerCuts(folder)
