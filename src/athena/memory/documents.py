"""Documents in memory: pieces that share a source."""

from collections.abc import Sequence
from dataclasses import dataclass

from athena.errors import NotFound
from athena.memory import revise
from athena.memory.remember import remember
from athena.memory.store import Store
from athena.model.call import Call
from athena.model.memory import Draft
from athena.model.scope import Scope
from athena.storage import memories, scopes
from athena.storage.database import Transaction
from athena.storage.memories import Kept

KIND = "document"


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    pieces: int
    updated: float


async def replace(store: Store, source: str, drafts: Sequence[Draft], call: Call) -> int:
    """Keep the pieces of a document, and forget those that it no longer has."""
    kept = await remember(store, drafts, call)
    current = {one.id for one in kept}
    gone = [one.memory.id for one in await _pieces(store, source, call.scope) if one.memory.id not in current]
    if gone:
        await revise.forget(store, gone, call._replace(key=None))
    return len(current)


async def listed(store: Store, scope: Scope) -> list[Document]:
    async def work(tx: Transaction) -> list[Document]:
        rows = await memories.sources(tx, await scopes.visible(tx, scope), KIND)
        return [Document(source, count, updated) for source, count, updated in rows]

    return await store.database.read(work)


async def pieces(store: Store, source: str, scope: Scope) -> list[str]:
    found = await _pieces(store, source, scope)
    if not found:
        raise NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")
    return [one.memory.content for one in found]


async def forget(store: Store, source: str, call: Call) -> int:
    return await revise.forget(store, [one.memory.id for one in await _pieces(store, source, call.scope)], call)


async def _pieces(store: Store, source: str, scope: Scope) -> list[Kept]:
    async def work(tx: Transaction) -> list[Kept]:
        return await memories.of_session(tx, await scopes.visible(tx, scope), source, KIND)

    return await store.database.read(work)
