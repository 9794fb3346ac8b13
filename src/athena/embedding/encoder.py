"""Encode texts with an embedding model, and continue without vectors while it fails."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from athena.core.threads import run_in_thread
from athena.core.values import ModelNames
from athena.embedding.adapters import load_adapter, read_digest
from athena.embedding.embedder import Embedder, Excerpt, PassageEncoding, QuestionEncoding
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError, Unavailable

A = TypeVar("A")
T = TypeVar("T")
RETRY_DELAY_S = 30.0
MAX_SLICE_CHARS = 400  # that the model reads at once in the background: some 10 ms
MAX_PAUSE_S = 2.0  # between two slices
QUIET_S = 0.02  # without a call, before patient work goes on
POLL_INTERVAL_S = 0.01
DIGEST_CHARS = 16  # of an adapter, in the name of a model
MAX_CALLER_WAIT_S = 0.25  # that a slice waits for callers who never pause
MAX_KEPT_QUESTIONS = 256  # whose encodings are kept, some 7 KB each
MAX_KEPT_QUESTION_CHARS = 200
MAX_UNUSED_ADAPTERS_S = 60.0  # that a server keeps adapters and their graph, which have 30 MB


class Encoder:
    """An embedder that may fail: it then returns None, sets `last_error` and retries after `RETRY_DELAY_S`."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.last_error: AthenaError | None = None
        self._failed_at = 0.0
        self.backlog_lock = threading.Lock()
        self.busy_until = 0.0  # monotonic time at which writers are expected to be done
        self._stopped = threading.Event()
        self._calls = 0  # searches and other calls in progress that somebody waits for
        self._last_call_at = 0.0
        self._calls_guard = threading.Lock()
        self.reembed_lock = threading.Lock()
        self._questions_guard = threading.Lock()
        self.kept_questions: dict[str, QuestionEncoding] = {}  # the last asked is the last

    @property
    def name(self) -> str:
        return self.embedder.name

    @property
    def models(self) -> ModelNames:
        return ModelNames(self.name, tuple(name for name in self.embedder.compatible_models if name != self.name))

    @property
    def dimensions(self) -> int:
        return self.embedder.dimensions

    @property
    def is_working(self) -> bool:
        return self.last_error is None and not self._stopped.is_set()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """End background work: a thread inside the model at the end of the process would abort it."""
        self._stopped.set()
        for lock in (self.backlog_lock, self.reembed_lock):
            if lock.acquire(timeout=5):
                lock.release()

    def release_unused(self) -> bool:
        """Free what tool search and learning load if they have not used it for a while; return whether it did."""
        if not isinstance(self.embedder, MiniLM) or not self.embedder.release_adapted(MAX_UNUSED_ADAPTERS_S):
            return False
        load_adapter.cache_clear()
        return True

    def sleep_until_stopped(self, seconds: float) -> None:
        self._stopped.wait(seconds)

    @contextmanager
    def mark_call(self) -> Iterator[None]:
        """Let patient work wait while somebody waits for this one."""
        with self._calls_guard:
            self._calls += 1
        try:
            yield
        finally:
            with self._calls_guard:
                self._calls -= 1
                self._last_call_at = time.monotonic()

    def _wait_for_quiet(self) -> None:
        end = time.monotonic() + MAX_CALLER_WAIT_S
        while time.monotonic() < end and not self._stopped.is_set():
            is_quiet = not self._calls and time.monotonic() - self._last_call_at >= QUIET_S
            if is_quiet and not self.backlog_lock.locked():
                return
            self._stopped.wait(POLL_INTERVAL_S)

    def wait_for_writers(self, timeout_s: float) -> None:
        """Wait until writers are done, so that background work does not slow them down; `stop` ends the wait."""
        end = time.monotonic() + timeout_s
        while (left := min(self.busy_until, end) - time.monotonic()) > 0 and not self._stopped.is_set():
            self._stopped.wait(left)

    def without_model(self) -> "Encoder":
        """Return an encoder that never runs the model, so that search uses full text only."""
        encoder = Encoder(self.embedder)
        encoder.last_error, encoder._failed_at = Unavailable("this search uses no model"), float("inf")
        return encoder

    async def encode_passages(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding] | None:
        """Return the encodings of passages, or None while the model fails."""
        return await self._run_model(self._encode_now, excerpts)

    def _encode_now(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding]:
        if isinstance(self.embedder, MiniLM):
            return self.embedder.encode_passages(excerpts)
        vectors = self.embedder.embed([excerpt.header + excerpt.text for excerpt in excerpts])
        return [PassageEncoding(vector, b"") for vector in vectors]

    def encode_patiently(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding] | None:
        """Encode passages a few at a time, between searches and with pauses; None once stopped; blocks."""
        # Not at a lower priority: a thread that seldom runs may hold Python's lock, for which searches wait.
        lengths = [sum(map(len, excerpt)) for excerpt in excerpts]
        order = sorted(range(len(excerpts)), key=lengths.__getitem__)
        encodings: dict[int, PassageEncoding] = {}
        while order:
            self._wait_for_quiet()
            if self._stopped.is_set():
                return None
            count = _count_slice([lengths[i] for i in order])
            rows, order = order[:count], order[count:]
            began, cpu_before = time.monotonic(), time.thread_time()
            encodings |= dict(zip(rows, self._encode_now([excerpts[i] for i in rows]), strict=True))
            seconds, cpu_seconds = time.monotonic() - began, time.thread_time() - cpu_before
            # As long as the slice took; longer where other programs kept the processor from it.
            self._stopped.wait(min(MAX_PAUSE_S, seconds * seconds / max(cpu_seconds, 1e-3)))
        return [encodings[i] for i in range(len(excerpts))]

    async def encode_question(self, question: str) -> QuestionEncoding | None:
        """Return the encoding of a question, or None while the model fails."""
        if isinstance(self.embedder, MiniLM):
            with self._questions_guard:
                encoding = self.kept_questions.pop(question, None)
            encoding = encoding or await self._run_model(self.embedder.encode_question, question)
            if encoding is not None and len(question) <= MAX_KEPT_QUESTION_CHARS:
                with self._questions_guard:
                    self.kept_questions[question] = encoding
                    if len(self.kept_questions) > MAX_KEPT_QUESTIONS:
                        del self.kept_questions[next(iter(self.kept_questions))]
            return encoding
        vectors = await self._run_model(self.embedder.embed, [question])
        return None if vectors is None or not vectors[0].any() else QuestionEncoding(vectors[0], vectors[:0], [])

    def split_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return where each token of a text begins and ends; nothing if the model has no tokens."""
        return self.embedder.split_tokens(text) if isinstance(self.embedder, MiniLM) else []

    @property
    def reads_windows(self) -> bool:
        """Return whether a passage's vector depends on its neighbours."""
        return isinstance(self.embedder, MiniLM)

    async def _run_model(self, work: Callable[[A], T], argument: A) -> T | None:
        if self.last_error is not None and time.monotonic() - self._failed_at < RETRY_DELAY_S:
            return None
        try:
            with self.mark_call():
                encoding = await run_in_thread(work, argument)
        except AthenaError as error:
            self.last_error, self._failed_at = error, time.monotonic()
            return None
        self.last_error = None
        return encoding


