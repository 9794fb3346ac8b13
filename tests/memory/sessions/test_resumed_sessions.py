"""A session that goes on comes again from its beginning: what was learned of it before is context, and changes nothing.

What was said before somebody replaced, changed, confirmed, forgot or purged a memory does nothing to it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.hashing import hash_text
from athena.core.threads import run_sync
from athena.memory.sessions import learning_rows, lessons
from conftest import MovingTime

HOUR = 3_600.0
PORT = "We decided to use port 8080 for the metrics exporter."
OTHER_PORT = "We decided to use port 9090 for the metrics exporter instead of 8080."
NIGHT, MORNING = "The backups run at 2 in the night.", "The backups now run at 5 in the morning, no longer at 2."
CLIENT = "The client for the new store is Halvorsen Brothers, we start in May."
BRANCHES = "We decided to name the branches after the tickets."
FIX = "The cause was a missing index on the orders table; I fixed it by adding the index in migration 12."
LATER_FIX = "The cause was a full disk on the staging host; I fixed it by rotating the logs of nginx daily."
MORE = "please run the tests again"

Talk = Callable[..., "Session"]


class Session:
    """A session whose transcript grows; with times, or without as some clients write it."""

    def __init__(self, app: App, time: MovingTime, name: str, is_timed: bool) -> None:
        self.app, self.time, self.name, self.is_timed = app, time, name, is_timed
        self.messages: list[dict[str, Any]] = []

    def say(self, *texts: str) -> "Session":
        """Say something, an hour later; ">> " begins an agent's answer."""
        for text in texts:
            self.time.now += HOUR
            role = "assistant" if text.startswith(">> ") else "user"
            at = {"at": self.time.now} if self.is_timed else {}
            self.messages.append({"role": role, "text": text.removeprefix(">> "), **at})
        return self

    def end(self, name: str | None = None) -> list[str]:
        """Learn from all of it, as at the end of a session, and return what is new."""
        self.time.now += HOUR
        lesson = call(self.app, "learn", "hook", session_id=name or self.name, messages=self.messages)
        return [learned.content for learned in lesson.learned]


@pytest.fixture(params=[True, False], ids=["with times", "without times"])
def talk(timed_app: App, time: MovingTime, request: pytest.FixtureRequest) -> Talk:
    return lambda name: Session(timed_app, time, name, request.param)


@pytest.fixture
def timed_talk(timed_app: App, time: MovingTime) -> Talk:
    return lambda name: Session(timed_app, time, name, True)


def call(app: App, name: str, surface: str = "cli", **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, name, arguments, app.create_context("p", surface)))


def list_learned(app: App) -> list[str]:
    return [item.content for item in call(app, "list_learned")]


def find_hash(app: App, text: str) -> str:
    return str(next(item.hash for item in call(app, "list_learned") if item.content == text))


def brief(app: App) -> str:
    return str(call(app, "briefing", "hook").text)


@pytest.mark.both_engines
def test_resumed_session_restores_nothing(timed_app: App, talk: Talk) -> None:
    first = talk("a").say(PORT)
    assert first.end() == [PORT]
    assert talk("b").say(OTHER_PORT).end() == [OTHER_PORT]
    assert first.say(MORE).end() == []
    assert OTHER_PORT in brief(timed_app)
    assert PORT not in brief(timed_app)


def test_new_words_of_resumed_session_count(timed_app: App, talk: Talk) -> None:
    first = talk("a").say(PORT)
    first.end()
    talk("b").say(OTHER_PORT).end()
    assert first.say(MORE, f"note: {PORT}").end() == []
    assert PORT in brief(timed_app)
    assert OTHER_PORT not in brief(timed_app)


def test_copy_of_session_restores_nothing(timed_app: App, timed_talk: Talk) -> None:
    """A client may continue a session under another id, with a copy of the old messages."""
    first = timed_talk("a").say(PORT)
    first.end()
    timed_talk("b").say(OTHER_PORT).end()
    call(timed_app, "forget", memory_id=find_hash(timed_app, OTHER_PORT))
    call(timed_app, "forget", memory_id=find_hash(timed_app, PORT))
    assert first.say(MORE).end(name="copy") == []
    assert list_learned(timed_app) == []


