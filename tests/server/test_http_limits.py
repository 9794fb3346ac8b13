"""Limits of requests: size, depth, time and connections; and how a server starts."""

import json
import os
import re
import select
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from conftest import rounds
from http_tools import (
    SERVE,
    RunningServer,
    assert_secure_headers,
    read_reply,
    request,
    run_server,
    serve_command,
    server_environ,
)
from wait_tools import LONG

pytestmark = pytest.mark.sqlite_only("the server has a store of its own")

HURRY, ARRIVES = rounds(2, 10), rounds(3, 20)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    """Yield a server with a long header timeout."""
    command = serve_command(f"athena.server.protocol.HEAD_TIMEOUT_S = {10 * LONG}")
    with run_server(tmp_path_factory.mktemp("limits"), command=command) as made:
        yield made


@pytest.fixture(scope="module")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    """Yield a server with a short timeout for the rest of a request."""
    limits = (f"athena.server.protocol.HEAD_TIMEOUT_S = {HURRY}", f"athena.server.guard.BODY_TIMEOUT_S = {ARRIVES}")
    with run_server(tmp_path_factory.mktemp("hurried"), command=serve_command(*limits)) as made:
        yield made


@pytest.fixture(scope="module")
def slow_requests(impatient_server: RunningServer) -> Generator[dict[str, Future[tuple[int, str, float]]]]:
    """Send slow requests concurrently, since each takes until its timeout."""

    def wait(start: bytes) -> tuple[int, str, float]:
        began = time.monotonic()
        with impatient_server.connect() as connection:
            connection.sendall(start)
            reply = read_reply(connection)
        return reply.status, reply.error["code"], time.monotonic() - began

    def drip() -> tuple[int, str, float]:
        began = time.monotonic()
        with impatient_server.connect() as connection, suppress(BrokenPipeError, ConnectionResetError):
            connection.settimeout(0.5)
            while time.monotonic() - began < LONG:
                connection.sendall(b"G")
                with suppress(TimeoutError):
                    if not connection.recv(1):
                        break
        return 0, "", time.monotonic() - began

    with ThreadPoolExecutor(3) as pool:
        yield {
            "announced": pool.submit(wait, post_request(impatient_server, ("Content-Length", "1000")) + b'{"content'),
            "in pieces": pool.submit(
                wait, post_request(impatient_server, ("Transfer-Encoding", "chunked")) + b"5\r\n{"
            ),
            "a byte at a time": pool.submit(drip),
        }


def post_request(served: RunningServer, *headers: tuple[str, str]) -> bytes:
    given = [*served.auth_headers, ("Content-Type", "application/json"), *headers]
    return request("POST", "/tools/remember/execute", given)


def test_announced_large_body_is_refused(served: RunningServer) -> None:
    for length in ("104857600", "16777217", "9" * 19, "9" * 5_000):
        reply = served.send(post_request(served, ("Content-Length", length)))  # and no body
        assert reply.status == (413 if len(length) < 100 else 400), reply
        assert reply.error["code"] in ("too_large", "malformed")
        assert_secure_headers(reply)


def test_chunked_body_stops_at_limit(served: RunningServer) -> None:
    before = served.resident_mb()
    piece = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
    with served.connect() as connection:
        connection.sendall(post_request(served, ("Transfer-Encoding", "chunked")))
        sent = 0
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(100):
                connection.sendall(piece)
                sent += 1
                assert served.get("/info").status == 200
        reply = read_reply(connection)
    assert sent < 60
    assert reply.status in (413, 0)  # 0: the system drops the reply, because the server had not read all input
    assert served.resident_mb() - before < 150


