"""The encodings of questions that were asked before are kept."""

from athena.core.threads import run_sync
from athena.embedding.encoder import MAX_KEPT_QUESTION_CHARS, MAX_KEPT_QUESTIONS, Encoder
from athena.embedding.minilm import MiniLM


def test_a_repeated_question_is_not_encoded_again() -> None:
    encoder = Encoder(MiniLM())
    first = run_sync(encoder.encode_question("how do we deploy"))
    assert run_sync(encoder.encode_question("how do we deploy")) is first
    assert run_sync(encoder.encode_question("How do we deploy")) is not first


def test_the_questions_that_were_asked_last_are_kept() -> None:
    encoder = Encoder(MiniLM())
    often = run_sync(encoder.encode_question("asked often"))
    for number in range(MAX_KEPT_QUESTIONS):
        run_sync(encoder.encode_question(f"question {number}"))
        assert run_sync(encoder.encode_question("asked often")) is often
    assert len(encoder.kept_questions) == MAX_KEPT_QUESTIONS
    assert "question 0" not in encoder.kept_questions


def test_a_long_question_is_not_kept() -> None:
    encoder = Encoder(MiniLM())
    assert run_sync(encoder.encode_question("word " * MAX_KEPT_QUESTION_CHARS)) is not None
    assert not encoder.kept_questions


def test_without_the_model_no_kept_question_is_used() -> None:
    encoder = Encoder(MiniLM())
    run_sync(encoder.encode_question("how do we deploy"))
    assert run_sync(encoder.without_model().encode_question("how do we deploy")) is None
