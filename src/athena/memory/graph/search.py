"""Finding one's way in the graph: by words and meaning, and along relations."""

from typing import Literal, NamedTuple

from athena.core.values import Scope
from athena.errors import Unavailable
from athena.memory import inputs, write
from athena.memory import rows as memory_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import (
    assemble_graph,
    fetch_entity_metadata,
    get_entity,
    normalize_text,
    sort_own_first,
    to_entities,
    to_entity_key,
    to_relation,
)
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import FoundEntity, Graph, Neighbor, Neighborhood, Path
from athena.memory.index import encode_missing
from athena.memory.recall import Query, recall
from athena.memory.store import Store
from athena.memory.values import Hit
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

ROWS_PER_ENTITY = 5  # that are looked at for each entity wanted: several of them may be of one
MAX_EXTRA_ENTITIES = 10  # entities that `search_nodes` adds to those that hold the text
MIN_EXTRA_SCORE = 0.25  # how well a row must fit to be added
DIRECTION_COLUMNS = {"both": ("source", "target"), "out": ("source",), "in": ("target",)}


class RelationFilter(NamedTuple):
    """Which relations may be followed."""

    direction: Literal["both", "out", "in"] = "both"
    relation: str | None = None
    at: float | None = None


def parse_relation_time(at: str | float | None, now: float) -> float | None:
    """Return the time at which relations must hold: now unless told, nothing where any will do."""
    if isinstance(at, str) and at.strip().casefold() == "any":
        return None
    return now if at is None else inputs.parse_time(at, "at", now, end=False)


async def search_nodes(store: Store, query: str, scope: Scope) -> Graph:
    """Return the entities that hold a text, in their order, then those close to it by words and meaning."""
    query = normalize_text(query)
    close = (await _search_rows(store, query, MAX_EXTRA_ENTITIES * ROWS_PER_ENTITY, scope))[0] if query.strip() else []

    async def find_nodes(tx: Transaction) -> Graph:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        holding = await graph_rows.fetch_entities_by_id(
            tx, numbers, sorted(await graph_rows.find_entities_containing(tx, numbers, query))
        )
        good = [hit.id for hit in close if hit.score >= MIN_EXTRA_SCORE]
        also = await _fetch_owners(tx, numbers, good)
        known = {node.id for node in holding}
        more = [node for node in also if node.id not in known][:MAX_EXTRA_ENTITIES]
        first = await assemble_graph(tx, numbers, sort_own_first(holding, numbers))
        rest = await assemble_graph(tx, numbers, more)
        return _merge_graphs(first, rest)

    return await store.database.read(find_nodes)


def _merge_graphs(one: Graph, other: Graph) -> Graph:
    names = {entity["name"] for entity in one["entities"]}
    made = [*one["relations"], *(r for r in other["relations"] if r not in one["relations"])]
    return {"entities": one["entities"] + [e for e in other["entities"] if e["name"] not in names], "relations": made}


async def search_graph(store: Store, query: str, most: int, scope: Scope) -> list[FoundEntity]:
    """Return the entities that fit a question best, each by the best of its rows."""
    close, all_indexed = await _search_rows(store, query, most * ROWS_PER_ENTITY, scope)
    scores: dict[int, float] = {}

    async def read_entities(tx: Transaction) -> list[FoundEntity]:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        owners = await graph_rows.fetch_owner_ids(tx, numbers, [hit.id for hit in close])
        for hit in close:
            scores.setdefault(owners.get(hit.id, 0), hit.score)
        nodes = await _fetch_owners(tx, numbers, [hit.id for hit in close])
        if not all_indexed:  # what no index has yet is found where it holds the very text
            holding = await graph_rows.fetch_entities_by_id(
                tx, numbers, sorted(await graph_rows.find_entities_containing(tx, numbers, normalize_text(query)))
            )
            nodes += [node for node in holding if node not in nodes]
        nodes = nodes[:most]
        facts = await fetch_entity_metadata(tx, numbers, [node.id for node in nodes])
        seen = await graph_rows.fetch_observations(tx, numbers, [node.id for node in nodes])
        found: list[FoundEntity] = []
        for node in nodes:
            edges = await graph_rows.list_relations_touching(tx, numbers, [node.key])
            entity = to_entities([node], seen)[0]
            score, related = scores.get(node.id, MIN_EXTRA_SCORE), [to_relation(edge) for edge in edges]
            found.append({**entity, "score": score, "relations": related, "metadata": facts[node.id]})
        return found

    return await store.database.read(read_entities)


async def _search_rows(store: Store, query: str, rows: int, scope: Scope) -> tuple[list[Hit], bool]:
    """Search the rows of the graph, after those that wait were put into the indexes; tell whether all were."""
    all_indexed = await _index_pending(store)
    return await recall(store, Query(query, Filter(scope), min(rows, 10_000))), all_indexed


