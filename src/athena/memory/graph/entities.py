"""The knowledge graph: reading it, and the one way to change it.

An entity is a row of its own kind, and so is each observation, in the session of its entity: history, undo and purge
know them as they know memories. A row that comes again after it was deleted is a new one, at the end of the order.
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
from athena.memory.graph import rows
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import ENTITY_METADATA_KEY, Entity, Graph, Relation, entity_key
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.store import Store
from athena.storage import calls, scopes
from athena.storage.database import Transaction


async def read_graph(store: Store, scope: Scope) -> Graph:
    """Return the whole graph."""

    async def read_nodes(tx: Transaction) -> Graph:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        nodes, seen = await rows.fetch_all_entities(tx, numbers)
        edges = await rows.list_relations(tx, numbers)
        return {"entities": to_entities(sort_own_first(nodes, numbers), seen), "relations": to_relations(edges)}

    return await store.database.read(read_nodes)


async def open_nodes(store: Store, names: Sequence[str], scope: Scope) -> Graph:
    """Return entities by name, also one they had before a merge, and every relation that names one of them."""
    keys = list(dict.fromkeys(map(to_entity_key, names)))

    async def find_nodes(tx: Transaction) -> Graph:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        found = await rows.fetch_entities_by_key(tx, numbers, keys)
        missing = {*keys} - {node.key for node in found}
        merged = await rows.list_mentioning_ids(tx, numbers, [f"={key}" for key in missing]) if missing else []
        also = await rows.fetch_entities_by_id(tx, numbers, [one for one in merged if one not in {n.id for n in found}])
        return await assemble_graph(tx, numbers, found + also)

    return await store.database.read(find_nodes)


async def assemble_graph(tx: Transaction, numbers: list[int], nodes: list[EntityRow]) -> Graph:
    """Return entities with their observations and relations, in the order given within each scope."""
    if not nodes:
        return {"entities": [], "relations": []}
    seen = await rows.fetch_observations(tx, numbers, [node.id for node in nodes])
    edges = await rows.list_relations_touching(tx, numbers, [node.key for node in nodes])
    return {"entities": to_entities(sort_own_first(nodes, numbers), seen), "relations": to_relations(edges)}


async def get_entity(tx: Transaction, numbers: list[int], name: str) -> EntityRow:
    """Return the entity of a name, the project's own before one that is known everywhere."""
    found = sort_own_first(await rows.fetch_entities_by_key(tx, numbers, [to_entity_key(name)]), numbers)
    if not found:
        raise NotFound(f"there is no entity {name!r:.80} in this project", hint="search_graph finds entities")
    return found[0]


def normalize_text(text: str) -> str:
    """Return a text as it would be stored, to find what was."""
    return redaction.redact(make_storable(text)).text


def to_entity_key(name: str) -> str:
    """Return the key of an entity's name as a caller writes it."""
    return entity_key(normalize_text(name))


def sort_own_first(nodes: list[EntityRow], numbers: list[int]) -> list[EntityRow]:
    return nodes if len(numbers) < 2 else sorted(nodes, key=lambda node: numbers.index(node.scope))


def to_entities(nodes: Iterable[EntityRow], seen: Mapping[int, list[str]]) -> list[Entity]:
    """Return entities; one that a project and everybody has are shown as one."""
    found: dict[str, Entity] = {}
    for node in nodes:
        known = found.setdefault(node.name, {"name": node.name, "entityType": node.type, "observations": []})
        known["observations"] += [text for text in seen[node.id] if text not in known["observations"]]
    return list(found.values())


def to_relations(edges: Iterable[RelationRow]) -> list[Relation]:
    return [to_relation(edge) for edge in {(get_triple(edge), edge.began, edge.ended): edge for edge in edges}.values()]


def to_relation(edge: RelationRow) -> Relation:
    relation: Relation = {"from": edge.source_name, "to": edge.target_name, "relationType": edge.relation}
    if edge.began is not None:
        relation["since"] = edge.began
    if edge.ended is not None:
        relation["until"] = edge.ended
    return relation


async def fetch_entities(tx: Transaction, numbers: list[int], ids: list[int]) -> list[Entity]:
    nodes = await rows.fetch_entities_by_id(tx, numbers, ids)
    return to_entities(nodes, await rows.fetch_observations(tx, numbers, ids))


async def fetch_entity_metadata(tx: Transaction, numbers: list[int], ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return the metadata that were given with entities."""
    return {
        number: row.metadata.get(ENTITY_METADATA_KEY, {})
        for number, row in (await memory_rows.fetch_memories(tx, numbers, ids)).items()
    }


async def change_graph(store: Store, call: Call, act: Callable[..., Any], fetch: Any) -> Any:
    """Change the graph in one transaction, once, and let the indexes follow."""

    async def apply_change(tx: Transaction) -> Any:
        done = await calls.run_once(tx, call, partial(act, tx))
        return None if fetch is None else await fetch(tx, done)

    result = await store.database.write(apply_change)
    schedule_indexing(store)
    return result


async def index_batch(store: Store, tx: Transaction) -> None:
    """Write passages that wait; the model reads them afterwards."""
    written = await write.index_waiting(store, tx)
    if written and store.encoder.is_working:
        encode_in_background(store, ENCODE_DELAY_S)
    if written >= write.INDEX_BATCH_SIZE:
        schedule_indexing(store)


def schedule_indexing(store: Store) -> None:
    store.database.defer_write(partial(index_batch, store), dedupe_key="index")


def get_triple(edge: RelationRow) -> tuple[str, str, str]:
    return edge.source, edge.target, edge.relation
