"""Shorten hits for a model: a short text stays whole, of a long one the passage stays that answers the question."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from athena.core import tokens
from athena.core.values import Page, Scope
from athena.core.words import STOP_WORDS, stem_word, tokenize
from athena.embedding.embedder import SIGN_BITS, QuestionEncoding
from athena.memory.store import Store
from athena.memory.values import Hit
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.passages import PassageSigns, list_signs_between

MAX_ANSWER_TOKENS = 385  # of up to five hits as lines of text, hash, score, day and tags included
TOKENS_PER_HIT = MAX_ANSWER_TOKENS // 5  # of each further hit
ESTIMATE_SHARE = 0.94  # of the budget, since tokens are estimated
LINE_HEAD_TOKENS = 17  # hash, score, day and the end of the line
NOTE_TOKENS = 12  # for the line that says how to see all of it
MIN_TEXT_TOKENS = 20  # of a hit, whatever its tags take
FIRST_SHARE = 2.0  # of the room that long texts share, for the best hit; the others get 1
CUT_MARK = "…"
REGION_CHARS = 4_000  # of a very long text, the part with most words of the question is read sentence by sentence
MAX_COMPARED_HITS = 10  # whose sentences are compared by meaning
MEANING_WEIGHT = 30.0  # of the likeness in meaning, beside the share of the question's words
NEIGHBOUR_WEIGHT = 0.1  # of a sentence's score, for those beside it: an answer often follows its subject
STOP_TOKEN_WEIGHT = 0.1
SENTENCE_PATTERN = re.compile(r"[^.!?\n]*(?:[.!?]+(?=\s|$)|[.!?]+|\n+|$)\s*")


class Sentence(NamedTuple):
    start: int
    end: int
    stems: frozenset[str]


class Region(NamedTuple):
    """The part of a hit's text in which the passage is looked for."""

    sentences: list[Sentence]
    scores: list[float]

    @property
    def span(self) -> tuple[int, int]:
        return self.sentences[0].start, self.sentences[-1].end


async def shorten_hits(store: Store, scope: Scope, question: str, hits: Page[Hit]) -> Page[Hit]:
    """Return the hits with texts that fit the budget together; what is left over by short ones goes to long ones."""
    budget = max(MAX_ANSWER_TOKENS, TOKENS_PER_HIT * len(hits))
    room = int(budget * ESTIMATE_SHARE) - NOTE_TOKENS - sum(map(_count_head_tokens, hits))
    needs = [_count_text_tokens(hit.content, room) for hit in hits]
    limits = _share_room(room, needs)
    wanted = _list_stems(question)
    regions = {i: _choose_region(wanted, hit.content) for i, hit in enumerate(hits) if needs[i] > limits[i]}
    await _compare_meaning(store, scope, question, hits, dict(list(regions.items())[:MAX_COMPARED_HITS]))
    shortened = list(hits)
    for i, region in regions.items():
        passage = _extract_passage(wanted, hits[i].content, region, limits[i])
        shortened[i] = replace(hits[i], content=passage, cut=True)
    return Page(shortened, hits.total, hits.weaker)


def _count_head_tokens(hit: Hit) -> int:
    """Count what stands before the text of a hit in its line."""
    return LINE_HEAD_TOKENS + sum(tokens.count_tokens(text) + 1 for text in (*hit.tags, hit.place or "") if text)


def _count_text_tokens(text: str, most: int) -> int:
    """Count the tokens of a text; of one that is too long anyway, no more than tells so."""
    return tokens.count_tokens(text) if tokens.fits_token_limit(text, max(most, 1)) else max(most, 1) + 1


def _share_room(room: int, needs: Sequence[int]) -> list[int]:
    """Return how many tokens each text may have: first what is needed by those that need less than their share."""
    limits = [0] * len(needs)
    waiting = {i: 1.0 if i else FIRST_SHARE for i in range(len(needs))}
    while waiting:
        unit = room / sum(waiting.values())
        fitting = [i for i, share in waiting.items() if needs[i] <= share * unit]
        for i in fitting or list(waiting):
            limits[i] = needs[i] if fitting else max(MIN_TEXT_TOKENS, int(waiting[i] * unit))
            room -= limits[i]
            del waiting[i]
    return limits


