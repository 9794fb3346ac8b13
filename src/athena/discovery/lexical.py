"""Score tools by the words that they share with a request: BM25 over their fields, everyday words and phrases."""

import math
from functools import cache, lru_cache
from typing import NamedTuple

from athena.core.words import stem_words
from athena.discovery import lexicon
from athena.discovery.entry import ToolEntry, split_name
from athena.discovery.query import (
    classify_actions,
    classify_entry_actions,
    classify_intent,
    extract_names,
    locate_words,
    weigh_stems,
)
from athena.programs.values import KeptSkill

# for name, category, summary, details, parameter names, parameter help, category summary, everyday words, phrases
FIELD_WEIGHTS = (2.5, 2.0, 1.5, 0.5, 0.4, 0.3, 0.5, 0.9, 0.6)
BM25_K1, BM25_B = 0.8, 0.3
INTENT_WEIGHT = 0.2  # the request asks to look and the tool only reads, or neither does
ACTION_WEIGHT = 0.15  # the request and the tool name the same sort of action


class EntryStems(NamedTuple):
    """The stems of each field of an entry, and its everyday words."""

    fields: tuple[tuple[str, ...], ...]
    everyday_words: str


def analyse_entry(entry: ToolEntry) -> EntryStems:
    """Stem the fields of an entry, in the order of FIELD_WEIGHTS."""
    return (_analyse_skill if isinstance(entry.target, KeptSkill) else _analyse_operation)(entry)


def _stem_fields(entry: ToolEntry) -> EntryStems:
    names = f"{split_name(entry.name)} {split_name(entry.category)}"
    everyday_words = ", ".join(find_everyday_words(frozenset(stem_words(f"{names} {entry.summary}"))))
    fields = (
        split_name(entry.name),
        split_name(entry.category),
        entry.summary,
        entry.details,
        " ".join(split_name(name) for name, _ in entry.parameters),
        " ".join(text for _, text in entry.parameters),
        entry.category_summary,
        everyday_words,
        " ".join(lexicon.find_phrases(entry)),
    )
    return EntryStems(tuple(tuple(stem_words(field)) for field in fields), everyday_words)


_analyse_operation = lru_cache(maxsize=4_096)(_stem_fields)
_analyse_skill = lru_cache(maxsize=1_024)(_stem_fields)  # programs save these, so there is no end to them


def find_everyday_words(stems: frozenset[str]) -> list[str]:
    """Return everyday words for a tool whose name and summary have these stems."""
    return [words for terms, words in _load_thesaurus() if any(term <= stems for term in terms)]


@cache
def _load_thesaurus() -> list[tuple[list[frozenset[str]], str]]:
    thesaurus = []
    for line in lexicon.THESAURUS_LINES.strip().splitlines():
        terms, _, words = line.partition("=")
        if words:
            thesaurus.append(([frozenset(stem_words(term)) for term in terms.split(",")], words.strip()))
    return thesaurus


class LexicalIndex:
    """The postings lists of a set of entries."""

    def __init__(self, entries: tuple[ToolEntry, ...]) -> None:
        analysed = [analyse_entry(entry) for entry in entries]
        self._count = len(entries)
        self._names = [(entry.name.lower(), entry.path.lower()) for entry in entries]
        self._read_only = [entry.is_read_only for entry in entries]
        self._actions = [classify_entry_actions(entry) for entry in entries]
        self._postings: dict[str, dict[int, float]] = {}
        for i, weight in enumerate(FIELD_WEIGHTS):
            mean_length = sum(len(stems.fields[i]) for stems in analysed) / max(1, len(analysed)) or 1.0
            for index, stems in enumerate(analysed):
                frequency = weight / (1 - BM25_B + BM25_B * len(stems.fields[i]) / mean_length)
                for stem in stems.fields[i]:
                    postings = self._postings.setdefault(stem, {})
                    postings[index] = postings.get(index, 0.0) + frequency

    def compute_scores(self, request: str) -> tuple[list[float], float]:
        """Return the BM25 score of each entry for a request, with the best as 1 and no shared word as 0.

        Also return the share of the request, by the weights of its words, that the best entry has.
        """
        scores = [0.0] * self._count
        total = 0.0
        for stem, stem_weight in weigh_stems(request).items():
            weight = stem_weight * self._compute_idf(stem)
            total += weight
            for index, frequency in self._postings.get(stem, {}).items():
                scores[index] += weight * frequency / (frequency + BM25_K1)
        best = max(scores, default=0.0)
        return ([score / best for score in scores], best / total) if best else (scores, 0.0)

    def weigh_words(self, request: str) -> list[tuple[int, int, float]]:
        """Return the start and the end of each word of a request, and how much it says about the tool."""
        return [(start, end, weight * self._compute_idf(stem)) for start, end, stem, weight in locate_words(request)]

    def _compute_idf(self, stem: str) -> float:
        count = len(self._postings.get(stem, ()))
        return math.log(1 + (self._count - count + 0.5) / (count + 0.5))

    def match_names(self, request: str) -> list[float]:
        """Return 1 for each entry whose name is the request's first word or stands in it as Python writes it."""
        names = extract_names(request)
        return [float(name in names or path in names) for name, path in self._names]

    def score_intents(self, request: str) -> list[float]:
        """Return how well each entry fits the request's intent, to look or to change something, and its action."""
        intent = classify_intent(request)
        wanted = classify_actions(request) if intent < 1 else set()
        return [
            INTENT_WEIGHT * (intent if is_read_only else -intent) + (ACTION_WEIGHT if wanted & actions else 0.0)
            for is_read_only, actions in zip(self._read_only, self._actions, strict=True)
        ]
