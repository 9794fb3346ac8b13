"""Ranking tools for a request: by words, by meaning once that is there, and a little by use."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from athena.core.threads import aside
from athena.discovery.entry import Entry
from athena.discovery.lexical import Words
from athena.discovery.nearness import Texts, nearness, texts_of
from athena.discovery.query import asked
from athena.discovery.vectors import Encoder, Meaning

NAMED = 0.6  # what it counts to be called by name
USE = 0.06  # what it counts to be used most: it decides between equals
NEAR = 0.5  # what a tool gets for its likeness that shares no word with the request
REMEMBERED = 8  # sets of tools, each with its index


class _Index(NamedTuple):
    words: Words
    texts: Texts


class Finder:
    """Rank any set of tools. The first answers are by words alone; the model reads the tools meanwhile."""

    def __init__(self, encoder: Encoder, file: str | None = None) -> None:
        self.meaning = Meaning(encoder, file)
        self._indexes: OrderedDict[tuple[Entry, ...], _Index] = OrderedDict()

    async def rank(
        self,
        entries: tuple[Entry, ...],
        request: str,
        uses: Mapping[str, int] = {},  # never changed
        *,
        hurry: bool = False,
    ) -> list[Entry]:
        """Return the entries that fit a request, the best first; in a `hurry` by words alone."""
        if not asked(request):
            return []
        index = await aside(self._index, entries)
        words = index.words.scores(request)
        near = [0.0] * len(entries)
        if not hurry:
            self.meaning.prepare(index.texts.keyed)
            if (likeness := await self.meaning.likeness(request, index.texts.keyed)) is not None:
                near = nearness(likeness, index.texts).tolist()
        most = math.log1p(max(uses.values(), default=0)) or 1.0
        scored = []
        named = index.words.named(request)
        for place, (entry, intent) in enumerate(zip(entries, index.words.intents(request), strict=True)):
            if words[place] or near[place] > NEAR:
                used = math.log1p(uses.get(entry.key, 0)) / most
                scored.append((words[place] + NAMED * named[place] + intent + near[place] + USE * used, entry))
        return [entry for _, entry in sorted(scored, key=lambda pair: -pair[0])]

    def prepare(self, entries: tuple[Entry, ...]) -> None:
        """Make ready now rather than at the first search."""
        self.meaning.prepare(self._index(entries).texts.keyed, 0.0)

    def stop(self) -> None:
        self.meaning.stop()

    def _index(self, entries: tuple[Entry, ...]) -> _Index:
        if (index := self._indexes.get(entries)) is None:
            index = self._indexes[entries] = self._made(entries)
            while len(self._indexes) > REMEMBERED:
                self._indexes.popitem(last=False)
        return index

    def _made(self, entries: tuple[Entry, ...]) -> _Index:
        return _Index(Words(entries), texts_of(entries, self.meaning))
