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
from athena.memory.sessions import extract, learning_rows, statements, supersede
from athena.memory.sessions.commands import get_typed_part, is_unrecorded
from athena.memory.sessions.episodes import record_episode
from athena.memory.sessions.learning import Forgetting, forget_retracted
from athena.memory.sessions.learning_rows import AUTO_TAG
from athena.memory.sessions.learning_rules import is_same_statement, remove_refused
from athena.memory.sessions.llm_proposals import add_llm_proposals
from athena.memory.sessions.offers import mark_everywhere
from athena.memory.sessions.questions import MIN_UNDECIDED, contradict, record_questions
from athena.memory.sessions.rows import list_replaced, record_changes
from athena.memory.sessions.select import (
    extract_words,
    find_specific_words,
    measure_overlap,
    recall_without_use,
)
from athena.memory.sessions.turns import SessionTurns, Sign, list_turns, read_turns, save_turns
from athena.memory.sessions.values import (
    EVERYWHERE_KEY,
    REQUESTED_KEY,
    SAID_KEY,
    Candidate,
    Learned,
    Lesson,
    Utterance,
)
from athena.memory.sessions.wording import is_storable
from athena.memory.store import Store
from athena.memory.values import Draft, Hit, Memory, Stored
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
    sign: Sign,
    keep: bool = True,
    dry_run: bool = False,
) -> Lesson:
    """Store what was decided in a session, then its episode; without `keep`, only the episode.

    Turns that were learned from before are context. What was said before somebody changed, replaced, confirmed or
    forgot a memory does nothing to it.
    """
    summary = extract.strip_summary_tags(summary or "").strip() or None
    texts = [*messages, *([Utterance("assistant", summary)] if summary else [])]
    turns = await read_turns(store, call.scope, session, messages, sign)
    proposed, retracted = await run_long_in_thread(_find_candidates, store, texts, turns) if keep else ([], [])
    if retracted and not dry_run:
        forgettings = [_to_forgetting(one, session, turns) for one in retracted]
        await forget_retracted(store, forgettings, session, _derive_call(call, "forgotten"))
    requested = [candidate for candidate in proposed if candidate.is_request]
    candidates = requested + await remove_refused(
        store, call.scope, [candidate for candidate in proposed if not candidate.is_request]
    )
    forgotten = await _find_forgotten(store, call.scope, candidates)
    last = {candidate.text: candidate for candidate in proposed}
    candidates = [candidate for candidate in proposed if candidate in candidates and last[candidate.text] is candidate]
    fresh: list[Candidate] = []
    told: list[Candidate] = []  # what the episode may tell: all that is stored, now or before
    relations: list[_Relation] = []  # of each fresh one
    restored: list[tuple[int, float]] = []
    said_again: set[int] = set()  # memories that do not hold and were said again in other words
    known, refused = 0, sum(one.turn not in turns.old and one not in candidates for one in proposed)
    for candidate in candidates:
        relation = await _relate_to_memories(store, candidate, call)
        if relation.known is not None:
            known += 1
            told += [] if candidate.is_weak or relation.is_over else [candidate]
            if candidate.role == "user" and not relation.is_over:  # nobody else brings back what a person replaced
                restored.append((relation.known, candidate.at))
            continue
        if candidate.turn in turns.old:  # who changed, forgot or purged since what it left had a reason
            continue
        if candidate in forgotten:
            refused += 1
            continue
        relation = await _add_earlier_turn(store, candidate, relation, session, turns, call)
        if candidate.is_weak and not (relation.replaced or candidate.replaced):
            # it is no statement, but may say what comes next: "next time: the certificate for the EU"
            told += [candidate] if candidate.kind == "todo" and candidate.role == "user" else []
            continue
        told += [] if relation.newer else [candidate]
        hidden = [hit for hit in relation.replaced if AUTO_TAG in hit.tags]  # what a person stored is theirs to change
        if relation.is_said_again:  # as told now, by this session: it replaces what replaced the earlier one
            said_again.add(hidden[0].id)
        elif hidden:
            candidate = supersede.add_replaced(candidate, hidden[0].content)
        fresh.append(candidate)
        relations.append(relation._replace(replaced=hidden))
    drafts = [_create_candidate_draft(candidate, session, turns.now) for candidate in fresh]
    if dry_run:
        return Lesson(None, tuple(_to_learned(0, "", draft, "new") for draft in drafts), known, refused)

    async def write_relations(tx: Transaction, stored: Sequence[Memory]) -> None:
        links: list[tuple[int, int, float]] = []
        pairs: list[tuple[int, int]] = []
        for memory, candidate, relation in zip(stored, fresh, relations, strict=True):
            links += [(hit.id, memory.id, candidate.at) for hit in relation.replaced]
            links += [(memory.id, hit.id, at) for hit, at in relation.newer]
            pairs += [(hit.id, memory.id) for hit in relation.undecided]
        await record_changes(call.scope, links, restored, said_again, tx)
        await record_questions(call.scope, pairs, store.clock(), tx)

    stored: Sequence[Stored] = ()
    if drafts:  # with the links in the same transaction: a known statement would get none the next time
        memories_call = _derive_call(call, hash_text("\n".join(draft.content for draft in drafts)))
        stored = await remember(store, drafts, memories_call, read_first=False, then=write_relations)
    elif restored:
        await store.database.write(partial(write_relations, stored=()))
    learned = tuple(_to_learned(m.id, m.hash, Draft.from_memory(m), m.outcome) for m in stored)
    # last: a session with an episode has been learned from
    episode = await record_episode(store, session, messages, summary, told, _derive_call(call, "episode"))
    if keep:
        await store.database.write(partial(save_turns, call.scope, turns))
    return Lesson(episode, learned, known, refused)


