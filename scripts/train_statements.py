"""Train the classifier of `athena/memory/sessions/classifier.py` on `data/sessions`, and fit `supersede.WEIGHTS`.

    python scripts/train_statements.py [--without rafa,olek,hugo]   # the figures of docs/learning.md
    python scripts/train_statements.py --all                        # trains on all writers, writes statements.npz

The first prints a cross-validation by writer, the figures on the writers left out, how they grow with the number of
writers, and the weights of changes of mind. `--out FILE` writes the model without those writers. Needs numpy alone.

Stage one is linear in hashed words and token states; stage two adds, linearly as well, what stage one says of the
neighbours. Both are trained together: Adam on all fragments at once, with dropout.
"""

import argparse
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from labelled_sessions import JUDGES, Clause, Session, match_clauses, read_sessions

from athena.embedding.minilm import MiniLM
from athena.memory.sessions import classifier, supersede
from athena.memory.sessions.fragment_features import HASH_BUCKETS, hash_fragments
from athena.memory.sessions.fragments import split_fragments
from athena.memory.sessions.statements import clean_statement

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.intp]
Weights = dict[str, Floats]
OUTPUTS = 2 + len(classifier.KINDS)  # keep, begin, a kind
VIEWS = 7  # of the neighbours: own, one before, one after, two before, two after, sentence, turn
UNLABELLED_KIND = classifier.KINDS.index("smalltalk")
MAX_COMPARED = 6  # older statements, for each new one
MIN_GOLD_SIMILARITY = 0.5  # of a statement to the words that say what is replaced
REPLACEMENT_RIDGE = 1 / 0.3


@dataclass(frozen=True)
class Settings:
    """How to train; chosen by cross-validation over the writers that are not judges."""

    steps: int = 250
    rate: float = 0.02
    dropout: float = 0.2
    decay: float = 5e-4
    neighbor_decay: float = 1e-4
    first_stage_share: float = 0.3  # of the loss
    begin_weight: float = 0.5
    kind_weight: float = 0.5
    state_scale: float = 2.5
    word_scale: float = 0.5
    seed: int = 0


class Rows(NamedTuple):
    """Fragments with their features and labels; those of a turn follow each other."""

    writers: npt.NDArray[np.str_]
    turns: Integers
    sentences: Integers
    states: Floats
    words: list[list[int]]  # buckets
    labels: Floats  # as the model's outputs: keep, begin, one column for each kind

    def select(self, chosen: npt.NDArray[np.bool_]) -> "Rows":
        words = [self.words[i] for i in np.flatnonzero(chosen)]
        return Rows(
            self.writers[chosen], self.turns[chosen], self.sentences[chosen], self.states[chosen], words,
            self.labels[chosen],
        )  # fmt: skip


def create_rows(sessions: Sequence[Session], model: MiniLM) -> Rows:
    """Return the fragments of all turns, with features as the classifier computes them."""
    rows: list[tuple[str, int, int]] = []
    states: list[Floats] = []
    words: list[list[int]] = []
    labels: list[list[int]] = []
    turns = [(session.writer, turn) for session in sessions for turn in session.turns]
    for number, (writer, turn) in enumerate(turns):
        fragments = split_fragments(turn.text)
        if not fragments:
            continue
        states += classifier._pool_windows(model, turn.text, fragments, turn.answer)
        words += hash_fragments(turn.text, fragments, turn.answer)
        before = None
        for i, (fragment, match) in enumerate(zip(fragments, match_clauses(fragments, turn.clauses), strict=True)):
            clause = None if match is None else turn.clauses[match]
            kind = classifier.KINDS.index(clause.kind) if clause else UNLABELLED_KIND
            label = [0] * OUTPUTS
            label[0], label[1], label[2 + kind] = bool(clause and clause.is_worth_keeping), not i or match != before, 1
            before = match
            labels.append(label)
            rows.append((writer, number, fragment.sentence))
    writers, numbers, sentences = zip(*rows, strict=True)
    return Rows(
        np.array(writers), np.array(numbers), np.array(sentences), np.concatenate(states), words,
        np.array(labels, np.float32),
    )  # fmt: skip


