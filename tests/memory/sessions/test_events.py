"""Events: they are stored unchanged, found by every filter, and hidden from other projects."""

import itertools
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from test_memories import Broken, Working

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory.sessions import rows
from athena.storage import copying
from athena.storage.privacy import PrivateReads
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, Engine, PostgresEngine, rounds
from wait_tools import succeeds_once, wait_until

NOON = datetime(2026, 3, 18, 12).timestamp()  # a Wednesday


def call(app: App, name: str, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    """Return an empty store whose clock shows noon."""
    made = App(engine.open(tmp_path / "athena.db"), MODEL, lambda: NOON)
    yield made
    made.close()


def fill_events(app: App) -> App:
    things = [
        ("action", "ran the unit tests", "success", "s1", "yesterday 9:00"),
        ("action", "deployed the shop to production", "failure", "s1", "yesterday 10:00"),
        ("decision", "rolled the shop back to the version before", None, "s1", "yesterday 10:05"),
        ("action", "deployed the shop to production", "success", "s2", "10:00"),
        ("error", "the payment provider did not answer", "failure", "s2", "11:00"),
        ("action", "watered the plants", "success", None, "last week"),
    ]
    items = [
        {"event_type": kind, "content": text, "outcome": outcome, "session_id": session, "happened": happened}
        for kind, text, outcome, session, happened in things
    ]
    call(app, "record_events", items=items)
    return app


def recall_texts(app: App, **arguments: Any) -> list[str]:
    return [event.content for event in call(app, "recall_events", **arguments)]


def test_event_keeps_all_fields(app: App) -> None:
    made = call(
        app, "record_event", event_type="action", content="ran the tests", outcome="success", session_id="s1",
        duration_ms=12.5, metadata={"files": 3}, happened="yesterday 14:00",
    )  # fmt: skip
    (event,) = call(app, "recall_events")
    assert event.id == made.id
    assert (event.event_type, event.content, event.outcome) == ("action", "ran the tests", "success")
    assert (event.session_id, event.duration_ms, event.metadata) == ("s1", 12.5, {"files": 3})
    assert datetime.fromtimestamp(event.happened) == datetime(2026, 3, 17, 14)
    assert (event.created, event.project, made.redacted) == (NOON, "p", ())


def test_equal_events_are_two_events(app: App) -> None:
    first, second = (call(app, "record_event", event_type="action", content="tick", session_id="s") for _ in range(2))
    assert first.id != second.id
    assert first.hash != second.hash
    assert [e.id for e in call(app, "recall_events", session_id="s")] == [second.id, first.id]


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("filters", "texts"),
    [
        ({"session_id": "s2"}, ["the payment provider did not answer", "deployed the shop to production"]),
        ({"session_id": "s2", "limit": 1, "offset": 1}, ["deployed the shop to production"]),
        ({"event_type": "decision"}, ["rolled the shop back to the version before"]),
        ({"outcome": "failure"}, ["the payment provider did not answer", "deployed the shop to production"]),
        ({"outcome": "FAILURE", "session_id": "s1"}, ["deployed the shop to production"]),
        ({"until": "3 days ago"}, ["watered the plants"]),
        ({"since": "today", "outcome": "success"}, ["deployed the shop to production"]),
        ({"session_id": "s3"}, []),
        ({"query": "what failed yesterday"}, ["deployed the shop to production"]),
        ({"query": "what went wrong today?"}, ["the payment provider did not answer"]),
        ({"query": "what happened last week"}, ["watered the plants"]),
        ({"query": "everything that succeeded today"}, ["deployed the shop to production"]),
    ],
    ids=str,
)
def test_events_filter_by_session_type_outcome(app: App, filters: Any, texts: list[str]) -> None:
    assert recall_texts(fill_events(app), **filters) == texts


@pytest.mark.both_engines
def test_events_found_by_words_then_meaning(app: App) -> None:
    fill_events(app)
    assert recall_texts(app, query="payment provider", limit=1) == ["the payment provider did not answer"]
    assert recall_texts(app, query="failed deploy of the shop", limit=1) == ["deployed the shop to production"]
    assert call(app, "recall_events", query="failed deploy of the shop", limit=1)[0].outcome == "failure"
    while call(app, "reembed", limit=64).remaining:
        pass
    assert recall_texts(app, query="gardening", limit=1) == ["watered the plants"]
    assert recall_texts(app, query="gardening", limit=1, session_id="s2") != ["watered the plants"]


