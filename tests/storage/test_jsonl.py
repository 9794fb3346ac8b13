"""The export of a whole store as JSON lines, and the store that is built from it: row by row the same."""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import postgres
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_copying import Letters, Stores, _filled, call, read_all_tables, rows_of

from athena.app.compose import App
from athena.errors import AthenaError, InvalidInput, Misconfigured
from athena.storage import copying, jsonl, migrations
from athena.storage.database import Database
from conftest import rounds

pytestmark = pytest.mark.sqlite_only("each test names its engines")
NOW = 1_794_700_800.0
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40).filter(str.strip)
NAMES = st.sampled_from(["Ann", "Acme", "Zürich", "日本", "a 'quoted' name"])
TAGS = st.lists(st.sampled_from(["red", "Blue", "grün", "🚀", "a b"]), max_size=3)
METADATA = st.dictionaries(st.sampled_from(["k", "ü", "session_id"]), st.text('aé\n"\\', max_size=5), max_size=2)
NUMBERS = st.integers(1, 12)
STEPS = st.one_of(
    st.tuples(st.just("remember"), TEXTS, TAGS, METADATA, st.sampled_from(["p", "q", "user"])),
    st.tuples(st.just("update"), NUMBERS, TEXTS),
    st.tuples(st.just("forget"), NUMBERS),
    st.tuples(st.just("relate"), NUMBERS, NUMBERS, st.sampled_from(["about", "siehe auch"])),
    st.tuples(st.just("purge"), NUMBERS),
    st.tuples(st.just("undo")),
    st.tuples(st.just("entity"), NAMES, st.lists(TEXTS, max_size=2)),
    st.tuples(st.just("relation"), NAMES, NAMES, st.sampled_from([None, 1_000.5, 2_000.25])),
    st.tuples(st.just("task"), TEXTS),
    st.tuples(st.just("event"), TEXTS),
)


__all__ = ["_filled"]  # a fixture


@pytest.fixture
def filled(_filled: Path, tmp_path: Path) -> str:
    return str(shutil.copy(_filled, tmp_path / "filled.db"))


@pytest.fixture
def stores(tmp_path: Path, server: postgres.Server) -> Iterator[Stores]:
    made = Stores(tmp_path, server)
    yield made
    made.close()


def apply_step(app: App, kind: str, *values: Any) -> None:
    """Make one change; one that the store refuses changes nothing."""
    calls: dict[str, Any] = {
        "remember": lambda text, tags, metadata, project: call(
            app, "remember", project, content=text, tags=tags, metadata=metadata
        ),
        "update": lambda number, text: call(app, "update_memory", memory_id=number, content=text, tags=["new"]),
        "forget": lambda number: call(app, "forget", memory_id=number),
        "relate": lambda one, two, name: call(app, "relate_memories", memory_id=one, other_id=two, relation=name),
        "purge": lambda number: call(app, "purge", memory_ids=[number], expect=1),
        "undo": lambda: call(app, "undo"),
        "entity": lambda name, seen: call(
            app, "create_entities", entities=[{"name": name, "entityType": "thing", "observations": seen}]
        ),
        "relation": lambda one, two, since: call(
            app, "create_relations", relations=[{"from": one, "to": two, "relationType": "knows", "since": since}]
        ),
        "task": lambda text: call(app, "create_task", title=text[:50]),
        "event": lambda text: call(app, "record_event", event_type="action", content=text, session_id="s1"),
    }
    with suppress(AthenaError):
        calls[kind](*values)


def export(database: Database) -> bytes:
    stream = io.BytesIO()
    jsonl.write_store(database, stream, NOW)
    return stream.getvalue()


def build(data: bytes, folder: Path) -> str:
    """Write an export to a file, build a store from it, and return its path."""
    file, target = folder / "store.jsonl", folder / "built.db"
    file.write_bytes(data)
    jsonl.build_store(str(file), jsonl.check_export(str(file)), str(target))
    return str(target)


def without_first_line(data: bytes) -> bytes:
    """Leave out the version, and the checksum of the last line."""
    return b"\n".join(data.split(b"\n")[1:-2])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@settings(
    max_examples=rounds(3, 150),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=1, max_size=25))
def test_any_store_survives_export_and_import(
    server: postgres.Server, tmp_path_factory: pytest.TempPathFactory, kind: str, steps: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    places = Stores(folder, server)
    place = places.place(kind)
    app = places.app(place, Letters())
    try:
        for step in steps:
            apply_step(app, *step)
        app.close()
        database = places.open(place)
        rows, data = rows_of(database), export(database)
        built = places.open(build(data, folder))
        assert rows_of(built) == rows
        assert without_first_line(export(built)) == without_first_line(data)
        back = places.place(kind)
        copying.copy_store(built, places.to(back))
        assert rows_of(places.open(back)) == rows
        again = places.app(back, Letters())
        assert call(again, "verify").problems == ()
        assert call(again, "remember", content="one more").id not in {row[0] for row in rows["memories"]}
    finally:
        places.close()


def test_store_with_every_feature_is_built_again(filled: str, stores: Stores, tmp_path: Path) -> None:
    built = build(export(stores.open(filled)), tmp_path)
    assert rows_of(stores.open(built)) == rows_of(stores.open(filled))
    assert read_all_tables(built) == read_all_tables(filled)
    app = stores.app(built)
    assert call(app, "verify").problems == ()
    assert "Friday" in call(app, "recall", query="when do we deploy")[0].content
    assert os.stat(built).st_mode & 0o777 == 0o600


def test_lines_are_readable_json(filled: str, stores: Stores) -> None:
    lines = [json.loads(line) for line in export(stores.open(filled)).splitlines()]
    memory = next(line for line in lines if line.get("table") == "memories")
    assert (memory["content"], memory["tags"]) == ("Deploys run on Fridays at 15:00", ["Deploy", "ops"])
    assert lines[-1]["rows"]["memories"] == sum(line.get("table") == "memories" for line in lines)


@pytest.mark.parametrize("change", ["cut", "line", "byte", "empty", "newer"])
def test_incomplete_or_altered_file_is_refused(
    filled: str,
    stores: Stores,
    tmp_path: Path,
    change: str,
) -> None:
    data = export(stores.open(filled))
    lines = data.split(b"\n")
    altered = {
        "cut": data[: len(data) // 2],
        "line": b"\n".join([*lines[:40], *lines[41:]]),
        "byte": data.replace(b"Fridays", b"Sundays"),
        "empty": b"",
        "newer": data.replace(b'"schema":%d' % len(migrations.STEPS), b'"schema":99'),
    }[change]
    (tmp_path / "bad.jsonl").write_bytes(altered)
    with pytest.raises((InvalidInput, Misconfigured)) as refused:
        jsonl.check_export(str(tmp_path / "bad.jsonl"))
    assert refused.value.hint


def test_hostile_names_reach_no_sql(filled: str, stores: Stores, tmp_path: Path) -> None:
    lines = export(stores.open(filled)).splitlines()
    row = json.loads(lines[1])
    row["id) VALUES (9); DROP TABLE memories; --"] = 1
    lines[1] = json.dumps(row).encode()
    body = b"\n".join(lines[:-1]) + b"\n"
    end = json.loads(lines[-1])
    end["sha256"] = hashlib.sha256(body).hexdigest()
    file = tmp_path / "hostile.jsonl"
    file.write_bytes(body + json.dumps(end).encode() + b"\n")
    with pytest.raises(InvalidInput, match="has no column"):
        jsonl.build_store(str(file), jsonl.check_export(str(file)), str(tmp_path / "x.db"))
