"""The score of a hit as a probability, and the floor that hides chance hits."""

import pickle
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from athena import api, testing
from athena.app.compose import App
from athena.embedding.embedder import Excerpt, PassageEncoding
from athena.errors import Unavailable
from athena.memory.ranking import Weights, guess_missing, measure_unknown_share, names_identifier
from athena.memory.scores import DEFAULT_MIN_SCORE
from conftest import CachedMiniLM, Engine
from wait_tools import wait_until

DEPLOY_NOTE = "Deploys run on Fridays at 15:00 from the main branch"
NOTES = [
    DEPLOY_NOTE,
    "Maria is allergic to peanuts and shellfish.",
    "The staging database was moved to the new cluster.",
    "We chose RabbitMQ as the message broker.",
    "Backups are kept for ninety days in cold storage.",
]
FOREIGN_QUESTION = "quantum chromodynamics"


def list_texts(hits: Sequence[Mapping[str, Any]]) -> list[str]:
    return [hit["content"] for hit in hits]


@pytest.mark.parametrize("min_score", [None, 0])
def test_probabilities_fall_from_first_to_last(isolated: App, min_score: float | None) -> None:
    api.store_batch(NOTES)
    for question in ("when do we ship?", "what food should Maria avoid", "broker", "the", "15:00 deploy", "?"):
        scores = [hit["score"] for hit in api.call("recall", query=question, k=100, min_score=min_score)]
        assert len(scores) == len(NOTES)
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)


def test_probability_tells_answers_from_chance(isolated: App) -> None:
    api.store_batch(NOTES)
    first, second, *_ = api.call("recall", query="what is Maria allergic to?")
    assert first["score"] > 0.5
    assert second["score"] < 0.1


def test_foreign_question_gets_no_hit(isolated: App) -> None:
    short = api.store(DEPLOY_NOTE)
    results = api.search(FOREIGN_QUESTION)
    assert (results.memories, results.total) == ((), 0)
    assert api.recall(FOREIGN_QUESTION).memories == ()
    assert api.call("recall", query=FOREIGN_QUESTION, kinds=["memory", "event"]) == []
    everything = api.search(FOREIGN_QUESTION, min_score=0)
    assert ([memory.hash for memory in everything.memories], everything.total) == ([short], 1)
    assert 0 < everything.memories[0].score < DEFAULT_MIN_SCORE
    assert [memory.hash for memory in api.search_iter(FOREIGN_QUESTION)] == [short]


def test_weaker_hits_are_counted(isolated: App) -> None:
    api.store_batch(NOTES[:3])
    results = api.search(FOREIGN_QUESTION)
    assert (results.weaker, str(results)) == (3, "nothing found\n3 weaker hits, min_score=0 shows them")
    assert len(api.search(FOREIGN_QUESTION, min_score=0)) == 3
    assert api.search(FOREIGN_QUESTION, min_score=0).weaker == 0
    assert api.search(FOREIGN_QUESTION, limit=2).weaker == 2  # as many as min_score=0 would show
    assert str(api.search(FOREIGN_QUESTION, limit=1)).endswith("\n1 weaker hit, min_score=0 shows it")
    assert api.search("when do we ship?").weaker == 0
    best, *others = api.search("when do we ship?")
    above = api.search("when do we ship?", min_score=best.score)
    assert (len(above), above.weaker) == (1, len(others))
    assert str(above).splitlines()[1] == "2 weaker hits, min_score=0 shows them"
    assert pickle.loads(pickle.dumps(above)).weaker == above._replace(total=9).weaker == 2


@pytest.mark.both_engines
def test_kinds_are_ranked_together(isolated: App) -> None:
    api.store_batch(NOTES)
    api.call("create_entity", name="Ann", entity_type="person", observations=["likes green tea", "works on billing"])
    api.call("record_event", event_type="action", content="The tea shop was deployed to production")
    kinds = ["memory", "entity", "event"]
    hits = api.call("recall", query="who likes green tea", k=20, kinds=kinds)
    assert [hit["kind"] for hit in hits[:2]] == ["entity", "event"]
    assert sorted(hit["kind"] for hit in hits) == ["entity", "event", *["memory"] * 5]
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert api.call("recall", query="what is Maria allergic to?", kinds=kinds)[0]["kind"] == "memory"
    assert api.call("recall", query=FOREIGN_QUESTION, kinds=kinds) == []
    newest = api.call("recall", query="today", k=3, offset=1, kinds=kinds, understand_time=True)
    assert [hit["kind"] for hit in newest] == ["entity", "memory", "memory"]


