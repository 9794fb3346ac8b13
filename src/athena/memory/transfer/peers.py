"""Read the files of other memory programs: mcp-memory-service, mem0, claude-mem, chat exports, CSV."""

import csv
import json
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from athena.core import clock
from athena.errors import InvalidInput
from athena.memory.time import parse_period
from athena.memory.transfer.peer_rows import SQLITE_MARK, Fields, iter_table_rows, list_tables, open_peer_database
from athena.memory.transfer.records import ImportedLink, ImportedMemory, Record, SkippedRecord

MAX_JSON_BYTES = 2_000_000_000
MAX_CELL_CHARS = 4_000_000
MILLISECONDS_FROM = 100_000_000_000  # a time above this is in milliseconds: in seconds it would be in the year 5138
CONTENT_COLUMNS = ("content", "text", "memory", "note", "body", "message", "fact")
TAG_COLUMNS = ("tags", "labels", "categories", "keywords")
CREATED_COLUMNS = ("created", "created_at", "date", "timestamp", "time")
UPDATED_COLUMNS = ("updated", "updated_at", "modified", "modified_at")
TYPE_COLUMNS = ("type", "memory_type", "kind")


class PeerFormat(NamedTuple):
    """A format of another program: how its file is read, and what its fields become."""

    read: Callable[[str, float], Iterator[Record]]
    mapping: dict[str, str]


# --- mcp-memory-service -----------------------------------------------------------------------------------------------


def read_mcp_memory_service(path: str, now: float) -> Iterator[Record]:
    """Yield the memories of its SQLite file, with the relations of its graph, or those of its JSON export."""
    if not _is_sqlite(path):
        for number, row in enumerate(_get_list(_load_json(path), "memories"), 1):
            yield _to_service_memory(f"memory {number}", row, now, ())
        return
    with open_peer_database(path) as connection:
        links: dict[str, list[ImportedLink]] = {}
        if "memory_graph" in list_tables(connection):
            for edge in iter_table_rows(connection, "memory_graph"):
                relation = str(edge.get("relationship_type") or "related")
                link = ImportedLink(relation, str(edge["target_hash"]), _parse_time(edge.get("created_at"), now))
                links.setdefault(str(edge["source_hash"]), []).append(link)
        deleted = 0
        for row in iter_table_rows(connection, "memories"):
            if row.get("deleted_at") is not None:
                deleted += 1
                continue
            yield _to_service_memory(f"memory {row.get('id')}", row, now, links.get(str(row.get("content_hash")), ()))
    if deleted:
        yield SkippedRecord("deleted memories", f"{deleted:,}")


def _to_service_memory(where: str, row: Any, now: float, links: Iterable[ImportedLink]) -> Record:
    if not isinstance(row, dict) or not isinstance(row.get("content"), str):
        return SkippedRecord(where, "it has no content")
    metadata = _to_object(row.get("metadata"))
    if row.get("store") not in (None, "", "default"):
        metadata["store"] = row["store"]
    return ImportedMemory(
        where,
        row["content"],
        tuple(tag for tag in _to_tags(row.get("tags")) if tag != "untagged"),
        str(row.get("memory_type") or "note"),
        metadata,
        created=_parse_time(row.get("created_at"), now),
        updated=_parse_time(row.get("updated_at"), now),
        hash=str(row.get("content_hash") or ""),
        links=tuple(links),
    )


# --- mem0 -------------------------------------------------------------------------------------------------------------


