"""Memories that cannot both be true: the same subject with another value, or once affirmed and once denied.

Two statements contradict each other if they speak of the same thing and differ in exactly one place. If they differ in
two places, they are mostly about two things ("the staging database runs 15", "the production database runs 16").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

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
from athena.memory.documents import ingest

MAX_COMPARED_STATEMENTS = 60  # statements that one is compared with, at most
MAX_WORD_STATEMENTS = 200  # a word of more statements than this leads to none
MIN_CANDIDATE_CONFIDENCE = 0.05  # candidates that are less likely are not even candidates
MIN_CERTAIN_CONFIDENCE = 0.97  # the confidence from which on a memory may fade
MAX_SERIES_READINGS = 3  # readings of one thing; more of them are a record of how it went
ONE_SIDED_WEIGHT = 0.4  # words that only one statement has may be mere detail
UNITLESS_VALUE_TYPE = "number "


def find_contradictions(notes: Iterable[MinedMemory]) -> list[Pattern]:
    """Return pairs of memories that contradict each other, the surest first."""
    written = [note for note in notes if note.memory_type != ingest.DOCUMENT_TYPE]
    statements = [parse_statement(note.id, note.at, text) for note in written for text in split_sentences(note.text)]
    plain = {word for statement in statements for word in statement.subject_stems - statement.capitalized_stems}
    counts = Counter(word for statement in statements for word in statement.subject_stems)
    total = len(statements) + 1
    weights = {word: math.log(total / count) + 0.1 for word, count in counts.items()}
    alone = {note.id for note in written if is_one_sentence(note.text)}
    series: dict[str, list[int]] = defaultdict(list)  # what is the same but for its numbers, in the order of time
    for one in sorted(statements, key=lambda statement: (statement.at, statement.memory_id)):
        series[to_template(one.text)].append(one.memory_id)
    best: dict[tuple[int, int], Pattern] = {}
    for one, other in _iter_candidate_pairs(statements, counts):
        older, newer = sorted((one, other), key=lambda statement: (statement.at, statement.memory_id))
        alike = series[to_template(newer.text)]
        if len(alike) > 2 and older.memory_id in alike and alike[-2:] != [older.memory_id, newer.memory_id]:
            continue  # of many that differ in a number, the last two are enough
        found = compute_contradiction_features(older, newer, weights, plain)
        if found is None:
            continue
        pattern = _create_contradiction(
            older, newer, found, older.memory_id in alone and len(alike) <= MAX_SERIES_READINGS
        )
        kept = best.get((older.memory_id, newer.memory_id))
        if pattern.confidence >= MIN_CANDIDATE_CONFIDENCE and (kept is None or kept.confidence < pattern.confidence):
            best[older.memory_id, newer.memory_id] = pattern
    return sorted(best.values(), key=lambda one: (-one.confidence, one.evidence))


def _iter_candidate_pairs(
    statements: Sequence[Statement], counts: Counter[str]
) -> Iterable[tuple[Statement, Statement]]:
    """Return pairs of statements that share a word that is not too common, those that share the most first."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, statement in enumerate(statements):
        for word in statement.subject_stems:
            if counts[word] <= MAX_WORD_STATEMENTS:
                places[word].append(place)
    for place, statement in enumerate(statements):
        shared: Counter[int] = Counter()
        for word in statement.subject_stems:
            for other in places.get(word, ()):
                if statements[other].memory_id != statement.memory_id and other < place:
                    shared[other] += 1
        for other, _ in shared.most_common(MAX_COMPARED_STATEMENTS):
            yield statement, statements[other]


def compute_contradiction_features(
    older: Statement, newer: Statement, weights: dict[str, float], plain: set[str]
) -> tuple[float, ...] | None:
    """Return what tells a contradiction from two statements that are only alike; None if nothing is opposed at all."""
    both = older.subject_stems & newer.subject_stems
    mine, theirs = set(older.subject_stems - both), set(newer.subject_stems - both)
    opposed = _count_opposed_values(older, newer)
    changed = newer.says_change and _restates_older(older, newer, theirs)
    if changed:
        opposed = max(opposed, 1)
        theirs = (
            set(sorted(theirs, key=lambda w: -weights[w])[1:]) if not _count_opposed_values(older, newer) else theirs
        )
    sides = any(newer.axes.get(axis, side) != side for axis, side in older.axes.items())
    worded = False
    denied = older.is_negated != newer.is_negated and not changed and not sides
    if (
        mine
        and theirs
        and not opposed
        and not sides
        and not denied
        and _replaces_one_word(older, newer, mine, theirs, plain)
    ):
        opposed, worded = 1, True
        mine, theirs = _drop_heaviest_word(mine, weights), _drop_heaviest_word(theirs, weights)
    if not (opposed or sides or denied):
        return None
    if not (changed or newer.says_change or worded) and _concern_two_things(older, newer, sides + denied):
        return None
    names = older.identifiers != newer.identifiers
    shared = sum(weights[word] for word in both)
    least, most = sorted(sum(weights[word] for word in words) for words in (mine, theirs))
    apart = 2 * least + ONE_SIDED_WEIGHT * (most - least)
    mine_say, theirs_say = older.predicates - GENERIC_PREDICATES, newer.predicates - GENERIC_PREDICATES
    other_predicate = float(bool(mine_say and theirs_say and not mine_say & theirs_say))
    if not changed and ((mine_say and theirs and not theirs_say) or (theirs_say and mine and not mine_say)):
        other_predicate = 0.5  # "billing is deployed on Mondays", "the billing standup is on Tuesdays"
    return (
        shared / (shared + apart) if shared else 0.0,
        float(min(len(mine), len(theirs))),
        float(opposed + sides + denied + names - 1),
        float(changed),
        other_predicate,
        float(older.is_one_time or newer.is_one_time or names),
        float(worded),
        float(bool(mine_say & theirs_say)),
        float((older.is_additive or newer.is_additive) and not denied and not sides),
    )


