"""`athena.api` stores, changes and deletes memories as its contract says."""

import asyncio
import contextlib
import hashlib
import inspect
import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest

import athena
from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, NotFound
from conftest import Engine

NOTHING: Any = inspect.Parameter.empty
FILTERS = {"limit": 5, "tags": None, "memory_type": None, "since": None, "until": None, "min_score": None}
OTHER_NAMES = ("k", "phrase")
SIGNATURES: dict[str, dict[str, Any]] = {
    "search": {"query": NOTHING, **FILTERS},
    "search_batch": {"queries": NOTHING, "limit": 5},
    "search_by_tag": {"tags": NOTHING, "limit": 10, "match": "any"},
    "recall": {"query": None, **FILTERS},
    "search_iter": {"query": NOTHING, "batch_size": 100},
    "store": {"content": NOTHING, "tags": None, "memory_type": "note", "metadata": None},
    "store_batch": {"items": NOTHING},
    "get": {"hash": NOTHING},
    "update": {"hash": NOTHING, "content": None, "tags": None, "memory_type": None, "metadata": None},
    "delete": {"hash": NOTHING},
    "delete_batch": {"hashes": NOTHING},
    "delete_by_tag": {"tags": NOTHING, "expect": None},
    "restore": {"hash": NOTHING},
    "ingest": {"path": NOTHING, "tags": None},
    "consolidate": {"strategy": "balanced", "days_back": 7, "dry_run": False},
    "health": {},
    "close": {},
}


def operation(name: str, **arguments: Any) -> Any:
    return run_sync(connect.AppConnection(connect.shared_app, None, "python").call(name, arguments)).data


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def find_prefix_collision(digits: int) -> tuple[str, str]:
    """Find two texts whose digests share a prefix."""
    seen: dict[str, str] = {}
    for number in itertools.count():
        text = f"note number {number}"
        head = digest(text)[:digits]
        if head in seen:
            return seen[head], text
        seen[head] = text
    raise AssertionError


@pytest.mark.parametrize("name", SIGNATURES)
def test_function_signatures_match_contract(name: str) -> None:
    taken = inspect.signature(getattr(api, name)).parameters.values()
    named = [
        p for p in taken if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name not in ("project", *OTHER_NAMES)
    ]
    assert {p.name: p.default for p in named} == SIGNATURES[name]
    assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in named)
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in taken if p.name in ("project", *OTHER_NAMES))


def test_result_fields_match_contract() -> None:
    assert api.CompactMemory._fields == ("hash", "preview", "tags", "created", "score")
    assert api.CompactSearchResult._fields == ("memories", "total", "query")
    assert api.CompactHealthInfo._fields == ("status", "count", "backend")
    assert api.CompactIngestResult._fields == ("documents", "pieces", "skipped")


def test_store_is_ready_without_error() -> None:
    assert [api.CompactHealthInfo(s, 0, "sqlite").ready for s in ("healthy", "degraded", "error")] == [1, 1, 0]


def test_health_counts_memories(isolated: App, engine: Engine) -> None:
    assert api.health() == ("healthy", 0, engine.kind)
    api.store_batch(["one", "two"])
    assert api.health().count == 2
    assert api.health().ready
    assert str(api.health()) == f"healthy, 2 memories, {engine.kind}"


def test_memory_fields_match_contract(isolated: App) -> None:
    before = time.time()
    memory = api.get(api.store("Deploys run on Fridays", ["deploy", "ops"], "decision", {"by": "Ann"}))
    assert isinstance(memory.id, int)
    assert memory.hash == digest("Deploys run on Fridays")[:8]
    assert memory.content == "Deploys run on Fridays"
    assert list(memory.tags) == ["deploy", "ops"]
    assert memory.memory_type == "decision"
    assert memory.metadata == {"by": "Ann"}
    assert before <= memory.created <= time.time()
    assert memory.updated >= memory.created
    assert 0 <= memory.importance <= 1


def test_defaults_are_note_without_tags(isolated: App) -> None:
    memory = api.get(api.store("plain"))
    assert (list(memory.tags), memory.memory_type, memory.metadata) == ([], "note", {})


@pytest.mark.parametrize("tags", ["a, b", ["a", "b"], ("a", "b"), ["a ", " b", "A"]])
def test_tags_accept_string_or_list(isolated: App, tags: Any) -> None:
    assert sorted(api.get(api.store("tagged", tags)).tags) == ["a", "b"]


def test_session_keeps_own_copy_of_text(isolated: App) -> None:
    hashes = [api.store("same words", metadata={"session_id": s}) for s in ("s1", "s2")] + [api.store("same words")]
    assert hashes == [digest(text)[:8] for text in ("s1\nsame words", "s2\nsame words", "same words")]
    assert api.health().count == 3


def test_session_id_none_means_no_session(isolated: App) -> None:
    assert api.store("same words", metadata={"session_id": None}) == digest("same words")[:8]


