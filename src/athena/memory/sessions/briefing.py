"""Compose the briefing of a new session within a token budget: due tasks, last sessions, memories about its work.

All sources are read through indexes. A session gets no item twice, and of memories that contradict each other only
the newer one.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from athena.core import clock, redaction, tokens
from athena.core.threads import run_in_thread
from athena.core.values import Author, Page, Scope
from athena.errors import AthenaError
from athena.memory import list_rows, topic_rows
from athena.memory import rows as memory_rows
from athena.memory import values as memory_values
from athena.memory.sessions import rows as sessions_rows
from athena.memory.sessions.events import clean_session_id
from athena.memory.sessions.learning_rows import AUTO_TAG
from athena.memory.sessions.learning_rules import is_doubtful
from athena.memory.sessions.questions import select_and_ask
from athena.memory.sessions.select import (
    MAX_ANALYSED_CHARS,
    MIN_SHARED_WORDS,
    BriefingItem,
    BriefingSources,
    StandingMemory,
    choose_filtered,
    find_specific_words,
    merge_items,
    recall_without_use,
)
from athena.memory.sessions.values import (
    EMPTY_BRIEFING,
    FAILURE_OUTCOMES,
    IDLE_KEY,
    OUTCOME_KEY,
    REQUESTED_KEY,
    SESSION_KEY,
    SUCCESS_OUTCOMES,
    Briefing,
    BriefingTurn,
    GitContext,
    Injection,
    Told,
    list_outcome_synonyms,
    strip_step,
)
from athena.memory.sessions.voice import BriefingText, Header, Heading, Line, SafeText
from athena.memory.store import Store
from athena.memory.task_rows import list_urgent_tasks
from athena.memory.values import DOCUMENT_TYPE, Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter

BRIEFING_BUDGET_TOKENS = 900
MAX_BRIEFING_CHARS = 9_000  # as JSON; with the envelope below the length at which clients cut hook output
DEFAULT_IMPORTANCE = 0.5
AGENT_FACTOR = 0.8  # what agents find important is worth less than what a person does
IMPORTANT_TAGS = ("important", "critical", "pinned", "always")
SECONDS_PER_DAY = 86_400.0
RESULT_OVERHEAD_TOKENS = 80  # hash, tags, type, metadata and times of a memory in a tool's JSON result
MIN_FILE_NAME_CHARS = 6  # a shorter name in a text may mean anything
MIN_SHARED_FRACTION = 0.4  # of a phrase's specific words that a memory must have
MAX_DUE, MAX_SESSIONS, MAX_WORK_HITS, MAX_TAGGED, MAX_NEWEST, MAX_CONTRADICTION_DEPTH = 500, 3, 30, 25, 6, 3
EPISODE_PAGE_SIZE, MAX_EPISODE_PAGES = 40, 5
MAX_LAST_SESSION_CHARS, MAX_EARLIER_SESSION_CHARS = 700, 320
SHOWN_OUTCOMES = (FAILURE_OUTCOMES[0], SUCCESS_OUTCOMES[0])
CONVENTION_TAGS = ("convention", "preference")
SETTLED_TAGS = ("decision", "fact", "fix", "todo")
MAX_CONVENTIONS, MAX_SETTLED = 60, 60
# kind: worth of a new one, and days until it is worth half
STANDING_WORTH = {
    "convention": (0.8, 360.0),
    "preference": (0.8, 360.0),
    "decision": (0.75, 120.0),
    "fact": (0.5, 120.0),
    "fix": (0.78, 45.0),
    "todo": (0.6, 14.0),
    "requested": (0.9, 360.0),  # "remember that"
}
USE_BONUS, MAX_COUNTED_USES = 0.15, 5.0
SETTLED_TYPES = ("decision", "fix")  # the next session needs these most
ROUTINE_WORD_PATTERN = re.compile(
    r"\b(main|master|trunk|develop(ment)?|dev|head|merge[ds]?|branch|pull request|wip|of|into|from)\b|#\d+",
    re.IGNORECASE,
)
# Episodes of earlier versions begin with the first prompt of their session.
OLD_PROMPT_PATTERN = re.compile(r"\AAsked: (?:.*(?=Ended: )|.*)", re.DOTALL)
# It begins where a clause does: tried at each place of a long text, it would take very long.
PASSED_STEP_PATTERN = re.compile(r"(?s)\ANext: .*?(?=Ended: |Work: |\Z)|(?<![^.!?:])[^.!?:]*\bnext\b[^.!?]*[.!?]?")


async def compose_briefing(
    store: Store,
    scope: Scope,
    git: GitContext,
    budget: int = BRIEFING_BUDGET_TOKENS,
    session_id: str | None = None,
    *,
    afresh: bool = False,
    key: str | None = None,
    is_preview: bool = False,  # does not count as told to the session
) -> Briefing:
    """Return the items that are worth their tokens; with a session id none that it got before, unless `afresh`."""
    now = store.clock()
    session = clean_session_id(session_id) if session_id else None
    sources = await store.database.read(partial(_read_sources, scope, now, session, key, afresh))
    # texts of anybody are filtered, which takes long for long ones: no other call waits meanwhile
    items = await run_in_thread(_create_items, sources, session, now)
    items += await _find_work_items(store, scope, git)
    if sources.seen:  # a session that continues gets only items that are new since its last briefing
        since = max(sources.seen.values())
        fresh = {memory.id for _, memory in (*sources.newest, *sources.episodes) if memory.created > since}
        items = [
            item for item in items if item.id not in sources.seen and (item.section == Heading.DUE or item.id in fresh)
        ]
    items = await store.database.read(partial(_replace_contradicted, scope, merge_items(items)))
    items = [item for item in items if item.id not in sources.seen]
    selected, text = await select_and_ask(
        store, scope, items, budget, MAX_BRIEFING_CHARS, format_briefing, session, key, is_preview=is_preview
    )
    turn = BriefingTurn(session, "briefing", sources.last_log_id, afresh, key) if session and not is_preview else None
    return await record_briefing(store, scope, selected, text, turn)


def _create_items(sources: BriefingSources, session: str | None, now: float) -> list[BriefingItem]:
    sources, old_steps = sources.leave_out_longest(), _find_old_steps(sources, session)
    standing_ids = {standing.memory.id for standing in sources.standing}
    items = [
        *_items_from_tasks(sources.due, now),
        *_items_from_episodes(sources.episodes, session, now),
        *_items_from_tagged(sources.tagged, now),
        *_items_from_standing(sources.standing, now),
        *_items_from_newest([pair for pair in sources.newest if pair[1].id not in standing_ids], now),
    ]
    return [item for item in items if item.kind != "memory" or item.id not in old_steps]


async def record_briefing(
    store: Store, scope: Scope, items: Sequence[BriefingItem], text: BriefingText | None, turn: BriefingTurn | None
) -> Briefing:
    """Log that the session gets these items, and return the briefing; of two concurrent ones the second is empty."""
    briefed_items = tuple(
        Told(item.kind, item.id, item.hash, item.reason, round(item.worth, 4), tokens.count_tokens(item.line))
        for item in items
    )
    is_first = True
    if turn and (briefed_items or turn.afresh):
        with suppress(AthenaError):  # a read-only store still gives briefings
            is_first = await store.database.write(
                partial(sessions_rows.insert_briefing_items, scope, turn, briefed_items, store.clock())
            )
    if text is None or not is_first:
        return EMPTY_BRIEFING
    direct = await run_in_thread(_count_direct_tokens, items)
    return Briefing(text, tokens.count_tokens(text), direct, briefed_items)


def _count_direct_tokens(items: Iterable[BriefingItem]) -> int:
    """Return what the whole texts would have cost as results of tools."""
    return sum(RESULT_OVERHEAD_TOKENS + tokens.count_tokens(item.full_text or item.text) for item in items)


async def _read_sources(
    scope: Scope, now: float, session: str | None, key: str | None, afresh: bool, tx: Transaction
) -> BriefingSources:
    memory_scope, task_scope = scope.with_kind("memory"), scope.with_kind("task")
    seen = await sessions_rows.fetch_briefed_memories(tx, scope, session, key) if session and not afresh else {}
    due = Filter(task_scope, until=now + SECONDS_PER_DAY)
    return BriefingSources(
        seen,
        await sessions_rows.fetch_last_briefing_id(tx, scope, session) if session else 0,
        await list_urgent_tasks(tx, due, now, MAX_DUE, MAX_ANALYSED_CHARS),
        await _fetch_episodes(tx, scope, now, session),
        await sessions_rows.list_tagged_memories(tx, memory_scope, IMPORTANT_TAGS, MAX_TAGGED, MAX_ANALYSED_CHARS),
        await _list_standing(tx, memory_scope),
        await list_rows.list_memories_by_time(
            tx, Filter(memory_scope, excluded_type=DOCUMENT_TYPE), 3 * MAX_NEWEST, longest=MAX_ANALYSED_CHARS
        ),
    )


def _items_from_tasks(tasks: Iterable[tuple[memory_values.Task, Author]], now: float) -> list[BriefingItem]:
    """Return an item for each of the most urgent tasks; a blocked task is worth less."""
    items = []
    for task, author in tasks:
        priority = memory_values.TASK_PRIORITIES.index(task.priority)
        worth = min(1.0, 0.9 + 0.1 * (priority - 1)) * (0.6 if task.blocked else 1.0)
        note = f"{'overdue' if task.overdue else 'due'} {clock.to_local_time(task.due or now):%Y-%m-%d %H:%M}"
        full_text = f"{task.title}{memory_values.DETAILS_SEPARATOR}{task.details}" if task.details else task.title
        items.append(
            BriefingItem(
                Heading.DUE,
                "task",
                task.id,
                task.hash,
                SafeText(Line(task.title, author, is_task=True)),
                note,
                note,
                worth,
                full_text=full_text,
            )
        )
    return items


async def _fetch_episodes(tx: Transaction, scope: Scope, now: float, session: str | None) -> list[tuple[float, Memory]]:
    """Return session summaries, the newest first, until enough other sessions are covered; idle ones do not count."""
    episodes: list[tuple[float, Memory]] = []
    for page in range(MAX_EPISODE_PAGES):
        rows = await sessions_rows.list_episodes(
            tx, scope, now, EPISODE_PAGE_SIZE, page * EPISODE_PAGE_SIZE, MAX_ANALYSED_CHARS
        )
        episodes += [(at, episode) for at, episode in rows if not episode.metadata.get(IDLE_KEY)]
        names = {_get_session_name(episode) for _, episode in episodes}
        if len(rows) < EPISODE_PAGE_SIZE or len(names - {session}) >= MAX_SESSIONS:
            break
    return episodes


def _get_session_name(event: Memory) -> str:
    return str(event.metadata.get(SESSION_KEY) or event.id)


def _items_from_episodes(
    episodes: Sequence[tuple[float, Memory]], session: str | None, now: float
) -> list[BriefingItem]:
    """Return one item for each of the last other sessions: its final summary, else its last part."""
    sessions: dict[str, tuple[float, Memory]] = {}
    for at, episode in episodes:
        name = _get_session_name(episode)
        if name == session:
            continue
        episode = replace(episode, content=OLD_PROMPT_PATTERN.sub("", episode.content))
        if name not in sessions or (episode.memory_type == "episode" != sessions[name][1].memory_type):
            sessions[name] = (at, episode)
    items = []
    for i, (at, episode) in enumerate(list(sessions.values())[:MAX_SESSIONS]):
        worth = (0.95, 0.6, 0.45)[i] * _decay_weight(at, now, 30)
        outcome = list_outcome_synonyms(str(episode.metadata.get(OUTCOME_KEY)))[0]
        note = _format_age(at, now) + (f", {outcome}" if outcome in SHOWN_OUTCOMES else "")
        max_chars = MAX_LAST_SESSION_CHARS if i == 0 else MAX_EARLIER_SESSION_CHARS
        if i:  # its next step is behind us
            episode = replace(episode, content=PASSED_STEP_PATTERN.sub("", episode.content).strip())
        if episode.content in ("", "Ended:"):
            continue
        reason = "what the last sessions did"
        items.append(_create_item(Heading.SESSIONS, "event", episode, note, reason, worth, max_chars))
    return items


def _items_from_tagged(memories: Iterable[Memory], now: float) -> list[BriefingItem]:
    items = []
    for memory in memories:
        tag = next((tag.casefold() for tag in memory.tags if tag.casefold() in IMPORTANT_TAGS), IMPORTANT_TAGS[0])
        worth = 0.75 + 0.2 * _decay_weight(memory.created, now, 90)
        age = _format_age(memory.created, now)
        # the tag of an agent does not lift its words to what a person finds important
        is_persons = memory.author == "person"
        section = Heading.IMPORTANT if is_persons else Heading.AGENTS
        items.append(
            _create_item(section, "memory", memory, age, f"tagged {tag}", worth if is_persons else AGENT_FACTOR * worth)
        )
    return items


async def _list_standing(tx: Transaction, scope: Scope) -> list[StandingMemory]:
    """Return the newest conventions and preferences, and the newest decisions and facts."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    memories: dict[int, Memory] = {}
    for tags, limit in ((CONVENTION_TAGS, MAX_CONVENTIONS), (SETTLED_TAGS, MAX_SETTLED)):
        rows = await sessions_rows.list_tagged_memories(tx, scope, tags, limit, MAX_ANALYSED_CHARS)
        memories |= {memory.id: memory for memory in rows}
    ages = await memory_rows.fetch_memory_ages(tx, scope_ids, list(memories))
    return [
        StandingMemory(memory, float(strength), float(last_used))
        for memory, (_, strength, last_used) in zip(memories.values(), ages, strict=True)
    ]


