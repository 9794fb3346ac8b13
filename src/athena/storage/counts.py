"""SQL of the kept counts: how many live memories a scope has by type, by tag and by day.

To count rows costs more the more there are. Whoever changes a memory counts it out before and in after it. The
statements write single values, because after INSERT ... SELECT SQLite makes FTS5 flush.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, split_batches, tag_key

SECONDS_PER_DAY = 86_400
COLUMNS = "scope, facet, name, memories, characters, occurrences, in_session"
RECOUNT_SQL = (
    """SELECT scope, 'type', memory_type, count(*), sum(length(content)), sum(occurrences), count(session)
       FROM memories WHERE deleted IS NULL GROUP BY scope, memory_type""",
    f"""SELECT scope, 'day', CAST(floor(happened / {SECONDS_PER_DAY}) AS BIGINT) || '', count(*), 0, 0, 0
        FROM memories WHERE deleted IS NULL GROUP BY 1, 3""",
    "SELECT scope, 'tag', tag, count(*), 0, 0, 0 FROM tags GROUP BY scope, tag",
)


class TypeCount(NamedTuple):
    memory_type: str
    memories: int
    characters: int
    occurrences: int
    in_session: int


class CountedMemory(NamedTuple):
    """What the counts hold of one live memory."""

    memory_type: str
    characters: int
    occurrences: int
    in_session: int
    happened: float


# What people call the rows of each kind; an entity's rows are itself and what was observed of it.
KIND_NAMES = {
    "memory": "memories",
    "event": "events",
    "task": "tasks",
    "entity": "entities",
    "observation": "observations",
    "pattern": "patterns",
    "skill": "skills",
    "rule": "learning rules",
}


def name_kind(kind: str, is_observation: bool) -> str:
    """Return what people call rows of a kind, in the plural."""
    return KIND_NAMES["observation" if kind == "entity" and is_observation else kind]


async def count_kinds(tx: Transaction, *, forgotten: bool = False) -> dict[str, int]:
    """Count what the whole store has of each kind, memories always; with `forgotten` also what was forgotten."""
    rows = await tx.fetch(
        f"""SELECT s.kind, CASE WHEN m.session IS NULL THEN 0 ELSE 1 END, count(*)
            FROM memories m JOIN scopes s ON s.id = m.scope {"" if forgotten else "WHERE m.deleted IS NULL"}
            GROUP BY 1, 2"""
    )
    found = {"memories": 0}
    for kind, is_observation, count in rows:
        name = name_kind(kind, bool(is_observation))
        found[name] = found.get(name, 0) + int(count)
    return {name: found[name] for name in KIND_NAMES.values() if name in found}


async def count_new(tx: Transaction, scope: int, memory: CountedMemory, tags: Iterable[str]) -> None:
    """Add a memory that has just been inserted to the counts."""
    await _add_up(tx, scope, [memory], list(map(tag_key, tags)), 1)


async def count_in(tx: Transaction, scope: int, ids: list[int]) -> None:
    """Add memories to the counts, as far as they are live, with their tags."""
    await _change_counts(tx, scope, ids, 1)


async def count_out(tx: Transaction, scope: int, ids: list[int]) -> None:
    """Subtract memories from the counts, as far as they are live, with their tags."""
    await _change_counts(tx, scope, ids, -1)


async def _change_counts(tx: Transaction, scope: int, ids: list[int], sign: int) -> None:
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        memories = await tx.fetch(
            f"""SELECT memory_type, length(content), occurrences, CASE WHEN session IS NULL THEN 0 ELSE 1 END, happened
                FROM memories WHERE scope = :scope AND id IN ({names}) AND deleted IS NULL""",
            scope=scope,
            **bound,
        )
        tags = await tx.fetch(
            f"SELECT tag FROM tags WHERE scope = :scope AND memory IN ({names})", scope=scope, **bound
        )
        await _add_up(tx, scope, [CountedMemory(*row) for row in memories], [tag for (tag,) in tags], sign)


async def count_occurrence(tx: Transaction, scope: int, memory_type: str) -> None:
    """Count that a live memory was stored once more."""
    await _insert_changes(tx, scope, {("type", memory_type): [0, 0, 1, 0]})


async def _add_up(tx: Transaction, scope: int, memories: list[CountedMemory], tags: list[str], sign: int) -> None:
    changes: dict[tuple[str, str], list[int]] = {}
    for memory_type, characters, occurrences, in_session, happened in memories:
        sums = changes.setdefault(("type", memory_type), [0, 0, 0, 0])
        sums[:] = sums[0] + sign, sums[1] + sign * characters, sums[2] + sign * occurrences, sums[3] + sign * in_session
        changes.setdefault(("day", str(get_day(happened))), [0, 0, 0, 0])[0] += sign
    for tag in tags:
        changes.setdefault(("tag", tag), [0, 0, 0, 0])[0] += sign
    await _insert_changes(tx, scope, changes)


async def _insert_changes(tx: Transaction, scope: int, changes: dict[tuple[str, str], list[int]]) -> None:
    await tx.execute_many(
        f"""INSERT INTO counts ({COLUMNS})
            VALUES (:scope, :facet, :name, :memories, :characters, :occurrences, :in_session) {tx.add_up_sql}""",
        [
            {
                "scope": scope,
                "facet": facet,
                "name": name,
                "memories": memories,
                "characters": characters,
                "occurrences": occurrences,
                "in_session": in_session,
            }
            for (facet, name), (memories, characters, occurrences, in_session) in changes.items()
        ],
    )


def get_day(happened: float) -> int:
    """Return the number of a time's day since 1970, in UTC."""
    return math.floor(happened / SECONDS_PER_DAY)


