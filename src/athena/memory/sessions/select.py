"""Choosing what a session is told: the most worth for the tokens, nothing twice, never more than fits."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from athena.core import tokens
from athena.memory.sessions.excerpt import extract_words, measure_overlap

ESTIMATED_BUDGET_FRACTION = 0.88  # of a budget that is used where tokens are only estimated
MAX_ITEM_OVERLAP = 0.6  # texts that overlap more say the same
MIN_WORTH = 0.25  # what is worth less is better left out: silence costs nothing
SECTION_PENALTY = 0.15  # how much less each further one of a section is worth
LINE_OVERHEAD_TOKENS = 4  # tokens that a line costs beside its words


@dataclass(frozen=True, slots=True)
class BriefingItem:
    """Something that could be told."""

    section: str
    kind: str
    id: int
    hash: str
    text: str
    note: str  # when it was, when it is due
    reason: str
    worth: float  # from 0 to 1
    full_text: str = ""  # the full text, where `text` is a part of it
    words: frozenset[str] = field(default_factory=frozenset)
    steady: bool = False  # not left out for being one of many in its section

    @property
    def line(self) -> str:
        return f"- [{self.hash}] {self.text}{f' ({self.note})' if self.note else ''}"


def merge_items(points: Sequence[BriefingItem]) -> list[BriefingItem]:
    """Join what was found in several ways: it is worth more, and told where it is worth most."""
    found: dict[tuple[str, int], BriefingItem] = {}
    for one in points:
        other = found.get((one.kind, one.id))
        if other is None:
            found[one.kind, one.id] = one
            continue
        best, also = (one, other) if one.worth > other.worth else (other, one)
        worth = 1 - (1 - best.worth) * (1 - also.worth)
        reason = f"{best.reason}; {also.reason}" if also.reason not in best.reason else best.reason
        found[one.kind, one.id] = replace(best, worth=worth, reason=reason)
    return [replace(one, words=extract_words(one.text)) for one in found.values()]


def select_items(
    points: Sequence[BriefingItem], budget: int, characters: int, write: Callable[[Sequence[BriefingItem]], str]
) -> tuple[list[BriefingItem], str]:
    """Return the best points whose text fits, as `write` puts them together, and that text."""
    room = budget if tokens.is_exact() else int(budget * ESTIMATED_BUDGET_FRACTION)
    worthy = [one for one in points if one.worth >= MIN_WORTH]
    chosen = _select_greedily(worthy, room - tokens.count_tokens(write([])))
    while chosen:
        text = write(chosen)
        if tokens.count_tokens(text) <= room and _count_json_chars(text) <= characters:
            return chosen, text
        chosen.pop()  # the last one taken has the least worth for its tokens
    return [], ""


def _count_json_chars(text: str) -> int:
    """Return how long a text is in JSON as clients count it: a sign beyond the first 65,536 is two."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2


def _select_greedily(points: Sequence[BriefingItem], room: int) -> list[BriefingItem]:
    """Take the best of each section first, then what is worth most beside what is taken already.

    Where there is not room for everything, that is what is worth most for its tokens.
    """
    cost = {id(one): tokens.count_tokens(one.line) + LINE_OVERHEAD_TOKENS for one in points}
    tight = sum(cost.values()) > room
    fresh = {id(one): 1.0 for one in points}
    taken: Counter[str] = Counter()

    def marginal_worth(one: BriefingItem) -> float:
        return one.worth * fresh[id(one)] / (1 + SECTION_PENALTY * taken[one.section])

    left = sorted(points, key=lambda one: (-one.worth, -one.id))
    first = {one.section: one for one in reversed(left)}
    opening = [one for one in left if first[one.section] is one]
    chosen: list[BriefingItem] = []
    while left:
        best = (
            opening.pop(0)
            if opening
            else max(left, key=lambda one: marginal_worth(one) / (cost[id(one)] if tight else 1))
        )
        left = [one for one in left if one is not best]
        if (
            cost[id(best)] > room
            or fresh[id(best)] <= 1 - MAX_ITEM_OVERLAP
            or (marginal_worth(best) < MIN_WORTH and not best.steady)
        ):
            continue
        room -= cost[id(best)]
        taken[best.section] += 1
        chosen.append(best)
        for one in left:
            fresh[id(one)] = min(fresh[id(one)], 1 - measure_overlap(one.words, best.words))
    return chosen
