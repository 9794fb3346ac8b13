"""Learn from a finished session: store an episode that summarizes it, and memories of what was decided."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread
from athena.core.values import Call, Scope
from athena.memory import inputs
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.remember import remember
from athena.memory.sessions import events, extract, rows
from athena.memory.sessions.select import (
    extract_words,
    find_specific_words,
    measure_overlap,
    recall_without_use,
    shorten_text,
)
from athena.memory.sessions.values import IDLE_KEY, Candidate, Learned, Lesson, Utterance
from athena.memory.store import Store
from athena.memory.values import Draft
from athena.storage.database import Transaction

AUTO_TAG = "auto"  # marks memories that Athena stored without a request
IMPORTANCE_BY_ROLE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN_OVERLAP = 0.6  # of the words of both texts
KNOWN_COVERAGE = 0.85  # of the candidate's words
MAX_REDACTED_CHARS = 20_000
MAX_ASKED_CHARS, MAX_ENDED_CHARS, MAX_SUMMARY_CHARS = 240, 360, 1_500
MAX_ENDING_MESSAGES = 20
MIN_ENDING_CHARS = 40
WORK_EVENT_TYPES = ("command", "edit", "tool")  # a session without these and without results is idle


async def learn_from_session(
    store: Store, session: str, messages: Sequence[Utterance], summary: str | None, call: Call, keep: bool = True
) -> Lesson:
    """Record an episode for the session and store what was decided in it; without `keep`, only the episode."""
    summary = extract.strip_summary_tags(summary or "").strip() or None
    texts = [*messages, *([Utterance("assistant", summary)] if summary else [])]
    candidates = await run_in_thread(extract.find_candidates, texts) if keep else []
    episode_call = _derive_call(call, "episode")
    episode = await _record_episode(store, session, messages, summary, bool(candidates), episode_call)
    fresh = [candidate for candidate in candidates if not await _is_known(store, candidate, call)]
    if not fresh:
        return Lesson(episode, (), len(candidates))
    drafts = [_create_candidate_draft(candidate, session) for candidate in fresh]
    memories_call = _derive_call(call, hash_text("\n".join(draft.content for draft in drafts)))
    stored = await remember(store, drafts, memories_call, read_first=False)
    learned = tuple(Learned(m.id, m.hash, m.content, m.memory_type, m.outcome) for m in stored)
    return Lesson(episode, learned, len(candidates) - len(fresh))


def _derive_call(call: Call, part: str) -> Call:
    """Return the call of a part of the work, with an idempotency key of its own if the call has one."""
    return call if call.key is None else call._replace(key=f"{call.key}#{part}")


async def _record_episode(
    store: Store, session: str, messages: Sequence[Utterance], summary: str | None, has_candidates: bool, call: Call
) -> int | None:
    user_texts = [message.text for message in messages if message.role == "user" and message.text.strip()]
    last_answers = [
        message.text[:MAX_REDACTED_CHARS]
        for message in messages[-MAX_ENDING_MESSAGES:]
        if message.role == "assistant" and message.text.strip()
    ]
    answers = await run_in_thread(lambda: [extract.strip_chatter(text) for text in last_answers])
    ended = next((text for text in reversed(answers) if len(text) >= MIN_ENDING_CHARS), "")
    parts = [_shorten_redacted(summary, MAX_SUMMARY_CHARS)] if summary else []
    if not summary and user_texts:
        more = f" (and {len(user_texts) - 1} more)" if len(user_texts) > 1 else ""
        parts.append(f"Asked: {_shorten_redacted(user_texts[0], MAX_ASKED_CHARS)}{more}")
    if not summary and ended:
        parts.append(f"Ended: {_shorten_redacted(ended, MAX_ENDED_CHARS)}")
    if not parts:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts), "session_id": session}
    if not (summary or ended or has_candidates or await store.database.read(partial(_has_work, call.scope, session))):
        item["metadata"] = {IDLE_KEY: True}
    return (await events.record_events(store, [item], call))[0].id


async def _has_work(scope: Scope, session: str, tx: Transaction) -> bool:
    return await rows.session_has_type(tx, scope.with_kind("event"), session, WORK_EVENT_TYPES)


def _shorten_redacted(text: str, max_chars: int) -> str:
    """Redact a text, then shorten it: half a secret would not be recognized."""
    return shorten_text(redaction.redact(text[:MAX_REDACTED_CHARS]).text, max_chars)


async def _is_known(store: Store, candidate: Candidate, call: Call) -> bool:
    """Return whether a memory says the same; a user who says it differently has changed their mind."""
    text = redaction.redact(candidate.text).text
    hits = await recall_without_use(store, call.scope, text, 3)
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
    kind = candidate.kind
    return inputs.create_draft(candidate.text, [AUTO_TAG, kind], kind, facts, IMPORTANCE_BY_ROLE[candidate.role])
