"""Memories that cannot both be true: the same subject with another value, or once affirmed and once denied.

Two statements contradict each other if they speak of the same thing and differ in exactly one place. If they differ in
two places, they are mostly about two things ("the staging database runs 15", "the production database runs 16").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from athena.memory.consolidation import calibration
from athena.memory.consolidation.findings import Pattern, said
from athena.memory.consolidation.material import Note
from athena.memory.consolidation.statements import (
    GENERIC,
    Statement,
    Value,
    is_one_sentence,
    is_one_value_apart,
    read,
    sentences,
    template,
)
from athena.memory.documents import ingest

COMPARED = 60  # statements that one is compared with, at most
COMMON = 200  # a word of more statements than this leads to none
CONSIDERED = 0.05  # candidates that are less likely are not even candidates
CERTAIN = 0.97  # the confidence from which on a memory may fade
SERIES = 3  # readings of one thing; more of them are a record of how it went
ONE_SIDED = 0.4  # words that only one statement has may be mere detail
NO_UNIT = "number "


def find(notes: Iterable[Note]) -> list[Pattern]:
    """Return pairs of memories that contradict each other, the surest first."""
    written = [note for note in notes if note.memory_type != ingest.KIND]
    statements = [read(note.id, note.at, text) for note in written for text in sentences(note.text)]
    plain = {word for statement in statements for word in statement.words - statement.capitals}
    counts = Counter(word for statement in statements for word in statement.words)
    total = len(statements) + 1
    weights = {word: math.log(total / count) + 0.1 for word, count in counts.items()}
    alone = {note.id for note in written if is_one_sentence(note.text)}
    series: dict[str, list[int]] = defaultdict(list)  # what is the same but for its numbers, in the order of time
    for one in sorted(statements, key=lambda statement: (statement.at, statement.note)):
        series[template(one.text)].append(one.note)
    best: dict[tuple[int, int], Pattern] = {}
    for one, other in _pairs(statements, counts):
        older, newer = sorted((one, other), key=lambda statement: (statement.at, statement.note))
        alike = series[template(newer.text)]
        if len(alike) > 2 and older.note in alike and alike[-2:] != [older.note, newer.note]:
            continue  # of many that differ in a number, the last two are enough
        found = features(older, newer, weights, plain)
        if found is None:
            continue
        pattern = _pattern(older, newer, found, older.note in alone and len(alike) <= SERIES)
        kept = best.get((older.note, newer.note))
        if pattern.confidence >= CONSIDERED and (kept is None or kept.confidence < pattern.confidence):
            best[older.note, newer.note] = pattern
    return sorted(best.values(), key=lambda one: (-one.confidence, one.evidence))


def _pairs(statements: Sequence[Statement], counts: Counter[str]) -> Iterable[tuple[Statement, Statement]]:
    """Return pairs of statements that share a word that is not too common, those that share the most first."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, statement in enumerate(statements):
        for word in statement.words:
            if counts[word] <= COMMON:
                places[word].append(place)
    for place, statement in enumerate(statements):
        shared: Counter[int] = Counter()
        for word in statement.words:
            for other in places.get(word, ()):
                if statements[other].note != statement.note and other < place:
                    shared[other] += 1
        for other, _ in shared.most_common(COMPARED):
            yield statement, statements[other]


def features(
    older: Statement, newer: Statement, weights: dict[str, float], plain: set[str]
) -> tuple[float, ...] | None:
    """Return what tells a contradiction from two statements that are only alike; None if nothing is opposed at all."""
    both = older.words & newer.words
    mine, theirs = set(older.words - both), set(newer.words - both)
    opposed = _values(older, newer)
    changed = newer.changes and _takes_up(older, newer, theirs)
    if changed:
        opposed = max(opposed, 1)
        theirs = set(sorted(theirs, key=lambda w: -weights[w])[1:]) if not _values(older, newer) else theirs
    sides = any(newer.axes.get(axis, side) != side for axis, side in older.axes.items())
    worded = False
    denied = older.denies != newer.denies and not changed and not sides
    if (
        mine
        and theirs
        and not opposed
        and not sides
        and not denied
        and _fills_a_place(older, newer, mine, theirs, plain)
    ):
        opposed, worded = 1, True
        mine, theirs = _without_one(mine, weights), _without_one(theirs, weights)
    if not (opposed or sides or denied):
        return None
    if not (changed or newer.changes or worded) and _of_two_things(older, newer, sides + denied):
        return None
    names = older.names != newer.names
    shared = sum(weights[word] for word in both)
    least, most = sorted(sum(weights[word] for word in words) for words in (mine, theirs))
    apart = 2 * least + ONE_SIDED * (most - least)
    mine_say, theirs_say = older.predicates - GENERIC, newer.predicates - GENERIC
    other_predicate = float(bool(mine_say and theirs_say and not mine_say & theirs_say))
    if not changed and ((mine_say and theirs and not theirs_say) or (theirs_say and mine and not mine_say)):
        other_predicate = 0.5  # "billing is deployed on Mondays", "the billing standup is on Tuesdays"
    return (
        shared / (shared + apart) if shared else 0.0,
        float(min(len(mine), len(theirs))),
        float(opposed + sides + denied + names - 1),
        float(changed),
        other_predicate,
        float(older.occasion or newer.occasion or names),
        float(worded),
        float(bool(mine_say & theirs_say)),
        float((older.adds or newer.adds) and not denied and not sides),
    )