def test_resumed_session_leaves_corrections(timed_app: App, talk: Talk) -> None:
    session = talk("a").say(PORT)
    session.end()
    mine = "We decided to use port 8443 for the metrics exporter."
    call(timed_app, "update_memory", memory_id=find_hash(timed_app, PORT), content=mine)
    session.say(MORE).end()
    assert list_learned(timed_app) == [mine]
    assert mine in brief(timed_app)


@pytest.mark.both_engines
@pytest.mark.parametrize("act", ["forget", "undo", "purge", "drop_learned"])
def test_what_was_removed_stays_away(timed_app: App, talk: Talk, act: str) -> None:
    session = talk("a").say(CLIENT)
    session.end()
    if act == "undo":
        call(timed_app, "undo", anyone=True)
    elif act == "purge":
        call(timed_app, "purge", memory_ids=[find_hash(timed_app, CLIENT)], expect=1)
    elif act == "forget":
        call(timed_app, act, memory_id=find_hash(timed_app, CLIENT))
    else:
        call(timed_app, act, memory_ids=[find_hash(timed_app, CLIENT)])
    assert list_learned(timed_app) == []
    assert session.say("thanks", BRANCHES).end() == [BRANCHES]
    assert "Halvorsen" not in str([call(timed_app, "list_memories"), call(timed_app, "recall_events")])


@pytest.mark.both_engines
@pytest.mark.parametrize("act", ["forget", "purge"])
def test_answer_is_read_on_where_it_ended(timed_app: App, talk: Talk, act: str) -> None:
    session = talk("a").say("hi", ">> Hello.", "why is the orders page slow?", f">> {FIX}")
    assert session.end() == [FIX]
    found = find_hash(timed_app, FIX)
    call(timed_app, act, **({"memory_id": found} if act == "forget" else {"memory_ids": [found], "expect": 1}))
    assert session.end() == []
    assert session.say(f">> {LATER_FIX}").end() == [LATER_FIX]
    assert session.say(MORE, ">> All 12 tests pass.").end() == []
    assert FIX not in list_learned(timed_app)


def test_sessions_may_say_as_much_at_the_same_time(timed_app: App, timed_talk: Talk, time: MovingTime) -> None:
    other = "We decided to use redis 7 for the sessions of users.."
    assert len(other) == len(PORT)
    first, moment = timed_talk("a").say(PORT), time.now
    second = timed_talk("b").say(other)
    second.messages[0]["at"] = moment
    assert (first.end(), second.end()) == ([PORT], [other])


