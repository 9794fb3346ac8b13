"""SQL of the links between memories."""

from collections.abc import Sequence

from athena.memory import history_rows
from athena.memory.rows import (
    MERGED_INTO,
    QUOTED_BEFORE_RELATION,
    QUOTES_RELATION,
    RELATED_ACTION,
    RESERVED_RELATIONS,
    RowKey,
    add_marks,
    join_ids,
)
from athena.storage.database import Transaction
from athena.storage.filters import bind_list


async def insert_link(tx: Transaction, scope: int, memory: int, other: int, relation: str, at: float) -> bool:
    """Link two memories; return False if they were linked already."""
    inserted = await tx.execute(
        """INSERT INTO links (scope, memory, other, relation, at) VALUES (:scope, :memory, :other, :relation, :at)
           ON CONFLICT (scope, memory, other, relation) DO NOTHING""",
        scope=scope,
        memory=memory,
        other=other,
        relation=relation,
        at=at,
    )
    quoted = await tx.fetch_one("SELECT private FROM memories WHERE id = :id", id=other)
    await add_marks(tx, memory, quoted[0] if quoted and relation == QUOTES_RELATION else "")
    await add_marks(tx, other, "")  # the relation is a text, and both memories show it
    return inserted > 0


async def insert_recorded_link(
    tx: Transaction,
    scope: int,
    memory: int,
    other: int,
    relation: str,
    at: float,
    call: int,
    *,
    since: float | None = None,
) -> bool:
    """Link two memories as `insert_link` does, `since` then or `at`, so that `undo` of the call takes it back."""
    is_new = await insert_link(tx, scope, memory, other, relation, at if since is None else since)
    if is_new:
        before = {"other": other, "relation": relation}
        await history_rows.insert_change(tx, scope, memory, call, at, RELATED_ACTION, before)
    return is_new


async def list_linked_ids(tx: Transaction, scope: int, memory: int, relation: str) -> list[int]:
    """Return the memories that a memory links to with this relation."""
    rows = await tx.fetch(
        "SELECT other FROM links WHERE scope = :scope AND memory = :memory AND relation = :relation ORDER BY other",
        scope=scope,
        memory=memory,
        relation=relation,
    )
    return [row[0] for row in rows]


async def list_linking_ids(tx: Transaction, scope: int, other: int, relation: str) -> list[int]:
    """Return the memories that link to a memory with this relation."""
    rows = await tx.fetch(
        "SELECT memory FROM links WHERE scope = :scope AND other = :other AND relation = :relation ORDER BY memory",
        scope=scope,
        other=other,
        relation=relation,
    )
    return [row[0] for row in rows]


async def delete_link(tx: Transaction, scope: int, memory: int, other: int, relation: str) -> None:
    await tx.execute(
        "DELETE FROM links WHERE scope = :scope AND memory = :memory AND other = :other AND relation = :relation",
        scope=scope,
        memory=memory,
        other=other,
        relation=relation,
    )


async def list_quoting_rows(tx: Transaction, memories: Sequence[int]) -> list[RowKey]:
    """Return each row that repeats the text of one of these memories, or is a merged duplicate of one."""
    names, bound = bind_list("memory", memories)
    rows = await tx.fetch(
        f"""SELECT DISTINCT m.scope, m.id, m.digest FROM links l
            JOIN memories m ON m.scope = l.scope AND m.id = l.memory
            WHERE l.other IN ({names}) AND (l.relation = :now OR (l.relation = :merged AND m.deleted IS NOT NULL))
            ORDER BY m.id""",
        now=QUOTES_RELATION,
        merged=MERGED_INTO,
        **bound,
    )
    return [RowKey(*row) for row in rows]


async def list_rows_that_quoted(tx: Transaction, memory: int) -> list[RowKey]:
    """Return each row of which only the history repeats a memory's text."""
    rows = await tx.fetch(
        """SELECT m.scope, m.id, m.digest FROM links l JOIN memories m ON m.scope = l.scope AND m.id = l.memory
           WHERE l.other = :memory AND l.relation = :before""",
        memory=memory,
        before=QUOTED_BEFORE_RELATION,
    )
    return [RowKey(*row) for row in rows]


async def quote_again(tx: Transaction, scope: int, memory: int) -> None:
    """Note that a row may repeat now what only its history repeated, so that a purge of that removes the row."""
    await tx.execute(
        """UPDATE links SET relation = :now WHERE scope = :scope AND memory = :memory AND relation = :before
           AND NOT EXISTS (SELECT 1 FROM links o WHERE o.scope = links.scope AND o.memory = links.memory
                           AND o.other = links.other AND o.relation = :now)""",
        scope=scope,
        memory=memory,
        now=QUOTES_RELATION,
        before=QUOTED_BEFORE_RELATION,
    )


async def list_links(tx: Transaction, scope_ids: list[int], memory: int) -> list[tuple[str, int, str]]:
    """Return relation, id and hash of each memory that is linked to or from this one."""
    visible = join_ids(scope_ids)
    rows = await tx.fetch(
        f"""SELECT l.relation, m.id, m.hash FROM links l JOIN memories m
              ON m.id = CASE WHEN l.memory = :memory THEN l.other ELSE l.memory END
            WHERE l.scope IN ({visible}) AND :memory IN (l.memory, l.other) AND m.deleted IS NULL
            AND m.scope IN ({visible})
            ORDER BY l.at, m.id""",
        memory=memory,
    )
    return [(relation, memory_id, short_hash) for relation, memory_id, short_hash in rows]


async def list_live_links(
    tx: Transaction, scope_ids: list[int], ids: list[int]
) -> dict[int, list[tuple[str, str, float]]]:
    """Return relation, hash and time of the links from memories to live ones, without Athena's own relations."""
    rows = await tx.fetch(
        f"""SELECT l.memory, l.relation, m.hash, l.at FROM links l JOIN memories m ON m.id = l.other
            WHERE l.scope IN ({join_ids(scope_ids)}) AND l.memory IN ({join_ids(ids)}) AND m.deleted IS NULL
            ORDER BY l.memory, l.at, l.other, l.relation"""
    )
    links: dict[int, list[tuple[str, str, float]]] = {}
    for memory, relation, short_hash, at in rows:
        if relation not in RESERVED_RELATIONS:
            links.setdefault(memory, []).append((relation, short_hash, at))
    return links
