"""Encode passages that have no vector, or none of the model in use: now, or in the background.

A passage with a vector of an earlier, compatible model is found by that one until it has its new one. Processes that
stay replace such vectors in the background; what is done stands in the rows, so any of them can go on with it.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from athena.core.threads import run_sync, start_in_thread
from athena.core.values import Kind, ModelNames
from athena.embedding.embedder import Excerpt, PassageEncoding
from athena.errors import AthenaError, Unavailable
from athena.memory import write
from athena.memory.prepare import MAX_IMMEDIATE_PASSAGES, prepare_memory, quantize_encodings
from athena.memory.store import Store
from athena.memory.values import PIECE_KEY, Draft
from athena.storage import passages
from athena.storage.database import Transaction
from athena.storage.passages import PassageInSession

WINDOW_WORDS = 40  # of each neighbour, that a passage is encoded with
MAX_WRITER_WAIT_S = 10.0  # that a batch waits for writers who never pause
CONTENTION_WAIT_S = 2.0  # that a writer who lost a race gets to try again
REEMBED_BATCH_SIZE = 32  # written in one transaction
ENCODE_BATCH_SIZE = 16  # small, since closing the store waits for the batch in progress
REEMBED_DELAY_S = 5.0  # after the start of a process, whose first calls need the processor more
REEMBED_RETRY_S = 60.0  # after which a process looks again for vectors of earlier models
ENCODE_DELAY_S = 1.0  # before rows that only full text must find at once are encoded; a process may end before that


@dataclass(frozen=True, slots=True)
class Progress:
    done: int
    remaining: int


async def reembed(store: Store, limit: int) -> Progress:
    """Give up to `limit` passages a vector of the model in use."""
    done = await encode_claimed(store, limit)
    return Progress(done, await count_remaining(store))


async def encode_claimed(store: Store, limit: int) -> int:
    """Give passages that no other process has claimed a vector of the model in use; return how many there were."""
    await write.index_all(store)
    return await _encode_batch(store, limit, ModelNames(store.encoder.name))  # those of earlier models need one, too


async def count_remaining(store: Store) -> int:
    """Count the passages without a vector of the model in use, and those whose vectors are stale."""
    models = ModelNames(store.encoder.name)

    async def count_passages(tx: Transaction) -> int:
        return await passages.count_pending(tx, models) + await passages.count_stale(tx)

    return await store.database.read(count_passages)


async def encode_missing(store: Store, kind: Kind = "memory") -> None:
    """Encode passages that a change left without vectors: a few of one kind now, the rest in the background."""
    if store.encoder.last_error is None and await store.database.read(passages.has_missing):
        with suppress(Unavailable):  # full text finds them meanwhile, and health reports the reason
            await _encode_batch(store, MAX_IMMEDIATE_PASSAGES, store.encoder.models, kind)
        if await store.database.read(passages.has_missing):
            encode_in_background(store)


async def encode_pending(store: Store, limit: int, kind: Kind = "memory") -> int:
    """Encode up to `limit` passages of one kind that have no vector; return how many there were."""
    if not await store.database.read(passages.has_missing):
        return 0
    return await _encode_batch(store, limit, store.encoder.models, kind)


async def count_pending(store: Store) -> int:
    """Return how many passages of memories have no vector yet."""
    return await store.database.read(lambda tx: passages.count_pending(tx, store.encoder.models, memories=True))


def encode_in_background(store: Store, delay_s: float = 0.0) -> None:
    """Encode missing vectors on a thread of their own, once nothing was written for `delay_s` seconds."""
    store.encoder.busy_until = max(store.encoder.busy_until, time.monotonic() + delay_s)
    if not store.encoder.backlog_lock.locked():
        start_in_thread(_encode_backlog, store)


def reembed_in_background(store: Store) -> None:
    """Replace the vectors of earlier models on a thread of their own, for as long as the store is open."""
    if store.encoder.models.earlier:
        threading.Thread(target=_replace_outdated, args=(store,), name="athena-reembed", daemon=True).start()


def _replace_outdated(store: Store) -> None:
    store.encoder.sleep_until_stopped(REEMBED_DELAY_S)
    while not store.encoder.is_stopped:
        count = 0
        with store.encoder.reembed_lock, suppress(AthenaError):  # health reports a model or a store that fails
            count = run_sync(_replace_batch(store))
        if count:
            _yield_to_writers(store)
        else:
            store.encoder.sleep_until_stopped(REEMBED_RETRY_S)


async def _replace_batch(store: Store) -> int:
    """Encode some passages with vectors of earlier models, and replace these; return how many there were."""
    vectors, models = store.database.vectors, store.encoder.models

    async def pick_outdated(tx: Transaction) -> list[PassageInSession]:
        ids = await vectors.pick_outdated(tx, models, REEMBED_BATCH_SIZE)
        return await passages.fetch_passages_in_session(tx, ids, models.current)

    batch = await store.database.read(pick_outdated)
    if not batch:
        return 0
    excerpts = PassageExcerpts(batch)
    encodings = store.encoder.encode_patiently(excerpts.distinct)
    if encodings is None:
        return 0
    codes, tokens = excerpts.quantize(encodings)

    async def replace_vectors(tx: Transaction) -> None:
        await vectors.replace_vectors(tx, codes, models)
        await vectors.set_tokens(tx, tokens)

    await store.database.deferred_sync.write(replace_vectors)
    return len(batch)


def _encode_backlog(store: Store) -> None:
    if not store.encoder.backlog_lock.acquire(blocking=False):
        return  # another thread is encoding
    try:
        _yield_to_writers(store)
        while store.encoder.is_working and run_sync(_encode_batch(store, ENCODE_BATCH_SIZE, store.encoder.models)):
            _yield_to_writers(store)  # until nothing is left, or other processes have claimed the rest
    finally:
        store.encoder.backlog_lock.release()


def _yield_to_writers(store: Store) -> None:
    """Wait for pending writers: a change of a long memory would otherwise never get between two batches."""
    store.encoder.busy_until = max(store.encoder.busy_until, store.database.last_conflict_at + CONTENTION_WAIT_S)
    store.encoder.wait_for_writers(MAX_WRITER_WAIT_S)


async def _encode_batch(store: Store, limit: int, models: ModelNames, kind: Kind | None = None) -> int:
    """Encode up to `limit` pending passages, of one kind or of all; return how many there were."""

    async def claim_passages(tx: Transaction) -> list[PassageInSession]:
        claimed = await store.database.vectors.claim_passages(tx, models, limit, store.clock(), kind=kind)
        return await passages.fetch_passages_in_session(tx, claimed, models.current)

    batch = await store.database.write(claim_passages)
    if batch:
        await _encode_passages(store, batch)
    return len(batch)


class PassageExcerpts:
    """What the model reads of passages: each alone for its tokens, and with its neighbours for its vector."""

    def __init__(self, batch: list[PassageInSession]) -> None:
        self._windows = {
            passage.id: Excerpt(passage.text, _format_header(passage))
            if PIECE_KEY in passage.metadata  # the headings above it say more than its neighbours, and cost less
            else Excerpt(
                passage.text, _format_header(passage), _last_words(passage.before), _first_words(passage.after)
            )
            for passage in batch
        }
        self._alone = {
            passage.id: Excerpt(passage.text, _format_header(passage)) for passage in batch if not passage.has_tokens
        }
        # A passage without neighbours is encoded once for both.
        self.distinct = list(dict.fromkeys([*self._windows.values(), *self._alone.values()]))

    def quantize(self, encodings: list[PassageEncoding]) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """Return the vectors and the token signs of the passages, from the encodings of `distinct`."""
        codes = dict(zip(self.distinct, quantize_encodings(encodings), strict=True))
        vectors = [(passage_id, codes[window].vector) for passage_id, window in self._windows.items()]
        signs = [(passage_id, codes[excerpt].signs) for passage_id, excerpt in self._alone.items()]
        return vectors, [(passage_id, blob) for passage_id, blob in signs if blob]


async def _encode_passages(store: Store, batch: list[PassageInSession]) -> None:
    excerpts = PassageExcerpts(batch)
    encodings = await store.encoder.encode_passages(excerpts.distinct)
    if encodings is None:
        error = store.encoder.last_error
        raise Unavailable(str(error), hint=error.hint if error else None)
    vectors, tokens = excerpts.quantize(encodings)

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
