"""Reading text from files, and saying why one was left out."""

import os
from collections.abc import Iterator
from typing import NamedTuple

from athena.errors import InvalidInput, NotFound

LARGEST = 20_000_000  # bytes of one file
MOST = 5_000  # files of one folder
PASSED_OVER = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".mypy_cache", ".ruff_cache"}


class Text(NamedTuple):
    path: str
    text: str


class Skipped(NamedTuple):
    path: str
    reason: str


def read(path: str) -> Iterator[Text | Skipped]:
    """Yield the text of a file, or of every file below a folder; links are not followed."""
    whole = os.path.realpath(os.path.expanduser(_checked(path)))
    if os.path.isfile(whole):
        yield _file(whole)
        return
    if not os.path.isdir(whole):
        raise NotFound(f"there is no file or folder {path!r:.200}", hint="give a path that exists")
    count = 0
    for folder, inside, names in os.walk(whole):
        inside[:] = sorted(name for name in inside if name not in PASSED_OVER)
        for name in sorted(names):
            count += 1
            if count > MOST:
                raise InvalidInput(f"{path} holds more than {MOST:,} files", hint="ingest a smaller folder")
            yield _file(os.path.join(folder, name))


def _checked(path: str) -> str:
    if "\0" in path:
        raise InvalidInput("path must not hold a NUL character")
    return path


def whole_path(path: str) -> str:
    """Return a path as documents are known by."""
    return legible(os.path.realpath(os.path.expanduser(_checked(path))))


def vanished(path: str, sources: list[str]) -> list[str]:
    """Return those of the known documents below a folder that are there no more."""
    folder = whole_path(path)
    return [source for source in sources if source.startswith(folder + os.sep) and not os.path.exists(source)]


def _file(path: str) -> Text | Skipped:
    if os.path.islink(path) or not os.path.isfile(path):
        return Skipped(legible(path), "not a plain file")
    try:
        if os.path.getsize(path) > LARGEST:
            return Skipped(legible(path), f"larger than {LARGEST // 1_000_000} MB")
        with open(path, "rb") as file:
            raw = file.read()
    except OSError as error:
        return Skipped(legible(path), str(error.strerror))
    if b"\0" in raw[:8_192]:
        return Skipped(legible(path), "not text")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Skipped(legible(path), "not UTF-8 text")
    return Text(legible(path), text) if text.strip() else Skipped(legible(path), "empty")


def legible(path: str) -> str:
    """Show bytes of a name that are no text as escapes."""
    return path.encode("utf-8", "backslashreplace").decode()
