"""Memories that cannot both be true: the same subject with another value, or once affirmed and once denied.

Two claims contradict each other if they speak of the same thing and differ in exactly one place. If they differ in
two places, they are mostly about two things ("the staging database runs 15", "the production database runs 16").
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from athena.memory.consolidation import calibration
from athena.memory.consolidation.claim import Claim, Value, read, sentences
from athena.memory.consolidation.material import Note
from athena.memory.consolidation.pattern import Pattern, said

COMPARED = 60  # claims that one is compared with, at most
COMMON = 200  # a word of more claims than this leads to none
CONSIDERED = 0.05  # candidates that are less likely are not even candidates
DOCUMENT = "document"
ONE_SIDED = 0.4  # words that only one claim has may be mere detail
NO_UNIT = "number "
GENERIC = frozenset({"run", "use", "listen", "start", "named"})  # predicates that say little


def find(notes: Iterable[Note], only: set[int] | None = None) -> list[Pattern]:
    """Return pairs of memories that contradict each other, the surest first; with `only`, pairs with one of these."""
    claims = [
        read(note.id, note.at, text) for note in notes if note.memory_type != DOCUMENT for text in sentences(note.text)
    ]
    plain = {word for claim in claims for word in claim.words - claim.capitals}
    counts = Counter(word for claim in claims for word in claim.words)
    total = len(claims) + 1
    weights = {word: math.log(total / count) + 0.1 for word, count in counts.items()}
    best: dict[tuple[int, int], Pattern] = {}
    for one, other in _pairs(claims, counts, only):
        older, newer = sorted((one, other), key=lambda claim: (claim.at, claim.note))
        found = features(older, newer, weights, plain)
        if found is None:
            continue
        pattern = _pattern(older, newer, found)
        kept = best.get((older.note, newer.note))
        if pattern.confidence >= CONSIDERED and (kept is None or kept.confidence < pattern.confidence):
            best[older.note, newer.note] = pattern
    return sorted(best.values(), key=lambda one: (-one.confidence, one.evidence))


def _pairs(claims: Sequence[Claim], counts: Counter[str], only: set[int] | None) -> Iterable[tuple[Claim, Claim]]:
    """Return pairs of claims that share a word that is not too common, those that share the most first."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, claim in enumerate(claims):
        for word in claim.words:
            if counts[word] <= COMMON:
                places[word].append(place)
    for place, claim in enumerate(claims):
        if only is not None and claim.note not in only:
            continue
        shared: Counter[int] = Counter()
        for word in claim.words:
            for other in places.get(word, ()):
                if claims[other].note != claim.note and (other < place or only is not None):
                    shared[other] += 1
        for other, _ in shared.most_common(COMPARED):
            yield claim, claims[other]


def features(older: Claim, newer: Claim, weights: dict[str, float], plain: set[str]) -> tuple[float, ...] | None:
    """Return what tells a contradiction from two claims that are only alike; None if nothing is opposed at all."""
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
    other_predicate = bool(mine_say and theirs_say and not mine_say & theirs_say)
    return (
        shared / (shared + apart) if shared else 0.0,
        float(min(len(mine), len(theirs))),
        float(opposed + sides + denied + names - 1),
        float(changed),
        float(other_predicate),
        float(older.occasion or newer.occasion or names),
        float(worded),
        float(bool(mine_say & theirs_say)),
        float((older.adds or newer.adds) and not denied and not sides),
    )


def _values(older: Claim, newer: Claim) -> int:
    """Count the kinds of values of which both give some, and none the same."""
    kinds = {v.kind for v in older.values} & {v.kind for v in newer.values}
    opposed = sum(not _of(older.values, kind) & _of(newer.values, kind) for kind in kinds)
    if kinds or not any(NO_UNIT in (v.kind for v in claim.values) for claim in (older, newer)):
        return opposed
    mine, theirs = ({v.text for v in claim.values if v.kind.startswith("number")} for claim in (older, newer))
    return int(len(mine) == len(theirs) == 1 and mine != theirs)


def _of(values: Iterable[Value], kind: str) -> set[str]:
    return {value.text for value in values if value.kind == kind}


def _takes_up(older: Claim, newer: Claim, theirs: set[str]) -> bool:
    """Tell whether a newer claim names what the older one said, and something else beside it."""
    numbers = {v.text for v in older.values}
    named = {v.text for v in newer.values}
    if numbers and numbers <= named and named - numbers:
        return True
    return older.words <= newer.words and bool(theirs) and not numbers


def _fills_a_place(older: Claim, newer: Claim, mine: set[str], theirs: set[str], plain: set[str]) -> bool:
    """Tell whether one word of each stands where the other's stands: names, or words that are not of the subject."""
    first, second = mine - plain, theirs - plain
    owning = bool({"own", "review"} & older.predicates)
    if first & older.capitals and second & newer.capitals:
        return owning or not (first <= older.before and second <= newer.before)
    if owning or len(mine) > 1 or len(theirs) > 1 or (mine <= older.scoped and theirs <= newer.scoped):
        return False
    return not (mine <= older.before and theirs <= newer.before)


def _without_one(words: set[str], weights: dict[str, float]) -> set[str]:
    return set(sorted(words, key=lambda word: (-weights[word], word))[1:])


def _pattern(older: Claim, newer: Claim, found: tuple[float, ...]) -> Pattern:
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
