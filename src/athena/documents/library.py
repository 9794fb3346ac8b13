"""The documents that are kept: list them, find one by its path or id, read its pieces, forget it."""

import os
from dataclasses import dataclass

from athena.core.hashing import hash_text
from athena.core.values import Call, Scope
from athena.documents.access import FileAccess
from athena.errors import NotFound
from athena.memory import edit, rows
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import DOCUMENT_TYPE, PIECE_KEY
from athena.storage import scopes
from athena.storage.database import Transaction

ID_CHARS = 8


@dataclass(frozen=True, slots=True)
class Document:
    id: str
    source: str
    pieces: int
    updated: float


def get_document_id(source: str) -> str:
    return hash_text(source)[:ID_CHARS]


async def list_documents(store: Store, scope: Scope) -> list[Document]:
    async def read_documents(tx: Transaction) -> list[Document]:
        visible = await scopes.fetch_visible_ids(tx, scope)
        sessions = await rows.count_session_memories(tx, visible, DOCUMENT_TYPE)
        return [Document(get_document_id(source), source, count, updated) for source, count, updated in sessions]

    return await store.database.read(read_documents)


async def resolve_source(store: Store, access: FileAccess, source: str, scope: Scope) -> str:
    """Return the path that a document is stored under, given that path, its id, or a path that no other ends with."""
    path = access.resolve_source(source)
    if os.path.isabs(source):
        return path
    documents = await list_documents(store, scope)
    stored = [document.source for document in documents if source == document.id or document.source == path]
    stored = stored or [document.source for document in documents if document.source.endswith(os.sep + source)]
    return stored[0] if len(stored) == 1 else path


async def list_pieces(store: Store, source: str, scope: Scope, around: int | None = None) -> list[str]:
    """Return a document's pieces in order, or one and its neighbours; the project's own copy before the shared one."""

    async def read_pieces(tx: Transaction) -> list[MemoryRow]:
        for scope_id in await scopes.fetch_visible_ids(tx, scope):
            if pieces := await rows.list_session_memories(tx, [scope_id], source, DOCUMENT_TYPE):
                return pieces
        raise _create_not_found(source)

    pieces = await store.database.read(read_pieces)
    pieces.sort(key=lambda row: row.memory.metadata.get(PIECE_KEY, 0))
    if around is not None:
        place = next((i for i, row in enumerate(pieces) if row.memory.id == around), None)
        if place is None:
            raise NotFound(f"memory {around} is no piece of {source}", hint="recall returns ids and sources of pieces")
        pieces = pieces[max(0, place - 1) : place + 2]
    return [row.memory.content for row in pieces]


async def forget_document(store: Store, source: str, call: Call) -> int:
    async def find_pieces(tx: Transaction) -> list[int]:
        own = await scopes.fetch_own_ids(tx, call.scope)
        pieces = await rows.list_session_memories(tx, own, source, DOCUMENT_TYPE)
        if not pieces:
            raise _create_not_found(source)
        return [row.memory.id for row in pieces]

    return await edit.forget_rows(store, find_pieces, call)


def _create_not_found(source: str) -> NotFound:
    return NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")
