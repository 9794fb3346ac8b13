"""A store of an earlier model: searched as it is, and given the new model's vectors in the background."""

import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from athena.app import connect
from athena.app.compose import App
from athena.cli.mcp import serve_in_process
from athena.core.threads import run_sync
from athena.core.values import ModelNames
from athena.embedding.minilm import MiniLM
from athena.memory import index
from athena.memory.index import Progress
from athena.storage.database import Transaction
from athena.storage.passages import fetch_model_ids
from conftest import Engine, PostgresEngine
from http_tools import run_server, serve_command
from wait_tools import wait_until

EARLIER, LATER = "earlier/1", "later/2"
MODELS = ModelNames(LATER, (EARLIER,))


class Earlier(MiniLM):
    """The bundled model under the name of an earlier one."""

    name = EARLIER
    compatible_models = ()


class Later(MiniLM):
    name = LATER
    compatible_models = (EARLIER,)


class Foreign(MiniLM):
    name = "foreign/1"
    compatible_models = ()


EARLIER_MODEL, LATER_MODEL, FOREIGN_MODEL = Earlier(), Later(), Foreign()
TEXTS = [
    "The boiler in the cellar was repaired in March",
    "Anna wants her parcel to be sent to the office",
    "The cat was taken to the vet",
    *[f"Report {i} of the survey of migrating birds lists {i} swans near the lake" for i in range(37)],
]
TURNS = [
    "I will take the night train to Vienna",
    "How long will you stay there?",
    "Until the concert on Sunday is over",
]


class Stores:
    """Opens one store with different models."""

    def __init__(self, engine: Engine, file: Path) -> None:
        self._engine, self.file = engine, file
        self._apps: list[App] = []

    @property
    def address(self) -> str:
        return self._engine.url if isinstance(self._engine, PostgresEngine) else str(self.file)

    def open(self, model: MiniLM) -> App:
        app = App(self._engine.open(self.file), model)
        self._apps.append(app)
        return app

    def close(self) -> None:
        while self._apps:
            self._apps.pop().close()


@pytest.fixture
def stores(engine: Engine, tmp_path: Path) -> Generator[Stores]:
    """Return a store that an earlier model has filled."""
    opened = Stores(engine, tmp_path / "athena.db")
    app = opened.open(EARLIER_MODEL)
    call(app, "remember_batch", items=TEXTS)
    for turn in TURNS:
        call(app, "remember", content=turn, metadata={"session_id": "s1", "speaker": "Ben"})
    while call(app, "reembed", limit=256).remaining:
        pass
    opened.close()  # the earlier model encodes nothing that a later one stores
    yield opened
    opened.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python"), **arguments))


def read_rows(app: App, sql: str) -> list[Any]:
    async def work(tx: Transaction) -> list[Any]:
        return await tx.fetch(sql)

    return run_sync(app.store.database.read(work))


def read_vectors(app: App) -> dict[int, tuple[str, str, bytes]]:
    """Return the model, the vector and the token signs of each passage."""
    rows = read_rows(
        app,
        """SELECT p.id, d.name, p.code, t.signs FROM passages p LEFT JOIN models d ON d.id = p.model
           LEFT JOIN tokens t ON t.scope = p.scope AND t.passage = p.id WHERE p.live = 1 ORDER BY p.id""",
    )
    return {passage: (name, str(code), bytes(signs or b"")) for passage, name, code, signs in rows}


def count_models(app: App) -> dict[str | None, int]:
    rows = read_rows(
        app, "SELECT d.name, count(*) FROM passages p LEFT JOIN models d ON d.id = p.model WHERE live = 1 GROUP BY name"
    )
    return dict(rows)


def start_reembedding(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "REEMBED_DELAY_S", 0.0)
    index.reembed_in_background(app.store)


def test_vectors_of_compatible_model_are_searched(stores: Stores) -> None:
    question = "the heating was fixed"  # no word of the memory
    foreign = call(stores.open(FOREIGN_MODEL), "recall", query=question, k=1, explain=True)
    assert not foreign or foreign[0].content != TEXTS[0], "vectors of another model mean nothing"
    later = stores.open(LATER_MODEL)
    same = call(stores.open(EARLIER_MODEL), "recall", query=question, k=5, explain=True)
    hits = call(later, "recall", query=question, k=5, explain=True)
    assert hits[0].content == TEXTS[0]
    terms = ("meaning", "tokens")
    expected = {hit.id: [hit.why[term] for term in terms] for hit in same}
    assert {hit.id: [hit.why[term] for term in terms] for hit in hits} == expected, "here the vectors are the same"
    assert hits[0].why["tokens"] > 0
    assert count_models(later) == {EARLIER: len(TEXTS) + len(TURNS)}


def test_both_models_are_searched_meanwhile(stores: Stores) -> None:
    later = stores.open(LATER_MODEL)
    assert call(later, "reembed", limit=20).done == 20
    assert count_models(later) == {LATER: 20, EARLIER: len(TEXTS) + len(TURNS) - 20}
    call(later, "remember", content="Our accountant retires next summer")
    for question, text in (
        ("the heating was fixed", TEXTS[0]),
        ("an animal was ill", TEXTS[2]),
        ("travelling by rail to Austria", TURNS[0]),
        ("the bookkeeper stops working", "Our accountant retires next summer"),
    ):
        assert call(later, "recall", query=question, k=1)[0].content == text


