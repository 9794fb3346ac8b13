"""`athena mcp`: copies lines between a client's pipes and the server's own socket.

A client waits for this process each time it starts, so it imports next to nothing. A server that ends in the middle is
replaced by another with the next request: the client is told which calls were lost, and need not know more.
"""

import _socket
import os
import select
import sys
import time
from _json import encode_basestring_ascii as quoted
from _json import make_scanner
from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

from athena.core.home.paths import MCP_SOCKET, current_project, home_folder, socket_path
from athena.errors import AthenaError

SO_PEERCRED = getattr(_socket, "SO_PEERCRED", None)
TOOL_SURFACES = ("default", "code", "all")
MAX_MESSAGE_BYTES = 16 << 20  # bytes of a message
READ_CHUNK_BYTES = 64 << 10
HANDSHAKE_TIMEOUT_S = 30.0  # seconds in which a server must have answered the first line
START_TIMEOUT_S = 20.0  # seconds in which a server that we start must listen
DRAIN_TIMEOUT_S = 65.0  # seconds that calls may take after the client has said all; no program runs longer
POLL_INTERVAL_S = 0.02
SERVER_LOST_MESSAGE = (
    "the Athena server ended before it answered; this may have been done or not, so look before you repeat it"
)
MESSAGE_TOO_LONG = f"a message may have {MAX_MESSAGE_BYTES >> 20} MB"


class _ScannerOptions:
    """How the scanner reads JSON; the module `json` would cost more than all else here."""

    strict = False
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


_scan_json = make_scanner(_ScannerOptions)  # type: ignore[arg-type]  # anything with these attributes will do


class ServerRefused(AthenaError):
    """The server does not want us; `why` is its code."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


def parse_args(words: list[str]) -> tuple[str, str | None, str | None] | None:
    """Read `--tools`, `--project` and `--folder`; None leaves all else to the command's own parser."""
    given = {"--tools": "default", "--project": "", "--folder": ""}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while len(rest) >= 2 and rest[0] in given:
        given[rest[0]] = rest[1]
        rest = rest[2:]
    tools, project, folder = given.values()
    return None if rest or tools not in TOOL_SURFACES else (tools, project or None, folder or None)


def run_proxy(tools: str, project: str | None, folder: str | None = None) -> int:
    """Serve the client at standard input and output until it goes; return the exit code."""
    try:
        return McpProxy(tools, project or _resolve_project(folder)).run()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # nobody reads any more
    except AthenaError as error:
        log_message(f"{error} ({error.hint})" if error.hint else str(error))
        return error.exit


def _resolve_project(folder: str | None) -> str:
    """Return the project of a folder, else of the one that we run in."""
    try:
        if folder:
            os.chdir(folder)
    except OSError:
        found = current_project()
        log_message(f"there is no folder {folder}; memories are those of the project {found}")
        return found
    return current_project()


def log_message(text: str) -> None:
    """Tell whoever looks at the client's log."""
    os.write(2, f"athena mcp: {text}\n".encode("utf-8", "replace"))


