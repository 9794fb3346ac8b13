"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`athena.evaluation.planting`, `claims`)
of the even seeds; the odd ones are for reporting.
"""

from athena.memory.consolidation.chance import logistic

WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-7.891, 5.144, -0.116, 7.277, -3.043),
    "sequence": (-8.987, 6.584, 1.648, 1.748),
    "contradiction": (-9.844, 14.009, -6.184, -1.923, 1.342, -7.359, -7.726, -3.165, 3.377, -0.738),
}


def confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(logistic(WEIGHTS[kind], features), 4)
