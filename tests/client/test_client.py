"""AthenaClient against a real server, and against servers and networks that misbehave."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from athena import AsyncAthenaClient, AthenaClient
from athena.client import RETRY_DELAY_S
from athena.errors import (
    AthenaError,
    Conflict,
    Denied,
    InvalidInput,
    LimitExceeded,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from tool_vectors import give_tool_vectors
from wait_tools import LONG

pytestmark = pytest.mark.sqlite_only("the client knows no engine")
TOKEN = "0123456789abcdef"
SERVE = [sys.executable, "-m", "athena", "serve", "--port"]
Talk = Callable[[socket.socket, int], None]


class ServerProcess:
    """A server process with its own data folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        give_tool_vectors(home)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ATHENA_")}
        self.log = home.with_name("server.log").open("w")
        self.process = subprocess.Popen(
            [*SERVE, "0"],
            env=clean | {"ATHENA_HOME": str(home), "ATHENA_PROJECT": "test"},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = next(word for word in self.process.stdout.readline().split() if "//" in word).rstrip(";")
        self.token = (home / "token").read_text().strip()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=LONG)
        self.log.close()


@pytest.fixture(scope="module")
def server_process(tmp_path_factory: pytest.TempPathFactory) -> Generator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("served"))
    yield server
    server.stop()


