"""Learn from a finished session: store an episode that summarizes it, and memories of what was decided.

Nothing of a prompt is stored but its statements. An episode tells what was decided and done, and how it ended.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread
from athena.core.values import Author, Call, Scope
from athena.embedding.minilm import MiniLM
from athena.memory import inputs
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.remember import remember
from athena.memory.sessions import events, extract, rows, statements, supersede
from athena.memory.sessions.commands import is_unrecorded
from athena.memory.sessions.learning import forget_topics
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
    OUTCOME_KEY,
    REQUESTED_KEY,
    Candidate,
    Learned,
    Lesson,
    Utterance,
    strip_step,
)
from athena.memory.sessions.voice import shorten_text
from athena.memory.store import Store
from athena.memory.values import Draft, Hit
from athena.storage.database import Database, Transaction
from athena.storage.privacy import PrivateReads, WatchedDatabase

IMPORTANCE_BY_ROLE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN_OVERLAP = 0.6  # of the words of both texts
KNOWN_COVERAGE = 0.85  # of the candidate's words
MAX_REDACTED_CHARS = 20_000
MAX_NEXT_CHARS, MAX_ENDED_CHARS, MAX_SUMMARY_CHARS = 200, 400, 1_500
MAX_WORK_EVENTS = 500
MAX_STATEMENTS = 100  # of a session
MAX_COMPARED_HITS, MAX_KNOWN_HITS, MAX_REPLACED = 8, 3, 2
MAX_LISTED_FILES = 4
MAX_ENDING_MESSAGES, MAX_ANSWER_CHARS = 60, 1_500
LAST_ANSWERS = 3  # that are told whole but for courtesies
FAILURE_PATTERN = re.compile(
    r"\b(?:fail(?:s|ed|ing|ure)?|errors?|red|broken|missing|cannot|can't|doesn't|crash\w*|overflow\w*|timed? ?out|"
    r"no such)\b",
    re.IGNORECASE,
)
MAX_NEXT_STEPS = 2
MAX_OBJECTION_CHARS = 200
OBJECTION_PATTERN = re.compile(
    r"(?:(?:hm+|uh+|oh|er|ah|well|sorry|but|and|ok(?:ay)?|god|um)[,. ]+)*(?:no|nope|nah|not|wrong|i said|we said|"
    r"don'?t|do not|wait|"
    r"stop|never|why|that'?s (?:not|wrong)|please (?:not|don'?t)|undo|revert|actually|correction|change it|again)\b",
    re.IGNORECASE,
)
NEGATION_PATTERN = re.compile(
    r"\b(?:no|not|never|wrong|don'?t|doesn'?t|isn'?t|didn'?t|instead|rather|hate|gone|remove|drop|without)\b",
    re.IGNORECASE,
)
COMMIT_PATTERN = re.compile(r"\bgit\b.*\bcommit\b.*?\s-\w*m\s*([\"'])(.+?)\1", re.DOTALL)
MAX_COMMIT_CHARS, MAX_LISTED_COMMITS = 80, 2
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
    proposed, forgotten = await run_in_thread(_find_candidates, store, texts) if keep else ([], [])
    if forgotten and not dry_run:
        await forget_topics(store, forgotten, _derive_call(call, "forgotten"))
    requested = [candidate for candidate in proposed if candidate.is_request]
    candidates = requested + await remove_refused(
        store, call.scope, [candidate for candidate in proposed if not candidate.is_request]
    )
    candidates.sort(key=proposed.index)
    fresh: list[Candidate] = []
    replaced: list[list[int]] = []  # for each fresh one, the memories that it replaces
    restored: list[int] = []
    for candidate in candidates:
        relation = await _relate_to_memories(store, candidate, call)
        if relation.known is not None:
            restored.append(relation.known)
            continue
        if candidate.is_weak and not (relation.replaced or candidate.replaced):
            continue
        hidden = [hit for hit in relation.replaced if AUTO_TAG in hit.tags]  # what a person stored is theirs to change
        if hidden:
            candidate = supersede.add_replaced(candidate, hidden[0].content)
        fresh.append(candidate)
        replaced.append([hit.id for hit in hidden])
    known, refused = len(restored), len(proposed) - len(candidates)
    drafts = [_create_candidate_draft(candidate, session) for candidate in fresh]
    if dry_run:
        return Lesson(None, tuple(_to_learned(0, "", draft, "new") for draft in drafts), known, refused)
    memories_call = _derive_call(call, hash_text("\n".join(draft.content for draft in drafts)))
    stored = await remember(store, drafts, memories_call, read_first=False) if drafts else []
    links = [(old, memory.id) for memory, old_ids in zip(stored, replaced, strict=True) for old in old_ids]
    if links or restored:
        await store.database.write(partial(rows.record_changes, call.scope, links, restored, store.clock()))
    learned = tuple(_to_learned(m.id, m.hash, Draft.from_memory(m), m.outcome) for m in stored)
    # last: a session with an episode has been learned from
    episode = await _record_episode(store, session, messages, summary, candidates, _derive_call(call, "episode"))
    return Lesson(episode, learned, known, refused)


def _to_learned(memory_id: int, short_hash: str, draft: Draft, outcome: str) -> Learned:
    evidence = (draft.metadata.get(key) for key in ("role", "turn", "confidence"))
    return Learned(memory_id, short_hash, draft.content, draft.memory_type, outcome, *evidence)


def _find_candidates(store: Store, messages: Sequence[Utterance]) -> tuple[list[Candidate], list[frozenset[str]]]:
    """Return what users stated, causes and fixes that agents found, and the topics that users asked to forget."""
    model = _get_model(store)
    found = statements.find_statements(messages, model)
    by_users = [
        Candidate(
            one.text,
            one.memory_type,
            one.role,
            one.turn,
            one.confidence,
            one.is_change,
            one.is_request,
            one.is_weak,
            one.context,
        )
        for one in found.statements
    ]
    by_users = supersede.settle_changes(_select_best(by_users), model)
    answers = [message.text for message in messages if message.role != "user"]
    prompts = [message.text for message in messages if message.role == "user" and not is_unrecorded(message.text)]
    told = [extract_words(candidate.text) for candidate in by_users]
    fixes = [Candidate(text, "fix", "assistant") for text in extract.find_fixes(answers)]
    fixes += [
        Candidate(text, "fix", "user")
        for text in extract.find_fixes(prompts)
        if statements.is_storable(text)
        and all(measure_overlap(extract_words(text), words) < KNOWN_OVERLAP for words in told)
    ]
    return by_users + fixes, found.forgotten


def _select_best(candidates: list[Candidate]) -> list[Candidate]:
    """Return the statements of a session, in order; of too many those that are most surely worth keeping."""
    if len(candidates) <= MAX_STATEMENTS:
        return candidates
    ranked = sorted(
        range(len(candidates)),
        key=lambda i: (candidates[i].is_request, candidates[i].confidence or 0.0, i),
        reverse=True,
    )
    return [candidates[i] for i in sorted(ranked[:MAX_STATEMENTS])]


def _get_model(store: Store) -> MiniLM:
    """Return the bundled model, on which the classifier was trained."""
    embedder = store.encoder.embedder
    return embedder if isinstance(embedder, MiniLM) else _load_bundled_model()


@cache
def _load_bundled_model() -> MiniLM:
    return MiniLM()


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
    # a program may have left a private text in an event, which the episode tells of
    store = store._replace(database=cast("Database", WatchedDatabase(store.database, PrivateReads())))
    work = await store.database.read(partial(_describe_work, call.scope, session))
    if summary:
        told = await run_in_thread(_find_gist, summary)
    else:
        told = await run_in_thread(_find_ending, messages, [candidate.text for candidate in candidates])
    next_steps = [strip_step(candidate.text) for candidate in candidates if candidate.kind == "todo"]
    parts = [f"Next: {shorten_text(' '.join(next_steps[-MAX_NEXT_STEPS:]), MAX_NEXT_CHARS)}"] if next_steps else []
    if summary:
        parts += [told, work]
    elif told or work:
        parts.append(" ".join(filter(None, ("Ended:", work, told))))
    parts = [part for part in parts if part]
    is_idle = not parts
    if is_idle and not messages:
        return None
    item: dict[str, Any] = {"event_type": "episode", "content": " ".join(parts) or IDLE_TEXT, "session_id": session}
    if is_idle:
        item["metadata"] = {IDLE_KEY: True}
    author: Author = "agent" if told or next_steps else "tool"
    return (await events.record_events(store, [item], call, author))[0].id


def _find_ending(messages: Sequence[Utterance], statements: Sequence[str]) -> str:
    """Return what the answers say of results, the last ones if there are many.

    Left out is what they repeat of prompts or tell of private life, and failures that were not the end.
    """
    prompts = [message.text for message in messages if message.role == "user"]
    rest = list(extract.remove_all_echoes(prompts, statements))  # statements may be repeated
    answers = [answer[:MAX_ANSWER_CHARS] for answer in _list_uncorrected(messages[-MAX_ENDING_MESSAGES:])]
    earlier, last = answers[:-LAST_ANSWERS], answers[-LAST_ANSWERS:]
    sentences = extract.find_results(extract.clean_answer("\n".join(earlier), rest))
    sentences += extract.find_closing(extract.clean_answer("\n".join(last), rest))
    results: list[str] = []
    chars_left = MAX_ENDED_CHARS
    for sentence in reversed(sentences):
        if FAILURE_PATTERN.search(sentence) and results:
            continue
        chars_left -= len(sentence) + 1
        if chars_left < 0 and results:
            break
        results.insert(0, shorten_text(sentence, MAX_ENDED_CHARS))
    return " ".join(results)


def _list_uncorrected(messages: Sequence[Utterance]) -> list[str]:
    """Return the answers that the user did not object to."""
    following = [*messages[1:], Utterance("assistant", "")][: len(messages)]
    return [
        message.text
        for message, after in zip(messages, following, strict=True)
        if message.role == "assistant" and not (after.role == "user" and _objects(after.text, message.text))
    ]


def _objects(prompt: str, answer: str) -> bool:
    """Return whether a prompt says that the answer before it was wrong."""
    if OBJECTION_PATTERN.match(prompt.strip()):
        return True
    shared = find_specific_words(prompt[:MAX_OBJECTION_CHARS]) & find_specific_words(answer)
    return bool(shared) and NEGATION_PATTERN.search(prompt[:MAX_OBJECTION_CHARS]) is not None


def _find_gist(summary: str) -> str:
    """Return the beginning of a client's summary without what it quotes of users, secrets and private clauses."""
    text = extract.clean_answer(extract.strip_user_messages(summary)[:MAX_REDACTED_CHARS], ())
    return shorten_text(text, MAX_SUMMARY_CHARS)


