"""Create, extend, merge and delete entities and their observations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.text import make_storable
from athena.core.values import Call
from athena.errors import InvalidInput, NotFound
from athena.memory import history_rows, inputs, write
from athena.memory import rows as memory_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import (
    change_graph,
    fetch_entities,
    fetch_entity_metadata,
    get_entity,
    get_triple,
    normalize_text,
    sort_own_first,
    to_entity_key,
)
from athena.memory.graph.mentions import fold_name
from athena.memory.graph.relations import add_aliases, clean_entity_name, link_edge, unlink_edge
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import (
    ENTITY_METADATA_KEY,
    OBSERVATION_TYPE,
    Added,
    Deletion,
    Entity,
    Made,
    NewEntity,
    NewObservations,
    clean_graph_type,
    entity_key,
    entity_metadata,
)
from athena.memory.prepare import prepare_memory
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import Draft, clean_text
from athena.storage import privacy, scopes
from athena.storage.database import Transaction


async def create_entities(store: Store, entities: Sequence[NewEntity], call: Call) -> list[Entity]:
    """Create the entities that do not exist yet, and return those."""
    wanted: dict[str, Entity] = {}
    size = sum(len(text) for entity in entities for text in entity.get("observations", ()))
    all_cleaned = await inputs.clean_long(size, lambda: [_clean_entity(item, i) for i, item in enumerate(entities)])
    for cleaned in all_cleaned:
        wanted.setdefault(entity_key(cleaned["name"]), cleaned)  # of two with the same name, the first
    now = store.clock()

    async def insert_missing(tx: Transaction, call_id: int) -> list[int]:
        scope = await scopes.ensure_scope(tx, call.scope)
        known = {entity.key for entity in await graph_rows.fetch_entities_by_key(tx, [scope], list(wanted))}
        return [
            await _insert_entity(tx, scope, entity, call_id, now) for key, entity in wanted.items() if key not in known
        ]

    async def fetch_created(tx: Transaction, created: list[int]) -> list[Entity]:
        return await fetch_entities(tx, await scopes.fetch_own_ids(tx, call.scope), created)

    result: list[Entity] = await change_graph(store, call, insert_missing, fetch_created)
    return result


async def create_entity(store: Store, entity: NewEntity, metadata: Mapping[str, Any] | None, call: Call) -> Made:
    """Create an entity, or add to the existing one, whose type stays, and return it as it is now."""
    now = store.clock()
    facts, metadata_kinds = inputs.clean_facts(metadata)
    size = sum(map(len, [entity["name"], entity["entityType"], *entity.get("observations", ())]))
    cleaned = await inputs.clean_long(size, _clean_entity, entity, None)
    redacted = [*await inputs.clean_long(size, _list_kinds, entity), *metadata_kinds]

    async def insert_or_extend(tx: Transaction, call_id: int) -> list[Any]:
        scope = await scopes.ensure_scope(tx, call.scope)
        known = await graph_rows.fetch_entities_by_key(tx, [scope], [entity_key(cleaned["name"])])
        if not known:
            return [await _insert_entity(tx, scope, cleaned, call_id, now, facts), "new"]
        await _insert_observations(tx, known[0], cleaned["observations"], call_id, now)
        await _update_metadata(store, tx, known[0], facts, call_id, now)
        return [known[0].id, "known"]

    async def fetch_entity(tx: Transaction, stored: list[Any]) -> Made:
        entity_id, outcome = stored
        return await _fetch_result(tx, call, entity_id, outcome, redacted)

    result: Made = await change_graph(store, call, insert_or_extend, fetch_entity)
    return result


async def add_observations(store: Store, additions: Sequence[NewObservations], call: Call) -> list[Added]:
    """Add observations to existing entities, and return those that are new."""
    names = [clean_entity_name(addition["entityName"], "entityName") for addition in additions]
    size = sum(len(text) for addition in additions for text in addition["contents"])
    contents = await inputs.clean_long(
        size,
        lambda: [_clean_texts(addition["contents"], "contents", addition["entityName"]) for addition in additions],
    )
    keys = [entity_key(name) for name in names]
    now = store.clock()
    added_texts: list[list[str]] = []

    async def write_observations(tx: Transaction, call_id: int) -> list[list[int]]:
        added_texts.clear()
        visible = await scopes.fetch_changeable_ids(tx, call)
        matches = sort_own_first(await graph_rows.fetch_entities_by_key(tx, visible, keys), visible)
        entities = {entity.key: entity for entity in reversed(matches)}
        added_ids = []
        for name, texts, key in zip(names, contents, keys, strict=True):
            if key not in entities:
                raise NotFound(f"Entity with name {name} not found", hint="create_entities makes it")
            # On PostgreSQL another transaction may have deleted it meanwhile; SQLite has one writer.
            if store.database.engine != "sqlite" and not await graph_rows.lock_entity(tx, entities[key]):
                raise NotFound(f"Entity with name {name} not found", hint="it was deleted just now")
            added = await _insert_observations(tx, entities[key], texts, call_id, now)
            added_texts.append([text for _, text in added])
            added_ids.append([observation_id for observation_id, _ in added])
        return added_ids

    async def fetch_added(tx: Transaction, added_ids: list[list[int]]) -> list[Added]:
        texts = added_texts
        if not added_texts:  # an earlier call with the same key has done it
            visible = await scopes.fetch_visible_ids(tx, call.scope)
            ids = [observation_id for group in added_ids for observation_id in group]
            memories = await memory_rows.fetch_memories(tx, visible, ids, include_deleted=True)
            texts = [[memories[i].content for i in group if i in memories] for group in added_ids]
        return [{"entityName": name, "addedObservations": added} for name, added in zip(names, texts, strict=True)]

    result: list[Added] = await change_graph(store, call, write_observations, fetch_added)
    return result


async def delete_entities(store: Store, names: Sequence[str], call: Call) -> None:
    """Delete entities of the project, with their observations and the project's relations that name them."""
    keys = [to_entity_key(name) for name in names]
    now = store.clock()

    async def hide_entities(tx: Transaction, call_id: int) -> None:
        own = await scopes.fetch_own_ids(tx, call.scope)
        for entity in await graph_rows.fetch_entities_by_key(tx, own, keys):
            await _hide_entity(store, tx, entity, call_id, now)
        for edge in await graph_rows.list_relations_touching(tx, own, keys):
            await unlink_edge(tx, edge, call_id, now)

    await change_graph(store, call, hide_entities, None)


