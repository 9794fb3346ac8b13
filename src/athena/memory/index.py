"""Encode passages that have no vector, or none of the model in use: now, or in the background."""

import time
from contextlib import suppress
from dataclasses import dataclass

from athena.core.threads import run_sync, start_in_thread
from athena.core.values import Kind
from athena.embedding.embedder import Excerpt
from athena.errors import Unavailable
from athena.memory import write
from athena.memory.prepare import MAX_IMMEDIATE_PASSAGES, prepare_memory, quantize_encodings
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage import passages
from athena.storage.database import Transaction
from athena.storage.passages import PassageInSession

WINDOW_WORDS = 40  # of each neighbour, that a passage is encoded with
MAX_WRITER_WAIT_S = 10.0  # that a batch waits for writers who never pause
CONTENTION_WAIT_S = 2.0  # that a writer who lost a race gets to try again
ENCODE_BATCH_SIZE = 16  # small, since closing the store waits for the batch in progress
ENCODE_DELAY_S = 1.0  # before rows that only full text must find at once are encoded; a process may end before that


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


async def encode_missing(store: Store, kind: Kind = "memory") -> None:
    """Encode passages that a change left without vectors: a few of one kind now, the rest in the background."""
    has_missing = store.database.vectors.has_missing
    if store.encoder.last_error is None and await store.database.read(has_missing):
        with suppress(Unavailable):  # full text finds them meanwhile, and health reports the reason
            await _encode_batch(store, MAX_IMMEDIATE_PASSAGES, kind)
        if await store.database.read(has_missing):
            encode_in_background(store)


def encode_in_background(store: Store, delay_s: float = 0.0) -> None:
    """Encode missing vectors on a thread of their own, once nothing was written for `delay_s` seconds."""
    store.encoder.busy_until = max(store.encoder.busy_until, time.monotonic() + delay_s)
    if not store.encoder.backlog_lock.locked():
        start_in_thread(_encode_backlog, store)


def _encode_backlog(store: Store) -> None:
    if not store.encoder.backlog_lock.acquire(blocking=False):
        return  # another thread is encoding
    try:
        _yield_to_writers(store)
        while store.encoder.is_working and run_sync(_encode_batch(store, ENCODE_BATCH_SIZE)):
            _yield_to_writers(store)  # until nothing is left, or other processes have claimed the rest
    finally:
        store.encoder.backlog_lock.release()


def _yield_to_writers(store: Store) -> None:
    """Wait for pending writers: a change of a long memory would otherwise never get between two batches."""
    store.encoder.busy_until = max(store.encoder.busy_until, store.database.last_conflict_at + CONTENTION_WAIT_S)
    store.encoder.wait_for_writers(MAX_WRITER_WAIT_S)


async def _encode_batch(store: Store, limit: int, kind: Kind | None = None) -> int:
    """Encode up to `limit` pending passages, of one kind or of all; return how many there were."""

    async def claim_passages(tx: Transaction) -> list[PassageInSession]:
        model, now = store.encoder.name, store.clock()
        claimed = await store.database.vectors.claim_passages(tx, model, limit, now, kind=kind)
        return await passages.fetch_passages_in_session(tx, claimed, model)

    batch = await store.database.write(claim_passages)
    if batch:
        await _encode_passages(store, batch)
    return len(batch)


async def _encode_passages(store: Store, batch: list[PassageInSession]) -> None:
    """Encode passages alone for their tokens and with their neighbours for their vectors, and store both."""
    windows = [
        Excerpt(passage.text, _format_header(passage), _last_words(passage.before), _first_words(passage.after))
        for passage in batch
    ]
    alone = {passage.id: Excerpt(passage.text, _format_header(passage)) for passage in batch if not passage.has_tokens}
    excerpts = list(dict.fromkeys([*windows, *alone.values()]))  # a passage without neighbours is encoded once for both
    encodings = await store.encoder.encode_passages(excerpts)
    if encodings is None:
        error = store.encoder.last_error
        raise Unavailable(str(error), hint=error.hint if error else None)
    codes = dict(zip(excerpts, quantize_encodings(encodings), strict=True))
    vectors = [(passage.id, codes[window].vector) for passage, window in zip(batch, windows, strict=True)]
    tokens = [(passage_id, codes[excerpt].signs) for passage_id, excerpt in alone.items() if codes[excerpt].signs]

    async def write_vectors(tx: Transaction) -> None:
        await store.database.vectors.set_vectors(tx, vectors, store.encoder.name)
        await store.database.vectors.set_tokens(tx, tokens)

    await store.database.write(write_vectors)


def _format_header(passage: PassageInSession) -> str:
    return prepare_memory(Draft(passage.text, metadata=passage.metadata), passage.created).header


def _last_words(text: str) -> str:
    return " ".join(text.split()[-WINDOW_WORDS:]) + " " if text else ""


def _first_words(text: str) -> str:
    return " " + " ".join(text.split()[:WINDOW_WORDS]) if text else ""
