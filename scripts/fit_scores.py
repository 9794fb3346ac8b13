"""Fit WEIGHTS and BIAS of `athena/memory/scores.py` to questions with known answers.

    python scripts/fit_scores.py FIT.jsonl [--judge JUDGE.jsonl]

Both files are collections as `athena eval --set` reads them, e.g. from `scripts/build_worlds.py`. Each question is
asked in its own store. Questions that nothing answers are those without `gold` (near the topics of the store), those
about the other stores of the file, and requests for tools (foreign to any memory). The script prints the weights, then
for each file the calibration error and what floors on the best hit cost and bring.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from athena.cli.evaluate import Collection, EvaluationQuestion, load_jsonl, open_trial
from athena.cli.evaluate_measures import CALIBRATED_HITS, QuestionResult, summarise_scores
from athena.embedding.minilm import MiniLM
from athena.memory import recall, scores
from athena.memory.ranking import Ranking, Weights

REQUESTS_FILE = Path(__file__).parents[1] / "data" / "tools" / "train.tsv"
QUESTIONS_FROM_OTHER_STORES, FOREIGN_QUESTIONS = 40, 60  # for each store
RIDGE = 0.001  # of the standardised weights, a hit
NEWTON_STEPS = 30
FLOORS = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2)

Matrix = NDArray[np.float64]


class AskedQuestion(NamedTuple):
    """A question with the features of its first hits."""

    features: Matrix  # a row for each hit, a column for each weight
    result: QuestionResult


class Model(NamedTuple):
    bias: float
    weights: dict[str, float]


def add_unanswered(collections: list[Collection]) -> Iterator[Collection]:
    """Yield each store with questions about other stores and with requests for tools."""
    choose = random.Random(1)
    requests = [line.rsplit("\t", 1)[-1] for line in REQUESTS_FILE.read_text("utf-8").splitlines()]
    for collection in collections:
        near = [question if question.gold else question._replace(category="near") for question in collection.questions]
        others = [question.text for other in collections if other is not collection for question in other.questions]
        others = choose.sample(others, min(QUESTIONS_FROM_OTHER_STORES, len(others)))
        foreign = choose.sample(requests, FOREIGN_QUESTIONS)
        unanswered = [
            EvaluationQuestion(text, frozenset(), category)
            for category, texts in (("other stores", others), ("foreign", foreign))
            for text in texts
        ]
        yield collection._replace(questions=near + unanswered)


def ask_questions(file: Path, embedder: MiniLM) -> list[AskedQuestion]:
    """Ask every question of a file as a user would, and keep what the score of each hit depends on."""
    features: list[Matrix] = []

    def record_features(top: Ranking, question: str) -> Any:
        columns = scores.compute_features(top, question)
        features.append(np.stack([columns[name] for name in scores.WEIGHTS], axis=1)[:CALIBRATED_HITS].astype(float))
        return scores.compute_probabilities(top, question)

    results: list[QuestionResult] = []
    with mock.patch.object(recall, "compute_probabilities", record_features):
        for collection in add_unanswered(load_jsonl(file)):
            with open_trial(collection, embedder, print) as trial:
                results += trial.ask_questions(Weights())
    return [AskedQuestion(*pair) for pair in zip(features, results, strict=True)]


def fit(asked: list[AskedQuestion]) -> Model:
    """Return the weights of a logistic regression with a ridge penalty, by Newton's method."""
    hits = np.concatenate([question.features for question in asked])
    right = np.concatenate([np.isin(np.arange(len(question.features)), question.result.ranks) for question in asked])
    mean, deviation = hits.mean(axis=0), hits.std(axis=0) + 1e-6
    x = np.c_[(hits - mean) / deviation, np.ones(len(hits))]
    w = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (p - right) / len(x) + RIDGE * w
        w -= np.linalg.solve((x.T * (p * (1 - p))) @ x / len(x) + RIDGE * np.eye(len(w)), gradient)
    weights = w[:-1] / deviation
    rounded = {name: round(float(weight), 3) for name, weight in zip(scores.WEIGHTS, weights, strict=True)}
    return Model(round(float(w[-1] - weights @ mean), 3), rounded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fit", type=Path, help="questions to fit the weights to")
    parser.add_argument("--judge", type=Path, help="questions to judge the weights by")
    options = parser.parse_args()
    embedder = MiniLM()
    asked = ask_questions(options.fit, embedder)
    model = fit(asked)
    scores.BIAS, scores.WEIGHTS = model.bias, model.weights
    print(f"BIAS = {scores.BIAS}\nWEIGHTS = {scores.WEIGHTS}")
    for file in filter(None, (options.fit, options.judge)):
        report(file, [question.result for question in ask_questions(file, embedder)])


def report(file: Path, results: list[QuestionResult]) -> None:
    print(f"{file.name}: calibration error {summarise_scores(results, 0).calibration_error:.3f}")
    answered = [result for result in results if result.gold_count]
    for floor in FLOORS:
        lost = summarise_scores(answered, floor).lost_recall
        shares = []
        for category in ("near", "other stores", "foreign"):
            part = [result for result in results if not result.gold_count and result.category == category]
            share = summarise_scores(part, floor).hit_share
            shares.append(f"{category} {share.mean:.0%}" if share else "")
        print(f"  floor {floor}: {100 * lost.mean if lost else 0:.2f} points of R@10 lost; hits:", ", ".join(shares))


if __name__ == "__main__":
    main()
