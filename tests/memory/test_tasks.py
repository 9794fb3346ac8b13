"""Tasks: due dates, dependencies, priorities, and no lost changes."""

import itertools
from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from test_memories import Working

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput, NotFound
from athena.storage import copying
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, Engine

NOON = datetime(2026, 3, 18, 12).timestamp()  # a Wednesday


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def app(tmp_path: Path, engine: Engine, clock: Clock) -> Generator[App]:
    made = App(engine.open(tmp_path / "athena.db"), MODEL, clock)
    yield made
    made.close()


def call(app: App, name: str, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


def task_titles(app: App, name: str = "list_tasks", **arguments: Any) -> list[str]:
    return [task.title for task in call(app, name, **arguments)]


def format_time(moment: float | None) -> str:
    return "" if moment is None else f"{datetime.fromtimestamp(moment):%Y-%m-%d %H:%M:%S}"


def test_task_keeps_all_fields(app: App) -> None:
    first = call(app, "create_task", title="Buy  the\nring")
    task = call(
        app, "create_task", title="Renew the certificate", due="tomorrow 9am", details="Ask Maria\nfor the key",
        priority="high", depends_on=[first.hash[:6]], tags=["ops"], metadata={"host": "shop"}, kind="reminder",
    )  # fmt: skip
    ring, renew = call(app, "list_tasks", state="open")
    assert (renew.title, ring.title) == ("Renew the certificate", "Buy the ring"), "what is blocked comes last"
    assert (renew.id, renew.details, renew.kind) == (task.id, "Ask Maria\nfor the key", "reminder")
    assert (renew.priority, renew.tags, renew.metadata) == ("high", ("ops",), {"host": "shop"})
    assert (format_time(renew.due), renew.overdue, renew.state) == ("2026-03-19 09:00:00", False, "open")
    assert renew.depends_on == renew.blocked_by == (first.id,)
    assert (ring.due, ring.details, ring.finished) == (None, None, None)


@pytest.mark.parametrize(
    ("words", "moment"),
    [
        ("tomorrow", "2026-03-19 23:59:59"),
        ("tomorrow at 9", "2026-03-19 09:00:00"),
        ("9am", "2026-03-19 09:00:00"),
        ("17:00", "2026-03-18 17:00:00"),
        ("tonight", "2026-03-18 23:59:59"),
        ("eod", "2026-03-18 23:59:59"),
        ("wednesday", "2026-03-18 23:59:59"),
        ("friday", "2026-03-20 23:59:59"),
        ("by friday 14:30", "2026-03-20 14:30:00"),
        ("next friday", "2026-03-20 23:59:59"),
        ("next week", "2026-03-29 23:59:59"),
        ("end of the month", "2026-03-31 23:59:59"),
        ("in 2 hours", "2026-03-18 14:00:00"),
        ("3 days", "2026-03-21 12:00:00"),
        ("7d", "2026-03-25 12:00:00"),
        ("1 March", "2027-03-01 23:59:59"),
        ("2026-04-01", "2026-04-01 23:59:59"),
        ("2026-04-01 14:00", "2026-04-01 14:00:00"),
        ("yesterday", "2026-03-17 23:59:59"),
        (NOON + 60, "2026-03-18 12:01:00"),
    ],
    ids=str,
)
@pytest.mark.sqlite_only("no engine reads times")
def test_due_time_is_in_future(app: App, words: Any, moment: str) -> None:
    assert format_time(call(app, "create_task", title="x", due=words).due) == moment


def test_equal_tasks_are_two_tasks(app: App) -> None:
    one, other = (call(app, "create_task", title="Water the plants") for _ in range(2))
    assert one.id != other.id
    assert len(call(app, "list_tasks")) == 2


def test_due_tasks_sort_by_priority(app: App, clock: Clock) -> None:
    first = call(app, "create_task", title="soon", due="in 3 hours")
    call(app, "create_task", title="waiting", due="in 1 hour", priority="urgent", depends_on=[first.id])
    call(app, "create_task", title="overdue", due="yesterday")
    call(app, "create_task", title="urgent", due="tomorrow 11:00", priority="urgent")
    call(app, "create_task", title="later", due="next week", priority="urgent")
    call(app, "create_task", title="some day", priority="urgent")
    call(app, "complete_task", task_id=call(app, "create_task", title="finished", due="in 1 hour").id)
    assert task_titles(app, "due_tasks") == ["urgent", "overdue", "soon", "waiting"]
    assert [task.overdue for task in call(app, "due_tasks")] == [False, True, False, False]
    assert task_titles(app, "due_tasks", within="4 hours") == ["overdue", "soon", "waiting"]
    assert task_titles(app, "due_tasks", within="next week", limit=2) == ["urgent", "later"]
    clock.now += 4 * 3600
    assert [task.title for task in call(app, "due_tasks", within="1 minute") if task.overdue] == [
        "overdue", "soon", "waiting",
    ]  # fmt: skip


def test_completing_task_unblocks_and_undo_reopens(app: App) -> None:
    one, two = call(app, "create_task", title="dig"), call(app, "create_task", title="buy seeds")
    sow = call(app, "create_task", title="sow", depends_on=[one.id, two.id])
    water = call(app, "create_task", title="water", depends_on=[sow.id])
    assert sow.blocked_by == (one.id, two.id)
    assert task_titles(app, state="blocked") == ["sow", "water"]
    assert call(app, "complete_task", task_id=one.id).unblocked == ()
    done = call(app, "complete_task", task_id=two.hash, outcome="tulips")
    assert [(freed.id, freed.title) for freed in done.unblocked] == [(sow.id, "sow")]
    assert (done.state, done.outcome, done.finished) == ("done", "tulips", NOON)
    assert task_titles(app, state="blocked") == ["water"]
    assert task_titles(app, state="done") == ["buy seeds", "dig"]
    call(app, "undo")
    assert task_titles(app, state="done") == ["dig"]
    assert task_titles(app, state="blocked") == ["sow", "water"]
    assert task_titles(app, state="open") == ["buy seeds", "sow", "water"]
    assert [change.action for change in call(app, "memory_history", memory_id=two.id, kind="task")] == [
        "remembered", "updated", "undone",
    ]  # fmt: skip
    call(app, "forget", memory_id=sow.id, kind="task")
    assert call(app, "list_tasks", state="blocked") == [], "what was forgotten holds nothing up"
    assert water.blocked_by == (sow.id,)


@pytest.mark.both_engines
def test_task_update_is_partial(app: App, clock: Clock) -> None:
    made = call(
        app, "create_task", title="Paint", details="green", due="friday", tags="home", metadata={"a": 1, "b": 2}
    )
    clock.now += 60
    call(app, "update_task", task_id=made.id, title="Paint the door", priority="low", metadata={"a": None, "c": 3})
    call(app, "update_task", task_id=made.id, state="in_progress", kind="goal")
    (task,) = call(app, "list_tasks", tags=["HOME"])
    assert (task.title, task.details, task.priority, task.state) == ("Paint the door", "green", "low", "in_progress")
    assert (task.kind, task.metadata, task.due, task.created) == ("goal", {"b": 2, "c": 3}, made.due, NOON)
    task = call(app, "update_task", task_id=made.hash, due="", details="", tags=[])
    assert (task.due, task.details, task.tags) == (None, None, ())
    assert call(app, "due_tasks", within="1 year") == []
    for _ in range(3):
        call(app, "undo")
    (task,) = call(app, "list_tasks")
    assert (task.title, task.due, task.state, task.priority) == ("Paint", made.due, "open", "normal")
    assert task_titles(app, "due_tasks", within="1 week") == ["Paint"]
    assert call(app, "verify").ok


@pytest.mark.both_engines
def test_open_task_has_no_end(app: App) -> None:
    task = call(app, "create_task", title="Paint")
    assert call(app, "update_task", task_id=task.id, state="cancelled").finished == NOON
    assert call(app, "list_tasks") == []
    assert task_titles(app, state="cancelled") == ["Paint"]
    again = call(app, "update_task", task_id=task.id, state="open")
    assert (again.finished, again.state) == (None, "open")


def test_dependency_cycle_is_refused(app: App) -> None:
    one, two, three = (call(app, "create_task", title=f"step {name}") for name in ("one", "two", "three"))
    call(app, "update_task", task_id=two.id, depends_on=[one.id])
    call(app, "update_task", task_id=three.id, depends_on=[two.id])
    with pytest.raises(
        Conflict, match=rf"{one.id} 'step one' > {three.id} 'step three' > {two.id} 'step two' > {one.id}"
    ):
        call(app, "update_task", task_id=one.id, depends_on=[three.id])
    with pytest.raises(Conflict, match=rf"{one.id} 'step one' > {one.id} 'step one'"):
        call(app, "update_task", task_id=one.id, depends_on=[one.id])
    assert call(app, "list_tasks", state="open")[0].blocked_by == ()
    call(app, "update_task", task_id=three.id, depends_on=[])
    assert call(app, "update_task", task_id=one.id, depends_on=[three.id]).blocked_by == (three.id,)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"title": " "}, "title must not be empty"),
        ({"title": "x" * 301}, "at most 300"),
        ({"due": "some day"}, "due is not a time: 'some day'"),
        ({"due": 1e18}, "due is not a time"),
        ({"priority": "huge"}, "priority must be one of"),
        ({"kind": "wish"}, "kind must be one of"),
        ({"metadata": {"athena:plan": {}}}, "Athena's own"),
    ],
    ids=str,
)
def test_invalid_task_is_refused_with_reason(app: App, arguments: Any, wrong: str) -> None:
    with pytest.raises(InvalidInput, match=wrong):
        call(app, "create_task", **{"title": "x"} | arguments)
    with pytest.raises(NotFound, match="no task 99"):
        call(app, "create_task", title="x", depends_on=[99])
    with pytest.raises(NotFound, match="no task 99"):
        call(app, "complete_task", task_id=99)
    memory = call(app, "remember", content="no task")
    with pytest.raises(NotFound, match=f"no task {memory.id}"):
        call(app, "update_task", task_id=memory.id, state="done")
    assert call(app, "list_tasks") == []


