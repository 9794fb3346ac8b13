"""Search memories, events, entities and other kinds in one ranking."""

from collections.abc import Sequence
from dataclasses import replace

from athena.core.values import Kind, Page, Scope
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.search import MAX_ROWS, ROWS_PER_ENTITY, index_pending
from athena.memory.recall import Query, recall
from athena.memory.rows import fetch_memories
from athena.memory.store import Store
from athena.memory.values import Hit, Memory, strip_reserved_keys
from athena.storage import scopes
from athena.storage.database import Transaction


async def recall_kinds(store: Store, query: Query, kinds: Sequence[Kind], *, used: bool = True) -> Page[Hit]:
    """Search several kinds of rows and return the best of all.

    They are ranked together, but for tasks where the question has a time: theirs lies ahead.
    """
    used = used and not query.offset
    alone = [kind for kind in dict.fromkeys(kinds) if query.understand_time and kind == "task"]
    together = [kind for kind in dict.fromkeys(kinds) if kind not in alone]
    whole = query._replace(limit=query.limit + query.offset, offset=0)
    pages = [await _recall_together(store, whole, part, used) for part in (together, alone) if part]
    best = sorted((hit for page in pages for hit in page), key=lambda hit: -hit.score)  # of equals, in their order
    hits = best[query.offset : query.offset + query.limit]
    weaker = min(query.limit - len(hits), sum(page.weaker for page in pages))
    return Page(hits, sum(page.total for page in pages), weaker)


async def _recall_together(store: Store, query: Query, kinds: Sequence[Kind], used: bool) -> Page[Hit]:
    """Return the first hits of some kinds; an entity and what is known of it are one hit."""
    scope = query.criteria.scope.with_kind(kinds[0])
    asked = query._replace(criteria=replace(query.criteria, scope=scope), kinds=tuple(kinds))
    if written_late := [kind for kind in kinds if kind in ("entity", "event")]:  # their vectors follow
        await index_pending(store, written_late)
    if "entity" not in kinds:
        page = await recall(store, asked, used=used)
        return Page(map(_strip_metadata, page), page.total, page.weaker)
    asked = asked._replace(limit=max(query.limit, min(query.limit * ROWS_PER_ENTITY, MAX_ROWS)))
    page = await recall(store, asked, used=used)
    hits = await _merge_entities(store, page, scope)
    total = page.total - (len(page) - len(hits))
    if not page.weaker:
        return Page(hits[: query.limit], total)
    everything = await recall(store, asked._replace(min_score=0), used=False)
    weaker = len((await _merge_entities(store, everything, scope))[: query.limit]) - len(hits[: query.limit])
    return Page(hits[: query.limit], total, weaker)


async def _merge_entities(store: Store, hits: Sequence[Hit], scope: Scope) -> list[Hit]:
    """Return hits with one for each entity: its name, its type, and what of it was found, best first."""
    ids = [hit.id for hit in hits if hit.kind == "entity"]

    async def read_entities(tx: Transaction) -> tuple[dict[int, int], dict[int, Memory]]:
        visible = await scopes.fetch_visible_ids(tx, scope.with_kind("entity"))
        owners = await graph_rows.fetch_owner_ids(tx, visible, ids)
        return owners, await fetch_memories(tx, visible, set(owners.values()))

    owners, entities = await store.database.read(read_entities) if ids else ({}, {})
    merged: dict[tuple[str, int], Hit] = {}
    texts: dict[int, list[str]] = {}
    for hit in map(_strip_metadata, hits):
        entity = entities.get(owners.get(hit.id, 0)) if hit.kind == "entity" else None
        if entity is None:
            merged[hit.kind, hit.id] = hit
            continue
        own = {name: getattr(entity, name) for name in ("id", "hash", "memory_type", "created", "updated")}
        merged.setdefault(("entity", entity.id), replace(hit, **own, metadata={}))
        texts.setdefault(entity.id, []).extend([hit.content] if hit.id != entity.id else [])
    for entity_id, parts in texts.items():
        title = f"{entities[entity_id].content} ({entities[entity_id].memory_type})"
        content = f"{title}: {'; '.join(parts)}" if parts else title
        merged["entity", entity_id] = replace(merged["entity", entity_id], content=content)
    return list(merged.values())


def _strip_metadata(hit: Hit) -> Hit:
    return replace(hit, metadata=strip_reserved_keys(hit.metadata))
