"""Long memories: what a search, a comparison and a removal read of them is bounded."""

import random
import time
from typing import Any

import pytest

from athena import api
from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import LimitExceeded
from athena.memory import rows
from athena.memory.prepare import MAX_PASSAGE_CHARS, MAX_PASSAGES, split_passages
from athena.memory.sessions import rows as session_rows
from athena.memory.values import MAX_CONTENT_BYTES
from athena.storage import arrays
from athena.storage.database import Transaction
from conftest import rounds, sample

MANY_PASSAGES = rounds(350, 4_000)
WORDS = [f"{first}{second}{third}" for first in "bdfgklmnprst" for second in "aeiou" for third in ("ron", "lin", "dex")]
LONGEST_TEXTS = {
    "prose": "one word after another. ",
    "no spaces": "abcdefghij",
    "Chinese": "漢字仮名交文章例",
    "one word a line": "word\n",
    "long words": "x" * 300 + " ",
    "sentences of a letter": "a. ",
    "tabs": "a\t",
    "dates": "2024-05-17 10:30, ",
    "marks": "...!?;",
}


def write_long_text(seed: int, passages: int = MANY_PASSAGES) -> str:
    chosen = random.Random(seed)
    sentences = (" ".join(chosen.choices(WORDS, k=88)).capitalize() for _ in range(passages))
    return ". ".join(sentences) + "."


