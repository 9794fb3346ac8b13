"""Tell whether a statement replaces an earlier one: "back to 72 hours" after "we hold them 96 hours".

A logistic function of how close the two are, of the words and numbers that they share or not, and of words that
announce a change. `scripts/train_statements.py` fitted it to the changes of mind in `data/sessions`.
"""

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from athena.core.words import stem_word
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.sessions.select import find_specific_words
from athena.memory.sessions.values import Candidate

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

MIN_REPLACEMENT = 0.18  # probability from which on the older statement does not hold any more
MIN_VALUE_SIMILARITY, MIN_NAMED_VALUE_SIMILARITY = 0.45, 0.35
MIN_NEGATED_SIMILARITY = 0.2
MAX_CHANGE_TURNS = 3
MAX_DISTANCE = 20  # statements of a session between the two
MAX_ELLIPTIC_WORDS = 2  # specific words of a statement that says nothing without what it replaces
CHANGE_PATTERN = re.compile(
    r"\b(?:change[ds]?|instead|no longer|not any ?more|anymore|from now on|back to|actually|make it|switch(?:ed|ing)?|"
    r"moved?|now|replace[ds]?|scratch|correction|wrong|update|drop(?:ped)?|gone|is out|after all|revert|again|new|"
    r"rather|"
    r"not|no)\b", re.IGNORECASE,
)  # fmt: skip
STRONG_CHANGE_PATTERN = re.compile(
    r"\b(?:changed? (?:my|his|her|our) mind|instead|no longer|not any ?more|anymore|from now on|back to|make it|"
    r"switch(?:ed|ing)?|replaces?|scratch|correction|we said|i said|after all|revert|is gone|moves? to|goes? up|"
    r"goes? down|swap)\b", re.IGNORECASE,
)  # fmt: skip
NUMBER_PATTERN = re.compile(r"(?<![\w.])\d[\w:/-]*(?:[.,]\d[\w:/-]*)*")
SHORT_CHANGE_PATTERN = re.compile(
    r"(?:(?:actually|ok|okay|so|nah|yeah|um|no|sigh|hm+|then|sorry)[ ,]+)*(?:make (?:it|that)|back to|go back|"
    r"go (?:for )?(?=\d)|take (?=\w* ?\d)|put (?=\d)|swap to|let'?s (?:say|make it|do) |revert|change (?:it|that) to|"
    r"say (?=\d)|it'?s (?=\d))",
    re.IGNORECASE,
)
REPEATED_PATTERN = re.compile(r"\b(?:i|we) (?:already )?(?:said|told you|wrote)\b", re.IGNORECASE)
PRONOUN_PATTERN = re.compile(r"(?:it|they|this|that|these|those|we move)\b", re.IGNORECASE)
NEGATED_PATTERN = re.compile(r"\bnot (?:the |a |in |at |on )?([\w./-]+)")
_UNITS = "seconds minutes hours days weeks months years percent degrees bytes items lines times"
UNIT_WORDS = frozenset(stem_word(word) for word in _UNITS.split())
BIAS = -7.254
WEIGHTS = (
    1.49, 5.323, 0.52, 0.469, -0.615, 1.69, 0.314, 1.045, -0.07, 1.219, 0.973, 0.371, 2.024, 0.075, -0.39, 5.532, 0.536,
)  # fmt: skip


def measure_replacement(
    old: str, new: str, similarity: float, *, is_correction: bool, distance: int | None, context: str = ""
) -> float:
    """Return the probability that a statement replaces an older one; `distance` counts statements of one session."""
    is_announced = CHANGE_PATTERN.search(new) or STRONG_CHANGE_PATTERN.search(context)
    if not is_correction and not is_announced:
        return 0.0  # "tank 2 is lager" after "tank 1 is ale"
    features = compute_features(old, new, similarity, is_correction, distance)
    if _has_other_value(old, new, similarity):
        return 1.0
    logit = BIAS + sum(weight * value for weight, value in zip(WEIGHTS, features, strict=True))
    return 1 / (1 + math.exp(-logit))


def _has_other_value(old: str, new: str, similarity: float) -> bool:
    """Return whether a statement gives the same thing another value, and says that this is a change."""
    if similarity >= MIN_NEGATED_SIMILARITY and _negates_value(old, new):
        return True
    numbers, old_numbers = set(NUMBER_PATTERN.findall(new)), set(NUMBER_PATTERN.findall(old))
    if not numbers or not old_numbers:
        return False
    if not numbers & old_numbers:
        return _shares_subject(old, new) and similarity >= MIN_VALUE_SIMILARITY
    # "4e-4 was unstable, so 2e-4 from now on"
    names_old_value = any(len(number) > 1 for number in numbers & old_numbers) and bool(numbers - old_numbers)
    return names_old_value and similarity >= MIN_NAMED_VALUE_SIMILARITY


