"""Read text files and split them into pieces; report the files that are skipped, with the reason."""

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from athena.errors import InvalidInput, NotFound

MAX_PIECE_CHARS = 1_600  # a few paragraphs, about a screen
MAX_HEADING_CHARS = 200
MAX_FILE_BYTES = 20_000_000
MAX_FOLDER_FILES = 5_000
IGNORED_FOLDERS = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
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


def read_files(path: str) -> Iterator[DocumentText | SkippedFile]:
    """Yield the text of a file, or of every file below a folder, without following links."""
    root = os.path.realpath(os.path.expanduser(_check_path(path)))
    if os.path.isfile(root):
        yield _read_file(root)
        return
    if not os.path.isdir(root):
        raise NotFound(f"there is no file or folder {path!r:.200}", hint="give a path that exists")
    count = 0
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in IGNORED_FOLDERS)
        for name in sorted(names):
            count += 1
            if count > MAX_FOLDER_FILES:
                raise InvalidInput(f"{path} holds more than {MAX_FOLDER_FILES:,} files", hint="ingest a smaller folder")
            yield _read_file(os.path.join(folder, name))


def _check_path(path: str) -> str:
    if "\0" in path:
        raise InvalidInput("path must not hold a NUL character")
    return path


def resolve_path(path: str) -> str:
    """Return the absolute path that a document is stored under."""
    return escape_path(os.path.realpath(os.path.expanduser(_check_path(path))))


def find_missing_files(path: str, sources: list[str]) -> list[str]:
    """Return the documents below a folder whose files no longer exist."""
    folder = resolve_path(path)
    return [source for source in sources if source.startswith(folder + os.sep) and not os.path.exists(source)]


def _read_file(path: str) -> DocumentText | SkippedFile:
    if os.path.islink(path) or not os.path.isfile(path):
        return SkippedFile(escape_path(path), "not a plain file")
    try:
        if os.path.getsize(path) > MAX_FILE_BYTES:
            return SkippedFile(escape_path(path), f"larger than {MAX_FILE_BYTES // 1_000_000} MB")
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        return SkippedFile(escape_path(path), str(error.strerror))
    if b"\0" in raw[:8_192]:
        return SkippedFile(escape_path(path), "not text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return SkippedFile(escape_path(path), "not UTF-8 text")
    return DocumentText(escape_path(path), text) if text.strip() else SkippedFile(escape_path(path), "empty")


def escape_path(path: str) -> str:
    """Return a path with undecodable bytes as escapes, so that it can be stored."""
    return path.encode("utf-8", "backslashreplace").decode()
