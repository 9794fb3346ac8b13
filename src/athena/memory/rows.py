"""Memories, their tags and their passages. Every read names the scope it may see."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from athena.core.hashing import MIN_HASH_CHARS, count_shared_prefix
from athena.core.values import Scope
from athena.memory.values import UNFINISHED_STATES, Memory
from athena.storage import scopes
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches, tag_key

MEMORY_COLUMNS = (
    """m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, s.name"""
)
FROM_MEMORIES = "FROM memories m JOIN scopes s ON s.id = m.scope"


class Kept(NamedTuple):
    """A memory as it stands in the store."""

    memory: Memory
    scope: int
    digest: str
    label: str
    happened: float
    deleted: float | None

    def to_snapshot(self) -> dict[str, Any]:
        """What undo and history need to know of it."""
        m = self.memory
        return {
            "digest": self.digest,
            "content": m.content,
            "tags": list(m.tags),
            "memory_type": m.memory_type,
            "metadata": m.metadata,
            "importance": m.importance,
            "updated": m.updated,
            "happened": self.happened,
            "label": self.label,
            "deleted": self.deleted,
        }


def memory_from_row(row: tuple[Any, ...]) -> Memory:
    (number, short, content, tags, kind, metadata, created, updated, importance, project) = row[:10]
    return Memory(
        number,
        short,
        content,
        tuple(json.loads(tags)),
        kind,
        json.loads(metadata),
        created,
        updated,
        importance,
        project,
    )


async def count_memories(tx: Any, only: Filter) -> int:
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    row = await tx.fetch_one(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return int(row[0])


async def list_own_memory_ids(tx: Any, only: Filter) -> list[int]:
    """Return the memories of the project itself that pass a filter; what is known everywhere is left alone."""
    condition, values = build_where_clause(only, await scopes.fetch_own_ids(tx, only.scope))
    return [row[0] for row in await tx.fetch(f"SELECT m.id FROM memories m WHERE {condition}", **values)]


async def list_newest_memories(tx: Any, only: Filter, limit: int, offset: int = 0) -> list[Memory]:
    return [memory for _, memory in await list_memories_by_time(tx, only, limit, offset)]


async def list_memories_by_time(
    tx: Any, only: Filter, limit: int, offset: int = 0, *, oldest: bool = False
) -> list[tuple[float, Memory]]:
    """Return memories with when they happened, the newest first, or the oldest."""
    way = "ASC" if oldest else "DESC"
    found: list[tuple[float, int, Memory]] = []
    for number in await scopes.fetch_visible_ids(tx, only.scope):  # one by one, so that each follows its index
        condition, values = build_where_clause(only, [number])
        rows = await tx.fetch(
            f"""SELECT {MEMORY_COLUMNS}, m.happened {FROM_MEMORIES} WHERE {condition}
                ORDER BY m.happened {way}, m.id {way} LIMIT :limit""",
            limit=limit + offset,
            **values,
        )
        found += [(row[10], row[0], memory_from_row(row)) for row in rows]
    found.sort(key=lambda one: one[:2], reverse=not oldest)
    return [(happened, memory) for happened, _, memory in found[offset : offset + limit]]


async def fetch_memories(
    tx: Any, scope_numbers: list[int], numbers: Iterable[int], *, forgotten: bool = False
) -> dict[int, Memory]:
    """Return memories of these scopes by id, live ones unless told."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: dict[int, Memory] = {}
    for piece in split_batches(list(numbers)):
        names, bound = bind_list("id", piece)
        live = "" if forgotten else "AND m.deleted IS NULL"
        rows = await tx.fetch(
            f"SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE m.scope IN ({inside}) AND m.id IN ({names}) {live}", **bound
        )
        found |= {row[0]: memory_from_row(row) for row in rows}
    return found


async def find_memory_rows(tx: Any, scope_numbers: list[int], condition: str, **values: Any) -> list[Kept]:
    """Return memories in these scopes, deleted ones too, the scopes in the order given."""
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS}, m.scope, m.digest, m.label, m.happened, m.deleted {FROM_MEMORIES}
            WHERE m.scope IN ({", ".join(map(str, scope_numbers)) or "NULL"}) AND {condition}
            ORDER BY m.deleted IS NOT NULL, m.id DESC LIMIT 50""",
        **values,
    )
    kept = [Kept(memory_from_row(row), *row[10:15]) for row in rows]
    return sorted(kept, key=lambda k: (k.deleted is not None, scope_numbers.index(k.scope)))


async def list_session_memories(tx: Any, scope_numbers: list[int], session: str, kind: str) -> list[Kept]:
    """Return the live memories of one kind in a session, in the order they were stored."""
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS}, m.scope, m.digest, m.label, m.happened, m.deleted {FROM_MEMORIES}
            WHERE m.scope IN ({", ".join(map(str, scope_numbers)) or "NULL"}) AND m.session = :session
            AND m.memory_type = :kind AND m.deleted IS NULL ORDER BY m.id""",
        session=session,
        kind=kind,
    )
    return [Kept(memory_from_row(row), *row[10:15]) for row in rows]


