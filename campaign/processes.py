"""Forked processes that write or do upkeep until they are killed. The parent has everything imported already."""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.storage.copying import copy_store
from athena.storage.database import Database
from athena.storage.sqlite.store import Sqlite
from campaign.disk_faults import faulty_disk
from campaign.work import FileJournal, HashEmbedder, JumpingClock, Writer

PROJECT = "p"
RESTED_S = 0.002
WAIT_LIMIT_S = 600.0
MAX_DISK_STEPS = 2_500  # after which a process dies
OpenDatabase = Callable[[], Database]


def open_app(database: Database, rng: random.Random | None = None, **settings: Any) -> App:
    """Open an app without the model; with `rng` its clock jumps."""
    clock: dict[str, Any] = {} if rng is None else {"time": JumpingClock(rng)}
    return App(database, HashEmbedder(), **clock, **settings)


def call_app(app: App, name: str, /, **arguments: Any) -> Any:
    return run_sync(app.call_operation(name, arguments, PROJECT, "python"))[0]


class Child(NamedTuple):
    pid: int
    journal: Path

    def has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for the end; a child that hangs is killed, and that is a finding."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                FileJournal(self.journal).report_raw("the process did not end")
                self.kill()
                os.waitpid(self.pid, 0)
                return
            time.sleep(RESTED_S)


def fork_child(journal: Path, work: Callable[[FileJournal], None]) -> Child:
    """Run work in a forked process; report exceptions that are not Athena's."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Child(pid, journal)
    file = FileJournal(journal)
    code = 1
    try:
        work(file)
        code = 0
    except AthenaError:
        code = 0  # the store is refused while another process works on it, or the server is down
    except BaseException:  # noqa: BLE001  # the child must not go on as the parent
        file.report_raw(traceback.format_exc())
    finally:
        os._exit(code)


def write_steadily(
    open_database: OpenDatabase, name: str, seed: int, steps: int, batch: int
) -> Callable[[FileJournal], None]:
    def work(journal: FileJournal) -> None:
        rng = random.Random(seed)
        app = open_app(open_database(), rng)
        writer = Writer(name, rng, lambda *words, **arguments: call_app(app, *words, **arguments), journal, batch)
        for _ in range(steps):
            writer.take_step()
        app.close()

    return work


def write_until_step(path: Path, name: str, seed: int, steps: int, batch: int) -> Callable[[FileJournal], None]:
    """Write, and die at a certain write, sync, truncation or deletion of a file."""

    def work(journal: FileJournal) -> None:
        rng = random.Random(seed)
        last = rng.randrange(1, MAX_DISK_STEPS)
        counted = 0

        def die_at_last(step: str, _: str) -> None:
            nonlocal counted
            counted += step != "read"
            if counted == last:
                os.kill(os.getpid(), signal.SIGKILL)

        with faulty_disk(path.parent) as disk:
            disk.on_step.append(die_at_last)
            app = open_app(Sqlite(path), rng)
            writer = Writer(name, rng, lambda *words, **arguments: call_app(app, *words, **arguments), journal, batch)
            for _ in range(steps):
                writer.take_step()
            app.close()

    return work


def do_upkeep(open_database: OpenDatabase, folder: Path, seed: int, steps: int) -> Callable[[FileJournal], None]:
    """Consolidate, ingest, purge, reembed, compact, verify and copy the store."""

    def work(journal: FileJournal) -> None:
        rng = random.Random(seed)
        documents = folder / "documents"
        documents.mkdir(exist_ok=True)
        app = open_app(open_database(), rng, document_roots=(str(documents),))

        def purge() -> None:
            items = [f"to be purged {seed} {number} {rng.random()}" for number in range(5)]
            ids = [one["id"] for one in call_app(app, "remember_batch", items=items)]
            call_app(app, "forget_batch", memory_ids=ids)
            count = call_app(app, "purge", memory_ids=ids, dry_run=True)  # a pattern may quote them meanwhile
            call_app(app, "purge", memory_ids=ids, expect=count)  # also compacts the file

        def ingest() -> None:
            (documents / "notes.md").write_text(f"# Notes {seed}\n\n" + "The lamp is lit.\n\n" * rng.randrange(40))
            call_app(app, "ingest_document", path=str(documents))

        def check() -> None:
            if problems := call_app(app, "verify")["problems"]:
                journal.report_raw(f"verify: {problems}")

        def copy() -> None:
            source, target = open_database(), Sqlite(folder / f"copy-{seed}.db", copying="to")
            try:
                copy_store(source, target, lambda *_: None)
            finally:
                source.close()
                target.close()

        jobs = (
            purge, ingest, check, copy,
            lambda: call_app(app, "consolidate", strategy="minimal"),
            lambda: call_app(app, "reembed"),
            lambda: run_sync(app.store.database.compact()),
        )  # fmt: skip
        for _ in range(steps):
            with suppress(AthenaError):
                rng.choice(jobs)()
        app.close()

    return work


def load_everything() -> None:
    """Import and compile all that children need, so that none of them does it again."""
    import numpy as np

    np.ones((2, 2)) @ np.ones((2, 2))
    app = open_app(Sqlite(":memory:"))
    writer = Writer("warm", random.Random(1), lambda *words, **arguments: call_app(app, *words, **arguments), _Silent())
    for _, step in writer.steps.values():
        step()
    for name in ("recall", "verify", "consolidate", "reembed"):
        call_app(app, name, **({"query": "lamp"} if name == "recall" else {}))
    app.close()


class _Silent:
    def begin(self, after: Any) -> None:
        pass

    def acknowledge(self, change: Any, operation: str) -> None:
        pass

    def report_raw(self, error: str) -> None:
        raise RuntimeError(error)
