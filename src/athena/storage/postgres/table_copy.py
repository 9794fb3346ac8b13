"""Read and write whole tables of a PostgreSQL database, to copy a store."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import psycopg
from psycopg import errors

from athena.storage import counts
from athena.storage.database import TABLES_WITH_IDS, CopiedTable, IndexedPassage, Row, Transaction, create_copy_conflict
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE
from athena.storage.postgres.connection import PostgresTransaction, qualify_vectors
from athena.storage.postgres.formats import format_code, parse_vector
from athena.storage.postgres.fulltext import PostgresFullText

CURSOR_BATCH_ROWS = 200
INDEX_BATCH_MEMORIES = 1_000
VECTOR_COLUMN = "code"  # a vector here, signed bytes on SQLite and in the copied rows
WORDS_COLUMNS = ("scope", "passage", "memory", "session", "length", "lexemes")
LIVE_PASSAGES_SQL = """SELECT m.scope, m.id, m.session IS NOT NULL, m.label, m.content,
                 (SELECT array_agg(ARRAY[p.id, p.start, p.length, p.words, p.session] ORDER BY p.id) FROM passages p
                  WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
          FROM memories m WHERE m.deleted IS NULL"""


class PostgresTableCopy:
    def __init__(self, fulltext: PostgresFullText) -> None:
        self._fulltext = fulltext

    async def identify_store(self, tx: Transaction) -> str:
        info = _get_connection(tx).info
        return f"postgresql {info.host}:{info.port}/{info.dbname}"

    def scan_table(self, tx: Transaction, table: CopiedTable) -> Iterator[Row]:
        columns = table.columns.replace(VECTOR_COLUMN, f"halfvec_send({VECTOR_COLUMN})")
        at = table.column_names.index(VECTOR_COLUMN) if VECTOR_COLUMN in table.column_names else None
        rows = _stream_rows(tx, f"SELECT {columns} FROM {table.name} WHERE {table.condition} ORDER BY {table.key}")
        return rows if at is None else ((*row[:at], _to_signed_bytes(row[at]), *row[at + 1 :]) for row in rows)

    async def load_rows(self, tx: Transaction, table: CopiedTable, rows: Sequence[Row]) -> None:
        if VECTOR_COLUMN in table.column_names:
            at = table.column_names.index(VECTOR_COLUMN)
            rows = [(*row[:at], format_code(row[at]), *row[at + 1 :]) for row in rows]
        try:
            _copy_rows(tx, table.name, table.column_names, rows)
        except errors.IntegrityError:
            raise create_copy_conflict("the database") from None

    async def read_last_ids(self, tx: Transaction) -> dict[str, int]:
        queries = " UNION ALL ".join(
            f"SELECT '{name}', pg_sequence_last_value(pg_get_serial_sequence('{name}', 'id')::regclass)"
            for name in TABLES_WITH_IDS
        )
        return {name: last_id for name, last_id in await tx.fetch(queries) if last_id is not None}

    async def finish_copy(self, tx: Transaction, last_ids: Mapping[str, int]) -> None:
        await tx.execute("SET LOCAL statement_timeout = 0")
        await tx.execute("ANALYZE scopes, memories, tags, passages, tokens, history, links, relations, calls, receipts")
        await self._rebuild_fulltext(tx)
        await counts.recount_all(tx)
        for name, last_id in last_ids.items():
            await tx.execute(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), :last_id)", last_id=last_id)
        await tx.execute(
            "SELECT setval('passage_numbers', greatest(max(id % :span), 1)) FROM passages HAVING count(*) > 0",
            span=PASSAGE_IDS_PER_SCOPE,
        )
        await tx.execute("ANALYZE words, tallies")  # searches estimate from its statistics how common a term is

    async def _rebuild_fulltext(self, tx: Transaction) -> None:
        """Write the words of all live passages, and count them."""
        await tx.execute("DELETE FROM words")
        await tx.execute("DELETE FROM tallies")
        memories = _stream_rows(tx, LIVE_PASSAGES_SQL)
        while batch := list(islice(memories, INDEX_BATCH_MEMORIES)):
            _copy_rows(tx, "words", WORDS_COLUMNS, [row for memory in batch for row in self._build_word_rows(*memory)])
        await tx.execute(
            """INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, count(DISTINCT memory), count(*), sum(length) FROM words GROUP BY scope"""
        )

    def _build_word_rows(
        self, scope: int, memory: int, in_session: bool, label: str, content: str, passages: list[list[int]] | None
    ) -> Iterator[Row]:
        alone = not in_session and len(passages or ()) == 1
        for passage, start, length, word_count, session in passages or ():
            indexed = IndexedPassage(passage, content[start : start + length], label)
            lexemes = self._fulltext.to_tsvector(scope, indexed)
            yield scope, passage, memory, None if alone else session, word_count, lexemes


def _get_own(tx: Transaction) -> PostgresTransaction:
    assert isinstance(tx, PostgresTransaction)
    return tx


def _get_connection(tx: Transaction) -> psycopg.Connection[Any]:
    _get_own(tx).leave_pipeline()
    return _get_own(tx).connection


def _stream_rows(tx: Transaction, sql: str) -> Iterator[Row]:
    """Yield the rows of a query from a cursor on the server, without holding all of them."""
    with _get_connection(tx).cursor(name="stream", binary=True) as cursor:
        cursor.itersize = CURSOR_BATCH_ROWS
        cursor.execute(qualify_vectors(sql, _get_own(tx).vector_schema).encode())
        yield from cursor


def _copy_rows(tx: Transaction, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with _get_connection(tx).cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _to_signed_bytes(data: bytes | None) -> bytes | None:
    """Convert a vector from the server's binary format to signed bytes."""
    return None if data is None else parse_vector(data).astype("int8").tobytes()
