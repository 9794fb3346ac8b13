"""Cutting a document into pieces that can be read on their own."""

import re
from collections.abc import Iterator

MAX_PIECE_CHARS = 1_600  # characters: a few paragraphs, a screen
HEADING_PATTERN = re.compile(r"#{1,6} +\S")


def split_document(text: str) -> list[str]:
    """Pack paragraphs into pieces; a piece starts anew at a heading and carries the heading it stands under."""
    pieces: list[str] = []
    current, heading = "", ""
    for paragraph in _iter_paragraphs(text):
        starts = bool(HEADING_PATTERN.match(paragraph))
        if current.strip() and current != heading and (starts or len(current) + len(paragraph) > MAX_PIECE_CHARS):
            pieces.append(current.strip())
            current = heading
        if starts:
            heading = current = paragraph.split("\n")[0][:200] + "\n"
            paragraph = paragraph.partition("\n")[2]
        if paragraph.strip():
            current += paragraph + "\n\n"
    if not pieces or (current.strip() and current != heading):
        pieces.append(current.strip())
    return list(dict.fromkeys(pieces))


def _iter_paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs; one too long for a piece is cut at line ends, else at spaces."""
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        start = 0
        while len(paragraph) - start > MAX_PIECE_CHARS:
            end = start + MAX_PIECE_CHARS
            at = max(paragraph.rfind("\n", start + 1, end), paragraph.rfind(" ", start + MAX_PIECE_CHARS // 2, end))
            at = at if at > start else end
            yield paragraph[start:at]
            start = at + (paragraph[at].isspace())
        if paragraph[start:].strip():
            yield paragraph[start:]
