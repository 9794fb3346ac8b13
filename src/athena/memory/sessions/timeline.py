"""Looking back: a timeline, the sessions there were, and one of them summed up without a language model."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from athena.core import clock
from athena.core.values import Page, Scope
from athena.errors import NotFound
from athena.memory import rows
from athena.memory.documents import ingest
from athena.memory.graph.mentions import find_forms
from athena.memory.sessions import rows as storage
from athena.memory.sessions.events import clean_session_id as session_name
from athena.memory.sessions.values import (
    FAILURE_OUTCOMES,
    OUTCOME_KEY,
    SESSION_KEY,
    SUCCESS_OUTCOMES,
    Chapter,
    Entry,
    Mentions,
    Session,
    Summary,
)
from athena.memory.store import Store
from athena.memory.values import Memory, format_preview
from athena.storage.database import Transaction
from athena.storage.filters import Filter

MAX_LINE_CHARS = 160  # characters of a text that a timeline shows
MAX_SUMMARY_EVENTS = 4_000  # events of a session that a summary looks at
MAX_LISTED_NAMES = 12  # files, and names, that a summary lists
# What each thing about an event adds to how much it matters.
WEIGHT_FAILED, WEIGHT_ENDED_BADLY, WEIGHT_DECIDED, WEIGHT_FIRST_OR_LAST, WEIGHT_IMPORTANT, WEIGHT_SHARED_WORDS = (
    3.0,
    1.5,
    2.5,
    2.0,
    1.0,
    1.0,
)
DECISION_PATTERN = re.compile(
    r"\b(decid\w+|decision|chose|chosen|agreed|instead of|root cause|because|conclu\w+)\b", re.IGNORECASE
)
WORD_PATTERN = re.compile(r"[^\W\d_]{3,}")


async def build_timeline(
    store: Store, only: Filter, by: Literal["day", "session"], limit: int, offset: int
) -> Page[Chapter]:
    """Return what happened in order, events and memories: the first since a time that is given, else the last."""
    first = only.since is not None

    async def read_entries(tx: Transaction) -> Page[Entry]:
        found: list[Entry] = []
        total = 0
        for kind in ("event", "memory"):
            one = replace(
                only, scope=only.scope.with_kind(kind), excluded_type=ingest.DOCUMENT_TYPE if kind == "memory" else None
            )
            found += [
                _create_entry(at, m, kind)
                for at, m in await rows.list_memories_by_time(tx, one, limit + offset, oldest=first)
            ]
            total += await rows.count_memories(tx, one)
        found.sort(key=lambda entry: (entry.at, entry.id), reverse=not first)
        page = found[offset : offset + limit]
        return Page(page if first else page[::-1], total)

    found = await store.database.read(read_entries)
    groups: dict[str | None, list[Entry]] = {}
    for entry in found:
        day = f"{clock.to_local_time(entry.at):%Y-%m-%d}"
        groups.setdefault(day if by == "day" else entry.session_id, []).append(entry)
    chapters = [Chapter(name, entries[0].at, entries[-1].at, tuple(entries)) for name, entries in groups.items()]
    if chapters and (beyond := max(0, found.total - offset - limit)):
        edge = -1 if first else 0
        chapters[edge] = replace(chapters[edge], left_out=beyond)
    return Page(chapters, found.total)


def _create_entry(at: float, memory: Memory, kind: Literal["event", "memory"], longest: int = MAX_LINE_CHARS) -> Entry:
    facts = memory.metadata
    outcome = facts.get(OUTCOME_KEY) if kind == "event" else None
    return Entry(
        at,
        kind,
        memory.id,
        memory.memory_type,
        format_preview(memory.content, longest),
        outcome,
        facts.get(SESSION_KEY),
    )


async def list_sessions(store: Store, only: Filter, limit: int, offset: int) -> list[Session]:
    """Return the sessions in which something happened, the last one first."""

    async def read_sessions(tx: Transaction) -> list[Session]:
        names = (await storage.list_sessions(tx, only, limit + offset))[offset:]
        found = [await storage.fetch_session_extent(tx, Filter(only.scope, session=name)) for name in names]
        return [Session(*one[:5], format_preview(one.first_text, MAX_LINE_CHARS)) for one in found if one]

    return await store.database.read(read_sessions)


async def summarize_session(store: Store, session_id: str, scope: Scope, sentences: int) -> Summary:
    """Sum up a session by the events and memories that matter most, in the order they happened."""
    name = session_name(session_id)
    events, notes = (Filter(scope.with_kind(kind), session=name) for kind in ("event", "memory"))

    async def read_session(
        tx: Transaction,
    ) -> tuple[storage.SessionExtent | None, list[tuple[float, Memory]], list[tuple[float, Memory]]]:
        return (
            await storage.fetch_session_extent(tx, events),
            await storage.list_session_rows(tx, events, MAX_SUMMARY_EVENTS),
            await storage.list_session_rows(tx, notes, MAX_SUMMARY_EVENTS),
        )

    extent, happened, kept = await store.database.read(read_session)
    if extent is None:
        raise NotFound(f"there are no events of session {name!r:.80}", hint="list_sessions names those there are")
    things = sorted([*happened, *kept], key=lambda one: (one[0], one[1].id))
    notes_kept = {memory.id for _, memory in kept}
    key = [
        _create_entry(at, memory, "memory" if memory.id in notes_kept else "event", MAX_LINE_CHARS * 2)
        for at, memory in (things[i] for i in _select_key_indexes([memory for _, memory in things], sentences))
    ]
    return Summary(
        name, extent.started, extent.ended, round(extent.ended - extent.started, 3), extent.row_count,
        dict(Counter(memory.memory_type for _, memory in happened).most_common()), extent.outcomes,
        " ".join(_format_sentence(entry) for entry in key), tuple(key),
        _collect_mentions(memory.content for _, memory in things),
    )  # fmt: skip


def _format_sentence(entry: Entry) -> str:
    told = entry.text.rstrip(" .!?;:,")
    return f"{told} ({entry.outcome})." if entry.outcome else f"{told}."


def _select_key_indexes(things: list[Memory], count: int) -> list[int]:
    """Return which things tell most of a session, none saying what another of them says, in their order."""
    words = [{word.lower() for word in WORD_PATTERN.findall(one.content[:2_000])} for one in things]
    common = Counter(word for one in words for word in one)
    worth = [
        _score_memory(one, i in (0, len(things) - 1), words[i], common, len(things)) for i, one in enumerate(things)
    ]
    chosen: list[int] = []
    for i in sorted(range(len(things)), key=lambda i: (-worth[i], i)):
        if len(chosen) == count:
            break
        if not any(_is_same(words[i], words[other]) for other in chosen):
            chosen.append(i)
    return sorted(chosen)


def _score_memory(one: Memory, at_an_end: bool, words: set[str], common: Counter[str], total: int) -> float:
    outcome = str(one.metadata.get(OUTCOME_KEY) or "").casefold()
    worth = (
        WEIGHT_FAILED
        if outcome in FAILURE_OUTCOMES
        else WEIGHT_ENDED_BADLY
        if outcome and outcome not in SUCCESS_OUTCOMES
        else 0.0
    )
    if "decision" in one.memory_type.casefold() or DECISION_PATTERN.search(one.content[:2_000]):
        worth += WEIGHT_DECIDED
    worth += WEIGHT_FIRST_OR_LAST * at_an_end + WEIGHT_IMPORTANT * max(0.0, one.importance - 0.5) * 2
    # How much of the session speaks of the same things: words of one event alone say little about the rest.
    return (
        worth + WEIGHT_SHARED_WORDS * sum(common[word] for word in words if common[word] > 1) / (len(words) + 5) / total
    )


def _is_same(one: set[str], other: set[str]) -> bool:
    return bool(one) and len(one & other) >= 0.8 * len(one | other)


def _collect_mentions(texts: Iterable[str]) -> Mentions:
    files: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for text in texts:
        found = set(find_forms(text[:10_000]))
        files.update({token for form, token in found if form in ("file", "path")})
        names.update({token.removesuffix("()") for form, token in found if form == "code"})
    return Mentions(*(tuple(name for name, _ in _list_top(counted)) for counted in (files, names)))


def _list_top(counted: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:MAX_LISTED_NAMES]
