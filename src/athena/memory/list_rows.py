"""SQL of lists: memories by time, their number, their tags. A page costs what it returns, not what the store holds."""

import json
from dataclasses import replace
from typing import NamedTuple

from athena.memory.rows import fetch_memories, note_scope_marks
from athena.memory.values import Memory
from athena.storage import counts, privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, bind_list, build_condition, build_where_clause, tag_key


class Position(NamedTuple):
    """A place in a list by time: after the memory that happened then and has this id."""

    happened: float
    id: int


async def count_memories(tx: Transaction, criteria: Filter, *, is_shown: bool = True) -> int:
    """Count the matching memories; unless `is_shown` is false, the number marks the run that asks for it."""
    scope_ids = await scopes.fetch_visible_ids(tx, criteria.scope)
    if is_shown:
        await _note_counted(tx, criteria, scope_ids)
    if (count := await counts.fetch_count(tx, criteria, scope_ids)) is not None:
        return count
    condition, values = build_where_clause(criteria, scope_ids)
    [(count,)] = await tx.fetch(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return int(count)


async def _note_counted(tx: Transaction, criteria: Filter, scope_ids: list[int]) -> None:
    """Mark the run by what it counts: how many there are with a name or at a time may be a message of another one."""
    if not privacy.is_watched() or replace(criteria, excluded_type=None).is_unrestricted:
        return
    condition, values = build_where_clause(criteria, scope_ids)
    rows = await tx.fetch(
        f"SELECT m.private FROM memories m WHERE {condition} AND m.private <> '' GROUP BY m.private", **values
    )
    for (private,) in rows:
        privacy.note_read(private)


async def list_own_memory_ids(tx: Transaction, criteria: Filter) -> list[int]:
    """Return the matching memories of the project itself, without those of the user's shared project."""
    condition, values = build_where_clause(criteria, await scopes.fetch_own_ids(tx, criteria.scope))
    found = await tx.fetch(f"SELECT m.id, m.private FROM memories m WHERE {condition}", **values)
    for _, private in found:  # how many there are is an answer, too
        privacy.note_read(private)
    return [row[0] for row in found]


async def list_newest_memories(
    tx: Transaction, criteria: Filter, limit: int, offset: int = 0, after: Position | None = None
) -> list[Memory]:
    timed = await list_memories_by_time(tx, criteria, limit, offset, after=after)
    return [memory for _, memory in timed]


async def list_memories_by_time(
    tx: Transaction,
    criteria: Filter,
    limit: int,
    offset: int = 0,
    *,
    after: Position | None = None,
    oldest: bool = False,
    longest: int | None = None,
) -> list[tuple[float, Memory]]:
    """Return memories with the time they happened, the newest first, or the oldest; `longest` as `fetch_memories`."""
    scope_ids = await scopes.fetch_visible_ids(tx, criteria.scope)
    if not scope_ids:
        return []
    if offset:  # how many rows the page skips is an answer, too
        await _note_counted(tx, criteria, scope_ids)
    page = await _list_page(tx, criteria, scope_ids, limit, offset, after, oldest)
    ids = [memory_id for _, memory_id in page]  # only these are read, since each may be long
    memories = await fetch_memories(tx, scope_ids, ids, include_deleted=True, longest=longest)
    return [(happened, memories[memory_id]) for happened, memory_id in page]


async def list_ids_by_time(tx: Transaction, criteria: Filter, limit: int) -> list[int]:
    """Return the ids of the newest memories."""
    scope_ids = await scopes.fetch_visible_ids(tx, criteria.scope)
    page = await _list_page(tx, criteria, scope_ids, limit, 0, None, False) if scope_ids else []
    return [memory_id for _, memory_id in page]


async def _list_page(
    tx: Transaction,
    criteria: Filter,
    scope_ids: list[int],
    limit: int,
    offset: int,
    after: Position | None,
    oldest: bool,
) -> list[tuple[float, int]]:
    """Return time and id of a page. Each scope, and each of several tags, is read in the order of its index."""
    order, beyond = ("ASC", ">") if oldest else ("DESC", "<")
    rest, values = build_condition(criteria)
    is_filtered = bool(values)
    tags = list(dict.fromkeys(map(tag_key, criteria.tags)))
    if len(tags) > 1 and criteria.match == "all":  # the rarest leads, the others are looked up
        numbers = {tag: sum(n for _, n in await counts.fetch_tags(tx, scope_ids, tag)) for tag in tags}
        tags.sort(key=lambda tag: numbers[tag])
        others, bound = bind_list("other", tags[1:])
        values |= bound
        lookup = "SELECT count(*) FROM tags o WHERE o.scope = t.scope AND o.memory = t.memory AND o.tag IN"
        in_all = f"AND ({lookup} ({others})) = {len(tags) - 1}"
        tags = tags[:1]
    else:
        in_all = ""
    values |= {f"tag{i}": tag for i, tag in enumerate(tags)}
    if after is not None:
        values |= {"after_time": after.happened, "after_id": after.id}
    queries = []
    for scope_id in scope_ids:
        if not tags:
            keyset = f"AND (m.happened, m.id) {beyond} (:after_time, :after_id)" if after else ""
            queries.append(
                f"SELECT m.happened AS at, m.id AS id FROM memories m WHERE m.scope = {scope_id} AND {rest} {keyset}"
            )
        for i in range(len(tags)):
            keyset = f"AND (t.happened, t.memory) {beyond} (:after_time, :after_id)" if after else ""
            join = f"JOIN memories m ON m.scope = t.scope AND m.id = t.memory AND {rest}" if is_filtered else ""
            queries.append(
                f"""SELECT t.happened AS at, t.memory AS id FROM tags t {join}
                    WHERE t.scope = {scope_id} AND t.tag = :tag{i} {in_all} {keyset}"""
            )
    union = " UNION " if len(tags) > 1 else " UNION ALL "  # a memory may have several of the tags
    rows = await tx.fetch(
        f"{union.join(queries)} ORDER BY at {order}, id {order} LIMIT :limit OFFSET :offset",
        limit=limit,
        offset=offset,
        **values,
    )
    return [(happened, memory_id) for happened, memory_id in rows]


async def count_tags(tx: Transaction, scope_ids: list[int]) -> list[tuple[str, int]]:
    """Return the tags in use as their newest memory spells them, the most used first."""
    await note_scope_marks(tx, scope_ids)
    spellings: dict[str, str] = {}
    for scope_id in reversed(scope_ids):  # the project's own spelling counts
        rows = await tx.fetch(
            """SELECT c.name, (SELECT m.tags FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
                   WHERE t.scope = :scope AND t.tag = c.name ORDER BY t.happened DESC, t.memory DESC LIMIT 1)
               FROM (SELECT DISTINCT name FROM counts WHERE scope = :scope AND facet = 'tag' AND memories <> 0) c""",
            scope=scope_id,
        )
        for name, tags in rows:
            spellings[name] = next((tag for tag in json.loads(tags or "[]") if tag_key(tag) == name), name)
    used = [(spellings.get(name, name), count) for name, count in await counts.fetch_tags(tx, scope_ids)]
    return sorted(used, key=lambda pair: (-pair[1], pair[0]))
