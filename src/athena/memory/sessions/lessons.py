"""Learn from a finished session: store an episode that summarizes it, and memories of what was decided.

Nothing of a prompt is stored but its statements. An episode tells what was decided and done, and how it ended.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread
from athena.core.values import Author, Call, Page, Scope
from athena.memory import inputs
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.remember import remember
from athena.memory.sessions import events, extract, rows
from athena.memory.sessions.learning_rows import AUTO_TAG
from athena.memory.sessions.learning_rules import remove_refused
from athena.memory.sessions.select import (
    extract_words,
    find_specific_words,
    measure_overlap,
    recall_without_use,
)
from athena.memory.sessions.values import (
    FAILURE_OUTCOMES,
    IDLE_KEY,
    IDLE_TEXT,
    MAX_DECIDED_CHARS,
    OUTCOME_KEY,
    Candidate,
    Learned,
    Lesson,
    Utterance,
)
from athena.memory.sessions.voice import shorten_text
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage.database import Database, Transaction
from athena.storage.privacy import PrivateReads, WatchedDatabase

IMPORTANCE_BY_ROLE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN_OVERLAP = 0.6  # of the words of both texts
KNOWN_COVERAGE = 0.85  # of the candidate's words
MAX_REDACTED_CHARS = 20_000
MAX_ENDED_CHARS, MAX_SUMMARY_CHARS = 360, 1_500
MAX_DECISIONS = 2
MAX_WORK_EVENTS = 500
MAX_LISTED_FILES = 4
MAX_ENDING_MESSAGES = 20
MIN_ENDING_CHARS = 40
WORK_EVENT_TYPES = ("command", "edit", "tool")
WORK_KINDS = (
    ("test run", re.compile(r"\b(pytest|jest|vitest|mocha|tox|nox|ctest|rspec|phpunit|unittest|check|tests?)\b")),
    ("commit", re.compile(r"\bgit\b.*\bcommit\b")),
    ("build", re.compile(r"\b(build|make|cmake|compile|bundle|webpack|tsc|gradle|mvn)\b")),
)


async def learn_from_session(
    store: Store,
    session: str,
    messages: Sequence[Utterance],
    summary: str | None,
    call: Call,
    keep: bool = True,
    dry_run: bool = False,
) -> Lesson:
    """Store what was decided in a session, then its episode; without `keep`, only the episode."""
    summary = extract.strip_summary_tags(summary or "").strip() or None
    texts = [*messages, *([Utterance("assistant", summary)] if summary else [])]
    proposed = await run_in_thread(extract.find_candidates, texts) if keep else []
    candidates = await remove_refused(store, call.scope, proposed)
    fresh = [candidate for candidate in candidates if not await _is_known(store, candidate, call)]
    known, refused = len(candidates) - len(fresh), len(proposed) - len(candidates)
    drafts = [_create_candidate_draft(candidate, session) for candidate in fresh]
    if dry_run:
        return Lesson(None, tuple(_to_learned(0, "", draft, "new") for draft in drafts), known, refused)
    memories_call = _derive_call(call, hash_text("\n".join(draft.content for draft in drafts)))
    stored = await remember(store, drafts, memories_call, read_first=False) if drafts else []
    learned = tuple(_to_learned(m.id, m.hash, Draft.from_memory(m), m.outcome) for m in stored)
    # last: a session with an episode has been learned from
    episode = await _record_episode(store, session, messages, summary, candidates, _derive_call(call, "episode"))
    return Lesson(episode, learned, known, refused)


def _to_learned(memory_id: int, short_hash: str, draft: Draft, outcome: str) -> Learned:
    evidence = (draft.metadata.get(key) for key in ("role", "turn", "confidence"))
    return Learned(memory_id, short_hash, draft.content, draft.memory_type, outcome, *evidence)


def _derive_call(call: Call, part: str) -> Call:
    """Return the call of a part of the work, with an idempotency key of its own if the call has one."""
    return call if call.key is None else call._replace(key=f"{call.key}#{part}")


async def _record_episode(
    store: Store,
    session: str,
    messages: Sequence[Utterance],
    summary: str | None,
    candidates: Sequence[Candidate],
    call: Call,
) -> int | None:
    """Record what was decided and done and how it ended; nothing of a prompt that is no statement."""
    decided = [candidate.text for candidate in candidates if candidate.role == "user" and candidate.kind == "decision"]
    # a program may have left a private text in an event, which the episode tells of
    store = store._replace(database=cast("Database", WatchedDatabase(store.database, PrivateReads())))
    work = await store.database.read(partial(_describe_work, call.scope, session))
    if summary:
        told = await run_in_thread(_find_gist, summary)
    else:
        told = await run_in_thread(_find_ending, messages, [candidate.text for candidate in candidates])
    parts = [] if summary else [shorten_text(text, MAX_DECIDED_CHARS) for text in decided[-MAX_DECISIONS:]]
    parts = [f"Decided: {' '.join(parts)}"] if parts else []
    parts += [work] if work else []
    parts += [told if summary else f"Ended: {told}"] if told else []
    is_idle = not (parts or candidates)
    if is_idle and not messages:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts) or IDLE_TEXT, "session_id": session}
    if is_idle:
        item["metadata"] = {IDLE_KEY: True}
    author: Author = "agent" if told or decided else "tool"
    return (await events.record_events(store, [item], call, author))[0].id


def _find_ending(messages: Sequence[Utterance], statements: Sequence[str]) -> str:
    """Return how the last long answer ends the session, without what it repeats of prompts or tells of private life."""
    prompts = [message.text for message in messages if message.role == "user"]
    rest = [extract.remove_echoes(prompt, statements) for prompt in prompts]  # statements may be repeated
    for message in reversed(messages[-MAX_ENDING_MESSAGES:]):
        if message.role != "assistant" or not message.text.strip():
            continue
        text = extract.strip_chatter(extract.clean_answer(message.text[:MAX_REDACTED_CHARS], rest))
        if len(text) >= MIN_ENDING_CHARS:
            return shorten_text(text, MAX_ENDED_CHARS)
    return ""


def _find_gist(summary: str) -> str:
    """Return the beginning of a client's summary without what it quotes of users, secrets and private clauses."""
    text = extract.clean_answer(extract.strip_user_messages(summary)[:MAX_REDACTED_CHARS], ())
    return shorten_text(text, MAX_SUMMARY_CHARS)


