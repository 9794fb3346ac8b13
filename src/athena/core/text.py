"""Find invisible characters in texts, escape them for models and terminals, make texts storable in every database."""

import re
import unicodedata
from collections.abc import Callable
from typing import Any, Literal

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
NEW_EMOJI_RANGE = range(0x1F000, 0x1FB00)  # characters that this Python does not know yet; they are seen
MAX_ESCAPED_RUN_CHARS = 4  # of a longer run only the length is shown: it could spell a text
ZERO_WIDTH_JOINERS = "\u200c\u200d"
EMOJI_JOINERS = ("\u200d", "\ufe0f\u200d")
EMOJI_STYLES = "\ufe0e\ufe0f"
SKIN_TONES = range(0x1F3FB, 0x1F400)
# Arabic, Syriac, Indic and other scripts in which a joiner changes how a word is written
JOINING_SCRIPT_PATTERN = re.compile("[\u0600-\u109f\u1780-\u18af\u1900-\u1cff\ua800-\uabff\ufb50-\ufefe]")


def escape_control_chars(text: str) -> str:
    """Replace control characters, and characters that hide or reorder others, by escapes."""
    if text.isascii() and text.isprintable():
        return text

    def escape_char(match: re.Match[str]) -> str:
        start, after = match.start(), text[match.end() : match.end() + 1]
        if match[0] in ZERO_WIDTH_JOINERS:
            start -= text[start - 1 : start] == "\ufe0f"  # an emoji may have both
            if _is_part_of_visible_text(text[start : match.end()], text[max(0, start - 1) : start], after):
                return match[0]
        return match[0].encode("unicode_escape").decode()

    return TERMINAL_UNSAFE_PATTERN.sub(escape_char, text)


def is_invisible(char: str) -> bool:
    """Return whether a reader does not see a character."""
    category = unicodedata.category(char)
    if category == "Cn" and ord(char) in NEW_EMOJI_RANGE:
        return False
    return category in INVISIBLE_CATEGORIES or INVISIBLE_FILLER_PATTERN.match(char) is not None


def find_invisible_chars(text: str, allowed: str = "") -> set[str]:
    """Return the invisible characters of a text, except the allowed ones."""
    if text.isascii() and text.isprintable():
        return set()
    return {char for char in set(text) if char not in allowed and is_invisible(char)}


def _describe_hidden(run: str) -> str:
    if len(run) > MAX_ESCAPED_RUN_CHARS:
        return f"<{len(run):,} hidden characters>"
    return "".join(f"<U+{ord(char):04X}>" for char in run)


def escape_invisible(text: str, allowed: str = "", escape: Callable[[str], str] = _describe_hidden) -> str:
    """Replace invisible characters by their code points, so that nobody hides or reorders text with them.

    Those stay that belong to visible text: joiners in words and in emoji, styles of emoji, and line ends of Windows.
    """
    invisible = find_invisible_chars(text, allowed)
    if not invisible:
        return text

    def escape_run(match: re.Match[str]) -> str:
        run, before, after = match[0], text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
        if _is_part_of_visible_text(run, before, after) or (run == "\r" and after == "\n"):
            return run
        return escape(run)

    return re.sub(f"[{re.escape(''.join(invisible))}]+", escape_run, text)


def _is_part_of_visible_text(run: str, before: str, after: str) -> bool:
    """Return whether one joiner or style stands where writing systems and emoji have it."""
    if not before:
        return False
    is_symbol = unicodedata.category(before) in ("So", "Sm") or ord(before) in SKIN_TONES
    if run in EMOJI_JOINERS and is_symbol and after:
        return unicodedata.category(after) in ("So", "Sm")
    if len(run) > 1:
        return False
    if run in EMOJI_STYLES:
        return is_symbol or before in "‼⁉〰〽ℹ" or (before in "#*0123456789" and after == "\u20e3")
    if run in ZERO_WIDTH_JOINERS:
        return JOINING_SCRIPT_PATTERN.match(before) is not None and unicodedata.category(before)[0] in "LM"
    return "\u180b" <= run <= "\u180f" and "\u1800" <= before <= "\u18af"  # Mongolian


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


def normalize_text(form: Literal["NFC", "NFKC", "NFKD"], text: str) -> str:
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
