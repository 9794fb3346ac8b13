"""Search on PostgreSQL: term counts, the HNSW index, large projects, and isolation of projects."""

import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import postgres
import psycopg
import pytest
from numpy.typing import NDArray
from postgres_tools import call, database_name, new_database, query

from athena.app.compose import App
from athena.core.hashing import hash_text
from athena.core.threads import run_sync
from athena.core.values import ModelNames, Scope
from athena.memory.ranking import Weights
from athena.storage import counts, scopes
from athena.storage.database import IndexedPassage, Transaction
from athena.storage.filters import Filter
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE
from athena.storage.postgres import fulltext, store, vectors
from athena.storage.postgres.fulltext import PostgresFullText
from athena.storage.postgres.store import Postgres
from athena.storage.terms import parse_query_terms
from conftest import rounds
from wait_tools import wait_until

CROWD = rounds(6_000, 26_000)  # passages of the large project
DIMENSIONS = 24
GRAPH = f"passages_near_1_{DIMENSIONS}"


class Bag:
    """A small model: a text's vector is the sum of random vectors of its words."""

    compatible_models: tuple[str, ...] = ()

    def __init__(self, name: str = "bag", dimensions: int = DIMENSIONS) -> None:
        self.name, self.dimensions = name, dimensions

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        sums = np.array([sum(map(self._word, text.lower().split()), np.zeros(self.dimensions)) for text in texts])
        made: NDArray[np.float32] = (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-9)).astype("f4")
        return made

    def _word(self, word: str) -> NDArray[np.float64]:
        return np.random.default_rng(int(hash_text(word)[:8], 16)).normal(size=self.dimensions)


def open_bag_app(url: str, embedder: Bag | None = None) -> App:
    return App(Postgres(url), embedder or Bag())


def fill(url: str, project: str, count: int, each: int = 1) -> None:
    """Write a project of many random memories directly into the tables, `each` passages per memory."""
    chance, words = np.random.default_rng(count), PostgresFullText()
    codes = np.clip(chance.normal(size=(count * each, DIMENSIONS)) * 40, -127, 127).astype(int)
    with psycopg.connect(url, autocommit=False) as connection:
        connection.execute("SET search_path TO athena, public")
        connection.execute("INSERT INTO scopes (name, kind) VALUES (%s, 'memory') ON CONFLICT DO NOTHING", [project])
        one = connection.execute("SELECT id FROM scopes WHERE name = %s", [project]).fetchone()
        model = connection.execute("SELECT id FROM models WHERE name = 'bag'").fetchone()
        first = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM memories").fetchone()
        assert one is not None
        assert model is not None
        assert first is not None
        scope = one[0]
        memories, passages, lexemes = [], [], []
        for i in range(count):
            number, text = first[0] + i, " ".join(f"filler stone{i} grey{i % 50} p{j}." for j in range(each))
            digest = hash_text(text)
            memories.append((number, scope, digest, digest[:12], text, "", "[]", "note", "{}", i, i, i, 0.5))
            start = 0
            for j in range(each):
                piece = f"filler stone{i} grey{i % 50} p{j}."
                passage = scope * PASSAGE_IDS_PER_SCOPE + first[0] * 50 + i * each + j
                code = f"[{','.join(map(str, codes[i * each + j]))}]"
                size = len(piece.split())
                passages.append((passage, scope, number, start, len(piece), size, number, 0, 1, 1, 0, model[0], code))
                kept = words.to_tsvector(scope, IndexedPassage(passage, piece, ""))
                lexemes.append((scope, passage, number, None if each == 1 else number, size, kept))
                start += len(piece) + 1
        _copy(connection, "memories (id, scope, digest, hash, content, label, tags, memory_type, metadata, happened,"
              " created, updated, importance)", memories)  # fmt: skip
        _copy(connection, "passages (id, scope, memory, start, length, words, session, voice, live, windowed, stamp,"
              " model, code)", passages)  # fmt: skip
        _copy(connection, "words (scope, passage, memory, session, length, lexemes)", lexemes)
        connection.execute(
            """INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, count(DISTINCT memory), count(*), sum(length) FROM words
               WHERE scope = %s AND memory >= %s GROUP BY 1""",
            [scope, first[0]],
        )
        connection.execute("DELETE FROM counts")
        for query in counts.RECOUNT_SQL:
            connection.execute(f"INSERT INTO counts ({counts.COLUMNS}) {query}".encode())
        connection.execute("SELECT setval('passage_numbers', greatest(nextval('passage_numbers'), 100000000))")
        connection.execute("SELECT setval(pg_get_serial_sequence('memories', 'id'), (SELECT max(id) FROM memories))")
        connection.execute("ANALYZE words, passages, memories")