@pytest.mark.both_engines
def test_events_and_memories_are_separate(app: App) -> None:
    fill_events(app)
    call(app, "remember", content="The shop is deployed by Maria")
    assert [hit.content for hit in call(app, "recall", query="deployed shop", k=9)] == ["The shop is deployed by Maria"]
    assert len(call(app, "list_memories")) == 1
    assert "The shop is deployed by Maria" not in recall_texts(app, query="shop deployed by Maria", limit=9)
    assert call(app, "health").count == 1


@pytest.mark.both_engines
def test_other_project_sees_no_events(app: App) -> None:
    fill_events(app)
    event = call(app, "recall_events", limit=1)[0]
    assert call(app, "recall_events", "other") == []
    assert call(app, "recall_events", "other", query="deployed the shop") == []
    assert call(app, "timeline", "other") == []
    assert call(app, "list_sessions", "other") == []
    assert call(app, "forget", "other", memory_id=event.id, kind="event") is False
    with pytest.raises(NotFound, match="no events of session"):
        call(app, "session_summary", "other", session_id="s1")
    call(app, "record_event", "user", event_type="note", content="seen everywhere")
    assert recall_texts(app, limit=1) == ["seen everywhere"]


def test_event_secrets_are_redacted(app: App, engine: Engine, tmp_path: Path) -> None:
    token = "ghp_" + "a1B2" * 9
    event = call(
        app, "record_event", event_type="action", content=f"used {token}", outcome=token, session_id=token,
        metadata={"with": token},
    )  # fmt: skip
    assert set(event.redacted) == {"github-token"}
    assert token not in repr(event) + repr(call(app, "recall_events"))
    assert [e.id for e in call(app, "recall_events", session_id=token)] == [event.id], "it is looked for as it was kept"


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"content": " "}, "content must not be empty"),
        ({"event_type": ""}, "event_type must not be empty"),
        ({"session_id": " "}, "session_id must not be empty"),
        ({"session_id": "s" * 1001}, "at most 1,000"),
        ({"duration_ms": -1}, "duration_ms"),
        ({"happened": "some day"}, "happened: Not a time"),
        ({"happened": 1e15}, "happened is out of range"),
        ({"metadata": {"athena:serial": "1"}}, "Athena's own"),
        ({"metadata": {"date": []}}, "happened must be a time"),
    ],
    ids=str,
)
def test_invalid_event_is_refused_with_reason(app: App, arguments: Any, wrong: str) -> None:
    item = {"event_type": "action", "content": "x"}
    with pytest.raises(InvalidInput, match=wrong):
        call(app, "record_event", **item | arguments)
    with pytest.raises(InvalidInput, match=r"items\[1\]"):
        call(app, "record_events", items=[item, item | arguments])
    assert call(app, "recall_events") == []


@pytest.mark.both_engines
def test_repeated_key_records_once(app: App) -> None:
    said = {"event_type": "action", "content": "paid the invoice", "session_id": "s"}
    first, again = (call(app, "record_event", key="k1", **said) for _ in range(2))
    assert first.id == again.id
    many, more = (call(app, "record_events", key="k2", items=[said, said]) for _ in range(2))
    assert [one.id for one in many] == [one.id for one in more]
    assert len(call(app, "recall_events")) == 3
    with pytest.raises(Conflict, match="used for another record_event"):
        call(app, "record_event", key="k1", **said | {"content": "paid another"})


def test_undo_skips_recorded_events(app: App) -> None:
    memory = call(app, "remember", content="a change that somebody made")
    call(app, "record_event", event_type="action", content="one")
    call(app, "record_events", items=[{"event_type": "action", "content": text} for text in ("two", "three")])
    call(app, "undo")
    assert call(app, "list_memories") == []
    assert len(recall_texts(app)) == 3
    with pytest.raises(NotFound, match="nothing to undo"):
        call(app, "undo")
    (event, *_) = call(app, "recall_events")
    call(app, "forget", memory_id=event.id, kind="event")
    call(app, "undo")  # forgetting an event is a change
    assert len(recall_texts(app)) == 3
    steps = call(app, "memory_history", memory_id=event.id, kind="event")
    assert steps[0].action == "remembered"
    assert memory.id != event.id


