"""The bundled embedding model: all-MiniLM-L6-v2, quantized to int8, on the CPU."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from athena.core import memory_limit
from athena.core.threads import check_stopped
from athena.embedding.embedder import Excerpt, PassageEncoding, QuestionEncoding, TokenStates
from athena.errors import AthenaError, Unavailable

# numpy, onnxruntime and tokenizers take 90 ms to import: only a process that embeds something pays for them.
if TYPE_CHECKING:
    from mmap import mmap

    import numpy as np
    from numpy.typing import NDArray
    from tokenizers import Encoding, Tokenizer

BUNDLED_MODEL_DIR = Path(__file__).parent / "minilm"
CHECKSUMS_FILE = "SHA256SUMS"  # scripts/build_model.py writes it: every file that we load stands there
MODEL_FILE = "model.onnx"
ADAPTED_MODEL_FILE = "adapted.onnx"  # the same layers and weights; adapters are inputs of the graph

MAX_TEXT_TOKENS = 256  # the model was trained on no longer texts
PROJECTION_BATCH_TOKENS = 5
MAX_TEXT_CHARS = 100 * MAX_TEXT_TOKENS  # so that the tokenizer does not split a whole book for its first 256 tokens
MAX_BATCH_TOKENS = 256  # with padding; larger batches do not fit the CPU caches and are slower
TOKENIZE_BATCH_SIZE = 256  # enough to find texts of similar length for each batch

Output = TypeVar("Output")


class LoadedModel(NamedTuple):
    """A model in memory, and the errors that it raises."""

    session: Any
    tokenizer: Tokenizer
    failures: tuple[type[Exception], ...]


class MiniLM:
    """Embed texts with the bundled model, loaded at the first use.

    A text has one vector: each token is rounded separately, so the batch that a text is in moves its vector by
    float noise only (2e-7 a component).
    """

    name = "athena-minilm/int8/1"
    compatible_models: tuple[str, ...] = ("all-MiniLM-L6-v2/int8/1",)
    dimensions = 384

    def __init__(self, threads: int | None = None, folder: Path | None = None) -> None:
        self._threads = threads or min(4, os.cpu_count() or 1)
        self._folder = folder or BUNDLED_MODEL_DIR
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._loaded: LoadedModel | None = None
        self._adapted: LoadedModel | None = None
        self._adapted_used_at = 0.0  # by time.monotonic
        self._abandoned: list[LoadedModel] = []
        self._projection_matrix: NDArray[np.float32] | None = None

    @property
    def is_bundled(self) -> bool:
        """Return whether this is the model of the package, which the adapters were trained for."""
        return self._folder == BUNDLED_MODEL_DIR

    def load(self) -> None:
        """Load the model now."""
        self._ensure_loaded()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as the rows of a matrix; only the first 256 tokens of a text count."""
        rows = self._run_texts(texts, "embedding", lambda _, vector: vector)
        import numpy as np

        return np.array(rows, np.float32).reshape(len(texts), self.dimensions)

    def embed_tokens(self, texts: Sequence[str]) -> list[TokenStates]:
        """Return the first 256 tokens of each text with their states in context."""
        return self._run_texts(texts, "states", _to_token_states)

    def embed_adapted(
        self, texts: Sequence[str | tuple[str, str]], adapter: Mapping[str, NDArray[np.float32]]
    ) -> list[TokenStates]:
        """Return the tokens of texts or of pairs of texts, with the states that an adapter of the layers gives."""
        return self._run_texts(texts, "states", _to_token_states, adapter)

    def encode_passages(
        self, excerpts: Sequence[Excerpt], adapter: Mapping[str, NDArray[np.float32]] | None = None
    ) -> list[PassageEncoding]:
        """Encode passages, each in the context of its neighbours; with an adapter of the layers, if given."""
        texts = [excerpt.header + excerpt.before + excerpt.text + excerpt.after for excerpt in excerpts]
        # Either checks the memory limit before numpy is loaded.
        states = self.embed_tokens(texts) if adapter is None else self.embed_adapted(texts, adapter)
        projection = self._load_projection()
        return [
            _to_passage_encoding(tokens, excerpt, projection) for tokens, excerpt in zip(states, excerpts, strict=True)
        ]

    def encode_question(
        self, question: str, adapter: Mapping[str, NDArray[np.float32]] | None = None
    ) -> QuestionEncoding:
        """Encode a question; with an adapter of the layers, if given."""
        # Either checks the memory limit before numpy is loaded.
        (tokens,) = self.embed_tokens([question]) if adapter is None else self.embed_adapted([question], adapter)
        import numpy as np

        mean = tokens.states.mean(axis=0)
        inner = slice(1, -1) if len(tokens.ids) > 2 else slice(None)
        token_vectors = project_states(tokens.states[inner], self._load_projection())
        token_vectors /= np.maximum(np.linalg.norm(token_vectors, axis=1, keepdims=True), 1e-6)
        return QuestionEncoding(mean / max(float(np.linalg.norm(mean)), 1e-6), token_vectors, tokens.offsets[inner])

    def split_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return where each token of a text begins and ends, without running the model."""
        offsets = self._ensure_loaded().tokenizer.encode(_to_valid_utf8(text)).offsets
        return [(start, end) for start, end in offsets if end > start]

    def _load_projection(self) -> NDArray[np.float32]:
        if self._projection_matrix is None:
            import io

            import numpy as np

            content = ModelFiles(self._folder).read_file("projection.npy")
            self._projection_matrix = np.load(io.BytesIO(content), allow_pickle=False)
        return self._projection_matrix

    def _ensure_loaded(self, *, is_adapted: bool = False) -> LoadedModel:
        if self._pid != os.getpid():
            # After a fork another thread may have held the lock or been inside the session, and in the child
            # it never leaves. Neither is used again, nor freed, which would wait as well.
            self._lock = threading.Lock()
            self._abandoned += filter(None, (self._loaded, self._adapted))
            self._pid, self._loaded, self._adapted = os.getpid(), None, None
        with self._lock:
            if self._loaded is None:
                memory_limit.check_room("onnxruntime", memory_limit.MODEL_BYTES, "the model")
                self._loaded = _load_model(self._folder)
            if not is_adapted:
                return self._loaded
            if self._adapted is None:
                self._adapted = _load_model(self._folder, ADAPTED_MODEL_FILE, self._loaded.tokenizer)
            self._adapted_used_at = time.monotonic()
            return self._adapted

    def release_adapted(self, unused_s: float) -> bool:
        """Free the graph for adapters if nobody has used it for so long; the next use loads it again (75 ms of CPU)."""
        if self._adapted is None or time.monotonic() - self._adapted_used_at < unused_s:
            return False
        self._adapted = None  # a call that runs it keeps it until its end
        return True

    def _run_texts(
        self,
        texts: Sequence[str | tuple[str, str]],
        output: str,
        convert: Callable[[Encoding, NDArray[np.float32]], Output],
        adapter: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> list[Output]:
        loaded = self._ensure_loaded(is_adapted=adapter is not None)
        outputs: list[Output] = []
        for start in range(0, len(texts), TOKENIZE_BATCH_SIZE):
            check_stopped()
            # Not `encode_batch`: its pool of threads does not survive a fork and says so on stderr.
            encodings = [
                loaded.tokenizer.encode(_to_valid_utf8(text))
                if isinstance(text, str)
                else loaded.tokenizer.encode(_to_valid_utf8(text[0]), _to_valid_utf8(text[1]))
                for text in texts[start : start + TOKENIZE_BATCH_SIZE]
            ]
            results = _run_batches(loaded, encodings, output, self._threads, adapter or {})
            outputs.extend(convert(encoding, results[row]) for row, encoding in enumerate(encodings))
        return outputs


class ModelFiles:
    """The files of a model: each one must match its checksum."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            lines = (folder / CHECKSUMS_FILE).read_text("ascii").splitlines()
            self._digests = {name: digest for digest, name in (line.split("  ") for line in lines)}
        except (OSError, ValueError) as error:
            raise _create_unavailable(error) from error

    def get_digest(self, name: str) -> str:
        """Return the checksum that a file must have; empty if there is none."""
        return self._digests.get(name, "")

    def read_file(self, name: str) -> bytes:
        """Read a file and check it."""
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            raise _create_unavailable(error) from error
        self._check_content(name, content)
        return content

    def start_check(self, name: str) -> Callable[[], Path]:
        """Start to check a large file in a thread; return a function that waits for it and returns the real path."""
        errors: list[AthenaError] = []
        path = self._folder / name

        def check_file() -> None:
            import mmap

            try:
                # mapped, because the model maps it as well: nothing is copied, and the hash runs without the GIL
                with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    self._check_content(name, content)
            except AthenaError as error:
                errors.append(error)
            except (OSError, ValueError) as error:  # ValueError: an empty file
                errors.append(_create_unavailable(error))

        def wait_for_check() -> Path:
            thread.join()
            if errors:
                raise errors[0]
            return path.resolve()

        thread = threading.Thread(target=check_file, daemon=True)
        thread.start()
        return wait_for_check

    def _check_content(self, name: str, content: bytes | mmap) -> None:
        import hashlib  # 3 ms, for OpenSSL

        if hashlib.sha256(content).hexdigest() != self._digests.get(name):
            raise _create_unavailable(f"{self._folder / name} is damaged")


