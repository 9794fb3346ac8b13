"""Search memories: by full text and by vectors, then rank and rerank the candidates."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.values import Kind, Page
from athena.core.words import STOP_WORDS, tokenize
from athena.embedding.embedder import QuestionEncoding
from athena.memory import list_rows, rows, time, topic_rows
from athena.memory.ranking import (
    FEEDBACK_COUNT,
    HALF_LIFE_S,
    MAX_RERANKED,
    MIN_LONG_QUERY_TERMS,
    Ranking,
    decay_weights,
    score_by_tokens,
)
from athena.memory.scores import DEFAULT_MIN_SCORE, compute_probabilities
from athena.memory.store import Store
from athena.memory.values import DOCUMENT_TYPE, FILE_KEY, Hit, Memory, extend_memory, format_place, strip_reserved_keys
from athena.storage import privacy, scopes
from athena.storage.database import TextMatches, Transaction
from athena.storage.filters import Filter
from athena.storage.terms import STOP_WORD_WEIGHT

MAX_CANDIDATES = 400  # memories that each of the two searches contributes to the ranking
MAX_STRENGTHENED = 5  # first hits of a question that count as used
# Larger limits, later pages and a minimum score rank every memory, so that pages and totals agree.
MAX_SHALLOW_LIMIT = 100
# A question of these words alone names no task: "what do I have to do tomorrow" asks for all of tomorrow.
TASK_QUESTION_WORDS = """
    what's task tasks todo todos reminder reminders thing things got need needs due left still open pending planned
    every everything anything show list
