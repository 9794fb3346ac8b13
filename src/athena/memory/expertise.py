"""What the store knows well, what it hardly knows, and what may be out of date: topic by topic, with the evidence."""

from dataclasses import dataclass
from typing import Any, Literal

from athena.core.scope import Scope
from athena.memory import inputs, rows, topic_rows
from athena.memory.ranking import HALF_LIFE
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.topic_rows import Coverage
from athena.memory.values import Filter
from athena.storage import scopes
from athena.storage.database import Transaction

Reading = Literal["well covered", "thin", "stale"]
DAY = 86_400.0
FEW = 3  # memories of a topic that are thin
OLD = 90 * DAY  # a topic of which nothing was kept or recalled for so long is stale
SHOWN = 5  # memories named as evidence
LOOKED_AT = 50  # memories found for a topic that is no tag
FITS = 0.5  # how well a memory must fit such a topic


@dataclass(frozen=True, slots=True)
class Topic:
    topic: str
    reading: Reading
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


async def survey(store: Store, scope: Scope, topic: str | None, limit: int) -> Expertise:
    """Return what is known about each topic, or about one: a tag, else what a search finds for it."""
    now, only = store.clock(), Filter(scope)
    if topic is not None:
        return _sorted([await _about(store, only, inputs.question(topic), now)], limit)

    async def work(tx: Transaction) -> Expertise:
        against = await topic_rows.tags_of(tx, only, await topic_rows.contradicting(tx, only))
        found = [_topic(one, now, against) for one in await topic_rows.covered(tx, only, now, HALF_LIFE)]
        made = _sorted(found, limit)
        parts = [[await _with_evidence(tx, only, one) for one in part] for part in _parts(made)]
        return Expertise(made.topics, *map(tuple, parts))

    return await store.database.read(work)


def _parts(made: Expertise) -> tuple[tuple[Topic, ...], ...]:
    return made.well_covered, made.thin, made.stale


def _sorted(found: list[Topic], limit: int) -> Expertise:
    """Put topics under their readings: the best covered first, of the thin and the stale the most recalled first."""
    covered = [one for one in found if one.reading == "well covered"]
    thin, stale = ([one for one in found if one.reading == reading] for reading in ("thin", "stale"))
    for part in (thin, stale):
        part.sort(key=lambda one: (-one.strength, one.days_since_newest or 0.0, one.topic))
    return Expertise(len(found), *(tuple(part[:limit]) for part in (covered, thin, stale)))


def _topic(one: Coverage, now: float, against: dict[str, int], evidence: tuple[int, ...] = ()) -> Topic:
    fresh = max(one.newest, one.used)
    reading: Reading = "thin" if one.memories <= FEW else "stale" if now - fresh > OLD else "well covered"
    return Topic(
        one.topic,
        reading,
        one.memories,
        _days(now - one.newest) if one.memories else None,
        _days(now - one.used) if one.used else None,
        round(one.strength, 3),
        against.get(one.topic, 0),
        evidence,
    )


def _days(seconds: float) -> float:
    return round(max(0.0, seconds) / DAY, 1)


async def _with_evidence(tx: Transaction, only: Filter, one: Topic) -> Topic:
    chosen = tuple(await topic_rows.evidence(tx, only, one.topic, SHOWN))
    return Topic(**{name: getattr(one, name) for name in Topic.__dataclass_fields__} | {"evidence": chosen})


async def _about(store: Store, only: Filter, topic: str, now: float) -> Topic:
    """Return what is known about one topic."""

    async def by_tag(tx: Transaction) -> Topic | None:
        found = await topic_rows.covered(tx, only, now, HALF_LIFE, topic)
        if not found:
            return None
        against = await topic_rows.tags_of(tx, only, await topic_rows.contradicting(tx, only))
        return await _with_evidence(tx, only, _topic(found[0], now, against))

    if (known := await store.database.read(by_tag)) is not None:
        return known
    # Not as a use of what is found: to ask what one knows is not to recall it.
    hits = await recall(store, Query(topic, only, LOOKED_AT, min_score=FITS), used=False)

    async def by_search(tx: Transaction) -> Topic:
        numbers = await scopes.visible(tx, only.scope)
        ids = [hit.id for hit in hits]
        ages: Any = await rows.ages(tx, numbers, ids)
        happened, strength, used = ages.T if len(ids) else ([0.0], [0.0], [0.0])
        one = Coverage(topic, len(ids), float(max(happened)), float(max(used)), float(sum(strength)))
        against = {topic: len(await topic_rows.contradicting(tx, only) & {*ids})}
        return _topic(one, now, against, tuple(ids[:SHOWN]))

    return await store.database.read(by_search)
