"""Fit the second stage of `supersede.py`: which statement of real talk replaces which.

    python scripts/fit_changes.py FOLDER FOLDER [--figures]

Each FOLDER holds the statements.npz and changes.npz that scripts/train_adapters.py trained without one of the two
halves of writers (`labelled_sessions.FOLDS`). The sessions of a half are learned with the adapters that have not read
them, and a logistic function of what these say of a pair and of what the talk says is fitted to the labels. With
`--figures` it is printed how good it is on each half when fitted to the other. Run scripts/model_checksums.py
afterwards.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from labelled_sessions import FOLDS, NamedStatement, Session, find_target, read_sessions
from model_checksums import write_checksums

from athena.embedding.minilm import MiniLM
from athena.memory.sessions import classifier, supersede
from athena.memory.sessions.lessons import to_candidate
from athena.memory.sessions.statements import Statement, find_statements
from athena.memory.sessions.values import Utterance

MIN_CLAUSE_SHARE = 0.5  # of a clause that a statement must have
SPARE_CHARS = 6  # that a statement may have lost at its beginning
STEPS, RATE, SHRINKAGE = 400, 0.05, 1.0

Key = tuple[int, int, int]  # session, turn, position of a labelled clause


class Group(NamedTuple):
    """A new statement, with the older ones of its session that it may replace."""

    writer: str
    pairs: list[supersede.Comparison]
    labels: list[int]


def create_groups(sessions: Sequence[Session], model: MiniLM) -> Iterator[Group]:
    """Yield the statements of sessions, by project and in order, each with those that hold when it is said."""
    projects: dict[tuple[str, str], list[Session]] = {}
    for session in sessions:
        projects.setdefault((session.writer, session.project), []).append(session)
    for (writer, _), own in projects.items():
        gold: list[NamedStatement] = []
        gold_keys: list[Key] = []
        for number, session in enumerate(own):
            replaced = find_replaced(number, session, gold, gold_keys, model)
            messages = [
                Utterance(role, text)
                for turn in session.turns
                for role, text in (("assistant", turn.answer), ("user", turn.text))
            ]
            found = [one for one in find_statements(messages, model).statements if one.role == "user"]
            candidates = [to_candidate(one) for one in found]
            keys = [list_keys(number, session, one) for one in found]
            dead: set[Key] = set()
            pairs = supersede.list_comparisons(candidates, model)
            for i in range(len(candidates)):
                targets = {replaced[key] for key in keys[i] if key in replaced}
                near = [j for j in range(i) if (i, j) in pairs and not keys[j] & dead]
                if near:
                    yield Group(writer, [pairs[i, j] for j in near], [int(bool(keys[j] & targets)) for j in near])
                dead |= targets


def list_keys(number: int, session: Session, one: Statement) -> set[Key]:
    """Return the clauses worth keeping that a statement has."""
    start, end = one.position, one.position + len(one.text) + SPARE_CHARS
    return {
        (number, one.turn, clause.start)
        for clause in session.turns[one.turn - 1].clauses
        if clause.is_worth_keeping
        and min(end, clause.end) - max(start, clause.start)
        >= MIN_CLAUSE_SHARE * min(clause.end - clause.start, end - start)
    }


def find_replaced(
    number: int, session: Session, gold: list[NamedStatement], gold_keys: list[Key], model: MiniLM
) -> dict[Key, Key]:
    """Return for each clause that replaces an older one which that is; `gold` gets the session's clauses."""
    replaced: dict[Key, Key] = {}
    for t, turn in enumerate(session.turns, 1):
        for clause in turn.clauses:
            if not clause.is_worth_keeping:
                continue
            key = (number, t, clause.start)
            target = find_target(gold, clause.replaced, model) if clause.replaced else None
            if target is not None:
                replaced[key] = gold_keys[target]
            text = f"{clause.statement} {turn.text[clause.start : clause.end]}"
            gold.append(NamedStatement(len(gold), text, model.embed([clause.statement])[0]))
            gold_keys.append(key)
    return replaced


def measure_features(groups: Sequence[Group], model: MiniLM) -> list[Any]:
    """Return for each group its matrix: what the first stage says of each pair, and what the talk says."""
    pairs = [pair for group in groups for pair in group.pairs]
    talk = np.array([supersede.compute_talk_features(pair) for pair in pairs], np.float64)
    rows = np.c_[supersede.measure_texts(pairs, model), talk]
    return np.split(rows, np.cumsum([len(group.pairs) for group in groups])[:-1])


