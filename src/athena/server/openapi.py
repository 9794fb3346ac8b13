"""Describe the catalog: as an OpenAPI document, as lists of tools, and each operation in full."""

import re
from typing import Any

from athena.core import types
from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.core.version import __version__
from athena.discovery.entry import SKILLS_CATEGORY, ToolEntry
from athena.errors import Conflict, Denied, InvalidInput, LimitExceeded, NotFound, Unauthenticated, Unavailable
from athena.operations import tools
from athena.operations.context import Context
from athena.programs.values import KeptSkill, Skill

ERROR_DESCRIPTIONS: dict[str, str] = {
    "400": "The request is malformed.",
    **{str(kind.http): (kind.__doc__ or "").strip() for kind in (Unauthenticated, Denied, NotFound, Conflict)},
    "405": "The route has another method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    **{str(kind.http): (kind.__doc__ or "").strip() for kind in (InvalidInput, LimitExceeded, Unavailable)},
}
TEXT_SCHEMA = {"type": "string"}
# A model reads the whole list, so that a summary has few words.
MAX_SUMMARY_WORDS = 7
CLAUSE_PATTERN = re.compile(r"[;:,.] |\.$")
CONNECTIVE_PATTERN = re.compile(r" (?:that|which|what|and|without|before|by|of|in|as|to|for)\b")


def create_document(catalog: Catalog) -> dict[str, Any]:
    """Return the OpenAPI document of all routes."""
    paths: dict[str, Any] = {
        "/tools/discover": _describe_get(
            "discover",
            "List all operations by category, in few words.",
            "Discovery",
            [
                _describe_query("category", TEXT_SCHEMA, "Only this category."),
                _describe_query("detail", {"enum": ["summary", "names"], "default": "summary"}, "Or names alone."),
            ],
        ),
        "/tools/list": _describe_get(
            "list", "List operations.", "Tools", [_describe_query("category", TEXT_SCHEMA, "Only this category.")]
        ),
        "/tools/search": _describe_get(
            "search",
            "Find operations by what they do.",
            "Tools",
            [
                _describe_query(
                    "q", {"type": "string", "minLength": 1, "maxLength": 2_000}, "What is to be done.", True
                ),
                _describe_query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}, "How many."),
            ],
            has_etag=False,
        ),
        "/tools/{name}": _describe_get(
            "describe",
            "Describe an operation in full.",
            "Tool",
            [{"name": "name", "in": "path", "required": True, "schema": TEXT_SCHEMA, "description": "Its name."}],
        ),
        "/info": _describe_get("info", "Say what this server is.", "Info", has_etag=False),
        "/openapi.json": _describe_get("openapi", "This document.", "Anything"),
        "/health": {
            "get": {
                "operationId": "health_of_the_server",
                "summary": "Say whether the server lives and is ready.",
                "security": [],
                "responses": {
                    "200": _describe_response("It is ready.", "Alive"),
                    "503": _describe_response("It lives, but is not ready.", "Alive"),
                    "default": _describe_response("Refused.", "Failure"),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Count calls, for Prometheus.",
                "responses": {"200": {"description": "Counters.", "content": {"text/plain": {"schema": TEXT_SCHEMA}}}}
                | _reference_errors(),
            }
        },
    }
    for operation in catalog:
        if operation.is_foreign:  # they change at any time, and their schemas have references of their own
            continue
        paths[f"/tools/{operation.name}/execute"] = {"post": _describe_execute(operation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Athena", "version": __version__, "description": "Long-term memory for agents, over HTTP."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": SCHEMAS,
            "responses": {code: _describe_response(text, "Failure") for code, text in ERROR_DESCRIPTIONS.items()},
        },
    }


def _describe_execute(operation: AnyOperation) -> dict[str, Any]:
    data = types.to_json_schema(operation.result_type)
    answer = {
        "type": "object",
        "properties": {
            "success": {"const": True},
            "data": data,
            "elapsed_ms": {"type": "number", "minimum": 0},
            "total": {"type": "integer", "description": "How many there are, where `data` is a part of them."},
        },
        "required": ["success", "data", "elapsed_ms"],
    }
    body = {"schema": operation.arguments_schema, "example": operation.example_arguments}
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if data.get("type") == "array":
        content["application/x-ndjson"] = {"schema": TEXT_SCHEMA}
    route: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.category],
        "summary": operation.summary,
        "description": operation.documentation.details or operation.summary,
        "x-effect": str(operation.effect),
        "x-examples": list(operation.documentation.examples),
        "parameters": [PROJECT_HEADER],
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": {"description": "What it returned.", "content": content}} | _reference_errors(),
    }
    if operation.effect is not Effect.READ:
        route["parameters"] = [PROJECT_HEADER, IDEMPOTENCY_HEADER]
    return route


