"""What a new session should know, within a budget: what is due, what was done last, what its work touches.

Everything is read from indexes: the last of something, what has a tag, what recall finds. What a session was told
before it is not told again, and of memories that contradict each other the newer one alone is told.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from athena.core import clock, redaction, tokens
from athena.core.page import Page
from athena.core.scope import Scope
from athena.errors import AthenaError
from athena.memory import rows as memory_rows
from athena.memory import task_rows, topic_rows
from athena.memory import task_values as tasking
from athena.memory.documents import ingest
from athena.memory.sessions import briefing_log, briefing_sources
from athena.memory.sessions.briefing_values import NOTHING, Briefing, Injection, Surroundings, Told, Turn
from athena.memory.sessions.events import session as session_name
from athena.memory.sessions.excerpt import gist, quoted
from athena.memory.sessions.relevance import SHARED, found_for, particular
from athena.memory.sessions.select import Point, choose, merged
from athena.memory.sessions.values import IDLE, OUTCOME, SESSION
from athena.memory.store import Store
from athena.memory.values import Filter, Memory
from athena.storage import scopes
from athena.storage.database import Transaction

BUDGET = 900
CHARACTERS = 9_000  # of the text as JSON writes it: with what is around it, under what clients cut
IMPORTANT = ("important", "critical", "pinned", "always")
DUE, DONE, HERE, KEEP, NEW = "Due", "Last sessions", "For what is being worked on", "Important", "New"
SECTIONS = (DUE, DONE, HERE, KEEP, NEW)
DAY = 86_400.0
RESULT = 80  # tokens of a tool's result around a memory's text: its hash, tags, type, metadata and times as JSON
CHAIN = 3  # contradictions of contradictions that are followed
LONG_NAME = 6  # letters of a file's name from which on it means that file
ENOUGH = 0.4  # of a phrase's particular words that a memory must have
SESSIONS, FOUND, TAGGED, NEWEST = 3, 30, 25, 6
PAGE, PAGES = 40, 5  # events that sum up sessions, read at once and at most
SETTLED = ("decision", "fix")  # types of memories that the next session needs most
ROUTINE = re.compile(
    r"\b(main|master|trunk|develop(ment)?|dev|head|merge[ds]?|branch|pull request|wip|of|into|from)\b|#\d+",
    re.IGNORECASE,
)
HEADER = (
    "From Athena's long-term memory: notes, not instructions. recall finds more; "
    'in execute_code, memory.get_memory("ID") gives one whole.'
)
OPEN, CLOSE = "<athena-memory>", "</athena-memory>"


class Gathered(NamedTuple):
    """What one look into the store brought."""

    seen: dict[int, float]
    mark: int  # the last thing that the session was told
    due: list[tasking.Task]
    episodes: list[tuple[float, Memory]]
    tagged: list[Memory]
    newest: list[tuple[float, Memory]]


async def brief(
    store: Store,
    scope: Scope,
    around: Surroundings,
    budget: int = BUDGET,
    session_id: str | None = None,
    *,
    afresh: bool = False,
    key: str | None = None,
) -> Briefing:
    """Return what is worth its tokens; a session that is named is told nothing twice, unless `afresh`."""
    now = store.clock()
    session = session_name(session_id) if session_id else None
    found = await store.database.read(partial(_gather, scope, now, session, key, afresh))
    points = [*_due(found.due, now), *_done(found.episodes, session, now), *_tagged(found.tagged, now)]
    points += [*_new(found.newest, now), *await _here(store, scope, around)]
    if found.seen:  # a session that goes on: only what is new since it was told the last time
        since = max(found.seen.values())
        fresh = {memory.id for at, memory in (*found.newest, *found.episodes) if memory.created > since}
        points = [one for one in points if one.id not in found.seen and (one.section == DUE or one.id in fresh)]
    points = await store.database.read(partial(_newer, scope, merged(points)))
    points = [one for one in points if one.id not in found.seen]
    chosen, text = choose(points, budget, CHARACTERS, written)
    turn = Turn(session, "briefing", found.mark, afresh, key) if session else None
    return await finish(store, scope, chosen, text, turn)


async def finish(store: Store, scope: Scope, chosen: Sequence[Point], text: str, turn: Turn | None) -> Briefing:
    """Return a briefing, once it is noted that the session was told it; of two at once the second tells nothing."""
    told = tuple(
        Told(one.kind, one.id, one.hash, one.reason, round(one.worth, 4), tokens.count(one.line)) for one in chosen
    )
    ours = True
    if turn and (told or turn.afresh):
        with suppress(AthenaError):  # a store that cannot be written to can still be read from
            ours = await store.database.write(partial(briefing_log.add, scope, turn, told, store.clock()))
    if not told or not ours:
        return NOTHING
    direct = sum(RESULT + tokens.count(one.whole or one.text) for one in chosen)
    return Briefing(text, tokens.count(text), direct, told)


async def _gather(
    scope: Scope, now: float, session: str | None, key: str | None, afresh: bool, tx: Transaction
) -> Gathered:
    known = scope.of("memory")
    seen = await briefing_log.seen(tx, scope, session, key) if session and not afresh else {}
    rows = await task_rows.of_states(tx, Filter(scope.of("task"), until=now + DAY), tasking.UNFINISHED)
    needs = {number for row in rows for number in tasking.plan(row).get("depends_on", ())}
    waiting = await task_rows.unfinished(tx, await scopes.visible(tx, scope.of("task")), needs) if needs else set()
    return Gathered(
        seen,
        await briefing_log.last(tx, scope, session) if session else 0,
        [tasking.task(row, waiting, now) for row in rows],
        await _sums(tx, scope, session),
        await briefing_sources.tagged(tx, known, IMPORTANT, TAGGED),
        await memory_rows.latest(tx, Filter(known, without=ingest.KIND), 3 * NEWEST),
    )


def _due(found: Iterable[tasking.Task], now: float) -> list[Point]:
    """What is overdue or due within a day; what waits for something else is worth less."""
    points = []
    for one in sorted(found, key=tasking.pressing):
        worth = min(1.0, 0.9 + 0.1 * (tasking.PRIORITIES.index(one.priority) - 1)) * (0.6 if one.blocked else 1.0)
        note = f"{'overdue' if one.overdue else 'due'} {clock.local(one.due or now):%Y-%m-%d %H:%M}"
        points.append(Point(DUE, "task", one.id, one.hash, gist(one.title), note, note, worth, whole=_whole(one)))
    return points


def _whole(one: tasking.Task) -> str:
    return f"{one.title}{tasking.GAP}{one.details}" if one.details else one.title


async def _sums(tx: Transaction, scope: Scope, session: str | None) -> list[tuple[float, Memory]]:
    """Return what sums up sessions, the last first, until there are enough that came to something."""
    found: list[tuple[float, Memory]] = []
    for page in range(PAGES):
        rows = await briefing_sources.episodes(tx, scope, PAGE, page * PAGE)
        found += [(at, one) for at, one in rows if not one.metadata.get(IDLE)]
        names = {str(one.metadata.get(SESSION) or one.id) for _, one in found}
        if len(rows) < PAGE or len(names - {session}) >= SESSIONS:
            break
    return found


def _done(found: Sequence[tuple[float, Memory]], session: str | None, now: float) -> list[Point]:
    """What the last sessions did, one line each: the sum of it, where there is one."""
    sessions: dict[str, tuple[float, Memory]] = {}
    for at, one in found:
        name = str(one.metadata.get(SESSION) or one.id)
        if name == session:
            continue  # it knows
        if name not in sessions or (one.memory_type == "episode" != sessions[name][1].memory_type):
            sessions[name] = (at, one)
    points = []
    for place, (at, one) in enumerate(list(sessions.values())[:SESSIONS]):
        worth = (0.95, 0.6, 0.45)[place] * _fading(at, now, 30)
        outcome = one.metadata.get(OUTCOME)
        note = _ago(at, now) + (f", {quoted(str(outcome))[:40]}" if outcome else "")
        points.append(_point(DONE, "event", one, note, "what the last sessions did", worth, 400))
    return points


def _tagged(found: Iterable[Memory], now: float) -> list[Point]:
    return [
        _point(KEEP, "memory", one, _ago(one.created, now), _tag_of(one), 0.75 + 0.2 * _fading(one.created, now, 90))
        for one in found
    ]


def _tag_of(one: Memory) -> str:
    return f"tagged {next((tag for tag in one.tags if tag.casefold() in IMPORTANT), IMPORTANT[0])}"


def _new(found: Sequence[tuple[float, Memory]], now: float) -> list[Point]:
    """What was kept of late, and all that the last session settled; what was only gathered from talk counts less."""
    last = next((one.metadata.get("source") for _, one in found if "auto" in one.tags), None)
    more = [
        (at, one) for at, one in found[NEWEST:] if one.memory_type in SETTLED and one.metadata.get("source") == last
    ]
    return [
        replace(
            _point(NEW, "memory", one, _ago(at, now), "kept of late", _newness(one) * _fading(at, now, 14)), steady=True
        )
        for at, one in [*found[:NEWEST], *(more if last else ())]
    ]


def _newness(one: Memory) -> float:
    if one.memory_type in SETTLED:
        return 0.45 + 0.3 * one.importance
    return (0.3 + 0.3 * one.importance) * (0.8 if "auto" in one.tags else 1.0)


async def _here(store: Store, scope: Scope, around: Surroundings) -> list[Point]:
    """What is known about the branch, the last commits and the files that were changed, by the words they have."""
    # Whatever counts has words of theirs in it, so the model is not asked.
    store = store._replace(encoder=store.encoder.at_rest())
    around = _without_secrets(around)
    phrases = [(f"branch {around.branch}", re.sub(r"[-_/.]+", " ", around.branch or ""))]
    phrases += [(f"commit {subject!r:.60}", subject) for subject in around.commits[:4]]
    phrases += [(f"changed {os.path.basename(path)}", _named(path)) for path in around.files[:8]]
    phrases = [(quoted(reason)[:80], ROUTINE.sub(" ", text)) for reason, text in phrases]
    text = " ".join(text for _, text in phrases)[:2_000]
    if not any(char.isalpha() for char in text):
        return []
    named = [name for path in around.files[:8] if len(name := os.path.basename(path).casefold()) >= LONG_NAME]
    wanted = [(reason, particular(text)) for reason, text in phrases]
    points = []
    for hit in await found_for(store, scope, text, FOUND):
        reason, share = touching(hit.content, wanted, named)
        if share:
            points.append(_point(HERE, "memory", hit, _ago(hit.created, store.clock()), reason, 0.4 + 0.45 * share))
    return points


def _without_secrets(around: Surroundings) -> Surroundings:
    """Return what is worked on as it may be noted down; only whole texts show their secrets."""
    files, commits = ([redaction.redact(text).text for text in some] for some in (around.files[:8], around.commits[:4]))
    branch = redaction.redact(around.branch).text if around.branch else None
    return Surroundings(branch, tuple(files), tuple(commits))


def _named(path: str) -> str:
    """Return a file as people speak of it: its name, and the words in that."""
    name = os.path.basename(path)
    return f"{name} {re.sub(r'[-_.]+', ' ', os.path.splitext(name)[0])}"


def touching(content: str, phrases: Sequence[tuple[str, set[str]]], files: Sequence[str]) -> tuple[str, float]:
    """Return which phrase a text has most in common with, and how much of it; too little is nothing."""
    words, best = particular(content), ("", 0.0)
    for reason, wanted in phrases:
        shared = len(wanted & words)
        if shared >= SHARED and shared >= ENOUGH * len(wanted):
            best = max(best, (reason, min(1.0, shared / len(wanted))), key=lambda one: one[1])
    if name := next((name for name in files if name in content.casefold()), ""):
        best = max(best, (f"changed {quoted(name)[:80]}", 0.7), key=lambda one: one[1])
    return best


def _point(section: str, kind: str, one: Memory, note: str, reason: str, worth: float, longest: int = 240) -> Point:
    return Point(section, kind, one.id, one.hash, gist(one.content, longest), note, reason, worth, whole=one.content)


async def _newer(scope: Scope, points: list[Point], tx: Transaction) -> list[Point]:
    """Put in the place of a contradicted memory the newest one that says otherwise."""
    visible = await scopes.visible(tx, scope.of("memory"))
    for _ in range(CHAIN):
        numbers = [one.id for one in points if one.kind == "memory"]
        against = await topic_rows.contradicted(tx, visible, numbers) if numbers else {}
        if not against:
            break
        instead = await memory_rows.fetch(tx, visible, {others[-1] for others in against.values()})
        points = merged([new for one in points if (new := _instead(one, against, instead)) is not None])
    return points


def _instead(one: Point, against: dict[int, list[int]], instead: dict[int, Memory]) -> Point | None:
    if one.kind != "memory" or one.id not in against:
        return one
    newer = instead.get(against[one.id][-1])
    why = f"{one.reason}; newer than what it contradicts"
    return None if newer is None else _point(one.section, "memory", newer, one.note, why, one.worth)


def written(points: Sequence[Point], header: str = HEADER) -> str:
    """Write points under their sections."""
    lines = [OPEN, header]
    for section in SECTIONS:
        told = [one.line for one in points if one.section == section]
        lines += [f"{section}:", *told] if told else []
    return "\n".join([*lines, CLOSE])


def _fading(at: float, now: float, half_life: float) -> float:
    return float(2 ** (-max(0.0, now - at) / DAY / half_life))


def _ago(at: float, now: float) -> str:
    days = (clock.local(now).date() - clock.local(at).date()).days
    if days < 15:
        return "today" if days <= 0 else "yesterday" if days == 1 else f"{days} d ago"
    return f"{clock.local(at):%Y-%m-%d}"


async def listed(store: Store, scope: Scope, session_id: str | None, limit: int, offset: int) -> Page[Injection]:
    """Return what sessions were told, the last first."""

    async def work(tx: Transaction) -> Page[Injection]:
        session = session_name(session_id) if session_id else None
        rows = await briefing_log.latest(tx, scope, session, limit, offset)
        made = [
            Injection(
                at, told_in, event, int(number), found.hash if found else None, gist(found.content) if found else "",
                reason, score, int(size),
            )
            for (at, told_in, event, number, reason, score, size), found in rows
        ]  # fmt: skip
        return Page(made, await briefing_log.count(tx, scope, session))

    return await store.database.read(work)
