"""Values of the knowledge graph: entities, observations and relations.

The fields have the names of the MCP reference server for knowledge graphs, which agents know.
"""

from typing import Annotated, Any, NotRequired, TypedDict

from athena.core.hashing import hash_text
from athena.core.text import make_storable
from athena.errors import InvalidInput
from athena.memory.values import SERIAL_KEY, clean_text

MAX_ENTITY_NAME_CHARS = 1_000
MAX_GRAPH_TYPE_CHARS = 200
ENTITY_SERIAL = "entity"  # distinguishes an entity's row from an observation of the same text
ENTITY_METADATA_KEY = "athena:about"  # in an entity's metadata: the metadata that callers gave
OBSERVATION_TYPE = "observation"  # the memory_type of an observation's row


class Entity(TypedDict):
    """Something that has a name and a type, and what is known of it."""

    name: str
    entityType: str
    observations: list[str]


class NewEntity(TypedDict):
    """An entity to be made."""

    name: str
    entityType: str
    observations: NotRequired[list[str]]


Relation = TypedDict(
    "Relation",
    {"from": str, "to": str, "relationType": str, "since": NotRequired[float], "until": NotRequired[float]},
)
NewRelation = TypedDict(
    "NewRelation",
    {
        "from": str,
        "to": str,
        "relationType": str,
        "since": NotRequired[Annotated[str | float | None, "from when it holds"]],
        "until": NotRequired[Annotated[str | float | None, "until when it holds"]],
    },
)
Named = TypedDict("Named", {"from": str, "to": str, "relationType": str})


class Graph(TypedDict):
    entities: list[Entity]
    relations: list[Relation]


class NewObservations(TypedDict):
    entityName: str
    contents: list[str]


class Added(TypedDict):
    entityName: str
    addedObservations: list[str]


class Deletion(TypedDict):
    entityName: str
    observations: list[str]


class Done(TypedDict):
    success: bool
    message: str


class Made(Entity):
    """An entity as it is kept now, and whether it was new."""

    id: int
    outcome: str  # new, known or merged
    metadata: dict[str, Any]
    redacted: list[str]  # the kinds of secrets that were taken out


class FoundEntity(Entity):
    """An entity that a search found, with how well it fits: 0 not at all, 1 fully."""

    score: float
    relations: list[Relation]
    metadata: dict[str, Any]


class Neighbor(TypedDict):
    name: str
    entityType: str | None  # None if a relation names an entity that does not exist yet
    observations: list[str]
    distance: int


class Neighborhood(TypedDict):
    name: str
    neighbors: list[Neighbor]
    relations: list[Relation]


class Path(TypedDict):
    found: bool
    names: list[str]
    relations: list[Relation]


def entity_key(name: str) -> str:
    """Return the digest by which the row of an entity and the relations to its name are found."""
    return hash_text(name, ENTITY_SERIAL)


def entity_metadata(entity_type: str) -> dict[str, str]:
    """Return the metadata of an entity's row: its serial, and its type as a source that full text finds."""
    return {SERIAL_KEY: ENTITY_SERIAL, "source": entity_type} if entity_type.strip() else {SERIAL_KEY: ENTITY_SERIAL}


def clean_label(text: str, field: str) -> str:
    """Return an entity's name, if it can be stored; errors call it `field`."""
    return _check_length(clean_text(text, field), field, MAX_ENTITY_NAME_CHARS)


def clean_graph_type(text: str, field: str) -> str:
    """Return the type of an entity or a relation, which may be empty; errors call it `field`."""
    return _check_length(make_storable(text), field, MAX_GRAPH_TYPE_CHARS)


def _check_length(text: str, field: str, max_chars: int) -> str:
    if len(text) > max_chars:
        raise InvalidInput(f"{field} has {len(text):,} characters; at most {max_chars:,} are allowed")
    return text
