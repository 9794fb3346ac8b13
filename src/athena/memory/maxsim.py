"""Comparing a question with passages word by word: each of its words looks for the one most like it.

A word may also be met by a neighbouring passage of the same session, which counts a little less. Words weigh by
how rare they are.
"""

import math
from typing import TYPE_CHECKING, Any

from athena.embedding.embedder import QuestionEncoding
from athena.storage.arrays import multiply_on_one_thread
from athena.storage.database import TokenSets

if TYPE_CHECKING:
    from athena.storage.database import Floats

NEIGHBOR_DISCOUNTS = (0.85, 0.7)  # what a word one or two passages away counts


def score_by_tokens(
    asked: QuestionEncoding, weights: list[tuple[int, int, float]], sets: TokenSets, memories: int
) -> "Floats | None":
    """Return how well each memory meets the question's words, about 0 to 1; None where nothing can be compared."""
    import numpy as np

    words = _weigh_tokens(asked, weights)
    if not len(sets.signs) or not words.sum():
        return None
    bits = np.unpackbits(sets.signs, axis=1).astype(np.float32)
    tokens = asked.token_vectors
    alike = (multiply_on_one_thread(bits, 2 * tokens.T) - tokens.sum(axis=1)) / math.sqrt(tokens.shape[1])
    best = np.vstack([np.maximum.reduceat(alike, sets.starts, axis=0), np.full(len(tokens), -1, np.float32)])
    met = best[sets.neighbours[:, 0]]  # the last row, -1, stands for what has no tokens
    for column, discount in (
        (1, NEIGHBOR_DISCOUNTS[0]),
        (2, NEIGHBOR_DISCOUNTS[0]),
        (3, NEIGHBOR_DISCOUNTS[1]),
        (4, NEIGHBOR_DISCOUNTS[1]),
    ):
        met = np.maximum(met, discount * best[sets.neighbours[:, column]])
    found = np.full(memories, -1, np.float32)
    known = sets.neighbours[:, 0] >= 0
    np.maximum.at(found, sets.owners[known], multiply_on_one_thread(met, words / words.sum())[known])
    if (found == -1).all():
        return None
    return np.where(found == -1, found[found > -1].mean(), found)


def _weigh_tokens(asked: QuestionEncoding, weights: list[tuple[int, int, float]]) -> Any:
    """Give each token the weight of the word it is part of; punctuation has none."""
    import numpy as np

    made = np.zeros(len(asked.token_offsets), np.float32)
    for i, (start, end) in enumerate(asked.token_offsets):
        made[i] = max((weight for first, last, weight in weights if start < last and end > first), default=0.0)
    return made
