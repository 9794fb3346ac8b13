"""Search through `athena.api`: results, their order, and filters."""

import math
import random
from collections.abc import Generator, Sequence
from datetime import datetime
from itertools import pairwise

import pytest

from athena import api, testing
from athena.api import CompactMemory
from athena.app import connect
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.memory import recall
from conftest import Engine, rounds

NOON = datetime(2026, 3, 18, 12)  # a Wednesday
WORDS = [
    "river",
    "mountain",
    "server",
    "database",
    "deploy",
    "friday",
    "cat",
    "query",
    "index",
    "cache",
    "piano",
    "music",
]


@pytest.fixture
def wednesday(engine: Engine) -> Generator[None]:
    """Return an empty store whose clock shows a Wednesday."""
    with testing.isolated(time=NOON.timestamp, database=engine.in_memory()):
        yield


def hashes(found: Sequence[CompactMemory]) -> list[str]:
    return [memory.hash for memory in found]


def texts(found: Sequence[CompactMemory]) -> set[str]:
    return {memory.preview for memory in found}


def is_falling(scores: Sequence[float]) -> bool:
    return all(a >= b for a, b in pairwise(scores))


def fill(count: int, **fields: object) -> None:
    chosen = random.Random(7)
    api.store_batch([{"content": " ".join(chosen.choices(WORDS, k=8)) + f" {i}", **fields} for i in range(count)])


def wait_for_vectors() -> None:
    connection = connect.AppConnection(connect.shared_app, None, "python")
    while run_sync(connection.call("reembed", {})).data["remaining"]:
        pass


def test_new_memory_is_found_by_word(isolated: App) -> None:
    fill(100)
    short = api.store("The zyzzyva is a tropical weevil")
    assert hashes(api.search("zyzzyva").memories)[0] == short


def test_new_memory_is_found_by_meaning(isolated: App) -> None:
    api.store_batch(["The invoice is due at the end of the month", "Ann plays the violin", "Postgres listens on 5432"])
    short = api.store("My automobile broke down on the highway")
    assert hashes(api.search("car trouble").memories)[0] == short


def test_updated_memory_is_found_by_meaning(isolated: App) -> None:
    api.store_batch(["The invoice is due at the end of the month", "Ann plays the violin"])
    short = api.update(api.store("A recipe for onion soup"), content="My automobile broke down on the highway")
    assert hashes(api.search("car trouble").memories)[0] == short
    assert hashes(api.search("cooking dinner", min_score=0).memories)[0] != short


def test_scores_are_sorted_within_range(isolated: App) -> None:
    many = rounds(110, 200)
    fill(many)
    for query in ("deploy the database on friday", "zebra", "cat", "?!", "what is it"):
        scores = [m.score for m in api.search(query, limit=many, min_score=0).memories]
        assert len(scores) == many
        assert all(0 <= score <= 1 and math.isfinite(score) for score in scores)
        assert is_falling(scores)


def test_search_returns_requested_count(isolated: App) -> None:
    many = rounds(120, 300)  # more than a search ranks at once
    fill(many)
    asked = (1, 5, many - 1, many, 1_000)
    assert [len(api.search("quantum physics", limit=n, min_score=0).memories) for n in asked] == [
        1,
        5,
        many - 1,
        many,
        many,
    ]
    assert api.search("quantum physics", min_score=0).total == many