def _concern_two_things(older: Statement, newer: Statement, otherwise: int) -> bool:
    """Tell whether statements that differ in a value also differ in what it is the value of."""
    if older.identifiers != newer.identifiers:  # two tickets, two releases
        return True
    mine, theirs = older.values - newer.values, newer.values - older.values
    if max(len(mine), len(theirs)) + otherwise > 1:  # noon on Mondays, one o'clock on Fridays
        return True
    return bool(older.qualifiers - newer.stems and newer.qualifiers - older.stems)  # for free users, for paid ones


def are_consistent(one: str, other: str) -> bool:
    """Tell whether two texts that are alike give the same values, take the same sides and deny the same."""
    pairs = zip_longest(split_sentences(one), split_sentences(other), fillvalue="")
    for mine, theirs in ((parse_statement(0, 0.0, a), parse_statement(0, 0.0, b)) for a, b in pairs if a and b):
        if (
            mine.values != theirs.values
            or mine.identifiers != theirs.identifiers
            or mine.is_negated != theirs.is_negated
        ):
            return False
        if any(theirs.axes.get(axis, side) != side for axis, side in mine.axes.items()):
            return False
    return True


def _count_opposed_values(older: Statement, newer: Statement) -> int:
    """Count the kinds of values of which both give some, and none the same."""
    kinds = {v.value_type for v in older.values} & {v.value_type for v in newer.values}
    opposed = sum(not _select_values(older.values, kind) & _select_values(newer.values, kind) for kind in kinds)
    if kinds or not any(
        UNITLESS_VALUE_TYPE in (v.value_type for v in statement.values) for statement in (older, newer)
    ):
        return opposed
    mine, theirs = (
        {v.text for v in statement.values if v.value_type.startswith("number")} for statement in (older, newer)
    )
    return int(len(mine) == len(theirs) == 1 and mine != theirs)


def _select_values(values: Iterable[StatementValue], kind: str) -> set[str]:
    return {value.text for value in values if value.value_type == kind}


def _restates_older(older: Statement, newer: Statement, theirs: set[str]) -> bool:
    """Tell whether a newer statement names what the older one said, and something else beside it."""
    numbers = {v.text for v in older.values}
    named = {v.text for v in newer.values}
    if numbers and numbers <= named and named - numbers:
        return True
    return older.subject_stems <= newer.subject_stems and bool(theirs) and not numbers


def _replaces_one_word(older: Statement, newer: Statement, mine: set[str], theirs: set[str], plain: set[str]) -> bool:
    """Tell whether one word of each stands where the other's stands: names, or words that are not of the subject."""
    first, second = mine - plain, theirs - plain
    owning = bool({"own", "review"} & older.predicates)
    if first & older.capitalized_stems and second & newer.capitalized_stems:
        return owning or not (first <= older.leading_stems and second <= newer.leading_stems)
    if owning or len(mine) > 1 or len(theirs) > 1:
        return False
    return not (mine <= older.leading_stems | older.scope_stems and theirs <= newer.leading_stems | newer.scope_stems)


def _drop_heaviest_word(words: set[str], weights: dict[str, float]) -> set[str]:
    return set(sorted(words, key=lambda word: (-weights[word], word))[1:])


def _create_contradiction(older: Statement, newer: Statement, found: tuple[float, ...], whole: bool) -> Pattern:
    """Make a pattern; it is certain if the newer one says that something changed, or all but one value is the same."""
    sure = confidence.compute_confidence("contradiction", found)
    certain = (
        whole and sure >= MIN_CERTAIN_CONFIDENCE and (newer.says_change or differs_in_one_value(older.text, newer.text))
    )
    return Pattern(
        type="contradiction",
        about=f"{older.memory_id} {newer.memory_id}",
        summary=f"'{to_quote(newer.text, 100)}' contradicts the older '{to_quote(older.text, 100)}'",
        confidence=sure,
        support=2,
        evidence=(older.memory_id, newer.memory_id),
        details={"older": older.memory_id, "newer": newer.memory_id, "certain": certain},
        features=found,
        quotes=(older.memory_id, newer.memory_id),
    )
