"""Export a whole store as JSON lines, and build a store from them.

The first line says what the file is, each line after it is a row of a table, and the last one has the number of rows
and a checksum of all lines before it: a file that is cut off or changed is refused. From the same rows comes the same
store: ids, times, history and vectors too. What an engine derives itself (full text, counts) is built anew.
"""

import base64
import binascii
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from typing import IO, Any, NamedTuple, get_args

import apsw

from athena.core import clock
from athena.core.threads import run_sync
from athena.core.values import Author
from athena.core.version import __version__
from athena.errors import InvalidInput, Misconfigured
from athena.storage import migrations
from athena.storage.copying import COPIED_TABLES, TableReader
from athena.storage.counts import KIND_NAMES, name_kind
from athena.storage.database import TABLES_WITH_IDS, CopiedTable, Database
from athena.storage.privacy import KNOWN_MARK_PATTERN
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite import schema
from athena.storage.sqlite.connection import translate_errors
from athena.storage.sqlite.fulltext import SqliteFullText
from athena.storage.sqlite.store import Sqlite

FORMAT_NAME, FORMAT_VERSION = "athena", 1
TABLE_KEY = "table"  # in each line: the table that the row belongs to
END_MARK = "end"  # the `table` of the last line
# JSON inside a column is written as a value, so that other programs can read it.
JSON_COLUMNS = {("memories", "tags"), ("memories", "metadata"), ("history", "before")}
BLOB_COLUMNS = {
    ("passages", "code"), ("tokens", "signs"), ("workspaces", "state"), ("runs", "snapshot"),
    ("vault", "lookup"), ("vault", "spelling"), ("vault", "value"),
}  # fmt: skip
LOAD_BATCH_ROWS = 500
LAST_TIME = 253_402_300_799.0  # the end of the year 9999, which tasks that are never due have
MAX_LINE_BYTES = 64_000_000  # a row with the longest text, escaped
TABLE_NAMES = [table.name for table in COPIED_TABLES]

RowProgress = Callable[[int, int], None]  # rows done since the last report, rows in all


class ExportFile(NamedTuple):
    """What the first and last line of a file say."""

    schema: int
    last_ids: dict[str, int]
    rows: dict[str, int]


# --- export -----------------------------------------------------------------------------------------------------------


def write_store(
    database: Database, stream: IO[bytes], now: float, report: RowProgress = lambda *_: None
) -> dict[str, int]:
    """Write all rows of a store as they are at one moment; return how many each table has."""
    checksum = hashlib.sha256()
    counts: dict[str, int] = {}

    def write_line(value: dict[str, Any]) -> None:
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        checksum.update(line)
        stream.write(line)

    with TableReader(database) as reader:
        write_line(
            {
                "format": FORMAT_NAME,
                "version": FORMAT_VERSION,
                "schema": len(migrations.STEPS),
                "athena": __version__,
                "exported": now,
                "last_ids": reader.summary.last_ids,
            }
        )
        for table in COPIED_TABLES:
            counts[table.name] = 0
            for rows in reader.iter_batches(table):
                for row in rows:
                    write_line(_to_json_row(table, row))
                counts[table.name] += len(rows)
                report(len(rows), reader.summary.row_count)
    write_line({TABLE_KEY: END_MARK, "rows": counts, "sha256": checksum.hexdigest()})
    return counts


def _to_json_row(table: CopiedTable, row: tuple[Any, ...]) -> dict[str, Any]:
    values: dict[str, Any] = {TABLE_KEY: table.name}
    for name, value in zip(table.column_names, row, strict=True):
        if isinstance(value, bytes):
            value = base64.b64encode(value).decode()
        elif (table.name, name) in JSON_COLUMNS and isinstance(value, str):
            value = _decode_exactly(value)
        values[name] = value
    return values


def _decode_exactly(text: str) -> Any:
    """Return the JSON value of a text; the text itself unless it can be written again in the same way."""
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
        if isinstance(value, list | dict) and _encode_json(value) == text:
            return value
    return text


def _encode_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- import -----------------------------------------------------------------------------------------------------------


