"""Read the records of an export of Athena, to add them to a store that has others already."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from athena.memory.graph.values import ENTITY_METADATA_KEY, OBSERVATION_TYPE, NewRelation
from athena.memory.rows import RESERVED_RELATIONS
from athena.memory.transfer.records import ImportedEntity, ImportedLink, ImportedMemory, Record, SkippedRecord
from athena.memory.values import strip_reserved_keys
from athena.storage import jsonl


def read_store(path: str, project: str | None) -> Iterator[Record]:
    """Yield the live memories, entities and relations of an export; count what else there is, which is left out."""
    scopes = {row["id"]: (row["name"], row["kind"]) for row in jsonl.iter_rows(path, ["scopes"])}
    links = _read_links(path)
    entity_names: dict[int, str] = {}
    left_out: Counter[str] = Counter()
    for row in jsonl.iter_rows(path, ["memories", "relations"]):
        name, kind = scopes[row["scope"]]
        target = project or name
        if row[jsonl.TABLE_KEY] == "relations":
            if row["removed"] is None:
                yield ImportedEntity(
                    "relations",
                    row["source_name"],
                    None,
                    relations=(_to_relation(row),),
                    project=target,
                    private=row["private"],
                )
        elif row["deleted"] is not None:
            left_out["forgotten memories"] += 1
        elif kind == "memory":
            yield _to_memory(row, target, links.get(row["id"], ()))
        elif kind != "entity":
            left_out[f"{kind}s"] += 1
        elif row["session"] is None:
            entity_names[row["id"]] = row["content"]
            facts = row["metadata"].get(ENTITY_METADATA_KEY, {})
            yield ImportedEntity(
                "entities",
                row["content"],
                row["memory_type"],
                (),
                facts,
                created=row["created"],
                project=target,
                private=row["private"],
            )
        elif (entity := entity_names.get(int(row["session"]))) is not None:
            yield ImportedEntity(
                "entities",
                entity,
                OBSERVATION_TYPE,
                (row["content"],),
                created=row["created"],
                project=target,
                private=row["private"],
            )
    for what, count in left_out.items():
        yield SkippedRecord(what, f"{count:,}; only an import into an empty store takes them")


def _read_links(path: str) -> dict[int, list[ImportedLink]]:
    """Return the links of each memory, with the hashes of the others."""
    found = [row for row in jsonl.iter_rows(path, ["links"]) if row["relation"] not in RESERVED_RELATIONS]
    wanted = {row["other"] for row in found}
    memories = jsonl.iter_rows(path, ["memories"]) if wanted else iter(())
    digests = {row["id"]: row["digest"] for row in memories if row["id"] in wanted and row["deleted"] is None}
    links: dict[int, list[ImportedLink]] = {}
    for row in found:
        if row["other"] in digests:
            link = ImportedLink(row["relation"], digests[row["other"]], row["at"])
            links.setdefault(row["memory"], []).append(link)
    return links


def _to_memory(row: dict[str, Any], project: str, links: Any) -> ImportedMemory:
    return ImportedMemory(
        f"memory {row['hash']}",
        row["content"],
        tuple(row["tags"]),
        row["memory_type"],
        strip_reserved_keys(row["metadata"]),
        row["importance"],
        row["created"],
        row["updated"],
        row["author"],
        row["private"],
        project,
        row["digest"],
        tuple(links),
    )


def _to_relation(row: dict[str, Any]) -> NewRelation:
    relation: NewRelation = {"from": row["source_name"], "to": row["target_name"], "relationType": row["relation"]}
    if row["began"] is not None:
        relation["since"] = row["began"]
    if row["ended"] is not None:
        relation["until"] = row["ended"]
    return relation
