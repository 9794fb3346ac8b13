"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`athena.evaluation.planting` and
`statements`) of the even seeds; what is reported is from seeds of another range (`planted.HELD_OUT`).
"""

from athena.memory.consolidation.chance import logistic

WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-9.358, 6.977, 2.22, 2.086, -1.057),
    "sequence": (-11.935, 7.336, 3.261, 2.565),
    "contradiction": (-10.329, 15.216, -5.981, -1.703, 1.055, -5.942, -8.175, -3.593, 2.95, -0.651),
}


def confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(logistic(WEIGHTS[kind], features), 4)
