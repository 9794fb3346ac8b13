"""What the store knows well, what it hardly knows, and what may be out of date: topic by topic, with the evidence."""

from dataclasses import dataclass
from typing import Any, Literal

from athena.core.values import Scope
from athena.memory import inputs, rows, topic_rows
from athena.memory.ranking import HALF_LIFE_S
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.topic_rows import TopicCoverage
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

TopicReading = Literal["well covered", "thin", "stale"]
SECONDS_PER_DAY = 86_400.0
MAX_THIN_MEMORIES = 3  # memories of a topic that are thin
STALE_AFTER_S = 90 * SECONDS_PER_DAY  # a topic of which nothing was kept or recalled for so long is stale
MAX_EVIDENCE = 5  # memories named as evidence
MAX_TOPIC_HITS = 50  # memories found for a topic that is no tag
MIN_TOPIC_SCORE = 0.5  # how well a memory must fit such a topic


@dataclass(frozen=True, slots=True)
class Topic:
    topic: str
    reading: TopicReading
    memories: int
    days_since_newest: float | None
    days_since_recalled: float | None
    strength: float  # how often and how lately its memories were recalled, all together
    contradicted: int  # of its memories, those that contradict another
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expertise:
    topics: int  # how many there are in all
    well_covered: tuple[Topic, ...]
    thin: tuple[Topic, ...]
    stale: tuple[Topic, ...]


async def survey_topics(store: Store, scope: Scope, topic: str | None, limit: int) -> Expertise:
    """Return what is known about each topic, or about one: a tag, else what a search finds for it."""
    now, only = store.clock(), Filter(scope)
    if topic is not None:
        return _group_topics([await _assess_topic(store, only, inputs.clean_query(topic), now)], limit)

    async def read_topics(tx: Transaction) -> Expertise:
        against = await topic_rows.count_tags_of_memories(tx, only, await topic_rows.list_contradicting_ids(tx, only))
        found = [
            _create_topic(one, now, against)
            for one in await topic_rows.fetch_topic_coverage(tx, only, now, HALF_LIFE_S)
        ]
        made = _group_topics(found, limit)
        parts = [[await _add_evidence(tx, only, one) for one in part] for part in _list_groups(made)]
        return Expertise(made.topics, *map(tuple, parts))

    return await store.database.read(read_topics)


def _list_groups(made: Expertise) -> tuple[tuple[Topic, ...], ...]:
    return made.well_covered, made.thin, made.stale


def _group_topics(found: list[Topic], limit: int) -> Expertise:
    """Put topics under their readings: the best covered first, of the thin and the stale the most recalled first."""
    covered = [one for one in found if one.reading == "well covered"]
    thin, stale = ([one for one in found if one.reading == reading] for reading in ("thin", "stale"))
    for part in (thin, stale):
        part.sort(key=lambda one: (-one.strength, one.days_since_newest or 0.0, one.topic))
    return Expertise(len(found), *(tuple(part[:limit]) for part in (covered, thin, stale)))


def _create_topic(one: TopicCoverage, now: float, against: dict[str, int], evidence: tuple[int, ...] = ()) -> Topic:
    fresh = max(one.newest, one.used)
    reading: TopicReading = (
        "thin" if one.memories <= MAX_THIN_MEMORIES else "stale" if now - fresh > STALE_AFTER_S else "well covered"
    )
    return Topic(
        one.topic,
        reading,
        one.memories,
        _to_days(now - one.newest) if one.memories else None,
        _to_days(now - one.used) if one.used else None,
        round(one.strength, 3),
        against.get(one.topic, 0),
        evidence,
    )


def _to_days(seconds: float) -> float:
    return round(max(0.0, seconds) / SECONDS_PER_DAY, 1)


async def _add_evidence(tx: Transaction, only: Filter, one: Topic) -> Topic:
    chosen = tuple(await topic_rows.list_topic_evidence(tx, only, one.topic, MAX_EVIDENCE))
    return Topic(**{name: getattr(one, name) for name in Topic.__dataclass_fields__} | {"evidence": chosen})


async def _assess_topic(store: Store, only: Filter, topic: str, now: float) -> Topic:
    """Return what is known about one topic."""

    async def find_by_tag(tx: Transaction) -> Topic | None:
        found = await topic_rows.fetch_topic_coverage(tx, only, now, HALF_LIFE_S, topic)
        if not found:
            return None
        against = await topic_rows.count_tags_of_memories(tx, only, await topic_rows.list_contradicting_ids(tx, only))
        return await _add_evidence(tx, only, _create_topic(found[0], now, against))

    if (known := await store.database.read(find_by_tag)) is not None:
        return known
    # Not as a use of what is found: to ask what one knows is not to recall it.
    hits = await recall(store, Query(topic, only, MAX_TOPIC_HITS, min_score=MIN_TOPIC_SCORE), used=False)

    async def find_by_search(tx: Transaction) -> Topic:
        numbers = await scopes.fetch_visible_ids(tx, only.scope)
        ids = [hit.id for hit in hits]
        ages: Any = await rows.fetch_memory_ages(tx, numbers, ids)
        happened, strength, used = ages.T if len(ids) else ([0.0], [0.0], [0.0])
        one = TopicCoverage(topic, len(ids), float(max(happened)), float(max(used)), float(sum(strength)))
        against = {topic: len(await topic_rows.list_contradicting_ids(tx, only) & {*ids})}
        return _create_topic(one, now, against, tuple(ids[:MAX_EVIDENCE]))

    return await store.database.read(find_by_search)
