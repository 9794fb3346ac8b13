"""What was said in a session, from the file in which a coding agent's client writes it down."""

import json
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_READ_BYTES = 4_000_000  # bytes that are read, from the end
MAX_MESSAGE_CHARS = 20_000  # characters of one message
MAX_MESSAGES = 2_000
TEXT_TYPES = ("text", "input_text", "output_text")
# What clients write in a person's name; after a compaction that is a model's words, which repeat what files say.
NOISE_PREFIXES = (
    "<",
    "Caveat:",
    "[Request interrupted",
    "/",
    "!",
    "# AGENTS.md instructions",
    "This session is being continued",
)
REMINDER_TAG = "<system-reminder>"  # what follows may quote a file, which may say that the remark ends
SKIPPED_FLAGS = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")


class TranscriptMessage(NamedTuple):
    role: str
    text: str


def read_transcript(path: object) -> list[TranscriptMessage]:
    """Return what people and the agent said, in order; nothing of a file that is no transcript of ours to read."""
    if not isinstance(path, str) or not path.endswith(".jsonl"):
        return []
    try:
        text = _read_tail(os.path.expanduser(path))
    except (OSError, ValueError):  # there is none, or the path is none
        return []
    return list(_parse_transcript(text))[-MAX_MESSAGES:]


def _read_tail(path: str) -> str:
    """Read the end of a regular file that belongs to this user."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            return ""
        start = max(0, facts.st_size - MAX_READ_BYTES)
        pieces, left = [], MAX_READ_BYTES
        os.lseek(file, start, os.SEEK_SET)
        while left > 0 and (piece := os.read(file, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(file)
    whole = b"".join(pieces).decode("utf-8", "replace")
    return whole if not start else whole.partition("\n")[2]  # the first line is the end of one


def _parse_transcript(text: str) -> Iterator[TranscriptMessage]:
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and not any(entry.get(name) for name in SKIPPED_FLAGS):
            yield from _parse_entry(entry)


def _parse_entry(entry: dict[str, Any]) -> Iterator[TranscriptMessage]:
    """Read one entry; the message is the entry itself, or inside of it, as clients differ."""
    inner = entry.get("message") or entry.get("payload") or entry
    if not isinstance(inner, dict):
        return
    role = inner.get("role")
    if role not in ("user", "assistant") or inner.get("type") not in (None, "message", "user", "assistant"):
        return
    texts = [text.strip() for text in _iter_texts(inner.get("content"))]
    if role == "user":
        origin = entry.get("origin")
        if isinstance(origin, dict) and origin.get("kind") != "human":
            return
        texts = [text.partition(REMINDER_TAG)[0].strip() for text in texts if not text.startswith(NOISE_PREFIXES)]
    if text := "\n".join(texts).strip()[:MAX_MESSAGE_CHARS]:
        yield TranscriptMessage(role, text)


def _iter_texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) and part.get("type") in TEXT_TYPES else None
            if isinstance(text, str):
                yield text
