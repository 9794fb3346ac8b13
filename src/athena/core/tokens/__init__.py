"""Count the tokens of texts: by an estimate everywhere, exactly only in the report of savings.

The exact count is that of o200k, from a bundled table that costs half a second and 90 MB to load; models with another
vocabulary differ from it anyway. The estimate needs no table. docs/decisions/0021-token-estimate.md has its errors.
"""

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

BUDGET_FRACTION = 0.88  # of a budget that an estimate may fill, so that the exact count stays within the budget
MAX_COUNTED_CHARS = 40_000  # of a text that is counted whole; of a longer one, the beginning is extrapolated
MAX_COUNTED_VALUE_CHARS = 400_000  # of all texts of a value; the others count by their length
CHARS_PER_TOKEN = 4
LIST_SAMPLE_ITEMS = 100
MAX_CACHED_CHARS = 40
MAX_CACHED_TEXT_CHARS = 2_000  # the texts of memories are counted again with every search that finds them
MAX_TOKEN_BYTES = 128

# Words, numbers, line breaks with indentation, runs of spaces and marks, as o200k separates them, more or less.
PART_PATTERN = re.compile(
    r"[A-Z]?[a-z]+|[A-Z]+|[0-9]{1,3}|'(?:s|t|re|ve|m|ll|d)\b| (?=[0-9])|[\r\n]+[ \t]*| {2,}|\t+"
    r"|[!-/:-@\[-`{-~]+|[^\x00-\x7f]+|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)
# Letters that no English word has beside each other: keys, hashes and other random text take more tokens.
RANDOM_LETTERS_PATTERN = re.compile(
    r"[bcdfghjklmnpqrstvwxz]{5}|[aeiou]{4}|[jqxz][bcdfghjklmnpqrstvwxz]|[bcdfghjklmnpqrstvwx]q", re.IGNORECASE
)
RANDOM_SHORT_PATTERN = re.compile(r"[A-Z][b-df-hj-np-tv-xz]{1,2}")
WORD_COSTS = (0.0, 1.0, 1.0, 1.0, 1.0, 1.03, 1.1, 1.1, 1.2, 1.28, 1.28, 1.3, 1.6)  # by length, means over docs and code
# Ranges of characters beyond ASCII: first character after the range, tokens of a character among its like, script.
SYMBOLS_SCRIPT = 10
LINE_MARKS = "-=*#_.~/"  # a run of them, such as a ruler, has few tokens
CHARACTER_RANGES = (
    (0x100, 0.4, 1), (0x180, 0.8, 1), (0x250, 2.0, 1), (0x370, 1.5, 2), (0x400, 0.6, 3), (0x460, 0.32, 4),
    (0x530, 2.0, 4), (0x590, 1.0, 5), (0x700, 0.42, 6), (0x900, 2.0, 7), (0xE80, 0.6, 8), (0x1E00, 2.0, 9),
    (0x2000, 1.5, 1), (0x2070, 1.3, SYMBOLS_SCRIPT), (0x2800, 1.5, SYMBOLS_SCRIPT), (0x3000, 2.8, 11),
    (0x3100, 0.72, 12), (0x4E00, 2.6, 12), (0xA000, 0.85, 12), (0xAC00, 2.8, 13), (0xD7B0, 0.62, 12),
    (0xFF00, 2.8, 14), (0x10000, 1.0, 12), (0x1F300, 4.0, 15), (0x1FB00, 1.7, 16), (0x110000, 4.0, 17),
)  # fmt: skip
RARE_CHINESE_COST = 1.7
RANGE_ENDS = [end for end, _, _ in CHARACTER_RANGES]

RANKS_PATH = os.path.join(os.path.dirname(__file__), "o200k.tiktoken.xz")
RANKS_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"  # as the makers publish it
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
COUNT_CHUNK_CHARS = 20_000  # the time of one long word grows with its square


def count_tokens(text: str) -> int:
    """Estimate the tokens of a text from its words, numbers and marks; of a very long one, from its beginning.

    A text that has to fit a limit is checked with `fits_token_limit`, which extrapolates nothing.
    """
    if len(text) <= MAX_CACHED_CHARS:
        return _count_cached(text)
    if len(text) <= MAX_CACHED_TEXT_CHARS:
        return _count_cached_text(text)
    sample = text[:MAX_COUNTED_CHARS]
    return round(_estimate(sample) * len(text) / len(sample)) or 1


def reduce_budget(budget: int) -> int:
    """Return how many estimated tokens fit a budget of exact ones."""
    return int(budget * BUDGET_FRACTION)


def fits_token_limit(text: str, limit: int) -> bool:
    """Return whether a text has at most so many tokens; read no more of it than that takes."""
    if len(text) * 4 <= limit:  # a character has at most four bytes, so tokens
        return True
    return len(text) <= limit * MAX_TOKEN_BYTES and _find_limit(text, limit) is None


def truncate_to_tokens(text: str, limit: int) -> str:
    """Return as much of the beginning of a text as has at most so many tokens."""
    text = text[: max(limit, 0) * MAX_TOKEN_BYTES]
    return text[: _find_limit(text, limit)]


def estimate_json_tokens(value: Any) -> int:
    """Estimate the tokens of a value as JSON would write it; of a long list, from its first items."""
    return _estimate_json(value, [MAX_COUNTED_VALUE_CHARS])


def _estimate_json(value: Any, chars_left: list[int]) -> int:
    kind = type(value)
    if kind is str:
        chars_left[0] -= min(len(value), MAX_COUNTED_CHARS)
        return 2 + (count_tokens(value) if chars_left[0] > 0 else len(value) // CHARS_PER_TOKEN)
    if value is None or kind is bool:
        return 1
    if kind is dict:
        return 1 + 2 * len(value) + _estimate_items((*value, *value.values()), chars_left)
    if isinstance(value, int | float):
        return 1 + len(str(value)) // 3
    if fields := getattr(kind, "__dataclass_fields__", None):
        return 1 + 3 * len(fields) + _estimate_items([getattr(value, name) for name in fields], chars_left)
    if isinstance(value, str):
        return _estimate_json(str(value), chars_left)
    if isinstance(value, Mapping):
        return _estimate_json(dict(value), chars_left)
    items = value if kind is list else list(value)
    sample = items if len(items) <= LIST_SAMPLE_ITEMS else items[:LIST_SAMPLE_ITEMS]
    part = len(sample) + _estimate_items(sample, chars_left)
    return 1 + (part if sample is items else round(part * len(items) / LIST_SAMPLE_ITEMS))


def _estimate_items(items: Iterable[Any], chars_left: list[int]) -> int:
    total = 0
    for item in items:
        kind = type(item)
        if kind is str and len(item) <= MAX_CACHED_CHARS < chars_left[0]:  # most are short texts
            chars_left[0] -= len(item)
            total += 2 + _count_cached(item)
        elif item is None or kind is bool:
            total += 1
        elif kind is float or kind is int:
            total += 1 + len(repr(item)) // 3
        else:
            total += _estimate_json(item, chars_left)
    return total


def load_exact_counter() -> Callable[[str], int]:
    """Load the table and return a function that counts exactly; the memory is free again when the caller drops it."""
    import base64
    import lzma

    import tiktoken  # a wheel with native code, needed here only

    with lzma.open(RANKS_PATH) as file:
        table = file.read()
    if hashlib.sha256(table).hexdigest() != RANKS_SHA256:
        raise RuntimeError(f"{RANKS_PATH} is damaged")
    pairs = (line.split() for line in table.splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    encoding = tiktoken.Encoding("o200k", pat_str=O200K_PATTERN, mergeable_ranks=ranks, special_tokens={})

    def count_exactly(text: str) -> int:
        chunks = (text[at : at + COUNT_CHUNK_CHARS] for at in range(0, len(text), COUNT_CHUNK_CHARS))
        return sum(len(encoding.encode_ordinary(chunk)) for chunk in chunks)

    return count_exactly


def count_tokens_exactly(text: str) -> int:
    """Count the tokens of a text with a table that stays loaded: for tests and benchmarks."""
    return _get_exact_counter()(text)


_get_exact_counter = lru_cache(maxsize=1)(load_exact_counter)


def _find_limit(text: str, limit: int) -> int | None:
    """Return where a text exceeds a number of tokens, or None."""
    total = 0.0
    for match in PART_PATTERN.finditer(text):
        part = match[0]
        cost = _estimate_part(part) if len(part) <= MAX_CACHED_CHARS else _estimate_part.__wrapped__(part)
        if total + cost > limit:
            return match.start() + int(len(part) * max(0.0, limit - total) / cost)
        total += cost
    return None


def _estimate(text: str) -> float:
    parts = PART_PATTERN.findall(text)
    if max(map(len, parts), default=0) <= MAX_CACHED_CHARS:
        return sum(map(_estimate_part, parts), 0.0)
    return sum(_estimate_part(p) if len(p) <= MAX_CACHED_CHARS else _estimate_part.__wrapped__(p) for p in parts)


@lru_cache(maxsize=4_096)
def _count_cached(text: str) -> int:
    return round(_estimate(text)) or (1 if text else 0)


@lru_cache(maxsize=2_048)
def _count_cached_text(text: str) -> int:
    return round(_estimate(text)) or 1


@lru_cache(maxsize=8_192)
def _estimate_part(part: str) -> float:
    """Estimate the tokens of a run of characters of one class."""
    size, first = len(part), part[0]
    if first > "\x7f":
        return _estimate_other_script(part)
    if first.isalpha():
        return _estimate_word(part)
    if first.isdigit() or part == " ":  # up to three digits; a space before them is a token of its own
        return 1.0
    if first in "\r\n":
        return 0.5 + (0.35 if size > 1 else 0.0) + 0.07 * size
    if first in " \t":
        return 0.9 + (0.02 if first == " " else 0.07) * size
    if first == "'" and part[1:].isalpha():
        return 0.3  # "don't" is mostly one token
    if first < " " or first == "\x7f":
        return 1.0
    if size <= 2:
        return 0.85
    return 1.0 + size / 16 if part == first * size and first in LINE_MARKS else 0.62 * size


def _estimate_word(word: str) -> float:
    size = len(word)
    if size > 1 and word[1].isupper():
        cost = 1.0 if size < 3 else 0.55 + 0.2 * size
    else:
        cost = WORD_COSTS[size] if size < len(WORD_COSTS) else WORD_COSTS[-1] + 0.35 * (size - len(WORD_COSTS) + 1)
    if size > 3:
        return max(cost, 0.52 * size) if RANDOM_LETTERS_PATTERN.search(word) else cost
    return 1.7 if RANDOM_SHORT_PATTERN.fullmatch(word) else cost


@lru_cache(maxsize=1)
def _list_common_chinese() -> frozenset[str]:
    """Return the 6,763 characters of GB 2312; o200k has few tokens for the others."""
    rows = (bytes((row, column)) for row in range(0xB0, 0xF8) for column in range(0xA1, 0xFF))
    return frozenset("".join(pair.decode("gb2312", "ignore") for pair in rows))


def _estimate_other_script(part: str) -> float:
    total, previous = 0.0, 0
    for char in part:
        code = ord(char)
        _, cost, script = CHARACTER_RANGES[bisect_right(RANGE_ENDS, code)]
        if 0x4E00 <= code < 0xA000 and char not in _list_common_chinese():
            cost = RARE_CHINESE_COST
        if previous not in (0, script, SYMBOLS_SCRIPT) and script != SYMBOLS_SCRIPT:
            cost = max(cost, 2.0 if code < 0x800 else 2.6 if code < 0x10000 else 3.4)  # among strangers: its bytes
        total += cost
        previous = script
    return total