def _copy(connection: psycopg.Connection[Any], table: str, rows: list[tuple[Any, ...]]) -> None:
    with connection.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)


def index_states(url: str) -> list[tuple[str, bool]]:
    return query(
        url,
        """SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
           WHERE c.relname LIKE 'passages_near%' ORDER BY 1""",
    )


@pytest.fixture(scope="module")
def large(server: postgres.Server) -> str:
    """Return a database with one large project, a small one, and the index built."""
    url = new_database(server)
    app = open_bag_app(url)
    for i in range(50):
        call(app, "remember", content=f"rare{i} lantern in the small house", tags=["even" if i % 2 == 0 else "odd"],
             memory_type="note" if i < 40 else "decision", project="small")  # fmt: skip
    fill(url, "crowd", CROWD)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(vectors, "MAX_SCANNED_PASSAGES", 1_000)
        call(app, "recall", project="crowd", query="stone7 grey7")
        wait_until(lambda: index_states(url) == [(GRAPH, True)])
    assert call(app, "verify").problems == ()
    app.close()
    return url


@pytest.fixture
def large_app(large: str, monkeypatch: pytest.MonkeyPatch) -> Generator[App]:
    """Return the store with the large project, which uses the index."""
    monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", 1_000)
    app = open_bag_app(large)
    yield app
    app.close()


def nearest_memories(app: App, project: str, vector: NDArray[np.float32], limit: int) -> list[int]:
    """Return the memories nearest to a vector, nearest first."""

    async def work(tx: Transaction) -> list[int]:
        found, encoder = app.store.database.vectors, app.store.encoder
        scope_ids = await scopes.fetch_visible_ids(tx, Scope(project))
        among = await found.select_candidates(tx, Filter(Scope(project)), scope_ids, encoder.models, encoder.dimensions)
        made = await found.search_nearest(tx, among, vector, limit, None)
        best: dict[int, float] = {}
        for memory, cosine in zip(made.memories.tolist(), made.cosines.tolist(), strict=True):
            best[memory] = max(cosine, best.get(memory, -1.0))
        return sorted(best, key=lambda memory: -best[memory])

    return run_sync(app.store.database.read(work))


def test_term_counts_are_read_back(server: postgres.Server) -> None:
    app = open_bag_app(new_database(server))
    items = [
        {"content": f"{'kettle ' * n} number{n}{label}", "tags": ["kettle"] if label else []}
        for n in range(1, 41)
        for label in ("", "labelled")
    ]
    items.append({"content": "only in the label", "tags": ["kettle"]})
    stored = call(app, "remember_batch", items=items)

    async def work(tx: Transaction) -> dict[int, tuple[float, bool]]:
        vectors, scope = app.store.database.vectors, Scope("test")
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        among = await vectors.select_candidates(tx, Filter(scope), scope_ids, ModelNames("bag"), DIMENSIONS)
        nodes, _ = await fulltext._read_term_passages(tx, among, parse_query_terms("kettle"), 0)
        rows = zip(nodes.memories.tolist(), nodes.text[0].tolist(), nodes.label[0].tolist(), strict=True)
        return {memory: (text, label) for memory, text, label in rows}

    found = run_sync(app.store.database.read(work))
    counts = [(n, label) for n in range(1, 41) for label in (False, True)]
    assert [found[one.id] for one in stored] == [*counts, (0, True)]
    app.close()


