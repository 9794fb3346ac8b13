"""Turning text into vectors, and going on without them when the model does not work."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from athena.embedding.embedder import Embedder
from athena.errors import AthenaError
from athena.threads import aside

if TYPE_CHECKING:
    from athena.storage.database import Floats

PAUSE = 30.0  # seconds before a model that failed is tried again


class Encoder:
    """An embedder that may fail: then there are no vectors, `trouble` says why, and it is tried again later."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.trouble: AthenaError | None = None
        self._failed_at = 0.0
        self.catching_up = threading.Lock()
        self._stopped = False

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    @property
    def works(self) -> bool:
        return self.trouble is None and not self._stopped

    def stop(self) -> None:
        """End work in the background: a thread inside the model when the program ends would abort it."""
        self._stopped = True
        if self.catching_up.acquire(timeout=5):
            self.catching_up.release()

    async def vectors(self, texts: Sequence[str]) -> "Floats | None":
        """Return a unit vector for each text, or None while the model does not work."""
        if self.trouble is not None and time.monotonic() - self._failed_at < PAUSE:
            return None
        try:
            made = await aside(self.embedder.vectors, texts)
        except AthenaError as error:
            self.trouble, self._failed_at = error, time.monotonic()
            return None
        self.trouble = None
        return made
