"""Finding memories again."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from athena.core import clock
from athena.core.page import Page
from athena.core.scope import Kind
from athena.embedding.embedder import Asked
from athena.memory import rows, topic_rows
from athena.memory.maxsim import likeness
from athena.memory.ranking import HALF_LIFE, LEADERS, LONG, RERANKED, Ranking, fading
from athena.memory.store import Store
from athena.memory.values import Filter, Hit, Memory, theirs
from athena.storage.database import Matches, Transaction
from athena.storage.terms import STOP_WEIGHT

CANDIDATES = 400  # memories that each search brings to the ranking
USED = 5  # of what a question found, the first so many count as used
# Of a question about tasks, what says nothing about which: "what do I have to do" tomorrow.
TASK_WORDS = re.compile(
    r"\b(what('s)?|which|do|does|i|we|have|has|got|need|needs|is|are|there|to|be|done|due|tasks?|todos?|reminders?|my|our|"
    r"on|the|should|must|for|me|us|left|still|open|pending|planned|any(thing)?|things?|all|every(thing)?|show|list)\b|\W+",
    re.IGNORECASE,
)
DEEP = 100  # for more than this, for later pages and for a count everything is ranked, so that all of it agrees


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
        query = with_time(query, store.clock())
    if not query.text.strip():
        return await _newest(store, query)
    asked = await store.encoder.ask(query.text)

    async def work(tx: Transaction) -> Page[Hit]:
        return await _search(store, tx, query, asked)

    found = await store.database.read(work)
    if found and used and store.weights.strength:
        store.database.later(
            partial(rows.strengthen, query.only.scope, [hit.id for hit in found[:USED]], store.clock(), HALF_LIFE)
        )
    return found


async def recall_kinds(store: Store, query: Query, kinds: Sequence[Kind]) -> Page[Hit]:
    """Return what fits a question best among things of several kinds, each searched by itself."""
    if list(kinds) == ["memory"]:
        return await recall(store, query)
    whole = query._replace(limit=query.limit + query.offset, offset=0)
    found = [await recall(store, _of_kind(whole, kind)) for kind in dict.fromkeys(kinds)]
    best = sorted((one for page in found for one in page), key=lambda one: -one.score)
    chosen = [replace(one, metadata=theirs(one.metadata)) for one in best[query.offset : query.offset + query.limit]]
    return Page(chosen, sum(page.total for page in found))


def _of_kind(query: Query, kind: Kind) -> Query:
    return query._replace(only=replace(query.only, scope=query.only.scope.of(kind)))


async def _search(store: Store, tx: Transaction, query: Query, asked: Asked | None) -> Page[Hit]:
    vectors = store.database.vectors
    dimensions = 0 if asked is None else len(asked.vector)  # a remote model that is down cannot say its own
    among = await vectors.select(tx, query.only, store.encoder.name, dimensions)
    if not among.total:
        return Page([], 0)
    deep = query.offset > 0 or query.limit > DEEP or query.min_score > 0
    wanted = among.total if deep else CANDIDATES
    words = await store.database.words.matches(tx, among, query.text, wanted)
    near = None if asked is None else await vectors.nearest(tx, among, asked.vector, wanted, words)
    ranking = Ranking(words, near, store.weights)
    ranking.add_facts(await vectors.describe(tx, among, ranking.memories))
    order = ranking.order()
    first = await _rerank(store, tx, ranking.keep(order[:RERANKED]), words, among, asked)
    against = await _contradicted(tx, query, among.scopes, first.memories.tolist())
    first = first.behind(against) if against else first
    rest = ranking.keep(order[RERANKED:])
    scores = _never_rising(first, rest)
    good = int((scores >= round(query.min_score, 4)).sum())  # they never rise, so these come first
    places = range(query.offset, min(query.offset + query.limit, good))
    chosen = [(first, i) if i < len(first.memories) else (rest, i - len(first.memories)) for i in places]
    numbers = [int(part.memories[i]) for part, i in chosen]
    found = await rows.fetch(tx, among.scopes, numbers)
    further = [number for number, (part, _) in zip(numbers, chosen, strict=True) if part is rest]
    against |= await _contradicted(tx, query, among.scopes, further)
    hits = [
        hit(
            found[number],
            float(scores[place]),
            part.why(i) if query.explain else None,
            query.only.scope.kind,
            against.get(number, [None])[-1],
        )
        for place, number, (part, i) in zip(places, numbers, chosen, strict=True)
        if number in found
    ]
    return Page(hits, among.total if query.min_score <= 0 else good)


async def _contradicted(tx: Transaction, query: Query, scopes: list[int], numbers: list[int]) -> dict[int, list[int]]:
    if not numbers or query.only.scope.kind != "memory":
        return {}
    return await topic_rows.contradicted(tx, scopes, numbers)


def _never_rising(*parts: Ranking) -> Any:
    """Return the scores that are shown, one part after another, none above the one before it."""
    import numpy as np

    return np.minimum.accumulate(np.concatenate([part.evidence for part in parts])).round(4)


async def _rerank(
    store: Store, tx: Transaction, ranking: Ranking, words: Matches, among: Any, asked: Asked | None
) -> Ranking:
    """Put the best candidates in order by all that is known: their tokens, their age, their use."""
    if asked is not None and len(asked.tokens) and store.weights.tokens:
        sets = await store.database.vectors.tokens(tx, among, ranking.memories)
        alike = likeness(asked, words.weights, sets, len(ranking.memories))
        if alike is not None:
            ranking.add("tokens", alike)
    if store.weights.session:
        ranking.add_sessions()
    if store.weights.feedback and asked is not None and _is_long(words):
        ranking = ranking.keep(ranking.order())
        ranking.add("feedback", await store.database.vectors.feedback(tx, among, ranking.memories, LEADERS))
    if store.weights.recency or store.weights.strength:
        ages = await rows.ages(tx, among.scopes, ranking.memories.tolist())
        now = store.clock()
        ranking.add("recency", fading(ages[:, 0], now))
        ranking.add("strength", ages[:, 1] * fading(ages[:, 2], now))
    return ranking.keep(ranking.order())


def _is_long(words: Matches) -> bool:
    return sum(weight != STOP_WEIGHT for _, _, weight in words.weights) >= LONG


def hit(
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


def with_time(query: Query, now: float) -> Query:
    """Take time in plain words out of the question and make it a filter."""
    from athena.memory.time import phrase  # its tables are slow to load, and most questions name no time

    only, ahead = query.only, query.only.scope.kind == "task"  # tasks are due in times to come
    found = phrase.find(query.text, clock.local(now), ahead=ahead)
    if found is None or (found.period.start > now and not ahead):  # nothing was kept then: "plans for next week"
        return query
    since = max(found.period.start, only.since if only.since is not None else float("-inf"))
    until = min(found.period.end, only.until if only.until is not None else float("inf"))
    rest = "" if ahead and not TASK_WORDS.sub("", found.rest) else found.rest
    return query._replace(text=rest, only=replace(only, since=since, until=until))


async def _newest(store: Store, query: Query) -> Page[Hit]:
    """Answer a question that names nothing but a time: all of it, the newest first."""

    async def work(tx: Transaction) -> Page[Hit]:
        found = await rows.newest(tx, query.only, query.limit, query.offset)
        hits = [hit(memory, 1.0, None, query.only.scope.kind) for memory in found]
        return Page(hits, await rows.count(tx, query.only))

    return await store.database.read(work)
