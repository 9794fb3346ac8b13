"""Encode texts with an embedding model, and continue without vectors while it fails."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from athena.core.threads import run_in_thread
from athena.embedding.embedder import Embedder, Excerpt, PassageEncoding, QuestionEncoding
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError, Unavailable

A = TypeVar("A")
T = TypeVar("T")
RETRY_DELAY_S = 30.0


class Encoder:
    """An embedder that may fail: it then returns None, sets `last_error` and retries after `RETRY_DELAY_S`."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.last_error: AthenaError | None = None
        self._failed_at = 0.0
        self.backlog_lock = threading.Lock()
        self.busy_until = 0.0  # monotonic time at which writers are expected to be done
        self._stopped = threading.Event()

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    @property
    def is_working(self) -> bool:
        return self.last_error is None and not self._stopped.is_set()

    def stop(self) -> None:
        """End background work: a thread inside the model at the end of the process would abort it."""
        self._stopped.set()
        if self.backlog_lock.acquire(timeout=5):
            self.backlog_lock.release()

    def wait_for_writers(self, timeout_s: float) -> None:
        """Wait until writers are done, so that background work does not slow them down; `stop` ends the wait."""
        end = time.monotonic() + timeout_s
        while (left := min(self.busy_until, end) - time.monotonic()) > 0 and not self._stopped.is_set():
            self._stopped.wait(left)

    def without_model(self) -> "Encoder":
        """Return an encoder that never runs the model, so that search uses full text only."""
        encoder = Encoder(self.embedder)
        encoder.last_error, encoder._failed_at = Unavailable("this search uses no model"), float("inf")
        return encoder

    async def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding] | None:
        """Return the encodings of passages, or None while the model fails."""
        if isinstance(self.embedder, MiniLM):
            return await self._run_model(self.embedder.encode_passages, excerpts)
        vectors = await self._run_model(self.embedder.embed, [excerpt.header + excerpt.text for excerpt in excerpts])
        return None if vectors is None else [PassageEncoding(vector, b"") for vector in vectors]

    async def encode_question(self, question: str) -> QuestionEncoding | None:
        """Return the encoding of a question, or None while the model fails."""
        if isinstance(self.embedder, MiniLM):
            return await self._run_model(self.embedder.encode_question, question)
        vectors = await self._run_model(self.embedder.embed, [question])
        return None if vectors is None or not vectors[0].any() else QuestionEncoding(vectors[0], vectors[:0], [])

    @property
    def reads_windows(self) -> bool:
        """Return whether a passage's vector depends on its neighbours."""
        return isinstance(self.embedder, MiniLM)

    async def _run_model(self, work: Callable[[A], T], argument: A) -> T | None:
        if self.last_error is not None and time.monotonic() - self._failed_at < RETRY_DELAY_S:
            return None
        try:
            encoding = await run_in_thread(work, argument)
        except AthenaError as error:
            self.last_error, self._failed_at = error, time.monotonic()
            return None
        self.last_error = None
        return encoding
