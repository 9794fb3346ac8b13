"""Know how things relate: entities, what was observed of them, and relations."""

from typing import Annotated, Any, Literal

from athena.core.operation import EVERYONE, Effect, operation
from athena.core.types import Param
from athena.memory import inputs
from athena.memory.graph import entities as graph_entities
from athena.memory.graph import mentions as graph_mentions
from athena.memory.graph import observations as graph_observations
from athena.memory.graph import relations as graph_relations
from athena.memory.graph import search
from athena.memory.graph.values import (
    Added,
    Deletion,
    Done,
    Entity,
    FoundEntity,
    Graph,
    Made,
    Named,
    Neighborhood,
    NewEntity,
    NewObservations,
    NewRelation,
    Path,
    Relation,
)
from athena.memory.values import Memory
from athena.operations import params
from athena.operations.context import Context

Name = Annotated[str, Param("The entity's name, exactly.", least=1, most=1_000)]
Names = Annotated[list[str], Param("Names of entities, exactly.", most=10_000)]
Type = Annotated[str | None, Param("Only relations of this type.")]
Direction = Annotated[Literal["both", "out", "in"], Param("Follow relations from an entity, to it, or both.")]
At = Annotated[
    str | float | None,
    Param("Follow relations that held then, in words or seconds since 1970; now by default; 'any' follows all."),
]


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="add a person to the knowledge graph; create nodes for these people and companies; add a company to "
    "the graph; introduce a new node; register these people as entities; put a new thing in the knowledge "
    "graph",
)
async def create_entities(
    ctx: Context,
    entities: Annotated[
        list[NewEntity], Param("Each with name, entityType and observations (a list of texts).", most=10_000)
    ],
) -> list[Entity]:
    """Add entities; those whose name is known are left as they are. Returns the new ones.

    >>> graph.create_entities(entities=[{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}])
    """
    return await graph_observations.create_entities(ctx.store, entities, ctx.call.with_kind("entity"))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="this person works for that company, put it in the graph; connect two entities; add an edge; she "
    "reports to him, record that relationship; link the service to the team that owns it; say how these "
    "two relate",
)
async def create_relations(
    ctx: Context,
    relations: Annotated[
        list[NewRelation],
        Param(
            "Each with from, to and relationType; since and until say when it held; other periods stay.",
            most=10_000,
        ),
    ],
) -> list[Relation]:
    """Relate entities by name, in active voice. Returns the new relations.

    >>> graph.create_relations(relations=[{"from": "Ann", "to": "Acme", "relationType": "works at", "since": "2024"}])
    """
    return await graph_relations.create_relations(ctx.store, relations, ctx.call.with_kind("entity"))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="add a fact to what the graph knows about somebody; note something new on this entity; attach a "
    "detail to the entity; another fact about this person for the graph",
)
async def add_observations(
    ctx: Context,
    observations: Annotated[
        list[NewObservations], Param("Each with entityName and contents (a list of texts).", most=10_000)
    ],
) -> list[Added]:
    """Add observations to entities that are there. Returns what was new.

    >>> graph.add_observations(observations=[{"entityName": "Ann", "contents": ["moved to Oslo"]}])
    """
    return await graph_observations.add_observations(ctx.store, observations, ctx.call.with_kind("entity"))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="remove a person from the knowledge graph; delete this node; drop the node from the graph; erase this "
    "company and its relations",
)
async def delete_entities(ctx: Context, entityNames: Names) -> Done:  # noqa: N803  # the name that users know
    """Delete entities, their observations and relations; `undo` brings them back.

    Only those of the project itself: what is known everywhere is deleted in the project `user`.

    >>> graph.delete_entities(entityNames=["Bob"])
    """
    await graph_observations.delete_entities(ctx.store, entityNames, ctx.call.with_kind("entity"))
    return {"success": True, "message": "Entities deleted successfully"}


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="remove a fact about somebody from the graph; that is no longer true of this entity; take that detail "
    "off the entity; the observation is wrong",
)
async def delete_observations(
    ctx: Context,
    deletions: Annotated[
        list[Deletion], Param("Each with entityName and observations (the texts to delete).", most=10_000)
    ],
) -> Done:
    """Delete observations by their text; `undo` brings them back.

    >>> graph.delete_observations(deletions=[{"entityName": "Ann", "observations": ["likes tea"]}])
    """
    await graph_observations.delete_observations(ctx.store, deletions, ctx.call.with_kind("entity"))
    return {"success": True, "message": "Observations deleted successfully"}


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="they are no longer connected, remove the relation; cut the link between two entities; she no longer "
    "works there, remove that edge; unlink the two nodes",
)
async def delete_relations(
    ctx: Context,
    relations: Annotated[list[Named], Param("Each with from, to and relationType.", most=10_000)],
) -> Done:
    """Delete relations; `undo` brings them back.

    >>> graph.delete_relations(relations=[{"from": "Ann", "to": "Acme", "relationType": "works at"}])
    """
    await graph_relations.delete_relations(ctx.store, relations, ctx.call.with_kind("entity"))
    return {"success": True, "message": "Relations deleted successfully"}


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="show the whole knowledge graph; dump everything in the graph; all entities and how they relate; "
    "print all nodes and edges; give me the full graph; everything you know as a network",
)
async def read_graph(ctx: Context) -> Graph:
    """Return the whole graph: all entities and relations.

    >>> graph.read_graph()
    """
    return await graph_entities.read_graph(ctx.store, ctx.scope.with_kind("entity"))


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="find a person or thing in the graph; which entities have to do with this; look up a company in the "
    "graph; is this person in the knowledge graph; entities matching a word",
)
async def search_nodes(
    ctx: Context,
    query: Annotated[str, Param("A part of a name, type or observation.", most=20_000)],
    by_meaning: Annotated[bool, Param("Add those that are close to it by words and meaning, or answer it.")] = False,
) -> Graph:
    """Find entities that hold a text; `search_graph` finds them by meaning.

    >>> graph.search_nodes(query="tea")
    """
    return await search.search_nodes(ctx.store, query, ctx.scope.with_kind("entity"), by_meaning=by_meaning)


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="show the entity with its relations; what does the graph say about this person; pull up these nodes "
    "by name; all about this entity in the graph",
)
async def open_nodes(ctx: Context, names: Names) -> Graph:
    """Return entities by name, with all relations that name them.

    >>> graph.open_nodes(names=["Ann"])
    """
    return await graph_entities.open_nodes(ctx.store, names, ctx.scope.with_kind("entity"))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="add a person to the knowledge graph; create nodes for these people and companies; add a company to "
    "the graph; introduce a new node; register these people as entities; put a new thing in the knowledge "
    "graph",
)
async def create_entity(
    ctx: Context,
    name: Annotated[str, Param("The entity's name.", least=1, most=1_000)],
    entity_type: Annotated[str, Param("What it is, e.g. person, Task, file.", most=200)],
    observations: Annotated[list[str] | None, Param("What is known of it.", most=10_000)] = None,
    metadata: Annotated[dict[str, Any] | None, Param("Anything else worth keeping with it.")] = None,
) -> Made:
    """Add one entity, or observations to the one of that name.

    The type of one that is known stays; metadata are added to what it has, and a null removes a key.

    >>> graph.create_entity(name="Bob", entity_type="person", observations=["plays chess"])
    """
    entity: NewEntity = {"name": name, "entityType": entity_type, "observations": observations or []}
    return await graph_observations.create_entity(ctx.store, entity, metadata, ctx.call.with_kind("entity"))


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="find a person or thing in the graph; which entities have to do with this; look up a company in the "
    "graph; is this person in the knowledge graph; entities matching a word",
)
async def search_graph(ctx: Context, query: params.Question, max_results: params.Limit = 10) -> list[FoundEntity]:
    """Find entities by words and meaning, the best first.

    >>> graph.search_graph(query="who likes tea", max_results=5)
    """
    return await search.search_graph(ctx.store, inputs.clean_query(query), max_results, ctx.scope.with_kind("entity"))


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="what is connected to this; who is linked with this person; everything around that entity; who works "
    "with her; which things depend on this service; relations of this node; its direct connections",
)
async def neighbors(
    ctx: Context,
    name: Name,
    depth: Annotated[int, Param("How many steps to go.", least=1, most=10)] = 1,
    relation_type: Type = None,
    direction: Direction = "both",
    at: At = None,
    limit: params.Limit = 100,
) -> Neighborhood:
    """List what an entity is related to, the nearest first.

    >>> graph.neighbors(name="Ann", depth=2, at="2025-06-01")
    """
    allowed = search.RelationFilter(direction, relation_type, search.parse_relation_time(at, ctx.store.clock()))
    return await search.find_neighbors(ctx.store, name, depth, allowed, limit, ctx.scope.with_kind("entity"))


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="how are these two connected; is there a chain between them; how does one relate to the other; what "
    "links the two; degrees of separation; what is the connection between him and the company; shortest "
    "path",
)
async def find_path(
    ctx: Context,
    source: Name,
    target: Name,
    max_depth: Annotated[int, Param("How many steps at most.", least=1, most=20)] = 6,
    relation_type: Type = None,
    direction: Direction = "both",
    at: At = None,
) -> Path:
    """Find the shortest way between two entities.

    >>> graph.find_path(source="Ann", target="Acme")
    """
    allowed = search.RelationFilter(direction, relation_type, search.parse_relation_time(at, ctx.store.clock()))
    return await search.find_path(ctx.store, source, target, max_depth, allowed, ctx.scope.with_kind("entity"))


