"""Copying a store into another: nothing is lost or half done, whatever happens on the way."""

import fnmatch
import itertools
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import postgres
import pytest
from numpy.typing import NDArray

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.errors import Conflict, InvalidInput, Misconfigured, NotFound, Unavailable
from athena.memory.sessions.learning import take_notice
from athena.memory.sessions.learning_rows import insert_learned_turns
from athena.storage import copying
from athena.storage.copying import COPIED_COUNTERS, COPIED_TABLES
from athena.storage.database import CopiedTable, CopyRole, Database, Row
from athena.storage.sqlite.store import Sqlite
from athena.storage.vault_rows import add_disclosures
from conftest import DEFERRED_DELAY_S, MODEL, rounds
from wait_tools import wait_until

pytestmark = pytest.mark.sqlite_only("each test names its engines")
MADE_ANEW = {"scopes.passages", "passages.claimed"}  # each engine derives these
DERIVED_COUNTERS = {"purges", "stamp", "schema", "vault keys"}
LONG = " ".join(f"Chapter {i} is about the {'crane' if i % 2 else 'pier'} of the old harbour." for i in range(180))
QUESTIONS = ("when do we deploy", "who pays the invoices", "数据库", "crane of the old harbour", "what does Ann drink")


class Letters:
    """An embedder that takes no time."""

    name, dimensions = "letters/1", 4
    compatible_models = ()

    def load(self) -> None: ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.array([[len(t), t.count("a"), t.count("e"), 1] for t in texts], np.float32)
        unit: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


class Stores:
    """Opens stores of both kinds, and closes them at the end."""

    def __init__(self, folder: Path, server: postgres.Server) -> None:
        self._folder, self._server = folder, server
        self._opened: list[Database | App] = []

    def place(self, kind: str) -> str:
        """Return the location of a new store."""
        number = next(_numbers)
        return str(self._folder / f"{number}.db") if kind == "sqlite" else self._server.create(f"copy{number}")

    def to(self, place: str) -> Database:
        return self._kept(open_database_at(place, "to"))

    def open(self, place: str) -> Database:
        return self._kept(open_database_at(place, ""))

    def app(self, place: str, embedder: Any = MODEL) -> App:
        made = App(open_database_at(place, ""), embedder)
        self._opened.append(made)
        return made

    def _kept(self, database: Database) -> Database:
        self._opened.append(database)
        return database

    def close(self) -> None:
        for one in self._opened:
            one.close()


_numbers = itertools.count()


@pytest.fixture
def stores(tmp_path: Path, server: postgres.Server) -> Iterator[Stores]:
    made = Stores(tmp_path, server)
    yield made
    made.close()


