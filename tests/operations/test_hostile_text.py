"""Every operation with texts that a database, a file system or a terminal cannot take, in every place for a text."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app.compose import App
from athena.core.operation import Effect, Operation
from athena.errors import AthenaError
from athena.operations import CATALOG
from conftest import FULL
from http_tools import run_server

MIXED = "a\0b\ud800c\udcffd\x1b[31m\x7f\x85\u202e\ufeff\uffff\U0010ffff"
TEXTS = {"mixed": MIXED}
if FULL:
    TEXTS |= {
        "nul": "a\0b",
        "only nul": "\0",
        "high": "\ud800",
        "low": "x\udc80",
        "pair": "\ud83d\ude00",
        "esc": "\x1b",
    }
    TEXTS |= {
        "lines": "\r\n\x0b\x0c\u2028",
        "long": "x" * 5_000_000,
        "spaces": " " * 300_000,
        "marks": "'\"\\%;--" * 99,
    }
SAMPLES: dict[str, Any] = {"string": "x", "integer": 1, "number": 1.0, "boolean": False, "array": [], "object": {}}
OPERATIONS = [operation for operation in CATALOG if operation.effect is not Effect.APPROVE]


def place_text(schema: dict[str, Any], value: Any, text: str) -> Iterator[Any]:
    """Yield values of a schema with the text in each place for a text: values, items, keys and fields."""
    for choice in schema.get("anyOf", ()):
        yield from place_text(choice, value, text)
    kind = schema.get("type")
    if kind == "string" or not schema:
        yield text
    if kind == "array":
        for item in place_text(schema["items"], None, text):
            yield [item]
    if kind == "object" and isinstance(extra := schema.get("additionalProperties"), dict):
        for item in place_text(extra, None, text):
            yield {"key": item}
        yield {text: create_sample(extra)}
        yield {"key": [{text: [text]}]}
    for name, inner in schema.get("properties", {}).items():
        fields = {field: create_sample(schema["properties"][field]) for field in schema["required"]}
        for item in place_text(inner, None, text):
            yield fields | {name: item}


def create_sample(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return create_sample(schema["anyOf"][0])
    if schema.get("type") == "object" and "properties" in schema:
        return {name: create_sample(schema["properties"][name]) for name in schema["required"]}
    return copy.copy(SAMPLES.get(schema.get("type", "string"), "x"))


def list_calls(operation: Operation[Any, Any, Any], text: str) -> Iterator[dict[str, Any]]:
    """Yield arguments of an operation, with the text in one place each."""
    schema = operation.arguments_schema
    base = {
        name: create_sample(schema["properties"][name]) for name in schema["required"]
    } | operation.example_arguments
    for name, inner in schema["properties"].items():
        for value in place_text(inner, base.get(name), text):
            yield base | {name: value}
    yield base | {text[:1_000]: text}


def call_operation(name: str, project: str | None = None, /, **arguments: Any) -> AthenaError | None:
    """Call an operation and return its error; any other exception is a bug."""
    try:
        api.call(name, project=project, **arguments)
    except AthenaError as error:
        return error
    return None


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_hostile_text_is_refused_or_stored(isolated: App, operation: Operation[Any, Any, Any]) -> None:
    calls = [arguments for text in TEXTS.values() for arguments in list_calls(operation, text)]
    assert calls
    for arguments in calls:
        error = call_operation(operation.name, **arguments)
        assert error is None or error.http < 500, ascii((arguments, error))
        str(error).encode()  # a surface must be able to send it


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_hostile_project_name_is_refused_or_used(isolated: App, text: str) -> None:
    for name in ("remember", "recall", "list_projects", "create_task", "briefing", "write_file"):
        error = call_operation(name, text, **isolated.catalog.get_operation(name).example_arguments)
        assert error is None or error.http < 500, ascii((name, error))


@pytest.mark.sqlite_only("the server has a store of its own")
def test_hostile_text_over_http_is_no_server_error(tmp_path: Path) -> None:
    with run_server(tmp_path) as served:
        calls = [(operation.name, arguments) for operation in OPERATIONS for arguments in list_calls(operation, MIXED)]
        assert len(calls) > 200
        for name, arguments in calls:
            reply = served.execute(name, arguments)
            assert 200 <= reply.status < 500, ascii((name, arguments, reply))
            reply.body.decode()
