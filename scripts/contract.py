"""Write the public contract as JSON: what other programs rely on, and apart from it the words that people read.

python scripts/contract.py    write tests/data/contract/structure.json and wording.json
"""

import inspect
import json
import re
import tempfile
from pathlib import Path
from typing import Any, get_type_hints

import apsw
import click
from reference import OTHER_VARIABLES, collect, read_errors, read_settings, signature

from athena import AthenaClient, api, errors
from athena.cli.commands import athena
from athena.core import types
from athena.core.catalog import AnyOperation
from athena.core.operation_methods import OperationMethods
from athena.hooks import client, launcher
from athena.operations import CATALOG
from athena.server import guard, openapi
from athena.server.mcp import tools
from athena.storage import migrations
from athena.storage.sqlite.store import Sqlite

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "contract"
WORDS = ("description", "summary", "x-examples", "example", "details")


def structure() -> dict[str, Any]:
    """Return names, parameters, types, defaults, codes, routes, schema and settings."""
    return {
        "operations": {operation.path: describe_operation(operation) for operation in CATALOG},
        "records": dict(sorted(describe_records().items())),
        "openapi": without_words(openapi.create_document(CATALOG)),
        "commands": dict(describe_command(athena, "athena")),
        "settings": {s.field: [s.variable, s.key] for s in read_settings()} | {name: [] for name in OTHER_VARIABLES},
        "schema": describe_schema(),
        "mcp": {surface: without_words(list_tools(surface)) for surface in tools.TOOL_SURFACES},
        "errors": {kind.__name__: [kind.code, kind.http, kind.exit] for kind in read_errors()},
        "http_errors": {kind.code: kind.http for kind in guard_errors()},
        "api": {name: describe_public(name) for name in sorted(api.__all__)},
        "client": {
            name: describe_function(name, value)
            for name, value in (vars(OperationMethods) | vars(AthenaClient)).items()
            if inspect.isfunction(value) and (name == "__init__" or not name.startswith("_"))
        },
        "hooks": {
            "events": list(client.EVENTS),
            "greeting": client.HELLO.decode(),
            "entry": client.FALLBACK_CODE,
            "launcher": launcher.HOOK_SCRIPT,
            "mcp_launcher": launcher.MCP_SCRIPT,
            "mcp_entry": launcher.RUN_CLI_CODE,
        },
    }


def wording() -> dict[str, Any]:
    """Return the words that people and models read."""
    commands: dict[str, str] = {}
    collect_help(athena, "athena", commands)
    return {
        "categories": dict(CATALOG.categories),
        "operations": {
            operation.path: [
                operation.documentation.summary,
                operation.documentation.details,
                *operation.documentation.examples,
                {p.name: p.description for p in operation.parameters},
            ]
            for operation in CATALOG
        },
        "commands": commands,
        "settings": {s.field: s.meaning for s in read_settings()},
        "instructions": tools.INSTRUCTIONS,
        "errors": {kind.code: inspect.cleandoc(kind.__doc__ or "") for kind in [*read_errors(), *guard_errors()]},
        "api": {name: inspect.cleandoc(getattr(api, name).__doc__ or "") for name in sorted(api.__all__)},
        "mcp": {surface: list_tools(surface) for surface in ("default", "code")},
    }


def describe_operation(operation: AnyOperation) -> dict[str, Any]:
    return {
        "name": operation.name,
        "short": operation.short_name,
        "aliases": [*operation.aliases, *sorted(operation.parameter_aliases)],
        "effect": str(operation.effect),
        "approval": operation.approval,
        "callers": sorted(operation.callers),
        "reach": sorted(operation.reach),
        "parameters": [
            [p.name, types.to_source(p.annotation), p.required, types.to_json(p.default)] for p in operation.parameters
        ],
        "returns": types.to_source(operation.result_type),
    }


def describe_records() -> dict[str, dict[str, str]]:
    found: dict[str, Any] = {}
    for operation in CATALOG:
        for annotation in (*(p.annotation for p in operation.parameters), operation.result_type):
            collect(annotation, found)
    return {
        name: {field: types.to_source(hint) for field, hint in get_type_hints(kind, include_extras=True).items()}
        for name, kind in found.items()
    }


def describe_command(command: click.Command, path: str) -> list[tuple[str, Any]]:
    parameters = [
        [type(p).__name__, p.name, *p.opts, *p.secondary_opts, describe_type(p.type), p.required, p.multiple, p.nargs]
        for p in command.params
    ]
    made: list[tuple[str, Any]] = [(path, parameters)]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                made += describe_command(inner, f"{path} {name}")
    return made


def describe_type(kind: Any) -> str:
    return f"Choice({', '.join(map(str, kind.choices))})" if isinstance(kind, click.Choice) else kind.name


def collect_help(command: click.Command, path: str, found: dict[str, str]) -> None:
    context = click.Context(command, info_name=path, terminal_width=100, max_content_width=100)
    context.help_option_names = ["-h", "--help"]  # as the program has it; click caches the option of the first context
    found[path] = click.unstyle(command.get_help(context))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                collect_help(inner, f"{path} {name}", found)


def describe_schema() -> dict[str, Any]:
    """Return the steps of the migrations, and the tables that a new file has."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "athena.db"
        Sqlite(file).close()
        connection = apsw.Connection(str(file))
        tables = {str(name): str(sql) for name, sql in connection.execute("SELECT name, sql FROM sqlite_master")}
        connection.close()
    return {"steps": list(migrations.STEPS), "tables": dict(sorted(tables.items()))}


def describe_function(name: str, function: Any) -> str:
    """Write a signature with the values of constants instead of their names."""
    known = inspect.unwrap(function).__globals__
    return re.sub(r"= ([A-Z][A-Z_]+)\b", lambda match: f"= {known[match[1]]!r}", signature(name, function))


def describe_public(name: str) -> Any:
    value = getattr(api, name)
    return describe_function(name, value) if inspect.isfunction(value) else [list(getattr(value, "_fields", ()))]


def list_tools(surface: str) -> list[dict[str, Any]]:
    return [tools.define_tool(operation, surface) for operation in tools.select_tools(CATALOG, surface)]


def guard_errors() -> list[Any]:
    return [
        kind
        for kind in vars(guard).values()
        if isinstance(kind, type) and issubclass(kind, errors.AthenaError) and kind.__module__ == guard.__name__
    ]


def without_words(value: Any) -> Any:
    """Leave out descriptions; a property that is called `description` stays."""
    if isinstance(value, list):
        return [without_words(part) for part in value]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, part in value.items():
        if key == "properties":
            made[key] = {name: without_words(one) for name, one in part.items()}
        elif key not in WORDS or isinstance(part, dict):
            made[key] = without_words(part)
    return made


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, value in (("structure", structure()), ("wording", wording())):
        (FOLDER / f"{name}.json").write_text(write_lines(value) + "\n", "utf-8")


def write_lines(value: Any, depth: int = 3) -> str:
    """Write JSON with one line for each entry of the outer objects, so that a diff shows what changed."""
    if not isinstance(value, dict) or not depth:
        return json.dumps(value, ensure_ascii=False)
    lines = [f"{json.dumps(key)}: {write_lines(part, depth - 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    main()
