"""Migrate a SQLite file to the newest schema, and give the query planner its statistics."""

import contextlib
import hashlib
from typing import NamedTuple

import apsw

from athena.errors import Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.sqlite.connection import APPLICATION_ID, create_functions

# The statistics of each index: rows in all, then rows with the same first column, first two columns, and so on.
# Without them SQLite assumes that a project has ten rows, and scans all of it instead of looking up fifty ids.
INDEX_STATISTICS = {
    "memories_live": "100000 50000 1",
    "memories_by_digest": "100000 50000 1 1",
    "memories_by_time": "100000 50000 5",
    "memories_unfinished": "100 50 1",
    "memories_landmarks": "1000 500 1",
    "memories_by_type": "100000 50000 5000 5",
    "memories_by_change": "100000 50000 5",
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
    "history_of_memory": "100000 50000 3 1 1",
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
# all but what SQLite and FTS5 create themselves, by exact names: a trigger must not hide behind a prefix
DEFINITIONS_SQL = """SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema
    WHERE NOT (type = 'index' AND sql IS NULL) AND NOT (type = 'table' AND name IN ('sqlite_sequence', 'sqlite_stat1',
        'sqlite_stat4', 'words_data', 'words_idx', 'words_docsize', 'words_config'))
    ORDER BY type, name"""
# of the definitions of a new store, so that opening one need not create another to compare with
KNOWN_DIGEST = "9cac741e04a8fedb7f1f05f526265fed5452aee9a9165bc9292ba1dc811db4ab"
ACTIVE_TYPES = ("trigger", "view")  # what a statement of ours may run without naming it
# SQLite's integrity check computes each entry of an index anew and looks it up. So it finds any flipped bit of a row
# whose index ends with a checksum of the other columns. Left out are columns that another index repeats or that
# `verify` compares with other rows. PostgreSQL has checksums of its pages.
_ROW_CHECKSUMS = """
    DROP INDEX memories_by_digest;
    CREATE INDEX memories_by_digest ON memories (scope, digest, checksum(label, tags, memory_type, metadata, session,
        happened, created, updated, deleted, importance, author, private));
    DROP INDEX history_of_memory;
    CREATE INDEX history_of_memory ON history (scope, memory, id, checksum(call, at, action, digest, before, undone));
    DROP INDEX links_back;
    CREATE INDEX links_back ON links (other, at);
    CREATE INDEX relations_checksums ON relations (id, checksum(scope, source, target, source_name, target_name,
        relation, began, ended, created, removed, private));
    CREATE INDEX receipts_checksums ON receipts (checksum(operation, fingerprint, result, at));
    CREATE INDEX workspaces_checksums ON workspaces (checksum(owner, state, variables, updated, private));
    CREATE INDEX files_checksums ON files (checksum(content, size, updated, private));
    CREATE INDEX runs_checksums ON runs (checksum(workspace, status, process, started, elapsed_ms, calls, engine, error,
        fingerprint, waits_for, snapshot, answer, claimed, private))
"""
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
    "row_checksums": _ROW_CHECKSUMS,
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
            _check_definitions(connection, path, indexes)  # a step may have been edited since
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
    """Refuse a store with the same format number and another schema; a store without a fingerprint gets one.

    The fingerprint is only what the store says of itself, and what earlier versions look for.
    """
    _check_definitions(connection, path, indexes)
    query = "SELECT value FROM counters WHERE name = ?"
    try:
        stored = connection.execute(query, (migrations.FINGERPRINT_COUNTER,)).get
    except apsw.SQLError:
        stored = None
    if stored is not None:
        return
    with contextlib.suppress(apsw.BusyError, apsw.ReadOnlyError, apsw.FullError):  # the next process does it
        _store_fingerprint(connection, indexes)


def _store_fingerprint(connection: apsw.Connection, indexes: tuple[str, ...]) -> None:
    row = (migrations.FINGERPRINT_COUNTER, migrations.compute_fingerprint(_DIALECT, indexes))
    connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", row).fetchall()


class SchemaDifferences(NamedTuple):
    changed: list[str]  # names of tables, indexes and views that are missing or other than in a new store
    foreign: list[tuple[str, str]]  # types and names of what a new store does not have


def _check_definitions(connection: apsw.Connection, path: str, indexes: tuple[str, ...]) -> None:
    """Refuse other tables than ours, and what could change our reads and writes."""
    if compute_digest(read_definitions(connection)) == KNOWN_DIGEST:
        return
    differences = find_schema_differences(connection, indexes)
    if differences.changed:
        raise migrations.create_schema_error(path, differences.changed)
    if active := [part for part in differences.foreign if part[0] in ACTIVE_TYPES]:
        names = "; ".join(map(migrations.describe_foreign, active[:5]))
        hint = "it can change what is read and stored: restore a backup of yours, or drop it there if it is yours"
        raise Misconfigured(f"{path}: {names}", hint=hint)


def find_schema_differences(connection: apsw.Connection, indexes: tuple[str, ...]) -> SchemaDifferences:
    """Compare the definitions with those of a new store."""
    expected = apsw.Connection(":memory:")
    create_functions(expected)
    try:
        for step in range(len(migrations.STEPS)):
            for statement in migrations.iter_statements(step, _DIALECT, indexes):
                expected.execute(statement).fetchall()
        found, ours = read_definitions(connection), read_definitions(expected)
        changed = [key[1] for key, sql in ours.items() if found.get(key) != sql]
        return SchemaDifferences(changed, [key for key in found if key not in ours])
    finally:
        expected.close()


def list_schema_problems(connection: apsw.Connection, indexes: tuple[str, ...]) -> list[str]:
    """Return a line for each part of the schema that is missing, other than ours, or not ours."""
    changed, foreign = find_schema_differences(connection, indexes)
    return [f"{name} is not as Athena creates it" for name in changed] + [*map(migrations.describe_foreign, foreign)]


def list_columns() -> dict[str, set[str]]:
    """Return the tables that both engines have, each with its columns."""
    connection = apsw.Connection(":memory:")
    create_functions(connection)
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


def read_definitions(connection: apsw.Connection) -> dict[tuple[str, str], str]:
    """Return the SQL of each part of the schema, by its type and name."""
    rows = connection.execute(DEFINITIONS_SQL).fetchall()
    texts = ([part.decode("utf-8", "replace") if isinstance(part, bytes) else "" for part in row] for row in rows)
    return {(kind, name): " ".join(sql.split()) for kind, name, sql in texts}


def compute_digest(definitions: dict[tuple[str, str], str]) -> str:
    return hashlib.sha256(repr(definitions).encode("utf-8", "surrogatepass")).hexdigest()


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
