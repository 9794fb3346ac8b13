"""What was said in a session, from the file in which a coding agent's client writes it down."""

import json
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple

MOST = 4_000_000  # bytes that are read, from the end
LONGEST = 20_000  # characters of one message
MESSAGES = 2_000
TEXTS = ("text", "input_text", "output_text")
# What clients write in a person's name; after a compaction that is a model's words, which repeat what files say.
NOISE = (
    "<",
    "Caveat:",
    "[Request interrupted",
    "/",
    "!",
    "# AGENTS.md instructions",
    "This session is being continued",
)
REMARK = "<system-reminder>"  # what follows may quote a file, which may say that the remark ends
NOT_SAID = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")


class Line(NamedTuple):
    role: str
    text: str


def read(path: object) -> list[Line]:
    """Return what people and the agent said, in order; nothing of a file that is no transcript of ours to read."""
    if not isinstance(path, str) or not path.endswith(".jsonl"):
        return []
    try:
        text = _end_of(os.path.expanduser(path))
    except (OSError, ValueError):  # there is none, or the path is none
        return []
    return list(_lines(text))[-MESSAGES:]


def _end_of(path: str) -> str:
    """Read the end of a regular file that belongs to this user."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            return ""
        start = max(0, facts.st_size - MOST)
        pieces, left = [], MOST
        os.lseek(file, start, os.SEEK_SET)
        while left > 0 and (piece := os.read(file, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    finally:
        os.close(file)
    whole = b"".join(pieces).decode("utf-8", "replace")
    return whole if not start else whole.partition("\n")[2]  # the first line is the end of one


def _lines(text: str) -> Iterator[Line]:
    for line in text.split("\n"):
        if not line.startswith("{"):
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and not any(entry.get(name) for name in NOT_SAID):
            yield from _said(entry)


def _said(entry: dict[str, Any]) -> Iterator[Line]:
    """Read one entry; the message is the entry itself, or inside of it, as clients differ."""
    inner = entry.get("message") or entry.get("payload") or entry
    if not isinstance(inner, dict):
        return
    role = inner.get("role")
    if role not in ("user", "assistant") or inner.get("type") not in (None, "message", "user", "assistant"):
        return
    texts = [text.strip() for text in _texts(inner.get("content"))]
    if role == "user":
        origin = entry.get("origin")
        if isinstance(origin, dict) and origin.get("kind") != "human":
            return
        texts = [text.partition(REMARK)[0].strip() for text in texts if not text.startswith(NOISE)]
    if text := "\n".join(texts).strip()[:LONGEST]:
        yield Line(role, text)


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) and part.get("type") in TEXTS else None
            if isinstance(text, str):
                yield text
