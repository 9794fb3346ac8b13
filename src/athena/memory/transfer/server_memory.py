"""The file of the reference graph server, a line for each entity and relation: write it, and take it in."""

import json
import os
from collections.abc import Iterator
from typing import IO, Any

from athena.core.values import Call
from athena.errors import InvalidInput, NotFound
from athena.memory.graph.observations import add_observations, create_entities
from athena.memory.graph.relations import create_relations
from athena.memory.graph.values import NewObservations, NewRelation
from athena.memory.store import Store
from athena.memory.transfer.exports import iter_entities
from athena.memory.transfer.records import HideValues, ImportedEntity, ImportReport, Record
from athena.storage import calls

BATCH_LINES = 1_000  # stored in one transaction
REQUIRED_FIELDS = {"entity": ("name", "entityType"), "relation": ("from", "to", "relationType")}
ENTITY_TYPE, RELATION_TYPE = REQUIRED_FIELDS
MAPPING = {
    "name, entityType of an entity": "entity",
    "observations": "observations",
    "from, to, relationType of a relation": "relation",
    "empty observations": "left out",
}


async def write_server_memory(store: Store, project: str, stream: IO[str]) -> dict[str, int]:
    """Write the graph as that server does: a line for each entity, then for each relation."""
    counts = {"entities": 0, "relations": 0}

    def write_line(line_type: str, value: Any) -> None:
        stream.write(json.dumps({"type": line_type, **value}, ensure_ascii=False) + "\n")

    async for item in iter_entities(store, project):
        if (entity := item.to_server_memory()) is not None:
            write_line(ENTITY_TYPE, entity)
            counts["entities"] += 1
    async for item in iter_entities(store, project):
        for relation in item.relations:
            write_line(RELATION_TYPE, relation)
            counts["relations"] += 1
    return counts


class GraphImport:
    """One run that adds the entities and relations of a file that the graph lacks, in batches."""

    def __init__(self, store: Store, call: Call, hide: HideValues | None = None) -> None:
        self.report = ImportReport()
        self._store, self._call, self._hide = store, call.with_kind("entity"), hide

    async def store_file(self, file: str) -> ImportReport:
        """Check the whole file, then store it; all changes belong to one call, which `undo` takes back together."""
        for _ in _iter_lines(file):
            pass
        for batch in _batch_lines(file, ENTITY_TYPE):
            await self._store_entities(batch)
        for batch in _batch_lines(file, RELATION_TYPE):
            relations = await create_relations(self._store, await self._hide_values(batch), await self._record_call())
            self.report.relations += len(relations)
        return self.report

    async def _store_entities(self, batch: list[Any]) -> None:
        entities: dict[str, Any] = {}
        for row in await self._hide_values(batch):
            entity = entities.setdefault(row["name"], {**row, "observations": []})
            entity["observations"] += row["observations"]
        call = await self._record_call()
        created = {entity["name"]: entity for entity in await create_entities(self._store, [*entities.values()], call)}
        self.report.entities += len(created)
        self.report.observations += sum(len(entity["observations"]) for entity in created.values())
        more: list[NewObservations] = [
            {"entityName": name, "contents": entity["observations"]}
            for name, entity in entities.items()
            if name not in created and entity["observations"]
        ]
        added = await add_observations(self._store, more, call) if more else []
        self.report.observations += sum(len(row["addedObservations"]) for row in added)

    async def _hide_values(self, batch: list[Any]) -> list[Any]:
        """Return rows with tokens in place of personal values, where texts in the store hold tokens."""
        return batch if self._hide is None else list(await self._hide(self._call.scope, batch))

    async def _record_call(self) -> Call:
        if self._call.recorded_id is None:
            call_id = await self._store.database.write(lambda tx: calls.record_call(tx, self._call, "done"))
            self._call = self._call._replace(recorded_id=call_id)
        return self._call


def iter_graph_records(file: str) -> Iterator[Record]:
    """Yield what a file has as records, to count what would be new."""
    for row_type, row in _iter_lines(file):
        if row_type == ENTITY_TYPE:
            yield ImportedEntity(file, row["name"], row["entityType"], tuple(row["observations"]))
        else:
            relation: NewRelation = {"from": row["from"], "to": row["to"], "relationType": row["relationType"]}
            yield ImportedEntity(file, row["from"], None, relations=(relation,))


def _batch_lines(file: str, wanted_type: str) -> Iterator[list[Any]]:
    batch: list[Any] = []
    for row_type, row in _iter_lines(file):
        if row_type == wanted_type:
            batch.append(row)
        if len(batch) >= BATCH_LINES:
            yield batch
            batch = []
    if batch:
        yield batch


def _iter_lines(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entities and relations of a file; raise an error at the first line that is neither."""
    for location, row in _iter_json_lines(file):
        row_type = row.get("type")
        required = REQUIRED_FIELDS.get(row_type) if isinstance(row_type, str) else None
        if required is None or not all(isinstance(row.get(name), str) for name in required):
            raise InvalidInput(
                f"{location}: this is no entity and no relation", hint="is it a memory file of that server?"
            )
        fields: dict[str, Any] = {name: row[name] for name in required}
        if row_type == RELATION_TYPE:
            periods = {name: float(row[name]) for name in ("since", "until") if type(row.get(name)) in (int, float)}
            yield RELATION_TYPE, fields | periods
            continue
        observations = row.get("observations", [])
        if not isinstance(observations, list) or not all(isinstance(text, str) for text in observations):
            raise InvalidInput(f"{location}: observations must be a list of texts")
        yield ENTITY_TYPE, fields | {"observations": [text for text in observations if text.strip()]}


def _iter_json_lines(file: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with open(file, encoding="utf-8-sig", newline="\n") as stream:
            for line_number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                location = f"{os.path.basename(file)}, line {line_number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    raise InvalidInput(f"{location}: not JSON: {line[:60]!r}") from None
                if not isinstance(row, dict):
                    raise InvalidInput(f"{location}: not an object: {line[:60]!r}")
                yield location, row
    except OSError as error:
        raise NotFound(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not text in UTF-8") from None
