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
MIN_SPREAD_OF_FEW = 1.4  # with too few hits to tell: as of the clearest tenth of the questions with an answer
MAX_QUESTION_WORDS = 25
# A question to which nothing comes near is not about this store. Nearness is the mean of the best three token scores,
# plus the best cosine and how far the first hit stands out, each with its weight; fitted to questions about other
# stores and to requests for tools (decision 26).
NEARNESS_RANKS, NEARNESS_TOKENS = 10, 3
NEARNESS_COSINE, NEARNESS_SPREAD = 1.155, 0.059
MIN_NEARNESS, DISTANT_SCORE = 0.745, 0.04
MAX_DOUBTFUL_SCORE = 0.07  # a better first hit is shown, however far the others are
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
    probabilities = 1 / (1 + np.exp(-logits))
    is_doubtful = len(probabilities) > SPREAD_RANK and probabilities.max() < MAX_DOUBTFUL_SCORE
    if is_doubtful and measure_nearness(features) < MIN_NEARNESS:
        probabilities = np.minimum(probabilities, DISTANT_SCORE)
    shown: Floats = np.maximum(probabilities, by_words).astype(np.float32)
    return shown


def measure_nearness(features: dict[str, Any]) -> float:
    """Return how near the first hits come to the question."""
    import numpy as np  # slow to load; only searches need it

    tokens = np.sort(features["tokens"][:NEARNESS_RANKS])[-NEARNESS_TOKENS:].mean()
    cosine = features["cosine"][:NEARNESS_RANKS].max()
    return float(tokens + NEARNESS_COSINE * cosine + NEARNESS_SPREAD * features["spread"][0])
