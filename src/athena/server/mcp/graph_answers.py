"""Answer the nine graph operations as the MCP reference server for knowledge graphs does, for its clients.

The text is JSON with an indentation of two, a structured result follows it, and the schema of the result is the
reference server's. Fields that it does not have, such as the period of a relation, are left out.
"""

import json
from typing import Any, NamedTuple

from athena.core.text import escape_invisible, make_storable

GRAPH_URI = "memory://knowledge-graph"
GRAPH_SURFACES = ("graph", "all")
INDENTATION = 2


class GraphAnswer(NamedTuple):
    text: str
    structured: dict[str, Any]


def _describe_text(description: str | None = None) -> dict[str, Any]:
    return {"type": "string"} | ({"description": description} if description else {})


def _describe_list(items: dict[str, Any], description: str | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items} | ({"description": description} if description else {})


def _describe_object(**properties: Any) -> dict[str, Any]:
    # the keyword `from_` stands for a field that Python does not allow as one
    fields = {name.rstrip("_"): part for name, part in properties.items()}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


ENTITIES = _describe_list(
    _describe_object(
        name=_describe_text("The name of the entity"),
        entityType=_describe_text("The type of the entity"),
        observations=_describe_list(_describe_text(), "An array of observation contents associated with the entity"),
    )
)
RELATIONS = _describe_list(
    _describe_object(
        from_=_describe_text("The name of the entity where the relation starts"),
        to=_describe_text("The name of the entity where the relation ends"),
        relationType=_describe_text("The type of the relation"),
    )
)
ADDITIONS = _describe_list(
    _describe_object(entityName=_describe_text(), addedObservations=_describe_list(_describe_text()))
)
DONE = _describe_object(success={"type": "boolean"}, message=_describe_text())
GRAPH = _describe_object(entities=ENTITIES, relations=RELATIONS)
# Each operation with the schema of its structured result; a list is under the only key of that result.
OUTPUT_SCHEMAS: dict[str, dict[str, Any]] = {
    name: {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    for name, schema in {
        "create_entities": _describe_object(entities=ENTITIES),
        "create_relations": _describe_object(relations=RELATIONS),
        "add_observations": _describe_object(results=ADDITIONS),
        "delete_entities": DONE,
        "delete_observations": DONE,
        "delete_relations": DONE,
        "read_graph": GRAPH,
        "search_nodes": GRAPH,
        "open_nodes": GRAPH,
    }.items()
}


def create_graph_answer(operation: str, result: Any) -> GraphAnswer:
    """Return the result of a graph operation as the reference server writes it."""
    schema = OUTPUT_SCHEMAS[operation]
    if schema["required"] == DONE["required"]:
        return GraphAnswer(result["message"], dict(result))
    if isinstance(result, list):
        (key,) = schema["required"]
        items = _select_fields(result, schema["properties"][key])
        return GraphAnswer(_write_json(items), {key: items})
    graph = _select_fields(result, schema)
    return GraphAnswer(_write_json(graph), graph)


def _select_fields(value: Any, schema: dict[str, Any]) -> Any:
    """Return a value with the fields of its schema; relations that differ only in other fields become one."""
    if isinstance(value, list):
        items = [_select_fields(item, schema["items"]) for item in value]
        if schema is not RELATIONS:
            return items
        return list({tuple(item.items()): item for item in items}.values())
    if isinstance(value, dict):
        return {name: _select_fields(value[name], part) for name, part in schema["properties"].items()}
    return make_storable(value)


def _write_json(value: Any) -> str:
    """Write JSON, with invisible characters as escapes: a model sees them, a parser reads the same value."""
    text = json.dumps(value, ensure_ascii=False, indent=INDENTATION)
    return escape_invisible(text, allowed="\n\t", escape=lambda run: json.dumps(run)[1:-1])
