"""`athena import`: import the knowledge graph of another program."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from athena.cli import output
from athena.cli.invoke import invoke_operation, json_option
from athena.errors import InvalidInput, NotFound

IMPORT_FORMATS = ["server-memory"]
IMPORT_BATCH_SIZE = 1_000
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
    counts = _store_graph(entities, relations, project)
    if json_output:
        return output.print_json(counts)
    parts = [f"{counts[name]:,} {name}" for name in ("entities", "observations", "relations")]
    return click.echo(f"new: {', '.join(parts)}" if any(counts.values()) else "nothing new")


def _read_graph(file: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Read and check a whole file; return its entities by name, and its relations."""
    entities: dict[str, dict[str, Any]] = {}
    relations: list[dict[str, Any]] = []
    for location, row in _read_json_lines(file):
        row_type = row.get("type")
        required = REQUIRED_FIELDS.get(row_type) if isinstance(row_type, str) else None
        if required is None or not all(isinstance(row.get(name), str) for name in required):
            raise InvalidInput(
                f"{location}: this is no entity and no relation", hint="is it a memory file of that server?"
            )
        fields = {name: row[name] for name in required}
        if row_type == RELATION_TYPE:
            relations.append(fields)
            continue
        observations = row.get("observations", [])
        if not isinstance(observations, list) or not all(isinstance(text, str) for text in observations):
            raise InvalidInput(f"{location}: observations must be a list of texts")
        entity = entities.setdefault(fields["name"], {**fields, "observations": []})
        entity["observations"] += [text for text in observations if text.strip()]
    return entities, relations


def _read_json_lines(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not text in UTF-8") from None
    for line_number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{file.name}, line {line_number}"
        try:
            row = json.loads(line)
        except ValueError:
            raise InvalidInput(f"{location}: not JSON: {line[:60]!r}") from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{location}: not an object: {line[:60]!r}")
        yield location, row


def _store_graph(
    entities: dict[str, dict[str, Any]], relations: list[dict[str, Any]], project: str | None
) -> dict[str, int]:
    """Add the entities and relations that the graph lacks; return their numbers."""
    counts = {"entities": 0, "observations": 0, "relations": 0}
    for batch in _split_batches(list(entities.values())):
        created = invoke_operation("create_entities", project, entities=batch)
        counts["entities"] += len(created)
        counts["observations"] += sum(len(entity["observations"]) for entity in created)
        created_names = {entity["name"] for entity in created}
        known = [entity for entity in batch if entity["name"] not in created_names]
        observations = [{"entityName": entity["name"], "contents": entity["observations"]} for entity in known]
        added = invoke_operation("add_observations", project, observations=observations) if observations else []
        counts["observations"] += sum(len(row["addedObservations"]) for row in added)
    for batch in _split_batches(relations):
        counts["relations"] += len(invoke_operation("create_relations", project, relations=batch))
    return counts


def _split_batches(items: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for i in range(0, len(items), IMPORT_BATCH_SIZE):
        yield items[i : i + IMPORT_BATCH_SIZE]
