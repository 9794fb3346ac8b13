"""Tag several memories at once, and merge duplicates: for a person, undone as one."""

from typing import Any

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import Denied, InvalidInput
from wait_tools import wait_until


def call(app: App, name: str, surface: str = "page", **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, name, arguments, app.create_context("p", surface)))


def test_tags_of_many_change_and_come_back(app: App) -> None:
    first = call(app, "remember", content="deploys run on fridays", tags=["deploy"])
    second = call(app, "remember", content="the database is read-only", tags=["db", "Old"])
    ids = [first.id, second.id]
    assert call(app, "tag_memories", memory_ids=ids, add="seen, deploy") == 2
    assert call(app, "tag_memories", memory_ids=ids, add="seen") == 0
    assert call(app, "tag_memories", memory_ids=ids, remove=["old"]) == 1
    assert call(app, "get_memory", memory_id=second.id).tags == ("db", "seen", "deploy")
    assert {memory.id for memory in call(app, "search_by_tag", tags="seen")} == set(ids)
    call(app, "undo")
    assert "Old" in call(app, "get_memory", memory_id=second.id).tags
    with pytest.raises(InvalidInput, match="no tag is given"):
        call(app, "tag_memories", memory_ids=ids)
    key = "ghp_" + "a1B2" * 9
    call(app, "tag_memories", memory_ids=[first.id], add=[key])
    assert key not in str(call(app, "get_memory", memory_id=first.id).tags)


def test_duplicates_are_merged_and_come_back(app: App) -> None:
    kept = call(app, "remember", content="deploys run on fridays", tags=["deploy"])
    other = call(app, "remember", content="we deploy every friday", tags=["Deploy", "release"])
    assert call(app, "merge_memories", memory_id=kept.id, other_ids=[other.id, kept.id]) == kept.id
    assert call(app, "get_memory", memory_id=kept.id).tags == ("deploy", "release")
    assert [memory.id for memory in call(app, "list_memories")] == [kept.id]
    call(app, "undo")
    assert {memory.id for memory in call(app, "list_memories")} == {kept.id, other.id}
    assert call(app, "get_memory", memory_id=kept.id).tags == ("deploy",)


def test_what_is_for_persons_is_for_no_other(app: App) -> None:
    memory = call(app, "remember", content="deploys run on fridays")
    for surface in ("mcp", "http", "python", "program", "hook"):
        with pytest.raises(Denied):
            call(app, "tag_memories", surface, memory_ids=[memory.id], add="x")
        with pytest.raises(Denied):
            call(app, "recent_changes", surface)
    [change] = call(app, "recent_changes")
    assert (change.action, change.by, change.id) == ("remembered", "page", memory.id)
    assert call(app, "recent_changes", after=change.number) == []


def test_looking_around_is_no_use(app: App) -> None:
    """A person types a question letter by letter: no memory grows stronger, and no call is counted."""
    seen = call(app, "remember", content="deploys run on fridays")
    used = call(app, "remember", content="the cat of the office is called Minka")
    for question in ("depl", "deploys", "deploys run"):
        assert call(app, "recall", query=question, k=1, min_score=0)[0].id == seen.id
    call(app, "recall", "python", query="what is the cat called", k=1)
    wait_until(lambda: call(app, "stats")["most_recalled"])
    assert [memory["id"] for memory in call(app, "stats")["most_recalled"]] == [used.id]
    wait_until(lambda: call(app, "report_use").operations)
    assert [(share.name, share.calls) for share in call(app, "report_use").operations] == [("recall", 1)]