async def count_session_memories(tx: Any, scope_numbers: list[int], kind: str) -> list[tuple[str, int, float]]:
    """Return the sessions of one kind, with how many memories each has and when the last changed."""
    rows = await tx.fetch(
        f"""SELECT session, count(*), max(updated) FROM memories
            WHERE scope IN ({", ".join(map(str, scope_numbers)) or "NULL"}) AND session IS NOT NULL
            AND memory_type = :kind AND deleted IS NULL GROUP BY session ORDER BY session""",
        kind=kind,
    )
    return [(session, int(count), updated) for session, count, updated in rows]


async def list_forgotten_ids(tx: Any, scope_numbers: list[int]) -> list[int]:
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    rows = await tx.fetch(f"SELECT id FROM memories WHERE scope IN ({inside}) AND deleted IS NOT NULL ORDER BY id")
    return [row[0] for row in rows]


async def find_known_digests(tx: Any, scope_numbers: list[int], digests: list[str]) -> set[str]:
    """Return which of these digests are live memories of the scopes."""
    found: set[str] = set()
    for piece in split_batches(digests):
        names, bound = bind_list("digest", piece)
        rows = await tx.fetch(
            f"""SELECT digest FROM memories WHERE scope IN ({", ".join(map(str, scope_numbers)) or "NULL"})
                AND digest IN ({names}) AND deleted IS NULL""",
            **bound,
        )
        found |= {row[0] for row in rows}
    return found


async def find_ids_by_old_digest(tx: Any, scope_numbers: list[int], low: str, high: str) -> list[int]:
    """Return memories that once had a text whose digest lies in this range."""
    rows = await tx.fetch(
        f"""SELECT DISTINCT memory FROM history WHERE scope IN ({", ".join(map(str, scope_numbers)) or "NULL"})
            AND digest >= :low AND digest < :high""",
        low=low,
        high=high,
    )
    return [row[0] for row in rows]


INSERT_MEMORY_SQL = """INSERT INTO memories (scope, digest, hash, content, label, tags, memory_type, metadata, session,
                                  happened, created, updated, importance)
            VALUES (:scope, :digest, :hash, :content, :label, :tags, :memory_type, :metadata, :session,
                    :happened, :created, :updated, :importance)"""


async def insert_memory(tx: Any, scope: int, fields: dict[str, Any]) -> int:
    await tx.execute(
        INSERT_MEMORY_SQL,
        scope=scope,
        hash=await _assign_short_hash(tx, scope, fields["digest"]),
        **fields,
    )
    row = await tx.fetch_one(
        "SELECT id FROM memories WHERE scope = :scope AND digest = :digest AND deleted IS NULL",
        scope=scope,
        digest=fields["digest"],
    )
    return int(row[0])


async def insert_unindexed_memory(tx: Any, scope: int, fields: dict[str, Any]) -> int:
    """Write a row that no full-text entry goes with, in one statement less."""
    short = await _assign_short_hash(tx, scope, fields["digest"])
    row = await tx.fetch_one(f"{INSERT_MEMORY_SQL} RETURNING id", scope=scope, hash=short, **fields)
    return int(row[0])


async def update_memory_row(tx: Any, kept: Kept, fields: dict[str, Any]) -> None:
    """Set columns of a memory."""
    if fields.get("digest", kept.digest) != kept.digest:
        fields["hash"] = await _assign_short_hash(tx, kept.scope, fields["digest"])
    names = ", ".join(f"{name} = :{name}" for name in fields)
    await tx.execute(
        f"UPDATE memories SET {names} WHERE scope = :scope AND id = :id", scope=kept.scope, id=kept.memory.id, **fields
    )


async def lock_memory(tx: Any, kept: Kept) -> None:
    """Let nobody change or remove a memory until this transaction ends."""
    await tx.execute(
        "UPDATE memories SET updated = updated WHERE scope = :scope AND id = :id", scope=kept.scope, id=kept.memory.id
    )


async def increment_occurrences(tx: Any, kept: Kept) -> None:
    """Note that a memory was stored once more."""
    await tx.execute(
        "UPDATE memories SET occurrences = occurrences + 1 WHERE scope = :scope AND id = :id",
        scope=kept.scope,
        id=kept.memory.id,
    )


