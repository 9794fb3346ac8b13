"""Token signs that are kept in memory are those of the file, whoever wrote."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.embedding.minilm import MiniLM
from athena.storage.database import Transaction
from athena.storage.sqlite import vectors
from athena.storage.sqlite.store import Sqlite
from athena.storage.sqlite.vectors import KeptTokens, SqliteVectorIndex

TEXT = "the deploy of our cache runs at night but fails when the disk is full and a backup waits"
WORDS = tuple(TEXT.split())


@pytest.fixture
def apps(tmp_path: Path) -> Any:
    """Two apps of one store, as two processes have them."""
    model = MiniLM()
    opened = [App(Sqlite(tmp_path / "a.db"), model) for _ in range(2)]
    yield opened
    for app in opened:
        app.close()


def call(app: App, project: str, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))


def get_index(app: App) -> SqliteVectorIndex:
    index = app.store.database.vectors
    assert isinstance(index, SqliteVectorIndex)
    return index


async def write_other_signs(app: App, chosen: random.Random, tx: Transaction) -> None:
    passage, code = chosen.choice(await tx.fetch("SELECT id, code FROM passages WHERE code IS NOT NULL ORDER BY id"))
    await get_index(app).set_vectors(tx, [(passage, code)], app.store.encoder.name)
    await get_index(app).set_tokens(tx, [(passage, chosen.randbytes(128))])


def test_kept_tokens_are_those_of_the_file_after_any_write(apps: list[App]) -> None:
    chosen, ids = random.Random(3), list[int]()
    for step in range(80):
        writer, reader = chosen.choice(apps), chosen.choice(apps)
        text = f"{' '.join(chosen.sample(WORDS, 6))} {step}"
        action = (
            chosen.choice(["add", "edit", "forget", "restore_memory", "purge", "encode"]) if len(ids) > 9 else "add"
        )
        if action == "add":
            ids.append(call(writer, "p", "remember", content=text).id)
        elif action == "edit":
            call(writer, "p", "restore_memory", memory_id=ids[0])
            call(writer, "p", "update_memory", memory_id=ids[0], content=text)
        elif action == "purge":
            call(writer, "p", "forget", memory_id=(purged := ids.pop()))
            call(writer, "p", "purge", memory_ids=[purged], expect=1)
        elif action == "encode":
            run_sync(writer.store.database.write(partial(write_other_signs, writer, chosen)))
        else:
            call(writer, "p", action, memory_id=chosen.choice(ids))
        question, index = " ".join(chosen.sample(WORDS, 4)), get_index(reader)
        kept, terms = index.kept_tokens, []
        for one in (kept, KeptTokens(), kept):
            index.kept_tokens = one
            hits = call(reader, "p", "recall", query=question, k=20, explain=True)
            terms.append([(hit.id, hit.why["tokens"]) for hit in hits])
        assert terms[0] == terms[1] == terms[2]
    assert get_index(reader).kept_tokens._kept


def test_memory_of_kept_tokens_is_bounded(apps: list[App], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_KEPT_TOKEN_BYTES", 8_000)
    call(apps[0], "p", "remember_batch", items=[f"{word} {i}" for word in WORDS for i in range(9)])
    for word in WORDS:
        assert call(apps[0], "p", "recall", query=word)
        kept = get_index(apps[0]).kept_tokens
        assert kept._size <= 4_000
    assert kept._earlier
