"""The kinds of personal data, and the place of a value in a text."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

CARD, EMAIL, IBAN, IP, NAME, PHONE = "CARD", "EMAIL", "IBAN", "IP", "NAME", "PHONE"
BIRTH_DATE, NATIONAL_ID = "BIRTH_DATE", "NATIONAL_ID"
# How a token looks: a kind and a number. A secret that a person put into the vault has a name instead.
TOKEN_PATTERN = r"\[([A-Z][A-Z0-9_]{0,39})_([1-9][0-9]{0,14})\]"


class PersonalMatch(NamedTuple):
    """The position of a personal value: `text[start:end]`."""

    kind: str
    start: int
    end: int


Zones = list[tuple[int, int]]  # the parts of a text that may hold a long number
Finder = Callable[[str, str, Zones], Iterator[PersonalMatch]]  # takes the text, and the same in lower case
