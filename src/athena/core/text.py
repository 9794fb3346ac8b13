"""Find invisible characters in texts, and make texts storable in every database."""

import re
import unicodedata
from typing import Any

INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, direction marks, tags, unassigned
# Variation selectors and fillers: they are not seen, so that whole texts can be hidden in them.
INVISIBLE_FILLER_PATTERN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_invisible(char: str) -> bool:
    """Return whether a reader does not see a character."""
    return unicodedata.category(char) in INVISIBLE_CATEGORIES or INVISIBLE_FILLER_PATTERN.match(char) is not None


def find_invisible_chars(text: str, allowed: str = "") -> set[str]:
    """Return the invisible characters of a text, except the allowed ones."""
    if text.isascii() and text.isprintable():
        return set()
    return {char for char in set(text) if char not in allowed and is_invisible(char)}


def make_storable(text: str) -> str:
    """Return a text that every database can store: without NUL and lone surrogates."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def make_value_storable(value: Any, max_depth: int) -> Any:
    """Return a value with every text in it storable, keys included; below `max_depth` levels it stays as it is."""
    if isinstance(value, str):
        storable = make_storable(value)
        return value if storable is value else storable
    if max_depth and type(value) is dict:
        return {make_value_storable(key, 0): make_value_storable(item, max_depth - 1) for key, item in value.items()}
    if max_depth and type(value) in (list, tuple):
        return [make_value_storable(item, max_depth - 1) for item in value]
    return value