class Words:
    """The buckets of fragments as a sparse matrix of ones."""

    def __init__(self, buckets: Sequence[Sequence[int]]) -> None:
        lengths = [len(row) for row in buckets]
        self.count = len(buckets)
        self.rows = np.repeat(np.arange(self.count), lengths)
        self.columns = np.concatenate([np.asarray(row) for row in buckets])
        self.by_column = np.argsort(self.columns, kind="stable")

    def __len__(self) -> int:
        return len(self.rows)

    def multiply(self, weights: Floats, chosen: npt.NDArray[np.bool_] | None = None) -> Floats:
        """Return for each fragment the sum of the weights of its chosen buckets."""
        rows, columns = (self.rows, self.columns) if chosen is None else (self.rows[chosen], self.columns[chosen])
        return sum_groups(weights[columns], np.bincount(rows, minlength=self.count))

    def collect(self, gradients: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
        """Return for each bucket the sum of the gradients of the fragments that have it."""
        order = self.by_column[chosen[self.by_column]]
        return sum_groups(gradients[self.rows[order]], np.bincount(self.columns[order], minlength=HASH_BUCKETS))


def sum_groups(values: Floats, counts: Integers) -> Floats:
    """Return the sums of groups of rows that follow each other; the sum of an empty group is 0."""
    sums = np.zeros((len(counts), values.shape[1]), np.float32)
    starts, is_used = np.cumsum(counts) - counts, counts > 0
    if is_used.any():
        sums[is_used] = np.add.reduceat(values, starts[is_used], axis=0)
    return sums


class Neighbors:
    """Which fragments stand beside each other, in one sentence and in one turn."""

    def __init__(self, turns: Integers, sentences: Integers) -> None:
        count = len(turns)
        self.shifts = []
        for step in (-1, 1, -2, 2):  # the transposed shift is the one after or before it
            places = np.arange(count) + step
            is_inside = (places >= 0) & (places < count)
            is_inside[is_inside] = turns[places[is_inside]] == turns[is_inside]
            self.shifts.append(np.where(is_inside, places, count))
        is_new_turn = np.r_[True, turns[1:] != turns[:-1]]
        is_new_sentence = is_new_turn | np.r_[True, sentences[1:] != sentences[:-1]]
        self.groups = [np.diff(np.r_[np.flatnonzero(is_new), count]) for is_new in (is_new_sentence, is_new_turn)]

    def view(self, own: Floats) -> list[Floats]:
        """Return what each fragment sees: itself and its neighbours, in the order of the classifier."""
        padded = np.concatenate([own, np.zeros((1, own.shape[1]), np.float32)])
        return [own, *(padded[places] for places in self.shifts), *(average(own, counts) for counts in self.groups)]

    def collect(self, gradients: Sequence[Floats]) -> Floats:
        """Return the sum of the gradients of all views, each brought back to the fragments that it shows."""
        own, before, after, before2, after2, sentence, turn = gradients
        padded = [
            np.concatenate([one, np.zeros((1, one.shape[1]), np.float32)]) for one in (after, before, after2, before2)
        ]
        shifted = [one[places] for one, places in zip(padded, self.shifts, strict=True)]
        means = [average(one, counts) for one, counts in zip((sentence, turn), self.groups, strict=True)]
        total: Floats = np.sum([own, *shifted, *means], axis=0)
        return total


def average(values: Floats, counts: Integers) -> Floats:
    means = sum_groups(values, counts) / counts[:, None].astype(np.float32)
    return np.repeat(means, counts, axis=0)


def train(rows: Rows, settings: Settings) -> Weights:
    """Return the weights of both stages."""
    random = np.random.default_rng(settings.seed)
    words, neighbors = Words(rows.words), Neighbors(rows.turns, rows.sentences)
    states = rows.states * np.float32(settings.state_scale)
    share = settings.first_stage_share
    importance = np.array([1, settings.begin_weight] + [settings.kind_weight] * len(classifier.KINDS), np.float32)
    importance /= len(states)
    shapes = {
        "dense": (states.shape[1], OUTPUTS), "words": (HASH_BUCKETS, OUTPUTS), "bias": (1, OUTPUTS),
        "neighbors": (VIEWS, OUTPUTS, OUTPUTS),
    }  # fmt: skip
    weights: Weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    decays = {
        "dense": settings.decay, "words": settings.decay, "bias": 0.0, "neighbors": settings.neighbor_decay
    }  # fmt: skip
    adam = Adam(weights)
    keep_scale = np.float32(1 / (1 - settings.dropout))
    word_scale = np.float32(settings.word_scale) * keep_scale
    for step in range(settings.steps):
        chosen = random.random(len(words), dtype=np.float32) >= settings.dropout
        is_seen = random.random(states.shape, dtype=np.float32) >= settings.dropout
        inputs: Floats = states * is_seen.astype(np.float32) * keep_scale
        first = inputs @ weights["dense"] + words.multiply(weights["words"], chosen) * word_scale + weights["bias"]
        own = to_probabilities(first)
        views = neighbors.view(own)
        second = first + sum(view @ weight for view, weight in zip(views, weights["neighbors"], strict=True))
        error = (to_probabilities(second) - rows.labels) * importance * (1 - share)
        from_views = neighbors.collect([error @ weight.T for weight in weights["neighbors"]])
        first_error = (own - rows.labels) * importance * share + error + differentiate(own, from_views)
        gradients: Weights = {
            "dense": inputs.T @ first_error,
            "words": words.collect(first_error, chosen) * word_scale,
            "bias": first_error.sum(axis=0, keepdims=True),
            "neighbors": np.stack([view.T @ error for view in views]),
        }
        for name, gradient in gradients.items():
            gradient += 2 * decays[name] * weights[name]
        adam.step(gradients, settings.rate * 0.5 * (1 + np.cos(np.pi * step / settings.steps)))
    weights["words"] *= np.float32(settings.word_scale)
    weights["dense"] *= np.float32(settings.state_scale)
    return weights


class Adam:
    """Adam with the usual constants; changes the weights in place."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.means = {name: np.zeros_like(values) for name, values in weights.items()}
        self.squares = {name: np.zeros_like(values) for name, values in weights.items()}
        self.count = 0

    def step(self, gradients: Weights, rate: float) -> None:
        self.count += 1
        for name, gradient in gradients.items():
            mean, square = self.means[name], self.squares[name]
            mean += np.float32(0.1) * (gradient - mean)
            square += np.float32(0.001) * (gradient**2 - square)
            size = np.sqrt(square / np.float32(1 - 0.999**self.count)) + np.float32(1e-8)
            self.weights[name] -= np.float32(rate / (1 - 0.9**self.count)) * mean / size


def to_probabilities(logits: Floats) -> Floats:
    probabilities: Floats = classifier._to_probabilities(logits)
    return probabilities


def differentiate(probabilities: Floats, gradients: Floats) -> Floats:
    """Return the gradients of the logits from those of the probabilities."""
    own, kinds = probabilities[:, :2], probabilities[:, 2:]
    of_kinds = kinds * (gradients[:, 2:] - (gradients[:, 2:] * kinds).sum(axis=1, keepdims=True))
    return np.concatenate([gradients[:, :2] * own * (1 - own), of_kinds], axis=1)


def predict(weights: Weights, rows: Rows) -> Floats:
    """Return the logits of both stages together."""
    first = rows.states @ weights["dense"] + Words(rows.words).multiply(weights["words"]) + weights["bias"]
    views = Neighbors(rows.turns, rows.sentences).view(to_probabilities(first))
    total: Floats = first + sum(view @ weight for view, weight in zip(views, weights["neighbors"], strict=True))
    return total


def write_weights(weights: Weights, file: Path) -> None:
    """Write the file that the classifier reads; words are rounded to eight bits."""
    scales = np.maximum(np.abs(weights["words"]).max(axis=0), 1e-9) / 127
    np.savez_compressed(
        file,
        dense=weights["dense"].astype(np.float16),
        words=np.rint(weights["words"] / scales).astype(np.int8),
        word_scales=scales.astype(np.float32),
        bias=weights["bias"][0],
        neighbors=weights["neighbors"].astype(np.float16),
    )


def measure_precision(labels: npt.NDArray[Any], scores: npt.NDArray[Any]) -> float:
    """Return the average precision (AP): the mean, over all right ones, of the precision down to each."""
    ordered = labels[np.argsort(-scores, kind="stable")].astype(bool)
    precisions = np.cumsum(ordered) / np.arange(1, len(ordered) + 1)
    return float(precisions[ordered].mean())


def describe(labels: Floats, logits: Floats) -> str:
    kinds = (logits[:, 2:].argmax(axis=1) == labels[:, 2:].argmax(axis=1)).mean()
    begins = ((logits[:, 1] > 0) == (labels[:, 1] > 0)).mean()
    return (
        f"{len(labels):6,} fragments  AP of keep {measure_precision(labels[:, 0], logits[:, 0]):.3f} "
        f"(chance {labels[:, 0].mean():.3f})  kind right {kinds:.3f}  begin right {begins:.3f}"
    )


def list_writers(rows: Rows) -> list[str]:
    """Return the writers, those with most fragments first."""
    names, counts = np.unique(rows.writers, return_counts=True)
    return [str(names[i]) for i in np.argsort(-counts, kind="stable")]


def cross_validate(rows: Rows, settings: Settings) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield each writer with the labels and the logits of a model trained on the others."""
    for writer in list_writers(rows):
        is_own = rows.writers == writer
        own = rows.select(is_own)
        yield writer, own.labels, predict(train(rows.select(~is_own), settings), own)


class Pair(NamedTuple):
    """A statement and an older one of its project."""

    writer: str
    features: tuple[float, ...]
    is_replaced: bool


class Known(NamedTuple):
    """A statement of a project, as learning would store it."""

    session: str
    text: str
    clause: Clause


def create_pairs(sessions: Sequence[Session], model: MiniLM) -> list[Pair]:
    """Return each statement with the older ones most like it, and with the one that it replaces."""
    projects: dict[tuple[str, str], list[Known]] = {}
    for session in sessions:
        projects.setdefault((session.writer, session.project), []).extend(
            Known(session.name, clean_statement(turn.text[clause.start : clause.end]), clause)
            for turn in session.turns
            for clause in turn.clauses
            if clause.is_worth_keeping
        )
    return [pair for (writer, _), known in projects.items() for pair in compare_known(writer, known, model)]


def compare_known(writer: str, known: Sequence[Known], model: MiniLM) -> Iterator[Pair]:
    vectors: Any = model.embed([one.text for one in known])
    statements: Any = model.embed([one.clause.statement for one in known])
    for i, new in enumerate(known):
        similarities = vectors[:i] @ vectors[i]
        compared = {int(j) for j in np.argsort(-similarities)[:MAX_COMPARED]}
        replaced = None
        if new.clause.replaced and i:
            similar = statements[:i] @ model.embed([new.clause.replaced])[0]
            replaced = int(similar.argmax())
            if similar[replaced] < MIN_GOLD_SIMILARITY:
                continue  # what it replaces was not said
            compared.add(replaced)
        for j in sorted(compared):
            distance = i - j if known[j].session == new.session else None
            is_correction = new.clause.kind == "correction"
            features = supersede.compute_features(
                known[j].text, new.text, float(similarities[j]), is_correction, distance
            )
            yield Pair(writer, features, j == replaced)


def fit_replacement(pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
    """Return the bias and the weights of a logistic regression with a ridge on standardized features."""
    features = np.array([pair.features for pair in pairs], float)
    labels = np.array([pair.is_replaced for pair in pairs], float)
    means, deviations = features.mean(axis=0), features.std(axis=0) + 1e-6
    inputs = np.c_[np.ones(len(features)), (features - means) / deviations]
    weights = np.zeros(inputs.shape[1])
    ridge = np.diag([0.0] + [REPLACEMENT_RIDGE] * features.shape[1])
    for _ in range(50):
        chances = 1 / (1 + np.exp(-inputs @ weights))
        hessian = (inputs.T * (chances * (1 - chances))) @ inputs + ridge
        weights += np.linalg.solve(hessian, inputs.T @ (labels - chances) - ridge @ weights)
    raw = weights[1:] / deviations
    return np.concatenate([[weights[0] - raw @ means], raw])


def report_replacement(pairs: Sequence[Pair], without: Collection[str]) -> None:
    trained = [pair for pair in pairs if pair.writer not in without]
    weights = fit_replacement(trained)
    shipped = np.array([supersede.BIAS, *supersede.WEIGHTS])
    print(f"changes of mind: {sum(pair.is_replaced for pair in pairs)} of {len(pairs):,} pairs")
    for name, chosen in (("trained on", trained), ("left out", [pair for pair in pairs if pair.writer in without])):
        if not chosen:
            continue
        features = np.array([[1.0, *pair.features] for pair in chosen])
        labels = np.array([pair.is_replaced for pair in chosen])
        fitted, present = (measure_precision(labels, features @ one) for one in (weights, shipped))
        print(f"  {name}: AP fitted {fitted:.3f}, present weights {present:.3f} (chance {labels.mean():.3f})")
    print(f"  BIAS = {weights[0]:.3f}\n  WEIGHTS = ({', '.join(f'{weight:.3f}' for weight in weights[1:])})")


def report(rows: Rows, without: Collection[str], settings: Settings) -> Weights:
    """Print the figures of the classifier; return the weights of the model without some writers."""
    is_left_out = np.isin(rows.writers, list(without))
    trained, left_out = rows.select(~is_left_out), rows.select(is_left_out)
    print("cross-validation by writer: trained on the others")
    results = []
    for result in cross_validate(trained, settings):
        results.append(result)
        print(f"  {result[0]:<6}{describe(*result[1:])}", flush=True)
    print(f"  all   {describe(*(np.concatenate(column) for column in list(zip(*results, strict=True))[1:]))}")
    writers = list_writers(trained)
    if len(left_out.writers):
        print(f"left out ({', '.join(without)}), by the number of writers trained on")
        for count in range(1, len(writers)):
            some = trained.select(np.isin(trained.writers, writers[:count]))
            print(f"  {count}     {describe(left_out.labels, predict(train(some, settings), left_out))}", flush=True)
    weights = train(trained, settings)
    if len(left_out.writers):
        logits = predict(weights, left_out)
        print(f"  {len(writers)}     {describe(left_out.labels, logits)}")
        for writer in without:
            is_own = left_out.writers == writer
            print(f"  {writer:<6}{describe(left_out.labels[is_own], logits[is_own])}", flush=True)
    return weights


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the classifier of what is worth keeping of sessions.")
    parser.add_argument(
        "--without", default=",".join(JUDGES), help="writers to leave out of training and to measure on"
    )
    parser.add_argument("--all", action="store_true", help="train on all writers; print no figures")
    parser.add_argument("--out", type=Path, help="file for the weights; with --all, the shipped one by default")
    options = parser.parse_args()
    sessions, model, settings = read_sessions(), MiniLM(threads=1), Settings()
    rows = create_rows(sessions, model)
    out = options.out
    if options.all:
        weights, out = train(rows, settings), out or classifier.WEIGHTS_FILE
    else:
        without = [name for name in options.without.split(",") if name]
        weights = report(rows, without, settings)
        report_replacement(create_pairs(sessions, model), without)
    if out:
        write_weights(weights, out)
        print(f"wrote {out.name}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
