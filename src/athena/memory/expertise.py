"""Survey the knowledge of a project by topic: well covered, thin or stale, with the evidence."""

from dataclasses import dataclass, replace
from typing import Literal

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
MAX_THIN_MEMORIES = 3  # a topic with no more than this is thin
STALE_AFTER_S = 90 * SECONDS_PER_DAY  # since a memory of the topic was last stored or recalled
MAX_EVIDENCE = 5
MAX_TOPIC_HITS = 50  # memories that a search for a topic that is no tag may find
MIN_TOPIC_SCORE = 0.5  # of a hit that counts for such a topic


@dataclass(frozen=True, slots=True)
class Topic:
    topic: str
    reading: TopicReading
    memories: int
    days_since_newest: float | None
    days_since_recalled: float | None
    strength: float  # the sum over its memories: how often and how lately they were recalled
    contradicted: int  # of its memories, those that contradict another
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Expertise:
    topics: int  # in all
    well_covered: tuple[Topic, ...]
    thin: tuple[Topic, ...]
    stale: tuple[Topic, ...]


async def survey_topics(store: Store, scope: Scope, topic: str | None, limit: int) -> Expertise:
    """Assess every tag, or one topic: a tag, else the hits of a search."""
    now, criteria = store.clock(), Filter(scope)
    if topic is not None:
        return _group_topics([await _assess_topic(store, criteria, inputs.clean_query(topic), now)], limit)

    async def read_topics(tx: Transaction) -> Expertise:
        visible = await scopes.fetch_visible_ids(tx, scope)
        contradicting = await topic_rows.list_contradicting_ids(tx, visible)
        contradicted = await topic_rows.count_tags_of_memories(tx, visible, contradicting)
        recalled = await topic_rows.list_recalled_by_tag(tx, visible, now, HALF_LIFE_S)
        coverage = await topic_rows.fetch_topic_coverage(tx, visible, recalled)
        survey = _group_topics([_create_topic(item, now, contradicted) for item in coverage], limit)
        groups = [
            tuple([await _add_evidence(tx, scope, topic, recalled) for topic in group])
            for group in (survey.well_covered, survey.thin, survey.stale)
        ]
        return Expertise(survey.topics, *groups)

    return await store.database.read(read_topics)


def _group_topics(topics: list[Topic], limit: int) -> Expertise:
    """Group topics by their reading: the best covered first, of the thin and the stale the most recalled first."""
    groups: dict[TopicReading, list[Topic]] = {"well covered": [], "thin": [], "stale": []}
    for topic in topics:
        groups[topic.reading].append(topic)
    for reading in ("thin", "stale"):
        groups[reading].sort(key=lambda topic: (-topic.strength, topic.days_since_newest or 0.0, topic.topic))
    return Expertise(len(topics), *(tuple(group[:limit]) for group in groups.values()))


def _create_topic(
    coverage: TopicCoverage, now: float, contradicted: dict[str, int], evidence: tuple[int, ...] = ()
) -> Topic:
    reading: TopicReading = "well covered"
    if coverage.memories <= MAX_THIN_MEMORIES:
        reading = "thin"
    elif now - max(coverage.newest, coverage.used) > STALE_AFTER_S:
        reading = "stale"
    return Topic(
        coverage.topic,
        reading,
        coverage.memories,
        _to_days(now - coverage.newest) if coverage.memories else None,
        _to_days(now - coverage.used) if coverage.used else None,
        round(coverage.strength, 3),
        contradicted.get(coverage.topic, 0),
        evidence,
    )


def _to_days(seconds: float) -> float:
    return round(max(0.0, seconds) / SECONDS_PER_DAY, 1)


async def _add_evidence(
    tx: Transaction, scope: Scope, topic: Topic, recalled: dict[str, list[topic_rows.RecalledRow]]
) -> Topic:
    ids = await topic_rows.list_topic_evidence(tx, scope, topic.topic, recalled.get(topic.topic, []), MAX_EVIDENCE)
    return replace(topic, evidence=tuple(ids))


async def _assess_topic(store: Store, criteria: Filter, topic: str, now: float) -> Topic:
    """Assess one topic: by its tag, or if there is no such tag by a search."""

    async def find_by_tag(tx: Transaction) -> Topic | None:
        visible = await scopes.fetch_visible_ids(tx, criteria.scope)
        recalled = await topic_rows.list_recalled_by_tag(tx, visible, now, HALF_LIFE_S)
        coverage = await topic_rows.fetch_topic_coverage(tx, visible, recalled, topic)
        if not coverage:
            return None
        contradicting = await topic_rows.list_contradicting_ids(tx, visible)
        contradicted = await topic_rows.count_tags_of_memories(tx, visible, contradicting)
        return await _add_evidence(tx, criteria.scope, _create_topic(coverage[0], now, contradicted), recalled)

    if (tagged := await store.database.read(find_by_tag)) is not None:
        return tagged
    # used=False: asking about coverage must not count as a recall.
    question = Query(topic, criteria, MAX_TOPIC_HITS, min_score=MIN_TOPIC_SCORE, longest=1)
    hits = await recall(store, question, used=False)

    async def find_by_search(tx: Transaction) -> Topic:
        ids = [hit.id for hit in hits]
        visible = await scopes.fetch_visible_ids(tx, criteria.scope)
        ages = await rows.fetch_memory_ages(tx, visible, ids)
        happened, strength, used = ages.T if ids else ([0.0], [0.0], [0.0])
        coverage = TopicCoverage(topic, len(ids), float(max(happened)), float(max(used)), float(sum(strength)))
        contradicting = await topic_rows.list_contradicting_ids(tx, visible)
        return _create_topic(coverage, now, {topic: len(contradicting & {*ids})}, tuple(ids[:MAX_EVIDENCE]))

    return await store.database.read(find_by_search)
