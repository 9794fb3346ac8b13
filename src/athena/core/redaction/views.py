"""Decode a text so that secrets in it can be found, and map positions in the decoded text back to the text.

Decoded are the escapes of JSON and C, of URLs and of HTML; colour codes, invisible characters and continued lines are
left out. Blobs in base64 and hex are decoded one by one.
"""

import base64
import binascii
import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import accumulate, chain
from typing import NamedTuple

MAX_LAYERS = 5  # of escapes inside escapes
MAX_TOKEN_CHARS = 20_000  # how long a secret may go on after an escape
CONTEXT_CHARS = 400  # around an escape: how far a name may stand from its secret
MAX_PART_CHARS = 200_000  # of a text that is decoded at once; the list of its escapes takes 100 times the memory
MIN_ESCAPE_INTERVAL = 100  # characters; where escapes are closer, a long text is decoded as a whole
MIN_BLOB_CHARS = 16
MAX_BLOB_CHARS = 1_000_000

_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_WIDE = "\uff01-\uff5e"  # fullwidth forms of ASCII; shorter runs are punctuation of Chinese and Japanese
# It begins with a set of characters, which is quick to search for, and goes on by which of them it was.
_ESCAPE_PATTERN = r"""(?x)( [\\%&\x1bINVISIBLE] (?:
    (?<=\\) (?: (?: 033 | e | x1[bB] | u001[bB] ) \[ [0-9;:?]{0,40} [A-Za-z]
              | u[0-9a-fA-F]{4} | u\{[0-9a-fA-F]{1,5}\} | [01][0-7]{2} | x[0-9a-fA-F]{2} | \r?\n | [nrtbfv"'/\\`$=:&] )
  | (?<=%) [0-9a-fA-F]{2}
  | (?<=&) (?: \#[0-9]{1,7} | \#[xX][0-9a-fA-F]{1,6} | [A-Za-z]{2,8} ) ;
  | (?<=\x1b) (?: \[ [0-9;:?]{0,40} [A-Za-z] | \] [^\x07\x1b\n]{0,512} (?: \x07 | \x1b\\ ) )
    OR_INVISIBLE
) )"""
_LETTER_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "b": " ", "f": " ", "v": " ", "\n": "", "\r": ""}
_BLOB_CHARS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_BLOB_TABLE = bytes(0x61 if byte in _BLOB_CHARS else 0x20 for byte in range(256))


_LINES_TABLE = bytes(0x61 if byte in _BLOB_CHARS + b"=\r\n" else 0x20 for byte in range(256))


class DecodedText(NamedTuple):
    """A decoded text; its pieces are literal and decoded in turn, and begin at `starts` in it, at `origins` before."""

    text: str
    starts: list[int]
    origins: list[int]

    def map_start(self, at: int) -> int:
        """Return where the character at a position of the decoded text begins in the text."""
        piece = bisect_right(self.starts, at) - 1
        return self.origins[piece] + (at - self.starts[piece] if piece % 2 == 0 else 0)

    def map_end(self, end: int) -> int:
        """Return where the character before a position of the decoded text ends in the text."""
        piece = bisect_right(self.starts, end - 1) - 1
        return self.origins[piece + 1] if piece % 2 else self.origins[piece] + end - self.starts[piece]


@cache
def _compile_escapes(*, is_ascii: bool) -> re.Pattern[str]:
    pattern = _ESCAPE_PATTERN.replace("INVISIBLE", "" if is_ascii else _INVISIBLE + _WIDE, 1)
    others = f"| (?<=[{_INVISIBLE}]) [{_INVISIBLE}]* | (?<=[{_WIDE}]) [{_WIDE}]{{3,63}}"
    return re.compile(pattern.replace("OR_INVISIBLE", "" if is_ascii else others))


@cache
def _compile_invisible() -> re.Pattern[str]:
    return re.compile(f"[{_INVISIBLE}]|[{_WIDE}]{{4}}")


def find_escaped_parts(text: str) -> list[tuple[int, int]]:
    """Return the parts of a text that have escapes, with what stands around them.

    Long parts are cut; the next begins before the end of the last, so that one of them has the whole of a secret.
    """
    if not _may_hold_escapes(text):
        return []
    if len(text) > MAX_PART_CHARS and sum(map(text.count, "\\%&\x1b")) > len(text) // MIN_ESCAPE_INTERVAL:
        step = MAX_PART_CHARS - MAX_TOKEN_CHARS
        return [(start, min(start + MAX_PART_CHARS, len(text))) for start in range(0, len(text), step)]
    parts: list[tuple[int, int]] = []
    for escape in _compile_escapes(is_ascii=text.isascii()).finditer(text):
        start, end = escape.start() - CONTEXT_CHARS, escape.end() + CONTEXT_CHARS
        if not parts or start > parts[-1][1]:
            parts.append((start, end))
        elif end - parts[-1][0] <= MAX_PART_CHARS:
            parts[-1] = (parts[-1][0], end)
        else:
            parts.append((end - MAX_TOKEN_CHARS, end))
    return [(_find_gap(text, start, -1), _find_gap(text, end, 1)) for start, end in parts]


