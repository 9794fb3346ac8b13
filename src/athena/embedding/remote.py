"""Embedding and chat models behind an OpenAI-compatible server: Ollama, llama.cpp, vLLM, LM Studio, OpenAI."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from athena.core.threads import check_stopped
from athena.errors import Misconfigured, Unavailable

if TYPE_CHECKING:
    # numpy costs 60 ms to import: only a process that embeds something pays for it.
    import numpy as np
    from numpy.typing import NDArray

# Of one request: servers have limits of their own, and a small request is cheap to repeat.
MAX_BATCH_TEXTS, MAX_BATCH_CHARS = 64, 100_000

# About 8,000 tokens, where the common models end; most servers refuse a longer text instead of cutting it.
MAX_TEXT_CHARS = 24_000

MAX_EMBED_RESPONSE_BYTES = 64 * 1024 * 1024
MAX_CHAT_RESPONSE_BYTES = 1_000_000
CHAT_SERVICE_NAME = "language model"
LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}


class NoRedirectHandler(HTTPRedirectHandler):
    """Follow no redirect: the key and the texts are meant for the configured host only."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> None:
        return None


class RemoteEmbedder:
    """An embedding model on a server; retries when the server is busy or briefly unreachable."""

    compatible_models = ()

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None = None,
        dimensions: int | None = None,
        timeout: float = 30,
        pauses: Sequence[float] = (0.5, 2),
    ) -> None:
        self._url, host = parse_endpoint(url, "/embeddings", "embedding server")
        key = key.strip() if key else None
        # Checked here, because urllib would quote the whole header in its error.
        if key and not re.fullmatch(r"[!-~]+", key):
            raise Misconfigured("the key of the embedding server has characters that no header can carry")
        self._model, self._key = model, key
        self._dimensions = dimensions
        self._timeout_s, self._retry_delays_s = timeout, pauses
        self.name = f"{model}@{host}"
        # A proxy would resolve localhost as its own machine.
        proxies = [ProxyHandler({})] if host in LOOPBACK_HOSTS else []
        self._opener = build_opener(NoRedirectHandler(), *proxies)

    @property
    def dimensions(self) -> int:
        """The length of a vector; asks the server if the settings do not say."""
        if self._dimensions is None:
            self.load()
        assert self._dimensions is not None
        return self._dimensions

    def load(self) -> None:
        """Check that the server answers, and learn the length of its vectors."""
        self.embed(["ready?"])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts as the rows of a matrix, in their order."""
        import numpy as np

        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        return np.concatenate([self._embed_batch(batch) for batch in _iter_batches(texts)])

    def _embed_batch(self, texts: list[str]) -> NDArray[np.float32]:
        import numpy as np

        check_stopped()

        answer = self._post_with_retries(json.dumps({"model": self._model, "input": texts}).encode())
        try:
            entries = json.loads(answer)["data"]
            vectors = {entry.get("index", i): entry["embedding"] for i, entry in enumerate(entries)}
            matrix = np.array([vectors[i] for i in range(len(texts))], np.float32)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise self._create_response_error(f"{type(error).__name__}: {error}") from error
        if matrix.ndim != 2 or not matrix.shape[1] or not np.isfinite(matrix).all():
            raise self._create_response_error("its vectors are not lists of numbers")
        if self._dimensions is None:
            self._dimensions = matrix.shape[1]
        if matrix.shape[1] != self._dimensions:
            raise Misconfigured(
                f"{self._model} at {self._url} gives vectors of {matrix.shape[1]} dimensions, not {self._dimensions}",
                hint="Name the model that the stored vectors were made with, or correct the dimensions.",
            )
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        unit: NDArray[np.float32] = matrix / np.maximum(lengths, np.finfo(np.float32).tiny)
        return unit

    def _post_with_retries(self, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json", "User-Agent": "athena"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = Request(self._url, body, headers)
        for delay_s in (*self._retry_delays_s, None):
            try:
                with self._opener.open(request, timeout=self._timeout_s) as response:
                    answer: bytes = response.read(MAX_EMBED_RESPONSE_BYTES + 1)
            except HTTPError as error:
                with error:
                    problem: Unavailable | Misconfigured = self._create_status_error(error)
                retry_after = error.headers.get("Retry-After", "")
            except (URLError, OSError, http.client.HTTPException) as error:
                reason = error.reason if isinstance(error, URLError) else error
                problem, retry_after = self._create_unavailable(f"{reason or type(reason).__name__}"), ""
            else:
                if len(answer) > MAX_EMBED_RESPONSE_BYTES:
                    raise self._create_response_error(f"more than {MAX_EMBED_RESPONSE_BYTES:,} bytes")
                return answer
            if delay_s is None or not problem.retry:
                break
            # At most 10 s: a server that asks for minutes counts as unavailable for this call.
            time.sleep(max(delay_s, min(int(retry_after), 10) if retry_after.isdecimal() else 0))
        raise problem

    def _create_status_error(self, error: HTTPError) -> Unavailable | Misconfigured:
        if 300 <= error.code < 400:
            target = self._sanitize_message(error.headers.get("Location", "?"))
            return Misconfigured(
                f"the embedding server at {self._url} redirects to {target}",
                hint="Set the URL to where the server itself is.",
            )
        message = f"answered {error.code}: {self._sanitize_message(_extract_message(error))}"
        if error.code in (401, 403):
            return Misconfigured(
                f"the embedding server at {self._url} {message}", hint="Check the embedding server's key."
            )
        if error.code == 404:
            return Misconfigured(
                f"the embedding server at {self._url} {message}",
                hint=f"Check the URL, and that the server has the model {self._model}.",
            )
        if error.code in (408, 429) or error.code >= 500:
            return self._create_unavailable(message)
        return Unavailable(
            f"the embedding server at {self._url} {message}", hint="See what the server says.", retry=False
        )

    def _create_unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the embedding server at {self._url} is not available: {self._sanitize_message(reason)}",
            hint="Start the server, or take embedding.url out of the settings to use the bundled model.",
        )

    def _create_response_error(self, reason: str) -> Unavailable:
        return Unavailable(
            f"{self._url} does not answer as an OpenAI-compatible server does: {self._sanitize_message(reason)}",
            hint="Check the URL: it should end where /v1/embeddings can follow.",
            retry=False,
        )

    def _sanitize_message(self, message: str) -> str:
        """Shorten a server's message, and remove the key, which some servers repeat."""
        clean = message.replace(self._key, "***") if self._key else message
        return " ".join(clean.split())[:200]


