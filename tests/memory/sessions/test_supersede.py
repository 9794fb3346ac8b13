"""Changes of mind, within a session and across sessions: all stays in the store, and one statement holds."""

from collections.abc import Callable
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.embedding.minilm import MiniLM
from athena.memory.sessions.supersede import (
    MIN_CHANGE,
    Comparison,
    add_replaced,
    add_talk,
    is_elliptic,
    list_comparisons,
    measure_replacement,
    measure_texts,
    restates,
    to_chances,
)
from athena.memory.sessions.values import Candidate
from conftest import MovingTime

NOW = 1_794_700_800.0
DAY = 86_400.0
Learn = Callable[..., list[str]]
MODEL_ALONE = MiniLM(threads=1)


@pytest.fixture
def app(timed_app: App) -> App:
    return timed_app


@pytest.fixture
def learn(app: App, time: MovingTime) -> Learn:
    """Return a function that learns a session, a day after the one before; ">> " begins an agent's answer."""
    number = 0

    def learn_session(*texts: str) -> list[str]:
        nonlocal number
        number += 1
        time.now += DAY
        messages = [
            {"role": "assistant" if text.startswith(">> ") else "user", "text": text.removeprefix(">> ")}
            for text in texts
        ]
        lesson = call(app, "learn", session_id=f"s{number}", messages=messages)
        return [learned.content for learned in lesson.learned]

    return learn_session


def call(app: App, name: str, /, **arguments: Any) -> Any:
    return run_sync(app.catalog.get_operation(name)(app.create_context("p", "python"), **arguments))


def list_memories(app: App) -> list[str]:
    return [memory.content for memory in call(app, "search_by_tag", tags=["auto"], k=100)]


def brief(app: App) -> str:
    """Return what a briefing tells of memories, without what it tells of the last sessions."""
    return "\n".join(line for line in str(call(app, "briefing").text).splitlines() if "Ended:" not in line)


