"""Looking at memories without searching: one, the newest, the tags, a history."""

from dataclasses import dataclass

from athena.core.page import Page
from athena.core.scope import Kind, Scope
from athena.memory import history, link_rows
from athena.memory import rows as memory_rows
from athena.memory.lookup import Ref, locate_any
from athena.memory.store import Store
from athena.memory.values import Change, Filter, Memory
from athena.storage import scopes
from athena.storage.database import Transaction


@dataclass(frozen=True, slots=True)
class Related:
    relation: str
    id: int
    hash: str


@dataclass(frozen=True, slots=True)
class WithRelated(Memory):
    """A memory, and the ones it belongs together with."""

    related: tuple[Related, ...]


@dataclass(frozen=True, slots=True)
class TagCount:
    tag: str
    count: int


async def get_memory(store: Store, ref: Ref, scope: Scope) -> WithRelated:
    """Return a memory whole; where there is none of that name, an event or a task: briefings name those too."""

    async def read_memory(tx: Transaction) -> WithRelated:
        m = (await locate_any(tx, scope, ref, None)).memory
        rows = await link_rows.list_links(tx, await scopes.fetch_visible_ids(tx, scope), m.id)
        return WithRelated(
            m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, m.project,
            tuple(Related(*row) for row in rows),
        )  # fmt: skip

    return await store.database.read(read_memory)


async def list_newest(store: Store, only: Filter, limit: int, offset: int) -> Page[Memory]:
    async def read_page(tx: Transaction) -> Page[Memory]:
        return Page(
            await memory_rows.list_newest_memories(tx, only, limit, offset), await memory_rows.count_memories(tx, only)
        )

    return await store.database.read(read_page)


async def list_tags(store: Store, scope: Scope) -> list[TagCount]:
    rows = await store.database.read(lambda tx: memory_rows.count_tags(tx, Filter(scope)))
    return [TagCount(tag, count) for tag, count in rows]


async def list_changes(store: Store, ref: Ref, kind: Kind | None, scope: Scope) -> list[Change]:
    async def read_changes(tx: Transaction) -> list[Change]:
        kept = await locate_any(tx, scope, ref, kind, deleted=True)
        return await history.list_changes(tx, kept.scope, kept.memory.id)

    return await store.database.read(read_changes)
