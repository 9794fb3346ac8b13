"""Whole tables of a SQLite file, for copying a store."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import apsw

from athena.storage.database import TABLES_WITH_IDS, CopiedTable, Row, create_copy_conflict
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE


class SqliteTableCopy:
    def __init__(self, path: str) -> None:
        self.path = path

    async def identify_store(self, tx: Any) -> str:
        return f"file {os.path.realpath(self.path)}"  # noqa: ASYNC240  # on a thread of its own

    def scan_table(self, tx: Any, table: CopiedTable) -> Iterator[Row]:
        """Read a table in the order of its key; keys are clustered here, so nothing is sorted."""
        rows: Iterator[Row] = tx.connection.execute(
            f"SELECT {table.columns} FROM {table.name} WHERE {table.condition} ORDER BY {table.key}"
        )
        return rows

    async def load_rows(self, tx: Any, table: CopiedTable, rows: Sequence[Row]) -> None:
        places = ", ".join("?" for _ in table.column_names)
        try:
            tx.connection.executemany(
                f"INSERT INTO {table.name} ({', '.join(table.column_names)}) VALUES ({places})", rows
            ).fetchall()
        except apsw.ConstraintError:
            raise create_copy_conflict(self.path) from None

    async def read_last_ids(self, tx: Any) -> dict[str, int]:
        known = dict(await tx.fetch("SELECT name, seq FROM sqlite_sequence"))
        return {name: known[name] for name in TABLES_WITH_IDS if name in known}

    async def finish_copy(self, tx: Any, numbers: Mapping[str, int]) -> None:
        await tx.execute("INSERT INTO words (words) VALUES ('rebuild')")
        await tx.execute(
            """UPDATE scopes SET passages = coalesce((SELECT max(p.id) + 1 - scopes.id * :span FROM passages p
                   WHERE p.id BETWEEN scopes.id * :span AND scopes.id * :span + :span - 1), 0)""",
            span=PASSAGE_IDS_PER_SCOPE,
        )
        # The passages came with stamp 1; the counter may not be behind it, or no shelf would read them.
        await tx.execute("UPDATE counters SET value = max(value, 1) WHERE name = 'stamp'")
        for name, number in numbers.items():
            values = {"name": name, "number": number}
            if not await tx.execute("UPDATE sqlite_sequence SET seq = :number WHERE name = :name", **values):
                await tx.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :number)", **values)