def _choose_region(wanted: frozenset[str], text: str) -> Region:
    """Split a text into sentences and score them by the wanted words; of a very long one, the part with most."""
    first, last = 0, len(text)
    if last > 2 * REGION_CHARS:
        lower = text.lower()
        counts = {
            start: sum(stem in lower[start : start + REGION_CHARS] for stem in wanted)
            for start in range(0, last, REGION_CHARS // 2)
        }
        first = max(counts, key=lambda start: (counts[start], -start))
        last = min(last, first + REGION_CHARS)
    matches = [match for match in SENTENCE_PATTERN.finditer(text, first, last) if _is_sentence(match[0])]
    sentences = [Sentence(match.start(), match.end(), _list_stems(match[0])) for match in matches]
    sentences = sentences or [Sentence(first, last, frozenset())]
    counts_by_stem = Counter(stem for sentence in sentences for stem in sentence.stems & wanted)
    weights = {stem: math.log(1 + len(sentences) / count) for stem, count in counts_by_stem.items()}
    most = sum(weights.values()) or 1.0
    return Region(sentences, [sum(weights[stem] for stem in one.stems & wanted) / most for one in sentences])


def _is_sentence(text: str) -> bool:
    """Return whether a line may answer: not one that is empty or a heading of Markdown."""
    return bool(text.strip()) and not text.lstrip().startswith("#")


def _list_stems(text: str) -> frozenset[str]:
    return frozenset(stem_word(word) for word in tokenize(text) if word not in STOP_WORDS)


async def _compare_meaning(
    store: Store, scope: Scope, question: str, hits: Sequence[Hit], regions: dict[int, Region]
) -> None:
    """Add to the scores of sentences how well their tokens match those of the question, as stored with the texts."""
    encoding = await store.encoder.encode_question(question) if regions else None
    if encoding is None or not len(encoding.token_vectors):
        return

    async def read_signs(tx: Transaction) -> dict[int, list[PassageSigns]]:
        signs: dict[int, list[PassageSigns]] = {}
        for i, region in regions.items():
            visible = await scopes.fetch_visible_ids(tx, scope.with_kind(hits[i].kind))
            signs[i] = await list_signs_between(tx, visible, store.encoder.models, hits[i].id, *region.span)
        return signs

    for i, passages in (await store.database.read(read_signs)).items():
        likeness = _score_likeness(store, question, encoding, hits[i].content, regions[i].sentences, passages)
        for number, value in enumerate(likeness):
            regions[i].scores[number] += MEANING_WEIGHT * value


def _score_likeness(
    store: Store,
    question: str,
    encoding: QuestionEncoding,
    text: str,
    sentences: Sequence[Sentence],
    passages: Sequence[PassageSigns],
) -> list[float]:
    """Return how well each sentence matches the question token by token, about 0 to 1."""
    import numpy as np  # slow to load; a search has loaded it

    weights = np.array(
        [
            STOP_TOKEN_WEIGHT if not (word := question[a:b].lower()).isalnum() or word in STOP_WORDS else 1.0
            for a, b in encoding.token_offsets
        ],
        np.float32,
    )
    vectors = encoding.token_vectors
    best = np.zeros((len(sentences), len(vectors)), np.float32)
    starts = np.array([sentence.start for sentence in sentences])
    for passage in passages:
        places = store.encoder.split_tokens(text[passage.start : passage.start + passage.length])
        signs = np.frombuffer(passage.signs, np.uint8).reshape(-1, SIGN_BITS // 8)
        rows = signs[-len(places) :] if len(signs) >= len(places) else signs  # the first are those of the header
        bits = np.unpackbits(rows, axis=1).astype(np.float32)
        similarity = (bits @ (2 * vectors.T) - vectors.sum(axis=1)) / math.sqrt(SIGN_BITS)
        at = np.array([passage.start + place[0] for place in places[: len(rows)]])
        owners = np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)
        np.maximum.at(best, owners, similarity)
    likeness: Any = best @ weights / max(float(weights.sum()), 1e-6)
    return list(map(float, likeness))


def _extract_passage(wanted: frozenset[str], text: str, region: Region, limit: int) -> str:
    """Return the best sentences of a text in their order, as many as fit."""
    sentences, padded = region.sentences, [0.0, *region.scores, 0.0]
    scores = [own + NEIGHBOUR_WEIGHT * (padded[i] + padded[i + 2]) for i, own in enumerate(region.scores)]
    order = sorted(range(len(sentences)), key=lambda i: (-scores[i], i))
    costs = [tokens.count_tokens(text[one.start : one.end]) + 1 for one in sentences]
    chosen: list[int] = []
    seen: set[str] = set()  # a text that repeats itself says it once
    for i in order:
        if (sentence := text[sentences[i].start : sentences[i].end].strip()) in seen:
            continue
        seen.add(sentence)
        if costs[i] + 1 <= limit:
            limit -= costs[i] + (not {i - 1, i + 1} & set(chosen))  # a mark stands between parts
            chosen.append(i)
        elif not chosen:
            return _cut_sentence(wanted, text, sentences[i], limit - 2)
    return _join_parts(text, [sentences[i] for i in sorted(chosen)])


def _cut_sentence(wanted: frozenset[str], text: str, sentence: Sentence, limit: int) -> str:
    """Return as much of a long sentence as fits, from a little before its first wanted word."""
    start, end, _ = sentence
    lower = text[start:end].lower()
    places = [place for stem in wanted if (place := lower.find(stem)) >= 0]
    at = start + max(0, min(places, default=0) - 2 * limit)  # about half of what fits stands before the word
    at = max(text.rfind(" ", start, at) + 1, start)
    part = tokens.truncate_to_tokens(text[at:end], limit)
    return _join_parts(text, [Sentence(at, at + len(part), frozenset())])


def _join_parts(text: str, parts: Sequence[Sentence]) -> str:
    """Return parts of a text, with a mark wherever something is left out."""
    passage, last = "", 0
    for part in parts:
        gap = text[last : part.start]
        passage = (
            f"{passage.rstrip()} {CUT_MARK} "
            if gap.strip() and passage
            else passage + (CUT_MARK if gap.strip() else gap)
        )
        passage, last = passage + text[part.start : part.end], part.end
    return passage.strip() + (CUT_MARK if text[last:].strip() else "")
