"""Long texts are searched for secrets and filtered away from the event loop: no other call waits for them."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from starlette.routing import Router

from athena.app.compose import App
from athena.core import redaction, types
from athena.core.threads import get_running_loop, run_sync
from athena.core.types import LONG_VALUE_CHARS
from athena.errors import InvalidInput, LimitExceeded, Unavailable
from athena.memory import check_rows
from athena.memory.sessions import voice
from athena.server.admission import MAX_LONG_CALLS, CallDispatcher
from athena.server.http import HttpApi
from athena.server.mcp.server import McpHandlers
from athena.server.mcp.workspaces import McpPeer
from athena.server.serve import get_call_limit

LONG_TEXT = "The harbour opens at seven. " * (LONG_VALUE_CHARS // 20)
SHORT_TEXTS = [f"The harbour {number} opens at seven." for number in range(LONG_VALUE_CHARS // 30)]
LONG_CALLS: dict[str, dict[str, Any]] = {
    "remember": {"content": LONG_TEXT},
    "record_event": {"event_type": "note", "content": LONG_TEXT},
    "record_events": {"items": [{"event_type": "note", "content": text} for text in SHORT_TEXTS]},
    "create_entity": {"name": "a", "entity_type": "b", "observations": [LONG_TEXT]},
    "create_entities": {"entities": [{"name": "a", "entityType": "b", "observations": SHORT_TEXTS}]},
    "create_task": {"title": "a", "details": LONG_TEXT},
    "write_file": {"path": "a.txt", "content": LONG_TEXT},
    "recall_events": {"session_id": LONG_TEXT},
}


def note_texts_on_loop(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[int]:
    """Return the lengths of the texts that a function is given on an event loop, as they come."""
    real: Callable[..., Any] = getattr(module, name)
    lengths: list[int] = []

    def watch(text: str, *args: Any, **options: Any) -> Any:
        if get_running_loop() is not None:
            lengths.append(len(text))
        return real(text, *args, **options)

    monkeypatch.setattr(module, name, watch)
    return lengths


def dispatch(app: App, operation: str, /, **arguments: Any) -> Any:
    async def call() -> Any:
        calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)
        return await calls.dispatch(app.catalog.get_operation(operation), arguments, app.create_context("p", "http"))

    return asyncio.run(call())


@pytest.mark.parametrize("name", LONG_CALLS)
def test_long_arguments_do_not_hold_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lengths = note_texts_on_loop(monkeypatch, redaction, "find_secrets")
    with suppress(InvalidInput):  # a session with so long a name
        dispatch(isolated, name, **LONG_CALLS[name])
    assert sum(lengths) < LONG_VALUE_CHARS


def test_skill_does_not_hold_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = note_texts_on_loop(monkeypatch, redaction, "find_secrets")
    code = f"def one() -> int:\n    return 1\n# {LONG_TEXT[:28_000]}"
    assert dispatch(isolated, "save_skill", name="one", code=code, description="One.").name == "one"
    assert sum(lengths) < 1_000


@pytest.mark.both_engines
def test_documents_do_not_hold_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(LONG_TEXT)
    lengths = note_texts_on_loop(monkeypatch, redaction, "find_secrets")
    assert dispatch(isolated, "ingest_document", path=str(tmp_path / "a.txt")).pieces > 1
    assert sum(lengths) < LONG_VALUE_CHARS


def test_briefing_does_not_hold_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        dispatch(isolated, "remember", content=f"{number} {LONG_TEXT[:5_000]}", tags=["important"])
    for number in range(80):
        dispatch(isolated, "create_task", title=f"open the harbour {number}", due="yesterday")
    lengths = note_texts_on_loop(monkeypatch, voice, "shorten_text")
    briefing = dispatch(isolated, "briefing", branch="harbour-opens-at-seven")
    assert "harbour" in briefing.text
    dispatch(isolated, "remind", prompt="at which hour, seven or eight, does the harbour open")
    assert sum(lengths) < 1_000


@pytest.mark.both_engines
@pytest.mark.parametrize("kind", ["write", "read"])
def test_short_calls_do_not_wait_for_long_ones(isolated: App, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """With the fewest slots that a server has: more long calls wait for threads, and a short one has a slot."""
    monkeypatch.setattr("athena.server.admission.TURN_TIMEOUT_S", 0.5)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    long_calls, may_end = threading.Semaphore(0), threading.Event()
    find_secrets = redaction.find_secrets

    def wait_on_thread(text: str, *args: Any, **options: Any) -> Any:
        if get_running_loop() is None:
            long_calls.release()
            assert may_end.wait(30)
        return find_secrets(text, *args, **options)

    monkeypatch.setattr(redaction, "find_secrets", wait_on_thread)
    monkeypatch.setattr("athena.operations.privacy.find_secrets", wait_on_thread)
    context = isolated.create_context("p", "http")

    async def call() -> Any:
        max_concurrent = get_call_limit("sqlite")
        assert max_concurrent == MAX_LONG_CALLS  # else the long calls leave slots anyway
        calls = CallDispatcher(isolated.catalog, is_stopping=lambda: False, max_concurrent=max_concurrent)

        def start(name: str, **arguments: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(calls.dispatch(isolated.catalog.get_operation(name), arguments, context))

        def start_long(number: int) -> asyncio.Task[Any]:
            text = f"{number} {LONG_TEXT}"
            return start("remember", content=text) if kind == "write" else start("detect_pii", text=text)

        left, *waiting = [start_long(number) for number in range(10)]
        try:
            for _ in range(MAX_LONG_CALLS):
                assert await asyncio.to_thread(long_calls.acquire, timeout=20)
            await start("remember", content="The harbour is closed.")
            await start("list_memories")
            left.cancel()  # its place is given back once, when its thread has ended
            await start("remember", content="The harbour is open.")
        finally:
            may_end.set()
        return await asyncio.gather(*waiting)

    results = asyncio.run(call())
    assert len(results) == 9
    assert kind == "read" or {memory.outcome for memory in results} == {"new"}


def test_server_that_stops_begins_no_long_call(isolated: App) -> None:
    calls = CallDispatcher(isolated.catalog, is_stopping=lambda: True, max_concurrent=2)
    remember, context = isolated.catalog.get_operation("remember"), isolated.create_context("p", "http")
    with pytest.raises(Unavailable, match="stopping"):
        asyncio.run(calls.dispatch(remember, {"content": LONG_TEXT}, context))


@pytest.mark.both_engines
def test_reads_do_not_wait_for_checks_of_whole_store(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    check_memories = check_rows.check_memories

    async def wait(*args: Any) -> Any:
        assert may_end.wait(30)
        return await check_memories(*args)

    monkeypatch.setattr(check_rows, "check_memories", wait)
    context = app.create_context("p", "http")
    dispatch(app, "remember", content="The harbour opens at seven.")

    async def work() -> tuple[list[Any], list[Any]]:
        calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=4)

        def start(name: str, **arguments: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(calls.dispatch(app.catalog.get_operation(name), arguments, context))

        checks = [start("verify") for _ in range(5)]
        await asyncio.sleep(0.05)
        short = [start("recall", query="harbour"), start("remember", content="The harbour is closed.")]
        done, _ = await asyncio.wait(short, timeout=20)
        may_end.set()
        return list(done), await asyncio.gather(*checks)

    done, verdicts = asyncio.run(work())
    assert len(done) == 2
    assert [verdict.ok for verdict in verdicts] == [True] * 5


@pytest.mark.parametrize("accepted", ["application/json", "application/x-ndjson", "mcp"])
def test_long_answers_do_not_hold_event_loop(isolated: App, monkeypatch: pytest.MonkeyPatch, accepted: str) -> None:
    observations = [f"{number} {LONG_TEXT}" for number in range(3)]
    dispatch(isolated, "create_entity", name="harbour", entity_type="place", observations=observations)
    texts_on_loop: list[str] = []
    real = types.to_json

    def watch(value: Any) -> Any:
        if get_running_loop() is not None:
            texts_on_loop.append(repr(value))
        return real(value)

    monkeypatch.setattr("athena.server.http.to_json", watch)
    monkeypatch.setattr("athena.server.mcp.text.to_json", watch)
    answer = asyncio.run(ask_mcp(isolated) if accepted == "mcp" else ask_http(isolated, accepted))
    assert "The harbour opens at seven." in answer
    assert not texts_on_loop
    if accepted != "mcp":
        entities = json.loads(answer)["data"] if accepted == "application/json" else [json.loads(answer)]
        assert entities[0]["observations"] == observations


async def ask_http(app: App, accepted: str) -> str:
    async def probe_health() -> dict[str, Any]:
        return {}

    api = HttpApi(
        app.catalog,
        lambda project, key: app.create_context("p", "http", key),
        probe_health,
        {},
        is_stopping=lambda: False,
        max_concurrent=2,
    )
    body = json.dumps({"query": "harbour"}).encode()
    headers = [(b"content-type", b"application/json"), (b"accept", accepted.encode())]
    scope = {"type": "http", "method": "POST", "path": "/tools/search_graph/execute", "headers": headers}
    sent: list[bytes] = []
    received = iter([{"type": "http.request", "body": body}])

    async def receive() -> Any:
        if (message := next(received, None)) is None:
            await asyncio.sleep(30)
        return message

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await Router(api.create_routes())({**scope, "query_string": b""}, receive, send)
    return b"".join(sent).decode()


async def ask_mcp(app: App) -> str:
    calls = CallDispatcher(app.catalog, is_stopping=lambda: False, max_concurrent=2)
    handlers = McpHandlers(calls, lambda project, workspace: app.create_context("p", "mcp"), lambda _: McpPeer("all"))
    async with Client(handlers.create_server()) as client:
        answer = await client.call_tool("read_graph", {})
    return str(answer.content[0])


@pytest.mark.parametrize("engine_name", ["monty", "python"])
def test_result_is_searched_within_time(isolated: App, engine_name: str) -> None:
    code = "'QUJDREVGR0hJSktM ' * 120_000"  # took 14 s of CPU after the program's end
    began = time.process_time()
    run = dispatch(isolated, "execute_code", code=code, engine=engine_name, timeout_s=2.0)
    assert time.process_time() - began < 8
    assert (run.success, run.truncated, run.handle) == (True, True, None)


def test_search_for_secrets_ends_with_its_program() -> None:
    asked: list[bool] = []

    def is_stopped() -> bool:
        asked.append(True)
        return len(asked) > 10

    async def search() -> Any:
        return redaction.redact("QUJDREVGR0hJSktM " * 10_000)

    with pytest.raises(LimitExceeded, match="the run has ended"):
        run_sync(search(), is_stopped=is_stopped)
