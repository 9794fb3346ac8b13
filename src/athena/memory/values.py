"""Values of memories and tasks, and the rules that their texts, tags and metadata must meet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Literal, TypeVar, get_args

from athena.core.previews import format_preview as format_preview  # others use it from here
from athena.core.text import make_storable
from athena.core.values import Author, Kind
from athena.errors import InvalidInput
from athena.storage.filters import tag_key

MAX_CONTENT_BYTES = 4_000_000
MAX_METADATA_CHARS = 64_000
MAX_SESSION_BYTES = 2_000  # in UTF-8: an index of PostgreSQL takes no more
MAX_METADATA_DEPTH = 32
MAX_TAG_CHARS = 100
MAX_TAGS = 100
RESERVED_PREFIX = "athena:"  # of metadata keys that callers may not set
SERIAL_KEY = f"{RESERVED_PREFIX}serial"  # distinguishes rows of the same text, such as two equal events
MOMENT_KEY = f"{RESERVED_PREFIX}moment"  # when something happens, in seconds, if not when it was stored
DOCUMENT_TYPE = "document"  # of memories that are pieces of a file
PIECE_KEY = "piece"  # in a piece's metadata: a number that grows with its place in the document
PAGE_KEY, HEADING_KEY = "page", "heading"  # there too: where it begins, and the headings above it
FILE_KEY = f"{RESERVED_PREFIX}file"  # in the first piece: the file as it was read
PLAN_KEY = f"{RESERVED_PREFIX}plan"  # the fields of a task that are neither its text nor its state

TaskKind = Literal["task", "goal", "reminder"]
TaskState = Literal["open", "in_progress", "done", "cancelled"]
TaskPriority = Literal["low", "normal", "high", "urgent"]
UNFINISHED_STATES: tuple[TaskState, ...] = ("open", "in_progress")
TASK_PRIORITIES: tuple[TaskPriority, ...] = get_args(TaskPriority)
NO_DUE_TIME_S = 253_402_300_799.0  # the last second of the year 9999 stands for "no due time", so that it sorts last
DETAILS_SEPARATOR = "\n\n"  # between a task's title and its details

M = TypeVar("M", bound="Memory")


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
    author: Author


_get_fields = attrgetter(*Memory.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class Hit(Memory):
    """A memory that a search found, with how well it fits: 0 not at all, 1 fully."""

    score: float
    why: dict[str, float] | None = None  # share of each term of the ranking, if the caller asked for it
    kind: Kind = "memory"
    contradicted_by: int | None = None  # a newer memory that says otherwise; of a person, if this is a person's
    place: str | None = None  # of a piece of a document: `guide.pdf p. 12, Installing > macOS`
    cut: bool = False  # the content is the passage that answers, not all of the text


@dataclass(frozen=True, slots=True)
class Stored(Memory):
    """A memory as it is now stored, and what storing it did."""

    outcome: str  # new, known, revived, updated
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were removed from the text


def extend_memory(cls: type[M], memory: Memory, *more: Any) -> M:
    """Return a memory as a subclass of Memory, with the fields that the subclass adds."""
    return cls(*_get_fields(memory), *more)


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a memory before it is stored."""

    content: str
    tags: tuple[str, ...] = ()
    memory_type: str = "note"
    metadata: dict[str, Any] = field(default_factory=dict)
    importance: float = 0.5
    redacted: tuple[str, ...] = ()
    author: Author | None = None  # who said it; None is the author of the call that stores it

    @classmethod
    def from_memory(cls, memory: Memory, **changes: Any) -> "Draft":
        """Return the content of a stored memory, with some fields changed."""
        draft = cls(
            memory.content, memory.tags, memory.memory_type, memory.metadata, memory.importance, author=memory.author
        )
        return replace(draft, **changes)


@dataclass(frozen=True, slots=True)
class Change:
    """A change in a memory's history; `before` is its state before, or None if it did not exist."""

    at: float
    action: str
    operation: str
    before: dict[str, Any] | None
    by: str = ""  # the surface of the call that made it: cli, mcp, http, python, program, hook


@dataclass(frozen=True, slots=True)
class Purgeable:
    """What a purge would remove for good."""

    count: int
    digest: str  # names exactly these, with exactly their texts
    memories: tuple[Memory, ...]  # the first of them


@dataclass(frozen=True, slots=True)
class RecentChange:
    """A change in a project, as the list of the latest shows it."""

    number: int  # grows with every change
    at: float
    action: str
    by: str  # the surface of the call that made it
    kind: Kind
    id: int
    preview: str


@dataclass(frozen=True, slots=True)
class ChangingCall:
    """A call that changed something, which undo_call takes back by its number."""

    number: int
    operation: str
    at: float


def clean_text(text: str, name: str = "content") -> str:
    """Return a text that can be stored, is not empty and not too long."""
    text = make_storable(text)
    size = len(text) if text.isascii() else len(text.encode())
    if not text.strip():
        raise InvalidInput(f"{name} must not be empty")
    if size > MAX_CONTENT_BYTES:
        raise InvalidInput(
            f"{name} is {size:,} bytes; at most {MAX_CONTENT_BYTES:,} are allowed",
            hint="split it into parts, or keep a summary",
        )
    return text


