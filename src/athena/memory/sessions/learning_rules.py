"""What learning may not store: statements that a person dropped, and rules about statements like one.

A rule is a row of kind `rule`: its text is the example, its type the type of memory that it refuses. No search finds
such rows, and no operation of a program or a model changes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import compress
from typing import TYPE_CHECKING, Literal

from athena.core.home.paths import USER_PROJECT
from athena.core.values import Scope
from athena.core.words import stem_words, tokenize
from athena.embedding.embedder import Excerpt
from athena.embedding.minilm import MiniLM
from athena.memory import history_rows, link_rows, rows, write
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.prepare import prepare_memory
from athena.memory.rows import QUOTES_RELATION, MemoryRow
from athena.memory.sessions import learning_rows
from athena.memory.sessions.learning_rows import AUTO_TAG, EXAMPLE_KEY, RULE_KIND
from athena.memory.sessions.select import extract_words, find_specific_words, measure_overlap
from athena.memory.sessions.values import Candidate
from athena.memory.store import Store
from athena.memory.values import SERIAL_KEY, Draft, Memory
from athena.storage import scopes
from athena.storage.database import Transaction

if TYPE_CHECKING:  # numpy is slow to load; few learning calls have rules to compare with
    import numpy as np
    from numpy.typing import NDArray

# Chosen on the first half of tests/data/learning_rules.tsv, where it refuses 83 % of what a person would call alike and
# 7 % of what shares words with the rule but says something else; in the second half 85 % and 10 %.
MIN_LIKE_SIMILARITY = 0.55  # cosine of the bundled model
MIN_LIKE_SHARED_WORDS = 0.6  # of the rule's specific words, where the model does not run
MIN_SAME_OVERLAP = 0.6  # of the words of both
MIN_TOLD_CONFIDENCE = 0.95  # of what a briefing tells; the rest is there to be recalled, and told once it was used
MAX_CACHED_VECTORS = 500
MAX_CACHED_TEXTS = 2_000
REFUSED_ACTION = "refused"  # in the history of a rule
TOPIC_KEY, MODE_KEY = "topic", "mode"  # of a rule's metadata
Mode = Literal["same", "like"]  # refuse this very statement, or every statement like it

_rule_vectors: dict[tuple[str, str], "NDArray[np.float32]"] = {}  # by model and text


@dataclass(frozen=True, slots=True)
class LearningRule:
    """A rule of what learning may not store."""

    number: int
    kind: str  # the memory type of the statements that it refuses
    mode: Mode
    example: str
    topic: str | None  # statements of this kind that have all these words are refused, whatever else they say
    everywhere: bool  # holds in every project of the user
    created: float


def rule_from_memory(memory: Memory) -> LearningRule:
    facts = memory.metadata
    return LearningRule(
        memory.id, memory.memory_type, facts.get(MODE_KEY, "like"), memory.content, facts.get(TOPIC_KEY),
        memory.project == USER_PROJECT, memory.created,
    )  # fmt: skip


async def list_rules(store: Store, scope: Scope, *, with_dropped: bool) -> list[LearningRule]:
    """Return the rules that hold in a project, also those of single statements that a person dropped or changed."""
    memories = await store.database.read(partial(learning_rows.list_rule_memories, scope=scope))
    rules = [rule_from_memory(memory) for memory in memories]
    return [rule for rule in rules if with_dropped or rule.mode == "like"]


async def save_rule(
    store: Store, tx: Transaction, scope: Scope, row: MemoryRow, mode: Mode, topic: str | None, call_id: int
) -> int:
    """Write the rule that refuses a memory's statement, or statements like it, and return its number."""
    now, kind = store.clock(), row.memory.memory_type
    facts = {MODE_KEY: mode, EXAMPLE_KEY: row.memory.id, SERIAL_KEY: f"{mode} {kind}"}
    facts |= {} if topic is None else {TOPIC_KEY: topic}
    draft = Draft(row.memory.content, (), kind, facts, author="person")
    prepared = prepare_memory(draft, now)
    scope_id = await scopes.ensure_scope(tx, scope.with_kind(RULE_KIND))
    known = await rows.find_rows_by_digest(tx, scope_id, prepared.digest)
    if not known:
        rule_id = await write.insert_memory(store, tx, scope_id, prepared, now)
        await history_rows.insert_change(tx, scope_id, rule_id, call_id, now, REFUSED_ACTION, None)
    else:
        rule_id = known[0].memory.id
        await history_rows.insert_row_change(tx, known[0], call_id, now, REFUSED_ACTION)
        await write.rewrite_memory(store, tx, known[0], prepared, now)
    if mode == "same":  # nobody reads it as a rule, so it goes with the memory if that is purged
        await link_rows.insert_link(tx, scope_id, rule_id, row.memory.id, QUOTES_RELATION, now)
    return rule_id


