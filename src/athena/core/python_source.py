"""Parse Python that others wrote: bounded work, one source at a time."""

import ast
import re
import threading

from athena.core.text import MAX_MARKS_IN_A_ROW, has_long_marks

MAX_DOTTED_PARTS = 1_000
# Everything but ASCII may be part of a name. Atomic groups: no part is read twice.
_IMPORT_PATTERN = re.compile(r"\b(?:import|from)\b(?>(?:[^\n\r;#\\'\"(]|\\[\n\r]+)*)")
_DOTTED_PATTERN = re.compile(r"(?<![\w\x80-\U0010ffff])(?:(?>[\w\x80-\U0010ffff]+)(?>[\s\\]*)\.(?>[\s\\]*))+")
_parse_lock = threading.Lock()


class CostlySource(ValueError):
    """A source that takes the parser too long."""


def parse_python(text: str) -> ast.Module:
    """Parse a source; raise SyntaxError, or ValueError, RecursionError or MemoryError if Python cannot read it."""
    _check_parse_cost(text)
    with _parse_lock:  # CPython 3.11 counts the depth of all threads together, and fails when two parse at once
        try:
            return ast.parse(text)
        except SystemError as error:
            raise ValueError(str(error)) from None


def _check_parse_cost(text: str) -> None:
    """Refuse what Python's parser reads in time that grows with the square of its length; it holds the GIL."""
    if text.count(".") > MAX_DOTTED_PARTS and any(
        dotted[0].count(".") > MAX_DOTTED_PARTS
        for statement in _IMPORT_PATTERN.finditer(text)
        for dotted in _DOTTED_PATTERN.finditer(statement[0])
    ):
        raise CostlySource(f"a dotted name has more than {MAX_DOTTED_PARTS:,} parts")
    if has_long_marks(text):
        raise CostlySource(f"more than {MAX_MARKS_IN_A_ROW} combining marks follow one another")
