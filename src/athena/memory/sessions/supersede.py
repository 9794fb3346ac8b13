"""Tell whether a statement replaces an earlier one: "back to 72 hours" after "we hold them 96 hours".

The bundled model reads both with an adapter of its layers; how close they are, the words and numbers that they share
or not, and words that announce a change are added. `scripts/train_adapters.py` trained it on `data/changes`.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.words import stem_word
from athena.embedding.adapters import load_adapter
from athena.memory.consolidation.contradictions import are_consistent
from athena.memory.sessions.select import find_specific_words
from athena.memory.sessions.values import Candidate

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

CHANGES_FILE = Path(__file__).with_name("changes.npz")
MIN_REPLACEMENT = 0.4  # probability from which on the older statement does not hold any more
MIN_WEAK_REPLACEMENT = 0.6  # of a statement that is worth keeping only if it changes something
MAX_SIMILAR, MAX_LATEST = 6, 2  # older statements that a new one is compared with
MAX_LIKE_FORMS = 2  # statements that differ in numbers alone; more are a list: "door 3 opens with the brass key"
MAX_CHANGE_TURNS = 3
MAX_DISTANCE = 20  # statements of a session between the two
MAX_ELLIPTIC_WORDS = 2  # specific words of a statement that says nothing without what it replaces
CHANGE_PATTERN = re.compile(
    r"\b(?:change[ds]?|instead|no longer|not any ?more|anymore|from now on|back to|actually|make it|switch(?:ed|ing)?|"
    r"moved?|now|replace[ds]?|scratch|correction|wrong|update|drop(?:ped)?|gone|is out|after all|revert|again|new|"
    r"rather|kick|gone|it is|"
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


class Comparison(NamedTuple):
    """A statement and an older one that it may replace."""

    old: str
    new: str
    similarity: float
    is_correction: bool
    distance: int | None  # in statements, if both are of one session


def measure_replacement(comparisons: Sequence[Comparison], model: "MiniLM") -> list[float]:
    """Return for each pair how much speaks for a replacement: a logit, against 0 for none."""
    if not comparisons:
        return []
    import numpy as np  # slow to load; only learning needs it

    adapter = load_adapter(CHANGES_FILE)
    tokens = model.embed_adapted([(pair.old, pair.new) for pair in comparisons], adapter.layers)
    pooled = np.stack([np.r_[one.states[0], one.states.mean(axis=0)] for one in tokens])
    features = np.array([compute_features(*pair) for pair in comparisons], np.float32)
    logits: Any = pooled @ adapter.head["dense"] + features @ adapter.head["features"] + adapter.head["bias"]
    return [float(logit) for logit in logits]


def to_chances(logits: Sequence[float]) -> list[float]:
    """Return the probability of each pair of one new statement; one of them or none is right."""
    top = max(0.0, *logits) if logits else 0.0
    weights = [math.exp(logit - top) for logit in logits]
    return [weight / (sum(weights) + math.exp(-top)) for weight in weights]


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


def announces_change(text: str) -> bool:
    """Return whether a text has a word of change: "switch to", "now", "so 0.11 it is", "make it 13"."""
    return CHANGE_PATTERN.search(text) is not None or SHORT_CHANGE_PATTERN.match(text) is not None


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
    pairs = [
        Comparison(old, form, float(similarities[j, i]), new.is_correction, None)
        for i, form in enumerate(forms)
        for j, old in enumerate(older)
    ]
    logits = measure_replacement(pairs, model)
    chances = [to_chances(logits[i * len(older) : (i + 1) * len(older)]) for i in range(len(forms))]
    return [max(column) for column in zip(*chances, strict=True)]


def settle_changes(candidates: Sequence[Candidate], model: "MiniLM") -> list[Candidate]:
    """Return the statements that hold at the end of a session, each with the text that it replaced."""
    if len(candidates) < 2:
        return list(candidates)
    settled: list[Candidate | None] = list(candidates)
    compared = _compare_all(candidates, model)
    for i, new in enumerate(candidates):
        older = [j for j in range(i) if settled[j] is not None]
        if any(restates(candidates[j].text, new.text) for j in older):
            settled[i] = None
            continue
        logits = {j: logit for j, logit in compared.get(i, {}).items() if settled[j] is not None}
        chances = dict(zip(logits, to_chances(list(logits.values())), strict=True))
        best = max(chances, key=chances.__getitem__, default=None)
        if best is None or chances[best] < get_threshold(new):
            near = [j for j in older if i - j <= MAX_DISTANCE and not candidates[j].is_weak]
            best = _find_short_change(candidates, near, i) if new.role == "user" else None
        if best is not None:
            settled[i] = add_replaced(new, candidates[best].text)
            settled[best] = None
    return [candidate for candidate in settled if candidate is not None]


def _compare_all(candidates: Sequence[Candidate], model: "MiniLM") -> dict[int, dict[int, float]]:
    """Return by the number of each new statement the logits of the older ones that it may replace."""
    vectors: Any = model.embed([candidate.text for candidate in candidates])
    forms = [NUMBER_PATTERN.sub("0", candidate.text) for candidate in candidates]
    counts = Counter(forms)
    places: list[tuple[int, int]] = []
    pairs: list[Comparison] = []
    for i, new in enumerate(candidates):
        if new.role != "user":
            continue
        older = [
            j
            for j in range(max(0, i - MAX_DISTANCE), i)
            if not candidates[j].is_weak
            and are_comparable(new.kind, candidates[j].kind)
            and not (forms[i] == forms[j] and counts[forms[i]] > MAX_LIKE_FORMS)
        ]
        similar = sorted(older, key=lambda j: float(vectors[i] @ vectors[j]))[-MAX_SIMILAR:]
        for j in sorted({*similar, *older[-MAX_LATEST:]}):
            similarity = float(vectors[i] @ vectors[j])
            pairs.append(Comparison(candidates[j].text, new.text, similarity, new.is_correction, i - j))
            places.append((i, j))
    compared: dict[int, dict[int, float]] = {}
    for (i, j), logit in zip(places, measure_replacement(pairs, model), strict=True):
        compared.setdefault(i, {})[j] = logit
    return compared


def get_threshold(new: Candidate) -> float:
    """Return the probability from which on a statement replaces an older one."""
    return MIN_WEAK_REPLACEMENT if new.is_weak else MIN_REPLACEMENT


def are_comparable(kind: str, old_kind: str) -> bool:
    """Return whether one may replace an older one: what holds is no answer to what is to do."""
    return kind == "todo" or old_kind != "todo"


def is_elliptic(text: str) -> bool:
    """Return whether a statement says too little without what it replaces."""
    names = [word for word in find_specific_words(text) if not word.isdigit()]
    return len(names) <= MAX_ELLIPTIC_WORDS or PRONOUN_PATTERN.match(text) is not None


def add_replaced(candidate: Candidate, replaced: str) -> Candidate:
    """Return a statement that tells what it replaces; one that says nothing alone is told with what it is about."""
    text = candidate.text
    if is_elliptic(text) and not _shares_subject(replaced, text):
        text = _change_value(replaced, text) or f"{text.rstrip('. ')} (before: {replaced})"
    return candidate._replace(text=text, replaced=replaced)


def _change_value(old: str, new: str) -> str:
    """Return the older statement with the new value: "Every day 8:15" of "Every day 7:00" and "change to 8:15"."""
    values, old_values = NUMBER_PATTERN.findall(new), NUMBER_PATTERN.findall(old)
    names = [word for word in find_specific_words(new) if not word.isdigit()]
    if names or len(values) != 1 or len(old_values) != 1 or values == old_values:
        return ""
    return NUMBER_PATTERN.sub(lambda _: values[0], old)
