"""Workspaces: named sets of files that the programs and callers of a project share."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from athena.core.attachments import HANDLES_PREFIX
from athena.core.redaction import redact, redact_json
from athena.core.redaction.personal_values import TOKEN_PATTERN
from athena.core.text import make_storable, normalize_text
from athena.core.threads import run_in_thread
from athena.core.types import MAX_JSON_VALUES, has_too_many_values
from athena.core.values import Call, Page, Scope
from athena.core.words import find_similar_names
from athena.errors import InvalidInput, LimitExceeded, NotFound
from athena.storage import calls, workspaces
from athena.storage.database import Database, Transaction

DEFAULT_WORKSPACE = "default"
MAX_HANDLES = 50  # files with long results, of a workspace
MAX_FILE_BYTES = 4 << 20
MAX_HANDLE_BYTES = 16 << 20
MAX_WORKSPACE_BYTES = 64 << 20
MAX_FILES = 1_000  # of a workspace
MAX_PROJECT_BYTES = 256 << 20
MAX_PROJECT_WORKSPACES = 100  # with files
MAX_LISTED_PATHS = 10  # in a hint
MAX_PATH_CHARS = 500
MAX_NAME_CHARS = 100
READ_RAW_HINT = "read its text with raw=True"
MAKE_ROOM_HINT = "delete files, or use another workspace"
_NAME_PATTERN = re.compile(rf"(?:[\w.@: -]|{TOKEN_PATTERN})+")  # a token stands for a personal value


@dataclass(frozen=True, slots=True)
class File:
    path: str
    size: int  # bytes
    updated: float


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace as lists show it."""

    name: str
    updated: float
    variables: dict[str, Any]  # the plain ones, by name
    files: int
    bytes: int


def clean_name(name: str | None) -> str:
    """Return a valid workspace name, or say what is wrong with it; None is the default workspace."""
    if name is None:
        return DEFAULT_WORKSPACE
    cleaned = normalize_text("NFC", name).strip()
    if not cleaned or len(cleaned) > MAX_NAME_CHARS or not _NAME_PATTERN.fullmatch(cleaned):
        raise InvalidInput(
            f"{name!r:.60} is no name of a workspace",
            hint=f"1 to {MAX_NAME_CHARS} letters, digits, spaces and any of . _ - : @",
        )
    return cleaned


def clean_path(path: str) -> str:
    """Return a path in its stored form: relative, with single slashes, without `..`."""
    text = normalize_text("NFC", path).strip().replace("\\", "/")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    hint = 'a relative path such as "reports/week.json"'
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        raise InvalidInput(f"a path must be relative, not {path!r:.80}", hint=hint)
    if not parts or text.endswith("/"):
        raise InvalidInput(f"{path!r:.80} names no file", hint=hint)
    if ".." in parts:
        raise InvalidInput(f"a path cannot lead out of the workspace: {path!r:.80}", hint=hint)
    if any(not char.isprintable() for char in text) or make_storable(text) != text:
        raise InvalidInput("a path must have printable characters only", hint=hint)
    if len(cleaned := "/".join(parts)) > MAX_PATH_CHARS:
        raise InvalidInput(f"a path has {len(cleaned):,} characters; at most {MAX_PATH_CHARS} are allowed")
    return cleaned


async def write_file(
    database: Database, workspace: str | None, path: str, content: Any, now: float, call: Call
) -> File:
    """Write a whole file; an existing one is replaced."""
    name, path = clean_name(workspace), clean_path(path)
    if path.startswith(HANDLES_PREFIX):
        raise InvalidInput(
            f"{HANDLES_PREFIX} is where Athena keeps long results and attachments", hint="choose another folder"
        )
    if redact(path).kinds:
        raise InvalidInput("a path must hold no secret", hint="choose another name for the file")
    text = await run_in_thread(_create_text, path, content)
    size = len(text.encode())

    async def write_once(tx: Transaction) -> File:
        async def put_file(_: int) -> list[Any]:
            await _check_room(tx, call.scope, name, path, size)
            await workspaces.upsert_file(tx, call.scope, name, path, text, size, now)
            return [size, now]

        return File(path, *await calls.run_once(tx, call, put_file))

    return await database.write(write_once)


