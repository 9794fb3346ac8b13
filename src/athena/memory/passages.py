"""Cutting a text into passages: pieces short enough to be one thought each."""

import re
from collections.abc import Iterator
from typing import NamedTuple

MAX_PASSAGE_WORDS = 90  # words
MAX_PASSAGES = 2_000  # passages of one text, about: a book is cut more coarsely
SENTENCE_PATTERN = re.compile(r"[^\n]*?(?:[.!?;](?=\s)|\n|\Z)")
# Scripts without spaces between words count by characters.
UNSPACED_RANGES = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
PASSAGE_WORD_PATTERN = re.compile(rf"[{UNSPACED_RANGES}]|[^\s{UNSPACED_RANGES}]+")


class Passage(NamedTuple):
    start: int
    length: int
    words: int

    def extract_from(self, text: str) -> str:
        return text[self.start : self.start + self.length]


def split_passages(text: str) -> list[Passage]:
    """Pack sentences into passages of at most 90 words, more in a whole book; longer sentences are cut."""
    passages: list[Passage] = []
    start = end = words = 0
    longest = max(MAX_PASSAGE_WORDS, text.count(" ") // MAX_PASSAGES)
    for first, last, count in _split_sentences(text, longest):
        if words and words + count > longest:
            passages.append(Passage(start, end - start, words))
            words = 0
        if not words:
            start = first
        end, words = last, words + count
    passages.append(Passage(start, end - start, words))
    return passages


def _split_sentences(text: str, longest: int) -> Iterator[tuple[int, int, int]]:
    """Yield sentences as (start, end, words), none longer than a passage, and no empty ones."""
    at = 0
    while at < len(text):
        match = SENTENCE_PATTERN.match(text, at)
        stop = match.end() if match and match.end() > at else len(text)
        found = list(PASSAGE_WORD_PATTERN.finditer(text, at, stop))
        for i in range(0, len(found), longest):
            piece = found[i : i + longest]
            yield piece[0].start(), piece[-1].end(), len(piece)
        at = stop
