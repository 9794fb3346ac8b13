"""Search the graph: entities by text and meaning, neighbors and paths along relations."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from athena.core.values import Kind, Scope
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
from athena.storage import passages, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

ROWS_PER_ENTITY = 5  # hits to fetch for each entity wanted, since several may belong to one
MAX_EXTRA_ENTITIES = 10  # that `search_nodes` adds to those that contain the text
MIN_EXTRA_SCORE = 0.25  # of a hit whose entity is added
MAX_ROWS = 10_000
DIRECTION_COLUMNS = {"both": ("source", "target"), "out": ("source",), "in": ("target",)}


class RelationFilter(NamedTuple):
    """The relations that a walk may follow."""

    direction: Literal["both", "out", "in"] = "both"
    relation: str | None = None
    at: float | None = None


def parse_relation_time(at: str | float | None, now: float) -> float | None:
    """Return the time at which relations must hold: by default now; None stands for any time."""
    if isinstance(at, str) and at.strip().casefold() == "any":
        return None
    return now if at is None else inputs.parse_time(at, "at", now, end=False)


async def search_nodes(store: Store, query: str, scope: Scope, *, by_meaning: bool = False) -> Graph:
    """Return the entities that contain a text, in their order; with `by_meaning`, then those close to it."""
    query = normalize_text(query)
    hits: list[Hit] = []
    if by_meaning and query.strip():
        hits, _ = await _search_rows(store, query, MAX_EXTRA_ENTITIES * ROWS_PER_ENTITY, scope)

    async def find_nodes(tx: Transaction) -> Graph:
        visible = await scopes.fetch_visible_ids(tx, scope)
        containing = await _fetch_containing(tx, visible, query)
        close = await _fetch_owners(tx, visible, [hit.id for hit in hits if hit.score >= MIN_EXTRA_SCORE])
        known_ids = {entity.id for entity in containing}
        extra = [entity for entity in close if entity.id not in known_ids][:MAX_EXTRA_ENTITIES]
        graph = await assemble_graph(tx, visible, sort_own_first(containing, visible))
        return _merge_graphs(graph, await assemble_graph(tx, visible, extra))

    return await store.database.read(find_nodes)


def _merge_graphs(graph: Graph, other: Graph) -> Graph:
    names = {entity["name"] for entity in graph["entities"]}
    edges = {tuple(edge.items()) for edge in graph["relations"]}
    return {
        "entities": graph["entities"] + [entity for entity in other["entities"] if entity["name"] not in names],
        "relations": graph["relations"] + [edge for edge in other["relations"] if tuple(edge.items()) not in edges],
    }


async def search_graph(store: Store, query: str, limit: int, scope: Scope) -> list[FoundEntity]:
    """Return the entities that fit a question best, each by the best of its rows."""
    hits, all_indexed = await _search_rows(store, query, limit * ROWS_PER_ENTITY, scope)
    hit_ids = [hit.id for hit in hits]

    async def read_entities(tx: Transaction) -> list[FoundEntity]:
        visible = await scopes.fetch_visible_ids(tx, scope)
        owners = await graph_rows.fetch_owner_ids(tx, visible, hit_ids)
        scores: dict[int, float] = {}
        for hit in hits:
            scores.setdefault(owners.get(hit.id, 0), hit.score)
        entities = await _fetch_owners(tx, visible, hit_ids)
        if not all_indexed:  # rows that no index has yet are found if they contain the exact text
            containing = await _fetch_containing(tx, visible, normalize_text(query))
            entities = list(dict.fromkeys(entities + containing))
        entities = entities[:limit]
        ids = [entity.id for entity in entities]
        metadata = await fetch_entity_metadata(tx, visible, ids)
        observations = await graph_rows.fetch_observations(tx, visible, ids)
        results: list[FoundEntity] = []
        for entity in entities:
            edges = await graph_rows.list_relations_touching(tx, visible, [entity.key])
            results.append(
                {
                    **to_entities([entity], observations)[0],
                    "score": scores.get(entity.id, MIN_EXTRA_SCORE),
                    "relations": [to_relation(edge) for edge in edges],
                    "metadata": metadata[entity.id],
                }
            )
        return results

    return await store.database.read(read_entities)


async def _search_rows(store: Store, query: str, limit: int, scope: Scope) -> tuple[list[Hit], bool]:
    """Index queued rows, then search the graph's rows; return the hits and whether all rows were indexed."""
    all_indexed = await index_pending(store)
    return await recall(store, Query(query, Filter(scope), min(limit, MAX_ROWS), longest=1)), all_indexed


async def index_pending(store: Store, kinds: Sequence[Kind] = ("entity",)) -> bool:
    """Index queued rows unless another writer is active, since a search must not wait; return whether all are."""

    async def has_pending(tx: Transaction) -> bool:
        return bool(await memory_rows.list_queued_memories(tx, 1)) or await passages.has_missing(tx)

    if not await store.database.read(has_pending):
        return True
    if not await store.database.can_write_now():
        return False
    try:
        await write.index_all(store)
        for kind in kinds:
            await encode_missing(store, kind)
    except Unavailable:
        return False
    return True


async def _fetch_containing(tx: Transaction, scope_ids: list[int], text: str) -> list[EntityRow]:
    ids = await graph_rows.find_entities_containing(tx, scope_ids, text)
    return await graph_rows.fetch_entities_by_id(tx, scope_ids, sorted(ids))


