"""Misbehaving servers: each error is specific, no server harms another, and costs are bounded."""

import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from athena.app.compose import App
from athena.core.catalog import invoke
from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.gateway.config import validate_entry
from athena.gateway.monitor import MAX_TOTAL_BYTES, ConnectionMonitor
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.store import Sqlite
from conftest import MODEL
from person_tools import approve_tools

PROGRAM = str(Path(__file__).with_name("misbehaving.py"))
PATIENCE = 2.0  # seconds until a missing answer times out; everything else may take longer on a busy machine
GROWTH = 120 << 20  # bytes, for all servers together

# The outcome of a call per kind of server: a value, or a part of the error message.
PIPES: dict[str, Any] = {
    # before the handshake
    "exits-at-start": 'cannot be connected: .*missing API key"',
    "silent": "cannot be connected: it did not introduce itself within 2 s",
    "noise-at-start": "cannot be connected: it sent more than 20,000 messages",
    "endless-line-at-start": "cannot be connected: it answered with more than 8 MB at once",
    "old-version": "cannot be connected: .*1999-01-01",
    "hangs-at-list": "cannot be connected: it did not introduce itself",
    "crashes-at-list": 'cannot be connected: .*out of cheese"',
    "no-list": "cannot be connected: ",
    "bad-entries": "cannot be connected: ",
    "deep-schema": "cannot be connected: it cannot be read",
    # during the call
    "hangs": "did not answer bad within 2 s",
    "crashes": 'broke off during bad: .*out of cheese"',
    "is-killed": "broke off during bad",
    "huge-answer": "cut off at bad: it answered with more than 8 MB at once",
    "many-values": "cut off at bad: it answered with more than 500,000 values",
    "many-parts": "cut off at bad: it answered with more than 20,000 parts",
    "many-mistakes": "what is no result: [0-9]+,000 validation errors",
    "parts-of-requests": "cut off at bad: it answered with more than 20,000 parts",
    "asks-much": "cut off at bad: it answered with more than 20,000 parts",
    "much-data": {"x": [[1]] * 30_000},
    "invalid-json": 'what is no result: it cannot be read; it wrote what is no message: ".*result',
    "wrong-id": "did not answer bad within 2 s",
    "no-id": "did not answer bad within 2 s",
    "repeated-id": ["first"],
    "noise": "did noise",
    "some-notifications": "did some-notifications",
    "notification-flood": "cut off at bad: it sent more than 20,000 messages",
    "blank-lines": "cut off at bad: it sent more than 20,000 messages",
    "endless-stderr": "cut off at bad: it does not stop to write to its standard error, more than 32 MB",
    "request-flood": "cut off at bad: it asked more than 500 things of us",
    "asks-back": "did asks-back",
    "slow-drip": "did not answer bad within 2 s",
    "half-a-line": "did not answer bad within 2 s",
    "closes-its-output": "broke off during bad",
    "bad-utf8": "\ufffd\ufffdok",
    "deep-answer": "what is no result: it cannot be read",
    "deep-value": "answered with more than 64 levels",
    "deep-text": "[" * 100_000 + "]" * 100_000,
    "error-flood": r"refused bad: E<U\+001B>\[31mE",
    "huge-error": "failed: EEEE",
    "evil-error": r"failed: <U\+001B>\[2J<U\+202E>no",
    "no-content": "what is no result",
    "null-result": "what is no result: it cannot be read",
    "list-result": "what is no result: it cannot be read",
    "empty-result": None,
    "not-a-number": '{"x": NaN}',
    "half-a-character": r'{"x": "\ud800"}',
    "unknown-block": "what is no result",
    "input-wanted": "refused bad|what is no result|failed",
    "stderr-flood": "did stderr-flood",
    "stubborn": "did stubborn",
    "leaves-a-child": "did leaves-a-child",
    "changes-at-restart": "the tool 'bad' has changed since it was approved",
}
WEB: dict[str, Any] = {
    "good": "did good",
    "http-events": "late",
    "http-forgets": "did http-forgets",  # it forgets the session, and the client starts a new one
    "http-401": "answered 401: it does not let us in",
    "http-403": "answered 403: it does not let us in",
    "http-500": r"cannot be connected \(HTTP 500\)",
    "http-500-at-call": "answered bad with HTTP 500",
    "http-redirect": r"cannot be connected \(HTTP 307\): .*not followed",
    "http-hangs": "did not answer bad within 2 s",
    "http-html": "refused bad: Unexpected content type: text/html",
    "http-no-json": "what is no result: Failed to parse",
    "http-empty": "what is no result: Failed to parse",
    "http-gzip-bomb": "cut off at bad: it answered in a form that was not asked for",
    "http-endless": "cut off at bad: it answered with more than 8 MB at once",
    "http-many-values": "cut off at bad: it answered with more than 500,000 values",
    "http-many-parts": "cut off at bad: it answered with more than 20,000 parts",
    "http-asks": "cut off at bad: it asked more than 500 things of us",
    "http-event-flood": "cut off at bad: it sent more than 20,000 messages",
    "http-event-endless": "cut off at bad: it answered with more than 8 MB at once",
    "http-drip": "did not answer bad within 2 s",
    "http-breaks-off": "broke off during bad|did not answer bad within 2 s",
    "http-wrong-id": "did not answer bad within 2 s",
    # what was done is not done again, whatever status the answer has
    "http-404-answer": "answered bad with HTTP 404: paid 1 times, then the paper was out",
    "http-404-stateless": "answered bad with HTTP 404: Not Found",
    "http-resumes": "refused bad: paid 1 times, then the paper was out",
    "http-polls": "did not answer bad within 2 s",
}
ALL = [*((kind, "stdio") for kind in PIPES), *((kind, "http") for kind in WEB)]


