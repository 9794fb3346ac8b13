"""What happened: recording events and finding them again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena.core.hashing import create_serial
from athena.core.values import Call, Page, Scope
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
MAX_QUERY_WORDS = 200  # of a question, among which a session may be named
NEGATION_REGEX = r"(?P<not>\b(?:\w+n['’]t|not|never|without|no|nothing)\s+(?:(?:any|have|has|been|a)\s+)*)?"
# What people say of things that went badly or well, the outcomes that those are recorded with, and the others.
OUTCOME_PHRASES = (
    (r"\b(?:fail\w*|errors?|broken?|crash\w*|time[ds]?[ -]?outs?|(?:went|gone|goes|go) wrong)\b", FAILURE_OUTCOMES, SUCCESS_OUTCOMES),
    (r"\b(?:succe\w+|(?:went|gone|go) well|work(?:ed|s)?(?: out)?|pass(?:ed)?)\b", SUCCESS_OUTCOMES, FAILURE_OUTCOMES),
)  # fmt: skip
TOKEN_PATTERN = re.compile(r"[^\s,;?!\"'’()]+")
PLAIN_WORD_PATTERN = re.compile(
    r"[^\W\d_]+"
)  # a session of such a name is meant only where the word session is there too
# A question of these words alone names no event: "what happened", "show everything that went wrong".
EVENT_QUESTION_WORDS = """
    thing things event events action actions step steps session show list tell every everything anything
    happen happened happens went going far
"""
FILLER_WORDS = STOP_WORDS | frozenset(EVENT_QUESTION_WORDS.split())


async def record_events(store: Store, items: Sequence[Mapping[str, Any]], call: Call) -> list[Recorded]:
    """Keep events; each is one of its own, whatever else says the same."""
    now = store.clock()
    drafts = [_parse_event(item, i, len(items), now, call.key) for i, item in enumerate(items)]
    inputs.check_batch_size(drafts)
    kept = await remember(store, drafts, call.with_kind("event"), read_first=False)
    return [to_stored_event(one, one.redacted) for one in kept]


async def get_session_project(store: Store, session_id: str) -> str | None:
    """Return the project in which a session was recorded last."""
    return await store.database.read(lambda tx: rows.fetch_session_project(tx, clean_session_id(session_id)))


def _parse_event(item: Mapping[str, Any], position: int, count: int, now: float, key: str | None) -> Draft:
    """Return the draft of one event, told apart from all others; errors say which of several it was."""
    try:
        made, moment = _create_event_draft(now=now, **item)
    except InvalidInput as error:
        where = f"items[{position}]: " if count > 1 else ""
        raise InvalidInput(f"{where}{error}", hint=error.hint) from None
    ours = {SERIAL_KEY: create_serial(key, position)} | ({} if moment is None else {MOMENT_KEY: moment})
    return replace(made, metadata=made.metadata | ours)


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
    """Return the draft of an event, its outcome as a tag, and when it happened, where that is not now."""
    facts: dict[str, Any] = dict(metadata or {})
    given = {
        OUTCOME_KEY: None if outcome is None else clean_name(outcome, OUTCOME_KEY),
        SESSION_KEY: session_id,
        DURATION_KEY: duration_ms,
    }
    facts |= {name: value for name, value in given.items() if value is not None}
    _check_facts(facts)
    ended = facts.get(OUTCOME_KEY)
    if ended is None and event_type.strip().casefold() in FAILED_EVENT_TYPES:
        ended = FAILURE_OUTCOMES[0]  # found as a failure, though its outcome is not given
    tags = [ended] if ended is not None else None
    if happened is None and not isinstance(facts.get("date"), bool):
        happened = facts.pop("date", None)
    made = inputs.create_draft(content, tags, clean_name(event_type, "event_type"), facts)
    return made, _parse_happened(happened, now)


def _check_facts(facts: dict[str, Any]) -> None:
    """Refuse an outcome, a session or a duration that is none, also where the metadata name it."""
    for name in (OUTCOME_KEY, SESSION_KEY):
        if not isinstance(facts.get(name), str | None):
            raise InvalidInput(f"{name} must be text, not {type(facts[name]).__name__}")
    if facts.get(SESSION_KEY) is not None:
        clean_session_id(facts[SESSION_KEY])
        facts[SESSION_KEY] = clean_text(
            facts[SESSION_KEY].strip(), SESSION_KEY
        )  # the secrets in it are told with the others
    took = facts.get(DURATION_KEY)
    if took is not None and (isinstance(took, bool) or not isinstance(took, int | float) or not took >= 0):
        raise InvalidInput(f"{DURATION_KEY} must be a number of milliseconds, not {took!r:.40}")


def _parse_happened(happened: Any, now: float) -> float | None:
    if happened is None:
        return None
    if not isinstance(happened, str | int | float):
        raise InvalidInput(f"happened must be a time in words or seconds, not {type(happened).__name__}")
    moment = inputs.parse_time(happened if isinstance(happened, str) else float(happened), "happened", now, end=False)
    return inputs.check_time_range(moment, "happened")


def clean_session_id(text: str) -> str:
    """Return a session's id as it is kept."""
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
    only = inputs.create_filter(scope.with_kind("event"), tags, event_type, since, until, now)
    return only if session_id is None else replace(only, session=clean_session_id(session_id))


async def find_events(store: Store, query: str | None, only: Filter, limit: int, offset: int) -> Page[Event]:
    """Return events, the newest first; with a question those that fit it best, its words for times a filter."""
    if query is not None:
        text, only = await store.database.read(lambda tx: _extract_session(tx, inputs.clean_query(query), only))
        asked = recall.extract_time(Query(text, only, limit, offset), store.clock())
        text, only = _extract_outcome(asked.text, asked.only)
        if text:
            return _to_events(await recall.recall(store, asked._replace(text=text, only=only)))
    return _to_events(await lookup.list_newest(store, only, limit, offset))


def _to_events(found: Page[Any]) -> Page[Event]:
    return Page([event_from_memory(one, one.score if isinstance(one, Hit) else None) for one in found], found.total)


async def _extract_session(tx: Transaction, text: str, only: Filter) -> tuple[str, Filter]:
    """Take the name of a session in a question as a filter, and out of the question."""
    if only.session is not None:
        return text, only
    said = [(match, match[0].rstrip(".:")) for match in TOKEN_PATTERN.finditer(text)][:MAX_QUERY_WORDS]
    for i, (match, word) in enumerate(said):
        beside = [other.casefold() for _, other in (*said[max(0, i - 1) : i], *said[i + 1 : i + 2])]
        if "session" not in beside and PLAIN_WORD_PATTERN.fullmatch(word):
            continue
        if await rows.session_exists(tx, only.scope, word):
            return f"{text[: match.start()]}{text[match.start() + len(word) :]}", replace(only, session=word)
    return text, only


def _extract_outcome(text: str, only: Filter) -> tuple[str, Filter]:
    """Take "what failed" as a filter; where more is asked, let what failed be found by that word too."""
    for pattern, outcomes, others in OUTCOME_PHRASES:
        found = re.search(NEGATION_REGEX + pattern, text, re.IGNORECASE)
        if found is None:
            continue
        meant = others if found["not"] else outcomes
        said = text[: found.start()] + " " + text[found.end() :]
        if not only.tags and FILLER_WORDS.issuperset(tokenize(said)):
            return "", replace(only, tags=meant)
        return f"{text} {meant[0]}", only
    return ("" if FILLER_WORDS.issuperset(tokenize(text)) else text), only
