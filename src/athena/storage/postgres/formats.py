"""How numbers, lists and vectors go to the server and come back."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids, Row

MAX_LEXEME_POSITIONS = 255  # PostgreSQL's own limit
# The text adds a tenth of the sum of 1/k^2, with k up to how often it has the stem, and the label adds 1: one number
# returns both. `ts_rank_cd` would return the count itself, and takes three times as long.
TERM_RANK_SQL = "ts_rank('{{0.1, 0, 0, 1}}', lexemes, :query{i}::tsquery)"
RANK_DIVISOR = 1.64493406685  # of `ts_rank`: the limit of that sum


def pack_column(column: str, sql_type: str = "int8") -> str:
    """Write an aggregate that returns a column as one binary value; `unpack_numbers` reads it."""
    return f"string_agg({sql_type}send({column}), '')"


def unpack_numbers(data: bytes | None, dtype: str = ">i8") -> Any:
    import numpy as np  # slow to load

    numbers = np.frombuffer(data or b"", dtype)
    return numbers.astype(numbers.dtype.newbyteorder("="))


def to_array_literal(numbers: Iterable[int]) -> str:
    """Write numbers as an array; the driver would inspect each number of a list three times."""
    return f"{{{','.join(map(str, numbers))}}}"


def format_vector(vector: "Floats") -> str:
    """Write a vector as SQL does."""
    return _format_floats(vector.astype("f4").tobytes())


@lru_cache(maxsize=64)  # a search needs that of its question several times
def _format_floats(vector: bytes) -> str:
    numbers = tuple(memoryview(vector).cast("f"))
    return f"[{','.join(['%.6g'] * len(numbers)) % numbers}]"  # a half float has less than four digits


def format_code(code: bytes | None) -> str | None:
    """Write signed bytes as a vector; only directions count, and whole numbers are short."""
    return None if code is None else f"[{','.join(map(str, memoryview(code).cast('b')))}]"


def parse_vector(data: bytes) -> "Floats":
    """Parse a vector in the server's binary format: four bytes of header, then half floats."""
    import numpy as np  # slow to load

    return np.frombuffer(data, ">f2", offset=4).astype(np.float32)


def unpack_cosines(row: "Row") -> "tuple[Ids, Floats]":
    """Return memories and cosines from packed columns of memories and distances."""
    return unpack_numbers(row[0]), 1 - unpack_numbers(row[1], ">f8").astype("f4")


def split_ranks(ranks: "Floats", scopes: int) -> "tuple[Ids, NDArray[Any]]":
    """Return how often the text has a term, and whether the label has it, from TERM_RANK_SQL with a term per scope."""
    import numpy as np  # slow to load

    steps = 1 / np.arange(1, MAX_LEXEME_POSITIONS + 1) ** 2
    scaled = ranks.astype(np.float64) * (RANK_DIVISOR * scopes)
    label = scaled > 0.5  # the text adds 0.16 at most
    return np.searchsorted(np.cumsum(steps) - steps / 2, (scaled - label) * 10), label
