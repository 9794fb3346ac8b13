"""Store documents as memories: the pieces of a document share its path as session and source.

Each document is written in one transaction with a record of its file, so a run that was killed goes on where it was,
and a file that has not changed is not read again. Vectors follow: full text finds a piece as soon as it is written.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.threads import (
    ThreadFuture,
    check_stopped,
    run_in_thread,
    run_long_in_thread,
    run_sync,
    start_in_thread,
)
from athena.core.values import Call, CallProgress
from athena.documents.access import FileAccess, Location, escape_path
from athena.documents.formats.blocks import MAX_FILE_BYTES, Block, Refused
from athena.documents.library import get_document_id
from athena.documents.positions import assign_positions
from athena.documents.rows import FileRecord, fetch_file_record, list_sources
from athena.documents.split import redact_blocks, split_blocks
from athena.errors import InvalidInput, NotFound, Unavailable
from athena.memory import history_rows, index, inputs, rows, write
from athena.memory.prepare import PreparedMemory, prepare_memory
from athena.memory.remember import WriteContext, upsert_memory
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import DOCUMENT_TYPE, FILE_KEY, HEADING_KEY, MAX_TAGS, PAGE_KEY, PIECE_KEY, Draft
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

if TYPE_CHECKING:
    from athena.documents.parsing import DocumentParser

INGESTION, DELETION = "ingest_document", "delete_document"  # the operations that forget pieces of documents
READER_VERSION = 2  # a higher one reads every file again
MAX_FOLDER_FILES = 100_000
BATCH_PIECES = 64  # that one transaction writes, if a document has no more
MAX_TRANSACTION_PIECES = 256  # that are new, of a long document: others wait meanwhile
ENCODE_BATCH_SIZE = 64
RECENT_CHANGE_NS = 2_000_000_000  # a file that changed so shortly before may change again within its time stamp
MAX_LISTED_IDS = 10
MAX_LISTED_SKIPS = 10  # that a model is told
HASH_CHUNK_BYTES = 1 << 20
PIECE_METADATA_KEYS = {"source", "session_id", PIECE_KEY, PAGE_KEY, HEADING_KEY, FILE_KEY}


@dataclass(slots=True)
class Ingested:
    """What an ingestion found: counts, the first ids and what was left out; never text."""

    documents: int = 0  # that are kept of what was named
    pieces: int = 0
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    withdrawn: int = 0  # documents whose files are gone
    ids: tuple[str, ...] = ()  # of new and changed documents, the first ones
    skipped: tuple[str, ...] = ()  # each with the reason
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were removed
    pending: int = 0  # passages that only words find, until the background has given them vectors

    def shorten(self) -> "Ingested":
        """Return the same for a model: of long lists the beginning."""
        rest = len(self.skipped) - MAX_LISTED_SKIPS
        more = (f"and {rest:,} more: athena ingest names them",) if rest > 0 else ()
        kinds = tuple(dict.fromkeys(self.redacted))
        return replace(self, skipped=self.skipped[:MAX_LISTED_SKIPS] + more, redacted=kinds)


class StoredForm(NamedTuple):
    """How texts and paths are stored where personal values are hidden: with tokens."""

    hide: Callable[[Any], Coroutine[Any, Any, Any]]
    reveal: Callable[[Any], Coroutine[Any, Any, Any]]


class ReadDocument(NamedTuple):
    """A document that has been read, and its pieces."""

    source: str
    drafts: list[Draft]
    record: FileRecord


async def ingest_path(
    store: Store,
    access: FileAccess,
    path: str,
    tags: inputs.Tags,
    call: Call,
    progress: CallProgress,
    max_encode_s: float | None = None,
    stored_form: StoredForm | None = None,
) -> Ingested:
    """Store a file, or every file below a folder, and forget the documents whose files no longer exist.

    After `max_encode_s` the background gives the rest its vectors; None waits for all. Without a `stored_form`, texts
    are stored as they are.
    """
    from athena.documents.parsing import DocumentParser

    run = _Ingestion(store, access, call, inputs.redact_tags(tags), stored_form)
    try:
        location = await run_in_thread(access.locate, path)
    except NotFound:
        if not await run.withdraw_missing(access.resolve_source(path)):
            raise
        return run.get_result()
    if not access.is_confined and await run_in_thread(os.path.isfile, location.full_path):
        run.takes_back.append(DELETION)
    progress.enter_stage("reading", await run_long_in_thread(_count_files, location))
    deadline = None if max_encode_s is None else time.monotonic() + max_encode_s
    with DocumentParser() as parser:
        files = location.iter_files()
        while (item := await run_long_in_thread(next, files, None)) is not None:
            check_stopped()
            if (source := escape_path(item[0])) != item[0]:
                run.escaped_sources.add(source)
            await run.take_file(parser, source, item[1])
            progress.done += 1
            if run.batch_size >= BATCH_PIECES:
                await run.write_batch()
                await run.start_encoding(deadline)
        await run.write_batch()
    await run.withdraw_missing(escape_path(location.full_path))
    progress.enter_stage("embedding")
    await run.start_encoding(deadline)
    await run.wait_for_encoding()
    return run.get_result()


def _count_files(location: Location) -> int:
    count = 0
    for count, _ in enumerate(location.iter_files(), 1):
        if count > MAX_FOLDER_FILES:
            raise InvalidInput(
                f"{location.full_path} holds more than {MAX_FOLDER_FILES:,} files", hint="ingest a smaller folder"
            )
    return count


class _Ingestion:
    """One run: reads files, collects documents and writes several in one transaction."""

    def __init__(
        self, store: Store, access: FileAccess, call: Call, tags: list[str], stored_form: StoredForm | None
    ) -> None:
        self.result = Ingested()
        self._store, self._access, self._call, self._tags, self._form = store, access, call, tags, stored_form
        self.escaped_sources: set[str] = set()  # of files that are there under other names
        self.takes_back = [INGESTION]  # the operations of which this run brings back what they forgot
        self._batch: list[ReadDocument] = []
        self._ids: list[str] = []
        self._skipped: list[str] = []
        self._redacted: list[str] = []
        self._encoding: ThreadFuture[None] | None = None

    async def _record_call(self) -> int:
        """Record the call with its first change: one id for all transactions, so that undo takes back all together."""
        if self._call.recorded_id is None:
            call_id = await self._store.database.write(lambda tx: calls.record_call(tx, self._call, "done"))
            self._call = self._call._replace(recorded_id=call_id)
        return int(self._call.recorded_id or 0)

    def get_result(self) -> Ingested:
        return replace(self.result, ids=tuple(self._ids), skipped=tuple(self._skipped), redacted=tuple(self._redacted))

    @property
    def batch_size(self) -> int:
        return sum(len(document.drafts) for document in self._batch)

    async def take_file(self, parser: "DocumentParser", source: str, file: int | OSError) -> None:
        """Read a file unless it is known as it is; note why it is left out."""
        if isinstance(file, OSError):
            self._skipped.append(f"{source}: {file.strerror}")
            return
        stored_source = await self._hide(source)
        record = await self._fetch_record(stored_source)
        try:
            read = await run_long_in_thread(self._read_file, parser, source, stored_source, file, record)
        except (Refused, InvalidInput) as error:
            self._skipped.append(f"{source}: {error}")
        except OSError as error:
            self._skipped.append(f"{source}: {error.strerror}")
        else:
            if isinstance(read, FileRecord):
                self.result.unchanged += 1
                self.result.documents += 1
                self.result.pieces += read.pieces
            else:
                self._batch.append(read)

    async def _fetch_record(self, source: str) -> FileRecord | None:
        async def read_record(tx: Transaction) -> FileRecord | None:
            return await fetch_file_record(tx, await scopes.fetch_own_ids(tx, self._call.scope), source)

        return await self._store.database.read(read_record)

    async def _hide(self, value: Any) -> Any:
        return value if self._form is None else await self._form.hide(value)

    def _read_file(
        self, parser: "DocumentParser", path: str, source: str, file: int, known: FileRecord | None
    ) -> ReadDocument | FileRecord:
        """Return the pieces of a file, or its record if it has not changed."""
        facts = os.fstat(file)
        if facts.st_size > MAX_FILE_BYTES:
            raise Refused(f"larger than {MAX_FILE_BYTES // 1_000_000} MB")
        is_recent = time.time_ns() - facts.st_mtime_ns < RECENT_CHANGE_NS
        modified = 0 if is_recent else facts.st_mtime_ns
        if known is not None and (known.reader != READER_VERSION or not {*self._tags} <= {*known.tags}):
            known = None
        if known is not None and modified and (known.size, known.modified) == (facts.st_size, modified):
            return known
        sha256 = _hash_file(file)
        if known is not None and known.sha256 == sha256:
            return known
        blocks = parser.read_file(os.path.basename(path), file)
        drafts = self._create_drafts(source, blocks)
        if not drafts:
            raise Refused("it has no text")
        tags = [*self._tags]
        return ReadDocument(
            source, drafts, FileRecord(sha256, facts.st_size, modified, len(drafts), tags, READER_VERSION)
        )

    def _create_drafts(self, source: str, blocks: list[Block]) -> list[Draft]:
        # before it is split: a secret may lie across two pieces
        safe_blocks, kinds = redact_blocks(run_sync(self._hide(blocks)))
        self._redacted += kinds
        drafts = []
        for piece in split_blocks(safe_blocks):
            check_stopped()
            metadata: dict[str, Any] = {"source": source, "session_id": source}
            if piece.page is not None:
                metadata[PAGE_KEY] = piece.page
            if piece.heading:
                metadata[HEADING_KEY] = piece.heading
            draft = inputs.create_draft(piece.text, self._tags, DOCUMENT_TYPE, metadata)
            self._redacted += draft.redacted
            drafts.append(replace(draft, author="document"))
        return drafts

    async def write_batch(self) -> None:
        """Write the documents that were read, in one transaction; skip those that cannot be stored."""
        batch, self._batch = self._batch, []
        try:
            await self._write_documents(batch)
        except InvalidInput as error:
            for document in batch if len(batch) > 1 else ():
                self._batch = [document]
                await self.write_batch()
            self._skipped += [f"{document.source}: {error}" for document in batch if len(batch) == 1]

    async def _write_documents(self, batch: list[ReadDocument]) -> None:
        if not batch:
            return
        now = self._store.clock()
        call_id = await self._record_call()
        prepared = [(document, await run_in_thread(_prepare_pieces, document.drafts, now)) for document in batch]

        for _, pieces in prepared:
            if len(pieces) > MAX_TRANSACTION_PIECES:
                await self._write_ahead(pieces, call_id, now)

        async def write_each(tx: Transaction) -> list[tuple[str, int]]:
            return [await self._write_document(tx, document, pieces, now) for document, pieces in prepared]

        outcomes = await self._store.database.write(write_each)
        for (document, pieces), (outcome, count) in zip(prepared, outcomes, strict=True):
            if forgotten := len(pieces) - count:
                what = "a piece was" if forgotten == 1 else f"{forgotten:,} pieces were"
                self._skipped.append(f"{document.source}: {what} forgotten here; restore_memory brings back what was")
            if not count:
                continue
            self.result.documents += 1
            self.result.pieces += count
            self.result.new += outcome == "new"
            self.result.changed += outcome == "changed"
            if len(self._ids) < MAX_LISTED_IDS:
                self._ids.append(get_document_id(document.source))

    async def _leave_out_forgotten(
        self, tx: Transaction, scope: int, pieces: list[PreparedMemory]
    ) -> list[PreparedMemory]:
        """Return the pieces without those that somebody forgot: no change of a file brings them back.

        What an ingestion forgot, since the file had it no more, comes back with it; so does a document that was deleted
        whole, where a person names its file.
        """
        digests = [piece.digest for piece in pieces]
        forgotten = await history_rows.find_forgotten_digests(tx, [scope], digests, self.takes_back)
        forgotten -= await rows.find_known_digests(tx, self._call.scope, digests) if forgotten else set()
        return [piece for piece in pieces if piece.digest not in forgotten]

    async def _write_ahead(self, pieces: list[PreparedMemory], call_id: int, now: float) -> None:
        """Write the new pieces of a long document in several transactions; the last one then finds them there.

        Until then the document has no record of its file: a run that is killed in between is repeated.
        """

        async def write_part(tx: Transaction, start: int) -> None:
            scope = await scopes.ensure_scope(tx, self._call.scope)
            part = pieces[start : start + MAX_TRANSACTION_PIECES]
            known = await rows.find_known_digests(tx, self._call.scope, [piece.digest for piece in part])
            for number, piece in enumerate(await self._leave_out_forgotten(tx, scope, part), start):
                if piece.digest not in known:
                    draft = replace(piece.draft, metadata=piece.draft.metadata | {PIECE_KEY: number})
                    context = WriteContext(scope, call_id, now)
                    await upsert_memory(self._store, tx, context, piece._replace(draft=draft))

        for start in range(0, len(pieces), MAX_TRANSACTION_PIECES):
            await self._store.database.write(partial(write_part, start=start))

    async def _write_document(
        self, tx: Transaction, document: ReadDocument, pieces: list[PreparedMemory], now: float
    ) -> tuple[str, int]:
        """Write a document; return whether it is new, and how many pieces it has here."""
        scope = await scopes.ensure_scope(tx, self._call.scope)
        kept = await self._leave_out_forgotten(tx, scope, pieces)

        async def replace_pieces(call_id: int) -> str:
            writer = _DocumentWriter(self._store, tx, WriteContext(scope, call_id, now))
            return await writer.replace_document(document, kept)

        key = f"{self._call.key} {document.source}" if self._call.key else None
        outcome = await calls.run_once(tx, self._call._replace(key=key), replace_pieces)
        return str(outcome), len(kept)

    async def withdraw_missing(self, path: str) -> int:
        """Forget the documents at or below a path whose files no longer exist; return how many."""

        async def read_sources(tx: Transaction) -> list[str]:
            return await list_sources(tx, await scopes.fetch_own_ids(tx, self._call.scope), stored_path)

        stored_path = await self._hide(path)
        sources = await self._store.database.read(read_sources)
        paths = sources if self._form is None else await self._form.reveal(sources)
        known = {source: path for source, path in zip(sources, paths, strict=True) if path not in self.escaped_sources}
        missing = await run_in_thread(lambda: [source for source, path in known.items() if self._access.is_gone(path)])
        call_id = await self._record_call() if missing else 0

        async def forget_document(tx: Transaction, source: str) -> None:
            scope, now = await scopes.ensure_scope(tx, self._call.scope), self._store.clock()
            pieces = await rows.list_session_memories(tx, [scope], source, DOCUMENT_TYPE)
            await history_rows.insert_row_changes(tx, pieces, call_id, now, "forgotten")
            await write.hide_memories(self._store, tx, pieces, now)

        for source in missing:
            await self._store.database.write(partial(forget_document, source=source))
        self.result.withdrawn += len(missing)
        return len(missing)

    async def start_encoding(self, deadline: float | None) -> None:
        """Give pieces their vectors on another thread, while this one reads on; first wait for those before."""
        await self.wait_for_encoding()
        self._encoding = start_in_thread(lambda: run_sync(self._encode(deadline)))

    async def wait_for_encoding(self) -> None:
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            await encoding

    async def _encode(self, deadline: float | None) -> None:
        """Give pieces their vectors until the deadline; the background does the rest."""
        self.result.pending = 0
        try:
            while deadline is None or time.monotonic() < deadline:
                check_stopped()
                if not await index.encode_pending(self._store, ENCODE_BATCH_SIZE):
                    return
        except Unavailable:
            pass  # full text finds them meanwhile, and health reports the reason
        self.result.pending = await index.count_pending(self._store)
        if self.result.pending:
            index.encode_in_background(self._store)


def _prepare_pieces(drafts: list[Draft], now: float) -> list[PreparedMemory]:
    return [prepare_memory(replace(draft, metadata=draft.metadata | {PIECE_KEY: 0}), now) for draft in drafts]


def _hash_file(file: int) -> str:
    checksum = hashlib.sha256()
    position = 0
    while chunk := os.pread(file, HASH_CHUNK_BYTES, position):
        check_stopped()
        checksum.update(chunk)
        position += len(chunk)
    return checksum.hexdigest()


class _DocumentWriter:
    """Brings the pieces of one document up to date: what has not changed is not touched."""

    def __init__(self, store: Store, tx: Transaction, context: WriteContext) -> None:
        self._store, self._tx, self._context = store, tx, context

    async def replace_document(self, document: ReadDocument, pieces: Sequence[PreparedMemory]) -> str:
        """Store the pieces, forget those that the document no longer has, and say whether it is new."""
        current = await rows.list_session_memories(self._tx, [self._context.scope], document.source, DOCUMENT_TYPE)
        known = {row.digest: row for row in current}
        outcome = "changed" if known else "new"
        positions = assign_positions(
            [known[piece.digest].memory.metadata.get(PIECE_KEY) if piece.digest in known else None for piece in pieces]
        )
        for number, (piece, position) in enumerate(zip(pieces, positions, strict=True)):
            metadata = piece.draft.metadata | {PIECE_KEY: position}
            if not number:
                metadata[FILE_KEY] = document.record._replace(pieces=len(pieces))._asdict()
            piece = piece._replace(draft=replace(piece.draft, metadata=metadata))
            row = known.pop(piece.digest, None)
            if row is None:
                await upsert_memory(self._store, self._tx, self._context, piece)
            else:
                await self._update_piece(row, piece)
        gone = list(known.values())
        await history_rows.insert_row_changes(self._tx, gone, self._context.call, self._context.now, "forgotten")
        await write.hide_memories(self._store, self._tx, gone, self._context.now)
        return outcome

    async def _update_piece(self, row: MemoryRow, piece: PreparedMemory) -> None:
        """Bring the place and the tags of a piece up to date, whose text is the same."""
        kept = {key: value for key, value in row.memory.metadata.items() if key not in PIECE_METADATA_KEYS}
        metadata = kept | piece.draft.metadata
        tags = _merge_tags(row.memory.tags, piece.draft.tags)
        if (metadata, tags) == (row.memory.metadata, row.memory.tags):
            return
        _, call, now, _ = self._context
        await history_rows.insert_row_change(self._tx, row, call, now, "merged")
        if (piece.label, tags) == (row.label, row.memory.tags):  # the index stays as it is
            columns = {"metadata": json.dumps(metadata, ensure_ascii=False)}
            await rows.update_memory_row(self._tx, row, columns)
        else:
            draft = Draft.from_memory(row.memory, metadata=metadata, tags=tags)
            await write.rewrite_memory(self._store, self._tx, row, prepare_memory(draft, row.memory.created), now)


def _merge_tags(old: Sequence[str], new: Sequence[str]) -> tuple[str, ...]:
    merged = {tag_key(tag): tag for tag in reversed((*old, *new))}
    order = dict.fromkeys(tag_key(tag) for tag in (*old, *new))
    return tuple(merged[key] for key in order)[:MAX_TAGS]
