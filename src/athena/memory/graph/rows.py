"""SQL of the graph: entities, observations, relations and mentions.

Entities and observations are rows of `memories` with the kind `entity`. The session of an observation is the id of its
entity; an entity has no session.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from athena.core.home.paths import USER_PROJECT
from athena.memory.rows import BOUNDED_BATCH_ROWS, join_ids
from athena.storage import privacy
from athena.storage.database import PendingRows, Row, Transaction
from athena.storage.filters import bind_list, split_batches

ENTITY_COLUMNS = "id, scope, content, memory_type, digest, private"
RELATION_COLUMNS = "id, scope, source, target, source_name, target_name, relation, began, ended, private"
FEW_ROWS_SQL = f" LIMIT {BOUNDED_BATCH_ROWS}"
PADDED_KEY_COUNTS = (16, 32, 64, 128, 256, 500)


class EntityRow(NamedTuple):
    id: int
    scope: int
    name: str
    type: str
    key: str
    private: str = ""  # marks of the private sources that it may quote


class RelationRow(NamedTuple):
    """A relation; source and target are digests of the names."""

    id: int
    scope: int
    source: str
    target: str
    source_name: str
    target_name: str
    relation: str
    began: float | None
    ended: float | None
    private: str = ""

    def holds_at(self, at: float | None) -> bool:
        """Return whether it held true at a time; None stands for any time."""
        if at is None:
            return True
        return (self.began is None or self.began <= at) and (self.ended is None or at < self.ended)

    def overlaps(self, other: "RelationRow") -> bool:
        """Return whether there is a time at which both held true."""
        begins = max((edge.began for edge in (self, other) if edge.began is not None), default=None)
        ends = min((edge.ended for edge in (self, other) if edge.ended is not None), default=None)
        return begins is None or ends is None or begins < ends


def _to_entity(row: Sequence[Any]) -> EntityRow:
    entity = EntityRow(*row)
    if entity.private:
        privacy.note_read(entity.private)
    return entity


def _to_relation(row: Row) -> RelationRow:
    relation = RelationRow(*row)
    if relation.private:
        privacy.note_read(relation.private)
    return relation


async def fetch_entities_by_key(tx: Transaction, scope_ids: list[int], keys: list[str]) -> list[EntityRow]:
    """Return the live entities with these keys, in the order they were created."""
    entities: list[EntityRow] = []
    for batch in split_batches(keys):
        names, bound = bind_list("key", batch)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories
                WHERE scope IN ({join_ids(scope_ids)}) AND digest IN ({names}) AND deleted IS NULL""",
            **bound,
        )
        entities += [_to_entity(row) for row in rows]
    return sorted(entities)