@operation(
    Effect.WRITE,
    callers=EVERYONE,
    asks="these two entities are the same; unify two nodes; this person is in the graph twice; combine two "
    "entries for the same person; these are duplicates in the graph, join them",
)
async def merge_entities(
    ctx: Context,
    source: Annotated[str, Param("The entity that goes.", least=1, most=1_000)],
    into: Annotated[str, Param("The entity that stays.", least=1, most=1_000)],
) -> Made:
    """Merge one entity into another; `undo` separates them again.

    >>> graph.merge_entities(source="Bob", into="Ann")
    """
    return await graph_observations.merge_entities(ctx.store, source, into, ctx.call.with_kind("entity"))


@operation(
    Effect.READ,
    callers=EVERYONE,
    asks="where does this name come up; in which notes is that person named; every memory that mentions it; "
    "what notes talk about this person; find all occurrences of the name; who or what is mentioned where",
)
async def mentions(
    ctx: Context,
    name: Annotated[str, Param("An entity's name, code, a path, an address, @someone or #topic.", least=1, most=1_000)],
    k: params.Limit = 20,
    offset: params.Offset = 0,
) -> list[Memory]:
    """List the memories that mention a name, the newest first.

    >>> graph.mentions(name="Ann")
    """
    return await graph_mentions.find_mentioning(ctx.store, inputs.clean_query(name), k, offset, ctx.scope)
