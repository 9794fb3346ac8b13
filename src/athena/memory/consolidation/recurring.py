"""Episodes that recur: one kind of event, more often than its words would come together by chance."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from statistics import median

from athena.core import clock
from athena.memory.consolidation import calibration, confidence
from athena.memory.consolidation.events import Kind, Vocabulary
from athena.memory.consolidation.findings import Pattern, plural, said
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.signature import signature

LEAST = 4  # occasions that are reported
JUDGED = 3  # occasions that may be a step of a sequence
KNOWN = 5  # a word seen so often elsewhere says how likely others are beside it
LONGEST = 12  # words of a core that are looked at
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
DAY = 86_400.0
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Background = Sequence[tuple[frozenset[str], int]]


def find(kinds: Sequence[Kind], vocabulary: Vocabulary, background: Background) -> list[Pattern]:
    """Return a pattern for each kind that recurs, with how sure that is; note the same in each kind."""
    candidates = [kind for kind in kinds if len(kind.occasions) >= JUDGED and kind.core]
    if not candidates:
        return []
    index: dict[str, list[int]] = {}
    for place, (words, _) in enumerate(background):
        for word in words:
            index.setdefault(word, []).append(place)
    patterns = []
    for kind in candidates:
        found = features(kind, vocabulary, background, index)
        kind.sure = calibration.confidence("recurring", found)
        if len(kind.occasions) >= LEAST:
            patterns.append(_pattern(kind, found))
    return patterns


def features(
    kind: Kind, vocabulary: Vocabulary, background: Background, index: dict[str, list[int]]
) -> tuple[float, ...]:
    """Return what tells a kind that recurs from words that happen to meet."""
    seen = len(kind.occasions)
    tail = _surprise(kind, vocabulary, background, index)
    return (min(max(-tail, -5.0), 10.0) / 10, math.log(seen), kind.coverage, max(0.7 - kind.coverage, 0.0) * 10)


def _surprise(kind: Kind, vocabulary: Vocabulary, background: Background, index: dict[str, list[int]]) -> float:
    """Return the log of how likely it is that the words of the core stand together so often by chance alone.

    Words that stand together elsewhere too ("near line") are no surprise beside each other: each word counts as likely
    as the word that best predicts it makes it, as seen in events that are not of this kind. The words that the most
    members have come first, and the most surprising beginning of that list counts.
    """
    members = [signature(event.text) for event in kind.occasions]
    own = {signature(event.text) for event in kind.events}
    shared = Counter(word for words in members for word in words & kind.core)
    core = sorted(kind.core, key=lambda word: (-shared[word], vocabulary.counts[word], word))[:LONGEST]
    outside = {word: {p for p in index[word] if background[p][0] not in own} for word in core}
    counts = {word: sum(background[p][1] for p in places) for word, places in outside.items()}
    total = vocabulary.total + 1
    log, best = math.log10(total), 0.0
    for i, word in enumerate(core):
        likely = (counts[word] + 0.5) / total
        for other in core[:i]:
            if counts[other] >= KNOWN:
                both = sum(background[p][1] for p in outside[other] & outside[word])
                likely = max(likely, (both + 0.25) / (counts[other] + 1))
        log += math.log10(min(likely, 1.0))
        together = sum(words.issuperset(core[: i + 1]) for words in members)
        tail = confidence.poisson_tail(together, 10**log) + confidence.choices(len(vocabulary.counts), i + 1)
        best = min(best, tail + math.log10(len(core)))
    return best


def _pattern(kind: Kind, found: tuple[float, ...]) -> Pattern:
    times = [event.at for event in kind.occasions]
    rhythm = period(times)
    count = len(kind.events)
    central = _central(kind)
    when = f", {rhythm}" if rhythm else ""
    summary = f"{plural(count, 'time')}{when}{_wording([event.text for event in kind.events], central.text)}"
    return Pattern(
        type="recurring",
        about=f"{kind.event_type}: {' '.join(sorted(kind.core))}",
        summary=summary,
        confidence=kind.sure,
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


def _wording(texts: Sequence[str], example: str) -> str:
    """Say what happened: in its words if these were always the same, with N for numbers that vary; else by example."""
    plain = [" ".join(text.split()) for text in texts]
    pieces = [NUMBER.split(text) for text in plain]
    ways = len({tuple(piece.casefold() for piece in split) for split in pieces})
    if ways > 1:
        return f", in {ways} wordings, such as: {said(example)}"
    numbers = zip(*(NUMBER.findall(text) for text in plain), strict=True)
    shown = [found[0] if len(set(found)) == 1 else "N" for found in numbers]
    first = NUMBER.split(" ".join(example.split()))
    return f": {said(''.join(a + b for a, b in zip_longest(first, shown, fillvalue='')))}"


def _central(kind: Kind) -> Event:
    """Return the event that says the most of what all share, and the least besides."""

    def order(event: Event) -> tuple[int, int, str, int]:
        words = signature(event.text)
        return -len(words & kind.core), len(words), event.text, event.id

    return min(kind.events, key=order)


def period(times: Sequence[float]) -> str | None:
    """Say in words how regularly something happens, if it does."""
    if len(times) < 4:
        return None
    gaps = [later - earlier for earlier, later in pairwise(times)]
    middle = median(gaps)
    days = [clock.local(at) for at in times]
    weekday, most = Counter(day.weekday() for day in days).most_common(1)[0]
    weeks = {day.date().isocalendar()[:2] for day in days}
    if most >= 0.9 * len(times) and len(weeks) >= 4 and most * math.log10(7) - math.log10(7) >= 2:
        return f"{_mostly(most == len(times) and len(weeks) == len(times))}every {WEEKDAYS[weekday]}"
    regular = (
        [gap for gap in gaps if abs(gap / middle - round(gap / middle)) <= 0.15 and gap > middle / 2] if middle else []
    )
    if middle < 600 or len(regular) < 0.8 * len(gaps):
        return None
    for unit, name in ((7 * DAY, "week"), (DAY, "day"), (3_600.0, "hour")):
        whole = round(middle / unit)
        if whole >= 1 and abs(middle - whole * unit) <= 0.1 * unit:
            exact = len(regular) == len(gaps) and max(gaps) < 1.5 * middle
            return f"{_mostly(exact)}every {name}" if whole == 1 else f"{_mostly(exact)}every {whole} {name}s"
    return None


def _mostly(exact: bool) -> str:
    return "" if exact else "nearly "