async def fetch_entities_by_id(tx: Transaction, scope_ids: list[int], ids: list[int]) -> list[EntityRow]:
    """Return the live entities with these ids, in the order they were created."""
    entities: list[EntityRow] = []
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories
                WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({names}) AND session IS NULL AND deleted IS NULL""",
            **bound,
        )
        entities += [_to_entity(row) for row in rows]
    return sorted(entities)


async def lock_entity(tx: Transaction, entity: EntityRow) -> bool:
    """Keep others from deleting an entity until this transaction ends; return False if it is deleted.

    Only for PostgreSQL, where several transactions write at once.
    """
    row = await tx.fetch_one(
        "SELECT 1 FROM memories WHERE scope = :scope AND id = :id AND deleted IS NULL FOR SHARE",
        scope=entity.scope,
        id=entity.id,
    )
    return row is not None


async def fetch_observations(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, list[str]]:
    """Return the live observations of entities, in the order they were added."""
    observations: dict[int, list[str]] = {entity_id: [] for entity_id in ids}
    columns = "id, session, content, private"

    def add_texts(rows: list[Row]) -> None:
        for _, session, content, private in rows:
            if private:
                privacy.note_read(private)
            observations[int(session)].append(content)

    if len(ids) < BOUNDED_BATCH_ROWS:  # then they have few observations, mostly, which one statement reads
        names, bound = bind_list("session", map(str, ids))
        few = await tx.fetch(
            f"""SELECT {columns} FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND session IN ({names})
                AND deleted IS NULL{FEW_ROWS_SQL}""",
            **bound,
        )
        if len(few) < BOUNDED_BATCH_ROWS:
            add_texts(sorted(few))
            return observations
    row_ids: list[int] = []
    for batch in split_batches(ids):
        names, bound = bind_list("session", map(str, batch))
        row_ids += await _list_ids(tx, "memories", scope_ids, f"AND session IN ({names})", bound)
    await _visit_rows(tx, columns, scope_ids, row_ids, add_texts)
    return observations


async def fetch_observation_marks(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, list[str]]:
    """Return the private marks of the live observations of entities."""
    marks: dict[int, list[str]] = {}
    for batch in split_batches(ids):
        names, bound = bind_list("session", map(str, batch))
        rows = await tx.fetch(
            f"""SELECT DISTINCT session, private FROM memories WHERE scope IN ({join_ids(scope_ids)})
                AND session IN ({names}) AND deleted IS NULL AND private <> ''""",
            **bound,
        )
        for session, private in rows:
            marks.setdefault(int(session), []).append(private)
    return marks


async def _list_ids(
    tx: Transaction, table: str, scope_ids: list[int], condition: str, bound: dict[str, Any] | None = None
) -> list[int]:
    rows = await tx.fetch(f"SELECT id FROM {table} WHERE scope IN ({join_ids(scope_ids)}) {condition}", **(bound or {}))
    return [row[0] for row in rows]


async def _visit_rows(
    tx: Transaction, columns: str, scope_ids: list[int], ids: Iterable[int], visit: Callable[[list[Row]], None]
) -> None:
    """Read live rows by id, few at a time since each may be long, and call `visit` with those of each batch.

    The first of the columns is the id.
    """
    for batch in split_batches(sorted(ids), BOUNDED_BATCH_ROWS):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"""SELECT {columns} FROM memories
                WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({names}) AND deleted IS NULL""",
            **bound,
        )
        rows.sort(key=lambda row: row[0])  # the database would copy the texts to sort them
        visit(rows)


async def list_observation_ids(tx: Transaction, scope: int, entity: int) -> list[int]:
    """Return the ids of all observations of an entity, deleted ones too."""
    rows = await tx.fetch(
        "SELECT id FROM memories WHERE scope = :scope AND session = :session ORDER BY id",
        scope=scope,
        session=str(entity),
    )
    return [row[0] for row in rows]


async def fetch_all_entities(tx: Transaction, scope_ids: list[int]) -> tuple[list[EntityRow], dict[int, list[str]]]:
    """Return all entities and all observations, in the order they were created."""
    entities: list[EntityRow] = []
    observations: dict[int, list[str]] = {}

    def add_rows(rows: list[Row]) -> None:
        for *entity, session in rows:
            if session is None:
                entities.append(_to_entity(entity))
            else:
                privacy.note_read(entity[-1])
                observations.setdefault(int(session), []).append(entity[2])

    # the condition on `happened` lets SQLite use an index: a scan would walk through the long texts
    ids = await _list_ids(tx, "memories", scope_ids, "AND deleted IS NULL AND happened > -1e300")
    await _visit_rows(tx, f"{ENTITY_COLUMNS}, session", scope_ids, ids, add_rows)
    return entities, {entity.id: observations.get(entity.id, []) for entity in entities}


async def find_entities_containing(tx: Transaction, scope_ids: list[int], text: str) -> set[int]:
    """Return the entities whose name, type or observations contain a text, ignoring case."""
    wanted = text.lower()
    condition, values = "", {}
    if wanted.isascii():  # SQLite and PostgreSQL agree on the case of ASCII letters only
        escaped = wanted.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        condition = "AND (lower(content) LIKE :text ESCAPE '!' OR lower(memory_type) LIKE :text ESCAPE '!')"
        values["text"] = f"%{escaped}%"
    containing: set[int] = set()

    limit = tx.chars_left

    def add_containing(rows: list[Row]) -> None:
        tx.chars_left = limit  # only the ids are kept
        for row_id, session, content, entity_type in rows:
            if wanted in content.lower() or (session is None and wanted in entity_type.lower()):
                containing.add(row_id if session is None else int(session))

    ids = await _list_ids(tx, "memories", scope_ids, f"AND deleted IS NULL {condition}", values)
    await _visit_rows(tx, "id, session, content, memory_type", scope_ids, ids, add_containing)
    return containing


async def fetch_owner_ids(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, int]:
    """Return the entity that each row belongs to: itself, or the one that it observes."""
    owners: dict[int, int] = {}
    for batch in split_batches(ids):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"SELECT id, session FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({names})", **bound
        )
        owners |= {row_id: row_id if session is None else int(session) for row_id, session in rows}
    return owners


async def insert_relation(tx: Transaction, scope: int, edge: RelationRow, now: float) -> int:
    """Insert a relation and return its id."""
    [(relation_id,)] = await tx.fetch(
        """INSERT INTO relations (scope, source, target, source_name, target_name, relation, began, ended, created,
                                  private)
           VALUES (:scope, :source, :target, :source_name, :target_name, :relation, :began, :ended, :now, :private)
           RETURNING id""",
        **{**edge._asdict(), "scope": scope, "private": privacy.add_current_marks(edge.private)},
        now=now,
    )
    return int(relation_id)


async def find_relations(
    tx: Transaction, scope_ids: list[int], source: str, target: str, relation: str
) -> list[RelationRow]:
    """Return the live relations of one type between two names: in each scope, one for each period they held."""
    rows = await tx.fetch(
        f"""SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({join_ids(scope_ids)}) AND source = :source
            AND target = :target AND relation = :relation AND removed IS NULL""",
        source=source,
        target=target,
        relation=relation,
    )
    return [_to_relation(row) for row in rows]


async def list_relations_touching(
    tx: Transaction,
    scope_ids: list[int],
    keys: list[str],
    sides: tuple[str, ...] = ("source", "target"),
) -> list[RelationRow]:
    """Return the live relations that start or end at any of these names, in the order they were created."""

    async def fetch_columns(columns: str, batch: list[str], limit: str = "") -> list[Row]:
        names, bound = bind_list("key", batch)
        parts = [
            f"""SELECT {columns} FROM relations
                WHERE scope IN ({join_ids(scope_ids)}) AND {side} IN ({names}) AND removed IS NULL"""
            for side in sides
        ]
        return await tx.fetch(" UNION ALL ".join(parts) + limit, **bound)

    few = None if len(keys) >= BOUNDED_BATCH_ROWS else await fetch_columns(RELATION_COLUMNS, keys, FEW_ROWS_SQL)
    if few is None or len(few) >= BOUNDED_BATCH_ROWS:
        ids = {row[0] for batch in split_batches(keys) for row in await fetch_columns("id", batch)}
        return await _fetch_relations(tx, scope_ids, ids)
    by_id = {row[0]: row for row in few}
    return [_to_relation(by_id[relation_id]) for relation_id in sorted(by_id)]


async def list_relations(tx: Transaction, scope_ids: list[int]) -> list[RelationRow]:
    """Return all live relations, in the order they were created."""
    return await _fetch_relations(tx, scope_ids, await _list_ids(tx, "relations", scope_ids, "AND removed IS NULL"))


async def _fetch_relations(tx: Transaction, scope_ids: list[int], ids: Iterable[int]) -> list[RelationRow]:
    relations: dict[int, RelationRow] = {}
    for batch in split_batches(sorted(ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({join_ids(scope_ids)}) AND id IN ({names})",
            **bound,
        )
        relations |= {row[0]: _to_relation(row) for row in rows}
    return [relations[relation_id] for relation_id in sorted(relations)]


async def fetch_relation(tx: Transaction, scope: int, relation_id: int) -> tuple[RelationRow, float | None] | None:
    """Return a relation and when it was removed, or None for a live one."""
    row = await tx.fetch_one(
        f"SELECT {RELATION_COLUMNS}, removed FROM relations WHERE scope = :scope AND id = :id",
        scope=scope,
        id=relation_id,
    )
    return None if row is None else (_to_relation(row[:-1]), row[-1])


async def set_relation_removed(tx: Transaction, scope: int, edge: RelationRow, at: float | None) -> None:
    """Remove a relation from the graph, or with None put it back."""
    privacy.note_change(edge.private, "relation", edge.id)
    private = edge.private if at is not None else privacy.add_current_marks(edge.private)
    await tx.execute(
        "UPDATE relations SET removed = :at, private = :private WHERE scope = :scope AND id = :id",
        scope=scope,
        id=edge.id,
        at=at,
        private=private,
    )


async def purge_relations(tx: Transaction, scope_ids: list[int], key: str | None = None) -> None:
    """Delete removed relations for good: all, or those of one name."""
    condition = "" if key is None else "AND (source = :key OR target = :key)"
    await tx.execute(
        f"DELETE FROM relations WHERE scope IN ({join_ids(scope_ids)}) AND removed IS NOT NULL {condition}",
        **({} if key is None else {"key": key}),
    )


async def insert_mentions(
    tx: Transaction, scope: int, memory: int, keys: Iterable[str], *, replace: bool = False
) -> None:
    """Store the keys that a memory mentions, with `replace` instead of the old ones."""
    if replace:
        await tx.execute("DELETE FROM mentions WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    query = "INSERT INTO mentions (scope, key, memory) VALUES (:scope, :key, :memory)"
    await tx.execute_many(query, [{"scope": scope, "key": key, "memory": memory} for key in sorted(keys)])


async def delete_mentions(tx: Transaction, scope: int, memory: int, keys: Iterable[str]) -> None:
    query = "DELETE FROM mentions WHERE scope = :scope AND key = :key AND memory = :memory"
    await tx.execute_many(query, [{"scope": scope, "key": key, "memory": memory} for key in keys])


async def list_mention_keys(tx: Transaction, scope: int, memory: int) -> list[str]:
    """Return the keys that a memory mentions; for an entity, the names it has."""
    rows = await tx.fetch(
        "SELECT key FROM mentions WHERE scope = :scope AND memory = :memory ORDER BY key", scope=scope, memory=memory
    )
    return [row[0] for row in rows]


def begin_entity_scope_ids(tx: Transaction, scope: int) -> PendingRows:
    """Ask for the scopes with the entities that a memory of this scope may mention."""
    return tx.begin_fetch(
        """SELECT e.id FROM scopes m JOIN scopes e ON e.kind = 'entity' AND e.name IN (m.name, :everywhere)
           WHERE m.id = :scope""",
        scope=scope,
        everywhere=USER_PROJECT,
    )


async def find_entity_names(tx: Transaction, scope_ids: list[int], keys: list[str]) -> set[str]:
    """Return which of these keys are names of live entities."""
    known: set[str] = set()
    for batch in split_batches(keys):
        # Padded to few different lengths, so that the engine reuses its prepared statements.
        size = next(size for size in PADDED_KEY_COUNTS if size >= len(batch))
        names, bound = bind_list("key", batch + [""] * (size - len(batch)))
        rows = await tx.fetch(
            f"""SELECT n.key FROM mentions n JOIN memories m ON m.scope = n.scope AND m.id = n.memory
                WHERE n.scope IN ({join_ids(scope_ids)}) AND n.key IN ({names}) AND m.deleted IS NULL""",
            **bound,
        )
        known |= {row[0] for row in rows}
    return known


async def list_mentioning_ids(tx: Transaction, scope_ids: list[int], keys: list[str]) -> list[int]:
    """Return the memories that mention one of these keys."""
    names, bound = bind_list("key", keys)
    rows = await tx.fetch(
        f"SELECT DISTINCT memory FROM mentions WHERE scope IN ({join_ids(scope_ids)}) AND key IN ({names})", **bound
    )
    return [row[0] for row in rows]


async def list_entity_ids(tx: Transaction, scope_ids: list[int]) -> list[int]:
    """Return the ids of all live entities, in the order they were created."""
    return sorted(await _list_ids(tx, "memories", scope_ids, "AND deleted IS NULL AND session IS NULL"))


async def list_orphaned_relations(tx: Transaction, scope_ids: list[int]) -> list[RelationRow]:
    """Return the live relations that begin at a name that no live entity of the scope has."""
    rows = await tx.fetch(
        f"""SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({join_ids(scope_ids)}) AND removed IS NULL
            AND NOT EXISTS (SELECT 1 FROM memories m
                WHERE m.scope = relations.scope AND m.digest = relations.source AND m.deleted IS NULL) ORDER BY id"""
    )
    return [_to_relation(row) for row in rows]
