"""Measure how well consolidation finds planted patterns: precision, recall and calibration."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from athena.memory.consolidation import contradictions, sequences
from athena.memory.consolidation.events import group_events
from athena.memory.consolidation.values import Pattern
from bench.evaluation.planting import EventStream
from bench.evaluation.statements import StatementSet

MIN_REPORTED_CONFIDENCE = 0.4  # fixed; tuning it would invalidate the held-out figures
FIRST_TUNING_SEED, FIRST_TEST_SEED = 0, 5_000_001
MIN_EVIDENCE_OVERLAP = 0.5  # of a planted and a found pattern


class JudgedPattern(NamedTuple):
    """A candidate, and whether it matches a planted pattern."""

    type: str
    confidence: float
    is_correct: bool
    features: tuple[float, ...]


class PatternScore(NamedTuple):
    planted: int
    found: int
    correct: int

    @property
    def precision(self) -> float:
        return self.correct / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        return self.correct / self.planted if self.planted else 1.0


def find_event_patterns(stream: EventStream) -> list[Pattern]:
    """Return the recurring events and sequences that the miners find in a stream."""
    found, vocabulary, background = group_events(stream.events)
    return [*sequences.find_recurring(found, vocabulary, background), *sequences.find_sequences(stream.events, found)]


def judge_stream(stream: EventStream, patterns: Sequence[Pattern]) -> tuple[list[JudgedPattern], dict[str, int]]:
    """Match candidates with what was planted, each planted pattern with one; return also how many were planted.

    The steps of a planted sequence do recur, so a recurring pattern made of them is neither right nor wrong.
    """
    judged = []
    open_ = list(stream.planted)
    for pattern in sorted(patterns, key=lambda one: -one.confidence):
        evidence = set(pattern.evidence)
        match = max(
            (one for one in open_ if one.type == pattern.type and one.outcome == pattern.details.get("outcome")),
            key=lambda one: _compute_overlap(evidence, one.evidence),
            default=None,
        )
        right = match is not None and _compute_overlap(evidence, match.evidence) >= MIN_EVIDENCE_OVERLAP
        if match is not None and right:
            open_.remove(match)
        elif pattern.type == "recurring" and any(len(evidence & ids) > len(evidence) / 2 for ids in stream.steps):
            continue
        judged.append(JudgedPattern(pattern.type, pattern.confidence, right, pattern.features))
    counts = {kind: sum(one.type == kind for one in stream.planted) for kind in ("recurring", "sequence")}
    return judged, counts


def judge_statements(statements: StatementSet) -> tuple[list[JudgedPattern], dict[str, int]]:
    wanted = {frozenset(pair) for pair in statements.contradictions}
    judged = [
        JudgedPattern(one.type, one.confidence, frozenset(one.evidence) in wanted, one.features)
        for one in contradictions.find_contradictions(statements.memories)
    ]
    return judged, {"contradiction": len(wanted)}


def _compute_overlap(one: set[int], other: frozenset[int]) -> float:
    return len(one & other) / len(one | other)


def sum_scores(results: Iterable[tuple[list[JudgedPattern], dict[str, int]]]) -> dict[str, PatternScore]:
    """Sum the planted, found and correct patterns by type."""
    totals: dict[str, list[int]] = {}
    for judged, planted in results:
        for kind, count in planted.items():
            totals.setdefault(kind, [0, 0, 0])[0] += count
        for one in judged:
            if one.confidence >= MIN_REPORTED_CONFIDENCE:
                row = totals.setdefault(one.type, [0, 0, 0])
                row[1] += 1
                row[2] += one.is_correct
    return {kind: PatternScore(*row) for kind, row in totals.items()}


def compute_calibration_error(judged: Iterable[JudgedPattern], bins: int = 10) -> float:
    """Return the expected calibration error: the mean difference of confidence and precision over bins."""
    sums: dict[int, list[float]] = {}
    for one in judged:
        row = sums.setdefault(min(int(one.confidence * bins), bins - 1), [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += one.confidence
        row[2] += one.is_correct
    total = sum(row[0] for row in sums.values())
    return sum(abs(row[1] - row[2]) for row in sums.values()) / total if total else 0.0