@pytest.mark.both_engines
def test_long_memory_does_not_crowd_results(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    # smaller, to be quick
    monkeypatch.setattr(recall, "MAX_CANDIDATES", rounds(recall.MAX_CANDIDATES // 10, recall.MAX_CANDIDATES))
    days = range(rounds(145, 1_450))
    api.store(" ".join(f"On day {i} the weather was fine and the wind came from the west." for i in days))
    api.store_batch(["Deploys run on Fridays", "The cat sleeps", "Ann likes tea", "Invoices are due monthly"])
    wait_for_vectors()
    results = api.search("how was the weather", limit=5)
    assert results.total == 5
    assert len(results.memories) == 5
    assert len(list(api.search_iter("how was the weather"))) == 5


def test_search_without_match_returns_nothing(isolated: App) -> None:
    results = api.search("anything")
    assert (results.memories, results.total, results.query) == ((), 0, "anything")
    assert str(results) == "nothing found"


@pytest.mark.both_engines
def test_filters_apply_before_ranking(isolated: App) -> None:
    fill(rounds(115, 295))
    rare = api.store_batch([{"content": f"rare bird {i}", "tags": ["ornithology", "misc"]} for i in range(5)])
    results = api.search("deploy the database on friday", limit=5, tags="Ornithology")
    assert set(hashes(results.memories)) == set(rare)
    assert results.total == 5
    api.update(rare[0], memory_type="sighting")
    assert hashes(api.search("deploy the database", limit=5, memory_type="sighting").memories) == [rare[0]]


@pytest.mark.both_engines
def test_search_matches_any_tag(isolated: App) -> None:
    one, two, _ = api.store_batch([{"content": f"item {tag}", "tags": [tag]} for tag in ("red", "green", "blue")])
    assert set(hashes(api.search("item", tags=["RED", "green"]).memories)) == {one, two}
    assert set(hashes(api.search("item", tags="red, green").memories)) == {one, two}
    assert api.search("item", tags="absent").memories == ()


def test_min_score_drops_weak_hits(isolated: App) -> None:
    fill(50)
    best = api.store("The zyzzyva is a tropical weevil")
    results = api.search("zyzzyva weevil", limit=51, min_score=0.8)
    assert hashes(results.memories) == [best]
    assert results.total == 1


@pytest.mark.both_engines
def test_min_score_agrees_with_shown_score(isolated: App) -> None:
    fill(20)
    memories = api.search("deploy on friday", limit=20).memories
    assert len(memories) == 20
    for index, memory in enumerate(memories):
        assert len(api.search("deploy on friday", limit=20, min_score=memory.score).memories) > index


@pytest.mark.both_engines
def test_tag_search_matches_any_or_all(isolated: App) -> None:
    both = api.store("both", ["Straße", "b"])
    one = api.store("one", ["b"])
    assert set(hashes(api.search_by_tag(["STRASSE", "B"]).memories)) == {both, one}
    assert hashes(api.search_by_tag(["STRASSE", "B"], match="all").memories) == [both]
    assert hashes(api.search_by_tag("strasse,b", match="all").memories) == [both]
    assert api.search_by_tag("c").memories == ()
    assert list(api.get(both).tags) == ["Straße", "b"]


def test_tag_search_pages_and_counts(isolated: App) -> None:
    fill(30, tags=["t"])
    results = api.search_by_tag("t")
    assert (len(results.memories), results.total, results.query) == (10, 30, "t")
    assert len(api.search_by_tag("t", limit=30).memories) == 30


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("since", "until", "left"),
    [
        ("yesterday", None, {"tuesday", "today"}),
        ("yesterday", "yesterday", {"tuesday"}),
        ("last week", "last week", {"last friday"}),
        (None, "2026-03-01", {"winter"}),
        ("2026-03-13", "2026-03-17", {"last friday", "tuesday"}),
        (datetime(2026, 3, 17).timestamp(), None, {"tuesday", "today"}),
        (None, datetime(2026, 3, 1).timestamp(), {"winter"}),
        (int(datetime(2026, 3, 1).timestamp()), int(datetime(2026, 3, 17).timestamp()), {"last friday"}),
        ("3 days ago", None, {"tuesday", "today"}),
        ("yesterday", "last week", set()),
    ],
)
def test_time_filters_accept_words_and_numbers(
    wednesday: None, since: str | float | None, until: str | float | None, left: set[str]
) -> None:
    for text, day in (("tuesday", "2026-03-17"), ("last friday", "2026-03-13"), ("winter", "2026-01-20")):
        api.store(text, metadata={"date": day})
    api.store("today")
    assert texts(api.search("anything", since=since, until=until).memories) == left


@pytest.mark.both_engines
def test_event_date_filters_and_created_stays(wednesday: None) -> None:
    short = api.store("the launch", metadata={"date": "2024-05-06"})
    assert api.get(short).created == NOON.timestamp()
    assert api.search("launch", since="2024-05-06", until="2024-05-06").memories[0].created == NOON.timestamp()
    assert not api.search("launch", since="yesterday").memories
    api.update(short, metadata={"date": datetime(2025, 1, 2, 3).timestamp()})
    assert hashes(api.search("launch", since="2025-01-02", until="2025-01-02").memories) == [short]


@pytest.mark.both_engines
def test_removed_date_no_longer_filters(wednesday: None) -> None:
    short = api.store("the launch", metadata={"date": "2024-05-06"})
    api.update(short, metadata={"date": None})
    assert "date" not in api.get(short).metadata
    assert not api.search("launch", until="2025-01-01").memories
    assert hashes(api.search("launch", since="today").memories) == [short]


@pytest.mark.both_engines
def test_time_in_query_filters(wednesday: None) -> None:
    for text, day in (
        ("we decided to use tokens for auth", "2026-03-12"),
        ("we decided to drop auth cookies", "2026-01-12"),
        ("lunch with Bob", "2026-03-11"),
    ):
        api.store(text, metadata={"date": day})
    results = api.recall("what we decided about auth last week")
    assert results.memories[0].preview == "we decided to use tokens for auth"
    assert texts(results.memories) == {"we decided to use tokens for auth", "lunch with Bob"}
    assert results.query == "what we decided about auth last week"
    assert texts(api.recall("last week").memories) == {"we decided to use tokens for auth", "lunch with Bob"}
    assert len(api.recall("auth", limit=2).memories) == 2
    assert len(api.search("auth last week").memories) == 3


@pytest.mark.both_engines
def test_search_batch_answers_in_order(isolated: App) -> None:
    fill(50)
    queries = ["piano music", "friday deploy", "nothing like it"]
    batches = api.search_batch(queries, limit=3)
    assert [one.query for one in batches] == queries
    assert batches == [api.search(query, limit=3) for query in queries]
    assert api.search_batch([]) == []
    api.store("tagged", "t")
    assert [one.total for one in api.search_batch(queries, tags="t", min_score=0.0)] == [1, 1, 1]


@pytest.mark.parametrize("batch_size", [7, 100, 10_000])
def test_iterate_yields_every_memory_once(isolated: App, batch_size: int) -> None:
    many = rounds(120, 250)
    fill(many)
    found = list(api.search_iter("deploy the database on friday", batch_size=batch_size))
    assert len(set(hashes(found))) == len(found) == many
    assert is_falling([m.score for m in found])
    assert found == list(api.search("deploy the database on friday", limit=many).memories)


def test_iterate_in_small_batches_repeats_nothing(isolated: App) -> None:
    many = rounds(250, 1_000)
    fill(many)
    found = list(api.search_iter("deploy the database on friday", batch_size=20))
    assert is_falling([m.score for m in found])
    assert len(set(hashes(found))) == len(found) == many


def test_iterate_accepts_filters(isolated: App) -> None:
    fill(120)
    api.store_batch([{"content": f"tagged {i}", "tags": ["t"]} for i in range(25)])
    assert len(list(api.search_iter("anything", batch_size=10, tags="t"))) == 25
    assert len(list(api.search_iter("anything", batch_size=10, memory_type="none"))) == 0


def test_forgotten_scores_do_not_linger(isolated: App) -> None:
    fill(100)
    for memory in api.search("piano", limit=40).memories:
        api.delete(memory.hash)
    results = api.search("piano", limit=100)
    assert (len(results.memories), results.total) == (60, 60)
