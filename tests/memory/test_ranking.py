"""Ranking of search results, and its stability."""

import random
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.cli.evaluate import Collection, CollectionItem, EvaluationQuestion, open_trial
from athena.cli.evaluate_measures import (
    QuestionResult,
    compute_ndcg_at_10,
    compute_recall,
    compute_reciprocal_rank,
    summarise_results,
)
from athena.core.threads import run_sync
from athena.memory.ranking import Weights
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL, Engine
from wait_tools import wait_until

NOTES = [
    "The deployment pipeline runs on Fridays at three.",
    "Maria is allergic to peanuts and shellfish.",
    "The staging database was moved to the new cluster.",
    "We chose RabbitMQ as the message broker.",
    "Backups are kept for ninety days in cold storage.",
    "The login page signs people out after ten minutes.",
    "Use four spaces for indentation in Python files.",
    "The office plant needs water every Tuesday.",
]
QUESTIONS = ["when do we ship", "what food should she avoid", "which queue did we choose", "users get logged out"]


def call(app: App, name: str, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python"), **arguments))


def store_notes(items: list[Any], weights: Weights = Weights(recency=0, strength=0)) -> App:  # noqa: B008
    app = App(Sqlite(IN_MEMORY_PATH), MODEL, weights=weights)
    call(app, "remember_batch", items=items)
    while call(app, "reembed", limit=256).remaining:
        pass
    return app


def recall_texts(app: App, question: str, k: int = 3) -> list[str]:
    return [hit.content for hit in call(app, "recall", query=question, k=k)]


def test_insertion_order_does_not_matter() -> None:
    expected = None
    for seed in range(4):
        notes = random.Random(seed).sample(NOTES, len(NOTES))
        app = store_notes(notes)
        answers = [recall_texts(app, question) for question in QUESTIONS]
        assert expected in (None, answers)
        expected = answers
        app.close()


def test_unrelated_memories_keep_first_answer() -> None:
    few = store_notes(NOTES)
    many = store_notes([*NOTES, *(f"Invoice {i} for garden furniture was paid in cash." for i in range(300))])
    for question in QUESTIONS:
        assert recall_texts(many, question, 1) == recall_texts(few, question, 1)
    few.close()
    many.close()


def test_batch_and_single_store_rank_equally() -> None:
    together, apart = store_notes(NOTES), App(Sqlite(IN_MEMORY_PATH), MODEL, weights=Weights(recency=0, strength=0))
    for note in NOTES:
        call(apart, "remember", content=note)
    for question in QUESTIONS:
        one, other = (call(app, "recall", query=question, k=8) for app in (together, apart))
        assert [(hit.content, hit.score) for hit in one] == [(hit.content, hit.score) for hit in other]
    together.close()
    apart.close()


def test_scores_survive_restart(tmp_path: Path) -> None:
    scores = []
    for _ in range(2):
        app = App(Sqlite(tmp_path / "a.db"), MODEL, weights=Weights(recency=0, strength=0))
        call(app, "remember_batch", items=NOTES)
        scores.append([[(h.content, h.score) for h in call(app, "recall", query=q, k=8)] for q in QUESTIONS])
        app.close()
    assert scores[0] == scores[1]


def test_turn_is_found_by_previous_turn() -> None:
    talk = ["What is your favourite dish?", "Probably lasagne.", "And for dessert?", "Anything with lemon."]
    others = [f"Item {i} of the agenda was moved to next week." for i in range(30)]
    app = store_notes([{"content": t, "metadata": {"session_id": "s1", "speaker": "Ann"}} for t in talk] + others)
    assert "Probably lasagne." in recall_texts(app, "favourite dish", 2)
    app.close()


def test_later_neighbour_is_indexed_in_background() -> None:
    app = App(Sqlite(IN_MEMORY_PATH), MODEL)
    first = {"content": "What is your favourite dish?", "metadata": {"session_id": "s1"}}
    call(app, "remember", **first)
    app.store.encoder.stop()  # keep the background from embedding
    call(app, "remember", content="Probably lasagne.", metadata={"session_id": "s1"})
    assert call(app, "verify").checked["behind"] == 2
    assert call(app, "reembed").remaining == 0
    assert call(app, "verify").checked["behind"] == 0
    app.close()


def test_persons_words_rank_before_echo() -> None:
    items = [
        {"content": "My flight to Oslo leaves at nine on Sunday.", "metadata": {"role": "user"}},
        {"content": "Noted: your flight to Oslo leaves at nine on Sunday.", "metadata": {"role": "assistant"}},
        *NOTES,
    ]
    question = "your flight to Oslo leaves when?"
    app = store_notes(items)
    assert recall_texts(app, question, 1)[0].startswith("My flight")
    app.close()
    app = store_notes(items, Weights(role=0, personal=0, recency=0, strength=0))
    assert recall_texts(app, question, 1)[0].startswith("Noted")
    app.close()


def test_later_hit_that_holds_the_word_is_not_hidden() -> None:
    long_note = "Ann brought cakes and a bag of oranges, the ferry was late, and somebody left the ladder in the yard."
    app = store_notes([*NOTES, long_note], Weights(words=-2))  # puts the right one further back
    for question in ("somebody", "bag", "late", "left"):
        hits = call(app, "recall", query=question, k=9)
        assert long_note in [hit.content for hit in hits[1:]]
        assert hits[0].score >= 0.25
    app.close()


def test_hit_explains_its_score() -> None:
    app = store_notes(NOTES, Weights())
    hits = call(app, "recall", query="when do we ship on Fridays", k=3, explain=True)
    terms = {"words", "meaning", "tokens", "length", "role", "personal", "recency", "strength"}
    assert len(hits) == 3
    assert all(set(hit.why) == terms for hit in hits)
    totals = [sum(hit.why.values()) for hit in hits]
    assert totals == sorted(totals, reverse=True)
    assert call(app, "recall", query="deployment", k=1)[0].why is None
    app.close()


def test_further_pages_strengthen_nothing(engine: Engine) -> None:
    app = App(engine.in_memory(), MODEL)
    call(app, "remember_batch", items=NOTES)
    shown = call(app, "recall", query="the new page", k=2, offset=2, min_score=0)
    call(app, "recall", query="the new page", k=1)
    wait_until(lambda: call(app, "stats")["most_recalled"])  # in the order of the calls
    strengthened = {memory["id"] for memory in call(app, "stats")["most_recalled"]}
    assert len(shown) == 2
    assert strengthened.isdisjoint(hit.id for hit in shown)
    app.close()


def test_recall_strengthens_and_disuse_fades(engine: Engine) -> None:
    now = [1_800_000_000.0]
    app = App(engine.in_memory(), MODEL, time=lambda: now[0])
    one = call(app, "remember", content="The red key opens the shed.")
    for _ in range(5):
        call(app, "recall", query="red key", k=1)

    def strengthened() -> Any:
        hit = call(app, "recall", query="red key", k=1, explain=True)[0]
        return hit if hit.why["strength"] else None

    strong = wait_until(strengthened)  # usage is recorded in the background
    assert strong.id == one.id
    assert strong.why["strength"] > 0.02
    now[0] += 365 * 86_400
    assert call(app, "recall", query="red key", k=1, explain=True)[0].why["strength"] < 0.001
    app.close()


def test_measures_match_definitions() -> None:
    one = QuestionResult("x", (0, 4), 4, 0.001)
    assert compute_recall(5, one) == 0.5
    assert compute_recall(1, one) == 0.25
    assert compute_reciprocal_rank(QuestionResult("x", (2,), 1, 0.0)) == pytest.approx(1 / 3)
    assert compute_ndcg_at_10(QuestionResult("x", (0,), 1, 0.0)) == 1
    assert summarise_results([one] * 10).means["R@5"] == 0.5


def test_trial_uses_operations_and_counts_ranks() -> None:
    items = [CollectionItem(str(i), note) for i, note in enumerate(NOTES)]
    questions = [
        EvaluationQuestion("which message broker", frozenset({"3"}), "a"),
        EvaluationQuestion("peanuts", frozenset({"1"}), "b"),
    ]
    with open_trial(Collection("notes", items, questions), MODEL, lambda _: None) as tried:
        answers = tried.ask_questions(Weights())
    assert [one.ranks for one in answers] == [(0,), (0,)]
