"""Entities and what is observed of them: making, merging and deleting."""

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
from athena.storage import scopes
from athena.storage.database import Transaction


async def create_entities(store: Store, given: Sequence[NewEntity], call: Call) -> list[Entity]:
    """Make the entities that are not there yet, and return those."""
    wanted = list(_dedupe_by_name([_clean_entity(e, i) for i, e in enumerate(given)]).values())
    now = store.clock()

    async def insert_missing(tx: Transaction, number: int) -> list[int]:
        scope = await scopes.ensure_scope(tx, call.scope)
        known = {
            node.key
            for node in await graph_rows.fetch_entities_by_key(tx, [scope], [entity_key(e["name"]) for e in wanted])
        }
        return [
            await _insert_entity(tx, scope, one, number, now) for one in wanted if entity_key(one["name"]) not in known
        ]

    async def fetch_created(tx: Transaction, made: list[int]) -> list[Entity]:
        return await fetch_entities(tx, await scopes.fetch_own_ids(tx, call.scope), made)

    made: list[Entity] = await change_graph(store, call, insert_missing, fetch_created)
    return made


async def create_entity(store: Store, one: NewEntity, metadata: Mapping[str, Any] | None, call: Call) -> Made:
    """Make an entity, or add to the one of that name, whose type stays, and return it as it is now."""
    clean, now = _clean_entity(one, None), store.clock()
    facts, kinds = inputs.clean_facts(metadata)
    given = [one["name"], one["entityType"], *one.get("observations", ())]
    redacted = [*(kind for text in given for kind in redaction.redact(make_storable(text)).kinds), *kinds]

    async def insert_or_extend(tx: Transaction, number: int) -> list[Any]:
        scope = await scopes.ensure_scope(tx, call.scope)
        known = await graph_rows.fetch_entities_by_key(tx, [scope], [entity_key(clean["name"])])
        if not known:
            return [await _insert_entity(tx, scope, clean, number, now, facts), "new"]
        await _insert_observations(tx, known[0], clean["observations"], number, now)
        await _update_metadata(store, tx, known[0], facts, number, now)
        return [known[0].id, "known"]

    async def fetch_entity(tx: Transaction, made: list[Any]) -> Made:
        return await _fetch_result(tx, call, made[0], made[1], redacted)

    done: Made = await change_graph(store, call, insert_or_extend, fetch_entity)
    return done


async def add_observations(store: Store, given: Sequence[NewObservations], call: Call) -> list[Added]:
    """Add what is new of the observations to entities that must be there, and return it."""
    items = [
        (clean_entity_name(one["entityName"], "entityName"), _clean_texts(one["contents"], "contents")) for one in given
    ]
    keys = [entity_key(name) for name, _ in items]
    now = store.clock()
    told: list[list[str]] = []

    async def write_observations(tx: Transaction, number: int) -> list[list[int]]:
        told.clear()
        numbers = await scopes.fetch_visible_ids(tx, call.scope)
        found = {
            node.key: node
            for node in reversed(sort_own_first(await graph_rows.fetch_entities_by_key(tx, numbers, keys), numbers))
        }
        added = []
        for (name, texts), key in zip(items, keys, strict=True):
            if key not in found:
                raise NotFound(f"Entity with name {name} not found", hint="create_entities makes it")
            if store.database.engine != "sqlite" and not await graph_rows.lock_entity(
                tx, found[key]
            ):  # where many write at once
                raise NotFound(f"Entity with name {name} not found", hint="it was deleted just now")
            new = await _insert_observations(tx, found[key], texts, number, now)
            told.append([text for _, text in new])
            added.append([row for row, _ in new])
        return added

    async def fetch_added(tx: Transaction, added: list[list[int]]) -> list[Added]:
        known = told
        if not told:  # done by an earlier call with the same key
            numbers = await scopes.fetch_visible_ids(tx, call.scope)
            rows = await memory_rows.fetch_memories(tx, numbers, [row for one in added for row in one], forgotten=True)
            known = [[rows[row].content for row in one if row in rows] for one in added]
        return [{"entityName": name, "addedObservations": new} for (name, _), new in zip(items, known, strict=True)]

    result: list[Added] = await change_graph(store, call, write_observations, fetch_added)
    return result


