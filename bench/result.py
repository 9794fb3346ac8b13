"""What a benchmark found, as plain values that the report writes down."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One line of the first table: a promise and what was measured."""

    what: str
    bar: str
    measured: str
    met: bool | None  # None: nothing was promised, or it could not be measured


class Table(NamedTuple):
    head: tuple[str, ...]
    lines: Sequence[tuple[str, ...]]


class Result(NamedTuple):
    title: str
    definition: str  # what was done and timed
    rows: list[Row]
    details: Sequence[str | Table]
    images: Mapping[str, str] = {}  # SVG by file name