async def _describe_work(scope: Scope, session: str, tx: Transaction) -> str:
    """Return what the tool events of a session say was done, in our words; empty if there are none."""
    paths: dict[str, None] = {}
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    commits: dict[str, None] = {}
    for event in await rows.list_work_events(tx, scope.with_kind("event"), session, WORK_EVENT_TYPES, MAX_WORK_EVENTS):
        if event.memory_type == "edit":
            paths[event.content.partition(" ")[2]] = None
        elif event.memory_type == "command":
            kind = next((name for name, pattern in WORK_KINDS if pattern.search(event.content)), "command")
            counts[kind] += 1
            failures[kind] += event.metadata.get(OUTCOME_KEY) in FAILURE_OUTCOMES
            if subject := COMMIT_PATTERN.search(event.content):
                commits[shorten_text(subject[2], MAX_COMMIT_CHARS)] = None
        else:
            counts["tool call"] += 1
    parts = [_list_names([path for path in paths if path])] if any(paths) else []
    for kind, count in counts.items():
        failed = f", {failures[kind]} failed" if failures[kind] else ""
        parts.append(f"{count} {kind}{'s' if count > 1 else ''}{failed}")
    parts += [f"committed {', '.join(list(commits)[-MAX_LISTED_COMMITS:])}"] if commits else []
    return f"Work: {'; '.join(parts)}." if parts else ""


