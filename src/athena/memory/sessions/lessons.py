"""What a session leaves behind: an episode that says what was done, and memories that its talk is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread
from athena.core.values import Call, Scope
from athena.memory import inputs
from athena.memory.remember import remember
from athena.memory.sessions import events, rows
from athena.memory.sessions.select import (
    extract_words,
    find_specific_words,
    measure_overlap,
    recall_without_use,
    shorten_text,
)
from athena.memory.sessions.values import IDLE_KEY, Candidate, Utterance
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage.database import Transaction

AUTO_TAG = "auto"  # the tag of what nobody asked to keep
IMPORTANCE_BY_ROLE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN_OVERLAP = 0.6  # a memory that overlaps more with a candidate says it already
KNOWN_COVERAGE = 0.85  # so does one that has so much of its words
MAX_REDACTED_CHARS = 20_000  # characters of a text in which secrets are looked for
MAX_ASKED_CHARS, MAX_ENDED_CHARS, MAX_SUMMARY_CHARS = 240, 360, 1_500  # characters of an episode
MAX_ENDING_MESSAGES, MIN_ENDING_CHARS = (
    20,
    40,
)  # messages among which an ending is looked for, and the characters that make one
WORK_EVENT_TYPES = ("command", "edit", "tool")  # types of events of a session that did something


@dataclass(frozen=True, slots=True)
class Learned:
    id: int
    hash: str
    content: str
    memory_type: str
    outcome: str  # new, known, revived


@dataclass(frozen=True, slots=True)
class Lesson:
    """What was kept of a session."""

    episode: int | None  # the event that sums it up
    learned: tuple[Learned, ...]
    known: int  # candidates that the store says already


async def learn_from_session(
    store: Store, session: str, said: Sequence[Utterance], summary: str | None, call: Call, keep: bool = True
) -> Lesson:
    """Record what a session did and keep what it decided; without `keep`, only the episode."""
    from athena.memory.sessions import extract  # its patterns are slow to compile

    told = extract.strip_summary_tags(summary or "").strip() or None
    every = [*said, *([Utterance("assistant", told)] if told else [])]
    found = await run_in_thread(extract.find_candidates, every) if keep else []
    episode = await _record_episode(store, session, said, told, bool(found), _derive_call(call, "episode"))
    fresh = [one for one in found if not await _is_known(store, one, call)]
    if not fresh:
        return Lesson(episode, (), len(found))
    drafts = [_create_candidate_draft(one, session) for one in fresh]
    part = _derive_call(call, hash_text("\n".join(one.content for one in drafts)))
    kept = await remember(store, drafts, part, read_first=False)
    made = tuple(Learned(one.id, one.hash, one.content, one.memory_type, one.outcome) for one in kept)
    return Lesson(episode, made, len(found) - len(fresh))


def _derive_call(call: Call, name: str) -> Call:
    """Return a call for a part of the work; where it has a key, each part has its own, and happens once."""
    return call if call.key is None else call._replace(key=f"{call.key}#{name}")


async def _record_episode(
    store: Store, session: str, said: Sequence[Utterance], summary: str | None, found: bool, call: Call
) -> int | None:
    from athena.memory.sessions.extract import strip_chatter  # slow to load

    asked = [one.text for one in said if one.role == "user" and one.text.strip()]
    last = [
        one.text[:MAX_REDACTED_CHARS]
        for one in said[-MAX_ENDING_MESSAGES:]
        if one.role == "assistant" and one.text.strip()
    ]
    answers = await run_in_thread(lambda: [strip_chatter(text) for text in last])
    ended = next((text for text in reversed(answers) if len(text) >= MIN_ENDING_CHARS), "")
    parts = [_shorten_redacted(summary, MAX_SUMMARY_CHARS)] if summary else []
    if not summary and asked:
        more = f" (and {len(asked) - 1} more)" if len(asked) > 1 else ""
        parts.append(f"Asked: {_shorten_redacted(asked[0], MAX_ASKED_CHARS)}{more}")
    if not summary and ended:
        parts.append(f"Ended: {_shorten_redacted(ended, MAX_ENDED_CHARS)}")
    if not parts:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts), "session_id": session}
    if not (summary or ended or found or await store.database.read(partial(_has_work, call.scope, session))):
        item["metadata"] = {IDLE_KEY: True}
    return (await events.record_events(store, [item], call))[0].id


async def _has_work(scope: Scope, session: str, tx: Transaction) -> bool:
    return await rows.session_has_type(tx, scope.with_kind("event"), session, WORK_EVENT_TYPES)


def _shorten_redacted(text: str, longest: int) -> str:
    """Return the beginning of a text, without the secrets that only the whole of it shows."""
    return shorten_text(redaction.redact(text[:MAX_REDACTED_CHARS]).text, longest)


async def _is_known(store: Store, one: Candidate, call: Call) -> bool:
    """Tell whether a memory says what a candidate says; a person who says it otherwise has changed their mind."""
    from athena.memory.sessions.extract import split_sentences  # slow to load

    text = redaction.redact(one.text).text
    found = await recall_without_use(store, call.scope, text, 3)
    known = [part for hit in found for part in (hit.content, *split_sentences(hit.content)) if _is_alike(text, part)]
    return any(one.role != "user" or not _is_different(text, part) for part in known)


def _is_alike(one: str, other: str) -> bool:
    words, theirs = extract_words(one), extract_words(other)
    return measure_overlap(words, theirs) >= KNOWN_OVERLAP or (
        bool(words) and len(words & theirs) >= KNOWN_COVERAGE * len(words)
    )


def _is_different(one: str, other: str) -> bool:
    """Tell whether each of two texts that are alike names what the other does not, or one denies the other."""
    from athena.memory.consolidation.contradictions import are_consistent  # slow to load

    mine, theirs = find_specific_words(one), find_specific_words(other)
    return bool(mine - theirs and theirs - mine) or not are_consistent(one, other)


def _create_candidate_draft(one: Candidate, session: str) -> Draft:
    # The session is its source, and not its session_id: the same text in two sessions is one memory.
    facts = {"source": f"session {session}", "role": one.role}
    return inputs.create_draft(one.text, [AUTO_TAG, one.kind], one.kind, facts, IMPORTANCE_BY_ROLE[one.role])
