"""Find recurring events, and sequences: after A, or after A and then B, an outcome of C is likelier than usual.

For each C of a session the steps are the events since the previous C. The usual rate of an outcome is that of the Cs
without the steps before them.
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
from athena.memory.consolidation.values import MinedEvent, Pattern, format_count, to_quote

MIN_REPORTED_OCCASIONS = 4
MIN_JUDGED_OCCASIONS = 3  # fewer are no pattern, but may be a step of a sequence
MIN_CONTEXT_COUNT = 5  # of a word outside of the group, for it to predict other words
MAX_CORE_WORDS = 12
MAX_WINDOW_EVENTS = 12  # before an end, in which steps are looked for
MIN_SEQUENCE_COUNT = 4
MIN_STEP_OCCASIONS = 3
MIN_STEP_CONFIDENCE = 0.1  # that the events of a step are of one kind
MAX_SEQUENCES_PER_END = 8
OUTCOMES = ("success", "failure")
PRIOR_COUNT = 2.0  # pseudo-observations at the overall rate
MIN_OUTCOME_SHARE = 0.65  # of the ends after the steps that have the outcome
NUMBER_PATTERN = re.compile(r"\d+(?:[.,:]\d+)*")
DAY_S = 86_400.0
WEEKDAY_NAMES = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
Background = Sequence[tuple[frozenset[str], int]]


def find_recurring(groups: Sequence[EventGroup], vocabulary: Vocabulary, background: Background) -> list[Pattern]:
    """Return a pattern for each group that recurs, and set the confidence of each group."""
    candidates = [group for group in groups if len(group.occasions) >= MIN_JUDGED_OCCASIONS and group.core]
    if not candidates:
        return []
    indexes_by_word: dict[str, list[int]] = {}
    for i, (signature, _) in enumerate(background):
        for word in signature:
            indexes_by_word.setdefault(word, []).append(i)
    patterns = []
    for group in candidates:
        features = compute_recurring_features(group, vocabulary, background, indexes_by_word)
        group.confidence = confidence.compute_confidence("recurring", features)
        if len(group.occasions) >= MIN_REPORTED_OCCASIONS:
            patterns.append(_create_recurring(group, features))
    return patterns


def compute_recurring_features(
    group: EventGroup, vocabulary: Vocabulary, background: Background, indexes_by_word: dict[str, list[int]]
) -> tuple[float, ...]:
    """Return the features that tell a recurring event from words that occur together by chance."""
    tail = _compute_log_surprise(group, vocabulary, background, indexes_by_word)
    return (
        min(max(-tail, -5.0), 10.0) / 10,
        math.log(len(group.occasions)),
        group.coverage,
        max(0.7 - group.coverage, 0.0) * 10,
    )


def _compute_log_surprise(
    group: EventGroup, vocabulary: Vocabulary, background: Background, indexes_by_word: dict[str, list[int]]
) -> float:
    """Return the log of the probability that the core words occur together this often by chance.

    Words that also occur together elsewhere ("near line") are no surprise: the probability of a word is that given
    the core word which best predicts it in events outside of the group. The words that most members have come first,
    and the most surprising prefix of that list counts.
    """
    members = [compute_signature(event.text) for event in group.occasions]
    own = {compute_signature(event.text) for event in group.events}
    shared = Counter(word for signature in members for word in signature & group.core)
    core = sorted(group.core, key=lambda word: (-shared[word], vocabulary.counts[word], word))[:MAX_CORE_WORDS]
    outside = {word: {i for i in indexes_by_word[word] if background[i][0] not in own} for word in core}
    counts = {word: sum(background[i][1] for i in indexes) for word, indexes in outside.items()}
    total = vocabulary.total + 1
    log, best = math.log10(total), 0.0
    for i, word in enumerate(core):
        probability = (counts[word] + 0.5) / total
        for other in core[:i]:
            if counts[other] >= MIN_CONTEXT_COUNT:
                both = sum(background[index][1] for index in outside[other] & outside[word])
                probability = max(probability, (both + 0.25) / (counts[other] + 1))
        log += math.log10(min(probability, 1.0))
        together = sum(signature.issuperset(core[: i + 1]) for signature in members)
        tail = confidence.log_poisson_tail(together, 10**log)
        tail += confidence.log_combinations(len(vocabulary.counts), i + 1)  # for the choice of the words
        best = min(best, tail + math.log10(len(core)))
    return best


def _create_recurring(group: EventGroup, features: tuple[float, ...]) -> Pattern:
    times = [event.at for event in group.occasions]
    rhythm = describe_rhythm(times)
    count = len(group.events)
    central = _select_central_event(group)
    when = f", {rhythm}" if rhythm else ""
    summary = (
        f"{format_count(count, 'time')}{when}{_format_wording([event.text for event in group.events], central.text)}"
    )
    return Pattern(
        type="recurring",
        about=f"{group.event_type}: {' '.join(sorted(group.core))}",
        summary=summary,
        confidence=group.confidence,
        support=count,
        evidence=tuple(event.id for event in group.events),
        details={
            "event_type": group.event_type,
            "every": rhythm,
            "occasions": len(group.occasions),
            "first": times[0],
            "last": times[-1],
            "outcomes": dict(Counter(e.outcome for e in group.events if e.outcome)),
        },
        features=features,
        quotes=(central.id,),
    )


def _format_wording(texts: Sequence[str], example: str) -> str:
    """Return the common wording of the texts, with N for numbers that vary; else the example."""
    lines = [" ".join(text.split()) for text in texts]
    wordings = {tuple(piece.casefold() for piece in NUMBER_PATTERN.split(line)) for line in lines}
    if len(wordings) > 1:
        return f", in {len(wordings)} wordings, such as: {to_quote(example)}"
    columns = zip(*(NUMBER_PATTERN.findall(line) for line in lines), strict=True)
    numbers = [column[0] if len(set(column)) == 1 else "N" for column in columns]
    pieces = NUMBER_PATTERN.split(" ".join(example.split()))
    return f": {to_quote(''.join(a + b for a, b in zip_longest(pieces, numbers, fillvalue='')))}"


def _select_central_event(group: EventGroup) -> MinedEvent:
    """Return the event with the most core words and the fewest others."""

    def sort_key(event: MinedEvent) -> tuple[int, int, str, int]:
        signature = compute_signature(event.text)
        return -len(signature & group.core), len(signature), event.text, event.id

    return min(group.events, key=sort_key)


def describe_rhythm(times: Sequence[float]) -> str | None:
    """Return a rhythm such as "every Monday" or "nearly every 2 days"; None if there is none."""
    if len(times) < 4:
        return None
    gaps = [later - earlier for earlier, later in pairwise(times)]
    typical = median(gaps)
    days = [clock.to_local_time(at) for at in times]
    weekday, count = Counter(day.weekday() for day in days).most_common(1)[0]
    weeks = {day.date().isocalendar()[:2] for day in days}
    if count >= 0.9 * len(times) and len(weeks) >= 4 and count * math.log10(7) - math.log10(7) >= 2:
        exact = count == len(times) and len(weeks) == len(times)
        return f"{'' if exact else 'nearly '}every {WEEKDAY_NAMES[weekday]}"
    if typical < 600:
        return None
    # Multiples of the typical gap are regular too: an occasion was missed.
    regular = [gap for gap in gaps if abs(gap / typical - round(gap / typical)) <= 0.15 and gap > typical / 2]
    if len(regular) < 0.8 * len(gaps):
        return None
    for unit, name in ((7 * DAY_S, "week"), (DAY_S, "day"), (3_600.0, "hour")):
        units = round(typical / unit)
        if units >= 1 and abs(typical - units * unit) <= 0.1 * unit:
            exact = len(regular) == len(gaps) and max(gaps) < 1.5 * typical
            return f"{'' if exact else 'nearly '}every {name if units == 1 else f'{units} {name}s'}"
    return None


class _OutcomeEvent(NamedTuple):
    """An event with an outcome, and the events before it since the previous one of its kind in its session."""

    event: MinedEvent
    before: dict[int, MinedEvent]  # by the index of their group, in order


class _SequenceCandidate(NamedTuple):
    steps: tuple[int, ...]  # indexes of groups
    end: int
    outcome: str
    matching_ends: list[_OutcomeEvent]  # ends after the steps with the outcome
    end_count: int  # ends after the steps
    base_rate: float  # of the outcome at ends without the steps, smoothed towards the overall rate
    log_tail: float  # log of the probability of chance


def find_sequences(events: Sequence[MinedEvent], groups: Sequence[EventGroup], *, max_steps: int = 2) -> list[Pattern]:
    """Return sequences, of those that explain the same outcomes only the best. Needs groups with a confidence."""
    frequent = [
        group
        for group in groups
        if len(group.occasions) >= MIN_STEP_OCCASIONS
        and (group.confidence >= MIN_STEP_CONFIDENCE or group.same_wording)
    ]
    group_by_event = {event.id: i for i, group in enumerate(frequent) for event in group.events}
    ends_by_group = _collect_ends(events, group_by_event)
    candidates = {end: _find_candidates(end, ends, max_steps) for end, ends in ends_by_group.items()}
    test_count = max(sum(map(len, candidates.values())), 1)
    selected = [
        candidate
        for end, ends in ends_by_group.items()
        for candidate in _select_candidates(end, ends, candidates[end], max_steps)
    ]
    patterns = [
        _create_sequence(candidate, ends_by_group[candidate.end], frequent, test_count) for candidate in selected
    ]
    return sorted(patterns, key=lambda pattern: (-pattern.confidence, pattern.about))


def _collect_ends(events: Sequence[MinedEvent], group_by_event: dict[int, int]) -> dict[int, list[_OutcomeEvent]]:
    """Return the events with an outcome by their group."""
    sessions: dict[str, list[MinedEvent]] = defaultdict(list)
    for event in events:
        if event.session is not None:
            sessions[event.session].append(event)
    ends: dict[int, list[_OutcomeEvent]] = defaultdict(list)
    for members in sessions.values():
        members.sort(key=lambda event: (event.at, event.id))
        last_index: dict[int, int] = {}  # of each group
        for i, event in enumerate(members):
            group = group_by_event.get(event.id)
            if group is None or event.outcome not in OUTCOMES:
                continue
            before: dict[int, MinedEvent] = {}
            first = max(i - MAX_WINDOW_EVENTS, last_index.get(group, -1) + 1, 0)
            last_index[group] = i
            for previous in members[first:i]:
                step = group_by_event.get(previous.id)
                if step is not None and step != group:
                    before.pop(step, None)  # the last occurrence counts, also for the order
                    before[step] = previous
            ends[group].append(_OutcomeEvent(event, before))
    return ends


def _find_candidates(end: int, ends: list[_OutcomeEvent], max_steps: int) -> list[_SequenceCandidate]:
    """Try all steps, up to `max_steps` together, that come before an end often enough."""
    ends_by_steps: dict[tuple[int, ...], list[_OutcomeEvent]] = defaultdict(list)
    for outcome_event in ends:
        for length in range(1, max_steps + 1):
            for steps in combinations(outcome_event.before, length):  # keeps the order
                ends_by_steps[steps].append(outcome_event)
    candidates = []
    for steps, after_steps in ends_by_steps.items():
        if len(after_steps) < MIN_SEQUENCE_COUNT:
            continue
        ids_after_steps = {end.event.id for end in after_steps}
        for outcome in OUTCOMES:
            matching = [end for end in after_steps if end.event.outcome == outcome]
            if len(matching) < MIN_SEQUENCE_COUNT or len(matching) < MIN_OUTCOME_SHARE * len(after_steps):
                continue
            others = [end for end in ends if end.event.id not in ids_after_steps]
            overall_rate = sum(end.event.outcome == outcome for end in ends) / len(ends)
            other_count = sum(end.event.outcome == outcome for end in others)
            base_rate = (other_count + PRIOR_COUNT * overall_rate) / (len(others) + PRIOR_COUNT)
            tail = confidence.log_binomial_tail(len(matching), len(after_steps), base_rate)
            if tail < -0.5:
                candidates.append(_SequenceCandidate(steps, end, outcome, matching, len(after_steps), base_rate, tail))
    return candidates


def _select_candidates(
    end: int, ends: list[_OutcomeEvent], candidates: list[_SequenceCandidate], max_steps: int
) -> list[_SequenceCandidate]:
    """Select the sequence that explains the outcomes best, then the best for the unexplained rest, and so on.

    So of two sequences that go together, or of a step and its opposite, only the stronger is reported.
    """
    selected: list[_SequenceCandidate] = []
    while candidates and len(selected) < MAX_SEQUENCES_PER_END:
        best = min(candidates, key=lambda c: (c.log_tail + 0.1 * len(c.steps), c.steps, c.outcome))
        selected.append(best)
        ends = [outcome_event for outcome_event in ends if not _steps_precede(best.steps, outcome_event)]
        candidates = _find_candidates(end, ends, max_steps)
    return selected


def _steps_precede(steps: tuple[int, ...], end: _OutcomeEvent) -> bool:
    """Return whether the steps came before an end, in their order."""
    if not all(step in end.before for step in steps):
        return False
    indexes = [list(end.before).index(step) for step in steps]
    return indexes == sorted(indexes)


def _create_sequence(
    candidate: _SequenceCandidate, ends: list[_OutcomeEvent], groups: Sequence[EventGroup], test_count: int
) -> Pattern:
    share = len(candidate.matching_ends) / candidate.end_count
    features = (
        min(max(-(candidate.log_tail + math.log10(test_count)), -3.0), 10.0) / 5,
        math.log(len(candidate.matching_ends)),
        share - candidate.base_rate,
    )
    # The summary counts all ends; the confidence only those that no better sequence explains.
    after = [end for end in ends if _steps_precede(candidate.steps, end)]
    matching = [end for end in after if end.event.outcome == candidate.outcome]
    others = len(ends) - len(after)
    without = sum(end.event.outcome == candidate.outcome for end in ends) - len(matching)
    quoted = [
        _select_example(groups[step], [end.before[step] for end in candidate.matching_ends]) for step in candidate.steps
    ]
    quoted.append(_select_example(groups[candidate.end], [end.event for end in candidate.matching_ends]))
    *names, last = [to_quote(event.text, 60) for event in quoted]
    first = " then ".join(f"'{name}'" for name in names)
    summary = (
        f"After {first}, '{last}' ends in {candidate.outcome} {len(matching)} of {format_count(len(after), 'time')}, "
        + (f"otherwise in {without} of {others}" if others else "and never came without")
    )
    evidence = {event.id for end in matching for event in (*(end.before[step] for step in candidate.steps), end.event)}
    cores = [" ".join(sorted(groups[i].core)) for i in (*candidate.steps, candidate.end)]
    return Pattern(
        type="sequence",
        about=f"{' > '.join(cores)} > {candidate.outcome}",
        summary=summary,
        confidence=confidence.compute_confidence("sequence", features),
        support=len(matching),
        evidence=tuple(sorted(evidence)),
        details={
            "outcome": candidate.outcome,
            "steps": [*names, last],
            "came": len(after),
            "otherwise": [without, others],
            "lift": round(share / candidate.base_rate, 2),
        },
        features=features,
        quotes=tuple(event.id for event in quoted),
    )


def _select_example(group: EventGroup, events: Sequence[MinedEvent]) -> MinedEvent:
    """Return the event with the most core words, then the shortest."""
    return min(events, key=lambda e: (-len(compute_signature(e.text) & group.core), len(e.text), e.text, e.id))
