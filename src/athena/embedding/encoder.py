"""Turning text into vectors, and going on without them when the model does not work."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from athena.core.threads import aside
from athena.embedding.embedder import Asked, Embedder, Excerpt, Reading
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError, Unavailable

A = TypeVar("A")
T = TypeVar("T")
PAUSE = 30.0  # seconds before a model that failed is tried again


class Encoder:
    """An embedder that may fail: then there are no vectors, `trouble` says why, and it is tried again later."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.trouble: AthenaError | None = None
        self._failed_at = 0.0
        self.catching_up = threading.Lock()
        self.busy_until = 0.0  # when those who write are expected to have done
        self._stopped = threading.Event()

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    @property
    def works(self) -> bool:
        return self.trouble is None and not self._stopped.is_set()

    def stop(self) -> None:
        """End work in the background: a thread inside the model when the program ends would abort it."""
        self._stopped.set()
        if self.catching_up.acquire(timeout=5):
            self.catching_up.release()

    def rest(self, most: float) -> None:
        """Leave the machine to those who write, but not for ever, and not once the work here is to end."""
        end = time.monotonic() + most
        while (left := min(self.busy_until, end) - time.monotonic()) > 0 and not self._stopped.is_set():
            self._stopped.wait(left)

    def at_rest(self) -> "Encoder":
        """Return one of the same name that asks no model: words must do."""
        made = Encoder(self.embedder)
        made.trouble, made._failed_at = Unavailable("no model is asked in a hurry"), float("inf")
        return made

    async def read(self, excerpts: Sequence[Excerpt]) -> list[Reading] | None:
        """Return what each passage leaves behind, or None while the model does not work."""
        if isinstance(self.embedder, MiniLM):
            return await self._try(self.embedder.read, excerpts)
        vectors = await self._try(self.embedder.vectors, [one.header + one.text for one in excerpts])
        return None if vectors is None else [Reading(vector, b"") for vector in vectors]

    async def ask(self, question: str) -> Asked | None:
        """Return a question as it is compared with passages, or None while the model does not work."""
        if isinstance(self.embedder, MiniLM):
            return await self._try(self.embedder.ask, question)
        vectors = await self._try(self.embedder.vectors, [question])
        return None if vectors is None or not vectors[0].any() else Asked(vectors[0], vectors[:0], [])

    @property
    def reads_windows(self) -> bool:
        """Whether a passage's vector depends on its neighbours."""
        return isinstance(self.embedder, MiniLM)

    async def _try(self, work: Callable[[A], T], argument: A) -> T | None:
        if self.trouble is not None and time.monotonic() - self._failed_at < PAUSE:
            return None
        try:
            made = await aside(work, argument)
        except AthenaError as error:
            self.trouble, self._failed_at = error, time.monotonic()
            return None
        self.trouble = None
        return made
