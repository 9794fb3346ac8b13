"""Split text into stemmed terms and weigh them: the same code for both engines, so that they find the same.

The tokenizer is FTS5's own (porter on unicode61), on PostgreSQL too: SQLite's full-text index is built with it, so
any other stemmer would miss rows of the index.
"""

import math
import re
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from athena.core.words import STOP_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

BM25_K1, BM25_B = 1.2, 0.5
LABEL_WEIGHT = 1.0  # occurrences that a term in the label counts as
NEIGHBOR_WEIGHTS = (0.4, 0.2, 0.1)  # of a term one, two and three passages away in the same session
STOP_WORD_WEIGHT = 0.7  # where tokens are compared
MAX_QUERY_TERMS = 64
TOKENIZER_ARGUMENTS = ("unicode61", "remove_diacritics", "2")

# Scripts that put no space between words: each character becomes a word of its own.
UNSPACED_CHAR_PATTERN = re.compile(
    "[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


class Term(NamedTuple):
    word: str  # as the query spells it
    stem: str
    passages: int | None = None  # how many passages hold it, where that was looked up


class _ThreadTokenizer(threading.local):
    """One tokenizer for each thread: a connection of apsw serves one thread at a time."""

    def __init__(self) -> None:
        # Any: the return type depends on the flags.
        self.tokenize: Any = apsw.Connection(":memory:").fts5_tokenizer("porter", list(TOKENIZER_ARGUMENTS))


_thread = _ThreadTokenizer()


def add_word_spaces(text: str) -> str:
    """Put spaces around the characters of scripts that write none between words."""
    return text if text.isascii() else UNSPACED_CHAR_PATTERN.sub(r" \g<0> ", text)


def stem_text(text: str) -> list[str]:
    """Return the stems of a text to be indexed, in order and with repeats."""
    stems: list[str] = _thread.tokenize(
        add_word_spaces(text).encode(),
        apsw.FTS5_TOKENIZE_DOCUMENT,
        None,
        include_offsets=False,
        include_colocated=False,
    )
    return stems


def parse_query_terms(question: str) -> list[Term]:
    """Split a query into distinct terms, without stop words unless it has nothing else."""
    raw = add_word_spaces(question).encode()
    terms: dict[str, Term] = {}
    for start, end, stem in _thread.tokenize(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False):
        terms.setdefault(stem, Term(raw[start:end].decode(), stem))
    content_terms = [term for term in terms.values() if term.word.casefold() not in STOP_WORDS]
    return (content_terms or list(terms.values()))[:MAX_QUERY_TERMS]


def idf(holding: int, passages: int) -> float:
    """Return the weight of a term that `holding` of all passages hold."""
    return math.log(1 + (passages - holding + 0.5) / (holding + 0.5))


def saturate_frequency(frequency: "NDArray[Any]") -> "NDArray[Any]":
    """Return what occurrences count by BM25: each further one less."""
    counts: NDArray[Any] = (BM25_K1 + 1) * frequency / (frequency + BM25_K1)
    return counts


def weigh_query_words(question: str, weights: dict[str, float], live: int) -> list[tuple[int, int, float]]:
    """Return start, end and weight of each word of a query; a stem without a weight occurs nowhere and weighs most."""
    raw = question.encode()
    spans = []
    for start, end, stem in _thread.tokenize(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False):
        word = raw[start:end].decode()
        unknown = STOP_WORD_WEIGHT if word.casefold() in STOP_WORDS else math.log(2 * live + 2)
        first = len(raw[:start].decode())
        spans.append((first, first + len(word), weights.get(stem, unknown)))
    return spans
