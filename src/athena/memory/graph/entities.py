"""The knowledge graph: reading it, and the one way to change it.

An entity is a row of its own kind, and so is each observation, in the session of its entity: history, undo and purge
know them as they know memories. A row that comes again after it was deleted is a new one, at the end of the order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from athena.core import redaction
from athena.core.call import Call
from athena.core.scope import Scope
from athena.core.text import storable
from athena.errors import NotFound
from athena.memory import rows as memory_rows
from athena.memory import write_rows
from athena.memory.graph import mention_rows, relation_rows, rows
from athena.memory.graph.relation_rows import Edge
from athena.memory.graph.rows import Node
from athena.memory.graph.values import ABOUT, Entity, Graph, Relation, entity_key
from athena.memory.index import SOON, catch_up
from athena.memory.store import Store
from athena.storage import calls, scopes
from athena.storage.database import Transaction


async def read(store: Store, scope: Scope) -> Graph:
    """Return the whole graph."""

    async def work(tx: Transaction) -> Graph:
        numbers = await scopes.visible(tx, scope)
        nodes, seen = await rows.whole(tx, numbers)
        edges = await relation_rows.every(tx, numbers)
        return {"entities": joined(own_first(nodes, numbers), seen), "relations": distinct(edges)}

    return await store.database.read(work)


async def open_nodes(store: Store, names: Sequence[str], scope: Scope) -> Graph:
    """Return entities by name, also one they had before a merge, and every relation that names one of them."""
    keys = list(dict.fromkeys(map(key_of, names)))

    async def work(tx: Transaction) -> Graph:
        numbers = await scopes.visible(tx, scope)
        found = await rows.named(tx, numbers, keys)
        missing = {*keys} - {node.key for node in found}
        merged = await mention_rows.memories_of(tx, numbers, [f"={key}" for key in missing]) if missing else []
        also = await rows.numbered(tx, numbers, [one for one in merged if one not in {n.id for n in found}])
        return await assembled(tx, numbers, found + also)

    return await store.database.read(work)


async def assembled(tx: Transaction, numbers: list[int], nodes: list[Node]) -> Graph:
    """Return entities with their observations and relations, in the order given within each scope."""
    if not nodes:
        return {"entities": [], "relations": []}
    seen = await rows.observations(tx, numbers, [node.id for node in nodes])
    edges = await relation_rows.touching(tx, numbers, [node.key for node in nodes])
    return {"entities": joined(own_first(nodes, numbers), seen), "relations": distinct(edges)}


async def the_entity(tx: Transaction, numbers: list[int], name: str) -> Node:
    """Return the entity of a name, the project's own before one that is known everywhere."""
    found = own_first(await rows.named(tx, numbers, [key_of(name)]), numbers)
    if not found:
        raise NotFound(f"there is no entity {name!r:.80} in this project", hint="search_graph finds entities")
    return found[0]


def as_kept(text: str) -> str:
    """Return a text as it would be stored, to find what was."""
    return redaction.redact(storable(text)).text


def key_of(name: str) -> str:
    """Return the key of an entity's name as a caller writes it."""
    return entity_key(as_kept(name))


def own_first(nodes: list[Node], numbers: list[int]) -> list[Node]:
    return nodes if len(numbers) < 2 else sorted(nodes, key=lambda node: numbers.index(node.scope))


def joined(nodes: Iterable[Node], seen: Mapping[int, list[str]]) -> list[Entity]:
    """Return entities; one that a project and everybody has are shown as one."""
    found: dict[str, Entity] = {}
    for node in nodes:
        known = found.setdefault(node.name, {"name": node.name, "entityType": node.type, "observations": []})
        known["observations"] += [text for text in seen[node.id] if text not in known["observations"]]
    return list(found.values())


def distinct(edges: Iterable[Edge]) -> list[Relation]:
    return [shown(edge) for edge in {(triple(edge), edge.began, edge.ended): edge for edge in edges}.values()]


def shown(edge: Edge) -> Relation:
    relation: Relation = {"from": edge.source_name, "to": edge.target_name, "relationType": edge.relation}
    if edge.began is not None:
        relation["since"] = edge.began
    if edge.ended is not None:
        relation["until"] = edge.ended
    return relation


async def numbered(tx: Transaction, numbers: list[int], ids: list[int]) -> list[Entity]:
    nodes = await rows.numbered(tx, numbers, ids)
    return joined(nodes, await rows.observations(tx, numbers, ids))


async def about(tx: Transaction, numbers: list[int], ids: list[int]) -> dict[int, dict[str, Any]]:
    """Return the metadata that were given with entities."""
    return {number: row.metadata.get(ABOUT, {}) for number, row in (await memory_rows.fetch(tx, numbers, ids)).items()}


async def change(store: Store, call: Call, act: Callable[..., Any], fetch: Any) -> Any:
    """Change the graph in one transaction, once, and let the indexes follow."""

    async def work(tx: Transaction) -> Any:
        done = await calls.once(tx, call, partial(act, tx))
        return None if fetch is None else await fetch(tx, done)

    result = await store.database.write(work)
    index_later(store)
    return result


async def index_some(store: Store, tx: Transaction) -> None:
    """Write passages that wait; the model reads them afterwards."""
    written = await write_rows.index_waiting(store, tx)
    if written and store.encoder.works:
        catch_up(store, SOON)
    if written >= write_rows.AT_ONCE:
        index_later(store)


def index_later(store: Store) -> None:
    store.database.later(partial(index_some, store), once="index")


def triple(edge: Edge) -> tuple[str, str, str]:
    return edge.source, edge.target, edge.relation
