"""Writing a memory: its row, its tags, its passages, their words and vectors, all in one transaction.

Where many small rows are written one by one, the passages of each may wait: the row is durable, and the next search
or a quiet moment writes the passages of all of them at once.
"""

from functools import partial
from itertools import zip_longest

from athena.memory import rows as memory_rows
from athena.memory.graph import mentions
from athena.memory.prepare import PreparedMemory, prepare_memory
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import passages
from athena.storage.database import IndexedPassage, Transaction

INDEX_BATCH_SIZE = 500  # rows whose passages are written in one transaction


async def insert_memory(store: Store, tx: Transaction, scope: int, one: PreparedMemory, now: float) -> int:
    """Write a new memory and return its number."""
    number = await memory_rows.insert_memory(tx, scope, one.to_columns(now))
    await memory_rows.replace_tags(tx, scope, number, one.draft.tags)
    await mentions.write_mentions(tx, scope, number, one.draft.content)
    await _put_passages(store, tx, scope, number, one)
    return number


async def insert_unindexed(tx: Transaction, scope: int, one: PreparedMemory, now: float) -> int:
    """Write a new row without tags, whose passages wait, and return its number."""
    number = await memory_rows.insert_unindexed_memory(tx, scope, one.to_columns(now))
    await memory_rows.enqueue_memory(tx, scope, number)
    return number


async def index_waiting(store: Store, tx: Transaction, most: int = INDEX_BATCH_SIZE) -> int:
    """Write the passages of rows that wait for it, and return of how many."""
    found = await memory_rows.list_queued_memories(tx, most)
    for scope in {scope for scope, _ in found}:
        numbers = [number for of, number in found if of == scope]
        for number, memory in sorted((await memory_rows.fetch_memories(tx, [scope], numbers)).items()):
            m = memory
            draft = Draft(m.content, m.tags, m.memory_type, m.metadata, m.importance)
            await _put_passages(store, tx, scope, number, prepare_memory(draft, m.created))
        await memory_rows.dequeue_memories(tx, scope, numbers)
    return len(found)


async def index_all(store: Store) -> None:
    """Write the passages of all rows that wait."""
    while await store.database.read(partial(memory_rows.list_queued_memories, most=1)):
        await store.database.write(partial(index_waiting, store))


async def rewrite_memory(store: Store, tx: Transaction, kept: Kept, one: PreparedMemory, now: float) -> None:
    """Make a memory what `one` says, live, under the number it has; keep its vectors if its text stays."""
    memory = kept.memory.id
    if kept.deleted is None:
        await store.database.fulltext.remove_passages(tx, await passages.list_memory_passages(tx, kept.scope, memory))
    fields = one.to_columns(now)
    del fields["created"]
    same = fields["content"] == kept.memory.content
    if not same:
        await mentions.write_mentions(tx, kept.scope, memory, one.draft.content, anew=True)
    await memory_rows.dequeue_memories(tx, kept.scope, [memory])
    await memory_rows.update_memory_row(tx, kept, {**fields, "deleted": None})
    await memory_rows.replace_tags(tx, kept.scope, memory, one.draft.tags)
    indexed = await passages.list_memory_passages(tx, kept.scope, memory) if same else []
    if indexed:
        await store.database.vectors.set_visible(tx, kept.scope, memory, True)
        await store.database.fulltext.add_passages(tx, indexed)
    else:
        await store.database.vectors.retire_passages(tx, kept.scope, memory)
        await _put_passages(store, tx, kept.scope, memory, one)


async def hide_memory(store: Store, tx: Transaction, kept: Kept, now: float) -> None:
    """Make a memory invisible to every search; its text stays for undo."""
    await memory_rows.dequeue_memories(tx, kept.scope, [kept.memory.id])
    await store.database.fulltext.remove_passages(
        tx, await passages.list_memory_passages(tx, kept.scope, kept.memory.id)
    )
    await store.database.vectors.set_visible(tx, kept.scope, kept.memory.id, False)
    await memory_rows.update_memory_row(tx, kept, {"deleted": now, "updated": now})


async def _put_passages(store: Store, tx: Transaction, scope: int, memory: int, one: PreparedMemory) -> None:
    """Write the passages with the vectors that are there; those of a long text's end follow."""
    vectors = store.database.vectors
    numbers = await vectors.reserve_ids(tx, scope, len(one.pieces))
    model = await vectors.register_model(tx, store.encoder.name)
    session, last = await passages.fetch_passage_session(tx, scope, memory, one.window_session)
    alone = last is None and len(one.pieces) == 1
    shared = {"scope": scope, "memory": memory, "session": session, "voice": one.speaker_flags}
    shared["begins"] = int(one.window_session is not None and session == memory)
    shared["windowed"] = int(alone or not store.encoder.reads_windows)
    rows = [
        {"id": number, **shared, **piece._asdict(), "model": model if code else None, "code": code and code.vector}
        for number, piece, code in zip_longest(numbers, one.pieces, one.codes)
    ]
    await vectors.add_passages(tx, rows)
    await vectors.set_tokens(tx, [(n, code.signs) for n, code in zip(numbers, one.codes, strict=False) if code.signs])
    if last is not None and store.encoder.reads_windows:
        await vectors.mark_stale(tx, last)
    await store.database.fulltext.add_passages(
        tx,
        [
            IndexedPassage(n, p.extract_from(one.draft.content), one.label)
            for n, p in zip(numbers, one.pieces, strict=True)
        ],
    )