@pytest.mark.parametrize("count", range(1, 4))
def test_small_store_answers_in_other_words(isolated: App, count: int) -> None:
    api.store_batch(NOTES[:count])
    for question in ("when do we ship?", "how do we release", "which day is the rollout?"):
        assert api.search(question).memories[0].preview == DEPLOY_NOTE, question
    for question in (FOREIGN_QUESTION, "a recipe for onion soup", "what is the capital of France?"):
        assert not api.search(question), question


def test_question_that_nothing_comes_near_gets_no_hit(isolated: App) -> None:
    """Its best hit is above the floor, if only just; but words, meaning and tokens are all far from the question."""
    api.store_batch(
        [
            *NOTES,
            *(f"Note about the {color} team and its budget" for color in ["red", "blue", "green", "amber", "pink"]),
        ]
    )
    assert not api.search("list my open pull requests")
    assert api.search("when do we ship?").memories[0].preview == DEPLOY_NOTE


def test_foreign_question_gets_no_later_page(isolated: App) -> None:
    api.store_batch(NOTES)
    assert api.call("recall", query=FOREIGN_QUESTION, k=2, offset=2) == []
    assert len(api.call("recall", query=FOREIGN_QUESTION, k=2, offset=2, min_score=0)) == 2


@pytest.mark.both_engines
def test_filtered_search_has_no_floor(isolated: App) -> None:
    api.store(DEPLOY_NOTE, tags="ops", memory_type="rule", metadata={"date": "2020-05-05"})
    for filters in ({"tags": "ops"}, {"memory_type": "rule"}, {"since": "2020-05-01"}, {"until": "2020-06-01"}):
        assert list_texts(api.call("recall", query=FOREIGN_QUESTION, **filters)) == [DEPLOY_NOTE]
    assert [one.preview for one in api.recall("quantum chromodynamics in may 2020").memories] == [DEPLOY_NOTE]


def test_question_of_stop_words_has_no_floor(isolated: App) -> None:
    api.store_batch(NOTES)
    for question in ("a", "NOT", "the of and", "?!", "who are you"):
        assert len(api.search(question).memories) == len(NOTES)


def test_memory_with_every_word_is_never_hidden(isolated: App) -> None:
    words = random.Random(5)
    vocabulary = [f"{a}{b}{c}" for a in "bdgk" for b in ("ar", "el", "um") for c in ("ta", "fo", "ix")]
    memories = [" ".join(words.sample(vocabulary, 8)) for _ in range(60)]
    api.store_batch(memories)
    questions = words.sample(vocabulary, 12)
    found = {question: set(list_texts(api.call("recall", query=question, k=100))) for question in questions}
    wanted = {question: {text for text in memories if question in text.split()} for question in questions}
    assert [wanted[question] - found[question] for question in questions] == [set()] * 12


def test_floor_and_min_score_agree(isolated: App) -> None:
    api.store_batch(NOTES)
    for question in ("when do we ship?", "pizza", "broker", "ninety", "hello", "cluster of stars", FOREIGN_QUESTION):
        best = api.search(question, min_score=0).memories[0].score
        assert bool(api.search(question)) == (best >= DEFAULT_MIN_SCORE)
        assert bool(api.search(question, min_score=DEFAULT_MIN_SCORE)) == (best >= DEFAULT_MIN_SCORE)


def test_repeated_search_keeps_scores(isolated: App) -> None:
    api.store_batch(NOTES)
    while api.call("reembed")["remaining"]:
        pass
    first = api.search("when do we ship?", min_score=0)

    def is_strengthened() -> bool:
        why = api.call("recall", query="when do we ship?", k=1, explain=True)[0]["why"]
        return bool(why and why["strength"])

    wait_until(is_strengthened)  # usage is recorded in the background
    assert api.search("when do we ship?", min_score=0) == first


