"""Confidence of patterns: calibrated weights, and bounds on the probability of chance (base 10 logarithms)."""

import math
from collections.abc import Sequence

# Fitted by scripts/fit_patterns.py; the first of each is the intercept.
CALIBRATION_WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-9.358, 6.977, 2.22, 2.086, -1.057),
    "sequence": (-11.935, 7.336, 3.261, 2.565),
    "contradiction": (-9.57, 14.792, -6.375, -0.0, -1.28, -5.734, -8.023, -3.883, 2.663, -0.718),
}


LN_10 = math.log(10)


def compute_confidence(pattern_type: str, features: tuple[float, ...]) -> float:
    """Return the probability that a pattern with these features is real."""
    return round(apply_logistic(CALIBRATION_WEIGHTS[pattern_type], features), 4)


def log_poisson_tail(count: int, expected: float) -> float:
    """Return the log of the probability of at least `count` occurrences."""
    if count <= expected:
        return 0.0
    expected = max(expected, 1e-300)
    return (count * math.log(expected / count) + count - expected) / LN_10


def log_binomial_tail(hits: int, tries: int, rate: float) -> float:
    """Return the log of the probability of at least `hits` hits."""
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    if hits <= tries * rate:
        return 0.0
    logs = [
        math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
        + k * math.log(rate) + (tries - k) * math.log(1 - rate)
        for k in range(hits, tries + 1)
    ]  # fmt: skip
    top = max(logs)
    return (top + math.log(sum(math.exp(log - top) for log in logs))) / LN_10


def log_combinations(n: int, k: int) -> float:
    """Return the log of the binomial coefficient."""
    k = min(k, n)
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / LN_10


def apply_logistic(weights: Sequence[float], features: Sequence[float]) -> float:
    """Return the probability of a logistic regression; the first weight is the intercept."""
    total = weights[0] + sum(weight * feature for weight, feature in zip(weights[1:], features, strict=True))
    return 1 / (1 + math.exp(-max(min(total, 30.0), -30.0)))
