"""Finding memories again."""

from typing import TYPE_CHECKING, NamedTuple

from athena import clock
from athena.memory.ranking import Ranked, rank
from athena.memory.store import Store
from athena.model.memory import Filter, Hit, Memory
from athena.model.page import Page
from athena.storage import memories
from athena.storage.database import Transaction

if TYPE_CHECKING:
    from athena.storage.database import Floats

CANDIDATES = 200  # memories that each search brings to the ranking, at least
DEEP = 500  # from here on everything is ranked, so that page after page comes from one order


class Query(NamedTuple):
    text: str
    only: Filter
    limit: int
    offset: int = 0
    min_score: float = 0.0
    understand_time: bool = False


async def recall(store: Store, query: Query) -> Page[Hit]:
    """Return the memories that fit a question best, by words and by meaning."""
    if query.understand_time:
        query = _with_time(query, store.clock())
    if not query.text.strip():
        return await _newest(store, query)
    vectors = await store.encoder.vectors([query.text])

    async def work(tx: Transaction) -> Page[Hit]:
        return await _search(store, tx, query, vectors)

    return await store.database.read(work)


async def _search(store: Store, tx: Transaction, query: Query, vectors: "Floats | None") -> Page[Hit]:
    database, encoder = store.database, store.encoder
    dimensions = 0 if vectors is None else vectors.shape[1]  # a remote model that is down cannot say its own
    among = await database.vectors.select(tx, query.only, encoder.name, dimensions)
    if not among.total:
        return Page([], 0)
    deep = query.offset + query.limit > DEEP
    wanted = among.total if deep else max(CANDIDATES, 2 * (query.offset + query.limit))
    words = await database.words.matches(tx, among, query.text, wanted)
    near = None
    if vectors is not None:
        near = await database.vectors.nearest(tx, among, vectors[0], wanted, words)
    ranked = rank(words, near)
    good = int((ranked.scores.round(4) >= round(query.min_score, 4)).sum())  # scores never rise, so these come first
    chosen = slice(query.offset, min(query.offset + query.limit, good))
    total = among.total if query.min_score <= 0 else good
    return Page(await _hits(tx, Ranked(ranked.memories[chosen], ranked.scores[chosen])), total)


async def _hits(tx: Transaction, ranked: Ranked) -> list[Hit]:
    numbers: list[int] = ranked.memories.tolist()
    found = await memories.fetch(tx, numbers)
    return [hit(found[n], score) for n, score in zip(numbers, ranked.scores.tolist(), strict=True) if n in found]


def hit(memory: Memory, score: float) -> Hit:
    m = memory
    return Hit(
        m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, m.project,
        round(score, 4),
    )  # fmt: skip


def _with_time(query: Query, now: float) -> Query:
    """Take time in plain words out of the question and make it a filter."""
    from athena.memory import timephrase  # its tables are slow to load, and most questions name no time

    found = timephrase.find(query.text, clock.local(now))
    if found is None or found.period.start > now:  # nothing was kept in the future: "plans for next week"
        return query
    only = query.only
    since = max(found.period.start, only.since if only.since is not None else float("-inf"))
    until = min(found.period.end, only.until if only.until is not None else float("inf"))
    narrowed = Filter(only.scope, only.tags, only.match, only.memory_type, since, until)
    return query._replace(text=found.rest, only=narrowed)


async def _newest(store: Store, query: Query) -> Page[Hit]:
    """Answer a question that names nothing but a time: all of it, the newest first."""

    async def work(tx: Transaction) -> Page[Hit]:
        found = await memories.newest(tx, query.only, query.limit, query.offset)
        return Page([hit(memory, 1.0) for memory in found], await memories.count(tx, query.only))

    return await store.database.read(work)
