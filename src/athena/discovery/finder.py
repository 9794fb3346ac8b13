"""Ranking tools for a request: by words, by meaning once that is there, and a little by use."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from athena.core.threads import run_in_thread
from athena.discovery.entry import Entry
from athena.discovery.lexical import LexicalIndex
from athena.discovery.query import weigh_stems
from athena.discovery.vectors import TextEncoder, ToolTexts, ToolVectors, collect_texts, score_similarities

NAME_MATCH_WEIGHT = 0.6  # what it counts to be called by name
USAGE_WEIGHT = 0.06  # what it counts to be used most: it decides between equals
MIN_SIMILARITY_SCORE = 0.5  # what a tool gets for its likeness that shares no word with the request
MAX_CACHED_INDEXES = 8  # sets of tools, each with its index


class _ToolIndex(NamedTuple):
    lexical: LexicalIndex
    texts: ToolTexts


class ToolFinder:
    """Rank any set of tools. The first answers are by words alone; the model reads the tools meanwhile."""

    def __init__(self, encoder: TextEncoder, file: str | None = None) -> None:
        self.vectors = ToolVectors(encoder, file)
        self._indexes: OrderedDict[tuple[Entry, ...], _ToolIndex] = OrderedDict()

    async def rank(
        self,
        entries: tuple[Entry, ...],
        request: str,
        uses: Mapping[str, int] = {},  # never changed
        *,
        hurry: bool = False,
    ) -> list[Entry]:
        """Return the entries that fit a request, the best first; in a `hurry` by words alone."""
        if not weigh_stems(request):
            return []
        index = await run_in_thread(self._get_index, entries)
        words = index.lexical.compute_scores(request)
        near = [0.0] * len(entries)
        if not hurry:
            self.vectors.schedule_build(index.texts.texts_by_key)
            if (likeness := await self.vectors.compute_similarities(request, index.texts.texts_by_key)) is not None:
                near = score_similarities(likeness, index.texts).tolist()
        most = math.log1p(max(uses.values(), default=0)) or 1.0
        scored = []
        named = index.lexical.match_names(request)
        for place, (entry, intent) in enumerate(zip(entries, index.lexical.score_intents(request), strict=True)):
            if words[place] or near[place] > MIN_SIMILARITY_SCORE:
                used = math.log1p(uses.get(entry.key, 0)) / most
                scored.append(
                    (
                        words[place] + NAME_MATCH_WEIGHT * named[place] + intent + near[place] + USAGE_WEIGHT * used,
                        entry,
                    )
                )
        return [entry for _, entry in sorted(scored, key=lambda pair: -pair[0])]

    def warm_up(self, entries: tuple[Entry, ...]) -> None:
        """Make ready now rather than at the first search."""
        self.vectors.schedule_build(self._get_index(entries).texts.texts_by_key, 0.0)

    def stop(self) -> None:
        self.vectors.stop()

    def _get_index(self, entries: tuple[Entry, ...]) -> _ToolIndex:
        if (index := self._indexes.get(entries)) is None:
            index = self._indexes[entries] = self._create_index(entries)
            while len(self._indexes) > MAX_CACHED_INDEXES:
                self._indexes.popitem(last=False)
        return index

    def _create_index(self, entries: tuple[Entry, ...]) -> _ToolIndex:
        return _ToolIndex(LexicalIndex(entries), collect_texts(entries, self.vectors))
