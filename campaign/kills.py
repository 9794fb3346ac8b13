"""Kill writers, upkeep and the database server at any moment; everything acknowledged must be there once."""

import random
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from athena.storage.database import Database
from athena.storage.sqlite.store import Sqlite
from campaign.model import Findings, Model
from campaign.processes import Child, do_upkeep, fork_child, open_app, write_steadily, write_until_step
from campaign.result import Failure, Tally

ROUNDS_PER_STORE = 8
MAX_STEPS = 400  # of a writer that nobody kills
BATCH_SIZE = 60
MAX_WAIT_S, POLL_S = 60.0, 0.001
POSTGRES_SETTINGS = ("recovery_init_sync_method=syncfs", "fsync=off")  # a kill loses nothing that the system has


class KillRounds:
    """Rounds on one engine: writers and upkeep start, die, and the store is compared with the model."""

    seconds = 0.0
    max_journal_bytes = 150_000  # that the writers of a round have reported when the first is killed

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rounds = 0
        self._model = Model()

    def make_small(self) -> None:
        self.max_journal_bytes = 12_000

    def prepare_store(self) -> None:
        """Begin with an empty store, every few rounds."""
        if self._rounds % ROUNDS_PER_STORE == 0:
            self._model = Model()
            shutil.rmtree(self.folder / "store", ignore_errors=True)
            (self.folder / "store").mkdir(parents=True)
            self.create_store()
        self._rounds += 1

    def create_store(self) -> None:
        raise NotImplementedError

    def open_database(self) -> Database:
        raise NotImplementedError

    def run_round(self, seed: int, tally: Tally) -> None:
        self.prepare_store()
        rng = random.Random(seed)
        children = self.start_children(rng, seed)
        self.kill_children(rng, children, tally)
        before = self._model.acknowledged
        for child in children:
            child.wait()
            if child.journal.exists():
                self._model.read_journal(child.journal)
        tally.add(rounds=1, kills=len(children), acknowledged=self._model.acknowledged - before)
        findings = self.compare()
        if findings:
            raise Failure(findings)

    def start_children(self, rng: random.Random, seed: int) -> list[Child]:
        journals = self.folder / "store"
        names = "abc"[: rng.randrange(1, 4)]
        works = [
            write_steadily(self.open_database, f"{name}{letters(seed)}", rng.randrange(2**32), MAX_STEPS, BATCH_SIZE)
            for name in names
        ]
        if rng.random() < 0.3:
            works.append(do_upkeep(self.open_database, journals, rng.randrange(2**32), MAX_STEPS))
        return [fork_child(journals / f"journal-{seed}-{i}", work) for i, work in enumerate(works)]

    def kill_children(self, rng: random.Random, children: list[Child], tally: Tally) -> None:
        wait_for_work(children, rng.randrange(self.max_journal_bytes))
        time.sleep(rng.uniform(0.0, 0.01))
        for child in rng.sample(children, len(children)):
            child.kill()
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0.0, 0.05))

    def compare(self) -> Findings:
        app = open_app(self.open_database())
        try:
            return self._model.compare(app)
        finally:
            app.close()


class SqliteKills(KillRounds):
    @property
    def path(self) -> Path:
        return self.folder / "store" / "athena.db"

    def create_store(self) -> None:
        self.open_database().close()

    def open_database(self) -> Database:
        return Sqlite(self.path)

    def start_children(self, rng: random.Random, seed: int) -> list[Child]:
        if rng.random() < 0.5:
            return super().start_children(rng, seed)
        # one process that dies at an exact step, so that the seed repeats it
        work = write_until_step(self.path, f"x{letters(seed)}", rng.randrange(2**32), MAX_STEPS, BATCH_SIZE)
        return [fork_child(self.path.parent / f"journal-{seed}", work)]

    def kill_children(self, rng: random.Random, children: list[Child], tally: Tally) -> None:
        if children[0].journal.name.count("-") == 2:
            super().kill_children(rng, children, tally)


class PostgresKills(KillRounds):
    """The same on PostgreSQL; in every other round the server dies or restarts under the writers."""

    def __init__(self, folder: Path, server: Any) -> None:
        super().__init__(folder)
        self._server, self._url = server, ""

    def create_store(self) -> None:
        self._url = self._server.create(f"campaign{time.monotonic_ns()}")
        self.open_database().close()

    def open_database(self) -> Database:
        from athena.storage.postgres.store import Postgres

        return Postgres(self._url)

    def kill_children(self, rng: random.Random, children: list[Child], tally: Tally) -> None:
        wait_for_work(children, rng.randrange(self.max_journal_bytes // 2))
        if rng.random() < 0.5:
            if rng.random() < 0.7:
                self._server.kill()
            else:
                self._server.stop()
            time.sleep(rng.choice((0.0, 0.1, 0.5)))
            self._server.start()
            tally.add(server_restarts=1)
        super().kill_children(rng, children, tally)


@contextmanager
def open_sqlite_rounds(folder: Path) -> Generator[SqliteKills]:
    yield SqliteKills(folder)


@contextmanager
def open_postgres_rounds(folder: Path) -> Generator[PostgresKills]:
    import postgres  # scripts/postgres.py

    with postgres.running(POSTGRES_SETTINGS) as server:
        yield PostgresKills(folder, server)


def wait_for_work(children: list[Child], size: int) -> None:
    """Wait until writers have reported so many bytes: a delay would do other things on a busy machine."""
    deadline = time.monotonic() + MAX_WAIT_S
    while time.monotonic() < deadline and not all(child.has_ended() for child in children):
        if sum(child.journal.stat().st_size for child in children if child.journal.exists()) >= size:
            return
        time.sleep(POLL_S)


def letters(number: int) -> str:
    """Return a number as letters, for the names of writers."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))
