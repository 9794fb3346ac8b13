"""Score tools by similarity: encodings of definitions and phrases, built once in the background and kept in a file."""

import contextlib
import io
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from athena.core.files import write_file_atomically
from athena.core.hashing import hash_text
from athena.core.threads import run_sync, sleep, start_in_thread
from athena.discovery.entry import ToolEntry, split_name, to_valid_utf8
from athena.discovery.lexicon import find_phrases
from athena.embedding.embedder import Excerpt, PassageEncoding, QuestionEncoding
from athena.memory.ranking import NEIGHBOR_DISCOUNTS, score_by_tokens
from athena.storage.arrays import TOKEN_SIGN_BYTES, build_token_sets, multiply_on_one_thread

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ADAPTER_FILE = Path(__file__).with_name("tools.npz")  # of the bundled model, by scripts/train_tool_adapter.py
# Scores of one standard deviation of similarity; a tool that has all words of the request has nearly 1.
SIMILARITY_WEIGHT = 0.25  # of the tool's definition and phrases
OWN_SIMILARITY_WEIGHT = 0.3  # the same for an operation that declares its phrases: they are certainly for it
TOKEN_WEIGHT = 0.07  # of the definition, token by token, for all other tools
PHRASE_SHARE = 0.33  # of phrases from phrases.txt, beside the definition
BUILD_DELAY_S = 1.0  # a process that exits sooner need not build vectors
VECTOR_BATCH_SIZE = 16  # small, since closing the store waits for the batch in progress
MAX_ENCODED_AT_ONCE = 16  # texts of new tools that a search encodes itself, in about 0.1 s
MAX_WRITER_WAIT_S = 10.0  # how long writers may hold up a batch
READY_INTERVAL_S = 0.05
MAX_STORED_TEXTS = 10_000
MAX_DESCRIPTION_CHARS = 600  # as in the texts that the model was trained with
MAX_PARAMETERS = 12


class ToolTexts(NamedTuple):
    """The texts of a set of tools that the model encodes."""

    texts_by_key: dict[str, str]
    own_indexes: list[int]  # of each tool's definition
    phrase_indexes: list[list[int]]  # of each tool's phrases, padded with -1 to one length
    declares_phrases: list[bool]  # whether the tool itself does, rather than phrases.txt by its name
    token_keys: list[str]  # of the text of each tool that is compared token by token; empty for none


def collect_texts(entries: tuple[ToolEntry, ...], vectors: "ToolVectors") -> ToolTexts:
    """Collect the definitions and phrases of tools, each text once."""
    texts_by_key: dict[str, str] = {}
    indexes: dict[str, int] = {}

    def add_text(text: str) -> int:
        if text not in indexes:
            indexes[text] = len(texts_by_key)
            texts_by_key[vectors.compute_key(text)] = text
        return indexes[text]

    own = [add_text(to_model_text(entry)) for entry in entries]
    phrases = [[add_text(phrase) for phrase in find_phrases(entry)] for entry in entries]
    width = max(2, *map(len, phrases), 0)
    keys = list(texts_by_key)
    padded = [row + [-1] * (width - len(row)) for row in phrases]
    declares = [entry.declares_phrases for entry in entries]
    token_keys = ["" if is_declared else keys[i] for i, is_declared in zip(own, declares, strict=True)]
    return ToolTexts(texts_by_key, own, padded, declares, token_keys)


def to_model_text(entry: ToolEntry) -> str:
    """Return the text of a tool that the model encodes, in the form that the model was trained with."""
    description = " ".join(f"{entry.summary} {entry.details}".split())[:MAX_DESCRIPTION_CHARS]
    parameters = ", ".join(split_name(name) for name, _ in entry.parameters[:MAX_PARAMETERS])
    return to_valid_utf8(f"{split_name(entry.category)}: {split_name(entry.name)}. {description} {parameters}")


def score_similarities(similarities: "NDArray[Any]", texts: ToolTexts) -> "NDArray[Any]":
    """Return a score for each tool from the similarities of all texts to a request."""
    import numpy as np  # heavy: only where vectors are compared

    padded = np.nan_to_num(np.append(similarities, np.nan), nan=-np.inf)  # -1 refers to the last value
    second, first = np.partition(padded[texts.phrase_indexes], -2, axis=1)[:, -2:].T
    with np.errstate(invalid="ignore"):
        phrases = np.where(np.isfinite(second), (first + second) / 2, first)
    own = similarities[texts.own_indexes]
    phrases = np.where(np.isfinite(phrases), phrases, own)
    mixed = own + PHRASE_SHARE * (phrases - own)
    pooled = np.where(texts.declares_phrases, np.fmax(own, phrases), mixed)
    weights = np.where(texts.declares_phrases, OWN_SIMILARITY_WEIGHT, SIMILARITY_WEIGHT)
    scores: NDArray[Any] = weights * to_z_scores(pooled)
    return scores


