"""What the store reports about itself: counts, and the topics that it covers well."""

from collections.abc import Generator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from conftest import MODEL, Engine
from wait_tools import wait_until

NOON = datetime(2026, 3, 18, 12).timestamp()
DAY = 86_400


@pytest.fixture
def app(tmp_path: Path, engine: Engine) -> Generator[App]:
    """Return a store with one topic of each grade, at noon."""
    made = App(engine.open(tmp_path / "athena.db"), MODEL, lambda: NOON)
    things = [(f"The deploy needs step {i}", ["Deploy", "ops"], i * 2) for i in range(5)]
    things += [(f"The old press prints page {i}", ["print"], 200 + i) for i in range(5)]
    things += [("Maria likes tea", ["people"], 20), ("The gate is green", [], 40)]
    items = [{"content": text, "tags": tags, "metadata": {"date": NOON - days * DAY}} for text, tags, days in things]
    call(made, "remember_batch", items=items)
    yield made
    made.close()


def call(app: App, name: str, project: str = "p", **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python"), **arguments))


@pytest.mark.both_engines
def test_expertise_grades_topics_with_evidence(app: App) -> None:
    known = call(app, "expertise")
    assert known.topics == 4
    assert [one.topic for one in known.well_covered] == ["deploy", "ops"]
    assert [one.topic for one in known.thin] == ["people"]
    assert [one.topic for one in known.stale] == ["print"]
    deploy, stale = known.well_covered[0], known.stale[0]
    assert (deploy.memories, deploy.days_since_newest, deploy.days_since_recalled) == (5, 0.0, None)
    assert (stale.days_since_newest, stale.reading) == (200.0, "stale")
    tagged = {memory.id for memory in call(app, "search_by_tag", tags="deploy")}
    assert set(deploy.evidence) == tagged
    assert call(app, "expertise", "other").topics == 0
    assert len(call(app, "expertise", limit=1).well_covered) == 1


def test_recalled_topic_is_not_stale(app: App) -> None:
    hits = call(app, "recall", query="page 3 of the old press", k=1)[0]
    wait_until(lambda: call(app, "stats")["most_recalled"])  # usage is recorded in the background
    (topic,) = [one for one in call(app, "expertise").well_covered if one.topic == "print"]
    assert (topic.days_since_recalled, topic.evidence[0]) == (0.0, hits.id)
    assert topic.strength > 0
    recalled = call(app, "stats")["most_recalled"]
    assert [one["id"] for one in recalled] == [hits.id]
    assert recalled[0]["preview"] == hits.content


@pytest.mark.both_engines
def test_topic_is_tag_or_search(app: App) -> None:
    tag = call(app, "expertise", topic="DEPLOY")
    assert (tag.topics, [one.memories for one in tag.well_covered]) == (1, [5])
    (tea,) = call(app, "expertise", topic="Maria's tea").thin
    assert len(tea.evidence) >= 1
    assert call(app, "recall", query="Maria's tea", k=1)[0].id == tea.evidence[0]
    nothing_known = call(app, "expertise", "empty", topic="quantum chess")
    assert (nothing_known.thin[0].memories, nothing_known.thin[0].days_since_newest) == (0, None)
    assert nothing_known.thin[0].evidence == ()


@pytest.mark.both_engines
def test_contradictions_are_counted(app: App) -> None:
    one, other = (call(app, "remember", content=f"Deploys run on {day}", tags="deploy") for day in ("Monday", "Friday"))
    call(app, "relate_memories", memory_id=one.id, other_id=other.id, relation="contradicts")
    assert [t.contradicted for t in call(app, "expertise").well_covered if t.topic == "deploy"] == [2]
    assert call(app, "expertise", topic="deploy").well_covered[0].contradicted == 2
    call(app, "forget", memory_id=other.id)
    assert call(app, "expertise", topic="deploy").well_covered[0].contradicted == 1


@pytest.mark.both_engines
def test_stats_count_by_kind_and_age(app: App) -> None:
    call(app, "record_event", event_type="action", content="ran the tests")
    call(app, "create_task", title="rest")
    call(app, "create_task", title="rest")
    call(app, "record_event", "other", event_type="action", content="seen by nobody else")
    figures = call(app, "stats")
    assert (figures["memories"], figures["events"], figures["tasks"]) == (12, 1, 2)
    assert figures["by_kind"] == {"event": 1, "memory": 12, "task": 2}
    assert (figures["entities"], figures["patterns"]) == (0, 0)
    assert figures["memories_by_age"] == {"today": 1, "7 days": 3, "30 days": 2, "older": 6}
    assert figures["by_type"] == {"note": 12}
    assert figures["most_used_tags"] == {"deploy": 5, "ops": 5, "print": 5, "people": 1}
    assert figures["tags"] == 4
    assert call(app, "stats", "empty")["memories_by_age"] == {"today": 0, "7 days": 0, "30 days": 0, "older": 0}


def test_stats_count_entities_separately(app: App) -> None:
    made = [{"name": name, "entityType": "person", "observations": ["one", "two"]} for name in ("Ann", "Bob")]
    call(app, "create_entities", entities=made)
    call(app, "create_relations", relations=[{"from": "Ann", "to": "Bob", "relationType": "knows"}])
    figures = call(app, "stats")
    assert (figures["entities"], figures["observations"], figures["relations"]) == (2, 4, 1)
    assert figures["by_kind"] == {"entity": 2, "memory": 12, "observation": 4}
    call(app, "remember", content="a slip")
    call(app, "undo")
    assert call(app, "stats")["forgotten"] == 0, "what was undone was never forgotten"
    memory = call(app, "remember", content="to be forgotten")
    call(app, "forget", memory_id=memory.id)
    assert call(app, "stats")["forgotten"] == 1
    call(app, "undo")
    assert call(app, "stats")["forgotten"] == 0
