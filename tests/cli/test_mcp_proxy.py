"""`athena mcp` as clients start it: with a server, without one, and with one that dies."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from athena import AthenaClient
from athena.core.home import daemon, lock
from athena.core.home.paths import MCP_SOCKET, socket_path
from wait_tools import LONG, pausing_code, wait_until

pytestmark = pytest.mark.sqlite_only("each has a file of its own")

ATHENA = [sys.executable, "-m", "athena", "mcp"]
BEGIN = (
    '{"jsonrpc":"2.0","id":"first","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},'
    '"clientInfo":{"name":"test","version":"1"}}}',
    '{"jsonrpc":"2.0","method":"notifications/initialized"}',
)


def call(number: Any, tool: str, **arguments: Any) -> str:
    params = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})


def run_proxy(*lines: str, words: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a process with all its lines on standard input at once, as a shell pipe does."""
    return subprocess.run(
        [*ATHENA, *words],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | environment,
        check=False,
    )


def answers(done: subprocess.CompletedProcess[str]) -> dict[Any, str]:
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {one["id"]: one["result"]["content"][0]["text"] for one in found if "content" in one.get("result", {})}


class Client:
    """A running proxy process that a test writes to and reads from."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [*ATHENA, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
        )

    def send(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(line + "\n" for line in lines).encode())

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(timeout=LONG)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def home() -> Generator[Path]:
    """Yield a home, and stop its server at the end."""
    path = Path(os.environ["ATHENA_HOME"])
    yield path
    if info := lock.find_server(str(path)):
        lock.stop_server(str(path), info, 20)


@pytest.fixture
def client() -> Generator[Client]:
    made = Client()
    yield made
    made.close()


def test_proxy_starts_daemon_and_shares_it(home: Path) -> None:
    first = run_proxy(*BEGIN, call(1, "remember", content="Tea is at four"), call(2, "execute_code", code="6 * 7"))
    assert (first.returncode, first.stderr) == (0, "")
    assert answers(first)[1].endswith(" kept")
    assert answers(first)[2] == "42"
    server = lock.find_server(str(home))
    assert server
    second = run_proxy(*BEGIN, call(1, "recall", query="When is tea?"))
    assert answers(second)[1].endswith("Tea is at four")
    assert lock.find_server(str(home)) == server
    other = home.parent / "other.db"
    third = run_proxy(*BEGIN, call(1, "recall", query="When is tea?"), ATHENA_DB_PATH=str(other))
    assert answers(third) == {1: "nothing found"}
    assert "another store" in third.stderr
    assert other.exists()
    everything = run_proxy(
        *BEGIN, '{"jsonrpc":"2.0","id":1,"method":"tools/list"}', words=("--tools", "all", "--project=x")
    )
    assert "forget_by_tag" in everything.stdout


def test_in_memory_store_needs_no_daemon(home: Path) -> None:
    done = run_proxy(*BEGIN, call(1, "remember", content="Kept nowhere"), ATHENA_DB_PATH=":memory:")
    assert answers(done)[1].endswith(" kept")
    assert done.returncode == 0
    assert lock.find_server(str(home)) is None


def test_client_survives_killed_server(home: Path, client: Client) -> None:
    client.send(*BEGIN, call(1, "execute_code", code="x = 41"))
    assert client.read()["id"] == "first"
    assert not client.read()["result"]["isError"]
    server = lock.find_server(str(home))
    assert server
    client.send(call(2, "execute_code", code=pausing_code()), call("three", "execute_code", code="1"))
    with AthenaClient(server["url"]) as looking:
        wait_until(lambda: looking.call_tool("list_files", workspace="signals"))
    time.sleep(0.3)
    os.kill(server["pid"], signal.SIGKILL)
    lost = [client.read(), client.read()]
    assert {one["id"] for one in lost} == {2, "three"}
    assert all("ended before it answered" in one["error"]["message"] for one in lost)
    client.send(call(4, "execute_code", code="x + 1"))
    again = client.read()
    assert (again["id"], again["result"]["content"][0]["text"]) == (4, "42")
    assert client.process.stdin is not None
    client.process.stdin.close()
    assert client.process.wait(timeout=LONG) == 0
    assert client.process.stderr is not None
    assert b"the server ended; 2 requests are lost" in client.process.stderr.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    path = tmp_path_factory.mktemp("warm") / "home"
    daemon.start_daemon(str(path), LONG)
    yield path
    daemon.stop_daemon(str(path))


@pytest.fixture
def warm_home(server: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with a running server that the tests share."""
    monkeypatch.setenv("ATHENA_HOME", str(server))
    return server


def test_proxy_exits_when_client_stops_reading(warm_home: Path) -> None:
    client = Client()
    client.send(*BEGIN)
    assert client.read()["id"] == "first"
    assert client.process.stdout is not None
    client.process.stdout.close()
    assert client.process.wait(timeout=LONG) == 0
    client.close()


def test_long_lines_pass_and_oversized_fail(warm_home: Path) -> None:
    long = "word " * 40_000
    odd = [json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}) for number in (1.5, True, None)]
    tell, run = call(1, "remember", content=long), call(2, "execute_code", code="len('ab')")
    done = run_proxy(*BEGIN, tell, "x" * (17 << 20), *odd, run)
    assert done.returncode == 0, done.stderr  # it does not wait for an answer that never comes
    assert answers(done)[1].endswith(" kept")
    assert answers(done)[2] == "2"
    assert "a message may have 16 MB" in done.stdout


def test_settings_error_is_reported(home: Path) -> None:
    home.mkdir(parents=True)
    (home / "config.toml").write_text("nonsense = 1")
    done = run_proxy(*BEGIN)
    assert done.returncode == 8
    assert "there is no setting 'nonsense'" in done.stderr


