"""What `athena eval` computes from the results of questions: measures, intervals, and what the floor leaves out."""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

RESAMPLING_ROUNDS = 400
CALIBRATION_BINS = 10
CALIBRATED_HITS = 10  # first hits of each question whose scores are compared with the share that is right


class QuestionResult(NamedTuple):
    """The result of a question: the ranks of the right items, the scores of all hits, and how long the search took."""

    category: str
    ranks: tuple[int, ...]  # from 0; only those within the results
    gold_count: int  # 0 for a question that nothing in the collection answers
    seconds: float
    scores: tuple[float, ...] = ()  # best first

    def apply_floor(self, floor: float) -> "QuestionResult":
        """Return what a search with this floor shows: nothing if even the best hit is less probable."""
        is_hidden = bool(self.scores) and self.scores[0] < floor
        return self._replace(ranks=(), scores=()) if is_hidden else self


def compute_recall(k: int, result: QuestionResult) -> float:
    return sum(rank < k for rank in result.ranks) / result.gold_count


def compute_reciprocal_rank(result: QuestionResult) -> float:
    return 1 / (min(result.ranks) + 1) if result.ranks else 0.0


def compute_ndcg_at_10(result: QuestionResult) -> float:
    """Return nDCG@10 with binary relevance."""
    gain = sum(1 / math.log2(rank + 2) for rank in result.ranks if rank < 10)
    return gain / sum(1 / math.log2(rank + 2) for rank in range(min(10, result.gold_count)))


MEASURES: dict[str, Callable[[QuestionResult], float]] = {
    "R@5": partial(compute_recall, 5),
    "R@10": partial(compute_recall, 10),
    "R@20": partial(compute_recall, 20),
    "MRR": compute_reciprocal_rank,
    "nDCG@10": compute_ndcg_at_10,
}


class Estimate(NamedTuple):
    """A mean, and the interval of 95 % of the means of resampled values."""

    mean: float
    interval: tuple[float, float]

    def format_signed(self) -> str:
        return f"{self.mean:+.3f} ({self.interval[0]:+.3f} to {self.interval[1]:+.3f})"


class MeasureSummary(NamedTuple):
    """Means over questions, with 95 % bootstrap intervals."""

    count: int  # type: ignore[assignment]  # it hides tuple.count
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    median_ms: float
    p95_ms: float


class ScoreSummary(NamedTuple):
    """How well scores are calibrated, and what the floor of a search leaves out."""

    calibration_error: float
    lost_recall: Estimate | None  # of R@10, over the questions with an answer
    unanswered: int
    hit_share: Estimate | None  # of questions without an answer that get a hit


def estimate_mean(values: Sequence[float]) -> Estimate:
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(RESAMPLING_ROUNDS))
    interval = means[int(RESAMPLING_ROUNDS * 0.025)], means[int(RESAMPLING_ROUNDS * 0.975)]
    return Estimate(sum(values) / len(values), interval)


def summarise_results(results: Sequence[QuestionResult]) -> MeasureSummary:
    """Compute all measures over the questions that have an answer, of which there must be one."""
    answered = [result for result in results if result.gold_count]
    estimates = {name: estimate_mean([measure(one) for one in answered]) for name, measure in MEASURES.items()}
    times = sorted(result.seconds * 1000 for result in answered)
    return MeasureSummary(
        len(answered),
        {name: estimate.mean for name, estimate in estimates.items()},
        {name: estimate.interval for name, estimate in estimates.items()},
        times[len(times) // 2],
        times[int(len(times) * 0.95)],
    )


def compare_results(first: Sequence[QuestionResult], second: Sequence[QuestionResult]) -> dict[str, Estimate]:
    """Return for each measure by how much the second results of the same questions are higher."""
    pairs = [(one, other) for one, other in zip(first, second, strict=True) if one.gold_count]
    return {
        name: estimate_mean([measure(other) - measure(one) for one, other in pairs])
        for name, measure in MEASURES.items()
    }


def summarise_scores(results: Sequence[QuestionResult], floor: float) -> ScoreSummary:
    """Return how well scores are calibrated, and what a floor costs and brings."""
    lost = [
        compute_recall(10, result) - compute_recall(10, result.apply_floor(floor))
        for result in results
        if result.gold_count
    ]
    has_hit = [bool(result.apply_floor(floor).scores) for result in results if not result.gold_count]
    return ScoreSummary(
        compute_calibration_error(results),
        estimate_mean(lost) if lost else None,
        len(has_hit),
        estimate_mean(has_hit) if has_hit else None,
    )


def compute_calibration_error(results: Sequence[QuestionResult]) -> float:
    """Return by how much scores differ from the share of right hits: the mean over bins, weighted by their size."""
    surplus = [0.0] * CALIBRATION_BINS  # of the scores in each bin over the right hits in it
    count = 0
    for result in results:
        right = set(result.ranks)
        for rank, score in enumerate(result.scores[:CALIBRATED_HITS]):
            surplus[min(int(score * CALIBRATION_BINS), CALIBRATION_BINS - 1)] += score - (rank in right)
            count += 1
    return sum(map(abs, surplus)) / max(count, 1)
