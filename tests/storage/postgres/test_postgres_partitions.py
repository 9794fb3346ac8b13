"""A store whose large tables are divided by project, as `athena migrate --partitions` makes it."""

from collections.abc import Generator
from pathlib import Path

import postgres
import pytest
from postgres_tools import call, new_database, new_database_with_tables, query, start_processes

from athena.app.compose import App, open_database_at
from athena.core.threads import run_sync
from athena.errors import Conflict, InvalidInput
from athena.storage.copying import copy_store
from athena.storage.postgres import connection, vectors
from athena.storage.postgres.store import Postgres
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL
from wait_tools import wait_until

NOTES = ("Deploys run on Fridays", "Ann drinks green tea", "The parrot is called Rio")
PROJECTS = tuple(f"project-{i}" for i in range(6))


@pytest.fixture
def url(server: postgres.Server, tmp_path: Path) -> str:
    """Return a database with three partitions and notes of six projects."""
    source = App(Sqlite(tmp_path / "source.db"), MODEL)
    for project in PROJECTS:
        for note in NOTES:
            call(source, "remember", project, content=f"{note} in {project}")
    made = new_database(server)
    target = Postgres(made, copying="to", partitions=3)
    copy_store(source.store.database, target)
    target.close()
    source.close()
    return made


@pytest.fixture
def app(url: str) -> Generator[App]:
    made = App(Postgres(url), MODEL)
    yield made
    made.close()


def test_rows_are_spread_and_found(url: str, app: App) -> None:
    for table in connection.PARTITIONED_TABLES:
        counts = [query(url, f"SELECT count(*) FROM {table}_p{i}")[0][0] for i in range(3)]
        assert sum(counts) == len(NOTES) * len(PROJECTS)
        assert sum(count > 0 for count in counts) > 1
    for project in PROJECTS:
        assert (
            call(app, "recall", project, query="when do we deploy")[0].content == f"Deploys run on Fridays in {project}"
        )
    stored = call(app, "remember", PROJECTS[0], content="The harbour is closed in winter")
    assert call(app, "recall", PROJECTS[0], query="harbour")[0].id == stored.id
    call(app, "forget", PROJECTS[0], memory_id=stored.id)
    assert call(app, "verify").ok


def test_search_of_project_reads_its_partition_alone(url: str, app: App) -> None:
    ((scope,),) = query(url, "SELECT id FROM scopes WHERE name = %s AND kind = 'memory'", PROJECTS[0])
    sql = f"EXPLAIN SELECT * FROM words WHERE scope IN ({scope}) AND lexemes @@ '''{scope}/deploy'''::tsquery"
    plan = "\n".join(row[0] for row in query(url, sql))
    assert sum(f"words_p{i}" in plan for i in range(3)) == 1


def test_each_partition_has_its_graph(url: str, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MAX_SCANNED_PASSAGES", 1)
    valid = "SELECT count(*) FROM pg_index WHERE indisvalid AND indexrelid::regclass::text LIKE '%passages_near%'"
    call(app, "recall", PROJECTS[0], query="tea")
    wait_until(lambda: query(url, valid) == [(4,)])  # one for each partition, and that of the whole table
    for project in PROJECTS:
        assert call(app, "recall", project, query="who drinks tea")[0].content == f"Ann drinks green tea in {project}"
    assert app.store.database.vectors.missing_index is None  # type: ignore[attr-defined]  # the graph was used


def test_same_text_from_two_processes_is_kept_once(url: str) -> None:
    with start_processes(url, 2) as made:
        for one in made:
            one.begin(*[("remember", {"content": f"Fact number {i}"}) for i in range(10)])
        results = [found for one in made for found in one.results()]
    assert all("done" in found for found in results), results
    assert query(url, "SELECT count(*), count(DISTINCT digest) FROM memories WHERE content LIKE 'Fact%%'") == [(10, 10)]


def test_other_partitions_are_refused(server: postgres.Server, url: str, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="other partitions"):
        Postgres(url, copying="to", partitions=4)
    Postgres(url, partitions=3).close()
    with pytest.raises(Conflict, match="other partitions, or none"):
        Postgres(new_database_with_tables(server), copying="to", partitions=3)
    with pytest.raises(InvalidInput, match="a file has no partitions"):
        open_database_at(str(tmp_path / "new.db"), "to", 3)


def test_copy_from_partitions_is_complete(app: App, tmp_path: Path) -> None:
    target = Sqlite(tmp_path / "back.db", copying="to")
    rows = copy_store(app.store.database, target)
    assert rows["memories"] == rows["passages"] == len(NOTES) * len(PROJECTS)
    ids = run_sync(target.read(lambda tx: tx.fetch("SELECT id FROM memories ORDER BY id")))
    assert [row[0] for row in ids] == list(range(1, len(NOTES) * len(PROJECTS) + 1))
    target.close()