def _find_old_steps(sources: BriefingSources, session: str | None) -> set[int]:
    """Return the next steps that a later session has passed, or that the last episode tells."""
    others = [(at, episode) for at, episode in sources.episodes if _get_session_name(episode) != session]
    last_at, last_text = (others[0][0], others[0][1].content) if others else (0.0, "")
    memories = [*(one.memory for one in sources.standing), *(memory for _, memory in sources.newest)]
    return {
        memory.id
        for memory in memories
        if memory.memory_type == "todo"
        and AUTO_TAG in memory.tags
        and (memory.created < last_at or strip_step(memory.content) in last_text)
    }


def _items_from_standing(standing: Iterable[StandingMemory], now: float) -> list[BriefingItem]:
    """Return items for what holds in the project; what was used is worth more, what never was fades."""
    items = []
    for memory, strength, last_used in standing:
        if is_doubtful(memory) and last_used <= memory.created:
            continue
        kind = memory.memory_type if memory.memory_type in STANDING_WORTH else "fact"
        worth, half_life = STANDING_WORTH["requested" if memory.metadata.get(REQUESTED_KEY) else kind]
        use = min(strength, MAX_COUNTED_USES) * _decay_weight(last_used, now, half_life) / MAX_COUNTED_USES
        worth *= max(_decay_weight(memory.created, now, half_life), 0.6 * use)
        worth += USE_BONUS * use
        if memory.author != "person":
            worth *= AGENT_FACTOR
        section = Heading.CONVENTIONS if kind in CONVENTION_TAGS else Heading.SETTLED
        age = _format_age(memory.created, now)
        item = _create_item(section, "memory", memory, age, f"{kind} that holds here", min(1.0, worth))
        items.append(replace(item, steady=True))
    return items


