"""Tell whether a statement replaces an earlier one: "back to 72 hours" after "we hold them 96 hours".

A logistic function of how close the two are, of the words and numbers that they share or not, and of words that
announce a change. `scripts/train_statements.py` fitted it to the changes of mind in `data/sessions`.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.sessions.select import find_specific_words
from athena.memory.sessions.values import Candidate

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

MIN_REPLACEMENT = 0.18  # probability from which on the older statement does not hold any more
MIN_VALUE_SIMILARITY, MIN_SHARED_NAMES = 0.45, 2
MAX_DISTANCE = 20  # statements of a session between the two
MAX_ELLIPTIC_WORDS = 2  # specific words of a statement that says nothing without what it replaces
CHANGE_PATTERN = re.compile(
    r"\b(?:change[ds]?|instead|no longer|not any ?more|anymore|from now on|back to|actually|make it|switch(?:ed|ing)?|"
    r"moved?|now|replace[ds]?|scratch|correction|wrong|update|drop(?:ped)?|gone|is out|after all|revert|again|new|rather|"
    r"not|no)\b", re.IGNORECASE,
)  # fmt: skip
STRONG_CHANGE_PATTERN = re.compile(
    r"\b(?:changed? (?:my|his|her|our) mind|instead|no longer|not any ?more|anymore|from now on|back to|make it|"
    r"switch(?:ed|ing)?|replaces?|scratch|correction|we said|i said|after all|revert|is gone|moves? to|goes? up|"
    r"goes? down|swap)\b", re.IGNORECASE,
)  # fmt: skip
NUMBER_PATTERN = re.compile(r"(?<![\w.])\d[\w:/-]*(?:[.,]\d[\w:/-]*)*")
NEGATED_PATTERN = re.compile(r"\bnot (?:the |a |in |at |on )?([\w./-]+)")
BIAS = -7.254
WEIGHTS = (
    1.49, 5.323, 0.52, 0.469, -0.615, 1.69, 0.314, 1.045, -0.07, 1.219, 0.973, 0.371, 2.024, 0.075, -0.39, 5.532, 0.536,
)  # fmt: skip


def measure_replacement(old: str, new: str, similarity: float, *, is_correction: bool, distance: int | None) -> float:
    """Return the probability that a statement replaces an older one; `distance` counts statements of one session."""
    features = compute_features(old, new, similarity, is_correction, distance)
    if _has_other_value(old, new, similarity):
        return 1.0
    logit = BIAS + sum(weight * value for weight, value in zip(WEIGHTS, features, strict=True))
    return 1 / (1 + math.exp(-logit))


def _has_other_value(old: str, new: str, similarity: float) -> bool:
    """Return whether a statement gives the same thing another number, and says that this is a change."""
    numbers, old_numbers = set(NUMBER_PATTERN.findall(new)), set(NUMBER_PATTERN.findall(old))
    names = [word for word in find_specific_words(new) & find_specific_words(old) if not word.isdigit()]
    is_same_thing = similarity >= MIN_VALUE_SIMILARITY and len(names) >= MIN_SHARED_NAMES
    has_others = bool(numbers and old_numbers and not numbers & old_numbers)
    return is_same_thing and has_others and CHANGE_PATTERN.search(new) is not None


def compute_features(
    old: str, new: str, similarity: float, is_correction: bool, distance: int | None
) -> tuple[float, ...]:
    words, old_words = find_specific_words(new), find_specific_words(old)
    shared = words & old_words
    names = [word for word in shared if not word.isdigit()]
    numbers, old_numbers = set(NUMBER_PATTERN.findall(new)), set(NUMBER_PATTERN.findall(old))
    has_other_numbers = bool(numbers and old_numbers and not numbers & old_numbers)
    is_change = STRONG_CHANGE_PATTERN.search(new) is not None
    is_elliptic = len([word for word in words if not word.isdigit()]) <= MAX_ELLIPTIC_WORDS
    nearness = 1 / max(distance, 1) if distance else 0.02
    is_negated = any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", old.lower()) for word in NEGATED_PATTERN.findall(new.lower())
    )
    return (
        similarity,
        len(shared) / max(1, len(words | old_words)),
        min(len(names), 4),
        has_other_numbers,
        has_other_numbers * bool(names),
        is_change,
        is_change * similarity,
        is_correction,
        not are_consistent(new, old),
        is_negated,
        is_elliptic * nearness,
        is_elliptic * nearness * (has_other_numbers or is_change),
        nearness if distance else 0.0,
        CHANGE_PATTERN.search(new) is not None,
        is_change * len(names),
        is_correction * similarity,
        len(names) / max(1, min(len(words), len(old_words))),
    )


def settle_changes(candidates: Sequence[Candidate], model: "MiniLM") -> list[Candidate]:
    """Return the statements that hold at the end of a session, each with the text that it replaced."""
    settled: list[Candidate | None] = list(candidates)
    if len(candidates) < 2:
        return list(candidates)
    vectors: Any = model.embed([candidate.text for candidate in candidates])
    for new in range(1, len(candidates)):
        best, best_chance = None, MIN_REPLACEMENT
        for old in range(max(0, new - MAX_DISTANCE), new):
            if settled[old] is None or candidates[old].is_weak or candidates[new].role != "user":
                continue
            similarity = float(vectors[old] @ vectors[new])
            chance = measure_replacement(
                candidates[old].text,
                candidates[new].text,
                similarity,
                is_correction=candidates[new].is_correction,
                distance=new - old,
            )
            if chance >= best_chance:
                best, best_chance = old, chance
        if best is not None and settled[new] is not None:
            settled[new] = add_replaced(candidates[new], candidates[best].text)
            settled[best] = None
    return [candidate for candidate in settled if candidate is not None]


def add_replaced(candidate: Candidate, replaced: str) -> Candidate:
    """Return a statement that tells what it replaces; one that says nothing alone tells it in its text."""
    names = [word for word in find_specific_words(candidate.text) if not word.isdigit()]
    text = candidate.text if len(names) > MAX_ELLIPTIC_WORDS else f"{candidate.text.rstrip('. ')} (before: {replaced})"
    return candidate._replace(text=text, replaced=replaced)
