"""From features of a candidate to how often such a candidate is a real pattern.

Written by `scripts/fit_patterns.py`: logistic regressions on planted streams (`bench.evaluation.planting` and
`statements`) of the even seeds; what is reported is from seeds of another range (`planted.HELD_OUT`).
"""

from athena.memory.consolidation.confidence import apply_logistic

CALIBRATION_WEIGHTS: dict[str, tuple[float, ...]] = {
    "recurring": (-9.358, 6.977, 2.22, 2.086, -1.057),
    "sequence": (-11.935, 7.336, 3.261, 2.565),
    "contradiction": (-9.57, 14.792, -6.375, -0.0, -1.28, -5.734, -8.023, -3.883, 2.663, -0.718),
}


def compute_confidence(kind: str, features: tuple[float, ...]) -> float:
    return round(apply_logistic(CALIBRATION_WEIGHTS[kind], features), 4)