async def _describe_work(scope: Scope, session: str, tx: Transaction) -> str:
    """Return what the tool events of a session say was done, in our words; empty if there are none."""
    paths: dict[str, None] = {}
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for event in await rows.list_work_events(tx, scope.with_kind("event"), session, WORK_EVENT_TYPES, MAX_WORK_EVENTS):
        if event.memory_type == "edit":
            paths[event.content.partition(" ")[2]] = None
        elif event.memory_type == "command":
            kind = next((name for name, pattern in WORK_KINDS if pattern.search(event.content)), "command")
            counts[kind] += 1
            failures[kind] += event.metadata.get(OUTCOME_KEY) in FAILURE_OUTCOMES
        else:
            counts["tool call"] += 1
    parts = [_list_names([path for path in paths if path])] if any(paths) else []
    for kind, count in counts.items():
        failed = f", {failures[kind]} failed" if failures[kind] else ""
        parts.append(f"{count} {kind}{'s' if count > 1 else ''}{failed}")
    return f"Work: {'; '.join(parts)}." if parts else ""


def _list_names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_LISTED_FILES} more" if len(paths) > MAX_LISTED_FILES else ""
    return f"edited {', '.join(paths[-MAX_LISTED_FILES:])}{more}"


async def _is_known(store: Store, candidate: Candidate, call: Call) -> bool:
    """Return whether a memory says the same; a user who says it differently has changed their mind."""
    text = redaction.redact(candidate.text).text
    hits = await recall_without_use(store, call.scope, text, 3)
    if candidate.role == "user":  # what only others said is new from a person
        hits = Page([hit for hit in hits if hit.author == "person"], hits.total)
    parts = [part for hit in hits for part in (hit.content, *extract.split_sentences(hit.content))]
    similar = [part for part in parts if _is_similar(text, part)]
    return any(candidate.role != "user" or not _is_different(text, part) for part in similar)


def _is_similar(text: str, other: str) -> bool:
    words, other_words = extract_words(text), extract_words(other)
    return measure_overlap(words, other_words) >= KNOWN_OVERLAP or (
        bool(words) and len(words & other_words) >= KNOWN_COVERAGE * len(words)
    )


def _is_different(text: str, other: str) -> bool:
    """Return whether each of two similar texts names something that the other does not, or they contradict."""
    words, other_words = find_specific_words(text), find_specific_words(other)
    return bool(words - other_words and other_words - words) or not are_consistent(text, other)


def _create_candidate_draft(candidate: Candidate, session: str) -> Draft:
    # The session goes to `source`, not to `session_id`: the same text in two sessions must be one memory.
    facts = {"source": f"session {session}", "role": candidate.role}
    kind, role = candidate.kind, candidate.role
    draft = inputs.create_draft(candidate.text, [AUTO_TAG, kind], kind, facts, IMPORTANCE_BY_ROLE[role])
    return replace(draft, author="person" if role == "user" else "agent")
