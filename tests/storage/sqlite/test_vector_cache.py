"""The vector cache agrees with the store after any write, and finds what an exact scan finds."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.storage import scopes
from athena.storage.arrays import quantize_vectors
from athena.storage.database import VectorMatches
from athena.storage.filters import Filter
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from athena.storage.sqlite.vector_cache import PassageChanges, VectorCache, pack_signs

SIZE = 384


def _topic(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).normal(size=SIZE).astype(np.float32)


class Scattered:
    """An embedder whose vectors depend only on the text."""

    name, dimensions = "scattered/1", SIZE
    compatible_models: tuple[str, ...] = ()

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.array([_topic(crc32(text.encode()) % 40) + 0.5 * _topic(crc32(text.encode())) for text in texts])
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def remember(app: App, texts: list[str]) -> list[int]:
    context = app.create_context("p", "python")
    stored = run_sync(app.catalog.get_operation("remember_batch")(context, items=texts))
    return [one.id for one in stored]


def nearest(app: App, vector: Any, limit: int, only: Filter | None = None) -> VectorMatches:
    async def work(tx: Any) -> VectorMatches:
        vectors = app.store.database.vectors
        memory_filter = only or Filter(Scope("p"))
        scope_ids = await scopes.fetch_visible_ids(tx, memory_filter.scope)
        among = await vectors.select_candidates(tx, memory_filter, scope_ids, app.store.encoder.models, SIZE)
        return await vectors.search_nearest(tx, among, vector, limit, None)

    return run_sync(app.store.database.read(work))


def test_sign_search_matches_exact_scan() -> None:
    app = App(Sqlite(IN_MEMORY_PATH), Scattered())
    texts = [f"text {i}" for i in range(4_000)]
    numbers = np.array(remember(app, texts))
    exact = Scattered().embed(texts)
    shared = []
    for i in range(20):
        question = Scattered().embed([f"question {i}"])[0]
        near = nearest(app, question, 10)
        best = near.memories[np.argsort(-near.cosines)[:10]]
        truth = numbers[np.argsort(-(exact @ question))[:10]]
        shared.append(len(set(best.tolist()) & set(truth.tolist())))
    assert np.mean(shared) >= 9, shared
    app.close()


def test_rare_filter_applies_before_search(tmp_path: Path) -> None:
    app = App(Sqlite(tmp_path / "a.db"), Scattered())
    remember(app, [f"text {i}" for i in range(3_000)])
    context = app.create_context("p", "python")
    items = [{"content": f"rare {i}", "tags": "rare"} for i in range(7)]
    rare = {s.id for s in run_sync(app.catalog.get_operation("remember_batch")(context, items=items))}
    near = nearest(app, Scattered().embed(["text 5"])[0], 50, Filter(Scope("p"), tags=("rare",)))
    assert set(near.memories.tolist()) == rare
    app.close()


def _write_elsewhere(path: str, texts: list[str], forget: list[int]) -> None:
    app = App(Sqlite(path), Scattered())
    remember(app, texts)
    run_sync(app.catalog.get_operation("forget_batch")(app.create_context("p", "python"), memory_ids=forget))
    app.close()


def test_changes_by_other_process_are_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    app = App(Sqlite(path), Scattered())
    first = remember(app, [f"text {i}" for i in range(100)])
    assert len(nearest(app, Scattered().embed(["text 1"])[0], 1000).memories) == 100
    other = multiprocessing.get_context("spawn").Process(
        target=_write_elsewhere, args=(path, ["from elsewhere", "and more"], first[:10])
    )
    other.start()
    other.join(60)
    assert other.exitcode == 0
    near = nearest(app, Scattered().embed(["from elsewhere"])[0], 1000)
    assert len(near.memories) == 92
    assert not set(near.memories.tolist()) & set(first[:10])
    app.close()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "forget", "restore", "update"]), st.integers(0, 30)), min_size=1, max_size=40
    )
)
def test_incremental_cache_equals_full_load(steps: list[tuple[str, int]]) -> None:
    app = App(Sqlite(IN_MEMORY_PATH), Scattered())
    context = app.create_context("p", "python")
    question = Scattered().embed(["question"])[0]

    def call(name: str, **arguments: Any) -> Any:
        return run_sync(app.catalog.get_operation(name)(context, **arguments))

    numbers = remember(app, ["first", "second"])
    assert steps
    for i, (action, pick) in enumerate(steps):
        number = numbers[pick % len(numbers)]
        if action == "add":
            numbers += remember(app, [f"added {i}"])
        elif action == "forget":
            call("forget", memory_id=number)
        elif action == "restore":
            call("restore_memory", memory_id=number)
        elif any(m.id == number for m in call("list_memories", k=100)):
            call("update_memory", memory_id=number, content=f"updated {i}")
        grown = nearest(app, question, 1000)
        app.store.database.vectors._caches.clear()  # type: ignore[attr-defined]  # what a new process starts with
        fresh = nearest(app, question, 1000)
        assert dict(zip(grown.memories.tolist(), grown.cosines.tolist(), strict=True)) == dict(
            zip(fresh.memories.tolist(), fresh.cosines.tolist(), strict=True)
        )
    app.close()


class Turned(Scattered):
    """A later model: the vectors of the earlier one, turned a little."""

    name, compatible_models = "turned/2", (Scattered.name,)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = super().embed(texts) + 0.3 * np.roll(super().embed(texts), 1, axis=1)
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def test_replaced_vectors_are_seen_at_once(tmp_path: Path) -> None:
    earlier = App(Sqlite(tmp_path / "a.db"), Scattered())
    remember(earlier, [f"text {i}" for i in range(60)])
    earlier.close()
    app = App(Sqlite(tmp_path / "a.db"), Turned())
    context = app.create_context("p", "python")
    question = Turned().embed(["question"])[0]

    def search() -> dict[int, float]:
        matches = nearest(app, question, 1000)
        return dict(zip(matches.memories.tolist(), matches.cosines.tolist(), strict=True))

    before = search()
    assert len(before) == 60
    for step in range(6):
        assert run_sync(app.catalog.get_operation("reembed")(context, limit=10)).done == 10
        grown = search()
        assert sum(grown[memory] != before[memory] for memory in before) == 10 * (step + 1)
        app.store.database.vectors._caches.clear()  # type: ignore[attr-defined]  # what a new process starts with
        assert search() == grown
    app.close()


def test_older_change_does_not_overwrite_newer_vector() -> None:
    def change(stamp: int, value: int, passages: int = 3) -> PassageChanges:
        ids, code = np.arange(passages), np.full(SIZE, value, np.int8).tobytes()
        ones = np.ones(passages, np.int64)
        return PassageChanges(ids, ids, ones, ones, stamp * ones, ones, ids, 0 * ones, [code] * passages)

    def read_values(cache: VectorCache) -> set[int]:
        return set(cache.take_codes(np.arange(cache.rows))[:, 0].tolist())

    first = VectorCache(0, SIZE).apply_changes(change(1, 1), (1,))
    newer = first.apply_changes(change(3, 3), (1,))
    older = first.apply_changes(change(2, 2), (1,))  # by a thread that read the store before the newer change
    assert (newer.stamp, older.stamp) == (3, 2)
    assert read_values(newer) == {3}
    grown = older.apply_changes(change(4, 4, passages=5), (1,))
    assert read_values(grown) == {4}
    assert grown.rows == 5
    assert read_values(newer) == {3}


def test_quantized_vectors_keep_direction() -> None:
    vectors = Scattered().embed([f"text {i}" for i in range(100)])
    codes = np.frombuffer(b"".join(quantize_vectors(vectors)), np.int8).reshape(100, SIZE).astype(np.float32)
    cosines = (codes * vectors).sum(axis=1) / np.linalg.norm(codes, axis=1)
    assert cosines.min() > 0.999
    assert pack_signs(vectors).shape == (6, 100)
