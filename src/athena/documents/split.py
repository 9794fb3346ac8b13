"""Split the blocks of a document into pieces: along its headings and pages, at most a screen long."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from athena.core import redaction
from athena.core.redaction import SecretMatch
from athena.documents.formats.blocks import CODE, HEADING, PAGE, Block

MAX_PIECE_CHARS = 1_600  # a few paragraphs, about a screen
MIN_PAGE_CHARS = 500  # of a piece that ends with its page
MAX_HEADING_CHARS = 300
HEADING_SEPARATOR = " > "
BLOCK_SEPARATOR = "\n\n"
MAX_REDACTION_PASSES = 6
SENTENCE_END_PATTERN = re.compile(r"[.!?;:][\"')\]]*\s+|[。！？]")


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    heading: str  # the headings above it, `Installing > macOS`
    page: int | None  # where it begins


def redact_blocks(blocks: Sequence[Block]) -> tuple[list[Block], list[str]]:
    """Return blocks without secrets, also those that lie across two of them, and the kinds of the secrets."""
    kinds: list[str] = []
    texts = [str(block[-1]) for block in blocks]
    for _ in range(MAX_REDACTION_PASSES):  # a placeholder may complete a pattern with the text beside it
        matches = redaction.find_secrets(BLOCK_SEPARATOR.join(texts))
        if not matches:
            break
        kinds += [match.kind for match in matches]
        texts = _replace_matches(texts, matches)
    pairs = zip(blocks, texts, strict=True)
    return [block if block[0] == PAGE else [*block[:-1], text] for block, text in pairs], kinds


def _replace_matches(texts: list[str], matches: list[SecretMatch]) -> list[str]:
    """Put placeholders where secrets begin, and take the rest of them out of the texts after."""
    replaced: list[str] = []
    start = number = 0
    for text in texts:
        end = start + len(text)
        parts: list[str] = []
        position = start
        for match in matches[number:]:
            if match.start >= end:
                break
            parts.append(texts_between(text, position - start, match.start - start))
            if match.start >= start:
                parts.append(f"[SECRET:{match.kind}]")
            position = max(position, min(match.end, end))
            if match.end > end:
                break
            number += 1
        parts.append(text[position - start :])
        replaced.append("".join(parts))
        start = end + len(BLOCK_SEPARATOR)
        while number < len(matches) and matches[number].end <= start:
            number += 1
    return replaced


def texts_between(text: str, start: int, end: int) -> str:
    return text[start:end] if end > start else ""


def split_blocks(blocks: Sequence[Block], max_chars: int = MAX_PIECE_CHARS) -> list[Piece]:
    """Return the pieces of a document in order, without repeats."""
    splitter = _Splitter(max_chars)
    for block in blocks:
        splitter.add_block(block)
    splitter.end_piece()
    return list({piece.text: piece for piece in reversed(splitter.pieces)}.values())[::-1]


class _Splitter:
    def __init__(self, max_chars: int) -> None:
        self.pieces: list[Piece] = []
        self._max_chars = max_chars
        self._headings: list[tuple[int, str]] = []
        self._title = ""  # the line that each piece of the section begins with
        self._parts: list[str] = []
        self._size = 0
        self._page: int | None = None
        self._start_page: int | None = None

    def add_block(self, block: Block) -> None:
        kind, value = block[0], block[-1]
        if kind == PAGE:
            if self._size >= MIN_PAGE_CHARS:
                self.end_piece()
            self._page = int(value)
        elif kind == HEADING:
            self._enter_section(int(block[1]), str(value))
        else:
            room = self._max_chars - len(self._title)
            for text in _cut_text(str(value), max(room, self._max_chars // 2), is_code=kind == CODE):
                self._add_text(text)

    def _add_text(self, text: str) -> None:
        if self._size and self._size + len(text) + len(BLOCK_SEPARATOR) > self._max_chars - len(self._title):
            self.end_piece()
        if not self._parts:
            self._start_page = self._page
        self._parts.append(text)
        self._size += len(text) + len(BLOCK_SEPARATOR)

    def _enter_section(self, level: int, title: str) -> None:
        self.end_piece()
        self._headings = [*(item for item in self._headings if item[0] < level), (level, title)]
        self._title = f"{'#' * level} {title}\n" if title else ""

    def end_piece(self) -> None:
        if not self._parts:
            return
        heading = HEADING_SEPARATOR.join(title for _, title in self._headings)
        if len(heading) > MAX_HEADING_CHARS:
            heading = "…" + heading[-MAX_HEADING_CHARS + 1 :]
        text = self._title + BLOCK_SEPARATOR.join(self._parts)
        self.pieces.append(Piece(text, heading, self._start_page))
        self._parts, self._size = [], 0


def _cut_text(text: str, max_chars: int, *, is_code: bool) -> Iterator[str]:
    """Yield a text in parts that fit a piece: cut at line ends, else after sentences, else at spaces."""
    start = 0
    while len(text) - start > max_chars:
        end = start + max_chars
        half = start + max_chars // 2
        cut = text.rfind("\n", half, end)
        if cut < 0 and not is_code:
            cut = max((match.end() for match in SENTENCE_END_PATTERN.finditer(text, half, end)), default=-1)
        if cut < 0:
            cut = text.rfind(" ", half, end)
        cut = cut if cut > start else end
        yield text[start:cut].rstrip()
        start = cut
        while start < len(text) and text[start] in (" \n" if not is_code else "\n"):
            start += 1
    if text[start:].strip():
        yield text[start:]
