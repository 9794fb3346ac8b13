"""Keeping memories."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.core.call import Call
from athena.errors import Conflict, InvalidInput, NotFound
from athena.memory import history, rows, write_rows
from athena.memory.index import SOON, catch_up
from athena.memory.prepare import Prepared, prepare, with_vectors
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import MOST_TAGS, SERIAL, Draft, Stored, stored, tag_key
from athena.storage import calls, scopes
from athena.storage.database import Transaction


async def remember(store: Store, drafts: Sequence[Draft], call: Call, *, read_first: bool = True) -> list[Stored]:
    """Keep memories. One that is known gets the new tags and metadata; one that was forgotten comes back.

    Without `read_first` the model reads them afterwards: words find them at once, their meaning a little later.
    """
    now = store.clock()
    prepared = [_prepare(draft, i if len(drafts) > 1 else None, now) for i, draft in enumerate(drafts)]

    async def known(tx: Transaction) -> set[str]:
        return await rows.known(tx, await scopes.own(tx, call.scope), [one.digest for one in prepared])

    if read_first:
        prepared = await with_vectors(store.encoder, prepared, await store.database.read(known))

    async def work(tx: Transaction) -> tuple[list[Stored], bool]:
        async def keep(number: int) -> list[list[Any]]:
            scope = await scopes.ensure(tx, call.scope)
            at = At(scope, number, now, passing=call.scope.kind == "event")
            ways = (add_one if _is_new(one, call) else keep_one for one in prepared)
            return [await way(store, tx, at, one) for way, one in zip(ways, prepared, strict=True)]

        outcomes = await calls.once(tx, call, keep)
        numbers = await scopes.own(tx, call.scope)
        found = await rows.fetch(tx, numbers, {number for number, _ in outcomes}, forgotten=True)
        if any(number not in found for number, _ in outcomes):  # the same call again, after a purge
            raise NotFound("what this call kept was removed for good since", hint="use a new key to keep it again")
        kept = [
            stored(found[number], outcome, draft.redacted)
            for (number, outcome), draft in zip(outcomes, drafts, strict=True)
        ]
        return kept, await store.database.vectors.any_missing(tx)

    kept, behind = await store.database.write(work)
    if behind and store.encoder.works:
        catch_up(store, 0 if read_first else SOON)
    return kept


def _prepare(draft: Draft, position: int | None, now: float) -> Prepared:
    try:
        return prepare(draft, now)
    except InvalidInput as error:
        where = "" if position is None else f"items[{position}]: "
        raise InvalidInput(f"{where}{error}", hint=error.hint) from None


def _is_new(one: Prepared, call: Call) -> bool:
    """Tell whether a text cannot be known yet: its serial is no repetition's."""
    return call.key is None and SERIAL in one.draft.metadata


class At(NamedTuple):
    """Where and when something is kept."""

    scope: int
    call: int
    now: float
    passing: bool = False  # recording an event is nothing to undo: whoever undoes means a change


async def add_one(store: Store, tx: Transaction, at: At, one: Prepared) -> list[Any]:
    """Write one memory that is new."""
    number = await write_rows.add(store, tx, at.scope, one, at.now)
    await history.add(tx, at.scope, number, at.call, at.now, "remembered", None, undone=at.passing)
    return [number, "new"]


async def keep_one(store: Store, tx: Transaction, at: At, one: Prepared) -> list[Any]:
    """Write one memory and return its number and what that did."""
    scope, call, now, _ = at
    found = await rows.find(tx, [scope], "m.digest = :digest", digest=one.digest)
    if not found:
        return await add_one(store, tx, at, one)
    kept = found[0]
    if kept.memory.content != one.draft.content:
        raise Conflict("a text of another session has the very same hash", hint="change the text a little")
    merged = _merge(kept, one)
    revived = kept.deleted is not None
    if revived or merged != (kept.memory.tags, kept.memory.metadata, kept.memory.importance):
        await history.add(tx, scope, kept.memory.id, call, now, "revived" if revived else "merged", kept.snapshot())
        draft = Draft(
            kept.memory.content, merged[0], kept.memory.memory_type, merged[1], merged[2],
        )  # fmt: skip
        await write_rows.rewrite(store, tx, kept, prepare(draft, kept.memory.created)._replace(codes=one.codes), now)
    await rows.count_again(tx, kept)
    return [kept.memory.id, "revived" if revived else "known"]


def _merge(kept: Kept, one: Prepared) -> tuple[tuple[str, ...], dict[str, Any], float]:
    """Add new tags behind the old ones as far as they fit, new metadata over the old, and the greater importance."""
    tags = {tag_key(tag): tag for tag in (*one.draft.tags, *kept.memory.tags)}
    order = [tag_key(tag) for tag in (*kept.memory.tags, *one.draft.tags)]
    every = [tags[key] for key in dict.fromkeys(order)]
    importance = max(kept.memory.importance, one.draft.importance)
    return tuple(every[:MOST_TAGS]), kept.memory.metadata | one.draft.metadata, importance
