"""The bundled model: all-MiniLM-L6-v2 in integers, on the CPU."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from athena.embedding.embedder import Excerpt, PassageEncoding, QuestionEncoding, TokenStates
from athena.errors import Unavailable

# numpy, onnxruntime and tokenizers take 90 ms to import: only a process that embeds something pays for them.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Encoding, Tokenizer

BUNDLED_MODEL_DIR = Path(__file__).parent / "minilm"

# The model saw no longer text in training; its table of positions ends here.
MAX_TEXT_TOKENS = 256
PROJECTION_BATCH_TOKENS = 5  # tokens projected at once

# Far more than 256 tokens of any prose: without it a whole book would be split before its start is taken.
MAX_TEXT_CHARS = 100 * MAX_TEXT_TOKENS

# Padding included. What a batch of this size computes still fits the caches; a larger one is slower.
MAX_BATCH_TOKENS = 256

# So many texts are held as tokens at a time; enough of them are of like length to be put together.
TOKENIZE_BATCH_SIZE = 256

Kept = TypeVar("Kept")


class LoadedModel(NamedTuple):
    """A model in memory."""

    session: Any
    tokenizer: Tokenizer
    failures: tuple[type[Exception], ...]


class MiniLM:
    """Embed texts with the bundled model, loaded at the first use.

    A text has one vector: each token is rounded by itself, so the batch that a text is in moves its vector by
    float noise only (2e-7 a component).
    """

    name = "all-MiniLM-L6-v2/int8/1"
    dimensions = 384

    def __init__(self, threads: int | None = None, folder: Path | None = None) -> None:
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._folder = folder or BUNDLED_MODEL_DIR
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loaded: LoadedModel | None = None
        self._abandoned: list[LoadedModel] = []
        self._projection_matrix: NDArray[np.float32] | None = None

    def load(self) -> None:
        """Load the model now."""
        self._ensure_loaded()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as the rows of a matrix; only the first 256 tokens of a text count."""
        rows = self._run_texts(texts, "embedding", lambda _, vector: vector)
        import numpy as np

        return np.array(rows, np.float32).reshape(len(texts), self.dimensions)

    def embed_tokens(self, texts: Sequence[str]) -> list[TokenStates]:
        """Give each text's first 256 tokens with their states in context."""
        return self._run_texts(texts, "states", _to_token_states)

    def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding]:
        """Read passages, each with what stands around it."""
        texts = [one.header + one.before + one.text + one.after for one in excerpts]
        projection = self._load_projection()
        return [
            _to_passage_encoding(tokens, one, projection)
            for tokens, one in zip(self.embed_tokens(texts), excerpts, strict=True)
        ]

    def encode_question(self, question: str) -> QuestionEncoding:
        """Read a question."""
        import numpy as np

        (found,) = self.embed_tokens([question])
        mean = found.states.mean(axis=0)
        inner = slice(1, -1) if len(found.ids) > 2 else slice(None)
        short = project_states(found.states[inner], self._load_projection())
        short /= np.maximum(np.linalg.norm(short, axis=1, keepdims=True), 1e-6)
        return QuestionEncoding(mean / max(float(np.linalg.norm(mean)), 1e-6), short, found.offsets[inner])

    def _load_projection(self) -> NDArray[np.float32]:
        if self._projection_matrix is None:
            import numpy as np

            try:
                self._projection_matrix = np.load(self._folder / "projection.npy", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise _create_unavailable(error) from error
        return self._projection_matrix

    def _ensure_loaded(self) -> LoadedModel:
        if self._pid != os.getpid():
            # After a fork another thread may have held the lock or been inside the session, and in the child
            # it never leaves. Neither is used again, nor freed, which would wait as well.
            self._lock = threading.Lock()
            if self._loaded:
                self._abandoned.append(self._loaded)
            self._pid, self._loaded = os.getpid(), None
        with self._lock:
            if self._loaded is None:
                self._loaded = _load_model(self._folder)
            return self._loaded

    def _run_texts(
        self, texts: Sequence[str], output: str, keep: Callable[[Encoding, NDArray[np.float32]], Kept]
    ) -> list[Kept]:
        loaded = self._ensure_loaded()
        kept: list[Kept] = []
        for start in range(0, len(texts), TOKENIZE_BATCH_SIZE):
            # Not `encode_batch`: its pool of threads does not survive a fork and says so on stderr.
            encodings = [
                loaded.tokenizer.encode(_to_valid_utf8(text)) for text in texts[start : start + TOKENIZE_BATCH_SIZE]
            ]
            results = _run_batches(loaded, encodings, output, self._threads)
            kept.extend(keep(encoding, results[row]) for row, encoding in enumerate(encodings))
        return kept


def _load_model(folder: Path) -> LoadedModel:
    # From 1.29 on onnxruntime reports every session to its maker over the network, and its reporting thread
    # makes a forked child hang at exit. Only the environment, before the import, keeps all of it away.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as errors
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _create_unavailable(error) from error
    failures = (
        errors.Fail,
        errors.InvalidArgument,
        errors.InvalidGraph,
        errors.InvalidProtobuf,
        errors.NoSuchFile,
        errors.NotImplemented,
        errors.RuntimeException,
    )
    # For a program that had imported it before.
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    # The file is built as it is to run; looking for more to do would only delay the start.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # One thread a batch and batches side by side: faster than sharing out each product, for one text too, and
    # no thread of onnxruntime's is left to burn the CPU between queries or to be missing after a fork.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Both would keep the largest batch's memory for ever, and save no time.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    try:
        tokenizer = Tokenizer.from_buffer(_read_verified(folder, "tokenizer.json"))
        # Resolved, because onnxruntime looks for the weights beside the file and not beside a link to it.
        model = (folder / "model.onnx").resolve(strict=True)
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except (OSError, *failures) as error:
        raise _create_unavailable(error) from error
    tokenizer.enable_truncation(MAX_TEXT_TOKENS)
    return LoadedModel(session, tokenizer, failures)


def _read_verified(folder: Path, name: str) -> bytes:
    """Read a file that has the sum it was built with; tokenizers has no error of its own for a damaged one."""
    import hashlib  # 3 ms, for OpenSSL

    content = (folder / name).read_bytes()
    line = f"{hashlib.sha256(content).hexdigest()}  {name}"
    if line not in (folder / "SHA256SUMS").read_text().splitlines():
        raise _create_unavailable(f"{folder / name} is damaged")
    return content


def _create_unavailable(cause: object) -> Unavailable:
    return Unavailable(
        f"the embedding model cannot be loaded: {cause}",
        hint="Install athena-memory again: the model is in its wheel, and the libraries are its dependencies.",
        retry=False,
    )


def _run_batches(
    loaded: LoadedModel, encodings: list[Encoding], output: str, threads: int
) -> dict[int, NDArray[np.float32]]:
    """Run tokenised texts through the model, batches side by side; give the output by row."""
    batches = _batch_by_length([len(encoding.ids) for encoding in encodings])
    results: dict[int, NDArray[np.float32]] = {}
    problems: list[Exception] = []

    def run_worker() -> None:
        import numpy as np

        while batches and not problems:
            try:
                rows = batches.popleft()
            except IndexError:  # another thread took the last one
                return
            ids = np.zeros((len(rows), len(encodings[rows[-1]].ids)), np.int64)
            mask = np.zeros_like(ids)
            for place, row in enumerate(rows):
                length = len(encodings[row].ids)
                ids[place, :length] = encodings[row].ids
                mask[place, :length] = 1
            try:
                (values,) = loaded.session.run([output], {"input_ids": ids, "attention_mask": mask})
            except loaded.failures as error:
                problems.append(error)
                return
            results.update(zip(rows, values, strict=True))

    # Daemons, so that the end of the program does not wait for them.
    helpers = [threading.Thread(target=run_worker, daemon=True) for _ in range(min(threads, len(batches)) - 1)]
    for helper in helpers:
        helper.start()
    try:
        run_worker()
    finally:
        batches.clear()
        for helper in helpers:
            helper.join()
    if problems:
        raise Unavailable(f"the embedding model failed: {problems[0]}") from problems[0]
    return results


def _batch_by_length(lengths: list[int]) -> deque[list[int]]:
    """Put texts of like length together, the longest batches first, so that no thread ends long after the rest."""
    batches: deque[list[int]] = deque()
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and lengths[row] * (len(rows) + 1) > MAX_BATCH_TOKENS:
            batches.appendleft(rows)
            rows = []
        rows.append(row)
    if rows:
        batches.appendleft(rows)
    return batches


def _to_token_states(encoding: Encoding, states: NDArray[np.float32]) -> TokenStates:
    import numpy as np

    # A copy, so that a short text does not keep its whole padded batch in memory.
    return TokenStates(np.array(encoding.ids, np.int64), encoding.offsets, states[: len(encoding.ids)].copy())


def _to_valid_utf8(text: str) -> str:
    # A lone surrogate cannot be written as UTF-8, which is all that the tokenizer reads.
    return text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode()


def project_states(states: NDArray[np.float32], projection: NDArray[np.float32]) -> NDArray[np.float32]:
    """Centre token states and keep the directions in which words differ."""
    import numpy as np

    unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-6)
    # A question's few tokens in parts that OpenBLAS does on this thread: its other threads go on burning the CPU.
    some = PROJECTION_BATCH_TOKENS if len(unit) <= 16 * PROJECTION_BATCH_TOKENS else len(unit)
    parts = [unit[at : at + some] @ projection[:-1] for at in range(0, max(1, len(unit)), some)]
    shortened: NDArray[np.float32] = np.concatenate(parts) + projection[-1]
    return shortened


def _to_passage_encoding(tokens: TokenStates, excerpt: Excerpt, projection: NDArray[np.float32]) -> PassageEncoding:
    import numpy as np

    places = np.array(tokens.offsets, np.int64).reshape(-1, 2)
    first = len(excerpt.header) + len(excerpt.before)
    real = places[:, 1] > places[:, 0]
    own = real & (places[:, 0] >= first) & (places[:, 1] <= first + len(excerpt.text))
    mean = tokens.states[own].mean(axis=0) if own.any() else tokens.states.mean(axis=0)
    vector = mean / max(float(np.linalg.norm(mean)), 1e-6)
    if excerpt.before or excerpt.after:
        return PassageEncoding(vector, b"")
    return PassageEncoding(vector, np.packbits(project_states(tokens.states[real], projection) > 0, axis=1).tobytes())
