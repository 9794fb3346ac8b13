"""Vector blocks give a new process the same vector cache as the rows do, after any write."""

import random
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.storage import scopes
from athena.storage.filters import Filter
from athena.storage.sqlite import vector_blocks
from athena.storage.sqlite.store import Sqlite
from athena.storage.sqlite.vector_cache import VectorCache
from athena.storage.sqlite.vectors import SqliteVectorIndex
from conftest import DEFERRED_DELAY_S, rounds
from wait_tools import wait_until

SIZE = 70  # not a multiple of 64
COLUMNS = [name for name, _ in vector_blocks.COLUMNS]


class Scattered:
    """An embedder whose vectors depend only on the text."""

    name, dimensions = "scattered/1", SIZE
    compatible_models: tuple[str, ...] = ()

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([np.random.default_rng(crc32(t.encode())).normal(size=SIZE) for t in texts], np.float32)


class Other(Scattered):
    name = "other/1"


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_blocks, "BLOCK_IDS", 16)
    monkeypatch.setattr(vector_blocks, "MIN_CHANGED_ROWS", 12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def app(path: Path) -> Generator[App]:
    app = App(Sqlite(path, defer_delay_s=DEFERRED_DELAY_S), Scattered())
    yield app
    app.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python"), **arguments))


def load_cache(app: App, index: SqliteVectorIndex) -> VectorCache:
    async def work(tx: Any) -> VectorCache:
        scope_ids = await scopes.fetch_visible_ids(tx, Scope("p"))
        selection = await index.select_candidates(tx, Filter(Scope("p")), scope_ids, app.store.encoder.models, SIZE)
        [cache] = selection.caches
        await cache.load_codes(tx, cache.ready_rows)
        return cache

    return run_sync(app.store.database.read(work))


def read_rows(app: App) -> VectorCache:
    """Return the cache that a process builds which finds no blocks."""
    with pytest.MonkeyPatch.context() as patch:

        async def find_none(*_: Any) -> int:
            return 0

        patch.setattr(vector_blocks, "fetch_stamp", find_none)
        return load_cache(app, SqliteVectorIndex())


def assert_equal(found: VectorCache, expected: VectorCache) -> None:
    assert (found.stamp, found.rows) == (expected.stamp, expected.rows)
    assert (found.live == expected.live).all()
    for name in COLUMNS:  # of a passage that is removed, a cache keeps the rest as it was
        assert (getattr(found, name)[expected.live] == getattr(expected, name)[expected.live]).all(), name
    ready = expected.ready_rows
    assert (found.signs[:, ready] == expected.signs[:, ready]).all()
    assert (found.take_codes(ready) == expected.take_codes(ready)).all()


def read_blocks(path: Path) -> list[tuple[Any, ...]]:
    with apsw.Connection(str(path)) as raw:
        rows = raw.execute("SELECT number, stamp, data FROM vector_blocks ORDER BY number").fetchall()
    raw.close()
    return rows


def write_blocks(app: App, path: Path, texts: int = 40) -> None:
    """Store texts, search, and wait for the blocks."""
    call(app, "remember_batch", items=[f"text {i}" for i in range(texts)])
    call(app, "recall", query="text")
    wait_until(lambda: len(read_blocks(path)) >= texts // 16)


def test_blocks_agree_with_rows_after_any_write(app: App, path: Path) -> None:
    choose = random.Random(7)
    ids: list[int] = []
    with_blocks = 0
    for step in range(rounds(40, 400)):
        action = choose.choice(["remember", "remember", "forget", "update", "restore", "purge"])
        if action == "remember" or not ids:
            items = [f"text {step} {i}" for i in range(choose.randint(1, 20))]
            ids += [stored.id for stored in call(app, "remember_batch", items=items)]
        elif action == "forget":
            call(app, "forget_batch", memory_ids=choose.sample(ids, min(len(ids), 5)))
        elif action == "update":
            memory = choose.choice(call(app, "list_memories", k=1_000) or [None])
            if memory is not None:
                call(app, "update_memory", memory_id=memory.id, content=f"new text {step}")
        elif action == "restore":
            call(app, "restore_memory", memory_id=choose.choice(ids))
        elif choose.random() < 0.3:
            gone = choose.choice(ids)
            ids.remove(gone)
            call(app, "purge", memory_ids=[gone], expect=1)
        call(app, "recall", query="text")  # makes blocks due
        run_sync(app.store.database.write(_do_nothing))
        expected = read_rows(app)
        assert_equal(load_cache(app, SqliteVectorIndex()), expected)
        assert_equal(load_cache(app, app.store.database.vectors), expected)  # type: ignore[arg-type]
        with_blocks += bool(read_blocks(path))
    verdict = call(app, "verify")
    assert verdict.ok, verdict.problems
    assert with_blocks > 10


async def _do_nothing(_: Any) -> None: ...


def test_new_process_reads_no_row_that_has_not_changed(app: App, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_blocks(app, path)
    call(app, "remember", content="one more")
    index = SqliteVectorIndex()
    changed: list[int] = []
    apply = VectorCache.apply_changes

    def note_changes(cache: VectorCache, changes: Any, models: Any) -> VectorCache:
        changed.append(len(changes.passages))
        return apply(cache, changes, models)

    monkeypatch.setattr(VectorCache, "apply_changes", note_changes)
    assert load_cache(app, index).rows == 41
    assert changed == [1]


@pytest.mark.parametrize("damage", ["substr(data, 1, 40)", "x''", "data || x'00'", "zeroblob(length(data))"])
def test_damaged_block_is_found_ignored_and_written_anew(app: App, path: Path, damage: str) -> None:
    write_blocks(app, path)
    with apsw.Connection(str(path)) as raw:
        raw.set_busy_timeout(60_000)  # on a busy machine the writer may still be closing
        raw.execute(f"UPDATE vector_blocks SET data = {damage} WHERE number = 1").fetchall()
    raw.close()
    verdict = call(app, "verify")
    assert [problem for problem in verdict.problems if "vector block 1 of scope" in problem]
    app.store.database.vectors._caches.clear()  # type: ignore[attr-defined]  # what a new process starts with
    assert len(call(app, "recall", query="text", k=100, min_score=0)) == 40
    wait_until(lambda: call(app, "verify").ok)
    assert_equal(load_cache(app, SqliteVectorIndex()), read_rows(app))


def test_block_that_differs_from_rows_is_found(app: App, path: Path) -> None:
    write_blocks(app, path)
    [(number, _, data), *_] = read_blocks(path)
    block = vector_blocks.unpack_block(data, SIZE)
    assert block is not None
    for name in ("memories", "signs", "live"):
        changed = {key: column.copy() for key, column in block.items()}
        changed[name].flat[0] ^= 1
        cache = VectorCache.with_rows(1, SIZE, 0, 1, len(changed["passages"]))
        cache.fill_rows(0, changed)
        cache.refresh_views()
        with apsw.Connection(str(path)) as raw:
            raw.set_busy_timeout(60_000)
            values = (vector_blocks.pack_block(cache, slice(0, cache.rows)), number)
            raw.execute("UPDATE vector_blocks SET data = ? WHERE number = ?", values).fetchall()
        raw.close()
        assert [p for p in call(app, "verify").problems if "differs from its passages" in p], name


def test_purge_leaves_no_block(app: App, path: Path) -> None:
    write_blocks(app, path)
    call(app, "purge", memory_ids=[3], expect=1)
    assert read_blocks(path) == []


def test_blocks_of_another_model_are_ignored(app: App, path: Path) -> None:
    write_blocks(app, path)
    other = App(Sqlite(path, defer_delay_s=DEFERRED_DELAY_S), Other())
    assert not load_cache(other, SqliteVectorIndex()).ready.any()
    call(other, "reembed", limit=1_000)
    assert load_cache(other, SqliteVectorIndex()).ready.all()
    assert_equal(load_cache(other, SqliteVectorIndex()), read_rows(other))
    other.close()
