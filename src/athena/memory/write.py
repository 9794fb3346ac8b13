"""Write a memory in one transaction: its row, tags, mentions and passages, with their full text and vectors.

Where many small rows are written one by one, the passages of each may wait in a queue: the row is durable, and the
next search or an idle moment writes the passages of all of them at once.
"""

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

from athena.memory import rows
from athena.memory.graph import mentions
from athena.memory.graph import rows as graph_rows
from athena.memory.prepare import PreparedMemory, prepare_memory
from athena.memory.rows import MemoryRow
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import counts, passages
from athena.storage.counts import CountedMemory
from athena.storage.database import IndexedPassage, Transaction
from athena.storage.filters import split_batches

HIDE_BATCH_SIZE = 100  # rows that one statement hides; their texts are in memory meanwhile
INDEX_BATCH_SIZE = 500  # rows whose passages one transaction writes


async def insert_memory(store: Store, tx: Transaction, scope: int, prepared: PreparedMemory, now: float) -> int:
    """Write a new memory and return its id."""
    entity_scopes = graph_rows.begin_entity_scope_ids(tx, scope)
    memory_id = await rows.insert_memory(tx, scope, prepared.to_columns(now))
    if prepared.draft.tags:
        await rows.replace_tags(tx, scope, memory_id, prepared.draft.tags, prepared.happened)
    await counts.count_new(tx, scope, _count_prepared(prepared), prepared.draft.tags)
    await mentions.write_mentions(tx, scope, memory_id, prepared.draft.content, entity_scopes)
    await _put_passages(store, tx, scope, memory_id, prepared)
    return memory_id


async def insert_unindexed(tx: Transaction, scope: int, prepared: PreparedMemory, now: float) -> int | None:
    """Write a new row without tags, queue its passages, and return its id; None if the same text is there."""
    memory_id = await rows.insert_unindexed_memory(tx, scope, prepared.to_columns(now))
    if memory_id is None:
        return None
    await counts.count_new(tx, scope, _count_prepared(prepared), ())
    await rows.enqueue_memory(tx, scope, memory_id)
    return memory_id


def _count_prepared(prepared: PreparedMemory) -> CountedMemory:
    draft = prepared.draft
    in_session = int(draft.metadata.get("session_id") is not None)
    return CountedMemory(draft.memory_type, len(draft.content), 1, in_session, prepared.happened)


async def index_waiting(store: Store, tx: Transaction, limit: int = INDEX_BATCH_SIZE) -> int:
    """Write the passages of queued rows, and return of how many."""
    queued = await rows.list_queued_memories(tx, limit)
    for scope in {scope for scope, _ in queued}:
        ids = [memory_id for row_scope, memory_id in queued if row_scope == scope]
        for memory_id, memory in sorted((await rows.fetch_memories(tx, [scope], ids)).items()):
            prepared = prepare_memory(Draft.from_memory(memory), memory.created)
            await _put_passages(store, tx, scope, memory_id, prepared)
        await rows.dequeue_memories(tx, scope, ids)
    return len(queued)


async def index_all(store: Store) -> None:
    """Write the passages of all queued rows."""
    while await store.database.read(partial(rows.list_queued_memories, limit=1)):
        await store.database.write(partial(index_waiting, store))


async def rewrite_memory(store: Store, tx: Transaction, row: MemoryRow, new: PreparedMemory, now: float) -> None:
    """Replace the content of a row and make it live; its vectors stay if its text stays."""
    memory_id = row.memory.id
    if row.deleted is None:
        await store.database.fulltext.remove_passages(tx, await passages.list_memory_passages(tx, row.scope, memory_id))
    columns = new.to_columns(now)
    del columns["created"]
    same_text = columns["content"] == row.memory.content
    if not same_text:
        entity_scopes = graph_rows.begin_entity_scope_ids(tx, row.scope)
        await mentions.write_mentions(tx, row.scope, memory_id, new.draft.content, entity_scopes, replace=True)
    await rows.dequeue_memories(tx, row.scope, [memory_id])
    await counts.count_out(tx, row.scope, [memory_id])
    await rows.update_memory_row(tx, row, {**columns, "deleted": None})
    await rows.replace_tags(tx, row.scope, memory_id, new.draft.tags, new.happened)
    await counts.count_in(tx, row.scope, [memory_id])
    indexed = await passages.list_memory_passages(tx, row.scope, memory_id) if same_text else []
    if indexed:
        await store.database.vectors.set_visible(tx, row.scope, [memory_id], True)
        await store.database.fulltext.add_passages(tx, indexed)
    else:
        await store.database.vectors.retire_passages(tx, row.scope, memory_id)
        await _put_passages(store, tx, row.scope, memory_id, new)


async def hide_memory(store: Store, tx: Transaction, row: MemoryRow, now: float) -> None:
    """Hide a memory from every search; its text stays for undo."""
    await hide_memories(store, tx, [row], now)


async def hide_memories(store: Store, tx: Transaction, hidden: Sequence[MemoryRow], now: float) -> None:
    """Hide memories from every search, many with one statement; their texts stay for undo."""
    for scope in {row.scope: None for row in hidden}:
        for batch in split_batches([row for row in hidden if row.scope == scope], HIDE_BATCH_SIZE):
            ids = [row.memory.id for row in batch]
            await rows.dequeue_memories(tx, scope, ids)
            indexed = await passages.list_memory_passages(tx, scope, *ids)
            await store.database.fulltext.remove_passages(tx, indexed)
            await store.database.vectors.set_visible(tx, scope, ids, False)
            await counts.count_out(tx, scope, ids)
            await rows.mark_deleted(tx, batch, now)


async def _put_passages(store: Store, tx: Transaction, scope: int, memory: int, prepared: PreparedMemory) -> None:
    """Write the passages with the vectors that exist already; the rest of a long text gets its vectors later."""
    vectors = store.database.vectors
    ids = await vectors.reserve_ids(tx, scope, len(prepared.pieces))
    model = await vectors.register_model(tx, store.encoder.name)
    session, last = await passages.fetch_passage_session(tx, scope, memory, prepared.window_session)
    alone = prepared.is_piece or (last is None and len(prepared.pieces) == 1)
    shared = {"scope": scope, "memory": memory, "session": session, "voice": prepared.speaker_flags}
    shared["begins"] = int(prepared.window_session is not None and session == memory)
    shared["windowed"] = int(alone or not store.encoder.reads_windows)
    await vectors.add_passages(
        tx,
        [
            {"id": i, **shared, **piece._asdict(), "model": model if code else None, "code": code and code.vector}
            for i, piece, code in zip_longest(ids, prepared.pieces, prepared.codes)
        ],
    )
    coded = zip(ids, prepared.codes, strict=False)
    await vectors.set_tokens(tx, [(i, code.signs) for i, code in coded if code.signs])
    if last is not None and store.encoder.reads_windows:
        await vectors.mark_stale(tx, last)
    pieces = zip(ids, prepared.pieces, strict=True)
    texts = [IndexedPassage(i, piece.extract_from(prepared.draft.content), prepared.label) for i, piece in pieces]
    await store.database.fulltext.add_passages(tx, texts)