def to_z_scores(values: "NDArray[Any]") -> "NDArray[Any]":
    """Return by how many standard deviations each value exceeds the mean; 0 for NaN."""
    import numpy as np  # heavy: only where vectors are compared

    known = values[~np.isnan(values)]
    if len(known) < 2:
        return np.zeros_like(values)
    scores: NDArray[Any] = np.nan_to_num((values - known.mean()) / max(float(known.std()), 1e-6))
    return scores


class StoredEncoding(NamedTuple):
    """The encoding of a text of a tool."""

    vector: "NDArray[Any]"
    signs: bytes  # TOKEN_SIGN_BYTES for each token


class RequestComparison(NamedTuple):
    """A request, encoded, with the similarity of each text to it."""

    question: QuestionEncoding
    similarities: "NDArray[np.float32]"  # NaN for a text without a vector


class TextEncoder(Protocol):
    """An encoder of texts that returns None while the model does not work."""

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
    """The encodings of tools; there are none until they are built, or while the model does not work."""

    def __init__(self, encoder: TextEncoder, file: str | None = None) -> None:
        self._encoder, self._file = encoder, file
        self._encodings: dict[str, StoredEncoding] = {}  # replaced, never changed: a search may be reading it
        self._matrix: tuple[Mapping[str, str], dict[str, StoredEncoding], list[int], Any] | None = None
        self.is_ready = False  # encodings are built and the model is loaded
        self._build_lock = threading.Lock()
        self._stopped = threading.Event()

    async def compare_request(self, request: str, texts: Mapping[str, str]) -> RequestComparison | None:
        """Encode a request and compare it with each text; None while there are no vectors."""
        if not (self.is_ready and self._encoder.is_working):
            return None
        await self._encode_few(texts)
        rows, matrix = self._get_matrix(texts)
        question = await self._encoder.encode_question(request) if len(rows) > 1 else None
        if question is None:
            return None
        import numpy as np  # heavy: only where vectors are compared

        similarities = np.full(len(texts), np.nan, np.float32)
        similarities[rows] = multiply_on_one_thread(matrix, question.vector)
        return RequestComparison(question, similarities)

    async def _encode_few(self, texts: Mapping[str, str]) -> None:
        """Encode texts without a vector now if they are few: a tool that was just added would lose to all others."""
        missing = [key for key in texts if key not in self._encodings]
        if not 0 < len(missing) <= MAX_ENCODED_AT_ONCE or not self._build_lock.acquire(blocking=False):
            return
        try:
            await self._add_vectors({key: texts[key] for key in missing})
        finally:
            self._build_lock.release()

    def compare_tokens(
        self, question: QuestionEncoding, word_weights: list[tuple[int, int, float]], keys: Sequence[str]
    ) -> "NDArray[Any] | None":
        """Return by how many standard deviations each text stands out, token by token; None without tokens."""
        import numpy as np  # heavy: only where vectors are compared

        encodings = self._encodings
        signs = {i: encodings[key].signs for i, key in enumerate(keys) if key in encodings and encodings[key].signs}
        if not signs or not len(question.token_vectors):
            return None
        owners = np.arange(len(keys))
        alone = np.full((len(keys), 1 + len(NEIGHBOR_DISCOUNTS)), -1)  # a tool has no neighbours
        alone[:, 0] = owners
        scores = score_by_tokens(
            question, word_weights, build_token_sets(signs, alone, owners), np.zeros(len(keys), np.float32)
        )
        return None if scores is None else to_z_scores(scores)

    def _get_matrix(self, texts: Mapping[str, str]) -> tuple[list[int], Any]:
        """Return the indexes of the texts that have vectors, and these as a matrix; cached until either changes."""
        cached, encodings = self._matrix, self._encodings
        if cached is None or cached[0] is not texts or cached[1] is not encodings:
            import numpy as np  # heavy: only where vectors are compared

            rows = [i for i, key in enumerate(texts) if key in encodings]
            matrix = np.array([encodings[key].vector for key in texts if key in encodings], np.float32)
            cached = self._matrix = texts, encodings, rows, matrix
        return cached[2], cached[3]

    def schedule_build(self, texts: Mapping[str, str], delay_s: float = BUILD_DELAY_S) -> None:
        """Build missing vectors of texts, given by their keys, in another thread."""
        if self._stopped.is_set() or (self.is_ready and texts.keys() <= self._encodings.keys()):
            return
        if self._encoder.is_working and not self._build_lock.locked():
            start_in_thread(self._build_vectors, texts, delay_s)

    def stop(self) -> None:
        """Stop building and wait for it: a thread inside the model at exit would abort the process."""
        self._stopped.set()
        if self._build_lock.acquire(timeout=5):
            self._build_lock.release()

    def compute_key(self, text: str) -> str:
        return hash_text(f"{self._encoder.name}\n{text}")[:32]

    def _build_vectors(self, texts: Mapping[str, str], delay_s: float) -> None:
        if not self._build_lock.acquire(blocking=False):
            return  # another thread builds them
        try:
            self._stopped.wait(delay_s)
            if not self._encodings:
                self._encodings = self._load_file()
            missing = [key for key in texts if key not in self._encodings]
            if 2 * len(missing) < len(texts):  # those of an earlier start are enough to begin with
                self._set_ready()
            for i in range(0, len(missing), VECTOR_BATCH_SIZE):
                self._encoder.wait_for_writers(MAX_WRITER_WAIT_S)
                batch = {key: texts[key] for key in missing[i : i + VECTOR_BATCH_SIZE]}
                if self._stopped.is_set() or not run_sync(self._add_vectors(batch)):
                    return
            self._set_ready()
            if missing:
                self._save_file(texts)
        finally:
            self._build_lock.release()

    def _set_ready(self) -> None:
        if not self._stopped.is_set() and not self.is_ready:
            self.is_ready = run_sync(self._encoder.encode_question("ready")) is not None

    async def wait_until_ready(self, texts: Mapping[str, str], timeout_s: float) -> None:
        """Build the vectors of texts now, and wait for them as long as the model works."""
        deadline = time.monotonic() + timeout_s
        while not self.is_ready and self._encoder.is_working and time.monotonic() < deadline:
            self.schedule_build(texts, 0.0)
            await sleep(READY_INTERVAL_S)

    async def _add_vectors(self, batch: dict[str, str]) -> bool:
        """Encode a batch of texts; return False if the model does not work."""
        encodings = await self._encoder.encode_passages([Excerpt(text) for text in batch.values()])
        if encodings is None:
            return False
        self._encodings = self._encodings | {
            key: StoredEncoding(encoding.vector.astype("<f2"), encoding.signs)
            for key, encoding in zip(batch, encodings, strict=True)
        }
        return True

    def _load_file(self) -> dict[str, StoredEncoding]:
        """Return the encodings in the file, none if it is damaged or of another version."""
        import numpy as np  # heavy: only where vectors are built

        if self._file is None:
            return {}
        try:
            with open(self._file, "rb") as file:
                rows, signs = (np.load(file, allow_pickle=False) for _ in range(2))
            if rows.dtype != self._row_dtype or signs.dtype != np.uint8:
                return {}
            ends = np.cumsum(rows["tokens"]) * TOKEN_SIGN_BYTES
            if len(rows) and ends[-1] != len(signs):
                return {}
        except (OSError, ValueError, EOFError):
            return {}
        blob = signs.tobytes()
        return {
            row["key"].decode("ascii", "replace"): StoredEncoding(
                row["vector"], blob[end - int(row["tokens"]) * TOKEN_SIGN_BYTES : end]
            )
            for row, end in zip(rows, ends.tolist(), strict=True)
        }

    def _save_file(self, keys_in_use: Iterable[str]) -> None:
        """Keep the encodings for the next start, those in use first; the last process that writes wins."""
        import numpy as np  # heavy: only where vectors are built

        if self._file is None or not os.path.isdir(os.path.dirname(self._file)):
            return
        keys = dict.fromkeys([*keys_in_use, *self._encodings])
        stored = [(key, self._encodings[key]) for key in keys if key in self._encodings][:MAX_STORED_TEXTS]
        rows = np.array(
            [(key.encode(), one.vector, len(one.signs) // TOKEN_SIGN_BYTES) for key, one in stored], self._row_dtype
        )
        buffer = io.BytesIO()
        np.save(buffer, rows, allow_pickle=False)
        np.save(buffer, np.frombuffer(b"".join(one.signs for _, one in stored), np.uint8), allow_pickle=False)
        with contextlib.suppress(OSError):  # a full disk, or a removed folder: the next start builds them again
            write_file_atomically(self._file, buffer.getbuffer(), sync=False)

    @property
    def _row_dtype(self) -> Any:
        import numpy as np  # heavy: only where vectors are built

        return np.dtype([("key", "S32"), ("vector", "<f2", (self._encoder.dimensions,)), ("tokens", "<u2")])
