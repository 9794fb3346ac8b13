"""The knowledge graph: the operations of the reference server, and our own."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import InvalidInput, NotFound

ANN = {"name": "Ann", "entityType": "person", "observations": ["likes tea", "lives in Oslo"]}
BOB = {"name": "Bob", "entityType": "person", "observations": ["plays chess"]}
ACME = {"name": "Acme", "entityType": "company", "observations": []}


class Caller:
    """Calls operations of an app by name."""

    def __init__(self, app: App, project: str = "p", key: str | None = None) -> None:
        self.app, self.project, self.key = app, project, key

    def __getattr__(self, name: str) -> Any:
        context = self.app.create_context(self.project, "python", self.key)
        return lambda **arguments: run_sync(self.app.catalog.get_operation(name)(context, **arguments))


def read_sql(app: App, sql: str) -> list[tuple[Any, ...]]:
    async def work(tx: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = await tx.fetch(sql)
        return rows

    return run_sync(app.store.database.read(work))


def relation(source: str, kind: str, target: str, **when: Any) -> dict[str, Any]:
    return {"from": source, "to": target, "relationType": kind, **when}


@pytest.fixture
def graph(app: App) -> Caller:
    caller = Caller(app)
    caller.create_entities(entities=[ANN, BOB, ACME])
    caller.create_relations(relations=[relation("Ann", "works at", "Acme"), relation("Bob", "knows", "Ann")])
    return caller


def test_graph_is_read_in_creation_order(graph: Caller) -> None:
    assert graph.read_graph() == {
        "entities": [ANN, BOB, ACME],
        "relations": [relation("Ann", "works at", "Acme"), relation("Bob", "knows", "Ann")],
    }
    assert graph.verify().ok


def test_existing_entity_is_unchanged(graph: Caller) -> None:
    again = {"name": "Ann", "entityType": "robot", "observations": ["beeps"]}
    new = {"name": "Zoe", "entityType": "", "observations": ["is new", "is new"]}
    assert graph.create_entities(entities=[again, new]) == [{**new, "observations": ["is new"]}]
    assert graph.open_nodes(names=["Ann"])["entities"] == [ANN]
    assert graph.create_relations(relations=[relation("Bob", "knows", "Ann")]) == []


def test_observation_is_added_once(graph: Caller) -> None:
    added = graph.add_observations(
        observations=[
            {"entityName": "Ann", "contents": ["likes tea", "has a cat", "has a cat"]},
            {"entityName": "Ann", "contents": ["has a cat", "plays chess"]},
        ]
    )
    assert added == [
        {"entityName": "Ann", "addedObservations": ["has a cat"]},
        {"entityName": "Ann", "addedObservations": ["plays chess"]},
    ]
    with pytest.raises(NotFound, match="Entity with name Nobody not found"):
        graph.add_observations(
            observations=[
                {"entityName": "Ann", "contents": ["lost"]},
                {"entityName": "Nobody", "contents": ["x"]},
            ]
        )
    seen = graph.open_nodes(names=["Ann"])["entities"][0]["observations"]
    assert seen == ["likes tea", "lives in Oslo", "has a cat", "plays chess"]


def test_opened_node_has_all_relations(graph: Caller) -> None:
    assert graph.open_nodes(names=["Acme", "nobody"]) == {
        "entities": [ACME],
        "relations": [relation("Ann", "works at", "Acme")],
    }
    assert graph.open_nodes(names=[]) == {"entities": [], "relations": []}


@pytest.mark.both_engines
def test_deleted_entity_returns_by_undo(graph: Caller) -> None:
    before = graph.read_graph()
    assert graph.delete_entities(entityNames=["Ann", "nobody"]) == {
        "success": True,
        "message": "Entities deleted successfully",
    }
    assert graph.read_graph() == {"entities": [BOB, ACME], "relations": []}
    assert graph.search_nodes(query="tea") == {"entities": [], "relations": []}
    graph.undo()
    assert graph.read_graph() == before
    assert next(e["name"] for e in graph.search_nodes(query="tea")["entities"]) == "Ann"
    assert graph.verify().ok


def test_recreated_entity_starts_empty(graph: Caller) -> None:
    graph.delete_entities(entityNames=["Ann"])
    graph.create_entities(entities=[{**ANN, "observations": []}])
    assert [e["name"] for e in graph.read_graph()["entities"]] == ["Bob", "Acme", "Ann"]
    assert graph.open_nodes(names=["Ann"])["entities"][0]["observations"] == []


def test_undo_restores_observations_and_relations(graph: Caller) -> None:
    before = graph.read_graph()
    graph.delete_observations(
        deletions=[
            {"entityName": "Ann", "observations": ["likes tea", "never said"]},
            {"entityName": "nobody", "observations": ["x"]},
        ]
    )
    graph.delete_relations(relations=[relation("Bob", "knows", "Ann"), relation("Bob", "knows", "Zoe")])
    after = graph.read_graph()
    assert after["entities"][0]["observations"] == ["lives in Oslo"]
    assert after["relations"] == [relation("Ann", "works at", "Acme")]
    steps = graph.undo()
    assert [(s.action, s.before["content"]) for s in steps] == [("undid: unlinked", "Bob knows Ann")]
    assert graph.read_graph()["entities"] == after["entities"]
    graph.undo()
    assert graph.read_graph() == before


def test_undo_reverts_newest_change(graph: Caller) -> None:
    graph.remember(content="a plain memory")
    graph.create_relations(relations=[relation("Ann", "married", "Bob")])
    graph.add_observations(observations=[{"entityName": "Ann", "contents": ["new"]}])
    graph.undo()
    assert "new" not in graph.open_nodes(names=["Ann"])["entities"][0]["observations"]
    assert graph.undo()[0].before["content"] == "Ann married Bob"
    assert relation("Ann", "married", "Bob") not in graph.read_graph()["relations"]
    graph.undo()
    assert graph.list_memories() == []
    graph.undo()
    assert graph.read_graph()["relations"] == []
    graph.undo()
    assert graph.read_graph()["entities"] == []
    assert graph.verify().ok


@pytest.mark.both_engines
def test_search_nodes_matches_substrings_and_meaning(graph: Caller) -> None:
    graph.create_entities(
        entities=[
            {"name": "Garage", "entityType": "place", "observations": ["the automobile is parked there"]},
            {"name": "100%_sure", "entityType": "mood", "observations": ["ÄRGER"]},
        ]
    )
    names = [e["name"] for e in graph.search_nodes(query="TOMOB")["entities"]]
    assert names == ["Garage"]
    assert graph.search_nodes(query="car in the garage")["entities"] == []
    by_meaning = graph.search_nodes(query="car in the garage", by_meaning=True)["entities"]
    assert by_meaning[0]["name"] == "Garage"
    assert next(e["name"] for e in graph.search_nodes(query="%_")["entities"]) == "100%_sure"
    assert next(e["name"] for e in graph.search_nodes(query="ärger")["entities"]) == "100%_sure"
    assert len(graph.search_nodes(query="")["entities"]) == 5


def test_search_graph_ranks_by_best_row(graph: Caller) -> None:
    graph.reembed(limit=1_000)  # instead of waiting for the background
    found = graph.search_graph(query="who drinks hot beverages like tea", max_results=2)
    assert found[0]["name"] == "Ann", found
    assert found[0]["observations"] == ANN["observations"]
    assert found[0]["relations"] == [relation("Ann", "works at", "Acme"), relation("Bob", "knows", "Ann")]
    assert 0 <= found[1]["score"] <= found[0]["score"] <= 1
    assert len({one["name"] for one in found}) == len(found) == 2


def test_entities_are_no_memories(graph: Caller) -> None:
    graph.remember(content="tea is served at four")
    assert [hit.content for hit in graph.recall(query="tea", k=10)] == ["tea is served at four"]


def test_relation_has_validity_times(graph: Caller) -> None:
    graph.create_relations(relations=[relation("Bob", "works at", "Acme", since="2020-01-01", until="2022-12-31")])
    shown = graph.open_nodes(names=["Bob"])["relations"][-1]
    assert shown["since"] < shown["until"]
    at = {
        year: graph.neighbors(name="Bob", at=f"{year}-06-01", relation_type="works at") for year in (2019, 2021, 2024)
    }
    assert [[n["name"] for n in found["neighbors"]] for found in at.values()] == [[], ["Acme"], []]
    graph.create_relations(relations=[relation("Bob", "works at", "Acme", until="2023-12-31")])
    renewed = graph.open_nodes(names=["Bob"])["relations"][-1]
    assert renewed["since"] == shown["since"]
    assert renewed["until"] > shown["until"]
    with pytest.raises(InvalidInput, match="until must be after since"):
        graph.create_relations(relations=[relation("a", "b", "c", since="2022", until="2020")])


@pytest.mark.both_engines
def test_neighbors_respect_depth_type_direction(graph: Caller) -> None:
    def names(**how: Any) -> list[tuple[str, int]]:
        return [(n["name"], n["distance"]) for n in graph.neighbors(name="Bob", **how)["neighbors"]]

    assert names() == [("Ann", 1)]
    assert names(depth=2) == [("Ann", 1), ("Acme", 2)]
    assert names(depth=2, relation_type="knows") == [("Ann", 1)]
    assert names(direction="in") == []
    graph.create_relations(relations=[relation("Acme", "employs", "Somebody")])
    last = graph.neighbors(name="Acme", direction="out")["neighbors"][-1]
    assert last == {"name": "Somebody", "entityType": None, "observations": [], "distance": 1}
    with pytest.raises(NotFound, match="no entity 'nobody'"):
        graph.neighbors(name="nobody")


@pytest.mark.both_engines
def test_find_path_returns_shortest(graph: Caller) -> None:
    graph.create_relations(relations=[relation("Acme", "owns", "Lab"), relation("Lab", "near", "Sea")])
    path = graph.find_path(source="Bob", target="Sea")
    assert path["names"] == ["Bob", "Ann", "Acme", "Lab", "Sea"]
    assert [r["relationType"] for r in path["relations"]] == ["knows", "works at", "owns", "near"]
    assert graph.find_path(source="Sea", target="Bob")["found"]
    assert not graph.find_path(source="Sea", target="Bob", direction="out")["found"]
    assert not graph.find_path(source="Bob", target="Sea", max_depth=3)["found"]
    assert graph.find_path(source="Bob", target="Bob")["names"] == ["Bob"]


def test_merge_is_one_undoable_change(graph: Caller) -> None:
    before = graph.read_graph()
    merged = graph.merge_entities(source="Bob", into="Ann")
    assert merged["observations"] == ["likes tea", "lives in Oslo", "plays chess"]
    assert graph.read_graph()["relations"] == [relation("Ann", "works at", "Acme")], "none to itself"
    assert [one["name"] for one in graph.open_nodes(names=["Bob"])["entities"]] == ["Ann"], "found by the old name"
    graph.undo()
    assert graph.read_graph() == before
    with pytest.raises(NotFound):
        graph.merge_entities(source="nobody", into="Ann")
    with pytest.raises(InvalidInput):
        graph.merge_entities(source="Ann", into="Ann")
    assert graph.verify().ok


def test_merge_keeps_relations_and_times(graph: Caller) -> None:
    graph.create_entities(entities=[{"name": "Robert", "entityType": "person", "observations": ["plays chess"]}])
    graph.create_relations(
        relations=[relation("Robert", "likes", "Acme", since="2020"), relation("X", "saw", "Robert")]
    )
    assert graph.merge_entities(source="Robert", into="Bob")["observations"] == ["plays chess"]
    made = graph.open_nodes(names=["Bob"])["relations"]
    assert [(r["from"], r["relationType"], r["to"]) for r in made] == [
        ("Bob", "knows", "Ann"),
        ("Bob", "likes", "Acme"),
        ("X", "saw", "Bob"),
    ]
    assert "since" in made[1]


def test_upsert_creates_or_adds(graph: Caller) -> None:
    entity = graph.create_entity(name="Zoe", entity_type="Task", metadata={"source": "chat"})
    assert (entity["name"], entity["entityType"], entity["observations"], entity["outcome"]) == (
        "Zoe",
        "Task",
        [],
        "new",
    )
    again = graph.create_entity(name="Zoe", entity_type="Task", observations=["is due"])
    assert (again["id"], again["observations"], again["outcome"]) == (entity["id"], ["is due"], "known")
    assert graph.verify().ok


def test_global_entity_is_shared_by_name(app: App, graph: Caller) -> None:
    everywhere = Caller(app, "user")
    everywhere.create_entities(
        entities=[{"name": "Ann", "entityType": "person", "observations": ["is tall"]}, {**ACME, "name": "Shared"}]
    )
    assert graph.open_nodes(names=["Ann"])["entities"] == [{**ANN, "observations": [*ANN["observations"], "is tall"]}]
    graph.add_observations(observations=[{"entityName": "Shared", "contents": ["from p"]}])
    assert everywhere.open_nodes(names=["Shared"])["entities"][0]["observations"] == ["from p"]
    assert Caller(app, "other").open_nodes(names=["Bob"])["entities"] == []


def test_secrets_redacted_and_empty_text_refused(graph: Caller) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    graph.add_observations(observations=[{"entityName": "Ann", "contents": [f"her key is {key} now"]}])
    assert key not in str(graph.read_graph())
    for bad in ("", "  "):
        with pytest.raises(InvalidInput, match="contents"):
            graph.add_observations(observations=[{"entityName": "Ann", "contents": [bad]}])
        with pytest.raises(InvalidInput, match=r"entities\[0\].name"):
            graph.create_entities(entities=[{"name": bad, "entityType": "x", "observations": []}])
    with pytest.raises(InvalidInput, match="lacks 'entityType'"):
        graph.create_entities(entities=[{"name": "x"}])


def test_unstorable_text_finds_nothing(graph: Caller) -> None:
    for odd in ("\0", "Ann\0", "\ud800"):
        assert [e["name"] for e in graph.open_nodes(names=[odd])["entities"]] == (["Ann"] if "Ann" in odd else [])
        graph.search_nodes(query=odd)
        graph.delete_relations(relations=[relation(odd, odd, odd)])
        graph.delete_observations(deletions=[{"entityName": odd, "observations": [odd]}])
    graph.add_observations(observations=[{"entityName": "Ann\0", "contents": ["a\0b \ud800"]}])
    assert graph.open_nodes(names=["Ann"])["entities"][0]["observations"][-1] == "ab \ufffd"
    graph.delete_observations(deletions=[{"entityName": "Ann", "observations": ["a\0b \ud800"]}])
    assert graph.open_nodes(names=["Ann"])["entities"] == [ANN]


def test_name_is_never_observation(graph: Caller) -> None:
    number = graph.create_entity(name="Ann", entity_type="person")["id"]
    graph.create_entities(entities=[{"name": f"{number}\nlikes tea", "entityType": "x", "observations": []}])
    assert len(graph.read_graph()["entities"]) == 4
    assert graph.verify().ok


@pytest.mark.both_engines
def test_repeated_key_happens_once(app: App, graph: Caller) -> None:
    keyed = Caller(app, key="k1")
    asked: dict[str, Any] = {"observations": [{"entityName": "Ann", "contents": ["once"]}]}
    assert keyed.add_observations(**asked) == keyed.add_observations(**asked)
    keyed = Caller(app, key="k2")
    new = {"entities": [{"name": "Kim", "entityType": "person", "observations": ["x"]}]}
    assert keyed.create_entities(**new) == keyed.create_entities(**new) == new["entities"]
    keyed = Caller(app, key="k3")
    assert keyed.create_relations(relations=[relation("Kim", "is", "new")]) == keyed.create_relations(
        relations=[relation("Kim", "is", "new")]
    )
    rows = read_sql(app, "SELECT result FROM receipts")
    assert not [row for row in rows if "once" in row[0] or "Kim" in row[0]]


def test_purge_leaves_no_trace(app: App, graph: Caller) -> None:
    graph.create_relations(relations=[relation("Ann", "keeps", "xyzzy")])
    graph.delete_entities(entityNames=["Ann"])
    assert graph.purge(expect=3) == 3
    for table in ("memories", "relations", "history"):
        rows = read_sql(app, f"SELECT * FROM {table}")
        assert not [row for row in rows if "xyzzy" in str(row) or "likes tea" in str(row)]
    assert graph.verify().ok


def test_unindexed_rows_are_edited_and_deleted(graph: Caller) -> None:
    graph.delete_observations(deletions=[{"entityName": "Ann", "observations": ["likes tea"]}])
    graph.undo()
    graph.merge_entities(source="Bob", into="Acme")
    graph.undo()
    assert graph.verify().ok
    assert graph.search_nodes(query="likes tea")["entities"][0] == {
        **ANN,
        "observations": ["likes tea", "lives in Oslo"],
    }
    assert graph.verify().ok


ADDER = """
import sys
from athena.app import connect
from athena.core.threads import run_sync
connection = connect.AppConnection(connect.shared_app, "p", "python")
for i in range(40):
    contents = [f"{sys.argv[1]} {i}", f"shared {i}"]
    run_sync(connection.call("add_observations", {"observations": [{"entityName": "Ann", "contents": contents}]}))
    run_sync(connection.call("create_relations", {"relations": [
        {"from": "Ann", "to": str(i), "relationType": kind} for kind in (sys.argv[1], "x")]}))
