"""`athena import`: take over what another program kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.core.threads import drive
from athena.errors import InvalidInput, NotFound

FORMATS = ["server-memory"]
PIECE = 1_000  # entities or relations in one call
FIELDS = {"entity": ("name", "entityType"), "relation": ("from", "to", "relationType")}
ENTITY, RELATION = FIELDS


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    show_default=True,
    help="Who wrote the file; server-memory: the reference graph server's memory.jsonl.",
)
@click.option("--project", help="Whose graph; by default the git root of this folder, else 'default'.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def import_file(file: Path, source: str, project: str | None, json_output: bool) -> None:
    """Take a file of another program into the graph; again, it adds only what is new.

    Example: athena import memory.jsonl --from server-memory
    """
    entities, relations = _read(file)
    made = _keep(entities, relations, project)
    if json_output:
        return output.as_json(made)
    told = [f"{made[name]:,} {name}" for name in ("entities", "observations", "relations")]
    return click.echo(f"new: {', '.join(told)}" if any(made.values()) else "nothing new")


def _read(file: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read the lines of a file: entities by name, and relations. All is checked before anything is kept."""
    entities: dict[str, dict[str, Any]] = {}
    relations: list[dict[str, Any]] = []
    for place, one in _lines(file):
        kind = one.get("type")
        if kind not in FIELDS or not all(isinstance(one.get(name), str) for name in FIELDS[kind]):
            raise InvalidInput(
                f"{place}: this is no entity and no relation", hint="is it a memory file of that server?"
            )
        fields = {name: one[name] for name in FIELDS[kind]}
        if kind == RELATION:
            relations.append(fields)
            continue
        seen = one.get("observations", [])
        if not isinstance(seen, list) or not all(isinstance(text, str) for text in seen):
            raise InvalidInput(f"{place}: observations must be a list of texts")
        known = entities.setdefault(fields["name"], {**fields, "observations": []})
        known["observations"] += [text for text in seen if text.strip()]
    return entities, relations


def _lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not text in UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file.name}, line {number}"
        try:
            one = json.loads(line)
        except ValueError:
            raise InvalidInput(f"{place}: not JSON: {line[:60]!r}") from None
        if not isinstance(one, dict):
            raise InvalidInput(f"{place}: not an object: {line[:60]!r}")
        yield place, one


def _keep(entities: dict[str, dict[str, Any]], relations: list[dict[str, Any]], project: str | None) -> dict[str, int]:
    """Add to the graph what it does not have, and count that."""

    def call(operation: str, **arguments: Any) -> Any:
        return drive(connect.Connection(connect.shared_app, project, "cli").call(operation, arguments)).data

    counts = {"entities": 0, "observations": 0, "relations": 0}
    for some in _pieces(list(entities.values())):
        new = call("create_entities", entities=some)
        counts["entities"] += len(new)
        counts["observations"] += sum(len(one["observations"]) for one in new)
        names = {one["name"] for one in new}
        more = [
            {"entityName": one["name"], "contents": one["observations"]} for one in some if one["name"] not in names
        ]
        added = call("add_observations", observations=more) if more else []
        counts["observations"] += sum(len(one["addedObservations"]) for one in added)
    for some in _pieces(relations):
        counts["relations"] += len(call("create_relations", relations=some))
    return counts


def _pieces(items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for i in range(0, len(items), PIECE):
        yield items[i : i + PIECE]