def _to_forgetting(one: statements.Retracted, session: str, turns: SessionTurns) -> Forgetting:
    source = None if one.source is None else (session, one.source, turns.get_time(one.source))
    return Forgetting(turns.get_time(one.turn), one.topic, one.text, source)


async def _find_forgotten(store: Store, scope: Scope, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that somebody forgot after they were said."""
    since = min((candidate.at for candidate in candidates), default=store.clock())
    left, found, last_id = list(candidates), list[Candidate](), 0

    async def read_page(tx: Transaction) -> list[tuple[int, str, float]]:
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        return await learning_rows.list_forgotten_since(tx, scope_ids, since, last_id)

    def compare() -> list[Candidate]:
        return [one for one in left if any(one.at < at and is_same_statement(text, one.text) for _, text, at in page)]

    while left and (page := await store.database.read(read_page)):
        found += (same := await run_in_thread(compare))
        left, last_id = [one for one in left if one not in same], page[-1][0]
    return found


async def _add_earlier_turn(
    store: Store, candidate: Candidate, relation: "_Relation", session: str, turns: SessionTurns, call: Call
) -> "_Relation":
    """Return the relation with what the old turn left that a statement of the same session replaces."""
    turn, text = candidate.replaced_turn, candidate.replaced
    if turn not in turns.old or text is None or relation.is_said_again:
        return relation
    source = Forgetting(candidate.at, source=(session, turn, turns.get_time(turn)))
    hits = await recall_without_use(store, call.scope, redaction.redact(text).text, MAX_COMPARED_HITS)
    known_ids = {hit.id for hit in relation.replaced}
    last = await store.database.read(partial(learning_rows.fetch_last_times, scope=call.scope, memories=hits))
    left = [hit for hit in hits if hit.id not in known_ids and source.is_meant(hit, last[hit.id])]
    return relation._replace(replaced=[*left[:1], *relation.replaced])


def _to_learned(memory_id: int, short_hash: str, draft: Draft, outcome: str) -> Learned:
    evidence = (draft.metadata.get(key) for key in ("role", "turn", "confidence"))
    return Learned(memory_id, short_hash, draft.content, draft.memory_type, outcome, *evidence)


def _find_candidates(
    store: Store, messages: Sequence[Utterance], turns: SessionTurns
) -> tuple[list[Candidate], list[statements.Retracted]]:
    """Return what users stated, causes and fixes that agents found, and what users took back.

    Statements of old turns are among them, for the episode.
    """
    model = _get_model(store)
    found = statements.find_statements(messages, model, turns.old)
    proposed = add_llm_proposals(store.chat, messages, found.statements, model)
    by_users = [to_candidate(one) for one in proposed]
    by_users = supersede.settle_changes(_select_best(by_users, turns.old), model)
    by_users = mark_everywhere(by_users, [message.text for message in messages if message.role == "user"])
    answers = [message.text for message in messages[turns.first_new :] if message.role != "user"]
    prompts = [
        get_typed_part(text)
        for number, (text, _) in enumerate(list_turns(messages), 1)
        if number not in turns.old and not is_unrecorded(text)
    ]
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
    by_users = [one._replace(at=turns.get_time(one.turn)) for one in by_users]
    return by_users + [one._replace(at=_find_time(one.text, messages, turns.now)) for one in fixes], found.retracted


def _find_time(text: str, messages: Sequence[Utterance], now: float) -> float:
    """Return when a sentence was last said."""
    times = (message.at for message in reversed(messages) if text in message.text)
    at = next(times, None)
    return now if at is None else min(at, now)


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


def _select_best(candidates: list[Candidate], old: frozenset[int]) -> list[Candidate]:
    """Return the statements of a session, in order; of too many the new ones most surely worth keeping."""
    if len(candidates) <= MAX_STATEMENTS:
        return candidates
    ranked = sorted(
        range(len(candidates)),
        key=lambda i: (candidates[i].turn not in old, candidates[i].is_request, candidates[i].confidence or 0.0, i),
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
    is_over: bool = False  # the memory that says the same was replaced after the statement
    newer: Sequence[tuple[Hit, float]] = ()  # said after the statement, each when, and replace it


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
    ids = [hit.id for hit in hits]
    over = await store.database.read(partial(list_replaced, scope=call.scope, ids=ids)) if ids else {}
    for hit in sorted(hits[:MAX_KNOWN_HITS], key=lambda hit: hit.id in over):  # first those that hold
        parts = [hit.content, *extract.split_sentences(hit.content)]
        similar = [part for part in parts if _is_similar(text, part)]
        if any(candidate.role != "user" or not _is_different(text, part) for part in similar):
            if candidate.at < over.get(hit.id, 0.0):
                return _Relation(hit.id, is_over=True)
            if candidate.role == "user" and hit.content != text and AUTO_TAG in hit.tags and hit.id in over:
                return _Relation(None, [hit], is_said_again=True)
            return _Relation(hit.id)
    hits = [hit for hit in hits if hit.id not in over]
    if candidate.role != "user" or not hits:
        return _Relation(None)
    last = await store.database.read(partial(learning_rows.fetch_last_times, scope=call.scope, memories=hits))
    earlier = [hit for hit in hits if last[hit.id] <= candidate.at]
    later = [hit for hit in hits if last[hit.id] > candidate.at]
    replaced, undecided = await run_in_thread(_compare_with_hits, store, candidate, earlier) if earlier else ([], [])
    newer = await run_in_thread(_find_newer, store, candidate, later) if later else []
    undecided = [hit for hit in undecided if hit.project == call.scope.project]
    return _Relation(None, replaced, undecided, newer=[(hit, last[hit.id]) for hit in newer[:MAX_REPLACED]])


def _find_newer(store: Store, candidate: Candidate, hits: Sequence[Hit]) -> list[Hit]:
    """Return the memories, all said later, that replace a statement."""
    model = _get_model(store)
    newer = [(hit, Candidate(hit.content, hit.memory_type, "user")) for hit in hits]
    return [
        hit
        for hit, other in newer
        if supersede.are_comparable(other.kind, candidate.kind)
        and supersede.compare_statements(other, [candidate.text], model)[0] >= supersede.get_threshold(other)
    ]


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


def _create_candidate_draft(candidate: Candidate, session: str, now: float) -> Draft:
    # The session goes to `source`, not to `session_id`: the same text in two sessions must be one memory.
    facts: dict[str, Any] = {"source": f"session {session}", "role": candidate.role}
    facts |= {
        name: value
        for name, value in (
            ("turn", candidate.turn),
            ("confidence", candidate.confidence),
            ("replaces", candidate.replaced),
            ("proposer", candidate.proposer),
            (SAID_KEY, None if candidate.at == now else candidate.at),
            (REQUESTED_KEY, candidate.is_request or None),
            (EVERYWHERE_KEY, candidate.holds_everywhere or None),
        )
        if value is not None
    }
    kind, role = candidate.kind, candidate.role
    draft = inputs.create_draft(candidate.text, [AUTO_TAG, kind], kind, facts, IMPORTANCE_BY_ROLE[role])
    return replace(draft, author="person" if role == "user" else "agent")
