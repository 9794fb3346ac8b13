"""Edge cases of the graph: metadata, other projects, concurrent writers, unusual names, a killed process."""

import math
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import pytest
from test_graph import Caller, read_sql, relation

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory.task_rows import list_task_outlines
from wait_tools import succeeds_once

SECRET = "ghp_" + "a1B2c3D4e5" * 3 + "abcdef"


def entity(name: str, *observations: str) -> dict[str, Any]:
    return {"name": name, "entityType": "thing", "observations": list(observations)}


def test_entity_metadata_merges_and_undoes(app: App) -> None:
    graph = Caller(app)
    made = graph.create_entity(name="K", entity_type="a", metadata={"u": 1, "v": 1})
    assert made["metadata"] == {"u": 1, "v": 1}
    again = graph.create_entity(name="K", entity_type="b", metadata={"u": 2, "v": None, "w": 3})
    assert (again["entityType"], again["metadata"], again["outcome"]) == ("a", {"u": 2, "w": 3}, "known")
    assert graph.search_graph(query="K")[0]["metadata"] == {"u": 2, "w": 3}
    assert graph.open_nodes(names=["K"])["entities"] == [{"name": "K", "entityType": "a", "observations": []}]
    graph.undo()
    assert graph.search_graph(query="K")[0]["metadata"] == {"u": 1, "v": 1}
    graph.create_entity(name="L", entity_type="a", metadata={"u": 9, "x": 9})
    assert graph.merge_entities(source="L", into="K")["metadata"] == {"u": 1, "v": 1, "x": 9}
    graph.undo()
    assert graph.search_graph(query="K")[0]["metadata"] == {"u": 1, "v": 1}
    assert graph.verify().ok


@pytest.mark.both_engines
def test_redaction_is_reported(app: App) -> None:
    graph = Caller(app)
    lone = "Zq04" + "vT7-kLm9Xw"
    named = graph.create_entity(name="staging password", entity_type="x", observations=[lone])
    assert (named["observations"], named["redacted"]) == (["[SECRET:password]"], ["password"])
    graph.add_observations(observations=[{"entityName": "staging password", "contents": ["old: " + lone]}])
    graph.create_entities(entities=[{"name": "Bob", "entityType": "password", "observations": [lone]}])
    assert lone not in str(graph.read_graph())
    made = graph.create_entity(name=f"E {SECRET}", entity_type="x", observations=[SECRET], metadata={"a": SECRET})
    assert len(made["redacted"]) == 3
    assert SECRET not in str(made)
    mark = f"[SECRET:{made['redacted'][0]}]"
    assert graph.create_entities(entities=[entity("F", SECRET)])[0]["observations"] == [mark]
    added = graph.add_observations(observations=[{"entityName": "F", "contents": [f"also {SECRET}"]}])
    assert added == [{"entityName": "F", "addedObservations": [f"also {mark}"]}]
    assert graph.create_relations(relations=[relation("F", SECRET, "G")])[0]["relationType"] == mark
    assert graph.record_event(event_type="a", content="x", session_id=f"s {SECRET}").redacted
    task = graph.create_task(title="t")
    assert graph.complete_task(task_id=task.id, outcome=f"with {SECRET}").redacted
    assert not [row for row in read_sql(app, "SELECT metadata, content FROM memories") if SECRET in str(row)]


def test_repeated_merge_reports_deleted_result(app: App) -> None:
    graph, keyed = Caller(app), Caller(app, key="m1")
    graph.create_entities(entities=[entity("M1"), entity("M2")])
    keyed.merge_entities(source="M1", into="M2")
    graph.delete_entities(entityNames=["M2"])
    with pytest.raises(NotFound, match="deleted since"):
        keyed.merge_entities(source="M1", into="M2")


def test_project_changes_only_own_entities(app: App) -> None:
    graph, everywhere = Caller(app), Caller(app, "user")
    everywhere.create_entities(entities=[entity("Shared", "o"), entity("Other")])
    everywhere.create_relations(relations=[relation("Shared", "is", "Other")])
    graph.create_entities(entities=[entity("Shared", "mine"), entity("Own")])
    before = everywhere.read_graph()
    graph.delete_entities(entityNames=["Shared"])
    graph.delete_relations(relations=[relation("Shared", "is", "Other")])
    with pytest.raises(NotFound):
        graph.merge_entities(source="Shared", into="Own")
    assert everywhere.read_graph() == before
    assert graph.open_nodes(names=["Shared"])["entities"] == [entity("Shared", "o")]
    everywhere.delete_entities(entityNames=["Shared"])
    assert graph.open_nodes(names=["Shared"]) == {"entities": [], "relations": []}


def test_undo_skips_entity_recreated_elsewhere(app: App) -> None:
    graph, everywhere = Caller(app), Caller(app, "user")
    graph.remember(content="the change before")
    everywhere.create_entities(entities=[entity("Shared", "o")])
    graph.delete_observations(deletions=[{"entityName": "Shared", "observations": ["o"]}])
    everywhere.delete_entities(entityNames=["Shared"])
    everywhere.create_entities(entities=[entity("Shared", "p")])
    assert ["created again" in step.action for step in graph.undo()] == [True]
    assert everywhere.open_nodes(names=["Shared"])["entities"] == [entity("Shared", "p")]
    assert graph.undo()[0].action == "undid: remembered"
    assert graph.verify().ok


