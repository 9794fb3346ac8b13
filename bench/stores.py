"""Stores of every size that a benchmark needs, each built once.

The first notes get their vectors from the model. A large store would take too long that way, so the notes
behind them get the vector of one of the first with some noise: as long, as spread out, and as costly to search.
"""

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.embedding.embedder import Excerpt, PassageEncoding
from athena.embedding.minilm import MiniLM
from athena.storage.sqlite.store import Sqlite
from bench import corpus

FILE = "athena.db"
EMBED_BATCH_SIZE = 1000
NOISE = 0.3  # relative to the vector's length: a cosine of 0.96 to the original


class ImitatingEmbedder(MiniLM):
    """Embed the first texts with the model, and imitate it for the rest."""

    def __init__(self, real: int) -> None:
        super().__init__()
        self._real = real
        self._made: list[PassageEncoding] = []

    def encode_passages(
        self, excerpts: Sequence[Excerpt], adapter: Mapping[str, Any] | None = None
    ) -> list[PassageEncoding]:
        if len(self._made) < self._real:
            made = super().encode_passages(excerpts, adapter)
            self._made.extend(made)
            return made
        return [self._imitated(one.text) for one in excerpts]

    def _imitated(self, text: str) -> PassageEncoding:
        import numpy as np

        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        noise = np.random.default_rng(seed).standard_normal(self.dimensions, np.float32)
        model = self._made[seed % len(self._made)]
        vector = model.vector + noise * (NOISE / self.dimensions**0.5)
        return PassageEncoding(vector / np.linalg.norm(vector), model.signs)


class Stores:
    """Folders with a store of the first n notes, under one temporary folder."""

    def __init__(self, folder: Path, real: int) -> None:
        self._folder = folder
        self._embedder = ImitatingEmbedder(real)
        self._built: dict[int, Path] = {}
        self._copies = 0

    def home(self, size: int) -> Path:
        """Return the home of a read-only store with this many notes."""
        if size not in self._built:
            smaller = max((known for known in self._built if known < size), default=0)
            home = self._folder / f"store-{size}"
            if smaller:
                shutil.copytree(self._built[smaller], home)
            self._grow(home, smaller, size)
            self._built[size] = home
        return self._built[size]

    def copy(self, size: int) -> Path:
        """Return the home of a writable copy of such a store."""
        self._copies += 1
        home = self._folder / f"copy-{self._copies}"
        shutil.copytree(self.home(size), home)
        return home

    def _grow(self, home: Path, smaller: int, size: int) -> None:
        texts = corpus.load_notes(size)
        app = App(Sqlite(home / FILE), self._embedder)
        try:
            with connect.use_app(app):
                for first in range(smaller, size, EMBED_BATCH_SIZE):
                    api.store_batch(texts[first : min(size, first + EMBED_BATCH_SIZE)])
        finally:
            app.close()
