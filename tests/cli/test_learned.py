"""`athena learned` and `athena learn`: the review of what was learned, and past sessions of both clients."""

import json
import os
import signal
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from athena import api
from athena.app import connect
from athena.app.compose import App
from athena.app.settings import HookRules
from athena.cli.commands import athena
from athena.core.threads import run_sync
from athena.core.values import Scope
from athena.hooks import past_sessions, transcript
from athena.hooks.past_sessions import find_past_sessions
from athena.memory.sessions.questions import record_questions
from athena.results import LearnedItem

CHARGES = "We decided to keep the retries of card charges in the client only."
QUEUE = "We decided to use Redis for the queue of orders."
BRANCHES = "We decided to name the branches after the tickets."
NOON = 1_760_000_000.0  # 9 October 2025


class Transcripts:
    """Write the transcripts of both clients below a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.claude_folder, self.codex_folder = home / ".claude/projects", home / ".codex/sessions"

    def create_repository(self, name: str) -> str:
        folder = self.home / name
        (folder / ".git").mkdir(parents=True)
        return str(folder)

    def write_claude(self, session: str, folder: str | None, *texts: str, at: float = NOON, **more: Any) -> Path:
        path = self.claude_folder / (folder or "-").replace("/", "-") / f"{session}.jsonl"
        entries: list[dict[str, Any]] = [{"type": "summary", "summary": "about things", "leafUuid": "u"}]
        for i, text in enumerate(texts):
            entry = {"type": "user", "sessionId": session, "cwd": folder, "timestamp": to_iso(at + i)}
            entries.append({**entry, "message": {"role": "user", "content": text}, **more})
        return write_lines(path, entries)

    def write_codex(self, session: str, folder: str | None, *texts: str, at: float = NOON) -> Path:
        path = self.codex_folder / f"2025/10/09/rollout-2025-10-09T12-00-00-{session}.jsonl"
        details = {"id": session, "timestamp": to_iso(at), "originator": "codex_cli_rs"}
        details |= {} if folder is None else {"cwd": folder}
        entries: list[dict[str, Any]] = [{"timestamp": to_iso(at), "type": "session_meta", "payload": details}]
        for i, text in enumerate(texts):
            message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            entries.append({"timestamp": to_iso(at + i), "type": "response_item", "payload": message})
        return write_lines(path, entries)


def to_iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def write_lines(path: Path, entries: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, entries)) + "\n")
    return path


@pytest.fixture
def transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Transcripts:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "ATHENA_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return Transcripts(tmp_path)


class Shell:
    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capture.readouterr()
        assert athena(args=list(words), prog_name="athena", standalone_mode=False) == code
        out, err = self._capture.readouterr()
        return out + err


@pytest.fixture
def run(isolated: App, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def list_learned(project: str) -> list[LearnedItem]:
    return list(api.call("list_learned", project=project))


def test_past_sessions_go_to_their_projects(run: Shell, transcripts: Transcripts) -> None:
    shop, blog = transcripts.create_repository("shop"), transcripts.create_repository("blog")
    transcripts.write_claude("11111111-a", shop, "please fix it", CHARGES)
    os.makedirs(f"{blog}/src")
    transcripts.write_codex("22222222-b", f"{blog}/src", QUEUE, at=NOON + 100)
    assert "kept 2 things of 2 sessions in 2 projects" in run("learn", "--from-transcripts")
    [item] = list_learned(shop)
    assert (item["content"], item["session_id"], item["created"]) == (CHARGES, "11111111-a", NOON + 1)
    [item] = list_learned(blog)
    assert (item["content"], item["session_id"], item["created"]) == (QUEUE, "22222222-b", NOON + 100)
    assert len(api.call("recall_events", project=shop, event_type="episode")) == 1


def test_second_run_adds_nothing(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_claude("s1", shop, CHARGES)
    transcripts.write_codex("s2", shop, QUEUE)
    run("learn", "--from-transcripts")
    before = api.call("list_memories", project=shop, k=100), api.call("recall_events", project=shop, limit=100)
    out = run("learn", "--from-transcripts")
    assert "kept 0 things of 0 sessions" in out
    assert "2 sessions learned from before" in out
    assert (
        api.call("list_memories", project=shop, k=100),
        api.call("recall_events", project=shop, limit=100),
    ) == before
    transcripts.write_claude("s1", shop, CHARGES, "We decided to use Kafka for the events.")  # the session went on
    assert "kept 1 thing of 1 session" in run("learn", "--from-transcripts", "--client", "claude-code")


def test_session_that_a_hook_learned_is_left_out(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_claude("s1", shop, CHARGES)
    api.call("learn", session_id="s1", messages=[{"role": "user", "text": CHARGES}], project=shop)
    assert "1 session learned from before" in run("learn", "--from-transcripts")


@pytest.mark.both_engines
def test_later_session_is_learned_later(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_claude("a", shop, "We decided to use PostgreSQL 16 for billing.", at=NOON + 500)
    transcripts.write_codex("z", shop, "We decided to use PostgreSQL 15 for billing.", at=NOON)
    assert [past.session_id for past in find_past_sessions([str(transcripts.home)], ["claude-code", "codex"])] == [
        "z", "a",
    ]  # fmt: skip
    run("learn", "--from-transcripts")
    assert [item["content"][-12:] for item in list_learned(shop)] == ["for billing."] * 2
    assert list_learned(shop)[0]["content"] == "We decided to use PostgreSQL 16 for billing."


def test_dry_run_tells_and_stores_nothing(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_claude("11111111-a", shop, CHARGES)
    out = run("learn", "--from-transcripts", str(transcripts.claude_folder), "--dry-run")
    assert f"claude-code 11111111  {shop}" in out
    assert "decision   user turn 1 0." in out
    assert f": {CHARGES}" in out
    assert "would keep 1 thing of 1 session in 1 project" in out
    assert list_learned(shop) == []
    assert api.call("recall_events", project=shop) == []
    result = json.loads(run("learn", "--from-transcripts", "--dry-run", "--json"))
    assert [item["content"] for session in result["sessions"] for item in session["learned"]] == [CHARGES]


@pytest.mark.both_engines
def test_folders_without_project_are_left_out(run: Shell, transcripts: Transcripts) -> None:
    (transcripts.home / "plain").mkdir()
    transcripts.write_claude("s1", str(transcripts.home / "plain"), CHARGES)
    transcripts.write_claude("s2", "/gone/long/ago", CHARGES)
    transcripts.write_codex("s3", None, CHARGES)
    out = run("learn", "--from-transcripts")
    assert "kept 0 things of 0 sessions" in out
    assert "3 sessions outside of every repository" in out
    assert api.call("list_projects") == []


def test_project_without_hooks_is_left_out(
    run: Shell, transcripts: Transcripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_claude("s1", shop, CHARGES)
    monkeypatch.setenv("ATHENA_HOOKS_PROJECTS", json.dumps({shop: ["*"]}))
    assert "1 session outside of every repository, or switched off" in run("learn", "--from-transcripts")


def test_deleted_folder_belongs_to_repository_around_it(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    transcripts.write_codex("s1", f"{shop}/gone", CHARGES)
    run("learn", "--from-transcripts")
    assert len(list_learned(shop)) == 1


def test_links_and_subagents_are_not_read(run: Shell, transcripts: Transcripts) -> None:
    shop = transcripts.create_repository("shop")
    secret = transcripts.home / "elsewhere"
    real = transcripts.write_claude("real", shop, QUEUE)
    moved = secret / "moved.jsonl"
    secret.mkdir()
    real.rename(moved)
    (transcripts.claude_folder / "link.jsonl").symlink_to(moved)
    (transcripts.claude_folder / "linked").symlink_to(secret)
    os.mkfifo(transcripts.claude_folder / "pipe.jsonl")
    transcripts.write_claude("agent-1", shop, CHARGES, isSidechain=True)
    (transcripts.claude_folder / "broken.jsonl").write_text("{\n[1]\nnot json\n" + "[" * 5000)
    assert "kept 0 things of 0 sessions" in run("learn", "--from-transcripts")
    assert list_learned(shop) == []


def test_interrupt_finishes_session_and_next_run_goes_on(
    run: Shell, transcripts: Transcripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = transcripts.create_repository("shop")
    for i, text in enumerate((CHARGES, QUEUE, BRANCHES)):
        transcripts.write_claude(f"s{i}", shop, text, at=NOON + 100 * i)
    learn_past_session = past_sessions.learn_past_session

    async def interrupt_second(app: App, session: Any, *args: Any, **kwargs: Any) -> Any:
        if session.session_id == "s1":
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C
        return await learn_past_session(app, session, *args, **kwargs)

    monkeypatch.setattr(past_sessions, "learn_past_session", interrupt_second)
    assert "run it again to go on" in run("learn", "--from-transcripts", code=130)
    assert {item["content"] for item in list_learned(shop)} == {CHARGES, QUEUE}
    monkeypatch.undo()
    monkeypatch.setenv("HOME", str(transcripts.home))
    assert "kept 1 thing of 1 session" in run("learn", "--from-transcripts", str(transcripts.claude_folder))
    assert len(list_learned(shop)) == 3


def test_learn_needs_transcripts(run: Shell, transcripts: Transcripts) -> None:
    assert "athena learn --from-transcripts" in run("learn", code=2)
    assert "there are no transcripts in" in run("learn", "--from-transcripts", code=3)
    assert "there are no transcripts in" in run("learn", "--from-transcripts", "/nowhere", code=3)


def test_review_by_hash(run: Shell) -> None:
    messages = [{"role": "user", "text": text} for text in (CHARGES, QUEUE, BRANCHES)]
    api.call("learn", session_id="abcdef012345", messages=messages)
    hashes = {item["content"]: item["hash"] for item in list_learned("test")}
    out = run("learned")
    assert [f"you said it, session abcdef01, turn {turn}, today" in out for turn in (1, 2, 3)] == [True] * 3
    assert f"{hashes[QUEUE]} decision   {QUEUE}" in out
    assert CHARGES in run("learned", "--session", "abcd", "--all")
    assert "nothing was learned there" in run("learned", "--session", "zz")
    assert "confirmed:" in run("learned", "keep", hashes[CHARGES])
    assert "athena undo" in run("learned", "drop", hashes[QUEUE])
    out = run("learned", "never", hashes[BRANCHES], "--about", "naming")
    assert f"no decision like \"{BRANCHES}\", none about 'naming'" in out
    assert "nothing was learned here yet" in run("learned")
    rules = run("learned", "rules")
    assert "decision like" in rules
    assert len(run("learned", "rules", "--all").splitlines()) == 2
    number = rules.split()[0]
    run("learned", "rules", "--remove", number)
    assert "there are no rules" in run("learned", "rules")
    run("undo")
    assert "decision like" in run("learned", "rules")
    assert "options go after keep" in run("learned", "--json", "keep", hashes[CHARGES], code=2)


def test_correction_keeps_secrets_out(run: Shell) -> None:
    api.call("learn", session_id="s1", messages=[{"role": "user", "text": QUEUE}])
    key = "AKIA" + "IOSFODNN7" + "EXAMPLQ"
    out = run("learned", "edit", list_learned("test")[0]["hash"], f"Redis, with the key {key}, holds the queue.")
    assert "taken out before storing" in out
    assert key not in out
    assert list_learned("test") == []


def test_transcripts_are_read_at_both_ends(transcripts: Transcripts, isolated: App) -> None:
    """A long file names its session at the beginning and its time at the end."""
    shop = transcripts.create_repository("shop")
    filler = "x" * 3_000
    transcripts.write_codex("long", shop, QUEUE, *[filler] * 400, CHARGES)
    [session] = find_past_sessions([str(transcripts.codex_folder)], ["codex"])
    assert (session.session_id, session.folder, session.ended) == ("long", shop, NOON + 401)
    rules = HookRules()
    assert run_sync(past_sessions.learn_past_session(isolated, session, rules)).outcome == "learned"


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_odd_time_stops_no_other_session_and_is_not_believed(run: Shell, transcripts: Transcripts, at: str) -> None:
    shop = transcripts.create_repository("shop")
    path = transcripts.write_claude("11111111-a", shop, CHARGES, timestamp=at)
    transcripts.write_claude("22222222-b", shop, QUEUE)
    assert "kept 2 things of 2 sessions" in run("learn", "--from-transcripts")
    created = {item["content"]: item["created"] for item in list_learned(shop)}
    assert created == {CHARGES: path.stat().st_mtime, QUEUE: NOON}


def test_long_line_is_cut(transcripts: Transcripts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MAX_LINE_CHARS", 1_000)
    path = transcripts.write_claude("11111111-a", transcripts.create_repository("shop"), CHARGES)
    with path.open("a") as file:
        file.write("x" * 1_000 + '{"role": "user", "content": "forged"}\nlast\n' + "\0" * 5_000)
    assert [*transcript.iter_lines(str(path))][2:] == ["x" * 1_000, "last\n", "\0" * 1_000]


def test_open_question_is_listed(run: Shell) -> None:
    for text in ("The backups run at 2.", "The backups run at 4."):
        run("remember", text, "--tags", "auto,fact", "--type", "fact")
    app = connect.shared_app()
    items = json.loads(run("learned", "--json"))
    scope = Scope(api.call("get_memory", memory_id=items[0]["id"])["project"])
    ids = items[1]["id"], items[0]["id"]
    run_sync(app.store.database.write(partial(record_questions, scope, [ids], 1.0)))
    [line] = [line for line in run("learned").splitlines() if line.startswith("? ")]
    assert line == (
        f'? Which holds: "The backups run at 4." [{items[0]["hash"]}] or "The backups run at 2." [{items[1]["hash"]}]?'
        " athena learned keep HASH"
    )
    run("learned", "keep", items[1]["hash"])
    assert "?" not in run("learned")


def test_offer_names_its_command(run: Shell) -> None:
    run("remember", "In all my projects I want tabs.", "--tags", "auto,preference", "--type", "preference")
    run("remember", "Deploys run on Fridays.", "--tags", "auto,fact", "--type", "fact")
    [offer] = [line for line in run("learned").splitlines() if "offered" in line]
    command = offer.partition("offered for all your projects: athena ")[2].split()
    assert "kept for all your projects" in run(*command)
    assert "In all my projects I want tabs." in run("list", "--project", "elsewhere")
    assert "offered" not in run("learned")