@pytest.mark.both_engines
def test_forget_restore_purge_accept_id(app: App) -> None:
    call = Caller(app)
    event = call.record_event(event_type="a", content="private pin is zebra")
    task = call.create_task(title="feed the zebra")
    for ref in (event.id, event.hash, task.id):
        assert call.forget(memory_id=ref) is True
        assert call.forget(memory_id=ref) is False
        assert call.memory_history(memory_id=ref)[-1].action == "forgotten"
        assert call.restore_memory(memory_id=ref) is True
    assert call.forget_batch(memory_ids=[event.id, task.id, 999]) == 2
    assert len(call.undo()) == 2
    assert call.purge(memory_ids=[event.id, task.id], expect=2) == 2
    assert not [row for row in read_sql(app, "SELECT content FROM memories") if "zebra" in row[0]]
    with pytest.raises(NotFound):
        call.purge(memory_ids=[event.id], expect=1)
    assert call.verify().ok


@pytest.mark.both_engines
def test_hash_prefers_memory_and_is_unique(app: App) -> None:
    call = Caller(app)
    for number in range(40):
        call.record_event(event_type="a", content=f"event {number}")
        call.create_task(title=f"task {number}")
    rows = read_sql(app, "SELECT hash FROM memories ORDER BY id")
    events, tasks_made = ({row[0][0] for row in rows[side::2]} for side in (0, 1))
    shared = min((events & tasks_made) - set("0123456789"))
    with pytest.raises(Conflict, match="could be any of"):
        call.forget(memory_id=shared)
    number = 0
    while not (memory := call.remember(content=f"memory {number}")).hash.startswith(shared):
        number += 1
    assert call.forget(memory_id=shared) is True
    assert call.restore_memory(memory_id=memory.id) is True


@pytest.mark.both_engines
def test_entity_is_forgotten_as_whole(app: App) -> None:
    call = Caller(app)
    made = call.create_entity(name="Ann", entity_type="person", observations=["likes tea", "is tall"])
    with pytest.raises(InvalidInput, match="is the entity 'Ann'"):
        call.forget(memory_id=made["id"])
    call.delete_entities(entityNames=["Ann"])
    with pytest.raises(InvalidInput, match="is the entity 'Ann'"):
        call.restore_memory(memory_id=made["id"])
    assert call.purge(memory_ids=[made["id"]], expect=3) == 3
    assert read_sql(app, "SELECT * FROM memories") == []
    assert call.verify().ok


@pytest.mark.sqlite_only("there, one writes at a time")
def test_search_does_not_wait_for_writer(tmp_path: Path) -> None:
    from athena.storage.sqlite.connection import BUSY_TIMEOUT_S
    from athena.storage.sqlite.store import Sqlite
    from conftest import MODEL

    app = App(Sqlite(tmp_path / "athena.db"), MODEL)
    graph = Caller(app)
    graph.create_entities(entities=[entity("Seen", "gamma rays")])
    assert graph.search_graph(query="gamma")
    graph.create_entities(entities=[entity("Waiting", "gamma too")])
    other = sqlite3.connect(tmp_path / "athena.db", isolation_level=None, timeout=60)
    other.execute("BEGIN IMMEDIATE")

    def at_once() -> bool:
        began = time.monotonic()
        for found in (graph.search_nodes(query="gamma")["entities"], graph.search_graph(query="gamma")):
            assert {one["name"] for one in found} == {"Seen", "Waiting"}
        return time.monotonic() - began < BUSY_TIMEOUT_S / 2

    try:
        assert succeeds_once(at_once)
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert {one["name"] for one in graph.search_graph(query="gamma")} == {"Seen", "Waiting"}
    assert graph.verify().ok
    app.close()


@pytest.mark.parametrize(
    ("name", "text", "meant"),
    [
        ("C++", "plan c is fine", False),
        ("C#", "plan c is fine", False),
        ("C++", "the parser is written in c++, mostly", True),
        ("C#", "ported to C#.", True),
        ("C", "ported to C++", False),
        ("May", "we may deploy", False),
        ("May", "I asked May to deploy", True),
        ("Go", "let it go", False),
        ("Go", "rewritten in Go today", True),
        ("may fair", "May Fair opens", True),
        ("東京", "サーバーは東京にあります", True),
        ("東京", "サーバーは京都にあります", False),
        ("서울", "회의는 서울에서 합니다", True),
        ("Zoë", "zoë called", True),
    ],
)
def test_mention_needs_word_boundaries(app: App, name: str, text: str, meant: bool) -> None:
    call = Caller(app)
    call.create_entities(entities=[entity(name)])
    call.remember(content=text)
    assert [one.content for one in call.mentions(name=name)] == ([text] if meant else [])
    later = Caller(app, "later")  # the memory is older than the entity
    later.remember(content=text)
    later.create_entities(entities=[entity(name)])
    assert [one.content for one in later.mentions(name=name)] == ([text] if meant else [])