async def remove_refused(store: Store, scope: Scope, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates that no rule and no dropped statement of the project or of the user refuses."""
    if not candidates:
        return []
    rules = await list_rules(store, scope, with_dropped=True)
    rules_by_meaning = [rule for rule in rules if rule.mode == "like"]
    allowed = [not any(_refuses_words(rule, candidate) for rule in rules) for candidate in candidates]
    left = list(compress(candidates, allowed))
    kinds = {rule.kind for rule in rules_by_meaning}
    if not any(candidate.kind in kinds for candidate in left):
        return left
    return await _remove_alike(store, rules_by_meaning, left)


def _refuses_words(rule: LearningRule, candidate: Candidate) -> bool:
    """Return whether a rule refuses a candidate for its words: it is the rule's example, or about its topic."""
    if is_same_statement(rule.example, candidate.text):
        return True
    if rule.topic is None or rule.kind != candidate.kind:
        return False
    return {*stem_words(rule.topic)} <= {*stem_words(candidate.text)}


def is_same_statement(text: str, other: str) -> bool:
    """Return whether two texts state the same: the same words, or nearly, with the same values, names and negation."""
    (all_words, words), (other_all_words, other_words) = _get_words(text), _get_words(other)
    if all_words == other_all_words:
        return True
    if measure_overlap(words, other_words) < MIN_SAME_OVERLAP:
        return False
    specific, other_specific = find_specific_words(text), find_specific_words(other)
    return not (specific - other_specific and other_specific - specific) and are_consistent(text, other)


@lru_cache(maxsize=MAX_CACHED_TEXTS)
def _get_words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return all words of a text, and those by which `measure_overlap` compares."""
    return frozenset(tokenize(text)), extract_words(text)


async def _remove_alike(
    store: Store, rules: Sequence[LearningRule], candidates: Sequence[Candidate]
) -> list[Candidate]:
    """Return the candidates that are not like the example of a rule of their kind."""
    kinds = {rule.kind for rule in rules}
    texts = [candidate.text for candidate in candidates if candidate.kind in kinds]
    vectors = await _encode_texts(store, [rule.example for rule in rules], texts)
    if vectors is None:
        return [one for one in candidates if not any(_shares_words(rule, one) for rule in rules)]
    rule_vectors, vectors_by_text = vectors[0], dict(zip(texts, vectors[1], strict=True))
    return [
        one
        for one in candidates
        if not any(
            rule.kind == one.kind and float(vector @ vectors_by_text[one.text]) >= MIN_LIKE_SIMILARITY
            for rule, vector in zip(rules, rule_vectors, strict=True)
        )
    ]


def _shares_words(rule: LearningRule, candidate: Candidate) -> bool:
    words = find_specific_words(rule.example)
    shared = len(words & find_specific_words(candidate.text))
    return rule.kind == candidate.kind and bool(words) and shared >= MIN_LIKE_SHARED_WORDS * len(words)


async def _encode_texts(
    store: Store, examples: Sequence[str], texts: Sequence[str]
) -> tuple[list["NDArray[np.float32]"], list["NDArray[np.float32]"]] | None:
    """Return the vectors of examples and of texts; None where the bundled model does not run."""
    if not isinstance(store.encoder.embedder, MiniLM):
        return None  # the similarity that counts as alike was measured with the bundled model
    model = store.encoder.name
    new = [text for text in dict.fromkeys(examples) if (model, text) not in _rule_vectors]
    encodings = await store.encoder.encode_passages([Excerpt(text, "") for text in (*new, *texts)])
    if encodings is None:
        return None
    vectors = [encoding.vector for encoding in encodings]
    known = {text: _rule_vectors.get((model, text)) for text in examples} | dict(zip(new, vectors, strict=False))
    if len(_rule_vectors) + len(new) > MAX_CACHED_VECTORS:
        _rule_vectors.clear()
    _rule_vectors.update({(model, text): vector for text, vector in known.items() if vector is not None})
    return [vector for text in examples if (vector := known[text]) is not None], vectors[len(new) :]


def is_doubtful(memory: Memory) -> bool:
    """Return whether learning was not sure that a memory is worth keeping; a change of mind always is."""
    facts = memory.metadata
    confidence = facts.get("confidence")
    is_sure = not isinstance(confidence, float) or confidence >= MIN_TOLD_CONFIDENCE
    return AUTO_TAG in memory.tags and not (is_sure or facts.get("replaces") or facts.get("confirmed"))
