"""Cutting a text into passages: pieces short enough to be one thought each."""

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 90  # words
MOST = 2_000  # passages of one text, about: a book is cut more coarsely
SENTENCE = re.compile(r"[^\n]*?(?:[.!?;](?=\s)|\n|\Z)")
# Scripts without spaces between words count by characters.
UNSPACED = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")


class Passage(NamedTuple):
    start: int
    length: int
    words: int

    def of(self, text: str) -> str:
        return text[self.start : self.start + self.length]


def split(text: str) -> list[Passage]:
    """Pack sentences into passages of at most 90 words, more in a whole book; longer sentences are cut."""
    passages: list[Passage] = []
    start = end = words = 0
    longest = max(LONGEST, text.count(" ") // MOST)
    for first, last, count in _pieces(text, longest):
        if words and words + count > longest:
            passages.append(Passage(start, end - start, words))
            words = 0
        if not words:
            start = first
        end, words = last, words + count
    passages.append(Passage(start, end - start, words))
    return passages


def _pieces(text: str, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield sentences as (start, end, words), none longer than a passage, and no empty ones."""
    at = 0
    while at < len(text):
        match = SENTENCE.match(text, at)
        stop = match.end() if match and match.end() > at else len(text)
        found = list(WORD.finditer(text, at, stop))
        for i in range(0, len(found), longest):
            piece = found[i : i + longest]
            yield piece[0].start(), piece[-1].end(), len(piece)
        at = stop
