"""Read the messages of a session from the transcript file of a coding client."""

import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, NamedTuple

ClientName = Literal["claude-code", "codex"]
CLIENT_FOLDERS: dict[ClientName, tuple[str, str, str]] = {  # the client's own variable, its folder, the part with talk
    "claude-code": ("CLAUDE_CONFIG_DIR", "~/.claude", "projects"),
    "codex": ("CODEX_HOME", "~/.codex", "sessions"),
}
MAX_READ_BYTES = 4_000_000  # from the end
MAX_HEAD_BYTES = 512 << 10  # in which the session and its folders are looked for
MAX_FOLDERS = 20
READ_CHUNK_BYTES = 1 << 20
MAX_LINE_CHARS = 32 << 20  # a picture may be in it
MAX_MESSAGE_CHARS = 20_000
MAX_MESSAGES = 2_000
MAX_CLOCK_DIFFERENCE_S = 86_400
TEXT_TYPES = ("text", "input_text", "output_text")
# texts that clients write in the user's name; after a compaction it is a model's summary, which repeats file contents
NOISE_PREFIXES = (
    "<",
    "Caveat:",
    "[Request interrupted",
    "/",
    "!",
    "# AGENTS.md instructions",
    "This session is being continued",
    "Another language model started to solve this problem",
    "Implement the following plan:",  # which the agent wrote
    "Stop hook feedback:",
)
# before these words a client puts texts of files; what follows the last of them is the prompt
CONTEXT_PREFIXES = ("# Context from my IDE setup:", "# Files mentioned by the user:")
REQUEST_HEADING = "## My request for Codex:"
REMINDER_TAG = "<system-reminder>"  # cut all that follows: a quoted file may contain the closing tag
SKIPPED_FLAGS = ("isMeta", "isSidechain", "isCompactSummary", "isVisibleInTranscriptOnly")


class TranscriptMessage(NamedTuple):
    role: str
    text: str
    at: float | None = None  # when it was said


def read_transcript(
    path: object, max_bytes: int = MAX_READ_BYTES, *, end: int | None = None, with_noise: bool = False
) -> list[TranscriptMessage]:
    """Return the messages of the user and the agent, in order; none if the file is no transcript of this user.

    With `end`, only those before this position; with noise, also the texts that clients write in the user's name, and
    commands.
    """
    if not isinstance(path, str) or not path.endswith(".jsonl"):
        return []
    try:
        text = read_tail(os.path.expanduser(path), max_bytes, end)
    except (OSError, ValueError):  # no such file, or no valid path
        return []
    return list(_parse_transcript(text, with_noise))[-MAX_MESSAGES:]


def read_tail(path: str, max_bytes: int, end: int | None = None) -> str:
    """Read the end of a regular file that belongs to this user, or what stands before the position `end`."""
    with open_own_file(path) as file:
        end = os.fstat(file).st_size if end is None else end
        start = max(0, end - max_bytes)
        os.lseek(file, start, os.SEEK_SET)
        text = _read_bytes(file, end - start).decode("utf-8", "replace")
    return text if not start else text.partition("\n")[2]  # the first line is incomplete


def read_head(path: str, max_bytes: int) -> str:
    """Read the beginning of a regular file that belongs to this user."""
    with open_own_file(path) as file:
        return _read_bytes(file, max_bytes).decode("utf-8", "replace")


def iter_lines(path: str) -> Iterator[str]:
    """Yield the lines of a regular file that belongs to this user; of one that is too long the beginning."""
    with open_own_file(path) as file, open(file, encoding="utf-8", errors="replace", closefd=False) as stream:
        is_rest = False
        while line := stream.readline(MAX_LINE_CHARS):
            if not is_rest:
                yield line
            is_rest = not line.endswith("\n")  # a text inside of a line must not pass for a line of its own


@contextmanager
def open_own_file(path: str) -> Iterator[int]:
    """Open a regular file that belongs to this user and is no link; else raise OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            raise PermissionError(f"{path} is no regular file of this user")
        yield file
    finally:
        os.close(file)


def _read_bytes(file: int, max_bytes: int) -> bytes:
    pieces, bytes_left = [], max_bytes
    while bytes_left > 0 and (piece := os.read(file, min(bytes_left, READ_CHUNK_BYTES))):
        pieces.append(piece)
        bytes_left -= len(piece)
    return b"".join(pieces)


def read_folders(path: object) -> list[str]:
    """Return the folders in which a session took place, the first one first, from the beginning of its transcript."""
    if not isinstance(path, str) or not path.endswith(".jsonl"):
        return []
    try:
        return list_folders(parse_lines(read_head(os.path.expanduser(path), MAX_HEAD_BYTES).split("\n")))
    except (OSError, ValueError):  # no such file, or no valid path
        return []


def list_folders(entries: Iterable[dict[str, Any]]) -> list[str]:
    """Return the folders that entries name, in order: clients differ in whether the entry does or what is inside."""
    parts = (part for entry in entries for part in (entry, entry.get("payload")) if isinstance(part, dict))
    folders = dict.fromkeys(part["cwd"] for part in parts if isinstance(part.get("cwd"), str))
    return list(folders)[:MAX_FOLDERS]


def parse_lines(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the entries of a transcript, without what is no JSON object."""
    for line in lines:
        if line.startswith("{"):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(entry, dict):
                yield entry


def read_prompts(path: object, max_bytes: int = MAX_READ_BYTES, *, end: int | None = None) -> list[str]:
    """Return all that stands in the user's name, in order: also commands, and what clients add."""
    messages = read_transcript(path, max_bytes, end=end, with_noise=True)
    return [message.text for message in messages if message.role == "user"]


def _parse_transcript(text: str, with_noise: bool) -> Iterator[TranscriptMessage]:
    for entry in parse_lines(text.split("\n")):
        yield from parse_entry(entry, with_noise=with_noise)


def parse_entry(
    entry: Any, *, with_noise: bool = False, max_chars: int | None = MAX_MESSAGE_CHARS
) -> Iterator[TranscriptMessage]:
    """Yield the message of one entry: clients differ in whether it is the entry itself or inside of it."""
    if not isinstance(entry, dict) or (not with_noise and any(entry.get(name) for name in SKIPPED_FLAGS)):
        return
    message = entry.get("message") or entry.get("payload") or entry
    if not isinstance(message, dict):
        return
    role = message.get("role")
    if role not in ("user", "assistant") or message.get("type") not in (None, "message", "user", "assistant"):
        return
    texts = [text.strip() for text in _iter_texts(message.get("content"))]
    if role == "user" and not with_noise:
        origin = entry.get("origin")
        if isinstance(origin, dict) and origin.get("kind") != "human":
            return
        texts = [_remove_context(text) for text in texts if not text.startswith(NOISE_PREFIXES)]
    if text := "\n".join(texts).strip()[:max_chars]:
        yield TranscriptMessage(role, text, parse_time(entry.get("timestamp")))


def parse_time(value: object) -> float | None:
    """Return the moment of an entry; None for what is no time, or one before 1970 or to come."""
    try:
        moment = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else -1.0
    except (ValueError, OverflowError):
        return None
    return moment if 0 <= moment <= time.time() + MAX_CLOCK_DIFFERENCE_S else None


def _remove_context(text: str) -> str:
    """Return a prompt without what clients put before and after it."""
    if text.startswith(CONTEXT_PREFIXES):
        text = text.rpartition(REQUEST_HEADING)[2] if REQUEST_HEADING in text else ""
    return text.partition(REMINDER_TAG)[0].strip()


def _iter_texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) and part.get("type") in TEXT_TYPES else None
            if isinstance(text, str):
                yield text
