"""The socket of `athena mcp`: access, valid input, limits and shutdown."""

import json
import os
import signal
import socket
import stat
import time
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp_tools import open_lines

from athena.server.mcp.workspaces import MAX_TRACKED_SESSIONS, SESSION_IDLE_TIMEOUT_S, WorkspacePool
from http_tools import RunningServer, run_server
from wait_tools import LONG, pausing_code, wait_until

pytestmark = pytest.mark.sqlite_only("the server has a file of its own")

PING = b'{"jsonrpc":"2.0","id":"last","method":"ping"}'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    with run_server(tmp_path_factory.mktemp("stream")) as server:
        yield server


def test_socket_is_private_to_owner(served: RunningServer) -> None:
    found = os.stat(served.home / "mcp.sock")
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600


HELLOS: dict[str, tuple[bytes, str]] = {
    "no JSON": (b"GET / HTTP/1.1", "invalid_input"),
    "no object": (b"[1]", "invalid_input"),
    "nothing": (b"", "invalid_input"),
    "too long": (b'{"project": "' + b"x" * 70_000 + b'"}', "invalid_input"),
    "too deep": (b"[" * 60_000, "invalid_input"),
    "unknown tools": (b'{"tools": "most"}', "invalid_input"),
    "tools that are no text": (b'{"tools": ["all"]}', "invalid_input"),
    "a project that is no text": (b'{"project": 7}', "invalid_input"),
    "an empty project": (b'{"project": " "}', "invalid_input"),
    "a store that is no object": (b'{"store": "x"}', "invalid_input"),
    "another store": (b'{"store": {"ATHENA_DB_PATH": "/nowhere/else.db"}}', "conflict"),
    "a server's store": (b'{"store": {"ATHENA_DATABASE_URL": "postgresql://nowhere/x"}}', "conflict"),
    "bad bytes": (b"\xff\xfe\x00", "invalid_input"),
}


@pytest.mark.parametrize("name", HELLOS)
def test_missing_greeting_is_refused(served: RunningServer, name: str) -> None:
    hello, code = HELLOS[name]
    with open_lines(served.home, hello) as one:
        assert one.greeting["code"] == code
        assert one.greeting["error"]
        assert one.read() is None


ODD: dict[str, tuple[bytes, int | None]] = {
    "no JSON": (b"hello", -32700),
    "half of JSON": (b'{"jsonrpc":"2.0","id":1,', -32700),
    "bytes that are no text": (b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', -32700),
    "a NUL": (b"\x00", -32700),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    "a number": (b"7", -32600),
    "an empty object": (b"{}", -32600),
    "another version": (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600),
    "an id that is an object": (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
    "an id that is true": (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', -32600),
    "nested deeply": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 50_000 + b"1", -32700),
    "too long": (b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * (17 << 20) + b'"}', -32700),
    "an unknown method": (b'{"jsonrpc":"2.0","id":1,"method":"rm -rf"}', -32601),
    "parameters that are a list": (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}', -32600),
    "a call of nothing": (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}', -32602),
    "arguments that are a text": (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"recall","arguments":"x"}}',
        -32602,
    ),
    "an answer to nothing": (b'{"jsonrpc":"2.0","id":77,"result":{}}', None),
    "an unknown notification": (b'{"jsonrpc":"2.0","method":"notifications/nothing"}', None),
    "a cancellation of nothing": (
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{"a":1}}}',
        None,
    ),
    "empty lines": (b"\n\n   \n", None),
}


@pytest.mark.parametrize("name", ODD)
def test_malformed_line_keeps_connection(served: RunningServer, name: str) -> None:
    line, code = ODD[name]
    with open_lines(served.home) as one:
        one.begin().send(line, PING)
        answers = {json.dumps(answer["id"]): answer for answer in (one.read(), *([one.read()] if code else []))}
        assert answers.pop('"last"')["result"] == {}
        assert [answer["error"]["code"] for answer in answers.values()] == ([code] if code else [])


