"""Tools by the words they share with a request: BM25 over their fields, everyday words and phrases for what they do."""

import math
from functools import cache, lru_cache
from typing import NamedTuple

from athena.discovery import phrases, thesaurus
from athena.discovery.entry import Entry, spaced
from athena.discovery.query import able, actions, asked, names, wanted
from athena.discovery.stems import stems

# What a word counts in the name, category, summary, details, parameters, their help, the category's purpose, among the
# everyday words, and in what people say.
WEIGHTS = (2.5, 2.0, 1.5, 0.5, 0.4, 0.3, 0.5, 0.9, 0.6)
SATURATION, LENGTH_WEIGHT = 0.8, 0.3  # BM25's k1 and b
INTENT = 0.2  # what it counts that a request asks and the tool only looks, or that both do something
ACTION = 0.15  # and that both do the same sort of thing


class Analysed(NamedTuple):
    """One entry as it is compared: the stems of each field, and the everyday words for it."""

    fields: tuple[tuple[str, ...], ...]
    also: str


@lru_cache(maxsize=4_096)
def analysed(entry: Entry) -> Analysed:
    names = f"{spaced(entry.name)} {spaced(entry.category)}"
    also = ", ".join(everyday(frozenset(stems(f"{names} {entry.summary}"))))
    fields = (
        spaced(entry.name),
        spaced(entry.category),
        entry.summary,
        entry.details,
        " ".join(spaced(name) for name, _ in entry.parameters),
        " ".join(about for _, about in entry.parameters),
        entry.about,
        also,
        " ".join(phrases.said(entry)),
    )
    return Analysed(tuple(tuple(stems(field)) for field in fields), also)


def everyday(having: frozenset[str]) -> list[str]:
    """Return what people say for a tool whose name and summary have these stems."""
    return [words for terms, words in _lines() if any(term <= having for term in terms)]


@cache
def _lines() -> list[tuple[list[frozenset[str]], str]]:
    made = []
    for line in thesaurus.LINES.strip().splitlines():
        terms, _, words = line.partition("=")
        if words:
            made.append(([frozenset(stems(term)) for term in terms.split(",")], words.strip()))
    return made


class Words:
    """The postings of some entries."""

    def __init__(self, entries: tuple[Entry, ...]) -> None:
        every = [analysed(entry) for entry in entries]
        self._count = len(entries)
        self._names = [(entry.name.lower(), entry.path.lower()) for entry in entries]
        self._looks = [entry.looks for entry in entries]
        self._able = [able(entry) for entry in entries]
        self._postings: dict[str, dict[int, float]] = {}
        for place, weight in enumerate(WEIGHTS):
            mean = sum(len(one.fields[place]) for one in every) / max(1, len(every)) or 1.0
            for number, one in enumerate(every):
                counts = weight / (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(one.fields[place]) / mean)
                for stem in one.fields[place]:
                    holding = self._postings.setdefault(stem, {})
                    holding[number] = holding.get(number, 0.0) + counts

    def scores(self, request: str) -> list[float]:
        """Return how well each entry fits a request: 1 for the best, 0 for those that share nothing with it."""
        found = [0.0] * self._count
        for stem, telling in asked(request).items():
            holding = self._postings.get(stem, {})
            rare = math.log(1 + (self._count - len(holding) + 0.5) / (len(holding) + 0.5))
            weight = telling * rare * (SATURATION + 1)
            for number, counts in holding.items():
                found[number] += weight * counts / (counts + SATURATION)
        best = max(found, default=0.0) or 1.0
        return [score / best for score in found]

    def named(self, request: str) -> list[float]:
        """Return 1 for those that the request calls by their name: as its first word, or as Python writes it."""
        said = names(request)
        return [float(name in said or path in said) for name, path in self._names]

    def intents(self, request: str) -> list[float]:
        """Return how well what each entry does, look or change, fits what is wanted."""
        look = wanted(request)
        acts = actions(request) if look < 1 else set()
        return [
            INTENT * (look if looks else -look) + (ACTION if acts & able else 0.0)
            for looks, able in zip(self._looks, self._able, strict=True)
        ]