def is_export(path: str) -> bool:
    """Return whether a file begins as an export of Athena does."""
    with open(path, "rb") as stream:
        return _parse_header(stream.readline(MAX_LINE_BYTES)) is not None


def check_export(path: str) -> ExportFile:
    """Read a file to its end and return what it holds; raise an error if anything is missing or was changed."""
    checksum = hashlib.sha256()
    with open(path, "rb") as stream:
        header = _parse_header(last := stream.readline(MAX_LINE_BYTES))
        if header is None:
            raise InvalidInput(f"{path} is no export of Athena", hint="athena export FILE writes one")
        if header.get("version") != FORMAT_VERSION or not 1 <= int(header["schema"]) <= len(migrations.STEPS):
            raise Misconfigured(
                f"{path} was written by another version of Athena ({header.get('athena', '?')!s:.40})",
                hint="import it with that version or a newer one",
            )
        while line := stream.readline(MAX_LINE_BYTES):
            checksum.update(last)
            last = line
    end = _parse_line(last) if last.endswith(b"\n") else {}
    if end.get(TABLE_KEY) != END_MARK or not isinstance(end.get("rows"), dict):
        raise InvalidInput(f"{path} is not complete: its last line is missing", hint="export it again")
    if end.get("sha256") != checksum.hexdigest():
        raise InvalidInput(f"{path} was changed after it was written", hint="export it again")
    last_ids = header.get("last_ids")
    if not isinstance(last_ids, dict) or not {*last_ids} <= {*TABLES_WITH_IDS}:
        raise InvalidInput(f"{path}: the first line has no last_ids", hint="export it again")
    return ExportFile(int(header["schema"]), last_ids, end["rows"])


def check_rows(path: str, file: ExportFile) -> dict[str, int]:
    """Check every row and count what is kept of each kind.

    Raises InvalidInput at the first that has a value of another type, or that nobody could write.
    """
    with closing(sqlite_connection.connect(sqlite_connection.IN_MEMORY_PATH, create=True)) as connection:
        schema.migrate(connection, path, SqliteFullText.schema, file.schema)
        columns = {
            table.name: {
                column[1]: (column[2], bool(column[3] or column[5]))
                for column in connection.execute(f"PRAGMA table_info({table.name})")
            }
            for table in COPIED_TABLES
        }
    expected = {table.name: {*table.column_names} & columns[table.name].keys() for table in COPIED_TABLES}
    kinds: dict[int, str] = {}
    kept = Counter({"memories": 0})
    for row in iter_rows(path):
        table = row.pop(TABLE_KEY)
        where = f"{path}: a row of {table}"
        if missing := expected[table] - row.keys():
            raise InvalidInput(f"{where} has no {min(missing)}", hint="export it again")
        for name, value in row.items():
            known = columns[table].get(name)
            if known is None:
                raise InvalidInput(f"{path}: {table} has no column {name!r:.40}")
            if not _is_valid(table, name, value, *known):
                raise InvalidInput(f"{where} has no valid {name}: {value!r:.60}", hint="export it again")
        if table == "scopes":
            kinds[row["id"]] = row["kind"]
        elif table in ("memories", "relations") and row["scope"] not in kinds:
            raise InvalidInput(f"{where} belongs to no scope", hint="export it again")
        elif table == "memories" and row["deleted"] is None:
            kept[name_kind(kinds[row["scope"]], row["session"] is not None)] += 1
    return {name: kept[name] for name in KIND_NAMES.values() if name in kept}


