"""Giving vectors to passages that have none, or none of the model in use."""

from contextlib import suppress
from dataclasses import dataclass

from athena.errors import Unavailable
from athena.memory.prepare import AT_ONCE, prepare
from athena.memory.store import Store
from athena.model.memory import Draft
from athena.storage import memories
from athena.storage.database import Transaction
from athena.storage.vectors import encode
from athena.threads import drive, start

BATCH = 16  # small, since closing the store waits for the one in progress


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    remaining: int


async def reembed(store: Store, limit: int) -> Progress:
    """Give up to `limit` passages a vector of the model in use."""
    vectors, model = store.database.vectors, store.encoder.name

    async def waiting(tx: Transaction) -> list[tuple[int, str]]:
        return [
            (number, prepare(Draft(text, metadata=metadata), created).header + text)
            for number, text, metadata, created in await memories.passage_texts(
                tx, await vectors.pending(tx, model, limit)
            )
        ]

    texts = await store.database.read(waiting)
    if texts:
        made = await store.encoder.vectors([text for _, text in texts])
        if made is None:
            trouble = store.encoder.trouble
            raise Unavailable(str(trouble), hint=trouble.hint if trouble else None)
        codes = list(zip((number for number, _ in texts), encode(made), strict=True))
        await store.database.write(lambda tx: vectors.put(tx, codes, model))
    return Progress(len(texts), await store.database.read(lambda tx: vectors.count_pending(tx, model)))


async def settle(store: Store) -> None:
    """Give vectors to what a change left without, some now and the rest behind it."""
    missing = store.database.vectors.any_missing
    if store.encoder.trouble is None and await store.database.read(missing):
        with suppress(Unavailable):  # words find it meanwhile, and health says why
            await reembed(store, AT_ONCE)
        if await store.database.read(missing):
            catch_up(store)


def catch_up(store: Store) -> None:
    """Give vectors to what waits for them, on a thread of its own."""
    start(_until_done, store)


def _until_done(store: Store) -> None:
    if not store.encoder.catching_up.acquire(blocking=False):
        return  # another thread is at it
    try:
        while store.encoder.works and drive(reembed(store, BATCH)).remaining:
            pass
    finally:
        store.encoder.catching_up.release()
