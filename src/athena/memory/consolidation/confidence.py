"""How likely it is that something is there by chance alone. Logarithms to base 10, of upper bounds."""

import math
from collections.abc import Sequence

CALIBRATION_WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-9.358, 6.977, 2.22, 2.086, -1.057),
    "sequence": (-11.935, 7.336, 3.261, 2.565),
    "contradiction": (-9.57, 14.792, -6.375, -0.0, -1.28, -5.734, -8.023, -3.883, 2.663, -0.718),
}


def compute_confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(apply_logistic(CALIBRATION_WEIGHTS[kind], features), 4)


LN_10 = math.log(10)


def log_poisson_tail(seen: int, expected: float) -> float:
    """Return the log of how likely it is to see at least so many where so many are expected."""
    if seen <= expected:
        return 0.0
    expected = max(expected, 1e-300)
    return (seen * math.log(expected / seen) + seen - expected) / LN_10


def log_binomial_tail(hits: int, tries: int, rate: float) -> float:
    """Return the log of how likely at least so many hits are at this rate."""
    rate = min(max(rate, 1e-9), 1 - 1e-9)
    if hits <= tries * rate:
        return 0.0
    logs = [
        math.lgamma(tries + 1) - math.lgamma(k + 1) - math.lgamma(tries - k + 1)
        + k * math.log(rate) + (tries - k) * math.log(1 - rate)
        for k in range(hits, tries + 1)
    ]  # fmt: skip
    top = max(logs)
    return (top + math.log(sum(math.exp(one - top) for one in logs))) / LN_10


def log_combinations(among: int, chosen: int) -> float:
    """Return the log of in how many ways some can be chosen among many."""
    chosen = min(chosen, among)
    return (math.lgamma(among + 1) - math.lgamma(chosen + 1) - math.lgamma(among - chosen + 1)) / LN_10


def apply_logistic(weights: Sequence[float], features: Sequence[float]) -> float:
    """Return a probability from features; the first weight stands alone."""
    total = weights[0] + sum(weight * feature for weight, feature in zip(weights[1:], features, strict=True))
    return 1 / (1 + math.exp(-max(min(total, 30.0), -30.0)))