def _is_valid(table: str, name: str, value: Any, column_type: str, is_required: bool) -> bool:
    """Return whether a value is of its column's type, and one that Athena writes there."""
    if value is None:
        return not is_required
    if (table, name) in JSON_COLUMNS:
        with suppress(ValueError, RecursionError):
            value = json.loads(value) if isinstance(value, str) else value
        is_list = name == "tags"
        return isinstance(value, list) and all(isinstance(tag, str) for tag in value) if is_list else _is_object(value)
    if column_type in ("INTEGER", "BIGINT"):
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if column_type == "DOUBLE PRECISION":
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        is_time = table == "memories" and name in ("created", "updated", "happened")
        is_share = (table, name) == ("memories", "importance")
        return (
            is_number
            and (not is_time or clock.MIN_CALENDAR_TIME <= value <= LAST_TIME)
            and (not is_share or 0 <= value <= 1)
        )
    if not isinstance(value, str):
        return False
    if (table, name) == ("memories", "author"):
        return value in get_args(Author)
    if (table, name) == ("scopes", "kind"):
        return value != "observation" and value in KIND_NAMES
    return name != "private" or all(map(KNOWN_MARK_PATTERN.fullmatch, value.split()))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def iter_rows(path: str, tables: Iterable[str] = TABLE_NAMES) -> Iterator[dict[str, Any]]:
    """Yield the rows of some tables; `table` names the table of each."""
    wanted = {*tables}
    with open(path, "rb") as stream:
        stream.readline(MAX_LINE_BYTES)
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES), b""), 2):
            row = _parse_line(line)
            if row.get(TABLE_KEY) == END_MARK:
                return
            if row.get(TABLE_KEY) not in TABLE_NAMES:
                raise InvalidInput(f"{path}, line {number}: there is no table {row.get(TABLE_KEY)!r:.40}")
            if row[TABLE_KEY] in wanted:
                yield row


def build_store(path: str, file: ExportFile, target: str, report: RowProgress = lambda *_: None) -> None:
    """Create a SQLite store with the rows of an export; one of an older format is then migrated."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(target + suffix)
    with translate_errors(target):
        connection = sqlite_connection.connect(target, create=True)
        try:
            schema.migrate(connection, target, SqliteFullText.schema, file.schema)
            with connection:  # one transaction
                counts = _load_rows(connection, path, file, report)
        finally:
            connection.close()
    if counts != {name: count for name, count in file.rows.items() if count}:
        raise InvalidInput(f"{path} has other rows than its last line says", hint="export it again")
    store = Sqlite(target)
    try:
        run_sync(store.write(lambda tx: store.table_copy.finish_copy(tx, file.last_ids)))
    finally:
        store.close()


def _load_rows(connection: apsw.Connection, path: str, file: ExportFile, report: RowProgress) -> dict[str, int]:
    counts: dict[str, int] = {}
    total = sum(file.rows.values())
    batch: list[tuple[Any, ...]] = []
    table = ""
    columns: list[str] = []

    def write_batch() -> None:
        if batch:
            names, marks = ", ".join(columns), ", ".join("?" for _ in columns)
            try:
                connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", batch).fetchall()
            except (apsw.ConstraintError, apsw.MismatchError, TypeError, OverflowError) as error:
                raise InvalidInput(f"{path}: a row of {table} cannot be stored: {error}") from None
            report(len(batch), total)
            batch.clear()

    for row in iter_rows(path):
        row_table = row.pop(TABLE_KEY)
        if row_table != table or [*row] != columns or len(batch) >= LOAD_BATCH_ROWS:
            write_batch()
        if row_table != table or [*row] != columns:
            table, columns = row_table, [*row]
            known = {column[1] for column in connection.execute(f"PRAGMA table_info({table})")}
            if unknown := {*columns} - known:
                raise InvalidInput(f"{path}: {table} has no column {min(unknown)!r:.40}")
        batch.append(tuple(_to_sql_value(path, table, name, value) for name, value in row.items()))
        counts[table] = counts.get(table, 0) + 1
    write_batch()
    return counts


def _to_sql_value(path: str, table: str, column: str, value: Any) -> Any:
    if (table, column) in BLOB_COLUMNS and value is not None:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise InvalidInput(f"{path}: {table}.{column} is not base64") from None
    return _encode_json(value) if isinstance(value, list | dict) else value


def _parse_header(line: bytes) -> dict[str, Any] | None:
    try:
        header = _parse_line(line)
    except InvalidInput:
        return None
    is_ours = header.get("format") == FORMAT_NAME and isinstance(header.get("schema"), int)
    return header if is_ours else None


def _parse_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"not a JSON object: {line[:60]!r}", hint="is the file complete?")
    return value