def test_empty_update_is_refused(app: App) -> None:
    task = call(app, "create_task", title="x")
    with pytest.raises(InvalidInput, match="nothing to change"):
        call(app, "update_task", task_id=task.id)


def test_task_secrets_are_redacted(app: App) -> None:
    token = "ghp_" + "a1B2" * 9
    task = call(app, "create_task", title=f"rotate {token}", details=f"was {token}", metadata={"x": token})
    assert task.redacted == ("github-token",) * 3
    changed = call(app, "update_task", task_id=task.id, title=f"drop {token}")
    assert changed.redacted == ("github-token",)
    done = call(app, "complete_task", task_id=task.id, outcome=f"now {token}")
    assert done.outcome == "now [SECRET:github-token]"
    history = call(app, "memory_history", memory_id=task.id, kind="task")
    assert token not in repr([task, changed, done, history])
    named = call(app, "create_task", title="the admin password", details="Zq04" + "vT7-kLm9Xw")
    assert (named.details, named.redacted) == ("[SECRET:password]", ("password",))


@pytest.mark.both_engines
def test_other_project_sees_no_tasks(app: App) -> None:
    task = call(app, "create_task", title="ours", due="tomorrow")
    assert call(app, "list_tasks", "other") == call(app, "due_tasks", "other", within="1 week") == []
    with pytest.raises(NotFound):
        call(app, "complete_task", "other", task_id=task.id)
    with pytest.raises(NotFound):
        call(app, "create_task", "other", title="theirs", depends_on=[task.id])
    call(app, "create_task", "user", title="everywhere")
    assert task_titles(app) == ["ours", "everywhere"]
    assert call(app, "recall", query="ours", k=9) == []


