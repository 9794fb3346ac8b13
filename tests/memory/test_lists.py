"""Lists by time: pages that continue after a memory, filters, and costs that do not grow with the store."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import NotFound
from athena.storage.sqlite.store import Sqlite
from conftest import Engine

SMALL, LARGE = 200, 2_000
STEPS_PER_TICK = 10  # instructions of SQLite between two calls of the progress handler


class Letters:
    """An embedder that takes no time."""

    name, dimensions = "letters/1", 4
    compatible_models: tuple[str, ...] = ()

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([[len(t), t.count("a"), t.count("e"), 1] for t in texts], np.float32)


class Clock:
    now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


def call(app: App, name: str, project: str = "p", **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))


@pytest.fixture
def shelf(engine: Engine, tmp_path: Path) -> Any:
    """Return an app with memories of two projects, many of the same second, with tags and types."""
    clock = Clock()
    app = App(engine.open(tmp_path / "shelf.db"), Letters(), time=clock)
    for batch in range(4):
        clock.now += 3_600 * 10
        for project in ("p", "user"):
            items = [
                {
                    "content": f"note {project} {batch} {i}",
                    "tags": [tag for tag, every in (("Red", 2), ("blue", 3)) if i % every == 0],
                    "memory_type": "decision" if i % 5 == 0 else "note",
                }
                for i in range(12)
            ]
            call(app, "remember_batch", project, items=items)
    yield app
    app.close()


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("list_memories", {}),
        ("list_memories", {"memory_type": "decision"}),
        ("list_memories", {"tags": ["red"], "memory_type": "note"}),
        ("list_memories", {"tags": ["red", "BLUE"], "since": Clock.now + 3_600 * 15}),
        ("search_by_tag", {"tags": ["red"]}),
        ("search_by_tag", {"tags": ["red", "blue"]}),
        ("search_by_tag", {"tags": ["red", "blue"], "match": "all"}),
        ("search_by_tag", {"tags": ["red", "unknown"], "match": "all"}),
    ],
)
def test_pages_after_a_memory_join_to_the_whole_list(shelf: App, operation: str, arguments: dict[str, Any]) -> None:
    whole = call(shelf, operation, k=1_000, **arguments)
    ids = [memory.id for memory in whole]
    assert len(ids) == len(set(ids)) == whole.total
    expected = [memory.id for memory in call(shelf, "list_memories", k=1_000) if _matches(memory, arguments)]
    assert ids == expected
    for size in (1, 7, 50):
        pages: list[int] = []
        by_offset: list[int] = []
        after = None
        while page := call(shelf, operation, k=size, after=after, **arguments):
            assert page.total == len(ids)
            by_offset += [m.id for m in call(shelf, operation, k=size, offset=len(pages), **arguments)]
            pages += [memory.id for memory in page]
            after = page[-1].hash
        assert pages == by_offset == ids


def _matches(memory: Any, arguments: dict[str, Any]) -> bool:
    tags, wanted = {tag.casefold() for tag in memory.tags}, {tag.casefold() for tag in arguments.get("tags", [])}
    has_tags = wanted <= tags if arguments.get("match") == "all" else not wanted or bool(wanted & tags)
    is_new = memory.created >= arguments.get("since", 0)
    return has_tags and is_new and arguments.get("memory_type") in (None, memory.memory_type)


def test_page_goes_on_after_a_memory_that_was_forgotten(shelf: App) -> None:
    ids = [memory.id for memory in call(shelf, "list_memories", k=1_000)]
    call(shelf, "forget", memory_id=ids[9])
    call(shelf, "remember", content="newer than all of them")
    assert [memory.id for memory in call(shelf, "list_memories", k=5, after=ids[9])] == ids[10:15]
    with pytest.raises(NotFound):
        call(shelf, "list_memories", after=10**9)


@pytest.mark.both_engines
def test_tags_are_listed_as_the_project_spells_them(shelf: App) -> None:
    call(shelf, "remember", "user", content="a red note of the user", tags=["RED"])
    assert {count.tag: count.count for count in call(shelf, "list_tags")} == {"Red": 49, "blue": 32}


def count_steps(app: App, name: str, **arguments: Any) -> int:
    """Return how many instructions of SQLite an operation takes, in units of STEPS_PER_TICK."""
    ticks = 0

    def count_tick() -> bool:
        nonlocal ticks
        ticks += 1
        return False

    assert isinstance(app.store.database, Sqlite)
    call(app, name, **arguments)  # opens what it needs
    connections: list[apsw.Connection] = app.store.database._pool.idle
    assert len(connections) == 1
    connections[0].set_progress_handler(count_tick, STEPS_PER_TICK)
    call(app, name, **arguments)
    connections[0].set_progress_handler(None)
    return ticks


@pytest.fixture(scope="module")
def grown_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Return the files of a small store and of a large one that grew from it."""
    folder = tmp_path_factory.mktemp("grown")
    clock = Clock()
    stores: dict[int, Path] = {}
    for first, size in ((0, SMALL), (SMALL, LARGE)):
        path = folder / f"{size}.db"
        if first:
            shutil.copy(stores[first], path)
        app = App(Sqlite(path), Letters(), time=clock)
        for begin in range(first, size, 200):
            clock.now += 3_600
            items = [
                {
                    "content": f"note {i}",
                    "tags": ["common", f"topic {i % 7}"],
                    "memory_type": "rare" if i < 30 else "note",
                }
                for i in range(begin, begin + 200)
            ]
            call(app, "remember_batch", items=items)
        call(app, "forget_batch", memory_ids=[first + 1, first + 2])
        app.close()
        stores[size] = path
    return stores


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_memories", {"k": 20}),
        ("list_memories", {"k": 20, "memory_type": "rare"}),
        ("list_memories", {"k": 20, "after": 150}),
        ("search_by_tag", {"tags": "common", "k": 20}),
        ("list_tags", {}),
        ("stats", {}),
        ("expertise", {}),
        ("health", {}),
    ],
)
def test_cost_does_not_grow_with_the_store(grown_stores: dict[int, Path], name: str, arguments: dict[str, Any]) -> None:
    steps, clock = {}, Clock()
    for size, path in grown_stores.items():
        clock.now += 3_600 * (size // 200)  # after the last of its memories
        app = App(Sqlite(path), Letters(), time=clock)
        steps[size] = count_steps(app, name, **arguments)
        app.close()
    assert steps[SMALL] > 0
    assert steps[LARGE] < 2 * steps[SMALL], steps
