"""Rank tools for a request: by words, by vectors once these are built, and a little by use."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from athena.core.catalog import Catalog
from athena.core.threads import run_in_thread
from athena.discovery.entry import ToolEntry, list_catalog_entries
from athena.discovery.lexical import LexicalIndex
from athena.discovery.query import weigh_stems
from athena.discovery.vectors import (
    ADAPTER_FILE,
    TOKEN_WEIGHT,
    ToolTexts,
    ToolVectors,
    collect_texts,
    score_similarities,
)
from athena.embedding.embedder import QuestionEncoding
from athena.embedding.encoder import Encoder, adapt_encoder
from athena.programs.values import KeptSkill

NAME_MATCH_WEIGHT = 0.6
USAGE_WEIGHT = 0.06  # small: it only decides between equals
MIN_SIMILARITY_SCORE = 0.125  # for a tool that shares no word with the request
MAX_COMPARED_TOOLS = 32  # token by token
MAX_CACHED_INDEXES, MAX_CACHED_SKILL_CHARS = 8, 4_000_000


class _ToolIndex(NamedTuple):
    lexical: LexicalIndex
    texts: ToolTexts
    skill_chars: int


class ToolFinder:
    """Rank any set of tools. The first answers use words alone, while vectors are built in the background."""

    def __init__(self, encoder: Encoder, file: str | None = None) -> None:
        self.vectors = ToolVectors(adapt_encoder(encoder, ADAPTER_FILE), file)
        self.stays_open = False  # True in a server: its vectors serve later searches, too
        self._indexes: OrderedDict[tuple[ToolEntry, ...], _ToolIndex] = OrderedDict()

    async def rank(
        self,
        entries: tuple[ToolEntry, ...],
        request: str,
        uses: Mapping[str, int] = {},  # never changed
        *,
        words_only: bool = False,
        wait_s: float = 0.0,
    ) -> list[ToolEntry]:
        """Return the entries that fit a request, the best first; with `words_only` without the model.

        `wait_s` is how long to wait for vectors that are not built yet; without it such a search is by words alone.
        `uses` counts calls by the entries' keys.
        """
        if not weigh_stems(request):
            return []
        index = await run_in_thread(self._get_index, entries)
        word_scores, coverage = index.lexical.compute_scores(request)
        comparison = None
        if not words_only:
            if wait_s:
                await self.vectors.wait_until_ready(index.texts.texts_by_key, wait_s)
            comparison = await self.vectors.compare_request(request, index.texts.texts_by_key)
            self.vectors.schedule_build(index.texts.texts_by_key)
        if comparison is None:
            vector_scores, coverage = [0.0] * len(entries), 1.0
        else:
            vector_scores = score_similarities(comparison.similarities, index.texts).tolist()
        name_matches, intents = index.lexical.match_names(request), index.lexical.score_intents(request)
        max_use = math.log1p(max(uses.values(), default=0)) or 1.0
        scored = []
        for i, entry in enumerate(entries):
            if word_scores[i] or vector_scores[i] > MIN_SIMILARITY_SCORE:
                use = math.log1p(uses.get(entry.key, 0)) / max_use
                by_words = word_scores[i] + NAME_MATCH_WEIGHT * name_matches[i] + intents[i] + USAGE_WEIGHT * use
                scored.append(
                    (coverage * by_words + vector_scores[i], i)
                )  # if no tool has the words, similarity decides
        scored.sort(key=lambda pair: -pair[0])
        if comparison is not None:
            scored = self._compare_first(scored, request, comparison.question, index)
        return [entries[i] for _, i in scored]

    def _compare_first(
        self, scored: list[tuple[float, int]], request: str, question: QuestionEncoding, index: _ToolIndex
    ) -> list[tuple[float, int]]:
        """Compare the first tools with a request token by token, and rank these anew."""
        first = scored[:MAX_COMPARED_TOOLS]
        keys = [index.texts.token_keys[i] for _, i in first]
        token_scores = self.vectors.compare_tokens(question, index.lexical.weigh_words(request), keys)
        if token_scores is None:
            return scored
        again = [
            (score + TOKEN_WEIGHT * float(token_score), i)
            for (score, i), token_score in zip(first, token_scores, strict=True)
        ]
        return sorted(again, key=lambda pair: -pair[0]) + scored[MAX_COMPARED_TOOLS:]

    def warm_up(self, entries: tuple[ToolEntry, ...]) -> None:
        """Build the index and the vectors now rather than at the first search."""
        self.vectors.schedule_build(self._get_index(entries).texts.texts_by_key, 0.0)

    def warm_up_catalog(self, catalog: Catalog) -> None:
        """Do the same for all operations of a catalog."""
        self.warm_up(list_catalog_entries(catalog))

    def stop(self) -> None:
        self.vectors.stop()

    def _get_index(self, entries: tuple[ToolEntry, ...]) -> _ToolIndex:
        if (index := self._indexes.get(entries)) is None:
            skills = [entry.target for entry in entries if isinstance(entry.target, KeptSkill)]
            chars = sum(len(skill.description) + len(skill.signature) for skill in skills)
            index = _ToolIndex(LexicalIndex(entries), collect_texts(entries, self.vectors), chars)
            self._indexes[entries] = index
            while len(self._indexes) > 1 and (
                len(self._indexes) > MAX_CACHED_INDEXES
                or sum(each.skill_chars for each in [*self._indexes.values()]) > MAX_CACHED_SKILL_CHARS
            ):
                self._indexes.popitem(last=False)
        return index
