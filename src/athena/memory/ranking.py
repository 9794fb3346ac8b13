"""Rank the memories that full text and vectors found.

A memory's rank is the sum of a few terms, each with one weight, the same for every store:

    words    BM25 with neighbouring passages, speaker, date and tags; the best of this question counts 1
    meaning  similarity of the vectors, in deviations from the mean of the store
    tokens   late interaction: the question's tokens against the passages' tokens
    length   long texts have more passages and so more chances
    role     assistants, tools and systems mostly repeat what people said
    personal questions are mostly about what people said of themselves
    session  the mean of the best three of its session
    feedback similarity to the mean of the first five, for questions long enough to be about one thing
    recency  new memories come a little sooner
    strength memories that are recalled often come a little sooner

A memory that a newer one contradicts comes right after that one if both are found (`contradicted`).
"""

import math
import re
import string
import unicodedata
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.embedding.embedder import QuestionEncoding
from athena.storage.arrays import merge_unique, multiply_on_one_thread, sort_unique
from athena.storage.database import RankingFeatures, TextMatches, TokenSets, VectorMatches

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids


class Weights(NamedTuple):
    words: float = 1.0
    meaning: float = 0.4
    tokens: float = 6.0
    length: float = 0.15
    role: float = 0.6
    personal: float = 0.1
    session: float = 0.3
    feedback: float = 0.1
    recency: float = 0.05
    strength: float = 0.05

    def limit_model(self, unknown_share: float) -> "Weights":
        """Return the weights for a question of which the model cannot know a share."""
        factor = 1 - (1 - UNKNOWN_WORD_FACTOR) * unknown_share
        return self._replace(meaning=self.meaning * factor, tokens=self.tokens * factor)


# Weight of the model's terms for a question of identifiers or of another script, where only the exact words can tell.
UNKNOWN_WORD_FACTOR = 0.4
MAX_RERANKED = 50  # memories that are compared token by token
MIN_LONG_QUERY_TERMS = 8  # without stop words
FEEDBACK_COUNT = 5  # first hits whose mean the feedback term uses
CONTRADICTION_GAP = 0.001  # between the totals of a contradicted memory and the one that contradicts it
NEIGHBOR_DISCOUNTS = (0.85, 0.85, 0.7, 0.7)  # for a token one passage before or after, and two before or after
MIN_IDENTIFIER_CHARS = 5  # fewer have ordinals and times: 10th, 9am
DIGIT_PATTERN = re.compile("[0-9]")
LAST_LATIN_LETTER = "\u024f"
HALF_LIFE_S = 30 * 86_400.0  # of recency and strength
# Maps deviations from the mean to the meaning term. Nearly flat at both ends: a memory found by its exact words alone
# (an identifier, whose meaning the model cannot know) stays ahead of mere similarity, and yet no two memories tie.
CLOSENESS_CURVE = ((-40.0, -0.5, 4.0, 40.0), (-0.75, -0.5, 4.0, 4.25))


