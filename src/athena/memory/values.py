"""A memory: a text worth keeping, and what is known about it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from athena.core.text import make_storable
from athena.core.values import Kind
from athena.errors import InvalidInput
from athena.storage.filters import tag_key

MAX_CONTENT_BYTES = 4_000_000
MAX_METADATA_CHARS = 64_000
MAX_METADATA_DEPTH = 32
MAX_TAG_CHARS = 100
MAX_TAGS = 100
PREVIEW_CHARS = 200
RESERVED_PREFIX = "athena:"  # how keys of metadata begin that callers may not set
SERIAL_KEY = f"{RESERVED_PREFIX}serial"  # tells apart things of the same text, such as events
MOMENT_KEY = f"{RESERVED_PREFIX}moment"  # when a thing happens, in seconds, where that is not when it was stored


@dataclass(frozen=True, slots=True)
class Memory:
    id: int
    hash: str
    content: str
    tags: tuple[str, ...]
    memory_type: str
    metadata: dict[str, Any]
    created: float
    updated: float
    importance: float
    project: str


@dataclass(frozen=True, slots=True)
class Hit(Memory):
    """A memory that a search found, with how well it fits: 0 not at all, 1 fully."""

    score: float
    why: dict[str, float] | None = None  # what each term of the ranking added, where that was asked for
    kind: Kind = "memory"
    contradicted_by: int | None = None  # a newer memory that says otherwise, as consolidation found


@dataclass(frozen=True, slots=True)
class Stored(Memory):
    """A memory as it is now kept, and what keeping it did."""

    outcome: str  # new, known, revived, updated
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the text


def to_stored_memory(memory: Memory, outcome: str, redacted: tuple[str, ...]) -> Stored:
    m = memory
    return Stored(
        m.id, m.hash, m.content, m.tags, m.memory_type, m.metadata, m.created, m.updated, m.importance, m.project,
        outcome, redacted,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """A memory to be kept."""

    content: str
    tags: tuple[str, ...] = ()
    memory_type: str = "note"
    metadata: dict[str, Any] = field(default_factory=dict)
    importance: float = 0.5
    redacted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One step in a memory's history; `before` is what it was, where it was."""

    at: float
    action: str
    operation: str
    before: dict[str, Any] | None


def clean_text(text: str, name: str = "content") -> str:
    """Return a text that can be stored, is not empty and not too long."""
    text = make_storable(text)
    size = len(text) if text.isascii() else len(text.encode())
    if not text.strip():
        raise InvalidInput(f"{name} must not be empty")
    if size > MAX_CONTENT_BYTES:
        raise InvalidInput(
            f"{name} is {size:,} bytes; at most {MAX_CONTENT_BYTES:,} are kept",
            hint="split it into parts, or keep a summary",
        )
    return text


