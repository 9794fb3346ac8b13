"""Tools by meaning: a vector for each, made once for each definition, in the background, and kept in a file."""

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from athena.core.hashing import hash_text
from athena.core.threads import run_sync, start_in_thread
from athena.discovery.entry import Entry, split_name, to_valid_utf8
from athena.discovery.lexical import analyse_entry
from athena.discovery.lexicon import find_phrases
from athena.embedding.embedder import Excerpt, PassageEncoding, QuestionEncoding
from athena.storage.arrays import multiply_on_one_thread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


TEXT_WEIGHT = 0.1  # what a standard deviation counts by a tool's own text; the best by words has 1
PHRASE_WEIGHT = 0.15  # and by the two likest things that people say
NO_PHRASE_WEIGHT = 0.18  # instead by its text again, where nobody knows what people say


class ToolTexts(NamedTuple):
    """What the model reads of some tools."""

    texts_by_key: dict[str, str]
    own_indexes: list[int]  # the place of each tool's text
    phrase_indexes: list[list[int]]  # those of what people say; as many for each tool, -1 where there are fewer


def collect_texts(entries: tuple[Entry, ...], meaning: "ToolVectors") -> ToolTexts:
    keyed: dict[str, str] = {}
    places: dict[str, int] = {}

    def add_text(text: str) -> int:
        if text not in places:  # two tools may read alike
            places[text] = len(keyed)
            keyed[meaning.compute_key(text)] = text
        return places[text]

    own = [add_text(to_model_text(entry)) for entry in entries]
    phrases = [[add_text(one) for one in find_phrases(entry)] for entry in entries]
    most = max(2, *map(len, phrases), 0)
    return ToolTexts(keyed, own, [some + [-1] * (most - len(some)) for some in phrases])