def clean_tags(tags: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return tags trimmed and without repeats; a string holds one tag, or several separated by commas."""
    if tags is None:
        return ()
    if isinstance(tags, str) and len(tags) > MAX_TAGS * MAX_TAG_CHARS * 4:
        raise InvalidInput(f"tags: {len(tags):,} characters are more than {MAX_TAGS} tags can have")
    unique: dict[str, str] = {}
    for tag in tags.split(",") if isinstance(tags, str) else tags:
        if not isinstance(tag, str):
            raise InvalidInput(f"tags must be text, not {type(tag).__name__}")
        if len(tag) > MAX_TAG_CHARS * 4:
            raise InvalidInput(f"tags: one has {len(tag):,} characters; at most {MAX_TAG_CHARS} are allowed")
        if not (name := " ".join(clean_text(tag, "a tag").split() if tag.strip("\0 \t\r\n") else ())):
            continue
        if len(name) > MAX_TAG_CHARS:
            raise InvalidInput(
                f"tags: {name[:20]!r}... has {len(name)} characters; at most {MAX_TAG_CHARS} are allowed"
            )
        unique.setdefault(tag_key(name), name)
    if len(unique) > MAX_TAGS:
        raise InvalidInput(f"tags: there are {len(unique):,}; a memory takes at most {MAX_TAGS}")
    return tuple(unique.values())


def clean_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as plain JSON values; raise InvalidInput that names what JSON cannot hold."""
    if not metadata:
        return {}
    try:
        text = json.dumps(_clean_json_value(metadata, MAX_METADATA_DEPTH), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be plain JSON values: {error}"[:300]) from None
    if len(text) > MAX_METADATA_CHARS:
        raise InvalidInput(
            f"metadata takes {len(text):,} characters as JSON; at most {MAX_METADATA_CHARS:,} are allowed"
        )
    if (size := len(str(metadata.get("session_id", "")).encode("utf-8", "replace"))) > MAX_SESSION_BYTES:
        raise InvalidInput(
            f"session_id, or the path of a document, takes {size:,} bytes; at most {MAX_SESSION_BYTES:,} are allowed"
        )
    return dict(json.loads(text))


def _clean_json_value(value: Any, depth: int) -> Any:
    """Copy a JSON value, with its texts as every database engine can store them."""
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
    """Return metadata without the keys that are Athena's own, which callers do not see."""
    return {key: value for key, value in metadata.items() if not key.startswith(RESERVED_PREFIX)}


def compute_digest_salt(metadata: Mapping[str, Any]) -> str | None:
    """Return what distinguishes a text from an equal one elsewhere: its session and its serial, if it has them."""
    parts = [str(metadata[name]) for name in ("session_id", SERIAL_KEY) if metadata.get(name) is not None]
    return "\n".join(parts) if parts else None


def clean_name(text: str, name: str, max_chars: int = 60) -> str:
    """Return a short label, such as a memory's type."""
    label = " ".join(clean_text(text, name).split())
    if len(label) > max_chars:
        raise InvalidInput(f"{name} has {len(label)} characters; at most {max_chars} are allowed")
    return label


def format_place(metadata: Mapping[str, Any]) -> str | None:
    """Return where a piece of a document stands: `guide.pdf p. 12, Installing > macOS`; None for other memories."""
    source = metadata.get("source")
    if PIECE_KEY not in metadata or not isinstance(source, str):
        return None
    page, heading = metadata.get(PAGE_KEY), metadata.get(HEADING_KEY)
    place = source.rpartition("/")[2] + (f" p. {page}" if page else "")
    return f"{place}, {heading}" if heading else place


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
    blocked: bool
    blocked_by: tuple[int, ...]  # the dependencies that are not finished
    tags: tuple[str, ...]
    outcome: str | None
    finished: float | None
    metadata: dict[str, Any]
    created: float
    updated: float
    project: str


@dataclass(frozen=True, slots=True)
class Kept(Task):
    """A task as it is now stored."""

    redacted: tuple[str, ...] = ()  # the kinds of secrets that were removed from the text


@dataclass(frozen=True, slots=True)
class Freed:
    """A task that is no longer blocked."""

    id: int
    title: str


@dataclass(frozen=True, slots=True)
class Completed(Task):
    """A task that is done, and the tasks that are no longer blocked."""

    unblocked: tuple[Freed, ...] = ()
    redacted: tuple[str, ...] = ()  # the kinds of secrets that were removed from the outcome


def get_task_plan(memory: Memory) -> dict[str, Any]:
    """Return the fields of a task that its metadata hold."""
    plan: dict[str, Any] = memory.metadata.get(PLAN_KEY, {})
    return plan


def get_task_title(memory: Memory) -> str:
    return memory.content.partition(DETAILS_SEPARATOR)[0]


def task_from_memory(memory: Memory, unfinished: set[int], now: float) -> Task:
    """Return a task; `unfinished` are those of its dependencies that still block it."""
    m, plan = memory, get_task_plan(memory)
    title, _, details = m.content.partition(DETAILS_SEPARATOR)
    state: TaskState = m.memory_type  # type: ignore[assignment]  # nothing else is written there
    due, depends_on = plan.get("due"), tuple(plan.get("depends_on", ()))
    blocked_by = tuple(task_id for task_id in depends_on if task_id in unfinished) if state in UNFINISHED_STATES else ()
    return Task(
        id=m.id,
        hash=m.hash,
        title=title,
        details=details or None,
        kind=plan.get("kind", "task"),
        state=state,
        priority=plan.get("priority", "normal"),
        due=due,
        overdue=due is not None and due < now and state in UNFINISHED_STATES,
        depends_on=depends_on,
        blocked=bool(blocked_by),
        blocked_by=blocked_by,
        tags=m.tags,
        outcome=plan.get("outcome"),
        finished=plan.get("finished"),
        metadata=strip_reserved_keys(m.metadata),
        created=m.created,
        updated=m.updated,
        project=m.project,
    )


def get_urgency_key(task: Task) -> tuple[bool, int, float, int]:
    """Return a sort key: tasks that can be done first, then by priority, then by due time."""
    due = NO_DUE_TIME_S if task.due is None else task.due
    return task.blocked, -TASK_PRIORITIES.index(task.priority), due, task.id
