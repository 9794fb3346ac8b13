"""Projects have names, and a name can be changed."""

import pytest

from athena import api
from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import Conflict, NotFound


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
