"""Migrate a SQLite file to the newest schema, and give the query planner its statistics."""

import contextlib

import apsw

from athena.errors import Unavailable
from athena.storage import migrations
from athena.storage.sqlite.connection import APPLICATION_ID

# The statistics of each index: rows in all, then rows with the same first column, first two columns, and so on.
# Without them SQLite assumes that a project has ten rows, and scans all of it instead of looking up fifty ids.
INDEX_STATISTICS = {
    "memories_live": "100000 50000 1",
    "memories_by_digest": "100000 50000 1",
    "memories_by_time": "100000 50000 5",
    "memories_unfinished": "100 50 1",
    "memories_landmarks": "1000 500 1",
    "memories_by_type": "100000 50000 5000 5",
    "memories_recalled": "1000 500 1 1",
    "memories_forgotten": "1000 500 1",
    "memories_private": "1000 500 100",
    "memories_by_session": "50000 25000 50 1",
    "tags": "100000 50000 500 1",  # its primary key
    "tags_by_time": "100000 50000 500 2 1",
    "tags_of_memory": "100000 50000 2",
    "passages_of_session": "100000 50000 5 1",
    "passages_of_memory": "100000 50000 2",
    "passages_changed": "100000 50000 5",
    "passages_by_model": "100000 100000 50000",
    "passages_behind": "100 1",
    "history_of_memory": "100000 50000 3 1",
    "history_of_call": "100000 2",
    "history_by_digest": "50000 25000 2",
    "relations_live": "100000 50000 5 2 1 1",
    "relations_back": "100000 50000 5",
    "mentions_of_memory": "100000 50000 3",
    "runs_by_time": "1000 500 1",
    "injections_of_session": "10000 5000 10 1",
}
# Columns with JSON, besides those of memories, which are compared with other rows anyway.
JSON_COLUMNS = {"history": ("before",), "receipts": ("result",), "consolidations": ("progress", "result")}
TEXT_COLUMNS_SQL = """SELECT t.name, group_concat(c.name) FROM sqlite_schema t, pragma_table_info(t.name) c
    WHERE t.type = 'table' AND c.type = 'TEXT' AND t.name NOT LIKE 'words%' AND t.name <> 'memories' GROUP BY t.name"""
# all but what SQLite and FTS5 create themselves
DEFINITIONS_SQL = """SELECT name, sql FROM sqlite_schema
    WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite%' AND substr(name, 1, 6) <> 'words_' ORDER BY name"""
_DIALECT = {
    "alone": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "identity": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "key": "INTEGER PRIMARY KEY",
    "scope_and_id": "",
    "scope_and_passage": "",
    "blob": "BLOB",
    "vector": "BLOB",
    "clustered": "WITHOUT ROWID",
    "count_id": "",
    "count_key": "name",
}


def migrate(connection: apsw.Connection, path: str, indexes: tuple[str, ...], newest: int = 0) -> None:
    """Run the missing migration steps and set the planner's statistics, in one transaction; check the schema.

    `newest` is the format to migrate to, by default that of this version.
    """

    def read_version() -> int:
        return int(connection.pragma("user_version") or 0)

    newest = newest or len(migrations.STEPS)
    if read_version() == newest:
        return _check_fingerprint(connection, path, indexes)
    if connection.readonly("main"):
        raise Unavailable(
            f"{path} is read-only here, and of an older format",
            hint="open it once where it can be written",
            retry=False,
        )
    connection.execute("BEGIN IMMEDIATE").fetchall()
    try:
        for step in range(read_version(), newest):
            for statement in migrations.iter_statements(step, _DIALECT, indexes):
                connection.execute(statement).fetchall()
        if not connection.table_exists("main", "sqlite_stat1"):
            connection.execute("ANALYZE").fetchall()  # creates the table
        connection.execute("DELETE FROM sqlite_stat1").fetchall()
        for index, statistics in INDEX_STATISTICS.items():
            table = index.split("_")[0]
            connection.execute("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", (table, index, statistics)).fetchall()
        if newest == len(migrations.STEPS):
            if differences := find_schema_differences(connection, indexes):  # of a step that was edited since
                raise migrations.create_schema_error(path, differences)
            _store_fingerprint(connection, indexes)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", newest)
        connection.execute("COMMIT").fetchall()
        connection.execute("ANALYZE sqlite_schema").fetchall()  # loads the statistics into this connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK").fetchall()
    return None


def _check_fingerprint(connection: apsw.Connection, path: str, indexes: tuple[str, ...]) -> None:
    """Refuse a store with the same format number and another schema; a store without a fingerprint gets one."""
    query = "SELECT value FROM counters WHERE name = ?"
    try:
        stored = connection.execute(query, (migrations.FINGERPRINT_COUNTER,)).get
    except apsw.SQLError:
        stored = None
    if stored == migrations.compute_fingerprint(_DIALECT, indexes):
        return
    if differences := find_schema_differences(connection, indexes):
        raise migrations.create_schema_error(path, differences)
    with contextlib.suppress(apsw.BusyError, apsw.ReadOnlyError, apsw.FullError):  # the next process does it
        _store_fingerprint(connection, indexes)


def _store_fingerprint(connection: apsw.Connection, indexes: tuple[str, ...]) -> None:
    row = (migrations.FINGERPRINT_COUNTER, migrations.compute_fingerprint(_DIALECT, indexes))
    connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", row).fetchall()


def find_schema_differences(connection: apsw.Connection, indexes: tuple[str, ...]) -> list[str]:
    """Return the names of tables, indexes and views that are missing or other than in a new store."""
    expected = apsw.Connection(":memory:")
    try:
        for step in range(len(migrations.STEPS)):
            for statement in migrations.iter_statements(step, _DIALECT, indexes):
                expected.execute(statement).fetchall()
        found = _read_definitions(connection)
        return [name for name, sql in _read_definitions(expected).items() if found.get(name) != sql]
    finally:
        expected.close()


def list_columns() -> dict[str, set[str]]:
    """Return the tables that both engines have, each with its columns."""
    connection = apsw.Connection(":memory:")
    try:
        for step in range(len(migrations.STEPS)):
            for statement in migrations.iter_statements(step, _DIALECT, ()):
                connection.execute(statement).fetchall()
        rows = connection.execute(
            "SELECT t.name, c.name FROM sqlite_schema t, pragma_table_info(t.name) c "
            "WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'"
        ).fetchall()
        columns: dict[str, set[str]] = {}
        for table, column in rows:
            columns.setdefault(str(table), set()).add(str(column))
        return columns
    finally:
        connection.close()


def _read_definitions(connection: apsw.Connection) -> dict[str, str]:
    rows = connection.execute(DEFINITIONS_SQL).fetchall()
    return {str(name): " ".join(str(sql).split()) for name, sql in rows}


def find_unreadable_texts(connection: apsw.Connection) -> list[str]:
    """Return the tables with values that are not UTF-8 or not JSON; SQLite's own check reads neither."""
    problems = []
    for table, columns in connection.execute(TEXT_COLUMNS_SQL).fetchall():
        try:
            for _ in connection.execute(f"SELECT {columns} FROM {table}"):
                pass  # the driver decodes each value
        except UnicodeDecodeError:
            problems.append(f"a row of {table} is not valid text")
    for table, columns in JSON_COLUMNS.items():
        for column in columns:
            query = f"SELECT count(*) FROM {table} WHERE {column} <> '' AND NOT json_valid({column})"
            if count := connection.execute(query).get:
                problems.append(f"{count} values of {table}.{column} cannot be read")
    return problems