def score_similarities(likeness: "NDArray[Any]", texts: ToolTexts) -> "NDArray[Any]":
    """Return what each tool gets for its likeness to a request."""
    import numpy as np

    by_text = _to_z_scores(likeness[texts.own_indexes])
    known = np.nan_to_num(np.append(likeness, np.nan), nan=-np.inf)  # the last is where -1 points
    second, first = np.partition(known[texts.phrase_indexes], -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        best = np.where(np.isfinite(second), (first + second) / 2, first)
    best[~np.isfinite(best)] = np.nan
    by_said = np.where(np.isnan(best), NO_PHRASE_WEIGHT * by_text, PHRASE_WEIGHT * _to_z_scores(best))
    found: NDArray[Any] = TEXT_WEIGHT * by_text + by_said
    return found


def _to_z_scores(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return how far each stands out from those that are known; one that is not does not."""
    import numpy as np

    known = values[~np.isnan(values)]
    if len(known) < 2:
        return np.zeros_like(values)
    found: NDArray[Any] = np.nan_to_num((values - known.mean()) / max(float(known.std()), 1e-6))
    return found


BUILD_DELAY_S = 1.0  # seconds before vectors are made: a process that ends first has other things to do
VECTOR_BATCH_SIZE = 16  # small, since closing the store waits for the one in progress
MAX_WRITER_WAIT_S = 10.0  # seconds that those who write hold up a batch
MAX_STORED_VECTORS = 5_000  # vectors in the file; those in use first


class TextEncoder(Protocol):
    """What turns texts into vectors, and gives None while it does not work."""

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    @property
    def is_working(self) -> bool: ...
    def wait_for_writers(self, timeout_s: float) -> None: ...
    async def encode_question(self, question: str) -> QuestionEncoding | None: ...
    async def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding] | None: ...


class ToolVectors:
    """The vectors of tools. Until they are there, and while the model does not work, there are none."""

    def __init__(self, encoder: TextEncoder, file: str | None = None) -> None:
        self._encoder, self._file = encoder, file
        self._vectors: dict[str, Any] = {}  # never changed, but replaced
        self._matrix: tuple[Mapping[str, str], dict[str, Any], list[int], Any] | None = None
        self.is_ready = False  # the model is loaded, so that a question takes no longer than it must
        self._build_lock = threading.Lock()
        self._stopped = threading.Event()

    async def compute_similarities(self, request: str, texts: Mapping[str, str]) -> "NDArray[np.float32] | None":
        """Return how like a request each text is, not a number where that is not known."""
        if not (self.is_ready and self._encoder.is_working):
            return None
        rows, matrix = self._get_matrix(texts)
        asked = await self._encoder.encode_question(request) if len(rows) > 1 else None
        if asked is None:
            return None
        import numpy as np

        found = np.full(len(texts), np.nan, np.float32)
        found[rows] = multiply_on_one_thread(matrix, asked.vector)
        return found

    def _get_matrix(self, texts: Mapping[str, str]) -> tuple[list[int], Any]:
        """Return which texts have vectors, and these as a matrix; put together once for each set and each change."""
        known, vectors = self._matrix, self._vectors
        if known is None or known[0] is not texts or known[1] is not vectors:
            import numpy as np

            rows = [place for place, key in enumerate(texts) if key in vectors]
            stacked = np.array([vectors[key] for key in texts if key in vectors], np.float32)
            known = self._matrix = texts, vectors, rows, stacked
        return known[2], known[3]

    def schedule_build(self, wanted: Mapping[str, str], after: float = BUILD_DELAY_S) -> None:
        """Have vectors made for texts, given by their keys, on another thread, where any is missing."""
        if self._stopped.is_set() or (self.is_ready and wanted.keys() <= self._vectors.keys()):
            return
        if self._encoder.is_working and not self._build_lock.locked():
            start_in_thread(self._build_vectors, wanted, after)

    def stop(self) -> None:
        """End work in the background: a thread inside the model when the program ends would abort it."""
        self._stopped.set()
        if self._build_lock.acquire(timeout=5):
            self._build_lock.release()

    def compute_key(self, text: str) -> str:
        return hash_text(f"{self._encoder.name}\n{text}")[:32]

    def _build_vectors(self, wanted: Mapping[str, str], after: float) -> None:
        if not self._build_lock.acquire(blocking=False):
            return  # another thread is at it
        try:
            self._stopped.wait(after)
            if not self._vectors:
                self._vectors = self._load_file()
            missing = [key for key in wanted if key not in self._vectors]
            for at in range(0, len(missing), VECTOR_BATCH_SIZE):
                self._encoder.wait_for_writers(MAX_WRITER_WAIT_S)
                if self._stopped.is_set() or not self._add_vectors(
                    {key: wanted[key] for key in missing[at : at + VECTOR_BATCH_SIZE]}
                ):
                    return
            if not self._stopped.is_set():
                self.is_ready = self.is_ready or run_sync(self._encoder.encode_question("ready")) is not None
            if missing:
                self._save_file(wanted)
        finally:
            self._build_lock.release()

    def _add_vectors(self, wanted: dict[str, str]) -> bool:
        readings = run_sync(self._encoder.encode_passages([Excerpt(text) for text in wanted.values()]))
        if readings is None:
            return False
        made = {key: one.vector.astype("<f2") for key, one in zip(wanted, readings, strict=True)}
        self._vectors = self._vectors | made  # a search that goes on meanwhile keeps its own
        return True

    def _load_file(self) -> dict[str, Any]:
        """Return what the file holds; one that is damaged holds nothing."""
        import numpy as np

        if self._file is None:
            return {}
        try:
            rows = np.load(self._file, allow_pickle=False)
            if rows.dtype != self._row_dtype:
                return {}
        except (OSError, ValueError, EOFError):
            return {}
        return {key.decode("ascii", "replace"): vector for key, vector in rows}

    def _save_file(self, wanted: Iterable[str]) -> None:
        """Keep the vectors for the next start; another process that does the same may win."""
        import numpy as np

        if self._file is None or not os.path.isdir(os.path.dirname(self._file)):
            return
        chosen = list(dict.fromkeys([*wanted, *self._vectors]))[:MAX_STORED_VECTORS]
        rows = np.array([(key.encode(), self._vectors[key]) for key in chosen if key in self._vectors], self._row_dtype)
        part = f"{self._file}.{os.urandom(6).hex()}"
        try:
            with open(part, "xb") as file:
                np.save(file, rows, allow_pickle=False)
            os.replace(part, self._file)
        except OSError:  # a full disk, or a folder that is gone: they are made again next time
            if os.path.lexists(part):
                os.unlink(part)

    @property
    def _row_dtype(self) -> Any:
        import numpy as np

        return np.dtype([("key", "S32"), ("vector", "<f2", (self._encoder.dimensions,))])


def to_model_text(entry: Entry) -> str:
    """Return what the model reads of a tool."""
    about = entry.category_summary or entry.category
    also = "" if find_phrases(entry) else analyse_entry(entry).everyday_words
    return to_valid_utf8(f"{about}: {split_name(entry.name)}. {entry.summary} {entry.details} {also}"[:4_000])