def test_repeated_key_plans_and_completes_once(app: App) -> None:
    first, again = (call(app, "create_task", key="k1", title="pay", due="tomorrow") for _ in range(2))
    assert first.id == again.id
    assert len(call(app, "list_tasks")) == 1
    done, same = (call(app, "complete_task", key="k2", task_id=first.id, outcome="paid") for _ in range(2))
    assert (done.id, done.finished) == (same.id, same.finished)
    assert len(call(app, "memory_history", memory_id=first.id, kind="task")) == 2
    for _ in range(2):
        call(app, "update_task", key="k3", task_id=first.id, state="open")
    with pytest.raises(Conflict, match="another update_task"):
        call(app, "update_task", key="k3", task_id=first.id, state="cancelled")


def test_completed_task_stays_completed(app: App, clock: Clock) -> None:
    task = call(app, "create_task", title="pay")
    call(app, "complete_task", task_id=task.id)
    clock.now += 60
    assert call(app, "complete_task", task_id=task.id).finished == NOON
    assert len(call(app, "memory_history", memory_id=task.id, kind="task")) == 2


def test_forgotten_tasks_are_purged(app: App) -> None:
    for _ in range(2):
        call(app, "forget", memory_id=call(app, "create_task", title="pay").id, kind="task")
    call(app, "forget", memory_id=call(app, "remember", content="pay").id)
    assert call(app, "purge", expect=3) == 3
    assert call(app, "verify").ok


@pytest.mark.sqlite_only("each engine is copied to the other")
def test_tasks_survive_migration_round_trip(tmp_path: Path, server: Any, clock: Clock) -> None:
    app = App(Sqlite(tmp_path / "one.db"), Working("w", 4), clock)
    first = call(app, "create_task", title="dig", due="tomorrow", priority="high", kind="goal")
    call(app, "create_task", title="sow", depends_on=[first.id], tags=["garden"])
    call(app, "complete_task", task_id=call(app, "create_task", title="rest").id, outcome="well")
    before = [call(app, "list_tasks"), call(app, "due_tasks", within="1 week"), call(app, "list_tasks", state="done")]
    app.close()
    places = [str(tmp_path / "one.db"), server.create("tasks_moved"), str(tmp_path / "two.db")]
    for source, target in itertools.pairwise(places):
        one, other = open_database_at(source, "from"), open_database_at(target, "to")
        copying.copy_store(one, other)
        one.close()
        other.close()
        app = App(open_database_at(target, ""), Working("w", 4), clock)
        after = [
            call(app, "list_tasks"),
            call(app, "due_tasks", within="1 week"),
            call(app, "list_tasks", state="done"),
        ]
        assert after == before
        app.close()
    app = App(open_database_at(places[-1], ""), Working("w", 4), clock)
    assert [freed.title for freed in call(app, "complete_task", task_id=first.id).unblocked] == ["sow"]
    app.close()