async def _check_room(tx: Transaction, scope: Scope, name: str, path: str, size: int) -> None:
    used = await workspaces.fetch_file_usage(tx, scope, name, path)
    if used.files >= MAX_FILES:
        raise LimitExceeded(
            f"the workspace {name!r} has {used.files:,} files; at most {MAX_FILES:,}", hint=MAKE_ROOM_HINT
        )
    if used.workspace_bytes + size > MAX_WORKSPACE_BYTES:
        message = f"the workspace {name!r} holds {used.workspace_bytes:,} of {MAX_WORKSPACE_BYTES:,} bytes"
        raise LimitExceeded(f"{message}; {size:,} more do not fit", hint=MAKE_ROOM_HINT)
    if used.project_bytes + size > MAX_PROJECT_BYTES:
        message = f"the workspaces of this project hold {used.project_bytes:,} of {MAX_PROJECT_BYTES:,} bytes"
        raise LimitExceeded(f"{message}; {size:,} more do not fit", hint="delete files")
    is_full = not used.files and used.workspaces >= MAX_PROJECT_WORKSPACES
    if is_full and not await workspaces.delete_oldest_handles(tx, scope, name):
        message = f"this project has {used.workspaces:,} workspaces with files; at most {MAX_PROJECT_WORKSPACES:,}"
        raise LimitExceeded(message, hint="use one of them, or delete the files of some")


def _create_text(path: str, content: Any) -> str:
    """Return the text of a file that is written, without secrets; refuse one that is too long."""
    text = _to_text(path, content)
    if len(text) <= MAX_FILE_BYTES:
        text = redact_content(path, text)
    if (size := len(text.encode())) > MAX_FILE_BYTES:
        raise _create_too_long(path, f"{size:,}")
    return text


def _create_too_long(path: str, size: str) -> LimitExceeded:
    message = f"{path} would have {size} bytes; a file has at most {MAX_FILE_BYTES:,}"
    return LimitExceeded(message, hint="write it as several files")


def _to_text(path: str, content: Any) -> str:
    """Return a value as CSV or JSON, by the extension of its file; a text stays as it is."""
    if isinstance(content, str):
        return make_storable(content)
    if path.lower().endswith(".csv") and isinstance(content, list):
        return make_storable(_to_csv(path, content))
    try:
        return make_storable(json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"content must be text or plain JSON values: {error}"[:300]) from None


def redact_content(path: str, text: str) -> str:
    """Return the text of a file without secrets; JSON stays JSON."""
    redacted = redact(text)
    if redacted.kinds and path.lower().endswith(".json"):
        try:
            value = redact_json(json.loads(text))[0]
            return json.dumps(value, ensure_ascii=False, indent=1 if "\n" in text else None)
        except (ValueError, RecursionError):
            return redacted.text
    return redacted.text


def _to_csv(path: str, rows: list[Any]) -> str:
    output = io.StringIO()
    if rows and all(isinstance(row, dict) for row in rows):
        columns = list(dict.fromkeys(str(key) for row in rows for key in row))
        if (cells := len(columns) * len(rows)) > MAX_FILE_BYTES:  # each is followed by a comma or a line break
            raise _create_too_long(path, f"at least {cells:,}")
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows([{key: _format_cell(value) for key, value in row.items()} for row in rows])
    elif all(isinstance(row, list | tuple) for row in rows):
        csv.writer(output, lineterminator="\n").writerows([[_format_cell(value) for value in row] for row in rows])
    else:
        raise InvalidInput("rows of a .csv file are all objects or all lists")
    return output.getvalue()


def _format_cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


async def read_file(
    database: Database, scope: Scope, workspace: str | None, path: str, offset: int, limit: int | None, *, raw: bool
) -> Any:
    """Return the content of a file, or a part of it; JSON and CSV are parsed unless `raw`."""
    name, path = clean_name(workspace), clean_path(path)
    text = await database.read(lambda tx: workspaces.fetch_file(tx, scope, name, path))
    if text is None:
        files = await database.read(lambda tx: workspaces.list_files(tx, scope, name))
        raise NotFound(f"there is no file {path!r} in the workspace {name!r}", hint=_suggest_path(path, files))
    if raw:
        return _slice_value(text, offset, limit)
    return await run_in_thread(_read_content, path, text, offset, limit)


def _suggest_path(path: str, files: list[workspaces.FileRow]) -> str:
    paths = [file.path for file in files]
    if near := find_similar_names(path, paths):
        return f"did you mean {near[0]!r}?"
    return f"there are {', '.join(paths[:MAX_LISTED_PATHS])}" if paths else "it is empty"


def _read_content(path: str, text: str, offset: int, limit: int | None) -> Any:
    """Return a part of a file, which is parsed by its extension."""
    extension = path.lower().rpartition(".")[2]
    if extension == "json":
        if has_too_many_values(text.encode()):
            raise LimitExceeded(f"{path} has more than {MAX_JSON_VALUES:,} values", hint=READ_RAW_HINT)
        try:
            return _slice_value(json.loads(text), offset, limit)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{path} is not valid JSON: {error}", hint=READ_RAW_HINT) from None
    if extension == "csv":
        try:
            return _read_rows(path, csv.reader(io.StringIO(text)), offset, limit)
        except csv.Error as error:
            raise InvalidInput(f"{path} is not valid CSV: {error}", hint=READ_RAW_HINT) from None
    return _slice_value(text, offset, limit)


