"""Postings that are kept in memory say what the index says, whoever wrote."""

import random
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import NotFound
from athena.storage import scopes
from athena.storage.database import TextMatches
from athena.storage.filters import Filter
from athena.storage.sqlite import fulltext
from athena.storage.sqlite.fulltext import SqliteFullText
from athena.storage.sqlite.store import Sqlite

TEXT = "the deploy of cache runs at night but fails when disk is full while backup waits for lock"
WORDS = tuple(TEXT.split())


class OneVector:
    """An embedder for which all texts are alike: only words matter here."""

    name, dimensions = "one/1", 8
    compatible_models: tuple[str, ...] = ()

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), self.dimensions), np.float32)


@pytest.fixture
def apps(tmp_path: Path) -> Any:
    """Two apps of one store, as two processes have them."""
    opened = [App(Sqlite(tmp_path / "a.db"), OneVector()) for _ in range(2)]
    for project in ("p", "q"):
        call(opened[0], project, "remember", content=TEXT)
    yield opened
    for app in opened:
        app.close()


def call(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))


def search(app: App, project: str, question: str, index: SqliteFullText) -> TextMatches:
    async def work(tx: Any) -> TextMatches:
        vectors, only = app.store.database.vectors, Filter(Scope(project))
        scope_ids = await scopes.fetch_visible_ids(tx, only.scope)
        among = await vectors.select_candidates(tx, only, scope_ids, app.store.encoder.models, 0)
        return await index.search_text(tx, among, question, 1_000)

    return run_sync(app.store.database.read(work))


def get_index(app: App) -> SqliteFullText:
    index = app.store.database.fulltext
    assert isinstance(index, SqliteFullText)
    return index


def assert_alike(app: App, project: str, question: str) -> None:
    kept = search(app, project, question, get_index(app))
    anew = search(app, project, question, SqliteFullText())
    one: Any
    other: Any
    for one, other in zip(kept, anew, strict=True):
        assert len(one) == len(other)
        pairs = zip(one, other, strict=True)
        assert all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def make_text(chosen: random.Random) -> str:
    return " ".join(chosen.choice(WORDS) for _ in range(chosen.choice((4, 8, 12, 400))))


@pytest.mark.parametrize("most_read", [10_000, 12], ids=["all terms are read", "common terms only score"])
def test_kept_postings_agree_with_the_index_after_any_write(
    apps: list[App], monkeypatch: pytest.MonkeyPatch, most_read: int
) -> None:
    monkeypatch.setattr(fulltext, "MAX_TERM_PASSAGES", most_read)
    chosen, ids = random.Random(4), list[tuple[str, int]]()
    for step in range(250):
        app, project = chosen.choice(apps), chosen.choice(["p", "p", "p", "q", "user"])
        action = chosen.choice(["add"] * 3 + ["forget", "restore", "edit", "tag", "purge"]) if len(ids) > 30 else "add"
        owner, memory = chosen.choice(ids) if ids else ("p", 0)
        if action == "add":
            count = 150 if step % 60 == 59 else 1  # more than are followed one by one
            items = [f"{make_text(chosen)} {step} {i}" for i in range(count)]
            ids += [(project, one.id) for one in call(app, project, "remember_batch", items=items)]
        elif action == "purge":
            ids = [one for one in ids if one != (owner, memory)]
            call(app, owner, "forget", memory_id=memory)
            call(app, owner, "purge", memory_ids=[memory], expect=1)
        elif action in ("forget", "restore"):
            call(app, owner, f"{action}{'_memory' * (action == 'restore')}", memory_id=memory)
        else:
            change = (
                {"content": f"{make_text(chosen)} {step}"} if action == "edit" else {"tags": [chosen.choice(WORDS)]}
            )
            with suppress(NotFound):  # it is forgotten
                call(app, owner, "update_memory", memory_id=memory, **change)
        assert_alike(chosen.choice(apps), chosen.choice(["p", "q"]), " ".join(chosen.sample(WORDS, 4)))
    assert get_index(apps[0]).kept._kept


def test_searches_beside_writes_leave_no_wrong_postings(apps: list[App]) -> None:
    chosen = random.Random(5)
    texts = [f"{make_text(chosen)} {i}" for i in range(120)]

    def write(app: App, mine: list[str]) -> None:
        for text in mine:
            stored = call(app, "p", "remember", content=text)
            if stored.id % 5 == 0:
                call(app, "p", "forget", memory_id=stored.id)

    writers = [threading.Thread(target=write, args=(app, texts[i::2])) for i, app in enumerate(apps)]
    for writer in writers:
        writer.start()
    errors = list[BaseException]()

    def ask() -> None:
        try:
            while any(writer.is_alive() for writer in writers):
                search(apps[0], "p", " ".join(random.sample(WORDS, 3)), get_index(apps[0]))
        except BaseException as error:  # noqa: BLE001  # shown below
            errors.append(error)

    readers = [threading.Thread(target=ask) for _ in range(3)]
    for reader in readers:
        reader.start()
    for thread in (*writers, *readers):
        thread.join()
    assert not errors
    for word in WORDS:
        assert_alike(apps[0], "p", word)


def test_the_memory_of_postings_is_bounded(apps: list[App], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fulltext, "MAX_KEPT_BYTES", 3_000)
    monkeypatch.setattr(fulltext, "KEPT_BYTES_PER_PASSAGE", 0)
    call(apps[0], "p", "remember_batch", items=[f"{word} {i}" for word in WORDS for i in range(20)])
    kept = get_index(apps[0]).kept
    for word in WORDS:
        assert_alike(apps[0], "p", word)
        assert kept._size == sum(postings.size for _, postings in kept._kept.values()) <= 3_000
    assert not kept.release_unused()
    monkeypatch.setattr(fulltext, "MAX_UNUSED_S", -1.0)
    assert kept.release_unused()
    assert not kept._kept
    assert_alike(apps[0], "p", WORDS[1])


def test_changes_that_no_search_asks_for_are_released(apps: list[App], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fulltext, "MAX_CHANGE_LOGS", 2)
    index = SqliteFullText()
    for number in range(4):
        call(apps[0], f"p{number}", "remember", content=TEXT)
        search(apps[0], f"p{number}", "deploy cache", index)
        call(apps[0], f"p{number}", "remember", content=f"{TEXT} {number}")
        search(apps[0], f"p{number}", "deploy cache", index)
    assert len(index.kept._logs) == 2
    monkeypatch.setattr(fulltext, "MAX_UNUSED_S", -1.0)
    assert index.kept.release_unused()
    assert not index.kept._logs
    assert not index.kept._kept
    assert len(search(apps[0], "p0", "deploy cache", index).memories) == 2
