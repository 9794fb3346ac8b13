"""Export tools as a folder of stub files, one for each tool, with an index for each category.

The folder has a manifest of the files written, with a digest of each. An export replaces and removes only those, and
none that somebody changed since.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from athena.core.files import open_folder_beneath, write_file_atomically
from athena.core.hashing import hash_text
from athena.discovery.entry import ToolEntry, to_valid_utf8
from athena.errors import Conflict, InvalidInput

MANIFEST_FILE = ".athena-tools.json"
STUB_IMPORTS = "from typing import Any, Literal, TypedDict\n\n"
README_INTRO = (
    "What a program in `execute_code` can call, as `category.tool(...)`: a folder a category, a file a tool. Written by"
    " `athena tools export`, which brings it up to date when it is run again."
)


class ExportResult(NamedTuple):
    written: int
    unchanged: int
    removed: int


def build_stub_files(entries: Iterable[tuple[ToolEntry, str, str]], categories: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each file by its path, from entries with their signature and stub."""
    files: dict[str, str] = {}
    index_lines: dict[str, list[str]] = {}
    taken: set[str] = set()
    for entry, line, stub in sorted(entries, key=lambda item: item[0].path):
        path = f"{entry.category}/{entry.name}.pyi"
        count = 1
        while path.lower() in taken:  # some file systems ignore case
            count += 1
            path = f"{entry.category}/{entry.name}_{count}.pyi"
        taken.add(path.lower())
        first, _, rest = stub.partition("\n")
        files[path] = f"{first}\n{STUB_IMPORTS}{rest.rstrip()}\n    ...\n"
        file_name = path.rpartition("/")[2]
        index_lines.setdefault(entry.category, []).append(f"- [{file_name}]({file_name}) `{line}`")
    for category, lines in index_lines.items():
        files[f"{category}/README.md"] = f"# {category}\n\n{categories.get(category, '')}\n\n" + "\n".join(lines) + "\n"
    index = [
        f"- [{category}]({category}/README.md), {len(lines)} tools: {' '.join(categories.get(category, '').split())}"
        for category, lines in sorted(index_lines.items())
    ]
    files["README.md"] = "\n".join(["# Tools", "", README_INTRO, "", *index, ""])
    return {path: to_valid_utf8(text) for path, text in files.items()}


def write_folder(folder: str, files: Mapping[str, str], *, force: bool = False) -> ExportResult:
    """Make a folder hold these files; with `force` replace also those of an earlier export that somebody changed."""
    folder = os.path.abspath(folder)
    if not os.path.lexists(folder):
        return _create_folder(folder, files)
    if not os.path.isdir(folder):
        raise InvalidInput(f"{folder} is no folder", hint="name a folder, or one that does not exist yet")
    manifest = _read_manifest(folder)
    if manifest is None:
        if os.listdir(folder):
            raise Conflict(f"{folder} holds other files", hint="name an empty folder, or one that does not exist yet")
        manifest = {}
    digests = {path: _digest_file(folder, path) for path in {*manifest, *files}}
    for path, digest in sorted(digests.items()):
        known = (hash_text(files.get(path, "")), *manifest.get(path, "").split())
        if digest is not None and digest not in known:
            if path not in manifest:
                raise Conflict(f"{path} in {folder} is not ours", hint="move it away, or name another folder")
            if not force:
                raise Conflict(f"{path} in {folder} was changed", hint="--force replaces it")
    # both digests: after an interruption the next export knows the old files and the new ones
    both = {path: f"{manifest.get(path, '')} {hash_text(files.get(path, ''))}" for path in digests}
    _write_manifest(folder, both)
    changed = [path for path, text in files.items() if digests[path] != hash_text(text)]
    for path in changed:
        write_file_beneath(folder, path, files[path])
    stale = [path for path in manifest if path not in files and digests[path] is not None]
    for path in stale:
        _remove_file(folder, path)
    _write_manifest(folder, {path: hash_text(text) for path, text in files.items()})
    return ExportResult(len(changed), len(files) - len(changed), len(stale))


def _remove_file(folder: str, path: str) -> None:
    """Remove a file of an earlier export, and its folder if that is empty then."""
    parent = open_folder_beneath(folder, os.path.dirname(path))
    try:
        os.unlink(os.path.basename(path), dir_fd=parent)
    finally:
        os.close(parent)
    if not os.listdir(parent_path := os.path.dirname(os.path.join(folder, path))):
        os.rmdir(parent_path)  # a link is no folder to it


def _create_folder(folder: str, files: Mapping[str, str]) -> ExportResult:
    """Write a temporary folder, then rename it: the folder exists whole or not at all."""
    part = f"{folder}.{os.urandom(6).hex()}"
    try:
        os.makedirs(part)
        for path, text in files.items():
            write_file_beneath(part, path, text)
        _write_manifest(part, {path: hash_text(text) for path, text in files.items()})
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return ExportResult(len(files), 0, 0)


def _read_manifest(folder: str) -> dict[str, str] | None:
    """Return the digests of the files of earlier exports, or None if the folder has no manifest."""
    try:
        with open(os.path.join(folder, MANIFEST_FILE), encoding="utf-8") as file:
            digests = json.load(file)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {path: str(digest) for path, digest in digests.items() if _is_inside(folder, path)}


def _is_inside(folder: str, path: str) -> bool:
    """Return whether a path stays in the folder, with symbolic links resolved."""
    folder = os.path.realpath(folder)
    parent = os.path.realpath(os.path.join(folder, os.path.dirname(path)))
    return not os.path.isabs(path) and os.path.commonpath([parent, folder]) == folder


def _digest_file(folder: str, path: str) -> str | None:
    """Return the digest of a file, None if it does not exist; a symbolic link counts as a change by somebody."""
    full = os.path.join(folder, path)
    if not _is_inside(folder, path) or os.path.islink(full) or os.path.isdir(full):
        return "changed"
    try:
        with open(full, encoding="utf-8", errors="replace", newline="") as file:
            return hash_text(file.read())
    except FileNotFoundError:
        return None


def _write_manifest(folder: str, digests: Mapping[str, str]) -> None:
    text = json.dumps({"files": dict(sorted(digests.items()))}, indent=1) + "\n"
    write_file_beneath(folder, MANIFEST_FILE, text)


def write_file_beneath(folder: str, path: str, text: str) -> None:
    """Write a file of an export; a link at its place is replaced, and one on the way to it is an error."""
    parent = open_folder_beneath(folder, os.path.dirname(path), create_mode=0o755)
    try:
        write_file_atomically(os.path.basename(path), text.encode(), 0o644, sync=False, dir_fd=parent)
    finally:
        os.close(parent)
