"""The passages that a question's words lead to, and what each term counts in them."""

from typing import TYPE_CHECKING, Any

from athena.storage.arrays import multiply_on_one_thread, sort_unique
from athena.storage.database import TextMatches
from athena.storage.terms import BM25_B, LABEL_WEIGHT, saturate_frequency

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids


class MatchedPassages:
    """The passages that hold any term of a question, in order, with what each term counts in them."""

    def __init__(self, passages: "Ids", terms: int) -> None:
        import numpy as np

        self.passages = passages
        self.memories: Ids = np.zeros(len(passages), np.int64)
        self.sessions: Ids = np.zeros(len(passages), np.int64)  # 0 where a passage stands alone
        self.lengths: Floats = np.ones(len(passages), np.float32)
        self.allowed = np.ones(len(passages), bool)
        self.text = np.zeros((terms, len(passages)), np.float32)
        self.label = np.zeros((terms, len(passages)), bool)

    def with_passages(self, passages: "Ids") -> "MatchedPassages":
        """Return the same nodes among others that hold no term themselves."""
        import numpy as np

        grown = MatchedPassages(sort_unique(np.concatenate([self.passages, passages])), len(self.text))
        at = np.searchsorted(grown.passages, self.passages)
        for name in ("memories", "sessions", "lengths", "allowed"):
            getattr(grown, name)[at] = getattr(self, name)
        grown.text[:, at], grown.label[:, at] = self.text, self.label
        return grown

    def normalise_counts(self, mean: float) -> "NDArray[Any]":
        """Return how much each term counts in each text: less in long passages."""
        made: NDArray[Any] = self.text / (1 - BM25_B + BM25_B * self.lengths / mean)
        return made

    def compute_scores(self, frequency: "NDArray[Any]", weights: "Floats") -> "Floats":
        made: Floats = multiply_on_one_thread(saturate_frequency(frequency + LABEL_WEIGHT * self.label).T, weights)
        return made


def select_highest(scores: "Floats", most: int) -> "Ids":
    """Return the places of the highest scores above nothing."""
    import numpy as np

    found = np.flatnonzero(scores)
    return found if len(found) <= most else found[np.argpartition(-scores[found], most)[:most]]


def reduce_to_memories(
    memories: "Ids", scores: "Floats", coverage: "Floats", limit: int, spans: list[tuple[int, int, float]]
) -> TextMatches:
    """Reduce passages to their memories: the best score and the best coverage of each."""
    import numpy as np

    kept = scores > 0
    memories, scores, coverage = memories[kept], scores[kept], coverage[kept]
    every = sort_unique(memories)
    at = np.searchsorted(every, memories)
    best, held = np.zeros(len(every), np.float32), np.zeros(len(every), np.float32)
    np.maximum.at(best, at, scores)
    np.maximum.at(held, at, coverage)
    if len(every) > limit:
        chosen = np.argpartition(-best, limit)[:limit]
        every, best, held = every[chosen], best[chosen], held[chosen]
    return TextMatches(every, best, held, [every], spans)