def read_mem0(path: str, now: float) -> Iterator[Record]:
    """Yield the memories of what `get_all` returns, or of an export of the platform."""
    data = _load_json(path)
    rows = _get_list({"results": data} if isinstance(data, list) else data, "results", "memories")
    for number, row in enumerate(rows, 1):
        where = f"memory {number}"
        text = next((row[key] for key in ("memory", "text", "data") if isinstance(row.get(key), str)), None)
        if text is None:
            yield SkippedRecord(where, "it has no text")
            continue
        owners = {key: row[key] for key in ("user_id", "agent_id", "app_id", "run_id") if row.get(key)}
        yield ImportedMemory(
            where,
            text,
            tuple(_to_tags(row.get("categories"))),
            metadata=_to_object(row.get("metadata")) | owners,
            created=_parse_time(row.get("created_at"), now),
            updated=_parse_time(row.get("updated_at"), now),
        )


# --- claude-mem -------------------------------------------------------------------------------------------------------


def read_claude_mem(path: str, now: float) -> Iterator[Record]:
    """Yield the observations and the summaries of sessions; each project of the file is a project here."""
    with open_peer_database(path) as connection:
        tables = list_tables(connection)
        for row in iter_table_rows(connection, "observations"):
            facts = [f"- {fact}" for fact in _to_tags(row.get("facts"))]
            parts = [row.get("title"), row.get("subtitle"), row.get("narrative") or row.get("text"), "\n".join(facts)]
            files = {key: _to_tags(row.get(key)) for key in ("files_read", "files_modified")}
            yield _to_claude_mem_memory("observation", row, parts, tuple(_to_tags(row.get("concepts"))), files, now)
        for row in iter_table_rows(connection, "session_summaries") if "session_summaries" in tables else ():
            names = ("request", "investigated", "learned", "completed", "next_steps", "notes")
            parts = [f"{name.replace('_', ' ').capitalize()}: {row[name]}" for name in names if row.get(name)]
            yield _to_claude_mem_memory("summary", row | {"type": "summary"}, parts, (), {}, now)


def _to_claude_mem_memory(
    what: str, row: Fields, parts: Iterable[Any], tags: tuple[str, ...], files: Fields, now: float
) -> Record:
    where = f"{what} {row.get('id')}"
    text = "\n\n".join(str(part) for part in parts if part)
    if not text.strip():
        return SkippedRecord(where, "it has no text")
    session = row.get("memory_session_id") or row.get("sdk_session_id")
    metadata = {key: value for key, value in files.items() if value} | ({"session": session} if session else {})
    created = _parse_time(row.get("created_at_epoch") or row.get("created_at"), now)
    kind = str(row.get("type") or "note")
    return ImportedMemory(where, text, tags, kind, metadata, created=created, project=row.get("project") or None)


# --- chats ------------------------------------------------------------------------------------------------------------


def read_chatgpt(path: str, now: float) -> Iterator[Record]:
    """Yield what was said in each conversation, in the order of its last branch."""
    for number, chat in enumerate(_load_json(path), 1):
        where = f"conversation {number}"
        nodes = chat.get("mapping") if isinstance(chat, dict) else None
        if not isinstance(nodes, dict):
            yield SkippedRecord(where, "it has no messages")
            continue
        for message in _list_last_branch(nodes, chat.get("current_node")):
            author, content = (_to_fields(message.get(name)) for name in ("author", "content"))
            role, parts = author.get("role"), content.get("parts")
            text = "\n".join(part for part in _to_list(parts) if isinstance(part, str)).strip()
            if role in ("user", "assistant") and text:
                yield _to_message(where, chat, role, text, message.get("create_time"), now)


def _list_last_branch(nodes: dict[str, Any], last: Any) -> list[Fields]:
    """Return the messages from the first one to the current one."""
    messages: list[Fields] = []
    seen: set[str] = set()
    while isinstance(last, str) and last in nodes and last not in seen:
        seen.add(last)
        node = nodes[last] if isinstance(nodes[last], dict) else {}
        if isinstance(message := node.get("message"), dict):
            messages.append(message)
        last = node.get("parent")
    return messages[::-1]