def parse_endpoint(url: str, path: str, service: str) -> tuple[str, str]:
    """Return the URL of an endpoint and its host from a base URL, with or without /v1."""
    hint = "Write it like http://localhost:11434/v1"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise Misconfigured(f"the URL of the {service} is not valid: {error}", hint=hint) from error
    if parts.scheme not in ("http", "https") or not host:
        raise Misconfigured(f"the URL of the {service} does not name an http server", hint=hint)
    # Any of these may hold a secret, which would then be in every error.
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise Misconfigured(f"the URL of the {service} has more than a host and a path", hint=hint)
    root = parts.path.rstrip("/").removesuffix(path)
    if not re.search(r"/v\d\w*$", root):
        root += "/v1"
    return urlunsplit((parts.scheme, parts.netloc, root + path, "", "")), host


def _iter_batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        # A lone surrogate is not valid JSON to most servers, and an empty text is an error to some.
        cleaned = text[:MAX_TEXT_CHARS].encode("utf-8", "replace").decode() or " "
        if batch and (len(batch) == MAX_BATCH_TEXTS or size + len(cleaned) > MAX_BATCH_CHARS):
            yield batch
            batch, size = [], 0
        batch.append(cleaned)
        size += len(cleaned)
    if batch:
        yield batch


def _extract_message(error: HTTPError) -> str:
    """Return the message in the body of an error response; servers differ in where it is."""
    try:
        body = error.read(10_000).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException):
        return error.reason
    try:
        content: Any = json.loads(body)
    except ValueError:
        return body or error.reason
    problem = content.get("error", content) if isinstance(content, dict) else content
    if isinstance(problem, dict):
        problem = problem.get("message", problem)
    return str(problem)


class Chat:
    """A chat model on a server. Every caller works without an answer, too."""

    def __init__(self, url: str, model: str, key: str | None = None, timeout: float = 30) -> None:
        self._url, host = parse_endpoint(url, "/chat/completions", CHAT_SERVICE_NAME)
        self._key = key.strip() if key else None
        if self._key and not re.fullmatch(r"[!-~]+", self._key):
            raise Misconfigured(f"the key of the {CHAT_SERVICE_NAME} has characters that no header can carry")
        self._model, self._timeout = model, timeout
        proxies = [ProxyHandler({})] if host in LOOPBACK_HOSTS else []
        self._opener = build_opener(NoRedirectHandler(), *proxies)
        self.paused_until = 0.0  # monotonic seconds: callers that can do without it do not ask before
        self.is_failing = False

    def complete(self, task: str, text: str) -> str:
        """Return the model's answer; blocks."""
        messages = [{"role": "system", "content": task}, {"role": "user", "content": text}]
        body = json.dumps({"model": self._model, "messages": messages, "temperature": 0})
        headers = {"Content-Type": "application/json", "User-Agent": "athena"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        try:
            with self._opener.open(Request(self._url, body.encode(), headers), timeout=self._timeout) as response:
                answer = json.loads(response.read(MAX_CHAT_RESPONSE_BYTES))
            return str(answer["choices"][0]["message"]["content"])
        except (URLError, OSError, http.client.HTTPException) as error:
            raise Unavailable(f"the {CHAT_SERVICE_NAME} is not available: {type(error).__name__}") from None
        except (ValueError, TypeError, KeyError, IndexError):
            raise Unavailable(
                f"the {CHAT_SERVICE_NAME} does not answer as an OpenAI-compatible server does", retry=False
            ) from None