@pytest.fixture
def client(server_process: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[AthenaClient]:
    """Return a client that found the token itself, in a project of its own."""
    monkeypatch.setenv("ATHENA_HOME", str(server_process.home))
    with AthenaClient(server_process.url, project=tmp_path.name) as made:
        yield made


@contextlib.contextmanager
def serve_connections(talk: Talk, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve each connection with `talk`, which gets its number, starting at 0."""
    listener = socket.create_server((host, 0))
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket, number: int) -> None:
        with connection, contextlib.suppress(OSError):
            talk(connection, number)

    def accept() -> None:
        for number in range(1_000):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection, number)))
            threads[-1].start()

    threads.append(threading.Thread(target=accept))
    threads[0].start()
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in threads:
            thread.join(LONG)


def request(connection: socket.socket) -> bytes:
    """Read one request; return nothing if the other side has closed."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65_536)):
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body


def answer(status: int, body: object, *headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = "".join(f"{line}\r\n" for line in (f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", *headers))
    return head.encode() + b"\r\n" + raw


def error_body(code: str, *, retry: bool = False) -> dict[str, object]:
    return {"success": False, "error": {"code": code, "message": "no", "hint": "do this", "retry": retry}}


def always_reply(raw: bytes) -> Talk:
    def talk(connection: socket.socket, _: int) -> None:
        while request(connection):
            connection.sendall(raw)

    return talk


def proxy(started: ServerProcess, lost: Callable[[bytes], bool]) -> Talk:
    """Forward everything to a server, but drop the replies for which `lost` returns true."""

    def talk(connection: socket.socket, _: int) -> None:
        host, port = started.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as other:
            while asked := request(connection):
                head, _gap, body = asked.partition(b"\r\n\r\n")
                lines = [f"Host: {host}:{port}".encode() if x.startswith(b"Host:") else x for x in head.split(b"\r\n")]
                other.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
                answered = request(other)  # a reply has the same framing as a request
                if lost(asked):
                    return
                connection.sendall(answered)

    return talk


def test_client_stores_finds_edits_and_forgets(client: AthenaClient) -> None:
    memory = client.remember(content="Deploys run on Fridays", tags=["deploy"])
    assert client.recall(query="when do we deploy?", k=3)[0]["hash"] == memory["hash"]
    assert client.update_memory(memory["id"], content="Deploys run on Mondays")
    assert "Mondays" in client.get_memory(memory["id"])["content"]
    assert client.forget(memory_id=memory["id"]) is True
    assert client.forget(memory_id=memory["id"]) is False
    assert client.call_tool("recall", query="deploys", k=5) == []


def test_client_gets_no_chance_hits(client: AthenaClient) -> None:
    client.remember(content="Deploys run on Fridays", tags=["deploy"])
    assert client.recall(query="quantum chromodynamics") == []
    assert client.call_tool("recall", query="quantum chromodynamics", min_score=None) == []
    (nearest,) = client.recall(query="quantum chromodynamics", min_score=0)
    assert 0 < nearest["score"] < 0.05


def test_client_records_and_recalls_events(client: AthenaClient) -> None:
    event = client.record_event(event_type="action", content="ran the tests", outcome="success", session_id="s1")
    client.record_event("action", "deployed the shop", outcome="failure", session_id="s1", duration_ms=5)
    assert [one["content"] for one in client.recall_events(session_id="s1", limit=50)] == [
        "deployed the shop", "ran the tests",
    ]  # fmt: skip
    (failed,) = client.recall_events(query="what failed today")
    assert (failed["outcome"], failed["duration_ms"], failed["session_id"]) == ("failure", 5, "s1")
    assert client.recall_events("tests", limit=1)[0]["id"] == event["id"]
    assert client.call_tool("list_sessions")[0]["events"] == 2
    assert client.call_tool("session_summary", session_id="s1")["by_outcome"] == {"success": 1, "failure": 1}
    assert [day["entries"][0]["text"] for day in client.call_tool("timeline")] == ["ran the tests"]
    assert {hit["kind"] for hit in client.recall("deployed", kinds=["memory", "event"])} == {"event"}
    assert client.recall("deployed") == []
    assert client.call_tool("stats")["events"] == 2


def test_event_with_lost_reply_recorded_once(server_process: ServerProcess, client: AthenaClient) -> None:
    lost = iter([True, False])
    with (
        serve_connections(proxy(server_process, lambda asked: b"/execute" in asked and next(lost, False))) as url,
        AthenaClient(url, project=client.project) as unlucky,
    ):
        unlucky.record_event("action", "paid the invoice", session_id="s1")
        unlucky.record_event("action", "paid the invoice", session_id="s1")
    assert len(client.recall_events()) == 2


def test_client_plans_and_completes_tasks(client: AthenaClient) -> None:
    first = client.call_tool("create_task", title="dig", due="tomorrow 9am", priority="high")
    then = client.call_tool("create_task", title="sow", depends_on=[first["id"]])
    assert [one["title"] for one in client.call_tool("due_tasks", within="2 days")] == ["dig"]
    assert client.call_tool("list_tasks", state="blocked")[0]["blocked_by"] == [first["id"]]
    done = client.call_tool("complete_task", task_id=first["id"], outcome="deep enough")
    assert done["unblocked"] == [{"id": then["id"], "title": "sow"}]
    client.call_tool("undo")
    assert [one["title"] for one in client.call_tool("list_tasks")] == ["dig", "sow"]


def test_client_finds_operations(client: AthenaClient) -> None:
    found = client.discover_tools()
    assert found["total_tools"] == sum(group["count"] for group in found["categories"].values())
    assert {tool["name"] for tool in client.list_tools(category="memory")} > {"remember", "recall", "forget"}
    assert client.search_tools("forget memories that have a tag", limit=3)
    assert [p["name"] for p in client.get_tool("recall")["parameters"]][:2] == ["query", "k"]
    assert client.info()["name"] == "athena"
    assert client.health()["status"] == "healthy"
    for name in ("list", "nothing", "a/b", "..", "ö?&#"):
        with pytest.raises(NotFound):
            client.get_tool(name)


def test_iterate_yields_every_memory_once(client: AthenaClient) -> None:
    client.remember_batch([f"Lead {number} wants a quote" for number in range(53)])
    found = list(client.recall_iter("quote for a lead", batch=10))
    assert len({one["id"] for one in found}) == len(found) == 53
    assert len(list(client.recall_iter("quote for a lead", k=25, batch=10))) == 25
    assert len(list(client.recall_iter("quantum chromodynamics"))) == 53


@pytest.mark.parametrize("name", ["Größe 100% + mehr/日本語", " spaced ", "a%20b", "line\nbreak\r\nX-Evil: 1", "🦉"])
def test_project_may_have_any_name(client: AthenaClient, name: str) -> None:
    with AthenaClient(client.url, project=name) as other:
        other.remember(content=f"kept in {name!r}")
        assert any(one["name"] == name.strip() for one in other.call_tool("list_projects"))
    assert client.recall(query="kept in") == []


def test_text_round_trips_unchanged(client: AthenaClient) -> None:
    for text in ("größer 日本語 🦉", 'quotes " and \\ and \u2028', "half a pair: \ud83d end"):
        memory = client.remember(content=text)
        assert client.get_memory(memory["id"])["content"].replace("\ufffd", "\ud83d") == text


def test_token_is_found_or_given(client: AthenaClient, monkeypatch: pytest.MonkeyPatch) -> None:
    right = (Path(os.environ["ATHENA_HOME"]) / "token").read_text().strip()
    monkeypatch.setenv("ATHENA_HOME", "/nonexistent")
    with pytest.raises(Unauthenticated, match="a token is needed"):
        client.info()
    monkeypatch.setenv("ATHENA_TOKEN", right)
    assert client.info()
    monkeypatch.setenv("ATHENA_TOKEN", "wrong")
    with pytest.raises(Unauthenticated, match="wrong"):
        client.info()
    with AthenaClient(client.url, token=right) as other:
        assert other.info()


def test_errors_have_library_types(client: AthenaClient) -> None:
    with pytest.raises(InvalidInput, match="query"):
        client.recall(query="")
    with pytest.raises(ValueError, match="k"):
        client.recall(query="x", k=0)
    with pytest.raises(NotFound) as caught:
        client.call_tool("recal", query="x")
    assert caught.value.hint
    with pytest.raises(NotFound):
        client.get_memory(memory_id=10**9)
    for arguments in ({"query": {1, 2}}, {"query": float("nan")}, {"query": object()}):
        with pytest.raises(InvalidInput, match="JSON"):
            client.call_tool("recall", **arguments)
    with pytest.raises(LimitExceeded, match="16 MB"):
        client.remember(content="x" * (17 << 20))
    assert client.info()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "malformed", InvalidInput),
        (401, "unauthenticated", Unauthenticated),
        (403, "denied", Denied),
        (404, "not_found", NotFound),
        (405, "method_not_allowed", InvalidInput),
        (408, "too_slow", Unavailable),
        (409, "conflict", Conflict),
        (413, "too_large", LimitExceeded),
        (415, "not_json", InvalidInput),
        (422, "invalid_input", InvalidInput),
        (429, "limit_exceeded", LimitExceeded),
        (500, "internal", AthenaError),
        (503, "unavailable", Unavailable),
    ],
)
def test_every_status_has_exception(status: int, code: str, kind: type[AthenaError]) -> None:
    with serve_connections(always_reply(answer(status, error_body(code)))) as url, AthenaClient(url, TOKEN) as client:
        with pytest.raises(AthenaError, match="no") as caught:
            client.info()
        assert type(caught.value) is kind
        assert (caught.value.hint, caught.value.retry) == ("do this", False)


def test_write_with_lost_reply_happens_once(server_process: ServerProcess, client: AthenaClient) -> None:
    asked: list[bytes] = []

    def lost(raw: bytes) -> bool:
        asked.append(raw)
        return len(asked) in (1, 2)

    with serve_connections(proxy(server_process, lost)) as url, AthenaClient(url, project=client.project) as other:
        memory = other.remember(content="stored, and nobody heard of it")
    keys = {line for raw in asked for line in raw.split(b"\r\n") if line.startswith(b"Idempotency-Key")}
    assert len(asked) == 3
    assert len(keys) == 1
    assert [one["id"] for one in client.call_tool("list_memories")] == [memory["id"]]
    assert len(client.call_tool("memory_history", memory_id=memory["id"])) == 1
    asked.clear()
    with serve_connections(proxy(server_process, lost)) as url, AthenaClient(url, project=client.project) as other:
        assert other.forget(memory["id"]) is True  # the last attempt alone would have found nothing to forget


def test_busy_server_is_retried_after_delay() -> None:
    times: list[float] = []

    def talk(connection: socket.socket, _: int) -> None:
        while request(connection):
            times.append(time.monotonic())
            busy = answer(503, error_body("unavailable", retry=True), "Retry-After: 1")
            connection.sendall(busy if len(times) == 1 else answer(200, {"name": "athena"}))

    with serve_connections(talk) as url, AthenaClient(url, TOKEN) as client:
        assert client.info() == {"name": "athena"}
    assert times[1] - times[0] >= 1.0  # without the header the client would have waited a tenth of that


def test_busy_server_is_retried_five_times() -> None:
    times: list[float] = []

    def talk(connection: socket.socket, _: int) -> None:
        while request(connection):
            times.append(time.monotonic())
            connection.sendall(answer(502, b"<html>bad gateway</html>"))

    with serve_connections(talk) as url, AthenaClient(url, TOKEN) as client, pytest.raises(Unavailable, match="502"):
        client.info()
    assert len(times) == 5
    for number, (one, next_one) in enumerate(itertools.pairwise(times)):
        assert next_one - one >= RETRY_DELAY_S * 2**number / 2


def test_closed_idle_connection_is_replaced() -> None:
    served: list[int] = []

    def talk(connection: socket.socket, number: int) -> None:
        request(connection)
        served.append(number)
        connection.sendall(answer(200, {"number": number}))

    with serve_connections(talk) as url, AthenaClient(url, TOKEN) as client:
        times = []
        for number in range(20):
            times.append(time.monotonic())
            assert client.info()["number"] == number
    # immediately, without a pause
    assert min(later - one for one, later in itertools.pairwise(times)) < RETRY_DELAY_S / 2
    assert served == list(range(20))


def test_connections_are_reused() -> None:
    def talk(connection: socket.socket, number: int) -> None:
        while request(connection):
            connection.sendall(answer(200, {"number": number}))

    with serve_connections(talk) as url, AthenaClient(url, TOKEN) as client:
        assert {client.info()["number"] for _ in range(50)} == {0}


def test_restarted_server_is_found(tmp_path: Path) -> None:
    first = ServerProcess(tmp_path / "served")
    with AthenaClient(first.url, first.token) as client:
        try:
            assert client.info()
        finally:
            first.stop()
        port = first.url.rpartition(":")[2]
        second = subprocess.Popen(
            [*SERVE, port],
            env=os.environ | {"ATHENA_HOME": str(tmp_path / "served")},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert second.stdout is not None
            assert b"http://" in second.stdout.readline()
            assert client.health()["status"] == "healthy"
        finally:
            second.terminate()
            second.communicate(timeout=LONG)


@pytest.mark.parametrize(
    "raw",
    [
        answer(200, b"<html>hello</html>"),
        answer(200, b"[1, 2]"),
        answer(200, b"[" * 100_000),
        answer(200, {"unknown": 1}),
        answer(301, b"", "Location: http://example.com/"),
        answer(400, {"error": "not an object"}),
        answer(404, {"error": {"code": ["x"], "message": None, "hint": 5}}),
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"\x00\xff\x00" * 1_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{",
    ],
)
def test_foreign_server_raises_athena_error(raw: bytes) -> None:
    def talk(connection: socket.socket, _: int) -> None:
        request(connection)
        connection.sendall(raw)

    with serve_connections(talk) as url, AthenaClient(url, TOKEN, timeout=3) as client:
        with pytest.raises(AthenaError) as caught:
            client.recall(query="x")
        assert caught.value.hint


@pytest.mark.parametrize("announced", [True, False])
def test_endless_answer_is_not_read_to_its_end(announced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("athena.client.MAX_ANSWER_BYTES", 4 << 20)
    sent: list[int] = []

    def talk(connection: socket.socket, _: int) -> None:
        request(connection)
        head = "Content-Length: 1099511627776" if announced else "Connection: close"
        connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        for _ in range(64):
            connection.sendall(b" " * (1 << 20))
            sent.append(1)

    with serve_connections(talk) as url, AthenaClient(url, TOKEN, timeout=LONG) as client:
        with pytest.raises(Unavailable, match="more than 4,194,304 bytes") as caught:
            client.recall(query="x")
        assert not caught.value.retry
        assert "smaller k" in str(caught.value.hint)
    assert len(sent) < 64


def test_answer_that_breaks_off_is_asked_for_again() -> None:
    whole = answer(200, {"success": True, "data": [], "total": 0})

    def talk(connection: socket.socket, number: int) -> None:
        request(connection)
        connection.sendall(whole if number else whole[:-5])

    with serve_connections(talk) as url, AthenaClient(url, TOKEN, timeout=LONG) as client:
        assert not client.recall(query="x")


def test_slow_server_times_out() -> None:
    done = threading.Event()

    def silent(connection: socket.socket, _: int) -> None:
        request(connection)
        done.wait(LONG)

    def dripping(connection: socket.socket, _: int) -> None:
        request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        while not done.wait(0.1):
            connection.sendall(b" ")

    def dripping_from_the_start(connection: socket.socket, _: int) -> None:
        request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not done.wait(0.1):
            connection.sendall(b"x")

    for talk in (silent, dripping, dripping_from_the_start):
        done.clear()
        with serve_connections(talk) as url, AthenaClient(url, TOKEN, timeout=0.6) as client:
            began = time.monotonic()
            try:
                with pytest.raises(Unavailable, match=r"within 0\.6 s"):
                    client.info()
            finally:
                done.set()
            assert time.monotonic() - began < LONG / 2


def test_connection_refused_error_has_hint() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    began = time.monotonic()
    with AthenaClient(f"http://localhost:{port}", TOKEN, timeout=100) as client, pytest.raises(Unavailable) as caught:
        client.info()
    assert "start it with: athena serve" in str(caught.value.hint)
    assert time.monotonic() - began < 50, "all of its time"


def test_threads_share_client(client: AthenaClient) -> None:
    def work(number: int) -> None:
        for turn in range(5):
            text = f"thread {number} wrote this in turn {turn}"
            memory = client.remember(content=text)
            assert client.get_memory(memory["id"])["content"] == text
            assert client.get_tool("forget")["name"] == "forget"

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(work, range(20)))
    assert len(client.call_tool("list_memories", k=1_000)) == 100


def test_forked_child_opens_own_connections() -> None:
    def talk(connection: socket.socket, number: int) -> None:
        while request(connection):
            connection.sendall(answer(200, {"number": number}))

    program = """
import os, sys
from athena import AsyncAthenaClient, AthenaClient
client = AthenaClient(sys.argv[1], "token")
assert client.info()["number"] == 0
client._guard.acquire()  # as another thread might hold it just then
child = os.fork()
if child == 0:
    os._exit(0 if client.info()["number"] == 1 else 1)
client._guard.release()
_, status = os.waitpid(child, 0)
assert client.info()["number"] == 0
sys.exit(status)
"""
    with serve_connections(talk) as url:
        assert subprocess.run([sys.executable, "-c", program, url], timeout=LONG).returncode == 0


def test_closed_client_raises_error() -> None:
    with serve_connections(always_reply(answer(200, {"a": 1}))) as url:
        client = AthenaClient(url, TOKEN)
        assert client.info()
        client.close()
        client.close()
        with pytest.raises(Unavailable, match="closed"):
            client.info()


def test_close_lets_running_call_finish() -> None:
    arrived, closed = threading.Event(), threading.Event()

    def talk(connection: socket.socket, _: int) -> None:
        request(connection)
        arrived.set()
        closed.wait(LONG)
        connection.sendall(answer(200, {"a": 1}))
        assert request(connection) == b""  # then the client closes the connection

    with serve_connections(talk) as url, ThreadPoolExecutor(1) as pool:
        client = AthenaClient(url, TOKEN)
        under_way = pool.submit(client.info)
        assert arrived.wait(LONG)
        client.close()
        closed.set()
        assert under_way.result(LONG) == {"a": 1}


def test_invalid_settings_are_named() -> None:
    for url in ("ftp://localhost", "", "http://", "http://localhost:99999", "http://[::1", "http://a:b@localhost"):
        with pytest.raises(InvalidInput, match="url"):
            AthenaClient(url)
    for project in ("", "  ", "\ud800"):
        with pytest.raises(InvalidInput, match="project"):
            AthenaClient(project=project)
    for token in ("", " ", "a\nb", "ö"):
        with pytest.raises(InvalidInput, match="token"):
            AthenaClient(token=token)
    for timeout in (0, -1, float("nan")):
        with pytest.raises(InvalidInput, match="timeout"):
            AthenaClient(timeout=timeout)
    assert AthenaClient("localhost:3000/").url == "http://localhost:3000"


def test_client_imports_nothing_heavy() -> None:
    program = """
import sys
from athena import AsyncAthenaClient, AthenaClient
AthenaClient()
print(*sorted({name.partition(".")[0] for name in sys.modules} & {
    "numpy", "asyncio", "apsw", "click", "starlette", "uvicorn", "tiktoken", "onnxruntime", "psycopg"}))
print(*sorted(name for name in sys.modules if name.startswith("athena")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    heavy, ours = done.stdout.splitlines()
    assert heavy == ""
    names = ("home", "home.paths", "operation_methods", "threads", "unknown_names", "version", "words")
    core = ["athena.core", *(f"athena.core.{name}" for name in names)]
    assert ours.split() == ["athena", "athena.client", *core, "athena.errors"]


def test_local_token_stays_on_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    monkeypatch.setenv("ATHENA_HOME", str(tmp_path))
    heard: list[bytes] = []

    def talk(connection: socket.socket, _: int) -> None:
        heard.append(request(connection))
        connection.sendall(answer(200, {"name": "athena"}))

    with (
        serve_connections(talk) as here,
        serve_connections(talk, "127.0.0.2") as elsewhere,
    ):  # stands for another machine
        for url in (here, elsewhere):
            with AthenaClient(url) as client:
                client.info()
        monkeypatch.setenv("ATHENA_TOKEN", "for that one")
        with AthenaClient(elsewhere) as client:
            client.info()
    assert [TOKEN.encode() in one for one in heard] == [True, False, False]
    assert b"Bearer for that one" in heard[2]


@pytest.mark.parametrize("token", ["ab\ncd", "✓"])
def test_invalid_token_is_refused(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATHENA_TOKEN", token)
    with AthenaClient("http://localhost:1") as client, pytest.raises(AthenaError, match="ATHENA_TOKEN"):
        client.info()


def test_client_has_every_operation_as_a_method(client: AthenaClient) -> None:
    task = client.create_task("renew the certificate", due="in 2 hours")
    assert [one["id"] for one in client.due_tasks(within="1 day", k=5)] == [task["id"]]
    stored = client.store("Deploys run on Fridays", tags=["deploy"])
    assert client.search("deploys", limit=1)[0]["hash"] == client.recall(query="deploys", k=1)[0]["hash"]
    assert client.get(stored["id"])["content"] == "Deploys run on Fridays"
    assert client.update(stored["id"], content="Deploys run on Mondays")["outcome"] == "updated"
    assert [hit["content"] for hit in client.recall_iter("deploys", limit=1)] == ["Deploys run on Mondays"]
    assert client.delete(stored["id"])
    with pytest.raises(InvalidInput, match="limit must be a whole number"):
        client.recall("deploys", limit="five")  # type: ignore[arg-type]


def test_async_client_has_the_same_methods(client: AthenaClient) -> None:
    async def use_client() -> None:
        async with AsyncAthenaClient(client.url, token=client._token, project=client.project) as one:
            stored = await asyncio.gather(*(one.remember(f"Note {i} about deploys") for i in range(8)))
            assert len({memory["hash"] for memory in stored}) == 8
            assert len(await one.recall("deploys", limit=3, min_score=0)) == 3
            assert len([hit async for hit in one.recall_iter("deploys", batch=3)]) == 8
            assert (await one.health())["count"] == 8
            assert await one.call_tool("list_tags") == []
            assert (await one.get_tool("recall"))["name"] == "recall"
            assert await one.search_tools("find memories", 1)
            assert (await one.info())["name"]
            assert await one.list_tools("memory")
            assert (await one.discover_tools())["total_tools"]
            with pytest.raises(AttributeError, match="did you mean 'recall'"):
                one.find  # type: ignore[attr-defined]  # noqa: B018
        with pytest.raises(Unavailable):
            await one.health()

    asyncio.run(use_client())
