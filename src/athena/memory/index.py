"""Giving vectors to passages that have none, or none of the model in use."""

import time
from contextlib import suppress
from dataclasses import dataclass

from athena.core.scope import Kind
from athena.core.threads import drive, start
from athena.embedding.embedder import Excerpt
from athena.errors import Unavailable
from athena.memory import write_rows
from athena.memory.prepare import AT_ONCE, codes_of, prepare
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import passages
from athena.storage.database import Transaction
from athena.storage.passages import Placed

WINDOW = 40  # words of each neighbour that a passage is read with
PATIENCE = 10.0  # seconds that a writer who never pauses holds up a batch
YIELD = 2.0  # seconds for a writer who lost a race
BATCH = 16  # small, since closing the store waits for the one in progress
SOON = 1.0  # seconds before what need not be found by meaning at once is read; a process that ends first leaves it


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    remaining: int


async def reembed(store: Store, limit: int) -> Progress:
    """Give up to `limit` passages a vector of the model in use."""
    vectors, model = store.database.vectors, store.encoder.name
    await write_rows.index_all(store)
    done = await _step(store, limit)

    async def remaining(tx: Transaction) -> int:
        return await vectors.count_pending(tx, model) + await vectors.count_behind(tx)

    return Progress(done, await store.database.read(remaining))


async def _step(store: Store, limit: int, kind: Kind | None = None) -> int:
    """Read up to `limit` passages that wait, of one kind alone where that is said; return how many there were."""

    async def waiting(tx: Transaction) -> list[Placed]:
        model, now = store.encoder.name, store.clock()
        taken = await store.database.vectors.claim(tx, model, limit, now, kind=kind)
        return await passages.placed(tx, taken, model)

    found = await store.database.write(waiting)
    if found:
        await _read(store, found)
    return len(found)


async def _read(store: Store, found: list[Placed]) -> None:
    """Read passages alone for their tokens and with their neighbours for their vectors, and keep both."""
    windows = [Excerpt(one.text, _header(one), _last_words(one.before), _first_words(one.after)) for one in found]
    alone = {one.id: Excerpt(one.text, _header(one)) for one in found if not one.known}
    texts = list(dict.fromkeys([*windows, *alone.values()]))  # what has no neighbours is read once for both
    readings = await store.encoder.read(texts)
    if readings is None:
        trouble = store.encoder.trouble
        raise Unavailable(str(trouble), hint=trouble.hint if trouble else None)
    read = dict(zip(texts, zip(codes_of(readings), readings, strict=True), strict=True))
    codes = [(one.id, read[window][0].vector) for one, window in zip(found, windows, strict=True)]
    signs = [(number, read[text][1].signs) for number, text in alone.items() if read[text][1].signs]

    async def work(tx: Transaction) -> None:
        await store.database.vectors.put(tx, codes, store.encoder.name)
        await store.database.vectors.put_tokens(tx, signs)

    await store.database.write(work)


def _header(one: Placed) -> str:
    return prepare(Draft(one.text, metadata=one.metadata), one.created).header


def _last_words(text: str) -> str:
    return " ".join(text.split()[-WINDOW:]) + " " if text else ""


def _first_words(text: str) -> str:
    return " " + " ".join(text.split()[:WINDOW]) if text else ""


async def settle(store: Store, kind: Kind = "memory") -> None:
    """Give vectors to what a change left without, some of one kind now and the rest behind it."""
    missing = store.database.vectors.any_missing
    if store.encoder.trouble is None and await store.database.read(missing):
        with suppress(Unavailable):  # words find it meanwhile, and health says why
            await _step(store, AT_ONCE, kind)
        if await store.database.read(missing):
            catch_up(store)


def catch_up(store: Store, after: float = 0.0) -> None:
    """Give vectors to what waits for them, on a thread of its own, once no more has come for `after` seconds."""
    store.encoder.busy_until = max(store.encoder.busy_until, time.monotonic() + after)
    if not store.encoder.catching_up.locked():
        start(_until_done, store)


def _until_done(store: Store) -> None:
    if not store.encoder.catching_up.acquire(blocking=False):
        return  # another thread is at it
    try:
        _give_way(store)
        while store.encoder.works and drive(_step(store, BATCH)):
            _give_way(store)  # until nothing is left, or others are at the rest
    finally:
        store.encoder.catching_up.release()


def _give_way(store: Store) -> None:
    """Let those write who wait for it: somebody who changes a long memory would never get between our batches."""
    store.encoder.busy_until = max(store.encoder.busy_until, store.database.contended + YIELD)
    store.encoder.rest(PATIENCE)