def test_small_project_beside_large_is_complete(large_app: App) -> None:
    hits = call(large_app, "recall", project="small", query="lantern", k=10)
    assert len(hits) == 10
    assert {hit.project for hit in hits} == {"small"}
    assert len(nearest_memories(large_app, "small", Bag().embed(["stone5 grey5"])[0], 50)) == 50
    for i in (0, 17, 49):
        assert call(large_app, "recall", project="small", query=f"rare{i}", k=1)[0].content.startswith(f"rare{i} ")


def test_rare_tag_results_are_complete(large_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged = [
        call(large_app, "remember", project="crowd", content=f"pebble{i} on the beach", tags=["rare"]) for i in range(8)
    ]
    for exact in (1_000, 10):  # by exact comparison, or by an index scan that continues until it has found them all
        monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", exact)
        hits = call(large_app, "recall", project="crowd", query="something else entirely", k=20, tags=["rare"])
        assert {hit.id for hit in hits} == {one.id for one in tagged}
    call(large_app, "forget_batch", project="crowd", memory_ids=[one.id for one in tagged])
    assert call(large_app, "recall", project="crowd", query="pebble3", tags=["rare"]) == []
    assert call(large_app, "recall", project="crowd", query="pebble3 on the beach", k=1)[0].id != tagged[3].id


def test_hnsw_index_matches_full_scan(large_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(5)
    asked = chance.normal(size=(20, DIMENSIONS)).astype("f4")
    by_graph = [nearest_memories(large_app, "crowd", vector, 100)[:10] for vector in asked]
    monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", 10_000_000)  # larger, so that no index is used
    exactly = [nearest_memories(large_app, "crowd", vector, 100)[:10] for vector in asked]
    shared = [len(set(one) & set(other)) for one, other in zip(by_graph, exactly, strict=True)]
    assert sum(shared) / len(shared) >= 9


def test_large_project_uses_hnsw_index(large_app: App, large: str) -> None:
    def used() -> int:
        (row,) = query(large, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = %s", GRAPH)
        return int(row[0])

    before = used()
    for i in range(3):
        nearest_memories(large_app, "crowd", Bag().embed([f"stone{i}"])[0], 10)
    large_app.close()  # connections report their statistics when they close
    assert wait_until(lambda: used() >= before + 3)


def test_rare_and_common_words_are_found(large_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (3, CROWD // 2, CROWD - 1):
        hits = call(large_app, "recall", project="crowd", query=f"which filler is stone{number}", k=3)
        assert f"stone{number} " in hits[0].content
    assert len(call(large_app, "recall", project="crowd", query="filler", k=7)) == 7  # all texts contain the word
    assert len(call(large_app, "recall", project="crowd", query="grey7 filler nowhere", k=7)) == 7


def test_parallel_query_finds_same(large_app: App, large: str) -> None:
    name = database_name(large)
    expected = [hit.id for hit in call(large_app, "recall", project="crowd", query="filler stone9 grey9", k=5)]
    for setting in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
        query(large, f"ALTER DATABASE {name} SET {setting} = 0")
    try:
        app = open_bag_app(large)
        found = [hit.id for hit in call(app, "recall", project="crowd", query="filler stone9 grey9", k=5)]
        app.close()
    finally:
        query(large, f"ALTER DATABASE {name} RESET ALL")
    assert found[0] == expected[0]


def test_other_project_is_never_found(large_app: App) -> None:
    for asked in ("filler", "stone7 grey7", "rare7 lantern"):
        assert {hit.project for hit in call(large_app, "recall", project="small", query=asked, k=50)} <= {"small"}
        assert {hit.project for hit in call(large_app, "recall", project="crowd", query=asked, k=200)} <= {"crowd"}
        assert call(large_app, "recall", project="nobody's", query=asked) == []
    assert not [
        hit for hit in call(large_app, "recall", project="small", query="stone7", k=50) if "stone" in hit.content
    ]
    known = call(large_app, "remember", project="user", content="heard everywhere about the stone7")
    assert call(large_app, "recall", project="small", query="heard everywhere", k=1)[0].id == known.id
    call(large_app, "forget", project="user", memory_id=known.id)


def test_filters_hold_on_every_page(large_app: App) -> None:
    odd = call(large_app, "recall", project="small", query="lantern in the house", k=100, tags=["odd"])
    assert len(odd) == 25
    assert {hit.tags for hit in odd} == {("odd",)}
    decided = call(large_app, "recall", project="small", query="lantern", k=100, memory_type="decision")
    assert {hit.memory_type for hit in decided} == {"decision"}
    assert len(decided) == 10
    both = call(large_app, "recall", project="small", query="lantern", k=100, memory_type="decision", tags=["even"])
    assert len(both) == 5
    pages = [
        call(large_app, "recall", project="small", query="house", k=7, offset=at, tags=["odd"]) for at in (0, 7, 14, 21)
    ]
    assert sorted(hit.id for page in pages for hit in page) == sorted(hit.id for hit in odd)
    assert call(large_app, "recall", project="small", query="lantern", since="tomorrow") == []
    assert len(call(large_app, "recall", project="crowd", query="stone", k=30, until="1970-01-02")) == 30
    assert call(large_app, "recall", project="crowd", query="stone7", since="yesterday") == []


@pytest.mark.parametrize("exact", [10_000, 100])
def test_deep_pages_show_memories_once(server: postgres.Server, monkeypatch: pytest.MonkeyPatch, exact: int) -> None:
    """Even if some memories have so many passages that these alone would fill the list."""
    url = new_database(server)
    app = App(Postgres(url), Bag(), weights=Weights(strength=0.0))  # else use changes the order a little later
    call(app, "remember", content="warm up")  # registers the model
    call(app, "forget", memory_id=1)
    fill(url, "test", 120, each=12)
    for i in range(60):
        call(app, "remember", content=f"lonely{i} thing without company")
    monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", exact)
    call(app, "recall", query="stone7")
    if exact < 1_000:
        wait_until(lambda: index_states(url) == [(GRAPH, True)])
    for asked in ("stone5 p3", "nowhere to be seen", "filler"):
        whole = call(app, "recall", query=asked, k=1_000)
        assert len({hit.id for hit in whole}) == len(whole) == 180
        pages = [hit.id for at in range(0, 200, 40) for hit in call(app, "recall", query=asked, k=40, offset=at)]
        assert sorted(pages[40:]) == sorted(set(pages[40:]))
        assert {*pages} == {hit.id for hit in whole}
        assert len(pages) == 180
    assert call(app, "verify").problems == ()
    app.close()


def block_index_build(url: str, holding: psycopg.Connection[Any]) -> None:
    """Block an index build for as long as this connection's transaction is open."""
    holding.execute("BEGIN")
    holding.execute("LOCK TABLE athena.passages IN ROW EXCLUSIVE MODE")
    holding.execute("SELECT pg_current_xact_id()")


def is_building_index(url: str) -> bool:
    return bool(query(url, "SELECT 1 FROM pg_stat_progress_create_index WHERE command = 'CREATE INDEX CONCURRENTLY'"))


@pytest.fixture
def medium_project(server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> Generator[tuple[str, App]]:
    """Return a project that is large enough for an index and has none yet."""
    monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", 100)  # smaller, to be quick
    url = new_database(server)
    app = open_bag_app(url)
    call(app, "remember", content="lantern")
    fill(url, "crowd", 300)
    yield url, app
    app.close()


def test_store_works_during_index_build(medium_project: tuple[str, App]) -> None:
    url, app = medium_project
    with psycopg.connect(url, autocommit=True) as holding:
        block_index_build(url, holding)
        assert call(app, "recall", project="crowd", query="stone7", k=1)[0].content.startswith("filler stone7 ")
        wait_until(lambda: is_building_index(url))
        assert call(app, "recall", project="crowd", query="stone8", k=1)[0].content.startswith("filler stone8 ")
        new = call(app, "remember", project="crowd", content="stored meanwhile")
        assert call(app, "recall", project="crowd", query="meanwhile", k=1)[0].id == new.id
        call(app, "forget", project="crowd", memory_id=new.id)
        assert call(app, "verify").problems == ()
        assert call(app, "purge", project="crowd", expect=1) == 1
        assert call(app, "health").status == "healthy"
        assert is_building_index(url), "nobody had to wait for it"
        assert index_states(url) == [(GRAPH, False)]
        holding.execute("COMMIT")
    wait_until(lambda: index_states(url) == [(GRAPH, True)])
    hits = call(app, "recall", project="crowd", query="stone7", k=1)
    assert hits[0].content.startswith("filler stone7 ")


def test_unfinished_index_is_rebuilt(medium_project: tuple[str, App], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "GRAPH_RETRY_DELAY_S", 600)
    url, app = medium_project
    with psycopg.connect(url, autocommit=True) as holding:
        block_index_build(url, holding)
        call(app, "recall", project="crowd", query="stone7")
        wait_until(lambda: is_building_index(url))
        query(url, "SELECT pg_terminate_backend(pid) FROM pg_stat_progress_create_index")
        wait_until(lambda: not is_building_index(url))
        holding.execute("COMMIT")
    assert index_states(url) == [(GRAPH, False)]
    assert call(app, "verify").problems == ()
    assert call(app, "recall", project="crowd", query="stone8", k=1)[0].content.startswith("filler stone8 ")
    assert "graph cannot be built" in call(app, "health").problems[0]
    # The next search that needs it retries after a while.
    monkeypatch.setattr(store, "GRAPH_RETRY_DELAY_S", 0.1)
    app.store.database._index_retry_at = 0.0  # type: ignore[attr-defined]
    wait_until(lambda: call(app, "recall", project="crowd", query="stone8") and index_states(url) == [(GRAPH, True)])
    assert call(app, "verify").problems == ()


def test_statement_timeout_allows_index_build(
    medium_project: tuple[str, App],
) -> None:
    url, _ = medium_project
    name = database_name(url)
    query(url, f"ALTER DATABASE {name} SET statement_timeout = '800ms'")
    app = open_bag_app(url)
    with psycopg.connect(url, autocommit=True) as holding:
        block_index_build(url, holding)
        call(app, "recall", project="crowd", query="stone7")
        wait_until(lambda: is_building_index(url))
        time.sleep(1.6)
        holding.execute("COMMIT")
    assert wait_until(lambda: index_states(url) == [(GRAPH, True)])
    app.close()


def test_only_one_process_builds_index(medium_project: tuple[str, App]) -> None:
    url, _ = medium_project
    apps = [open_bag_app(url) for _ in range(3)]
    with psycopg.connect(url, autocommit=True) as holding, ThreadPoolExecutor(6) as pool:
        block_index_build(url, holding)
        list(pool.map(lambda i: call(apps[i % 3], "recall", project="crowd", query=f"stone{i}"), range(12)))
        wait_until(lambda: is_building_index(url))
        time.sleep(0.3)
        assert query(url, "SELECT count(*) FROM pg_stat_progress_create_index") == [(1,)]
        holding.execute("COMMIT")
    wait_until(lambda: index_states(url) == [(GRAPH, True)])
    for app in apps:
        app.close()


def test_models_of_other_dimension_coexist(medium_project: tuple[str, App]) -> None:
    url, first = medium_project
    call(first, "recall", project="crowd", query="stone7")
    wait_until(lambda: index_states(url) == [(GRAPH, True)])
    second = open_bag_app(url, Bag("wide", 40))
    memory = call(second, "remember", project="crowd", content="made by the other model")
    assert call(second, "recall", project="crowd", query="made by the other", k=1)[0].id == memory.id
    assert call(first, "recall", project="crowd", query="made by the other", k=1)[0].id == memory.id  # by its words
    assert call(first, "recall", project="crowd", query="stone7", k=1)[0].content.startswith("filler stone7 ")
    while call(second, "reembed", limit=200).remaining:
        pass
    call(second, "recall", project="crowd", query="stone7")
    wait_until(lambda: ("passages_near_2_40", True) in index_states(url))
    hits = call(second, "recall", project="crowd", query="stone9 grey9", k=1)[0]
    assert hits.content.startswith("filler stone9 ")
    assert call(first, "recall", project="crowd", query="stone7", k=1)[0].content.startswith("filler stone7 ")
    assert call(second, "verify").problems == ()
    second.close()


def test_model_with_changed_dimension_is_safe(
    medium_project: tuple[str, App],
) -> None:
    url, first = medium_project
    call(first, "recall", project="crowd", query="stone7")
    wait_until(lambda: index_states(url) == [(GRAPH, True)])
    second = open_bag_app(url, Bag("bag", 40))
    new = [call(second, "remember", project="crowd", content=f"kettle on the stove {i}") for i in range(3)]
    long = "which filler is stone7 grey7 and where did the old kettle stand all day on that stove"
    for app in (second, first):  # each by its own vectors, and the other's by words
        for asked in ("stone7", long):
            assert "stone7 " in str(call(app, "recall", project="crowd", query=asked, k=5))
        assert call(app, "recall", project="crowd", query="kettle", k=3)[0].id in {one.id for one in new}
        assert len(call(app, "recall", project="crowd", query="stove", k=1_000)) >= 3
        call(app, "find_duplicates", project="crowd")
    second.close()


def test_concurrent_searches_see_whole_store(large_app: App) -> None:
    """A search that sees a memory in one index sees it in all."""
    over = threading.Event()
    stored: list[int] = []

    def writing() -> None:
        for i in range(40):
            stored.append(call(large_app, "remember", project="busy", content=f"comet{i} passes the lantern").id)
            if i % 3 == 0:
                call(large_app, "forget", project="busy", memory_id=stored[-1])
        over.set()

    with ThreadPoolExecutor(3) as pool:
        work = pool.submit(writing)
        while not over.is_set():
            before = {one.id for one in call(large_app, "list_memories", project="busy", k=100)}
            hits = call(large_app, "recall", project="busy", query="comet lantern", k=60)
            after = {one.id for one in call(large_app, "list_memories", project="busy", k=100)}
            assert len({hit.id for hit in hits}) == len(hits)
            assert before & after <= {hit.id for hit in hits}
        work.result()
    assert len(call(large_app, "recall", project="busy", query="comet lantern", k=60)) == 26


def test_graphs_of_compatible_models_are_searched_together(
    medium_project: tuple[str, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, first = medium_project
    call(first, "recall", project="crowd", query="stone7")
    wait_until(lambda: index_states(url) == [(GRAPH, True)])
    embedder = Bag("bag/2")
    embedder.compatible_models = ("bag",)
    second = open_bag_app(url, embedder)
    asked = np.random.default_rng(5).normal(size=(10, DIMENSIONS)).astype("f4")
    exact = [nearest_memories(first, "crowd", vector, 60)[:10] for vector in asked]
    assert [nearest_memories(second, "crowd", vector, 60)[:10] for vector in asked] == exact
    # Half of the passages are of the new model from now on, and have the vectors that they had.
    call(second, "remember", content="registers the new model")
    query(url, "UPDATE passages SET model = (SELECT id FROM models WHERE name = 'bag/2') WHERE id % 2 = 0")
    assert [nearest_memories(second, "crowd", vector, 60)[:10] for vector in asked] == exact
    wait_until(lambda: index_states(url) == [(GRAPH, True), (f"passages_near_2_{DIMENSIONS}", True)])
    assert [nearest_memories(second, "crowd", vector, 60)[:10] for vector in asked] == exact
    half = [nearest_memories(first, "crowd", vector, 60) for vector in asked]
    assert all(len(memories) <= 150 for memories in half), "the first model knows nothing of the second"
    second.close()