class McpProxy:
    def __init__(self, tools: str, project: str) -> None:
        self._tools, self._project = tools, project
        self._home = home_folder()
        self._server: socket | None = None
        self._refused = False  # the server that runs does not want us
        self._workspace = ""
        self._client_open = True  # the client may have more to say
        self._client_buffer, self._skipping_line = bytearray(), False  # a line that has not arrived whole yet
        self._outgoing: list[bytes] = []  # lines for the server
        self._outgoing_bytes = 0  # and their bytes
        self._sent_bytes = 0  # how much of the first one has been sent
        self._server_buffer = bytearray()  # what came from the server and is no whole line yet
        self._client_output = bytearray()  # lines for the client
        self._pending_ids: set[object] = set()  # ids of requests that are not answered yet
        self._handshake_lines = b""  # the handshake, to be said again to another server
        self._suppressed_ids: list[object] = []  # ids whose answers the client has had already

    def run(self) -> int:
        if os.isatty(0):
            log_message("this is for MCP clients, e.g. claude mcp add athena -- athena mcp; Ctrl-D ends it")
        self._connect_server()
        until = 0.0
        while self._client_open or self._pending_ids or self._outgoing or self._client_output:
            if self._outgoing and self._server is None:
                self._connect_server()
            if not self._client_open:
                until = until or time.monotonic() + DRAIN_TIMEOUT_S
                if time.monotonic() > until:
                    raise ServerRefused(f"{len(self._pending_ids)} requests were not answered in time")
            self._poll_once(None if self._client_open else 1_000)
        self._close_server()
        return 0

    # --- one round ----------------------------------------------------------------------------------------------------

    def _poll_once(self, patience: int | None) -> None:
        """Wait until something can be moved, and move it."""
        poll = select.poll()
        if self._client_open and self._outgoing_bytes < MAX_MESSAGE_BYTES:
            poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if self._client_output else 0)  # 0 still tells when nobody reads any more
        number = -1
        if self._server is not None:
            number = self._server.fileno()
            reads = select.POLLIN if len(self._client_output) < MAX_MESSAGE_BYTES else 0
            poll.register(number, reads | (select.POLLOUT if self._outgoing else 0))
        for which, what in poll.poll(patience):
            if which == 1 and what & (select.POLLERR | select.POLLNVAL):
                raise BrokenPipeError
            if which == 0:
                self._receive_from_client(_read_stdin())
            elif which == 1:
                del self._client_output[: os.write(1, self._client_output[: select.PIPE_BUF])]
            elif which == number:
                self._exchange_with_server(what)

    def _exchange_with_server(self, what: int) -> None:
        assert self._server is not None
        try:
            if what & select.POLLOUT and self._outgoing:
                self._sent_bytes += self._server.send(memoryview(self._outgoing[0])[self._sent_bytes :])
                if self._sent_bytes == len(self._outgoing[0]):
                    self._track_request(self._pop_line(0))
                    self._sent_bytes = 0
        except BlockingIOError:
            pass
        except OSError:
            return self._drain_server()
        if what & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                self._receive_from_server(self._server.recv(READ_CHUNK_BYTES))
            except BlockingIOError:
                pass
            except OSError:
                self._drop_server()
        return None

    def _drain_server(self) -> None:
        """Take what a server that has left had answered before."""
        while self._server is not None:
            try:
                self._receive_from_server(self._server.recv(READ_CHUNK_BYTES))
            except OSError:
                self._drop_server()

    def _queue_line(self, line: bytes, place: int) -> None:
        self._outgoing.insert(place, line)
        self._outgoing_bytes += len(line)

    def _pop_line(self, place: int) -> bytes:
        line = self._outgoing.pop(place)
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
        """Hand on whole lines only, so that a server that ends in the middle of one spoils nothing."""
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

    # --- what is open -------------------------------------------------------------------------------------------------

    def _track_request(self, line: bytes) -> None:
        """Remember what the server now owes an answer to."""
        said = parse_message(line)
        method = said.get("method")
        if "id" in said and method:
            self._pending_ids.add(_normalize_id(said["id"]))
            if method == "initialize":
                self._handshake_lines = line
        elif method == "notifications/cancelled":
            given = said.get("params")
            self._pending_ids.discard(_normalize_id(given.get("requestId")) if isinstance(given, dict) else None)
        elif method == "notifications/initialized" and self._handshake_lines.count(b"\n") == 1:
            self._handshake_lines += line

    def _is_for_client(self, line: bytes) -> bool:
        said = parse_message(line)
        if "id" not in said or "method" in said:
            return True
        key = _normalize_id(said["id"])
        self._pending_ids.discard(key)
        if key in self._suppressed_ids:
            self._suppressed_ids.remove(key)
            return False
        return True

    def _send_error(self, number: object, message: str) -> None:
        """Answer a request with an error of our own."""
        written = "null" if number is None else quoted(number) if isinstance(number, str) else str(number)
        error = f'{{"code":-32000,"message":{quoted(message)}}}'
        self._client_output += f'{{"jsonrpc":"2.0","id":{written},"error":{error}}}\n'.encode()

    # --- the server ---------------------------------------------------------------------------------------------------

    def _drop_server(self) -> None:
        """Tell the client what is lost with a server that has ended; the next request goes to another one."""
        if self._server is not None:
            self._server.close()
        self._server, self._sent_bytes = None, 0
        if self._suppressed_ids and self._outgoing and self._outgoing[0] is self._handshake_lines:
            self._pop_line(0)  # the next one is greeted anew
        lost = [key for key in self._pending_ids if key not in self._suppressed_ids]
        self._server_buffer, self._suppressed_ids = bytearray(), []
        self._pending_ids.clear()
        for number in lost:
            self._send_error(number, SERVER_LOST_MESSAGE)
        log_message(f"the server ended; {len(lost)} requests are lost, the next one goes to another server")

    def _connect_server(self) -> None:
        """Find a server, start one, or be one."""
        self._refused = False
        made = (
            None if os.environ.get("ATHENA_DB_PATH") == ":memory:" else self._connect_running() or self._start_daemon()
        )
        if made is None:
            from athena.cli.mcp import serve_here  # brings everything

            made = self._perform_handshake(serve_here(self._project))
        made.setblocking(False)
        self._server = made
        if self._handshake_lines:
            self._queue_line(self._handshake_lines, 0)
            self._suppressed_ids.append(_normalize_id(parse_message(self._handshake_lines.split(b"\n")[0])["id"]))

    def _connect_running(self) -> socket | None:
        """Return a connection to a server that runs and has the store that we mean."""
        made = socket(AF_UNIX, SOCK_STREAM)
        try:
            made.connect(socket_path(self._home, MCP_SOCKET))
            if _peer_uid(made) != os.getuid():
                raise OSError("that server is somebody else's")
        except OSError:
            made.close()
            return None
        try:
            return self._perform_handshake(made)
        except (ServerRefused, OSError) as error:
            made.close()
            why = getattr(error, "why", "")
            if why == "invalid_input":
                raise
            if why == "conflict" or isinstance(error, TimeoutError):
                log_message(f"{error}; serving from this process")
                self._refused = True
            return None  # one that stops, or has no room, is waited for

    def _start_daemon(self) -> socket | None:
        """Start a server in the background and return a connection to it, or nothing if that does not work."""
        if self._refused:
            return None
        from athena.core.home.daemon import is_starting, spawn_daemon  # only where none runs

        try:
            child = spawn_daemon(self._home)
        except OSError as error:
            log_message(f"no server could be started ({error}); serving from this process")
            return None
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and is_starting(self._home, child):
            time.sleep(POLL_INTERVAL_S)
            if (made := self._connect_running()) or self._refused:
                return made
        return None

    def _perform_handshake(self, made: socket) -> socket:
        """Say who we are, and hear where we are put."""
        made.settimeout(HANDSHAKE_TIMEOUT_S)
        store = [f"{quoted(name)}:{quoted(value)}" for name, value in _store_environ().items()]
        words = [f'"tools":{quoted(self._tools)}', f'"project":{quoted(self._project)}']
        words += [f'"workspace":{quoted(self._workspace)}', f'"store":{{{",".join(store)}}}']
        made.sendall(f"{{{','.join(words)}}}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            if not (some := made.recv(1)):
                raise OSError("the server hung up")
            line += some
        said = parse_message(line)
        if "error" in said:
            raise ServerRefused(str(said["error"]), str(said.get("code")))
        self._workspace = str(said.get("workspace", ""))
        return made

    def _close_server(self) -> None:
        if self._server is not None:
            self._server.shutdown(SHUT_WR)
            self._server.close()


def _read_stdin() -> bytes:
    try:
        return os.read(0, READ_CHUNK_BYTES)
    except OSError:  # there is none
        return b""


def _peer_uid(peer: socket) -> int:
    """Return whose the server is; where the system does not tell, the socket's own rights must do."""
    if SO_PEERCRED is None:
        return os.getuid()
    return int.from_bytes(peer.getsockopt(_socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)


def _store_environ() -> dict[str, str]:
    """Return what this environment says about the store, as it means the same elsewhere."""
    found = {name: os.environ.get(name, "") for name in ("ATHENA_DB_PATH", "ATHENA_DATABASE_URL")}
    if path := found["ATHENA_DB_PATH"]:
        found["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))
    return {name: value for name, value in found.items() if value}


def parse_message(line: bytes) -> dict[str, object]:
    """Return a message, or nothing where it is none."""
    try:
        said = _scan_json(line.decode().strip(), 0)[0]
    except (ValueError, StopIteration, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _normalize_id(number: object) -> object:
    """Return what an answer to a request will have as its id: null, where the id is none that the protocol knows."""
    return number if isinstance(number, str | int) and not isinstance(number, bool) else None
