"""Episodes that recur: one kind of event, more often than its words would come together by chance."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from statistics import median

from athena.core import clock
from athena.memory.consolidation import calibration, confidence
from athena.memory.consolidation.events import EventGroup, Vocabulary
from athena.memory.consolidation.findings import Pattern, format_count, to_quote
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.signature import compute_signature

MIN_REPORTED_OCCASIONS = 4  # occasions that are reported
MIN_JUDGED_OCCASIONS = 3  # occasions that may be a step of a sequence
MIN_CONTEXT_COUNT = 5  # a word seen so often elsewhere says how likely others are beside it
MAX_CORE_WORDS = 12  # words of a core that are looked at
NUMBER_PATTERN = re.compile(r"\d+(?:[.,:]\d+)*")
DAY_S = 86_400.0
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Background = Sequence[tuple[frozenset[str], int]]


def find_recurring(kinds: Sequence[EventGroup], vocabulary: Vocabulary, background: Background) -> list[Pattern]:
    """Return a pattern for each kind that recurs, with how sure that is; note the same in each kind."""
    candidates = [kind for kind in kinds if len(kind.occasions) >= MIN_JUDGED_OCCASIONS and kind.core]
    if not candidates:
        return []
    index: dict[str, list[int]] = {}
    for place, (words, _) in enumerate(background):
        for word in words:
            index.setdefault(word, []).append(place)
    patterns = []
    for kind in candidates:
        found = compute_recurring_features(kind, vocabulary, background, index)
        kind.confidence = calibration.compute_confidence("recurring", found)
        if len(kind.occasions) >= MIN_REPORTED_OCCASIONS:
            patterns.append(_create_recurring(kind, found))
    return patterns


def compute_recurring_features(
    kind: EventGroup, vocabulary: Vocabulary, background: Background, index: dict[str, list[int]]
) -> tuple[float, ...]:
    """Return what tells a kind that recurs from words that happen to meet."""
    seen = len(kind.occasions)
    tail = _compute_log_surprise(kind, vocabulary, background, index)
    return (min(max(-tail, -5.0), 10.0) / 10, math.log(seen), kind.coverage, max(0.7 - kind.coverage, 0.0) * 10)


def _compute_log_surprise(
    kind: EventGroup, vocabulary: Vocabulary, background: Background, index: dict[str, list[int]]
) -> float:
    """Return the log of how likely it is that the words of the core stand together so often by chance alone.

    Words that stand together elsewhere too ("near line") are no surprise beside each other: each word counts as likely
    as the word that best predicts it makes it, as seen in events that are not of this kind. The words that the most
    members have come first, and the most surprising beginning of that list counts.
    """
    members = [compute_signature(event.text) for event in kind.occasions]
    own = {compute_signature(event.text) for event in kind.events}
    shared = Counter(word for words in members for word in words & kind.core)
    core = sorted(kind.core, key=lambda word: (-shared[word], vocabulary.counts[word], word))[:MAX_CORE_WORDS]
    outside = {word: {p for p in index[word] if background[p][0] not in own} for word in core}
    counts = {word: sum(background[p][1] for p in places) for word, places in outside.items()}
    total = vocabulary.total + 1
    log, best = math.log10(total), 0.0
    for i, word in enumerate(core):
        likely = (counts[word] + 0.5) / total
        for other in core[:i]:
            if counts[other] >= MIN_CONTEXT_COUNT:
                both = sum(background[p][1] for p in outside[other] & outside[word])
                likely = max(likely, (both + 0.25) / (counts[other] + 1))
        log += math.log10(min(likely, 1.0))
        together = sum(words.issuperset(core[: i + 1]) for words in members)
        tail = confidence.log_poisson_tail(together, 10**log) + confidence.log_combinations(
            len(vocabulary.counts), i + 1
        )
        best = min(best, tail + math.log10(len(core)))
    return best


def _create_recurring(kind: EventGroup, found: tuple[float, ...]) -> Pattern:
    times = [event.at for event in kind.occasions]
    rhythm = describe_rhythm(times)
    count = len(kind.events)
    central = _select_central_event(kind)
    when = f", {rhythm}" if rhythm else ""
    summary = (
        f"{format_count(count, 'time')}{when}{_format_wording([event.text for event in kind.events], central.text)}"
    )
    return Pattern(
        type="recurring",
        about=f"{kind.event_type}: {' '.join(sorted(kind.core))}",
        summary=summary,
        confidence=kind.confidence,
        support=count,
        evidence=tuple(event.id for event in kind.events),
        details={
            "event_type": kind.event_type,
            "every": rhythm,
            "occasions": len(kind.occasions),
            "first": times[0],
            "last": times[-1],
            "outcomes": dict(Counter(e.outcome for e in kind.events if e.outcome)),
        },
        features=found,
        quotes=(central.id,),
    )


def _format_wording(texts: Sequence[str], example: str) -> str:
    """Say what happened: in its words if these were always the same, with N for numbers that vary; else by example."""
    plain = [" ".join(text.split()) for text in texts]
    pieces = [NUMBER_PATTERN.split(text) for text in plain]
    ways = len({tuple(piece.casefold() for piece in split) for split in pieces})
    if ways > 1:
        return f", in {ways} wordings, such as: {to_quote(example)}"
    numbers = zip(*(NUMBER_PATTERN.findall(text) for text in plain), strict=True)
    shown = [found[0] if len(set(found)) == 1 else "N" for found in numbers]
    first = NUMBER_PATTERN.split(" ".join(example.split()))
    return f": {to_quote(''.join(a + b for a, b in zip_longest(first, shown, fillvalue='')))}"


def _select_central_event(kind: EventGroup) -> Event:
    """Return the event that says the most of what all share, and the least besides."""

    def sort_key(event: Event) -> tuple[int, int, str, int]:
        words = compute_signature(event.text)
        return -len(words & kind.core), len(words), event.text, event.id

    return min(kind.events, key=sort_key)


def describe_rhythm(times: Sequence[float]) -> str | None:
    """Say in words how regularly something happens, if it does."""
    if len(times) < 4:
        return None
    gaps = [later - earlier for earlier, later in pairwise(times)]
    middle = median(gaps)
    days = [clock.to_local_time(at) for at in times]
    weekday, most = Counter(day.weekday() for day in days).most_common(1)[0]
    weeks = {day.date().isocalendar()[:2] for day in days}
    if most >= 0.9 * len(times) and len(weeks) >= 4 and most * math.log10(7) - math.log10(7) >= 2:
        return f"{_format_regularity(most == len(times) and len(weeks) == len(times))}every {WEEKDAY_NAMES[weekday]}"
    regular = (
        [gap for gap in gaps if abs(gap / middle - round(gap / middle)) <= 0.15 and gap > middle / 2] if middle else []
    )
    if middle < 600 or len(regular) < 0.8 * len(gaps):
        return None
    for unit, name in ((7 * DAY_S, "week"), (DAY_S, "day"), (3_600.0, "hour")):
        whole = round(middle / unit)
        if whole >= 1 and abs(middle - whole * unit) <= 0.1 * unit:
            exact = len(regular) == len(gaps) and max(gaps) < 1.5 * middle
            return (
                f"{_format_regularity(exact)}every {name}"
                if whole == 1
                else f"{_format_regularity(exact)}every {whole} {name}s"
            )
    return None


def _format_regularity(exact: bool) -> str:
    return "" if exact else "nearly "