def read_claude_chats(path: str, now: float) -> Iterator[Record]:
    for number, chat in enumerate(_load_json(path), 1):
        where = f"conversation {number}"
        messages = chat.get("chat_messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list):
            yield SkippedRecord(where, "it has no messages")
            continue
        for message in map(_to_fields, messages):
            blocks = _to_list(message.get("content"))
            texts = [
                block["text"] for block in blocks if isinstance(block, dict) and isinstance(block.get("text"), str)
            ]
            text = ("\n".join(texts) or str(message.get("text") or "")).strip()
            role = "user" if message.get("sender") == "human" else "assistant"
            if text:
                yield _to_message(where, chat, role, text, message.get("created_at"), now)


def _to_fields(value: Any) -> Fields:
    """Return a value that should be an object as one: anything else has no fields."""
    return value if isinstance(value, dict) else {}


def _to_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _to_message(where: str, chat: Fields, role: str, text: str, at: Any, now: float) -> ImportedMemory:
    title = str(chat.get("title") or chat.get("name") or "").strip()
    session = str(chat.get("conversation_id") or chat.get("id") or chat.get("uuid") or where)
    created = _parse_time(at or chat.get("create_time") or chat.get("created_at"), now)
    metadata: Fields = {"session_id": session, "role": role, **({"title": title} if title else {})}
    if created is not None:
        metadata["date"] = created
    return ImportedMemory(where, text, (), "message", metadata, created=created)


# --- CSV --------------------------------------------------------------------------------------------------------------


def read_csv(path: str, now: float) -> Iterator[Record]:
    """Yield a memory for each row; a column must be named content, text, memory, note, body, message or fact."""
    csv.field_size_limit(MAX_CELL_CHARS)
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            names = {name.strip().casefold(): name for name in reader.fieldnames or ()}
            content = next((names[name] for name in CONTENT_COLUMNS if name in names), None)
            if content is None:
                hint = f"name one of: {', '.join(CONTENT_COLUMNS)}"
                raise InvalidInput(f"{os.path.basename(path)} has no column with the text", hint=hint)
            for number, row in enumerate(reader, 2):
                if None in row:
                    yield SkippedRecord(f"line {number}", "it has more cells than columns; quote texts with commas")
                    continue
                yield _to_csv_memory(
                    f"line {number}", {key: row.get(name) for key, name in names.items()}, content, now
                )
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not text in UTF-8") from None
    except csv.Error as error:
        raise InvalidInput(f"{path} is not CSV: {error}") from None


def _to_csv_memory(where: str, row: Fields, content: str, now: float) -> Record:
    text = row.pop(content.strip().casefold())
    if not text or not text.strip():
        return SkippedRecord(where, "it has no text")
    tags = _to_tags(_take_first(row, TAG_COLUMNS))
    created = _parse_time(_take_first(row, CREATED_COLUMNS), now)
    updated = _parse_time(_take_first(row, UPDATED_COLUMNS), now)
    kind = _take_first(row, TYPE_COLUMNS) or "note"
    metadata = {key: value for key, value in row.items() if value}
    return ImportedMemory(where, text, tuple(tags), kind, metadata, created=created, updated=updated)


def _take_first(row: Fields, names: Iterable[str]) -> Any:
    """Return the first of these fields that has a value, and remove it."""
    return next((row.pop(name) for name in names if row.get(name)), None)


# --- which format -----------------------------------------------------------------------------------------------------


MESSAGE_MAPPING = {"text of a message": "content", "its time": "created", "role": "metadata.role"}
FORMATS: dict[str, PeerFormat] = {
    "mcp-memory-service": PeerFormat(
        read_mcp_memory_service,
        {
            "content": "content",
            "tags": "tags",
            "memory_type": "type",
            "metadata": "metadata",
            "created_at, updated_at": "created, updated",
            "memory_graph": "relations",
            "deleted memories, vectors": "left out",
        },
    ),
    "mem0": PeerFormat(
        read_mem0,
        {
            "memory": "content",
            "categories": "tags",
            "metadata, user_id, agent_id, run_id": "metadata",
            "created_at, updated_at": "created, updated",
        },
    ),
    "claude-mem": PeerFormat(
        read_claude_mem,
        {
            "title, subtitle, narrative, facts of observations": "content",
            "concepts": "tags",
            "type": "type",
            "project": "project",
            "session_summaries": "content of type summary",
            "created_at_epoch": "created",
            "prompts, vectors": "left out",
        },
    ),
    "chatgpt": PeerFormat(read_chatgpt, MESSAGE_MAPPING | {"title, conversation_id": "metadata.title, session_id"}),
    "claude": PeerFormat(read_claude_chats, MESSAGE_MAPPING | {"name, uuid": "metadata.title, session_id"}),
    "csv": PeerFormat(
        read_csv,
        {
            "content, text, memory, note, body, message or fact": "content",
            "tags or labels": "tags",
            "type": "type",
            "created, date or timestamp": "created",
            "updated or modified": "updated",
            "other columns": "metadata",
        },
    ),
}


def guess_peer_format(path: str) -> str | None:
    """Return which program wrote a file; None if none of those known here did."""
    if path.casefold().endswith(".csv"):
        return "csv"
    if _is_sqlite(path):
        with open_peer_database(path) as connection:
            tables = list_tables(connection)
        if "passages" in tables and "scopes" in tables:
            raise InvalidInput(f"{path} is a store of Athena", hint="athena restore puts it in place of yours")
        return "claude-mem" if {"observations", "sdk_sessions"} <= tables else "mcp-memory-service"
    if not path.casefold().endswith(".json"):
        return None
    data = _load_json(path)
    if isinstance(data, dict):
        return "mcp-memory-service" if "export_metadata" in data else "mem0"
    first = next((item for item in data if isinstance(item, dict)), {})
    if "mapping" in first:
        return "chatgpt"
    return "claude" if "chat_messages" in first else "mem0"


def _is_sqlite(path: str) -> bool:
    with open(path, "rb") as stream:
        return stream.read(len(SQLITE_MARK)) == SQLITE_MARK


def _load_json(path: str) -> Any:
    if os.path.getsize(path) > MAX_JSON_BYTES:
        raise InvalidInput(f"{path} is larger than {MAX_JSON_BYTES // 1_000_000_000} GB", hint="split it")
    try:
        with open(path, encoding="utf-8-sig") as stream:
            value = json.load(stream)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} is not JSON", hint="is it complete?") from None
    if not isinstance(value, dict | list):
        raise InvalidInput(f"{path} has no list of records")
    return value