CHANGES = [
    ("We hold the drafts for 96 hours.", "Changed my mind: we hold the drafts for 72 hours."),
    ("We use Redis 7 for the queue of orders.", "From now on we use RabbitMQ for the queue of orders, not Redis."),
    ("Staging listens on port 8081.", "Staging listens on port 9090 now."),
    ("The upload limit is 20 MB.", "No, the upload limit is 50 MB from now on."),
    ("We always deploy on Fridays.", "We never deploy on Fridays anymore."),
    ("Petra signs off the releases.", "From now on Ines signs off the releases, no longer Petra."),
    ("The API returns at most 100 items per page.", "Make it 250 items per page for the API from now on."),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_change_within_session_leaves_newer(app: App, learn: Learn, before: str, after: str) -> None:
    assert len(learn(f"note: {before}", ">> OK.", "note: comments are in English.", ">> Fine.", after)) == 2
    assert before not in list_memories(app)
    assert before not in brief(app).replace(f"(before: {before})", "")


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_change_across_sessions_keeps_both(app: App, learn: Learn, before: str, after: str) -> None:
    assert learn(f"note: {before}", ">> OK.") == [before]
    [newer] = learn(after, ">> Changed.")
    assert {before, newer} <= set(list_memories(app)), "history keeps both"
    text = brief(app)
    assert newer in text
    assert f"] {before} (" not in text


def test_unrelated_statements_replace_nothing(app: App, learn: Learn) -> None:
    first = learn("note: staging listens on port 8081.", ">> OK.", "note: backups are kept for 30 days.")
    second = learn("note: grafana listens on port 3001.", ">> OK.", "note: logs are kept for 14 days.")
    assert (len(first), len(second)) == (2, 2)
    assert all(text in brief(app) for text in (*first, *second))


def test_change_back_lets_first_hold_again(app: App, learn: Learn) -> None:
    redis, rabbit = "We use Redis for the queue of orders.", "We use RabbitMQ for the queue of orders."
    assert learn(f"note: {redis}") == [redis]
    learn(f"Changed my mind: {rabbit[:1].lower()}{rabbit[1:]}")
    assert "RabbitMQ" in brief(app)
    assert redis not in brief(app)
    learn(f"note: {redis}", ">> Back to Redis then.")
    assert {redis} < set(list_memories(app))
    assert len(list_memories(app)) == 2, "both stay, neither twice"
    text = brief(app)
    assert redis in text
    assert "RabbitMQ" not in text
    hits = [hit.content for hit in call(app, "recall", query="what do we use for the queue of orders")]
    assert hits.index(redis) < next(i for i, hit in enumerate(hits) if "RabbitMQ" in hit)


def test_recall_puts_newer_before_replaced(app: App, learn: Learn) -> None:
    before, after = CHANGES[0]
    learn(f"note: {before}")
    [newer] = learn(after)
    hits = [hit.content for hit in call(app, "recall", query="how long do we hold the drafts, 96 hours?")]
    assert hits.index(newer) < hits.index(before)


def test_agent_replaces_nothing_that_person_said(app: App, learn: Learn) -> None:
    before = "We hold the drafts for 96 hours."
    learn(f"note: {before}")
    learn("why are they gone?", ">> We hold the drafts for 72 hours now. The drafts were deleted, which fixed it.")
    learn("hm", ">> I suggest to hold the drafts for 72 hours instead.", "yes, do that")
    assert before in brief(app)


def test_person_replaces_what_agent_proposed(app: App, learn: Learn) -> None:
    learn("hm", ">> I suggest to hold the drafts for 72 hours.", "yes, do that")
    learn("note: we hold the drafts for 96 hours.")
    assert "We hold the drafts for 96 hours." in brief(app)


def test_stored_memory_of_person_is_not_replaced(app: App, learn: Learn) -> None:
    """What a person stored by hand is theirs: learning adds to it, and hides nothing."""
    context = app.create_context("p", "cli")
    run_sync(
        app.catalog.get_operation("remember")(context, content="We hold the drafts for 96 hours.", tags=["always"])
    )
    learn("Changed my mind: we hold the drafts for 72 hours.")
    assert "96 hours" in brief(app)
    assert list_memories(app) == ["We hold the drafts for 72 hours."]


def test_repeated_statement_is_stored_once(app: App, learn: Learn) -> None:
    text = "We hold the drafts for 96 hours."
    assert learn(f"note: {text}", ">> For 72 hours?", "I said 96 hours for the drafts.") == [text]
    assert learn(f"note: {text}") == []
    assert list_memories(app) == [text]


def test_forgotten_topic_leaves_earlier_sessions(app: App, learn: Learn) -> None:
    learn("note: we use Leaflet for the map.", "note: we hold the drafts for 96 hours.")
    call(app, "remember", content="The map tiles come from the office server", tags=["auto"])
    context = app.create_context("p", "cli")
    run_sync(app.catalog.get_operation("remember")(context, content="The map of the office hangs in the hall"))
    learn("forget what I said about the map", ">> Forgotten.")
    assert set(list_memories(app)) == {"We hold the drafts for 96 hours.", "The map tiles come from the office server"}
    assert "Leaflet" not in brief(app)
    assert "hall" in str(call(app, "recall", query="map of the office")), "what a person stored stays"
    call(app, "undo")
    assert "We use Leaflet for the map." in list_memories(app)


def test_forgotten_topic_may_be_stated_anew(app: App, learn: Learn) -> None:
    learn("note: we use Leaflet for the map.")
    learn("forget what I said about the map. From now on we use OpenLayers for the map.")
    assert list_memories(app) == ["From now on we use OpenLayers for the map."]
    assert learn("note: we use Leaflet for the map.") == ["We use Leaflet for the map."], "it is not refused"


@pytest.mark.both_engines
def test_forgetting_in_past_session_spares_later_memories(app: App, learn: Learn, time: MovingTime) -> None:
    learn("note: we use Leaflet for the map.")
    messages = [{"role": "user", "text": "forget what I said about the map"}]
    call(app, "learn", session_id="old", messages=messages, happened=time.now - 9 * DAY)
    call(app, "learn", session_id="dry", messages=messages, dry_run=True)
    assert list_memories(app) == ["We use Leaflet for the map."]


@pytest.mark.sqlite_only("no store is touched")
def test_replacement_is_told_from_another_subject() -> None:
    old = "Staging listens on port 8081."
    texts = {"Staging listens on port 9090 now.": 0.8, "Backups are kept for 30 days.": 0.1}
    texts["Production listens on port 9090."] = 0.6
    pairs = [
        Comparison(old, 0.9, Candidate(text, "fact", "user", 3, 0.9), (value, value), 2, 2)
        for text, value in texts.items()
    ]
    change, other, sibling = (logits[0] for logits in measure_texts(pairs, MODEL_ALONE))
    assert change > 0 > sibling
    assert sibling > other or other < 0
    change, other, sibling = measure_replacement(pairs, MODEL_ALONE)
    assert change > max(other, sibling)
    assert to_chances([change])[0] > MIN_CHANGE


def test_no_statement_replaces_one_of_its_own_turn_easily() -> None:
    new = Candidate("Staging listens on port 9090 now.", "fact", "user", 3, 0.9)
    same, later = (Comparison("Staging listens on port 8081.", 0.9, new, (0.8, 0.8), 1, turns) for turns in (0, 2))
    first, second = measure_replacement([same, later], MODEL_ALONE)
    assert first < second


def test_a_correction_names_what_it_takes_back(learn: Learn) -> None:
    rule = "ok rule for lights, max 4 shadow casters per room"
    learned = learn(rule, ">> I'll add a check in the room validator.", "wait no lets say 6. 4 kills the crypt level")
    assert learned[0] == "Rule for lights, max 6 shadow casters per room"
    assert "max 4" not in str(learned)


def test_what_a_person_reported_and_adopts_is_kept(learn: Learn) -> None:
    call = "I just got off the phone with the auditor, and she wants the gap threshold at 30 minutes instead of 45."
    [learned] = learn(f"{call} So let's change that everywhere.")
    assert "30 minutes" in learned
    assert learned.endswith("(agreed)")


def test_chances_are_of_one_choice() -> None:
    assert to_chances([]) == []
    assert to_chances([0.0]) == [0.5]
    assert sum(to_chances([3.0, 2.0, -5.0])) < 1


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("Every day at 7:00", "Change to 8:15", "Every day at 8:15"),
        ("Max speed 0.5 m/s", "Change max speed to 0.3 m/s", "Change max speed to 0.3 m/s"),
        ("The map is by mapbox", "Back to leaflet", "Back to leaflet (before: The map is by mapbox)"),
    ],
)
def test_short_change_is_told_with_its_subject(old: str, new: str, text: str) -> None:
    assert add_replaced(Candidate(new, "decision", "user"), old).text == text