async def _assign_short_hash(tx: Any, scope: int, digest: str) -> str:
    """Return the shortest prefix that names this digest alone, lengthening those it would make ambiguous."""
    head = digest[:MIN_HASH_CHARS]
    rows = await tx.fetch(
        "SELECT id, digest, hash FROM memories WHERE scope = :scope AND digest >= :low AND digest < :high",
        scope=scope,
        low=head,
        high=head + "g",
    )
    length = MIN_HASH_CHARS
    for number, other, short in rows:
        if other == digest:
            continue
        apart = count_shared_prefix(digest, other) + 1
        length = max(length, apart)
        if len(short) < apart:
            await tx.execute(
                "UPDATE memories SET hash = :hash WHERE scope = :scope AND id = :id",
                hash=other[:apart],
                scope=scope,
                id=number,
            )
    return digest[:length]


async def replace_tags(tx: Any, scope: int, memory: int, tags: Iterable[str]) -> None:
    await tx.execute("DELETE FROM tags WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    for tag in tags:
        await tx.execute(
            "INSERT INTO tags (scope, tag, memory) VALUES (:scope, :tag, :memory)",
            scope=scope,
            tag=tag_key(tag),
            memory=memory,
        )


async def delete_memory(tx: Any, scope: int, memory: int) -> None:
    """Take a memory out of every table; its passages must be retired already."""
    for table in ("tags", "links", "waiting", "mentions"):
        await tx.execute(f"DELETE FROM {table} WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    await tx.execute("DELETE FROM links WHERE other = :memory", memory=memory)
    await tx.execute("DELETE FROM memories WHERE scope = :scope AND id = :memory", scope=scope, memory=memory)


async def count_tags(tx: Any, only: Filter) -> list[tuple[str, int]]:
    """Return the tags in use, the most used first."""
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    rows = await tx.fetch(f"SELECT m.tags FROM memories m WHERE {condition}", **values)
    totals: dict[str, list[Any]] = {}
    for (tags,) in rows:
        for tag in json.loads(tags):
            totals.setdefault(tag_key(tag), [tag, 0])[1] += 1
    return sorted(((name, n) for name, n in totals.values()), key=lambda pair: (-pair[1], pair[0]))


async def fetch_memory_ages(tx: Any, scope_numbers: list[int], numbers: list[int]) -> Any:
    """Return for each memory when it happened, how strong it is, and when it was last used, as columns."""
    import numpy as np

    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: dict[int, tuple[float, float, float]] = {}
    for piece in split_batches(numbers):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"SELECT id, happened, strength, used FROM memories WHERE scope IN ({inside}) AND id IN ({names})", **bound
        )
        found |= {row[0]: row[1:] for row in rows}
    return np.array([found.get(number, (0.0, 0.0, 0.0)) for number in numbers], np.float64).reshape(-1, 3)


async def strengthen_memories(scope: Scope, numbers: list[int], now: float, half_life: float, tx: Any) -> None:
    """Let memories that were used grow stronger, from what time has left of their strength."""
    inside = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope))) or "NULL"
    names, bound = bind_list("id", numbers)
    await tx.execute(
        f"""UPDATE memories SET used = :now, strength =
                0.2 + 0.8 * strength * power(2.0, -(CASE WHEN used > :now THEN 0 ELSE :now - used END) / :half_life)
            WHERE scope IN ({inside}) AND id IN ({names})""",
        now=now,
        half_life=half_life,
        **bound,
    )


async def reset_strength(tx: Any, scope: Scope) -> None:
    """Forget that anything of a project was ever used."""
    inside = ", ".join(map(str, await scopes.fetch_own_ids(tx, scope))) or "NULL"
    await tx.execute(f"UPDATE memories SET strength = 0, used = 0 WHERE scope IN ({inside}) AND strength > 0")


RELATED_ACTION = "related"  # the history's word for a link, as undo knows it
CONTRADICTED_BY = "contradicted by"  # how a memory is linked to a newer one that says otherwise
QUOTES_RELATION = "quotes"  # how a row is linked to what it repeats the words of: a purge of that removes the row too
QUOTED_RELATION = "quoted"  # the same of what only its history repeats
MERGED_INTO = "merged into"  # how a forgotten memory is linked to the one of the same words that stands for it
RESERVED_RELATIONS = (QUOTES_RELATION, QUOTED_RELATION, MERGED_INTO)


