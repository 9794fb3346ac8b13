"""Whole tables of a PostgreSQL database, for copying a store."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from psycopg import errors

from athena.storage.database import TABLES_WITH_IDS, CopiedTable, IndexedPassage, Row, create_copy_conflict
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE
from athena.storage.postgres.fulltext import PostgresFullText

CURSOR_BATCH_ROWS = 200  # rows that the server sends at once
INDEX_BATCH_MEMORIES = 1_000  # memories whose words are written at once
VECTOR_COLUMN = "code"  # the column that is a vector here, and signed bytes elsewhere
LIVE_PASSAGES_SQL = """SELECT m.scope, m.id, m.session IS NOT NULL, m.label, m.content,
                 (SELECT array_agg(ARRAY[p.id, p.start, p.length, p.words, p.session] ORDER BY p.id) FROM passages p
                  WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
          FROM memories m WHERE m.deleted IS NULL"""


class PostgresTableCopy:
    def __init__(self, words: PostgresFullText) -> None:
        self._fulltext = words

    async def identify_store(self, tx: Any) -> str:
        info = tx.connection.info
        return f"postgresql {info.host}:{info.port}/{info.dbname}"

    def scan_table(self, tx: Any, table: CopiedTable) -> Iterator[Row]:
        columns = table.columns.replace(VECTOR_COLUMN, f"halfvec_send({VECTOR_COLUMN})")
        at = table.column_names.index(VECTOR_COLUMN) if VECTOR_COLUMN in table.column_names else None
        rows = _stream_rows(tx, f"SELECT {columns} FROM {table.name} WHERE {table.condition} ORDER BY {table.key}")
        return rows if at is None else ((*row[:at], _to_signed_bytes(row[at]), *row[at + 1 :]) for row in rows)

    async def load_rows(self, tx: Any, table: CopiedTable, rows: Sequence[Row]) -> None:
        if VECTOR_COLUMN in table.column_names:
            at = table.column_names.index(VECTOR_COLUMN)
            rows = [(*row[:at], _to_vector_text(row[at]), *row[at + 1 :]) for row in rows]
        try:
            _copy_rows(tx, table.name, table.column_names, rows)
        except errors.IntegrityError:
            raise create_copy_conflict("the database") from None

    async def read_last_ids(self, tx: Any) -> dict[str, int]:
        parts = " UNION ALL ".join(
            f"SELECT '{name}', pg_sequence_last_value(pg_get_serial_sequence('{name}', 'id')::regclass)"
            for name in TABLES_WITH_IDS
        )
        return {name: number for name, number in await tx.fetch(parts) if number is not None}

    async def finish_copy(self, tx: Any, numbers: Mapping[str, int]) -> None:
        await tx.execute("SET LOCAL statement_timeout = 0")
        await tx.execute("ANALYZE scopes, memories, tags, passages, tokens, history, links, relations, calls, receipts")
        await self._rebuild_fulltext(tx)
        for name, number in numbers.items():
            await tx.execute(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), :number)", number=number)
        await tx.execute(
            "SELECT setval('passage_numbers', greatest(max(id % :span), 1)) FROM passages HAVING count(*) > 0",
            span=PASSAGE_IDS_PER_SCOPE,
        )
        await tx.execute("ANALYZE words, tallies")  # how common a word is comes from these statistics too

    async def _rebuild_fulltext(self, tx: Any) -> None:
        """Write the words of all live passages, and count them."""
        await tx.execute("DELETE FROM words")
        await tx.execute("DELETE FROM tallies")
        live = _stream_rows(tx, LIVE_PASSAGES_SQL)
        while some := list(islice(live, INDEX_BATCH_MEMORIES)):
            columns = ("scope", "passage", "memory", "session", "length", "lexemes")
            _copy_rows(tx, "words", columns, [row for memory in some for row in self._build_word_rows(*memory)])
        await tx.execute(
            """INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, count(DISTINCT memory), count(*), sum(length) FROM words GROUP BY scope"""
        )

    def _build_word_rows(
        self, scope: int, memory: int, in_session: bool, label: str, content: str, passages: list[list[int]] | None
    ) -> Iterator[Row]:
        alone = not in_session and len(passages or ()) == 1
        for number, start, length, words, session in passages or ():
            lexemes = self._fulltext.to_tsvector(scope, IndexedPassage(number, content[start : start + length], label))
            yield scope, number, memory, None if alone else session, words, lexemes


def _stream_rows(tx: Any, statement: str) -> Iterator[Row]:
    """Run a query whose rows stay on the server until they are asked for."""
    with tx.connection.cursor(name="stream", binary=True) as cursor:
        cursor.itersize = CURSOR_BATCH_ROWS
        cursor.execute(statement.encode())
        yield from cursor


def _copy_rows(tx: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with tx.connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _to_vector_text(code: bytes | None) -> str | None:
    """Write signed bytes as a vector."""
    import numpy as np

    return None if code is None else f"[{','.join(map(str, np.frombuffer(code, np.int8).tolist()))}]"


def _to_signed_bytes(sent: bytes | None) -> bytes | None:
    """Read a vector as the server sends it, two numbers before it and then half floats, as signed bytes."""
    import numpy as np

    return None if sent is None else np.frombuffer(sent, ">f2", offset=4).astype(np.int8).tobytes()