def test_storing_twice_merges_tags_and_metadata(isolated: App) -> None:
    first = api.store("known", ["a", "b"], metadata={"x": 1, "y": 1})
    second = api.store("known", ["B", "c"], metadata={"y": 2, "z": 2})
    assert first == second
    memory = api.get(first)
    assert sorted(tag.lower() for tag in memory.tags) == ["a", "b", "c"]
    assert memory.metadata == {"x": 1, "y": 2, "z": 2}
    assert api.health().count == 1
    assert operation("stats")["occurrences"] == 2


def test_batch_merges_equal_texts(isolated: App) -> None:
    assert len(set(api.store_batch(["twin", {"content": "twin", "tags": "t"}, "twin"]))) == 1
    assert api.health().count == 1
    assert list(api.get(digest("twin")).tags) == ["t"]


def test_batch_accepts_texts_and_objects(isolated: App) -> None:
    item = {"content": "two", "tags": ["t"], "memory_type": "fact", "metadata": {"source": "book"}}
    hashes = api.store_batch(["one", item, "three"])
    assert hashes == [digest(text)[:8] for text in ("one", "two", "three")]
    memory = api.get(hashes[1])
    assert (list(memory.tags), memory.memory_type, memory.metadata) == (["t"], "fact", {"source": "book"})
    assert api.store_batch([]) == []


def test_storing_deleted_text_restores_history(isolated: App) -> None:
    first = api.store("old friend", ["a"])
    number, created = api.get(first).id, api.get(first).created
    assert api.delete(first)
    assert api.store("old friend", ["b"]) == first
    memory = api.get(first)
    assert (memory.id, memory.created, sorted(memory.tags)) == (number, created, ["a", "b"])
    assert [step["action"] for step in operation("memory_history", memory_id=first)] == [
        "remembered",
        "forgotten",
        "revived",
    ]
    assert [m.hash for m in api.search("old friend").memories] == [first]


def test_prefix_or_id_finds_memory(isolated: App) -> None:
    short = api.store("the only one")
    whole = digest("the only one")
    number = api.get(short).id
    assert {api.get(name).id for name in (whole, whole[:5], whole[:8].upper(), number, str(number))} == {number}


def test_ambiguous_prefix_error_lists_candidates(isolated: App) -> None:
    first, second = find_prefix_collision(4)
    hashes = api.store_batch([first, second])
    with pytest.raises(Conflict) as caught:
        api.get(hashes[0][:4])
    assert all(name in str(caught.value) for name in hashes)
    with pytest.raises(Conflict):
        api.delete(hashes[0][:4])
    assert api.health().count == 2


def test_hash_grows_only_when_ambiguous(isolated: App) -> None:
    texts = find_prefix_collision(8)
    first, second = (api.store(text) for text in texts)
    assert len(second) > 8
    assert second == digest(texts[1])[: len(second)]
    assert {len(m.hash) for m in api.search("note number").memories} == {len(second)}
    with pytest.raises(Conflict, match=second):
        api.get(first)
    assert [api.get(digest(text)[: len(second)]).content for text in texts] == list(texts)
    assert len(api.store("an ordinary text")) == 8


def test_old_hash_finds_updated_memory(isolated: App) -> None:
    old = api.store("Deploys run on Fridays", ["deploy"], metadata={"a": 1})
    number, created = api.get(old).id, api.get(old).created
    new = api.update(old, content="Deploys run on Mondays")
    assert new == digest("Deploys run on Mondays")[:8]
    memory = api.get(old)
    assert (memory.id, memory.hash, memory.content, memory.created) == (number, new, "Deploys run on Mondays", created)
    assert (list(memory.tags), memory.metadata) == (["deploy"], {"a": 1})
    assert api.get(new) == memory
    assert [m.hash for m in api.search("Fridays", min_score=0.9).memories] == []
    assert api.health().count == 1


def test_update_changes_only_given_fields(isolated: App) -> None:
    short = api.store("steady", ["a"], metadata={"x": 1})
    assert api.update(short, tags=["b"]) == short
    assert api.update(short, memory_type="fact") == short
    assert api.update(short, metadata={"y": 2}) == short
    memory = api.get(short)
    assert (list(memory.tags), memory.memory_type, memory.metadata) == (["b"], "fact", {"x": 1, "y": 2})
    assert [m.hash for m in api.search_by_tag("b").memories] == [short]
    assert not api.search_by_tag("a").memories


def test_delete_hides_and_restore_shows(isolated: App) -> None:
    short = api.store("now you see me", ["t"])
    assert api.delete(short) is True
    assert api.delete(short) is False
    assert api.health().count == 0
    assert not api.search("now you see me").memories
    assert not api.search_by_tag("t").memories
    with pytest.raises(NotFound):
        api.get(short)
    assert api.restore(short) is True
    assert api.restore(short) is False
    assert [m.hash for m in api.search("now you see me").memories] == [short]
    assert list(api.get(short).tags) == ["t"]


def test_batch_delete_counts_existing_memories(isolated: App) -> None:
    hashes = api.store_batch(["one", "two", "three"])
    assert api.delete_batch([hashes[0], hashes[0], hashes[1], "deadbeef"]) == 2
    assert api.delete_batch([]) == 0
    assert api.health().count == 1


