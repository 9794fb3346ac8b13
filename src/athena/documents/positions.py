"""Number the pieces of a document so that those that stay keep their numbers when others come or go."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

MIN_GAP = 1e-6  # between two numbers; below it all are given anew


def assign_positions(known: Sequence[float | None]) -> list[float]:
    """Return rising numbers for pieces in order; `known` has the earlier number of each, or None if it is new."""
    kept = _find_longest_rise(known)
    following_kept: list[int | None] = [None] * (len(known) + 1)
    for number in range(len(known) - 1, -1, -1):
        following_kept[number] = number if number in kept else following_kept[number + 1]
    positions: list[float] = []
    low = -1.0
    for number, value in enumerate(known):
        if number in kept and value is not None:
            positions.append(value)
            low = value
            continue
        following = following_kept[number]
        high = None if following is None else known[following]
        low = low + 1 if following is None or high is None else low + (high - low) / (following - number + 1)
        positions.append(low)
    if any(later - earlier < MIN_GAP for earlier, later in pairwise(positions)):
        return [float(number) for number in range(len(known))]
    return [int(position) if position == int(position) else position for position in positions]


def _find_longest_rise(values: Sequence[float | None]) -> set[int]:
    """Return the places of the longest sequence of rising numbers."""
    tails: list[float] = []
    tail_places: list[int] = []
    before: dict[int, int | None] = {}
    for place, value in enumerate(values):
        if not isinstance(value, int | float):
            continue
        at = bisect_left(tails, value)
        before[place] = tail_places[at - 1] if at else None
        tails[at : at + 1] = [value]
        tail_places[at : at + 1] = [place]
    kept: set[int] = set()
    last: int | None = tail_places[-1] if tail_places else None
    while last is not None:
        kept.add(last)
        last = before[last]
    return kept
