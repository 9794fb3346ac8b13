"""The journal of a CPython program: its calls and their replies, so that a paused run can be replayed from its start.

A CPython process cannot be stored. A run that waits for approval therefore stores its journal instead: the program is
run again, gets the stored replies to the calls that it has already made, and only then makes the call that waited.
"""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

JOURNAL_FORMAT = "journal 1"
CLOSED_POLL_S = 0.1
_ENTRY_BYTES = 100  # of an entry, besides its path and its reply


class ReplayDiffers(Exception):
    """A replayed program made another call than before, or ended before its last one."""


@dataclass(slots=True)
class JournalEntry:
    path: str
    digest: str  # of the frame: the path, the arguments and whether the program waits for the result
    reply: bytes | None = None  # as JSON; None while the call runs or waits for approval


class CallJournal:
    """The calls of one run in the order in which the program made them; first those of the run before its pause."""

    def __init__(self, max_bytes: int, entries: Iterable[JournalEntry] = ()) -> None:
        self._max_bytes = max_bytes
        self._entries = list(entries)
        self._replay_count = len(self._entries)
        self._next_index = 0
        self._size = sum(map(_entry_size, self._entries))
        self._changed = threading.Condition()
        self.is_full = max_bytes <= 0  # then it holds nothing more, and the run cannot pause

    @property
    def is_replaying(self) -> bool:
        """Return whether the program has yet to reach the call at which it paused."""
        return self._next_index < self._replay_count

    def begin_call(self, path: str, frame: bytes) -> tuple[JournalEntry, bool]:
        """Return the entry of the program's next call, and whether it is the call that waited for approval."""
        digest = "" if self.is_full else sha256(frame).hexdigest()
        if not self.is_replaying:
            entry = JournalEntry(path, digest)
            with self._changed:
                if not self.is_full:
                    self._entries.append(entry)
            return entry, False
        entry = self._entries[self._next_index]
        self._next_index += 1
        if entry.path != path:
            raise ReplayDiffers(f"call {self._next_index} was {entry.path} and is now {path}")
        if entry.digest != digest:
            raise ReplayDiffers(f"call {self._next_index}, {path}, has other arguments now")
        return entry, entry.reply is None

    def describe_missing(self) -> str:
        return f"call {self._next_index + 1} was {self._entries[self._next_index].path} and was not made now"

    def record_reply(self, entry: JournalEntry, reply: bytes) -> None:
        with self._changed:
            entry.reply = reply
            self._size += _entry_size(entry)
            if self._size > self._max_bytes:
                self.is_full = True
                self._entries.clear()
            self._changed.notify_all()

    def wait_for_replies(self, is_closed: Callable[[], bool]) -> None:
        """Wait until no call is under way but the last one, which is to wait for approval, or the run has ended."""
        with self._changed:
            while not is_closed() and any(entry.reply is None for entry in self._entries[:-1]):
                self._changed.wait(CLOSED_POLL_S)

    def to_json(self) -> bytes:
        return b"[%s]" % b",".join(
            b"[%s,%s]" % (json.dumps([entry.path, entry.digest])[1:-1].encode(), entry.reply or b"null")
            for entry in self._entries
        )


def parse_entries(rows: list[Any]) -> list[JournalEntry]:
    return [
        JournalEntry(path, digest, None if reply is None else json.dumps(reply).encode())
        for path, digest, reply in rows
    ]


def _entry_size(entry: JournalEntry) -> int:
    return _ENTRY_BYTES + len(entry.path) + len(entry.reply or b"")
