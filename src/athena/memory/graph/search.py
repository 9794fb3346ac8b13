"""Finding one's way in the graph: by words and meaning, and along relations."""

from typing import Literal, NamedTuple

from athena.core.scope import Scope
from athena.errors import Unavailable
from athena.memory import index_queue, inputs, write_rows
from athena.memory.graph import relation_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import about, as_kept, assembled, joined, key_of, own_first, shown, the_entity
from athena.memory.graph.relation_rows import Edge
from athena.memory.graph.rows import Node
from athena.memory.graph.values import FoundEntity, Graph, Neighbor, Neighborhood, Path
from athena.memory.index import settle
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import Filter, Hit
from athena.storage import scopes
from athena.storage.database import Transaction

ROWS = 5  # that are looked at for each entity wanted: several of them may be of one
ALSO = 10  # entities that `search_nodes` adds to those that hold the text
CLOSE = 0.25  # how well a row must fit to be added
SIDES = {"both": ("source", "target"), "out": ("source",), "in": ("target",)}


class Way(NamedTuple):
    """Which relations may be followed."""

    direction: Literal["both", "out", "in"] = "both"
    relation: str | None = None
    at: float | None = None


def moment(at: str | float | None, now: float) -> float | None:
    """Return the time at which relations must hold: now unless told, nothing where any will do."""
    if isinstance(at, str) and at.strip().casefold() == "any":
        return None
    return now if at is None else inputs.moment(at, "at", now, end=False)


async def search_nodes(store: Store, query: str, scope: Scope) -> Graph:
    """Return the entities that hold a text, in their order, then those close to it by words and meaning."""
    query = as_kept(query)
    close = (await _close(store, query, ALSO * ROWS, scope))[0] if query.strip() else []

    async def work(tx: Transaction) -> Graph:
        numbers = await scopes.visible(tx, scope)
        holding = await graph_rows.numbered(tx, numbers, sorted(await graph_rows.holding(tx, numbers, query)))
        good = [hit.id for hit in close if hit.score >= CLOSE]
        also = await _entities_of(tx, numbers, good)
        known = {node.id for node in holding}
        more = [node for node in also if node.id not in known][:ALSO]
        first = await assembled(tx, numbers, own_first(holding, numbers))
        rest = await assembled(tx, numbers, more)
        return _together(first, rest)

    return await store.database.read(work)


def _together(one: Graph, other: Graph) -> Graph:
    names = {entity["name"] for entity in one["entities"]}
    made = [*one["relations"], *(r for r in other["relations"] if r not in one["relations"])]
    return {"entities": one["entities"] + [e for e in other["entities"] if e["name"] not in names], "relations": made}


async def search_graph(store: Store, query: str, most: int, scope: Scope) -> list[FoundEntity]:
    """Return the entities that fit a question best, each by the best of its rows."""
    close, all_indexed = await _close(store, query, most * ROWS, scope)
    scores: dict[int, float] = {}

    async def work(tx: Transaction) -> list[FoundEntity]:
        numbers = await scopes.visible(tx, scope)
        owners = await graph_rows.owners(tx, numbers, [hit.id for hit in close])
        for hit in close:
            scores.setdefault(owners.get(hit.id, 0), hit.score)
        nodes = await _entities_of(tx, numbers, [hit.id for hit in close])
        if not all_indexed:  # what no index has yet is found where it holds the very text
            holding = await graph_rows.numbered(
                tx, numbers, sorted(await graph_rows.holding(tx, numbers, as_kept(query)))
            )
            nodes += [node for node in holding if node not in nodes]
        nodes = nodes[:most]
        facts = await about(tx, numbers, [node.id for node in nodes])
        seen = await graph_rows.observations(tx, numbers, [node.id for node in nodes])
        found: list[FoundEntity] = []
        for node in nodes:
            edges = await relation_rows.touching(tx, numbers, [node.key])
            entity = joined([node], seen)[0]
            score, related = scores.get(node.id, CLOSE), [shown(edge) for edge in edges]
            found.append({**entity, "score": score, "relations": related, "metadata": facts[node.id]})
        return found

    return await store.database.read(work)


async def _close(store: Store, query: str, rows: int, scope: Scope) -> tuple[list[Hit], bool]:
    """Search the rows of the graph, after those that wait were put into the indexes; tell whether all were."""
    all_indexed = await _index(store)
    return await recall(store, Query(query, Filter(scope), min(rows, 10_000))), all_indexed


