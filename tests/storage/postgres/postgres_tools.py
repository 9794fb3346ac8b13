"""Shared tools for PostgreSQL tests: stores, child processes, and a proxy that can drop connections."""

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import postgres
import psycopg
import pytest

from athena.app.compose import App
from athena.core.threads import run_sync
from athena.storage.postgres.store import RECONNECT_TIMEOUT_S, Postgres
from conftest import MODEL
from wait_tools import LONG

PROJECT = "test"
_templates: dict[Path, str] = {}  # the name of a database with an empty store, by the folder of its server


def new_database(server: postgres.Server) -> str:
    """Create an empty database and return its URL."""
    return server.create(f"t{uuid.uuid4().hex[:12]}")


def new_database_with_tables(server: postgres.Server) -> str:
    """Create a database with an empty store; to copy one takes a quarter of the time of creating the tables."""
    if server.folder not in _templates:
        url = new_database(server)
        Postgres(url).close()
        _templates[server.folder] = database_name(url)
    name = f"t{uuid.uuid4().hex[:12]}"
    server._execute(f'CREATE DATABASE "{name}" TEMPLATE "{_templates[server.folder]}"')
    return server.url(name)


def database_name(url: str) -> str:
    """Return the name of the database in a URL."""
    return url.split("/")[3].split("?")[0]


# After a crash the server syncs all files one by one; this option uses one call for all.
DURABLE = ("recovery_init_sync_method=syncfs",)
# a killed process does not lose what it has written to the system
MORTAL = (*DURABLE, "fsync=off", "full_page_writes=off")


@contextmanager
def open_app(url: str, patience: float = RECONNECT_TIMEOUT_S, **settings: Any) -> Generator[App]:
    """Open a store, and close it at the end."""
    app = App(Postgres(url, patience), MODEL, **settings)
    try:
        yield app
    finally:
        app.close()


def set_timeout(app: App, seconds: float) -> None:
    """Set how long a store waits for a lost server."""
    app.store.database._timeout_s = seconds  # type: ignore[attr-defined]


def call(app: App, name: str, project: str = PROJECT, key: str | None = None, **arguments: Any) -> Any:
    """Call an operation as a program would."""
    return run_sync(app.catalog.get_operation(name)(app.create_context(project, "python", key), **arguments))


def query(url: str, sql: str, *values: Any) -> list[Any]:
    """Run SQL on a database, bypassing the store."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET search_path TO athena, public")
        done = connection.execute(sql.encode(), values or None)
        return done.fetchall() if done.description else []


def start_script(script: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start a script in its own process, with pipes."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ | environment)


def write_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        pytest.fail(f"it ended: {process.communicate(timeout=LONG)}")
    return line.rstrip("\n")


def finish_script(process: subprocess.Popen[str], timeout: float = LONG) -> list[str]:
    """Wait for a script, assert that it succeeded without messages, and return the lines that it printed."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"still running after {timeout} s:\n{''.join(process.communicate())}")
    assert process.returncode == 0, f"exit code {process.returncode}\n{out}\n{err}"
    assert err == ""
    return out.splitlines()


def run_script(script: str, *arguments: str, **environment: str) -> list[str]:
    return finish_script(start_script(script, *arguments, **environment))


ASKING = [(80_877_103).to_bytes(4, "big"), (80_877_104).to_bytes(4, "big")]  # requests to encrypt the connection
Hook = Callable[["ProxyConnection", bytes], None]


class Proxy:
    """A proxy in front of a real server that lets a test decide what happens to a commit."""

    def __init__(self, server: postgres.Server, tcp: bool) -> None:
        self.server = server
        self.tcp = tcp
        self.folder = Path(tempfile.mkdtemp(prefix="athena-px-"))
        self.refusing = False
        self.closed = False
        self.lines: list[ProxyConnection] = []
        self._hook: Hook | None = None
        self._part = b""
        self._guard = threading.Lock()
        self._listening = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        self._listening.bind(("127.0.0.1", 0) if tcp else str(self.folder / ".s.PGSQL.5432"))
        self._listening.listen(64)
        self._listening.settimeout(0.05)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def url(self, of: str) -> str:
        """Return the URL of a database through this proxy."""
        if self.tcp:
            return f"postgresql://postgres@127.0.0.1:{self._listening.getsockname()[1]}/{database_name(of)}"
        return of.replace(quote(str(self.server.folder), safe=""), quote(str(self.folder), safe=""))

    def at_commit(self, hook: Hook, part: bytes = b"INSERT INTO memories") -> None:
        """Let `hook` decide about the next commit of a transaction with a matching statement."""
        self._part, self._hook = part, hook

    def take_hook(self, statements: bytes) -> Hook | None:
        with self._guard:
            if self._hook is None or self._part not in statements:
                return None
            hook, self._hook = self._hook, None
            return hook

    @property
    def happened(self) -> bool:
        return self._hook is None

    def cut(self) -> None:
        """Close every connection at once."""
        for line in self.lines:
            line.cut()

    def close(self) -> None:
        self.closed = True
        self._listening.close()
        self._thread.join(LONG)
        for line in self.lines:
            line.cut()
            line.join(LONG)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        while not self.closed:
            with suppress(OSError):
                client, _ = self._listening.accept()
                if self.refusing:
                    client.close()
                    continue
                upstream = socket.socket(socket.AF_UNIX)
                try:
                    upstream.connect(str(self.server.folder / ".s.PGSQL.5432"))
                except OSError:
                    client.close()
                    upstream.close()
                    continue
                line = ProxyConnection(self, client, upstream)
                self.lines.append(line)
                line.start()


