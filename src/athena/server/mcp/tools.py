"""Operations as MCP tools. A model reads these definitions in every session, so every word costs tokens."""

from collections.abc import Iterable
from typing import Any

from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import CallerKind, Effect
from athena.server.mcp.graph_answers import GRAPH_SURFACES, OUTPUT_SCHEMAS

# The parameters that the definitions of the small surfaces show; the tools take all others too.
TOOL_PARAMETERS: dict[str, tuple[str, ...]] = {
    "search_tools": ("query", "detail"),
    "execute_code": ("code", "timeout_s"),
    "remember": ("content", "tags"),
    "recall": ("query", "k", "tags", "since", "full"),
}
# Arguments that every surface adds unless the call has them: a model pays for each word of an answer.
DEFAULT_ARGUMENTS: dict[str, dict[str, Any]] = {"recall": {"full": False}}
# Arguments that a small surface adds first: models ask in plain words, time included.
FIRST_ARGUMENTS: dict[str, dict[str, Any]] = {"recall": {"understand_time": True}}
ANY_TIME_NOTE = "[nothing is from the time that you name; of any time:]\n"
TOOL_SURFACES: dict[str, tuple[str, ...]] = {
    "default": ("search_tools", "execute_code", "remember", "recall"),
    "code": ("search_tools", "execute_code"),
    "graph": tuple(OUTPUT_SCHEMAS),  # those of the reference server for knowledge graphs
    "all": (),  # every operation but approvals
}
# Every tool has readOnlyHint and destructiveHint, the others only where they differ from the default.
EFFECT_ANNOTATIONS: dict[Effect, dict[str, bool]] = {
    Effect.READ: {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False},
    Effect.WRITE: {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    Effect.DESTROY: {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": True, "openWorldHint": False},
    Effect.EXECUTE: {"readOnlyHint": False, "destructiveHint": True},
}
OMITTED_KEYS = {"minLength", "maxLength", "minItems", "maxItems", "title", "$schema"}
OMITTED_IF_EMPTY = {"additionalProperties", "required"}
INSTRUCTIONS = """\
Athena keeps what is worth knowing between sessions, and runs short Python programs next to the data and the tools, \
so that only the answer comes back to you.

Memory: `recall` before you start on something, in plain words ("how do we deploy?"). `remember` decisions, \
preferences, causes of bugs and how things work here: one fact each, with why. Secrets are taken out.

More than one step, or anything else: write a program.
1. `search_tools("what is to be done")` answers with lines of Python: operations, saved skills and tools of connected \
servers, each as the function that your program calls.
2. `execute_code` runs the program. Every category is a name, every operation a function, without await and without \
import: `memory.recall(query="x", k=20)`, `graph.open_nodes(names=["Ann"])`. Loop, filter and count there, and end \
with the expression that you want back: large lists stay where they are.
3. Variables stay for your next program. `workspace.write(path=..., content=...)` keeps files, `skills.save(...)` \
keeps a program that works under a name.

Example: `[h["content"] for h in memory.recall(query="open bugs", k=50) if "login" in h["content"]]`

A failed call says what to do next. A program that must do something dangerous waits for a person: tell them \
to run `athena approve`."""


def select_tools(catalog: Catalog, surface: str) -> list[AnyOperation]:
    """Return the operations of a surface, in its order; approvals are for people, never for a model."""
    named: Iterable[AnyOperation] = (
        map(catalog.get_operation, TOOL_SURFACES[surface]) if TOOL_SURFACES[surface] else catalog
    )
    return [operation for operation in named if CallerKind.MODEL in operation.callers]


def get_tool_name(operation: AnyOperation) -> str:
    """Return the name of a tool; model APIs allow no dot in it."""
    return operation.name.replace(".", "__")


def define_tool(operation: AnyOperation, surface: str) -> dict[str, Any]:
    """Return the definition of a tool, as short as its surface allows."""
    schema = operation.arguments_schema if operation.is_foreign else compact_schema(operation.arguments_schema)
    for name, value in DEFAULT_ARGUMENTS.get(operation.name, {}).items():
        schema["properties"][name]["default"] = value
    if shown := TOOL_PARAMETERS.get(operation.name, ()) if surface != "all" else ():
        schema["properties"] = {
            name: _simplify_schema(part) for name, part in schema["properties"].items() if name in shown
        }
    has_details = surface != "all" and operation.effect is Effect.EXECUTE  # they teach how to write a program
    return {
        "name": get_tool_name(operation),
        "description": f"{operation.summary}\n{operation.documentation.details}" if has_details else operation.summary,
        "inputSchema": schema,
        "annotations": EFFECT_ANNOTATIONS[operation.effect] | ({"openWorldHint": True} if operation.is_foreign else {}),
    } | ({"outputSchema": OUTPUT_SCHEMAS[operation.name]} if has_graph_answer(operation.name, surface) else {})


def has_graph_answer(name: str, surface: str) -> bool:
    """Return whether a tool answers as the reference server for knowledge graphs does."""
    return surface in GRAPH_SURFACES and name in OUTPUT_SCHEMAS


def compact_schema(schema: Any) -> Any:
    """Return a schema without the parts that a caller does not need: nulls, lengths, additionalProperties."""
    if not isinstance(schema, dict):
        return schema
    compact = {
        key: part
        for key, part in schema.items()
        if key not in OMITTED_KEYS and not (key in OMITTED_IF_EMPTY and not part)
    }
    for key, part in compact.items():
        if key in ("properties", "$defs") and isinstance(part, dict):
            compact[key] = {name: compact_schema(value) for name, value in part.items()}
        elif key in ("anyOf", "oneOf", "allOf") and isinstance(part, list):
            compact[key] = [compact_schema(option) for option in part]
        elif key in ("items", "additionalProperties"):
            compact[key] = compact_schema(part)
    return _merge_alternatives(compact) if isinstance(compact.get("anyOf"), list) else compact


def _simplify_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without bounds and defaults, without the help of a list of texts, and with one type only.

    The operation accepts the other types as well, and its errors name the bounds.
    """
    simple = {key: part for key, part in schema.items() if key not in ("minimum", "maximum", "default")}
    if simple.get("items") == {"type": "string"}:
        del simple["description"]
    return simple | {"type": simple["type"][0]} if isinstance(simple.get("type"), list) else simple


def _merge_alternatives(schema: dict[str, Any]) -> dict[str, Any]:
    """Merge the options of anyOf: drop null, and drop X where a list of X is an option too."""
    kinds = [part for part in schema["anyOf"] if part != {"type": "null"}]
    lists = [part["items"] for part in kinds if part.get("type") == "array" and "items" in part]
    kinds = [part for part in kinds if part not in lists]
    rest = {key: part for key, part in schema.items() if key != "anyOf"}
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    if all(set(part) == {"type"} for part in kinds):
        return {"type": [part["type"] for part in kinds]} | rest
    return {"anyOf": kinds} | rest
