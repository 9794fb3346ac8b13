"""The labelled sessions of data/sessions, and a small training run on them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from athena.embedding.minilm import MiniLM
from athena.memory.sessions import classifier
from athena.memory.sessions.fragments import split_fragments

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from labelled_sessions import JUDGES, Session, match_clauses, parse_sessions, read_sessions
from train_statements import (
    Neighbors,
    Rows,
    Settings,
    create_pairs,
    create_rows,
    fit_replacement,
    measure_precision,
    predict,
    train,
    write_weights,
)

WRITERS = {"mira", "noor", "paul", "suki", "lena", "ines", *JUDGES}


@pytest.fixture(scope="module")
def sessions() -> list[Session]:
    return read_sessions()


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM(threads=1)


@pytest.fixture(scope="module")
def rows(sessions: list[Session], model: MiniLM) -> Rows:
    """Return the fragments of two sessions each of two writers."""
    chosen = [session for session in sessions if session.name in ("paul-01", "paul-02", "suki-01", "suki-05")]
    return create_rows(chosen, model)


def test_sessions_are_complete(sessions: list[Session]) -> None:
    clauses = [clause for session in sessions for turn in session.turns for clause in turn.clauses]
    assert (len(sessions), len(clauses)) == (134, 6_820)
    assert {session.writer for session in sessions} == WRITERS
    assert {clause.kind for clause in clauses} == set(classifier.KINDS)
    kept = [clause for clause in clauses if clause.is_worth_keeping]
    assert len(kept) == 2_364
    assert all(clause.statement for clause in kept)


def test_fragments_match_the_labelled_clauses(sessions: list[Session]) -> None:
    """Every fragment has a label; a clause such as "ok so" may lie in the fragment of another one."""
    turns = [turn for session in sessions for turn in session.turns]
    matches = [match_clauses(split_fragments(turn.text), turn.clauses) for turn in turns]
    shared = [
        clause
        for turn, match in zip(turns, matches, strict=True)
        for i, clause in enumerate(turn.clauses)
        if i not in match
    ]
    assert all(turn.clauses for turn in turns)
    assert sum(map(len, matches)) > 12_000
    assert sum(match.count(None) for match in matches) == 0
    assert len(shared) <= 0.04 * 6_820
    assert sum(clause.is_worth_keeping for clause in shared) <= 0.01 * 2_364


def test_parser_finds_words_in_order() -> None:
    text = (
        "@session id=kim-01 project=demo voice=calm\n"
        "A Done.\n"
        "U use tabs.\\nuse  tabs. not 80 but 81\n"
        "= order | use tabs.\n"
        "= rule + | use tabs. | Use tabs.\n"
        "= correction + | not 80 but 81 | It is 81. | ~ it is 80\n"
        "@ended asked=x done=y open=none\n"
    )
    (session,) = parse_sessions(text)
    (turn,) = session.turns
    assert (session.name, session.writer, session.project, turn.answer) == ("kim-01", "kim", "demo", "Done.")
    assert [turn.text[clause.start : clause.end] for clause in turn.clauses] == [
        "use tabs.", "use  tabs.", "not 80 but 81",
    ]  # fmt: skip
    assert [clause.is_worth_keeping for clause in turn.clauses] == [False, True, True]
    assert turn.clauses[2].replaced == "it is 80"


@pytest.mark.parametrize(
    ("line", "error"), [("= idea | use tabs", "unknown label"), ("= rule | use spaces", "does not have these words")]
)
def test_parser_refuses_wrong_lines(line: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        list(parse_sessions(f"@session id=kim-01 project=demo\nU use tabs\n{line}\n"))


def test_training_beats_chance_on_another_writer(rows: Rows) -> None:
    is_judged = rows.writers == "suki"
    judged = rows.select(is_judged)
    weights = train(rows.select(~is_judged), Settings(steps=40))
    logits = predict(weights, judged)
    chance = float(judged.labels[:, 0].mean())
    assert measure_precision(judged.labels[:, 0], logits[:, 0]) > chance + 0.1
    kinds = judged.labels[:, 2:].argmax(axis=1)
    assert (logits[:, 2:].argmax(axis=1) == kinds).mean() > np.bincount(kinds).max() / len(kinds)


def test_written_model_says_the_same_in_the_classifier(
    sessions: list[Session], rows: Rows, model: MiniLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = train(rows, Settings(steps=20))
    write_weights(weights, tmp_path / "weights.npz")
    monkeypatch.setattr(classifier, "WEIGHTS_FILE", tmp_path / "weights.npz")
    classifier._load_weights.cache_clear()
    try:
        turn = next(session for session in sessions if session.name == "paul-01").turns[0]
        fragments = split_fragments(turn.text)
        predictions = classifier.classify_fragments(model, turn.text, fragments, turn.answer)
    finally:
        classifier._load_weights.cache_clear()
    logits = predict(weights, rows)[: len(fragments)]
    assert [one.keep for one in predictions] == pytest.approx(1 / (1 + np.exp(-logits[:, 0])), abs=0.02)
    assert [one.begin for one in predictions] == pytest.approx(1 / (1 + np.exp(-logits[:, 1])), abs=0.02)


def test_gradients_of_neighbors_are_the_transposed_views(rows: Rows) -> None:
    neighbors, random = Neighbors(rows.turns, rows.sentences), np.random.default_rng(0)
    own = random.normal(size=rows.labels.shape).astype(np.float32)
    gradients = [random.normal(size=own.shape).astype(np.float32) for _ in range(7)]
    forward = sum(float((view * one).sum()) for view, one in zip(neighbors.view(own), gradients, strict=True))
    assert forward == pytest.approx(float((neighbors.collect(gradients) * own).sum()), rel=1e-3)


def test_weights_of_changes_of_mind_tell_them_from_others(sessions: list[Session], model: MiniLM) -> None:
    pairs = create_pairs([session for session in sessions if session.project == "suraksha"], model)
    weights = fit_replacement(pairs)
    labels = np.array([pair.is_replaced for pair in pairs])
    scores = np.array([[1.0, *pair.features] for pair in pairs]) @ weights
    assert 3 < labels.sum() < 0.2 * len(labels)
    assert measure_precision(labels, scores) > labels.mean() + 0.2
