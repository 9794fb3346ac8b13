"""Many numbers in one value: as rows or as a list they would cost ten times as much."""

from collections.abc import Iterable
from typing import Any


def pack_column(column: str, kind: str = "int8") -> str:
    """Gather a column in one value."""
    return f"string_agg({kind}send({column}), '')"


def unpack_numbers(value: bytes | None, kind: str = ">i8") -> Any:
    import numpy as np

    made = np.frombuffer(value or b"", kind)
    return made.astype(made.dtype.newbyteorder("="))


def to_array_literal(numbers: Iterable[int]) -> str:
    """Write numbers as an array; the driver would look at each number of a list three times."""
    return f"{{{','.join(map(str, numbers))}}}"