async def _index_pending(store: Store) -> bool:
    """Put what waits into the indexes, unless somebody else is writing: a search waits for nobody."""

    async def has_pending(tx: Transaction) -> bool:
        return bool(await memory_rows.list_queued_memories(tx, 1)) or await store.database.vectors.has_missing(tx)

    if not await store.database.read(has_pending):
        return True
    if not await store.database.can_write_now():
        return False
    try:
        await write.index_all(store)
        await encode_missing(store, "entity")
    except Unavailable:
        return False
    return True


async def _fetch_owners(tx: Transaction, numbers: list[int], rows: list[int]) -> list[EntityRow]:
    """Return the entities that rows belong to, in the order of the rows."""
    owners = await graph_rows.fetch_owner_ids(tx, numbers, rows)
    order = list(dict.fromkeys(owners[row] for row in rows if row in owners))
    nodes = {node.id: node for node in await graph_rows.fetch_entities_by_id(tx, numbers, order)}
    return [nodes[number] for number in order if number in nodes]


async def find_neighbors(
    store: Store, name: str, depth: int, way: RelationFilter, most: int, scope: Scope
) -> Neighborhood:
    """Return what is related to an entity, step by step, and the relations that lead there."""

    async def walk_relations(tx: Transaction) -> Neighborhood:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        start = to_entity_key(name)
        if not await graph_rows.list_relations_touching(tx, numbers, [start]):
            await get_entity(tx, numbers, name)  # an error, unless it is there and alone
        reached: dict[str, tuple[str, int]] = {start: (name, 0)}
        taken: dict[int, RelationRow] = {}
        edge_of = [start]
        for distance in range(1, depth + 1):
            following = await _follow_relations(tx, numbers, edge_of, way)
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
            "neighbors": await _describe_neighbors(tx, numbers, reached),
            "relations": [to_relation(taken[number]) for number in sorted(taken)],
        }

    return await store.database.read(walk_relations)


async def _follow_relations(
    tx: Transaction, numbers: list[int], keys: list[str], way: RelationFilter
) -> list[tuple[RelationRow, str, str]]:
    """Return the relations to follow from some names, each with the name it leads to."""
    found: list[tuple[RelationRow, str, str]] = []
    here = set(keys)
    for edge in await graph_rows.list_relations_touching(tx, numbers, keys, DIRECTION_COLUMNS[way.direction]):
        if not edge.holds_at(way.at) or way.relation not in (None, edge.relation):
            continue
        if edge.source in here and way.direction != "in":
            found.append((edge, edge.target, edge.target_name))
        if edge.target in here and way.direction != "out":
            found.append((edge, edge.source, edge.source_name))
    return found


async def _describe_neighbors(
    tx: Transaction, numbers: list[int], reached: dict[str, tuple[str, int]]
) -> list[Neighbor]:
    nodes = sort_own_first(await graph_rows.fetch_entities_by_key(tx, numbers, list(reached)), numbers)
    seen = await graph_rows.fetch_observations(tx, numbers, [node.id for node in nodes])
    known = {entity["name"]: entity for entity in to_entities(nodes, seen)}
    return [
        {
            "name": name,
            "entityType": known[name]["entityType"] if name in known else None,
            "observations": known[name]["observations"] if name in known else [],
            "distance": distance,
        }
        for name, distance in reached.values()
    ]


async def find_path(store: Store, source: str, target: str, most: int, way: RelationFilter, scope: Scope) -> Path:
    """Return the shortest chain of relations from one entity to another, if there is one of at most so many."""

    async def walk_to_target(tx: Transaction) -> Path:
        numbers = await scopes.fetch_visible_ids(tx, scope)
        for name in (source, target):
            if not await graph_rows.list_relations_touching(tx, numbers, [to_entity_key(name)]):
                await get_entity(tx, numbers, name)
        start, end = to_entity_key(source), to_entity_key(target)
        came: dict[str, tuple[str, RelationRow, str] | None] = {start: None}
        here = [start]
        for _ in range(most):
            if end in came or not here:
                break
            following = await _follow_relations(tx, numbers, here, way)
            before = set(here)
            here = []
            for edge, key, name in following:
                if key not in came:
                    origin = edge.source if edge.target == key and edge.source in before else edge.target
                    came[key] = origin, edge, name
                    here.append(key)
        return _trace_path(came, end, source)

    return await store.database.read(walk_to_target)


def _trace_path(came: dict[str, tuple[str, RelationRow, str] | None], end: str, source: str) -> Path:
    """Walk back from the end to where the search began."""
    if end not in came:
        return {"found": False, "names": [], "relations": []}
    names: list[str] = []
    edges: list[RelationRow] = []
    key = end
    while (step := came[key]) is not None:
        key, edge, name = step
        names.append(name)
        edges.append(edge)
    return {
        "found": True,
        "names": [source, *reversed(names)],
        "relations": [to_relation(edge) for edge in reversed(edges)],
    }