def clean_tags(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return tags trimmed and without repeats; a string holds one, or several between commas."""
    if tags is None:
        return ()
    if isinstance(tags, str) and len(tags) > MAX_TAGS * MAX_TAG_CHARS * 4:
        raise InvalidInput(f"tags: {len(tags):,} characters are more than {MAX_TAGS} tags can have")
    given = tags.split(",") if isinstance(tags, str) else tags
    kept: dict[str, str] = {}
    for tag in given:
        if not isinstance(tag, str):
            raise InvalidInput(f"tags must be text, not {type(tag).__name__}")
        if len(tag) > MAX_TAG_CHARS * 4:
            raise InvalidInput(f"tags: one has {len(tag):,} characters; at most {MAX_TAG_CHARS} are kept")
        if not (name := " ".join(clean_text(tag, "a tag").split() if tag.strip("\0 \t\r\n") else ())):
            continue
        if len(name) > MAX_TAG_CHARS:
            raise InvalidInput(f"tags: {name[:20]!r}... has {len(name)} characters; at most {MAX_TAG_CHARS} are kept")
        kept.setdefault(tag_key(name), name)
    if len(kept) > MAX_TAGS:
        raise InvalidInput(f"tags: there are {len(kept):,}; a memory takes at most {MAX_TAGS}")
    return tuple(kept.values())


def clean_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata that JSON can hold, or say what in it JSON cannot."""
    if not metadata:
        return {}
    try:
        made: dict[str, Any] = _clean_json_value(metadata, MAX_METADATA_DEPTH)
        text = json.dumps(made, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be plain JSON values: {error}"[:300]) from None
    if len(text) > MAX_METADATA_CHARS:
        raise InvalidInput(f"metadata takes {len(text):,} characters as JSON; at most {MAX_METADATA_CHARS:,} are kept")
    return dict(json.loads(text))


def _clean_json_value(value: Any, depth: int) -> Any:
    """Copy a JSON value with its texts as every engine can store them."""
    if depth < 0:
        raise ValueError(f"they are nested more than {MAX_METADATA_DEPTH} deep")
    if isinstance(value, str):
        return make_storable(value)
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"a key must be text, not {type(wrong[0]).__name__}")
        if ours := [key for key in value if key.startswith(RESERVED_PREFIX)]:
            raise ValueError(f"keys that begin with {RESERVED_PREFIX!r} are Athena's own: {ours[0]!r:.60}")
        return {make_storable(key): _clean_json_value(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean_json_value(item, depth - 1) for item in value]
    return value


def strip_reserved_keys(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what callers may see of metadata: all but what is Athena's own."""
    return {key: value for key, value in metadata.items() if not key.startswith(RESERVED_PREFIX)}


def compute_digest_salt(metadata: Mapping[str, Any]) -> str | None:
    """Return what keeps a text apart from the very same one elsewhere: its session, and a serial of our own."""
    parts = [str(metadata[name]) for name in ("session_id", SERIAL_KEY) if metadata.get(name) is not None]
    return "\n".join(parts) if parts else None


def clean_name(text: str, name: str, longest: int = 60) -> str:
    """Return a short label, such as a memory's type."""
    label = " ".join(clean_text(text, name).split())
    if len(label) > longest:
        raise InvalidInput(f"{name} has {len(label)} characters; at most {longest} are kept")
    return label


def format_preview(content: str, longest: int = PREVIEW_CHARS) -> str:
    """Return the beginning of a text, on one line."""
    line = " ".join(content.lstrip()[: longest * 4].split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


TaskKind = Literal["task", "goal", "reminder"]
TaskState = Literal["open", "in_progress", "done", "cancelled"]
TaskPriority = Literal["low", "normal", "high", "urgent"]
UNFINISHED_STATES: tuple[TaskState, ...] = ("open", "in_progress")
TASK_PRIORITIES: tuple[TaskPriority, ...] = get_args(TaskPriority)
PLAN_KEY = f"{RESERVED_PREFIX}plan"  # what the metadata keep of a task beside its text and state
NO_DUE_TIME_S = 253_402_300_799.0  # the last second of the year 9999: when a task without a due time comes up
DETAILS_SEPARATOR = "\n\n"  # between a task's title and its details


@dataclass(frozen=True, slots=True)
class Task:
    id: int
    hash: str
    title: str
    details: str | None
    kind: TaskKind
    state: TaskState
    priority: TaskPriority
    due: float | None
    overdue: bool
    depends_on: tuple[int, ...]
    blocked: bool  # whether it waits for one of them
    blocked_by: tuple[int, ...]  # those of them that are not finished
    tags: tuple[str, ...]
    outcome: str | None
    finished: float | None
    metadata: dict[str, Any]
    created: float
    updated: float
    project: str


@dataclass(frozen=True, slots=True)
class Kept(Task):
    """A task as it is now kept."""

    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the text


@dataclass(frozen=True, slots=True)
class Freed:
    """A task that waits for nothing any more."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class Completed(Task):
    """A task that is done, and what can be begun now."""

    unblocked: tuple[Freed, ...] = ()
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were taken out of the outcome


def get_task_plan(memory: Memory) -> dict[str, Any]:
    """Return what is kept of a task beside its text."""
    made: dict[str, Any] = memory.metadata.get(PLAN_KEY, {})
    return made


def get_task_title(memory: Memory) -> str:
    return memory.content.partition(DETAILS_SEPARATOR)[0]


def task_from_memory(memory: Memory, unfinished: set[int], now: float) -> Task:
    """Return a task, where `unfinished` are those that others may wait for."""
    m, p = memory, get_task_plan(memory)
    name, _, details = m.content.partition(DETAILS_SEPARATOR)
    state: TaskState = m.memory_type  # type: ignore[assignment]  # nothing else is written there
    due, needs = p.get("due"), tuple(p.get("depends_on", ()))
    waits_for = tuple(one for one in needs if one in unfinished) if state in UNFINISHED_STATES else ()
    return Task(
        id=m.id,
        hash=m.hash,
        title=name,
        details=details or None,
        kind=p.get("kind", "task"),
        state=state,
        priority=p.get("priority", "normal"),
        due=due,
        overdue=due is not None and due < now and state in UNFINISHED_STATES,
        depends_on=needs,
        blocked=bool(waits_for),
        blocked_by=waits_for,
        tags=m.tags,
        outcome=p.get("outcome"),
        finished=p.get("finished"),
        metadata=strip_reserved_keys(m.metadata),
        created=m.created,
        updated=m.updated,
        project=m.project,
    )


def get_urgency_key(one: Task) -> tuple[bool, int, float, int]:
    """Order tasks: what can be done first, then what matters more, then what is due earlier."""
    return one.blocked, -TASK_PRIORITIES.index(one.priority), NO_DUE_TIME_S if one.due is None else one.due, one.id
