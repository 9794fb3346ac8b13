"""Consolidation runs: merges, contradictions, patterns, undo and resuming."""

import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from bench.evaluation.planting import START_TIME_S, generate_stream
from bench.evaluation.statements import generate_statements
from consolidation_tools import PROJECT, call, record_events
from shop_week import CARELESS, week

from athena import api
from athena.app.compose import App
from athena.cli.commands import athena
from athena.core.threads import run_sync
from athena.core.values import Call
from athena.memory import link_rows, list_rows
from athena.memory.consolidation import run
from athena.memory.consolidation.stages import STRATEGY_PLANS
from athena.memory.consolidation.values import MinedEvent
from athena.memory.rows import CONTRADICTED_BY
from athena.storage import scopes
from athena.storage.filters import Filter
from conftest import MODEL, Engine

SAME = (
    "The deploy runs every Friday at three in the afternoon.",
    "The deploy runs every Friday at three in the afternoon",
    "Maria is allergic to peanuts.",
)
OPPOSED = ("The deploy runs every Friday at three.", "The deploy runs every Thursday at three.")
DAY = 86_400.0


def fill_month(app: App, seed: int = 3, size: int = 300) -> None:
    """Give a project a month of events, and memories that contradict each other."""
    shift = app.store.clock() - START_TIME_S - 29 * DAY
    record_events(app, generate_stream(seed, size).events, shift)
    for note in generate_statements(seed, planted=3, lookalikes=2, filler=5).memories:
        call(app, "remember", content=note.text, metadata={"date": note.at + shift})


def visible_state(app: App) -> dict[str, Any]:
    """Return everything that a user can see, except times of change."""
    found: dict[str, Any] = {}
    for kind in ("memory", "event", "pattern"):
        only = Filter(app.create_context(PROJECT, "python").scope.with_kind(kind))
        rows = run_sync(app.store.database.read(partial(list_rows.list_newest_memories, criteria=only, limit=10_000)))
        found[kind] = [(m.id, m.content, m.tags, m.memory_type, m.metadata, m.importance) for m in rows]
    found["health"] = call(app, "stats")["forgotten"]
    return found


@pytest.mark.both_engines
def test_equal_memories_merge_and_undo(isolated: App) -> None:
    api.store(SAME[0], tags="old", metadata={"who": "Ann"})
    api.store(SAME[1], tags="new")
    api.store(SAME[2])
    preview = api.consolidate(dry_run=True)
    assert [pattern["type"] for pattern in preview["patterns"]] == ["near_duplicate"]
    assert (preview["merged"], preview["new"], api.health().count) == (1, 1, 3)
    done = api.consolidate()
    assert (done["merged"], api.health().count) == (1, 2)
    memory = api.get(api.search("friday deploy", limit=1).memories[0].hash)
    assert (memory.content, set(memory.tags), memory.metadata) == (SAME[1], {"old", "new"}, {"who": "Ann"})
    assert api.consolidate()["merged"] == 0
    run_sync(isolated.catalog.get_operation("undo")(isolated.create_context("test", "python")))
    assert api.health().count == 3


@pytest.mark.both_engines
def test_one_word_difference_contradicts(isolated: App) -> None:
    old, new = (api.store(text) for text in OPPOSED)
    done = api.consolidate(strategy="quality")
    assert [(p["type"], p["merged"]) for p in done["patterns"]] == [("contradiction", False)]
    assert api.health().count == 2
    assert (done["faded"], done["strengthened"]) == (1, 1)
    assert api.get(old).importance < 0.5 < api.get(new).importance


@pytest.mark.both_engines
def test_contradicted_memory_fades_and_returns(app: App) -> None:
    old, new = (call(app, "remember", content=text) for text in OPPOSED)
    call(app, "consolidate")
    memory = call(app, "get_memory", memory_id=old.id)
    assert [(one.relation, one.id) for one in memory.related] == [("contradicted by", new.id)]
    assert [change.action for change in call(app, "memory_history", memory_id=old.id)][-1] in ("faded", "related")
    call(app, "undo")
    assert call(app, "get_memory", memory_id=old.id).importance == old.importance
    assert call(app, "get_memory", memory_id=old.id).related == ()
    assert call(app, "list_patterns") == []


