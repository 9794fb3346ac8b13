"""Learn from a finished session: store an episode that summarizes it, and memories of what was decided.

Nothing of a prompt is stored but its statements. An episode tells what was decided and done, and how it ended.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from athena.core import redaction
from athena.core.hashing import hash_text
from athena.core.threads import run_in_thread, run_long_in_thread
from athena.core.values import Call, Scope
from athena.embedding.minilm import MiniLM
from athena.memory import inputs
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.remember import remember
from athena.memory.sessions import extract, statements, supersede
from athena.memory.sessions.commands import get_typed_part, is_unrecorded
from athena.memory.sessions.episodes import record_episode
from athena.memory.sessions.learning import forget_topics
from athena.memory.sessions.learning_rows import AUTO_TAG
from athena.memory.sessions.learning_rules import remove_refused
from athena.memory.sessions.llm_proposals import add_llm_proposals
from athena.memory.sessions.offers import mark_everywhere
from athena.memory.sessions.questions import MIN_UNDECIDED, contradict, record_questions
from athena.memory.sessions.rows import record_changes
from athena.memory.sessions.select import (
    extract_words,
    find_specific_words,
    measure_overlap,
    recall_without_use,
)
from athena.memory.sessions.values import (
    EVERYWHERE_KEY,
    REQUESTED_KEY,
    Candidate,
    Learned,
    Lesson,
    Utterance,
)
from athena.memory.sessions.wording import is_storable
from athena.memory.store import Store
from athena.memory.topic_rows import fetch_contradictions
from athena.memory.values import Draft, Hit
from athena.storage import scopes
from athena.storage.database import Transaction

IMPORTANCE_BY_ROLE = {"user": 0.4, "assistant": 0.25}  # an agent may repeat what any page says
KNOWN_OVERLAP = 0.6  # of the words of both texts
KNOWN_COVERAGE = 0.85  # of the candidate's words
MAX_STATEMENTS = 100  # of a session
MAX_COMPARED_HITS, MAX_KNOWN_HITS, MAX_REPLACED, MAX_UNDECIDED = 8, 3, 2, 1


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
    proposed, forgotten = await run_long_in_thread(_find_candidates, store, texts) if keep else ([], [])
    if forgotten and not dry_run:
        await forget_topics(store, forgotten, _derive_call(call, "forgotten"))
    requested = [candidate for candidate in proposed if candidate.is_request]
    candidates = requested + await remove_refused(
        store, call.scope, [candidate for candidate in proposed if not candidate.is_request]
    )
    candidates.sort(key=proposed.index)
    fresh: list[Candidate] = []
    told: list[Candidate] = []  # what the episode may tell: all that is stored, now or before
    replaced: list[list[int]] = []  # for each fresh one, the memories that it replaces
    undecided: list[list[int]] = []  # for each fresh one, the memories of which a person is to say whether they hold
    restored: list[int] = []
    said_again: set[int] = set()  # memories that do not hold and were said again in other words
    known = 0
    for candidate in candidates:
        relation = await _relate_to_memories(store, candidate, call)
        if relation.known is not None:
            known += 1
            told += [] if candidate.is_weak else [candidate]
            if candidate.role == "user":  # nobody else brings back what a person replaced
                restored.append(relation.known)
            continue
        if candidate.is_weak and not (relation.replaced or candidate.replaced):
            # it is no statement, but may say what comes next: "next time: the certificate for the EU"
            told += [candidate] if candidate.kind == "todo" and candidate.role == "user" else []
            continue
        told.append(candidate)
        hidden = [hit for hit in relation.replaced if AUTO_TAG in hit.tags]  # what a person stored is theirs to change
        if relation.is_said_again:  # as told now, by this session: it replaces what replaced the earlier one
            said_again.add(hidden[0].id)
        elif hidden:
            candidate = supersede.add_replaced(candidate, hidden[0].content)
        fresh.append(candidate)
        replaced.append([hit.id for hit in hidden])
        undecided.append([hit.id for hit in relation.undecided])
    refused = len(proposed) - len(candidates)
    drafts = [_create_candidate_draft(candidate, session) for candidate in fresh]
    if dry_run:
        return Lesson(None, tuple(_to_learned(0, "", draft, "new") for draft in drafts), known, refused)
    memories_call = _derive_call(call, hash_text("\n".join(draft.content for draft in drafts)))
    stored = await remember(store, drafts, memories_call, read_first=False) if drafts else []
    links = [(old, memory.id) for memory, old_ids in zip(stored, replaced, strict=True) for old in old_ids]
    if links or restored:
        await store.database.write(partial(record_changes, call.scope, links, restored, said_again, store.clock()))
    questions = [(old, memory.id) for memory, old_ids in zip(stored, undecided, strict=True) for old in old_ids]
    if questions:
        await store.database.write(partial(record_questions, call.scope, questions, store.clock()))
    learned = tuple(_to_learned(m.id, m.hash, Draft.from_memory(m), m.outcome) for m in stored)
    # last: a session with an episode has been learned from
    episode = await record_episode(store, session, messages, summary, told, _derive_call(call, "episode"))
    return Lesson(episode, learned, known, refused)


def _to_learned(memory_id: int, short_hash: str, draft: Draft, outcome: str) -> Learned:
    evidence = (draft.metadata.get(key) for key in ("role", "turn", "confidence"))
    return Learned(memory_id, short_hash, draft.content, draft.memory_type, outcome, *evidence)


def _find_candidates(store: Store, messages: Sequence[Utterance]) -> tuple[list[Candidate], list[frozenset[str]]]:
    """Return what users stated, causes and fixes that agents found, and the topics that users asked to forget."""
    model = _get_model(store)
    found = statements.find_statements(messages, model)
    proposed = add_llm_proposals(store.chat, messages, found.statements, model)
    by_users = [to_candidate(one) for one in proposed]
    by_users = supersede.settle_changes(_select_best(by_users), model)
    by_users = mark_everywhere(by_users, [message.text for message in messages if message.role == "user"])
    answers = [message.text for message in messages if message.role != "user"]
    prompts = [get_typed_part(text) for text, _ in statements.list_turns(messages) if not is_unrecorded(text)]
    fixes = [Candidate(text, "fix", "assistant") for text in extract.find_fixes(answers)]
    own_fixes = [text for text in extract.find_fixes(prompts) if is_storable(text)]
    fix_words = [extract_words(text) for text in own_fixes]  # a cause and its fix stay together
    by_users = [
        one for one in by_users if one.is_request or not any(extract_words(one.text) <= words for words in fix_words)
    ]
    told = [extract_words(candidate.text) for candidate in by_users]
    fixes += [
        Candidate(text, "fix", "user")
        for text, words in zip(own_fixes, fix_words, strict=True)
        if all(measure_overlap(words, other) < KNOWN_OVERLAP for other in told)
    ]
    return by_users + fixes, found.forgotten


def to_candidate(one: statements.Statement) -> Candidate:
    candidate = Candidate(
        one.text,
        one.memory_type,
        one.role,
        one.turn,
        one.confidence,
        one.is_change,
        one.is_request,
        one.is_weak,
        one.context,
        one.answer,
        proposer=one.proposer,
    )
    return supersede.add_replaced(candidate, one.taken_back) if one.taken_back else candidate


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


class _Relation(NamedTuple):
    """How a statement relates to what is stored."""

    known: int | None  # the memory that says the same
    replaced: Sequence[Hit] = ()
    undecided: Sequence[Hit] = ()  # of the project, that contradict it and may hold
    is_said_again: bool = False  # in other words, what the replaced one says, which does not hold any more


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
    over = await _find_replaced(store, call.scope, hits)
    for hit in sorted(hits[:MAX_KNOWN_HITS], key=lambda hit: hit.id in over):  # first those that hold
        parts = [hit.content, *extract.split_sentences(hit.content)]
        similar = [part for part in parts if _is_similar(text, part)]
        if any(candidate.role != "user" or not _is_different(text, part) for part in similar):
            if candidate.role == "user" and hit.content != text and AUTO_TAG in hit.tags and hit.id in over:
                return _Relation(None, [hit], is_said_again=True)
            return _Relation(hit.id)
    if candidate.role != "user" or not hits:
        return _Relation(None)
    hits = [hit for hit in hits if hit.id not in over]
    if not hits:
        return _Relation(None)
    replaced, undecided = await run_in_thread(_compare_with_hits, store, candidate, hits)
    return _Relation(None, replaced, [hit for hit in undecided if hit.project == call.scope.project])


async def _find_replaced(store: Store, scope: Scope, hits: Sequence[Hit]) -> set[int]:
    """Return those of the memories that do not hold any more."""

    async def read_replaced(tx: Transaction) -> set[int]:
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        return set(await fetch_contradictions(tx, scope_ids, [hit.id for hit in hits]))

    return await store.database.read(read_replaced) if hits else set()


def _compare_with_hits(store: Store, candidate: Candidate, hits: Sequence[Hit]) -> tuple[list[Hit], list[Hit]]:
    """Return the memories that a statement replaces, and those that it contradicts and may replace."""
    hits = [hit for hit in hits if supersede.are_comparable(candidate.kind, hit.memory_type)]
    # no agent's answer helps to replace what a person asked to remember
    if any(hit.metadata.get(REQUESTED_KEY) for hit in hits):
        candidate = candidate._replace(answer="")
    chances = supersede.compare_statements(candidate, [hit.content for hit in hits], _get_model(store))
    threshold = supersede.get_threshold(candidate)
    replaced = [hit for hit, chance in zip(hits, chances, strict=True) if chance >= threshold][:MAX_REPLACED]
    undecided = [
        hit
        for hit, chance in zip(hits, chances, strict=True)
        if MIN_UNDECIDED <= chance < threshold and contradict(candidate.text, hit.content)
    ]
    return replaced, undecided[:MAX_UNDECIDED]


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
            ("proposer", candidate.proposer),
            (REQUESTED_KEY, candidate.is_request or None),
            (EVERYWHERE_KEY, candidate.holds_everywhere or None),
        )
        if value is not None
    }
    kind, role = candidate.kind, candidate.role
    draft = inputs.create_draft(candidate.text, [AUTO_TAG, kind], kind, facts, IMPORTANCE_BY_ROLE[role])
    return replace(draft, author="person" if role == "user" else "agent")
