"""Memories: purge, undo, history, verification and embedding models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pytest
from numpy.typing import NDArray

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput, NotFound, Unavailable
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite


class Caller:
    """Calls operations of an app by name."""

    def __init__(self, app: App, project: str = "p", key: str | None = None) -> None:
        self.app, self.project, self.key = app, project, key

    def __getattr__(self, name: str) -> Any:
        context = self.app.create_context(self.project, "python", self.key)
        return lambda **arguments: run_sync(self.app.catalog.get_operation(name)(context, **arguments))


class Broken:
    """An embedder whose model fails to load until it is repaired."""

    name, dimensions, works = "mended/1", 4, False
    compatible_models: tuple[str, ...] = ()

    def load(self) -> None:
        if not self.works:
            raise Unavailable("the model file is gone", hint="install it again")

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.load()
        vectors = np.array([[len(t), t.count("a"), t.count("e"), 1] for t in texts], np.float32)
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def read_sql(app: App, sql: str) -> list[tuple[Any, ...]]:
    async def work(tx: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await tx.fetch(sql)
        return rows

    return run_sync(app.store.database.read(work))


def test_purged_text_is_not_in_files(tmp_path: Path) -> None:
    path = tmp_path / "athena.db"
    app = App(Sqlite(path), Broken())
    memory = Caller(app)
    for i in range(50):
        memory.remember(content=f"ordinary note number {i}", tags=["plain"])
    doomed = memory.remember(content="xyzzyplugh lives at zork street", tags=["frobozz"], metadata={"source": "grue"})
    memory.update_memory(memory_id=doomed.id, content="xyzzyplugh moved to flood control dam")
    memory.forget(memory_id=doomed.id)
    memory.remember(content="another one after it")
    assert memory.purge(expect=1) == 1
    for where in ("while open", "closed"):
        found = b"".join(file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")).lower()
        for secret in (b"xyzzi", b"xyzzyplugh", b"zork", b"flood control", b"frobozz", b"grue"):
            assert secret not in found, (where, secret)
        assert b"ordinary note number 7" in found
        if where == "while open":
            assert memory.verify().ok
            app.close()


def test_purge_requires_exact_count(app: App) -> None:
    memory = Caller(app)
    stored = memory.remember(content="one")
    with pytest.raises(Conflict, match="1 memory would be removed"):
        memory.purge(memory_ids=[stored.id])
    with pytest.raises(NotFound):
        memory.purge(memory_ids=["abcdef99"], expect=1)
    assert memory.purge(memory_ids=[stored.hash], expect=1) == 1
    assert memory.list_memories() == []


def test_repeated_key_happens_once(app: App) -> None:
    memory = Caller(app)
    first = Caller(app, key="k1").remember(content="paid the invoice")
    again = Caller(app, key="k1").remember(content="paid the invoice")
    assert (again.id, again.outcome) == (first.id, "new")
    assert read_sql(app, "SELECT occurrences FROM memories") == [(1,)]
    with pytest.raises(Conflict, match="used for another remember"):
        Caller(app, key="k1").forget(memory_id=first.id)
    assert Caller(app, key="k2").forget(memory_id=first.id) is True
    assert Caller(app, key="k2").forget(memory_id=first.id) is True, "the answer it got the first time"
    assert memory.forget(memory_id=first.id) is False


def test_search_without_model_uses_words(app: App) -> None:
    embedder = Broken()
    memory = Caller(App(Sqlite(IN_MEMORY_PATH), embedder))
    memory.remember(content="the gate code is kept by Maria")
    assert [hit.content for hit in memory.recall(query="who has the gate code")] == ["the gate code is kept by Maria"]
    health = memory.health()
    assert health.status == "degraded"
    assert "the model file is gone" in health.problems[0]
    assert "install it again" in health.problems[0]
    with pytest.raises(Unavailable, match="model file is gone"):
        memory.reembed()
    embedder.works = True
    memory.app.store.encoder.last_error = None
    assert memory.reembed() == type(memory.reembed())(1, 0)
    assert memory.health().status == "healthy"
    memory.app.close()


def test_changed_model_reembeds_gradually(tmp_path: Path) -> None:
    first = App(Sqlite(tmp_path / "a.db"), Working("one", 4))
    for i in range(100):
        Caller(first).remember(content=f"note {i} {'ea' * i}")
    first.close()
    memory = Caller(App(Sqlite(tmp_path / "a.db"), Working("two", 6)))
    assert memory.health().status == "degraded"
    assert memory.health().awaiting_vectors == 100
    assert memory.recall(query="note 42", k=1)[0].content.startswith("note 42 ")
    assert (memory.reembed(limit=30).done, memory.reembed(limit=30).remaining) == (30, 40)
    fresh = memory.remember(content="found at once, aaaa")
    assert fresh.id in {hit.id for hit in memory.recall(query="aaaa", k=3)}
    while memory.reembed(limit=64).remaining:
        pass
    assert memory.health().status == "healthy"
    assert memory.verify().ok
    assert len(memory.recall(query="zzz", k=200)) == 101, "all are found by meaning again"
    memory.app.close()


class Working(Broken):
    works = True

    def __init__(self, name: str, dimensions: int) -> None:
        self.name, self.dimensions = name, dimensions

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        four = super().embed(texts)
        return np.concatenate([four, np.zeros((len(four), self.dimensions - 4), np.float32)], axis=1)


def test_long_text_is_embedded_later(app: App) -> None:
    memory = Caller(app)
    filler = "The committee discussed the annual budget for office furniture at length. " * 12
    text = "\n".join([filler] * 30 + ["Our cat Whiskers was vaccinated by Doctor Lee."])
    stored = memory.remember(content=text)
    assert memory.recall(query="vaccinated", k=1)[0].id == stored.id
    while memory.reembed(limit=64).remaining:
        pass
    memory.remember(content="The printer on the second floor needs toner")
    assert memory.recall(query="when did the pet get its shots", k=1)[0].id == stored.id


def test_undo_reverts_each_kind_of_change(app: App) -> None:
    memory = Caller(app)
    one = memory.remember(content="alpha", tags=["x"])
    memory.undo()
    assert memory.list_memories() == []
    memory.remember(content="alpha", tags=["x"])
    memory.remember(content="alpha", tags=["y"])
    memory.undo()
    assert memory.get_memory(memory_id=one.id).tags == ("x",)
    memory.update_memory(memory_id=one.id, content="beta", tags="z", metadata={"k": 1})
    memory.undo()
    found = memory.get_memory(memory_id=one.id)
    assert (found.content, found.tags, found.metadata) == ("alpha", ("x",), {})
    memory.remember_batch(items=["m1", "m2", {"content": "m3", "tags": "q"}])
    memory.undo()
    assert [m.content for m in memory.list_memories()] == ["alpha"]
    memory.forget_batch(memory_ids=[one.id])
    memory.undo()
    assert memory.recall(query="alpha", k=1)[0].id == one.id
    assert memory.verify().ok


def test_undo_without_changes_raises_error(app: App) -> None:
    with pytest.raises(NotFound, match="nothing to undo"):
        Caller(app).undo()


def test_project_cannot_undo_others_changes(app: App) -> None:
    ours, theirs = Caller(app, "ours"), Caller(app, "theirs")
    secret = theirs.remember(content="their plan is blue")
    with pytest.raises(NotFound):
        ours.undo()
    assert ours.recall(query="their plan is blue") == []
    for call in (ours.get_memory, ours.memory_history):
        with pytest.raises(NotFound):
            call(memory_id=secret.id)
    assert ours.forget(memory_id=secret.hash) is False
    everywhere = Caller(app, "user").remember(content="the user likes tea")
    assert ours.recall(query="tea", k=1)[0].id == everywhere.id
    assert {m.id for m in theirs.list_memories()} == {secret.id, everywhere.id}
    assert ours.stats()["memories"] == 1


def test_update_to_existing_text_conflicts(app: App) -> None:
    memory = Caller(app)
    memory.remember(content="alpha")
    beta = memory.remember(content="beta")
    with pytest.raises(Conflict, match="says exactly this already"):
        memory.update_memory(memory_id=beta.id, content="alpha")
    assert memory.get_memory(memory_id=beta.id).content == "beta"


def test_history_lists_changes_with_before(app: App) -> None:
    memory = Caller(app)
    one = memory.remember(content="alpha")
    memory.update_memory(memory_id=one.id, content="beta")
    memory.forget(memory_id=one.id)
    memory.restore_memory(memory_id=one.id)
    changes = memory.memory_history(memory_id=one.id)
    assert [change.action for change in changes] == ["remembered", "updated", "forgotten", "restored"]
    assert [change.operation for change in changes] == ["remember", "update_memory", "forget", "restore_memory"]
    assert changes[1].before["content"] == "alpha"


def test_near_duplicates_are_grouped(app: App) -> None:
    memory = Caller(app)
    memory.remember_batch(
        items=[
            "The deploy runs every Friday at three in the afternoon.",
            "The deploy runs each Friday at three in the afternoon.",
            "Maria is allergic to peanuts.",
            "maria is allergic to peanuts",
            "The roof was painted green.",
        ]
    )
    groups = memory.find_duplicates(threshold=0.9)
    assert sorted(len(group.memories) for group in groups) == [2, 2]
    assert all(group.likeness >= 0.9 for group in groups)


def test_related_memories_show_both_sides(app: App) -> None:
    memory = Caller(app)
    one, two = memory.remember(content="cause"), memory.remember(content="effect")
    memory.relate_memories(memory_id=one.id, other_id=two.hash, relation="leads to")
    assert [(r.relation, r.id) for r in memory.get_memory(memory_id=two.id).related] == [("leads to", one.id)]
    with pytest.raises(InvalidInput, match="itself"):
        memory.relate_memories(memory_id=one.id, other_id=one.id)


DAMAGE = {
    "the text of a memory was changed": "UPDATE memories SET content = 'alphA one' WHERE content = 'alpha one'",
    "a passage is gone": "DELETE FROM passages WHERE memory = 1",
    "a vector is cut short": "UPDATE passages SET code = x'00' WHERE memory = 1",
    "a vector is missing": "UPDATE passages SET code = NULL WHERE memory = 1",
    "a tag is missing": "DELETE FROM tags WHERE memory = 1",
    "a row is gone": "DELETE FROM memories WHERE id = 1",
    "a word is missing": """INSERT INTO words (words, rowid, text, label)
        SELECT 'delete', id, text, label FROM passage_words WHERE id = (SELECT min(id) FROM passages)""",
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_verify_names_damage(tmp_path: Path, damage: str) -> None:
    app = App(Sqlite(tmp_path / "a.db"), Working("one", 4))
    memory = Caller(app)
    memory.remember(content="alpha one", tags=["x"])
    memory.remember(content="beta two", tags=["y"])
    assert memory.verify().ok

    async def harm(tx: Any) -> None:
        await tx.execute(damage)

    run_sync(app.store.database.write(harm))
    verdict = memory.verify()
    assert not verdict.ok
    assert verdict.problems[0]
    app.close()


def test_damaged_file_is_named_without_crash(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    app = App(Sqlite(path), Working("one", 4))
    for i in range(400):  # so many that the second half of the file has none of the schema
        Caller(app).remember(content=f"note {i} " + "word " * 50)
    app.close()
    raw = bytearray(path.read_bytes())
    for at in range(len(raw) // 2, len(raw) - 4096, 4096):
        raw[at : at + 64] = b"\xff" * 64
    path.write_bytes(raw)
    damaged = App(Sqlite(path), Working("one", 4))
    verdict = Caller(damaged).verify()
    assert not verdict.ok
    assert "damaged" in verdict.problems[0]
    damaged.close()


def test_verify_passes_after_concurrent_changes(app: App) -> None:
    memory = Caller(app)
    items = [{"content": f"note {i} about {'tea' if i % 2 else 'coffee'}", "tags": [f"t{i % 7}"]} for i in range(200)]
    stored = memory.remember_batch(items=items)
    memory.forget_batch(memory_ids=[s.id for s in stored[::3]])
    memory.update_memory(memory_id=stored[1].id, content="changed entirely")
    assert memory.forget_by_tag(tags="t1", expect=len(memory.search_by_tag(tags="t1", k=1000))) > 0
    verdict = memory.verify()
    assert verdict.ok, verdict.problems
    assert verdict.checked["memories"] == 200


@pytest.mark.sqlite_only("apsw")
def test_apsw_connection_never_stays_in_transaction(app: App) -> None:
    memory = Caller(app)
    with pytest.raises(NotFound):
        memory.get_memory(memory_id=999)
    raw = apsw.Connection(app.store.database.describe_location())
    raw.execute("BEGIN IMMEDIATE").fetchall()
    raw.execute("ROLLBACK").fetchall()
    raw.close()
    assert memory.remember(content="x").outcome == "new"


def test_unused_project_leaves_global_memories_alone(app: App) -> None:
    everywhere, fresh = Caller(app, "user"), Caller(app, "fresh")
    shared = everywhere.remember(content="known everywhere")
    with pytest.raises(NotFound, match="nothing to undo"):
        fresh.undo()
    everywhere.forget(memory_id=shared.id)
    assert fresh.purge(expect=0) == 0
    assert everywhere.restore_memory(memory_id=shared.id) is True
    copy = fresh.remember(content="known everywhere")
    assert (copy.outcome, copy.id == shared.id) == ("new", False)
    assert fresh.health().awaiting_vectors == 0


def test_undo_reverts_change_to_global_memory(app: App) -> None:
    memory = Caller(app, "p")
    mine = memory.remember(content="one")
    shared = Caller(app, "user").remember(content="two")
    memory.forget(memory_id=shared.id)
    memory.undo()
    assert {m.id for m in memory.list_memories()} == {mine.id, shared.id}


def test_undo_removes_relation(app: App) -> None:
    memory = Caller(app)
    one, two = memory.remember(content="cause"), memory.remember(content="effect")
    memory.relate_memories(memory_id=one.id, other_id=two.id)
    memory.undo()
    assert memory.get_memory(memory_id=one.id).related == ()
    assert len(memory.list_memories()) == 2


def test_undo_of_edit_keeps_vectors(app: App) -> None:
    memory = Caller(app)
    one = memory.remember(content="first wording")
    memory.update_memory(memory_id=one.id, content="second wording")
    memory.undo()
    assert memory.health().awaiting_vectors == 0


def test_secrets_in_tags_and_metadata_redacted(app: App) -> None:
    memory = Caller(app)
    token = "ghp_" + "a1B2" * 9
    stored = memory.remember(content="x", tags=[token], memory_type=token, metadata={token: {"deep": [token]}})
    assert stored.redacted == ("github-token",) * 4
    updated = memory.update_memory(memory_id=stored.id, content=f"use {token}", metadata={"more": token})
    assert updated.redacted == ("github-token",) * 2
    assert token not in repr(updated) + repr(memory.memory_history(memory_id=stored.id))


def test_unreachable_remote_model_leaves_full_text(app: App) -> None:
    class Away(Broken):
        @property
        def dimensions(self) -> int:  # type: ignore[override]
            raise Unavailable("the server does not answer")

    memory = Caller(App(Sqlite(IN_MEMORY_PATH), Away()))
    memory.remember(content="the gate code is kept by Maria")
    assert len(memory.recall(query="gate code")) == 1
    memory.app.close()


def test_undo_takes_back_own_change_and_says_whose_it_is(app: App) -> None:
    def call(surface: str, name: str, **arguments: Any) -> Any:
        return run_sync(app.catalog.get_operation(name)(app.create_context("p", surface), **arguments))

    mine = call("cli", "remember", content="a note of the person")
    call("mcp", "remember", content="a note of the model")
    call("program", "remember", content="a note of a program")
    [undone] = call("mcp", "undo")  # a model's programs are its own
    assert (undone.before["content"], undone.by) == ("a note of a program", "program")
    [undone] = call("cli", "undo")
    assert (undone.before["content"], undone.by) == ("a note of the person", "cli")
    with pytest.raises(NotFound, match="the last change is remember, by mcp") as refused:
        call("cli", "undo")
    assert "anyone" in (refused.value.hint or "")
    with pytest.raises(NotFound):
        call("http", "undo")
    [undone] = call("cli", "undo", anyone=True)
    assert (undone.before["content"], undone.by) == ("a note of the model", "mcp")
    with pytest.raises(NotFound, match="nothing to undo"):
        call("cli", "undo", anyone=True)
    assert [change.by for change in call("cli", "memory_history", memory_id=mine.id)] == ["cli", "cli"]


def test_undo_of_own_change_that_another_has_changed_is_refused(app: App) -> None:
    def call(surface: str, name: str, **arguments: Any) -> Any:
        return run_sync(app.catalog.get_operation(name)(app.create_context("p", surface), **arguments))

    memory = call("cli", "remember", content="the deploy is on Friday")
    call("mcp", "update_memory", memory_id=memory.id, content="the deploy is on Monday")
    with pytest.raises(Conflict, match="by another caller"):
        call("cli", "undo")
    assert call("cli", "get_memory", memory_id=memory.id).content == "the deploy is on Monday"
