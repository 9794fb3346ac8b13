"""What is seen of a connection from outside: how much came, what was wrong with it, and whether it has ended."""

import asyncio
import time
from contextvars import ContextVar

from athena.core import redaction
from athena.gateway import sanitize

LIST_CHANGED = "notifications/tools/list_changed"
MAX_MESSAGE_BYTES = 8 << 20  # bytes of one answer
MAX_MESSAGE_VALUES = 500_000  # values in one answer, which take far more room than their text
VALUE_MARKERS = (b",", b"[", b"{")  # each of which begins one
MAX_MESSAGES = 20_000  # messages that nobody waits for, between two calls
MAX_TOTAL_BYTES = 256 << 20  # of all messages between two calls; sixteen answers may be on their way
MAX_STDERR_BYTES = 32 << 20  # bytes on its standard error at once
STDERR_BYTES_PER_S = 1 << 20  # and a second for as long as it runs
MAX_SERVER_REQUESTS = 500  # things that a server may ask of us, between two calls
STDERR_TAIL_BYTES = 2_000  # bytes of what it says on its standard error
MAX_QUOTE_CHARS = 200  # characters of what a server said, in an error

# A list, since the SDK sends in a task of its own, which has our context but cannot change it.
_http_status: ContextVar[list[int]] = ContextVar("status")


class ConnectionMonitor:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.violation = ""  # what the server did wrong
        self.tools_changed = True  # its tools may not be those that were compared: none were yet, or it says so
        self.stderr_tail = b""  # to people, the last of it
        self._message_count = self._request_count = self._byte_count = 0
        self._stderr_level, self._stderr_at = 0.0, 0.0  # bytes that it said to people of late, and when it did last
        self.stderr_bytes = 0  # bytes of all that it said
        self._unparsed_lines = (0, "")
        _http_status.set([0])

    @property
    def http_status(self) -> int:
        """The status of the HTTP answer to this call, if that was a refusal; others under way have their own."""
        return _http_status.get([0])[0]

    @http_status.setter
    def http_status(self, status: int) -> None:
        _http_status.get([0])[0] = status

    def reset_counts(self) -> None:
        """Begin to count anew, with a call."""
        self._message_count, self._request_count, self._byte_count, self._unparsed_lines = 0, 0, 0, (0, "")
        _http_status.set([0])

    def accept_message(self, message: bytes) -> bool:
        """Tell whether a message can be taken in; else the connection has to end."""
        if len(message) > MAX_MESSAGE_BYTES:
            self.violation = f"it answered with more than {MAX_MESSAGE_BYTES >> 20} MB at once"
        elif len(message) > MAX_MESSAGE_VALUES and sum(map(message.count, VALUE_MARKERS)) > MAX_MESSAGE_VALUES:
            self.violation = f"it answered with more than {MAX_MESSAGE_VALUES:,} values at once"
        self._message_count += 1
        self._byte_count += len(message)
        if self._message_count > MAX_MESSAGES:
            self.violation = f"it sent more than {MAX_MESSAGES:,} messages that nobody had asked for"
        elif self._byte_count > MAX_TOTAL_BYTES:
            self.violation = f"it sent more than {MAX_TOTAL_BYTES >> 20} MB between two calls"
        return not self.violation

    def accept_request(self) -> bool:
        """Tell whether the server may ask something of us once more."""
        self._request_count += 1
        if self._request_count > MAX_SERVER_REQUESTS:
            self.violation = f"it asked more than {MAX_SERVER_REQUESTS} things of us"
        return not self.violation

    def record_stderr(self, text: bytes) -> bool:
        """Keep what the server says to people; tell whether it may go on."""
        self.stderr_tail = (self.stderr_tail + text)[-STDERR_TAIL_BYTES:]
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
            self.tools_changed = True

    def record_unparsed_line(self, line: bytes) -> None:
        """Note a line that is no message."""
        self._unparsed_lines = self._unparsed_lines[0] + 1, line[:MAX_QUOTE_CHARS].decode("utf-8", "replace")

    def format_last_output(self, since: int = 0) -> str:
        """Say what may explain a failure, in a few words: what was said after so many bytes."""
        said = self.stderr_tail[-(self.stderr_bytes - since) :] if self.stderr_bytes > since else b""
        lines = [one for one in said.decode("utf-8", "replace").splitlines() if one.strip()]
        if lines:
            return f'; it said: "{_redact_output(lines[-1])}"'
        if self._unparsed_lines[0]:
            return f'; it wrote what is no message: "{_redact_output(self._unparsed_lines[1])}"'
        return ""


def _redact_output(words: str) -> str:
    """Return what a server said as others may read it: it may have named a key that it was given."""
    return sanitize.sanitize_line(redaction.redact(words).text, MAX_QUOTE_CHARS)
