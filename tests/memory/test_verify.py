"""`verify` reports every damage as a finding, none that is not there, and lets others write meanwhile."""

import random
import struct
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import apsw
import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.memory import check_rows
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, Engine, rounds
from wait_tools import LONG

VERIFIES = 6


@pytest.fixture
def other(tmp_path: Path, engine: Engine, app: App) -> Generator[App]:
    """Return a second app on the store of `app`, with connections of its own, as another process has."""
    second = App(engine.open(tmp_path / "athena.db"), MODEL)
    yield second
    second.close()


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("test", "python"), **arguments))


def execute(app: App, sql: str, **values: Any) -> None:
    async def work(tx: Any) -> None:
        await tx.execute(sql, **values)

    run_sync(app.store.database.write(work))


def remember(app: App, text: str) -> None:
    call(app, "remember", content=text, tags=["lamps", "harbour"])
    call(app, "recall", query=text)  # writes its passages


def test_sound_store_passes_while_others_write(app: App, other: App) -> None:
    for number in range(VERIFIES):
        call(
            other,
            "remember_batch",
            items=[{"content": f"lamp {number} of keeper {i} is lit {i * 7}"} for i in range(60)],
        )
        call(other, "recall", query="lamp")
        verdict = call(app, "verify")
        assert verdict.ok, verdict.problems
        assert verdict.checked["memories"] == 60 * (number + 1)


def test_others_write_during_check(app: App, other: App, monkeypatch: pytest.MonkeyPatch) -> None:
    remember(app, "The lamp is lit at dusk.")
    check = check_rows.find_inconsistencies
    written: list[bool] = []

    async def write_meanwhile(tx: Any) -> list[str]:
        thread = threading.Thread(target=execute, args=(other, "INSERT INTO counters VALUES ('meanwhile', 1)"))
        thread.start()
        thread.join(LONG / 10)
        written.append(not thread.is_alive())
        return await check(tx)

    monkeypatch.setattr(check_rows, "find_inconsistencies", write_meanwhile)
    assert call(app, "verify").ok
    assert written == [True]


def test_check_says_how_far_it_is(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    call(app, "remember_batch", items=[f"lamp {number} is lit" for number in range(450)])
    context = app.create_context("test", "python")
    check, seen = check_rows._MemoryCheck.check_range, list[str]()

    async def look(self: Any, *bounds: Any) -> None:
        seen.append(str(context.progress))
        await check(self, *bounds)

    monkeypatch.setattr(check_rows._MemoryCheck, "check_range", look)
    assert run_sync(app.catalog.get_operation("verify")(context)).ok
    assert seen == [f"checking memories: {done} of 450" for done in (200, 400, 450)]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("hash = 'abcdef12'", "the hash abcdef12 of memory"),
        ("hash = ''", "the hash  of memory"),
        ("content = 'The lamp is lit at dawn.'", "is not what was stored"),
        ("metadata = '{'", "cannot be read"),
        ("metadata = '[]'", "cannot be read"),
        ("tags = '[\"lamps\"'", "cannot be read"),
        ('tags = \'["lamps", "port"]\'', "differ from the tag index"),
    ],
)
def test_changed_row_is_found(app: App, change: str, problem: str) -> None:
    remember(app, "The lamp is lit at dusk.")
    assert call(app, "verify").ok
    execute(app, f"UPDATE memories SET {change}")
    verdict = call(app, "verify")
    assert not verdict.ok
    assert any(problem in found for found in verdict.problems), verdict.problems


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE counts SET memories = memories + 1 WHERE facet = 'tag'", "kept counts"),
        ("UPDATE counts SET characters = characters - 1 WHERE facet = 'type'", "kept counts"),
        ("DELETE FROM counts WHERE facet = 'day'", "kept counts"),
        ("UPDATE tags SET happened = happened + 1", "differ from the tag index"),
        ("DELETE FROM tags", "differ from the tag index"),
    ],
)
def test_wrong_counts_and_tags_are_found(app: App, change: str, problem: str) -> None:
    remember(app, "The lamp is lit at dusk.")
    execute(app, change)
    verdict = call(app, "verify")
    assert [found for found in verdict.problems if problem in found], verdict.problems


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("UPDATE memories SET content = CAST(x'4cff6d70' AS TEXT) WHERE id = 1", "memory 1 is not valid text"),
        ("UPDATE history SET before = '{' WHERE id = 1", "1 values of history.before cannot be read"),
    ],
)
def test_undecodable_value_is_a_finding(app: App, change: str, problem: str) -> None:
    remember(app, "The lamp is lit at dusk.")
    remember(app, "The lamp is off at dawn.")
    execute(app, change)
    verdict = call(app, "verify")
    assert [found for found in verdict.problems if problem in found], verdict.problems


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    ("value", "damaged", "problem"),
    [
        (b"remembered", b"remem\xffered", "a row of history is not valid text"),
        (b"remembered", b"remembersd", "missing from index history_of_memory"),
        (struct.pack(">d", 0.123456), struct.pack(">d", 0.123457), "missing from index memories_by_digest"),
        (b'{"keeper": "Ann"}', b'{"keeper": "Ane"}', "missing from index memories_by_digest"),
        (b'["lamps", "harbour"]', b'["lamps", "Harbour"]', "missing from index memories_by_digest"),
    ],
)
def test_damaged_bytes_are_found(app: App, tmp_path: Path, value: bytes, damaged: bytes, problem: str) -> None:
    metadata = {"keeper": "Ann"}
    call(app, "remember", content="The lamp is lit.", tags=["lamps", "harbour"], importance=0.123456, metadata=metadata)
    app.close()
    file = tmp_path / "athena.db"
    assert file.read_bytes().count(value) == 1
    file.write_bytes(file.read_bytes().replace(value, damaged))
    reopened = App(Sqlite(file), MODEL)
    verdict = call(reopened, "verify")
    reopened.close()
    assert [found for found in verdict.problems if problem in found], verdict.problems


@pytest.mark.sqlite_only
def test_flipped_bits_raise_no_raw_error(app: App, tmp_path: Path) -> None:
    for number in range(20):
        remember(app, f"The lamp number {number} is lit at dusk near the harbour.")
    call(app, "create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}])
    run_sync(app.store.database.compact())
    sound = (tmp_path / "athena.db").read_bytes()
    rng, copy = random.Random(7), tmp_path / "copy" / "athena.db"
    copy.parent.mkdir()
    for _ in range(rounds(60, 1_000)):
        damaged = bytearray(sound)
        at = rng.randrange(len(damaged))
        damaged[at] ^= 1 << rng.randrange(8)
        copy.write_bytes(damaged)
        try:
            opened = App(Sqlite(copy), MODEL)
            try:
                call(opened, "verify")
            except apsw.Error as error:
                pytest.fail(f"byte {at}: {error!r}")
            finally:
                opened.close()
        except AthenaError:
            pass  # the file is refused
        for file in copy.parent.iterdir():
            file.unlink()
