"""Workspaces: files that programs and callers keep beside each other, a project's own, each under a name."""

import csv
import io
import json
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from athena.core.call import Call
from athena.core.page import Page
from athena.core.scope import Scope
from athena.core.text import storable
from athena.errors import InvalidInput, LimitExceeded, NotFound
from athena.storage import calls, files
from athena.storage.database import Database, Transaction
from athena.storage.files import HANDLES

DEFAULT = "default"
KEPT_HANDLES = 50
LARGEST = 4 << 20  # bytes of a file
LARGEST_HANDLE = 16 << 20
ROOM = 64 << 20  # bytes of a workspace
MOST = 1_000  # files of a workspace
PROJECT_ROOM = 256 << 20  # bytes of all files of a project
WORKSPACES = 100  # with files, of a project
LONGEST_PATH = 500
LONGEST_NAME = 100
_NAME = re.compile(r"[\w.@: -]+")


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int  # bytes
    updated: float


def clean_name(name: str | None) -> str:
    """Return a workspace's name, or say what is wrong with it."""
    if name is None:
        return DEFAULT
    chosen = unicodedata.normalize("NFC", name).strip()
    if not chosen or len(chosen) > LONGEST_NAME or not _NAME.fullmatch(chosen):
        raise InvalidInput(
            f"{name!r:.60} is no name of a workspace",
            hint=f"1 to {LONGEST_NAME} letters, digits, spaces and any of . _ - : @",
        )
    return chosen


def clean_path(path: str) -> str:
    """Return a path as it is kept: relative, with single slashes, without steps up."""
    text = unicodedata.normalize("NFC", path).strip().replace("\\", "/")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    hint = 'a relative path such as "reports/week.json"'
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        raise InvalidInput(f"a path must be relative, not {path!r:.80}", hint=hint)
    if not parts or text.endswith("/"):
        raise InvalidInput(f"{path!r:.80} names no file", hint=hint)
    if ".." in parts:
        raise InvalidInput(f"a path cannot lead out of the workspace: {path!r:.80}", hint=hint)
    if any(not character.isprintable() for character in text) or storable(text) != text:
        raise InvalidInput("a path must have printable characters only", hint=hint)
    if len(cleaned := "/".join(parts)) > LONGEST_PATH:
        raise InvalidInput(f"a path has {len(cleaned):,} characters; at most {LONGEST_PATH} are kept")
    return cleaned


async def write(database: Database, workspace: str | None, path: str, content: Any, now: float, call: Call) -> File:
    """Write a file whole, in place of what was there."""
    name, where = clean_name(workspace), clean_path(path)
    if where.startswith(HANDLES):
        raise InvalidInput(f"{HANDLES} is where Athena keeps long results", hint="choose another folder")
    text = _as_text(where, content)
    size = len(text.encode())
    if size > LARGEST:
        raise LimitExceeded(
            f"{where} would have {size:,} bytes; a file has at most {LARGEST:,}", hint="write it as several files"
        )

    async def work(tx: Transaction) -> File:
        async def put(_: int) -> list[Any]:
            await _check_room(tx, call.scope, name, where, size)
            await files.put(tx, call.scope, name, where, text, size, now)
            return [size, now]

        return File(where, *await calls.once(tx, call, put))

    return await database.write(work)


async def _check_room(tx: Transaction, scope: Scope, name: str, path: str, size: int) -> None:
    used = await files.used(tx, scope, name, path)
    if used.files >= MOST:
        raise LimitExceeded(f"the workspace {name!r} has {used.files:,} files; at most {MOST:,}", hint=_MAKE_ROOM)
    if used.size + size > ROOM:
        raise LimitExceeded(
            f"the workspace {name!r} holds {used.size:,} of {ROOM:,} bytes; {size:,} more do not fit", hint=_MAKE_ROOM
        )
    if used.project + size > PROJECT_ROOM:
        raise LimitExceeded(
            f"the workspaces of this project hold {used.project:,} of {PROJECT_ROOM:,} bytes; {size:,} more do not fit",
            hint="delete files",
        )
    if not used.files and used.workspaces >= WORKSPACES:
        message = f"this project has {used.workspaces:,} workspaces with files; at most {WORKSPACES:,}"
        raise LimitExceeded(message, hint="use one of them, or delete the files of some")


_MAKE_ROOM = "delete files, or use another workspace"