def _items_from_newest(memories: Sequence[tuple[float, Memory]], now: float) -> list[BriefingItem]:
    """Return items for the newest memories and for every decision and fix of the last session."""
    last_source = next((memory.metadata.get("source") for _, memory in memories if "auto" in memory.tags), None)
    settled = [
        (at, memory)
        for at, memory in memories[MAX_NEWEST:]
        if memory.memory_type in SETTLED_TYPES and memory.metadata.get("source") == last_source
    ]
    items = []
    for at, memory in [*memories[:MAX_NEWEST], *(settled if last_source else ())]:
        worth = _score_newness(memory) * _decay_weight(at, now, 14)
        item = _create_item(Heading.NEW, "memory", memory, _format_age(at, now), "added recently", worth)
        items.append(replace(item, steady=True))
    return items


def _score_newness(memory: Memory) -> float:
    importance = memory.importance if memory.author == "person" else min(memory.importance, DEFAULT_IMPORTANCE)
    if memory.memory_type in SETTLED_TYPES:
        return 0.45 + 0.3 * importance
    return (0.3 + 0.3 * importance) * (0.8 if "auto" in memory.tags else 1.0)


async def _find_work_items(store: Store, scope: Scope, git: GitContext) -> list[BriefingItem]:
    """Return items for memories that share words with the branch, the last commits or the changed files."""
    # A match must share words anyway, so full-text search is enough.
    store = store._replace(encoder=store.encoder.without_model())
    git = _redact_git_context(git)
    phrases = [(f"branch {git.branch}", re.sub(r"[-_/.]+", " ", git.branch or ""))]
    phrases += [(f"commit {subject!r:.60}", subject) for subject in git.commits[:4]]
    phrases += [(f"changed {os.path.basename(path)}", _expand_file_name(path)) for path in git.files[:8]]
    phrases = [
        (SafeText(Line(reason, "tool"), 80) or "git", ROUTINE_WORD_PATTERN.sub(" ", text)) for reason, text in phrases
    ]
    text = " ".join(text for _, text in phrases)[:2_000]
    if not any(char.isalpha() for char in text):
        return []
    file_names = [os.path.basename(path).casefold() for path in git.files[:8]]
    file_names = [name for name in file_names if len(name) >= MIN_FILE_NAME_CHARS]
    wanted = [(reason, find_specific_words(text)) for reason, text in phrases]
    hits = await recall_without_use(store, scope, text, MAX_WORK_HITS)
    return await run_in_thread(_items_from_work, hits, wanted, file_names, store.clock())


