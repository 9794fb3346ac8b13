"""Tools by the words they share with a request: BM25 over their fields, everyday words and phrases for what they do."""

import math
from functools import cache, lru_cache
from typing import NamedTuple

from athena.core.words import stem_words
from athena.discovery import lexicon
from athena.discovery.entry import Entry, split_name
from athena.discovery.query import classify_actions, classify_entry_actions, classify_intent, extract_names, weigh_stems

# What a word counts in the name, category, summary, details, parameters, their help, the category's purpose, among the
# everyday words, and in what people say.
FIELD_WEIGHTS = (2.5, 2.0, 1.5, 0.5, 0.4, 0.3, 0.5, 0.9, 0.6)
BM25_K1, BM25_B = 0.8, 0.3  # BM25's k1 and b
INTENT_WEIGHT = 0.2  # what it counts that a request asks and the tool only looks, or that both do something
ACTION_WEIGHT = 0.15  # and that both do the same sort of thing


class EntryStems(NamedTuple):
    """One entry as it is compared: the stems of each field, and the everyday words for it."""

    fields: tuple[tuple[str, ...], ...]
    everyday_words: str


@lru_cache(maxsize=4_096)
def analyse_entry(entry: Entry) -> EntryStems:
    names = f"{split_name(entry.name)} {split_name(entry.category)}"
    also = ", ".join(find_everyday_words(frozenset(stem_words(f"{names} {entry.summary}"))))
    fields = (
        split_name(entry.name),
        split_name(entry.category),
        entry.summary,
        entry.details,
        " ".join(split_name(name) for name, _ in entry.parameters),
        " ".join(about for _, about in entry.parameters),
        entry.category_summary,
        also,
        " ".join(lexicon.find_phrases(entry)),
    )
    return EntryStems(tuple(tuple(stem_words(field)) for field in fields), also)


def find_everyday_words(having: frozenset[str]) -> list[str]:
    """Return what people say for a tool whose name and summary have these stems."""
    return [words for terms, words in _load_thesaurus() if any(term <= having for term in terms)]


@cache
def _load_thesaurus() -> list[tuple[list[frozenset[str]], str]]:
    made = []
    for line in lexicon.THESAURUS_LINES.strip().splitlines():
        terms, _, words = line.partition("=")
        if words:
            made.append(([frozenset(stem_words(term)) for term in terms.split(",")], words.strip()))
    return made


class LexicalIndex:
    """The postings of some entries."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        every = [analyse_entry(entry) for entry in entries]
        self._count = len(entries)
        self._names = [(entry.name.lower(), entry.path.lower()) for entry in entries]
        self._read_only = [entry.is_read_only for entry in entries]
        self._actions = [classify_entry_actions(entry) for entry in entries]
        self._postings: dict[str, dict[int, float]] = {}
        for place, weight in enumerate(FIELD_WEIGHTS):
            mean = sum(len(one.fields[place]) for one in every) / max(1, len(every)) or 1.0
            for number, one in enumerate(every):
                counts = weight / (1 - BM25_B + BM25_B * len(one.fields[place]) / mean)
                for stem in one.fields[place]:
                    holding = self._postings.setdefault(stem, {})
                    holding[number] = holding.get(number, 0.0) + counts

    def compute_scores(self, request: str) -> list[float]:
        """Return how well each entry fits a request: 1 for the best, 0 for those that share nothing with it."""
        found = [0.0] * self._count
        for stem, telling in weigh_stems(request).items():
            holding = self._postings.get(stem, {})
            rare = math.log(1 + (self._count - len(holding) + 0.5) / (len(holding) + 0.5))
            weight = telling * rare * (BM25_K1 + 1)
            for number, counts in holding.items():
                found[number] += weight * counts / (counts + BM25_K1)
        best = max(found, default=0.0) or 1.0
        return [score / best for score in found]

    def match_names(self, request: str) -> list[float]:
        """Return 1 for those that the request calls by their name: as its first word, or as Python writes it."""
        said = extract_names(request)
        return [float(name in said or path in said) for name, path in self._names]

    def score_intents(self, request: str) -> list[float]:
        """Return how well what each entry does, look or change, fits what is wanted."""
        look = classify_intent(request)
        acts = classify_actions(request) if look < 1 else set()
        return [
            INTENT_WEIGHT * (look if looks else -look) + (ACTION_WEIGHT if acts & able else 0.0)
            for looks, able in zip(self._read_only, self._actions, strict=True)
        ]