@pytest.mark.parametrize("name", sample(LONGEST_TEXTS, 4))
def test_longest_text_has_bounded_passages(name: str) -> None:
    unit = LONGEST_TEXTS[name]
    text = unit * (MAX_CONTENT_BYTES // len(unit.encode()))
    passages = split_passages(text)
    assert len(passages) <= 2 * MAX_PASSAGES
    assert max(passage.length for passage in passages) <= MAX_PASSAGE_CHARS
    assert all(passage.words > 0 for passage in passages)
    covered = sum(len(passage.extract_from(text).split()) for passage in passages)
    assert covered >= len(text.split())  # a word that is cut counts twice


def test_search_compares_few_passages_of_long_memory(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    build = arrays.build_token_sets

    def count_passages(signs: Any, neighbours: Any, owners: Any) -> Any:
        compared.append(len(owners))
        return build(signs, neighbours, owners)

    for module in ("sqlite", "postgres"):
        monkeypatch.setattr(f"athena.storage.{module}.vectors.build_token_sets", count_passages)
    monkeypatch.setattr("athena.memory.index._encode_backlog", lambda store: None)
    for seed in range(2):
        api.store(write_long_text(seed) + f" The heron number {seed} nests beside the harbour crane.")
    short = api.store("The heron sleeps on one leg")
    hits = api.search("where does the heron number 1 nest").memories
    assert compared
    assert max(compared) <= arrays.MAX_TOKEN_PASSAGES
    assert len(hits) == 3
    assert short in {hit.hash for hit in hits}
    assert hits[0].preview  # the passage at the very end is found
    assert "heron" in api.get(hits[0].hash).content


def test_few_passages_are_all_compared() -> None:
    import numpy as np

    owners, scores = np.array([0, 0, 1, 1, 1, 1, 2]), np.array([1, 2, 9, 3, 8, 7, 0], np.float32)
    assert arrays.select_best(owners, scores, 7).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert arrays.select_best(owners, scores, 6).tolist() == [0, 1, 2, 4, 5, 6]
    assert arrays.select_best(owners, scores, 3).tolist() == [1, 2, 6]
    assert arrays.select_best(owners, scores, 1).tolist() == [1, 2, 6]  # each has at least one


def test_removal_of_long_memory_is_cheap(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("athena.memory.index._encode_backlog", lambda store: None)
    short = api.store(write_long_text(1, 700))
    began = time.process_time()
    api.delete(short)
    assert time.process_time() - began < 1  # seconds of CPU; to erase each word at once took 2
    assert not api.search("baron baronlin").memories
    assert api.call("restore_memory", memory_id=short)
    assert api.call("verify")["problems"] == []


def call_operation(app: App, name: str, /, **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, name, arguments, app.create_context("p", "http")))


@pytest.mark.parametrize("name", ["list_memories", "recall", "find_duplicates"])
def test_answer_of_long_memories_is_bounded(isolated: App, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A program may store any number of long memories; one question must not read all of them at once."""
    monkeypatch.setattr("athena.storage.database.MAX_READ_CHARS", 2_000, raising=False)
    monkeypatch.setattr("athena.memory.rows.BOUNDED_BATCH_ROWS", 2, raising=False)
    for number in range(6):
        call_operation(isolated, "remember", content="The harbour log. " * 60 + f"Page {number}.")
    call_operation(isolated, "reembed")
    arguments: dict[str, Any] = {"query": "harbour log"} if name == "recall" else {}
    with pytest.raises(LimitExceeded, match="more than 2,000 characters together"):
        call_operation(isolated, name, **arguments, k=6)
    if name != "find_duplicates":
        assert len(call_operation(isolated, name, **arguments, k=1, offset=4)) == 1  # those before it are not read


@pytest.fixture
def long_graph(isolated: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """A graph with more than one answer may read: 6 entities of 1,000 characters, 2,000 allowed."""
    for number in range(6):
        texts = [f"{number}.{part} " + "The harbour log. " * 14 for part in range(4)]
        call_operation(isolated, "create_entity", name=f"quay {number}", entity_type="place", observations=texts)
        if number:
            relation = {"from": "quay 0", "to": f"quay {number}", "relationType": "near"}
            call_operation(isolated, "create_relations", relations=[relation])
    call_operation(isolated, "reembed")
    monkeypatch.setattr("athena.storage.database.MAX_READ_CHARS", 2_000)
    return isolated


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_graph", {}),
        ("open_nodes", {"names": [f"quay {number}" for number in range(6)]}),
        ("search_nodes", {"query": "harbour"}),
        ("search_graph", {"query": "harbour log", "max_results": 6}),
        ("neighbors", {"name": "quay 0"}),
    ],
)
def test_answer_of_long_graph_is_bounded(long_graph: App, name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded, match="reads has more than 2,000 characters together"):
        call_operation(long_graph, name, **arguments)


def test_changes_of_long_graph_are_not_bounded(long_graph: App) -> None:
    assert len(call_operation(long_graph, "open_nodes", names=["quay 3"])["entities"][0]["observations"]) == 4
    call_operation(long_graph, "merge_entities", source="quay 1", into="quay 2")
    call_operation(long_graph, "merge_entities", source="quay 3", into="quay 2")
    assert call_operation(long_graph, "find_path", source="quay 2", target="quay 5")["found"]
    call_operation(long_graph, "consolidate")
    call_operation(long_graph, "delete_entities", entityNames=["quay 2"])


def test_relations_of_one_answer_are_bounded(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("athena.storage.database.MAX_READ_CHARS", 2_000)
    relations = [{"from": "a" * 900, "to": str(number), "relationType": "near"} for number in range(3)]
    call_operation(isolated, "create_relations", relations=relations)
    for name, arguments in (("read_graph", {}), ("neighbors", {"name": "a" * 900})):
        with pytest.raises(LimitExceeded):
            call_operation(isolated, name, **arguments)


def test_mentions_read_only_their_page(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("athena.storage.database.MAX_READ_CHARS", 140_000)
    for number in range(6):
        call_operation(isolated, "remember", content=f"@ann said {number}. " + "The harbour log. " * 1_500)
    assert len(call_operation(isolated, "mentions", name="@ann", k=1, offset=4)) == 1
    with pytest.raises(LimitExceeded):
        call_operation(isolated, "mentions", name="@ann")


@pytest.mark.parametrize("name", ["timeline", "briefing", "list_injections", "session_summary"])
def test_lines_are_read_from_beginnings(isolated: App, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    long_text = "The harbour opens at seven. " * 1_000
    for tag in ("important", "note"):
        call_operation(isolated, "remember", content=f"{tag} {long_text}", tags=[tag])
    call_operation(isolated, "record_event", event_type="action", content=long_text, session_id="s")
    call_operation(isolated, "briefing", session_id="s")
    read: list[int] = []
    build = rows.memory_from_row

    def note_length(row: Any) -> Any:
        read.append(len(row[2]))
        return build(row)

    monkeypatch.setattr(rows, "memory_from_row", note_length)
    monkeypatch.setattr(session_rows, "memory_from_row", note_length)
    assert call_operation(isolated, name, **({"session_id": "s"} if name == "session_summary" else {}))
    assert read
    assert max(read) <= 20_000


def limit_reads(monkeypatch: pytest.MonkeyPatch, chars: int) -> None:
    monkeypatch.setattr("athena.storage.database.MAX_READ_CHARS", chars, raising=False)


@pytest.mark.both_engines
def test_every_read_is_bounded_and_no_write(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        call_operation(app, "remember", content="The harbour log. " * 60 + f"Page {number}.")
    limit_reads(monkeypatch, 5_000)

    async def read_all(tx: Transaction) -> int:
        return len(await tx.fetch("SELECT content FROM memories"))

    async def read_one_by_one(tx: Transaction) -> int:
        return sum([len(await tx.fetch("SELECT content FROM memories WHERE id = :id", id=i)) for i in range(9)])

    for work in (read_all, read_one_by_one):
        with pytest.raises(LimitExceeded, match="more than 5,000 characters"):
            run_sync(app.store.database.read(work))
        assert run_sync(app.store.database.write(work)) == 6
    assert call_operation(app, "verify").problems == ()
    assert len(run_sync(app.catalog.get_operation("recent_changes")(app.create_context("p", "cli"), limit=6))) == 6


@pytest.mark.both_engines
def test_history_is_read_in_pages(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = call_operation(isolated, "remember", content="The harbour log. " * 60).id
    for number in range(6):
        call_operation(isolated, "update_memory", memory_id=memory, importance=number / 10)
    whole = call_operation(isolated, "memory_history", memory_id=memory)
    assert [change.action for change in whole] == ["remembered"] + ["updated"] * 6
    monkeypatch.setattr("athena.memory.history_rows.BOUNDED_BATCH_ROWS", 2, raising=False)
    limit_reads(monkeypatch, 5_000)
    with pytest.raises(LimitExceeded):
        call_operation(isolated, "memory_history", memory_id=memory)
    assert call_operation(isolated, "memory_history", memory_id=memory, limit=2) == whole[-2:]
    pages = [call_operation(isolated, "memory_history", memory_id=memory, limit=2, offset=n) for n in (6, 4, 2, 0)]
    assert [change for page in pages for change in page] == whole
    call_operation(isolated, "consolidate")
    [undone] = call_operation(isolated, "undo")
    assert undone.before["content"] == whole[-1].before["content"]


@pytest.mark.both_engines
def test_tasks_are_read_in_pages(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    first = 0
    for number in range(6):
        task = call_operation(
            isolated,
            "create_task",
            title=f"task {number}",
            details="The harbour log. " * 60,
            due="in 2 hours",
            priority="urgent" if number == 4 else "normal",
            depends_on=[first] if number == 5 else None,
            metadata={"more": "x" * 500},
        )
        first = first or task.id
    whole = call_operation(isolated, "list_tasks")
    assert [task.title[-1] for task in whole] == ["4", "0", "1", "2", "3", "5"]
    monkeypatch.setattr("athena.memory.task_rows.OUTLINES_AT_ONCE", 2, raising=False)
    limit_reads(monkeypatch, 9_500)
    with pytest.raises(LimitExceeded):
        call_operation(isolated, "list_tasks")
    assert call_operation(isolated, "due_tasks", limit=1) == whole[:1]
    assert call_operation(isolated, "list_tasks", limit=2, offset=4) == whole[4:]
    assert [task.title for task in call_operation(isolated, "list_tasks", state="blocked")] == ["task 5"]
    assert [freed.title for freed in call_operation(isolated, "complete_task", task_id=first).unblocked] == ["task 5"]
    limit_reads(monkeypatch, 20_000)
    assert "task 4" in call_operation(isolated, "briefing", session_id="s").text


@pytest.mark.both_engines
def test_many_are_forgotten_few_at_once(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        call_operation(isolated, "remember", content=f"The harbour log, page {number}.", tags=["log"])
    monkeypatch.setattr("athena.memory.edit.FORGOTTEN_AT_ONCE", 2, raising=False)
    read: list[int] = []
    list_rows_by_id = rows.list_rows_by_id

    async def count_rows(tx: Transaction, scope_ids: list[int], ids: list[int]) -> Any:
        read.append(len(ids))
        return await list_rows_by_id(tx, scope_ids, ids)

    monkeypatch.setattr(rows, "list_rows_by_id", count_rows)
    assert call_operation(isolated, "forget_by_tag", tags=["log"], expect=5) == 5
    assert read == [2, 2, 1]
    assert len(call_operation(isolated, "undo")) == 5
    assert len(call_operation(isolated, "list_memories")) == 5
