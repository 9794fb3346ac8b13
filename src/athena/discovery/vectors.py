"""Tools by meaning: a vector for each, made once for each definition, in the background, and kept in a file."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from athena.core.hashing import digest
from athena.core.threads import drive, start
from athena.discovery.entry import Entry, legible, spaced
from athena.discovery.lexical import analysed
from athena.discovery.phrases import said
from athena.embedding.embedder import Asked, Excerpt, Reading
from athena.storage.arrays import product

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SOON = 1.0  # seconds before vectors are made: a process that ends first has other things to do
BATCH = 16  # small, since closing the store waits for the one in progress
PATIENCE = 10.0  # seconds that those who write hold up a batch
KEPT = 5_000  # vectors in the file; those in use first


class Encoder(Protocol):
    """What turns texts into vectors, and gives None while it does not work."""

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def works(self) -> bool: ...
    def rest(self, most: float) -> None: ...
    async def ask(self, question: str) -> Asked | None: ...
    async def read(self, excerpts: Sequence[Excerpt]) -> list[Reading] | None: ...


class Meaning:
    """The vectors of tools. Until they are there, and while the model does not work, there are none."""

    def __init__(self, encoder: Encoder, file: str | None = None) -> None:
        self._encoder, self._file = encoder, file
        self._vectors: dict[str, Any] = {}  # never changed, but replaced
        self._matrix: tuple[Mapping[str, str], dict[str, Any], list[int], Any] | None = None
        self.ready = False  # the model is loaded, so that a question takes no longer than it must
        self._building = threading.Lock()
        self._stopped = threading.Event()

    async def likeness(self, request: str, texts: Mapping[str, str]) -> "NDArray[np.float32] | None":
        """Return how like a request each text is, not a number where that is not known."""
        if not (self.ready and self._encoder.works):
            return None
        rows, matrix = self._stacked(texts)
        asked = await self._encoder.ask(request) if len(rows) > 1 else None
        if asked is None:
            return None
        import numpy as np

        found = np.full(len(texts), np.nan, np.float32)
        found[rows] = product(matrix, asked.vector)
        return found

    def _stacked(self, texts: Mapping[str, str]) -> tuple[list[int], Any]:
        """Return which texts have vectors, and these as a matrix; put together once for each set and each change."""
        known, vectors = self._matrix, self._vectors
        if known is None or known[0] is not texts or known[1] is not vectors:
            import numpy as np

            rows = [place for place, key in enumerate(texts) if key in vectors]
            stacked = np.array([vectors[key] for key in texts if key in vectors], np.float32)
            known = self._matrix = texts, vectors, rows, stacked
        return known[2], known[3]

    def prepare(self, wanted: Mapping[str, str], after: float = SOON) -> None:
        """Have vectors made for texts, given by their keys, on another thread, where any is missing."""
        if self._stopped.is_set() or (self.ready and wanted.keys() <= self._vectors.keys()):
            return
        if self._encoder.works and not self._building.locked():
            start(self._build, wanted, after)

    def stop(self) -> None:
        """End work in the background: a thread inside the model when the program ends would abort it."""
        self._stopped.set()
        if self._building.acquire(timeout=5):
            self._building.release()

    def key(self, text: str) -> str:
        return digest(f"{self._encoder.name}\n{text}")[:32]

    def _build(self, wanted: Mapping[str, str], after: float) -> None:
        if not self._building.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._stopped.wait(after)
            if not self._vectors:
                self._vectors = self._read()
            missing = [key for key in wanted if key not in self._vectors]
            for at in range(0, len(missing), BATCH):
                self._encoder.rest(PATIENCE)
                if self._stopped.is_set() or not self._add({key: wanted[key] for key in missing[at : at + BATCH]}):
                    return
            if not self._stopped.is_set():
                self.ready = self.ready or drive(self._encoder.ask("ready")) is not None
            if missing:
                self._write(wanted)
        finally:
            self._building.release()

    def _add(self, wanted: dict[str, str]) -> bool:
        readings = drive(self._encoder.read([Excerpt(text) for text in wanted.values()]))
        if readings is None:
            return False
        made = {key: one.vector.astype("<f2") for key, one in zip(wanted, readings, strict=True)}
        self._vectors = self._vectors | made  # a search that goes on meanwhile keeps its own
        return True

    def _read(self) -> dict[str, Any]:
        """Return what the file holds; one that is damaged holds nothing."""
        import numpy as np

        if self._file is None:
            return {}
        try:
            rows = np.load(self._file, allow_pickle=False)
            if rows.dtype != self._row:
                return {}
        except (OSError, ValueError, EOFError):
            return {}
        return {key.decode("ascii", "replace"): vector for key, vector in rows}

    def _write(self, wanted: Iterable[str]) -> None:
        """Keep the vectors for the next start; another process that does the same may win."""
        import numpy as np

        if self._file is None or not os.path.isdir(os.path.dirname(self._file)):
            return
        chosen = list(dict.fromkeys([*wanted, *self._vectors]))[:KEPT]
        rows = np.array([(key.encode(), self._vectors[key]) for key in chosen if key in self._vectors], self._row)
        part = f"{self._file}.{os.urandom(6).hex()}"
        try:
            with open(part, "xb") as file:
                np.save(file, rows, allow_pickle=False)
            os.replace(part, self._file)
        except OSError:  # a full disk, or a folder that is gone: they are made again next time
            if os.path.lexists(part):
                os.unlink(part)

    @property
    def _row(self) -> Any:
        import numpy as np

        return np.dtype([("key", "S32"), ("vector", "<f2", (self._encoder.dimensions,))])


def text_of(entry: Entry) -> str:
    """Return what the model reads of a tool."""
    about = entry.about or entry.category
    also = "" if said(entry) else analysed(entry).also
    return legible(f"{about}: {spaced(entry.name)}. {entry.summary} {entry.details} {also}"[:4_000])
