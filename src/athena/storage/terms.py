"""Cutting text into terms, and what a term weighs: the same on every engine, so that they find the same.

Words are cut, folded and stemmed by SQLite's own tokenizer, on PostgreSQL too.
"""

import math
import re
from typing import Any, NamedTuple

import apsw

BM25_K1, BM25_B, LABEL_WEIGHT = 1.2, 0.5, 1.0  # BM25's k1 and b; what a tag or speaker counts
NEIGHBOR_WEIGHTS = (0.4, 0.2, 0.1)  # what a term counts one, two and three passages away in the same session
STOP_WORD_WEIGHT = 0.7  # what a stop word weighs where tokens are compared
MAX_QUERY_TERMS = 64  # of one question

STOP_WORDS = frozenset(
    """a about above after again against all also am an and any are as at be because been before being below
    between both but by can could d did do does doing done down during each few for from further had has have
    having he her here hers him his how i if in into is it its just ll m may me might more most must my no nor
    not of off on once only or other our ours out over own re s same shall she should so some such t than that
    the their theirs them then there these they this those through to too under until up us ve very was we were
    what when where which while who whom whose why will with would you your yours""".split()  # noqa: SIM905  # readable as a text
)
# Scripts that put no space between words: each character becomes a word of its own.
UNSPACED_CHAR_PATTERN = re.compile(
    "[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)


def add_word_spaces(text: str) -> str:
    """Put spaces around the characters of scripts that have none."""
    return text if text.isascii() else UNSPACED_CHAR_PATTERN.sub(r" \g<0> ", text)


class Term(NamedTuple):
    word: str
    stem: str
    passages: int | None = None  # how many hold it, where that was looked up


def create_tokenizer(connection: apsw.Connection) -> Any:
    return connection.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])


def stem_text(tokenizer: Any, text: str) -> list[str]:
    """Return the stems of a text that is to be found by them, in their order."""
    found: list[str] = tokenizer(
        add_word_spaces(text).encode(),
        apsw.FTS5_TOKENIZE_DOCUMENT,
        None,
        include_offsets=False,
        include_colocated=False,
    )
    return found


def parse_query_terms(tokenizer: Any, question: str) -> list[Term]:
    """Cut a question into distinct stems, without stop words where anything else is left."""
    raw = add_word_spaces(question).encode()
    found: dict[str, Term] = {}
    for start, end, stem in tokenizer(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False):
        found.setdefault(stem, Term(raw[start:end].decode(), stem))
    telling = [term for term in found.values() if term.word.casefold() not in STOP_WORDS]
    return (telling or list(found.values()))[:MAX_QUERY_TERMS]


def idf(holding: int, passages: int) -> float:
    """Return what a term weighs that so many passages hold."""
    return math.log(1 + (passages - holding + 0.5) / (holding + 0.5))


def saturate_frequency(frequency: Any) -> Any:
    """Return what occurrences count: each further one less."""
    return (BM25_K1 + 1) * frequency / (frequency + BM25_K1)


def weigh_query_words(
    tokenizer: Any, question: str, known: dict[str, float], live: int
) -> list[tuple[int, int, float]]:
    """Return where each word of a question stands, and what it weighs; one found nowhere weighs most."""
    raw = question.encode()
    spans = []
    for start, end, stem in tokenizer(raw, apsw.FTS5_TOKENIZE_QUERY, None, include_colocated=False):
        word = raw[start:end].decode()
        rare = STOP_WORD_WEIGHT if word.casefold() in STOP_WORDS else math.log(2 * live + 2)
        first = len(raw[:start].decode())
        spans.append((first, first + len(word), known.get(stem, rare)))
    return spans
