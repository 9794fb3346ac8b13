"""Where nothing decides which of two statements holds, the person is asked once, and the answer settles it."""

from functools import partial
from typing import Any

import pytest

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core import tokens
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError, Denied, InvalidInput
from athena.memory.sessions import supersede
from athena.memory.sessions.questions import MIN_UNDECIDED, contradict, record_questions
from athena.memory.sessions.values import Candidate
from athena.memory.sessions.voice import BriefingLine, Line, SafeText
from conftest import Engine

EARLY, LATE = "The backups run at 2 in the night.", "We let the backups run at 4, before the office opens."
TUESDAY, FRIDAY = "The shop is deployed on Tuesdays.", "The shop is deployed on Fridays."
RED, BLUE = "The banner of the shop is red.", "The banner of the shop is blue."
# Pairs of which the model decides some and leaves others open; which ones, the weights say.
PAIRS = [
    ("backups run at 2 in the night", "the backups run at 4"),
    ("the staging database runs PostgreSQL 15", "the production database runs PostgreSQL 16"),
    ("the cache expires after 10 minutes", "the cache expires after 30 minutes"),
    ("the search index has 3 replicas", "the search index has 5 shards"),
    ("reports are archived after 90 days", "monthly reports are archived after 30 days"),
]


def call_as(surface: str, operation: str, **arguments: Any) -> Any:
    app = connect.shared_app()
    return run_sync(invoke(app.catalog, operation, arguments, app.create_context("shop", surface)))


def add_learned(text: str, *, surface: str = "cli", tags: tuple[str, ...] = ("auto", "fact")) -> int:
    """Store a memory as learning does, whatever the classifier says of it."""
    return int(call_as(surface, "remember", content=text, tags=list(tags), memory_type="fact").id)


def add_pair(older: str, newer: str, **options: Any) -> tuple[int, int]:
    """Store two statements that nothing decides between; return their ids, the older one first."""
    ids = add_learned(older, **options), add_learned(newer)
    app = connect.shared_app()
    scope = app.create_context("shop", "hook").scope
    run_sync(app.store.database.write(partial(record_questions, scope, [ids], 1.0)))
    return ids


def brief(session: str, **options: Any) -> str:
    return str(api.call("briefing", session_id=session, project="shop", **options)["text"])


def list_questions() -> list[tuple[str, str, bool]]:
    listed = api.call("list_open_questions", project="shop")
    return [(one["content"], one["older_content"], one["asked"]) for one in listed]


def list_asked(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("? ")]


def find_hash(memory_id: int) -> str:
    return str(call_as("cli", "get_memory", memory_id=memory_id).hash)


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        (EARLY, LATE, True),
        (RED, BLUE, True),
        ("Mira owns the billing service.", "Jonas owns the billing service.", True),
        ("The tests run on every push.", "The tests do not run on every push.", True),
        (EARLY, "Backups run at 2 in the night, to the second disk.", False),
        (EARLY, TUESDAY, False),
        ("We use Redis for the queue.", "We use Redis for the queue of orders.", False),
    ],
)
def test_contradiction_needs_one_subject(text: str, other: str, expected: bool) -> None:
    assert contradict(text, other) is expected
    assert contradict(other, text) is expected


@pytest.mark.usefixtures("isolated")
def test_learning_leaves_open_what_it_cannot_decide() -> None:
    model, seen = MiniLM(), set()
    for number, (older, newer) in enumerate(PAIRS):
        project = f"p{number}"
        for session, text in (("s1", older), ("s2", newer)):
            messages = [{"role": "user", "text": f"Remember that {text}."}]
            api.call("learn", session_id=session, messages=messages, project=project)
        contents = {item["content"]: item["kind"] for item in api.call("list_learned", project=project)}
        old, new = (
            next(text for text in contents if text.startswith(f"{one[0].upper()}{one[1:]}")) for one in (older, newer)
        )
        [chance] = supersede.compare_statements(Candidate(new, contents[new], "user", 1), [old], model)
        is_open = MIN_UNDECIDED <= chance < supersede.MIN_REPLACEMENT and contradict(new, old)
        listed = api.call("list_open_questions", project=project)
        assert [(one["content"], one["older_content"]) for one in listed] == [(new, old)] * is_open, (old, new, chance)
        seen.add(is_open)
    assert seen == {True, False}


def test_question_is_asked_once(engine: Engine) -> None:
    ids = add_pair(EARLY, LATE)
    older, newer = map(find_hash, ids)
    assert list_questions() == [(LATE, EARLY, False)]
    first = brief("s1")
    question = f'? Which holds: "{LATE}" [{newer}] or "{EARLY}" [{older}]? athena learned keep HASH'
    assert list_asked(first) == [question]
    assert f"- [{newer}] {LATE}" in first
    assert f"- [{older}] {EARLY}" in first  # both stay
    assert list_asked(brief("s2")) == list_asked(brief("s1", again=True)) == []
    assert list_questions() == [(LATE, EARLY, True)]


@pytest.mark.usefixtures("isolated")
def test_briefing_without_session_counts_as_asked() -> None:
    add_pair(EARLY, LATE)
    texts = [api.call("briefing", project="shop")["text"] for _ in range(2)]
    assert [len(list_asked(text)) for text in texts] == [1, 0]


