"""The classifier of fragments: its file, its features, and what it says of plain cases."""

import hashlib
from pathlib import Path

import pytest

from athena.discovery.vectors import ADAPTER_FILE
from athena.embedding.adapters import load_adapter
from athena.embedding.minilm import MiniLM
from athena.memory.sessions import classifier, supersede
from athena.memory.sessions.classifier import KINDS, Prediction, Turn, classify_turns
from athena.memory.sessions.fragment_features import HASH_BUCKETS, hash_fragments
from athena.memory.sessions.fragments import split_fragments

TURN = "ok. from now on money is integer cents, never floats. what if we used redis?"
ANSWER = "Shall I store floats?"
MAX_FILE_BYTES = 1_700_000


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return MiniLM(threads=1)


def classify(model: MiniLM, text: str, answer: str = "") -> list[Prediction]:
    (predictions,) = classify_turns(model, [Turn(text, split_fragments(text), answer)])
    return predictions


@pytest.mark.parametrize("file", [classifier.WEIGHTS_FILE])
def test_weights_have_the_shapes_of_the_features(file: Path) -> None:
    outputs = 2 + len(KINDS)
    assert {name: values.shape for name, values in load_adapter(file).head.items()} == {
        "dense": (2 * 384, outputs),
        "bias": (outputs,),
        "neighbors": (7, outputs, outputs),
        "words": (HASH_BUCKETS, outputs),
    }


@pytest.mark.parametrize("file", [classifier.WEIGHTS_FILE, supersede.CHANGES_FILE, ADAPTER_FILE])
def test_adapter_has_the_inputs_of_the_graph(model: MiniLM, file: Path) -> None:
    inputs = model._ensure_loaded(is_adapted=True).session.get_inputs()[2:]
    layers = load_adapter(file).layers
    (rank,) = {values.shape[1] for name, values in layers.items() if name.endswith(".down")}
    shapes = {one.name: tuple(rank if width == "rank" else width for width in one.shape) for one in inputs}
    assert shapes == {name: values.shape for name, values in layers.items()}
    assert file.stat().st_size < MAX_FILE_BYTES


def test_predictions_are_probabilities_and_the_same_each_time(model: MiniLM) -> None:
    first = classify(model, TURN, ANSWER)
    assert first == classify(model, TURN, ANSWER)
    assert len(first) == len(split_fragments(TURN))
    assert all(0 <= one.keep <= 1 and 0 <= one.begin <= 1 for one in first)
    assert [sum(one.kinds) for one in first] == pytest.approx([1.0] * len(first), abs=1e-5)
    assert [one.kind for one in first] == [KINDS[one.kinds.index(max(one.kinds))] for one in first]


def test_features_of_a_turn_do_not_change() -> None:
    """Weights belong to buckets: after a change here, scripts/train_adapters.py must train them again."""
    buckets = list(hash_fragments(TURN, split_fragments(TURN), ANSWER))
    assert [len(row) for row in buckets] == [46, 98, 82, 78]
    assert hashlib.sha256(str(buckets).encode()).hexdigest()[:16] == "5a36d90fce7e03dd"


def test_rule_is_kept_and_talk_is_not(model: MiniLM) -> None:
    filler, rule, _, question = classify(model, TURN)
    assert rule.keep > 0.4 > 0.2 > max(filler.keep, question.keep)
    assert (filler.kind, rule.kind) == ("smalltalk", "rule")
    assert question.kind in ("question", "hypothesis")


def test_order_of_now_is_not_kept(model: MiniLM) -> None:
    predictions = classify(model, "run the tests please. and show me the diff")
    assert max(one.keep for one in predictions) < 0.2


def test_long_turn_is_read_in_windows(model: MiniLM) -> None:
    """What stands behind the model's window has states of its own."""
    filler = "the log says that nothing happened here today. " * 40
    (kept,) = classify(model, filler + "from now on money is integer cents.")[-1:]
    (moved,) = classify(model, filler + "the weather is fine outside my window.")[-1:]
    assert kept.keep > 2 * moved.keep


def test_no_fragments_give_no_predictions(model: MiniLM) -> None:
    assert classify(model, "") == []