def _describe_get(
    name: str, summary: str, schema: str, parameters: list[dict[str, Any]] | None = None, *, has_etag: bool = True
) -> dict[str, Any]:
    unchanged = {"304": {"description": "As before."}} if has_etag else {}
    route: dict[str, Any] = {
        "operationId": f"{name}_tools" if name in ("discover", "list", "search", "describe") else name,
        "summary": summary,
        "responses": {"200": _describe_response("It.", schema)} | unchanged | _reference_errors(),
    }
    if parameters:
        route["parameters"] = parameters
    return {"get": route}


def _describe_query(name: str, schema: dict[str, Any], description: str, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": description}


def _reference_errors() -> dict[str, Any]:
    return {code: {"$ref": f"#/components/responses/{code}"} for code in ERROR_DESCRIPTIONS}


def _describe_response(description: str, schema: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": description, "content": {"application/json": {"schema": reference}}}


MAX_IDEMPOTENCY_KEY_CHARS = 200
MAX_PROJECT_HEADER_CHARS = 9_000  # a project's name of 1,000 characters, percent-encoded
PROJECT_HEADER = {
    "name": "X-Athena-Project",
    "in": "header",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_PROJECT_HEADER_CHARS,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "description": "Whose memories, percent-encoded; the server's own project without it.",
}
IDEMPOTENCY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_IDEMPOTENCY_KEY_CHARS,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "description": "A call that is repeated with the same key happens once.",
}


def _create_object_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_SUMMARY_SCHEMA = _create_object_schema(name=TEXT_SCHEMA, description=TEXT_SCHEMA, category=TEXT_SCHEMA)
SCHEMAS: dict[str, Any] = {
    "Anything": {"type": "object"},
    "Alive": _create_object_schema(live={"type": "boolean"}, ready={"type": "boolean"}),
    "Failure": _create_object_schema(
        success={"const": False},
        error=_create_object_schema(
            code=TEXT_SCHEMA,
            message=TEXT_SCHEMA,
            hint={"anyOf": [TEXT_SCHEMA, {"type": "null"}]},
            retry={"type": "boolean"},
        ),
    ),
    "Discovery": _create_object_schema(
        categories={
            "type": "object",
            "additionalProperties": _create_object_schema(
                description=TEXT_SCHEMA,
                count={"type": "integer"},
                tools={"type": "array", "items": _create_object_schema(name=TEXT_SCHEMA, description=TEXT_SCHEMA)},
            ),
        },
        total_tools={"type": "integer"},
    ),
    "Tools": _create_object_schema(tools={"type": "array", "items": _SUMMARY_SCHEMA}, count={"type": "integer"}),
    "Tool": _create_object_schema(
        name=TEXT_SCHEMA,
        description=TEXT_SCHEMA,
        category=TEXT_SCHEMA,
        details=TEXT_SCHEMA,
        parameters={
            "type": "array",
            "items": _create_object_schema(
                name=TEXT_SCHEMA, type=TEXT_SCHEMA, description=TEXT_SCHEMA, required={"type": "boolean"}, default={}
            ),
        },
        returns=_create_object_schema(type=TEXT_SCHEMA, description=TEXT_SCHEMA),
        effect={"enum": [str(effect) for effect in Effect]},
        examples={"type": "array", "items": TEXT_SCHEMA},
        call=_create_object_schema(method=TEXT_SCHEMA, path=TEXT_SCHEMA, body={"type": "object"}),
    ),
    "Info": _create_object_schema(
        name=TEXT_SCHEMA, version=TEXT_SCHEMA, tools={"type": "integer"}, project=TEXT_SCHEMA, backend=TEXT_SCHEMA
    ),
}


def describe_catalog(catalog: Catalog, category: str | None = None, *, names_only: bool = False) -> dict[str, Any]:
    """List every operation by category, with a short summary or by name alone; those of servers are only counted.

    With a category, list that one alone: if it is a server, with its tools.
    """
    wanted = None if category is None else catalog.resolve_category(category)
    catalog.list_operations(wanted)  # raises an error that names the categories if there is no such one
    categories: dict[str, Any] = {}
    for name, about in catalog.categories.items():
        operations = catalog.list_operations(name) if wanted in (None, name) else []
        if not operations:
            continue
        shown = [operation for operation in operations if wanted is not None or not operation.is_foreign]
        categories[name] = [operation.name for operation in shown]
        if not names_only:
            tools = [{"name": one.name, "description": shorten_summary(one.summary)} for one in shown]
            about = CLAUSE_PATTERN.split(about)[0]
            categories[name] = {"description": about, "count": len(operations), "tools": tools}
    return {"categories": categories, "total_tools": len(catalog)}


def shorten_summary(summary: str) -> str:
    """Return the first clause of a summary; of a long one what stands before its first preposition or relative."""
    clause = CLAUSE_PATTERN.split(summary)[0]
    if len(clause.split()) <= MAX_SUMMARY_WORDS:
        return clause
    ends = (match.start() for match in CONNECTIVE_PATTERN.finditer(clause))
    return clause[: next((end for end in ends if clause.count(" ", 0, end) >= 2), len(clause))]


def list_tools(catalog: Catalog, category: str | None) -> dict[str, Any]:
    operations = catalog.list_operations(category)
    return {"tools": list(map(summarize_operation, operations)), "count": len(operations)}


async def search_tools(ctx: Context, query: str, limit: int, category: str | None) -> dict[str, Any]:
    """Rank operations and skills as `search_tools` does."""
    entries = (await tools.rank_tools(ctx, query, category))[:limit]
    return {"tools": list(map(_summarize_entry, entries)), "count": len(entries)}


def _summarize_entry(entry: ToolEntry) -> dict[str, Any]:
    if isinstance(entry.target, KeptSkill):
        return {"name": entry.path, "description": entry.summary, "category": entry.category}
    return summarize_operation(entry.target)


def summarize_operation(operation: AnyOperation) -> dict[str, Any]:
    return {"name": operation.name, "description": operation.summary, "category": operation.category}


def describe_operation(operation: AnyOperation) -> dict[str, Any]:
    """Describe an operation in full."""
    documentation = operation.documentation
    return {
        **summarize_operation(operation),
        "details": documentation.details,
        "parameters": [
            {
                "name": p.name,
                "type": format_schema_type(operation.arguments_schema["properties"][p.name]),
                "description": p.description,
                "required": p.required,
                "default": types.to_json(p.default),
            }
            for p in operation.parameters
        ],
        "returns": {
            "type": format_schema_type(types.to_json_schema(operation.result_type)),
            "description": types.to_source(operation.result_type),
        },
        "effect": str(operation.effect),
        "examples": list(documentation.examples),
        "call": {"method": "POST", "path": f"/tools/{operation.name}/execute", "body": operation.example_arguments},
    }


def describe_skill(skill: Skill) -> dict[str, Any]:
    """Describe a skill in full; the operation run_skill runs it."""
    schema = skill.parameters
    summary, _, details = skill.description.partition("\n")
    return {
        "name": f"{SKILLS_CATEGORY}.{skill.name}",
        "description": summary,
        "category": SKILLS_CATEGORY,
        "details": details.strip(),
        "parameters": [
            {
                "name": name,
                "type": format_schema_type(part),
                "description": part.get("description", ""),
                "required": name in schema["required"],
                "default": part.get("default"),
            }
            for name, part in schema["properties"].items()
        ],
        "returns": {"type": "any", "description": skill.returns},
        "effect": str(Effect.EXECUTE),
        "examples": [f"{SKILLS_CATEGORY}.{skill.example}"] if skill.example else [],
        "call": {"method": "POST", "path": "/tools/run_skill/execute", "body": {"name": skill.name, "arguments": {}}},
    }


def format_schema_type(schema: dict[str, Any]) -> str:
    """Return the type that a schema describes, alternatives joined by bars."""
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(format_schema_type(part) for part in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    kinds = schema.get("type", "any")
    return " | ".join(kinds) if isinstance(kinds, list) else str(kinds)
