"""Names that people and programs can hold on to."""

import hashlib
import os

MIN_HASH_CHARS = 8


def hash_text(text: str, session: str | None = None) -> str:
    """Identify a text, within its session where it has one, so that each session keeps its own."""
    whole = text if session is None else f"{session}\n{text}"
    return hashlib.sha256(whole.encode()).hexdigest()


def create_serial(key: str | None = None, position: int = 0) -> str:
    """Return what tells a thing apart from all others; with a key, the same for each repetition of a call."""
    return os.urandom(8).hex() if key is None else hash_text(str(position), key)[:16]


def count_shared_prefix(one: str, other: str) -> int:
    """Count the leading characters that two digests share."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