def _find_gap(text: str, at: int, step: int) -> int:
    """Return a position between two words, so that a part does not begin or end inside one."""
    if not 0 < at < len(text):
        return min(max(at, 0), len(text))
    near = text[at : at + MAX_TOKEN_CHARS] if step > 0 else text[max(0, at - CONTEXT_CHARS) : at]
    gap = re.search(r"\s", near) if step > 0 else None
    if step > 0:
        return at + (gap.start() if gap else len(near))
    last = max(near.rfind(" "), near.rfind("\n"))
    return at - len(near) + last + 1


def decode_text(text: str) -> list[DecodedText]:
    """Return the layers of decoding, the outermost first; none if there is nothing to decode."""
    layers: list[DecodedText] = []
    while len(layers) < MAX_LAYERS and _may_hold_escapes(text):
        pieces = _compile_escapes(is_ascii=text.isascii()).split(text)
        if len(pieces) == 1:
            break
        decoded = pieces.copy()
        decoded[1::2] = map(_decode_escape, pieces[1::2])
        starts = list(chain((0,), accumulate(map(len, decoded))))
        origins = list(chain((0,), accumulate(map(len, pieces))))
        text = "".join(decoded)
        layers.append(DecodedText(text, starts, origins))
    return layers


def _may_hold_escapes(text: str) -> bool:
    if "\\" in text or "%" in text or "\x1b" in text or ("&" in text and ";" in text):
        return True
    return not text.isascii() and _compile_invisible().search(text) is not None


@lru_cache(maxsize=512)
def _decode_escape(escape: str) -> str:
    lead, rest = escape[0], escape[1:]
    if lead == "%":
        code = int(rest, 16)
        return chr(code) if code < 0x80 else escape
    if lead == "&":
        char = html.unescape(escape)
        return char if len(char) == 1 else escape
    if lead == "\\" and "[" not in rest:
        if rest[0] in "ux":
            return chr(int(rest[1:].strip("{}"), 16))
        if rest[0] in "01":
            return chr(int(rest, 8))
        return _LETTER_ESCAPES.get(rest[0], rest)
    return "".join(chr(ord(char) - 0xFEE0) for char in escape) if "\uff01" <= lead <= "\uff5e" else ""


def map_span(layers: list[DecodedText], start: int, end: int) -> tuple[int, int]:
    """Return a span of the innermost layer as a span of the text."""
    for layer in reversed(layers):
        start, end = layer.map_start(start), layer.map_end(end)
    return start, end


def has_long_run(text: str) -> bool:
    """Return whether the text has a run of letters, digits and the like that is long enough for a key or a blob."""
    # a key may go on in the next line
    return _LONG_RUN in (text.encode("ascii", "replace").translate(_LINES_TABLE) if "\n" in text else _mark_runs(text))


_LONG_RUN = b"a" * MIN_BLOB_CHARS


def _mark_runs(text: str) -> bytes:
    # one byte for each character, so that the positions agree; a long run is then a plain substring
    return text.encode("ascii", "replace").translate(_BLOB_TABLE)


def find_blobs(text: str) -> Iterator[tuple[int, int, str]]:
    """Find base64 and hex that stand for text; yield start, end and the decoded text of each."""
    runs = _mark_runs(text)
    at = runs.find(_LONG_RUN)
    while at >= 0:
        lines = list(_read_blob_lines(text, runs, at))
        end = lines[-1][1]
        padded_end = end + len(text[end : end + 2]) - len(text[end : end + 2].lstrip("="))
        blob = "".join(text[start:stop] for start, stop in lines)
        if decoded := _decode_blob(blob):
            yield at, padded_end, decoded
        elif len(lines) > 1 and (decoded := _decode_blob(blob[: lines[-1][0] - end])):
            yield at, lines[-2][1], decoded  # the last was a word of the next line
        elif len(lines) == 1 and len(blob) < 4_096:
            for match in re.finditer(r"[A-Za-z0-9+]{16,}", blob):  # the parts of a path or a compound name
                if len(match[0]) < len(blob) and (decoded := _decode_blob(match[0])):
                    yield at + match.start(), at + match.end(), decoded
        at = runs.find(_LONG_RUN, padded_end)


def _read_blob_lines(text: str, runs: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield the lines of one blob: each as long as the first, apart from the last."""
    first, width = start, 0
    while True:
        end = runs.find(b" ", start)
        end = len(runs) if end < 0 else end
        if width and not 0 < end - start <= width:
            return
        yield start, end
        wrap = re.compile(r"\r?\n[ \t]{0,16}").match(text, end)
        if not wrap or (width and end - start < width) or end - start < 48 or end - first > MAX_BLOB_CHARS:
            return
        start, width = wrap.end(), end - start


def _decode_blob(blob: str) -> str | None:
    """Return the text that base64 or hex stands for; None if that is no text."""
    is_hex = len(blob) % 2 == 0 and re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", blob[:64])
    try:
        # what begins with other bytes than those of text is a picture, a hash or a key: not worth the rest
        if is_hex and re.fullmatch(r"[0-9a-fA-F]+", blob):
            return _to_text(bytes.fromhex(blob))
        standard = blob.translate({0x2D: "+", 0x5F: "/"})
        standard = standard[: len(standard) - (len(standard) % 4 == 1)]
        if _to_text(base64.b64decode(standard[:64][: len(standard[:64]) // 4 * 4])) is None:
            return None
        return _to_text(base64.b64decode(standard + "=" * (-len(standard) % 4)))
    except (ValueError, binascii.Error):
        return None


def _to_text(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # the probe may end inside a character
        if error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if text and all(char.isprintable() or char in "\r\n\t" for char in text[:4_096]) else None