def test_unknown_options_are_refused() -> None:
    for words in (("--tools", "most"), ("--nonsense",), ("more",)):
        done = run_proxy(words=words)
        assert (done.returncode, done.stdout) == (2, ""), words


def test_help_has_example() -> None:
    done = run_proxy(words=("--help",))
    assert "claude mcp add athena -- athena mcp" in done.stdout
    assert "--folder" in done.stdout


def test_project_is_that_of_folder(warm_home: Path, tmp_path: Path) -> None:
    (tmp_path / "quay" / ".git").mkdir(parents=True)
    no = {"ATHENA_PROJECT": ""}
    tell = call(1, "remember", content="The quay has two cranes")
    inside = run_proxy(*BEGIN, tell, words=("--tools", "default", "--folder", str(tmp_path / "quay")), **no)
    assert (answers(inside)[1][-4:], inside.stderr) == ("kept", "")
    found = run_proxy(*BEGIN, call(1, "recall", query="cranes"), words=("--project", str(tmp_path / "quay")))
    assert "two cranes" in answers(found)[1]
    nowhere = run_proxy(*BEGIN, call(1, "recall", query="cranes"), words=("--folder=${workspaceFolder}",), **no)
    assert "two cranes" not in answers(nowhere)[1]
    assert "there is no folder ${workspaceFolder}; memories are those of the project" in nowhere.stderr


def test_proxy_imports_little(warm_home: Path) -> None:
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-c",
        "import sys; sys.argv[1:] = ['mcp']; from athena.cli import main; main()",
    ]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True)
    before = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import json"], capture_output=True, text=True, check=True
    )
    names = [set(re.findall(r"\| +([\w.]+)$", one.stderr, re.MULTILINE)) for one in (done, before)]
    ours = {
        "__future__",
        "athena",
        "athena.core.version",
        "athena.cli",
        "athena.cli.mcp_proxy",
        "athena.core",
        "athena.core.home",
        "athena.core.home.paths",
        "athena.errors",
    }
    assert names[0] - names[1] <= ours | {"select", "_socket", "time"}


class FakeServer:
    """Listens where the proxy of a home looks for its server; the test reads and answers each connection."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(socket_path(str(home), MCP_SOCKET))
        self._listener.listen()
        self._listener.settimeout(LONG)
        self._connections: list[FakeConnection] = []

    def accept(self) -> "FakeConnection":
        self._connections.append(FakeConnection(self._listener.accept()[0]))
        return self._connections[-1]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._listener.close()


class FakeConnection:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(LONG)
        self.socket = connection
        self._file = connection.makefile("rb")
        self.read()  # the proxy's greeting
        connection.sendall(b'{"workspace":"w"}\n')

    def read(self) -> Any:
        return json.loads(self._file.readline())

    def drain(self) -> None:
        while self.socket.recv(1 << 20):
            pass

    def reply(self, *ids: object) -> None:
        self.socket.sendall(b"".join(json.dumps({"id": one, "result": {}}).encode() + b"\n" for one in ids))

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@pytest.fixture
def fake_server() -> Generator[FakeServer]:
    server = FakeServer(Path(os.environ["ATHENA_HOME"]))
    yield server
    server.close()


def ping(number: int) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"})


def test_replies_before_disconnect_are_delivered(fake_server: FakeServer, client: Client) -> None:
    client.send(*BEGIN, ping(1), ping(2))
    first = fake_server.accept()
    assert [first.read().get("id") for _ in range(4)] == ["first", None, 1, 2]
    first.reply("first", 1)
    first.close()
    assert [client.read()["id"] for _ in range(2)] == ["first", 1]
    lost = client.read()
    assert (lost["id"], lost["error"]["code"]) == (2, -32000)
    client.send(ping(3))
    second = fake_server.accept()
    assert [second.read().get("id") for _ in range(3)] == ["first", None, 3]
    second.reply("first", 3)
    assert client.read() == {"id": 3, "result": {}}


@pytest.mark.parametrize("lines_read", [0, 1, 2])
def test_repeated_handshake_is_answered_once(fake_server: FakeServer, client: Client, lines_read: int) -> None:
    client.send(*BEGIN)
    first = fake_server.accept()
    assert [first.read().get("id") for _ in range(2)] == ["first", None]
    first.reply("first")
    assert client.read()["id"] == "first"
    first.close()
    client.send(ping(1))
    second = fake_server.accept()
    for _ in range(lines_read):
        second.read()
    second.close()  # without an answer to the repeated handshake
    client.send(ping(2))
    third = fake_server.accept()
    ids: list[Any] = []
    while 2 not in ids:
        ids.append(third.read().get("id"))
    third.reply(*[one for one in ids if one is not None])
    assert ids.count("first") == 1
    assert sorted(client.read()["id"] for _ in range(2)) == [1, 2]  # 1 with an error if the second server got it


def test_pending_requests_are_limited_by_bytes(fake_server: FakeServer, client: Client) -> None:
    data = (json.dumps({"method": "x" * (6 << 20)}).encode() + b"\n") * 8
    connection = fake_server.accept()
    assert client.process.stdin is not None
    pipe = client.process.stdin.fileno()
    os.set_blocking(pipe, False)

    def write(data: bytes) -> int:
        sent = 0
        while select.select([], [pipe], [], 2)[1] and sent < len(data):
            sent += os.write(pipe, data[sent : sent + 65_536])
        return sent

    sent = write(data)
    assert (12 << 20) < sent < (20 << 20)  # reading pauses until the server takes some of it
    reader = threading.Thread(target=connection.drain)
    reader.start()
    assert sent + write(data[sent:]) == len(data)
    client.process.kill()
    reader.join()
