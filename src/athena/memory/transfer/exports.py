"""Write what is kept for people and other programs: a Markdown folder, and the graph as GraphML."""

import math
import os
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO, Any, NamedTuple
from xml.sax.saxutils import escape

from athena.core.files import create_private_folder, write_file_atomically
from athena.core.threads import run_in_thread
from athena.core.values import Kind, Scope
from athena.errors import Conflict
from athena.memory import link_rows, rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import fetch_entity_metadata, to_relation
from athena.memory.graph.values import Entity, Relation, entity_key
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.transfer import markdown
from athena.memory.transfer.markdown import encode_field, format_file, format_items, format_time
from athena.memory.values import strip_reserved_keys
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.privacy import join_marks

PAGE_ROWS = 100
GRAPH_FOLDER = "graph"
INVALID_XML_PATTERN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
GRAPHML_HEAD = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="name" for="node" attr.name="name" attr.type="string"/>
<key id="entityType" for="node" attr.name="entityType" attr.type="string"/>
<key id="observations" for="node" attr.name="observations" attr.type="string"/>
<key id="relationType" for="edge" attr.name="relationType" attr.type="string"/>
<key id="since" for="edge" attr.name="since" attr.type="double"/>
<key id="until" for="edge" attr.name="until" attr.type="double"/>
<graph edgedefault="directed">
"""
GRAPHML_END = "</graph>\n</graphml>\n"


class ExportedEntity(NamedTuple):
    """An entity with all that is known of it; without a type it is only the name that relations begin at."""

    name: str
    entity_type: str | None
    observations: list[str]
    metadata: dict[str, Any]
    created: float | None
    relations: list[Relation]
    private: str = ""  # the marks of all of it

    def to_server_memory(self) -> Entity | None:
        if self.entity_type is None:
            return None
        return {"name": self.name, "entityType": self.entity_type, "observations": self.observations}


# --- the graph --------------------------------------------------------------------------------------------------------


async def iter_entities(store: Store, project: str) -> AsyncIterator[ExportedEntity]:
    """Yield the entities of a project with their relations, then the names that only relations have."""
    scope = Scope(project, "entity")

    async def list_ids(tx: Transaction) -> tuple[list[int], list[int]]:
        own = await scopes.fetch_own_ids(tx, scope)
        return own, await graph_rows.list_entity_ids(tx, own)

    own, ids = await store.database.read(list_ids)
    for i in range(0, len(ids), PAGE_ROWS):
        page = ids[i : i + PAGE_ROWS]

        async def read_page(tx: Transaction, page: list[int] = page) -> list[ExportedEntity]:
            tx.chars_left = math.inf  # what a person exports is written page by page
            entities = await graph_rows.fetch_entities_by_id(tx, own, page)
            observations = await graph_rows.fetch_observations(tx, own, page)
            metadata = await fetch_entity_metadata(tx, own, page)
            created = {row.memory.id: row.memory.created for row in await rows.list_rows_by_id(tx, own, page)}
            marks = await graph_rows.fetch_observation_marks(tx, own, page)
            edges = await graph_rows.list_relations_touching(tx, own, [entity.key for entity in entities], ("source",))
            edges_by_key: dict[str, list[graph_rows.RelationRow]] = {}
            for edge in edges:
                edges_by_key.setdefault(edge.source, []).append(edge)
            return [
                ExportedEntity(
                    entity.name,
                    entity.type,
                    observations[entity.id],
                    metadata[entity.id],
                    created[entity.id],
                    [to_relation(edge) for edge in edges_by_key.get(entity.key, ())],
                    join_marks(
                        " ".join(
                            [
                                entity.private,
                                *marks.get(entity.id, ()),
                                *(edge.private for edge in edges_by_key.get(entity.key, ())),
                            ]
                        ).split()
                    ),
                )
                for entity in entities
            ]

        for entity in await store.database.read(read_page):
            yield entity
    for orphan in await store.database.read(lambda tx: _read_orphans(tx, own)):
        yield orphan


async def _read_orphans(tx: Transaction, own: list[int]) -> list[ExportedEntity]:
    """Return the names that relations begin at and that no entity has."""
    tx.chars_left = math.inf
    found: dict[str, list[graph_rows.RelationRow]] = {}
    for edge in await graph_rows.list_orphaned_relations(tx, own):
        found.setdefault(edge.source_name, []).append(edge)
    return [
        ExportedEntity(
            name,
            None,
            [],
            {},
            None,
            [to_relation(edge) for edge in edges],
            join_marks(" ".join(edge.private for edge in edges).split()),
        )
        for name, edges in found.items()
    ]


async def write_graphml(store: Store, project: str, stream: IO[str]) -> dict[str, int]:
    """Write the graph as GraphML; names that no entity has become nodes without a type."""
    counts = {"entities": 0, "relations": 0}
    ids: dict[str, str] = {}

    def write_node(name: str, fields: dict[str, str]) -> None:
        if name not in ids:
            ids[name] = f"n{len(ids)}"
            stream.write(f'<node id="{ids[name]}">{_format_data({"name": name, **fields})}</node>\n')

    stream.write(GRAPHML_HEAD)
    async for item in iter_entities(store, project):
        if item.entity_type is not None:
            write_node(item.name, {"entityType": item.entity_type, "observations": "\n".join(item.observations)})
            counts["entities"] += 1
    async for item in iter_entities(store, project):
        for relation in item.relations:
            write_node(relation["from"], {})
            write_node(relation["to"], {})
            fields: dict[str, str] = {
                name: str(relation[name]) for name in ("relationType", "since", "until") if name in relation
            }
            ends = f'source="{ids[relation["from"]]}" target="{ids[relation["to"]]}"'
            stream.write(f"<edge {ends}>{_format_data(fields)}</edge>\n")
            counts["relations"] += 1
    stream.write(GRAPHML_END)
    return counts


def _format_data(fields: dict[str, str]) -> str:
    texts = {name: escape(INVALID_XML_PATTERN.sub("\ufffd", text)) for name, text in fields.items()}
    return "".join(f'<data key="{name}">{text}</data>' for name, text in texts.items())


# --- the Markdown folder ----------------------------------------------------------------------------------------------


async def write_markdown(
    store: Store,
    projects: list[str],
    folder: str,
    on_written: Callable[[int], None] = lambda _: None,
    *,
    is_whole: bool = True,
) -> dict[str, int]:
    """Write the memories and graphs of projects as files; remove files of an earlier export that are no longer true.

    Files of other projects stay unless these are all there are (`is_whole`).
    """
    earlier = await run_in_thread(_list_own_files, folder)
    written: set[str] = set()
    counts = {"memories": 0, "entities": 0, "relations": 0, "removed": 0, "left_out": 0}
    places = [os.path.join(folder, markdown.create_folder_name(project)) for project in projects]

    def write_file(path: str, data: bytes) -> None:
        _refuse_links(folder, os.path.dirname(path))
        create_private_folder(os.path.dirname(path))
        write_file_atomically(path, data, skip_same=True, sync=False)
        written.add(path)
        on_written(1)

    for project, place in zip(projects, places, strict=True):
        async for row, links in _iter_memories(store, project):
            name = markdown.create_file_name(row.memory.content, row.memory.hash)
            write_file(os.path.join(place, name), _format_memory(row, links))
            counts["memories"] += 1
            counts["relations"] += len(links)
        async for item in iter_entities(store, project):
            name = markdown.create_file_name(item.name, entity_key(item.name)[:8])
            write_file(os.path.join(place, GRAPH_FOLDER, name), _format_entity(project, item))
            counts["entities"] += item.entity_type is not None
            counts["relations"] += len(item.relations)
        counts["left_out"] += await store.database.read(partial(_count_others, project=project))
    gone = {path for path in earlier - written if is_whole or path.startswith(tuple(f"{place}/" for place in places))}
    if gone and not written:  # a store that was wiped, or another one
        hint = f"athena import {folder} takes it in; or name another folder"
        raise Conflict(f"{folder} is an earlier export, and there is nothing to write", hint=hint)
    for path in gone:
        os.unlink(path)
    counts["removed"] = len(gone)
    return counts


async def _iter_memories(store: Store, project: str) -> AsyncIterator[tuple[MemoryRow, list[tuple[str, str, float]]]]:
    last_id = 0
    while True:

        async def read_page(tx: Transaction, last_id: int = last_id) -> list[Any]:
            tx.chars_left = math.inf  # what a person exports is written page by page
            own = await scopes.fetch_own_ids(tx, Scope(project))
            page = await rows.list_rows_after(tx, own, last_id, PAGE_ROWS)
            links = await link_rows.list_live_links(tx, own, [row.memory.id for row in page])
            return [(row, links.get(row.memory.id, [])) for row in page]

        page = await store.database.read(read_page)
        for item in page:
            yield item
        if not page:
            return
        last_id = page[-1][0].memory.id


def _format_memory(row: MemoryRow, links: list[tuple[str, str, float]]) -> bytes:
    memory = row.memory
    metadata = strip_reserved_keys(memory.metadata)
    fields = {
        "hash": encode_field(memory.hash),
        "project": encode_field(memory.project),
        "type": encode_field(memory.memory_type),
        "tags": encode_field(list(memory.tags)),
        "created": format_time(memory.created),
        "updated": format_time(memory.updated),
        "importance": encode_field(memory.importance),
        "author": encode_field(memory.author),
    }
    if metadata:
        fields["metadata"] = encode_field(metadata)
    if row.private:
        fields["private"] = encode_field(row.private)
    if links:
        fields["relations"] = encode_field(links)
    return format_file(fields, memory.content)


def _format_entity(project: str, item: ExportedEntity) -> bytes:
    fields = {"entity": encode_field(item.name), "project": encode_field(project)}
    if item.entity_type is not None:
        fields["type"] = encode_field(item.entity_type)
    if item.created is not None:
        fields["created"] = format_time(item.created)
    if item.metadata:
        fields["metadata"] = encode_field(item.metadata)
    if item.private:
        fields["private"] = encode_field(item.private)
    if item.relations:
        fields["relations"] = encode_field([{k: v for k, v in edge.items() if k != "from"} for edge in item.relations])
    return format_file(fields, format_items(item.observations))


async def _count_others(tx: Transaction, project: str) -> int:
    """Count what the folder does not hold: events, tasks, patterns and skills."""
    kinds: tuple[Kind, ...] = ("event", "task", "pattern", "skill")
    ids = [i for kind in kinds for i in await scopes.fetch_own_ids(tx, Scope(project, kind))]
    return await rows.count_live_rows(tx, ids)


def _refuse_links(folder: str, place: str) -> None:
    """Raise Conflict if the way from a folder to a place in it leads through a link, which may lead anywhere."""
    while len(place) > len(folder):
        if os.path.islink(place):
            raise Conflict(f"{place} is a link", hint="remove it, or name another folder")
        place = os.path.dirname(place)


def _list_own_files(folder: str) -> set[str]:
    """Return the files that an earlier export wrote; raise Conflict where the folder holds something else alone."""
    own: set[str] = set()
    others = False
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            if name.endswith(markdown.SUFFIX) and not os.path.islink(path) and os.path.isfile(path):
                with open(path, "rb") as stream:
                    is_own = stream.read(len(markdown.OWN_BEGINNING)) == markdown.OWN_BEGINNING
                own |= {path} if is_own else set()
                others = others or not is_own
            else:
                others = others or not name.startswith(".")
    if others and not own:
        raise Conflict(f"{folder} holds other files", hint="name a new or empty folder, or one of an earlier export")
    return own