def _load_model(folder: Path, graph_file: str = MODEL_FILE, tokenizer: Tokenizer | None = None) -> LoadedModel:
    files = ModelFiles(folder)
    wait_for_weights = files.start_check("weights.bin")  # while the libraries are imported
    # From 1.29 on onnxruntime sends telemetry for every session, and its telemetry thread makes a forked child
    # hang at exit. Only this variable, set before the import, disables all of it.
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
    # For a process that imported onnxruntime before.
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    # The file was optimized when it was built; optimizing again would only delay the start.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # One thread for each batch, and batches in parallel: faster than splitting each product, and onnxruntime has
    # no threads that spin between queries or are missing after a fork.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # Both would hold the memory of the largest batch for ever, and save no time.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    if tokenizer is None:
        tokenizer = Tokenizer.from_buffer(files.read_file("tokenizer.json"))
        tokenizer.enable_truncation(MAX_TEXT_TOKENS)
    graph = files.read_file(graph_file)
    # The graph comes from memory, so onnxruntime has to be told where the weights are: the real folder, not a link.
    weights_folder = str(wait_for_weights().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", weights_folder)
    try:
        session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except (OSError, *failures) as error:
        raise _create_unavailable(error) from error
    return LoadedModel(session, tokenizer, failures)


def _create_unavailable(cause: object) -> Unavailable:
    return Unavailable(
        f"the embedding model cannot be loaded: {cause}",
        hint="Install athena-memory again: the model is in its wheel, and the libraries are its dependencies.",
        retry=False,
    )


def _run_batches(
    loaded: LoadedModel,
    encodings: list[Encoding],
    output: str,
    threads: int,
    adapter: Mapping[str, NDArray[np.float32]],
) -> dict[int, NDArray[np.float32]]:
    """Run tokenized texts through the model, batches in parallel; return the output by row."""
    batches = _batch_by_length([len(encoding.ids) for encoding in encodings])
    results: dict[int, NDArray[np.float32]] = {}
    failures: list[Exception] = []

    def run_worker() -> None:
        import numpy as np

        while batches and not failures:
            try:
                rows = batches.popleft()
            except IndexError:  # another thread took the last one
                return
            ids = np.zeros((len(rows), len(encodings[rows[-1]].ids)), np.int64)
            mask = np.zeros_like(ids)
            for i, row in enumerate(rows):
                length = len(encodings[row].ids)
                ids[i, :length] = encodings[row].ids
                mask[i, :length] = 1
            try:
                (values,) = loaded.session.run([output], {"input_ids": ids, "attention_mask": mask, **adapter})
            except loaded.failures as error:
                failures.append(error)
                return
            results.update(zip(rows, values, strict=True))

    # Daemon threads, so that the end of the process does not wait for them.
    workers = [threading.Thread(target=run_worker, daemon=True) for _ in range(min(threads, len(batches)) - 1)]
    for thread in workers:
        thread.start()
    try:
        run_worker()
    finally:
        batches.clear()
        for thread in workers:
            thread.join()
    if failures:
        raise Unavailable(f"the embedding model failed: {failures[0]}") from failures[0]
    return results


def _batch_by_length(lengths: list[int]) -> deque[list[int]]:
    """Batch texts of similar length, the longest first, so that no thread ends long after the others."""
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
    """Project token states onto the directions in which words differ most."""
    import numpy as np

    unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-6)
    # Products this small stay on one thread; larger ones wake OpenBLAS threads, which then spin.
    size = PROJECTION_BATCH_TOKENS if len(unit) <= 16 * PROJECTION_BATCH_TOKENS else len(unit)
    parts = [unit[start : start + size] @ projection[:-1] for start in range(0, max(1, len(unit)), size)]
    projected: NDArray[np.float32] = np.concatenate(parts) + projection[-1]
    return projected


def _to_passage_encoding(tokens: TokenStates, excerpt: Excerpt, projection: NDArray[np.float32]) -> PassageEncoding:
    import numpy as np

    offsets = np.array(tokens.offsets, np.int64).reshape(-1, 2)
    first = len(excerpt.header) + len(excerpt.before)
    is_token = offsets[:, 1] > offsets[:, 0]
    is_own = is_token & (offsets[:, 0] >= first) & (offsets[:, 1] <= first + len(excerpt.text))
    mean = tokens.states[is_own].mean(axis=0) if is_own.any() else tokens.states.mean(axis=0)
    vector = mean / max(float(np.linalg.norm(mean)), 1e-6)
    if excerpt.before or excerpt.after:
        return PassageEncoding(vector, b"")
    return PassageEncoding(
        vector, np.packbits(project_states(tokens.states[is_token], projection) > 0, axis=1).tobytes()
    )
