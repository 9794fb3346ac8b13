"""Deferred embedding: one process embeds each passage, and another takes over when it dies."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import postgres
import pytest
from postgres_tools import (
    call,
    finish_script,
    new_database_with_tables,
    open_app,
    query,
    read_line,
    start_processes,
    start_script,
)

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.memory.index import reembed
from athena.storage.arrays import quantize_vectors
from athena.storage.database import Transaction
from athena.storage.postgres.vectors import CLAIM_LEASE_S
from conftest import MODEL
from wait_tools import wait_until

PASSAGES = 40
SENTENCE = (
    "On day {} of the journey the wind came from the west, and " + "we sat by the fire and sang " * 8 + "until late."
)
LONG = " ".join(SENTENCE.format(i) for i in range(PASSAGES))


@pytest.fixture
def url(server: postgres.Server) -> str:
    return new_database_with_tables(server)


@pytest.fixture
def unembedded_app(url: str) -> Generator[App]:
    """Return a store with a long text, most of whose passages have no vector yet."""
    with open_app(url) as app:
        app.store.encoder.stop()  # keep the background from embedding
        call(app, "remember", content=LONG)
        assert pending_counts(url) == (PASSAGES - 16, PASSAGES)
        yield app


def pending_counts(url: str) -> tuple[int, int]:
    """Return the number of passages without a vector, and of those embedded without their neighbours."""
    (row,) = query(
        url,
        """SELECT count(*) FILTER (WHERE model IS NULL), count(*) FILTER (WHERE windowed = 0)
           FROM passages WHERE live = 1""",
    )
    return row[0], row[1]


def test_concurrent_processes_embed_passage_once(url: str, unembedded_app: App) -> None:
    with start_processes(url, 2, threads=2) as made:
        done = 0
        for _ in range(4):
            for one in made:
                one.begin(*[("reembed", {"limit": 5})] * 4)
            done += sum(found["done"]["done"] for one in made for found in one.results())
    assert done == PASSAGES
    assert pending_counts(url) == (0, 0)
    assert query(url, "SELECT count(*) FROM passages WHERE claimed IS NOT NULL") == [(0,)]
    assert query(url, "SELECT count(*) FROM tokens") == [(PASSAGES,)]
    assert call(unembedded_app, "verify").ok


CLAIMING = """
import sys, time
from athena.core.values import ModelNames
from athena.embedding.minilm import MiniLM
from athena.storage.postgres.store import Postgres
from athena.core.threads import run_sync
database = Postgres(sys.argv[1])
claim = lambda tx: database.vectors.claim_passages(tx, ModelNames(MiniLM.name), 20, time.time())
print(len(run_sync(database.write(claim))), flush=True)
sys.stdin.readline()
"""


def test_claims_of_killed_process_expire(url: str, unembedded_app: App) -> None:
    killed = start_script(CLAIMING, url)
    assert read_line(killed) == "20"
    killed.kill()
    killed.communicate()
    (now,) = query(url, "SELECT max(claimed) FROM passages")[0]
    moment = now + 1

    with open_app(url, time=lambda: moment) as app:
        assert call(app, "reembed", limit=1_000).done == PASSAGES - 20
        assert call(app, "reembed", limit=1_000).done == 0
        moment = now + CLAIM_LEASE_S - 1
        assert call(app, "reembed", limit=1_000).done == 0
        moment = now + CLAIM_LEASE_S + 1
        progress = call(app, "reembed", limit=1_000)
        assert (progress.done, progress.remaining) == (20, 0)
        assert call(app, "verify").ok
    assert pending_counts(url) == (0, 0)


def test_concurrent_long_texts_get_vectors(url: str) -> None:
    with start_processes(url, 2) as made:
        for number, one in enumerate(made):
            one.begin(("remember", {"content": f"Diary {number}. {LONG[:8000]}"}))
        assert all(one.results()[0]["done"]["outcome"] == "new" for one in made)
        wait_until(lambda: pending_counts(url) == (0, 0))
        assert made[0].call("verify")["ok"]


@pytest.mark.parametrize("change", ["purge", "update_memory"])
def test_late_vector_leaves_nothing(url: str, unembedded_app: App, change: str) -> None:
    """The text is removed or replaced after a passage is claimed and before its vector is stored."""
    vectors, models = unembedded_app.store.database.vectors, unembedded_app.store.encoder.models
    taken = run_sync(unembedded_app.store.database.write(lambda tx: vectors.claim_passages(tx, models, 1_000, 0.0)))
    assert len(taken) == PASSAGES
    if change == "purge":
        call(unembedded_app, "purge", memory_ids=[1], expect=1)
    else:
        call(unembedded_app, "update_memory", memory_id=1, content="all of it was a dream")

    async def keep(tx: Transaction) -> None:
        code = quantize_vectors(MODEL.embed(["anything"]))[0]
        await vectors.set_vectors(tx, [(number, code) for number in taken], models.current)
        await vectors.set_tokens(tx, [(number, b"x" * 16) for number in taken])

    run_sync(unembedded_app.store.database.write(keep))
    orphans = "SELECT count(*) FROM tokens t WHERE passage NOT IN (SELECT id FROM passages)"
    assert query(url, orphans) == [(0,)]
    assert query(url, "SELECT count(*) FROM tokens") == [(0 if change == "purge" else 1,)]
    assert call(unembedded_app, "verify").ok


def start_worker(url: str, home: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "athena", "worker", "--threads", "1", *options]
    environment = os.environ | {"ATHENA_DATABASE_URL": url, "ATHENA_HOME": str(home)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_workers_share_backlog(url: str, unembedded_app: App, tmp_path: Path) -> None:
    del unembedded_app  # its texts wait for their vectors
    workers = [start_worker(url, tmp_path, "--once", "--json") for _ in range(2)]
    reports = [json.loads("".join(finish_script(worker))) for worker in workers]
    assert sum(report["done"] for report in reports) == PASSAGES
    assert pending_counts(url) == (0, 0)
    assert query(url, "SELECT count(*) FROM passages WHERE claimed IS NOT NULL") == [(0,)]


def test_worker_waits_for_work_until_it_is_stopped(url: str, unembedded_app: App, tmp_path: Path) -> None:
    worker = start_worker(url, tmp_path)
    wait_until(lambda: pending_counts(url) == (0, 0))
    call(unembedded_app, "remember", content=LONG.replace("journey", "voyage"))
    wait_until(lambda: pending_counts(url) == (0, 0))
    worker.terminate()
    assert finish_script(worker) == [f"{2 * PASSAGES} passages done"]


def test_restored_memory_keeps_vectors(url: str, unembedded_app: App) -> None:
    run_sync(reembed(unembedded_app.store, 1_000))
    call(unembedded_app, "forget", memory_id=1)
    assert call(unembedded_app, "reembed", limit=10).done == 0
    call(unembedded_app, "undo")
    assert pending_counts(url) == (0, 0)
    assert query(url, "SELECT count(*) FROM passages WHERE code IS NOT NULL") == [(PASSAGES,)]
    assert call(unembedded_app, "recall", query="we sang by the fire")