@pytest.mark.both_engines
def test_longer_unspaced_name_wins(app: App) -> None:
    call = Caller(app)
    call.create_entities(entities=[entity("東京"), entity("東京都庁")])
    call.remember(content="会議は東京都庁です")
    rows = read_sql(app, "SELECT key FROM mentions n JOIN scopes s ON s.id = n.scope WHERE s.kind = 'memory'")
    assert rows == [("東京都庁",)]


def test_invalid_outcome_session_time_refused(app: App) -> None:
    call = Caller(app)
    for bad in ({"outcome": 5}, {"session_id": {"a": 1}}, {"session_id": 7}, {"duration_ms": "long"}, {"date": True}):
        with pytest.raises(InvalidInput, match="must be"):
            call.record_event(event_type="a", content="x", metadata=bad)
    event = call.record_event(
        event_type="a", content="x", metadata={"outcome": "ok", "session_id": "s", "duration_ms": 5}
    )
    assert (event.outcome, event.session_id, event.duration_ms) == ("ok", "s", 5)
    for when in ({"since": 1e300}, {"until": -1e300}):
        with pytest.raises(InvalidInput, match="out of range"):
            call.create_relations(relations=[relation("A", "knows", "B", **when)])


@pytest.mark.both_engines
def test_concurrent_relations_do_not_overlap(app: App) -> None:
    Caller(app).create_relations(relations=[relation("A", "knows", "all")])
    together = Barrier(4)

    def tell(year: int) -> None:
        for i in range(5):
            together.wait(60)
            Caller(app).create_relations(
                relations=[relation("A", "knows", f"B{i}", since=f"{year}-01-01", until="2030")]
            )

    with ThreadPoolExecutor(4) as pool:
        outcomes = [pool.submit(tell, year) for year in range(2010, 2014)]
    assert not [error for one in outcomes if (error := one.exception())]
    rows = read_sql(app, "SELECT target, began, ended FROM relations WHERE removed IS NULL AND began IS NOT NULL")
    for one, other in combinations(rows, 2):
        assert one[0] != other[0] or one[2] <= other[1] or other[2] <= one[1]
    assert len({row[0] for row in rows}) == 5


@pytest.mark.sqlite_only("its own words for a plan")
def test_finished_tasks_do_not_slow_list(app: App) -> None:
    from athena.core.values import Scope
    from athena.storage.database import Transaction
    from athena.storage.filters import Filter

    call = Caller(app)
    call.create_task(title="one")
    plans: list[str] = []

    class Explained:
        chars_left = math.inf

        def __init__(self, tx: Any) -> None:
            self.tx = tx

        async def fetch(self, sql: str, **values: Any) -> Any:
            plans.extend(str(row) for row in await self.tx.fetch(f"EXPLAIN QUERY PLAN {sql}", **values))
            return await self.tx.fetch(sql, **values)

    async def work(tx: Any) -> Any:
        return await list_task_outlines(
            cast(Transaction, Explained(tx)), Filter(Scope("p", "task")), ("open", "in_progress")
        )

    assert len(run_sync(app.store.database.read(work))) == 1
    assert any("memories_unfinished" in plan for plan in plans)


PAUSED = """
import sys, time
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.memory.graph import observations as observe
from athena.storage.sqlite.store import Sqlite
from athena.core.threads import run_sync
app = App(Sqlite(sys.argv[1]), MiniLM())
unlink, left = observe.unlink_edge, int(sys.argv[2])
async def pausing(*given):
    global left
    await unlink(*given)
    left -= 1
    if left == 0:
        print("inside", flush=True)
        time.sleep(300)
observe.unlink_edge = pausing
run_sync(app.catalog.get_operation("merge_entities")(app.create_context("p", "python"), source="Old", into="New"))
"""


@pytest.mark.sqlite_only("what is killed is a process with the file open")
@pytest.mark.parametrize("step", [1, 30])
def test_merge_killed_between_statements_rolls_back(tmp_path: Path, step: int) -> None:
    from athena.storage.sqlite.store import Sqlite
    from conftest import MODEL

    path = tmp_path / "athena.db"
    app = App(Sqlite(path), MODEL)
    graph = Caller(app)
    graph.create_entities(entities=[entity("Old", *(f"old {i}" for i in range(30))), entity("New", "new")])
    graph.create_relations(relations=[relation("Old", "knows", f"n{i}") for i in range(30)])
    before = graph.read_graph()
    app.close()
    merger = subprocess.Popen([sys.executable, "-c", PAUSED, str(path), str(step)], stdout=subprocess.PIPE, text=True)
    assert merger.stdout is not None
    assert merger.stdout.readline() == "inside\n"
    merger.kill()
    merger.wait(60)
    merger.stdout.close()
    app = App(Sqlite(path), MODEL)
    graph = Caller(app)
    assert graph.read_graph() == before
    assert graph.verify().ok
    graph.merge_entities(source="Old", into="New")
    assert len(graph.read_graph()["relations"]) == 30
    app.close()