class ProxyConnection(threading.Thread):
    """One connection through the proxy: it parses the client's messages and forwards the server's unchanged."""

    def __init__(self, proxy: Proxy, client: socket.socket, upstream: socket.socket) -> None:
        super().__init__(daemon=True)
        self.proxy, self.client, self.upstream = proxy, client, upstream
        self._buffer = b""
        self._greeted = False
        self._names: dict[bytes, bytes] = {}
        self._statements = b""  # of the current transaction
        self._held: bytes | None = None  # the received part of a commit

    def run(self) -> None:
        with suppress(OSError, ValueError):
            while not self.proxy.closed:
                ready, _, _ = select.select([self.client, self.upstream], [], [], 0.05)
                if self.upstream in ready:
                    answer = self.upstream.recv(65_536)
                    if not answer:
                        break
                    self.client.sendall(answer)
                if self.client in ready:
                    asked = self.client.recv(65_536)
                    if not asked:
                        break
                    self._buffer += asked
                    for message in self._messages():
                        self._pass_on(message)
        self.cut()

    def cut(self) -> None:
        """Close both sides, as a broken cable would."""
        for side in (self.client, self.upstream):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _messages(self) -> Generator[bytes]:
        """Split whole messages from the received data; the first has no type byte before its length."""
        while True:
            head = 1 if self._greeted else 0
            if len(self._buffer) < head + 4:
                return
            size = head + int.from_bytes(self._buffer[head : head + 4], "big")
            if len(self._buffer) < size:
                return
            message, self._buffer = self._buffer[:size], self._buffer[size:]
            yield message
            self._greeted = self._greeted or message[4:8] not in ASKING

    def _pass_on(self, message: bytes) -> None:
        kind, parts = message[:1] if self._greeted else b"", message[5:].split(b"\0")
        executed = b""
        if kind == b"Q":
            executed = parts[0]
        elif kind == b"P":
            self._names[parts[0]] = parts[1]
        elif kind == b"B":
            executed = self._names.get(parts[1], b"")
        if executed.startswith(b"BEGIN"):
            self._statements = b""
        self._statements += executed
        if executed == b"COMMIT" and self._held is None:
            self._held = b""
        if self._held is None:
            self.upstream.sendall(message)
            return
        self._held += message
        if kind in (b"Q", b"S"):  # now the message is complete
            commit, self._held = self._held, None
            hook = self.proxy.take_hook(self._statements)
            if hook is None:
                self.upstream.sendall(commit)
            else:
                hook(self, commit)


def drop_reply(line: ProxyConnection, commit: bytes) -> None:
    """Let the server commit, but drop its reply."""
    line.upstream.sendall(commit)
    line.upstream.recv(65_536)
    line.cut()


def drop_commit(line: ProxyConnection, commit: bytes) -> None:
    """Drop the client's commit."""
    line.cut()


@contextmanager
def run_proxy(server: postgres.Server, *, tcp: bool = False) -> Generator[Proxy]:
    proxy = Proxy(server, tcp)
    try:
        yield proxy
    finally:
        proxy.close()


OTHER = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
url, threads = sys.argv[1], int(sys.argv[2])
from athena.app.compose import App
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError
from athena.core.types import to_json
from athena.storage.postgres.store import Postgres
from athena.core.threads import run_sync
MiniLM().embed(["warm up"])
print("ready", flush=True)
sys.stdin.readline()
app = App(Postgres(url), MiniLM())

def call(asked):
    name, project, key, arguments = asked
    try:
        context = app.create_context(project, "python", key)
        return {"done": to_json(run_sync(app.catalog.get_operation(name)(context, **arguments)))}
    except AthenaError as error:
        return {"error": error.code, "message": str(error)}

with ThreadPoolExecutor(threads) as pool:
    print("open", flush=True)
    for line in sys.stdin:
        print(json.dumps(list(pool.map(call, json.loads(line)))), flush=True)
app.close()
"""


class StoreProcess:
    """Another process with the same store open, which runs calls on request."""

    def __init__(self, url: str, threads: int = 1) -> None:
        self.process = start_script(OTHER, url, str(threads))
        assert read_line(self.process) == "ready"

    def open(self) -> None:
        write_line(self.process, "open")

    def wait(self) -> None:
        assert read_line(self.process) == "open"

    def begin(self, *calls: tuple[str, dict[str, Any]], key: str | None = None, project: str = PROJECT) -> None:
        """Start calls, with as many concurrent as it has threads."""
        write_line(self.process, json.dumps([(name, project, key, arguments) for name, arguments in calls]))

    def results(self) -> list[dict[str, Any]]:
        data: list[dict[str, Any]] = json.loads(read_line(self.process))
        return data

    def call(self, name: str, **arguments: Any) -> Any:
        """Make one call, assert that it succeeds, and return its result."""
        self.begin((name, arguments))
        (found,) = self.results()
        return found["done"]


@contextmanager
def start_processes(url: str, count: int, threads: int = 1) -> Generator[list[StoreProcess]]:
    """Start processes that open the store at the same time."""
    made = [StoreProcess(url, threads) for _ in range(count)]
    for one in made:
        one.open()
    for one in made:
        one.wait()
    try:
        yield made
    finally:
        for one in made:
            finish_script(one.process)
