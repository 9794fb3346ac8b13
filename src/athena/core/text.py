"""Find invisible characters in texts, escape them for a terminal, make texts storable in every database."""

import re
import unicodedata
from typing import Literal

INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # controls, direction marks, tags, unassigned
# Variation selectors and fillers: they are not seen, so that whole texts can be hidden in them.
INVISIBLE_FILLER_PATTERN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)

MAX_MARKS_IN_A_ROW = 30  # as in Unicode's Stream-Safe Text Format: no language has more
_OTHER_THAN_ASCII_PATTERN = re.compile(rf"[^\x00-\x7f]{{{MAX_MARKS_IN_A_ROW + 1},}}")
# What a terminal obeys (controls, also as undecodable bytes) and what hides or reorders text. One variation selector
# after a character belongs to an emoji, more of them hide something.
TERMINAL_UNSAFE_PATTERN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]|(?<=[\ufe00-\ufe0f])[\ufe0e\ufe0f]"
)


def escape_control_chars(text: str) -> str:
    """Replace control characters, and characters that hide or reorder others, by escapes."""
    if text.isascii() and text.isprintable():
        return text
    return TERMINAL_UNSAFE_PATTERN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def is_invisible(char: str) -> bool:
    """Return whether a reader does not see a character."""
    return unicodedata.category(char) in INVISIBLE_CATEGORIES or INVISIBLE_FILLER_PATTERN.match(char) is not None


def find_invisible_chars(text: str, allowed: str = "") -> set[str]:
    """Return the invisible characters of a text, except the allowed ones."""
    if text.isascii() and text.isprintable():
        return set()
    return {char for char in set(text) if char not in allowed and is_invisible(char)}


def has_long_marks(text: str) -> bool:
    """Return whether a text has more combining marks in a row than any language: Python sorts them very slowly."""
    if text.isascii():
        return False
    for run in _OTHER_THAN_ASCII_PATTERN.finditer(text):
        count = 0
        for char in run[0]:
            count = count + 1 if unicodedata.combining(char) else 0
            if count > MAX_MARKS_IN_A_ROW:
                return True
    return False


def normalize_text(form: Literal["NFC", "NFKD"], text: str) -> str:
    """Return a text in a normal form of Unicode, without its marks if it has too many in a row."""
    if has_long_marks(text):
        text = "".join(char for char in text if not unicodedata.combining(char))
    return unicodedata.normalize(form, text)


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
