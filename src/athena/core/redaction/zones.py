"""Where a text may hold long numbers: characters of other scripts as ASCII, zones of digits, and telling words."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from athena.core.redaction.personal_values import Zones
from athena.core.redaction.values import compile_pattern

CUE_CHARS = 48  # how far a telling word may stand before a number
# Numbers of other things: without a word of its own, one of these before it tells against a number.
OTHER_NUMBER_CUE = (
    r"\b(?:policy|order|invoice|ticket|ref|reference|part|sku|case|claim|serial|s/n|model|tracking|booking|contract|rma|po|"
    r"isbn|item|lot|batch|parcel|shipment|quote|auftrag|bestell\w*|rechnung\w*|facture|commande|pedido|ordine|fattura)"
    r"[\s:#.-]{0,3}(?:no|nr|number|id|num)?[\s:#.]{0,3}\Z"
)


def find_in_zones(pattern: re.Pattern[str], text: str, zones: Zones) -> Iterator[re.Match[str]]:
    for start, end in zones:
        yield from pattern.finditer(text, start, end + 2)  # what follows may tell that it is something else


def has_cue(lower: str, start: int, pattern: str, chars: int = CUE_CHARS) -> bool:
    """Return whether a telling word stands before a position: in the same line, or alone in the one before."""
    before = lower[max(0, start - chars) : start]
    line = before.rfind("\n") + 1
    if line and not before[line:].strip():  # a label above its value
        before = before[: line - 1].rstrip()
    if "[" in before:
        before = compile_pattern(r"\[\w{1,60}\]").sub("", before)  # the name of a token is no word of the text
    return compile_pattern(pattern, re.U).search(before[before.rfind("\n") + 1 :]) is not None


_ZONE_TABLE = bytes(
    0x31 if chr(byte).isdigit() else 0x32 if chr(byte) in "ABCDEFGHIJKLMNOPQRSTUVWXYZ ()+./?-x\t" else 0x20
    for byte in range(256)
)
MIN_ZONE_DIGITS = 6


def find_zones(text: str) -> Zones:
    """Return the parts of a text that may hold a long number: few, and quickly found."""
    marks = text.encode("ascii", "replace").translate(_ZONE_TABLE)
    zones = (match.span() for match in re.finditer(rb"[12]{7,}", marks))
    return [(start, end) for start, end in zones if marks.count(b"1", start, end) >= MIN_ZONE_DIGITS]


@cache
def load_validator(module: str) -> Any:
    return import_module(f"stdnum.{module}").is_valid


# --- characters of other scripts --------------------------------------------------------------------------------------

_SIGNS = {
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d",
    " ": "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
    "@": "\ufe6b\uff20",
    ".": "\u2024\ufe52\uff0e",
    "+": "\ufe62\uff0b",
    "(": "\uff08",
    ")": "\uff09",
    "/": "\u2044\uff0f",
    ":": "\uff1a",
}
# The zero of each script that has digits; the others follow it.
_ZEROS_TEXT = """
660 6f0 7c0 966 9e6 a66 ae6 b66 be6 c66 ce6 d66 de6 e50 ed0 f20 1040 1090 17e0 1810 1946 19d0 1a80 1a90 1b50
1bb0 1c40 1c50 a620 a8d0 a900 a9d0 a9f0 aa50 abf0 ff10 104a0 10d30 11066 110f0 11136 111d0 112f0 11450 114d0
11650 116c0 11730 118e0 11950 11c50 11d50 11da0 16a60 16ac0 16b50 1d7ce 1d7d8 1d7e2 1d7ec 1d7f6 1e140 1e2f0
1e950 1fbf0
"""


def fold_characters(text: str) -> str:
    """Return a text of the same length in which numbers and addresses are written with ASCII."""
    if text.isascii():
        return text
    pattern, table = _load_table()
    return text.translate(table) if pattern.search(text) else text


@cache
def _load_table() -> tuple[re.Pattern[str], dict[int, str]]:
    table = {ord(char): sign for sign, chars in _SIGNS.items() for char in chars}
    zeros = [int(zero, 16) for zero in _ZEROS_TEXT.split()]
    table |= {zero + digit: str(digit) for zero in zeros for digit in range(10)}
    ranges = "".join(f"{chr(zero)}-{chr(zero + 9)}" for zero in zeros)
    return re.compile(f"[{''.join(_SIGNS.values())}{ranges}]"), table
