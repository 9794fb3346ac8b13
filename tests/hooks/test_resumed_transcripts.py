"""A session that a client resumes: its transcript grows, or goes on in a copy, and belongs to where it began."""

import json
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from athena.app.compose import App
from athena.app.settings import HookRules
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.hooks.events import answer_event
from athena.hooks.past_sessions import find_past_sessions, learn_past_session

PORT = "We decided to use port 8080 for the metrics exporter."
OTHER_PORT = "We decided to use port 9090 for the metrics exporter instead of 8080."
CLIENT = "The client for the new store is Halvorsen Brothers, we start in May."
BILL = "We decided to bill ACME at 140 euros an hour from now on."
FIX = "The cause was a missing index on the orders table; I fixed it by adding the index in migration 12."
HOUR, DAY = 3_600.0, 86_400.0
MORNING = float(int(time.time())) - 10 * DAY


def create_repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True, timeout=60)
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return create_repository(tmp_path / "shop")


class Transcript:
    """The transcript of a session of Claude Code or Codex."""

    def __init__(self, folder: Path, session: str, cwd: Path | None = None, *, is_codex: bool = False) -> None:
        name = f"rollout-2025-10-09T12-00-00-{session}" if is_codex else session
        self.path, self.session, self.cwd, self.is_codex = folder / f"{name}.jsonl", session, cwd, is_codex
        self.lines: list[str] = []
        if is_codex:
            self.add({"timestamp": to_iso(MORNING), "payload": {"id": session, "cwd": str(cwd)}})

    def add(self, entry: dict[str, Any]) -> None:
        self.lines.append(json.dumps(entry))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n".join(self.lines) + "\n")

    def say(self, text: str, at: float | None = None, cwd: Path | None = None) -> "Transcript":
        content = [{"type": "input_text", "text": text}] if self.is_codex else text
        message = {"type": "message", "role": "user", "content": content}
        entry: dict[str, Any] = {"payload" if self.is_codex else "message": message}
        entry |= {} if at is None else {"timestamp": to_iso(at)}
        if not self.is_codex:
            folder = cwd or self.cwd
            entry |= {"type": "user", "sessionId": self.session, **({"cwd": str(folder)} if folder else {})}
        self.add(entry)
        return self

    def answer(self, text: str, at: float) -> "Transcript":
        message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}
        self.add({"type": "assistant", "sessionId": self.session, "timestamp": to_iso(at), "message": message})
        return self


def to_iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def hook(app: App, event: str, folder: Path, session: str, rules: HookRules | None = None, **said: Any) -> str:
    payload = {"session_id": session, "cwd": str(folder), "hook_event_name": event, **said}
    context = app.create_context("daemon", "hook")
    out = run_sync(answer_event(event, json.dumps(payload).encode(), context, rules or HookRules()))
    return str(json.loads(out)["hookSpecificOutput"]["additionalContext"]) if out else ""


def end(app: App, talk: Transcript, folder: Path, rules: HookRules | None = None, session: str = "") -> None:
    hook(app, "session-end", folder, session or talk.session, rules, transcript_path=str(talk.path), reason="other")


def call(app: App, name: str, folder: Path, **arguments: Any) -> Any:
    return run_sync(invoke(app.catalog, name, arguments, app.create_context(str(folder.resolve()), "cli")))


def list_learned(app: App, folder: Path) -> list[str]:
    return [item.content for item in call(app, "list_learned", folder)]


def learn_past(app: App, folder: Path) -> list[str]:
    sessions = find_past_sessions([str(folder)], ["claude-code"], in_parts=True)
    return [run_sync(learn_past_session(app, session, HookRules())).outcome for session in sessions]


@pytest.mark.parametrize("is_codex", [False, True], ids=["claude-code", "codex"])
def test_copy_under_another_id_brings_nothing_back(app: App, repo: Path, tmp_path: Path, is_codex: bool) -> None:
    first = Transcript(tmp_path, "a", repo, is_codex=is_codex).say(CLIENT, MORNING)
    end(app, first, repo)
    [memory] = call(app, "list_learned", repo)
    call(app, "purge", repo, memory_ids=[memory.hash], expect=1)
    copy = Transcript(tmp_path, "b", repo, is_codex=is_codex).say(CLIENT, MORNING).say("thanks", MORNING + DAY)
    end(app, copy, repo)
    assert list_learned(app, repo) == []


def test_retraction_after_resume_reaches_memory_and_episode(app: App, repo: Path, tmp_path: Path) -> None:
    talk = Transcript(tmp_path, "a", repo).say(f"Next time: {CLIENT}")
    end(app, talk, repo)
    assert "Halvorsen" in hook(app, "session-start", repo, "n1", source="startup")
    end(app, talk.say("dont keep that please"), repo)
    assert list_learned(app, repo) == []
    assert "Halvorsen" not in hook(app, "session-start", repo, "n2", source="startup")


def test_session_belongs_to_where_it_began(app: App, repo: Path, tmp_path: Path) -> None:
    inner = create_repository(repo / "vendored")
    talk = Transcript(tmp_path, "s1").say(BILL)  # some clients write no folder
    hook(app, "post-tool-use", repo, "s1", tool_name="Bash", tool_input={"command": "make test"}, tool_response={})
    hook(app, "post-tool-use", inner, "s1", tool_name="Bash", tool_input={"command": "make lint"}, tool_response={})
    end(app, talk, inner)
    assert (list_learned(app, repo), list_learned(app, inner)) == ([BILL], [])
    events = call(app, "recall_events", repo)
    assert [event.event_type for event in events] == ["episode", "command", "command"]
    assert call(app, "recall_events", inner) == []


