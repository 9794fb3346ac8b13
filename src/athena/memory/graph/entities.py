"""Read the knowledge graph, and run every change of it.

Each entity and each observation is a row of the kind `entity`; the session of an observation is its entity. History,
undo and purge therefore treat them like memories. A name that comes again after it was deleted gets a new row, at the
end of the order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from athena.core import redaction
from athena.core.text import make_storable
from athena.core.values import Call, Scope
from athena.errors import NotFound
from athena.memory import rows as memory_rows
from athena.memory import write
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.mentions import to_exact_key
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import ENTITY_METADATA_KEY, Entity, Graph, Relation, entity_key
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.store import Store
from athena.storage import calls, scopes
from athena.storage.database import Transaction


async def read_graph(store: Store, scope: Scope) -> Graph:
    """Return the whole graph."""

    async def read_nodes(tx: Transaction) -> Graph:
        visible = await scopes.fetch_visible_ids(tx, scope)
        entities, observations = await graph_rows.fetch_all_entities(tx, visible)
        edges = await graph_rows.list_relations(tx, visible)
        return {
            "entities": to_entities(sort_own_first(entities, visible), observations),
            "relations": to_relations(edges),
        }

    return await store.database.read(read_nodes)


async def open_nodes(store: Store, names: Sequence[str], scope: Scope) -> Graph:
    """Return entities by name, also by a name from before a merge, and every relation that names one of them."""
    keys = list(dict.fromkeys(map(to_entity_key, names)))

    async def find_nodes(tx: Transaction) -> Graph:
        visible = await scopes.fetch_visible_ids(tx, scope)
        named = await graph_rows.fetch_entities_by_key(tx, visible, keys)
        named_ids = {entity.id for entity in named}
        aliases = [to_exact_key(key) for key in {*keys} - {entity.key for entity in named}]
        alias_ids = await graph_rows.list_mentioning_ids(tx, visible, aliases) if aliases else []
        alias_ids = [i for i in alias_ids if i not in named_ids]
        aliased = await graph_rows.fetch_entities_by_id(tx, visible, alias_ids) if alias_ids else []
        return await assemble_graph(tx, visible, named + aliased)

    return await store.database.read(find_nodes)


async def assemble_graph(tx: Transaction, scope_ids: list[int], entities: list[EntityRow]) -> Graph:
    """Return entities with their observations and relations, in the given order within each scope."""
    if not entities:
        return {"entities": [], "relations": []}
    observations = await graph_rows.fetch_observations(tx, scope_ids, [entity.id for entity in entities])
    keys = [entity.key for entity in entities]
    edges = await graph_rows.list_relations_touching(tx, scope_ids, keys)
    return {
        "entities": to_entities(sort_own_first(entities, scope_ids), observations),
        "relations": to_relations(edges),
    }


async def get_entity(tx: Transaction, scope_ids: list[int], name: str) -> EntityRow:
    """Return the entity of a name, the project's own before the shared project's."""
    matches = sort_own_first(await graph_rows.fetch_entities_by_key(tx, scope_ids, [to_entity_key(name)]), scope_ids)
    if not matches:
        raise NotFound(f"there is no entity {name!r:.80} in this project", hint="search_graph finds entities")
    return matches[0]


async def fetch_entities(tx: Transaction, scope_ids: list[int], ids: list[int]) -> list[Entity]:
    entities = await graph_rows.fetch_entities_by_id(tx, scope_ids, ids)
    return to_entities(entities, await graph_rows.fetch_observations(tx, scope_ids, ids))


async def fetch_entity_metadata(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return the metadata that callers gave with entities."""
    memories = await memory_rows.fetch_memories(tx, scope_ids, ids)
    return {entity_id: memory.metadata.get(ENTITY_METADATA_KEY, {}) for entity_id, memory in memories.items()}


def normalize_text(text: str) -> str:
    """Return a text as it would be stored, to compare it with stored ones."""
    return redaction.redact(make_storable(text)).text


def to_entity_key(name: str) -> str:
    """Return the key of an entity's name as a caller writes it."""
    return entity_key(normalize_text(name))


def sort_own_first(entities: list[EntityRow], scope_ids: list[int]) -> list[EntityRow]:
    return entities if len(scope_ids) < 2 else sorted(entities, key=lambda entity: scope_ids.index(entity.scope))


def to_entities(entities: Iterable[EntityRow], observations: Mapping[int, list[str]]) -> list[Entity]:
    """Return entities as callers see them; one that both the project and the shared project have becomes one."""
    types: dict[str, str] = {}
    texts: dict[str, dict[str, None]] = {}
    for row in entities:
        types.setdefault(row.name, row.type)
        texts.setdefault(row.name, {}).update(dict.fromkeys(observations[row.id]))
    return [{"name": name, "entityType": types[name], "observations": list(texts[name])} for name in types]


def to_relations(edges: Iterable[RelationRow]) -> list[Relation]:
    """Return relations as callers see them, without repeats."""
    unique = {(get_triple(edge), edge.began, edge.ended): edge for edge in edges}
    return [to_relation(edge) for edge in unique.values()]


def to_relation(edge: RelationRow) -> Relation:
    relation: Relation = {"from": edge.source_name, "to": edge.target_name, "relationType": edge.relation}
    if edge.began is not None:
        relation["since"] = edge.began
    if edge.ended is not None:
        relation["until"] = edge.ended
    return relation


def get_triple(edge: RelationRow) -> tuple[str, str, str]:
    return edge.source, edge.target, edge.relation


async def change_graph(store: Store, call: Call, act: Callable[..., Any], fetch: Any) -> Any:
    """Run `act` once in a transaction, return what `fetch` reads of its result, and index new rows afterwards."""

    async def apply_change(tx: Transaction) -> Any:
        result = await calls.run_once(tx, call, partial(act, tx))
        return None if fetch is None else await fetch(tx, result)

    result = await store.database.write(apply_change)
    schedule_indexing(store)
    return result


def schedule_indexing(store: Store) -> None:
    store.database.defer_write(partial(index_batch, store), dedupe_key="index")


async def index_batch(store: Store, tx: Transaction) -> None:
    """Write the passages of queued rows; the model encodes them later."""
    count = await write.index_waiting(store, tx)
    if count and store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    if count >= write.INDEX_BATCH_SIZE:
        schedule_indexing(store)