def _as_text(path: str, content: Any) -> str:
    """Write a value the way its file's name says; text stays as it is."""
    if isinstance(content, str):
        return storable(content)
    if path.lower().endswith(".csv") and isinstance(content, list):
        return storable(_as_csv(content))
    try:
        return storable(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"content must be text or plain JSON values: {error}"[:300]) from None


def _as_csv(rows: list[Any]) -> str:
    made = io.StringIO()
    if rows and all(isinstance(row, dict) for row in rows):
        columns = list(dict.fromkeys(str(key) for row in rows for key in row))
        named = csv.DictWriter(made, columns, lineterminator="\n")
        named.writeheader()
        named.writerows([{key: _cell(value) for key, value in row.items()} for row in rows])
    elif all(isinstance(row, list | tuple) for row in rows):
        csv.writer(made, lineterminator="\n").writerows([[_cell(value) for value in row] for row in rows])
    else:
        raise InvalidInput("rows of a .csv file are all objects or all lists")
    return made.getvalue()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


async def read(
    database: Database, scope: Scope, workspace: str | None, path: str, offset: int, limit: int | None, *, raw: bool
) -> Any:
    """Return a file: text, or what its JSON or CSV says; in part where that is asked for."""
    name, where = clean_name(workspace), clean_path(path)
    text = await database.read(lambda tx: files.read(tx, scope, name, where))
    if text is None:
        near = await database.read(lambda tx: files.listed(tx, scope, name))
        raise NotFound(f"there is no file {where!r} in the workspace {name!r}", hint=_near(where, near))
    return part(text if raw else parsed(where, text), offset, limit)


def _near(path: str, there: list[files.Row]) -> str:
    from difflib import get_close_matches  # only on a miss

    paths = [row.path for row in there]
    if found := get_close_matches(path, paths, 1):
        return f"did you mean {found[0]!r}?"
    return f"there are {', '.join(paths[:10])}" if paths else "it is empty"


def parsed(path: str, text: str) -> Any:
    """Read a text the way its file's name says."""
    kind = path.lower().rpartition(".")[2]
    if kind == "json":
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not valid JSON: {error}", hint="read it with raw=True") from None
    if kind == "csv":
        try:
            return list(csv.DictReader(io.StringIO(text), restkey="more", restval=""))
        except csv.Error as error:
            raise InvalidInput(f"{path} is not valid CSV: {error}", hint="read it with raw=True") from None
    return text


def part(value: Any, offset: int, limit: int | None) -> Any:
    """Return a part of a value: characters of a text, items of a list, keys of an object."""
    end = None if limit is None else offset + limit
    if isinstance(value, str):
        return value[offset:end]
    if isinstance(value, list):
        return Page(value[offset:end], len(value))
    if isinstance(value, dict) and (offset or end is not None):
        return dict(list(value.items())[offset:end])
    return value


async def listed(database: Database, scope: Scope, workspace: str | None, prefix: str) -> list[File]:
    """Return the files of a workspace, by path."""
    name = clean_name(workspace)
    found = await database.read(lambda tx: files.listed(tx, scope, name))
    return [File(*row) for row in found if row.path.startswith(prefix)]


async def delete(database: Database, workspace: str | None, path: str, call: Call) -> bool:
    """Delete a file; False if there was none."""
    name, where = clean_name(workspace), clean_path(path)

    async def work(tx: Transaction) -> bool:
        async def remove(_: int) -> bool:
            return await files.remove(tx, call.scope, name, where)

        return bool(await calls.once(tx, call, remove))

    return await database.write(work)


async def put_handle(tx: Transaction, scope: Scope, workspace: str, run: str, value: Any, now: float) -> str | None:
    """Keep a value under a run's handle, in place of the oldest where there is no room; None if it is too large."""
    path = f"{HANDLES}{run}.json"
    text = storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    size = len(text.encode())
    if size > LARGEST_HANDLE:
        return None
    there = await files.listed(tx, scope, workspace)
    older = sorted((row for row in there if row.path.startswith(HANDLES)), key=lambda row: row.updated)
    used = await files.used(tx, scope, workspace, path)
    if not there and used.workspaces >= WORKSPACES:
        return None
    room, count = min(ROOM - used.size, PROJECT_ROOM - used.project), MOST - len(there)
    while older and (room < size or count < 1 or len(older) >= KEPT_HANDLES):
        gone = older.pop(0)
        await files.remove(tx, scope, workspace, gone.path)
        room, count = room + gone.size, count + 1
    if room < size or count < 1:
        return None
    await files.put(tx, scope, workspace, path, text, size, now)
    return path
