"""Choosing what a session is told: the most worth for the tokens, nothing twice, never more than fits."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from athena.core import tokens
from athena.memory.sessions.excerpt import overlap, telling

ABOUT = 0.88  # of a budget that is used where tokens are only estimated
SAME = 0.6  # texts that overlap more say the same
LEAST = 0.25  # what is worth less is better left out: silence costs nothing
MORE = 0.15  # how much less each further one of a section is worth
LINE = 4  # tokens that a line costs beside its words


@dataclass(frozen=True, slots=True)
class Point:
    """Something that could be told."""

    section: str
    kind: str
    id: int
    hash: str
    text: str
    note: str  # when it was, when it is due
    reason: str
    worth: float  # from 0 to 1
    whole: str = ""  # the full text, where `text` is a part of it
    words: frozenset[str] = field(default_factory=frozenset)
    steady: bool = False  # not left out for being one of many in its section

    @property
    def line(self) -> str:
        return f"- [{self.hash}] {self.text}{f' ({self.note})' if self.note else ''}"


def merged(points: Sequence[Point]) -> list[Point]:
    """Join what was found in several ways: it is worth more, and told where it is worth most."""
    found: dict[tuple[str, int], Point] = {}
    for one in points:
        other = found.get((one.kind, one.id))
        if other is None:
            found[one.kind, one.id] = one
            continue
        best, also = (one, other) if one.worth > other.worth else (other, one)
        worth = 1 - (1 - best.worth) * (1 - also.worth)
        reason = f"{best.reason}; {also.reason}" if also.reason not in best.reason else best.reason
        found[one.kind, one.id] = replace(best, worth=worth, reason=reason)
    return [replace(one, words=telling(one.text)) for one in found.values()]


def choose(
    points: Sequence[Point], budget: int, characters: int, write: Callable[[Sequence[Point]], str]
) -> tuple[list[Point], str]:
    """Return the best points whose text fits, as `write` puts them together, and that text."""
    room = budget if tokens.is_exact() else int(budget * ABOUT)
    worthy = [one for one in points if one.worth >= LEAST]
    chosen = _greedy(worthy, room - tokens.count(write([])))
    while chosen:
        text = write(chosen)
        if tokens.count(text) <= room and _length(text) <= characters:
            return chosen, text
        chosen.pop()  # the last one taken has the least worth for its tokens
    return [], ""


def _length(text: str) -> int:
    """Return how long a text is in JSON as clients count it: a sign beyond the first 65,536 is two."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2


def _greedy(points: Sequence[Point], room: int) -> list[Point]:
    """Take the best of each section first, then what is worth most beside what is taken already.

    Where there is not room for everything, that is what is worth most for its tokens.
    """
    cost = {id(one): tokens.count(one.line) + LINE for one in points}
    tight = sum(cost.values()) > room
    fresh = {id(one): 1.0 for one in points}
    taken: Counter[str] = Counter()

    def worth(one: Point) -> float:
        return one.worth * fresh[id(one)] / (1 + MORE * taken[one.section])

    left = sorted(points, key=lambda one: (-one.worth, -one.id))
    first = {one.section: one for one in reversed(left)}
    opening = [one for one in left if first[one.section] is one]
    chosen: list[Point] = []
    while left:
        best = opening.pop(0) if opening else max(left, key=lambda one: worth(one) / (cost[id(one)] if tight else 1))
        left = [one for one in left if one is not best]
        if cost[id(best)] > room or fresh[id(best)] <= 1 - SAME or (worth(best) < LEAST and not best.steady):
            continue
        room -= cost[id(best)]
        taken[best.section] += 1
        chosen.append(best)
        for one in left:
            fresh[id(one)] = min(fresh[id(one)], 1 - overlap(one.words, best.words))
    return chosen
