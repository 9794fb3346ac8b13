"""What is measured: how many of the right items come first, and how sure that figure is."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple


class Answered(NamedTuple):
    """One question: where the right items came in the list, and how long it took."""

    category: str
    ranks: tuple[int, ...]  # from 0; only those within the list
    gold_count: int
    seconds: float


def compute_recall(k: int, one: Answered) -> float:
    return sum(rank < k for rank in one.ranks) / one.gold_count


def compute_reciprocal_rank(one: Answered) -> float:
    return 1 / (min(one.ranks) + 1) if one.ranks else 0.0


def compute_ndcg_at_10(one: Answered) -> float:
    """nDCG@10 with relevance as yes or no."""
    found = sum(1 / math.log2(rank + 2) for rank in one.ranks if rank < 10)
    return found / sum(1 / math.log2(rank + 2) for rank in range(min(10, one.gold_count)))


MEASURES = {
    "R@5": lambda one: compute_recall(5, one),
    "R@10": lambda one: compute_recall(10, one),
    "R@20": lambda one: compute_recall(20, one),
    "MRR": compute_reciprocal_rank,
    "nDCG@10": compute_ndcg_at_10,
}


class MeasureSummary(NamedTuple):
    """Means over questions, with the interval that holds 95 % of resampled means."""

    count: int  # type: ignore[assignment]  # it hides tuple.count
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    median_ms: float
    p95_ms: float


def summarise_results(answers: Sequence[Answered]) -> MeasureSummary:
    means, intervals = {}, {}
    for name, measure in MEASURES.items():
        values = [measure(one) for one in answers]
        means[name] = sum(values) / len(values)
        intervals[name] = _bootstrap_interval(values)
    times = sorted(one.seconds * 1000 for one in answers)
    return MeasureSummary(len(answers), means, intervals, times[len(times) // 2], times[int(len(times) * 0.95)])


def _bootstrap_interval(values: Sequence[float], rounds: int = 400) -> tuple[float, float]:
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(rounds))
    return means[int(rounds * 0.025)], means[int(rounds * 0.975)]
