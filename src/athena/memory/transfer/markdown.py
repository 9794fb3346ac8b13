"""Memories and entities as Markdown files: the text as it is, below front matter whose values are JSON.

Files of other programs (Obsidian, basic-memory) are read too: their front matter is simple YAML, and what it says
beyond tags, type and times becomes metadata. Links to other notes (`[[Note]]`) become relations.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, get_args

from athena.core import clock
from athena.core.files import iter_files_beneath
from athena.core.hashing import hash_text
from athena.core.values import Author
from athena.errors import AthenaError, InvalidInput
from athena.memory.graph.values import NewRelation
from athena.memory.time import parse_period
from athena.memory.transfer.records import ImportedEntity, ImportedLink, ImportedMemory, Record, SkippedRecord
from athena.memory.values import MAX_TAGS

FORMAT_KEY, FORMAT_VERSION = "athena", 1  # the first line of front matter that Athena writes
FENCE = "---"
MAX_FILE_BYTES = 64_000_000
SLUG_CHARS = 40
SUFFIX, SUFFIXES = ".md", (".md", ".markdown")
MAPPING = {
    "text after the front matter": "content",
    "tags, and #tag in the text": "tags",
    "type": "type",
    "created, updated": "created, updated",
    "[[link]], - relation [[link]]": "relations",
    "path": "metadata.source",
    "other front matter": "metadata",
    "files in graph/ of an export": "entities, observations, relations",
}
OWN_BEGINNING = f"{FENCE}\n{FORMAT_KEY}: ".encode()
FRONT_MATTER_PATTERN = re.compile(rf"{FENCE}[ \t]*\r?\n(.*?)(?:^|\n){FENCE}[ \t]*(?:\r?\n|\Z)", re.DOTALL)
FIELD_PATTERN = re.compile(r"([^\s#:-][^:]*):(?:\s+(.*))?")
TIME_PATTERN = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z")
CODE_PATTERN = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.DOTALL | re.MULTILINE)
WIKI_LINK_PATTERN = re.compile(
    r"(?:^[ \t]*[-*+][ \t]+([^\W\d_][\w \t-]{0,60}?)[ \t]+)?\[\[([^\[\]\n]{1,300})\]\]", re.MULTILINE
)
HASHTAG_PATTERN = re.compile(r"(?<![\w/#&])#([^\W\d_][\w/-]{0,60})")
LINK_RELATION = "links to"  # of a link in the text; a list item such as `- requires [[Note]]` names its own
NOTE_PREFIX = "note:"  # of what links call a note: its path
CREATED_KEYS = ("created", "created_at", "date created", "date")
UPDATED_KEYS = ("updated", "modified", "updated_at", "date modified", "last_modified")


# --- writing ----------------------------------------------------------------------------------------------------------


def format_file(fields: dict[str, Any], body: str) -> bytes:
    """Return a file with front matter: one line for each field that has a value, as JSON or a time."""
    lines = [f"{name}: {value}" for name, value in {FORMAT_KEY: FORMAT_VERSION, **fields}.items()]
    return "\n".join([FENCE, *lines, FENCE, body, ""]).encode()


def encode_field(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x85", "\\u0085").replace("\u2028", "\\u2028")


def format_time(moment: float) -> str:
    """Return a time as people read it, with all digits that it has; one that no calendar has stays a number."""
    whole, _, digits = repr(moment).partition(".")
    if moment < 0 or not digits.isdigit() or not clock.is_in_calendar(moment):
        return repr(moment)
    day = datetime.fromtimestamp(int(whole), UTC)
    return f"{day:%Y-%m-%dT%H:%M:%S}{'' if digits == '0' else '.' + digits}Z"


def format_items(texts: list[str]) -> str:
    """Return texts as a list, each further line of one indented."""
    return "\n".join("- " + text.replace("\n", "\n  ") for text in texts)


def create_file_name(title: str, key: str) -> str:
    """Return a file name that begins with words of a text and ends with what makes it unique."""
    words = re.sub(r"[^\w]+", "-", title[: SLUG_CHARS * 4].casefold(), flags=re.ASCII).strip("-_")
    return f"{words[:SLUG_CHARS].rstrip('-_')}-{key}".lstrip("-") + SUFFIX


def create_folder_name(project: str) -> str:
    """Return a folder name for a project, which may be named after a path."""
    last = os.path.basename(project.rstrip("/"))
    is_plain = last == project and re.fullmatch(r"[\w-]{1,60}", project, re.ASCII)
    return project if is_plain else create_file_name(last, hash_text(project)[:8]).removesuffix(SUFFIX)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_folder(path: str, now: float) -> Iterator[Record]:
    """Yield the records of a Markdown file, or of all below a folder; follow no link."""
    note_paths = _find_note_names(path)
    for name, file in _iter_markdown_files(path):
        if isinstance(file, OSError):
            yield SkippedRecord(name, str(file.strerror))
            continue
        try:
            yield parse_file(name, _read_text(file), now, note_paths)
        except UnicodeDecodeError:
            yield SkippedRecord(name, "not UTF-8 text")
        except (OSError, AthenaError) as error:
            yield SkippedRecord(name, str(error))
        except (LookupError, TypeError, ValueError):
            yield SkippedRecord(name, "its front matter is not as Athena writes it")


def _read_text(file: int) -> str:
    with open(file, "rb", closefd=False) as stream:
        data = stream.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InvalidInput(f"larger than {MAX_FILE_BYTES // 1_000_000} MB")
    return data.decode("utf-8-sig")


def _find_note_names(path: str) -> dict[str, str]:
    """Return the paths of notes by what links may call them: path, file name, title, permalink or alias."""
    by_path: dict[str, str] = {}
    by_name: dict[str, str] = {}
    for name, file in _iter_markdown_files(path):
        plain = os.path.splitext(name)[0]
        by_path[plain.casefold()] = name
        try:
            match = None if isinstance(file, OSError) else _match_front_matter(_read_text(file))
        except (OSError, ValueError, AthenaError):  # the import itself says why it cannot be read
            match = None
        fields = _parse_fields(match.group(1)) if match else {}
        aliases = fields.get("aliases")
        others = [fields.get("title"), fields.get("permalink"), *(aliases if isinstance(aliases, list) else [aliases])]
        for other in (os.path.basename(plain), *others):
            if isinstance(other, str) and other:
                by_name.setdefault(other.casefold(), name)
    return by_name | by_path


def _iter_markdown_files(path: str) -> Iterator[tuple[str, int | OSError]]:
    if os.path.isdir(path):
        files = iter_files_beneath(path, lambda folder: not os.path.basename(folder).startswith("."))
        yield from ((name, file) for name, file in files if name.endswith(SUFFIXES))
        return
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield os.path.basename(path), file
    finally:
        os.close(file)


def parse_file(name: str, text: str, now: float, note_paths: Mapping[str, str] = MappingProxyType({})) -> Record:
    """Return the memory or entity that a file holds; `note_paths` has the notes that links may lead to."""
    match = _match_front_matter(text)
    fields = _parse_fields(match.group(1)) if match else {}
    body = text[match.end() :] if match else text
    if fields.get(FORMAT_KEY) == FORMAT_VERSION:
        body = body.removesuffix("\n")
        return _parse_entity(name, fields, body) if "entity" in fields else _parse_memory(name, fields, body)
    return _parse_note(name, fields, body, now, note_paths)


def _parse_memory(name: str, fields: dict[str, Any], body: str) -> ImportedMemory:
    author = fields.get("author", "agent")
    return ImportedMemory(
        name,
        body,
        tuple(_get_list(fields, "tags")),
        str(fields.get("type", "note")),
        _get_object(fields, "metadata"),
        float(fields.get("importance", 0.5)),
        _get_time(fields, "created"),
        _get_time(fields, "updated"),
        author if author in get_args(Author) else "agent",
        str(fields.get("private", "")),
        fields.get("project"),
        str(fields.get("hash", "")),
        tuple(ImportedLink(str(link[0]), str(link[1]), float(link[2])) for link in _get_list(fields, "relations")),
    )


def _parse_entity(name: str, fields: dict[str, Any], body: str) -> ImportedEntity:
    return ImportedEntity(
        name,
        str(fields["entity"]),
        fields.get("type"),
        tuple(parse_items(body)),
        _get_object(fields, "metadata"),
        tuple(_parse_relation(str(fields["entity"]), relation) for relation in _get_list(fields, "relations")),
        _get_time(fields, "created"),
        fields.get("project"),
        str(fields.get("private", "")),
    )


def _parse_relation(source: str, relation: dict[str, Any]) -> NewRelation:
    edge: NewRelation = {"from": source, "to": str(relation["to"]), "relationType": str(relation["relationType"])}
    if relation.get("since") is not None:
        edge["since"] = float(relation["since"])
    if relation.get("until") is not None:
        edge["until"] = float(relation["until"])
    return edge


def parse_items(body: str) -> list[str]:
    """Return the texts of a list; a line that begins with two spaces goes on with the text before it."""
    items: list[str] = []
    for line in body.split("\n"):
        if line.startswith("- "):
            items.append(line[2:])
        elif items:
            items[-1] += "\n" + line.removeprefix("  ")
    return items


def _parse_note(
    name: str, fields: dict[str, Any], body: str, now: float, note_paths: Mapping[str, str]
) -> ImportedMemory | SkippedRecord:
    """Return a note of another program as a memory; its name is its title, unless the front matter has one."""
    tags = fields.pop("tags", [])
    tags = re.split(r"[,\s]+", tags) if isinstance(tags, str) else tags
    created = _take_time(fields, CREATED_KEYS, now)
    updated = _take_time(fields, UPDATED_KEYS, now)
    memory_type = str(fields.pop("type", None) or "note")
    title = str(fields.get("title") or os.path.basename(name).removesuffix(SUFFIX))
    if not body.strip():
        return SkippedRecord(name, "empty")
    metadata = {"source": name, "title": title, **{key: value for key, value in fields.items() if value is not None}}
    prose = CODE_PATTERN.sub("", body)
    text_tags = [str(tag).lstrip("#") for tag in tags or [] if str(tag).strip("#")] + HASHTAG_PATTERN.findall(prose)
    return ImportedMemory(
        name,
        body.strip("\n"),
        tuple(text_tags[:MAX_TAGS]),
        memory_type,
        metadata,
        created=created,
        updated=updated,
        hash=NOTE_PREFIX + name,
        links=tuple(dict.fromkeys(_find_links(prose, note_paths))),
    )


def _find_links(prose: str, note_paths: Mapping[str, str]) -> Iterator[ImportedLink]:
    """Yield the links of a note to others; one that leads to no note is called by what it says."""
    for relation, address in WIKI_LINK_PATTERN.findall(prose):
        target = re.split(r"[|#^]", address)[0].strip()
        path = note_paths.get(os.path.splitext(target)[0].casefold()) or note_paths.get(target.casefold())
        if target:
            yield ImportedLink(relation.strip() or LINK_RELATION, NOTE_PREFIX + path if path else f"[[{target}]]")


def _take_time(fields: dict[str, Any], names: tuple[str, ...], now: float) -> float | None:
    """Return the first of these fields that is a time, and remove it."""
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        try:
            moment = value if isinstance(value, float) else parse_period(str(value), clock.to_local_time(now)).start
        except InvalidInput:
            continue
        del fields[name]
        return moment
    return None


def _match_front_matter(text: str) -> re.Match[str] | None:
    """Return the front matter of a note; None for a text between two rules, which begins with no field."""
    match = FRONT_MATTER_PATTERN.match(text)
    lines = (line.strip("\r") for line in match.group(1).split("\n")) if match else ()
    first = next((line for line in lines if line.strip() and not line.startswith("#")), None)
    return match if first is None or FIELD_PATTERN.fullmatch(first) else None


def _parse_fields(text: str) -> dict[str, Any]:
    """Parse front matter: names with JSON values, plain texts or lists of them; nested YAML is left as text."""
    fields: dict[str, Any] = {}
    name = ""
    for line in text.split("\n"):
        line = line.rstrip("\r")
        item = re.fullmatch(r"\s*-\s+(.*)", line)
        pair = FIELD_PATTERN.fullmatch(line)
        if pair:
            name, value = pair.group(1).strip().lower(), (pair.group(2) or "").strip()
            fields[name] = _parse_value(value) if value else None
        elif item and name and not isinstance(fields[name], str | int | float | dict):
            fields[name] = [*(fields[name] or []), _parse_value(item.group(1).strip())]
        elif name and line.strip() and isinstance(fields[name], str | None):
            fields[name] = f"{fields[name] or ''}\n{line.strip()}".lstrip("\n")
    return fields


def _parse_value(text: str) -> Any:
    if match := TIME_PATTERN.fullmatch(text):
        seconds = int(datetime.fromisoformat(match.group(1) + "+00:00").timestamp())
        return float(f"{seconds}.{match.group(2) or 0}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.startswith("[") and text.endswith("]"):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return text[1:-1].replace("''", "'") if len(text) > 1 and text[0] == text[-1] == "'" else text


def _get_list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name) or []
    if not isinstance(value, list):
        raise InvalidInput(f"{name} must be a list")
    return value


def _get_object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise InvalidInput(f"{name} must be an object in JSON")
    return value


def _get_time(fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise InvalidInput(f"{name} must be a time as in 2026-05-14T09:30:00Z")
    return None if value is None else float(value)