def test_delete_by_tag_requires_exact_count(isolated: App) -> None:
    api.store_batch([{"content": f"item {i}", "tags": ["old"]} for i in range(3)] + ["another"])
    for expect in (None, 2, 4):
        with pytest.raises(Conflict, match="3") as caught:
            api.delete_by_tag("old", expect=expect)
        assert "expect=3" in str(caught.value.hint)
    assert api.health().count == 4
    assert api.delete_by_tag(["OLD"], expect=3) == 3
    assert api.health().count == 1
    assert api.delete_by_tag("old", expect=0) == 0


def test_result_prints_one_line_per_memory(isolated: App) -> None:
    api.store("First line\nsecond\tline\u2028third " + "long " * 100, ["a", "b"])
    api.store("short")
    results = api.search("line", limit=2)
    lines = str(results).split("\n")
    today = time.strftime("%b %d")
    assert len(lines) == 2
    hash_, score, day, tags, text = re.fullmatch(  # type: ignore[union-attr]  # a mismatch is a failure too
        r"([0-9a-f]{8}) (\d?\.\d\d) (\S{3} \d\d) \[(.*?)\] (.*)", lines[0]
    ).groups()
    assert (day, tags) == (today, "a, b")
    assert hash_ == results.memories[0].hash
    assert 0 <= float(score) <= 1
    assert text.startswith("First line second line third long")
    assert 110 <= len(text) <= 120
    assert lines[1].endswith(f"{today} short")
    assert lines[0] == str(results.memories[0])


def test_preview_is_at_most_200_characters(isolated: App) -> None:
    api.store_batch(["word " * 200, "x" * 5_000, "brief"])
    previews = [m.preview for m in api.search("word", limit=10).memories]
    assert len(previews) == 3
    assert all(0 < len(p) <= 200 for p in previews), previews
    assert "brief" in previews


def test_preview_starts_with_first_words(isolated: App) -> None:
    api.store("\n" * 2_000 + "after many empty lines")
    assert api.search("empty").memories[0].preview == "after many empty lines"


def test_projects_do_not_see_each_other(isolated: App) -> None:
    ours, theirs = api.store("the plan", ["t"], project="a"), api.store("the plot", ["t"], project="b")
    assert [m.hash for m in api.search("plan plot", project="a").memories] == [ours]
    assert [m.hash for m in api.search_by_tag("t", project="b").memories] == [theirs]
    assert [m.hash for m in api.search_iter("plan", project="b")] == [theirs]
    assert [m.hash for m in api.recall("plan plot", project="b").memories] == [theirs]
    for call in (api.get, api.delete, api.restore):
        with contextlib.suppress(NotFound):
            assert call(ours, project="b") is False
    with pytest.raises(NotFound):
        api.update(ours, content="taken over", project="b")
    assert api.delete_by_tag("t", expect=1, project="b") == 1
    assert api.get(ours, project="a").content == "the plan"


def test_global_memory_is_seen_everywhere(isolated: App) -> None:
    short = api.store("Ann prefers tea", project="user")
    for project in ("a", "b", None, "user"):
        assert [m.hash for m in api.search("tea", project=project).memories] == [short]
    api.store("only here", project="a")
    assert [m.hash for m in api.search("only here", project="user", min_score=0).memories] == [short]


def test_project_is_git_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: App) -> None:
    monkeypatch.delenv("ATHENA_PROJECT")
    for name in ("one", "two"):
        (tmp_path / name / ".git").mkdir(parents=True)
        (tmp_path / name / "src").mkdir()
        monkeypatch.chdir(tmp_path / name / "src")
        api.store(f"lives in {name}")
        assert api.search("lives").total == 1
        assert api.search("lives", project=str(tmp_path / name)).total == 1


def test_async_api_has_same_operations(isolated: App) -> None:
    async def main() -> None:
        async with athena.open() as memory:
            assert all(inspect.signature(getattr(memory, n)) == inspect.signature(getattr(api, n)) for n in SYNCHRONOUS)
            first, second = await asyncio.gather(memory.store("one", "t"), memory.store("two", "t"))
            assert (await memory.store_batch(["three"])) == [digest("three")[:8]]
            assert (await memory.search("one")).memories[0].hash == first
            assert [r.memories[0].hash for r in await memory.search_batch(["one", "two"])] == [first, second]
            assert (await memory.recall("two")).memories[0].hash == second
            assert {m.hash async for m in memory.search_iter("one", batch_size=2)} >= {first, second}
            assert (await memory.get(await memory.update(first, content="one more"))).content == "one more"
            assert await memory.delete(second)
            assert await memory.restore(second)
            assert await memory.delete_batch([second]) == 1
            assert (await memory.search_by_tag("t")).total == 1
            assert await memory.delete_by_tag("t", expect=1) == 1
            assert (await memory.health()).count == 1

    SYNCHRONOUS = [n for n in SIGNATURES if n not in ("close", "search_iter")]  # noqa: N806  # a constant of this test
    asyncio.run(main())
    assert api.health().count == 1