def _items_from_work(
    hits: Sequence[Memory], wanted: Sequence[tuple[str, set[str]]], file_names: Sequence[str], now: float
) -> list[BriefingItem]:
    items, texts = [], choose_filtered((hit.content, hit.author) for hit in hits)
    for hit in hits:
        reason, share = match_phrases(hit.content, wanted, file_names)
        if share and hit.content in texts:
            age = _format_age(hit.created, now)
            items.append(_create_item(Heading.CURRENT_WORK, "memory", hit, age, reason, 0.4 + 0.45 * share))
    return items


def _redact_git_context(git: GitContext) -> GitContext:
    """Remove secrets before texts are cut or logged: half a secret is not recognized."""
    files, commits = ([redaction.redact(text).text for text in texts] for texts in (git.files[:8], git.commits[:4]))
    branch = redaction.redact(git.branch).text if git.branch else None
    return GitContext(branch, tuple(files), tuple(commits))


def _expand_file_name(path: str) -> str:
    """Return the name of a file, and the words in it."""
    name = os.path.basename(path)
    return f"{name} {re.sub(r'[-_.]+', ' ', os.path.splitext(name)[0])}"


def match_phrases(
    content: str, phrases: Sequence[tuple[str, set[str]]], file_names: Sequence[str]
) -> tuple[str, float]:
    """Return the reason of the phrase that shares the most words with a text, and the share; ("", 0.0) if too few."""
    words, matches = find_specific_words(content), [("", 0.0)]
    for reason, wanted in phrases:
        shared = len(wanted & words)
        if shared >= MIN_SHARED_WORDS and shared >= MIN_SHARED_FRACTION * len(wanted):
            matches.append((reason, min(1.0, shared / len(wanted))))
    if name := next((name for name in file_names if name in content.casefold()), ""):
        matches.append((SafeText(Line(f"changed {name}", "tool"), 80) or "a changed file", 0.7))
    return max(matches, key=lambda match: match[1])


