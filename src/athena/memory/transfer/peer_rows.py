"""SQL of other programs' SQLite files (mcp-memory-service, claude-mem), which are read and never changed."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import apsw

from athena.errors import InvalidInput, NotFound

SQLITE_MARK = b"SQLite format 3\0"
Fields = dict[str, Any]


@contextmanager
def open_peer_database(path: str) -> Generator[apsw.Connection]:
    """Open a database of another program, which may be in use; leave nothing beside it."""
    # a log beside it holds rows that are not in the file yet: SQLite must see it to read them
    mode = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    try:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        connection = apsw.Connection(f"file:{quote(os.path.abspath(path))}?{mode}", flags=flags)
    except apsw.Error as error:
        raise NotFound(f"{path} cannot be opened: {error}") from None
    try:
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        yield connection
    except apsw.Error as error:
        raise InvalidInput(f"{path} cannot be read: {error}", hint="is it complete?") from None
    finally:
        connection.close()


def list_tables(connection: apsw.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def iter_table_rows(connection: apsw.Connection, table: str) -> Iterator[Fields]:
    """Yield the rows of a table in order, each as its columns by name: versions of a program differ in columns."""
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY rowid")
    names: list[str] = []
    for row in cursor:
        names = names or [column[0] for column in cursor.get_description()]
        yield dict(zip(names, row, strict=True))