class Outcome(NamedTuple):
    value: Any
    error: AthenaError | None
    seconds: float


class Zoo:
    """One app with every misbehaving server, and good ones in between."""

    def __init__(self, home: Path) -> None:
        self.app = App(Sqlite(IN_MEMORY_PATH), MODEL, servers=str(home))
        self._web = subprocess.Popen(
            [sys.executable, "-I", "-S", PROGRAM, ",".join(WEB), "http"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._web.stdout
        ports = {kind: int(self._web.stdout.readline()) for kind in WEB}
        entries = [validate_entry("fine", {"command": sys.executable, "args": ["-I", "-S", PROGRAM, "fine"]})]
        for kind, how in ALL:
            given = {"command": sys.executable, "args": ["-I", "-S", PROGRAM, kind]}
            if how == "http":
                given = {"url": f"http://127.0.0.1:{ports[kind]}/mcp"}
            never = "within 2 s" in str(WEB[kind] if how == "http" else PIPES[kind])
            starts = kind not in ("silent", "hangs-at-list")
            waits = {"timeout": PATIENCE if never else 60.0, "startupTimeout": 60.0 if starts else PATIENCE}
            entries.append(validate_entry(f"{how}_{kind}", given | waits))
        self.app.gateway.servers_file.add_entries(entries)
        self.app.catalog.refresh()
        tools, _ = run_sync(self.app.gateway.fetch_tools("fine"))
        for server in self.app.gateway.list_servers():
            approve_tools(self.app, server.name, tools)
        self.app.catalog.refresh()

    def call(self, path: str, **arguments: Any) -> Outcome:
        began = time.monotonic()
        try:
            value = run_sync(invoke(self.app.catalog, path, arguments, self.app.create_context("test", "python")))
        except AthenaError as error:
            return Outcome(None, error, time.monotonic() - began)
        return Outcome(value, None, time.monotonic() - began)

    def close(self) -> None:
        self.app.close()
        self._web.communicate()


def name_of(kind: str, how: str) -> str:
    return f"{how}_{kind}".replace("-", "_")


@pytest.fixture
def zoo(tmp_path: Path) -> Generator[Zoo]:
    made = Zoo(tmp_path)
    yield made
    made.close()


def problem(name: str, outcome: Outcome, expected: Any) -> str:
    """Return what is wrong with the outcome of a misbehaving server's call, if anything."""
    if outcome.error is None:
        wanted = expected[0] if isinstance(expected, list) else expected
        return "" if outcome.value == wanted else f"{name}: {str(outcome.value)[:300]}"
    said = str(outcome.error)
    fits = isinstance(expected, str) and re.search(expected, said, re.DOTALL) and name in said
    told = outcome.error.hint and len(said) < 1_500 and said.isprintable()
    return "" if fits and told else f"{name}: {said[:500]}"


def test_misbehaving_servers_are_named_and_contained(zoo: Zoo) -> None:
    """Call all of them concurrently, and a good one meanwhile."""
    zoo.call("fine.echo", text="warm")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    over = threading.Event()
    fine: list[Outcome] = []

    def be_good() -> None:
        while not over.is_set():
            fine.append(zoo.call("fine.echo", text="still here"))
            over.wait(0.05)

    watcher = threading.Thread(target=be_good)
    watcher.start()
    with ThreadPoolExecutor(16) as pool:
        outcomes = pool.map(lambda one: zoo.call(f"{name_of(*one)}.bad"), ALL)
        wanted = [(PIPES if how == "stdio" else WEB)[kind] for kind, how in ALL]
        names = [name_of(*one) for one in ALL]
        problems = list(filter(None, map(problem, names, outcomes, wanted)))
    over.set()
    watcher.join()
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    assert problems == []
    assert len(ALL) >= 60
    assert len(fine) > 10
    assert {one.value for one in fine} == {"still here"}, [one.error for one in fine if one.error]
    assert growth < GROWTH, f"{growth >> 20} MB"


def test_bytes_between_calls_are_counted() -> None:
    watch, message = ConnectionMonitor(), b" " * 400_000
    for _ in range(3):
        watch.reset_counts()
        assert all(watch.accept_message(message) for _ in range(MAX_TOTAL_BYTES // 400_000))
    assert not watch.accept_message(message)
    assert watch.violation == "it sent more than 256 MB between two calls"


def test_server_secrets_are_not_shown() -> None:
    watch = ConnectionMonitor()
    watch.record_stderr(b"cannot log in with ghp_0123456789abcdefghijABCDEFGHIJ012345\n")
    assert watch.format_last_output() == '; it said: "cannot log in with [SECRET:github-token]"'


def test_output_is_quoted_only_where_one_call_ran() -> None:
    watch = ConnectionMonitor()
    watch.record_stderr(b"error: of an earlier call\n")
    with watch.watch_call() as quote_first:
        assert quote_first() == ""
        watch.record_stderr(b"error: of this call\n")
        assert quote_first() == '; it said: "error: of this call"'
        with watch.watch_call() as quote_second:
            watch.record_stderr(b"error: of one of them\n")
            assert quote_second() == quote_first() == ""
        assert quote_first() == ""


BUSY = """
import json, sys, time
def send(**fields):
    print(json.dumps({"jsonrpc": "2.0", **fields}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    number, method = message.get("id"), message.get("method")
    if method == "initialize":
        info = {"name": "busy", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        send(id=number, result={"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
    elif method == "tools/list":
        schema = {"type": "object", "properties": {"text": {"type": "string"}}}
        send(id=number, result={"tools": [{"name": "work", "inputSchema": schema}]})
    elif method == "tools/call":
        send(method="notifications/tools/list_changed")
        for _ in range(24):  # it does one thing at a time, and says what
            print("error: retrying for " + message["params"]["arguments"]["text"], file=sys.stderr, flush=True)
            time.sleep(0.5)
        send(id=number, result={"content": [{"type": "text", "text": "ok"}]})
    elif number is not None:
        send(id=number, error={"code": -32601, "message": "unknown"})
"""


def test_failed_list_of_tools_quotes_no_call(zoo: Zoo) -> None:
    """The tools are compared again while a call of another project runs: its words are not of this one."""
    gateway = zoo.app.gateway
    entry = validate_entry(
        "busy", {"command": sys.executable, "args": ["-I", "-c", BUSY], "startupTimeout": 6.0, "timeout": 60}
    )
    gateway.servers_file.add_entries([entry])
    zoo.app.catalog.refresh()
    approve_tools(zoo.app, "busy", *run_sync(gateway.fetch_tools("busy")))
    zoo.app.catalog.refresh()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(zoo.call, "busy.work", text="Anna of another project")
        time.sleep(1)
        outcome = zoo.call("busy.work", text="mine")
        other.result()
    assert "did not list its tools" in str(outcome.error)
    assert "Anna" not in str(outcome.error)


NPM = """npm error code E404
npm error 404 Not Found - GET https://packages.example/nosuch
npm error A complete log of this run can be found in: /home/ann/.npm/_logs/x.log
"""
NODE = "node:internal/modules:1143\n  throw err;\n  ^\n\nError: Cannot find module '/x'\n    at x\n\nNode.js v20"
PYTHON = "Traceback (most recent call last):\n  raise error\nValueError: no key\n"


@pytest.mark.parametrize(
    ("output", "line"),
    [(NPM, "npm error 404 Not Found"), (NODE, "Error: Cannot find"), (PYTHON, "ValueError: no key"), ("a\nb", "b")],
)
def test_line_that_says_the_error_is_quoted(output: str, line: str) -> None:
    monitor = ConnectionMonitor()
    monitor.record_stderr(output.encode())
    assert monitor.format_last_output().startswith(f'; it said: "{line}')