def _negates_value(old: str, new: str) -> bool:
    """Return whether a statement names a value of the older one that is wrong: "7 minutes, not 10"."""
    values = [word for word in NEGATED_PATTERN.findall(new.lower()) if any(map(str.isdigit, word))]
    return any(re.search(rf"(?<![\w.]){re.escape(value.rstrip('.,'))}(?!\w)", old.lower()) for value in values)


def _find_short_change(candidates: Sequence[Candidate], older: Sequence[int], new: int) -> int | None:
    """Return the statement that a bare change ("make it 13", "back to bc7") is about: the last one that has a value."""
    text = candidates[new].text
    if not is_elliptic(text) or SHORT_CHANGE_PATTERN.match(text) is None:
        return None
    near = [old for old in older if candidates[new].turn - candidates[old].turn <= MAX_CHANGE_TURNS]  # type: ignore[operator]
    if NUMBER_PATTERN.search(text):
        near = [old for old in near if NUMBER_PATTERN.search(candidates[old].text)]
    return near[-1] if near else None


def _shares_subject(old: str, new: str) -> bool:
    """Return whether half of the names in the shorter text are in the other; "degrees" alone is no name."""
    names, old_names = (
        {word for word in find_specific_words(text) - UNIT_WORDS if not word.isdigit()} for text in (new, old)
    )
    return bool(names & old_names) and 2 * len(names & old_names) >= min(len(names), len(old_names))


def restates(old: str, new: str) -> bool:
    """Return whether a statement only repeats an older one: "I said 10 seconds"."""
    if REPEATED_PATTERN.search(new) is None:
        return False
    numbers = set(NUMBER_PATTERN.findall(new))
    return (
        bool(numbers & set(NUMBER_PATTERN.findall(old))) or len(find_specific_words(new) & find_specific_words(old)) > 1
    )


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


def compare_statements(new: Candidate, older: Sequence[str], model: "MiniLM") -> list[float]:
    """Return for each statement of earlier sessions the probability that the new one, or its context, replaces it."""
    forms = [new.text, new.context] if new.context and is_elliptic(new.text) else [new.text]
    vectors: Any = model.embed([*forms, *older])
    similarities = vectors[len(forms) :] @ vectors[: len(forms)].T
    return [
        max(
            measure_replacement(
                text,
                form,
                float(similarity),
                is_correction=new.is_correction,
                distance=None,
                context=new.context,
            )
            for form, similarity in zip(forms, row, strict=True)
        )
        for text, row in zip(older, similarities, strict=True)
    ]


def settle_changes(candidates: Sequence[Candidate], model: "MiniLM") -> list[Candidate]:
    """Return the statements that hold at the end of a session, each with the text that it replaced."""
    if len(candidates) < 2:
        return list(candidates)
    settled: list[Candidate | None] = list(candidates)
    vectors: Any = model.embed([candidate.text for candidate in candidates])
    for i, new in enumerate(candidates):
        older = [(j, candidates[j]) for j in range(i) if settled[j] is not None]
        if any(restates(old.text, new.text) for _, old in older):
            settled[i] = None
            continue
        if new.role != "user":
            continue
        chances = [
            (
                measure_replacement(
                    old.text,
                    new.text,
                    float(vectors[i] @ vectors[j]),
                    is_correction=new.is_correction,
                    distance=i - j,
                    context=new.context,
                ),
                j,
            )
            for j, old in older
            if i - j <= MAX_DISTANCE and not old.is_weak and are_comparable(new.kind, old.kind)
        ]
        best_chance, best = max(chances, default=(0.0, 0))
        if (
            best_chance < MIN_REPLACEMENT
            and (change := _find_short_change(candidates, [j for _, j in chances], i)) is not None
        ):
            best_chance, best = 1.0, change
        if best_chance >= MIN_REPLACEMENT:
            settled[i] = add_replaced(new, candidates[best].text)
            settled[best] = None
    return [candidate for candidate in settled if candidate is not None]


def are_comparable(kind: str, old_kind: str) -> bool:
    """Return whether one may replace an older one: what holds is no answer to what is to do."""
    return kind == "todo" or old_kind != "todo"


def is_elliptic(text: str) -> bool:
    """Return whether a statement says too little without what it replaces."""
    names = [word for word in find_specific_words(text) if not word.isdigit()]
    return len(names) <= MAX_ELLIPTIC_WORDS or PRONOUN_PATTERN.match(text) is not None


def add_replaced(candidate: Candidate, replaced: str) -> Candidate:
    """Return a statement that tells what it replaces; one that says nothing alone tells it in its text."""
    text = f"{candidate.text.rstrip('. ')} (before: {replaced})" if is_elliptic(candidate.text) else candidate.text
    return candidate._replace(text=text, replaced=replaced)
