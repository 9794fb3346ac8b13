"""Documents in memory: pieces that share a source."""

from collections.abc import Sequence
from dataclasses import dataclass

from athena.core.hashing import hash_text
from athena.core.values import Call, Scope
from athena.errors import NotFound
from athena.memory import edit, history_rows, write
from athena.memory import rows as memory_rows
from athena.memory.index import encode_missing
from athena.memory.prepare import add_vectors, prepare_memory
from athena.memory.remember import WriteContext, upsert_memory
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import calls, scopes
from athena.storage.database import Transaction

DOCUMENT_TYPE = "document"
PIECE_KEY = "piece"  # in a piece's metadata: its place in the document


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    pieces: int
    updated: float


async def record_import(store: Store, call: Call) -> int:
    """Record the call, so that all its documents can be undone together."""
    return await store.database.write(lambda tx: calls.record_call(tx, call, "done"))


async def replace_document(store: Store, source: str, drafts: Sequence[Draft], call: Call, number: int) -> int:
    """Keep the pieces of a document and forget those it no longer has, in one step; return how many it has."""
    now = store.clock()
    prepared = [prepare_memory(draft, now) for draft in drafts]
    digests = [one.digest for one in prepared]

    async def read_known_digests(tx: Transaction) -> set[str]:
        return await memory_rows.find_known_digests(tx, await scopes.fetch_own_ids(tx, call.scope), digests)

    ready = await add_vectors(store.encoder, prepared, await store.database.read(read_known_digests))
    own = call._replace(key=f"{call.key} {source}") if call.key else call

    async def write_document(tx: Transaction) -> int:
        async def replace_pieces(call_number: int) -> int:
            scope = await scopes.ensure_scope(tx, call.scope)
            current = {(await upsert_memory(store, tx, WriteContext(scope, call_number, now), one))[0] for one in ready}
            for piece in await memory_rows.list_session_memories(tx, [scope], source, DOCUMENT_TYPE):
                if piece.memory.id not in current:
                    await history_rows.insert_change(
                        tx, scope, piece.memory.id, call_number, now, "forgotten", piece.to_snapshot()
                    )
                    await write.hide_memory(store, tx, piece, now)
            return len(current)

        fingerprint = hash_text("".join(digests))
        return int(await calls.run_once(tx, own, replace_pieces, fingerprint=fingerprint, call_id=number))

    count = await store.database.write(write_document)
    await encode_missing(store)
    return count


async def list_documents(store: Store, scope: Scope) -> list[Document]:
    async def read_documents(tx: Transaction) -> list[Document]:
        rows = await memory_rows.count_session_memories(tx, await scopes.fetch_visible_ids(tx, scope), DOCUMENT_TYPE)
        return [Document(source, count, updated) for source, count, updated in rows]

    return await store.database.read(read_documents)


async def list_pieces(store: Store, source: str, scope: Scope) -> list[str]:
    """Return a document's pieces in order; the project's own copy before one that is known everywhere."""

    async def read_pieces(tx: Transaction) -> list[MemoryRow]:
        for number in await scopes.fetch_visible_ids(tx, scope):
            if found := await memory_rows.list_session_memories(tx, [number], source, DOCUMENT_TYPE):
                return found
        raise NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")

    found = await store.database.read(read_pieces)
    return [one.memory.content for one in sorted(found, key=lambda one: one.memory.metadata.get(PIECE_KEY, 0))]


async def forget_document(store: Store, source: str, call: Call) -> int:
    async def find_pieces(tx: Transaction) -> list[MemoryRow]:
        found = await memory_rows.list_session_memories(
            tx, await scopes.fetch_own_ids(tx, call.scope), source, DOCUMENT_TYPE
        )
        if not found:
            raise NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")
        return found

    return await edit.forget_rows(store, find_pieces, call)
