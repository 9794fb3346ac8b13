"""Writing a memory: its row, its tags, its passages, their words and vectors, all in one transaction."""

from itertools import zip_longest

from athena.memory.prepare import Prepared
from athena.memory.store import Store
from athena.storage import memories, passages, scopes
from athena.storage.database import Indexed, Transaction
from athena.storage.memories import Kept
from athena.storage.shelf import SPAN
from athena.storage.vectors import next_stamp


async def add(store: Store, tx: Transaction, scope: int, one: Prepared, now: float) -> int:
    """Write a new memory and return its number."""
    number = await memories.insert(tx, scope, one.fields(now))
    await memories.set_tags(tx, scope, number, one.draft.tags)
    await _put_passages(store, tx, scope, number, one)
    return number


async def rewrite(store: Store, tx: Transaction, kept: Kept, one: Prepared, now: float) -> None:
    """Make a memory what `one` says, live, under the number it has; keep its vectors if its text stays."""
    memory = kept.memory.id
    if kept.deleted is None:
        await store.database.words.drop(tx, await passages.of_memory(tx, memory))
    fields = one.fields(now)
    del fields["created"]
    same = fields["content"] == kept.memory.content
    await memories.change(tx, kept, {**fields, "deleted": None})
    await memories.set_tags(tx, kept.scope, memory, one.draft.tags)
    if same:
        await store.database.vectors.show(tx, memory, True)
        await store.database.words.put(tx, await passages.of_memory(tx, memory))
    else:
        await passages.retire(tx, memory, await next_stamp(tx))
        await _put_passages(store, tx, kept.scope, memory, one)


async def hide(store: Store, tx: Transaction, kept: Kept, now: float) -> None:
    """Make a memory invisible to every search; its text stays for undo."""
    await store.database.words.drop(tx, await passages.of_memory(tx, kept.memory.id))
    await store.database.vectors.show(tx, kept.memory.id, False)
    await memories.change(tx, kept, {"deleted": now, "updated": now})


async def _put_passages(store: Store, tx: Transaction, scope: int, memory: int, one: Prepared) -> None:
    """Write the passages with the vectors that are there; those of a long text's end follow."""
    first = scope * SPAN + await scopes.reserve_passages(tx, scope, len(one.pieces))
    vectors = store.database.vectors
    model = await vectors.model(tx, store.encoder.name)
    stamp = await next_stamp(tx)
    session, last = await passages.session(tx, scope, memory, one.draft.metadata.get("session_id"))
    alone = last is None and len(one.pieces) == 1
    shared = {"scope": scope, "memory": memory, "stamp": stamp, "session": session, "voice": one.voice}
    shared["windowed"] = int(alone or not store.encoder.reads_windows)
    rows = [
        {"id": first + i, **shared, **piece._asdict(), "model": model if code else None, "code": code and code.vector}
        for i, (piece, code) in enumerate(zip_longest(one.pieces, one.codes))
    ]
    await passages.add(tx, rows)
    await vectors.put_tokens(tx, [(first + i, code.signs) for i, code in enumerate(one.codes) if code.signs])
    if last is not None and store.encoder.reads_windows:
        await tx.execute("UPDATE passages SET windowed = 0 WHERE id = :id", id=last)
    await store.database.words.put(
        tx, [Indexed(first + i, p.of(one.draft.content), one.label) for i, p in enumerate(one.pieces)]
    )