@pytest.mark.both_engines
@pytest.mark.usefixtures("isolated")
def test_repeated_call_gets_its_question_again() -> None:
    add_pair(EARLY, LATE)
    texts = []
    for key in ("k1", "k1", "k2"):
        app = connect.shared_app()
        context = app.create_context("shop", "hook", key=key)
        texts.append(run_sync(invoke(app.catalog, "briefing", {"session_id": "s1"}, context)).text)
    assert [len(list_asked(text)) for text in texts] == [1, 1, 0]


@pytest.mark.usefixtures("isolated")
def test_two_questions_at_a_time_within_the_budget() -> None:
    for pair in ((EARLY, LATE), (TUESDAY, FRIDAY), (RED, BLUE)):
        add_pair(*pair)
    texts = [brief(f"s{number}", budget_tokens=400) for number in range(3)]
    assert [len(list_asked(text)) for text in texts] == [2, 1, 0]
    assert all(tokens.count_tokens(text) <= 400 for text in texts)


@pytest.mark.usefixtures("isolated")
def test_small_briefing_asks_nothing() -> None:
    add_pair(EARLY, LATE)
    text = brief("s1", budget_tokens=120)
    assert LATE in text
    assert list_asked(text) == []
    assert list_questions() == [(LATE, EARLY, False)]


@pytest.mark.parametrize("kept", [0, 1])
def test_kept_one_replaces_the_other(engine: Engine, kept: int) -> None:
    ids = add_pair(EARLY, LATE)
    winner, loser = (EARLY, LATE)[kept], (LATE, EARLY)[kept]
    brief("s1")
    api.call("keep_learned", memory_id=ids[kept], project="shop")
    assert list_questions() == []
    text = brief("s2")
    assert winner in text
    assert loser not in text
    related = api.call("get_memory", memory_id=ids[1 - kept], project="shop")["related"]
    assert ("contradicted by", ids[kept]) in [(one["relation"], one["id"]) for one in related]
    api.call("undo", project="shop")
    assert list_questions() == [(LATE, EARLY, True)]
    assert loser in brief("s3")


@pytest.mark.usefixtures("isolated")
def test_confirmed_statement_can_be_the_answer() -> None:
    ids = add_pair(EARLY, LATE, tags=("fact",))
    api.call("keep_learned", memory_id=ids[0], project="shop")
    assert list_questions() == []
    assert LATE not in brief("s1")
    with pytest.raises(InvalidInput, match="by somebody"):
        api.call("keep_learned", memory_id=ids[0], project="shop")


@pytest.mark.usefixtures("isolated")
def test_answer_for_all_projects_replaces_the_other() -> None:
    ids = add_pair(EARLY, LATE)
    api.call("keep_learned", memory_id=ids[1], everywhere=True, project="shop")
    assert list_questions() == []
    text = brief("s1")
    assert LATE in text
    assert EARLY not in text


@pytest.mark.usefixtures("isolated")
def test_dropped_or_corrected_statement_is_no_question() -> None:
    early, _ = add_pair(EARLY, LATE)
    _, friday = add_pair(TUESDAY, FRIDAY)
    api.call("drop_learned", memory_ids=[early], project="shop")
    api.call("edit_learned", memory_id=friday, content="The blog is deployed on Fridays.", project="shop")
    assert list_questions() == []
    text = brief("s1")
    assert list_asked(text) == []
    assert LATE in text
    assert TUESDAY in text


@pytest.mark.usefixtures("isolated")
def test_nobody_else_raises_a_question() -> None:
    add_pair(EARLY, LATE, surface="mcp")  # an agent's words against a person's
    assert list_questions() == []
    ids = add_learned(TUESDAY), add_learned(FRIDAY)
    for relation in ("may be replaced by", "asked whether replaced by"):
        with pytest.raises(AthenaError, match="Athena's own"):
            call_as("mcp", "relate_memories", memory_id=ids[0], other_id=ids[1], relation=relation)
    assert list_asked(brief("s1")) == []


@pytest.mark.parametrize("surface", ["mcp", "program", "hook"])
def test_only_people_list_questions(isolated: App, surface: str) -> None:
    with pytest.raises(Denied):
        call_as(surface, "list_open_questions")


def test_question_is_made_of_persons_words() -> None:
    safe, agents = (SafeText(Line('The banner is "red"', author)) for author in ("person", "agent"))
    assert BriefingLine(safe, "1ee78a09", older=safe, older_name="77b0c2d4").count('"') == 4
    for older in (agents, SafeText(Line("x", "document"))):
        with pytest.raises(ValueError, match="of a person"):
            BriefingLine(safe, "1ee78a09", older=older, older_name="77b0c2d4")
    with pytest.raises(TypeError):
        BriefingLine(safe, "1ee78a09", older="text", older_name="77b0c2d4")  # type: ignore[arg-type]
    for older_name in ("", "], do it"):
        with pytest.raises(ValueError, match="hashes"):
            BriefingLine(safe, "1ee78a09", older=safe, older_name=older_name)
