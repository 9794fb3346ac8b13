"""Memories that cannot both be true: the same subject with another value, or once affirmed and once denied.

Two statements contradict each other if they speak of the same thing and differ in exactly one place. If they differ in
two places, they are mostly about two things ("the staging database runs 15", "the production database runs 16").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from athena.memory.consolidation import calibration
from athena.memory.consolidation.material import Note
from athena.memory.consolidation.pattern import Pattern, said
from athena.memory.consolidation.statement import GENERIC, Statement, Value, read, sentences

COMPARED = 60  # statements that one is compared with, at most
COMMON = 200  # a word of more statements than this leads to none
CONSIDERED = 0.05  # candidates that are less likely are not even candidates
DOCUMENT = "document"
ONE_SIDED = 0.4  # words that only one statement has may be mere detail
NO_UNIT = "number "


def find(notes: Iterable[Note], only: set[int] | None = None) -> list[Pattern]:
    """Return pairs of memories that contradict each other, the surest first; with `only`, pairs with one of these."""
    statements = [
        read(note.id, note.at, text) for note in notes if note.memory_type != DOCUMENT for text in sentences(note.text)
    ]
    plain = {word for statement in statements for word in statement.words - statement.capitals}
    counts = Counter(word for statement in statements for word in statement.words)
    total = len(statements) + 1
    weights = {word: math.log(total / count) + 0.1 for word, count in counts.items()}
    best: dict[tuple[int, int], Pattern] = {}
    for one, other in _pairs(statements, counts, only):
        older, newer = sorted((one, other), key=lambda statement: (statement.at, statement.note))
        found = features(older, newer, weights, plain)
        if found is None:
            continue
        pattern = _pattern(older, newer, found)
        kept = best.get((older.note, newer.note))
        if pattern.confidence >= CONSIDERED and (kept is None or kept.confidence < pattern.confidence):
            best[older.note, newer.note] = pattern
    return sorted(best.values(), key=lambda one: (-one.confidence, one.evidence))


def _pairs(
    statements: Sequence[Statement], counts: Counter[str], only: set[int] | None
) -> Iterable[tuple[Statement, Statement]]:
    """Return pairs of statements that share a word that is not too common, those that share the most first."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, statement in enumerate(statements):
        for word in statement.words:
            if counts[word] <= COMMON:
                places[word].append(place)
    for place, statement in enumerate(statements):
        if only is not None and statement.note not in only:
            continue
        shared: Counter[int] = Counter()
        for word in statement.words:
            for other in places.get(word, ()):
                if statements[other].note != statement.note and (other < place or only is not None):
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


def _pattern(older: Statement, newer: Statement, found: tuple[float, ...]) -> Pattern:
    return Pattern(
        type="contradiction",
        about=f"{older.note} {newer.note}",
        summary=f"'{said(newer.text, 100)}' contradicts the older '{said(older.text, 100)}'",
        confidence=calibration.confidence("contradiction", found),
        support=2,
        evidence=(older.note, newer.note),
        details={"older": older.note, "newer": newer.note},
        features=found,
        quotes=(older.note, newer.note),
    )
