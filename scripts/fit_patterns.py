"""Fit CALIBRATION_WEIGHTS of `athena/memory/consolidation/confidence.py` to generated streams of the even seeds.

Run as `PYTHONPATH=. python scripts/fit_patterns.py [COUNT]`; it prints the weights and their figures on the seeds they
were fitted to. With `--held-out` it fits nothing and prints the figures of the present weights on other seeds, which
also have kinds of statements that the even seeds lack.
"""

import sys
from collections.abc import Iterator

import numpy as np
from bench.evaluation import planted
from bench.evaluation.planted import JudgedPattern
from bench.evaluation.planting import generate_noise, generate_stream
from bench.evaluation.statements import generate_statements

from athena.memory.consolidation import confidence

SIZES = (200, 600, 1_500)
Result = tuple[list[JudgedPattern], dict[str, int]]


def trials(first: int, count: int) -> Iterator[Result]:
    """Yield the judged patterns of streams, noise and statements for every other seed from `first` on."""
    for i in range(count):
        seed = first + 2 * i
        stream = generate_stream(seed, SIZES[i % 3], recurring=2 + i % 3, sequences=1 + i % 3, days=(28, 14, 56)[i % 3])
        yield planted.judge_stream(stream, planted.find_event_patterns(stream))
        if i % 2:
            noise = generate_noise(100_000 + seed, SIZES[i % 3])
            yield planted.judge_stream(noise, planted.find_event_patterns(noise))
        yield planted.judge_statements(generate_statements(seed))


def fit(judged: list[JudgedPattern], ridge: float = 0.1) -> list[float]:
    """Return the weights of a logistic regression with a ridge penalty."""
    x = np.array([[1.0, *candidate.features] for candidate in judged])
    y = np.array([candidate.is_correct for candidate in judged], float)
    w = np.zeros(x.shape[1])
    penalty = np.diag([0.01] + [ridge] * (x.shape[1] - 1))
    for _ in range(50):
        p = 1 / (1 + np.exp(-x @ w))
        w += np.linalg.solve((x.T * (p * (1 - p))) @ x + penalty, x.T @ (y - p) - penalty @ w)
    return [round(float(value), 3) for value in w]


def main() -> None:
    counts = [int(word) for word in sys.argv[1:] if word.isdigit()]
    count = counts[0] if counts else 60
    if "--held-out" in sys.argv:
        report("held out", list(trials(planted.FIRST_TEST_SEED, count)))
        seeds = range(planted.FIRST_TEST_SEED, planted.FIRST_TEST_SEED + 2 * count, 2)
        unseen = [planted.judge_statements(generate_statements(seed, unseen_only=True)) for seed in seeds]
        return report("held-out families", unseen)
    for kind, weights in confidence.CALIBRATION_WEIGHTS.items():
        confidence.CALIBRATION_WEIGHTS[kind] = (0.0,) * len(weights)  # so that every candidate is reported
    tuning = list(trials(planted.FIRST_TUNING_SEED, count))
    for kind in confidence.CALIBRATION_WEIGHTS:
        judged = [one for found, _ in tuning for one in found if one.type == kind]
        if judged:
            confidence.CALIBRATION_WEIGHTS[kind] = tuple(fit(judged))
            print(f'    "{kind}": {confidence.CALIBRATION_WEIGHTS[kind]},  # {len(judged)} candidates')
    return report("tuned on", list(trials(planted.FIRST_TUNING_SEED, count)))


def report(name: str, found: list[Result]) -> None:
    for kind, score in planted.sum_scores(found).items():
        error = planted.compute_calibration_error(one for judged, _ in found for one in judged if one.type == kind)
        print(f"{name} {kind:>14}: {score} precision {score.precision:.3f} recall {score.recall:.3f} ECE {error:.3f}")


if __name__ == "__main__":
    main()
