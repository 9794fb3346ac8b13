"""Read text files and split them into pieces; report the files that are skipped, with the reason."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from athena.errors import InvalidInput
from athena.memory.documents.access import Location, escape_path

MAX_PIECE_CHARS = 1_600  # a few paragraphs, about a screen
MAX_HEADING_CHARS = 200
MAX_FILE_BYTES = 20_000_000
MAX_FOLDER_FILES = 5_000
HEADING_PATTERN = re.compile(r"#{1,6} +\S")


class DocumentText(NamedTuple):
    path: str
    text: str


class SkippedFile(NamedTuple):
    path: str
    reason: str


def split_document(text: str) -> list[str]:
    """Pack paragraphs into pieces; a heading starts a new piece, and every piece begins with its heading."""
    pieces: list[str] = []
    current, heading = "", ""
    for paragraph in _iter_paragraphs(text):
        is_heading = bool(HEADING_PATTERN.match(paragraph))
        if current.strip() and current != heading and (is_heading or len(current) + len(paragraph) > MAX_PIECE_CHARS):
            pieces.append(current.strip())
            current = heading
        if is_heading:
            heading = current = paragraph.split("\n")[0][:MAX_HEADING_CHARS] + "\n"
            paragraph = paragraph.partition("\n")[2]
        if paragraph.strip():
            current += paragraph + "\n\n"
    if not pieces or (current.strip() and current != heading):
        pieces.append(current.strip())
    return list(dict.fromkeys(pieces))


def _iter_paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs; cut one that is too long for a piece at line ends, else at spaces."""
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        start = 0
        while len(paragraph) - start > MAX_PIECE_CHARS:
            end = start + MAX_PIECE_CHARS
            cut = max(paragraph.rfind("\n", start + 1, end), paragraph.rfind(" ", start + MAX_PIECE_CHARS // 2, end))
            cut = cut if cut > start else end
            yield paragraph[start:cut]
            start = cut + paragraph[cut].isspace()
        if paragraph[start:].strip():
            yield paragraph[start:]


def read_files(location: Location) -> Iterator[DocumentText | SkippedFile]:
    """Yield the text of a file, or of every file below a folder, and what is skipped."""
    for count, (path, file) in enumerate(location.iter_files(), 1):
        if count > MAX_FOLDER_FILES:
            raise InvalidInput(
                f"{location.full_path} holds more than {MAX_FOLDER_FILES:,} files", hint="ingest a smaller folder"
            )
        name = escape_path(path)
        if isinstance(file, OSError):
            yield SkippedFile(name, str(file.strerror))
        else:
            yield _read_file(name, file)


def find_missing_files(location: Location, sources: list[str]) -> list[str]:
    """Return the documents below a folder whose files no longer exist."""
    folder = escape_path(location.full_path)
    return [source for source in sources if source.startswith(folder + os.sep) and not os.path.lexists(source)]


def _read_file(path: str, file: int) -> DocumentText | SkippedFile:
    try:
        if os.fstat(file).st_size > MAX_FILE_BYTES:
            return SkippedFile(path, f"larger than {MAX_FILE_BYTES // 1_000_000} MB")
        with open(file, "rb", closefd=False) as stream:
            raw = stream.read(MAX_FILE_BYTES)
    except OSError as error:
        return SkippedFile(path, str(error.strerror))
    if b"\0" in raw[:8_192]:
        return SkippedFile(path, "not text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return SkippedFile(path, "not UTF-8 text")
    return DocumentText(path, text) if text.strip() else SkippedFile(path, "empty")