@pytest.mark.sqlite_only("no store is touched")
def test_repeated_and_elliptic_statements() -> None:
    old = "Staging listens on port 8081."
    assert restates(old, "I said 8081 for staging")
    assert not restates(old, "Staging listens on 8081")
    assert is_elliptic("make it 72")
    assert not is_elliptic("From now on Ines signs off the releases, no longer Petra")


@pytest.mark.parametrize("back", ["We hold the drafts for 96 hours.", "Back to 96 hours for the drafts."])
def test_change_back_in_other_words_is_told_as_said_last(app: App, learn: Learn, back: str) -> None:
    learn("note: we hold the drafts for 96 hours.", ">> OK.")
    learn("Changed my mind: we hold the drafts for 72 hours.", ">> Changed.")
    learn(f"note: {back}", ">> 96 again.")
    text = brief(app)
    assert "96 hours" in text
    assert "for 72 hours." not in text.replace("(before:", "")


def test_statement_that_was_replaced_is_not_replaced_again(app: App, learn: Learn) -> None:
    for value in (20, 50, 80):
        learn(f"note: the upload limit is {value} MB from now on.", ">> Changed.")
    assert [f"{value} MB" in brief(app) for value in (20, 50, 80)] == [False, False, True]


@pytest.mark.sqlite_only("no store is touched")
def test_no_answer_helps_to_replace_what_the_person_asked_to_remember() -> None:
    answer = "Shall the nightly backup of the ledger stay switched on?"
    new = Candidate("No, not needed any more.", "decision", "user", 2, 0.9, answer=answer)
    for is_request in (False, True):
        old = Candidate("The nightly backup of the ledger is switched on.", "fact", "user", 1, 1.0, False, is_request)
        [pair] = list_comparisons([old, new], MODEL_ALONE).values()
        assert (answer in add_talk(pair.new)) is not is_request


@pytest.mark.parametrize("back", ["We use PostgreSQL for orders.", "For orders we use PostgreSQL again."])
def test_change_back_over_two_changes_leaves_one(app: App, learn: Learn, back: str) -> None:
    learn("note: we use PostgreSQL for orders.")
    learn("Changed my mind: we use MySQL for orders, no longer PostgreSQL.")
    learn("Changed my mind: we use SQLite for orders, no longer MySQL.")
    assert "We use SQLite for orders" in brief(app)
    learn(f"note: {back}")
    lines = [line.partition("] ")[2] for line in brief(app).splitlines() if " orders" in line]
    assert [line.partition(" (")[0] for line in lines] == [back]


PLAIN_CHANGES = [
    ("We decided to use Redis for the queue of orders.", "We decided to use Kafka for the queue of orders."),
    ("The API listens on port 8001.", "The API listens on port 8002."),
    ("We deploy on Tuesdays.", "We deploy on Fridays."),
    ("Staging listens on port 3000.", "Staging listens on port 4000."),
    ("Logs are kept for 30 days.", "Logs are kept for 60 days."),
]


@pytest.mark.parametrize(("before", "after"), PLAIN_CHANGES)
def test_change_without_a_word_of_change_is_seen_in_a_later_session(
    app: App, learn: Learn, before: str, after: str
) -> None:
    learn(f"note: {before}", ">> OK.")
    learn(f"note: {after}", ">> OK.")
    assert [text in brief(app) for text in (before, after)] == [False, True]


@pytest.mark.parametrize(
    "answer",
    [
        "Postgres is gone, we no longer use Postgres for the order database.",
        "The order database is SQLite now instead of Postgres. Is that right?",
    ],
)
@pytest.mark.parametrize("is_later", [False, True])
def test_answer_of_an_agent_replaces_nothing(app: App, learn: Learn, answer: str, is_later: bool) -> None:
    first = ["We decided to use Postgres for the order database."]
    then = [f">> {answer}", "The order database gets a nightly backup."]
    if is_later:
        learn(*first)
        learn(*then)
    else:
        learn(*first, *then)
    assert "We decided to use Postgres" in brief(app)


def test_statement_near_a_prohibition_does_not_lift_it(app: App, learn: Learn) -> None:
    learn("note: never push to main without a review.")
    learn("note: push the tags to main after the merge.")
    assert "Never push to main without a review." in brief(app)
