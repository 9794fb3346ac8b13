"""Which of the memories found by words and by meaning come first.

A memory's place is the sum of a few terms, each with one weight, the same for every store:

    words    BM25 with neighbouring passages, speaker, date and tags; the best of this question counts 1
    meaning  closeness of the vectors, in deviations from the mean of the store
    tokens   late interaction: the question's words against the passages' words
    length   long texts have more passages and so more chances
    role     assistants, tools and systems repeat what people said
    personal what people say of themselves is what one asks about
    session  a memory in good company: the best three of its session against the others
    feedback closeness to the middle of the first five, for questions long enough to be about one thing
    recency  what is new, and `strength`, what is recalled often, come a little sooner

A memory that a newer one contradicts comes after that one, wherever both are found (`contradicted`).
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.embedding.embedder import QuestionEncoding
from athena.storage.arrays import merge_unique, multiply_on_one_thread, sort_unique
from athena.storage.database import RankingFeatures, TextMatches, TokenSets, VectorMatches

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids


class Weights(NamedTuple):
    words: float = 1.0
    meaning: float = 0.2
    tokens: float = 2.5
    length: float = 0.15
    role: float = 0.6
    personal: float = 0.1
    session: float = 0.2
    feedback: float = 0.1
    recency: float = 0.05
    strength: float = 0.05


MAX_RERANKED = 50  # memories that are compared token by token
MIN_LONG_QUERY_TERMS = 8  # telling words from which on a question is long
FEEDBACK_COUNT = 5
CONTRADICTION_GAP = 0.001  # by how much a contradicted memory counts less than what contradicts it
HALF_LIFE_S = 30 * 86_400.0  # seconds in which recency and strength fall to a half
# How deviations from the mean count. Flat at both ends: a memory found by its exact words alone (an identifier,
# whose meaning the model cannot know) stays ahead of any mere likeness, and still nothing is tied.
CLOSENESS_CURVE = ((-40.0, -0.5, 4.0, 40.0), (-0.75, -0.5, 4.0, 4.25))


class Ranking:
    """The candidates of one question, with what speaks for each."""

    def __init__(self, words: TextMatches, near: VectorMatches | None, weights: Weights) -> None:
        import numpy as np

        self.weights = weights
        self.memories: Ids = merge_unique(words.memories, near.memories) if near else sort_unique(words.memories)
        self.terms: dict[str, Floats] = {}
        lexical, coverage, cosine = (np.zeros(len(self.memories), np.float32) for _ in range(3))
        at = np.searchsorted(self.memories, words.memories)
        np.maximum.at(lexical, at, words.scores)
        np.maximum.at(coverage, at, words.coverage)
        self.add_term("words", lexical / max(float(lexical.max(initial=0.0)), 1e-6))
        if near is not None:
            best = np.full(len(self.memories), -1, np.float32)
            np.maximum.at(best, np.searchsorted(self.memories, near.memories), near.cosines)
            cosine = np.where(best > -1, best, near.mean)  # of what has no vector yet nothing is known
            self.add_term("meaning", np.interp((cosine - near.mean) / near.deviation, *CLOSENESS_CURVE))
        self.evidence = 1 - (1 - np.clip(coverage, 0, 1)) * (1 - np.clip(cosine, 0, 1))

    def add_term(self, term: str, values: Any) -> None:
        """Let a term count with its weight."""
        import numpy as np

        self.terms[term] = (getattr(self.weights, term) * values).astype(np.float32)

    def add_facts(self, facts: RankingFeatures) -> None:
        import numpy as np

        self.add_term("length", -np.log(facts.passages))
        self.add_term("role", -facts.by_assistant)
        self.add_term("personal", facts.about_speaker)
        self.sessions = facts.sessions

    def add_sessions(self) -> None:
        """Let each candidate gain by the best three of its session, itself among them."""
        import numpy as np

        whole: Any = sum(self.terms.values())
        order = np.lexsort((-whole, self.sessions))
        starts = np.flatnonzero(np.diff(self.sessions[order], prepend=-1))
        sizes = np.diff(starts, append=len(order))
        if len(starts) == len(order):
            return  # nothing belongs together
        within = np.arange(len(order)) - np.repeat(starts, sizes)
        best = np.add.reduceat(np.where(within < 3, whole[order], 0), starts) / np.minimum(sizes, 3)
        company = np.zeros(len(order))
        company[order] = np.repeat(best, sizes)
        self.add_term("session", company - company.mean())

    def sort_positions(self) -> "Ids":
        """Return positions, best first; of equals, the newest."""
        import numpy as np

        whole: Any = sum(self.terms.values())
        return np.lexsort((-self.memories, -whole))

    def demote_contradicted(self, contradicted: dict[int, list[int]]) -> "Ranking":
        """Return the ranking with each of these right after the last of those that contradict it."""
        import numpy as np

        place = {int(number): i for i, number in enumerate(self.memories)}
        whole: Any = sum(self.terms.values())
        moved = np.zeros(len(whole), np.float32)
        pairs = [
            (place[one], place[other]) for one, others in contradicted.items() for other in others if other in place
        ]
        for _ in pairs:  # a chain of contradictions is in order after as many rounds as it has links
            for one, other in pairs:
                lower = whole[other] + moved[other] - CONTRADICTION_GAP - (whole[one] + moved[one])
                moved[one] += min(lower, 0.0)
        if not moved.any():
            return self
        self.terms["contradicted"] = moved
        return self.take(self.sort_positions())

    def take(self, positions: "Ids") -> "Ranking":
        """Return a ranking of some of the candidates."""
        kept = Ranking.__new__(Ranking)
        kept.weights, kept.memories = self.weights, self.memories[positions]
        kept.terms = {name: values[positions] for name, values in self.terms.items()}
        kept.evidence, kept.sessions = self.evidence[positions], self.sessions[positions]
        return kept

    def explain(self, position: int) -> dict[str, float]:
        """Tell what each term added."""
        added = {name: round(float(values[position]), 4) for name, values in self.terms.items()}
        return {name: value for name, value in added.items() if value or name != "contradicted"}


def decay_weights(moments: "Floats", now: float) -> Any:
    """Return 1 for now, a half for a half-life ago, and so on."""
    import numpy as np

    return np.exp2(-np.maximum(now - moments, 0) / HALF_LIFE_S)


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
