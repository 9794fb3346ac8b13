"""`athena mcp`: copy lines between an MCP client's pipes and the socket of the server.

A client waits for this process each time it starts, so it imports little. When the server exits, the proxy tells the
client which requests are lost and connects to another server for the next one.
"""

from __future__ import annotations

import _socket  # `socket` imports several modules more
import json
import os
import select
import sys
import time
from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

from athena.core.home.paths import MCP_SOCKET, current_project, home_folder, socket_path
from athena.errors import AthenaError

TYPE_CHECKING = False  # importing `typing` would take longer than all else here
if TYPE_CHECKING:
    from collections.abc import Callable

SO_PEERCRED = getattr(_socket, "SO_PEERCRED", None)
STORE_VARIABLES = (
    "ATHENA_DB_PATH", "ATHENA_DATABASE_URL", "ATHENA_PRIVACY", "ATHENA_EMBEDDING_URL", "ATHENA_EMBEDDING_MODEL",
    "ATHENA_SANDBOX_BARE", "ATHENA_DOCUMENTS_ROOTS",
)  # fmt: skip
TOOL_SURFACES = ("default", "code", "graph", "all")
MAX_MESSAGE_BYTES = 16 << 20
READ_CHUNK_BYTES = 64 << 10
HANDSHAKE_TIMEOUT_S = 30.0
START_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 660.0  # for open requests after the client's last line; no program runs longer
POLL_INTERVAL_S = 0.02
SERVER_LOST_MESSAGE = (
    "the Athena server ended before it answered; this may have been done or not, so look before you repeat it"
)
MESSAGE_TOO_LONG = f"a message may have {MAX_MESSAGE_BYTES >> 20} MB"

_decode_json = json.JSONDecoder(strict=False).decode  # control characters in strings are the server's concern