class Ranking:
    """The candidates of one question, with the terms of each."""

    def __init__(self, question: str, matches: TextMatches, nearest: VectorMatches | None, weights: Weights) -> None:
        import numpy as np  # slow to load; only searches need it

        is_known = _is_known(question)
        self.unknown_share = 0.0 if is_known else measure_unknown_share(question, matches.weights)
        is_name = not is_known and names_identifier(question)
        self.weights = weights.limit_model(1.0 if is_name else self.unknown_share)
        self.token_scores: Floats | None = None
        self.memories: Ids = (
            merge_unique(matches.memories, nearest.memories) if nearest else sort_unique(matches.memories)
        )
        self.terms: dict[str, Floats] = {}
        lexical, coverage, cosine = (np.zeros(len(self.memories), np.float32) for _ in range(3))
        positions = np.searchsorted(self.memories, matches.memories)
        np.maximum.at(lexical, positions, matches.scores)
        np.maximum.at(coverage, positions, matches.coverage)
        self.lexical: Floats = lexical / max(float(lexical.max(initial=0.0)), 1e-6)
        self.add_term("words", self.lexical)
        if nearest is not None:
            best = np.full(len(self.memories), -1, np.float32)
            np.maximum.at(best, np.searchsorted(self.memories, nearest.memories), nearest.cosines)
            cosine = np.where(best > -1, best, nearest.mean)
            closeness = np.interp((cosine - nearest.mean) / nearest.deviation, *CLOSENESS_CURVE)
            self.add_term("meaning", np.where(best > -1, closeness, guess_missing(closeness, self.lexical)))
        self.coverage, self.cosine = coverage, cosine
        self.evidence = 1 - (1 - np.clip(coverage, 0, 1)) * (1 - np.clip(cosine, 0, 1))

    def add_term(self, term: str, values: Any) -> None:
        """Add a term, multiplied by its weight."""
        self.terms[term] = (getattr(self.weights, term) * values).astype("float32")

    def add_facts(self, facts: RankingFeatures) -> None:
        import numpy as np  # slow to load; only searches need it

        self.add_term("length", -np.log(facts.passages))
        self.add_term("role", -facts.by_assistant)
        self.add_term("personal", facts.about_speaker)
        self.sessions = facts.sessions

    def add_sessions(self) -> None:
        """Add for each candidate the mean of the best three totals of its session, itself among them."""
        import numpy as np  # slow to load; only searches need it

        if len(set(self.sessions.tolist())) == len(self.sessions):
            return  # no two share a session
        totals: Any = sum(self.terms.values())
        order = np.lexsort((-totals, self.sessions))
        starts = np.flatnonzero(np.diff(self.sessions[order], prepend=-1))
        sizes = np.diff(starts, append=len(order))
        rank_in_session = np.arange(len(order)) - np.repeat(starts, sizes)
        best = np.add.reduceat(np.where(rank_in_session < 3, totals[order], 0), starts) / np.minimum(sizes, 3)
        means = np.zeros(len(order))
        means[order] = np.repeat(best, sizes)
        self.add_term("session", means - means.mean())

    def sort_positions(self, count: int | None = None) -> "Ids":
        """Return positions, best first; of equals, the newest. With a count, those after so many are in any order."""
        import numpy as np  # slow to load; only searches need it

        totals: Any = sum(self.terms.values())
        if count is None or count >= len(totals):
            return np.lexsort((-self.memories, -totals))
        is_best = totals >= np.partition(totals, -count)[-count]
        best = np.flatnonzero(is_best)
        return np.concatenate([best[np.lexsort((-self.memories[best], -totals[best]))], np.flatnonzero(~is_best)])

    def demote_contradicted(self, contradicted: dict[int, list[int]]) -> "Ranking":
        """Move each of these memories right after the last of those that contradict it."""
        import numpy as np  # slow to load; only searches need it

        positions = {int(memory_id): i for i, memory_id in enumerate(self.memories)}
        totals: Any = sum(self.terms.values())
        shifts = np.zeros(len(totals), np.float32)
        pairs = [
            (positions[old], positions[new])
            for old, contradicting in contradicted.items()
            for new in contradicting
            if new in positions
        ]
        for _ in pairs:  # a chain of contradictions is in order after as many rounds as it has links
            for old, new in pairs:
                difference = totals[new] + shifts[new] - CONTRADICTION_GAP - (totals[old] + shifts[old])
                shifts[old] += min(difference, 0.0)
        if not shifts.any():
            return self
        self.terms["contradicted"] = shifts
        return self.take(self.sort_positions())

    def take(self, positions: "Ids") -> "Ranking":
        """Return a ranking of some of the candidates."""
        part = Ranking.__new__(Ranking)
        part.weights, part.unknown_share = self.weights, self.unknown_share
        part.memories = self.memories[positions]
        part.token_scores = None if self.token_scores is None else self.token_scores[positions]
        part.terms = {name: values[positions] for name, values in self.terms.items()}
        part.lexical = self.lexical[positions]
        part.coverage, part.cosine = self.coverage[positions], self.cosine[positions]
        part.evidence, part.sessions = self.evidence[positions], self.sessions[positions]
        return part

    def add_tokens(self, similarity: "Floats") -> None:
        self.token_scores = similarity
        self.add_term("tokens", similarity)

    def explain(self, position: int) -> dict[str, float]:
        """Return what each term added."""
        added = {name: round(float(values[position]), 4) for name, values in self.terms.items()}
        return {name: value for name, value in added.items() if value or name != "contradicted"}


