"""Store documents as memories: the pieces of a document share its path as session and source."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread
from athena.core.values import Call, Scope
from athena.errors import NotFound
from athena.memory import edit, history_rows, inputs, rows, write
from athena.memory.documents.access import FileAccess
from athena.memory.documents.read import DocumentText, SkippedFile, find_missing_files, read_files, split_document
from athena.memory.index import encode_missing
from athena.memory.prepare import add_vectors, prepare_memory
from athena.memory.remember import WriteContext, upsert_memory
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import calls, scopes
from athena.storage.database import Transaction

HideValues = Callable[[str], Awaitable[str]]  # returns a text as it may be stored
DOCUMENT_TYPE = "document"
PIECE_KEY = "piece"  # in a piece's metadata: its position in the document


@dataclass(frozen=True, slots=True)
class Document:
    source: str
    pieces: int
    updated: float


@dataclass(frozen=True, slots=True)
class Ingested:
    documents: int
    pieces: int
    skipped: tuple[str, ...]  # each with the reason
    redacted: tuple[str, ...]  # the kinds of secrets that were removed


async def ingest_path(
    store: Store, access: FileAccess, path: str, tags: inputs.Tags, call: Call, hide: HideValues
) -> Ingested:
    """Store a file, or every text file below a folder, and forget the documents whose files no longer exist."""
    location = await run_in_thread(access.locate, path)
    # One id for all transactions, so that undo takes back all documents together.
    call_id = await store.database.write(lambda tx: calls.record_call(tx, call, "done"))
    document_count = piece_count = 0
    skipped: list[str] = []
    redacted: list[str] = []
    files = read_files(location)
    while (file := await run_in_thread(next, files, None)) is not None:
        if isinstance(file, SkippedFile):
            skipped.append(f"{file.path}: {file.reason}")
            continue
        file = file._replace(text=await hide(file.text))
        drafts, kinds = await inputs.clean_long(len(file.text), _create_drafts, file, tags)
        redacted += kinds
        piece_count += await replace_document(store, file.path, drafts, call, call_id)
        document_count += 1
    sources = [document.source for document in await list_documents(store, call.scope)]
    for source in await run_in_thread(find_missing_files, location, sources):
        await replace_document(store, source, [], call, call_id)
    return Ingested(document_count, piece_count, tuple(skipped), tuple(redacted))


def _create_drafts(file: DocumentText, tags: inputs.Tags) -> tuple[list[Draft], list[str]]:
    """Return the pieces of a file without secrets, and the kinds of the secrets."""
    text, kinds = redaction.redact(file.text)  # before it is split: a secret may lie across two pieces
    metadata = {"source": file.path, "session_id": file.path}
    drafts = [
        replace(inputs.create_draft(piece, tags, DOCUMENT_TYPE, metadata | {PIECE_KEY: i}), author="document")
        for i, piece in enumerate(split_document(text))
    ]
    return drafts, [*kinds, *(kind for draft in drafts for kind in draft.redacted)]


async def replace_document(store: Store, source: str, drafts: Sequence[Draft], call: Call, call_id: int) -> int:
    """Store the pieces of a document and forget those it no longer has, in one transaction; return how many it has."""
    now = store.clock()
    size = sum(len(draft.content) for draft in drafts)
    prepared = await inputs.clean_long(size, lambda: [prepare_memory(draft, now) for draft in drafts])
    digests = [piece.digest for piece in prepared]

    async def read_known_digests(tx: Transaction) -> set[str]:
        return await rows.find_known_digests(tx, await scopes.fetch_own_ids(tx, call.scope), digests)

    prepared = await add_vectors(store.encoder, prepared, await store.database.read(read_known_digests))
    own_call = call._replace(key=f"{call.key} {source}") if call.key else call

    async def write_document(tx: Transaction) -> int:
        async def replace_pieces(call_id: int) -> int:
            scope = await scopes.ensure_scope(tx, call.scope)
            context = WriteContext(scope, call_id, now)
            current_ids = {(await upsert_memory(store, tx, context, piece))[0] for piece in prepared}
            for row in await rows.list_session_memories(tx, [scope], source, DOCUMENT_TYPE):
                if row.memory.id not in current_ids:
                    await history_rows.insert_row_change(tx, row, call_id, now, "forgotten")
                    await write.hide_memory(store, tx, row, now)
            return len(current_ids)

        fingerprint = hash_text("".join(digests))
        return int(await calls.run_once(tx, own_call, replace_pieces, fingerprint=fingerprint, call_id=call_id))

    count = await store.database.write(write_document)
    await encode_missing(store)
    return count


async def list_documents(store: Store, scope: Scope) -> list[Document]:
    async def read_documents(tx: Transaction) -> list[Document]:
        visible = await scopes.fetch_visible_ids(tx, scope)
        sessions = await rows.count_session_memories(tx, visible, DOCUMENT_TYPE)
        return [Document(source, count, updated) for source, count, updated in sessions]

    return await store.database.read(read_documents)


async def list_pieces(store: Store, source: str, scope: Scope) -> list[str]:
    """Return a document's pieces in order; the project's own copy before the shared project's."""

    async def read_pieces(tx: Transaction) -> list[MemoryRow]:
        for scope_id in await scopes.fetch_visible_ids(tx, scope):
            if pieces := await rows.list_session_memories(tx, [scope_id], source, DOCUMENT_TYPE):
                return pieces
        raise _create_not_found(source)

    pieces = await store.database.read(read_pieces)
    pieces.sort(key=lambda row: row.memory.metadata.get(PIECE_KEY, 0))
    return [row.memory.content for row in pieces]


async def forget_document(store: Store, source: str, call: Call) -> int:
    async def find_pieces(tx: Transaction) -> list[MemoryRow]:
        own = await scopes.fetch_own_ids(tx, call.scope)
        pieces = await rows.list_session_memories(tx, own, source, DOCUMENT_TYPE)
        if not pieces:
            raise _create_not_found(source)
        return pieces

    return await edit.forget_rows(store, find_pieces, call)


def _create_not_found(source: str) -> NotFound:
    return NotFound(f"there is no document {source!r:.200}", hint="list_documents shows which there are")
