"""Clean what callers send: texts, tags, metadata, filters and times; secrets are removed before anything is stored."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from athena.core import clock, redaction
from athena.core.threads import run_in_thread
from athena.core.values import Scope
from athena.errors import InvalidInput
from athena.memory import time
from athena.memory.values import Draft, clean_metadata, clean_name, clean_tags, clean_text
from athena.storage.filters import Filter

Tags = str | Sequence[str] | None
MAX_BATCH_CHARS = 20_000_000
LONG_TEXT_CHARS = 8_000  # longer texts are searched for secrets on another thread, so that no other call waits
P = ParamSpec("P")
R = TypeVar("R")


async def clean_long(size: int, clean: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Clean what callers send, on another thread if it is long."""
    return clean(*args, **kwargs) if size <= LONG_TEXT_CHARS else await run_in_thread(clean, *args, **kwargs)


def create_draft(
    content: str,
    tags: Tags = None,
    memory_type: str = "note",
    metadata: Mapping[str, Any] | None = None,
    importance: float = 0.5,
) -> Draft:
    """Return a draft that holds no secrets and nothing that a database engine cannot store."""
    text, text_kinds = redaction.redact(clean_text(content))
    fields = [list(clean_tags(tags)), clean_name(memory_type, "memory_type"), clean_metadata(metadata)]
    (safe_tags, safe_type, safe_metadata), field_kinds = redaction.redact_json(fields)
    return Draft(text, clean_tags(safe_tags), safe_type, safe_metadata, importance, (*text_kinds, *field_kinds))


def clean_facts(metadata: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return metadata that can be stored, without secrets, and the kinds of the secrets."""
    cleaned: dict[str, Any]
    cleaned, kinds = redaction.redact_json(clean_metadata(metadata))
    return cleaned, kinds


def redact_tags(tags: Tags) -> list[str]:
    """Return tags as a memory stores them: cleaned, without secrets."""
    safe_tags, _ = redaction.redact_json(list(clean_tags(tags)))
    return list(clean_tags(safe_tags))


def redact_name(text: str, name: str) -> str:
    """Return a short label without secrets; `name` is what errors call it."""
    return redaction.redact(clean_name(text, name)).text


def clean_field(name: str, text: str, max_chars: int) -> tuple[str, tuple[str, ...]]:
    """Return a text that metadata will hold under `name`, without secrets, and the kinds of the secrets."""
    text = text.strip()
    if len(text) <= 2 * max_chars:  # a placeholder may be shorter than the secret that it replaces
        _, text, kinds = redaction.redact_field(name, clean_text(text, name))
    if len(text) > max_chars:
        raise InvalidInput(f"{name} has {len(text):,} characters; at most {max_chars:,} are allowed")
    return text, kinds


def parse_batch(items: Sequence[str | Mapping[str, Any]]) -> list[Draft]:
    drafts = [parse_item(item, i) for i, item in enumerate(items)]
    check_batch_size(drafts)
    return drafts


def check_batch_size(drafts: Sequence[Draft]) -> None:
    """Raise InvalidInput if the texts are too long for one transaction."""
    if (size := sum(len(draft.content) for draft in drafts)) > MAX_BATCH_CHARS:
        raise InvalidInput(
            f"items hold {size:,} characters; at most {MAX_BATCH_CHARS:,} go in one batch", hint="send them in parts"
        )


def parse_item(item: str | Mapping[str, Any], position: int) -> Draft:
    """Return the draft of one item in a batch; errors name the item by its position."""
    fields = {"content": item} if isinstance(item, str) else dict(item)
    if "content" not in fields:
        raise InvalidInput(f"items[{position}] lacks 'content'")
    try:
        return create_draft(**fields)
    except InvalidInput as error:
        raise InvalidInput(f"items[{position}]: {error}", hint=error.hint) from None


def clean_changes(
    content: str | None,
    tags: Tags,
    memory_type: str | None,
    metadata: Mapping[str, Any] | None,
    importance: float | None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields to change, cleaned and without secrets, and the kinds of the secrets."""
    fields: dict[str, Any] = {
        "content": None if content is None else clean_text(content),
        "tags": None if tags is None else list(clean_tags(tags)),
        "memory_type": None if memory_type is None else clean_name(memory_type, "memory_type"),
        "metadata": None if metadata is None else clean_metadata(metadata),
        "importance": importance,
    }
    changes, kinds = redaction.redact_json({name: value for name, value in fields.items() if value is not None})
    if not changes:
        raise InvalidInput("nothing to change: give content, tags, memory_type, metadata or importance")
    if "tags" in changes:
        changes["tags"] = clean_tags(changes["tags"])
    return changes, kinds


def clean_query(query: str) -> str:
    return clean_text(query, "query")


def create_tag_filter(scope: Scope, tags: Tags, match: str) -> Filter:
    cleaned = clean_tags(tags)
    if not cleaned:
        raise InvalidInput("tags must not be empty")
    return Filter(scope, cleaned, match)


def create_filter(
    scope: Scope,
    tags: Tags = None,
    memory_type: str | None = None,
    since: str | float | None = None,
    until: str | float | None = None,
    now: float | None = None,
) -> Filter:
    """Return a filter; times may be in plain words, relative to `now`, by default the system's time."""
    now = clock.system_clock() if now is None else now
    return Filter(
        scope,
        clean_tags(tags),
        "any",
        clean_name(memory_type, "memory_type") if memory_type is not None else None,
        parse_time(since, "since", now, end=False),
        parse_time(until, "until", now, end=True),
    )


def parse_time(value: str | float | None, name: str, now: float, *, end: bool) -> float | None:
    """Return a time in seconds; of a period in words its start, or with `end` its end."""
    if value is None or isinstance(value, float):
        return value
    try:
        period = time.parse_period(value, clock.to_local_time(now))
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}", hint=error.hint) from None
    return period.end if end else period.start


def check_time_range(moment: float | None, name: str) -> float | None:
    """Return the time; raise InvalidInput if no calendar has it."""
    if moment is not None and not clock.is_in_calendar(moment):
        raise InvalidInput(f"{name} is out of range: {moment!r:.60}")
    return moment