def _list_names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_LISTED_FILES} more" if len(paths) > MAX_LISTED_FILES else ""
    return f"edited {', '.join(paths[-MAX_LISTED_FILES:])}{more}"


class _Relation(NamedTuple):
    """How a statement relates to what is stored."""

    known: int | None  # the memory that says the same
    replaced: list[Hit]


async def _relate_to_memories(store: Store, candidate: Candidate, call: Call) -> _Relation:
    """Find the memory that says the same, or those that do not hold any more."""
    text = redaction.redact(candidate.text).text
    hits = list(await recall_without_use(store, call.scope, text, MAX_COMPARED_HITS))
    if candidate.context and candidate.role == "user" and supersede.is_elliptic(candidate.text):
        question = redaction.redact(candidate.context).text
        known_ids = {hit.id for hit in hits}
        more = await recall_without_use(store, call.scope, question, MAX_COMPARED_HITS)
        hits += [hit for hit in more if hit.id not in known_ids]
    if candidate.role == "user":  # what only others said is new from a person
        hits = [hit for hit in hits if hit.author == "person"]
    for hit in hits[:MAX_KNOWN_HITS]:
        parts = [hit.content, *extract.split_sentences(hit.content)]
        similar = [part for part in parts if _is_similar(text, part)]
        if any(candidate.role != "user" or not _is_different(text, part) for part in similar):
            return _Relation(hit.id, [])
    if candidate.role != "user" or not hits:
        return _Relation(None, [])
    return _Relation(None, await run_in_thread(_find_replaced, store, candidate, hits))


def _find_replaced(store: Store, candidate: Candidate, hits: Sequence[Hit]) -> list[Hit]:
    hits = [hit for hit in hits if supersede.are_comparable(candidate.kind, hit.memory_type)]
    chances = supersede.compare_statements(candidate, [hit.content for hit in hits], _get_model(store))
    return [hit for hit, chance in zip(hits, chances, strict=True) if chance >= supersede.MIN_REPLACEMENT][
        :MAX_REPLACED
    ]


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
    facts: dict[str, Any] = {"source": f"session {session}", "role": candidate.role}
    facts |= {
        name: value
        for name, value in (
            ("turn", candidate.turn),
            ("confidence", candidate.confidence),
            ("replaces", candidate.replaced),
            (REQUESTED_KEY, candidate.is_request or None),
        )
        if value is not None
    }
    kind, role = candidate.kind, candidate.role
    draft = inputs.create_draft(candidate.text, [AUTO_TAG, kind], kind, facts, IMPORTANCE_BY_ROLE[role])
    return replace(draft, author="person" if role == "user" else "agent")