def _get_list(data: Any, *names: str) -> list[Any]:
    for name in names:
        if isinstance(data, dict) and isinstance(data.get(name), list):
            return [row if isinstance(row, dict) else {} for row in data[name]]
    raise InvalidInput(f"the file has no list {' or '.join(names)}", hint="name its format with --from")


def _to_tags(value: Any) -> list[str]:
    """Return tags from a list, from JSON, or from a text with commas."""
    if isinstance(value, str) and value.strip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = value.strip("[] ")
    parts = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else []
    return [str(part).strip() for part in parts if str(part).strip()]


def _to_object(value: Any) -> Fields:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {"metadata": value} if value.strip() else {}
    return dict(value) if isinstance(value, dict) else {}


def _parse_time(value: Any, now: float) -> float | None:
    """Return a time in seconds, from seconds, milliseconds, ISO 8601 or words; None if it is none."""
    if isinstance(value, str) and value.strip():
        try:
            return datetime.fromisoformat(value.strip().replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError, OSError):
            pass
        try:
            value = float(value)
        except ValueError:
            try:
                return parse_period(value, clock.to_local_time(now)).start
            except InvalidInput:
                return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    seconds = value / 1_000 if abs(value) >= MILLISECONDS_FROM else float(value)
    return seconds if clock.is_in_calendar(seconds) else None