async def delete_observations(store: Store, deletions: Sequence[Deletion], call: Call) -> None:
    """Delete observations of existing entities by their text."""
    now = store.clock()

    async def hide_observations(tx: Transaction, call_id: int) -> None:
        visible = await scopes.fetch_changeable_ids(tx, call)
        for deletion in deletions:
            key = to_entity_key(deletion["entityName"])
            texts = {normalize_text(text) for text in deletion["observations"]}
            for entity in await graph_rows.fetch_entities_by_key(tx, visible, [key]):
                for text in texts:
                    digest = _observation_key(entity.id, text)
                    for row in await memory_rows.find_rows_by_digest(tx, entity.scope, digest):
                        if row.deleted is None:
                            await _hide_row(store, tx, row, call_id, now)

    await change_graph(store, call, hide_observations, None)


async def merge_entities(store: Store, source: str, into: str, call: Call) -> Made:
    """Move observations, metadata and relations of one entity to another, and delete the first."""
    if source == into:
        raise InvalidInput("an entity cannot be merged into itself")
    now = store.clock()

    async def move_contents(tx: Transaction, call_id: int) -> list[Any]:
        with privacy.mark_copies():  # the target gets the texts of both, and so their marks
            return await move_marked(tx, call_id)

    async def move_marked(tx: Transaction, call_id: int) -> list[Any]:
        own = await scopes.fetch_own_ids(tx, call.scope)
        old, target = [await get_entity(tx, own, name) for name in (source, into)]
        observations = (await graph_rows.fetch_observations(tx, [old.scope], [old.id]))[old.id]
        await _insert_observations(tx, target, observations, call_id, now)
        metadata = await fetch_entity_metadata(tx, own, [old.id, target.id])
        await _update_metadata(store, tx, target, metadata[old.id] | metadata[target.id], call_id, now)
        await add_aliases(tx, old, target, call_id, now)
        await _hide_entity(store, tx, old, call_id, now)
        for edge in await graph_rows.list_relations_touching(tx, own, [old.key]):
            await unlink_edge(tx, edge, call_id, now)
            moved = _replace_node(edge, old, target)
            known = await graph_rows.find_relations(tx, [edge.scope], *get_triple(moved))
            if moved.source != moved.target and not any(other.overlaps(moved) for other in known):
                await link_edge(tx, edge.scope, moved, call_id, now)
        return [target.id, "known"]

    async def fetch_merged(tx: Transaction, merged: list[Any]) -> Made:
        return await _fetch_result(tx, call, merged[0], "merged", [])

    result: Made = await change_graph(store, call, move_contents, fetch_merged)
    return result


def _replace_node(edge: RelationRow, old: EntityRow, new: EntityRow) -> RelationRow:
    """Return a relation with one entity replaced by another."""
    if edge.source == old.key:
        edge = edge._replace(source=new.key, source_name=new.name)
    return edge._replace(target=new.key, target_name=new.name) if edge.target == old.key else edge


async def _fetch_result(tx: Transaction, call: Call, entity_id: int, outcome: str, redacted: list[str]) -> Made:
    visible = await scopes.fetch_visible_ids(tx, call.scope)
    entities = await fetch_entities(tx, visible, [entity_id])
    if not entities:
        raise NotFound("the entity of this call was deleted since", hint="undo brings it back")
    metadata = (await fetch_entity_metadata(tx, visible, [entity_id]))[entity_id]
    return {**entities[0], "id": entity_id, "outcome": outcome, "metadata": metadata, "redacted": redacted}


