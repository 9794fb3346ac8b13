"""Build timelines, list sessions and summarize a session without a language model."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from athena.core import clock
from athena.core.threads import run_in_thread
from athena.core.values import Page, Scope
from athena.errors import NotFound
from athena.memory import list_rows
from athena.memory.graph.mentions import find_forms
from athena.memory.sessions import rows as session_rows
from athena.memory.sessions.events import clean_session_id
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
from athena.memory.values import DOCUMENT_TYPE, Memory, format_preview
from athena.storage.database import Transaction
from athena.storage.filters import Filter

MAX_LINE_CHARS = 160
MAX_SUMMARY_EVENTS = 4_000
MAX_LISTED_NAMES = 12
WEIGHT_FAILED = 3.0
WEIGHT_ENDED_BADLY = 1.5
WEIGHT_DECIDED = 2.5
WEIGHT_FIRST_OR_LAST = 2.0
WEIGHT_IMPORTANT = 1.0
WEIGHT_SHARED_WORDS = 1.0
DECISION_PATTERN = re.compile(
    r"\b(decid\w+|decision|chose|chosen|agreed|instead of|root cause|because|conclu\w+)\b", re.IGNORECASE
)
MAX_READ_CHARS = 4_000  # of each text, of which a line is shown
WORD_PATTERN = re.compile(r"[^\W\d_]{3,}")


async def build_timeline(
    store: Store, row_filter: Filter, by: Literal["day", "session"], limit: int, offset: int
) -> Page[Chapter]:
    """Return events and memories in order: the first ones after `since` if the filter has it, else the last ones."""
    oldest_first = row_filter.since is not None

    async def read_entries(tx: Transaction) -> Page[Entry]:
        entries: list[Entry] = []
        total = 0
        for kind in ("event", "memory"):
            excluded_type = DOCUMENT_TYPE if kind == "memory" else None
            kind_filter = replace(row_filter, scope=row_filter.scope.with_kind(kind), excluded_type=excluded_type)
            rows = await list_rows.list_memories_by_time(
                tx, kind_filter, limit + offset, oldest=oldest_first, longest=MAX_READ_CHARS
            )
            entries += [_create_entry(at, memory, kind) for at, memory in rows]
            total += await list_rows.count_memories(tx, kind_filter)
        entries.sort(key=lambda entry: (entry.at, entry.id), reverse=not oldest_first)
        page = entries[offset : offset + limit]
        return Page(page if oldest_first else page[::-1], total)

    page = await store.database.read(read_entries)
    groups: dict[str | None, list[Entry]] = {}
    for entry in page:
        day = f"{clock.to_local_time(entry.at):%Y-%m-%d}"
        groups.setdefault(day if by == "day" else entry.session_id, []).append(entry)
    chapters = [Chapter(name, entries[0].at, entries[-1].at, tuple(entries)) for name, entries in groups.items()]
    if chapters and (left_out := max(0, page.total - offset - limit)):
        edge = -1 if oldest_first else 0
        chapters[edge] = replace(chapters[edge], left_out=left_out)
    return Page(chapters, page.total)


def _create_entry(
    at: float, memory: Memory, kind: Literal["event", "memory"], max_chars: int = MAX_LINE_CHARS
) -> Entry:
    facts = memory.metadata
    outcome = facts.get(OUTCOME_KEY) if kind == "event" else None
    return Entry(
        at,
        kind,
        memory.id,
        memory.memory_type,
        format_preview(memory.content, max_chars),
        outcome,
        facts.get(SESSION_KEY),
    )


async def list_sessions(store: Store, row_filter: Filter, limit: int, offset: int) -> list[Session]:
    """Return the sessions with matching events, the latest first."""

    async def read_sessions(tx: Transaction) -> list[Session]:
        names = (await session_rows.list_sessions(tx, row_filter, limit + offset))[offset:]
        scope = row_filter.scope
        extents = [await session_rows.fetch_session_extent(tx, Filter(scope, session=name)) for name in names]
        return [Session(*extent[:5], format_preview(extent.first_text, MAX_LINE_CHARS)) for extent in extents if extent]

    return await store.database.read(read_sessions)


async def summarize_session(store: Store, session_id: str, scope: Scope, sentences: int) -> Summary:
    """Summarize a session by its most important events and memories, in the order they happened."""
    name = clean_session_id(session_id)
    event_filter, memory_filter = (Filter(scope.with_kind(kind), session=name) for kind in ("event", "memory"))

    async def read_session(
        tx: Transaction,
    ) -> tuple[session_rows.SessionExtent | None, list[tuple[float, Memory]], list[tuple[float, Memory]]]:
        return (
            await session_rows.fetch_session_extent(tx, event_filter),
            await session_rows.list_session_rows(tx, event_filter, MAX_SUMMARY_EVENTS, MAX_READ_CHARS),
            await session_rows.list_session_rows(tx, memory_filter, MAX_SUMMARY_EVENTS, MAX_READ_CHARS),
        )

    extent, events, memories = await store.database.read(read_session)
    if extent is None:
        raise NotFound(f"there are no events of session {name!r:.80}", hint="list_sessions names those there are")
    # thousands of texts of anybody: no other call waits meanwhile
    return await run_in_thread(_summarize_rows, name, extent, events, memories, sentences)


def _summarize_rows(
    name: str,
    extent: session_rows.SessionExtent,
    events: list[tuple[float, Memory]],
    memories: list[tuple[float, Memory]],
    sentences: int,
) -> Summary:
    rows = sorted([*events, *memories], key=lambda row: (row[0], row[1].id))
    memory_ids = {memory.id for _, memory in memories}
    key_entries = [
        _create_entry(at, row, "memory" if row.id in memory_ids else "event", MAX_LINE_CHARS * 2)
        for at, row in (rows[i] for i in _select_key_indexes([row for _, row in rows], sentences))
    ]
    return Summary(
        name, extent.started, extent.ended, round(extent.ended - extent.started, 3), extent.row_count,
        dict(Counter(event.memory_type for _, event in events).most_common()), extent.outcomes,
        " ".join(_format_sentence(entry) for entry in key_entries), tuple(key_entries),
        _collect_mentions(row.content for _, row in rows),
    )  # fmt: skip


def _format_sentence(entry: Entry) -> str:
    text = entry.text.rstrip(" .!?;:,")
    return f"{text} ({entry.outcome})." if entry.outcome else f"{text}."


def _select_key_indexes(rows: list[Memory], count: int) -> list[int]:
    """Return the indexes of the most important rows in order, no two of them nearly the same."""
    word_sets = [{word.lower() for word in WORD_PATTERN.findall(row.content[:2_000])} for row in rows]
    counts = Counter(word for words in word_sets for word in words)
    scores = [
        _score_memory(row, i in (0, len(rows) - 1), word_sets[i], counts, len(rows)) for i, row in enumerate(rows)
    ]
    selected: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: (-scores[i], i)):
        if len(selected) == count:
            break
        if not any(_is_nearly_same(word_sets[i], word_sets[other]) for other in selected):
            selected.append(i)
    return sorted(selected)


def _score_memory(row: Memory, is_first_or_last: bool, words: set[str], counts: Counter[str], total: int) -> float:
    score = 0.0
    outcome = str(row.metadata.get(OUTCOME_KEY) or "").casefold()
    if outcome in FAILURE_OUTCOMES:
        score += WEIGHT_FAILED
    elif outcome and outcome not in SUCCESS_OUTCOMES:
        score += WEIGHT_ENDED_BADLY
    if "decision" in row.memory_type.casefold() or DECISION_PATTERN.search(row.content[:2_000]):
        score += WEIGHT_DECIDED
    score += WEIGHT_FIRST_OR_LAST * is_first_or_last + WEIGHT_IMPORTANT * max(0.0, row.importance - 0.5) * 2
    # Words that other rows share say what the session is about.
    shared = sum(counts[word] for word in words if counts[word] > 1)
    return score + WEIGHT_SHARED_WORDS * shared / (len(words) + 5) / total


def _is_nearly_same(words: set[str], other_words: set[str]) -> bool:
    return bool(words) and len(words & other_words) >= 0.8 * len(words | other_words)


def _collect_mentions(texts: Iterable[str]) -> Mentions:
    files: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for text in texts:
        forms = set(find_forms(text))
        files.update({token for form, token in forms if form in ("file", "path")})
        names.update({token.removesuffix("()") for form, token in forms if form == "code"})
    return Mentions(_list_top(files), _list_top(names))


def _list_top(counts: Counter[str]) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name))[:MAX_LISTED_NAMES])
