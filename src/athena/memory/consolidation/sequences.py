"""Sequences that lead somewhere: after A, or after A and then B, the outcome of C is likelier than usual.

Looked at within a session. What counts as usual is how C ends where the steps did not come before it.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from athena.memory.consolidation import calibration, chance
from athena.memory.consolidation.kinds import Kind
from athena.memory.consolidation.material import Event
from athena.memory.consolidation.pattern import Pattern, plural, said
from athena.memory.consolidation.signature import signature

WINDOW = 12  # events before an outcome that may have to do with it
LEAST = 4  # times that the steps came before the outcome
FROM_KIND = 3  # occasions that make a step
SURE = 0.1  # a step must be at least this likely to be one kind of thing
OUTCOMES = ("success", "failure")
PRIOR = 2.0  # so many further ends are taken to go as ends of this kind do on the whole
ENOUGH = 0.65  # of the times that the steps came, the outcome followed


class _End(NamedTuple):
    """An event with an outcome, and the steps before it in its session, each with its last event."""

    event: Event
    before: dict[int, Event]


class _Candidate(NamedTuple):
    steps: tuple[int, ...]
    end: int
    outcome: str
    met: list[_End]  # where the outcome followed
    came: int  # how often the steps came before the end
    rate: float  # of the outcome at this end without the steps
    tail: float  # the log of how likely that is by chance


def find(events: Sequence[Event], kinds: Sequence[Kind], *, longest: int = 2) -> list[Pattern]:
    """Return sequences, of those that explain the same outcomes only the best; `recurring` has judged the kinds."""
    frequent = [kind for kind in kinds if len(kind.occasions) >= FROM_KIND and kind.sure >= SURE]
    number = {event.id: place for place, kind in enumerate(frequent) for event in kind.events}
    ends = _ends(events, number)
    candidates = [one for end, found in ends.items() for one in _candidates(end, found, longest)]
    tests = max(len(candidates), 1)
    return [_pattern(one, frequent, tests) for one in _best(candidates)]


def _ends(events: Sequence[Event], number: dict[int, int]) -> dict[int, list[_End]]:
    """Return the events with an outcome, by their kind."""
    sessions: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event.session is not None:
            sessions[event.session].append(event)
    ends: dict[int, list[_End]] = defaultdict(list)
    for members in sessions.values():
        members.sort(key=lambda one: (one.at, one.id))
        for place, event in enumerate(members):
            kind = number.get(event.id)
            if kind is None or event.outcome not in OUTCOMES:
                continue
            before: dict[int, Event] = {}
            for earlier in members[max(place - WINDOW, 0) : place]:
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
            rate = (sum(one.event.outcome == outcome for one in others) + PRIOR * usual) / (len(others) + PRIOR)
            tail = chance.binomial_tail(len(met), len(ends), rate)
            if tail < -0.5:
                made.append(_Candidate(steps, end, outcome, met, len(ends), rate, tail))
    return made


def _best(candidates: list[_Candidate]) -> list[_Candidate]:
    """Keep of candidates that explain the same outcomes the one that explains them best; longer ones lose a little."""
    chosen: list[_Candidate] = []
    for one in sorted(candidates, key=lambda c: (c.tail + 0.1 * len(c.steps), c.steps)):
        mine = {end.event.id for end in one.met}
        if not any(
            c.end == one.end and len(mine & {e.event.id for e in c.met}) * 3 > min(len(mine), len(c.met))
            for c in chosen
        ):
            chosen.append(one)
    return chosen


def _pattern(one: _Candidate, kinds: Sequence[Kind], tests: int) -> Pattern:
    share = len(one.met) / one.came
    found = (
        min(max(-(one.tail + math.log10(tests)), -3.0), 10.0) / 5,
        math.log(len(one.met)),
        share - one.rate,
    )
    quoted = [_example(kinds[step], [end.before[step] for end in one.met]) for step in one.steps]
    quoted.append(_example(kinds[one.end], [end.event for end in one.met]))
    *names, last = [said(event.text, 60) for event in quoted]
    first = " then ".join(f"'{name}'" for name in names)
    summary = (
        f"After {first}, '{last}' ends in {one.outcome} {len(one.met)} of {plural(one.came, 'time')}, "
        f"otherwise in {round(100 * one.rate)} of 100"
    )
    evidence = {event.id for end in one.met for event in (*(end.before[step] for step in one.steps), end.event)}
    cores = [" ".join(sorted(kinds[place].core)) for place in (*one.steps, one.end)]
    return Pattern(
        type="sequence",
        about=f"{' > '.join(cores)} > {one.outcome}",
        summary=summary,
        confidence=calibration.confidence("sequence", found),
        support=len(one.met),
        evidence=tuple(sorted(evidence)),
        details={
            "outcome": one.outcome,
            "steps": [*names, last],
            "came": one.came,
            "usual_rate": round(one.rate, 4),
            "lift": round(share / one.rate, 2),
        },
        features=found,
        quotes=tuple(event.id for event in quoted),
    )


def _example(kind: Kind, events: Sequence[Event]) -> Event:
    return min(events, key=lambda one: (-len(signature(one.text) & kind.core), len(one.text), one.text, one.id))
