"""Links between memories: what belongs together, contradicts, or repeats the words of another."""

from typing import Any

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
