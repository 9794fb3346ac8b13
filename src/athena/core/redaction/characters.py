"""Replace the digits, spaces, hyphens and signs of other scripts by those of ASCII, one character for one."""

import re
from functools import cache

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
