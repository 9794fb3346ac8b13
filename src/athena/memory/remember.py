"""Keeping memories."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core.values import Call
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import history_rows, rows, write
from athena.memory.index import ENCODE_DELAY_S, encode_in_background
from athena.memory.prepare import PreparedMemory, add_vectors, prepare_memory
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import MAX_TAGS, SERIAL_KEY, Draft, Stored, to_stored_memory
from athena.storage import calls, scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key


async def remember(store: Store, drafts: Sequence[Draft], call: Call, *, read_first: bool = True) -> list[Stored]:
    """Keep memories. One that is known gets the new tags and metadata; one that was forgotten comes back.

    Without `read_first` the model reads them afterwards: words find them at once, their meaning a little later.
    """
    now = store.clock()
    prepared = [_prepare_item(draft, i if len(drafts) > 1 else None, now) for i, draft in enumerate(drafts)]

    async def read_known_digests(tx: Transaction) -> set[str]:
        return await rows.find_known_digests(
            tx, await scopes.fetch_own_ids(tx, call.scope), [one.digest for one in prepared]
        )

    if read_first:
        prepared = await add_vectors(store.encoder, prepared, await store.database.read(read_known_digests))

    async def write_memories(tx: Transaction) -> tuple[list[Stored], bool]:
        async def write_batch(number: int) -> list[list[Any]]:
            scope = await scopes.ensure_scope(tx, call.scope)
            at = WriteContext(scope, number, now, skip_undo=call.scope.kind == "event")
            ways = (add_memory if _is_new(one, call) else upsert_memory for one in prepared)
            return [await way(store, tx, at, one) for way, one in zip(ways, prepared, strict=True)]

        outcomes = await calls.run_once(tx, call, write_batch)
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        found = await rows.fetch_memories(tx, numbers, {number for number, _ in outcomes}, forgotten=True)
        if any(number not in found for number, _ in outcomes):  # the same call again, after a purge
            raise NotFound("what this call kept was removed for good since", hint="use a new key to keep it again")
        kept = [
            to_stored_memory(found[number], outcome, draft.redacted)
            for (number, outcome), draft in zip(outcomes, drafts, strict=True)
        ]
        return kept, await store.database.vectors.has_missing(tx)

    kept, behind = await store.database.write(write_memories)
    if behind and store.encoder.is_working:
        encode_in_background(store, 0 if read_first else ENCODE_DELAY_S)
    return kept


def _prepare_item(draft: Draft, position: int | None, now: float) -> PreparedMemory:
    try:
        return prepare_memory(draft, now)
    except InvalidInput as error:
        where = "" if position is None else f"items[{position}]: "
        raise InvalidInput(f"{where}{error}", hint=error.hint) from None


def _is_new(one: PreparedMemory, call: Call) -> bool:
    """Tell whether a text cannot be known yet: its serial is no repetition's."""
    return call.key is None and SERIAL_KEY in one.draft.metadata


class WriteContext(NamedTuple):
    """Where and when something is kept."""

    scope: int
    call: int
    now: float
    skip_undo: bool = False  # recording an event is nothing to undo: whoever undoes means a change


async def add_memory(store: Store, tx: Transaction, at: WriteContext, one: PreparedMemory) -> list[Any]:
    """Write one memory that is new."""
    number = await write.insert_memory(store, tx, at.scope, one, at.now)
    await history_rows.insert_change(tx, at.scope, number, at.call, at.now, "remembered", None, undone=at.skip_undo)
    return [number, "new"]


async def upsert_memory(store: Store, tx: Transaction, at: WriteContext, one: PreparedMemory) -> list[Any]:
    """Write one memory and return its number and what that did."""
    scope, call, now, _ = at
    found = await rows.find_memory_rows(tx, [scope], "m.digest = :digest", digest=one.digest)
    if not found:
        return await add_memory(store, tx, at, one)
    kept = found[0]
    if kept.memory.content != one.draft.content:
        raise Conflict("a text of another session has the very same hash", hint="change the text a little")
    merged = _merge_fields(kept, one)
    revived = kept.deleted is not None
    if revived or merged != (kept.memory.tags, kept.memory.metadata, kept.memory.importance):
        await history_rows.insert_change(
            tx, scope, kept.memory.id, call, now, "revived" if revived else "merged", kept.to_snapshot()
        )
        draft = Draft(
            kept.memory.content, merged[0], kept.memory.memory_type, merged[1], merged[2],
        )  # fmt: skip
        await write.rewrite_memory(
            store, tx, kept, prepare_memory(draft, kept.memory.created)._replace(codes=one.codes), now
        )
    await rows.increment_occurrences(tx, kept)
    return [kept.memory.id, "revived" if revived else "known"]


def _merge_fields(kept: Kept, one: PreparedMemory) -> tuple[tuple[str, ...], dict[str, Any], float]:
    """Add new tags behind the old ones as far as they fit, new metadata over the old, and the greater importance."""
    tags = {tag_key(tag): tag for tag in (*one.draft.tags, *kept.memory.tags)}
    order = [tag_key(tag) for tag in (*kept.memory.tags, *one.draft.tags)]
    every = [tags[key] for key in dict.fromkeys(order)]
    importance = max(kept.memory.importance, one.draft.importance)
    return tuple(every[:MAX_TAGS]), kept.memory.metadata | one.draft.metadata, importance
