"""Finding memories again."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.values import Kind, Page
from athena.core.words import STOP_WORDS, tokenize
from athena.embedding.embedder import QuestionEncoding
from athena.memory import rows, topic_rows
from athena.memory.ranking import (
    FEEDBACK_COUNT,
    HALF_LIFE_S,
    MAX_RERANKED,
    MIN_LONG_QUERY_TERMS,
    Ranking,
    decay_weights,
    score_by_tokens,
)
from athena.memory.store import Store
from athena.memory.values import Hit, Memory, strip_reserved_keys
from athena.storage.database import TextMatches, Transaction
from athena.storage.filters import Filter
from athena.storage.terms import STOP_WORD_WEIGHT

MAX_CANDIDATES = 400  # memories that each search brings to the ranking
MAX_STRENGTHENED = 5  # of what a question found, the first so many count as used
# A question of these words alone names no task: "what do I have to do" tomorrow.
TASK_QUESTION_WORDS = """
    what's task tasks todo todos reminder reminders thing things got need needs due left still open pending planned
    every everything anything show list
"""
TASK_FILLER_WORDS = STOP_WORDS | frozenset(TASK_QUESTION_WORDS.split())
MAX_SHALLOW_LIMIT = (
    100  # for more than this, for later pages and for a count everything is ranked, so that all of it agrees
)


class Query(NamedTuple):
    text: str
    only: Filter
    limit: int
    offset: int = 0
    min_score: float = 0.0
    understand_time: bool = False
    explain: bool = False


async def recall(store: Store, query: Query, *, used: bool = True) -> Page[Hit]:
    """Return the memories that fit a question best, by words, by meaning and word by word; they count as `used`."""
    if query.understand_time:
        query = extract_time(query, store.clock())
    if not query.text.strip():
        return await _list_newest(store, query)
    asked = await store.encoder.encode_question(query.text)
    found = await store.database.read(lambda tx: _search_memories(store, tx, query, asked))
    if found and used and store.weights.strength:
        store.database.defer_write(
            partial(
                rows.strengthen_memories,
                query.only.scope,
                [hit.id for hit in found[:MAX_STRENGTHENED]],
                store.clock(),
                HALF_LIFE_S,
            )
        )
    return found


async def recall_kinds(store: Store, query: Query, kinds: Sequence[Kind]) -> Page[Hit]:
    """Return what fits a question best among things of several kinds, each searched by itself."""
    if list(kinds) == ["memory"]:
        return await recall(store, query)
    whole = query._replace(limit=query.limit + query.offset, offset=0)
    found = [await recall(store, _set_kind(whole, kind)) for kind in dict.fromkeys(kinds)]
    best = sorted((one for page in found for one in page), key=lambda one: -one.score)
    chosen = [
        replace(one, metadata=strip_reserved_keys(one.metadata))
        for one in best[query.offset : query.offset + query.limit]
    ]
    return Page(chosen, sum(page.total for page in found))


def _set_kind(query: Query, kind: Kind) -> Query:
    return query._replace(only=replace(query.only, scope=query.only.scope.with_kind(kind)))


async def _search_memories(store: Store, tx: Transaction, query: Query, asked: QuestionEncoding | None) -> Page[Hit]:
    vectors = store.database.vectors
    dimensions = 0 if asked is None else len(asked.vector)  # a remote model that is down cannot say its own
    among = await vectors.select_candidates(tx, query.only, store.encoder.name, dimensions)
    if not among.total:
        return Page([], 0)
    deep = query.offset > 0 or query.limit > MAX_SHALLOW_LIMIT or query.min_score > 0
    wanted = among.total if deep else MAX_CANDIDATES
    words = await store.database.fulltext.search_text(tx, among, query.text, wanted)
    near = None if asked is None else await vectors.search_nearest(tx, among, asked.vector, wanted, words)
    ranking = Ranking(words, near, store.weights)
    ranking.add_facts(await vectors.load_features(tx, among, ranking.memories))
    order = ranking.sort_positions()
    first = await _rerank(store, tx, ranking.take(order[:MAX_RERANKED]), words, among, asked)
    against = await _find_contradicted(tx, query, among.scopes, first.memories.tolist())
    first = first.demote_contradicted(against) if against else first
    rest = ranking.take(order[MAX_RERANKED:])
    scores = _cap_scores(first, rest)
    good = int((scores >= round(query.min_score, 4)).sum())  # they never rise, so these come first
    places = range(query.offset, min(query.offset + query.limit, good))
    chosen = [(first, i) if i < len(first.memories) else (rest, i - len(first.memories)) for i in places]
    numbers = [int(part.memories[i]) for part, i in chosen]
    found = await rows.fetch_memories(tx, among.scopes, numbers)
    further = [number for number, (part, _) in zip(numbers, chosen, strict=True) if part is rest]
    against |= await _find_contradicted(tx, query, among.scopes, further)
    hits = [
        create_hit(
            found[number],
            float(scores[place]),
            part.explain(i) if query.explain else None,
            query.only.scope.kind,
            against.get(number, [None])[-1],
        )
        for place, number, (part, i) in zip(places, numbers, chosen, strict=True)
        if number in found
    ]
    return Page(hits, among.total if query.min_score <= 0 else good)


async def _find_contradicted(
    tx: Transaction, query: Query, scopes: list[int], numbers: list[int]
) -> dict[int, list[int]]:
    if not numbers or query.only.scope.kind != "memory":
        return {}
    return await topic_rows.fetch_contradictions(tx, scopes, numbers)


def _cap_scores(*parts: Ranking) -> Any:
    """Return the scores that are shown, one part after another, none above the one before it."""
    import numpy as np

    return np.minimum.accumulate(np.concatenate([part.evidence for part in parts])).round(4)


async def _rerank(
    store: Store, tx: Transaction, ranking: Ranking, words: TextMatches, among: Any, asked: QuestionEncoding | None
) -> Ranking:
    """Put the best candidates in order by all that is known: their tokens, their age, their use."""
    if asked is not None and len(asked.token_vectors) and store.weights.tokens:
        sets = await store.database.vectors.load_tokens(tx, among, ranking.memories)
        alike = score_by_tokens(asked, words.weights, sets, len(ranking.memories))
        if alike is not None:
            ranking.add_term("tokens", alike)
    if store.weights.session:
        ranking.add_sessions()
    if store.weights.feedback and asked is not None and _is_long_query(words):
        ranking = ranking.take(ranking.sort_positions())
        ranking.add_term(
            "feedback", await store.database.vectors.score_feedback(tx, among, ranking.memories, FEEDBACK_COUNT)
        )
    if store.weights.recency or store.weights.strength:
        ages = await rows.fetch_memory_ages(tx, among.scopes, ranking.memories.tolist())
        now = store.clock()
        ranking.add_term("recency", decay_weights(ages[:, 0], now))
        ranking.add_term("strength", ages[:, 1] * decay_weights(ages[:, 2], now))
    return ranking.take(ranking.sort_positions())


def _is_long_query(words: TextMatches) -> bool:
    return sum(weight != STOP_WORD_WEIGHT for _, _, weight in words.weights) >= MIN_LONG_QUERY_TERMS


def create_hit(
    memory: Memory,
    score: float,
    why: dict[str, float] | None = None,
    kind: Kind = "memory",
    contradicted_by: int | None = None,
) -> Hit:
    m = memory
    return Hit(
        m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, m.project,
        round(score, 4), why, kind, contradicted_by,
    )  # fmt: skip


def extract_time(query: Query, now: float) -> Query:
    """Take time in plain words out of the question and make it a filter."""
    from athena.memory.time import phrase  # its tables are slow to load, and most questions name no time

    only, ahead = query.only, query.only.scope.kind == "task"  # tasks are due in times to come
    found = phrase.find_phrase(query.text, clock.to_local_time(now), ahead=ahead)
    if found is None or (found.period.start > now and not ahead):  # nothing was kept then: "plans for next week"
        return query
    since = max(found.period.start, only.since if only.since is not None else float("-inf"))
    until = min(found.period.end, only.until if only.until is not None else float("inf"))
    rest = "" if ahead and TASK_FILLER_WORDS.issuperset(tokenize(found.rest)) else found.rest
    return query._replace(text=rest, only=replace(only, since=since, until=until))


async def _list_newest(store: Store, query: Query) -> Page[Hit]:
    """Answer a question that names nothing but a time: all of it, the newest first."""

    async def read_page(tx: Transaction) -> Page[Hit]:
        found = await rows.list_newest_memories(tx, query.only, query.limit, query.offset)
        hits = [create_hit(memory, 1.0, None, query.only.scope.kind) for memory in found]
        return Page(hits, await rows.count_memories(tx, query.only))

    return await store.database.read(read_page)
