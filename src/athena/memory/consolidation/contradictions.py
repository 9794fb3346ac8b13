"""Find memories that cannot both be true: the same subject with another value, or affirmed and negated.

Two statements contradict each other if they have the same subject and differ in exactly one place. If they differ in
two places, they mostly concern two things ("the staging database runs 15", "the production database runs 16").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache

from athena.memory.consolidation import confidence
from athena.memory.consolidation.statements import (
    GENERIC_PREDICATES,
    Statement,
    StatementValue,
    differs_in_one_value,
    is_one_sentence,
    parse_statement,
    split_sentences,
    to_template,
)
from athena.memory.consolidation.values import MinedMemory, Pattern, to_quote
from athena.memory.values import DOCUMENT_TYPE

MAX_COMPARED_STATEMENTS = 60
MAX_WORD_STATEMENTS = 200  # a more frequent word does not make a pair of statements a candidate
MIN_CANDIDATE_CONFIDENCE = 0.05
MIN_CERTAIN_CONFIDENCE = 0.97  # needed to lower the importance of the older memory
MAX_SERIES_READINGS = 3  # more statements that differ only in numbers are a log of measurements
ONE_SIDED_WEIGHT = 0.4  # of words that only one of the statements has: they may be mere detail
UNITLESS_VALUE_TYPE = "number "


def find_contradictions(memories: Iterable[MinedMemory]) -> list[Pattern]:
    """Return pairs of memories that contradict each other, the most certain first."""
    memories = [memory for memory in memories if memory.memory_type != DOCUMENT_TYPE]
    statements = [
        parse_statement(memory.id, memory.at, text) for memory in memories for text in split_sentences(memory.text)
    ]
    uncapitalized = {word for statement in statements for word in statement.subject_stems - statement.capitalized_stems}
    counts = Counter(word for statement in statements for word in statement.subject_stems)
    total = len(statements) + 1
    weights = {word: math.log(total / count) + 0.1 for word, count in counts.items()}
    one_sentence_ids = {memory.id for memory in memories if is_one_sentence(memory.text)}
    find_template = cache(to_template)  # for this run alone: texts that people forget must not stay in memory
    series_by_template: dict[str, list[int]] = defaultdict(list)  # memory ids by time
    for statement in sorted(statements, key=lambda statement: (statement.at, statement.memory_id)):
        series_by_template[find_template(statement.text)].append(statement.memory_id)
    patterns: dict[tuple[int, int], Pattern] = {}
    for pair in _iter_candidate_pairs(statements, counts):
        older, newer = sorted(pair, key=lambda statement: (statement.at, statement.memory_id))
        series = series_by_template[find_template(newer.text)]
        if len(series) > 2 and older.memory_id in series and series[-2:] != [older.memory_id, newer.memory_id]:
            continue  # of a series, only the last two are compared
        features = compute_contradiction_features(older, newer, weights, uncapitalized)
        if features is None:
            continue
        may_be_certain = older.memory_id in one_sentence_ids and len(series) <= MAX_SERIES_READINGS
        pattern = _create_contradiction(older, newer, features, may_be_certain)
        best = patterns.get((older.memory_id, newer.memory_id))
        if pattern.confidence >= MIN_CANDIDATE_CONFIDENCE and (best is None or best.confidence < pattern.confidence):
            patterns[older.memory_id, newer.memory_id] = pattern
    return sorted(patterns.values(), key=lambda pattern: (-pattern.confidence, pattern.evidence))


def _iter_candidate_pairs(
    statements: Sequence[Statement], counts: Counter[str]
) -> Iterable[tuple[Statement, Statement]]:
    """Yield pairs of statements that share a word of the subject, for each statement those that share the most."""
    indexes_by_word: dict[str, list[int]] = defaultdict(list)
    for i, statement in enumerate(statements):
        for word in statement.subject_stems:
            if counts[word] <= MAX_WORD_STATEMENTS:
                indexes_by_word[word].append(i)
    for i, statement in enumerate(statements):
        shared: Counter[int] = Counter()
        for word in statement.subject_stems:
            for other in indexes_by_word.get(word, ()):
                if statements[other].memory_id != statement.memory_id and other < i:
                    shared[other] += 1
        for other, _ in shared.most_common(MAX_COMPARED_STATEMENTS):
            yield statement, statements[other]


def compute_contradiction_features(
    older: Statement, newer: Statement, weights: dict[str, float], uncapitalized: set[str]
) -> tuple[float, ...] | None:
    """Return the features of a candidate pair; None if the statements do not oppose each other."""
    both = older.subject_stems & newer.subject_stems
    older_only, newer_only = set(older.subject_stems - both), set(newer.subject_stems - both)
    opposed = _count_opposed_values(older, newer)
    changed = newer.says_change and _restates_older(older, newer, newer_only)
    if changed and not opposed:
        opposed = 1
        newer_only = _drop_heaviest_word(newer_only, weights)
    takes_other_side = any(newer.axes.get(axis, side) != side for axis, side in older.axes.items())
    replaces_word = False
    negated = older.is_negated != newer.is_negated and not changed and not takes_other_side
    if (
        older_only
        and newer_only
        and not opposed
        and not takes_other_side
        and not negated
        and _replaces_one_word(older, newer, older_only, newer_only, uncapitalized)
    ):
        opposed, replaces_word = 1, True
        older_only, newer_only = _drop_heaviest_word(older_only, weights), _drop_heaviest_word(newer_only, weights)
    if not (opposed or takes_other_side or negated):
        return None
    if not (changed or newer.says_change or replaces_word) and _concern_two_things(
        older, newer, takes_other_side + negated
    ):
        return None
    other_identifiers = older.identifiers != newer.identifiers
    shared = sum(weights[word] for word in both)
    least, most = sorted(sum(weights[word] for word in words) for words in (older_only, newer_only))
    different = 2 * least + ONE_SIDED_WEIGHT * (most - least)
    older_predicates, newer_predicates = older.predicates - GENERIC_PREDICATES, newer.predicates - GENERIC_PREDICATES
    other_predicate = float(bool(older_predicates and newer_predicates and not older_predicates & newer_predicates))
    if not changed and (
        (older_predicates and newer_only and not newer_predicates)
        or (newer_predicates and older_only and not older_predicates)
    ):
        other_predicate = 0.5  # "billing is deployed on Mondays", "the billing standup is on Tuesdays"
    return (
        shared / (shared + different) if shared else 0.0,
        float(min(len(older_only), len(newer_only))),
        float(opposed + takes_other_side + negated + other_identifiers - 1),
        float(changed),
        other_predicate,
        float(older.is_one_time or newer.is_one_time or other_identifiers),
        float(replaces_word),
        float(bool(older_predicates & newer_predicates)),
        float((older.is_additive or newer.is_additive) and not negated and not takes_other_side),
    )


def _concern_two_things(older: Statement, newer: Statement, other_differences: int) -> bool:
    """Return whether statements that differ in a value also differ in their subject."""
    if older.identifiers != newer.identifiers:  # two tickets, two releases
        return True
    value_differences = max(len(older.values - newer.values), len(newer.values - older.values))
    if value_differences + other_differences > 1:  # noon on Mondays, one o'clock on Fridays
        return True
    return bool(older.qualifiers - newer.stems and newer.qualifiers - older.stems)  # for free users, for paid ones


def are_consistent(text: str, other: str) -> bool:
    """Return whether two similar texts give the same values, take the same sides and negate the same."""
    for sentence, other_sentence in zip(split_sentences(text), split_sentences(other), strict=False):
        a, b = parse_statement(0, 0.0, sentence), parse_statement(0, 0.0, other_sentence)
        if a.values != b.values or a.identifiers != b.identifiers or a.is_negated != b.is_negated:
            return False
        if any(b.axes.get(axis, side) != side for axis, side in a.axes.items()):
            return False
    return True


def _count_opposed_values(older: Statement, newer: Statement) -> int:
    """Count the value types that both statements give, with no value in common."""
    value_types = {v.value_type for v in older.values} & {v.value_type for v in newer.values}
    opposed = sum(
        not _select_values(older.values, value_type) & _select_values(newer.values, value_type)
        for value_type in value_types
    )
    if value_types or not any(
        UNITLESS_VALUE_TYPE in (v.value_type for v in statement.values) for statement in (older, newer)
    ):
        return opposed
    older_numbers, newer_numbers = (
        {v.text for v in statement.values if v.value_type.startswith("number")} for statement in (older, newer)
    )
    return int(len(older_numbers) == len(newer_numbers) == 1 and older_numbers != newer_numbers)


def _select_values(values: Iterable[StatementValue], value_type: str) -> set[str]:
    return {value.text for value in values if value.value_type == value_type}


def _restates_older(older: Statement, newer: Statement, newer_only: set[str]) -> bool:
    """Return whether the newer statement repeats the old value or subject beside the new one ("from 5 to 7")."""
    older_values = {v.text for v in older.values}
    newer_values = {v.text for v in newer.values}
    if older_values and older_values <= newer_values and newer_values - older_values:
        return True
    return older.subject_stems <= newer.subject_stems and bool(newer_only) and not older_values


def _replaces_one_word(
    older: Statement, newer: Statement, older_only: set[str], newer_only: set[str], uncapitalized: set[str]
) -> bool:
    """Return whether one word takes the place of another: a name, or a word that is not of the subject."""
    older_names, newer_names = older_only - uncapitalized, newer_only - uncapitalized
    names_owner = bool({"own", "review"} & older.predicates)
    if older_names & older.capitalized_stems and newer_names & newer.capitalized_stems:
        return names_owner or not (older_names <= older.leading_stems and newer_names <= newer.leading_stems)
    if names_owner or len(older_only) > 1 or len(newer_only) > 1:
        return False
    return not (
        older_only <= older.leading_stems | older.scope_stems and newer_only <= newer.leading_stems | newer.scope_stems
    )


def _drop_heaviest_word(words: set[str], weights: dict[str, float]) -> set[str]:
    return set(sorted(words, key=lambda word: (-weights[word], word))[1:])


def _create_contradiction(
    older: Statement, newer: Statement, features: tuple[float, ...], may_be_certain: bool
) -> Pattern:
    """Create a pattern; it is certain if the newer statement says that something changed or differs in one value."""
    probability = confidence.compute_confidence("contradiction", features)
    is_certain = (
        may_be_certain
        and probability >= MIN_CERTAIN_CONFIDENCE
        and (newer.says_change or differs_in_one_value(older.text, newer.text))
    )
    return Pattern(
        type="contradiction",
        about=f"{older.memory_id} {newer.memory_id}",
        summary=f"'{to_quote(newer.text, 100)}' contradicts the older '{to_quote(older.text, 100)}'",
        confidence=probability,
        support=2,
        evidence=(older.memory_id, newer.memory_id),
        details={"older": older.memory_id, "newer": newer.memory_id, "certain": is_certain},
        features=features,
        quotes=(older.memory_id, newer.memory_id),
    )
