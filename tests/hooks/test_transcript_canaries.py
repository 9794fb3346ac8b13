"""Sessions with canaries through the real hooks: none is found in the store, its files, logs, exports or any answer."""

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from transcript_canaries import Transcript, create_transcript, encode_canary

from athena.app.compose import App
from athena.app.settings import HookRules
from athena.core.threads import run_sync
from athena.hooks import client, fallback
from athena.hooks.events import answer_event
from conftest import MODEL, Engine, rounds

PROJECT = "canaries"
BATCH = 10  # sessions of one store


def play(app: App, transcript: Transcript, folder: Path) -> Iterator[bytes]:
    """Send the events of a session while its transcript grows; yield the answers."""
    path = folder / f"{transcript.session_id}.jsonl"
    path.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in transcript.entries), "utf-8")
    fields: dict[str, Any] = {"session_id": transcript.session_id, "cwd": str(folder), "transcript_path": str(path)}
    for number, (event, more) in enumerate(transcript.events):
        payload = json.dumps({**fields, "hook_event_name": event, **more}).encode()
        context = app.create_context(PROJECT, "hook")
        key = f"{transcript.session_id.replace('-', '')}{number}"
        yield run_sync(answer_event(event, payload, context, HookRules(), without_model=True, project=PROJECT, key=key))


def read_everything(app: App, home: Path) -> bytes:
    """Return all that is at rest: the files of the store with its log, and what operations tell of them."""
    told: list[Any] = []
    for name, arguments in (
        ("recall_events", {"limit": 1_000}),
        ("timeline", {"limit": 1_000}),
        ("list_sessions", {"limit": 1_000}),
        ("search_by_tag", {"tags": ["auto"], "k": 1_000}),
        ("list_injections", {"limit": 1_000}),
        ("briefing", {"budget_tokens": 9_000}),
    ):
        context = app.create_context(PROJECT, "python")
        told.append(run_sync(app.catalog.get_operation(name)(context, **arguments)))
    return read_files(home) + repr(told).encode()


@pytest.mark.sqlite_only("the files of the store are read")
@pytest.mark.parametrize("batch", range(rounds(2, 100)))
def test_canaries_are_nowhere(batch: int, tmp_path: Path, engine: Engine) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    folder.mkdir()
    app = App(engine.open(home / "athena.db"), MODEL)
    transcripts = [create_transcript(seed, str(folder)) for seed in range(batch * BATCH, (batch + 1) * BATCH)]
    try:
        answers = [answer for one in transcripts for answer in play(app, one, folder)]
        found = read_everything(app, home)
    finally:
        app.close()
    # once with the log of the database, once without it: closing moves its pages into the file
    found = fold_bytes(found, *answers, read_files(home))
    assert find_canaries(found, transcripts) == []
    words = [word.encode() for one in transcripts for word in one.statements]
    assert sum(word in found for word in words) >= 0.7 * len(words)  # statements are stored, so the search finds words


@pytest.mark.sqlite_only("no statement depends on the store")
def test_answer_that_repeats_weak_statement_is_not_told(app: App) -> None:
    """A clause that might replace a memory, and replaces none, is no statement: no episode may tell it either."""
    prompt = "hmm the output still shows bvclps696632, try again"
    talk = [("user", "We decided to use Postgres for the billing service."), ("assistant", "Done."), ("user", prompt)]
    talk += [("assistant", f"The importer reads each file once now, and all 42 tests pass. You asked: {prompt}")]
    messages = [{"role": role, "text": text} for role, text in talk]
    context = app.create_context(PROJECT, "hook")
    run_sync(app.catalog.get_operation("learn")(context, session_id="s", messages=messages))
    context = app.create_context(PROJECT, "python")
    episodes = run_sync(app.catalog.get_operation("recall_events")(context, event_type="episode"))
    assert "all 42 tests pass" in episodes[0].content
    assert "bvclps696632" not in repr(episodes) + repr(run_sync(app.catalog.get_operation("list_memories")(context)))


def read_files(home: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file())


def fold_bytes(*parts: bytes) -> bytes:
    """Return bytes to search in: small letters, and short runs of zeros instead of empty pages."""
    return re.sub(rb"\0{9,}", b"\0" * 8, b"\n".join(parts)).lower()


def find_canaries(found: bytes, transcripts: list[Transcript]) -> list[tuple[str, str, bytes]]:
    return [
        (place, canary, form)
        for one in transcripts
        for canary, place in one.canaries.items()
        for form in encode_canary(canary)
        if form.lower() in found
    ]


@pytest.mark.sqlite_only("the files of the store are read")
@pytest.mark.parametrize("is_broken", [False, True])
def test_hook_without_daemon_logs_no_canary(is_broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that answers in its own process, also with a database that cannot be opened."""
    home, folder = tmp_path / "home", tmp_path / "work"
    folder.mkdir()
    home.mkdir()
    monkeypatch.setenv("ATHENA_HOME", str(home))
    monkeypatch.setenv("ATHENA_PROJECT", PROJECT)
    if is_broken:
        (home / "athena.db").write_bytes(b"this is no database" * 500)
    transcript = create_transcript(3, str(folder))
    path = folder / "talk.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in transcript.entries), "utf-8")
    wanted = ("user-prompt-submit", "stop", "post-tool-use", "session-end")
    events = [next(one for one in transcript.events if one[0] == event) for event in wanted]
    outputs = []
    for event, fields in events:
        fields = {"session_id": transcript.session_id, "cwd": str(folder), "transcript_path": str(path), **fields}
        started_at = time.monotonic()
        answer = fallback.answer_without_daemon(event, json.dumps(fields).encode(), "it was late", started_at + 30)
        client.log_hook(str(home), event, answer.link, started_at, answer.reason)
        outputs += [answer.output, answer.reason.encode()]
    found = fold_bytes(*outputs, read_files(home))
    assert find_canaries(found, [transcript]) == []
    assert (home / "logs" / client.LOG_FILE).read_text().count("\n") == len(events)
    assert is_broken or transcript.session_id.encode() in found


@pytest.mark.sqlite_only("no store is touched")
def test_search_finds_encoded_canaries() -> None:
    text = "bcdfgh123456"
    stored = [text, text[::-1], quote(text), "".join(f"%{ord(char):02X}" for char in text), json.dumps({"a": text})]
    found = [one.encode() for one in stored] + [text.encode("utf-16"), text.encode().hex().encode()]
    found += [base64.b64encode(b"abcdef"[:offset] + text.encode() + b"rest") for offset in range(6)]
    forms = [form.lower() for form in encode_canary(text)]
    assert [one for one in found if not any(form in one.lower() for form in forms)] == []