@pytest.mark.both_engines
def test_marks_of_turns_say_nothing_without_the_key(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say(PORT).end()
    [row] = run_sync(timed_app.store.database.read(lambda tx: tx.fetch("SELECT turn FROM learned_turns")))
    said = f"{timed_app.store.clock() - HOUR:.3f} {len(PORT)}"
    assert row[0] not in [int(hash_text(text)[:14], 16) for text in (said, f"{said}\n{PORT}", PORT)]


def test_new_key_of_the_vault_brings_nothing_back(timed_app: App, timed_talk: Talk) -> None:
    session = timed_talk("a").say(CLIENT)
    session.end()
    call(timed_app, "purge", memory_ids=[find_hash(timed_app, CLIENT)], expect=1)
    run_sync(timed_app.guard.vault.rotate_key())
    assert session.say(MORE).end() == []


def test_confirmed_memory_is_not_replaced_by_older_words(timed_app: App, talk: Talk) -> None:
    first = talk("b").say(NIGHT)
    first.end()
    talk("c").say(MORNING).end()
    call(timed_app, "keep_learned", memory_id=find_hash(timed_app, MORNING))
    first.say(MORE).end()
    assert MORNING in brief(timed_app)
    assert NIGHT not in brief(timed_app)


def test_confirmed_memory_is_asked_about(timed_app: App, talk: Talk) -> None:
    talk("b").say(NIGHT).end()
    talk("c").say(MORNING).end()
    call(timed_app, "keep_learned", memory_id=find_hash(timed_app, MORNING))
    talk("d").say(f"note: {NIGHT}").end()
    text = brief(timed_app)
    assert MORNING in text
    assert "Which holds" in text


def test_old_request_to_forget_spares_later_statements(timed_app: App, talk: Talk) -> None:
    first = talk("c").say("Forget everything I said about Redis.")
    first.end()
    later = "We decided to use Redis 7 for the job queue of orders."
    talk("d").say(later).end()
    first.say(MORE).end()
    assert list_learned(timed_app) == [later]


@pytest.mark.both_engines
@pytest.mark.parametrize("words", ["dont keep that please", "scratch that."])
def test_retraction_reaches_what_was_said_before_the_end(timed_app: App, talk: Talk, words: str) -> None:
    session = talk("a").say("Next time: the page of the Halvorsen Brothers.")
    assert session.end() != []
    assert "Halvorsen" in brief(timed_app)
    session.say(words, ">> Understood.").end()
    assert list_learned(timed_app) == []
    assert "Halvorsen" not in brief(timed_app) + str(call(timed_app, "recall_events"))
    call(timed_app, "undo", anyone=True)
    assert len(list_learned(timed_app)) == 1


def test_correction_finds_what_the_old_part_left(timed_app: App, talk: Talk) -> None:
    session = talk("a").say("The upload limit is 10 MB.", ">> Noted.")
    assert session.end() == ["The upload limit is 10 MB."]
    [newer] = session.say("no, make it 20 MB").end()
    assert "20" in newer
    assert "upload limit" in newer
    told = [line for line in brief(timed_app).splitlines() if "upload limit" in line and "Ended" not in line]
    assert len(told) == 1
    assert "20" in told[0]


def test_episode_tells_the_old_part_too(timed_app: App, talk: Talk) -> None:
    session = talk("a").say("Next time: the invoice export.", ">> The parser was moved into a module of its own.")
    session.end()
    session.say(MORE, ">> All 12 tests pass.").end()
    newest = call(timed_app, "recall_events", event_type="episode")[0].content
    assert "invoice export" in newest
    assert "12 tests pass" in newest


def test_part_before_a_compaction_is_learned_once(timed_app: App, talk: Talk) -> None:
    session = talk("a").say(PORT, ">> Done.")
    call(timed_app, "learn", "hook", session_id="a", summary="The exporter was built and its tests pass.")
    assert session.say(MORE).end() == [PORT]
    session.messages = session.messages[1:]  # of a long transcript only the end is read
    assert session.say(BRANCHES).end() == [BRANCHES]


def test_words_of_a_longer_session_are_older(timed_app: App, timed_talk: Talk) -> None:
    """Two sessions at the same time: the one that ends last did not say everything last."""
    first = timed_talk("long").say(PORT)
    second = timed_talk("short").say(OTHER_PORT)
    assert second.end() == [OTHER_PORT]
    assert first.say(MORE).end() == [PORT]
    assert OTHER_PORT in brief(timed_app)
    assert PORT not in brief(timed_app)


def test_words_before_an_act_change_nothing(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say(NIGHT).end()
    late = timed_talk("late").say(NIGHT, CLIENT)
    timed_talk("b").say(MORNING).end()
    timed_talk("c").say(CLIENT).end()
    call(timed_app, "forget", memory_id=find_hash(timed_app, CLIENT))
    assert late.say(MORE).end() == []
    assert NIGHT not in brief(timed_app)
    assert CLIENT not in list_learned(timed_app)


def test_statement_and_its_link_are_stored_together(
    timed_app: App, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk("a").say(PORT).end()
    second = talk("b").say(OTHER_PORT)

    async def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lessons, "record_changes", stop)
        with pytest.raises(KeyboardInterrupt):
            second.end()
    second.end()
    older = call(timed_app, "get_memory", memory_id=find_hash(timed_app, PORT))
    assert [link.relation for link in older.related] == ["contradicted by"]


def test_explicit_remember_confirms(timed_app: App, talk: Talk) -> None:
    talk("a").say(PORT).end()
    by_model = call(timed_app, "remember", "mcp", content=PORT)
    assert "auto" in by_model.tags
    by_person = call(timed_app, "remember", content=PORT)
    assert (by_person.outcome, by_person.author, "auto" in by_person.tags) == ("known", "person", False)
    assert by_person.metadata["confirmed"] is True
    talk("b").say(OTHER_PORT).end()
    memory = call(timed_app, "get_memory", memory_id=by_person.id)
    assert [link.relation for link in memory.related] == []


def retag(app: App, time: MovingTime, text: str, surface: str) -> None:
    time.now += HOUR
    tags = ["auto", "decision", "metrics"]
    call(app, "update_memory", surface, memory_id=find_hash(app, text), tags=tags, importance=0.6)


@pytest.mark.both_engines
@pytest.mark.parametrize("surface", ["mcp", "cli"])
def test_tags_make_no_statement_newer(timed_app: App, timed_talk: Talk, surface: str) -> None:
    timed_talk("a").say(PORT).end()
    second = timed_talk("b").say(OTHER_PORT)
    retag(timed_app, second.time, PORT, surface)
    assert second.end() == [OTHER_PORT]
    assert OTHER_PORT in brief(timed_app)
    assert PORT not in brief(timed_app)


def test_metadata_make_no_statement_newer(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say(PORT).end()
    call(timed_app, "update_memory", "mcp", memory_id=find_hash(timed_app, PORT), metadata={"said": 9e12})
    timed_talk("b").say(OTHER_PORT).end()
    assert OTHER_PORT in brief(timed_app)
    assert PORT not in brief(timed_app)


def test_tags_spare_nothing_that_is_taken_back(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say("We decided to use Redis 7 for the job queue of orders.").end()
    second = timed_talk("b").say("Forget everything I said about Redis.")
    retag(timed_app, second.time, list_learned(timed_app)[0], "mcp")
    second.end()
    assert list_learned(timed_app) == []


@pytest.mark.both_engines
@pytest.mark.parametrize("act", ["restore_memory", "remember", "keep_learned", "everywhere", "update_memory"])
def test_act_of_a_person_is_newer_than_earlier_words(timed_app: App, timed_talk: Talk, act: str) -> None:
    timed_talk("a").say(PORT).end()
    second, ref, text = timed_talk("b").say(OTHER_PORT), find_hash(timed_app, PORT), PORT
    time = second.time
    time.now += HOUR
    if act == "remember":
        call(timed_app, act, content=PORT)
    elif act == "update_memory":
        text = PORT.replace("metrics exporter", "metrics exporter of orders")
        call(timed_app, act, memory_id=ref, content=text)
    elif act == "everywhere":
        call(timed_app, "keep_learned", memory_id=ref, everywhere=True)
    else:
        if act == "restore_memory":
            call(timed_app, "forget", memory_id=ref)
        call(timed_app, act, memory_id=ref)
    second.end()
    assert text in brief(timed_app)
    assert OTHER_PORT not in brief(timed_app)


@pytest.mark.both_engines
def test_piece_of_a_changed_document_is_not_forgotten_by_anybody(
    timed_app: App, timed_talk: Talk, tmp_path: Path
) -> None:
    talk, notes = timed_talk("a").say(CLIENT), tmp_path / "notes.md"
    for text in (CLIENT, "See the wiki for the list of clients."):
        talk.time.now += HOUR
        notes.write_text(f"{text}\n")
        call(timed_app, "ingest_document", path=str(notes))
    assert talk.end() == [CLIENT]


@pytest.mark.both_engines
def test_what_is_kept_everywhere_is_known(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say(PORT).end()
    talk = timed_talk("b").say(PORT)
    talk.time.now += HOUR
    kept = call(timed_app, "keep_learned", memory_id=find_hash(timed_app, PORT), everywhere=True)
    lesson = call(timed_app, "learn", "hook", session_id="b", messages=talk.messages)
    assert (lesson.known, lesson.refused) == (1, 0)
    talk = timed_talk("c").say(PORT)
    talk.time.now += HOUR
    assert run_sync(
        invoke(timed_app.catalog, "forget", {"memory_id": kept.hash}, timed_app.create_context("user", "cli"))
    )
    assert talk.end() == []


def test_what_was_kept_everywhere_once_may_be_forgotten(timed_app: App, timed_talk: Talk) -> None:
    timed_talk("a").say(PORT).end()
    talk = timed_talk("b").say(PORT)
    call(timed_app, "keep_learned", memory_id=find_hash(timed_app, PORT), everywhere=True)
    call(timed_app, "undo", anyone=True)
    talk.time.now += HOUR
    call(timed_app, "forget", memory_id=find_hash(timed_app, PORT))
    assert talk.end() == []


@pytest.mark.both_engines
def test_forgotten_is_found_among_many(timed_app: App, timed_talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_rows, "MAX_COMPARED", 3)
    timed_talk("a").say(CLIENT).end()
    talk = timed_talk("b").say(CLIENT)
    talk.time.now += HOUR
    call(timed_app, "forget", memory_id=find_hash(timed_app, CLIENT))
    items = [{"content": f"note number {number} about thing {number * 7}"} for number in range(10)]
    for one in call(timed_app, "remember_batch", items=items):
        talk.time.now += 1
        call(timed_app, "forget", memory_id=one.hash)
    assert talk.end() == []
