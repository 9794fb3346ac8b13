"""Writing a memory: its row, its tags, its passages, their words and vectors, all in one transaction."""

from itertools import zip_longest

from athena.memory.prepare import Prepared
from athena.memory.store import Store
from athena.storage import memories, scopes
from athena.storage.database import Indexed, Transaction
from athena.storage.memories import Kept
from athena.storage.vectors import SPAN, next_stamp


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
        await store.database.words.drop(tx, await memories.passages(tx, memory))
    fields = one.fields(now)
    del fields["created"]
    same = fields["content"] == kept.memory.content
    await memories.change(tx, kept, {**fields, "deleted": None})
    await memories.set_tags(tx, kept.scope, memory, one.draft.tags)
    if same:
        await store.database.vectors.show(tx, memory, True)
        await store.database.words.put(tx, await memories.passages(tx, memory))
    else:
        await memories.retire_passages(tx, memory, await next_stamp(tx))
        await _put_passages(store, tx, kept.scope, memory, one)


async def hide(store: Store, tx: Transaction, kept: Kept, now: float) -> None:
    """Make a memory invisible to every search; its text stays for undo."""
    await store.database.words.drop(tx, await memories.passages(tx, kept.memory.id))
    await store.database.vectors.show(tx, kept.memory.id, False)
    await memories.change(tx, kept, {"deleted": now, "updated": now})


async def _put_passages(store: Store, tx: Transaction, scope: int, memory: int, one: Prepared) -> None:
    """Write the passages with the vectors that are there; those of a long text's end follow."""
    first = scope * SPAN + await scopes.reserve_passages(tx, scope, len(one.pieces))
    model = await store.database.vectors.model(tx, store.encoder.name)
    shared = {"scope": scope, "memory": memory, "stamp": await next_stamp(tx)}
    rows = [
        {"id": first + i, **shared, **piece._asdict(), "model": model if code else None, "code": code}
        for i, (piece, code) in enumerate(zip_longest(one.pieces, one.codes))
    ]
    await memories.add_passages(tx, rows)
    await store.database.words.put(
        tx, [Indexed(first + i, p.of(one.draft.content), one.label) for i, p in enumerate(one.pieces)]
    )
