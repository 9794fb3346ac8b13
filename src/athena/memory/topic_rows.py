"""What a project knows about, topic by topic, and what of it is used."""

from collections import Counter
from typing import Any, NamedTuple

from athena.memory import rows as memory_rows
from athena.memory.rows import CONTRADICTED_BY, FROM_MEMORIES, MEMORY_COLUMNS
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches, tag_key

# What is left of a memory's strength by now.
CURRENT_STRENGTH_SQL = "m.strength * power(2.0, -(CASE WHEN m.used > :now THEN 0 ELSE :now - m.used END) / :half_life)"


class TopicCoverage(NamedTuple):
    """How much there is about a topic."""

    topic: str
    memories: int
    newest: float
    used: float  # when one of them was last recalled; 0 for never
    strength: float  # how often and how lately, all of them together


async def fetch_topic_coverage(
    tx: Any, only: Filter, now: float, half_life: float, topic: str | None = None
) -> list[TopicCoverage]:
    """Return every tag, or one, with what there is about it, the most first."""
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    if topic is not None:
        inside = ", ".join(map(str, await scopes.fetch_visible_ids(tx, only.scope))) or "NULL"
        condition += f" AND t.scope IN ({inside}) AND t.tag = :topic"
        values |= {"topic": tag_key(topic)}
    rows = await tx.fetch(
        f"""SELECT t.tag, count(*), max(m.happened), max(m.used), sum({CURRENT_STRENGTH_SQL})
            FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
            WHERE {condition} GROUP BY t.tag ORDER BY 2 DESC, 1""",
        now=now,
        half_life=half_life,
        **values,
    )
    return [TopicCoverage(tag, int(count), *map(float, rest)) for tag, count, *rest in rows]


async def list_contradicting_ids(tx: Any, only: Filter) -> set[int]:
    """Return the memories that are related to another as contradicting it."""
    numbers = await scopes.fetch_visible_ids(tx, only.scope)
    inside = ", ".join(map(str, numbers)) or "NULL"
    rows = await tx.fetch(f"SELECT memory, other FROM links WHERE scope IN ({inside}) AND relation LIKE 'contradict%'")
    return set(await memory_rows.fetch_memories(tx, numbers, {number for row in rows for number in row}))


async def fetch_contradictions(tx: Any, scope_numbers: list[int], numbers: list[int]) -> dict[int, list[int]]:
    """Return which of these memories are contradicted, each with the newer ones that do it."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: dict[int, list[int]] = {}
    for piece in split_batches(numbers):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"""SELECT l.memory, l.other FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.other
                WHERE l.scope IN ({inside}) AND l.memory IN ({names}) AND l.relation = :relation
                  AND m.deleted IS NULL ORDER BY l.memory, l.at, l.other""",
            relation=CONTRADICTED_BY,
            **bound,
        )
        for memory, other in rows:
            found.setdefault(memory, []).append(other)
    return found


async def count_tags_of_memories(tx: Any, only: Filter, numbers: set[int]) -> dict[str, int]:
    """Return the tags of some memories, with how many of them have each."""
    inside = ", ".join(map(str, await scopes.fetch_visible_ids(tx, only.scope))) or "NULL"
    found: Counter[str] = Counter()
    for piece in split_batches(sorted(numbers)):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(f"SELECT tag FROM tags WHERE scope IN ({inside}) AND memory IN ({names})", **bound)
        found.update(row[0] for row in rows)
    return dict(found)


async def list_topic_evidence(tx: Any, only: Filter, topic: str, limit: int) -> list[int]:
    """Return the memories of a tag, the most recalled and then the newest first."""
    numbers = ", ".join(map(str, await scopes.fetch_visible_ids(tx, only.scope))) or "NULL"
    rows = await tx.fetch(
        f"""SELECT m.id FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
            WHERE t.scope IN ({numbers}) AND t.tag = :tag AND m.deleted IS NULL
            ORDER BY m.strength DESC, m.happened DESC, m.id DESC LIMIT :limit""",
        tag=tag_key(topic),
        limit=limit,
    )
    return [row[0] for row in rows]


async def list_most_recalled(
    tx: Any, only: Filter, now: float, half_life: float, limit: int
) -> list[tuple[float, float, Memory]]:
    """Return the memories that are recalled most, with their strength and when they were last used."""
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS}, {CURRENT_STRENGTH_SQL} AS felt, m.used {FROM_MEMORIES} WHERE {condition} AND m.strength > 0
            ORDER BY felt DESC, m.id LIMIT :limit""",
        now=now,
        half_life=half_life,
        limit=limit,
        **values,
    )
    return [(row[10], row[11], memory_rows.memory_from_row(row)) for row in rows]