@pytest.mark.parametrize("path", ["/tools/remember/execute", "/mcp"])
@pytest.mark.parametrize("way", ["announced", "chunked", "unix"])
def test_client_sees_refusal_of_large_body(served: RunningServer, path: str, way: str) -> None:
    size = 24 << 20
    length = ("Transfer-Encoding", "chunked") if way == "chunked" else ("Content-Length", str(size))
    head = request("POST", path, [*served.auth_headers, ("Content-Type", "application/json"), length])
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size) if way == "chunked" else b" " * size
    connection = socket.socket(socket.AF_UNIX) if way == "unix" else served.connect()
    with connection:
        if way == "unix":
            connection.connect(str(served.home / "athena.sock"))
        connection.settimeout(LONG)
        connection.sendall(head)
        if way != "chunked":
            select.select([connection], [], [], LONG)  # the server answers before the client sends the body
        connection.sendall(body)  # like most clients: all of the body, then the answer
        reply = read_reply(connection)
        assert reply.status == 413
        assert reply.error["code"] == "too_large"
        assert_secure_headers(reply)
        assert connection.recv(1) == b""  # closed, not reset


EMPTY_VALUES = {"objects": b"{},", "lists": b"[],", "numbers": b"1,", "texts": b'"",', "keys": b'{"a":[[]]},'}


@pytest.mark.parametrize("value", EMPTY_VALUES)
@pytest.mark.parametrize("path", ["/tools/remember_batch/execute", "/mcp"])
def test_parsed_size_is_bounded(served: RunningServer, path: str, value: str) -> None:
    served.reset_peak()
    before = served.peak_mb()
    many = EMPTY_VALUES[value] * ((15 << 20) // len(EMPTY_VALUES[value]))
    head = [
        *served.auth_headers,
        ("Content-Type", "application/json"),
        ("Accept", "application/json, text/event-stream"),
    ]
    reply = served.ask("POST", path, head, b'{"items":[' + many + b"1]}")
    assert reply.status == 413
    assert reply.error["code"] == "too_large"
    assert served.peak_mb() - before < 250


def test_commas_in_text_are_no_values(served: RunningServer) -> None:
    reply = served.execute("remember", {"content": 'a, {[ \\" ' * 200_000})
    assert reply.status == 200, reply
    assert served.execute("forget", {"memory_id": reply.json["data"]["hash"]}).status == 200


def test_largest_text_is_accepted(served: RunningServer) -> None:
    reply = served.execute("remember", {"content": "word " * 800_000})
    assert reply.status == 200, reply
    assert served.execute("forget", {"memory_id": reply.json["data"]["hash"]}).status == 200


DEEP = 1_000
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "spaces": b"  \n",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "a text": b'"content"',
    "half an object": b'{"content": "x"',
    "two objects": b"{}{}",
    "single quotes": b"{'content': 'x'}",
    "deep lists": b'{"metadata": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "very deep": b'{"content": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "65 levels": b'{"content": "x", "metadata": ' + b'{"a":' * 64 + b"1" + b"}" * 64 + b"}",
    "NaN": b'{"content": "x", "importance": NaN}',
    "Infinity": b'{"content": "x", "importance": -Infinity}',
    "too large a float": b'{"content": "x", "importance": 1e999}',
    "too large a float in metadata": b'{"content": "x", "metadata": {"a": 1e999}}',
    "a key twice": b'{"content": "x", "content": "y"}',
    "a key twice inside": b'{"content": "x", "metadata": {"a": 1, "a": 2}}',
    "no UTF-8": b'{"content": "\xff\xfe"}',
    "half of a character": b'{"content": "\xe2\x82"}',
    "a surrogate as bytes": b'{"content": "\xed\xa0\x80"}',
    "UTF-16": '{"content": "x"}'.encode("utf-16"),
    "UTF-32": '{"content": "x"}'.encode("utf-32"),
    "a byte order mark": b'\xef\xbb\xbf{"content": "x"}',
    "a huge integer": b'{"content": "x", "importance": ' + b"9" * 400 + b"}",
    "an enormous integer": b'{"content": "x", "importance": ' + b"9" * 100_000 + b"}",
    "a huge integer in metadata": b'{"content": "x", "metadata": {"date": ' + b"9" * 400 + b"}}",
    "our own word": b'{"content": "x", "self": 1, "ctx": 2, "caller": 3}',
    "an empty name": b'{"content": "x", "": 1}',
    "an odd name": b'{"content": "x", "\\ud800": 1}',
}


@pytest.mark.parametrize("name", BODIES)
def test_invalid_body_changes_nothing(served: RunningServer, name: str) -> None:
    before = served.count()
    reply = served.execute("remember", BODIES[name])
    assert reply.status in (400, 422), reply
    assert reply.error["code"] in ("malformed", "invalid_input")
    assert_secure_headers(reply)
    assert served.count() == before


@pytest.mark.parametrize("where", ["content", "tags", "metadata", "memory_type"])
def test_lone_surrogate_never_breaks_answer(served: RunningServer, where: str) -> None:
    given = {"content": "a text", where: {"k\ud800": "v\udfff"} if where == "metadata" else "odd \ud800 text"}
    reply = served.execute("remember", given)
    assert reply.status in (200, 400, 422), reply
    assert served.execute("list_memories", {}).json["success"]
    for operation, arguments in (
        ("recall", {"query": "odd \ud800"}),
        ("get_memory", {"memory_id": "\ud800"}),
        ("search_by_tag", {"tags": "\ud800"}),
        ("describe_tool", {"name": "\ud800"}),
    ):
        assert served.execute(operation, arguments).status < 500, operation


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-Long", "x" * 20_000), ("X-Longer", "x" * 2_000_000), ("Cookie", "a=b; " * 10_000)],
)
def test_long_headers_are_refused(served: RunningServer, name: str, value: str) -> None:
    reply = served.get("/info", (name, value))
    assert reply.status in (400, 431, 0), reply
    if reply.status:
        assert reply.error["code"] == "malformed"
        assert_secure_headers(reply)