async def insert_link(tx: Any, scope: int, memory: int, other: int, relation: str, at: float) -> bool:
    """Relate two memories; False if they were already."""
    made: int = await tx.execute(
        """INSERT INTO links (scope, memory, other, relation, at) VALUES (:scope, :memory, :other, :relation, :at)
           ON CONFLICT (scope, memory, other, relation) DO NOTHING""",
        scope=scope,
        memory=memory,
        other=other,
        relation=relation,
        at=at,
    )
    return made > 0


async def has_live_link(tx: Any, scope: int, memory: int, relation: str) -> bool:
    """Tell whether a memory is so related to one that is still there."""
    row = await tx.fetch_one(
        """SELECT 1 FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.other
           WHERE l.scope = :scope AND l.memory = :memory AND l.relation = :relation AND m.deleted IS NULL LIMIT 1""",
        scope=scope,
        memory=memory,
        relation=relation,
    )
    return row is not None


async def list_linked_ids(tx: Any, scope: int, memory: int, relation: str) -> list[int]:
    """Return what a memory is so related to."""
    rows = await tx.fetch(
        "SELECT other FROM links WHERE scope = :scope AND memory = :memory AND relation = :relation ORDER BY other",
        scope=scope,
        memory=memory,
        relation=relation,
    )
    return [row[0] for row in rows]


async def delete_link(tx: Any, scope: int, memory: int, other: int, relation: str) -> None:
    await tx.execute(
        "DELETE FROM links WHERE scope = :scope AND memory = :memory AND other = :other AND relation = :relation",
        scope=scope,
        memory=memory,
        other=other,
        relation=relation,
    )


async def list_quoting_rows(tx: Any, memory: int) -> list[tuple[int, int]]:
    """Return scope and number of what repeats words of a memory: now, in its history, or as its forgotten twin."""
    rows = await tx.fetch(
        """SELECT l.scope, l.memory FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.memory
           WHERE l.other = :memory
             AND (l.relation IN (:now, :before) OR (l.relation = :merged AND m.deleted IS NOT NULL))""",
        memory=memory,
        now=QUOTES_RELATION,
        before=QUOTED_RELATION,
        merged=MERGED_INTO,
    )
    return [(scope, number) for scope, number in rows]


async def list_links(tx: Any, scope_numbers: list[int], memory: int) -> list[tuple[str, int, str]]:
    """Return what a memory is linked to: relation, id and hash, whichever side it stands on."""
    numbers = ", ".join(map(str, scope_numbers)) or "NULL"
    rows = await tx.fetch(
        f"""SELECT l.relation, m.id, m.hash FROM links l JOIN memories m
              ON m.id = CASE WHEN l.memory = :memory THEN l.other ELSE l.memory END
            WHERE l.scope IN ({numbers}) AND :memory IN (l.memory, l.other) AND m.deleted IS NULL
            AND m.scope IN ({numbers})
            ORDER BY l.at, m.id""",
        memory=memory,
    )
    return [(relation, number, short) for relation, number, short in rows]


async def list_tasks_in_states(tx: Any, only: Filter, states: Iterable[str]) -> list[Memory]:
    """Return the tasks in one of some states, the earliest due first."""
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    wanted = tuple(states)
    names, bound = bind_list("state", wanted)
    # Said in the words of the index of what is unfinished, so that the finished ones cost nothing.
    index = f"AND m.memory_type IN {UNFINISHED_STATES!r}" if set(wanted) <= set(UNFINISHED_STATES) else ""
    rows = await tx.fetch(
        f"SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition} {index} AND m.memory_type IN ({names}) ORDER BY m.happened, m.id",
        **values | bound,
    )
    return [memory_from_row(row) for row in rows]


async def find_unfinished_tasks(tx: Any, scope_numbers: list[int], numbers: Iterable[int]) -> set[int]:
    """Return which of these tasks are still to be done."""
    found = await fetch_memories(tx, scope_numbers, numbers)
    return {number for number, one in found.items() if one.memory_type in UNFINISHED_STATES}


async def enqueue_memory(tx: Any, scope: int, memory: int) -> None:
    await tx.execute("INSERT INTO waiting (scope, memory) VALUES (:scope, :memory)", scope=scope, memory=memory)


async def list_queued_memories(tx: Any, most: int) -> list[tuple[int, int]]:
    """Return some that wait, with their scopes, in the order they came."""
    rows = await tx.fetch("SELECT scope, memory FROM waiting ORDER BY scope, memory LIMIT :most", most=most)
    return [(scope, memory) for scope, memory in rows]


async def dequeue_memories(tx: Any, scope: int, numbers: list[int]) -> None:
    """Let these wait no more."""
    for piece in split_batches(numbers):
        names, bound = bind_list("id", piece)
        await tx.execute(f"DELETE FROM waiting WHERE scope = :scope AND memory IN ({names})", scope=scope, **bound)