def fit(matrices: Sequence[Any], groups: Sequence[Group]) -> tuple[Any, float]:
    """Return weights and bias of the choice between the older statements and none, by gradient descent (Adam)."""
    rows = np.concatenate(matrices)
    means, deviations = rows.mean(0), rows.std(0) + 1e-3
    rows = (rows - means) / deviations
    places = np.repeat(np.arange(len(groups)), [len(group.labels) for group in groups])
    labels = np.concatenate([group.labels for group in groups]).astype(float)
    counts = np.bincount(places, labels)
    wanted = labels / np.maximum(1, counts)[places]
    values = np.zeros(rows.shape[1] + 1)
    values[0], values[-1] = 1.0, -3.0
    mean, spread = np.zeros_like(values), np.zeros_like(values)
    for step in range(1, STEPS + 1):
        weights = np.exp(np.clip(rows @ values[:-1] + values[-1], -30, 30))
        chances = weights / (1 + np.bincount(places, weights))[places]
        slope = np.r_[rows.T @ (chances - wanted) + SHRINKAGE * values[:-1], (chances - wanted).sum()]
        mean, spread = 0.9 * mean + 0.1 * slope, 0.999 * spread + 0.001 * slope**2
        values -= RATE * (mean / (1 - 0.9**step)) / (np.sqrt(spread / (1 - 0.999**step)) + 1e-8)
    weights = values[:-1] / deviations
    return weights, float(values[-1] - weights @ means)


def describe(groups: Sequence[Group], logits: Sequence[Sequence[float]]) -> str:
    """Describe how often the likeliest pair of a statement is right, for some thresholds."""
    chances = [supersede.to_chances(list(values)) for values in logits]
    best = [max(range(len(values)), key=values.__getitem__) for values in chances]
    changes = sum(any(group.labels) for group in groups)
    parts = []
    for threshold in (0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6):
        chosen = [i for i in range(len(groups)) if chances[i][best[i]] >= threshold]
        right = sum(groups[i].labels[best[i]] for i in chosen)
        parts.append(f"{threshold} {right}/{len(chosen)} ({2 * right / max(1, len(chosen) + changes):.2f})")
    return f"{changes} changes; from threshold right/chosen (F1): {', '.join(parts)}"


def print_figures(groups: Sequence[Group], matrices: Sequence[Any]) -> None:
    fitted: dict[int, Any] = {}
    for writers in FOLDS:
        others = [i for i, group in enumerate(groups) if group.writer not in writers]
        weights, bias = fit([matrices[i] for i in others], [groups[i] for i in others])
        fitted |= {i: matrices[i] @ weights + bias for i, group in enumerate(groups) if group.writer in writers}
    print("adapter alone:", describe(groups, [matrix[:, :2].max(1) for matrix in matrices]))
    print("held out:     ", describe(groups, [fitted[i] for i in range(len(groups))]))


def write_weights(weights: Any, bias: float) -> None:
    with np.load(supersede.CHANGES_FILE) as stored:
        arrays = {name: stored[name] for name in stored.files}
    arrays |= {"talk": weights.astype(np.float32), "talk_bias": np.array([bias], np.float32)}
    np.savez_compressed(supersede.CHANGES_FILE, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit the second stage of changes of mind.")
    parser.add_argument("folders", type=Path, nargs=2, help="adapters trained without the first and the second half")
    parser.add_argument("--figures", action="store_true", help="print figures on writers left out; write nothing")
    options = parser.parse_args()
    model = MiniLM(threads=1)
    groups: list[Group] = []
    matrices: list[Any] = []
    shipped = supersede.CHANGES_FILE
    for folder, writers in zip(options.folders, FOLDS, strict=True):
        write_checksums(folder, "*.npz")
        supersede.CHANGES_FILE, classifier.WEIGHTS_FILE = folder / shipped.name, folder / classifier.WEIGHTS_FILE.name
        sessions = [session for session in read_sessions() if session.writer in writers]
        groups += (own := list(create_groups(sessions, model)))
        matrices += measure_features(own, model)
    supersede.CHANGES_FILE = shipped
    if options.figures:
        print_figures(groups, matrices)
    else:
        write_weights(*fit(matrices, groups))


if __name__ == "__main__":
    main()
