"""Vector blocks: what a vector cache needs of a scope's passages, packed, so that a new process need not read each row.

A block has the passages of one range of ids. All blocks of a scope are valid as of the greatest of their stamps:
whoever writes blocks writes all that changed since. A search reads them, and then the rows that changed after that
stamp. Only the vectors themselves stay in the rows; a search reads those that it compares. Blocks repeat what rows say:
where one is damaged, or of another model, all are ignored and written again.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from athena.storage.arrays import sort_unique
from athena.storage.database import Transaction
from athena.storage.passages import PASSAGE_IDS_PER_SCOPE
from athena.storage.sqlite.vector_cache import VectorCache, pack_signs

if TYPE_CHECKING:
    from athena.storage.database import Ids

BLOCK_IDS = 4_096  # passage ids that one block covers
MIN_CHANGED_ROWS = 2_000  # since the blocks were written, after which they are written again
HEADER = struct.Struct("<II")  # rows, checksum of what follows
COLUMNS = (
    ("passages", "i8"),
    ("memories", "i8"),
    ("sessions", "i8"),
    ("word_counts", "f4"),
    ("voices", "u1"),
    ("live", "u1"),
    ("ready", "u1"),
)


class BlockFormat(NamedTuple):
    """What blocks depend on besides the rows: the models whose vectors can be compared, and their size."""

    models: str
    dimensions: int

    @classmethod
    def create(cls, models: Sequence[int], dimensions: int) -> "BlockFormat":
        return cls(",".join(map(str, models)), dimensions)


async def fetch_stamp(tx: Transaction, scope: int, purges: int, block_format: BlockFormat) -> int:
    """Return the stamp as of which the blocks of a scope are valid; 0 where there are none of this format."""
    rows = await tx.fetch(
        "SELECT DISTINCT purges, models, dimensions FROM vector_blocks WHERE scope = :scope", scope=scope
    )
    if rows != [(purges, *block_format)]:
        return 0
    (stamp,) = await tx.fetch_required("SELECT max(stamp) FROM vector_blocks WHERE scope = :scope", scope=scope)
    return int(stamp)


async def read_cache(tx: Transaction, scope: int, stamp: int, purges: int, dimensions: int) -> VectorCache | None:
    """Build the vector cache of a scope from its blocks; None where one is damaged."""
    values = await tx.fetch(
        "SELECT number, length(data) FROM vector_blocks WHERE scope = :scope ORDER BY number", scope=scope
    )
    row_bytes = _get_row_bytes(dimensions)
    cache = VectorCache.with_rows(
        scope, dimensions, purges, stamp, sum((size - HEADER.size) // row_bytes for _, size in values)
    )
    start = 0
    for number, _ in values:  # one at a time: their memory is used again, which is faster than fresh memory
        (data,) = await tx.fetch_required(
            "SELECT CAST(data AS BLOB) FROM vector_blocks WHERE scope = :scope AND number = :number",
            scope=scope,
            number=number,
        )
        block = unpack_block(data, dimensions)
        if block is None or start + len(block["passages"]) > cache.rows:
            return None
        cache.fill_rows(start, block)
        start += len(block["passages"])
    if start != cache.rows:
        return None
    cache.refresh_views()
    return cache


def _get_row_bytes(dimensions: int) -> int:
    import numpy as np  # slow to load

    return sum(np.dtype(kind).itemsize for _, kind in COLUMNS) + 8 * ((dimensions + 63) // 64)


def unpack_block(data: bytes, dimensions: int) -> dict[str, "Ids"] | None:
    """Return the columns of a block, and its signs; None where it is damaged."""
    import numpy as np  # slow to load

    if len(data) < HEADER.size:
        return None
    count, checksum = HEADER.unpack_from(data)
    sign_words = (dimensions + 63) // 64
    body = memoryview(data)[HEADER.size :]
    if len(body) != count * _get_row_bytes(dimensions) or crc32(body) != checksum:
        return None
    columns, start = {}, 0
    for name, kind in COLUMNS:
        columns[name] = np.frombuffer(body, f"<{kind}", count, start)
        start += columns[name].nbytes
    columns["signs"] = np.frombuffer(body, "<u8", count * sign_words, start).reshape(sign_words, count)
    return columns


def pack_block(cache: VectorCache, rows: slice) -> bytes:
    """Return the block of some adjacent rows of a cache."""
    parts = [getattr(cache, name)[rows].astype(f"<{kind}").tobytes() for name, kind in COLUMNS]
    parts.append(cache.signs[:, rows].astype("<u8").tobytes())
    body = b"".join(parts)
    return HEADER.pack(rows.stop - rows.start, crc32(body)) + body


def iter_blocks(cache: VectorCache, since: int) -> Iterator[tuple[int, slice]]:
    """Yield number and rows of the blocks of a cache that have changed after a stamp."""
    numbers = (cache.passages - cache.first) // BLOCK_IDS
    for number in sort_unique(numbers[cache.changes > since]).tolist():
        first, last = numbers.searchsorted([number, number + 1]).tolist()
        yield number, slice(first, last)


async def write_blocks(cache: VectorCache, scope: int, block_format: BlockFormat, anew: bool, tx: Transaction) -> None:
    """Write the blocks of a cache that are missing or older than it, or all of them anew."""
    (purges,) = await tx.fetch_required("SELECT value FROM counters WHERE name = 'purges'")
    stamp = 0 if anew else await fetch_stamp(tx, scope, purges, block_format)
    if purges != cache.purges or stamp >= cache.stamp:
        return
    if not stamp:
        await tx.execute("DELETE FROM vector_blocks WHERE scope = :scope", scope=scope)
    await tx.execute_many(
        """INSERT OR REPLACE INTO vector_blocks (scope, number, stamp, purges, models, dimensions, data)
           VALUES (:scope, :number, :stamp, :purges, :models, :dimensions, :data)""",
        (
            {
                "scope": scope,
                "number": number,
                "stamp": cache.stamp,
                "purges": purges,
                "data": pack_block(cache, rows),
                **block_format._asdict(),
            }
            for number, rows in iter_blocks(cache, stamp)
        ),
    )


async def find_problems(tx: Transaction) -> list[str]:
    """Compare the blocks with the passages."""
    problems = []
    keys = await tx.fetch(
        """SELECT b.scope, b.number, b.dimensions, b.models,
                  (SELECT max(o.stamp) FROM vector_blocks o WHERE o.scope = b.scope)
           FROM vector_blocks b WHERE b.purges = (SELECT value FROM counters WHERE name = 'purges')"""
    )
    for scope, number, dimensions, models, stamp in keys:
        (data,) = await tx.fetch_required(
            "SELECT CAST(data AS BLOB) FROM vector_blocks WHERE scope = :scope AND number = :number",
            scope=scope,
            number=number,
        )
        block = unpack_block(data, dimensions)
        if block is None:
            problems.append(f"vector block {number} of scope {scope} is damaged; the next search writes it anew")
        elif not await _agrees_with_rows(tx, scope, number, stamp, dimensions, models, block):
            problems.append(f"vector block {number} of scope {scope} differs from its passages")
    return problems


async def _agrees_with_rows(
    tx: Transaction, scope: int, number: int, stamp: int, dimensions: int, models: str, block: dict[str, "Ids"]
) -> bool:
    """Return whether a block has the same passages as the rows that have not changed after it."""
    import numpy as np  # slow to load

    first = scope * PASSAGE_IDS_PER_SCOPE + number * BLOCK_IDS
    rows = await tx.fetch(
        f"""SELECT id, memory, session, words, voice, live, CASE WHEN live = 1 AND model IN ({models})
                AND length(code) = :dimensions THEN 1 ELSE 0 END, code
            FROM passages WHERE id BETWEEN :first AND :last AND stamp <= :stamp ORDER BY id""",
        first=first,
        last=first + BLOCK_IDS - 1,
        stamp=stamp,
        dimensions=dimensions,
    )
    ids = np.array([row[0] for row in rows], np.int64)
    places = np.searchsorted(block["passages"], ids)
    if len(ids) and (places[-1] >= len(block["passages"]) or (block["passages"][places] != ids).any()):
        return False
    live = np.array([row[5] for row in rows], bool)
    if (block["live"][places] != live).any():
        return False
    for at, (name, _) in enumerate(COLUMNS):  # a cache keeps the other columns of a passage that is removed
        if (block[name][places[live]] != np.array([row[at] for row in rows], np.int64)[live]).any():
            return False
    ready = np.flatnonzero([row[6] for row in rows])
    codes = np.frombuffer(b"".join(rows[i][7] for i in ready), np.int8).reshape(len(ready), dimensions)
    return bool((block["signs"][:, places[ready]] == pack_signs(codes)).all())
