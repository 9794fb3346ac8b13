"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`athena.evaluation.planting`, `claims`)
of the even seeds; the odd ones are for reporting.
"""

from athena.memory.consolidation.chance import logistic

WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-6.0, 6.0, 0.5, 6.0, 0.5),
    "sequence": (-3.0, 6.0, 1.0, 1.0),
    "contradiction": (0.0, 0, 0, 0, 0, 0, 0, 0, 0),
}


def confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(logistic(WEIGHTS[kind], features), 4)