def test_endless_line_uses_little_memory(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin()
        before = 0
        while before + 3 < (now := served.resident_mb()):  # it loads modules in the background
            before = now
            time.sleep(0.7)
        for _ in range(150):
            one.socket.sendall(b"x" * (1 << 20))
        assert served.resident_mb() < before + 80
        one.send(b"", PING)
        assert one.read()["error"]["code"] == -32700
        assert one.read()["id"] == "last"


def test_slow_reader_is_not_read(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin().socket.settimeout(0.5)
        sent, most = 0, 4 << 20
        with suppress(TimeoutError):
            while sent < most:  # the answer to each of these lines is longer than the line
                sent += one.socket.send((b"x" * 49 + b"\n") * 500)
        assert sent < most


def test_overload_is_refused_without_loss(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin()
        for number in range(1, 401):
            one.call(number, "recall", query=f"question {number}", k=1)
        answers = {answer["id"]: answer for answer in (one.read() for _ in range(400))}
        assert set(answers) == set(range(1, 401))
        refused = [answer for answer in answers.values() if "error" in answer]
        assert all("too many requests at once" in answer["error"]["message"] for answer in refused)
        one.call(1000, "recall", query="still there", k=1)
        assert one.read()["id"] == 1000


def test_duplicate_request_id_is_refused(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin().call("a", "execute_code", code=f"{pausing_code('ids')}'first'", workspace="ids")
        one.call("a", "recall", query="second")
        assert "this id is in use" in one.read()["error"]["message"]
        served.call("write_file", path="go", content="x", workspace="ids")
        assert one.read()["result"]["content"][0]["text"] == "first"


def test_disconnect_stops_program(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin().call(1, "execute_code", code=pausing_code("left"), workspace="left")
        wait_until(lambda: served.call("list_files", workspace="left"))

    def status() -> str:
        (run,) = [run for run in served.call("list_runs") if run["workspace"] == "left"]
        return str(run["status"])

    wait_until(lambda: status() != "running")
    assert status() in ("failed", "unknown")
    assert [file["path"] for file in served.call("list_files", workspace="left")] == ["begun"]


def test_connections_leave_no_trace(served: RunningServer) -> None:
    for _ in range(30):
        with open_lines(served.home, b"{}") as one:
            assert one.greeting["workspace"].startswith("mcp-")
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(served.home / "mcp.sock"))
    if os.path.exists("/proc"):
        assert wait_until(lambda: len(os.listdir(f"/proc/{served.process.pid}/fd")) <= 60)


def test_stopping_server_answers_first(tmp_path: Path) -> None:
    with run_server(tmp_path) as server, open_lines(server.home) as one:
        code = "workspace.write(path='begun', content='x', workspace='w')\nimport time\ntime.sleep(0.8)\n'answered'"
        one.begin().call(1, "execute_code", code=code)
        wait_until(lambda: server.call("list_files", workspace="w"))
        server.process.send_signal(signal.SIGTERM)
        answer: Any = one.read()
        assert answer["result"]["content"][0]["text"] == "answered"
        assert one.read() is None
        assert server.process.wait(timeout=LONG) == 0
        assert not (server.home / "mcp.sock").exists()


def test_no_workspace_is_given_twice() -> None:
    now = 0.0
    seats = WorkspacePool(lambda: now)
    first, second = seats.acquire("p"), seats.acquire("p")
    seats.release("p", first)
    later = [seats.acquire("p") for _ in range(50)]
    assert len({first, second, *later}) == 52
    assert seats.acquire("p", first) == first, "a client that connects again"
    assert seats.acquire("p", first) != first, "it is in use"
    assert seats.acquire("p", "default") != "default"
    assert seats.acquire("p", "mcp-1") != "mcp-1"
    session = seats.get_for_session("s", "p")
    assert seats.get_for_session("s", "p") == session
    now = SESSION_IDLE_TIMEOUT_S + 1
    assert session not in (seats.get_for_session("u", "p"), seats.get_for_session("s", "p"))


def test_connection_does_not_inherit_variables(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin().call(1, "execute_code", code="secret = 'of the first'\nsecret")
        assert "of the first" in str(one.read())
    with open_lines(served.home) as two:
        two.begin().call(1, "execute_code", code="secret")
        assert "of the first" not in str(two.read())


def test_connection_uses_no_workspace_of_another(served: RunningServer) -> None:
    with open_lines(served.home) as one, open_lines(served.home) as two:
        name = one.greeting["workspace"]
        one.begin().call(1, "execute_code", code="secret = 'of the first'\nworkspace.write(path='a', content=secret)")
        assert "of the first" not in str(one.read())
        two.begin().call(1, "execute_code", code="[run['workspace'] for run in code.list_runs()]")
        assert name in str(two.read()), "the list of runs names it"
        attempts: list[dict[str, Any]] = [
            {"code": "secret", "workspace": name},
            {"code": "secret", "workspace": f" {name} "},
            {"code": "secret = 'of the second'", "workspace": name},
            {"code": f"workspace.read(path='a', workspace={name!r})"},
            {"code": f"workspace.write(path='a', content='of the second', workspace={name!r})"},
            {"code": f"workspace.delete(path='a', workspace={name!r})"},
        ]
        for number, arguments in enumerate(attempts, 2):
            two.call(number, "execute_code", **arguments)
            assert "workspace of another connection" in str(two.read())
        one.call(2, "execute_code", code="[secret, workspace.read(path='a')]", workspace=name)
        assert str(one.read()).count("of the first") == 2


WIDE: dict[str, Any] = {
    "answers": {"inputResponses": {"a": {"role": "user", "model": "x", "content": [{}] * 200_000}}},
    "answers below the name of arguments": {"inputResponses": {"arguments": {"content": [{}] * 200_000}}},
}


@pytest.mark.parametrize("name", WIDE)
def test_message_of_many_parts_holds_nobody(served: RunningServer, name: str) -> None:
    params = {"name": "recall", "arguments": {"query": "a"}} | WIDE[name]
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    body, before_mb = json.dumps(message).encode(), served.resident_mb()
    served.reset_peak()
    with open_lines(served.home) as one:
        one.begin().send(body)
        assert "20,000 values" in one.read()["error"]["message"]
    headers = [("content-type", "application/json"), ("accept", "application/json, text/event-stream")]
    headers += [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "recall")]
    assert served.ask("POST", "/mcp", [*served.auth_headers, *headers], body).status == 413
    assert served.peak_mb() - before_mb < 400, "two million errors take gigabytes"


def test_many_arguments_are_no_parts(served: RunningServer) -> None:
    with open_lines(served.home) as one:
        one.begin().call(1, "remember", content="x", metadata={"many": [{}] * 30_000})
        assert "20,000 values" not in str(one.read())


def test_invented_sessions_are_limited() -> None:
    times = iter(range(10_000))
    seats = WorkspacePool(lambda: next(times) / 1_000)
    own = seats.acquire("p")
    names = {seats.get_for_session(f"made up {n}" + "x" * 1_000, "p") for n in range(MAX_TRACKED_SESSIONS + 50)}
    assert len(names) == MAX_TRACKED_SESSIONS + 50
    assert len(seats._last_used) <= MAX_TRACKED_SESSIONS + 1
    assert len(seats._sessions) <= MAX_TRACKED_SESSIONS
    assert own not in names  # a connection keeps its own workspace
    assert all(len(session) <= 200 for session, _ in seats._sessions)
