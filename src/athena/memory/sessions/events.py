"""Record events, and find them by question, session, type, outcome and time."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena.core.hashing import create_serial
from athena.core.values import Author, Call, Page, Scope
from athena.core.words import STOP_WORDS, tokenize
from athena.errors import InvalidInput
from athena.memory import inputs, lookup, recall
from athena.memory.recall import Query
from athena.memory.remember import remember
from athena.memory.sessions import rows
from athena.memory.sessions.values import (
    DURATION_KEY,
    FAILED_EVENT_TYPES,
    FAILURE_OUTCOMES,
    OUTCOME_KEY,
    SESSION_KEY,
    SUCCESS_OUTCOMES,
    Event,
    Recorded,
    event_from_memory,
    list_outcome_synonyms,
    to_stored_event,
)
from athena.memory.store import Store
from athena.memory.values import MOMENT_KEY, SERIAL_KEY, Draft, Hit, clean_name, clean_text
from athena.storage.database import Transaction
from athena.storage.filters import Filter

When = str | float | None
MAX_SESSION_ID_CHARS = 1_000
MAX_QUERY_WORDS = 200  # of a question, in which a session id is looked for
NEGATION_REGEX = r"(?P<not>\b(?:\w+n['’]t|not|never|without|no|nothing)\s+(?:(?:any|have|has|been|a)\s+)*)?"
# (phrase, the outcomes that it means, the outcomes that it means when negated)
OUTCOME_PHRASES = (
    (
        r"\b(?:fail\w*|errors?|broken?|crash\w*|time[ds]?[ -]?outs?|(?:went|gone|goes|go) wrong)\b",
        FAILURE_OUTCOMES,
        SUCCESS_OUTCOMES,
    ),
    (r"\b(?:succe\w+|(?:went|gone|go) well|work(?:ed|s)?(?: out)?|pass(?:ed)?)\b", SUCCESS_OUTCOMES, FAILURE_OUTCOMES),
)
TOKEN_PATTERN = re.compile(r"[^\s,;?!\"'’()]+")
PLAIN_WORD_PATTERN = re.compile(r"[^\W\d_]+")
# A question of these words alone names no event: "what happened", "show everything that went wrong".
EVENT_QUESTION_WORDS = """
    thing things event events action actions step steps session show list tell every everything anything
    happen happened happens went going far
"""
FILLER_WORDS = STOP_WORDS | frozenset(EVENT_QUESTION_WORDS.split())


async def record_events(
    store: Store, items: Sequence[Mapping[str, Any]], call: Call, author: Author | None = None
) -> list[Recorded]:
    """Store events; unlike memories, equal texts stay separate events. Without `author` the call's author said them."""
    now = store.clock()
    size = sum(len(item.get("content") or "") for item in items)
    drafts = await inputs.clean_long(
        size, lambda: [_parse_event(item, i, len(items), now, call.key) for i, item in enumerate(items)]
    )
    inputs.check_batch_size(drafts)
    drafts = [replace(draft, author=author) for draft in drafts]
    stored = await remember(store, drafts, call.with_kind("event"), read_first=False)
    return [to_stored_event(memory, memory.redacted) for memory in stored]


async def get_session_project(store: Store, session_id: str) -> str | None:
    """Return the project of a session's first event."""
    return await store.database.read(lambda tx: rows.fetch_session_project(tx, clean_session_id(session_id)))


def _parse_event(item: Mapping[str, Any], position: int, count: int, now: float, key: str | None) -> Draft:
    """Return the draft of one event; errors name its position in the batch."""
    try:
        draft, moment = _create_event_draft(now=now, **item)
    except InvalidInput as error:
        prefix = f"items[{position}]: " if count > 1 else ""
        raise InvalidInput(f"{prefix}{error}", hint=error.hint) from None
    # The serial keeps events of the same text apart.
    reserved = {SERIAL_KEY: create_serial(key, position)} | ({} if moment is None else {MOMENT_KEY: moment})
    return replace(draft, metadata=draft.metadata | reserved)


def _create_event_draft(
    now: float,
    event_type: str,
    content: str,
    outcome: str | None = None,
    session_id: str | None = None,
    duration_ms: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    happened: When = None,
) -> tuple[Draft, float | None]:
    """Return the draft of an event, with its outcome as a tag, and the time it happened unless that is now."""
    facts: dict[str, Any] = dict(metadata or {})
    fields = {
        OUTCOME_KEY: None if outcome is None else clean_name(outcome, OUTCOME_KEY),
        SESSION_KEY: session_id,
        DURATION_KEY: duration_ms,
    }
    facts |= {name: value for name, value in fields.items() if value is not None}
    _check_facts(facts)
    tag = facts.get(OUTCOME_KEY)
    if tag is None and event_type.strip().casefold() in FAILED_EVENT_TYPES:
        tag = FAILURE_OUTCOMES[0]  # so that a search for failures finds it
    tags = [tag] if tag is not None else None
    if happened is None and not isinstance(facts.get("date"), bool):
        happened = facts.pop("date", None)
    draft = inputs.create_draft(content, tags, clean_name(event_type, "event_type"), facts)
    return draft, _parse_happened(happened, now)