async def _fetch_owners(tx: Transaction, scope_ids: list[int], row_ids: list[int]) -> list[EntityRow]:
    """Return the entities that rows belong to, in the order of the rows."""
    owners = await graph_rows.fetch_owner_ids(tx, scope_ids, row_ids)
    order = list(dict.fromkeys(owners[row_id] for row_id in row_ids if row_id in owners))
    entities = {entity.id: entity for entity in await graph_rows.fetch_entities_by_id(tx, scope_ids, order)}
    return [entities[entity_id] for entity_id in order if entity_id in entities]


async def find_neighbors(
    store: Store, name: str, depth: int, allowed: RelationFilter, limit: int, scope: Scope
) -> Neighborhood:
    """Return the entities within some steps of another, and the relations that lead there."""

    async def walk_relations(tx: Transaction) -> Neighborhood:
        visible = await scopes.fetch_visible_ids(tx, scope)
        await _check_name(tx, visible, name)
        start = to_entity_key(name)
        reached: dict[str, tuple[str, int]] = {start: (name, 0)}
        taken: dict[int, RelationRow] = {}
        frontier = [start]
        for distance in range(1, depth + 1):
            steps = await _follow_relations(tx, visible, frontier, allowed)
            frontier = []
            for edge, key, other_name in steps:
                if key not in reached and len(reached) <= limit:
                    reached[key] = (other_name, distance)
                    frontier.append(key)
                if key in reached:
                    taken[edge.id] = edge
            if not frontier:
                break
        del reached[start]
        return {
            "name": name,
            "neighbors": await _describe_neighbors(tx, visible, reached),
            "relations": [to_relation(taken[relation_id]) for relation_id in sorted(taken)],
        }

    return await store.database.read(walk_relations)


async def _check_name(tx: Transaction, scope_ids: list[int], name: str) -> None:
    """Raise NotFound if neither a relation nor an entity has this name."""
    if not await graph_rows.list_relations_touching(tx, scope_ids, [to_entity_key(name)]):
        await get_entity(tx, scope_ids, name)


async def _follow_relations(
    tx: Transaction, scope_ids: list[int], keys: list[str], allowed: RelationFilter
) -> list[tuple[RelationRow, str, str]]:
    """Return the relations to follow from some names, each with the key and the name that it leads to."""
    steps: list[tuple[RelationRow, str, str]] = []
    origins = set(keys)
    sides = DIRECTION_COLUMNS[allowed.direction]
    for edge in await graph_rows.list_relations_touching(tx, scope_ids, keys, sides):
        if not edge.holds_at(allowed.at) or allowed.relation not in (None, edge.relation):
            continue
        if edge.source in origins and allowed.direction != "in":
            steps.append((edge, edge.target, edge.target_name))
        if edge.target in origins and allowed.direction != "out":
            steps.append((edge, edge.source, edge.source_name))
    return steps


async def _describe_neighbors(
    tx: Transaction, scope_ids: list[int], reached: dict[str, tuple[str, int]]
) -> list[Neighbor]:
    rows = sort_own_first(await graph_rows.fetch_entities_by_key(tx, scope_ids, list(reached)), scope_ids)
    observations = await graph_rows.fetch_observations(tx, scope_ids, [row.id for row in rows])
    entities = {entity["name"]: entity for entity in to_entities(rows, observations)}
    return [
        {
            "name": name,
            "entityType": entities[name]["entityType"] if name in entities else None,
            "observations": entities[name]["observations"] if name in entities else [],
            "distance": distance,
        }
        for name, distance in reached.values()
    ]


async def find_path(
    store: Store, source: str, target: str, max_steps: int, allowed: RelationFilter, scope: Scope
) -> Path:
    """Return the shortest chain of relations from one entity to another, if there is one of at most `max_steps`."""

    async def walk_to_target(tx: Transaction) -> Path:
        visible = await scopes.fetch_visible_ids(tx, scope)
        for name in (source, target):
            await _check_name(tx, visible, name)
        start, end = to_entity_key(source), to_entity_key(target)
        previous: dict[str, tuple[str, RelationRow, str] | None] = {start: None}
        frontier = [start]
        for _ in range(max_steps):
            if end in previous or not frontier:
                break
            steps = await _follow_relations(tx, visible, frontier, allowed)
            origins = set(frontier)
            frontier = []
            for edge, key, name in steps:
                if key not in previous:
                    origin = edge.source if edge.target == key and edge.source in origins else edge.target
                    previous[key] = origin, edge, name
                    frontier.append(key)
        return _trace_path(previous, end, source)

    return await store.database.read(walk_to_target)


def _trace_path(previous: dict[str, tuple[str, RelationRow, str] | None], end: str, source: str) -> Path:
    """Walk back from the end to the start of the search."""
    if end not in previous:
        return {"found": False, "names": [], "relations": []}
    names: list[str] = []
    edges: list[RelationRow] = []
    key = end
    while (step := previous[key]) is not None:
        key, edge, name = step
        names.append(name)
        edges.append(edge)
    return {
        "found": True,
        "names": [source, *reversed(names)],
        "relations": [to_relation(edge) for edge in reversed(edges)],
    }
