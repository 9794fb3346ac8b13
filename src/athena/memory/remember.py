"""Store memories: insert new ones, merge known ones, revive forgotten ones."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from athena.core.values import Call
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import history_rows, rows, write
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.prepare import PreparedMemory, add_vectors, prepare_memory
from athena.memory.rows import MemoryRow
from athena.memory.sessions.learning_rows import AUTO_TAG, CONFIRMED_IMPORTANCE, CONFIRMED_KEY
from athena.memory.store import Store
from athena.memory.values import MAX_TAGS, SERIAL_KEY, Draft, Stored, extend_memory
from athena.storage import calls, passages, scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key


class WriteContext(NamedTuple):
    """The scope, call and time that a write records."""

    scope: int
    call: int
    now: float
    skip_undo: bool = False  # undo takes back changes, not the recording of an event


async def remember(
    store: Store,
    drafts: Sequence[Draft],
    call: Call,
    *,
    read_first: bool = True,
    then: Callable[[Transaction, Sequence[Stored]], Awaitable[None]] | None = None,
) -> list[Stored]:
    """Store memories, and do `then` in the same transaction. A known one gets the new tags and metadata; a forgotten
    one comes back.

    Without `read_first` the model encodes them afterwards: full text finds them at once, vectors a little later.
    """
    now = store.clock()
    drafts = [draft if draft.author is not None else replace(draft, author=call.author) for draft in drafts]
    prepared = [_prepare_item(draft, i if len(drafts) > 1 else None, now) for i, draft in enumerate(drafts)]

    async def read_known_digests(tx: Transaction) -> set[str]:
        return await rows.find_known_digests(tx, call.scope, [item.digest for item in prepared])

    if read_first:
        prepared = await add_vectors(store.encoder, prepared, await store.database.read(read_known_digests))

    async def write_memories(tx: Transaction) -> tuple[list[Stored], bool]:
        own_ids: list[int] = []
        own = scopes.begin_own_id(tx, call.scope)

        async def write_batch(call_id: int) -> list[list[Any]]:
            own_ids.append(await scopes.ensure_scope(tx, call.scope, own))
            context = WriteContext(own_ids[0], call_id, now, skip_undo=call.scope.kind == "event")
            outcomes = []
            for item in prepared:
                insert = add_memory if _is_new(item, call) else upsert_memory
                outcomes.append(await insert(store, tx, context, item))
            return outcomes

        outcomes = await calls.run_once(tx, call, write_batch)
        ids = {memory_id for memory_id, _ in outcomes}
        own_ids = own_ids or [row[0] for row in await own]  # the same call again has written nothing
        has_missing = passages.begin_missing(tx)
        memories = await rows.fetch_memories(tx, own_ids, ids, include_deleted=True)
        if any(memory_id not in memories for memory_id, _ in outcomes):  # the same call again, after a purge
            raise NotFound("a memory that this call stored was purged since", hint="use a new key to store it again")
        stored = [
            extend_memory(Stored, memories[memory_id], outcome, draft.redacted)
            for (memory_id, outcome), draft in zip(outcomes, drafts, strict=True)
        ]
        if then is not None:
            await then(tx, stored)
        return stored, bool((await has_missing)[0][0])

    stored, has_missing = await store.database.write(write_memories)
    if has_missing and store.encoder.is_working:
        encode_in_background(store, 0 if read_first else ENCODE_DELAY_S)
    return stored


def _prepare_item(draft: Draft, position: int | None, now: float) -> PreparedMemory:
    try:
        return prepare_memory(draft, now)
    except InvalidInput as error:
        where = "" if position is None else f"items[{position}]: "
        raise InvalidInput(f"{where}{error}", hint=error.hint) from None


def _is_new(prepared: PreparedMemory, call: Call) -> bool:
    """Return whether a text cannot be stored yet: it has a new serial, and no key that a repeated call would share."""
    return call.key is None and SERIAL_KEY in prepared.draft.metadata


async def add_memory(store: Store, tx: Transaction, context: WriteContext, prepared: PreparedMemory) -> list[Any]:
    """Insert a memory that is new and return its id and the outcome."""
    scope, call_id, now, skip_undo = context
    memory_id = await write.insert_memory(store, tx, scope, prepared, now)
    await history_rows.insert_change(tx, scope, memory_id, call_id, now, "remembered", None, undone=skip_undo)
    return [memory_id, "new"]


async def upsert_memory(store: Store, tx: Transaction, context: WriteContext, prepared: PreparedMemory) -> list[Any]:
    """Insert a memory, or merge it into the one of the same digest; return its id and the outcome."""
    matches = await rows.find_rows_by_digest(tx, context.scope, prepared.digest)
    if not matches:
        return await add_memory(store, tx, context, prepared)
    row, now = matches[0], context.now
    if row.memory.content != prepared.draft.content:
        raise Conflict("a text of another session has the very same hash", hint="change the text a little")
    merged = _merge_drafts(row, prepared.draft)
    revived = row.deleted is not None
    if revived or merged != Draft.from_memory(row.memory):
        await history_rows.insert_row_change(tx, row, context.call, now, "revived" if revived else "merged")
        new = prepare_memory(merged, row.memory.created)._replace(codes=prepared.codes)
        await write.rewrite_memory(store, tx, row, new, now)
    await rows.increment_occurrences(tx, row, revived=revived)
    return [row.memory.id, "revived" if revived else "known"]


def _merge_drafts(row: MemoryRow, draft: Draft) -> Draft:
    """Add new tags after the old ones as far as they fit, new metadata over the old; keep the greater importance.

    What was forgotten is the words of whoever says it again; what was not, a person's if a person ever said it. What
    learning stored and a person stores again is confirmed, as `keep_learned` does.
    """
    is_persons = draft.author == "person" or (row.memory.author == "person" and row.deleted is None)
    author = draft.author if row.memory.author == "person" and not is_persons else row.memory.author
    spelling = {tag_key(tag): tag for tag in (*draft.tags, *row.memory.tags)}  # the old spelling wins
    order = dict.fromkeys(tag_key(tag) for tag in (*row.memory.tags, *draft.tags))
    is_confirmed = draft.author == "person" and AUTO_TAG in {*map(tag_key, row.memory.tags)} - {
        *map(tag_key, draft.tags)
    }
    if is_confirmed:
        del order[AUTO_TAG]
    return Draft.from_memory(
        row.memory,
        tags=tuple(spelling[key] for key in order)[:MAX_TAGS],
        metadata=row.memory.metadata | draft.metadata | ({CONFIRMED_KEY: True} if is_confirmed else {}),
        importance=max(row.memory.importance, draft.importance, CONFIRMED_IMPORTANCE if is_confirmed else 0.0),
        author="person" if is_persons else author,
    )
