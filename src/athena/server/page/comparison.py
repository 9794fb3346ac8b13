"""Compare two versions of a text by words, at a bounded cost: programs may write any text, any number of times."""

import re
from typing import NamedTuple

MAX_COMPARED_CHARS = 200_000  # of both versions together
MAX_SHOWN_CHARS = 2_000  # of each of two longer ones
MAX_STEPS = 400_000  # for all comparisons of one page: some tenths of a second


class DiffPiece(NamedTuple):
    kind: str  # same, removed or added
    text: str


class Comparer:
    """Compares versions until its steps are used up; from then on a version counts as replaced as a whole."""

    def __init__(self, steps: int = MAX_STEPS) -> None:
        self._steps = steps

    def compare_texts(self, old: str, new: str) -> list[DiffPiece]:
        """Return what stayed, what was removed and what was added, by words."""
        if len(old) + len(new) > MAX_COMPARED_CHARS:
            return [DiffPiece("removed", _shorten(old)), DiffPiece("added", _shorten(new))]
        before, after = _split_words(old), _split_words(new)
        start = _count_equal(before, after)
        end = _count_equal(before[start:][::-1], after[start:][::-1])
        middle_before, middle_after = before[start : len(before) - end], after[start : len(after) - end]
        pieces = [
            DiffPiece("same", "".join(before[:start])),
            *self._compare_words(middle_before, middle_after),
            DiffPiece("same", "".join(before[len(before) - end :])),
        ]
        return [piece for piece in pieces if piece.text]

    def _compare_words(self, before: list[str], after: list[str]) -> list[DiffPiece]:
        edits = self._find_edits(before, after)
        if edits is None:
            return [DiffPiece("removed", "".join(before)), DiffPiece("added", "".join(after))]
        pieces: list[DiffPiece] = []
        for kind, word in edits:
            if pieces and pieces[-1].kind == kind:
                pieces[-1] = DiffPiece(kind, pieces[-1].text + word)
            else:
                pieces.append(DiffPiece(kind, word))
        return pieces

    def _find_edits(self, before: list[str], after: list[str]) -> list[tuple[str, str]] | None:
        """Return each word with what happened to it (Myers' algorithm); None if that takes too many steps."""
        furthest = {1: 0}  # how far each diagonal of the table of both texts is reached
        trace: list[dict[int, int]] = []
        for edit_count in range(len(before) + len(after) + 1):
            trace.append(dict(furthest))
            self._steps -= len(furthest)
            for diagonal in range(-edit_count, edit_count + 1, 2):
                is_added = diagonal == -edit_count or (
                    diagonal != edit_count and furthest[diagonal - 1] < furthest[diagonal + 1]
                )
                x = furthest[diagonal + 1] if is_added else furthest[diagonal - 1] + 1
                first = x
                while x < len(before) and x - diagonal < len(after) and before[x] == after[x - diagonal]:
                    x += 1
                furthest[diagonal] = x
                self._steps -= x - first + 1
                if self._steps < 0:
                    return None
                if x >= len(before) and x - diagonal >= len(after):
                    return _follow_back(trace, before, after)
        return None


def _follow_back(trace: list[dict[int, int]], before: list[str], after: list[str]) -> list[tuple[str, str]]:
    """Return the edits of the shortest way, from how far each number of edits reached."""
    edits: list[tuple[str, str]] = []
    x, y = len(before), len(after)
    for edit_count in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[edit_count], x - y
        is_added = diagonal == -edit_count or (
            diagonal != edit_count and furthest[diagonal - 1] < furthest[diagonal + 1]
        )
        earlier_x = furthest[diagonal + 1 if is_added else diagonal - 1]
        earlier_y = earlier_x - (diagonal + 1 if is_added else diagonal - 1)
        while x > max(earlier_x, 0) and y > max(earlier_y, 0):
            x, y = x - 1, y - 1
            edits.append(("same", before[x]))
        if edit_count:
            edits.append(("added", after[earlier_y]) if is_added else ("removed", before[earlier_x]))
        x, y = earlier_x, earlier_y
    return edits[::-1]


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + " \u2026"


def _split_words(text: str) -> list[str]:
    return re.findall(r"\s+|[^\s]+", text)


def _count_equal(before: list[str], after: list[str]) -> int:
    """Return how many words are the same from the beginning."""
    for position, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return position
    return min(len(before), len(after))
