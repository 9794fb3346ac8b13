"""`athena import`: take over what another program kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from athena.cli import output
from athena.cli.invoke import invoke_operation, json_option
from athena.errors import InvalidInput, NotFound

IMPORT_FORMATS = ["server-memory"]
IMPORT_BATCH_SIZE = 1_000  # entities or relations in one call
REQUIRED_FIELDS = {"entity": ("name", "entityType"), "relation": ("from", "to", "relationType")}
ENTITY_TYPE, RELATION_TYPE = REQUIRED_FIELDS


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "source",
    type=click.Choice(IMPORT_FORMATS),
    default=IMPORT_FORMATS[0],
    show_default=True,
    help="Who wrote the file; server-memory: the reference graph server's memory.jsonl.",
)
@click.option("--project", help="Whose graph; by default the git root of this folder, else 'default'.")
@json_option
def import_file(file: Path, source: str, project: str | None, json_output: bool) -> None:
    """Take a file of another program into the graph; again, it adds only what is new.

    Example: athena import memory.jsonl --from server-memory
    """
    entities, relations = _read_graph(file)
    made = _store_graph(entities, relations, project)
    if json_output:
        return output.print_json(made)
    told = [f"{made[name]:,} {name}" for name in ("entities", "observations", "relations")]
    return click.echo(f"new: {', '.join(told)}" if any(made.values()) else "nothing new")


def _read_graph(file: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read the lines of a file: entities by name, and relations. All is checked before anything is kept."""
    entities: dict[str, dict[str, Any]] = {}
    relations: list[dict[str, Any]] = []
    for place, one in _read_json_lines(file):
        kind = one.get("type")
        if kind not in REQUIRED_FIELDS or not all(isinstance(one.get(name), str) for name in REQUIRED_FIELDS[kind]):
            raise InvalidInput(
                f"{place}: this is no entity and no relation", hint="is it a memory file of that server?"
            )
        fields = {name: one[name] for name in REQUIRED_FIELDS[kind]}
        if kind == RELATION_TYPE:
            relations.append(fields)
            continue
        seen = one.get("observations", [])
        if not isinstance(seen, list) or not all(isinstance(text, str) for text in seen):
            raise InvalidInput(f"{place}: observations must be a list of texts")
        known = entities.setdefault(fields["name"], {**fields, "observations": []})
        known["observations"] += [text for text in seen if text.strip()]
    return entities, relations


def _read_json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
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


def _store_graph(
    entities: dict[str, dict[str, Any]], relations: list[dict[str, Any]], project: str | None
) -> dict[str, int]:
    """Add to the graph what it does not have, and count that."""
    counts = {"entities": 0, "observations": 0, "relations": 0}
    for some in _split_batches(list(entities.values())):
        new = invoke_operation("create_entities", project, entities=some)
        counts["entities"] += len(new)
        counts["observations"] += sum(len(one["observations"]) for one in new)
        names = {one["name"] for one in new}
        more = [
            {"entityName": one["name"], "contents": one["observations"]} for one in some if one["name"] not in names
        ]
        added = invoke_operation("add_observations", project, observations=more) if more else []
        counts["observations"] += sum(len(one["addedObservations"]) for one in added)
    for some in _split_batches(relations):
        counts["relations"] += len(invoke_operation("create_relations", project, relations=some))
    return counts


def _split_batches(items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for i in range(0, len(items), IMPORT_BATCH_SIZE):
        yield items[i : i + IMPORT_BATCH_SIZE]
