"""Find personal values whose kind stands above them: columns of CSV, TSV, Markdown and SQL."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from athena.core.redaction.numbers import NUMBER_FINDERS
from athena.core.redaction.personal_values import PersonalMatch, Zones
from athena.core.redaction.tables import (
    DELIMITERS,
    HEAD_PATTERN,
    MAX_CELLS,
    MAX_LINE_CHARS,
    iter_inserts,
    iter_rows,
    split_cells,
)
from athena.core.redaction.values import compile_pattern
from athena.core.redaction.zones import find_zones
from athena.core.threads import check_stopped

MAX_CELL_CHARS = 100
# Words of heads of columns; whether they tell what a value is, the finders decide.
_STEMS_TEXT = """phone tel mobil cell handy fax celular whatsapp birth dob geb naissance nacim nasc geboort ssn social
sin bsn pesel steuer tax tfn nhs cpf aadhaar cpr fodsels personnummer rijksregister niss idnr identity kimlik"""
_STEMS = tuple(_STEMS_TEXT.split())
_OTHER_STEMS = ("móvil", "fødsels", "电话", "手机", "電話", "телефон")
_HEAD_END_PATTERN = r"[^\t|,;\n]{0,40}[\t|,;\r\n]"


def find_in_columns(text: str, lower: str, zones: Zones) -> Iterator[PersonalMatch]:
    """Find values of columns; `lower` is the text in lower case."""
    if not any(_is_cell(text, start, end) for start, end in zones):
        return
    done = 0
    for at in sorted(_find_heads(lower)):
        check_stopped()
        if at < done:
            continue
        start = text.rfind("\n", max(0, at - MAX_LINE_CHARS), at) + 1
        end = text.find("\n", at, at + MAX_LINE_CHARS)
        if end < 0 or at - start > MAX_LINE_CHARS:
            continue
        done = end
        delimiter = next((char for char in DELIMITERS if char in text[start:end]), None)
        if delimiter is None:
            continue
        heads = [text[slice(*cell)] for cell in split_cells(text, start, end, delimiter)]
        if 1 < len(heads) <= MAX_CELLS and all(_is_head(head) for head in heads):
            rows = list(iter_rows(text, end + 1, delimiter, len(heads)))
            done = rows[-1][1] if rows else end + 1
            yield from _find_in_rows(text, heads, (cells for cells, _ in rows))
    for heads, cells_of_rows in iter_inserts(text, lower):
        yield from _find_in_rows(text, heads, cells_of_rows)


def _is_cell(text: str, start: int, end: int) -> bool:
    """Return whether a long number stands beside a delimiter."""
    return (
        text[start - 1 : start] in {*DELIMITERS, '"', "'"}
        or text[end : end + 1] in {*DELIMITERS, '"', "'"}
        or "\t" in text[start:end]
    )


def _find_heads(lower: str) -> Iterator[int]:
    """Find the words of heads that end at a delimiter; looking for their stems is much quicker than one pattern."""
    head_end = compile_pattern(_HEAD_END_PATTERN)
    for stem in _STEMS if lower.isascii() else _STEMS + _OTHER_STEMS:
        at = lower.find(stem)
        while at >= 0:
            if head_end.match(lower, at + len(stem)):
                yield at
            at = lower.find(stem, at + len(stem))


def _is_head(head: str) -> bool:
    is_short = not head or compile_pattern(HEAD_PATTERN, re.U).fullmatch(head) is not None
    return is_short and len(head.split()) <= 4


def _find_in_rows(text: str, heads: list[str], rows: Iterable[list[tuple[int, int]]]) -> Iterator[PersonalMatch]:
    """Find values in the rows of a table: each cell is searched with its head before it."""
    labels = {
        column: re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", head)
        for column, head in enumerate(heads)
        if any(stem in head.lower() for stem in _STEMS + _OTHER_STEMS)
    }
    pieces: list[str] = []
    starts, origins, size = [], [], 0
    for cells in rows if labels else ():
        for column, label in labels.items():
            first, last = cells[column]
            if 0 < last - first <= MAX_CELL_CHARS:
                pieces.append(f"{label}: {text[first:last]}\n")
                starts.append(size + len(label) + 2)
                origins.append(first)
                size += len(pieces[-1])
    labelled = "".join(pieces)
    lower, zones = labelled.lower(), find_zones(labelled)
    for find in NUMBER_FINDERS if pieces else ():
        for match in find(labelled, lower, zones):
            piece = bisect_right(starts, match.start) - 1
            if piece >= 0 and match.end <= starts[piece] + len(pieces[piece]):
                shift = origins[piece] - starts[piece]
                yield PersonalMatch(match.kind, match.start + shift, match.end + shift)