"""
TASK_FILLER_WORDS = STOP_WORDS | frozenset(TASK_QUESTION_WORDS.split())


class Query(NamedTuple):
    text: str
    criteria: Filter
    limit: int
    offset: int = 0
    min_score: float | None = 0.0  # None for the default: no hits if even the best is improbable
    understand_time: bool = False
    explain: bool = False
    longest: int | None = None  # how much of each text is read
    as_probability: bool = False  # else scores say how well words and vectors match
    kinds: tuple[Kind, ...] = ()  # what to look through; by default the kind of the scope

    @property
    def searched_kinds(self) -> tuple[Kind, ...]:
        return self.kinds or (self.criteria.scope.kind,)


async def recall(store: Store, query: Query, *, used: bool = True) -> Page[Hit]:
    """Return the memories that fit a question best; with `used` the first of them grow stronger.

    Further pages make nothing stronger: it would move to an earlier page, and others would be shown twice.
    """
    asked = query
    if query.understand_time:
        query = extract_time(query, store.clock())
    if not query.text.strip():
        return await _list_newest(store, query)
    with store.encoder.mark_call():
        question = await store.encoder.encode_question(query.text)
        hits = await store.database.read(lambda tx: _search_memories(store, tx, query, question))
    if hits and used and store.weights.strength and not query.offset:
        for kind in query.searched_kinds:
            if ids := [hit.id for hit in hits[:MAX_STRENGTHENED] if hit.kind == kind]:
                scope = query.criteria.scope.with_kind(kind)
                strengthen = partial(rows.strengthen_memories, scope, ids, store.clock(), HALF_LIFE_S)
                store.database.defer_write(strengthen)
    if not hits and query is not asked and (documents := _ask_documents(asked)):
        return await recall(store, documents, used=used)
    return hits


def _ask_documents(asked: Query) -> Query | None:
    """Return a question with a time for documents alone, which are of no time: "when does it leave in winter"."""
    criteria = asked.criteria
    can_answer = asked.as_probability and "memory" in asked.searched_kinds and not asked.offset
    if not can_answer or criteria.memory_type not in (None, DOCUMENT_TYPE):
        return None
    min_score = DEFAULT_MIN_SCORE if asked.min_score is None else asked.min_score
    criteria = replace(criteria, memory_type=DOCUMENT_TYPE)
    return asked._replace(criteria=criteria, min_score=min_score, understand_time=False)


async def _search_memories(
    store: Store, tx: Transaction, query: Query, question: QuestionEncoding | None, criteria: Filter | None = None
) -> Page[Hit]:
    """Return a page of hits among the memories that the criteria let through, by default those of the query."""
    vectors = store.database.vectors
    dimensions = 0 if question is None else len(question.vector)  # a remote model that is down cannot tell its own
    kinds_by_scope = await scopes.fetch_visible_kinds(tx, query.criteria.scope, query.searched_kinds)
    scope_ids = list(kinds_by_scope)
    candidates = await vectors.select_candidates(
        tx, criteria or query.criteria, scope_ids, store.encoder.models, dimensions
    )
    if not candidates.total:
        return Page([], 0)
    rank_all = query.offset > 0 or query.limit > MAX_SHALLOW_LIMIT or bool(query.min_score)
    limit = candidates.total if rank_all else MAX_CANDIDATES
    matches = await store.database.fulltext.search_text(tx, candidates, query.text, limit)
    if privacy.is_watched() and criteria is None:
        await _note_weighing_memories(store, tx, query, scope_ids, dimensions)
    nearest = (
        None if question is None else await vectors.search_nearest(tx, candidates, question.vector, limit, matches)
    )
    ranking = Ranking(query.text, matches, nearest, store.weights)
    features = nearest.features if nearest else None  # of the same memories: it has looked at those of the words, too
    ranking.add_facts(features or await vectors.load_features(tx, candidates, ranking.memories))
    order = ranking.sort_positions(None if rank_all or query.limit > MAX_RERANKED else MAX_RERANKED)
    top = await _rerank(store, tx, ranking.take(order[:MAX_RERANKED]), matches, candidates, question)
    contradicted = await _find_contradicted(tx, query, candidates.scopes, top.memories.tolist())
    top = top.demote_contradicted(contradicted) if contradicted else top
    rest = ranking.take(order[MAX_RERANKED:])
    scores = _compute_scores(query, top, rest)
    good_count = _count_good(query, matches, top, scores)
    positions = range(query.offset, min(query.offset + query.limit, good_count))
    page = [(top, i) if i < len(top.memories) else (rest, i - len(top.memories)) for i in positions]
    ids = [int(part.memories[i]) for part, i in page]
    if privacy.is_watched() and criteria is None:
        ranked = [*top.memories.tolist(), *rest.memories.tolist()]
        await rows.note_marks_of(tx, scope_ids, ranked[: min(query.offset + query.limit, good_count)])
        unread = [one for one in await rows.list_marks_of(tx, scope_ids, ranked) if not privacy.is_noted(one)]
        if unread:  # they shift the scores and places of the others
            readable = replace(query.criteria, excluded_marks=tuple(sorted(unread)))
            return await _search_memories(store, tx, query, question, readable)
    memories = await rows.fetch_memories(tx, candidates.scopes, ids, longest=query.longest)
    kinds = await _fetch_kinds(tx, query, kinds_by_scope, ids)
    ids_in_rest = [memory_id for memory_id, (part, _) in zip(ids, page, strict=True) if part is rest]
    contradicted |= await _find_contradicted(tx, query, candidates.scopes, ids_in_rest)
    hits = [
        create_hit(
            memories[memory_id],
            float(scores[position]),
            part.explain(i) if query.explain else None,
            kinds[memory_id],
            contradicted.get(memory_id, [None])[-1],
        )
        for position, memory_id, (part, i) in zip(positions, ids, page, strict=True)
        if memory_id in memories
    ]
    weaker = max(0, min(query.limit, len(scores) - query.offset) - len(positions))
    return Page(hits, good_count if query.min_score or not good_count else candidates.total, weaker)


async def _fetch_kinds(
    tx: Transaction, query: Query, kinds_by_scope: dict[int, Kind], ids: list[int]
) -> dict[int, Kind]:
    if len(query.searched_kinds) == 1:
        return dict.fromkeys(ids, query.searched_kinds[0])
    scope_ids = await scopes.fetch_memory_scopes(tx, list(kinds_by_scope), ids)
    return {memory_id: kinds_by_scope[scope_id] for memory_id, scope_id in scope_ids.items()}


async def _note_weighing_memories(
    store: Store, tx: Transaction, query: Query, scope_ids: list[int], dimensions: int
) -> None:
    """Mark the run with all memories that hold a word of its question: how rare the word is shows in every score."""
    database, whole = store.database, Filter(query.criteria.scope)
    everything = await database.vectors.select_candidates(tx, whole, scope_ids, store.encoder.models, dimensions)
    found = await database.fulltext.search_text(tx, everything, query.text, everything.total)
    await rows.note_marks_of(tx, scope_ids, found.memories.tolist(), is_search=True)


async def _rerank(
    store: Store,
    tx: Transaction,
    ranking: Ranking,
    matches: TextMatches,
    candidates: Any,
    question: QuestionEncoding | None,
) -> Ranking:
    """Order the best candidates by the terms that are too slow for all: tokens, sessions, feedback, age and use."""
    vectors, weights = store.database.vectors, ranking.weights
    if question is not None and len(question.token_vectors) and weights.tokens:
        token_sets = await vectors.load_tokens(tx, candidates, ranking.memories, question.vector, matches)
        similarity = score_by_tokens(question, matches.weights, token_sets, ranking.lexical)
        if similarity is not None:
            ranking.add_tokens(similarity)
    if weights.session:
        ranking.add_sessions()
    if weights.feedback and question is not None and _is_long_query(matches):
        ranking = ranking.take(ranking.sort_positions())
        ranking.add_term("feedback", await vectors.score_feedback(tx, candidates, ranking.memories, FEEDBACK_COUNT))
    if weights.recency or weights.strength:
        ages = await rows.fetch_memory_ages(tx, candidates.scopes, ranking.memories.tolist())
        happened, strength, last_used = ages.T
        now = store.clock()
        ranking.add_term("recency", decay_weights(happened, now))
        ranking.add_term("strength", strength * decay_weights(last_used, now))
    return ranking.take(ranking.sort_positions())


def _is_long_query(matches: TextMatches) -> bool:
    return sum(weight != STOP_WORD_WEIGHT for _, _, weight in matches.weights) >= MIN_LONG_QUERY_TERMS


async def _find_contradicted(
    tx: Transaction, query: Query, scope_ids: list[int], ids: list[int]
) -> dict[int, list[int]]:
    if not ids or "memory" not in query.searched_kinds:
        return {}
    return await topic_rows.fetch_contradictions(tx, scope_ids, ids)


def _compute_scores(query: Query, top: Ranking, rest: Ranking) -> Any:
    """Return the scores that hits show, none above the one before it."""
    import numpy as np  # slow to load; only searches need it

    if not query.as_probability or not _is_calibrated(top):
        return np.minimum.accumulate(np.concatenate([top.evidence, rest.evidence])).round(4)
    # A hit is at least as probable as those after it: so the best score tells of every hit that holds all the words.
    probabilities = np.maximum.accumulate(compute_probabilities(top, query.text)[::-1])[::-1]
    return np.concatenate([probabilities, np.full(len(rest.memories), probabilities[-1])]).round(4)


def _is_calibrated(top: Ranking) -> bool:
    return top.token_scores is not None and len(top.memories) > 0


def _count_good(query: Query, matches: TextMatches, top: Ranking, scores: Any) -> int:
    """Return how many hits may be shown; scores never rise, so these come first."""
    if query.min_score is not None:
        return int((scores >= round(query.min_score, 4)).sum())
    has_floor = query.as_probability and query.criteria.is_unrestricted and _is_calibrated(top)
    is_improbable = has_floor and scores[0] < DEFAULT_MIN_SCORE and _has_content_words(query.text, matches)
    return 0 if is_improbable else len(scores)


def _has_content_words(question: str, matches: TextMatches) -> bool:
    return any(question[start:end].casefold() not in STOP_WORDS for start, end, _ in matches.weights)


def create_hit(
    memory: Memory,
    score: float,
    why: dict[str, float] | None = None,
    kind: Kind = "memory",
    contradicted_by: int | None = None,
) -> Hit:
    if FILE_KEY in memory.metadata:
        memory = replace(memory, metadata=strip_reserved_keys(memory.metadata))
    return extend_memory(Hit, memory, round(score, 4), why, kind, contradicted_by, format_place(memory.metadata))


def extract_time(query: Query, now: float) -> Query:
    """Move a time in plain words from the question's text to its filter."""
    criteria, is_task = query.criteria, query.criteria.scope.kind == "task"
    match = time.find_phrase(query.text, clock.to_local_time(now), ahead=is_task)
    if match is None or (match.period.start > now and not is_task):  # no memory is of the future: "plan for next week"
        return query
    since = max(match.period.start, criteria.since if criteria.since is not None else float("-inf"))
    until = min(match.period.end, criteria.until if criteria.until is not None else float("inf"))
    text = "" if is_task and TASK_FILLER_WORDS.issuperset(tokenize(match.rest)) else match.rest
    return query._replace(text=text, criteria=replace(criteria, since=since, until=until))


async def _list_newest(store: Store, query: Query) -> Page[Hit]:
    """Answer a question that names nothing but a time: all memories of it, the newest first."""

    async def read_page(tx: Transaction) -> Page[Hit]:
        kinds = query.searched_kinds
        own_offset = query.offset if len(kinds) == 1 else 0  # else the page is cut from what all kinds have
        timed: list[tuple[float, Hit]] = []
        total = 0
        for kind in kinds:
            criteria = replace(query.criteria, scope=query.criteria.scope.with_kind(kind))
            limit = query.limit + query.offset - own_offset
            page = await list_rows.list_memories_by_time(tx, criteria, limit, own_offset)
            timed += [(happened, create_hit(memory, 1.0, None, kind)) for happened, memory in page]
            total += await list_rows.count_memories(tx, criteria, is_shown=False)  # a program gets the page alone
        timed = sorted(timed, key=lambda pair: -pair[0]) if len(kinds) > 1 else timed
        start = query.offset - own_offset
        return Page([hit for _, hit in timed[start : start + query.limit]], total)

    return await store.database.read(read_page)
