"""Entities and their observations: rows of the kind entity. An observation's session is the number of its entity."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from athena.core.home.paths import USER_PROJECT
from athena.storage.filters import bind_list, split_batches

ENTITY_COLUMNS = "id, scope, content, memory_type, digest"


class EntityRow(NamedTuple):
    """An entity's row."""

    id: int
    scope: int
    name: str
    type: str
    key: str


async def fetch_entities_by_key(tx: Any, numbers: list[int], keys: list[str]) -> list[EntityRow]:
    """Return the live entities of these names, in the order they were made."""
    found: list[EntityRow] = []
    for piece in split_batches(keys):
        names, bound = bind_list("key", piece)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND digest IN ({names})
                AND deleted IS NULL""",
            **bound,
        )
        found += [EntityRow(*row) for row in rows]
    return sorted(found)


async def fetch_entities_by_id(tx: Any, numbers: list[int], ids: list[int]) -> list[EntityRow]:
    """Return the live entities of these numbers, in the order they were made."""
    found: list[EntityRow] = []
    for piece in split_batches(ids):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND id IN ({names})
                AND session IS NULL AND deleted IS NULL""",
            **bound,
        )
        found += [EntityRow(*row) for row in rows]
    return sorted(found)


async def lock_entity(tx: Any, node: EntityRow) -> bool:
    """Let nobody delete an entity until this transaction ends; only for engines where several write at once."""
    row = await tx.fetch_one(
        "SELECT 1 FROM memories WHERE scope = :scope AND id = :id AND deleted IS NULL FOR SHARE",
        scope=node.scope,
        id=node.id,
    )
    return row is not None


async def fetch_observations(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, list[str]]:
    """Return what was observed of entities, in the order it was."""
    found: dict[int, list[str]] = {number: [] for number in ids}
    for piece in split_batches(ids):
        names, bound = bind_list("session", map(str, piece))
        rows = await tx.fetch(
            f"""SELECT session, content FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND session IN ({names})
                AND deleted IS NULL ORDER BY id""",
            **bound,
        )
        for session, content in rows:
            found[int(session)].append(content)
    return found


async def list_observation_ids(tx: Any, scope: int, entity: int) -> list[int]:
    """Return the numbers of all that was ever observed of an entity."""
    rows = await tx.fetch(
        "SELECT id FROM memories WHERE scope = :scope AND session = :session ORDER BY id",
        scope=scope,
        session=str(entity),
    )
    return [row[0] for row in rows]


async def fetch_all_entities(tx: Any, numbers: list[int]) -> tuple[list[EntityRow], dict[int, list[str]]]:
    """Return all entities and all observations, in the order they were made."""
    rows = await tx.fetch(
        f"""SELECT session, {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND deleted IS NULL
            ORDER BY id"""
    )
    nodes = [EntityRow(*row[1:]) for row in rows if row[0] is None]
    seen: dict[int, list[str]] = {node.id: [] for node in nodes}
    for session, _, _, content, *_ in rows:
        if session is not None and int(session) in seen:
            seen[int(session)].append(content)
    return nodes, seen


async def find_entities_containing(tx: Any, numbers: list[int], text: str) -> set[int]:
    """Return the entities whose name, type or observations hold a text, whatever its case."""
    wanted = text.lower()
    condition, values = "", {}
    if wanted.isascii():  # the engines agree on the case of these letters only
        escaped = wanted.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        condition = "AND (lower(content) LIKE :text ESCAPE '!' OR lower(memory_type) LIKE :text ESCAPE '!')"
        values["text"] = f"%{escaped}%"
    rows = await tx.fetch(
        f"""SELECT id, session, content, memory_type FROM memories
            WHERE scope IN ({_format_scope_ids(numbers)}) AND deleted IS NULL {condition}""",
        **values,
    )
    return {
        number if session is None else int(session)
        for number, session, content, kind in rows
        if wanted in content.lower() or (session is None and wanted in kind.lower())
    }


async def fetch_owner_ids(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, int]:
    """Return the entity that each row belongs to: itself, or that of which it is an observation."""
    found: dict[int, int] = {}
    for piece in split_batches(ids):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"SELECT id, session FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND id IN ({names})",
            **bound,
        )
        found |= {number: number if session is None else int(session) for number, session in rows}
    return found