@pytest.mark.both_engines
def test_forgotten_events_are_restorable_until_purged(app: App, engine: Engine, tmp_path: Path) -> None:
    call(app, "remember", content="a memory that stays")
    one = call(app, "record_event", event_type="action", content="xyzzyplugh was said", outcome="frobozz")
    assert call(app, "forget", memory_id=one.id, kind="event") is True
    assert recall_texts(app) == recall_texts(app, query="xyzzyplugh") == []
    assert call(app, "restore_memory", memory_id=one.hash, kind="event") is True
    assert recall_texts(app, query="xyzzyplugh") == ["xyzzyplugh was said"]
    call(app, "forget", memory_id=one.hash, kind="event")
    assert call(app, "purge", expect=1) == 1
    assert call(app, "verify").ok
    assert len(call(app, "list_memories")) == 1
    app.close()
    written = (
        engine.read_all_bytes(tmp_path) if isinstance(engine, PostgresEngine) else (tmp_path / "athena.db").read_bytes()
    )
    assert b"xyzzyplugh" not in written
    assert b"frobozz" not in written


@pytest.mark.both_engines
def test_timeline_mixes_events_and_memories(app: App) -> None:
    fill_events(app)
    call(app, "remember", content="Deploys need two people", metadata={"date": "yesterday 10:30", "session_id": "s1"})
    days = call(app, "timeline", since="yesterday")
    assert [day.name for day in days] == ["2026-03-17", "2026-03-18"]
    assert [entry.kind for entry in days[0].entries] == ["event", "event", "event", "memory"]
    assert days[0].entries[-1].text == "Deploys need two people"
    assert [entry.outcome for entry in days[1].entries] == ["success", "failure"]
    last = call(app, "timeline", limit=2)
    assert [entry.text for day in last for entry in day.entries] == recall_texts(app, session_id="s2")[::-1]
    before = call(app, "timeline", limit=2, offset=2)
    assert [entry.type for day in before for entry in day.entries] == ["decision", "note"]
    sessions = call(app, "timeline", by="session", since="yesterday")
    assert [(one.name, len(one.entries)) for one in sessions] == [("s1", 4), ("s2", 2)]
    assert len(call(app, "timeline", session_id="s1")[0].entries) == 4


@pytest.mark.both_engines
def test_sessions_list_has_outcomes(app: App) -> None:
    first, second = call(fill_events(app), "list_sessions")
    assert (first.id, second.id) == ("s2", "s1")
    assert (second.events, second.outcomes) == (3, {"failure": 1, "success": 1})
    assert second.began_with == "ran the unit tests"
    assert datetime.fromtimestamp(second.started) == datetime(2026, 3, 17, 9)
    assert datetime.fromtimestamp(second.ended) == datetime(2026, 3, 17, 10, 5)
    assert [one.id for one in call(app, "list_sessions", until="yesterday")] == ["s1"]
    assert [one.id for one in call(app, "list_sessions", limit=1, offset=1)] == ["s1"]
    assert call(app, "list_sessions", until="last month") == []


@pytest.mark.both_engines
def test_sessions_are_found_behind_long_one(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "SESSION_SCAN_ROWS", rounds(200, rows.SESSION_SCAN_ROWS))  # smaller, to be quick
    many = rounds(450, 4_500)  # reading back to its start takes three steps
    items = [{"event_type": "tick", "content": "early", "session_id": f"s{i}", "happened": NOON - 99} for i in range(3)]
    call(app, "record_events", items=items)
    call(app, "record_events", items=[{"event_type": "tick", "content": "t", "session_id": "long"}] * many)
    listed = call(app, "list_sessions", limit=3)
    assert [(one.id, one.events) for one in listed] == [("long", many), ("s2", 1), ("s1", 1)]


