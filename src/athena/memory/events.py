"""What happened: recording events and finding them again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from athena import clock
from athena.errors import InvalidInput
from athena.ids import serial
from athena.memory import browse, draft, recall
from athena.memory.recall import Query
from athena.memory.remember import remember
from athena.memory.store import Store
from athena.model.call import Call
from athena.model.event import DURATION, OUTCOME, SESSION, Event, Recorded, event, recorded
from athena.model.memory import MOMENT, SERIAL, Draft, Filter, Hit, clean_name
from athena.model.page import Page
from athena.model.scope import Scope

When = str | float | None
LONGEST_SESSION = 1_000
# What people say of things that went badly or well, and the outcomes that those are recorded with.
SPOKEN = (
    (r"\b(fail\w*|errors?|broken?|crash\w*|(went|gone|goes) wrong|did(n't| not) work)\b", "failure failed fail error"),
    (r"\b(succe\w+|(went|gone) well|worked( out)?|passed)\b", "success succeeded ok passed"),
)
FILLER = re.compile(
    r"\b(what|which|things?|events?|actions?|steps?|show|list|all|every(thing)?|any(thing)?|the|that|ha[sd]|have|did|"
    r"was|were|is|are|happen(ed|s)?|went|going|on|me|us|we|of|in|with|and|there|so|far)\b|[^\w]+",
    re.IGNORECASE,
)


async def record(store: Store, items: Sequence[Mapping[str, Any]], call: Call) -> list[Recorded]:
    """Keep events; each is one of its own, whatever else says the same."""
    now = store.clock()
    drafts = [_numbered(item, i, len(items), now, call.key) for i, item in enumerate(items)]
    draft.check_size(drafts)
    kept = await remember(store, drafts, call.of("event"), read_first=False)
    return [recorded(one, one.redacted) for one in kept]


def _numbered(item: Mapping[str, Any], position: int, count: int, now: float, key: str | None) -> Draft:
    """Return the draft of one event, told apart from all others; errors say which of several it was."""
    try:
        made, moment = _drafted(now=now, **item)
    except InvalidInput as error:
        where = f"items[{position}]: " if count > 1 else ""
        raise InvalidInput(f"{where}{error}", hint=error.hint) from None
    ours = {SERIAL: serial(key, position)} | ({} if moment is None else {MOMENT: moment})
    return replace(made, metadata=made.metadata | ours)


def _drafted(
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
        OUTCOME: None if outcome is None else clean_name(outcome, OUTCOME),
        SESSION: None if session_id is None else session(session_id),
        DURATION: duration_ms,
    }
    facts |= {name: value for name, value in given.items() if value is not None}
    tags = [facts[OUTCOME]] if isinstance(facts.get(OUTCOME), str) else None
    if happened is None and not isinstance(when := facts.pop("date", None), bool):
        happened = when
    made = draft.clean(content, tags, clean_name(event_type, "event_type"), facts)
    return made, _moment(happened, now)


def _moment(happened: Any, now: float) -> float | None:
    if happened is None:
        return None
    if not isinstance(happened, str | int | float):
        raise InvalidInput(f"happened must be a time in words or seconds, not {type(happened).__name__}")
    moment = draft.moment(happened if isinstance(happened, str) else float(happened), "happened", now, end=False)
    try:
        clock.local(moment or 0.0)
    except (OverflowError, ValueError, OSError):
        raise InvalidInput(f"happened is out of range: {happened!r:.60}") from None
    return moment


def session(text: str) -> str:
    """Return a session's id as it is kept."""
    return draft.fact(SESSION, text, LONGEST_SESSION)


def narrowed(
    scope: Scope,
    session_id: str | None,
    event_type: str | None,
    outcome: str | None,
    since: When,
    until: When,
    now: float,
) -> Filter:
    tags = None if outcome is None else [clean_name(outcome, OUTCOME)]
    only = draft.narrowed(scope.of("event"), tags, event_type, since, until, now)
    return only if session_id is None else replace(only, session=session(session_id))


async def find(store: Store, query: str | None, only: Filter, limit: int, offset: int) -> Page[Event]:
    """Return events, the newest first; with a question those that fit it best, its words for times a filter."""
    if query is not None:
        asked = recall.with_time(Query(draft.question(query), only, limit, offset), store.clock())
        text, only = _with_outcome(asked.text, asked.only)
        if text:
            return _events(await recall.recall(store, asked._replace(text=text, only=only)))
    return _events(await browse.newest(store, only, limit, offset))


def _events(found: Page[Any]) -> Page[Event]:
    return Page([event(one, one.score if isinstance(one, Hit) else None) for one in found], found.total)


def _with_outcome(text: str, only: Filter) -> tuple[str, Filter]:
    """Take "what failed" as a filter; where more is asked, let what failed be found by that word too."""
    for pattern, outcomes in SPOKEN:
        said, count = re.subn(pattern, " ", text, flags=re.IGNORECASE)
        if count and not only.tags and FILLER.sub("", said) == "":
            return "", replace(only, tags=tuple(outcomes.split()))
        if count:
            return f"{text} {outcomes.split()[0]}", only
    return (text if FILLER.sub("", text) else ""), only
