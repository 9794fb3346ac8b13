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
from athena.memory.consolidation.events import Kind
from athena.memory.consolidation.findings import Pattern, plural, said
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.signature import signature

WINDOW = 12  # events before an outcome that may have to do with it
LEAST = 4  # times that the steps came before the outcome
FROM_KIND = 3  # occasions that make a step
SURE = 0.1  # a step must be at least this likely to be one kind of thing
MOST = 8  # sequences to one kind of end
OUTCOMES = ("success", "failure")
PRIOR = 2.0  # so many further ends are taken to go as ends of this kind do on the whole
ENOUGH = 0.65  # of the times that the steps came, the outcome followed


class _End(NamedTuple):
    """An event with an outcome, and the steps before it, since the last of its kind in its session."""

    event: Event
    before: dict[int, Event]


class _Candidate(NamedTuple):
    steps: tuple[int, ...]
    end: int
    outcome: str
    met: list[_End]  # where the outcome followed
    came: int  # how often the steps came before the end
    rate: float  # of the outcome at this end without the steps, drawn towards what is usual where that is seldom
    tail: float  # the log of how likely that is by chance


def find(events: Sequence[Event], kinds: Sequence[Kind], *, longest: int = 2) -> list[Pattern]:
    """Return sequences, of those that explain the same outcomes only the best; `recurring` has judged the kinds."""
    frequent = [kind for kind in kinds if len(kind.occasions) >= FROM_KIND and (kind.sure >= SURE or kind.alike)]
    number = {event.id: place for place, kind in enumerate(frequent) for event in kind.events}
    ends = _ends(events, number)
    tried = {end: _candidates(end, found, longest) for end, found in ends.items()}
    tests = max(sum(map(len, tried.values())), 1)
    chosen = [one for end, found in ends.items() for one in _chosen(end, found, tried[end], longest)]
    found = [_pattern(one, ends[one.end], frequent, tests) for one in chosen]
    return sorted(found, key=lambda one: (-one.confidence, one.about))


def _ends(events: Sequence[Event], number: dict[int, int]) -> dict[int, list[_End]]:
    """Return the events with an outcome, by their kind."""
    sessions: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.session is not None:
            sessions[event.session].append(event)
    ends: dict[int, list[_End]] = defaultdict(list)
    for members in sessions.values():
        members.sort(key=lambda one: (one.at, one.id))
        last: dict[int, int] = {}  # where each kind came last
        for place, event in enumerate(members):
            kind = number.get(event.id)
            if kind is None or event.outcome not in OUTCOMES:
                continue
            before: dict[int, Event] = {}
            first = max(place - WINDOW, last.get(kind, -1) + 1, 0)
            last[kind] = place
            for earlier in members[first:place]:
                step = number.get(earlier.id)
                if step is not None and step != kind:
                    before.pop(step, None)  # the last time counts, and so does its place in the order
                    before[step] = earlier
            ends[kind].append(_End(event, before))
    return ends


def _candidates(end: int, found: list[_End], longest: int) -> list[_Candidate]:
    """Try every step and every two steps that come before an end often enough."""
    came: dict[tuple[int, ...], list[_End]] = defaultdict(list)
    for one in found:
        for length in range(1, longest + 1):
            for steps in combinations(one.before, length):  # in the order in which they came
                came[steps].append(one)
    made = []
    for steps, ends in came.items():
        if len(ends) < LEAST:
            continue
        with_steps = {one.event.id for one in ends}
        for outcome in OUTCOMES:
            met = [one for one in ends if one.event.outcome == outcome]
            if len(met) < LEAST or len(met) < ENOUGH * len(ends):
                continue
            others = [one for one in found if one.event.id not in with_steps]
            usual = sum(one.event.outcome == outcome for one in found) / len(found)
            without = sum(one.event.outcome == outcome for one in others)
            rate = (without + PRIOR * usual) / (len(others) + PRIOR)
            tail = confidence.binomial_tail(len(met), len(ends), rate)
            if tail < -0.5:
                made.append(_Candidate(steps, end, outcome, met, len(ends), rate, tail))
    return made


def _chosen(end: int, found: list[_End], candidates: list[_Candidate], longest: int) -> list[_Candidate]:
    """Choose the sequence that explains the outcomes best, then the best for what it does not explain, and so on.

    So of two that go together, or of a step and its opposite, only the one that says more is found.
    """
    chosen: list[_Candidate] = []
    while candidates and len(chosen) < MOST:
        best = min(candidates, key=lambda c: (c.tail + 0.1 * len(c.steps), c.steps, c.outcome))
        chosen.append(best)
        found = [one for one in found if not _came(best.steps, one)]
        candidates = _candidates(end, found, longest)
    return chosen


def _came(steps: tuple[int, ...], end: _End) -> bool:
    """Tell whether the steps came before an end, in their order."""
    if not all(step in end.before for step in steps):
        return False
    places = [list(end.before).index(step) for step in steps]
    return places == sorted(places)


def _pattern(one: _Candidate, ends: list[_End], kinds: Sequence[Kind], tests: int) -> Pattern:
    share = len(one.met) / one.came
    found = (
        min(max(-(one.tail + math.log10(tests)), -3.0), 10.0) / 5,
        math.log(len(one.met)),
        share - one.rate,
    )
    # What is said is said of all ends; how sure it is depends on those that nothing better explains.
    after = [end for end in ends if _came(one.steps, end)]
    met = [end for end in after if end.event.outcome == one.outcome]
    others = len(ends) - len(after)
    without = sum(end.event.outcome == one.outcome for end in ends) - len(met)
    quoted = [_example(kinds[step], [end.before[step] for end in one.met]) for step in one.steps]
    quoted.append(_example(kinds[one.end], [end.event for end in one.met]))
    *names, last = [said(event.text, 60) for event in quoted]
    first = " then ".join(f"'{name}'" for name in names)
    summary = f"After {first}, '{last}' ends in {one.outcome} {len(met)} of {plural(len(after), 'time')}, " + (
        f"otherwise in {without} of {others}" if others else "and never came without"
    )
    evidence = {event.id for end in met for event in (*(end.before[step] for step in one.steps), end.event)}
    cores = [" ".join(sorted(kinds[place].core)) for place in (*one.steps, one.end)]
    return Pattern(
        type="sequence",
        about=f"{' > '.join(cores)} > {one.outcome}",
        summary=summary,
        confidence=calibration.confidence("sequence", found),
        support=len(met),
        evidence=tuple(sorted(evidence)),
        details={
            "outcome": one.outcome,
            "steps": [*names, last],
            "came": len(after),
            "otherwise": [without, others],
            "lift": round(share / one.rate, 2),
        },
        features=found,
        quotes=tuple(event.id for event in quoted),
    )


def _example(kind: Kind, events: Sequence[Event]) -> Event:
    return min(events, key=lambda one: (-len(signature(one.text) & kind.core), len(one.text), one.text, one.id))