connect.close()
"""


@pytest.mark.usefixtures("engine")
def test_concurrent_processes_lose_nothing() -> None:
    from athena.app import connect

    app = connect.shared_app()
    graph = Caller(app)
    graph.create_entities(entities=[{"name": "Ann", "entityType": "person", "observations": []}])
    adders = [subprocess.Popen([sys.executable, "-c", ADDER, name]) for name in ("left", "right")]
    assert [one.wait(60) for one in adders] == [0, 0]
    opened = graph.open_nodes(names=["Ann"])
    seen = opened["entities"][0]["observations"]
    assert sorted(seen) == sorted([f"{n} {i}" for n in ("left", "right", "shared") for i in range(40)])
    assert len(opened["relations"]) == 120
    assert graph.verify().ok


MERGER = """
import sys
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.storage.sqlite.store import Sqlite
from athena.core.threads import run_sync
app = App(Sqlite(sys.argv[1]), MiniLM())
merge = app.catalog.get_operation("merge_entities")
print("ready", flush=True)
run_sync(merge(app.create_context("p", "python"), source="Old", into="New"))
print("merged", flush=True)
"""


@pytest.mark.sqlite_only("what is killed is a process with the file open")
@pytest.mark.parametrize("part", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_killed_merge_is_atomic(tmp_path: Path, part: float) -> None:
    from test_durability import kill_after

    from athena.storage.sqlite.store import Sqlite
    from conftest import MODEL

    path = tmp_path / "athena.db"
    app = App(Sqlite(path), MODEL)
    graph = Caller(app)
    graph.create_entities(
        entities=[
            {"name": "Old", "entityType": "x", "observations": [f"old {i}" for i in range(300)]},
            {"name": "New", "entityType": "x", "observations": ["new"]},
        ]
    )
    graph.create_relations(relations=[relation("Old", "knows", f"n{i}") for i in range(300)])
    before = graph.read_graph()
    app.close()
    merger = subprocess.Popen([sys.executable, "-c", MERGER, str(path)], stdout=subprocess.PIPE, text=True)
    assert merger.stdout is not None
    assert merger.stdout.readline() == "ready\n"
    kill_after(merger, 0.01 + part * 0.25)
    merger.stdout.close()
    app = App(Sqlite(path), MODEL)
    graph = Caller(app)
    after = graph.read_graph()
    if after != before:
        assert [e["name"] for e in after["entities"]] == ["New"]
        assert after["entities"][0]["observations"] == ["new", *(f"old {i}" for i in range(300))]
        assert {r["from"] for r in after["relations"]} == {"New"}
        assert len(after["relations"]) == 300
        graph.undo()
        assert graph.read_graph() == before
    assert graph.verify().ok
    app.close()


@pytest.mark.both_engines
def test_mentions_are_found_in_text(app: App) -> None:
    memory = Caller(app)
    memory.remember(
        content="@ann fixed parse_config() in src/app/main.py, see https://example.org/issues/7. "
        "#release and/or HttpServer"
    )
    memory.remember(content="a plain note, and/or nothing")
    for name in (
        "@ann",
        "parse_config",
        "parse_config()",
        "src/app/main.py",
        "https://example.org/issues/7",
        "#release",
        "HttpServer",
        "httpserver",
    ):
        assert len(memory.mentions(name=name)) == 1, name
    keys = {row[0] for row in read_sql(app, "SELECT key FROM mentions")}
    assert keys == {
        ":@ann", ":parse_config", ":src/app/main.py", ":https://example.org/issues/7", ":#release", ":httpserver",
    }  # fmt: skip


@pytest.mark.both_engines
def test_memory_links_to_named_entities(app: App, graph: Caller) -> None:
    graph.create_entities(
        entities=[{"name": name, "entityType": "place", "observations": []} for name in ("York", "New York")]
    )
    stored = graph.remember(content="ANN moved to New York; annual reports follow")
    assert {row[0] for row in read_sql(app, f"SELECT key FROM mentions WHERE memory = {stored.id} ")} >= {"ann"}
    assert [m.id for m in graph.mentions(name="Ann")] == [stored.id]
    assert [m.id for m in graph.mentions(name="new york")] == [stored.id]
    rows = read_sql(app, "SELECT n.key FROM mentions n JOIN scopes s ON s.id = n.scope AND s.kind = 'memory'")
    assert {row[0] for row in rows} == {"ann", "new york"}, "the longest name, whole words"
    graph.update_memory(memory_id=stored.id, content="Bob stays")
    assert graph.mentions(name="Ann") == []
    assert [m.id for m in graph.mentions(name="Bob")] == [stored.id]
    graph.undo()
    assert [m.id for m in graph.mentions(name="Ann")] == [stored.id]
    graph.forget(memory_id=stored.id)
    assert graph.mentions(name="Ann") == []
    graph.restore_memory(memory_id=stored.id)
    assert [m.id for m in graph.mentions(name="Ann")] == [stored.id]
    graph.purge(memory_ids=[stored.id], expect=1)
    rows = read_sql(app, "SELECT n.key FROM mentions n JOIN scopes s ON s.id = n.scope AND s.kind = 'memory'")
    assert rows == []


def test_later_entity_links_to_earlier_memory(graph: Caller) -> None:
    stored = graph.remember(content="Zaphod Beeblebrox called")
    graph.create_entity(name="Zaphod Beeblebrox", entity_type="person")
    assert [m.id for m in graph.mentions(name="zaphod beeblebrox")] == [stored.id]
    assert graph.mentions(name="Zaphod") != []
    assert graph.mentions(name="phod") == []


def relation_years(shown: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        tuple(one.get(end) and time.gmtime(one[end] + 43_200).tm_year for end in ("since", "until")) for one in shown
    ]


def test_relation_may_hold_several_times(graph: Caller) -> None:
    job = "Ann", "works at", "Globex"
    graph.create_relations(relations=[relation(*job, since="2024")])
    made = graph.create_relations(relations=[relation(*job, since="2020", until="2021")])
    assert relation_years(made) == [(2020, 2022)], "until the end of 2021"
    assert relation_years(graph.read_graph()["relations"][2:]) == [(2024, None), (2020, 2022)]
    assert graph.create_relations(relations=[relation(*job)]) == [], "known, whenever it holds"
    assert graph.create_relations(relations=[relation(*job, since="2020", until="2021")]) == []
    graph.create_relations(relations=[relation(*job, until="2025")])
    assert relation_years(graph.read_graph()["relations"][2:]) == [(2020, 2022), (2024, 2026)], (
        "the one that holds then ends"
    )
    graph.undo()
    assert relation_years(graph.read_graph()["relations"][2:]) == [(2024, None), (2020, 2022)]
    graph.create_relations(relations=[relation(*job, since="2021")])
    assert relation_years(graph.read_graph()["relations"][2:]) == [(2021, None)], "told anew: it held all the time"
    graph.undo()
    graph.delete_relations(relations=[relation(*job)])
    assert len(graph.read_graph()["relations"]) == 2
    graph.undo()
    assert len(graph.read_graph()["relations"]) == 4
    assert graph.verify().ok


def test_only_current_relations_are_followed(graph: Caller) -> None:
    graph.create_relations(
        relations=[
            relation("Ann", "worked at", "Old", since="2010", until="2012"),
            relation("Ann", "joins", "New", since="2999"),
        ]
    )

    def reached(**more: Any) -> set[str]:
        return {one["name"] for one in graph.neighbors(name="Ann", **more)["neighbors"]}

    assert reached() == {"Acme", "Bob"}
    assert reached(at="2011-06-01") == {"Acme", "Bob", "Old"}
    assert reached(at="any") == {"Acme", "Bob", "Old", "New"}
    assert not graph.find_path(source="Ann", target="Old")["found"]
    assert graph.find_path(source="Ann", target="Old", at="any")["found"]


def test_merged_entity_has_both_mentions(graph: Caller) -> None:
    before = graph.remember(content="annie was here before anyone knew her").id
    graph.create_entities(entities=[{"name": "Annie", "entityType": "person", "observations": []}])
    first = graph.remember(content="Lunch with Annie on Tuesday").id
    graph.merge_entities(source="Annie", into="Ann")
    later = graph.remember(content="Annie and the tea").id
    assert {one.id for one in graph.mentions(name="Ann")} == {before, first, later}
    assert {one.id for one in graph.mentions(name="Annie")} == {before, first, later}
    graph.forget(memory_id=later)
    graph.undo()  # the forget
    graph.undo()  # the remember
    graph.undo()  # the merge
    assert list(graph.mentions(name="Ann")) == []
    assert {one.id for one in graph.mentions(name="Annie")} == {before, first}
    assert [one["name"] for one in graph.open_nodes(names=["Annie"])["entities"]] == ["Annie"]
    assert graph.verify().ok


@pytest.mark.both_engines
def test_names_survive_two_merges(graph: Caller) -> None:
    graph.create_entities(entities=[{"name": name, "entityType": "", "observations": []} for name in ("Bobby", "Rob")])
    kept = graph.remember(content="Bobby won").id
    graph.merge_entities(source="Bobby", into="Bob")
    graph.merge_entities(source="Bob", into="Rob")
    assert [one.id for one in graph.mentions(name="Rob")] == [kept]
    assert [one["name"] for one in graph.open_nodes(names=["Bobby"])["entities"]] == ["Rob"]


@pytest.mark.both_engines
def test_reading_mentions_is_no_recall(graph: Caller) -> None:
    for i in range(4):
        graph.remember(content=f"Ann did thing {i}")
    graph.mentions(name="Ann", k=1)
    assert graph.stats()["most_recalled"] == []


@pytest.mark.both_engines
def test_purge_removes_merged_name(graph: Caller) -> None:
    graph.create_entities(entities=[{"name": "Zorblax", "entityType": "person", "observations": []}])
    graph.merge_entities(source="Zorblax", into="Ann")
    graph.purge(expect=graph.purge(dry_run=True))
    tables = ("mentions", "memories", "history", "relations")
    everything = [row for table in tables for row in read_sql(graph.app, f"SELECT * FROM {table}")]
    assert "zorblax" not in str(everything).lower()
    assert graph.open_nodes(names=["Zorblax"])["entities"] == []
    assert [one["name"] for one in graph.open_nodes(names=["Ann"])["entities"]] == ["Ann"]
    assert graph.verify().ok