def _read_rows(path: str, lines: Iterator[list[str]], offset: int, limit: int | None) -> Page[dict[str, Any]]:
    """Return rows with all columns of the first line; their product is bounded, since a line may hold one cell."""
    columns = next(lines, [])
    rows: list[dict[str, Any]] = []
    total = cells = 0
    for cell_texts in filter(None, lines):
        if offset <= total and (limit is None or total < offset + limit):
            cells += max(len(columns), len(cell_texts))
            if cells > MAX_JSON_VALUES:
                message = f"{path}: {len(rows) + 1:,} rows have more than {MAX_JSON_VALUES:,} cells"
                raise LimitExceeded(message, hint=f"read fewer rows at once with limit, or {READ_RAW_HINT}")
            row: dict[str, Any] = dict(zip_longest(columns, cell_texts[: len(columns)], fillvalue=""))
            rows.append(row | {"more": more} if (more := cell_texts[len(columns) :]) else row)
        total += 1
    return Page(rows, total)


def _slice_value(value: Any, offset: int, limit: int | None) -> Any:
    """Return a part of a value: characters of a text, items of a list, keys of an object."""
    end = None if limit is None else offset + limit
    if isinstance(value, str):
        return value[offset:end]
    if isinstance(value, list):
        return Page(value[offset:end], len(value))
    if isinstance(value, dict) and (offset or end is not None):
        return dict(list(value.items())[offset:end])
    return value


async def list_files(database: Database, scope: Scope, workspace: str | None, prefix: str) -> list[File]:
    """Return the files of a workspace whose path begins with a prefix, in order."""
    name = clean_name(workspace)
    files = await database.read(lambda tx: workspaces.list_files(tx, scope, name))
    return [File(*file) for file in files if file.path.startswith(prefix)]


async def list_workspaces(database: Database, scope: Scope) -> list[Workspace]:
    """List the workspaces that have variables or files, the last used first."""
    rows = await database.read(lambda tx: workspaces.list_workspaces(tx, scope))
    return [Workspace(row.name, row.updated, json.loads(row.variables), row.files, row.size) for row in rows]


async def delete_file(database: Database, workspace: str | None, path: str, call: Call) -> bool:
    """Delete a file; return False if there was none."""
    name, path = clean_name(workspace), clean_path(path)

    async def delete_once(tx: Transaction) -> bool:
        async def remove_file(_: int) -> bool:
            await workspaces.note_file(tx, call.scope, name, path)
            return await workspaces.delete_file(tx, call.scope, name, path)

        return bool(await calls.run_once(tx, call, remove_file))

    return await database.write(delete_once)


def dump_handle(value: Any) -> str | None:
    """Return a run's long result as it is stored, without secrets; None if it is too long."""
    text = make_storable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return redact_content(".json", text) if len(text.encode()) <= MAX_HANDLE_BYTES else None


async def put_handle(
    tx: Transaction, scope: Scope, workspace: str, run_id: str, text: str, now: float, private: str = ""
) -> str | None:
    """Store a run's long result and return its path; None if it does not fit."""
    path = f"{HANDLES_PREFIX}{run_id}.json"
    return path if await put_text(tx, scope, workspace, path, text, now, private) else None


async def put_text(
    tx: Transaction, scope: Scope, workspace: str, path: str, text: str, now: float, private: str
) -> bool:
    """Store a file among the handles, deleting the oldest ones to make room; False if it does not fit."""
    size = len(text.encode())
    if size > MAX_HANDLE_BYTES:
        return False
    files = await workspaces.list_files(tx, scope, workspace, is_upkeep=True)
    handles = sorted((file for file in files if file.path.startswith(HANDLES_PREFIX)), key=lambda file: file.updated)
    used = await workspaces.fetch_file_usage(tx, scope, workspace, path)
    is_full = not files and used.workspaces >= MAX_PROJECT_WORKSPACES
    if is_full and not await workspaces.delete_oldest_handles(tx, scope, workspace):
        return False
    bytes_left = min(MAX_WORKSPACE_BYTES - used.workspace_bytes, MAX_PROJECT_BYTES - used.project_bytes)
    files_left = MAX_FILES - len(files)
    while handles and (bytes_left < size or files_left < 1 or len(handles) >= MAX_HANDLES):
        oldest = handles.pop(0)
        await workspaces.delete_file(tx, scope, workspace, oldest.path)
        bytes_left, files_left = bytes_left + oldest.size, files_left + 1
    if bytes_left < size or files_left < 1:
        return False
    await workspaces.upsert_file(tx, scope, workspace, path, text, size, now, private)
    return True
