"""Read and write whole tables of a SQLite file, to copy a store."""

import os
from collections.abc import Iterator, Mapping, Sequence

import apsw

from athena.storage import counts
from athena.storage.database import TABLES_WITH_IDS, CopiedTable, Row, Transaction, create_copy_conflict
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE
from athena.storage.sqlite.connection import SqliteTransaction


class SqliteTableCopy:
    def __init__(self, path: str) -> None:
        self.path = path

    async def identify_store(self, tx: Transaction) -> str:
        return f"file {os.path.realpath(self.path)}"  # noqa: ASYNC240  # on a thread of its own

    def scan_table(self, tx: Transaction, table: CopiedTable) -> Iterator[Row]:
        # The tables are clustered by their keys, so that nothing has to be sorted.
        rows: Iterator[Row] = _get_connection(tx).execute(
            f"SELECT {table.columns} FROM {table.name} WHERE {table.condition} ORDER BY {table.key}"
        )
        return rows

    async def load_rows(self, tx: Transaction, table: CopiedTable, rows: Sequence[Row]) -> None:
        placeholders = ", ".join("?" for _ in table.column_names)
        try:
            _get_connection(tx).executemany(
                f"INSERT INTO {table.name} ({', '.join(table.column_names)}) VALUES ({placeholders})", rows
            ).fetchall()
        except apsw.ConstraintError:
            raise create_copy_conflict(self.path) from None

    async def read_last_ids(self, tx: Transaction) -> dict[str, int]:
        last_ids = {row[0]: row[1] for row in await tx.fetch("SELECT name, seq FROM sqlite_sequence")}
        return {name: last_ids[name] for name in TABLES_WITH_IDS if name in last_ids}

    async def finish_copy(self, tx: Transaction, last_ids: Mapping[str, int]) -> None:
        await tx.execute("INSERT INTO words (words) VALUES ('rebuild')")
        await counts.recount_all(tx)
        await tx.execute(
            """UPDATE scopes SET passages = coalesce((SELECT max(p.id) + 1 - scopes.id * :span FROM passages p
                   WHERE p.id BETWEEN scopes.id * :span AND scopes.id * :span + :span - 1), 0)""",
            span=PASSAGE_IDS_PER_SCOPE,
        )
        # The passages were copied with stamp 1; with a lower counter no vector cache would read them.
        await tx.execute("UPDATE counters SET value = max(value, 1) WHERE name = 'stamp'")
        for name, last_id in last_ids.items():
            values = {"name": name, "last_id": last_id}
            if not await tx.execute("UPDATE sqlite_sequence SET seq = :last_id WHERE name = :name", **values):
                await tx.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last_id)", **values)


def _get_connection(tx: Transaction) -> apsw.Connection:
    assert isinstance(tx, SqliteTransaction)
    return tx.connection
