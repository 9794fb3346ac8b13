"""The parts of a text that may hold long numbers, and the words before a number that tell what it is."""

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
