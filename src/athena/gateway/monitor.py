"""What is seen of a connection from outside: how much came, what was wrong with it, and whether it has ended."""

import asyncio
import time
from contextvars import ContextVar

from athena.core import redaction
from athena.gateway import sanitize

LIST_CHANGED = "notifications/tools/list_changed"
MOST = 8 << 20  # bytes of one answer
NODES = 500_000  # values in one answer, which take far more room than their text
VALUES = (b",", b"[", b"{")  # each of which begins one
UNASKED = 20_000  # messages that nobody waits for, between two calls
ALL_BYTES = 256 << 20  # of all messages between two calls; sixteen answers may be on their way
LOUDEST = 32 << 20  # bytes on its standard error at once
FORGIVEN = 1 << 20  # and a second for as long as it runs
ASKED = 500  # things that a server may ask of us, between two calls
TAIL = 2_000  # bytes of what it says on its standard error
SAID = 200  # characters of what a server said, in an error

# A list, since the SDK sends in a task of its own, which has our context but cannot change it.
_status: ContextVar[list[int]] = ContextVar("status")


class Watch:
    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.trouble = ""  # what the server did wrong
        self.changed = True  # its tools may not be those that were compared: none were yet, or it says so
        self.said = b""  # to people, the last of it
        self._unasked = self._asked = self._bytes = 0
        self._loud, self._at = 0.0, 0.0  # bytes that it said to people of late, and when it did last
        self.spoken = 0  # bytes of all that it said
        self._noise = (0, "")
        _status.set([0])

    @property
    def status(self) -> int:
        """The status of the HTTP answer to this call, if that was a refusal; others under way have their own."""
        return _status.get([0])[0]

    @status.setter
    def status(self, status: int) -> None:
        _status.get([0])[0] = status

    def begin(self) -> None:
        """Begin to count anew, with a call."""
        self._unasked, self._asked, self._bytes, self._noise = 0, 0, 0, (0, "")
        _status.set([0])

    def bearable(self, message: bytes) -> bool:
        """Tell whether a message can be taken in; else the connection has to end."""
        if len(message) > MOST:
            self.trouble = f"it answered with more than {MOST >> 20} MB at once"
        elif len(message) > NODES and sum(map(message.count, VALUES)) > NODES:
            self.trouble = f"it answered with more than {NODES:,} values at once"
        self._unasked += 1
        self._bytes += len(message)
        if self._unasked > UNASKED:
            self.trouble = f"it sent more than {UNASKED:,} messages that nobody had asked for"
        elif self._bytes > ALL_BYTES:
            self.trouble = f"it sent more than {ALL_BYTES >> 20} MB between two calls"
        return not self.trouble

    def asked(self) -> bool:
        """Tell whether the server may ask something of us once more."""
        self._asked += 1
        if self._asked > ASKED:
            self.trouble = f"it asked more than {ASKED} things of us"
        return not self.trouble

    def overheard(self, text: bytes) -> bool:
        """Keep what the server says to people; tell whether it may go on."""
        self.said = (self.said + text)[-TAIL:]
        self.spoken += len(text)
        now = time.monotonic()
        self._loud = max(0.0, self._loud - FORGIVEN * (now - self._at)) + len(text)
        self._at = now
        if self._loud > LOUDEST:
            self.trouble = f"it does not stop to write to its standard error, more than {LOUDEST >> 20} MB"
            self.ended.set()
        return not self.trouble

    def notified(self, method: str) -> None:
        if method == LIST_CHANGED:
            self.changed = True

    def noise(self, line: bytes) -> None:
        """Note a line that is no message."""
        self._noise = self._noise[0] + 1, line[:SAID].decode("utf-8", "replace")

    def heard(self, since: int = 0) -> str:
        """Say what may explain a failure, in a few words: what was said after so many bytes."""
        said = self.said[-(self.spoken - since) :] if self.spoken > since else b""
        lines = [one for one in said.decode("utf-8", "replace").splitlines() if one.strip()]
        if lines:
            return f'; it said: "{_told(lines[-1])}"'
        if self._noise[0]:
            return f'; it wrote what is no message: "{_told(self._noise[1])}"'
        return ""


def _told(words: str) -> str:
    """Return what a server said as others may read it: it may have named a key that it was given."""
    return sanitize.line(redaction.redact(words).text, SAID)
