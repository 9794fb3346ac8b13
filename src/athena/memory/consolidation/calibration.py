"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`athena.evaluation.planting` and
`statements`) of the even seeds; the odd ones are for reporting.
"""

from athena.memory.consolidation.chance import logistic

WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-8.742, 6.191, 2.128, 2.171, -1.047),
    "sequence": (-10.864, 6.76, 2.953, 2.34),
    "contradiction": (-8.763, 13.079, -5.952, -1.697, 1.201, -5.524, -7.327, -2.971, 2.637, -0.847),
}


def confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(logistic(WEIGHTS[kind], features), 4)
