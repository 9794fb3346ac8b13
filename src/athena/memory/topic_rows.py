"""SQL of topics: how many memories each tag has, how often they are used, and which contradict each other."""

from collections import Counter
from typing import NamedTuple

from athena.core.values import Scope
from athena.memory import list_rows
from athena.memory.rows import CONTRADICTED_BY, fetch_memories, join_ids, note_scope_marks
from athena.memory.values import Memory
from athena.storage import counts, privacy
from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, split_batches, tag_key

# A memory's strength as it has decayed until now.
CURRENT_STRENGTH_SQL = "m.strength * power(2.0, -(CASE WHEN m.used > :now THEN 0 ELSE :now - m.used END) / :half_life)"


class TopicCoverage(NamedTuple):
    """The memories about a topic: their count and ages."""

    topic: str
    memories: int
    newest: float
    used: float  # when one of them was last recalled; 0 for never
    strength: float  # the sum over its memories


class RecalledRow(NamedTuple):
    """A memory that was recalled, with one of its tags."""

    tag: str
    memory: int
    strength: float  # as of `used`
    current_strength: float
    used: float
    happened: float


async def list_recalled_by_tag(
    tx: Transaction, scope_ids: list[int], now: float, half_life: float
) -> dict[str, list[RecalledRow]]:
    """Return the memories that were ever recalled by each of their tags, the strongest and then the newest first."""
    rows = await tx.fetch(
        f"""SELECT t.tag, m.id, m.strength, {CURRENT_STRENGTH_SQL}, m.used, m.happened
            FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
            WHERE m.scope IN ({join_ids(scope_ids)}) AND m.deleted IS NULL AND m.strength > 0
            ORDER BY m.strength DESC, m.happened DESC, m.id DESC""",
        now=now,
        half_life=half_life,
    )
    recalled: dict[str, list[RecalledRow]] = {}
    for row in rows:
        recalled.setdefault(row[0], []).append(RecalledRow(*row))
    return recalled


async def fetch_topic_coverage(
    tx: Transaction, scope_ids: list[int], recalled: dict[str, list[RecalledRow]], topic: str | None = None
) -> list[TopicCoverage]:
    """Return the coverage of every tag, or of one, the most memories first."""
    await note_scope_marks(tx, scope_ids)
    condition, values = ("", {}) if topic is None else ("AND name = :topic", {"topic": tag_key(topic)})
    newest: dict[str, float] = {}
    for scope_id in scope_ids:  # one by one: the newest of a tag is then one lookup
        rows = await tx.fetch(
            f"""SELECT c.name, (SELECT max(t.happened) FROM tags t WHERE t.scope = {scope_id} AND t.tag = c.name)
                FROM (SELECT DISTINCT name FROM counts WHERE scope = {scope_id} AND facet = 'tag' {condition}) c""",
            **values,
        )
        newest |= {tag: max(at, newest.get(tag, at)) for tag, at in rows if at is not None}
    coverage = []
    for tag, count in await counts.fetch_tags(tx, scope_ids, topic):
        used = recalled.get(tag, [])
        last_used = max((row.used for row in used), default=0.0)
        coverage.append(TopicCoverage(tag, count, newest[tag], last_used, sum(row.current_strength for row in used)))
    return coverage


async def list_contradicting_ids(tx: Transaction, scope_ids: list[int]) -> set[int]:
    """Return the live memories on either side of a contradiction."""
    visible = join_ids(scope_ids)
    rows = await tx.fetch(f"SELECT memory, other FROM links WHERE scope IN ({visible}) AND relation LIKE 'contradict%'")
    live: set[int] = set()
    for batch in split_batches(sorted({memory_id for row in rows for memory_id in row})):
        names, bound = bind_list("id", batch)
        for memory_id, private in await tx.fetch(
            f"SELECT id, private FROM memories WHERE scope IN ({visible}) AND id IN ({names}) AND deleted IS NULL",
            **bound,
        ):
            privacy.note_read(private)
            live.add(memory_id)
    return live


async def fetch_contradictions(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, list[int]]:
    """Return those of the memories that are contradicted, each with the newer ones that contradict it."""
    contradictions: dict[int, list[int]] = {}
    for memory_id, other_id, _ in await list_contradictions(tx, scope_ids, ids):
        contradictions.setdefault(memory_id, []).append(other_id)
    return contradictions


async def list_contradictions(tx: Transaction, scope_ids: list[int], ids: list[int]) -> list[tuple[int, int, float]]:
    """Return each link from one of the memories to a newer one that contradicts it, and its time.

    A person's words are taken back by a person's alone: whoever made the link, others count for nothing.
    """
    links: list[tuple[int, int, float]] = []
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        links += await tx.fetch(
            f"""SELECT l.memory, l.other, l.at FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.other
                JOIN memories old ON old.scope IN ({join_ids(scope_ids)}) AND old.id = l.memory
                WHERE l.scope IN ({join_ids(scope_ids)}) AND l.memory IN ({names}) AND l.relation = '{CONTRADICTED_BY}'
                  AND m.deleted IS NULL AND (old.author <> 'person' OR m.author = 'person')
                ORDER BY l.memory, l.at, l.other""",
            **bound,
        )
    return links


async def count_tags_of_memories(tx: Transaction, scope_ids: list[int], ids: set[int]) -> dict[str, int]:
    """Return for each tag how many of these memories have it."""
    numbers: Counter[str] = Counter()
    for batch in split_batches(sorted(ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"SELECT tag FROM tags WHERE scope IN ({join_ids(scope_ids)}) AND memory IN ({names})", **bound
        )
        numbers.update(row[0] for row in rows)
    return dict(numbers)


async def list_topic_evidence(
    tx: Transaction, scope: Scope, topic: str, recalled: list[RecalledRow], limit: int
) -> list[int]:
    """Return the memories with a tag, the most recalled and then the newest first."""
    ids = [row.memory for row in recalled[:limit]]
    if len(ids) < limit:
        newest = await list_rows.list_ids_by_time(tx, Filter(scope, tags=(topic,)), 2 * limit)
        ids += [memory_id for memory_id in newest if memory_id not in ids]
    return ids[:limit]


async def list_most_recalled(
    tx: Transaction, scope_ids: list[int], now: float, half_life: float, limit: int
) -> list[tuple[float, float, Memory]]:
    """Return the most recalled memories, each with its strength and when it was last used."""
    rows = await tx.fetch(
        f"""SELECT m.id, {CURRENT_STRENGTH_SQL} AS felt, m.used FROM memories m
            WHERE m.scope IN ({join_ids(scope_ids)}) AND m.deleted IS NULL AND m.strength > 0
            ORDER BY felt DESC, m.id LIMIT :limit""",
        now=now,
        half_life=half_life,
        limit=limit,
    )
    memories = await fetch_memories(tx, scope_ids, [row[0] for row in rows])
    return [(strength, used, memories[memory_id]) for memory_id, strength, used in rows]
