"""Stores of every size that a benchmark asks for, each built once.

The first notes get their vectors from the model. A large store would take too long that way, so the notes
behind them get the vector of one of the first with some noise: as long, as spread out, and as costly to search.
"""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from athena import api, connect
from athena.app import App
from athena.embedding.minilm import MiniLM
from athena.storage.sqlite import Sqlite
from bench import corpus

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "athena.db"
AT_ONCE = 1000
NOISE = 0.3  # of the vector's length: a cosine of 0.96 to the original


class Imitation:
    """Embed the first texts with the model, and imitate it for the rest."""

    def __init__(self, model: MiniLM, real: int) -> None:
        self.name = model.name
        self.dimensions = model.dimensions
        self._model = model
        self._real = real
        self._made: list[NDArray[np.float32]] = []

    def load(self) -> None:
        self._model.load()

    def vectors(self, texts: Sequence[str]) -> "NDArray[np.float32]":
        import numpy as np

        if len(self._made) < self._real:
            made = self._model.vectors(texts)
            self._made.extend(made)
            return made
        return np.array([self._imitated(text) for text in texts], np.float32)

    def _imitated(self, text: str) -> "NDArray[np.float32]":
        import numpy as np

        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        noise = np.random.default_rng(seed).standard_normal(self.dimensions, np.float32)
        vector = self._made[seed % len(self._made)] + noise * (NOISE / self.dimensions**0.5)
        unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
        return unit


class Stores:
    """Folders with a store of the first so many notes, under one temporary folder."""

    def __init__(self, folder: Path, real: int) -> None:
        self._folder = folder
        self._embedder = Imitation(MiniLM(), real)
        self._built: dict[int, Path] = {}
        self._copies = 0

    def home(self, size: int) -> Path:
        """Return the home of a store with this many notes, for reading."""
        if size not in self._built:
            smaller = max((known for known in self._built if known < size), default=0)
            home = self._folder / f"store-{size}"
            if smaller:
                shutil.copytree(self._built[smaller], home)
            self._grow(home, smaller, size)
            self._built[size] = home
        return self._built[size]

    def copy(self, size: int) -> Path:
        """Return the home of such a store that may be changed."""
        self._copies += 1
        home = self._folder / f"copy-{self._copies}"
        shutil.copytree(self.home(size), home)
        return home

    def _grow(self, home: Path, smaller: int, size: int) -> None:
        texts = corpus.notes(size)
        app = App(Sqlite(home / FILE), self._embedder)
        try:
            with connect.using(app):
                for first in range(smaller, size, AT_ONCE):
                    api.store_batch(texts[first : min(size, first + AT_ONCE)])
        finally:
            app.close()