@pytest.mark.both_engines
def test_summary_is_deterministic(app: App) -> None:
    items = [{"event_type": "action", "content": f"read chapter {i}", "outcome": "success"} for i in range(40)]
    items[0]["content"] = "started on the shop in src/shop/cart.py"
    items[17] = {"event_type": "action", "content": "pytest failed in test_cart_total()", "outcome": "failure"}
    items[23] = {"event_type": "decision", "content": "decided to keep totals in cents"}
    items[39]["content"] = "merged the branch of src/shop/cart.py"
    call(
        app,
        "record_events",
        items=[one | {"session_id": "s", "happened": NOON - 400 + i} for i, one in enumerate(items)],
    )
    told = call(app, "session_summary", session_id="s", sentences=4)
    assert [entry.text for entry in told.key] == [items[i]["content"] for i in (0, 17, 23, 39)]
    assert told.text.startswith("started on the shop in src/shop/cart.py (success). pytest failed in")
    assert (told.events, told.by_outcome, told.duration_s) == (40, {"success": 38, "failure": 1}, 39.0)
    assert told.by_type == {"action": 39, "decision": 1}
    assert told.mentions.files == ("src/shop/cart.py",)
    assert told.mentions.names == ("test_cart_total",)
    assert call(app, "session_summary", session_id="s", sentences=4) == told
    short = call(app, "session_summary", session_id="s", sentences=1)
    assert [entry.outcome for entry in short.key] == ["failure"]


def test_event_backlog_does_not_delay_memory() -> None:
    embedder = Broken()
    app = App(Sqlite(IN_MEMORY_PATH), embedder)
    call(app, "record_events", items=[{"event_type": "tick", "content": f"tick {i}"} for i in range(200)])
    call(app, "remember", content="the gate code is kept by Maria")
    while app.store.encoder.backlog_lock.locked():  # until the background tried it and failed
        time.sleep(0.02)
    embedder.works = True
    app.store.encoder.last_error = None
    health = call(app, "health")
    assert (health.status, health.awaiting_vectors) == ("healthy", 201)
    assert call(app, "reembed", limit=1).done == 1
    read = "SELECT s.kind FROM passages p JOIN scopes s ON s.id = p.scope WHERE p.model IS NOT NULL"
    assert run_sync(app.store.database.read(lambda tx: tx.fetch(read))) == [("memory",)]
    app.close()


def test_events_are_embedded_in_background(app: App, engine: Engine, tmp_path: Path) -> None:
    call(app, "record_event", event_type="action", content="watered the plants")
    wait_until(lambda: not call(app, "health").awaiting_vectors)
    call(
        app,
        "record_events",
        items=[{"event_type": "tick", "content": f"number {i}"} for i in range(rounds(600, 2_000))],
    )
    app.close()
    again = engine.open(tmp_path / "athena.db")
    left = run_sync(again.read(lambda tx: tx.fetch("SELECT id FROM passages WHERE model IS NULL")))
    again.close()
    assert left


def test_each_event_is_embedded_once(app: App) -> None:
    call(app, "record_events", items=[{"event_type": "tick", "content": "tick", "session_id": "s"}] * 3)
    assert call(app, "verify").checked["behind"] == 0


@pytest.mark.sqlite_only("no engine loads a model")
def test_recording_process_loads_no_model() -> None:
    class Counting(Working):
        used = 0

        def embed(self, texts: Sequence[str]) -> Any:
            self.used += 1
            return super().embed(texts)

    def unused() -> bool:
        embedder = Counting("w", 4)
        app = App(Sqlite(IN_MEMORY_PATH), embedder)
        call(app, "record_event", event_type="action", content="one")
        time.sleep(0.3)  # less than the second after which the background would embed it
        app.close()
        return embedder.used == 0

    assert succeeds_once(unused)


WRITER = """
import sys
from athena.app.compose import App, open_database_at as database_at
from athena.embedding.minilm import MiniLM
from athena.core.threads import run_sync
app = App(database_at(sys.argv[1], ""), MiniLM())
context, record = app.create_context("p", "python"), app.catalog.get_operation("record_event")
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(sys.argv[3])):
    made = run_sync(record(context, event_type="tick", content=f"{sys.argv[2]} number {i}", session_id="shared"))
    print(made.id, made.content, flush=True)
app.close()
"""


