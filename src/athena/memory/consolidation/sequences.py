"""Sequences that lead somewhere: after A, or after A and then B, the outcome of C is likelier than usual.

Looked at within a session, each time that C comes: what came since C came the last time. What counts as usual is how C
ends where the steps did not come before it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from athena.memory.consolidation import calibration, confidence
from athena.memory.consolidation.events import EventGroup
from athena.memory.consolidation.findings import Pattern, format_count, to_quote
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.signature import compute_signature

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
        confidence=calibration.compute_confidence("sequence", found),
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
