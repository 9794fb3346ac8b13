"""The limits of a connection: count the messages of a server, notice violations, keep its last output for errors."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from athena.core import redaction
from athena.core.types import MAX_FIELDS, has_too_many_fields
from athena.gateway import sanitize

LIST_CHANGED = "notifications/tools/list_changed"
MAX_MESSAGE_BYTES = 8 << 20
MAX_MESSAGE_VALUES = 500_000  # parsed, a value takes far more memory than its text
VALUE_MARKERS = (b",", b"[", b"{")  # each begins a value
DATA_KEYS = frozenset(("structuredContent", "inputSchema", "outputSchema", "_meta"))  # the SDK takes any value there
MAX_MESSAGES = 20_000  # between two calls
MAX_TOTAL_BYTES = 256 << 20  # between two calls, enough for sixteen concurrent answers
MAX_STDERR_BYTES = 32 << 20  # a leaky bucket, which drains at STDERR_BYTES_PER_S
STDERR_BYTES_PER_S = 1 << 20
MAX_SERVER_REQUESTS = 500  # between two calls
MAX_OUTPUT_BYTES = 64_000  # that are kept, and quoted only if they are all
MAX_QUOTE_CHARS = 200
ERROR_LINE_PATTERN = re.compile(
    r"\b(?:error|fatal|failed|cannot)\b(?!.{0,20} code \w+$)", re.IGNORECASE
)  # but no bare code


@dataclass(slots=True)
class HttpExchange:
    """What became of the HTTP requests of one call; concurrent calls have their own."""

    error_status: int = 0  # of the last POST; 0 if that was no error
    session_expired: bool = False  # the server refused the call because it does not know the session
    is_over: bool = False  # nobody waits for the answer any more


# changed, never replaced, by the SDK's tasks: they inherit our context variable, but cannot set it for us
_exchange: ContextVar[HttpExchange] = ContextVar("exchange")


class ConnectionMonitor:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.violation = ""  # the limit that the server broke
        self.change_count, self.compared_count = 1, 0  # of the tools; a notice may come while they are listed
        self.stderr_tail = b""
        self._message_count = self._request_count = self._byte_count = 0
        self._stderr_level, self._stderr_at = 0.0, 0.0  # bytes in the bucket, and when they were counted
        self.stderr_bytes = 0  # in all
        self._unparsed_output = b""
        self._begun_calls = self._open_calls = 0
        _exchange.set(HttpExchange())

    @property
    def exchange(self) -> HttpExchange:
        """The HTTP requests of the call in whose context this runs."""
        return _exchange.get(None) or HttpExchange()

    @property
    def tools_changed(self) -> bool:
        """Whether the tools must be compared before the next call."""
        return self.change_count != self.compared_count

    def reset_counts(self) -> None:
        """Reset the counts that hold between two calls."""
        self._message_count, self._request_count, self._byte_count, self._unparsed_output = 0, 0, 0, b""
        _exchange.set(HttpExchange())

    def accept_message(self, message: bytes) -> bool:
        """Count a message; return False if it breaks a limit, so that the connection must end."""
        if len(message) > MAX_MESSAGE_BYTES:
            self.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
        elif len(message) > MAX_MESSAGE_VALUES and sum(map(message.count, VALUE_MARKERS)) > MAX_MESSAGE_VALUES:
            self.violation = f"it answered with more than {MAX_MESSAGE_VALUES:,} values at once"
        return self.accept_messages(1, len(message))

    def accept_messages(self, count: int, size: int) -> bool:
        """Count messages and their bytes; return False if a limit was broken, also one before."""
        self._message_count += count
        self._byte_count += size
        if self._message_count > MAX_MESSAGES:
            self.violation = f"it sent more than {MAX_MESSAGES:,} messages that nobody had asked for"
        elif self._byte_count > MAX_TOTAL_BYTES:
            self.violation = f"it sent more than {MAX_TOTAL_BYTES >> 20} MB between two calls"
        return not self.violation

    def accept_fields(self, message: Any) -> bool:
        """Look at a parsed message before the SDK checks it; return False if it has too many parts for that."""
        result = getattr(message, "result", None)
        is_answer = isinstance(result, dict) and "inputRequests" not in result  # there any key may have a typed value
        fields, free_keys = (result, DATA_KEYS) if is_answer else (result or getattr(message, "params", None), ())
        if has_too_many_fields(fields, free_keys):
            self.violation = f"it answered with more than {MAX_FIELDS:,} parts at once"
        return not self.violation

    def accept_request(self) -> bool:
        """Count a request of the server; return False if there were too many."""
        self._request_count += 1
        if self._request_count > MAX_SERVER_REQUESTS:
            self.violation = f"it asked more than {MAX_SERVER_REQUESTS} things of us"
        return not self.violation

    def record_stderr(self, text: bytes) -> bool:
        """Keep the end of the standard error; return False if there was too much of it."""
        self.stderr_tail = (self.stderr_tail + text)[-MAX_OUTPUT_BYTES:]
        self.stderr_bytes += len(text)
        now = time.monotonic()
        self._stderr_level = max(0.0, self._stderr_level - STDERR_BYTES_PER_S * (now - self._stderr_at)) + len(text)
        self._stderr_at = now
        if self._stderr_level > MAX_STDERR_BYTES:
            self.violation = f"it does not stop to write to its standard error, more than {MAX_STDERR_BYTES >> 20} MB"
            self.ended.set()
        return not self.violation

    def record_notification(self, method: str) -> None:
        if method == LIST_CHANGED:
            self.change_count += 1

    def record_unparsed_line(self, line: bytes) -> None:
        """Keep a line on standard output that is no JSON-RPC message."""
        if len(self._unparsed_output) <= MAX_OUTPUT_BYTES:
            self._unparsed_output += line[: MAX_OUTPUT_BYTES + 1] + b"\n"

    @contextmanager
    def watch_call(self) -> Iterator[Callable[[], str]]:
        """Yield a function that quotes what the server writes during a call; nothing if others run meanwhile."""
        self._begun_calls += 1
        self._open_calls += 1
        begun, since_bytes, is_alone = self._begun_calls, self.stderr_bytes, self._open_calls == 1

        def quote_output() -> str:
            return self.format_last_output(since_bytes) if is_alone and begun == self._begun_calls else ""

        try:
            yield quote_output
        finally:
            self._open_calls -= 1

    def format_last_output(self, since_bytes: int = 0) -> str:
        """Return the line of what the server wrote after `since_bytes` that explains a failure best; empty if none."""
        count = self.stderr_bytes - since_bytes
        if lines := _split_output(self.stderr_tail[-count:] if 0 < count <= MAX_OUTPUT_BYTES else b""):
            return f'; it said: "{_redact_output(_pick_error_line(lines))}"'
        is_whole = len(self._unparsed_output) <= MAX_OUTPUT_BYTES
        if lines := _split_output(self._unparsed_output if is_whole else b"very much"):
            return f'; it wrote what is no message: "{_redact_output(lines[-1])}"'
        return ""


def _split_output(output: bytes) -> list[str]:
    """Return the lines of what a server wrote, all of it: of a part, it could not be told what it holds."""
    text = sanitize.hide_words.get()(output.decode("utf-8", "replace"))
    return [line for line in text.splitlines() if line.strip()]


def _pick_error_line(lines: list[str]) -> str:
    """Return the first line that says an error; the last one of a Python traceback, or where none says so."""
    is_traceback = any(line.startswith("Traceback ") for line in lines)
    errors = [] if is_traceback else [line for line in lines if ERROR_LINE_PATTERN.search(line)]
    return errors[0] if errors else lines[-1]


def _redact_output(text: str) -> str:
    """Return a server's output without secrets: it may print a key that it was configured with."""
    return sanitize.sanitize_line(redaction.redact(text).text, MAX_QUOTE_CHARS)