async def _index(store: Store) -> bool:
    """Put what waits into the indexes, unless somebody else is writing: a search waits for nobody."""

    async def behind(tx: Transaction) -> bool:
        return bool(await index_queue.first(tx, 1)) or await store.database.vectors.any_missing(tx)

    if not await store.database.read(behind):
        return True
    if not await store.database.free():
        return False
    try:
        await write_rows.index_all(store)
        await settle(store, "entity")
    except Unavailable:
        return False
    return True


async def _entities_of(tx: Transaction, numbers: list[int], rows: list[int]) -> list[Node]:
    """Return the entities that rows belong to, in the order of the rows."""
    owners = await graph_rows.owners(tx, numbers, rows)
    order = list(dict.fromkeys(owners[row] for row in rows if row in owners))
    nodes = {node.id: node for node in await graph_rows.numbered(tx, numbers, order)}
    return [nodes[number] for number in order if number in nodes]


async def neighbors(store: Store, name: str, depth: int, way: Way, most: int, scope: Scope) -> Neighborhood:
    """Return what is related to an entity, step by step, and the relations that lead there."""

    async def work(tx: Transaction) -> Neighborhood:
        numbers = await scopes.visible(tx, scope)
        start = key_of(name)
        if not await relation_rows.touching(tx, numbers, [start]):
            await the_entity(tx, numbers, name)  # an error, unless it is there and alone
        reached: dict[str, tuple[str, int]] = {start: (name, 0)}
        taken: dict[int, Edge] = {}
        edge_of = [start]
        for distance in range(1, depth + 1):
            following = await _step(tx, numbers, edge_of, way)
            edge_of = []
            for edge, key, other in following:
                if key not in reached and len(reached) <= most:
                    reached[key] = (other, distance)
                    edge_of.append(key)
                if key in reached:
                    taken[edge.id] = edge
            if not edge_of:
                break
        del reached[start]
        return {
            "name": name,
            "neighbors": await _described(tx, numbers, reached),
            "relations": [shown(taken[number]) for number in sorted(taken)],
        }

    return await store.database.read(work)


async def _step(tx: Transaction, numbers: list[int], keys: list[str], way: Way) -> list[tuple[Edge, str, str]]:
    """Return the relations to follow from some names, each with the name it leads to."""
    found: list[tuple[Edge, str, str]] = []
    here = set(keys)
    for edge in await relation_rows.touching(tx, numbers, keys, SIDES[way.direction]):
        if not edge.holds(way.at) or way.relation not in (None, edge.relation):
            continue
        if edge.source in here and way.direction != "in":
            found.append((edge, edge.target, edge.target_name))
        if edge.target in here and way.direction != "out":
            found.append((edge, edge.source, edge.source_name))
    return found


async def _described(tx: Transaction, numbers: list[int], reached: dict[str, tuple[str, int]]) -> list[Neighbor]:
    nodes = own_first(await graph_rows.named(tx, numbers, list(reached)), numbers)
    seen = await graph_rows.observations(tx, numbers, [node.id for node in nodes])
    known = {entity["name"]: entity for entity in joined(nodes, seen)}
    return [
        {
            "name": name,
            "entityType": known[name]["entityType"] if name in known else None,
            "observations": known[name]["observations"] if name in known else [],
            "distance": distance,
        }
        for name, distance in reached.values()
    ]


async def find_path(store: Store, source: str, target: str, most: int, way: Way, scope: Scope) -> Path:
    """Return the shortest chain of relations from one entity to another, if there is one of at most so many."""

    async def work(tx: Transaction) -> Path:
        numbers = await scopes.visible(tx, scope)
        for name in (source, target):
            if not await relation_rows.touching(tx, numbers, [key_of(name)]):
                await the_entity(tx, numbers, name)
        start, end = key_of(source), key_of(target)
        came: dict[str, tuple[str, Edge, str] | None] = {start: None}
        here = [start]
        for _ in range(most):
            if end in came or not here:
                break
            following = await _step(tx, numbers, here, way)
            before = set(here)
            here = []
            for edge, key, name in following:
                if key not in came:
                    origin = edge.source if edge.target == key and edge.source in before else edge.target
                    came[key] = origin, edge, name
                    here.append(key)
        return _traced(came, end, source)

    return await store.database.read(work)


def _traced(came: dict[str, tuple[str, Edge, str] | None], end: str, source: str) -> Path:
    """Walk back from the end to where the search began."""
    if end not in came:
        return {"found": False, "names": [], "relations": []}
    names: list[str] = []
    edges: list[Edge] = []
    key = end
    while (step := came[key]) is not None:
        key, edge, name = step
        names.append(name)
        edges.append(edge)
    return {
        "found": True,
        "names": [source, *reversed(names)],
        "relations": [shown(edge) for edge in reversed(edges)],
    }
