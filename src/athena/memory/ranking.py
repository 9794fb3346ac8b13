"""Which of the memories found by words and by meaning come first."""

from typing import TYPE_CHECKING, NamedTuple

from athena.storage.arrays import distinct, union
from athena.storage.database import Matches, Near

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids

MEANING = 0.2  # what one standard deviation of closeness in meaning counts; the best match by words counts 1
# How deviations from the mean count. Flat at both ends: a memory found by its exact words alone (an identifier,
# whose meaning the model cannot know) stays ahead of any mere likeness, and still nothing is tied.
CLOSENESS = ((-40.0, -0.5, 4.0, 40.0), (-0.75, -0.5, 4.0, 4.25))


class Ranked(NamedTuple):
    """Memories, best first; scores lie in [0, 1] and never rise down the list."""

    memories: "Ids"
    scores: "Floats"


def rank(words: Matches, near: Near | None) -> Ranked:
    """Fuse both searches by normalised score.

    The order comes from scores relative to this question; the score shown is absolute: the part of the
    question's words that a memory holds and its closeness in meaning, as two independent pieces of evidence.
    """
    import numpy as np

    numbers = union(words.memories, near.memories) if near else distinct(words.memories)
    lexical, coverage, cosine = (np.zeros(len(numbers), np.float32) for _ in range(3))
    at = np.searchsorted(numbers, words.memories)
    np.maximum.at(lexical, at, words.scores)
    np.maximum.at(coverage, at, words.coverage)
    order_by = lexical / max(float(lexical.max(initial=0.0)), 1e-6)
    if near is not None:
        cosine.fill(near.mean)  # nothing is known of the meaning of what has no vector yet
        at = np.searchsorted(numbers, near.memories)
        best = np.full(len(numbers), -1, np.float32)
        np.maximum.at(best, at, near.cosines)
        cosine = np.where(best > -1, best, cosine)
        closeness = (cosine - near.mean) / near.deviation
        order_by = order_by + MEANING * np.interp(closeness, *CLOSENESS).astype(np.float32)
    order = np.lexsort((-numbers, -order_by))
    evidence = 1 - (1 - np.clip(coverage, 0, 1)) * (1 - np.clip(cosine, 0, 1))
    return Ranked(numbers[order], np.minimum.accumulate(evidence[order]).astype(np.float32))
