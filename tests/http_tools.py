"""A real HTTP server in its own process, and raw requests that no library would send."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tool_vectors import give_tool_vectors
from wait_tools import LONG, wait_until

SERVE = [sys.executable, "-m", "athena", "serve"]
INHERITED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME")
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
Headers = Sequence[tuple[str, str]]


def serve_command(*changes: str) -> list[str]:
    """Return the command of a server with shorter limits, so that tests do not wait long."""
    first = "import athena.server.serve, athena.server.guard"
    return [sys.executable, "-c", "; ".join((first, *changes, "from athena.cli import main", "main()")), "serve"]


@dataclass
class Reply:
    """One reply as received."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Return the error, and assert that it has the common shape."""
        body = self.json
        assert set(body) == {"success", "error"}, body
        assert body["success"] is False
        error = body["error"]
        assert set(error) == {"code", "message", "hint", "retry"}, error
        assert isinstance(error["code"], str)
        assert error["message"]
        assert isinstance(error["retry"], bool)
        assert isinstance(error, dict)
        return error


@dataclass
class RunningServer:
    """A running server."""

    process: subprocess.Popen[bytes]
    home: Path
    port: int
    token: str
    log: Path
    replies: list[Reply] = field(default_factory=list)

    @property
    def auth_headers(self) -> list[tuple[str, str]]:
        return [("Host", f"localhost:{self.port}"), ("Authorization", f"Bearer {self.token}")]

    def connect(self, timeout: float = LONG) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def send(self, data: bytes, timeout: float = LONG) -> Reply:
        """Send bytes and read one reply."""
        with self.connect(timeout) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            return read_reply(connection)

    def ask(self, method: str, path: str, headers: Headers | None = None, body: bytes | None = None) -> Reply:
        given = list(self.auth_headers if headers is None else headers)
        if body is not None:
            given.append(("Content-Length", str(len(body))))
        return self.send(request(method, path, given, body or b""))

    def get(self, path: str, *headers: tuple[str, str]) -> Reply:
        return self.ask("GET", path, [*self.auth_headers, *headers])

    def execute(self, name: str, arguments: Any, *headers: tuple[str, str]) -> Reply:
        body = arguments if isinstance(arguments, bytes) else json.dumps(arguments).encode()
        given = [*self.auth_headers, ("Content-Type", "application/json"), *headers]
        return self.ask("POST", f"/tools/{name}/execute", given, body)

    def call(self, name: str, /, *headers: tuple[str, str], **arguments: Any) -> Any:
        """Run an operation and assert that it succeeds."""
        reply = self.execute(name, arguments, *headers)
        assert reply.status == 200, reply
        return reply.json["data"]

    def count(self) -> int:
        return int(self.call("health")["count"])

    def resident_mb(self) -> int:
        """Return the resident memory of the server in MB."""
        return self._read_status("VmRSS")

    def peak_mb(self) -> int:
        """Return the largest resident memory since `reset_peak`, in MB."""
        return self._read_status("VmHWM")

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def _read_status(self, name: str) -> int:
        match = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert match
        return int(match[1]) >> 10


def request(method: str, path: str, headers: Headers, body: bytes = b"") -> bytes:
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


def read_reply(connection: socket.socket) -> Reply:
    """Read one whole reply; status 0 means that the server closed the connection without one."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = _receive(connection)
        if not piece:
            return Reply(0, [], data)
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    reply = Reply(int(first.split()[1]), headers, body)
    length = reply.header("content-length")
    if reply.header("transfer-encoding") == "chunked":
        while not reply.body.endswith(b"0\r\n\r\n") and (piece := _receive(connection)):
            reply.body += piece
        reply.body = _decode_chunks(reply.body)
    elif length is None and reply.status not in (204, 304):
        while piece := _receive(connection):
            reply.body += piece
    while length is not None and len(reply.body) < int(length) and (piece := _receive(connection)):
        reply.body += piece
    return reply


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65_536)
    except ConnectionResetError:
        return b""


def _decode_chunks(data: bytes) -> bytes:
    made = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        made, data = made + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return made


def server_environ(home: Path, **more: str) -> dict[str, str]:
    """Return an environment that has this home and no other setting of ours."""
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return inherited | {"ATHENA_HOME": str(home), "ATHENA_PROJECT": "test"} | more


def spawn_server(
    home: Path, log: Path, *argv: str, command: Sequence[str] = SERVE, **environment: str
) -> subprocess.Popen[bytes]:
    give_tool_vectors(home)
    with log.open("ab") as errors:
        return subprocess.Popen(
            [*command, *(argv or ("--port", "0"))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=server_environ(home, **environment),
        )


@contextmanager
def run_server(
    folder: Path, *argv: str, home: Path | None = None, command: Sequence[str] = SERVE, **environment: str
) -> Generator[RunningServer]:
    """Start a server, wait until it is ready, and stop it at the end."""
    folder.mkdir(exist_ok=True)
    where, log = home or folder / "home", folder / "server.log"
    process = spawn_server(where, log, *argv, command=command, **environment)
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        match = re.search(r"http://[^:]+:(\d+)", said)
        assert match, (said, log.read_text())
        token = where / "token"
        server = RunningServer(process, where, int(match[1]), token.read_text().strip() if token.exists() else "", log)
        wait_until(lambda: server.get("/health").status == 200)
        yield server
    finally:
        stop_process(process)


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a server, and kill it if it does not stop."""
    process.terminate()
    try:
        process.wait(timeout=LONG)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def assert_secure_headers(reply: Reply) -> None:
    """Assert the headers that every reply must have, and those that none may have."""
    for name, value in SECURITY_HEADERS.items():
        assert reply.header(name) == value, (name, reply)
    assert reply.header("cache-control"), reply
    assert reply.header("x-request-id"), reply
    assert not [name for name, _ in reply.headers if name.startswith("access-control-")], reply
    assert reply.header("server") is None