def _check_facts(facts: dict[str, Any]) -> None:
    """Check outcome, session and duration, which may also come from the caller's metadata."""
    for name in (OUTCOME_KEY, SESSION_KEY):
        if not isinstance(facts.get(name), str | None):
            raise InvalidInput(f"{name} must be text, not {type(facts[name]).__name__}")
    if facts.get(SESSION_KEY) is not None:
        clean_session_id(facts[SESSION_KEY])
        # Not redacted here: `remember` redacts it and reports the kinds of secrets together with the text's.
        facts[SESSION_KEY] = clean_text(facts[SESSION_KEY].strip(), SESSION_KEY)
    duration = facts.get(DURATION_KEY)
    if duration is None:
        return
    if isinstance(duration, bool) or not isinstance(duration, int | float) or not duration >= 0:
        raise InvalidInput(f"{DURATION_KEY} must be a number of milliseconds, not {duration!r:.40}")


def _parse_happened(happened: Any, now: float) -> float | None:
    if happened is None:
        return None
    if not isinstance(happened, str | int | float):
        raise InvalidInput(f"happened must be a time in words or seconds, not {type(happened).__name__}")
    moment = inputs.parse_time(happened if isinstance(happened, str) else float(happened), "happened", now, end=False)
    return inputs.check_time_range(moment, "happened")


def clean_session_id(text: str) -> str:
    """Return a session id as the store keeps it: trimmed, checked and redacted."""
    return inputs.clean_field(SESSION_KEY, text, MAX_SESSION_ID_CHARS)[0]


def create_event_filter(
    scope: Scope,
    session_id: str | None,
    event_type: str | None,
    outcome: str | None,
    since: When,
    until: When,
    now: float,
) -> Filter:
    tags = None if outcome is None else list_outcome_synonyms(clean_name(outcome, OUTCOME_KEY))
    event_filter = inputs.create_filter(scope.with_kind("event"), tags, event_type, since, until, now)
    return event_filter if session_id is None else replace(event_filter, session=clean_session_id(session_id))


async def find_events(store: Store, query: str | None, event_filter: Filter, limit: int, offset: int) -> Page[Event]:
    """Return events, the newest first, or the best matches for a question.

    A session, a time and an outcome that the question names become filters.
    """
    if query is not None:
        text, event_filter = await store.database.read(
            lambda tx: _extract_session(tx, inputs.clean_query(query), event_filter)
        )
        question = recall.extract_time(Query(text, event_filter, limit, offset), store.clock())
        text, event_filter = _extract_outcome(question.text, question.criteria)
        if text:
            return _to_events(await recall.recall(store, question._replace(text=text, criteria=event_filter)))
    return _to_events(await lookup.list_newest(store, event_filter, limit, offset))


def _to_events(page: Page[Any]) -> Page[Event]:
    return Page([event_from_memory(row, row.score if isinstance(row, Hit) else None) for row in page], page.total)


async def _extract_session(tx: Transaction, text: str, event_filter: Filter) -> tuple[str, Filter]:
    """Move the id of an existing session from the question to the filter."""
    if event_filter.session is not None:
        return text, event_filter
    tokens = [(match, match[0].rstrip(".:")) for match in TOKEN_PATTERN.finditer(text)][:MAX_QUERY_WORDS]
    for i, (match, word) in enumerate(tokens):
        neighbours = [other.casefold() for _, other in (*tokens[max(0, i - 1) : i], *tokens[i + 1 : i + 2])]
        # A plain word such as "deploy" is a session id only beside the word session.
        if "session" not in neighbours and PLAIN_WORD_PATTERN.fullmatch(word):
            continue
        if await rows.session_exists(tx, event_filter.scope, word):
            rest = f"{text[: match.start()]}{text[match.start() + len(word) :]}"
            return rest, replace(event_filter, session=word)
    return text, event_filter


def _extract_outcome(text: str, event_filter: Filter) -> tuple[str, Filter]:
    """Turn "what failed" into a filter; if the question says more, add the outcome to its search words instead."""
    for pattern, outcomes, negated_outcomes in OUTCOME_PHRASES:
        match = re.search(NEGATION_REGEX + pattern, text, re.IGNORECASE)
        if match is None:
            continue
        wanted = negated_outcomes if match["not"] else outcomes
        rest = text[: match.start()] + " " + text[match.end() :]
        if not event_filter.tags and FILLER_WORDS.issuperset(tokenize(rest)):
            return "", replace(event_filter, tags=wanted)
        return f"{text} {wanted[0]}", event_filter
    return ("" if FILLER_WORDS.issuperset(tokenize(text)) else text), event_filter
