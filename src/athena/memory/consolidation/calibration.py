"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`athena.evaluation.planting` and
`statements`) of the even seeds; the odd ones are for reporting.
"""

from athena.memory.consolidation.chance import logistic

WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-8.068, 6.215, -0.233, 6.7, -3.225),
    "sequence": (-8.986, 6.582, 1.645, 1.76),
    "contradiction": (-9.844, 14.009, -6.184, -1.923, 1.342, -7.359, -7.726, -3.165, 3.377, -0.738),
}


def confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(logistic(WEIGHTS[kind], features), 4)