def test_many_headers_and_long_urls_refused(served: RunningServer) -> None:
    many = served.get("/info", *[(f"X-{number}", "x") for number in range(5_000)])
    assert many.status in (400, 431, 0)
    assert served.get("/tools/" + "a" * 100_000).status in (400, 414, 0)
    assert served.get("/tools/" + "a" * 5_000).status == 404


def test_key_and_project_length_limited(served: RunningServer) -> None:
    for name, value in (
        ("Idempotency-Key", "x" * 201),
        ("X-Athena-Project", "x" * 9_001),
        ("X-Athena-Project", "\xe9"),
        ("X-Athena-Project", "a\tb"),
        ("Idempotency-Key", " "),
    ):
        reply = served.execute("remember", {"content": "x"}, (name, value))
        assert reply.status == 400, reply
        assert name in reply.error["message"]


@contextmanager
def unfinished_requests(served: RunningServer) -> Generator[list[socket.socket]]:
    """Yield five hundred connections with an unfinished request."""
    waiting = [served.connect() for _ in range(500)]
    try:
        for number, one in enumerate(waiting):
            one.sendall((b"GET /hea", b"GET / HTTP/1.1\r\nHost: x\r\nX-", b"", b"\r\n")[number % 4])
        yield waiting
    finally:
        for one in waiting:
            one.close()


def test_unfinished_requests_do_not_block_others(served: RunningServer) -> None:
    with unfinished_requests(served) as waiting:
        for _ in range(20):
            assert served.get("/tools/discover").status == 200
        for number, one in enumerate(waiting):  # nor were they closed
            one.setblocking(False)
            if number % 4 != 3:  # an empty line is no start of a request, and gets an error
                with pytest.raises(BlockingIOError):
                    one.recv(1)


def test_unfinished_request_times_out(impatient_server: RunningServer) -> None:
    with unfinished_requests(impatient_server) as waiting:
        assert waiting
        for one in waiting:
            with suppress(ConnectionResetError):
                assert one.recv(1) in (b"", b"H")


def test_truncated_body_is_no_server_error(served: RunningServer) -> None:
    before = served.count()
    for number in range(50):
        with served.connect() as connection:
            connection.sendall(post_request(served, ("Content-Length", "1000")) + b'{"content": "' + b"x" * number)
    assert served.count() == before
    assert "Traceback" not in served.log.read_text()


def request_on_socket(path: str, data: bytes) -> tuple[int, bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONG)
        connection.connect(path)
        connection.sendall(data)
        reply = read_reply(connection)
        return reply.status, reply.body


def test_unix_socket_needs_no_token(served: RunningServer) -> None:
    path = served.home / "athena.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    status, body = request_on_socket(str(path), request("GET", "/info", [("Host", "athena")]))
    assert (status, json.loads(body)["name"]) == (200, "athena")
    assert request_on_socket(str(path), request("GET", "/info", [("Host", "x"), ("Origin", "http://x.com")]))[0] == 403