@pytest.mark.both_engines
def test_newer_memory_ranks_first(app: App) -> None:
    old = call(app, "remember", content="We deploy on Fridays at 15:00")
    new = call(app, "remember", content="Deploys run on Tuesdays at 10:00 since the release train, see the wiki")
    call(app, "remember", content="Lunch is at noon")
    ask = {"query": "when do we deploy", "k": 3}
    before = [(hit.id, hit.contradicted_by) for hit in call(app, "recall", **ask)]
    assert before[0] == (old.id, None)
    app_call = Call("consolidate", "test", app.create_context(PROJECT, "python").scope, app.store.clock())
    run_sync(app.store.database.write(lambda tx: _contradict(app, tx, app_call, old.id, new.id)))
    hits = call(app, "recall", **ask, explain=True)
    assert [(hit.id, hit.contradicted_by) for hit in hits[:2]] == [(new.id, None), (old.id, new.id)]
    assert hits[0].score >= hits[1].score
    assert hits[1].why["contradicted"] < 0
    call(app, "forget", memory_id=new.id)
    assert next((hit.id, hit.contradicted_by) for hit in call(app, "recall", **ask)) == (old.id, None)


async def _contradict(app: App, tx: Any, made: Call, old: int, new: int) -> None:
    await link_rows.insert_link(tx, await scopes.ensure_scope(tx, made.scope), old, new, CONTRADICTED_BY, made.started)


def test_faded_ranks_after_strengthened(app: App) -> None:
    for text in ("Deploys run on Fridays at 15:00", "Deploys run on Tuesdays at 15:00", "Bob owns search"):
        call(app, "remember", content=text)
    assert call(app, "consolidate").faded == 1
    found = [hit.content for hit in call(app, "recall", query="when do we deploy", k=2)]
    assert found == ["Deploys run on Tuesdays at 15:00", "Deploys run on Fridays at 15:00"]


@pytest.mark.parametrize("strategy", ["minimal", "speed", "balanced", "quality"])
def test_different_values_are_no_duplicates(app: App, strategy: str) -> None:
    call(app, "remember", content="The public API allows 100 requests per minute per key")
    call(app, "remember", content="The public API allows 250 requests per minute per key")
    assert {one.type for one in call(app, "consolidate", strategy=strategy).patterns} <= {"contradiction"}


def test_dry_run_predicts_run(app: App) -> None:
    fill_month(app)
    for text in SAME[:2]:
        call(app, "remember", content=text)
    tried = call(app, "consolidate", days_back=60, dry_run=True)
    done = call(app, "consolidate", days_back=60)
    figures = ("examined", "merged", "strengthened", "faded", "promoted", "new")
    assert [getattr(tried, name) for name in figures] == [getattr(done, name) for name in figures]
    assert min(done.merged, done.strengthened, done.faded, done.promoted, done.new) > 0
    shown = [
        [(p.type, p.summary, p.confidence, p.support, p.new, p.merged) for p in one.patterns] for one in (tried, done)
    ]
    assert shown[0] == shown[1]
    again = call(app, "consolidate", days_back=60, dry_run=True)
    assert (again.new, again.merged, again.faded, again.promoted) == (0, 0, 0, 0)
    assert not any(one.new for one in again.patterns)
    assert call(app, "verify").ok


@pytest.mark.both_engines
def test_only_lessons_become_memories(app: App) -> None:
    record_events(app, week(app.store.clock()))
    call(app, "remember", content="The integration tests need docker compose up first", tags=["tests"])
    done = call(app, "consolidate")
    assert sum(one.type == "recurring" for one in done.patterns) >= 4
    made = [one for one in call(app, "list_memories") if one.memory_type == "lesson"]
    assert [CARELESS in one.content for one in made] == [True]
    assert done.promoted == 1
    assert made[0].importance < 0.5
    known = call(app, "expertise")
    assert [one.topic for one in (*known.well_covered, *known.thin, *known.stale)] == ["tests"]


def test_careful_strategy_only_reports(isolated: App) -> None:
    api.store_batch(SAME)
    assert api.consolidate(strategy="minimal")["merged"] == 0
    assert api.health().count == 3


def test_tags_seen_together_become_topic(isolated: App) -> None:
    for i in range(4):
        api.store(f"auth login number {i} {'xyz' * i}", tags=["auth", "login"])
        api.store(f"lunch menu number {i} {'abc' * i}", tags=["food"])
    topics = [p for p in api.consolidate(dry_run=True)["patterns"] if p["type"] == "topic"]
    assert [(topic["support"], topic["summary"]) for topic in topics] == [
        (4, "'auth' and 'login' come up together in 4 memories")
    ]
    assert 0 < topics[0]["confidence"] <= 1


def test_dry_run_changes_nothing(app: App) -> None:
    fill_month(app)
    before = visible_state(app)
    report = call(app, "consolidate", days_back=60, dry_run=True)
    assert {"recurring", "sequence", "contradiction"} <= {one.type for one in report.patterns}
    assert all(one.id is None for one in report.patterns)
    assert visible_state(app) == before
    assert call(app, "consolidation_status") == []