@pytest.mark.both_engines
def test_due_before_includes_named_period(app: App) -> None:
    for title, due in (("past", "yesterday"), ("soon", "today 15:00"), ("next", "tomorrow"), ("far", "next week")):
        call(app, "create_task", title=title, due=due)
    call(app, "create_task", title="someday")
    assert task_titles(app, due_before="tomorrow") == ["past", "soon", "next"]
    assert task_titles(app, due_before="today 15:00") == ["past", "soon"]
    assert task_titles(app, due_after="tomorrow") == ["next", "far"]
    assert task_titles(app, due_after="today", due_before="tomorrow") == ["soon", "next"]
    assert task_titles(app, "due_tasks", within="0") == ["past"]
    assert task_titles(app, "due_tasks", within="now") == ["past"]


@pytest.mark.both_engines
def test_task_query_looks_ahead(app: App) -> None:
    for title, due in (("water the plants", "tomorrow"), ("call Maria", "friday"), ("rest", "next month")):
        call(app, "create_task", title=title, due=due)

    def asked(question: str) -> list[str]:
        hits = call(app, "recall", query=question, kinds=["task"], understand_time=True)
        return [one.content for one in hits]

    assert asked("what do I have to do tomorrow?") == ["water the plants"]
    assert asked("what is due on friday") == ["call Maria"]
    assert asked("what do I have to do next month") == ["rest"]


def test_future_time_phrases_agree(app: App) -> None:
    def due(words: str) -> str:
        return format_time(call(app, "create_task", title="x", due=words).due)

    same = {due(words) for words in ("2 weeks from now", "in a fortnight", "in 2 weeks", "two weeks hence")}
    assert same == {"2026-04-01 12:00:00"}
    assert due("first of december") == due("the 1st of december") == "2026-12-01 23:59:59"
    assert due("the twenty-first of March 2027") == "2027-03-21 23:59:59"
    assert due("2 or 3 days from now")


def test_blocked_task_needs_force(app: App) -> None:
    first = call(app, "create_task", title="write it")
    second = call(app, "create_task", title="ship it", depends_on=[first.id])
    assert (first.blocked, second.blocked) == (False, True)
    for name, more in (
        ("complete_task", {}),
        ("update_task", {"state": "in_progress"}),
        ("update_task", {"state": "done"}),
    ):
        with pytest.raises(Conflict, match=f"'ship it' waits for {first.id} 'write it'"):
            call(app, name, task_id=second.id, **more)
    assert call(app, "update_task", task_id=second.id, priority="high").blocked
    assert call(app, "update_task", task_id=second.id, state="in_progress", force=True).state == "in_progress"
    assert call(app, "complete_task", task_id=second.id, force=True).state == "done"
    call(app, "undo")
    call(app, "undo")
    assert task_titles(app, state="open") == ["write it", "ship it"], "blocked ones are open too"
    assert call(app, "update_task", task_id=second.id, state="done", depends_on=[]).state == "done"
    third = call(app, "create_task", title="tell", depends_on=[first.id])
    assert call(app, "update_task", task_id=third.id, state="cancelled").state == "cancelled"


def test_errors_mention_tasks(app: App) -> None:
    with pytest.raises(InvalidInput, match="'zzz' is not a task's hash or id"):
        call(app, "complete_task", task_id="zzz")


def test_task_stays_that_of_its_author(app: App) -> None:
    """Only who rewrites the text of a person's task becomes its author."""

    def call_as(surface: str, name: str, **arguments: Any) -> str:
        context = app.create_context("p", surface)
        task = run_sync(app.catalog.get_operation(name)(context, **arguments))

        async def read_author(tx: Any) -> str:
            [row] = await tx.fetch("SELECT author FROM memories WHERE id = :id", id=task.id)
            return str(row[0])

        return run_sync(app.store.database.read(read_author))

    assert call_as("cli", "create_task", title="Call the baker") == "person"
    assert call_as("cli", "update_task", task_id=1, priority="high") == "person"
    assert call_as("program", "update_task", task_id=1, due="tomorrow") == "person"
    assert call_as("program", "update_task", task_id=1, title="Call the butcher") == "agent"
