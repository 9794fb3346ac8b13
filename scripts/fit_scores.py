"""Fit WEIGHTS and BIAS of `athena/memory/scores.py` to questions with known answers.

    python scripts/fit_scores.py --set FILE --cranfield FOLDER [--judge FILE] [--locomo FILE]

The collections are those of `athena eval`; `scripts/build_worlds.py` writes files for `--set` and `--judge`. The
weights are fitted to the set and to Cranfield, which count the same. LoCoMo's licence excludes fitting: it only
judges. Each question is asked in its own store. Questions that nothing answers are those without `gold` (near the
topics of the store), those about the other stores of the collection, and requests for tools (foreign to any memory).
The script prints the weights, then for each collection, with those questions, the calibration error and what floors
on the best hit cost and bring.
"""

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from athena.cli.evaluate import Collection, EvaluationQuestion, load_cranfield, load_jsonl, load_locomo, open_trial
from athena.cli.evaluate_measures import CALIBRATED_HITS, QuestionResult, summarise_scores
from athena.embedding.minilm import MiniLM
from athena.memory import recall, scores
from athena.memory.ranking import Ranking, Weights

REQUESTS_FILE = Path(__file__).parents[1] / "data" / "tools" / "train.tsv"
QUESTIONS_FROM_OTHER_STORES, FOREIGN_QUESTIONS = 40, 60  # for each store
RIDGE = 0.001  # of the standardised weights, a hit
NEWTON_STEPS = 30
FLOORS = (0.02, 0.03, 0.04, 0.045, 0.05, 0.055, 0.06, 0.08, 0.1, 0.15, 0.2)

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


def ask_questions(collections: list[Collection], embedder: MiniLM) -> list[AskedQuestion]:
    """Ask every question as a user would, and keep what the score of each hit depends on."""
    features: list[Matrix] = []

    def record_features(top: Ranking, question: str) -> Any:
        columns = scores.compute_features(top, question)
        features.append(np.stack([columns[name] for name in scores.WEIGHTS], axis=1)[:CALIBRATED_HITS].astype(float))
        return scores.compute_probabilities(top, question)

    results: list[QuestionResult] = []
    with mock.patch.object(recall, "compute_probabilities", record_features):
        for collection in add_unanswered(collections):
            with open_trial(collection, embedder, print) as trial:
                results += trial.ask_questions(Weights())
    return [AskedQuestion(*pair) for pair in zip(features, results, strict=True)]


def fit(sets: list[list[AskedQuestion]]) -> Model:
    """Return the weights of a logistic regression with a ridge penalty, by Newton's method."""
    asked = [question for questions in sets for question in questions]
    hits = np.concatenate([question.features for question in asked])
    right = np.concatenate([np.isin(np.arange(len(question.features)), question.result.ranks) for question in asked])
    sizes = [sum(len(question.features) for question in questions) for questions in sets]
    share = np.repeat([1 / (len(sets) * size) for size in sizes], sizes)  # of a hit
    mean, deviation = share @ hits, hits.std(axis=0) + 1e-6
    x = np.c_[(hits - mean) / deviation, np.ones(len(hits))]
    w = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-x @ w))
        hessian = (x.T * (share * p * (1 - p))) @ x + RIDGE * np.eye(len(w))
        w -= np.linalg.solve(hessian, x.T @ (share * (p - right)) + RIDGE * w)
    weights = w[:-1] / deviation
    rounded = {name: round(float(weight), 3) for name, weight in zip(scores.WEIGHTS, weights, strict=True)}
    return Model(round(float(w[-1] - weights @ mean), 3), rounded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", type=Path, dest="lines", required=True)
    parser.add_argument("--cranfield", type=Path, required=True)
    parser.add_argument("--judge", type=Path, help="questions to judge the weights by")
    parser.add_argument("--locomo", type=Path, help="LoCoMo, to judge the weights by")
    options = parser.parse_args()
    sets = {
        "set": load_jsonl(options.lines),
        "Cranfield": load_cranfield(options.cranfield),
    }
    embedder = MiniLM()
    model = fit([ask_questions(collections, embedder) for collections in sets.values()])
    scores.BIAS, scores.WEIGHTS = model.bias, model.weights
    print(f"BIAS = {scores.BIAS}\nWEIGHTS = {scores.WEIGHTS}")
    if options.judge:
        sets["to judge by"] = load_jsonl(options.judge)
    if options.locomo:
        sets["LoCoMo"] = load_locomo(options.locomo)
    for name, collections in sets.items():
        report(name, [question.result for question in ask_questions(collections, embedder)])


def report(name: str, results: list[QuestionResult]) -> None:
    print(f"{name}: calibration error {summarise_scores(results, 0).calibration_error:.3f}")
    answered = [result for result in results if result.gold_count]
    for floor in FLOORS:
        lost = summarise_scores(answered, floor).lost_recall
        shares = []
        for category in ("near", "other stores", "foreign"):
            part = [result for result in results if not result.gold_count and result.category == category]
            share = summarise_scores(part, floor).hit_share
            shares += [f"{category} {share.mean:.0%}"] if share else []
        print(f"  floor {floor}: {100 * lost.mean if lost else 0:.2f} points of R@10 lost; hits:", ", ".join(shares))


if __name__ == "__main__":
    main()