async def forget_empty(tx: Transaction) -> None:
    """Delete the names that no memory has any more: a purge leaves no trace of them."""
    rows = await tx.fetch("SELECT scope, facet, name FROM counts GROUP BY scope, facet, name HAVING sum(memories) = 0")
    await tx.execute_many(
        "DELETE FROM counts WHERE scope = :scope AND facet = :facet AND name = :name",
        [{"scope": scope, "facet": facet, "name": name} for scope, facet, name in rows],
    )


async def recount_all(tx: Transaction) -> None:
    """Count all memories of the store anew."""
    await tx.execute("DELETE FROM counts")
    for query in RECOUNT_SQL:
        await tx.execute(f"INSERT INTO counts ({COLUMNS}) {query}")


async def list_all(tx: Transaction) -> list[tuple[tuple[int, str, str], list[int]]]:
    """Return the counts of the whole store by scope, facet and name."""
    rows = await tx.fetch(
        """SELECT scope, facet, name, sum(memories), sum(characters), sum(occurrences), sum(in_session)
           FROM counts GROUP BY scope, facet, name"""
    )
    return [((scope, facet, name), [int(number) for number in numbers]) for scope, facet, name, *numbers in rows]


async def fetch_types(tx: Transaction, scope_ids: list[int]) -> list[TypeCount]:
    """Return the live memories of scopes by type, the most first."""
    names, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT name, sum(memories), sum(characters), sum(occurrences), sum(in_session) FROM counts
            WHERE scope IN ({names}) AND facet = 'type' GROUP BY name HAVING sum(memories) > 0 ORDER BY 2 DESC, 1""",
        **bound,
    )
    return [TypeCount(name, *map(int, numbers)) for name, *numbers in rows]


async def fetch_tags(tx: Transaction, scope_ids: list[int], tag: str | None = None) -> list[tuple[str, int]]:
    """Return the tags of live memories, or one of them, each with its number of memories, the most first."""
    names, bound = bind_list("scope", scope_ids)
    condition = "" if tag is None else "AND name = :tag"
    rows = await tx.fetch(
        f"""SELECT name, sum(memories) FROM counts WHERE scope IN ({names}) AND facet = 'tag' {condition}
            GROUP BY name HAVING sum(memories) > 0 ORDER BY 2 DESC, 1""",
        **bound,
        **({} if tag is None else {"tag": tag_key(tag)}),
    )
    return [(name, int(count)) for name, count in rows]


async def fetch_live_counts(tx: Transaction, scope_ids: list[int]) -> dict[int, tuple[int, int]]:
    """Return for each scope its live memories, and how many of them are in a session."""
    names, bound = bind_list("scope", scope_ids)
    rows = await tx.fetch(
        f"""SELECT scope, sum(memories), sum(in_session) FROM counts WHERE scope IN ({names}) AND facet = 'type'
            GROUP BY scope""",
        **bound,
    )
    return {scope: (int(memories), int(in_session)) for scope, memories, in_session in rows}


async def count_since(tx: Transaction, scope_ids: list[int], start: float) -> int:
    """Count the live memories from a time on: whole days by their counts, and the rest of its first day."""
    names, bound = bind_list("scope", scope_ids)
    day = get_day(start)
    (days,) = await tx.fetch_required(
        f"""SELECT coalesce(sum(memories), 0) FROM counts WHERE scope IN ({names}) AND facet = 'day'
            AND CAST(name AS BIGINT) > :day""",
        day=day,
        **bound,
    )
    first_day = 0
    for scope in scope_ids:  # one by one, so that each uses its index
        (count,) = await tx.fetch_required(
            """SELECT count(*) FROM memories WHERE scope = :scope AND deleted IS NULL
               AND happened >= :start AND happened < :end""",
            scope=scope,
            start=start,
            end=float((day + 1) * SECONDS_PER_DAY),
        )
        first_day += int(count)
    return int(days) + first_day


async def fetch_count(tx: Transaction, criteria: Filter, scope_ids: list[int]) -> int | None:
    """Return how many memories a filter lets through, where the counts tell it; else None."""
    if (criteria.since, criteria.until, criteria.session) != (None, None, None):
        return None
    types = (criteria.memory_type, criteria.excluded_type)
    if criteria.tags:
        keys = {tag_key(tag) for tag in criteria.tags}
        if len(keys) > 1 or types != (None, None):
            return None
        return sum(count for _, count in await fetch_tags(tx, scope_ids, keys.pop()))
    wanted, excluded = types
    return sum(
        count.memories
        for count in await fetch_types(tx, scope_ids)
        if wanted in (None, count.memory_type) and excluded != count.memory_type
    )
