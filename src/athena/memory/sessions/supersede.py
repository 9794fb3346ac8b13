"""Tell whether a statement replaces an earlier one: "back to 72 hours" after "we hold them 96 hours".

The bundled model reads both with an adapter of its layers, the new one with what was said just before it; how close
they are, the words and numbers that they share or not, and words that announce a change are added.
`scripts/train_adapters.py` trained it on `data/changes` and `data/sessions`. A second stage adds how many turns lie
between the two and how surely each is worth keeping. `scripts/fit_changes.py` fitted it to `data/sessions`. Statements
of earlier sessions are also compared with an adapter that was trained on statements alone.
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
from athena.memory.sessions.wording import is_short

if TYPE_CHECKING:
    from athena.embedding.minilm import MiniLM

CHANGES_FILE = Path(__file__).with_name("changes.npz")
PLAIN_CHANGES_FILE = Path(__file__).with_name("plain_changes.npz")  # trained on statements that are said in full
# Probabilities from which on the older statement does not hold any more; weak: if the new one is worth keeping only if
# it changes something. Of one session (`MIN_CHANGE`) both stages count, of an earlier one the first.
MIN_CHANGE, MIN_WEAK_CHANGE = 0.3, 0.5
MIN_CLEAR_LOGIT, IMPOSSIBLE = -3.0, -30.0  # of what a statement that is said in full says for itself
MIN_REPLACEMENT, MIN_WEAK_REPLACEMENT = 0.5, 0.6
MAX_SIMILAR, MAX_LIKE_TALK, MAX_LATEST = 6, 3, 3  # older statements that a new one is compared with
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
    r"(?:(?:actually|ok|okay|so|nah|yeah|um|no|wait|sigh|hm+|then|sorry)[ ,]+)*(?:make (?:it|that)|back to|go back|"
    r"go (?:for )?(?=\d)|take (?=\w* ?\d)|put (?=\d)|swap to|let'?s (?:say|make it|do) |revert|change (?:it|that) to|"
    r"say (?=\d)|it'?s (?=\d))",
    re.IGNORECASE,
)
REPEATED_PATTERN = re.compile(r"\b(?:i|we) (?:already )?(?:said|told you|wrote)\b", re.IGNORECASE)
PRONOUN_PATTERN = re.compile(r"(?:it|they|this|that|these|those|we move)\b", re.IGNORECASE)
PROHIBITION_PATTERN = re.compile(r"(?:never|no|do not|don'?t|nobody|nothing)\b", re.IGNORECASE)
NEGATED_PATTERN = re.compile(r"\bnot (?:the |a |in |at |on )?([\w./-]+)")
NUMBER_WORD_PATTERN = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|fifteen|twenty|thirty|forty|fifty|sixty|hundred|"
    r"thousand)\b", re.IGNORECASE,
)  # fmt: skip
UNIT_PATTERN = re.compile(
    r"\b(second|sec|minute|min|hour|day|week|wk|month|year|yr|percent|px|ms|mb|kb|gb|amp|volt|meter|time|run|char|cpu|"
    r"degree)s?\b"
)
OPENING_PATTERN = re.compile(r"(?:so|then|ok|no|nah|fine|yes|yeah|well)\b", re.IGNORECASE)
MAX_COUNTED_WORDS, MAX_COUNTED_LENGTH, MAX_NEAR_TURNS = 6, 15, 8
MAX_BEFORE_CHARS = 200  # of what was said before a statement
_UNITS = "seconds minutes hours days weeks months years percent degrees bytes items lines times"
UNIT_WORDS = frozenset(stem_word(word) for word in _UNITS.split())


class Comparison(NamedTuple):
    """A statement and an older one that it may replace."""

    old: str
    old_confidence: float
    new: Candidate
    similarities: tuple[float, float]  # of the older one to the new one alone, and with the talk before it
    distance: int | None  # in statements, if both are of one session
    turns: int  # between them, if both are of one session


def measure_replacement(comparisons: Sequence[Comparison], model: "MiniLM") -> list[float]:
    """Return for each pair of one session how much speaks for a replacement: a logit, against 0 for none."""
    if not comparisons:
        return []
    import numpy as np  # slow to load; only learning needs it

    head = load_adapter(CHANGES_FILE).head
    first = np.array(measure_texts(comparisons, model), np.float32)
    talk = np.array([compute_talk_features(pair) for pair in comparisons], np.float32)
    logits: Any = np.c_[first, talk] @ head["talk"] + head["talk_bias"]
    is_clear = first.max(axis=1) >= MIN_CLEAR_LOGIT
    return [
        float(logit) if clear or is_elliptic(pair.new.text) else IMPOSSIBLE
        for logit, clear, pair in zip(logits, is_clear, comparisons, strict=True)
    ]


def measure_texts(comparisons: Sequence[Comparison], model: "MiniLM") -> list[tuple[float, float]]:
    """Return what the first stage says of each pair, of the statement alone and with the talk before it."""
    alone = [_remove_talk(pair) for pair in comparisons]
    forms = list(dict.fromkeys([*alone, *comparisons]))
    logits = dict(zip(forms, _apply_adapter(CHANGES_FILE, forms, model), strict=True))
    return [(logits[one], logits[pair]) for one, pair in zip(alone, comparisons, strict=True)]


def _apply_adapter(file: Path, comparisons: Sequence[Comparison], model: "MiniLM") -> list[float]:
    if not comparisons:
        return []
    import numpy as np  # slow to load; only learning needs it

    adapter = load_adapter(file)
    tokens = model.embed_adapted([(pair.old, add_talk(pair.new)) for pair in comparisons], adapter.layers)
    pooled = np.stack([np.r_[one.states[0], one.states.mean(axis=0)] for one in tokens])
    features = np.array([compute_features(pair) for pair in comparisons], np.float32)
    weights = adapter.head["features"]
    values: Any = pooled @ adapter.head["dense"] + features[:, : len(weights)] @ weights + adapter.head["bias"]
    return [float(value) for value in values]


def _remove_talk(pair: Comparison) -> Comparison:
    if add_talk(pair.new) == pair.new.text:
        return pair
    return pair._replace(new=pair.new._replace(context="", answer=""), similarities=(pair.similarities[0],) * 2)


def add_talk(new: Candidate) -> str:
    """Return a statement with what the person said just before it, and a short one with the question to it."""
    place = new.context.lower().rfind(new.text.lower())
    question = new.answer if is_elliptic(new.text) or is_short(new.text) else ""
    before = f"{question} {new.context[:place] if place >= 0 else new.context}".strip()
    return f"{new.text} | {before[-MAX_BEFORE_CHARS:]}" if before else new.text


def compute_talk_features(pair: Comparison) -> tuple[float, ...]:
    """Return what the talk says of a pair, in the order of the weights."""
    new, turns = pair.new, pair.turns
    words, old_words = find_specific_words(new.text), find_specific_words(pair.old)
    answer_words = find_specific_words(new.answer)
    around = answer_words | (find_specific_words(new.context) if is_elliptic(new.text) else words)
    numbers, old_numbers = _find_numbers(new.text), _find_numbers(pair.old)
    has_other_number = bool(numbers and old_numbers and not numbers & old_numbers)
    names_little = len([word for word in words if not word.isdigit()]) <= MAX_ELLIPTIC_WORDS
    nearness = 1 / (turns + 1)
    confidence = new.confidence or 0.0
    most_words = max(1, min(len(old_words), MAX_COUNTED_WORDS))
    return (
        nearness,
        turns == 0,
        turns == 1,
        turns > MAX_NEAR_TURNS,
        has_other_number,
        names_little * has_other_number,
        bool(numbers) != bool(old_numbers),
        len(answer_words & old_words) / most_words,
        len(around & old_words) / most_words,
        bool(_find_units(new.text) & _find_units(pair.old)),
        names_little,
        names_little * nearness,
        *pair.similarities[1:],
        STRONG_CHANGE_PATTERN.search(new.text) is not None,
        CHANGE_PATTERN.search(new.text) is not None,
        OPENING_PATTERN.match(new.text) is not None,
        SHORT_CHANGE_PATTERN.match(new.text) is not None,
        new.is_weak,
        new.is_weak * confidence,
        (not new.is_weak) * confidence,
        min(len(new.text.split()), MAX_COUNTED_LENGTH) / MAX_COUNTED_LENGTH,
        new.is_correction,
        pair.old_confidence,
    )


def _find_numbers(text: str) -> set[str]:
    return {*NUMBER_PATTERN.findall(text), *(word.lower() for word in NUMBER_WORD_PATTERN.findall(text))}


def _find_units(text: str) -> set[str]:
    return set(UNIT_PATTERN.findall(text.lower()))


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


def compute_features(pair: Comparison) -> tuple[float, ...]:
    """Return what words and numbers say of a pair, in the order of the weights."""
    old, new, similarity = pair.old, pair.new.text, pair.similarities[0]
    words, old_words = find_specific_words(new), find_specific_words(old)
    shared = words & old_words
    names = [word for word in shared if not word.isdigit()]
    numbers, old_numbers = set(NUMBER_PATTERN.findall(new)), set(NUMBER_PATTERN.findall(old))
    has_other_numbers = bool(numbers and old_numbers and not numbers & old_numbers)
    is_correction, is_change = pair.new.is_correction, STRONG_CHANGE_PATTERN.search(new) is not None
    is_elliptic = len([word for word in words if not word.isdigit()]) <= MAX_ELLIPTIC_WORDS
    nearness = 1 / max(pair.distance, 1) if pair.distance else 0.02
    is_negated = any(
        re.search(rf"(?<!\w){re.escape(word)}(?!\w)", old.lower()) for word in NEGATED_PATTERN.findall(new.lower())
    )
    talk = add_talk(pair.new)
    talk_words = find_specific_words(talk) if talk != new else words
    most_words = max(1, min(len(old_words), MAX_COUNTED_WORDS))
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
        nearness if pair.distance else 0.0,
        CHANGE_PATTERN.search(new) is not None,
        is_change * len(names),
        is_correction * similarity,
        len(names) / max(1, min(len(words), len(old_words))),
        talk != new,
        pair.similarities[1],
        len(talk_words & old_words) / most_words,
        is_elliptic * len(talk_words & old_words) / most_words,
        bool(_find_units(new) & _find_units(old)),
    )


def compare_statements(new: Candidate, older: Sequence[str], model: "MiniLM") -> list[float]:
    """Return for each statement of earlier sessions the probability that the new one replaces it."""
    vectors: Any = model.embed([*list_forms(new), *older])
    similarities = vectors[2:] @ vectors[:2].T
    pairs = [
        Comparison(old, 0.0, new, (float(row[0]), float(row[1])), None, 0)
        for old, row in zip(older, similarities, strict=True)
    ]
    logits = measure_texts(pairs, model)
    by_form = [to_chances([logit[form] for logit in logits]) for form in range(2)]
    plain = to_chances(_apply_adapter(PLAIN_CHANGES_FILE, [_remove_talk(pair) for pair in pairs], model))
    is_change = announces_change(new.text)
    return [
        # "push the tags to main" is no change of "never push to main", unless both adapters say so
        min(max(chances), other) if PROHIBITION_PATTERN.match(old) and not is_change else max(*chances, other)
        for old, other, *chances in zip(older, plain, *by_form, strict=True)
    ]


def list_forms(new: Candidate) -> tuple[str, str]:
    """Return a statement alone, and with what was said before it."""
    return new.text, add_talk(new)


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
        if best is None or chances[best] < (MIN_WEAK_CHANGE if new.is_weak else MIN_CHANGE):
            near = [j for j in older if i - j <= MAX_DISTANCE and not candidates[j].is_weak]
            best = _find_short_change(candidates, near, i) if new.role == "user" else None
        if best is not None:
            settled[i] = add_replaced(new, candidates[best].text)._replace(replaced_turn=candidates[best].turn)
            settled[best] = None
    return [candidate for candidate in settled if candidate is not None]


def _compare_all(candidates: Sequence[Candidate], model: "MiniLM") -> dict[int, dict[int, float]]:
    """Return by the number of each new statement the logits of the older ones that it may replace."""
    pairs = list_comparisons(candidates, model)
    compared: dict[int, dict[int, float]] = {}
    for (i, j), logit in zip(pairs, measure_replacement(list(pairs.values()), model), strict=True):
        compared.setdefault(i, {})[j] = logit
    return compared


def list_comparisons(candidates: Sequence[Candidate], model: "MiniLM") -> dict[tuple[int, int], Comparison]:
    """Return the pairs of one session to compare, by the numbers of the new statement and the older one."""
    forms = [NUMBER_PATTERN.sub("0", candidate.text) for candidate in candidates]
    counts = Counter(forms)
    texts = list(dict.fromkeys(form for candidate in candidates for form in list_forms(candidate)))
    vectors: Any = dict(zip(texts, model.embed(texts), strict=True))
    pairs: dict[tuple[int, int], Comparison] = {}
    for i, new in enumerate(candidates):
        if new.role != "user":
            continue
        alone, with_talk = (vectors[form] for form in list_forms(new))
        similarities = {
            j: (float(alone @ vectors[candidates[j].text]), float(with_talk @ vectors[candidates[j].text]))
            for j in range(max(0, i - MAX_DISTANCE), i)
            if not candidates[j].is_weak
            and are_comparable(new.kind, candidates[j].kind)
            and not (forms[i] == forms[j] and counts[forms[i]] > MAX_LIKE_FORMS)
        }
        chosen = set(list(similarities)[-MAX_LATEST:])
        for form, most in enumerate((MAX_SIMILAR, MAX_LIKE_TALK)):
            chosen.update(sorted(similarities, key=lambda j: similarities[j][form])[-most:])
        for j in sorted(chosen):
            old = candidates[j]
            turns = max(0, (new.turn or 0) - (old.turn or 0))
            # no answer of an agent helps to replace what the person asked to remember
            said = new._replace(answer="") if old.is_request else new
            pairs[i, j] = Comparison(old.text, old.confidence or 0.0, said, similarities[j], i - j, turns)
    return pairs


def get_threshold(new: Candidate) -> float:
    """Return the probability from which on a statement replaces one of an earlier session."""
    return MIN_WEAK_REPLACEMENT if new.is_weak else MIN_REPLACEMENT


def are_comparable(kind: str, old_kind: str) -> bool:
    """Return whether one may replace an older one: what holds is no answer to what is to do."""
    return kind == "todo" or old_kind != "todo"


def is_elliptic(text: str) -> bool:
    """Return whether a statement says too little without what it replaces."""
    rest = SHORT_CHANGE_PATTERN.sub("", text, count=1)
    names = [word for word in find_specific_words(rest) if not word.isdigit()]
    return len(names) <= MAX_ELLIPTIC_WORDS or PRONOUN_PATTERN.match(text) is not None


def add_replaced(candidate: Candidate, replaced: str) -> Candidate:
    """Return a statement that tells what it replaces; one that says nothing alone is told with what it is about."""
    text = candidate.text
    if is_elliptic(text) and not _shares_subject(replaced, text):
        text = _change_value(replaced, text) or f"{text.rstrip('. ')} (before: {replaced})"
    return candidate._replace(text=text, replaced=replaced)


def _change_value(old: str, new: str) -> str:
    """Return the older statement with the new value: "Every day 8:15" of "Every day 7:00" and "change to 8:15"."""
    new = SHORT_CHANGE_PATTERN.sub("", new, count=1)
    values, old_values = NUMBER_PATTERN.findall(new), NUMBER_PATTERN.findall(old)
    names = [word for word in find_specific_words(new) if not word.isdigit()]
    if names or len(values) != 1 or len(old_values) != 1 or values == old_values:
        return ""
    return NUMBER_PATTERN.sub(lambda _: values[0], old)
