"""Results of a benchmark, as plain values for the report."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """A row of the first table: a promise and its measurement."""

    what: str
    bar: str
    measured: str
    met: bool | None  # None: nothing was promised, or it could not be measured


class Table(NamedTuple):
    head: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]


class Result(NamedTuple):
    title: str
    definition: str  # how it was measured
    rows: list[Row]
    details: Sequence[str | Table]
    images: Mapping[str, str] = {}  # SVG by file name