@pytest.mark.both_engines
def test_second_run_finds_nothing_new(app: App) -> None:
    fill_month(app)
    first = call(app, "consolidate", days_back=60)
    assert first.new == len(first.patterns) > 3
    assert first.promoted > 0
    after = visible_state(app)
    second = call(app, "consolidate", days_back=60)
    assert (second.new, second.skipped) == (0, True)
    assert {one.id for one in second.patterns} == {one.id for one in first.patterns}
    call(app, "remember", content="The coffee machine is on the second floor.")
    third = call(app, "consolidate", days_back=60)
    assert (third.new, third.skipped, third.promoted, third.faded, third.strengthened) == (0, False, 0, 0, 0)
    assert visible_state(app)["pattern"] == after["pattern"]


@pytest.mark.both_engines
def test_run_is_undone_as_one_change(app: App) -> None:
    fill_month(app)
    call(app, "remember", content=SAME[0])
    call(app, "remember", content=SAME[1])
    before = visible_state(app)
    done = call(app, "consolidate", days_back=60)
    assert min(done.merged, done.promoted, done.faded, done.strengthened) > 0
    assert visible_state(app) != before
    call(app, "undo")
    assert {kind: sorted(map(str, rows)) for kind, rows in visible_state(app).items() if kind != "health"} == {
        kind: sorted(map(str, rows)) for kind, rows in before.items() if kind != "health"
    }
    assert call(app, "verify").ok
    again = call(app, "consolidate", days_back=60)
    assert len(again.patterns) == len(done.patterns) == again.new
    assert (again.merged, again.faded, again.strengthened, again.promoted) == (0, 0, 0, 0)


@pytest.mark.both_engines
def test_repeated_events_update_pattern(app: App) -> None:
    fill_month(app)
    call(app, "consolidate", days_back=60)
    count = len(call(app, "list_patterns"))
    one = call(app, "list_patterns", type="recurring", min_confidence=0.9)[0]
    example = call(app, "get_pattern", pattern_id=one.id).found_in[0]
    now, kind = app.store.clock(), one.details["event_type"]
    record_events(app, [MinedEvent(0, now - h * 3_600, kind, example.content, None, f"more-{h}") for h in (2, 4, 6)])
    call(app, "consolidate", days_back=60)
    again = call(app, "get_pattern", pattern_id=one.id)
    assert again.support == one.support + 3
    assert len(call(app, "list_patterns")) == count


def test_pattern_shows_evidence(app: App) -> None:
    fill_month(app)
    call(app, "consolidate", days_back=60)
    listed = call(app, "list_patterns", min_confidence=0.5)
    assert [one.confidence for one in listed] == sorted((one.confidence for one in listed), reverse=True)
    for one in listed[:5]:
        shown = call(app, "get_pattern", pattern_id=one.id)
        assert {found.id for found in shown.found_in} == set(shown.evidence)
        assert not any(name.startswith("athena:") for name in shown.details)
    lesson = next(one for one in listed if one.type == "sequence" and one.memory)
    assert call(app, "get_memory", memory_id=lesson.memory).memory_type == "lesson"


def test_strategies_differ(app: App) -> None:
    fill_month(app, size=600)
    for text in SAME[:2]:
        call(app, "remember", content=text)
    found = {
        name: call(app, "consolidate", strategy=name, days_back=60, dry_run=True).patterns for name in STRATEGY_PLANS
    }
    types = {name: {one.type for one in patterns} for name, patterns in found.items()}
    assert types["minimal"] == types["speed"] == {"recurring", "near_duplicate"}
    assert types["balanced"] > types["speed"]
    counts = [len(found[name]) for name in ("minimal", "balanced", "quality")]
    assert counts == sorted(counts)
    assert counts[0] < counts[1]
    done = {}
    for name in STRATEGY_PLANS:
        did = call(app, "consolidate", strategy=name, days_back=60, dry_run=True)
        done[name] = (did.merged, did.promoted > 0)
    assert done == {"minimal": (0, False), "speed": (1, False), "balanced": (1, True), "quality": (1, True)}


