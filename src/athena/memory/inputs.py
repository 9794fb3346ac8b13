"""From what a caller wrote to what may be stored or asked."""

from collections.abc import Mapping, Sequence
from typing import Any

from athena.core import clock, redaction
from athena.core.values import Scope
from athena.errors import InvalidInput
from athena.memory.values import Draft, clean_metadata, clean_name, clean_tags, clean_text
from athena.storage.filters import Filter

Tags = str | Sequence[str] | None
MAX_BATCH_CHARS = 20_000_000  # characters


def create_draft(
    content: str,
    tags: Tags = None,
    memory_type: str = "note",
    metadata: Mapping[str, Any] | None = None,
    importance: float = 0.5,
) -> Draft:
    """Return a draft whose text holds no secrets and nothing that an engine cannot store."""
    text, kinds = redaction.redact(clean_text(content))
    (named, kind, facts), more = _redact_value(
        [list(clean_tags(tags)), clean_name(memory_type, "memory_type"), clean_metadata(metadata)]
    )
    return Draft(text, clean_tags(named), kind, facts, importance, (*kinds, *more))


def _redact_value(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Redact every text inside a JSON value."""
    if isinstance(value, str):
        return redaction.redact(value)
    if isinstance(value, dict):
        fields = [_redact_field(key, item) for key, item in value.items()]
        return {key: item for key, item, _ in fields}, tuple(kind for *_, kinds in fields for kind in kinds)
    if isinstance(value, list):
        items = [_redact_value(item) for item in value]
        return [v for v, _ in items], tuple(kind for _, kinds in items for kind in kinds)
    return value, ()


def _redact_field(key: str, value: Any) -> tuple[str, Any, tuple[str, ...]]:
    """Redact a key and its value; `password` and a word are a secret together, though neither is alone."""
    (named, found), (item, kinds) = redaction.redact(key), _redact_value(value)
    if isinstance(value, str) and not found and not kinds:
        kinds = redaction.redact(f'{key}="{value}"').kinds[:1]
        item = f"[SECRET:{kinds[0]}]" if kinds else item
    return named, item, (*found, *kinds)


def clean_facts(metadata: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return metadata that can be stored, without secrets, and the kinds of those."""
    made: dict[str, Any]
    made, kinds = _redact_value(clean_metadata(metadata))
    return made, kinds


def redact_name(text: str, what: str) -> str:
    """Return a short label without secrets."""
    return redaction.redact(clean_name(text, what)).text


def clean_field(name: str, text: str, longest: int) -> tuple[str, tuple[str, ...]]:
    """Return a text as metadata keep it under a name, and the kinds of secrets taken out of it."""
    _, kept, kinds = _redact_field(name, clean_text(text.strip(), name))
    if len(kept) > longest:
        raise InvalidInput(f"{name} has {len(kept):,} characters; at most {longest:,} are kept")
    return kept, kinds


def parse_batch(items: Sequence[str | Mapping[str, Any]]) -> list[Draft]:
    """Return the drafts of a batch, if they are not too much at once."""
    drafts = [parse_item(item, i) for i, item in enumerate(items)]
    check_batch_size(drafts)
    return drafts


def check_batch_size(drafts: Sequence[Draft]) -> None:
    """Refuse what is too much for one transaction."""
    if (size := sum(len(one.content) for one in drafts)) > MAX_BATCH_CHARS:
        raise InvalidInput(
            f"items hold {size:,} characters; at most {MAX_BATCH_CHARS:,} go in one batch", hint="send them in parts"
        )


def parse_item(item: str | Mapping[str, Any], position: int) -> Draft:
    """Return the draft of one item in a batch; errors say which item it was."""
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
    """Return what is to change, cleaned, and the kinds of secrets taken out; nothing to change is an error."""
    given: dict[str, Any] = {
        "content": None if content is None else clean_text(content),
        "tags": None if tags is None else list(clean_tags(tags)),
        "memory_type": None if memory_type is None else clean_name(memory_type, "memory_type"),
        "metadata": None if metadata is None else clean_metadata(metadata),
        "importance": importance,
    }
    made, kinds = _redact_value({name: value for name, value in given.items() if value is not None})
    if not made:
        raise InvalidInput("nothing to change: give content, tags, memory_type, metadata or importance")
    if "tags" in made:
        made["tags"] = clean_tags(made["tags"])
    return made, kinds


def clean_query(query: str) -> str:
    """Return a question that every engine can take."""
    return clean_text(query, "query")


def create_tag_filter(scope: Scope, tags: Tags, match: str) -> Filter:
    wanted = clean_tags(tags)
    if not wanted:
        raise InvalidInput("tags must not be empty")
    return Filter(scope, wanted, match)


def create_filter(
    scope: Scope, tags: Tags, memory_type: str | None, since: str | float | None, until: str | float | None, now: float
) -> Filter:
    """Return a filter; times may be in plain words."""
    kind = clean_name(memory_type, "memory_type") if memory_type is not None else None
    return Filter(
        scope,
        clean_tags(tags),
        "any",
        kind,
        parse_time(since, "since", now, end=False),
        parse_time(until, "until", now, end=True),
    )


def parse_time(value: str | float | None, name: str, now: float, *, end: bool) -> float | None:
    """Return the time that words or a number name: where it begins, or where it ends."""
    if value is None or isinstance(value, float):
        return value
    from athena.memory.time import phrase  # its tables are slow to load

    try:
        period = phrase.parse_period(value, clock.to_local_time(now))
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}", hint=error.hint) from None
    return period.end if end else period.start


def check_time_range(moment: float | None, name: str) -> float | None:
    """Return a time that a calendar has."""
    try:
        clock.to_local_time(moment or 0.0)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"{name} is out of range: {moment!r:.60}") from None
    return moment