def call(app: App, name: str, project: str = "p", key: str | None = None, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


def _make_entity(app: App, name: str, seen: str) -> None:
    call(app, "create_entities", "g", entities=[{"name": name, "entityType": "person", "observations": [seen]}])


def _fill_graph(app: App) -> None:
    _make_entity(app, "Mara", "pays")
    relation = {"from": "Mara", "to": "Ann", "relationType": "knows", "since": "2020"}
    call(app, "create_relations", "g", relations=[relation])
    call(app, "search_graph", "g", query="who pays")


def _leave_one_unindexed(app: App) -> None:
    database = app.store.database
    assert isinstance(database, Sqlite)
    wait_until(lambda: not database._jobs._deferred)
    run_sync(database.compact())  # after the embedding
    # pretend that a job is scheduled, so that the memory keeps waiting for its passages
    database._jobs._dedupe_keys.add("index")
    _make_entity(app, "Ann", "waits")


FILLED_PATHS: list[Path] = []  # test_jsonl.py has this fixture, too, and shares the store


@pytest.fixture(scope="session")
def _filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store in which every operation has been used."""
    if not FILLED_PATHS:
        FILLED_PATHS.append(_fill_store(tmp_path_factory.mktemp("filled") / "athena.db"))
    return FILLED_PATHS[0]


def _fill_store(path: Path) -> Path:
    app = App(Sqlite(path, defer_delay_s=DEFERRED_DELAY_S), MODEL)
    for text, tags in (
        ("Deploys run on Fridays at 15:00", ["Deploy", "ops"]),
        ("Mara pays the invoices", ["Geld ähm", "日本"]),
        ("数据库在柏林 🚀 naïve «x»\n\tand a tab \\N \\. 'quoted' \"twice\" %s :name {}", ["wörter"]),
        ("Ann drinks tea", []),
        ("The parrot is green", []),
    ):
        call(app, "remember", content=text, tags=tags)
    call(app, "remember", content=LONG, metadata={"source": "harbour.md"})
    for i in range(4):
        talk = {"session_id": "s", "role": "tool"}
        call(app, "remember", content=f"turn {i}: the ferry leaves at {i}", metadata=talk)
    call(app, "remember", "user", content="Everybody speaks English")
    call(app, "tokenize", text="write to ada@example.com")
    received = {"EMAIL": 1}
    run_sync(app.store.database.write(lambda tx: add_disclosures(tx, Scope("p"), 0.0, "crm.send", received)))
    run_sync(app.store.database.write(lambda tx: insert_learned_turns(tx, 1, [2**55, 7])))
    call(app, "remember", "q", content="Deploys run on Mondays", key="once")
    call(app, "consolidate", "q")
    first, second, *_ = sorted(call(app, "list_memories", k=100), key=lambda memory: memory.id)
    call(app, "relate_memories", memory_id=first.id, other_id=second.id, relation="about")
    call(app, "update_memory", memory_id=second.id, content="Mara pays all invoices")
    _fill_graph(app)
    while call(app, "reembed").remaining:
        pass
    _leave_one_unindexed(app)
    gone = call(app, "remember", content="to be removed for good").id
    call(app, "forget", memory_id=gone)
    call(app, "purge", memory_ids=[gone], expect=1)
    call(app, "write_file", path="notes/täglich.txt", content="line one\n\\N 'quoted' %s :name")
    ran = call(app, "execute_code", code="kept = [1, 'zwei']\nmemory.purge(memory_ids=[1], expect=1)")
    assert ran.status == "needs_approval"
    call(app, "execute_code", code="kept = [1, 'zwei']")
    fifth = next(m for m in call(app, "list_memories", k=100) if "parrot" in m.content)
    call(app, "update_memory", memory_id=fifth.id, content="The parrot is blue")
    call(app, "forget", memory_id=fifth.id)
    assert call(app, "briefing", session_id="s").told
    app.close()
    with apsw.Connection(str(path)) as connection:  # every value that a byte of a vector can have
        whole = bytes(range(129, 256)) + bytes(range(128))
        connection.execute("UPDATE passages SET code = ? WHERE live = 0 AND memory <> 0", [whole])
        assert connection.changes() == 1
    connection.close()
    return path


@pytest.fixture
def filled(_filled: Path, tmp_path: Path) -> str:
    return str(shutil.copy(_filled, tmp_path / "filled.db"))


@pytest.fixture(scope="module")
def _large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with enough rows to interrupt a copy."""
    path = tmp_path_factory.mktemp("large") / "athena.db"
    app = App(Sqlite(path), Letters())
    texts = [{"content": f"memory {i} of the large store", "tags": [f"t{i % 7}"]} for i in range(1_500)]
    call(app, "remember_batch", items=texts)
    app.close()
    return path


@pytest.fixture
def large(_large: Path, tmp_path: Path) -> str:
    return str(shutil.copy(_large, tmp_path / "large.db"))


def rows_of(database: Database) -> dict[str, list[Row]]:
    async def work(tx: Any) -> dict[str, list[Row]]:
        return {table.name: list(database.table_copy.scan_table(tx, table)) for table in COPIED_TABLES}

    return run_sync(database.read(work))


def run_sql(database: Database, sql: str) -> list[Row]:
    return run_sync(database.write(lambda tx: tx.fetch(sql)))


def execute_sql(database: Database, sql: str) -> None:
    run_sync(database.write(lambda tx: tx.execute(sql)))


def read_all_tables(path: str) -> dict[str, Any]:
    """Read all tables of a file without our own code."""
    connection = apsw.Connection(path)
    found: dict[str, Any] = {}
    for table in COPIED_TABLES:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")]
        kept = [name for name in columns if f"{table.name}.{name}" not in MADE_ANEW | {"passages.stamp"}]
        where = f"WHERE {table.condition} ORDER BY {table.key}"
        found[table.name] = connection.execute(f"SELECT {', '.join(kept)} FROM {table.name} {where}").fetchall()
    found["words"] = connection.execute("SELECT term, col, doc, offset FROM word_places").fetchall()
    connection.close()
    return found


class Stopped(Exception):
    pass


def fail_at(stage: str, rows: int = 0) -> copying.CopyProgress:
    """Return a callback that fails when a copy has done a number of rows of a stage."""
    done = 0

    def tell(doing: str, more: int, total: int) -> None:
        nonlocal done
        done += more if doing == stage else 0
        if doing == stage and done > rows:
            raise Stopped

    return tell


def call_at(stage: str, action: Callable[[], object]) -> copying.CopyProgress:
    """Return a callback that calls a function once when a copy reaches a stage."""
    left = [action]

    def tell(doing: str, more: int, total: int) -> None:
        if doing == stage and left:
            left.pop()()

    return tell


def test_every_column_is_copied_or_derived(stores: Stores) -> None:
    known = {f"{table.name}.{name}" for table in COPIED_TABLES for name in table.column_names} | MADE_ANEW
    known |= {"counters.name", "counters.value"}
    names = [table.name for table in COPIED_TABLES] + ["counters"]
    file = stores.open(stores.place("sqlite"))
    for table in names:
        found = {f"{table}.{row[1]}" for row in run_sql(file, f"PRAGMA table_info({table})")}
        assert found
        assert found <= known
    tables = run_sql(file, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    derived = {"counts", "vector_blocks"}  # tables that each engine builds itself
    assert {name for (name,) in tables if not re.match("word(s|_)", name)} == {*names, *derived}
    server = stores.open(stores.place("postgres"))
    listed = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'athena'"
    columns = run_sql(server, listed)
    assert {f"{table}.{name}" for table, name in columns if table in names} == known


def test_round_trip_keeps_rows_and_results(filled: str, stores: Stores) -> None:
    there, back = stores.place("postgres"), stores.place("sqlite")
    counts = copying.copy_store(stores.open(filled), stores.to(there))
    assert counts == {name: len(rows) for name, rows in read_all_tables(filled).items() if name != "words"}
    # on a busy machine what waited for its index may be indexed already
    assert [name for name, count in counts.items() if not count and name != "waiting"] == []
    assert rows_of(stores.open(there)) == rows_of(stores.open(filled))
    copying.copy_store(stores.open(there), stores.to(back))
    assert read_all_tables(back) == read_all_tables(filled)
    removed = "SELECT count(*) > 0 FROM passages WHERE memory = 0"
    assert [run_sql(stores.open(place), removed)[0][0] for place in (filled, there, back)] == [True, False, False]
    found = []
    for place in (filled, there, back):
        app = stores.app(place)
        found.append([[hit.hash for hit in call(app, "recall", query=one, k=2)] for one in QUESTIONS])
        assert call(app, "verify").problems == ()
    assert found[0] == found[1] == found[2]
    assert all(found[0])


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_counters_are_copied_or_derived(filled: str, stores: Stores, kind: str) -> None:
    """Undo does not reach behind an import in the copy, no lesson is announced again, and no token is given twice."""
    app = stores.app(filled)
    call(app, "learn", session_id="s", messages=[{"role": "user", "text": "We always deploy from the release branch."}])
    assert run_sync(take_notice(app.store, Scope("p"))).kept
    run_sync(app.store.database.write(copying.mark_import))
    every_counter = "SELECT name, value FROM counters"
    before: dict[str, int] = dict(run_sql(app.store.database, every_counter))
    found = [{*fnmatch.filter(before, pattern.replace("%", "*"))} for pattern in COPIED_COUNTERS]
    assert all(found), before
    known = set[str]().union(*found)
    assert before.keys() - known <= DERIVED_COUNTERS
    copying.copy_store(stores.open(filled), stores.to(place := stores.place(kind)))
    after: dict[str, int] = dict(run_sql(stores.open(place), every_counter))
    assert {name: after.get(name) for name in known} == {name: before[name] for name in known}
    with pytest.raises(NotFound, match="the import of a whole store"):
        call(stores.app(place), "undo")


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_copied_store_continues(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    last = max(row[0] for row in read_all_tables(filled)["memories"]) + 1  # the row after it was purged
    copying.copy_store(stores.open(filled), stores.to(place))
    if kind == "postgres":
        known = run_sql(stores.open(place), "SELECT DISTINCT tablename FROM pg_stats WHERE schemaname = 'athena'")
        assert {name for (name,) in known} >= {"memories", "passages", "words", "tallies"}, "the planner knows them"
        numbers = "SELECT nextval('passage_numbers') > max(id % 4294967296) FROM passages"
        assert run_sql(stores.open(place), numbers) == [(True,)]
    app = stores.app(place)
    again = call(app, "remember", "q", content="Deploys run on Mondays", key="once")
    assert again.outcome == "new", "the receipt of the first call is the answer to the second"
    assert [change.action for change in call(app, "undo")] == ["undid: forgotten"]
    assert call(app, "recall", query="which colour has the parrot", k=1)[0].content == "The parrot is blue"
    assert [change.action for change in call(app, "undo")] == ["undid: updated"]
    assert call(app, "recall", query="which colour has the parrot", k=1)[0].content == "The parrot is green"
    new = call(app, "remember", content="The lighthouse is striped", tags=["new"], metadata={"session_id": "s"})
    assert new.id > last
    assert call(app, "recall", query="lighthouse", k=1)[0].id == new.id
    call(app, "remember", "a new project", content=LONG + " And a new end.")
    assert {tag.tag for tag in call(app, "list_tags")} >= {"Deploy", "日本", "new"}
    assert call(app, "forget", memory_id=new.id)
    assert call(app, "purge", expect=1) == 1
    assert call(app, "verify").problems == ()


COPIER = """
import sys
from athena.app.compose import open_database_at
from athena.storage import copying
copying.BATCH_ROWS = 50
left = int(sys.argv[3])
def tell(doing, rows, total):
    global left
    left -= 1
    if left == 0:
        print("there", flush=True)
    if left in (0, -5):  # whatever happens, it does not come to its end
        sys.stdin.readline()
copying.copy_store(open_database_at(sys.argv[1], "from"), open_database_at(sys.argv[2], "to"), tell)
"""


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
@pytest.mark.parametrize("number", range(rounds(2, 10)))
def test_killed_copy_resumes(large: str, stores: Stores, kind: str, number: int) -> None:
    chance = random.Random(number)
    place = stores.place(kind)
    for _ in range(2):
        command = [sys.executable, "-c", COPIER, large, place, str(chance.randrange(1, 100))]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as copier:
            assert copier.stdin is not None
            assert copier.stdout is not None
            assert copier.stdout.readline() == "there\n"
            copier.stdin.write("go on\n")
            copier.stdin.flush()
            time.sleep(chance.uniform(0, 0.005))  # somewhere in the batches that follow
            copier.kill()
        assert copier.wait(60) == -9
        with pytest.raises(Misconfigured, match="a copy into this store is not finished"):
            stores.open(place)
    copying.copy_store(stores.open(large), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(large))
    assert call(stores.app(place, Letters()), "verify").problems == ()


class Counting:
    """Counts the rows that are written, and passes them on."""

    def __init__(self, target: Database) -> None:
        self._bulk, self._load = target.table_copy, target.table_copy.load_rows
        self.rows: dict[str, int] = {}
        self._bulk.load_rows = self.load  # type: ignore[method-assign]

    async def load(self, tx: Any, table: CopiedTable, rows: Sequence[Row]) -> None:
        self.rows[table.name] = self.rows.get(table.name, 0) + len(rows)
        await self._load(tx, table, rows)


@pytest.fixture
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BATCH_ROWS", 100)  # smaller, to be quick


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_resumed_copy_sends_only_missing(large: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    with pytest.raises(Stopped):
        copying.copy_store(stores.open(large), stores.to(place), fail_at("passages", 700))
    target = stores.to(place)
    counting = Counting(target)
    copying.copy_store(stores.open(large), target)
    assert "memories" not in counting.rows
    assert counting.rows["passages"] == 1_500 - 800
    assert counting.rows["history"] == 1_500


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_changed_source_is_copied_as_now(large: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    with pytest.raises(Stopped):
        copying.copy_store(stores.open(large), stores.to(place), fail_at("passages", 700))
    app = stores.app(large, Letters())
    first, second, third = call(app, "recall", query="memory", k=3)
    call(app, "update_memory", memory_id=first.id, content="it says something else now")
    call(app, "remember", content=first.content)  # the copy already has this text in another memory
    call(app, "remember", "another project", content="new there")
    call(app, "forget", memory_id=second.id)
    call(app, "purge", memory_ids=[third.id], expect=1)
    app.close()  # so that no deferred write happens between the copy and the comparison
    copying.copy_store(stores.open(large), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(large))
    assert call(stores.app(place, Letters()), "verify").problems == ()


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_replaced_source_is_copied_as_now(large: str, filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    source = stores.open(large)
    with pytest.raises(Stopped):
        copying.copy_store(source, stores.to(place), fail_at("passages", 700))
    source.close()
    shutil.copy(filled, large)
    copying.copy_store(stores.open(large), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(filled))


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_renamed_project_brings_all_rows(large: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    with pytest.raises(Stopped):
        copying.copy_store(stores.open(large), stores.to(place), fail_at("passages", 700))
    execute_sql(stores.open(large), "UPDATE scopes SET name = 'renamed'")
    copying.copy_store(stores.open(large), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(large))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_copy_is_one_snapshot(filled: str, stores: Stores, kind: str) -> None:
    source, target = stores.place(kind), stores.place("sqlite")
    copying.copy_store(stores.open(filled), stores.to(source))
    app = stores.app(source)
    write = call_at("scopes", lambda: call(app, "remember", content="too late"))
    copying.copy_store(stores.open(source), stores.to(target), write)
    assert rows_of(stores.open(target)) == rows_of(stores.open(filled))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_target_with_memories_is_refused(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    app = stores.app(place, Letters())
    call(app, "remember", content="already here")
    with pytest.raises(Conflict, match="is not empty"):
        copying.copy_store(stores.open(filled), stores.to(place))
    assert call(app, "verify").ok
    assert len(call(app, "list_memories")) == 1


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_target_with_a_file_alone_is_refused(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    app = stores.app(place, Letters())
    call(app, "write_file", path="report.txt", content="my only copy")
    with pytest.raises(Conflict, match="is not empty") as refused:
        copying.copy_store(stores.open(filled), stores.to(place))
    assert "name an empty database or a new file" in (refused.value.hint or "")
    assert call(app, "read_file", path="report.txt") == "my only copy"


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_a_row_of_any_table_makes_a_store_not_empty(
    filled: str, stores: Stores, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, target = rows_of(stores.open(filled)), stores.to(stores.place(kind))

    def load_rows(table: CopiedTable, count: int | None) -> None:
        run_sync(target.write(lambda tx: target.table_copy.load_rows(tx, table, rows[table.name][:count])))

    def is_empty() -> bool:
        return run_sync(target.read(copying.is_empty_or_unfinished))

    assert {"calls", "usage"} == copying.SELF_FILLED_TABLES
    scopes, *others = COPIED_TABLES
    assert is_empty()
    load_rows(scopes, None)
    assert not is_empty()
    # other rows reference scopes
    monkeypatch.setattr(copying, "SELF_FILLED_TABLES", copying.SELF_FILLED_TABLES | {"scopes"})
    for table in others:
        load_rows(table, 1)
        assert is_empty() == (table.name in copying.SELF_FILLED_TABLES), table.name
        execute_sql(target, f"DELETE FROM {table.name}")


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_unused_target_is_accepted(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    app = stores.app(place, Letters())
    assert call(app, "health").count == 0
    app.close()  # writes the deferred record of the call
    copying.copy_store(stores.open(filled), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(filled))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_unfinished_copy_opens_only_for_source(filled: str, large: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    with pytest.raises(Stopped):
        copying.copy_store(stores.open(filled), stores.to(place), fail_at("full-text index"))
    whys: tuple[CopyRole, ...] = ("", "from")
    for why in whys:
        with pytest.raises(Misconfigured, match="a copy into this store is not finished") as refused:
            open_database_at(place, why)
        assert "athena migrate again" in (refused.value.hint or "")
    with pytest.raises(Conflict, match="an unfinished copy of another store"):
        copying.copy_store(stores.open(large), stores.to(place))
    copying.copy_store(stores.open(filled), stores.to(place))
    assert call(stores.app(place), "verify").problems == ()


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_altered_row_is_detected(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    target = stores.to(place)
    spoil = "UPDATE memories SET importance = 0.75 WHERE id = 2"
    with pytest.raises(Conflict, match=r"not what was read: memories \(16 rows of 16\)"):
        copying.copy_store(stores.open(filled), target, call_at("calls", lambda: execute_sql(target, spoil)))
    with pytest.raises(Misconfigured, match="not finished"):
        stores.open(place)
    copying.copy_store(stores.open(filled), stores.to(place))
    assert rows_of(stores.open(place)) == rows_of(stores.open(filled))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_writer_in_target_is_detected(filled: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    target = stores.to(place)
    intrude = "INSERT INTO tags (scope, tag, memory) SELECT 1, 'ops', min(id) FROM memories"
    with pytest.raises(Conflict, match="something else writes"):
        copying.copy_store(stores.open(filled), target, call_at("memories", lambda: execute_sql(target, intrude)))


@pytest.mark.usefixtures("_small_batches")
@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_later_run_takes_over(large: str, stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    source, target = stores.open(large), stores.to(place)
    with pytest.raises(Conflict, match="another run"):
        copying.copy_store(
            source, target, call_at("passages", lambda: copying.copy_store(stores.open(large), stores.to(place)))
        )
    assert rows_of(stores.open(place)) == rows_of(stores.open(large))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_store_is_not_copied_into_itself(stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    stores.open(place)
    with pytest.raises(InvalidInput, match="the same store"):
        copying.copy_store(stores.open(place), stores.to(place))


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_missing_source_is_not_created(stores: Stores, kind: str) -> None:
    place = stores.place(kind)
    for _ in range(2):
        with pytest.raises(NotFound, match="there is no store at"):
            open_database_at(place, "from")
    assert kind != "sqlite" or not Path(place).exists()


def test_zero_may_lose_its_sign(filled: str, stores: Stores) -> None:
    there, back = stores.place("postgres"), stores.place("sqlite")
    copying.copy_store(stores.open(filled), stores.to(there))
    execute_sql(stores.open(there), "UPDATE memories SET strength = '-0' WHERE id = 1")
    copying.copy_store(stores.open(there), stores.to(back))
    assert rows_of(stores.open(there)) == rows_of(stores.open(back))


def test_lost_source_connection_ends_copy(filled: str, stores: Stores) -> None:
    there, back = stores.place("postgres"), stores.place("sqlite")
    copying.copy_store(stores.open(filled), stores.to(there))
    source = stores.open(there)
    theirs = "datname = current_database() AND state LIKE 'idle in%'"
    end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {theirs}"
    with pytest.raises(Unavailable, match="connection to the source was lost") as lost:
        copying.copy_store(source, stores.to(back), call_at("scopes", lambda: run_sql(source, end)))
    assert not lost.value.retry
    copying.copy_store(source, stores.to(back))
    assert read_all_tables(back) == read_all_tables(filled)