def _of_two_things(older: Statement, newer: Statement, otherwise: int) -> bool:
    """Tell whether statements that differ in a value also differ in what it is the value of."""
    if older.names != newer.names:  # two tickets, two releases
        return True
    mine, theirs = older.values - newer.values, newer.values - older.values
    if max(len(mine), len(theirs)) + otherwise > 1:  # noon on Mondays, one o'clock on Fridays
        return True
    return bool(older.qualifiers - newer.stems and newer.qualifiers - older.stems)  # for free users, for paid ones


def agree(one: str, other: str) -> bool:
    """Tell whether two texts that are alike give the same values, take the same sides and deny the same."""
    pairs = zip_longest(sentences(one), sentences(other), fillvalue="")
    for mine, theirs in ((read(0, 0.0, a), read(0, 0.0, b)) for a, b in pairs if a and b):
        if mine.values != theirs.values or mine.names != theirs.names or mine.denies != theirs.denies:
            return False
        if any(theirs.axes.get(axis, side) != side for axis, side in mine.axes.items()):
            return False
    return True


def _values(older: Statement, newer: Statement) -> int:
    """Count the kinds of values of which both give some, and none the same."""
    kinds = {v.kind for v in older.values} & {v.kind for v in newer.values}
    opposed = sum(not _of(older.values, kind) & _of(newer.values, kind) for kind in kinds)
    if kinds or not any(NO_UNIT in (v.kind for v in statement.values) for statement in (older, newer)):
        return opposed
    mine, theirs = ({v.text for v in statement.values if v.kind.startswith("number")} for statement in (older, newer))
    return int(len(mine) == len(theirs) == 1 and mine != theirs)


def _of(values: Iterable[Value], kind: str) -> set[str]:
    return {value.text for value in values if value.kind == kind}


def _takes_up(older: Statement, newer: Statement, theirs: set[str]) -> bool:
    """Tell whether a newer statement names what the older one said, and something else beside it."""
    numbers = {v.text for v in older.values}
    named = {v.text for v in newer.values}
    if numbers and numbers <= named and named - numbers:
        return True
    return older.words <= newer.words and bool(theirs) and not numbers


def _fills_a_place(older: Statement, newer: Statement, mine: set[str], theirs: set[str], plain: set[str]) -> bool:
    """Tell whether one word of each stands where the other's stands: names, or words that are not of the subject."""
    first, second = mine - plain, theirs - plain
    owning = bool({"own", "review"} & older.predicates)
    if first & older.capitals and second & newer.capitals:
        return owning or not (first <= older.before and second <= newer.before)
    if owning or len(mine) > 1 or len(theirs) > 1:
        return False
    return not (mine <= older.before | older.scoped and theirs <= newer.before | newer.scoped)


def _without_one(words: set[str], weights: dict[str, float]) -> set[str]:
    return set(sorted(words, key=lambda word: (-weights[word], word))[1:])


def _pattern(older: Statement, newer: Statement, found: tuple[float, ...], whole: bool) -> Pattern:
    """Make a pattern; it is certain if the newer one says that something changed, or all but one value is the same."""
    sure = calibration.confidence("contradiction", found)
    certain = whole and sure >= CERTAIN and (newer.changes or is_one_value_apart(older.text, newer.text))
    return Pattern(
        type="contradiction",
        about=f"{older.note} {newer.note}",
        summary=f"'{said(newer.text, 100)}' contradicts the older '{said(older.text, 100)}'",
        confidence=sure,
        support=2,
        evidence=(older.note, newer.note),
        details={"older": older.note, "newer": newer.note, "certain": certain},
        features=found,
        quotes=(older.note, newer.note),
    )
