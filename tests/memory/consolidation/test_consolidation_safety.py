"""Consolidation is safe: it acts only on certain findings, overrides no person, and misses no concurrent write."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench.evaluation.planting import START_TIME_S
from consolidation_tools import PROJECT, call, record_events
from shop_week import CARELESS, week

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.core.values import Call
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import list_rows
from athena.memory.consolidation import contradictions, run, sequences
from athena.memory.consolidation import read as consolidation_read
from athena.memory.consolidation.events import group_events
from athena.memory.consolidation.values import MinedEvent, MinedMemory
from athena.storage.filters import Filter
from conftest import Engine

KEEPS = "The orders table keeps {} days of history"
DAY = 86_400.0


def remember_all(app: App, *texts: str, **more: Any) -> list[Any]:
    return [call(app, "remember", content=text, **more) for text in texts]


def importances(app: App) -> dict[str, float]:
    return {one.content: one.importance for one in call(app, "list_memories", k=100)}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Use curl -O to keep the name", "Use curl -o to keep the name"),
        ("grep -V prints it", "grep -v prints it"),
        ("if ready:\n    start()\n    stop()", "if ready:\n    start()\nstop()"),
        ("Deploy with make ship", "deploy with make ship."),
    ],
)
def test_only_identical_words_merge(app: App, one: str, other: str) -> None:
    remember_all(app, one, other)
    assert call(app, "consolidate", strategy="quality").merged == 0


def test_other_author_or_time_prevents_merge(app: App) -> None:
    for speaker, date, text in (("Ann", "2026-10-01", "I ran today."), ("Bob", "2026-10-01", "I ran today")):
        call(app, "remember", content=text, metadata={"speaker": speaker, "date": date})
    call(app, "remember", content=" I ran today. ", metadata={"speaker": "Bob", "date": "2026-10-02"})
    assert call(app, "consolidate", days_back=3_000).merged == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("The API rate limit is 100 requests for free users.", "The API rate limit is 1000 requests for paid users."),
        ("Release 2.3.0 went out on Tuesday.", "Release 2.4.0 went out on Friday."),
        ("Version 1.4 of the CLI was released.", "Version 1.5 of the CLI was released."),
        ("Invoice 1001 was paid.", "Invoice 1002 was not paid."),
        ("PR 88 is merged.", "PR 89 is not merged."),
        ("Lunch is at 12 on Mondays.", "Lunch is at 13 on Fridays."),
        ("Memory usage peaked at 3.2 GB on Monday.", "Memory usage peaked at 4.1 GB on Tuesday."),
        ("The flag is enabled in staging.", "The flag is disabled in production."),
    ],
)
def test_other_subject_is_no_contradiction(one: str, other: str) -> None:
    patterns = contradictions.find_contradictions(
        [MinedMemory(1, START_TIME_S, one), MinedMemory(2, START_TIME_S + DAY, other)]
    )
    assert [p.confidence for p in patterns if p.confidence >= 0.4] == []


@pytest.mark.parametrize(
    ("one", "other", "certain"),
    [
        (KEEPS.format(5), KEEPS.format(9), True),
        ("We use npm in web/", "We do not use npm in web/ any more", True),
        ("Bob owns search", "Carol owns search", False),
        (f"{KEEPS.format(5)}. The owner is Ann.", KEEPS.format(9), False),
    ],
)
def test_only_stated_changes_are_certain(one: str, other: str, certain: bool) -> None:
    patterns = contradictions.find_contradictions(
        [MinedMemory(1, START_TIME_S, one), MinedMemory(2, START_TIME_S + DAY, other)]
    )
    assert patterns[0].confidence >= 0.4
    assert patterns[0].details["certain"] is certain


def test_uncertain_contradiction_does_not_fade(app: App) -> None:
    old, new = remember_all(app, "Bob owns search", "Carol owns search")
    done = call(app, "consolidate")
    assert ([one.type for one in done.patterns], done.faded, done.strengthened) == (["contradiction"], 0, 0)
    assert [one.id for one in call(app, "get_memory", memory_id=old.id).related] == [new.id]


def test_memory_fades_only_once(app: App) -> None:
    remember_all(app, KEEPS.format(5), KEEPS.format(7))
    assert call(app, "consolidate").faded == 1
    remember_all(app, KEEPS.format(9))
    assert call(app, "consolidate").faded == 1
    assert importances(app) == {KEEPS.format(5): 0.25, KEEPS.format(7): 0.275, KEEPS.format(9): 0.55}


def test_series_of_readings_fades_nothing(app: App) -> None:
    remember_all(app, *(KEEPS.format(i) for i in range(2, 40)), *(f"the shop got order {i}" for i in range(60)))
    done = call(app, "consolidate", strategy="quality")
    assert (len(done.patterns), done.faded) == (1, 0)


def test_important_memory_does_not_fade(app: App) -> None:
    remember_all(app, KEEPS.format(5), importance=0.9)
    remember_all(app, KEEPS.format(9), importance=0.1)
    assert call(app, "consolidate").faded == 0
    assert importances(app) == {KEEPS.format(5): 0.9, KEEPS.format(9): 0.1}


def test_undone_action_is_not_repeated(app: App) -> None:
    remember_all(app, KEEPS.format(5), KEEPS.format(9), "Maria likes tea", "Maria likes tea.")
    call(app, "consolidate", strategy="minimal")
    done = call(app, "consolidate")
    assert (done.faded, done.merged) == (1, 1)
    call(app, "undo")
    before = importances(app)
    remember_all(app, "Something else altogether")
    for strategy in ("balanced", "quality"):
        again = call(app, "consolidate", strategy=strategy)
        assert (again.faded, again.merged, again.strengthened) == (0, 0, 0)
    assert importances(app) == before | {"Something else altogether": 0.5}


def find_lesson(app: App) -> Any:
    return next((one for one in call(app, "list_memories", k=100) if one.memory_type == "lesson"), None)


def record_more(app: App) -> None:
    now = app.store.clock()
    steps = [("edit", CARELESS, None), ("test", "ran the unit tests", "failed")]
    record_events(app, [MinedEvent(0, now - 60 + i, k, text, how, "more") for i, (k, text, how) in enumerate(steps)])


def test_forgotten_lesson_stays_forgotten(app: App) -> None:
    record_events(app, week(app.store.clock()))
    assert call(app, "consolidate").promoted == 1
    call(app, "forget", memory_id=find_lesson(app).id)
    record_more(app)
    assert call(app, "consolidate").promoted == 0
    assert find_lesson(app) is None


def test_edited_lesson_stays_edited(app: App) -> None:
    record_events(app, week(app.store.clock()))
    call(app, "consolidate")
    call(app, "update_memory", memory_id=find_lesson(app).id, content="Ask Ann first", tags=["mine"], importance=0.9)
    record_more(app)
    call(app, "consolidate")
    assert (find_lesson(app).content, find_lesson(app).tags, find_lesson(app).importance) == (
        "Ask Ann first",
        ("mine",),
        0.9,
    )


@pytest.mark.both_engines
def test_replayed_key_returns_first_result(app: App) -> None:
    def keyed() -> Any:
        return run_sync(app.catalog.get_operation("consolidate")(app.create_context(PROJECT, "python", "k")))

    remember_all(app, "Lunch is at noon")
    first = keyed()
    remember_all(app, KEEPS.format(5), KEEPS.format(9))
    assert keyed().examined == first.examined == 1
    assert call(app, "consolidate").faded == 1


def consolidate_during(app: App, action: Callable[[], Any]) -> Any:
    """Run a consolidation and call a function in another thread, between its mining and its writes."""

    def report(stage: str, done: int, total: int) -> None:
        if stage == "changing":
            thread = threading.Thread(target=action)
            thread.start()
            thread.join()

    recorded = Call("consolidate", "test", app.create_context(PROJECT, "python").scope, app.store.clock())
    return run_sync(run.consolidate(app.store, "balanced", 7, False, recorded, report))


def test_writes_during_run_reach_next_run(app: App) -> None:
    remember_all(app, KEEPS.format(5))
    assert consolidate_during(app, lambda: remember_all(app, KEEPS.format(9))).new == 0
    assert call(app, "consolidate").faded == 1
    assert call(app, "consolidate").skipped


@pytest.mark.both_engines
def test_purge_during_run_leaves_nothing(app: App, engine: Engine, tmp_path: Path) -> None:
    both = [one.id for one in remember_all(app, "The Quagmire keeps 5 days", "The Quagmire keeps 9 days")]
    done = consolidate_during(app, lambda: call(app, "purge", memory_ids=both, expect=2))
    assert done.patterns == ()
    app.close()
    assert b"uagmire" not in engine.read_all_bytes(tmp_path)


@pytest.mark.both_engines
@pytest.mark.parametrize("purged", [False, True])
def test_memory_recovers_without_contradiction(app: App, purged: bool) -> None:
    old, new = remember_all(app, KEEPS.format(5), KEEPS.format(9))
    pattern = call(app, "consolidate").patterns[0]
    assert importances(app)[old.content] == 0.25
    call(app, "forget", memory_id=new.id)
    if purged:
        call(app, "purge", memory_ids=[new.id], expect=2)  # and the pattern
    assert call(app, "list_patterns") == []
    with pytest.raises(NotFound):
        call(app, "get_pattern", pattern_id=pattern.id)
    call(app, "consolidate")
    assert importances(app) == {old.content: 0.5}
    assert call(app, "memory_history", memory_id=old.id)[-1].action == "no longer faded"


@pytest.mark.both_engines
def test_purge_removes_merged_twin(app: App, engine: Engine, tmp_path: Path) -> None:
    old, new = remember_all(app, "Deploy with xyzzy ship.", "Deploy with xyzzy ship")
    assert call(app, "consolidate").merged == 1
    with pytest.raises(Conflict, match="3 memories would be removed"):
        call(app, "purge", memory_ids=[new.id], expect=1)
    call(app, "purge", memory_ids=[new.id], expect=3)  # with the twin, and the pattern that tells of both
    with pytest.raises(NotFound):
        call(app, "restore_memory", memory_id=old.id)
    app.close()
    assert b"xyzzy" not in engine.read_all_bytes(tmp_path)


def test_quotes_relation_is_reserved(app: App) -> None:
    one, other = remember_all(app, "one", "two")
    with pytest.raises(InvalidInput):
        call(app, "relate_memories", memory_id=one.id, other_id=other.id, relation="quotes")


def test_interrupted_run_resumes_after_writes(app: App) -> None:
    record_events(app, week(app.store.clock()))
    scope = app.create_context(PROJECT, "python").scope

    def stop(stage: str, done: int, total: int) -> None:
        if stage == "topics":
            raise InterruptedError

    recorded = Call("consolidate", "test", scope, app.store.clock())
    with pytest.raises(InterruptedError):
        run_sync(run.consolidate(app.store, "balanced", 60, False, recorded, stop))
    remember_all(app, KEEPS.format(5), KEEPS.format(9))
    done = call(app, "consolidate", days_back=60)
    assert (done.resumed, done.faded) == (True, 1)
    assert {"recurring", "sequence", "contradiction"} <= {one.type for one in done.patterns}


def test_scattered_edits_do_not_recur() -> None:
    chance = random.Random(3)
    files = [
        f"{name}.py"
        for name in ["parser", "lexer", "router", "cache", "queue", "index", "shard", "token", "theme", "layout"]
    ]
    deeds = ("edited", "opened", "read", "ran the tests of")
    events = [
        MinedEvent(
            i,
            START_TIME_S + i * 500,
            chance.choice(("action", "tool")),
            f"{chance.choice(deeds)} {chance.choice(files)}",
            chance.choice(("success", "failure")),
            f"s{i // 12}",
        )
        for i in range(900)
    ]
    assert [one.summary for one in sequences.find_recurring(*group_events(events)) if one.confidence >= 0.4] == []


def test_synonymous_outcomes_are_equal(app: App) -> None:
    record_events(
        app, [MinedEvent(0, app.store.clock(), "test", "ran it", how, "s") for how in ("Failed", "error", "passed")]
    )
    read = run_sync(consolidation_read.read_input(app.store, app.create_context(PROJECT, "python").scope, 0.0))
    assert [one.outcome for one in read.events] == ["failure", "failure", "success"]
    only = Filter(app.create_context(PROJECT, "python").scope.with_kind("event"))
    kept = run_sync(app.store.database.read(lambda tx: list_rows.list_newest_memories(tx, only, 9)))
    assert {one.metadata["outcome"] for one in kept} == {"Failed", "error", "passed"}