def names_identifier(question: str) -> bool:
    """Return whether a question asks for something like `BZ-699`, so that only memories which hold it can answer."""
    return any(
        len(part) >= MIN_IDENTIFIER_CHARS and any(map(str.isdigit, part)) and any(map(str.isalpha, part))
        for part in (part.strip(string.punctuation) for part in question.split())
    )


def measure_unknown_share(question: str, weights: list[tuple[int, int, float]]) -> float:
    """Return the share of a question's weight that lies on what the model cannot know.

    That is what stands between two spaces and has digits (`BZ-699`) or letters of other scripts.
    """
    is_unknown = bytearray(len(question))
    for part in re.finditer(r"\S+", question):
        if not _is_known(part[0]):
            is_unknown[part.start() : part.end()] = b"\1" * len(part[0])
    total = sum(weight for _, _, weight in weights)
    unknown = sum(weight for start, _, weight in weights if is_unknown[start])
    return unknown / total if total else 0.0


def _is_known(text: str) -> bool:
    if text.isascii():
        return DIGIT_PATTERN.search(text) is None
    letters = unicodedata.normalize("NFKD", text)
    return not any(char.isdigit() or (char.isalpha() and char > LAST_LATIN_LETTER) for char in letters)


def guess_missing(scores: "Floats", lexical: "Floats") -> Any:
    """Return scores for memories that the model has not read yet: from average to best, as their words match."""
    mean = scores.mean() if len(scores) else 0.0
    return mean + lexical * (scores.max(initial=mean) - mean)


def decay_weights(moments: "Floats", now: float) -> Any:
    """Return a weight for each time: 1 for now, a half for one half-life ago, and so on."""
    import numpy as np  # slow to load; only searches need it

    return np.exp2(-np.maximum(now - moments, 0) / HALF_LIFE_S)


def score_by_tokens(
    question: QuestionEncoding, weights: list[tuple[int, int, float]], sets: TokenSets, lexical: "Floats"
) -> "Floats | None":
    """Return how well each memory matches the question's tokens, about 0 to 1; None if none has tokens."""
    import numpy as np  # slow to load; only searches need it

    token_weights = _weigh_tokens(question, weights)
    if not len(sets.signs) or not token_weights.sum():
        return None
    tokens = question.token_vectors
    products = multiply_on_one_thread(sets.signs, 2 * tokens.T)
    similarity = (products - tokens.sum(axis=1)) / math.sqrt(tokens.shape[1])
    best = np.vstack([np.maximum.reduceat(similarity, sets.starts, axis=0), np.full(len(tokens), -1, np.float32)])
    matched = best[sets.neighbours[:, 0]]  # index -1 is the last row, which stands for passages without tokens
    for column, discount in enumerate(NEIGHBOR_DISCOUNTS, 1):
        matched = np.maximum(matched, discount * best[sets.neighbours[:, column]])
    scores = np.full(len(lexical), -1, np.float32)
    known = sets.neighbours[:, 0] >= 0
    passage_scores = multiply_on_one_thread(matched, token_weights / token_weights.sum())
    np.maximum.at(scores, sets.owners[known], passage_scores[known])
    has_tokens = scores > -1
    if not has_tokens.any():
        return None
    scores[~has_tokens] = scores[has_tokens].mean()
    return np.where(has_tokens, scores, guess_missing(scores, lexical))


def _weigh_tokens(question: QuestionEncoding, weights: list[tuple[int, int, float]]) -> Any:
    """Return for each token the weight of its word; punctuation weighs nothing."""
    import numpy as np  # slow to load; only searches need it

    token_weights = np.zeros(len(question.token_offsets), np.float32)
    for i, (start, end) in enumerate(question.token_offsets):
        overlapping = (weight for first, last, weight in weights if start < last and end > first)
        token_weights[i] = max(overlapping, default=0.0)
    return token_weights
