"""Turning text into vectors, and going on without them when the model does not work."""

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
RETRY_DELAY_S = 30.0  # seconds before a model that failed is tried again


class Encoder:
    """An embedder that may fail: then there are no vectors, `trouble` says why, and it is tried again later."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.last_error: AthenaError | None = None
        self._failed_at = 0.0
        self.backlog_lock = threading.Lock()
        self.busy_until = 0.0  # when those who write are expected to have done
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
        """End work in the background: a thread inside the model when the program ends would abort it."""
        self._stopped.set()
        if self.backlog_lock.acquire(timeout=5):
            self.backlog_lock.release()

    def wait_for_writers(self, most: float) -> None:
        """Leave the machine to those who write, but not for ever, and not once the work here is to end."""
        end = time.monotonic() + most
        while (left := min(self.busy_until, end) - time.monotonic()) > 0 and not self._stopped.is_set():
            self._stopped.wait(left)

    def without_model(self) -> "Encoder":
        """Return one of the same name that asks no model: words must do."""
        made = Encoder(self.embedder)
        made.last_error, made._failed_at = Unavailable("no model is asked in a hurry"), float("inf")
        return made

    async def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding] | None:
        """Return what each passage leaves behind, or None while the model does not work."""
        if isinstance(self.embedder, MiniLM):
            return await self._run_model(self.embedder.encode_passages, excerpts)
        vectors = await self._run_model(self.embedder.embed, [one.header + one.text for one in excerpts])
        return None if vectors is None else [PassageEncoding(vector, b"") for vector in vectors]

    async def encode_question(self, question: str) -> QuestionEncoding | None:
        """Return a question as it is compared with passages, or None while the model does not work."""
        if isinstance(self.embedder, MiniLM):
            return await self._run_model(self.embedder.encode_question, question)
        vectors = await self._run_model(self.embedder.embed, [question])
        return None if vectors is None or not vectors[0].any() else QuestionEncoding(vectors[0], vectors[:0], [])

    @property
    def reads_windows(self) -> bool:
        """Whether a passage's vector depends on its neighbours."""
        return isinstance(self.embedder, MiniLM)

    async def _run_model(self, work: Callable[[A], T], argument: A) -> T | None:
        if self.last_error is not None and time.monotonic() - self._failed_at < RETRY_DELAY_S:
            return None
        try:
            made = await run_in_thread(work, argument)
        except AthenaError as error:
            self.last_error, self._failed_at = error, time.monotonic()
            return None
        self.last_error = None
        return made
