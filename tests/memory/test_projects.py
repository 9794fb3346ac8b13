"""Projects have names, and a name can be changed."""

from typing import Any

import pytest

from athena import api
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, Denied, InvalidInput, NotFound


def call(app: App, operation: str, /, **arguments: str | int) -> object:
    return run_sync(app.catalog.get_operation(operation)(app.create_context("old", "python"), **arguments))


def test_projects_list_has_counts(isolated: App) -> None:
    api.store("one", project="old")
    api.store("two", project="old")
    api.delete(api.store("three", project="other"), project="other")
    assert [(p["name"], p["memories"]) for p in api_list(isolated)] == [("old", 2), ("other", 0)]


def api_list(app: App) -> list[dict[str, object]]:
    from athena.core.types import to_json

    found: list[dict[str, object]] = to_json(call(app, "list_projects"))
    return found


def test_renamed_project_keeps_history_and_undo(isolated: App) -> None:
    stored_hash = api.store("deploys run on Fridays", project="old")
    api.update(stored_hash, content="deploys run on Mondays", project="old")
    call(isolated, "rename_project", name="old", to="new")
    assert [m.preview for m in api.search("deploys", project="new").memories] == ["deploys run on Mondays"]
    assert not api.search("deploys", project="old").memories
    run_sync(isolated.catalog.get_operation("undo")(isolated.create_context("new", "python")))
    assert api.get(stored_hash, project="new").content == "deploys run on Fridays"


def test_taken_or_missing_name_is_refused(isolated: App) -> None:
    api.store("one", project="old")
    api.store("two", project="new")
    with pytest.raises(Conflict, match="already"):
        call(isolated, "rename_project", name="old", to="new")
    with pytest.raises(NotFound, match="no project"):
        call(isolated, "rename_project", name="nothing", to="else")
    with pytest.raises(Conflict, match="every project"):
        call(isolated, "rename_project", name="old", to="user")
    assert [m.preview for m in api.search("one", project="old").memories] == ["one"]


def test_repeated_rename_reports_gone_name(isolated: App) -> None:
    api.store("one", project="old")
    rename = isolated.catalog.get_operation("rename_project")
    run_sync(rename(isolated.create_context("old", "python", "key"), name="old", to="new"))
    assert run_sync(rename(isolated.create_context("old", "python", "key2"), name="new", to="newer")).name == "newer"
    with pytest.raises(Conflict, match="idempotency key"):
        run_sync(rename(isolated.create_context("old", "python", "key2"), name="new", to="another"))
    call(isolated, "rename_project", name="newer", to="last")
    with pytest.raises(NotFound, match="any more"):
        run_sync(rename(isolated.create_context("old", "python", "key2"), name="new", to="newer"))


def test_name_of_emptied_project_is_reusable(isolated: App) -> None:
    api.store("soon purged", project="old")
    api.delete(api.search("purged", project="old").memories[0].hash, project="old")
    call(isolated, "purge", expect=1)
    api.store("kept", project="stays")
    assert [one["name"] for one in api_list(isolated)] == ["stays"]
    call(isolated, "rename_project", name="stays", to="old")
    assert [one["name"] for one in api_list(isolated)] == ["old"]


@pytest.mark.parametrize("surface", ["program", "mcp"])
def test_programs_change_nothing_that_all_projects_read(isolated: App, surface: str) -> None:
    """A program of one project must carry no text to another one by way of the project `user`."""

    def call_in(project: str, caller: str, operation: str, /, **arguments: Any) -> Any:
        return run_sync(
            isolated.catalog.get_operation(operation)(isolated.create_context(project, caller), **arguments)
        )

    known = call_in("user", "cli", "remember", content="I prefer tabs")
    gone = call_in("user", "cli", "remember", content="I prefer spaces")
    call_in("user", "cli", "forget", memory_id=gone.id)
    task = call_in("user", "cli", "create_task", title="buy a lamp")
    call_in("user", "cli", "create_entity", name="Ada", entity_type="person", observations=["likes tea"])
    own = call_in("a", surface, "remember", content="of this project")
    for name, arguments in {
        "update_memory": {"memory_id": known.id, "content": "carried"},
        "forget": {"memory_id": known.id},
        "forget_batch": {"memory_ids": [own.id, known.hash]},
        "restore_memory": {"memory_id": gone.id},
        "relate_memories": {"memory_id": known.id, "other_id": own.id, "relation": "carried"},
        "purge": {"memory_ids": [gone.id], "expect": 1},
        "update_task": {"task_id": task.id, "title": "carried"},
        "complete_task": {"task_id": task.id, "outcome": "carried"},
    }.items():
        with pytest.raises(Denied, match="cannot change what the project user has"):
            call_in("a", surface, name, **arguments)
    with pytest.raises(NotFound):
        call_in("a", surface, "add_observations", observations=[{"entityName": "Ada", "contents": ["carried"]}])
    call_in("a", surface, "delete_observations", deletions=[{"entityName": "Ada", "observations": ["likes tea"]}])
    assert call_in("b", "cli", "open_nodes", names=["Ada"])["entities"][0]["observations"] == ["likes tea"]
    assert [memory.content for memory in call_in("b", "cli", "list_memories")] == ["I prefer tabs"]
    assert [(item.title, item.state) for item in call_in("b", "cli", "list_tasks")] == [("buy a lamp", "open")]
    with pytest.raises(Denied, match="cannot change what the project user has"):
        call_in("a", surface, "relate_memories", memory_id=own.id, other_id=known.id)
    newer = call_in("a", surface, "remember", content="newer of this project")
    with pytest.raises(InvalidInput, match="relation of Athena's own"):  # it would no longer be told
        call_in("a", surface, "relate_memories", memory_id=own.id, other_id=newer.id, relation="contradicted by")
    assert call_in("a", "cli", "relate_memories", memory_id=own.id, other_id=known.id)
    # a client that a person has put into `user` works there: SECURITY.md
    assert call_in("user", surface, "remember", content="I sail").author == "agent"
    assert call_in("user", surface, "update_memory", memory_id=known.id, content="I prefer both").author == "agent"
    assert call_in("a", "cli", "forget", memory_id=known.id)
