"""Counting tokens as o200k does, offline. It is an estimate for models with another vocabulary.

The table of ranks takes half a second to load, so only long-running processes load it (`load`); until then `count`
estimates from the text.
"""

import hashlib
import os
import re
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

RANKS_PATH = os.path.join(os.path.dirname(__file__), "o200k.tiktoken.xz")
RANKS_SHA256 = (
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"  # of the table, as its makers publish it
)
CONTRACTION_PATTERN = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPERCASE_PATTERN, LOWERCASE_PATTERN = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K_PATTERN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPERCASE_PATTERN}*{LOWERCASE_PATTERN}+{CONTRACTION_PATTERN}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{UPPERCASE_PATTERN}+{LOWERCASE_PATTERN}*{CONTRACTION_PATTERN}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
MAX_TOKEN_BYTES = 128  # bytes of a token
COUNT_CHUNK_CHARS = 20_000  # characters counted at once: the time of one long word grows with its square

ESTIMATE_PART_PATTERN = re.compile(r"[A-Za-z]+|\d+|\n|[^\w\s]+")
ESTIMATE_SAMPLE_CHARS = 4_000  # characters of a text that an estimate looks at
MAX_CACHED_CHARS = 40  # characters of a text that is likely to come again, such as a field's name

_guard = threading.Lock()
_encoding: Any = None


def load_encoding() -> None:
    """Make counts exact from now on."""
    global _encoding
    with _guard:
        if _encoding is None:
            _encoding = _read_encoding()


def count_tokens(text: str) -> int:
    """Count the tokens of a text: exactly where the table is loaded, else about."""
    if _encoding is None:
        return _estimate_cached(text) if len(text) <= MAX_CACHED_CHARS else estimate_tokens(text)
    pieces = (text[at : at + COUNT_CHUNK_CHARS] for at in range(0, len(text), COUNT_CHUNK_CHARS))
    return sum(len(_encoding.encode_ordinary(piece)) for piece in pieces)


def fits_token_limit(text: str, most: int) -> bool:
    """Tell whether a text has at most so many tokens."""
    if len(text) > most * MAX_TOKEN_BYTES:
        return False  # without a look at all of it
    return len(text) * 4 <= most or count_tokens(text) <= most  # a token has at least one byte


def truncate_to_tokens(text: str, most: int) -> str:
    """Return the beginning of a text, as much as has at most so many tokens."""
    text = text[: max(most, 0) * MAX_TOKEN_BYTES]
    while text and not fits_token_limit(text, most):
        text = text[: min(len(text) - 1, len(text) * max(most, 0) // count_tokens(text))]
    return text


def is_exact() -> bool:
    """Tell whether counts are exact, or estimates."""
    return _encoding is not None


def count_tokens_exactly(text: str) -> int:
    """Count the tokens of a text, loading the table if need be."""
    load_encoding()
    return count_tokens(text)


def estimate_tokens(text: str) -> int:
    """Guess from the words, numbers and marks of a text, or of its beginning: within a twelfth for nine of ten."""
    some = text[:ESTIMATE_SAMPLE_CHARS]
    guess = (len(some.encode("utf-8", "replace")) - len(some)) * 0.3
    for part in ESTIMATE_PART_PATTERN.findall(some):
        first = part[0]
        if first.isalpha():
            guess += 0.81 + 0.057 * len(part)
        elif first.isdigit():
            guess += 1.04 + 0.39 * len(part)
        else:
            guess += 0.45 if first == "\n" else 0.91
    return round(guess * len(text) / len(some)) or 1 if some else 0


@lru_cache(maxsize=4_096)
def _estimate_cached(text: str) -> int:
    return estimate_tokens(text)


LIST_SAMPLE_ITEMS = 100  # items of a long list that are counted; the others are taken to be like them


def estimate_json_tokens(value: Any) -> int:
    """Count the tokens of a value as JSON would write it, about."""
    kind = type(value)
    if kind is str:
        return count_tokens(value) + 2
    if kind is dict:
        total = 1
        for key, item in value.items():
            total += 2 + estimate_json_tokens(key) + estimate_json_tokens(item)
        return total
    if value is None or isinstance(value, bool | int | float):
        return 1 if value is None or isinstance(value, bool) else 1 + len(str(value)) // 3
    if fields := getattr(kind, "__dataclass_fields__", None):
        return 1 + sum(3 + estimate_json_tokens(getattr(value, name)) for name in fields)
    if isinstance(value, str):
        return count_tokens(value) + 2
    if isinstance(value, Mapping):
        return estimate_json_tokens(dict(value))
    items = list(value)
    part = sum([1 + estimate_json_tokens(item) for item in items[:LIST_SAMPLE_ITEMS]])
    return 1 + (part if len(items) <= LIST_SAMPLE_ITEMS else round(part * len(items) / LIST_SAMPLE_ITEMS))


def _read_encoding() -> Any:
    import base64
    import lzma

    import tiktoken  # a wheel with native code, needed here only

    with lzma.open(RANKS_PATH) as file:
        table = file.read()
    if hashlib.sha256(table).hexdigest() != RANKS_SHA256:
        raise RuntimeError(f"{RANKS_PATH} is damaged")
    pairs = (line.split() for line in table.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    return tiktoken.Encoding("o200k", pat_str=O200K_PATTERN, mergeable_ranks=ranks, special_tokens={})
