"""Whole tables of a PostgreSQL database, for copying a store."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from psycopg import errors

from athena.storage.database import NUMBERED, Indexed, Row, Table, disturbed
from athena.storage.passages import SPAN
from athena.storage.postgres.fulltext import PostgresWords

AHEAD = 200  # rows that the server sends at once
TOGETHER = 1_000  # memories whose words are written at once
VECTOR = "code"  # the column that is a vector here, and signed bytes elsewhere
LIVE = """SELECT m.scope, m.id, m.session IS NOT NULL, m.label, m.content,
                 (SELECT array_agg(ARRAY[p.id, p.start, p.length, p.words, p.session] ORDER BY p.id) FROM passages p
                  WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
          FROM memories m WHERE m.deleted IS NULL"""


class PostgresBulk:
    def __init__(self, words: PostgresWords) -> None:
        self._words = words

    async def identity(self, tx: Any) -> str:
        info = tx.connection.info
        return f"postgresql {info.host}:{info.port}/{info.dbname}"

    def scan(self, tx: Any, table: Table) -> Iterator[Row]:
        columns = table.columns.replace(VECTOR, f"halfvec_send({VECTOR})")
        at = table.names.index(VECTOR) if VECTOR in table.names else None
        rows = _stream(tx, f"SELECT {columns} FROM {table.name} WHERE {table.only} ORDER BY {table.key}")
        return rows if at is None else ((*row[:at], _signed(row[at]), *row[at + 1 :]) for row in rows)

    async def load(self, tx: Any, table: Table, rows: Sequence[Row]) -> None:
        if VECTOR in table.names:
            at = table.names.index(VECTOR)
            rows = [(*row[:at], _written(row[at]), *row[at + 1 :]) for row in rows]
        try:
            _put(tx, table.name, table.names, rows)
        except errors.IntegrityError:
            raise disturbed("the database") from None

    async def numbers(self, tx: Any) -> dict[str, int]:
        parts = " UNION ALL ".join(
            f"SELECT '{name}', pg_sequence_last_value(pg_get_serial_sequence('{name}', 'id')::regclass)"
            for name in NUMBERED
        )
        return {name: number for name, number in await tx.fetch(parts) if number is not None}

    async def complete(self, tx: Any, numbers: Mapping[str, int]) -> None:
        await tx.execute("SET LOCAL statement_timeout = 0")
        await tx.execute("ANALYZE scopes, memories, tags, passages, tokens, history, links, relations, calls, receipts")
        await self._index(tx)
        for name, number in numbers.items():
            await tx.execute(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), :number)", number=number)
        await tx.execute(
            "SELECT setval('passage_numbers', greatest(max(id % :span), 1)) FROM passages HAVING count(*) > 0",
            span=SPAN,
        )
        await tx.execute("ANALYZE words, tallies")  # how common a word is comes from these statistics too

    async def _index(self, tx: Any) -> None:
        """Write the words of all live passages, and count them."""
        await tx.execute("DELETE FROM words")
        await tx.execute("DELETE FROM tallies")
        live = _stream(tx, LIVE)
        while some := list(islice(live, TOGETHER)):
            columns = ("scope", "passage", "memory", "session", "length", "lexemes")
            _put(tx, "words", columns, [row for memory in some for row in self._rows(*memory)])
        await tx.execute(
            """INSERT INTO tallies (scope, memories, passages, words)
               SELECT scope, count(DISTINCT memory), count(*), sum(length) FROM words GROUP BY scope"""
        )

    def _rows(
        self, scope: int, memory: int, in_session: bool, label: str, content: str, passages: list[list[int]] | None
    ) -> Iterator[Row]:
        alone = not in_session and len(passages or ()) == 1
        for number, start, length, words, session in passages or ():
            lexemes = self._words.lexemes(scope, Indexed(number, content[start : start + length], label))
            yield scope, number, memory, None if alone else session, words, lexemes


def _stream(tx: Any, statement: str) -> Iterator[Row]:
    """Run a query whose rows stay on the server until they are asked for."""
    with tx.connection.cursor(name="stream", binary=True) as cursor:
        cursor.itersize = AHEAD
        cursor.execute(statement.encode())
        yield from cursor


def _put(tx: Any, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
    with tx.connection.cursor().copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _written(code: bytes | None) -> str | None:
    """Write signed bytes as a vector."""
    import numpy as np

    return None if code is None else f"[{','.join(map(str, np.frombuffer(code, np.int8).tolist()))}]"


def _signed(sent: bytes | None) -> bytes | None:
    """Read a vector as the server sends it, two numbers before it and then half floats, as signed bytes."""
    import numpy as np

    return None if sent is None else np.frombuffer(sent, ">f2", offset=4).astype(np.int8).tobytes()
