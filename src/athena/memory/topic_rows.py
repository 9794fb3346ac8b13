"""SQL of topics: how many memories each tag has, how often they are used, and which contradict each other."""

from collections import Counter
from typing import NamedTuple

from athena.memory.rows import (
    CONTRADICTED_BY,
    FROM_MEMORIES,
    MEMORY_COLUMNS,
    fetch_memories,
    join_ids,
    memory_from_row,
    note_scope_marks,
)
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches, tag_key

# A memory's strength as it has decayed until now.
CURRENT_STRENGTH_SQL = "m.strength * power(2.0, -(CASE WHEN m.used > :now THEN 0 ELSE :now - m.used END) / :half_life)"


class TopicCoverage(NamedTuple):
    """The memories about a topic: their count and ages."""

    topic: str
    memories: int
    newest: float
    used: float  # when one of them was last recalled; 0 for never
    strength: float  # the sum over its memories


async def fetch_topic_coverage(
    tx: Transaction, criteria: Filter, now: float, half_life: float, topic: str | None = None
) -> list[TopicCoverage]:
    """Return the coverage of every tag, or of one, the most memories first."""
    visible = await scopes.fetch_visible_ids(tx, criteria.scope)
    await note_scope_marks(tx, visible)
    condition, values = build_where_clause(criteria, visible)
    if topic is not None:
        condition += f" AND t.scope IN ({join_ids(visible)}) AND t.tag = :topic"
        values |= {"topic": tag_key(topic)}
    rows = await tx.fetch(
        f"""SELECT t.tag, count(*), max(m.happened), max(m.used), sum({CURRENT_STRENGTH_SQL})
            FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
            WHERE {condition} GROUP BY t.tag ORDER BY 2 DESC, 1""",
        now=now,
        half_life=half_life,
        **values,
    )
    return [
        TopicCoverage(tag, int(count), float(newest), float(used), float(strength))
        for tag, count, newest, used, strength in rows
    ]


async def list_contradicting_ids(tx: Transaction, criteria: Filter) -> set[int]:
    """Return the live memories on either side of a contradiction."""
    visible = await scopes.fetch_visible_ids(tx, criteria.scope)
    rows = await tx.fetch(
        f"SELECT memory, other FROM links WHERE scope IN ({join_ids(visible)}) AND relation LIKE 'contradict%'"
    )
    return set(await fetch_memories(tx, visible, {memory_id for row in rows for memory_id in row}))


async def fetch_contradictions(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, list[int]]:
    """Return those of the memories that are contradicted, each with the newer ones that contradict it."""
    contradictions: dict[int, list[int]] = {}
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT l.memory, l.other FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.other
                WHERE l.scope IN ({join_ids(scope_ids)}) AND l.memory IN ({names}) AND l.relation = :relation
                  AND m.deleted IS NULL ORDER BY l.memory, l.at, l.other""",
            relation=CONTRADICTED_BY,
            **bound,
        )
        for memory_id, other_id in rows:
            contradictions.setdefault(memory_id, []).append(other_id)
    return contradictions


async def count_tags_of_memories(tx: Transaction, criteria: Filter, ids: set[int]) -> dict[str, int]:
    """Return for each tag how many of these memories have it."""
    visible = join_ids(await scopes.fetch_visible_ids(tx, criteria.scope))
    counts: Counter[str] = Counter()
    for batch in split_batches(sorted(ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(f"SELECT tag FROM tags WHERE scope IN ({visible}) AND memory IN ({names})", **bound)
        counts.update(row[0] for row in rows)
    return dict(counts)


async def list_topic_evidence(tx: Transaction, criteria: Filter, topic: str, limit: int) -> list[int]:
    """Return the memories with a tag, the most recalled and then the newest first."""
    visible = join_ids(await scopes.fetch_visible_ids(tx, criteria.scope))
    rows = await tx.fetch(
        f"""SELECT m.id FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
            WHERE t.scope IN ({visible}) AND t.tag = :tag AND m.deleted IS NULL
            ORDER BY m.strength DESC, m.happened DESC, m.id DESC LIMIT :limit""",
        tag=tag_key(topic),
        limit=limit,
    )
    return [row[0] for row in rows]


async def list_most_recalled(
    tx: Transaction, criteria: Filter, now: float, half_life: float, limit: int
) -> list[tuple[float, float, Memory]]:
    """Return the most recalled memories, each with its strength and when it was last used."""
    condition, values = build_where_clause(criteria, await scopes.fetch_visible_ids(tx, criteria.scope))
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS}, {CURRENT_STRENGTH_SQL} AS felt, m.used {FROM_MEMORIES}
            WHERE {condition} AND m.strength > 0 ORDER BY felt DESC, m.id LIMIT :limit""",
        now=now,
        half_life=half_life,
        limit=limit,
        **values,
    )
    return [(strength, used, memory_from_row(tuple(memory))) for *memory, strength, used in rows]