def test_identifiers_come_first(isolated: App) -> None:
    choose = random.Random(3)
    problems = (
        "login fails behind the proxy",
        "the export has empty columns",
        "search is slow on Mondays",
        "the invoice shows the wrong tax",
        "mails arrive twice",
        "the logo is blurred",
        "the menu hides the button",
        "uploads stop at two megabytes",
    )
    tickets = [f"{choose.choice('ABC')}{choose.choice('XYZ')}-{choose.randint(100, 999)}" for _ in range(60)]
    api.store_batch([f"{ticket}: {choose.choice(problems)}" for ticket in tickets[:40]])
    api.store_batch([f"{choose.choice(problems)}, said Ann, see also {ticket}" for ticket in tickets[40:]])
    for ticket in tickets:
        for question in (ticket, f"what happened with {ticket} and the customer yesterday?"):
            assert ticket in api.search(question).memories[0].preview, question


def test_words_of_unknown_script_come_first(isolated: App) -> None:
    thai = "น้องสาวแพ้ถั่วลิสง", "แมวของแอนชื่อมะลิ", "รหัสประตูอยู่กับพี่สมชาย", "ฝนตกหนักน้ำท่วมสะพาน"
    api.store_batch([*thai, *NOTES])
    for text, word in zip(thai, ("ถั่วลิสง", "มะลิ", "สมชาย", "สะพาน"), strict=True):
        assert api.search(word).memories[0].preview == text


@pytest.mark.parametrize(
    ("question", "share"),
    [
        ("when do we ship", 0),
        ("Köln café naïve", 0),
        ("4711", 1),
        ("สะพาน", 1),
        ("пятницам", 1),
        ("东京", 1),
        ("port 4711", 0.5),
        ("ticket BZ-699", 0.5),
        ("", 0),
    ],
)
def test_unknown_share_counts_digits_and_other_scripts(question: str, share: float) -> None:
    words, start = [], 0
    for word in question.split():
        start = question.index(word, start)
        words.append((start, start + len(word), 2.0))
    assert measure_unknown_share(question, words) == share
    limited = Weights().limit_model(share)
    assert limited.words == Weights().words
    assert (limited.tokens < Weights().tokens) == (share > 0)


def test_identifiers_are_told_from_numbers_and_times() -> None:
    assert all(map(names_identifier, ["what about BZ-699?", "(7f3ac91)", "v2.3.1", "sha256sum", "ORDER_58213 is late"]))
    assert not any(map(names_identifier, ["on the 10th", "at 9am", "in 2023", "15:00", "self-made", "", "?!", "a b 1"]))


class Forgetful(CachedMiniLM):
    """The bundled model; while it fails, it reads questions alone."""

    fails = False

    def encode_passages(
        self, excerpts: Sequence[Excerpt], adapter: Mapping[str, Any] | None = None
    ) -> list[PassageEncoding]:
        if self.fails:
            raise Unavailable("no memory left")
        return super().encode_passages(excerpts, adapter)


def test_memory_without_vector_is_found_by_its_words(engine: Engine) -> None:
    model = Forgetful()
    with testing.isolated(model, database=engine.in_memory()) as app:
        parts = ("budget plan", "figures", "budget", "yearly figures")
        api.store_batch([f"The review of the {part} is on Monday." for part in parts])
        app.store.encoder.stop()  # so that no background reads the next one
        model.fails = True
        unread = api.store("Whoever comes to the review of the budget brings the figures of their department along.")
        model.fails, app.store.encoder.last_error = False, None
        assert api.call("health")["awaiting_vectors"] > 0
        best = api.search("review of the budget figures").memories[0]
        assert best.hash == unread
        assert best.score >= DEFAULT_MIN_SCORE


def test_missing_scores_are_guessed_from_words() -> None:
    scores, lexical = np.array([1, 3, 2], np.float32), np.array([0, 1, 0.5], np.float32)
    assert guess_missing(scores, lexical).tolist() == [2.0, 3.0, 2.5]
    nothing = np.zeros(0, np.float32)
    assert guess_missing(nothing, nothing).tolist() == []