def test_first_folder_of_transcript_counts_for_both_ways(app: App, repo: Path, tmp_path: Path) -> None:
    inner = create_repository(repo / "vendored")
    live = Transcript(tmp_path / "live", "s1").say(BILL, MORNING, repo).say("go on", MORNING + 1, inner)
    end(app, live, inner)
    assert (list_learned(app, repo), list_learned(app, inner)) == ([BILL], [])
    Transcript(tmp_path / "past", "s2").say(CLIENT, MORNING, repo).say("go on", MORNING + 1, inner)
    [past] = find_past_sessions([str(tmp_path / "past")], ["claude-code"])
    assert run_sync(learn_past_session(app, past, HookRules())).project == str(repo.resolve())


def test_rules_of_both_folders_hold(app: App, repo: Path, tmp_path: Path) -> None:
    other = create_repository(tmp_path / "other")
    talk = Transcript(tmp_path, "s1").say(BILL, MORNING, repo).say("go on", MORNING + 1, other)
    for folder in (repo, other):
        end(app, talk, other, HookRules(disabled_by_project={str(folder.resolve()): frozenset({"*"})}))
        assert list_learned(app, repo) == list_learned(app, other) == [], folder
    end(app, talk, other)
    assert list_learned(app, repo) == [BILL]


@pytest.mark.parametrize("in_parts", [True, False])
def test_past_sessions_are_learned_in_order_of_what_was_said(
    app: App, repo: Path, tmp_path: Path, in_parts: bool
) -> None:
    folder = tmp_path / "past"
    Transcript(folder, "aaaa", repo).say(PORT, MORNING).say("please run the tests again", MORNING + 2 * DAY)
    Transcript(folder, "bbbb", repo).say(OTHER_PORT, MORNING + DAY)
    for session in find_past_sessions([str(folder)], ["claude-code"], in_parts=in_parts):
        run_sync(learn_past_session(app, session, HookRules()))
    told = hook(app, "session-start", repo, "n1", source="startup")
    assert OTHER_PORT in told
    assert PORT not in told


def test_past_change_finds_what_was_said_before(app: App, repo: Path, tmp_path: Path) -> None:
    """The same as live: a short change is understood by what an earlier part of a longer session said."""
    folder = tmp_path / "past"
    talk = Transcript(folder, "aaaa", repo).say("The upload limit of the shop is 10 MB.", MORNING)
    talk.say("please run the tests again", MORNING + 2 * DAY)
    Transcript(folder, "bbbb", repo).say("Change the upload limit of the shop to 50 MB from now on.", MORNING + DAY)
    sessions = find_past_sessions([str(folder)], ["claude-code"], in_parts=True)
    assert [session.session_id for session in sessions] == ["aaaa", "bbbb", "aaaa"]
    outcomes = [run_sync(learn_past_session(app, session, HookRules())).outcome for session in sessions]
    assert outcomes == ["learned"] * 3
    [newer] = [item for item in call(app, "list_learned", repo) if "50 MB" in item.content]
    assert call(app, "get_memory", repo, memory_id=newer.hash).metadata["replaces"].startswith("The upload limit")
    again = find_past_sessions([str(folder)], ["claude-code"], in_parts=True)
    assert [run_sync(learn_past_session(app, session, HookRules())).outcome for session in again] == ["known"] * 3


def test_clock_that_is_set_back_loses_nothing(app: App, repo: Path, tmp_path: Path) -> None:
    talk = Transcript(tmp_path / "past", "a", repo).say(CLIENT, MORNING + 600).answer("Understood.", MORNING + 590)
    assert learn_past(app, tmp_path / "past") == ["learned"]
    assert list_learned(app, repo) == [CLIENT]
    talk.say("please run the tests", MORNING + 2 * HOUR).say(BILL, MORNING + HOUR).say("thanks a lot", MORNING + HOUR)
    assert learn_past(app, tmp_path / "past") == ["known", "learned"]
    assert set(list_learned(app, repo)) == {CLIENT, BILL}
    assert learn_past(app, tmp_path / "past") == ["known", "known"]


def test_time_to_come_loses_nothing(app: App, repo: Path, tmp_path: Path) -> None:
    now = time.time()
    talk = Transcript(tmp_path / "past", "a", repo).say(CLIENT, now + 5 * HOUR).answer("Understood.", now - 60)
    learn_past(app, tmp_path / "past")
    talk.say(BILL, now - 30)
    learn_past(app, tmp_path / "past")
    assert set(list_learned(app, repo)) == {CLIENT, BILL}


def test_answer_after_a_pause_is_learned(app: App, repo: Path, tmp_path: Path) -> None:
    talk = Transcript(tmp_path / "past", "a", repo).say("please find out why the orders page is slow", MORNING)
    talk.answer("I run the profiler over the night, in the café.", MORNING + 60).answer(FIX, MORNING + 3 * HOUR)
    assert learn_past(app, tmp_path / "past") == ["learned", "learned"]
    assert list_learned(app, repo) == [FIX]


def test_answer_that_grew_since_is_learned(app: App, repo: Path, tmp_path: Path) -> None:
    talk = Transcript(tmp_path / "past", "a", repo).say("please find out why the orders page is slow", MORNING)
    talk.answer("I look at the profiler first.", MORNING + 60)
    learn_past(app, tmp_path / "past")
    end(app, talk.answer(FIX, MORNING + 600), repo)
    assert list_learned(app, repo) == [FIX]