@pytest.mark.parametrize("runtime", ["short", "long" * 40, ""])
def test_long_home_path_has_socket(tmp_path: Path, runtime: str) -> None:
    home = tmp_path / ("long" * 30) / ("longer" * 20)
    home.mkdir(parents=True)
    with run_server(tmp_path, home=home, XDG_RUNTIME_DIR=str(tmp_path / runtime) if runtime else "") as made:
        facts = json.loads((home / "server.json").read_text())
        assert stat.S_IMODE(os.stat(facts["socket"]).st_mode) == 0o600
        assert stat.S_IMODE(os.lstat(os.path.dirname(facts["socket"])).st_mode) == 0o700
        assert request_on_socket(facts["socket"], request("GET", "/info", [("Host", "athena")]))[0] == 200
        assert made.get("/info").status == 200
    assert not os.path.exists(facts["socket"])


def test_insecure_socket_folder_is_refused(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    home.mkdir()
    with tempfile.TemporaryDirectory() as short:  # pytest's paths are too long for a socket
        folder = Path(short, "athena")
        folder.mkdir()
        folder.chmod(0o777)
        done = serve(home, "--port", "0", XDG_RUNTIME_DIR=short)
        assert done.returncode == 8, done
        assert "others can write" in done.stderr
        folder.rmdir()
        Path(short, "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(Path(short, "elsewhere"))
        assert serve(home, "--port", "0", XDG_RUNTIME_DIR=short).returncode == 8


def serve(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = server_environ(home, **environment)
    return subprocess.run([*SERVE, *words], env=environ, capture_output=True, text=True, timeout=LONG)


def test_second_server_names_first(served: RunningServer) -> None:
    done = serve(served.home, "--port", "0")
    assert done.returncode == 4, done
    assert str(served.process.pid) in done.stderr
    assert f"http://localhost:{served.port}" in done.stderr
    assert "Traceback" not in done.stderr
    assert served.get("/info").status == 200


def test_taken_port_error_is_clear(served: RunningServer, tmp_path: Path) -> None:
    done = serve(tmp_path / "other", "--port", str(served.port))
    assert done.returncode == 8, done
    assert re.search(rf"127\.0\.0\.1:{served.port} cannot be used: Address already in use", done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_no_token_requires_loopback(tmp_path: Path, host: str) -> None:
    done = serve(tmp_path / "home", "--port", "0", "--no-auth", "--host", host)
    assert done.returncode == 8, done
    assert "this machine only" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_token_warns_and_refuses_pages(tmp_path: Path) -> None:
    with run_server(tmp_path, "--port", "0", "--no-auth") as made:
        headers = [("Host", f"localhost:{made.port}")]
        assert made.ask("GET", "/info", headers).status == 200
        assert made.ask("GET", "/info", [*headers, ("Origin", "http://evil.com")]).status == 403
        assert made.ask("GET", "/info", [("Host", "evil.com")]).status == 403
        assert "WARNING" in made.log.read_text()


def test_token_is_created_once_and_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    words = [sys.executable, "-m", "athena", "token"]
    environ = server_environ(home)
    several = [subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    said = {one.communicate(timeout=60)[0].strip() for one in several}
    assert len(said) == 1
    assert said == {(home / "token").read_text().strip()}
    assert len(said.pop()) >= 43
    assert stat.S_IMODE((home / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [file.name for file in home.iterdir()] == ["token"]


@pytest.mark.parametrize("way", ["announced", "in pieces"])
def test_missing_body_times_out(slow_requests: dict[str, Future[tuple[int, str, float]]], way: str) -> None:
    status, code, took = slow_requests[way].result(2 * LONG)
    assert (status, code) == (408, "too_slow")
    assert took > 0.75 * ARRIVES


def test_slow_bytes_do_not_hold_connection(slow_requests: dict[str, Future[tuple[int, str, float]]]) -> None:
    assert slow_requests["a byte at a time"].result(2 * LONG)[2] < LONG