async def delete_entities(store: Store, names: Sequence[str], call: Call) -> None:
    """Delete entities of the project with all that was observed of them, and its relations that name them."""
    keys = [to_entity_key(name) for name in names]
    now = store.clock()

    async def hide_entities(tx: Transaction, number: int) -> None:
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        for node in await graph_rows.fetch_entities_by_key(tx, numbers, keys):
            await _hide_entity(store, tx, node, number, now)
        for edge in await graph_rows.list_relations_touching(tx, numbers, keys):
            await unlink_edge(tx, edge, number, now)

    await change_graph(store, call, hide_entities, None)


async def delete_observations(store: Store, given: Sequence[Deletion], call: Call) -> None:
    """Delete observations by their text, of entities that are there."""
    now = store.clock()

    async def hide_observations(tx: Transaction, number: int) -> None:
        numbers = await scopes.fetch_visible_ids(tx, call.scope)
        for one in given:
            for node in await graph_rows.fetch_entities_by_key(tx, numbers, [to_entity_key(one["entityName"])]):
                doomed = {_observation_key(node.id, normalize_text(text)) for text in one["observations"]}
                for key in doomed:
                    for kept in await memory_rows.find_memory_rows(
                        tx, [node.scope], "m.digest = :digest AND m.deleted IS NULL", digest=key
                    ):
                        await _hide_row(store, tx, kept, number, now)

    await change_graph(store, call, hide_observations, None)


async def merge_entities(store: Store, source: str, into: str, call: Call) -> Made:
    """Make one entity of two, as one change: observations and relations of the first go to the second."""
    if source == into:
        raise InvalidInput("an entity cannot be merged into itself")
    now = store.clock()

    async def move_contents(tx: Transaction, number: int) -> list[Any]:
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        one, other = [await get_entity(tx, numbers, name) for name in (source, into)]
        observed = (await graph_rows.fetch_observations(tx, [one.scope], [one.id]))[one.id]
        await _insert_observations(tx, other, observed, number, now)
        facts = await fetch_entity_metadata(tx, numbers, [one.id, other.id])
        await _update_metadata(store, tx, other, facts[one.id] | facts[other.id], number, now)
        await add_aliases(tx, one, other, number, now)
        await _hide_entity(store, tx, one, number, now)
        for edge in await graph_rows.list_relations_touching(tx, numbers, [one.key]):
            await unlink_edge(tx, edge, number, now)
            moved = _replace_node(edge, one, other)
            beside = await graph_rows.find_relations(tx, [edge.scope], *get_triple(moved))
            if moved.source != moved.target and not any(its.overlaps(moved) for its in beside):
                await link_edge(tx, edge.scope, moved, number, now)
        return [other.id, "known"]

    async def fetch_merged(tx: Transaction, made: list[Any]) -> Made:
        return await _fetch_result(tx, call, made[0], "merged", [])

    result: Made = await change_graph(store, call, move_contents, fetch_merged)
    return result


async def _fetch_result(tx: Transaction, call: Call, number: int, outcome: str, redacted: list[str]) -> Made:
    visible = await scopes.fetch_visible_ids(tx, call.scope)
    found = await fetch_entities(tx, visible, [number])
    if not found:
        raise NotFound("what this call made was deleted since", hint="undo brings it back")
    facts = (await fetch_entity_metadata(tx, visible, [number]))[number]
    return {**found[0], "id": number, "outcome": outcome, "metadata": facts, "redacted": redacted}


async def _update_metadata(
    store: Store, tx: Transaction, node: EntityRow, facts: dict[str, Any], call: int, now: float
) -> None:
    """Add to the metadata of an entity; a null removes a key."""
    kept = (await memory_rows.find_memory_rows(tx, [node.scope], "m.id = :id", id=node.id))[0]
    m = kept.memory
    known = m.metadata.get(ENTITY_METADATA_KEY, {})
    merged = {key: value for key, value in {**known, **facts}.items() if value is not None}
    if merged == known:
        return
    await history_rows.insert_change(tx, node.scope, node.id, call, now, "updated", kept.to_snapshot())
    one = Draft(m.content, m.tags, m.memory_type, {**m.metadata, ENTITY_METADATA_KEY: merged}, m.importance)
    await write.rewrite_memory(store, tx, kept, prepare_memory(one, m.created), now)


