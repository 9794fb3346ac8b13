"""A preference that holds everywhere is offered for all projects, and goes there only if a person says so."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import Denied, InvalidInput
from athena.memory.sessions import learning
from athena.memory.sessions.offers import mark_everywhere, says_everywhere
from athena.memory.sessions.rows import record_changes
from athena.memory.sessions.values import Candidate
from conftest import Engine

TABS = "In all my projects I want tabs instead of spaces."
DIFFS = "I prefer small diffs in reviews."
QUEUE = "We decided to keep the retries of card charges in the client only."


def call_as(surface: str, operation: str, project: str, **arguments: Any) -> Any:
    app = connect.shared_app()
    return run_sync(invoke(app.catalog, operation, arguments, app.create_context(project, surface)))


def add_learned(text: str, kind: str = "preference", project: str = "shop", surface: str = "cli") -> None:
    """Store a memory as learning does, whatever the classifier says of it."""
    call_as(surface, "remember", project, content=text, tags=["auto", kind], memory_type=kind)


def learn(text: str, session: str = "s1", project: str = "shop") -> Any:
    return api.call("learn", session_id=session, messages=[{"role": "user", "text": text}], project=project)


def list_offers(project: str = "shop") -> dict[str, str | None]:
    return {item["content"]: item["offer"] for item in api.call("list_learned", project=project)}


def find_hash(text: str, project: str = "shop") -> str:
    return str(next(item["hash"] for item in api.call("list_learned", project=project) if item["content"] == text))


@pytest.mark.parametrize(
    "text",
    [
        TABS,
        "I prefer short commit messages, that goes for all my repos.",
        "Always with me: no emojis in code comments",
        "For all my work I use uv and never pip",
        "Everywhere I work, tests come before the code",
        "I want British spelling, everywhere",
        "Please never add emojis to comments, in any of my projects",
        "No matter which repo, I want type hints on public functions",
        "Across all of my side projects branches are named after tickets",
        "I always want docstrings in imperative mood, whatever the project",
        "I like explicit imports in every project I touch",
        "Never rebase, and that holds for everything I work on",
    ],
)
def test_words_that_hold_everywhere(text: str) -> None:
    assert says_everywhere(text)


@pytest.mark.parametrize(
    "text",
    [
        "In this project we use tabs everywhere",
        "Const is used everywhere in the code base",
        "The linter runs on all projects in the workspace",
        "Unlike in all my other projects, we use spaces here",
        "In all my other projects I use tabs, here spaces",
        "That is not for all my projects, only for this one",
        "I want small diffs, but not in every project of mine",
        "All my tests are green",
        "Everything I tried failed",
        QUEUE,
        DIFFS,
    ],
)
def test_words_that_hold_here(text: str) -> None:
    assert not says_everywhere(text)


def test_statement_says_that_it_holds_everywhere(engine: Engine) -> None:
    add_learned(TABS)
    add_learned(QUEUE, "decision")
    assert list_offers() == {TABS: "said", QUEUE: None}


@pytest.mark.usefixtures("isolated")
def test_sentence_after_it_says_so() -> None:
    learn("remember that I like my diffs small. same in every project of mine")
    learn("remember that I like my tea green. The diffs are small in every project of mine", session="s2")
    offers = list_offers()
    assert offers["I like my diffs small."] == "said"
    assert [offer for text, offer in offers.items() if "green" in text] == [None]


def test_sentence_is_about_the_statement_before() -> None:
    prompt = "I like small diffs. I want tabs! That goes for all my repos. I prefer British spelling."
    texts = ["I like small diffs.", "I want tabs", "I prefer British spelling."]
    marked = mark_everywhere([Candidate(text, "preference", "user", 1) for text in texts], [prompt])
    assert [one.holds_everywhere for one in marked] == [False, True, False]
    [other] = mark_everywhere([Candidate("I want tabs", "fix", "assistant", 1)], [prompt])
    assert not other.holds_everywhere


def test_same_preference_in_two_projects(engine: Engine) -> None:
    add_learned(DIFFS)
    add_learned(QUEUE, "decision")
    assert list_offers() == {DIFFS: None, QUEUE: None}
    again = "so I prefer small diffs in reviews"
    add_learned(again, project="blog")
    add_learned(QUEUE, "decision", project="blog")
    # a decision of two projects is not the person's
    assert list_offers() == {DIFFS: "repeated", QUEUE: None}
    assert list_offers("blog") == {again: "repeated", QUEUE: None}
    add_learned("I prefer large diffs in reviews.", project="third")
    assert list_offers("third") == {"I prefer large diffs in reviews.": None}
    api.call("drop_learned", memory_ids=[find_hash(again, "blog")], project="blog")
    assert list_offers()[DIFFS] is None


@pytest.mark.usefixtures("isolated")
def test_what_others_stored_is_not_offered() -> None:
    add_learned(TABS, surface="mcp")
    add_learned(DIFFS)
    add_learned(DIFFS, project="blog", surface="mcp")
    assert list_offers() == {TABS: None, DIFFS: None}


@pytest.mark.both_engines
def test_kept_for_user_is_told_everywhere(engine: Engine) -> None:
    add_learned(TABS)
    assert TABS not in api.call("briefing", project="blog")["text"]
    kept = api.call("keep_learned", memory_id=find_hash(TABS, "shop"), everywhere=True, project="shop")
    assert (kept["project"], kept["content"], "auto" in kept["tags"]) == ("user", TABS, False)
    for project in ("shop", "blog"):
        assert api.call("briefing", project=project)["text"].count(TABS) == 1
        assert [hit["content"] for hit in api.call("recall", query=TABS, project=project)] == [TABS]
        assert list_offers(project) == {}
    lesson = learn(f"Remember that {TABS[0].lower()}{TABS[1:]}", project="blog")
    assert (lesson["learned"], lesson["known"]) == ([], 1)
    api.call("undo", project="shop")
    assert list_offers("shop") == {TABS: "said"}
    assert TABS not in api.call("briefing", project="blog")["text"]


@pytest.mark.usefixtures("isolated")
def test_nothing_moves_by_itself() -> None:
    add_learned(TABS)
    add_learned(DIFFS)
    add_learned(DIFFS, project="blog")
    api.call("keep_learned", memory_id=find_hash(DIFFS, "shop"), project="shop")
    api.call("consolidate", project="shop")
    assert api.call("list_memories", project="user") == []


@pytest.mark.usefixtures("isolated")
def test_user_that_knows_it_gets_no_offer() -> None:
    add_learned(TABS)
    add_learned(TABS, project="blog")
    api.call("keep_learned", memory_id=find_hash(TABS, "shop"), everywhere=True, project="shop")
    assert list_offers("blog") == {TABS: None}
    kept = api.call("keep_learned", memory_id=find_hash(TABS, "blog"), everywhere=True, project="blog")
    assert (kept["project"], kept["outcome"]) == ("user", "known")
    assert len(api.call("list_memories", project="user")) == 1


@pytest.mark.usefixtures("isolated")
def test_confirmed_memory_can_still_go_to_user() -> None:
    add_learned(TABS)
    memory_id = find_hash(TABS, "shop")
    api.call("keep_learned", memory_id=memory_id, project="shop")
    assert api.call("keep_learned", memory_id=memory_id, everywhere=True, project="shop")["project"] == "user"
    stored = api.store("Deploys run on Fridays", project="shop")
    with pytest.raises(InvalidInput, match="by somebody"):
        api.call("keep_learned", memory_id=stored, everywhere=True, project="shop")


def test_replaced_preference_stays_replaced(isolated: App) -> None:
    old, new = "I prefer tabs for the indentation of code.", "In all my projects I indent code with spaces."
    scope = isolated.create_context("shop", "hook").scope
    for text in (old, new):
        add_learned(text)
    ids = [call_as("cli", "get_memory", "shop", memory_id=find_hash(text)).id for text in (old, new)]
    run_sync(isolated.store.database.write(partial(record_changes, scope, [(ids[0], ids[1], 1.0)], [], ())))
    assert old not in api.call("briefing", project="shop")["text"]
    api.call("keep_learned", memory_id=find_hash(new), everywhere=True, project="shop")
    briefing = api.call("briefing", project="shop")["text"]
    assert new in briefing
    assert old not in briefing


def test_purge_of_user_memory_leaves_no_copy(engine: Engine, tmp_path: Path) -> None:
    add_learned("In all my projects I want the Quokka style.")
    [item] = api.call("list_learned", project="shop")
    kept = api.call("keep_learned", memory_id=item["hash"], everywhere=True, project="shop")
    api.call("purge", memory_ids=[kept["id"]], expect=2, project="user")  # and the forgotten copy with it
    api.call("purge", project="shop", expect=0)
    api.close()
    assert b"Quokka" not in engine.read_all_bytes(tmp_path / "home")


@pytest.mark.both_engines
def test_notice_mentions_offers_once(isolated: App) -> None:
    store, scope = isolated.store, isolated.create_context("shop", "hook").scope
    add_learned(TABS)
    add_learned(QUEUE, "decision")
    assert run_sync(learning.take_notice(store, scope)) == (2, 1)
    assert run_sync(learning.take_notice(store, scope)) == (0, 0)
    add_learned("We decided to use Kafka for the events.", "decision")
    assert run_sync(learning.take_notice(store, scope)) == (1, 0)


@pytest.mark.parametrize("surface", ["mcp", "program", "hook"])
def test_only_people_keep_for_user(isolated: App, surface: str) -> None:
    add_learned(TABS, project="test")
    arguments = {"memory_id": find_hash(TABS, "test"), "everywhere": True}
    with pytest.raises(Denied):
        run_sync(invoke(isolated.catalog, "keep_learned", arguments, isolated.create_context("test", surface)))
    assert api.call("list_memories", project="user") == []
