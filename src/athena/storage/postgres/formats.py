"""How numbers, lists and vectors go to the server and come back."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids, Row


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
    return f"[{','.join(map(str, vector.tolist()))}]"


def format_code(code: bytes | None) -> str | None:
    """Write signed bytes as a vector; only directions count, and whole numbers are short."""
    import numpy as np  # slow to load

    return None if code is None else f"[{','.join(map(str, np.frombuffer(code, np.int8).tolist()))}]"


def parse_vector(data: bytes) -> "Floats":
    """Parse a vector in the server's binary format: four bytes of header, then half floats."""
    import numpy as np  # slow to load

    return np.frombuffer(data, ">f2", offset=4).astype(np.float32)


def unpack_cosines(row: "Row") -> "tuple[Ids, Floats]":
    """Return memories and cosines from packed columns of memories and distances."""
    return unpack_numbers(row[0]), 1 - unpack_numbers(row[1], ">f8").astype("f4")