def test_interrupted_run_resumes(app: App) -> None:
    fill_month(app)
    before = visible_state(app)
    stages: list[str] = []

    class Stopped(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        if stage == "contradictions":
            raise Stopped

    again = Call("consolidate", "test", app.create_context(PROJECT, "python").scope, app.store.clock())
    with pytest.raises(Stopped):
        run_sync(run.consolidate(app.store, "balanced", 60, False, again, stop))
    assert visible_state(app) == before
    state = call(app, "consolidation_status")[0]
    assert (state.state, state.stage) == ("running", "topics")
    done = call(app, "consolidate", days_back=60)
    assert done.resumed
    assert {"recurring", "contradiction"} <= {one.type for one in done.patterns}
    assert call(app, "consolidation_status")[0].state == "done"


def test_many_new_events_make_run_due(app: App) -> None:
    scope = app.create_context(PROJECT, "python").scope
    assert not run_sync(run.is_due(app.store, scope))
    fill_month(app, size=600)
    assert run_sync(run.is_due(app.store, scope))
    call(app, "consolidate", days_back=60)
    assert not run_sync(run.is_due(app.store, scope))


@pytest.mark.both_engines
def test_purge_leaves_no_word_in_pattern(app: App, engine: Engine, tmp_path: Path) -> None:
    old, new = (call(app, "remember", content=f"{text[:-1]} in Xylophonia.") for text in OPPOSED)
    call(app, "consolidate")
    assert "Xylophonia" in call(app, "list_patterns")[0].summary
    call(app, "purge", memory_ids=[old.id, new.id], expect=3)  # and the pattern
    assert call(app, "list_patterns") == []
    assert call(app, "verify").ok
    app.close()
    assert b"ylophonia" not in engine.read_all_bytes(tmp_path)


KILLED = """
import sys, time
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.memory.consolidation import patterns as keeping, run
from athena.core.values import Call
from athena.storage.sqlite.store import Sqlite
from athena.core.threads import run_sync
app = App(Sqlite(sys.argv[1]), MiniLM())
scope = app.create_context("test", "python").scope
def tell(stage, done, total):
    print(stage, flush=True)
    if stage == sys.argv[2] != "changing":
        time.sleep(300)
if sys.argv[2] == "inside":
    real, kept = keeping.save_pattern, []
    async def slow(*given):
        kept.append(await real(*given))
        if len(kept) == 4:  # in the middle of the transaction, after memories were changed
            print("inside", flush=True)
            time.sleep(300)
        return kept[-1]
    keeping.save_pattern = slow
run_sync(run.consolidate(app.store, "balanced", 60, False, Call("consolidate", "test", scope, app.store.clock()), tell))
print("done", flush=True)
"""


class Month(NamedTuple):
    """A filled store, what is visible in it, and what a whole run makes of that."""

    file: Path
    before: dict[str, Any]
    after: dict[str, Any]


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Month:
    folder = tmp_path_factory.mktemp("month")
    app = App(Engine().open(folder / "athena.db"), MODEL)
    fill_month(app)
    before = visible_state(app)
    app.close()
    shutil.copy(folder / "athena.db", folder / "whole.db")
    app = App(Engine().open(folder / "whole.db"), MODEL)
    report = call(app, "consolidate", days_back=60)
    assert min(report.faded, report.promoted, len(report.patterns) - 3) > 0
    after = visible_state(app)
    app.close()
    return Month(folder / "athena.db", before, after)


@pytest.mark.sqlite_only("the process is killed, not the server")
@pytest.mark.parametrize("stage", ["duplicates", "sequences", "contradictions", "changing", "inside", "done"])
def test_kill_leaves_store_before_or_after(tmp_path: Path, engine: Engine, month: Month, stage: str) -> None:
    file = tmp_path / "athena.db"
    shutil.copy(month.file, file)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(file), stage], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == stage:
            break
    process.kill()
    process.communicate(timeout=60)
    app = App(engine.open(file), MODEL)
    after = visible_state(app)
    assert call(app, "verify").ok
    assert after == (month.before if stage not in ("changing", "done") or not after["pattern"] else month.after)
    call(app, "consolidate", days_back=60)
    assert visible_state(app) == month.after
    app.close()


def test_command_reports_results(isolated: App, capsys: pytest.CaptureFixture[str]) -> None:
    for text in OPPOSED:
        api.store(text)
    assert athena(["consolidate", "--days", "1"], standalone_mode=False) == 0
    printed = capsys.readouterr().out
    assert "contradiction" in printed
    assert "1 pattern in 2 events and memories (1 new, 0 merged, 1 strengthened, 1 faded, 0 promoted)" in printed


def test_run_leaves_no_texts_in_caches(isolated: App) -> None:
    def count_cached() -> dict[str, int]:
        names = ("athena.core.words", "athena.memory.")
        modules = [module for name, module in list(sys.modules.items()) if name.startswith(names)]
        values = {value for module in modules for value in vars(module).values() if isinstance(value, type(cache(len)))}
        return {f"{value.__module__}.{value.__qualname__}": value.cache_info().currsize for value in values}

    call(isolated, "consolidate", strategy="balanced")  # loads its tables
    before = count_cached()
    assert before["athena.core.words.stem_word"] == 0
    call(isolated, "remember_batch", items=[f"thing{i} of place{i} costs {i} euros in town{i}" for i in range(100)])
    assert call(isolated, "consolidate", strategy="balanced").examined == 100
    assert not [name for name, size in count_cached().items() if size > before.get(name, 0) + 50]
