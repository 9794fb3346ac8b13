"""Giving vectors to passages that have none, or none of the model in use."""

import time
from contextlib import suppress
from dataclasses import dataclass

from athena.core.threads import run_sync, start_in_thread
from athena.core.values import Kind
from athena.embedding.embedder import Excerpt
from athena.errors import Unavailable
from athena.memory import write
from athena.memory.prepare import MAX_IMMEDIATE_PASSAGES, encode_readings, prepare_memory
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import passages
from athena.storage.database import Transaction
from athena.storage.passages import PassageInSession

WINDOW_WORDS = 40  # words of each neighbour that a passage is read with
MAX_WRITER_WAIT_S = 10.0  # seconds that a writer who never pauses holds up a batch
CONTENTION_WAIT_S = 2.0  # seconds for a writer who lost a race
ENCODE_BATCH_SIZE = 16  # small, since closing the store waits for the one in progress
ENCODE_DELAY_S = (
    1.0  # seconds before what need not be found by meaning at once is read; a process that ends first leaves it
)


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    remaining: int


async def reembed(store: Store, limit: int) -> Progress:
    """Give up to `limit` passages a vector of the model in use."""
    vectors, model = store.database.vectors, store.encoder.name
    await write.index_all(store)
    done = await _encode_batch(store, limit)

    async def count_remaining(tx: Transaction) -> int:
        return await vectors.count_pending(tx, model) + await vectors.count_stale(tx)

    return Progress(done, await store.database.read(count_remaining))


async def _encode_batch(store: Store, limit: int, kind: Kind | None = None) -> int:
    """Read up to `limit` passages that wait, of one kind alone where that is said; return how many there were."""

    async def claim_passages(tx: Transaction) -> list[PassageInSession]:
        model, now = store.encoder.name, store.clock()
        taken = await store.database.vectors.claim_passages(tx, model, limit, now, kind=kind)
        return await passages.fetch_passages_in_session(tx, taken, model)

    found = await store.database.write(claim_passages)
    if found:
        await _encode_passages(store, found)
    return len(found)


async def _encode_passages(store: Store, found: list[PassageInSession]) -> None:
    """Read passages alone for their tokens and with their neighbours for their vectors, and keep both."""
    windows = [
        Excerpt(one.text, _format_header(one), _last_words(one.before), _first_words(one.after)) for one in found
    ]
    alone = {one.id: Excerpt(one.text, _format_header(one)) for one in found if not one.has_tokens}
    texts = list(dict.fromkeys([*windows, *alone.values()]))  # what has no neighbours is read once for both
    readings = await store.encoder.encode_passages(texts)
    if readings is None:
        trouble = store.encoder.last_error
        raise Unavailable(str(trouble), hint=trouble.hint if trouble else None)
    read = dict(zip(texts, zip(encode_readings(readings), readings, strict=True), strict=True))
    codes = [(one.id, read[window][0].vector) for one, window in zip(found, windows, strict=True)]
    signs = [(number, read[text][1].signs) for number, text in alone.items() if read[text][1].signs]

    async def write_vectors(tx: Transaction) -> None:
        await store.database.vectors.set_vectors(tx, codes, store.encoder.name)
        await store.database.vectors.set_tokens(tx, signs)

    await store.database.write(write_vectors)


def _format_header(one: PassageInSession) -> str:
    return prepare_memory(Draft(one.text, metadata=one.metadata), one.created).header


def _last_words(text: str) -> str:
    return " ".join(text.split()[-WINDOW_WORDS:]) + " " if text else ""


def _first_words(text: str) -> str:
    return " " + " ".join(text.split()[:WINDOW_WORDS]) if text else ""


async def encode_missing(store: Store, kind: Kind = "memory") -> None:
    """Give vectors to what a change left without, some of one kind now and the rest behind it."""
    missing = store.database.vectors.has_missing
    if store.encoder.last_error is None and await store.database.read(missing):
        with suppress(Unavailable):  # words find it meanwhile, and health says why
            await _encode_batch(store, MAX_IMMEDIATE_PASSAGES, kind)
        if await store.database.read(missing):
            encode_in_background(store)


def encode_in_background(store: Store, after: float = 0.0) -> None:
    """Give vectors to what waits for them, on a thread of its own, once no more has come for `after` seconds."""
    store.encoder.busy_until = max(store.encoder.busy_until, time.monotonic() + after)
    if not store.encoder.backlog_lock.locked():
        start_in_thread(_encode_backlog, store)


def _encode_backlog(store: Store) -> None:
    if not store.encoder.backlog_lock.acquire(blocking=False):
        return  # another thread is at it
    try:
        _yield_to_writers(store)
        while store.encoder.is_working and run_sync(_encode_batch(store, ENCODE_BATCH_SIZE)):
            _yield_to_writers(store)  # until nothing is left, or others are at the rest
    finally:
        store.encoder.backlog_lock.release()


def _yield_to_writers(store: Store) -> None:
    """Let those write who wait for it: somebody who changes a long memory would never get between our batches."""
    store.encoder.busy_until = max(store.encoder.busy_until, store.database.last_conflict_at + CONTENTION_WAIT_S)
    store.encoder.wait_for_writers(MAX_WRITER_WAIT_S)
