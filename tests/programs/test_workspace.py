"""Workspace files: writes are atomic, projects are separate, and no path leads outside."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.core.types import MAX_JSON_VALUES
from athena.errors import InvalidInput, LimitExceeded, NotFound
from athena.programs import workspace
from athena.storage import copying
from conftest import Engine


def call(app: App, name: str, /, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


def paths(app: App, **where: Any) -> list[str]:
    return [one.path for one in call(app, "list_files", **where)]


def test_file_type_follows_its_name(app: App) -> None:
    call(app, "write_file", path="notes.txt", content="one\ntwo")
    call(app, "write_file", path="data/people.json", content=[{"name": "Ann"}, {"name": "Bo"}])
    call(app, "write_file", path="data/people.csv", content=[{"name": "Ann, B", "age": 3}, {"name": 'C "D"', "x": [1]}])
    call(app, "write_file", path="rows.csv", content="a,b\n1,2\n")
    assert call(app, "read_file", path="notes.txt") == "one\ntwo"
    assert call(app, "read_file", path="./data//people.json") == [{"name": "Ann"}, {"name": "Bo"}]
    assert call(app, "read_file", path="data/people.csv") == [
        {"name": "Ann, B", "age": "3", "x": ""},
        {"name": 'C "D"', "age": "", "x": "[1]"},
    ]
    assert call(app, "read_file", path="rows.csv") == [{"a": "1", "b": "2"}]
    assert call(app, "read_file", path="rows.csv", raw=True) == "a,b\n1,2\n"
    assert paths(app) == ["data/people.csv", "data/people.json", "notes.txt", "rows.csv"]
    assert paths(app, prefix="data/") == ["data/people.csv", "data/people.json"]


def test_file_is_read_in_parts(app: App) -> None:
    call(app, "write_file", path="list.json", content=list(range(100)))
    call(app, "write_file", path="object.json", content={str(i): i for i in range(5)})
    call(app, "write_file", path="text.txt", content="abcdefgh")
    page = call(app, "read_file", path="list.json", offset=10, limit=3)
    assert (page, page.total) == ([10, 11, 12], 100)
    assert call(app, "read_file", path="object.json", offset=3, limit=9) == {"3": 3, "4": 4}
    assert call(app, "read_file", path="text.txt", offset=2, limit=3) == "cde"
    assert call(app, "read_file", path="text.txt", offset=99) == ""


def test_rows_of_csv_have_all_columns(app: App) -> None:
    call(app, "write_file", path="rows.csv", content="a,b\n1\n\n1,2\n1,2,3,4\n")
    page = call(app, "read_file", path="rows.csv")
    assert page == [{"a": "1", "b": ""}, {"a": "1", "b": "2"}, {"a": "1", "b": "2", "more": ["3", "4"]}]
    page = call(app, "read_file", path="rows.csv", offset=1, limit=1)
    assert (page, page.total) == ([{"a": "1", "b": "2"}], 3)
    call(app, "write_file", path="rows.csv", content="")
    assert call(app, "read_file", path="rows.csv") == []


@pytest.mark.sqlite_only("the store takes no part")
def test_parsed_file_is_bounded(app: App) -> None:
    """Rows of one cell get all columns: 28 kB were 10 million cells, whatever the limit."""
    columns = ",".join(map(str, range(1_500)))
    call(app, "write_file", path="wide.csv", content=f"{columns}\n" + "x\n" * 1_000)
    tracemalloc.start()
    try:
        page = call(app, "read_file", path="wide.csv", offset=5, limit=1)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(page), len(page[0]), page.total) == (1, 1_500, 1_000)
    assert peak_bytes < 5_000_000
    with pytest.raises(LimitExceeded, match="500,000 cells") as wide:
        call(app, "read_file", path="wide.csv")
    assert "limit" in str(wide.value.hint)
    call(app, "write_file", path="many.json", content="[" + "0," * MAX_JSON_VALUES + "0]")
    with pytest.raises(LimitExceeded, match="500,000 values"):
        call(app, "read_file", path="many.json", limit=1)
    assert call(app, "read_file", path="many.json", raw=True, limit=5) == "[0,0,"


def test_csv_with_too_many_cells_is_refused_before_it_is_written(app: App) -> None:
    with pytest.raises(LimitExceeded, match="at least 9,000,000 bytes"):
        call(app, "write_file", path="wide.csv", content=[{f"c{number}": 1} for number in range(3_000)])
    assert paths(app) == []


def test_write_replaces_and_delete_reports(app: App) -> None:
    first = call(app, "write_file", path="a", content="ä")
    assert first.size == 2
    call(app, "write_file", path="a", content="other")
    assert call(app, "read_file", path="a") == "other"
    assert call(app, "delete_file", path="a") is True
    assert call(app, "delete_file", path="a") is False
    with pytest.raises(NotFound, match="no file 'a'"):
        call(app, "read_file", path="a")


def test_workspaces_do_not_share_files(app: App) -> None:
    for project, where, text in (("p", None, "1"), ("p", "w", "2"), ("q", None, "3"), ("user", None, "4")):
        call(app, "write_file", project, path="f", content=text, workspace=where)
    assert call(app, "read_file", path="f") == "1"
    assert call(app, "read_file", path="f", workspace="default") == "1"
    assert call(app, "read_file", path="f", workspace="w") == "2"
    assert call(app, "read_file", "q", path="f") == "3"
    call(app, "delete_file", path="f")
    assert call(app, "read_file", path="f", workspace="w") == "2"


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "C:\\x", "a\0b", "..", ".", "a/", "a\nb", "x" * 501, "\ud800", " "]
)
def test_path_outside_is_refused(app: App, path: str) -> None:
    with pytest.raises(InvalidInput):
        call(app, "write_file", path=path, content="x")
    assert paths(app) == []


@given(st.text(max_size=60))
def test_normalized_path_stays_inside(path: str) -> None:
    try:
        cleaned = workspace.clean_path(path)
    except InvalidInput:
        return
    parts = cleaned.split("/")
    assert not {"", ".", ".."} & set(parts)
    assert not cleaned.startswith("/")
    assert workspace.clean_path(cleaned) == cleaned


def test_quota_error_writes_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "MAX_FILE_BYTES", 10)  # smaller, to be quick
    monkeypatch.setattr(workspace, "MAX_WORKSPACE_BYTES", 25)
    monkeypatch.setattr(workspace, "MAX_FILES", 3)
    with pytest.raises(LimitExceeded, match="at most 10"):
        call(app, "write_file", path="a", content="x" * 11)
    call(app, "write_file", path="a", content="x" * 10)
    call(app, "write_file", path="b", content="x" * 10)
    with pytest.raises(LimitExceeded, match="20 of 25 bytes"):
        call(app, "write_file", path="c", content="x" * 6)
    call(app, "write_file", path="a", content="y" * 10)  # replacing the old file leaves room
    call(app, "write_file", path="c", content="xx")
    with pytest.raises(LimitExceeded, match="3 files"):
        call(app, "write_file", path="d", content="")
    call(app, "write_file", path="d", content="x", workspace="other")
    assert paths(app) == ["a", "b", "c"]


@pytest.mark.both_engines
def test_repeated_key_writes_once(app: App) -> None:
    first = call(app, "write_file", key="k", path="a", content="1")
    call(app, "write_file", path="a", content="2")
    assert call(app, "write_file", key="k", path="a", content="1") == first
    assert call(app, "read_file", path="a") == "2"


def test_unusual_values_are_json_or_refused(app: App) -> None:
    call(app, "write_file", path="n.json", content=None)
    assert call(app, "read_file", path="n.json") is None
    call(app, "write_file", path="x.txt", content={"a": 1})
    assert json.loads(call(app, "read_file", path="x.txt")) == {"a": 1}
    call(app, "write_file", path="bad.json", content="{")
    with pytest.raises(InvalidInput, match="not valid JSON"):
        call(app, "read_file", path="bad.json")
    with pytest.raises(InvalidInput):
        call(app, "write_file", path="m.csv", content=[[1], {"a": 1}])
    with pytest.raises(InvalidInput):
        call(app, "write_file", path="a", content="x", workspace="../w")


@pytest.mark.both_engines
def test_files_move_with_renamed_project(app: App) -> None:
    call(app, "remember", "old", content="a memory makes it a project")
    call(app, "write_file", "old", path="a", content="kept")
    call(app, "write_file", "new", path="a", content="in the way")
    call(app, "write_file", "new", path="b", content="stays")
    call(app, "rename_project", name="old", to="new")
    assert call(app, "read_file", "new", path="a") == "kept"
    assert call(app, "read_file", "new", path="b") == "stays"
    assert paths(app, project="old") == []


@pytest.mark.both_engines
def test_files_are_copied_with_store(app: App, engine: Engine, tmp_path: Path) -> None:
    call(app, "write_file", path="a/ü.json", content={"ü": [1, None]})
    target = open_database_at(str(tmp_path / "copy.db"), "to")
    copying.copy_store(app.store.database, target)
    target.close()
    copy = App(open_database_at(str(tmp_path / "copy.db"), ""), app.store.encoder.embedder)
    assert call(copy, "read_file", path="a/ü.json") == {"ü": [1, None]}
    copy.close()


def test_concurrent_writers_leave_whole_files(app: App) -> None:
    from athena.core.threads import start_in_thread

    def write(i: int) -> Callable[[], Any]:
        return lambda: call(app, "write_file", path="same", content=str(i) * 1000)

    for done in [start_in_thread(write(i)) for i in range(8)]:
        done.wait()
        done.result()
    text = call(app, "read_file", path="same")
    assert len(set(text)) == 1
    assert len(text) == 1000