class ServerRefused(AthenaError):
    """The server refused the connection; `reason` is its error code."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def parse_args(argv: list[str]) -> tuple[str, str | None, str | None] | None:
    """Read `--tools`, `--project` and `--folder`; return None for anything else, which click parses."""
    options = {"--tools": "default", "--project": "", "--folder": ""}
    rest = [part for word in argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while len(rest) >= 2 and rest[0] in options:
        options[rest[0]] = rest[1]
        rest = rest[2:]
    tools, project, folder = options.values()
    return None if rest or tools not in TOOL_SURFACES else (tools, project or None, folder or None)


def run_proxy(tools: str, project: str | None, folder: str | None, serve_in_process: Callable[[str], socket]) -> int:
    """Serve the client at standard input and output until it disconnects; return the exit code.

    `serve_in_process` starts a server for a project in this process and returns a connection to it. The proxy calls it
    where it cannot use a daemon.
    """
    try:
        return McpProxy(tools, project or _resolve_project(folder), serve_in_process).run()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # the client no longer reads
    except AthenaError as error:
        log_message(f"{error} ({error.hint})" if error.hint else str(error))
        return error.exit


def _resolve_project(folder: str | None) -> str:
    """Return the project of a folder, else of the working directory."""
    try:
        if folder:
            os.chdir(folder)
    except OSError:
        project = current_project()
        log_message(f"there is no folder {folder}; memories are those of the project {project}")
        return project
    return current_project()


def log_message(text: str) -> None:
    """Write a line to standard error, which clients keep in their log."""
    os.write(2, f"athena mcp: {text}\n".encode("utf-8", "replace"))


class McpProxy:
    """Copy lines between file descriptors 0 and 1 and a server's socket, and replace a server that exits."""

    def __init__(self, tools: str, project: str, serve_in_process: Callable[[str], socket]) -> None:
        self._tools, self._project, self._serve_in_process = tools, project, serve_in_process
        self._home = home_folder()
        self._server: socket | None = None
        self._refused = False  # the running server refused this client
        self._workspace = ""
        self._client_open = True  # false after the end of standard input
        self._client_buffer, self._skipping_line = bytearray(), False  # an incomplete line from the client
        self._outgoing: list[bytes] = []  # lines for the server
        self._outgoing_bytes = 0
        self._sent_bytes = 0  # of the first outgoing line
        self._server_buffer = bytearray()  # an incomplete line from the server
        self._client_output = bytearray()  # lines for the client
        self._pending_ids: set[object] = set()  # ids of requests without an answer
        self._handshake_lines = b""  # the client's handshake, sent again to another server
        self._suppressed_ids: list[object] = []  # ids of repeated requests, whose answers the client already has

    def run(self) -> int:
        if os.isatty(0):
            log_message("this is for MCP clients, e.g. claude mcp add athena -- athena mcp; Ctrl-D ends it")
        self._connect_server()
        deadline = 0.0
        while self._client_open or self._pending_ids or self._outgoing or self._client_output:
            if self._outgoing and self._server is None:
                self._connect_server()
            if not self._client_open:
                deadline = deadline or time.monotonic() + DRAIN_TIMEOUT_S
                if time.monotonic() > deadline:
                    raise ServerRefused(f"{len(self._pending_ids)} requests were not answered in time")
            self._poll_once(None if self._client_open else 1_000)
        self._close_server()
        return 0

    # --- copying lines ------------------------------------------------------------------------------------------------

    def _poll_once(self, timeout_ms: int | None) -> None:
        """Wait until data can be read or written, and copy it."""
        poll = select.poll()
        if self._client_open and self._outgoing_bytes < MAX_MESSAGE_BYTES:
            poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if self._client_output else 0)  # with 0, errors are still reported
        server_fd = -1
        if self._server is not None:
            server_fd = self._server.fileno()
            reads = select.POLLIN if len(self._client_output) < MAX_MESSAGE_BYTES else 0
            poll.register(server_fd, reads | (select.POLLOUT if self._outgoing else 0))
        for fd, events in poll.poll(timeout_ms):
            if fd == 1 and events & (select.POLLERR | select.POLLNVAL):
                raise BrokenPipeError
            if fd == 0:
                self._receive_from_client(_read_stdin())
            elif fd == 1:
                del self._client_output[: os.write(1, self._client_output[: select.PIPE_BUF])]
            elif fd == server_fd:
                self._exchange_with_server(events)

    def _exchange_with_server(self, events: int) -> None:
        assert self._server is not None
        try:
            if events & select.POLLOUT and self._outgoing:
                self._sent_bytes += self._server.send(memoryview(self._outgoing[0])[self._sent_bytes :])
                if self._sent_bytes == len(self._outgoing[0]):
                    self._track_request(self._pop_line(0))
                    self._sent_bytes = 0
        except BlockingIOError:
            pass
        except OSError:
            return self._drain_server()
        if events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                self._receive_from_server(self._server.recv(READ_CHUNK_BYTES))
            except BlockingIOError:
                pass
            except OSError:
                self._drop_server()
        return None

    def _drain_server(self) -> None:
        """Read the answers that a server sent before it closed the connection."""
        while self._server is not None:
            try:
                self._receive_from_server(self._server.recv(READ_CHUNK_BYTES))
            except OSError:
                self._drop_server()

    def _queue_line(self, line: bytes, index: int) -> None:
        self._outgoing.insert(index, line)
        self._outgoing_bytes += len(line)

    def _pop_line(self, index: int) -> bytes:
        line = self._outgoing.pop(index)
        self._outgoing_bytes -= len(line)
        return line

    def _receive_from_client(self, chunk: bytes) -> None:
        if not chunk:
            self._client_open = False
            chunk = b"\n" if self._client_buffer else b""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._client_buffer += end
            if self._skipping_line or len(self._client_buffer) > MAX_MESSAGE_BYTES:
                self._send_error(None, MESSAGE_TOO_LONG)
            elif self._client_buffer.strip():
                self._queue_line(bytes(self._client_buffer) + b"\n", len(self._outgoing))
            self._client_buffer, self._skipping_line = bytearray(), False
        self._client_buffer += rest
        if len(self._client_buffer) > MAX_MESSAGE_BYTES:
            self._client_buffer, self._skipping_line = bytearray(), True

    def _receive_from_server(self, chunk: bytes) -> None:
        """Pass on whole lines only: a server may exit in the middle of one."""
        if not chunk:
            return self._drop_server()
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._server_buffer += end
            if self._is_for_client(bytes(self._server_buffer)):
                self._client_output += self._server_buffer + b"\n"
            self._server_buffer = bytearray()
        self._server_buffer += rest
        return None

    # --- open requests ------------------------------------------------------------------------------------------------

    def _track_request(self, line: bytes) -> None:
        """Remember the id of a request that the server must answer, and the lines of the handshake."""
        message = parse_message(line)
        method = message.get("method")
        if "id" in message and method:
            self._pending_ids.add(_normalize_id(message["id"]))
            if method == "initialize":
                self._handshake_lines = line
        elif method == "notifications/cancelled":
            params = message.get("params")
            self._pending_ids.discard(_normalize_id(params.get("requestId")) if isinstance(params, dict) else None)
        elif method == "notifications/initialized" and self._handshake_lines.count(b"\n") == 1:
            self._handshake_lines += line

    def _is_for_client(self, line: bytes) -> bool:
        message = parse_message(line)
        if "id" not in message or "method" in message:
            return True
        request_id = _normalize_id(message["id"])
        self._pending_ids.discard(request_id)
        if request_id in self._suppressed_ids:
            self._suppressed_ids.remove(request_id)
            return False
        return True

    def _send_error(self, request_id: object, text: str) -> None:
        """Answer a request with an error of the proxy."""
        error = {"code": -32000, "message": text}
        self._client_output += _encode_line({"jsonrpc": "2.0", "id": request_id, "error": error})

    # --- the server ---------------------------------------------------------------------------------------------------

    def _drop_server(self) -> None:
        """Close the connection and report to the client the requests that are lost with it."""
        if self._server is not None:
            self._server.close()
        self._server, self._sent_bytes = None, 0
        if self._suppressed_ids and self._outgoing and self._outgoing[0] is self._handshake_lines:
            self._pop_line(0)  # the next server gets it anew
        lost = [request_id for request_id in self._pending_ids if request_id not in self._suppressed_ids]
        self._server_buffer, self._suppressed_ids = bytearray(), []
        self._pending_ids.clear()
        for request_id in lost:
            self._send_error(request_id, SERVER_LOST_MESSAGE)
        log_message(f"the server ended; {len(lost)} requests are lost, the next one goes to another server")

    def _connect_server(self) -> None:
        """Connect to the running server, else start one, else serve from this process."""
        self._refused = False
        server = None
        if os.environ.get("ATHENA_DB_PATH") != ":memory:":
            server = self._connect_running() or self._start_daemon()
        if server is None:
            server = self._perform_handshake(self._serve_in_process(self._project))
        server.setblocking(False)
        self._server = server
        if self._handshake_lines:
            self._queue_line(self._handshake_lines, 0)
            self._suppressed_ids.append(_normalize_id(parse_message(self._handshake_lines.split(b"\n")[0])["id"]))

    def _connect_running(self) -> socket | None:
        """Return a connection to a running server that has the store of this environment."""
        server = socket(AF_UNIX, SOCK_STREAM)
        try:
            server.connect(path := socket_path(self._home, MCP_SOCKET))
            if not _is_own_peer(server, path):
                raise OSError("another user runs that server")
        except OSError:
            server.close()
            return None
        try:
            return self._perform_handshake(server)
        except (ServerRefused, OSError) as error:
            server.close()
            reason = getattr(error, "reason", "")
            if reason == "invalid_input":
                raise
            if reason == "conflict" or isinstance(error, TimeoutError):
                log_message(f"{error}; serving from this process")
                self._refused = True
            return None  # it stops or has no room: the caller tries again

    def _start_daemon(self) -> socket | None:
        """Start a daemon and return a connection to it; return None if that fails."""
        if self._refused:
            return None
        from athena.core.home.daemon import is_starting, spawn_daemon  # only where none runs: more modules

        try:
            child = spawn_daemon(self._home)
        except OSError as error:
            log_message(f"no server could be started ({error}); serving from this process")
            return None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and is_starting(self._home, child):
            time.sleep(POLL_INTERVAL_S)
            if (server := self._connect_running()) or self._refused:
                return server
        return None

    def _perform_handshake(self, server: socket) -> socket:
        """Send tools, project, workspace and store to the server, and read which workspace it assigns."""
        server.settimeout(HANDSHAKE_TIMEOUT_S)
        request: dict[str, object] = {
            "tools": self._tools,
            "project": self._project,
            "workspace": self._workspace,
            "store": _store_environ(),
        }
        server.sendall(_encode_line(request))
        line = b""
        while not line.endswith(b"\n"):
            if not (char := server.recv(1)):
                raise OSError("the server hung up")
            line += char
        response = parse_message(line)
        if "error" in response:
            raise ServerRefused(str(response["error"]), str(response.get("code")))
        self._workspace = str(response.get("workspace", ""))
        return server

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.shutdown(SHUT_WR)
            self._server.close()


def _read_stdin() -> bytes:
    try:
        return os.read(0, READ_CHUNK_BYTES)
    except OSError:  # standard input is closed
        return b""


def _is_own_peer(peer: socket, path: str) -> bool:
    """Return whether the server belongs to this user; where the system cannot say, whether its folder does."""
    if SO_PEERCRED is None:
        return os.stat(os.path.dirname(path)).st_uid in (os.getuid(), 0)
    return int.from_bytes(peer.getsockopt(_socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder) == os.getuid()


def _store_environ() -> dict[str, str]:
    """Return the environment variables that the server compares with its own, with an absolute path of the store."""
    variables = {name: os.environ.get(name, "") for name in STORE_VARIABLES}
    if path := variables["ATHENA_DB_PATH"]:
        variables["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))
    return {name: value for name, value in variables.items() if value}


def _encode_line(message: dict[str, object]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def parse_message(line: bytes) -> dict[str, object]:
    """Return a message, or an empty dict where the line is not a JSON object."""
    try:
        message = _decode_json(line.decode().strip())
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _normalize_id(request_id: object) -> object:
    """Return the id that the answer to a request will have: None where the protocol does not allow the id."""
    return request_id if isinstance(request_id, str | int) and not isinstance(request_id, bool) else None
