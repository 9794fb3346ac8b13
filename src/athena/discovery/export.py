"""The tools as a folder of stub files: one a tool, an index a category, for agents that like to read.

A folder that is ours holds a list of what was written, with a digest of each file. Only those are ever replaced or
removed, and none that somebody changed since.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from athena.core.files import write_file_atomically
from athena.core.hashing import hash_text
from athena.discovery.entry import Entry, to_valid_utf8
from athena.errors import Conflict, InvalidInput

MANIFEST_FILE = ".athena-tools.json"
STUB_IMPORTS = "from typing import Any, Literal, TypedDict\n\n"


class ExportResult(NamedTuple):
    written: int
    unchanged: int
    removed: int


def build_stub_files(entries: Iterable[tuple[Entry, str, str]], about: Mapping[str, str]) -> dict[str, str]:
    """Return each file's text by its path; an entry comes with its line and its stub."""
    made: dict[str, str] = {}
    listed: dict[str, list[str]] = {}
    taken: set[str] = set()
    for entry, line, stub in sorted(entries, key=lambda one: one[0].path):
        path = f"{entry.category}/{entry.name}.pyi"
        count = 1
        while path.lower() in taken:  # some systems do not tell A from a
            count += 1
            path = f"{entry.category}/{entry.name}_{count}.pyi"
        taken.add(path.lower())
        first, _, rest = stub.partition("\n")
        made[path] = f"{first}\n{STUB_IMPORTS}{rest.rstrip()}\n    ...\n"
        listed.setdefault(entry.category, []).append(
            f"- [{path.rpartition('/')[2]}]({path.rpartition('/')[2]}) `{line}`"
        )
    for category, lines in listed.items():
        made[f"{category}/README.md"] = f"# {category}\n\n{about.get(category, '')}\n\n" + "\n".join(lines) + "\n"
    index = [
        f"- [{category}]({category}/README.md), {len(lines)} tools: {' '.join(about.get(category, '').split())}"
        for category, lines in sorted(listed.items())
    ]
    made["README.md"] = "\n".join(["# Tools", "", README_INTRO, "", *index, ""])
    return {path: to_valid_utf8(text) for path, text in made.items()}


README_INTRO = (
    "What a program in `execute_code` can call, as `category.tool(...)`: a folder a category, a file a tool. Written by"
    " `athena tools export`, which brings it up to date when it is run again."
)


def write_folder(folder: str, wanted: Mapping[str, str], *, force: bool = False) -> ExportResult:
    """Make a folder hold these files; `force` also replaces those of ours that somebody changed."""
    folder = os.path.abspath(folder)
    if not os.path.lexists(folder):
        return _create_folder(folder, wanted)
    if not os.path.isdir(folder):
        raise InvalidInput(f"{folder} is no folder", hint="name a folder, or one that is not there yet")
    ours = _read_manifest(folder)
    if ours is None:
        if os.listdir(folder):
            raise Conflict(f"{folder} holds other files", hint="name an empty folder, or one that is not there yet")
        ours = {}
    known = {path: _digest_file(folder, path) for path in {*ours, *wanted}}
    for path, there in sorted(known.items()):
        if there is not None and there != hash_text(wanted.get(path, "")) and there not in ours.get(path, "").split():
            if path not in ours:
                raise Conflict(f"{path} in {folder} is not ours", hint="move it away, or name another folder")
            if not force:
                raise Conflict(f"{path} in {folder} was changed", hint="--force replaces it")
    both = {path: f"{ours.get(path, '')} {hash_text(wanted.get(path, ''))}" for path in known}
    _write_manifest(folder, both)  # wherever it is interrupted, the next time knows the old files and the new ones
    changed = [path for path, text in wanted.items() if known[path] != hash_text(text)]
    for path in changed:
        _write_file(os.path.join(folder, path), wanted[path])
    stale = [path for path in ours if path not in wanted and known[path] is not None]
    for path in stale:
        os.unlink(os.path.join(folder, path))
        if not os.listdir(above := os.path.dirname(os.path.join(folder, path))):
            os.rmdir(above)
    _write_manifest(folder, {path: hash_text(text) for path, text in wanted.items()})
    return ExportResult(len(changed), len(wanted) - len(changed), len(stale))


def _create_folder(folder: str, wanted: Mapping[str, str]) -> ExportResult:
    """Write beside, then move: the folder is there whole or not at all."""
    part = f"{folder}.{os.urandom(6).hex()}"
    try:
        os.makedirs(part)
        for path, text in wanted.items():
            _write_file(os.path.join(part, path), text)
        _write_manifest(part, {path: hash_text(text) for path, text in wanted.items()})
        os.rename(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return ExportResult(len(wanted), 0, 0)


def _read_manifest(folder: str) -> dict[str, str] | None:
    """Return what was written into a folder, or None where it is not ours."""
    try:
        with open(os.path.join(folder, MANIFEST_FILE), encoding="utf-8") as file:
            found = json.load(file)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return {path: str(mark) for path, mark in found.items() if _is_inside(folder, path)}


def _is_inside(folder: str, path: str) -> bool:
    """Tell whether a path stays in the folder, links followed."""
    above = os.path.realpath(os.path.join(folder, os.path.dirname(path)))
    return not os.path.isabs(path) and os.path.commonpath([above, os.path.realpath(folder)]) == os.path.realpath(folder)


def _digest_file(folder: str, path: str) -> str | None:
    """Return what a file holds, None where there is none; a link counts as somebody's change."""
    full = os.path.join(folder, path)
    if not _is_inside(folder, path) or os.path.islink(full) or os.path.isdir(full):
        return "changed"
    try:
        with open(full, encoding="utf-8", errors="replace", newline="") as file:
            return hash_text(file.read())
    except FileNotFoundError:
        return None


def _write_manifest(folder: str, marks: Mapping[str, str]) -> None:
    _write_file(
        os.path.join(folder, MANIFEST_FILE), json.dumps({"files": dict(sorted(marks.items()))}, indent=1) + "\n"
    )


def _write_file(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write_file_atomically(path, text.encode(), 0o666, sync=False)