class AdaptedEncoder(Encoder):
    """Encode with an adapter of the bundled model; if the adapter fails, only this encoder does."""

    def __init__(self, base: Encoder, model: MiniLM, adapter_file: Path) -> None:
        super().__init__(model)
        self._base, self._model, self._adapter_file = base, model, adapter_file
        digest = read_digest(adapter_file)
        self._name = f"{model.name}+{digest[:DIGEST_CHARS]}"

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_working(self) -> bool:
        return super().is_working and self._base.is_working

    @contextmanager
    def mark_call(self) -> Iterator[None]:
        with self._base.mark_call():
            yield

    def wait_for_writers(self, timeout_s: float) -> None:
        self._base.wait_for_writers(timeout_s)

    def _encode_now(self, excerpts: Sequence[Excerpt]) -> list[PassageEncoding]:
        return self._model.encode_passages(excerpts, load_adapter(self._adapter_file).layers)

    async def encode_question(self, question: str) -> QuestionEncoding | None:
        return await self._run_model(self._encode_question_now, question)

    def _encode_question_now(self, question: str) -> QuestionEncoding:
        return self._model.encode_question(question, load_adapter(self._adapter_file).layers)


def adapt_encoder(encoder: Encoder, adapter_file: Path) -> Encoder:
    """Return an encoder that reads with an adapter; the same one if its model is not the bundled one."""
    model = encoder.embedder
    if not isinstance(model, MiniLM) or not model.is_bundled:
        return encoder
    return AdaptedEncoder(encoder, model, adapter_file)


def _count_slice(lengths: Sequence[int]) -> int:
    """Return how many texts of these lengths, the shortest first, the model reads at once: at least one."""
    count = 1
    while count < len(lengths) and lengths[count] * (count + 1) <= MAX_SLICE_CHARS:
        count += 1
    return count