async def _insert_entity(
    tx: Transaction, scope: int, entity: Entity, call_id: int, now: float, facts: Mapping[str, Any] | None = None
) -> int:
    """Insert an entity with its observations and return its id."""
    name, entity_type = entity["name"], entity["entityType"]
    metadata: dict[str, Any] = dict(entity_metadata(entity_type))
    if facts:
        metadata[ENTITY_METADATA_KEY] = dict(facts)
    draft = Draft(name, (), entity_type, metadata)
    entity_id = await write.insert_unindexed(tx, scope, prepare_memory(draft, now, with_passages=False), now)
    assert entity_id is not None  # the caller has looked for the name
    await graph_rows.insert_mentions(tx, scope, entity_id, [key] if (key := fold_name(name)) else [])
    await history_rows.insert_change(tx, scope, entity_id, call_id, now, "remembered", None)
    row = EntityRow(entity_id, scope, name, entity_type, entity_key(name))
    await _insert_observations(tx, row, entity["observations"], call_id, now)
    return entity_id


async def _insert_observations(
    tx: Transaction, entity: EntityRow, texts: Sequence[str], call_id: int, now: float
) -> list[tuple[int, str]]:
    """Insert the observations that an entity does not have, and return their ids and texts."""
    added = []
    metadata = {"session_id": str(entity.id), "speaker": entity.name}
    for text in dict.fromkeys(texts):
        prepared = prepare_memory(Draft(text, (), OBSERVATION_TYPE, metadata), now, with_passages=False)
        observation_id = await write.insert_unindexed(tx, entity.scope, prepared, now)
        if observation_id is None:
            continue
        await history_rows.insert_change(tx, entity.scope, observation_id, call_id, now, "remembered", None)
        added.append((observation_id, text))
    return added


def _observation_key(entity_id: int, text: str) -> str:
    return hash_text(text, str(entity_id))


async def _update_metadata(
    store: Store, tx: Transaction, entity: EntityRow, facts: dict[str, Any], call_id: int, now: float
) -> None:
    """Add to the metadata of an entity; a null removes a key."""
    [row] = await memory_rows.find_rows_by_id(tx, [entity.scope], entity.id)
    known = row.memory.metadata.get(ENTITY_METADATA_KEY, {})
    merged = {key: value for key, value in {**known, **facts}.items() if value is not None}
    if merged == known:
        return
    await history_rows.insert_row_change(tx, row, call_id, now, "updated")
    draft = Draft.from_memory(row.memory, metadata={**row.memory.metadata, ENTITY_METADATA_KEY: merged})
    await write.rewrite_memory(store, tx, row, prepare_memory(draft, row.memory.created), now)


async def _hide_entity(store: Store, tx: Transaction, entity: EntityRow, call_id: int, now: float) -> None:
    """Hide an entity and its observations."""
    observations = await memory_rows.list_session_memories(tx, [entity.scope], str(entity.id), OBSERVATION_TYPE)
    for row in [*observations, *await memory_rows.find_rows_by_id(tx, [entity.scope], entity.id)]:
        await _hide_row(store, tx, row, call_id, now)


async def _hide_row(store: Store, tx: Transaction, row: MemoryRow, call_id: int, now: float) -> None:
    await history_rows.insert_row_change(tx, row, call_id, now, "forgotten")
    await write.hide_memory(store, tx, row, now)


def _clean_entity(entity: NewEntity, position: int | None) -> Entity:
    where = "" if position is None else f"entities[{position}]."
    entity_type = redaction.redact(clean_graph_type(entity["entityType"], f"{where}entityType")).text
    texts = _clean_texts(entity.get("observations", ()), f"{where}observations", entity["name"], entity_type)
    return {"name": clean_entity_name(entity["name"], f"{where}name"), "entityType": entity_type, "observations": texts}


def _list_kinds(entity: NewEntity) -> tuple[str, ...]:
    """Return the kinds of the secrets in an entity."""
    texts = [make_storable(text) for text in entity.get("observations", ())]
    return redaction.redact_json({make_storable(entity["name"]): {make_storable(entity["entityType"]): texts}})[1]


def _clean_texts(texts: Iterable[str], field: str, *names: str) -> list[str]:
    """Return texts that can be stored, without repeats and secrets, also those that the names above them tell."""
    safe: Any = [clean_text(text, f"{field}[{i}]") for i, text in enumerate(texts)]
    for name in reversed(names):
        safe = {make_storable(name): safe}
    safe, _ = redaction.redact_json(safe)
    for _ in names:
        [safe] = safe.values()
    return list(dict.fromkeys(safe))