def _create_item(
    section: Heading, kind: str, memory: Memory, note: str, reason: str, worth: float, max_chars: int = 240
) -> BriefingItem:
    text = SafeText(Line(memory.content, memory.author), max_chars)
    return BriefingItem(section, kind, memory.id, memory.hash, text, note, reason, worth, full_text=memory.content)


async def _replace_contradicted(scope: Scope, items: list[BriefingItem], tx: Transaction) -> list[BriefingItem]:
    """Replace each contradicted memory by the newest one that contradicts it."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind("memory"))
    for _ in range(MAX_CONTRADICTION_DEPTH):
        memory_ids = [item.id for item in items if item.kind == "memory"]
        newer_ids = await topic_rows.fetch_contradictions(tx, scope_ids, memory_ids) if memory_ids else {}
        if not newer_ids:
            break
        newest_ids = {ids[-1] for ids in newer_ids.values()}
        newer = await memory_rows.fetch_memories(tx, scope_ids, newest_ids, longest=MAX_ANALYSED_CHARS)
        replaced = [_pick_replacement(item, newer_ids, newer) for item in items]
        items = merge_items([item for item in replaced if item is not None])
    return items


def _pick_replacement(
    item: BriefingItem, newer_ids: dict[int, list[int]], newer: dict[int, Memory]
) -> BriefingItem | None:
    if item.kind != "memory" or item.id not in newer_ids:
        return item
    memory = newer.get(newer_ids[item.id][-1])
    reason = f"{item.reason}; newer than what it contradicts"
    return None if memory is None else _create_item(item.section, "memory", memory, item.note, reason, item.worth)


def format_briefing(items: Sequence[BriefingItem]) -> BriefingText:
    """Return the text of a briefing: a header, and the items under their sections."""
    sections = [(heading, [item.line for item in items if item.section is heading]) for heading in Heading]
    return BriefingText(Header.BRIEFING, sections)


def _decay_weight(at: float, now: float, half_life: float) -> float:
    return float(2 ** (-max(0.0, now - at) / SECONDS_PER_DAY / half_life))


def _format_age(at: float, now: float) -> str:
    days = (clock.to_local_time(now).date() - clock.to_local_time(at).date()).days
    if days < 15:
        return "today" if days <= 0 else "yesterday" if days == 1 else f"{days} d ago"
    return f"{clock.to_local_time(at):%Y-%m-%d}"


async def list_briefing_log(
    store: Store, scope: Scope, session_id: str | None, limit: int, offset: int
) -> Page[Injection]:
    """Return what sessions were told, the newest first."""

    async def read_page(tx: Transaction) -> Page[Injection]:
        session = clean_session_id(session_id) if session_id else None
        rows = await sessions_rows.list_briefing_log(tx, scope, session, limit, offset, MAX_ANALYSED_CHARS)
        entries = [
            Injection(
                at, row_session, event, int(memory_id), memory.hash if memory else None,
                SafeText(Line(memory.content, memory.author)) if memory else "", reason, score, int(size),
            )
            for (at, row_session, event, memory_id, reason, score, size), memory in rows
        ]  # fmt: skip
        return Page(entries, await sessions_rows.count_briefing_log(tx, scope, session))

    return await store.database.read(read_page)
