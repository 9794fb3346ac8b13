"""Kill a PostgreSQL server and let its replica take over, under writers that know both."""

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from campaign.kills import POSTGRES_SETTINGS, KillRounds, PostgresKills, wait_for_work
from campaign.processes import Child
from campaign.result import Tally

SECOND_SERVER_DIED = 0.3  # share of rounds in which the replica is lost first, and is made again
PAUSES_S = (0.0, 0.1, 0.5, 2.0)  # between the death of the server and the promotion of its replica


class Failovers(PostgresKills):
    """The rounds of PostgresKills; in each, the first server dies and the second goes on.

    Replication is synchronous: a commit is acknowledged when both servers have it. After a round a new replica is made.
    """

    def __init__(self, folder: Path, server: Any) -> None:
        super().__init__(folder, server)
        self._replica: Any = None
        self._replicas = 0
        self._database = ""

    def create_store(self) -> None:
        if self._database:
            self._server.drop(self._database)
        self._database = f"campaign{time.monotonic_ns()}"
        self._server.create(self._database)
        self._add_replica()
        self.open_database().close()

    def prepare_store(self) -> None:
        super().prepare_store()
        if self._replica is None:
            self._add_replica()

    def kill_children(self, rng: random.Random, children: list[Child], tally: Tally) -> None:
        wait_for_work(children, rng.randrange(self.max_journal_bytes // 2))
        if rng.random() < SECOND_SERVER_DIED:
            self._replica.kill()
            time.sleep(rng.choice(PAUSES_S))
            self._replica.start()
            self._server.wait_for_replica()
            tally.add(replica_restarts=1)
        if rng.random() < 0.7:
            self._server.kill()
        else:
            self._server.stop()
        time.sleep(rng.choice(PAUSES_S))
        self._replica.promote()
        self._server.remove()
        self._server, self._replica = self._replica, None
        tally.add(failovers=1)
        KillRounds.kill_children(self, rng, children, tally)

    def _add_replica(self) -> None:
        if self._replica is not None:
            self._replica.kill()
            self._replica.remove()
        self._replicas += 1
        folder = self._server.folder
        self._replica = self._server.create_replica(folder.with_name(f"{folder.name.split('_')[0]}_{self._replicas}"))
        self._url = self._server.url(self._database, self._replica)

    def close(self) -> None:
        for server in filter(None, (self._server, self._replica)):
            server.kill()
            server.remove()


@contextmanager
def open_rounds(folder: Path) -> Generator[Failovers]:
    import postgres  # scripts/postgres.py

    with postgres.running(POSTGRES_SETTINGS) as server:
        rounds = Failovers(folder, server)
        try:
            yield rounds
        finally:
            rounds.close()
