"""Text as every engine can store it, and what of it nobody sees."""

import re
import unicodedata

INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, direction marks, tags, unassigned
# What changes how a sign looks or fills a place, and is itself not seen: whole texts can be hidden in such.
INVISIBLE_FILLER_PATTERN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def is_invisible(char: str) -> bool:
    """Tell whether a character is none that a reader sees."""
    return unicodedata.category(char) in INVISIBLE_CATEGORIES or INVISIBLE_FILLER_PATTERN.match(char) is not None


def find_invisible_chars(text: str, spaces: str = "") -> set[str]:
    """Return which characters of a text nobody sees, but for some."""
    if text.isascii() and text.isprintable():
        return set()
    return {char for char in set(text) if char not in spaces and is_invisible(char)}


def make_storable(text: str) -> str:
    """Return a text that every engine can store: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
