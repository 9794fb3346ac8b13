"""Sequences that lead somewhere: after A, or after A and then B, the outcome of C is likelier than usual.

Looked at within a session, each time that C comes: what came since C came the last time. What counts as usual is how C
ends where the steps did not come before it.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise, zip_longest
from statistics import median
from typing import NamedTuple

from athena.core import clock
from athena.memory.consolidation import confidence
from athena.memory.consolidation.events import EventGroup, Vocabulary, compute_signature
from athena.memory.consolidation.values import Event, Pattern, format_count, to_quote

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
        kind.confidence = confidence.compute_confidence("recurring", found)
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


MAX_WINDOW_EVENTS = 12  # events before an outcome that may have to do with it
MIN_SEQUENCE_COUNT = 4  # times that the steps came before the outcome
MIN_STEP_OCCASIONS = 3  # occasions that make a step
MIN_STEP_CONFIDENCE = 0.1  # a step must be at least this likely to be one kind of thing
MAX_SEQUENCES_PER_END = 8  # sequences to one kind of end
OUTCOMES = ("success", "failure")
PRIOR_COUNT = 2.0  # so many further ends are taken to go as ends of this kind do on the whole
MIN_OUTCOME_SHARE = 0.65  # of the times that the steps came, the outcome followed


class _OutcomeEvent(NamedTuple):
    """An event with an outcome, and the steps before it, since the last of its kind in its session."""

    event: Event
    before: dict[int, Event]


class _SequenceCandidate(NamedTuple):
    steps: tuple[int, ...]
    end: int
    outcome: str
    matching_ends: list[_OutcomeEvent]  # where the outcome followed
    end_count: int  # how often the steps came before the end
    base_rate: float  # of the outcome at this end without the steps, drawn towards what is usual where that is seldom
    log_tail: float  # the log of how likely that is by chance


def find_sequences(events: Sequence[Event], kinds: Sequence[EventGroup], *, longest: int = 2) -> list[Pattern]:
    """Return sequences, of those that explain the same outcomes only the best; `recurring` has judged the kinds."""
    frequent = [
        kind
        for kind in kinds
        if len(kind.occasions) >= MIN_STEP_OCCASIONS and (kind.confidence >= MIN_STEP_CONFIDENCE or kind.same_wording)
    ]
    number = {event.id: place for place, kind in enumerate(frequent) for event in kind.events}
    ends = _collect_ends(events, number)
    tried = {end: _find_candidates(end, found, longest) for end, found in ends.items()}
    tests = max(sum(map(len, tried.values())), 1)
    chosen = [one for end, found in ends.items() for one in _select_candidates(end, found, tried[end], longest)]
    found = [_create_sequence(one, ends[one.end], frequent, tests) for one in chosen]
    return sorted(found, key=lambda one: (-one.confidence, one.about))


def _collect_ends(events: Sequence[Event], number: dict[int, int]) -> dict[int, list[_OutcomeEvent]]:
    """Return the events with an outcome, by their kind."""
    sessions: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.session is not None:
            sessions[event.session].append(event)
    ends: dict[int, list[_OutcomeEvent]] = defaultdict(list)
    for members in sessions.values():
        members.sort(key=lambda one: (one.at, one.id))
        last: dict[int, int] = {}  # where each kind came last
        for place, event in enumerate(members):
            kind = number.get(event.id)
            if kind is None or event.outcome not in OUTCOMES:
                continue
            before: dict[int, Event] = {}
            first = max(place - MAX_WINDOW_EVENTS, last.get(kind, -1) + 1, 0)
            last[kind] = place
            for earlier in members[first:place]:
                step = number.get(earlier.id)
                if step is not None and step != kind:
                    before.pop(step, None)  # the last time counts, and so does its place in the order
                    before[step] = earlier
            ends[kind].append(_OutcomeEvent(event, before))
    return ends


def _find_candidates(end: int, found: list[_OutcomeEvent], longest: int) -> list[_SequenceCandidate]:
    """Try every step and every two steps that come before an end often enough."""
    came: dict[tuple[int, ...], list[_OutcomeEvent]] = defaultdict(list)
    for one in found:
        for length in range(1, longest + 1):
            for steps in combinations(one.before, length):  # in the order in which they came
                came[steps].append(one)
    made = []
    for steps, ends in came.items():
        if len(ends) < MIN_SEQUENCE_COUNT:
            continue
        with_steps = {one.event.id for one in ends}
        for outcome in OUTCOMES:
            met = [one for one in ends if one.event.outcome == outcome]
            if len(met) < MIN_SEQUENCE_COUNT or len(met) < MIN_OUTCOME_SHARE * len(ends):
                continue
            others = [one for one in found if one.event.id not in with_steps]
            usual = sum(one.event.outcome == outcome for one in found) / len(found)
            without = sum(one.event.outcome == outcome for one in others)
            rate = (without + PRIOR_COUNT * usual) / (len(others) + PRIOR_COUNT)
            tail = confidence.log_binomial_tail(len(met), len(ends), rate)
            if tail < -0.5:
                made.append(_SequenceCandidate(steps, end, outcome, met, len(ends), rate, tail))
    return made


def _select_candidates(
    end: int, found: list[_OutcomeEvent], candidates: list[_SequenceCandidate], longest: int
) -> list[_SequenceCandidate]:
    """Choose the sequence that explains the outcomes best, then the best for what it does not explain, and so on.

    So of two that go together, or of a step and its opposite, only the one that says more is found.
    """
    chosen: list[_SequenceCandidate] = []
    while candidates and len(chosen) < MAX_SEQUENCES_PER_END:
        best = min(candidates, key=lambda c: (c.log_tail + 0.1 * len(c.steps), c.steps, c.outcome))
        chosen.append(best)
        found = [one for one in found if not _steps_precede(best.steps, one)]
        candidates = _find_candidates(end, found, longest)
    return chosen


def _steps_precede(steps: tuple[int, ...], end: _OutcomeEvent) -> bool:
    """Tell whether the steps came before an end, in their order."""
    if not all(step in end.before for step in steps):
        return False
    places = [list(end.before).index(step) for step in steps]
    return places == sorted(places)


def _create_sequence(
    one: _SequenceCandidate, ends: list[_OutcomeEvent], kinds: Sequence[EventGroup], tests: int
) -> Pattern:
    share = len(one.matching_ends) / one.end_count
    found = (
        min(max(-(one.log_tail + math.log10(tests)), -3.0), 10.0) / 5,
        math.log(len(one.matching_ends)),
        share - one.base_rate,
    )
    # What is said is said of all ends; how sure it is depends on those that nothing better explains.
    after = [end for end in ends if _steps_precede(one.steps, end)]
    met = [end for end in after if end.event.outcome == one.outcome]
    others = len(ends) - len(after)
    without = sum(end.event.outcome == one.outcome for end in ends) - len(met)
    quoted = [_select_example(kinds[step], [end.before[step] for end in one.matching_ends]) for step in one.steps]
    quoted.append(_select_example(kinds[one.end], [end.event for end in one.matching_ends]))
    *names, last = [to_quote(event.text, 60) for event in quoted]
    first = " then ".join(f"'{name}'" for name in names)
    summary = f"After {first}, '{last}' ends in {one.outcome} {len(met)} of {format_count(len(after), 'time')}, " + (
        f"otherwise in {without} of {others}" if others else "and never came without"
    )
    evidence = {event.id for end in met for event in (*(end.before[step] for step in one.steps), end.event)}
    cores = [" ".join(sorted(kinds[place].core)) for place in (*one.steps, one.end)]
    return Pattern(
        type="sequence",
        about=f"{' > '.join(cores)} > {one.outcome}",
        summary=summary,
        confidence=confidence.compute_confidence("sequence", found),
        support=len(met),
        evidence=tuple(sorted(evidence)),
        details={
            "outcome": one.outcome,
            "steps": [*names, last],
            "came": len(after),
            "otherwise": [without, others],
            "lift": round(share / one.base_rate, 2),
        },
        features=found,
        quotes=tuple(event.id for event in quoted),
    )


def _select_example(kind: EventGroup, events: Sequence[Event]) -> Event:
    return min(events, key=lambda one: (-len(compute_signature(one.text) & kind.core), len(one.text), one.text, one.id))