def start_writers(place: str, count: int) -> list[subprocess.Popen[str]]:
    """Start two processes that record events, and release them together."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, place, name, str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in ("left", "right")
    ]  # fmt: skip
    for one in started:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in started:
        assert one.stdin is not None
        one.stdin.write("go\n")
        one.stdin.flush()
    return started


def store_location(engine: Engine, tmp_path: Path) -> str:
    return engine.url if isinstance(engine, PostgresEngine) else str(tmp_path / "athena.db")


@pytest.mark.parametrize("killed", [False, True], ids=["both to the end", "one killed"])
def test_two_processes_append_to_session(engine: Engine, tmp_path: Path, killed: bool) -> None:
    each = rounds(60, 150)
    started = start_writers(store_location(engine, tmp_path), each)
    lines: list[str] = []
    if killed:
        assert started[0].stdout is not None
        lines += [started[0].stdout.readline() for _ in range(each // 4)]
        started[0].kill()
    lines += [line for one in started for line in one.communicate(timeout=100)[0].splitlines()]
    said = {int(line.split(" ", 1)[0]): line.split(" ", 1)[1].strip() for line in lines if line.strip()}
    assert len(said) >= each + each // 4 if killed else len(said) == 2 * each
    app = App(engine.open(tmp_path / "athena.db"), MODEL)
    events = {event.id: event.content for event in call(app, "recall_events", session_id="shared", limit=1_000)}
    assert said.items() <= events.items()
    assert len(events) <= len(said) + killed
    assert call(app, "verify").ok
    app.close()


@pytest.mark.sqlite_only("each engine is copied to the other")
def test_events_survive_migration_round_trip(tmp_path: Path, server: Any) -> None:
    app = fill_events(App(Sqlite(tmp_path / "one.db"), Working("w", 4), lambda: NOON))
    before = [call(app, "recall_events"), call(app, "list_sessions"), call(app, "timeline")]
    app.close()
    places = [str(tmp_path / "one.db"), server.create("events_moved"), str(tmp_path / "two.db")]
    for source, target in itertools.pairwise(places):
        one, other = open_database_at(source, "from"), open_database_at(target, "to")
        copying.copy_store(one, other)
        one.close()
        other.close()
        app = App(open_database_at(target, ""), Working("w", 4), lambda: NOON)
        assert [call(app, "recall_events"), call(app, "list_sessions"), call(app, "timeline")] == before
        assert recall_texts(app, query="what failed yesterday") == ["deployed the shop to production"]
        app.close()


@pytest.mark.both_engines
def test_recall_searches_several_kinds(app: App) -> None:
    fill_events(app)
    call(app, "remember", content="The shop is deployed by Maria", tags=["shop"])
    call(app, "create_task", title="Deploy the shop again", tags=["shop"])
    while call(app, "reembed", limit=64).remaining:
        pass
    asked: dict[str, Any] = {"query": "deploy the shop", "k": 10}
    both = call(app, "recall", kinds=["memory", "event"], **asked)
    assert {hit.kind for hit in both[:3]} == {"memory", "event"}
    assert len(both) == both.total == 7
    assert [hit.score for hit in both] == sorted((hit.score for hit in both), reverse=True)
    assert not any(key.startswith("athena:") for hit in both for key in hit.metadata)
    page: dict[str, Any] = {"query": "deploy the shop", "k": 2, "kinds": ["memory", "event"]}
    pages = [call(app, "recall", **page | {"offset": offset}) for offset in (0, 2, 4, 6)]
    assert sorted(hit.id for page in pages for hit in page) == sorted(hit.id for hit in both)
    assert [hit.content for hit in call(app, "recall", kinds=["task"], **asked)] == ["Deploy the shop again"]
    tagged = call(app, "recall", kinds=["memory", "task"], tags="shop", **asked)
    assert {hit.kind for hit in tagged} == {"memory", "task"}
    failed = call(app, "recall", kinds=["event"], query="what was deployed yesterday", k=1, understand_time=True)
    assert failed[0].content == "deployed the shop to production"
    assert {hit.kind for hit in call(app, "recall", **asked)} == {"memory"}


@pytest.mark.both_engines
def test_document_is_not_in_timeline(app: App, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# One\n\nA text about tea.\n")
    call(app, "ingest_document", path=str(tmp_path / "notes.md"))
    call(app, "record_event", event_type="action", content="read the notes")
    assert [entry.text for day in call(app, "timeline") for entry in day.entries] == ["read the notes"]


def test_memory_update_overtakes_event_backlog(app: App) -> None:
    app.store.encoder.backlog_lock.acquire()  # keeps the background from embedding
    memory = call(app, "remember", content="first wording")
    call(app, "record_events", items=[{"event_type": "tick", "content": f"tick {i}"} for i in range(40)])
    call(app, "update_memory", memory_id=memory.id, content="second wording")
    assert call(app, "health").awaiting_vectors == 40
    app.store.encoder.backlog_lock.release()


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("what failed", {"f1", "f2", "f3", "e1"}),
        ("what crashed?", {"f1", "f2", "f3", "e1"}),
        ("what did not fail", {"s1", "s2"}),
        ("what didn't fail today", {"s1", "s2"}),
        ("what succeeded", {"s1", "s2"}),
        ("what went well", {"s1", "s2"}),
        ("what did not go wrong", {"s1", "s2"}),
        ("what did not work", {"f1", "f2", "f3", "e1"}),
        ("what didn't succeed", {"f1", "f2", "f3", "e1"}),
        ("what happened without errors", {"s1", "s2"}),
    ],
)
def test_outcome_synonyms_are_understood(app: App, question: str, expected: set[str]) -> None:
    given = [
        ("action", "f1", "failed"),
        ("action", "f2", "Timeout"),
        ("action", "f3", "failure"),
        ("error", "e1", None),
    ]
    given += [("action", "s1", "ok"), ("action", "s2", "passed"), ("action", "n1", None), ("action", "n2", "partial")]
    call(
        app,
        "record_events",
        items=[{"event_type": kind, "content": text, "outcome": outcome} for kind, text, outcome in given],
    )
    assert set(recall_texts(app, query=question)) == expected
    assert set(recall_texts(app, outcome="error")) == {"f1", "f2", "f3", "e1"}
    assert set(recall_texts(app, outcome="Success")) == {"s1", "s2"}
    assert set(recall_texts(app, outcome="partial")) == {"n2"}
    assert next(one for one in call(app, "recall_events") if one.content == "e1").outcome is None


@pytest.mark.both_engines
def test_session_in_query_is_filter(app: App) -> None:
    for session in ("sat-3", "sat-30", "deploy"):
        call(app, "record_event", event_type="action", content=f"{session} did something", session_id=session)
    assert recall_texts(app, query="what did session sat-3 do?") == ["sat-3 did something"]
    assert recall_texts(app, query="what happened in sat-30") == ["sat-30 did something"]
    assert recall_texts(app, query="what did the deploy session do") == ["deploy did something"]
    assert len(recall_texts(app, query="something in the deploy")) == 3, "an ordinary word is not a session"
    assert len(recall_texts(app, query="what did session sat-4 do")) != 1


@pytest.mark.both_engines
def test_timeline_since_starts_there(app: App) -> None:
    for hour in range(20):
        call(app, "record_event", event_type="action", content=f"step {hour}", happened=f"yesterday {hour:02}:00")
    for minute in range(20):
        call(app, "record_event", event_type="action", content=f"now {minute}", happened=f"11:{minute:02}")
    days = call(app, "timeline", since="yesterday", limit=10)
    assert [entry.text for day in days for entry in day.entries] == [f"step {hour}" for hour in range(10)]
    assert (days[-1].left_out, days.total) == (30, 40)
    more = call(app, "timeline", since="yesterday", limit=10, offset=35)
    assert [entry.text for day in more for entry in day.entries] == [f"now {minute}" for minute in range(15, 20)]
    assert more[-1].left_out == 0
    last = call(app, "timeline", limit=10)
    assert [entry.text for day in last for entry in day.entries] == [f"now {minute}" for minute in range(10, 20)]
    assert last[0].left_out == 30


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("criteria", "marks"),
    [
        ({"session_id": "s", "since": "yesterday"}, {"files"}),
        ({"since": "yesterday"}, {"files"}),
        ({"session_id": "other", "since": "yesterday"}, set()),
        ({"session_id": "s", "until": "11:00"}, set()),
    ],
)
def test_number_of_private_events_marks_run(app: App, criteria: dict[str, str], marks: set[str]) -> None:
    def run(reads: PrivateReads, name: str, **arguments: Any) -> Any:
        context = app.create_context("p", "mcp").for_program("r", "w", lambda: False, reads)
        return run_sync(app.catalog.get_operation(name)(context, **arguments))

    for happened in ("10:00", "10:30", "10:40"):
        for session in ("s", "other"):
            call(app, "record_event", event_type="note", content="public", session_id=session, happened=happened)
    run(PrivateReads("files"), "record_event", event_type="note", content="x", session_id="s", happened="11:59")
    reader = PrivateReads()
    assert run(reader, "timeline", limit=1, **criteria)
    assert reader.marks == marks
