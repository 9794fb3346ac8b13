"""Hashes of texts, and ids that are random or follow from an idempotency key."""

import hashlib
import os

MIN_HASH_CHARS = 8


def hash_text(text: str, session: str | None = None) -> str:
    """Return the SHA-256 of a text; with a session, texts of other sessions have other hashes."""
    data = text if session is None else f"{session}\n{text}"
    return hashlib.sha256(data.encode()).hexdigest()


def create_serial(key: str | None = None, position: int = 0) -> str:
    """Return a new id; with an idempotency key, the same for each repetition of the call."""
    return os.urandom(8).hex() if key is None else hash_text(str(position), key)[:16]


def count_shared_prefix(first: str, second: str) -> int:
    """Count the leading characters that two digests share."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length
