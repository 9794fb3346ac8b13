"""The score that a hit shows: the probability that it answers the question.

It is a logistic function of what the ranking measured, fitted by `scripts/fit_scores.py` on questions with and without
an answer. It holds for the bundled model; with another one a hit shows how well words and vectors match.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from athena.memory.ranking import Ranking
    from athena.storage.database import Floats

# A question whose best hit is less probable than this gets no hits, unless the caller sets `min_score`.
DEFAULT_MIN_SCORE = 0.05
CHANGING_TERMS = {"recency", "strength"}  # a search changes them, and its scores stay the same when it is repeated
SPREAD_RANK = 9  # the hit whose distance from the first says how much the first stand out
MIN_SPREAD_OF_FEW = 2.8  # with too few hits to tell: as of the clearest tenth of the questions with an answer
MAX_QUESTION_WORDS = 25
FULL_COVERAGE, FULL_COVERAGE_SCORE = 0.99, 0.25  # of hits that hold every word of the question, a quarter is right
BIAS = -5.313
WEIGHTS = {
    "coverage": -0.683,
    "cosine": 3.332,
    "tokens": -0.354,
    "best_coverage": 0.662,
    "best_cosine": 0.804,
    "best_tokens": 2.807,
    "gap": 1.114,
    "log_rank": -0.023,
    "spread": 0.577,
    "question_length": 0.185,
}


def compute_features(top: "Ranking", question: str) -> dict[str, Any]:
    """Return what the probability of each hit depends on, best hit first."""
    import numpy as np  # slow to load; only searches need it

    count = len(top.memories)
    totals: Any = sum(values for name, values in top.terms.items() if name not in CHANGING_TERMS)
    tokens: Any = top.token_scores
    one = np.ones(count, np.float32)
    spread = totals[0] - totals[min(SPREAD_RANK, count - 1)]
    if count <= SPREAD_RANK:
        spread = max(spread, MIN_SPREAD_OF_FEW)
    return {
        "coverage": top.coverage,
        "cosine": top.cosine,
        "tokens": tokens,
        "best_coverage": top.coverage[0] * one,
        "best_cosine": top.cosine[0] * one,
        "best_tokens": tokens[0] * one,
        "gap": totals - totals[0],
        "log_rank": np.log1p(np.arange(count)),
        "spread": spread * one,
        "question_length": min(len(question.split()), MAX_QUESTION_WORDS) / 10 * one,
    }


def compute_probabilities(top: "Ranking", question: str) -> "Floats":
    """Return for each hit of a ranking with token scores the probability that it answers the question."""
    import numpy as np  # slow to load; only searches need it

    features = compute_features(top, question)
    logits: Any = BIAS + sum(weight * features[name] for name, weight in WEIGHTS.items())
    # The model cannot judge identifiers and words of other scripts. Where these are most of the question, a memory that
    # holds them all is right.
    by_words = np.where(top.coverage >= FULL_COVERAGE, FULL_COVERAGE_SCORE, 0.0)
    by_words = np.maximum(by_words, max(0.0, 2 * top.unknown_share - 1) * np.clip(top.coverage, 0, 1))
    probabilities: Floats = np.maximum(1 / (1 + np.exp(-logits)), by_words).astype(np.float32)
    return probabilities
