"""Hits for a model: short texts whole, of long ones the passage that answers, within a budget."""

from typing import Any

import pytest

from athena.app.compose import App
from athena.core import tokens
from athena.core.threads import run_sync
from athena.memory.excerpts import CUT_MARK, MAX_ANSWER_TOKENS, TOKENS_PER_HIT
from athena.server.mcp import text as mcp_text

FILLERS = (
    "The committee met on the first floor and everybody brought a chair.",
    "Minutes are kept by whoever arrives last, which is mostly the same person.",
    "A window was left open, so that the papers had to be sorted again.",
    "Coffee is in the kitchen, and the machine prefers small coins.",
    "Someone proposed a longer break, and someone else a shorter one.",
)
FACTS = {
    "on which day do releases go out?": "Releases leave the house on Thursday mornings at eleven.",
    "who pays for travelling?": "Travel costs are carried by the department of logistics.",
    "at what temperature are machines stopped?": "Machines are switched off at thirty-one degrees.",
}
ODD = ("記憶" * 3_000, "x" * 20_000, "a.b.c " * 4_000, "\n" * 50 + "word " * 3_000, "🙂" * 2_000, "#" * 9_000)


def fill_out(fact: str, number: int) -> str:
    """Return a long note with a fact in the middle."""
    lines = [f"{FILLERS[(number + i) % len(FILLERS)]}" for i in range(14)]
    return " ".join([*lines[:7], fact, *lines[7:], f"Signed by clerk {number}."])


def recall(app: App, query: str, **more: Any) -> tuple[Any, str]:
    operation = app.catalog.get_operation("recall")
    arguments = {"query": query, "full": False, "min_score": 0, **more}
    hits = run_sync(operation(app.create_context("p", "mcp"), **arguments))
    return hits, mcp_text.format_result(operation, arguments, hits)


def remember(app: App, *texts: str) -> None:
    run_sync(app.catalog.get_operation("remember_batch")(app.create_context("p", "python"), items=list(texts)))


@pytest.mark.both_engines
def test_long_hits_show_passage_that_answers(app: App) -> None:
    remember(app, *(fill_out(fact, number) for number, fact in enumerate(FACTS.values())), "Tea is at four.")
    for question, fact in FACTS.items():
        hits, text = recall(app, question, k=5)
        whole, _ = recall(app, question, k=5, full=True)
        assert [(hit.id, hit.cut) for hit in whole] == [(hit.id, False) for hit in hits]
        shown, full = next(pair for pair in zip(hits, whole, strict=True) if fact in pair[1].content)
        assert shown.cut
        assert fact in shown.content, question
        assert CUT_MARK in shown.content
        assert len(full.content) > 2 * len(shown.content)
        assert tokens.count_tokens_exactly(text) <= MAX_ANSWER_TOKENS
        assert text.endswith("full=true shows all]")


def test_short_hits_are_whole(app: App) -> None:
    notes = [
        f"Note {number}: the harbour of town {number} opens at {number + 5} and closes late." for number in range(6)
    ]
    remember(app, *notes)
    hits, text = recall(app, "when does the harbour open", k=5)
    assert {hit.content for hit in hits} <= set(notes)
    assert not any(hit.cut for hit in hits)
    assert "full=true" not in text
    assert tokens.count_tokens_exactly(text) <= MAX_ANSWER_TOKENS


def test_budget_grows_with_hits(app: App) -> None:
    remember(app, *(fill_out(f"Fact {number} is about harbours.", number) for number in range(12)))
    hits, text = recall(app, "harbours", k=12)
    assert len(hits) == 12
    assert tokens.count_tokens_exactly(text) <= 12 * TOKENS_PER_HIT
    one, _ = recall(app, "harbours", k=1)
    assert len(one[0].content) > 2 * len(hits[5].content)  # alone it may have all of the room


def test_odd_texts_are_shortened(app: App) -> None:
    remember(app, *(f"harbour {text}" for text in ODD))
    hits, text = recall(app, "harbour", k=len(ODD))
    assert len(hits) == len(ODD)
    assert all(hit.cut for hit in hits)
    assert len(text) < 4_000