async def _insert_entity(
    tx: Transaction, scope: int, one: Entity, call: int, now: float, facts: Mapping[str, Any] | None = None
) -> int:
    metadata: dict[str, Any] = dict(entity_metadata(one["entityType"]))
    if facts:
        metadata[ENTITY_METADATA_KEY] = dict(facts)
    row = Draft(one["name"], (), one["entityType"], metadata)
    number = await write.insert_unindexed(tx, scope, prepare_memory(row, now), now)
    await graph_rows.insert_mentions(tx, scope, number, [key] if (key := fold_name(one["name"])) else [])
    await history_rows.insert_change(tx, scope, number, call, now, "remembered", None)
    node = EntityRow(number, scope, one["name"], one["entityType"], entity_key(one["name"]))
    await _insert_observations(tx, node, one["observations"], call, now, new=True)
    return number


async def _insert_observations(
    tx: Transaction, node: EntityRow, texts: Sequence[str], call: int, now: float, *, new: bool = False
) -> list[tuple[int, str]]:
    """Write the observations that an entity does not have, and return them with their numbers."""
    keys = {_observation_key(node.id, text): text for text in texts}
    known = set() if new else await memory_rows.find_known_digests(tx, [node.scope], list(keys))
    added = []
    for key, text in keys.items():
        if key in known:
            continue
        row = Draft(text, (), OBSERVATION_TYPE, {"session_id": str(node.id), "speaker": node.name})
        number = await write.insert_unindexed(tx, node.scope, prepare_memory(row, now), now)
        await history_rows.insert_change(tx, node.scope, number, call, now, "remembered", None)
        added.append((number, text))
    return added


async def _hide_entity(store: Store, tx: Transaction, node: EntityRow, call: int, now: float) -> None:
    """Hide an entity and what was observed of it."""
    rows = await memory_rows.list_session_memories(tx, [node.scope], str(node.id), OBSERVATION_TYPE)
    for kept in [*rows, *await memory_rows.find_memory_rows(tx, [node.scope], "m.id = :id", id=node.id)]:
        await _hide_row(store, tx, kept, call, now)


async def _hide_row(store: Store, tx: Transaction, kept: MemoryRow, call: int, now: float) -> None:
    await history_rows.insert_change(tx, kept.scope, kept.memory.id, call, now, "forgotten", kept.to_snapshot())
    await write.hide_memory(store, tx, kept, now)


def _observation_key(entity: int, text: str) -> str:
    return hash_text(text, str(entity))


def _replace_node(edge: RelationRow, one: EntityRow, other: EntityRow) -> RelationRow:
    """Return a relation with one entity in the place of another."""
    if edge.source == one.key:
        edge = edge._replace(source=other.key, source_name=other.name)
    return edge._replace(target=other.key, target_name=other.name) if edge.target == one.key else edge


def _dedupe_by_name(given: Sequence[Entity]) -> dict[str, Entity]:
    """Return entities by name; of two with the same, the first."""
    found: dict[str, Entity] = {}
    for one in given:
        found.setdefault(one["name"], one)
    return found


def _clean_entity(one: NewEntity, position: int | None) -> Entity:
    where = "" if position is None else f"entities[{position}]."
    kind = redaction.redact(clean_graph_type(one["entityType"], f"{where}entityType")).text
    texts = _clean_texts(one.get("observations", ()), f"{where}observations")
    return {"name": clean_entity_name(one["name"], f"{where}name"), "entityType": kind, "observations": texts}


def _clean_texts(given: Iterable[str], what: str) -> list[str]:
    """Return texts that can be stored, without secrets and without repeats."""
    return list(dict.fromkeys(redaction.redact(clean_text(text, f"{what}[{i}]")).text for i, text in enumerate(given)))
