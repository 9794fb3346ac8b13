"""Split a turn of a conversation into fragments: the smallest parts that may be a statement or a part of one.

Sentences end at a full stop, a line break, a semicolon or a dash, in capitals or not. Within a sentence a fragment
ends at a comma, a bracket or a word such as "and", "but", "because". The classifier decides which fragments belong
together and which are worth keeping.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from athena.memory.sessions import orders

MAX_FRAGMENTS = 400  # of a turn; the rest of a longer one is pasted text
CODE_FENCE_PATTERN = re.compile(
    r"^[ \t]*(```|~~~).*?^[ \t]*\1[^\n]*$|^[ \t]*(```|~~~)[\s\S]*\Z", re.MULTILINE | re.DOTALL
)
BULLET_PATTERN = re.compile(r"(?<![ \t])[ \t]*(?:[-*+•]|\d{1,2}[.)]|#{1,6})[ \t]+")
ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "incl.", "approx.", "no.", "mr.", "ms.", "dr.")
_NOT_ABBREVIATED = "".join(rf"(?<!\b{re.escape(word)})" for word in ABBREVIATIONS)
_JOINING_WORDS = """
    and but so because cos cuz cause since btw also oh plus though tho except which then otherwise as if when unless
    until instead please ok okay not that who where while or
"""
BREAK_PATTERN = re.compile(
    rf"(?P<stop>{_NOT_ABBREVIATED}(?<=[.!?…])[\"')\]]*(?:\s+|$)|(?<=;)\s+|(?<!\s)\s+[-–—]+\s+|(?<!\s)\s*\n\s*)"
    r"|(?P<mark>(?<=[,:])\s+(?=\S)|(?<=\w)\s+(?=\()|(?<=\))\s+)"
    rf"|(?P<word>(?<!\s)(?<!\broot)\s+(?=(?:{'|'.join(_JOINING_WORDS.split())})\b))",  # once for each run of blanks
    re.IGNORECASE,
)
WORD_CHAR_PATTERN = re.compile(r"\w")


QUOTED_PATTERN = re.compile(r"\"[^\"]{12,4000}\"|“[^“”]{12,4000}”|„[^„“”]{12,4000}[“”]|«[^«»]{12,4000}»")
MIN_QUOTE_WORDS = 4  # of a quotation that is more than a name


class Fragment(NamedTuple):
    """A part of a turn, by its position in the text."""

    start: int
    end: int
    sentence: int  # number of its sentence in the turn
    before: str  # what separates it from the fragment before
    is_block: bool = False  # code


def split_fragments(text: str) -> list[Fragment]:
    """Return the fragments of a turn, in order."""
    fragments: list[Fragment] = []
    sentence, position = 0, 0
    for block in CODE_FENCE_PATTERN.finditer(text):
        sentence = _split_prose(text, position, block.start(), sentence, fragments)
        _add_fragment(text, block.start(), block.end(), sentence + 1, "block", fragments, is_block=True)
        sentence, position = sentence + 2, block.end()
    _split_prose(text, position, len(text), sentence, fragments)
    return fragments[:MAX_FRAGMENTS]


def _split_prose(text: str, start: int, end: int, sentence: int, fragments: list[Fragment]) -> int:
    """Add the fragments of a part without code; return the number of the next sentence."""
    position, before = start, "start"
    if bullet := BULLET_PATTERN.match(text, start, end):
        position, before = bullet.end(), "bullet"
    for match in BREAK_PATTERN.finditer(text, start, end):
        if match.start() < position:
            continue
        kind = match.lastgroup
        if kind == "word" and len(text[position : match.start()].split()) < 2:
            continue
        _add_fragment(text, position, match.start(), sentence, before, fragments)
        position = match.end()
        if kind == "stop":
            sentence += 1
            before = "line" if "\n" in match[0] else "stop"
            if before == "line" and (bullet := BULLET_PATTERN.match(text, position, end)):
                position, before = bullet.end(), "bullet"
            if text[position : position + 1] == ">":
                before = "quoted"
        else:
            mark = text[match.start() - 1]
            before = "word" if kind == "word" else mark if mark in ",:" else "paren"
    _add_fragment(text, position, end, sentence, before, fragments)
    return sentence + 1


def _add_fragment(
    text: str, start: int, end: int, sentence: int, before: str, fragments: list[Fragment], *, is_block: bool = False
) -> None:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if WORD_CHAR_PATTERN.search(text, start, end):
        fragments.append(Fragment(start, end, sentence, before, is_block))


def find_quotations(text: str) -> list[tuple[int, int]]:
    """Return where a turn has quotations that are more than a name."""
    return [match.span() for match in QUOTED_PATTERN.finditer(text) if len(match[0].split()) >= MIN_QUOTE_WORDS]


def find_hostile_sentences(
    text: str, fragments: Sequence[Fragment], retractions: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the sentences that speak to a model against its user: no part of them is a person's statement.

    "Forget what I said about X" sounds like that as well: a sentence with a retraction is none.
    """
    for _, own in groupby(fragments, key=lambda fragment: fragment.sentence):
        first, *rest = own
        start, end = first.start, (rest or [first])[-1].end
        if not any(start <= place < end for place in retractions) and orders.has_injection(text[start:end]):
            yield start, end


def is_quoted(text: str, fragment: Fragment, quotes: Sequence[tuple[int, int]]) -> bool:
    line = text[text.rfind("\n", 0, fragment.start) + 1 : fragment.end]
    if fragment.is_block or fragment.before == "quoted" or line.lstrip().startswith(">"):
        return True
    return any(start <= fragment.start and fragment.end <= end for start, end in quotes)
