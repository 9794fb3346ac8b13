"""The registry as an OpenAPI document, from the catalog alone."""

from typing import Any

from athena.core import types
from athena.core.catalog import AnyOperation, Catalog
from athena.core.operation import Effect
from athena.core.version import __version__
from athena.errors import (
    Conflict,
    Denied,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    Unavailable,
)

FAILURES: dict[str, str] = {
    "400": "The request is malformed.",
    **{str(kind.http): (kind.__doc__ or "").strip() for kind in (Unauthenticated, Denied, NotFound, Conflict)},
    "405": "The route has another method.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    **{str(kind.http): (kind.__doc__ or "").strip() for kind in (InvalidInput, LimitExceeded, Unavailable)},
}
TEXT = {"type": "string"}


def document(catalog: Catalog) -> dict[str, Any]:
    """Describe every route."""
    paths: dict[str, Any] = {
        "/tools/discover": _get("discover", "List all operations by category, in few words.", "Discovery"),
        "/tools/list": _get("list", "List operations.", "Tools", [_query("category", TEXT, "Only this category.")]),
        "/tools/search": _get(
            "search",
            "Find operations by what they do.",
            "Tools",
            [
                _query("q", {"type": "string", "minLength": 1, "maxLength": 2_000}, "What is to be done.", True),
                _query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 10}, "How many."),
            ],
            tagged=False,
        ),
        "/tools/{name}": _get(
            "describe",
            "Describe an operation in full.",
            "Tool",
            [{"name": "name", "in": "path", "required": True, "schema": TEXT, "description": "Its name."}],
        ),
        "/info": _get("info", "Say what this server is.", "Info", tagged=False),
        "/openapi.json": _get("openapi", "This document.", "Anything"),
        "/health": {
            "get": {
                "operationId": "health_of_the_server",
                "summary": "Say whether the server lives and is ready.",
                "security": [],
                "responses": {
                    "200": _answer("It is ready.", "Alive"),
                    "503": _answer("It lives, but is not ready.", "Alive"),
                    "default": _answer("Refused.", "Failure"),
                },
            }
        },
        "/metrics": {
            "get": {
                "operationId": "metrics",
                "summary": "Count calls, for Prometheus.",
                "responses": {"200": {"description": "Counters.", "content": {"text/plain": {"schema": TEXT}}}}
                | _failures(),
            }
        },
    }
    for operation in catalog:
        if operation.foreign:  # servers come and go, and their schemas refer to places of their own
            continue
        paths[f"/tools/{operation.name}/execute"] = {"post": _execute(operation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Athena", "version": __version__, "description": "Long-term memory for agents, over HTTP."},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": SCHEMAS,
            "responses": {code: _answer(words, "Failure") for code, words in FAILURES.items()},
        },
    }


def _execute(operation: AnyOperation) -> dict[str, Any]:
    data = types.schema(operation.result)
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
    content: dict[str, Any] = {"application/json": {"schema": answer}}
    if data.get("type") == "array":
        content["application/x-ndjson"] = {"schema": TEXT}
    made: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.category],
        "summary": operation.summary,
        "description": operation.documentation.details or operation.summary,
        "x-effect": str(operation.effect),
        "x-examples": list(operation.documentation.examples),
        "parameters": [PROJECT],
        "requestBody": {"required": True, "content": {"application/json": _body(operation)}},
        "responses": {"200": {"description": "What it returned.", "content": content}} | _failures(),
    }
    if operation.effect is not Effect.READ:
        made["parameters"] = [PROJECT, IDEMPOTENCY]
    return made


def _body(operation: AnyOperation) -> dict[str, Any]:
    return {"schema": operation.arguments_schema, "example": operation.example}


def _get(
    name: str, summary: str, schema: str, parameters: list[dict[str, Any]] | None = None, *, tagged: bool = True
) -> dict[str, Any]:
    unchanged = {"304": {"description": "As before."}} if tagged else {}
    made: dict[str, Any] = {
        "operationId": f"{name}_tools" if name in ("discover", "list", "search", "describe") else name,
        "summary": summary,
        "responses": {"200": _answer("It.", schema)} | unchanged | _failures(),
    }
    if parameters:
        made["parameters"] = parameters
    return {"get": made}


def _query(name: str, schema: dict[str, Any], words: str, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": words}


def _failures() -> dict[str, Any]:
    return {code: {"$ref": f"#/components/responses/{code}"} for code in FAILURES}


def _answer(words: str, schema: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": words, "content": {"application/json": {"schema": reference}}}


LONGEST_KEY = 200
LONGEST_NAME = 9_000  # a project's name of 1,000 characters, percent-encoded
PROJECT = {
    "name": "X-Athena-Project",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "Whose memories, percent-encoded; the server's own project without it.",
}
IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]([ -~]*[!-~])?$"},
    "description": "A call that is repeated with the same key happens once.",
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_SUMMARY = _object(name=TEXT, description=TEXT, category=TEXT)
SCHEMAS: dict[str, Any] = {
    "Anything": {"type": "object"},
    "Alive": _object(live={"type": "boolean"}, ready={"type": "boolean"}),
    "Failure": _object(
        success={"const": False},
        error=_object(code=TEXT, message=TEXT, hint={"anyOf": [TEXT, {"type": "null"}]}, retry={"type": "boolean"}),
    ),
    "Discovery": _object(
        categories={
            "type": "object",
            "additionalProperties": _object(
                description=TEXT,
                count={"type": "integer"},
                tools={"type": "array", "items": _object(name=TEXT, description=TEXT)},
            ),
        },
        total_tools={"type": "integer"},
    ),
    "Tools": _object(tools={"type": "array", "items": _SUMMARY}, count={"type": "integer"}),
    "Tool": _object(
        name=TEXT,
        description=TEXT,
        category=TEXT,
        details=TEXT,
        parameters={
            "type": "array",
            "items": _object(name=TEXT, type=TEXT, description=TEXT, required={"type": "boolean"}, default={}),
        },
        returns=_object(type=TEXT, description=TEXT),
        effect={"enum": [str(effect) for effect in Effect]},
        examples={"type": "array", "items": TEXT},
        call=_object(method=TEXT, path=TEXT, body={"type": "object"}),
    ),
    "Info": _object(name=TEXT, version=TEXT, tools={"type": "integer"}, project=TEXT, backend=TEXT),
}