def test_health_shows_progress(stores: Stores) -> None:
    later, total = stores.open(LATER_MODEL), len(TEXTS) + len(TURNS)
    health = call(later, "health")
    assert (health.status, health.problems, health.awaiting_vectors) == ("healthy", (), 0)
    assert health.reembedding == Progress(0, total)
    step = call(later, "reembed", limit=30)
    assert (step.done, step.remaining) == (30, total - 30)
    assert call(later, "health").reembedding == Progress(30, total - 30)
    call(later, "reembed", limit=256)
    assert call(later, "health").reembedding is None
    foreign = call(stores.open(FOREIGN_MODEL), "health")
    assert (foreign.reembedding, foreign.awaiting_vectors) == (None, total)


def test_background_replaces_all_vectors(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    later = stores.open(LATER_MODEL)
    before = read_vectors(later)
    start_reembedding(later, monkeypatch)
    wait_until(lambda: call(later, "health").reembedding is None)
    after = read_vectors(later)
    assert {name for name, _, _ in after.values()} == {LATER}
    # The weights are those of the earlier model here, so the passages must get the very same vectors once more.
    assert {i: signs for i, (_, _, signs) in after.items()} == {i: signs for i, (_, _, signs) in before.items()}
    assert len(set(after) ^ set(before)) == 0
    assert call(later, "verify").ok
    assert call(later, "verify").checked["behind"] == 0
    assert call(later, "recall", query="the heating was fixed", k=1)[0].content == TEXTS[0]


def test_process_that_ends_soon_does_not_reembed(stores: Stores) -> None:
    later = stores.open(LATER_MODEL)
    call(later, "recall", query="the heating was fixed")
    call(later, "remember", content="a long one. " * 600)  # its vectors are encoded in the background
    wait_until(lambda: not call(later, "health").awaiting_vectors and not later.store.encoder.backlog_lock.locked())
    assert count_models(later)[EARLIER] == len(TEXTS) + len(TURNS)
    assert not [thread for thread in threading.enumerate() if thread.name == "athena-reembed"]


def test_closing_store_ends_reembedding(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    later = stores.open(LATER_MODEL)
    monkeypatch.setattr(index, "REEMBED_BATCH_SIZE", 4)
    start_reembedding(later, monkeypatch)
    wait_until(lambda: count_models(later).get(LATER))
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "athena-reembed"]
    later.close()
    thread.join(10)
    assert not thread.is_alive()
    assert None not in count_models(stores.open(LATER_MODEL))


REEMBEDDING = """
    import sys, time
    from athena.app.compose import App, open_postgres
    from athena.embedding.minilm import MiniLM
    from athena.memory import index
    from athena.storage.sqlite.store import Sqlite

    MiniLM.name, MiniLM.compatible_models = "later/2", ("earlier/1",)
    index.REEMBED_DELAY_S, index.REEMBED_BATCH_SIZE = 0, 4
    address = sys.argv[1]
    database = open_postgres(address) if address.startswith("postgres") else Sqlite(address)
    index.reembed_in_background(App(database, MiniLM()).store)
    print("begun", flush=True)
    time.sleep(600)
"""


def start_reembedding_process(stores: Stores) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(REEMBEDDING), stores.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def test_killed_process_loses_nothing(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    watching, total = stores.open(FOREIGN_MODEL), len(TEXTS) + len(TURNS)
    process = start_reembedding_process(stores)
    wait_until(lambda: count_models(watching).get(LATER))
    process.kill()
    process.communicate()
    counts = count_models(watching)
    assert set(counts) == {EARLIER, LATER}
    assert sum(counts.values()) == total
    assert all(signs for _, _, signs in read_vectors(watching).values())
    later = stores.open(LATER_MODEL)
    assert call(later, "verify").ok
    start_reembedding(later, monkeypatch)
    wait_until(lambda: count_models(later) == {LATER: total})


LATER_SERVER = serve_command(
    "from athena.embedding.minilm import MiniLM",
    f"MiniLM.name, MiniLM.compatible_models = '{LATER}', ('{EARLIER}',)",
    "import athena.memory.index",
    "athena.memory.index.REEMBED_DELAY_S = 0",
)


def test_server_reembeds_by_itself(stores: Stores, tmp_path: Path) -> None:
    watching = stores.open(FOREIGN_MODEL)
    is_file = stores.address == str(stores.file)
    address = {"ATHENA_DB_PATH" if is_file else "ATHENA_DATABASE_URL": stores.address}
    with run_server(tmp_path / "server", home=tmp_path / "home", command=LATER_SERVER, **address):
        wait_until(lambda: set(count_models(watching)) == {LATER})
    assert count_models(watching) == {LATER: len(TEXTS) + len(TURNS)}


def test_mcp_server_reembeds_by_itself(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "REEMBED_DELAY_S", 0.0)
    later = stores.open(LATER_MODEL)
    with connect.use_app(later):
        client = serve_in_process("p")
        wait_until(lambda: set(count_models(later)) == {LATER})
        client.shutdown(socket.SHUT_WR)
        while client.recv(4_096):
            pass
        client.close()
    assert count_models(later) == {LATER: len(TEXTS) + len(TURNS)}


def test_two_processes_share_the_work(stores: Stores) -> None:
    watching = stores.open(FOREIGN_MODEL)
    processes = [start_reembedding_process(stores) for _ in range(2)]
    wait_until(lambda: count_models(watching) == {LATER: len(TEXTS) + len(TURNS)})
    for process in processes:
        assert process.poll() is None
        process.kill()
        process.communicate()
    assert call(watching, "verify").ok


def test_processes_pick_different_passages(stores: Stores) -> None:
    later = stores.open(LATER_MODEL)

    async def pick(tx: Transaction) -> list[int]:
        return await later.store.database.vectors.pick_outdated(tx, MODELS, 4)

    picks = [run_sync(later.store.database.read(pick)) for _ in range(120)]
    assert all(len(picked) in range(1, 5) for picked in picks)
    assert len({tuple(picked) for picked in picks}) > 4
    assert len({passage for picked in picks for passage in picked}) > len(TEXTS) // 2


@pytest.mark.parametrize("change", ["purge", "update_memory", "reembed"])
def test_passage_that_changes_meanwhile_keeps_the_change(stores: Stores, change: str) -> None:
    later, vectors = stores.open(LATER_MODEL), stores.open(LATER_MODEL).store.database.vectors

    async def pick(tx: Transaction) -> list[int]:
        return await vectors.pick_outdated(tx, MODELS, 1_000)

    picked: set[int] = set()
    while len(picked) < len(TEXTS) + len(TURNS):
        picked |= set(run_sync(later.store.database.read(pick)))
    memory_id = call(later, "recall", query=TEXTS[0], k=1)[0].id
    if change == "purge":
        call(later, "purge", memory_ids=[memory_id], expect=1)
    elif change == "update_memory":
        call(later, "update_memory", memory_id=memory_id, content="All of it was a dream")
    else:
        call(later, "reembed", limit=256)
    before = read_vectors(later)
    late = [(passage, bytes(np.full(MiniLM.dimensions, 7, np.int8))) for passage in sorted(picked)]

    async def write_late(tx: Transaction) -> None:
        await vectors.replace_vectors(tx, late, MODELS)
        await vectors.set_tokens(tx, [(passage, b"x" * 16) for passage, _ in late])

    run_sync(later.store.database.write(write_late))
    after = read_vectors(later)
    for passage, (model, code, _) in before.items():
        assert after[passage][0] == LATER
        assert (after[passage][1] == code) == (model == LATER), "a vector that is new already stays"
    orphans = read_rows(
        later, "SELECT passage FROM tokens WHERE passage NOT IN (SELECT id FROM passages WHERE memory <> 0)"
    )
    assert orphans == []
    assert call(later, "verify").ok


def test_earlier_version_opens_store_again(stores: Stores) -> None:
    later = stores.open(LATER_MODEL)
    call(later, "reembed", limit=20)
    call(later, "remember", content="Our accountant retires next summer")
    earlier = stores.open(EARLIER_MODEL)
    by_words = [hit.content for hit in call(earlier, "recall", query="accountant", k=5)]
    assert "Our accountant retires next summer" in by_words
    assert call(earlier, "health").awaiting_vectors == 21
    while call(earlier, "reembed", limit=256).remaining:
        pass
    assert call(earlier, "recall", query="the bookkeeper stops working", k=1)[0].content.startswith("Our accountant")
    assert call(earlier, "verify").ok
    assert call(stores.open(LATER_MODEL), "health").reembedding == Progress(0, len(TEXTS) + len(TURNS) + 1)


def test_forgotten_memory_comes_back_with_its_vector(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    later = stores.open(LATER_MODEL)
    call(later, "forget", memory_id=call(later, "recall", query=TEXTS[0], k=1)[0].id)
    start_reembedding(later, monkeypatch)
    wait_until(lambda: call(later, "health").reembedding is None)
    call(later, "undo")
    assert count_models(later)[EARLIER] == 1
    assert call(later, "recall", query="the heating was fixed", k=1)[0].content == TEXTS[0]


def test_model_names_are_told_apart(stores: Stores) -> None:
    later = stores.open(LATER_MODEL)
    call(later, "reembed", limit=1)
    call(stores.open(FOREIGN_MODEL), "remember", content="of another model")

    async def read_ids(tx: Transaction) -> Any:
        return await fetch_model_ids(tx, MODELS)

    models = run_sync(later.store.database.read(read_ids))
    names = dict(read_rows(later, "SELECT id, name FROM models"))
    assert names[models.current] == LATER
    assert [names[i] for i in models.compatible] == [EARLIER]
    assert [names[i] for i in models.others] == ["foreign/1"]