def _format_scope_ids(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"


RELATION_COLUMNS = "id, scope, source, target, source_name, target_name, relation, began, ended"


class RelationRow(NamedTuple):
    """A relation as it stands in the store; source and target are digests of the names."""

    id: int
    scope: int
    source: str
    target: str
    source_name: str
    target_name: str
    relation: str
    began: float | None
    ended: float | None

    def holds_at(self, at: float | None) -> bool:
        """Tell whether it held true at a moment; without one, it does not matter when."""
        if at is None:
            return True
        return (self.began is None or self.began <= at) and (self.ended is None or at < self.ended)

    def overlaps(self, other: "RelationRow") -> bool:
        """Tell whether there is a moment at which both held true."""
        begins = max((edge.began for edge in (self, other) if edge.began is not None), default=None)
        ends = min((edge.ended for edge in (self, other) if edge.ended is not None), default=None)
        return begins is None or ends is None or begins < ends


async def insert_relation(tx: Any, scope: int, edge: RelationRow, now: float) -> int:
    """Write a new relation and return its number."""
    row = await tx.fetch_one(
        """INSERT INTO relations (scope, source, target, source_name, target_name, relation, began, ended, created)
           VALUES (:scope, :source, :target, :source_name, :target_name, :relation, :began, :ended, :now)
           RETURNING id""",
        **{**edge._asdict(), "scope": scope},
        now=now,
    )
    return int(row[0])


async def find_relations(tx: Any, numbers: list[int], source: str, target: str, relation: str) -> list[RelationRow]:
    """Return the live relations of this kind from one name to another; in each scope, one for each time they held."""
    rows = await tx.fetch(
        f"""SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND source = :source
            AND target = :target AND relation = :relation AND removed IS NULL""",
        source=source,
        target=target,
        relation=relation,
    )
    return [RelationRow(*row) for row in rows]


async def list_relations_touching(
    tx: Any, numbers: list[int], keys: list[str], sides: tuple[str, ...] = ("source", "target")
) -> Any:
    """Return the live relations that begin or end at any of these names, in the order they were made."""
    found: dict[int, RelationRow] = {}
    for piece in split_batches(keys):
        names, bound = bind_list("key", piece)
        parts = [
            f"SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND {side} IN ({names}) "
            "AND removed IS NULL"
            for side in sides
        ]
        for row in await tx.fetch(" UNION ALL ".join(parts), **bound):
            found[row[0]] = RelationRow(*row)
    return [found[number] for number in sorted(found)]


async def list_relations(tx: Any, numbers: list[int]) -> list[RelationRow]:
    rows = await tx.fetch(
        f"SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND removed IS NULL ORDER BY id"
    )
    return [RelationRow(*row) for row in rows]


async def fetch_relation(tx: Any, scope: int, number: int) -> tuple[RelationRow, float | None] | None:
    """Return a relation and when it was removed, whether or not it was."""
    row = await tx.fetch_one(
        f"SELECT {RELATION_COLUMNS}, removed FROM relations WHERE scope = :scope AND id = :id", scope=scope, id=number
    )
    return None if row is None else (RelationRow(*row[:-1]), row[-1])


async def set_relation_removed(tx: Any, scope: int, number: int, at: float | None) -> None:
    """Take a relation out of the graph, or put it back."""
    await tx.execute(
        "UPDATE relations SET removed = :at WHERE scope = :scope AND id = :id", scope=scope, id=number, at=at
    )


async def purge_relations(tx: Any, numbers: list[int], key: str | None = None) -> None:
    """Let go of removed relations for good: all, or those of one name."""
    only = "" if key is None else "AND (source = :key OR target = :key)"
    await tx.execute(
        f"DELETE FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND removed IS NOT NULL {only}",
        **({} if key is None else {"key": key}),
    )


def _format_relation_scope_ids(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"


PADDED_KEY_COUNTS = (16, 32, 64, 128, 256, 500)


async def insert_mentions(tx: Any, scope: int, memory: int, keys: Iterable[str], *, anew: bool = False) -> None:
    """Write down what a memory mentions, instead of what it did before where told."""
    if anew:
        await tx.execute("DELETE FROM mentions WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    for key in sorted(keys):
        await tx.execute(
            "INSERT INTO mentions (scope, key, memory) VALUES (:scope, :key, :memory)",
            scope=scope,
            key=key,
            memory=memory,
        )


async def delete_mentions(tx: Any, scope: int, memory: int, keys: Iterable[str]) -> None:
    """Let go of some of what a memory mentions."""
    for key in keys:
        await tx.execute(
            "DELETE FROM mentions WHERE scope = :scope AND key = :key AND memory = :memory",
            scope=scope,
            key=key,
            memory=memory,
        )


async def list_mention_keys(tx: Any, scope: int, memory: int) -> list[str]:
    """Return what a memory mentions; of an entity's row, the names it has."""
    rows = await tx.fetch(
        "SELECT key FROM mentions WHERE scope = :scope AND memory = :memory ORDER BY key", scope=scope, memory=memory
    )
    return [row[0] for row in rows]


async def list_entity_scope_ids(tx: Any, scope: int) -> list[int]:
    """Return the scopes with the entities that a memory of this scope may mention."""
    rows = await tx.fetch(
        """SELECT e.id FROM scopes m JOIN scopes e ON e.kind = 'entity' AND e.name IN (m.name, :everywhere)
           WHERE m.id = :scope""",
        scope=scope,
        everywhere=USER_PROJECT,
    )
    return [row[0] for row in rows]


async def find_entity_names(tx: Any, numbers: list[int], keys: list[str]) -> set[str]:
    """Return which of these are names of live entities."""
    found: set[str] = set()
    for piece in split_batches(keys):
        # Padded, so that the engine meets few lengths of this statement and has them all prepared.
        size = next(size for size in PADDED_KEY_COUNTS if size >= len(piece))
        names, bound = bind_list("key", piece + [""] * (size - len(piece)))
        rows = await tx.fetch(
            f"""SELECT n.key FROM mentions n JOIN memories m ON m.scope = n.scope AND m.id = n.memory
                WHERE n.scope IN ({", ".join(map(str, numbers))}) AND n.key IN ({names}) AND m.deleted IS NULL""",
            **bound,
        )
        found |= {row[0] for row in rows}
    return found


async def list_mentioning_ids(tx: Any, numbers: list[int], keys: list[str]) -> list[int]:
    names, bound = bind_list("key", keys)
    rows = await tx.fetch(
        f"""SELECT DISTINCT memory FROM mentions
            WHERE scope IN ({", ".join(map(str, numbers)) or "NULL"}) AND key IN ({names})""",
        **bound,
    )
    return [row[0] for row in rows]
