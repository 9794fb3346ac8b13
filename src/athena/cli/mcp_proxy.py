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
SURFACES = ("default", "code", "all")
LONGEST = 16 << 20  # bytes of a message
CHUNK = 64 << 10
GREETED = 30.0  # seconds in which a server must have answered the first line
STARTED = 20.0  # seconds in which a server that we start must listen
LEFT = 65.0  # seconds that calls may take after the client has said all; no program runs longer
GLANCE = 0.02
LOST = "the Athena server ended before it answered; this may have been done or not, so look before you repeat it"
TOO_LONG = f"a message may have {LONGEST >> 20} MB"


class _Form:
    """How the scanner reads JSON; the module `json` would cost more than all else here."""

    strict = False
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


_scan = make_scanner(_Form)  # type: ignore[arg-type]  # anything with these attributes will do


class Refused(AthenaError):
    """The server does not want us; `why` is its code."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why


def asked(words: list[str]) -> tuple[str, str | None, str | None] | None:
    """Read `--tools`, `--project` and `--folder`; None leaves all else to the command's own parser."""
    given = {"--tools": "default", "--project": "", "--folder": ""}
    rest = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while len(rest) >= 2 and rest[0] in given:
        given[rest[0]] = rest[1]
        rest = rest[2:]
    tools, project, folder = given.values()
    return None if rest or tools not in SURFACES else (tools, project or None, folder or None)


def run(tools: str, project: str | None, folder: str | None = None) -> int:
    """Serve the client at standard input and output until it goes; return the exit code."""
    try:
        return Pump(tools, project or _project(folder)).run()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 0  # nobody reads any more
    except AthenaError as error:
        say(f"{error} ({error.hint})" if error.hint else str(error))
        return error.exit


def _project(folder: str | None) -> str:
    """Return the project of a folder, else of the one that we run in."""
    try:
        if folder:
            os.chdir(folder)
    except OSError:
        found = current_project()
        say(f"there is no folder {folder}; memories are those of the project {found}")
        return found
    return current_project()


def say(text: str) -> None:
    """Tell whoever looks at the client's log."""
    os.write(2, f"athena mcp: {text}\n".encode("utf-8", "replace"))


class Pump:
    def __init__(self, tools: str, project: str) -> None:
        self._tools, self._project = tools, project
        self._home = home_folder()
        self._server: socket | None = None
        self._refused = False  # the server that runs does not want us
        self._workspace = ""
        self._more = True  # the client may have more to say
        self._part, self._skipping = bytearray(), False  # a line that has not arrived whole yet
        self._asked: list[bytes] = []  # lines for the server
        self._owed = 0  # and their bytes
        self._at = 0  # how much of the first one has been sent
        self._heard = bytearray()  # what came from the server and is no whole line yet
        self._down = bytearray()  # lines for the client
        self._waiting: set[object] = set()  # ids of requests that are not answered yet
        self._opening = b""  # the handshake, to be said again to another server
        self._silent: list[object] = []  # ids whose answers the client has had already

    def run(self) -> int:
        if os.isatty(0):
            say("this is for MCP clients, e.g. claude mcp add athena -- athena mcp; Ctrl-D ends it")
        self._connect()
        until = 0.0
        while self._more or self._waiting or self._asked or self._down:
            if self._asked and self._server is None:
                self._connect()
            if not self._more:
                until = until or time.monotonic() + LEFT
                if time.monotonic() > until:
                    raise Refused(f"{len(self._waiting)} requests were not answered in time")
            self._step(None if self._more else 1_000)
        self._part_ways()
        return 0

    # --- one round ----------------------------------------------------------------------------------------------------

    def _step(self, patience: int | None) -> None:
        """Wait until something can be moved, and move it."""
        poll = select.poll()
        if self._more and self._owed < LONGEST:
            poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if self._down else 0)  # 0 still tells when nobody reads any more
        number = -1
        if self._server is not None:
            number = self._server.fileno()
            reads = select.POLLIN if len(self._down) < LONGEST else 0
            poll.register(number, reads | (select.POLLOUT if self._asked else 0))
        for which, what in poll.poll(patience):
            if which == 1 and what & (select.POLLERR | select.POLLNVAL):
                raise BrokenPipeError
            if which == 0:
                self._from_client(_input())
            elif which == 1:
                del self._down[: os.write(1, self._down[: select.PIPE_BUF])]
            elif which == number:
                self._exchange(what)

    def _exchange(self, what: int) -> None:
        assert self._server is not None
        try:
            if what & select.POLLOUT and self._asked:
                self._at += self._server.send(memoryview(self._asked[0])[self._at :])
                if self._at == len(self._asked[0]):
                    self._note(self._said(0))
                    self._at = 0
        except BlockingIOError:
            pass
        except OSError:
            return self._hear_out()
        if what & (select.POLLIN | select.POLLHUP | select.POLLERR):
            try:
                self._from_server(self._server.recv(CHUNK))
            except BlockingIOError:
                pass
            except OSError:
                self._lose()
        return None

    def _hear_out(self) -> None:
        """Take what a server that has left had answered before."""
        while self._server is not None:
            try:
                self._from_server(self._server.recv(CHUNK))
            except OSError:
                self._lose()

    def _ask(self, line: bytes, place: int) -> None:
        self._asked.insert(place, line)
        self._owed += len(line)

    def _said(self, place: int) -> bytes:
        line = self._asked.pop(place)
        self._owed -= len(line)
        return line

    def _from_client(self, chunk: bytes) -> None:
        if not chunk:
            self._more = False
            chunk = b"\n" if self._part else b""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._part += end
            if self._skipping or len(self._part) > LONGEST:
                self._tell(None, TOO_LONG)
            elif self._part.strip():
                self._ask(bytes(self._part) + b"\n", len(self._asked))
            self._part, self._skipping = bytearray(), False
        self._part += rest
        if len(self._part) > LONGEST:
            self._part, self._skipping = bytearray(), True

    def _from_server(self, chunk: bytes) -> None:
        """Hand on whole lines only, so that a server that ends in the middle of one spoils nothing."""
        if not chunk:
            return self._lose()
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._heard += end
            if self._is_for_client(bytes(self._heard)):
                self._down += self._heard + b"\n"
            self._heard = bytearray()
        self._heard += rest
        return None

    # --- what is open -------------------------------------------------------------------------------------------------

    def _note(self, line: bytes) -> None:
        """Remember what the server now owes an answer to."""
        said = read(line)
        method = said.get("method")
        if "id" in said and method:
            self._waiting.add(_key(said["id"]))
            if method == "initialize":
                self._opening = line
        elif method == "notifications/cancelled":
            given = said.get("params")
            self._waiting.discard(_key(given.get("requestId")) if isinstance(given, dict) else None)
        elif method == "notifications/initialized" and self._opening.count(b"\n") == 1:
            self._opening += line

    def _is_for_client(self, line: bytes) -> bool:
        said = read(line)
        if "id" not in said or "method" in said:
            return True
        key = _key(said["id"])
        self._waiting.discard(key)
        if key in self._silent:
            self._silent.remove(key)
            return False
        return True

    def _tell(self, number: object, message: str) -> None:
        """Answer a request with an error of our own."""
        written = "null" if number is None else quoted(number) if isinstance(number, str) else str(number)
        error = f'{{"code":-32000,"message":{quoted(message)}}}'
        self._down += f'{{"jsonrpc":"2.0","id":{written},"error":{error}}}\n'.encode()

    # --- the server ---------------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Tell the client what is lost with a server that has ended; the next request goes to another one."""
        if self._server is not None:
            self._server.close()
        self._server, self._at = None, 0
        if self._silent and self._asked and self._asked[0] is self._opening:
            self._said(0)  # the next one is greeted anew
        lost = [key for key in self._waiting if key not in self._silent]
        self._heard, self._silent = bytearray(), []
        self._waiting.clear()
        for number in lost:
            self._tell(number, LOST)
        say(f"the server ended; {len(lost)} requests are lost, the next one goes to another server")

    def _connect(self) -> None:
        """Find a server, start one, or be one."""
        self._refused = False
        made = None if os.environ.get("ATHENA_DB_PATH") == ":memory:" else self._reached() or self._started()
        if made is None:
            from athena.cli.mcp import serve_here  # brings everything

            made = self._greeted(serve_here(self._project))
        made.setblocking(False)
        self._server = made
        if self._opening:
            self._ask(self._opening, 0)
            self._silent.append(_key(read(self._opening.split(b"\n")[0])["id"]))

    def _reached(self) -> socket | None:
        """Return a connection to a server that runs and has the store that we mean."""
        made = socket(AF_UNIX, SOCK_STREAM)
        try:
            made.connect(socket_path(self._home, MCP_SOCKET))
            if _user(made) != os.getuid():
                raise OSError("that server is somebody else's")
        except OSError:
            made.close()
            return None
        try:
            return self._greeted(made)
        except (Refused, OSError) as error:
            made.close()
            why = getattr(error, "why", "")
            if why == "invalid_input":
                raise
            if why == "conflict" or isinstance(error, TimeoutError):
                say(f"{error}; serving from this process")
                self._refused = True
            return None  # one that stops, or has no room, is waited for

    def _started(self) -> socket | None:
        """Start a server in the background and return a connection to it, or nothing if that does not work."""
        if self._refused:
            return None
        from athena.core.home.daemon import is_coming, spawn  # only where none runs

        try:
            child = spawn(self._home)
        except OSError as error:
            say(f"no server could be started ({error}); serving from this process")
            return None
        until = time.monotonic() + STARTED
        while time.monotonic() < until and is_coming(self._home, child):
            time.sleep(GLANCE)
            if (made := self._reached()) or self._refused:
                return made
        return None

    def _greeted(self, made: socket) -> socket:
        """Say who we are, and hear where we are put."""
        made.settimeout(GREETED)
        store = [f"{quoted(name)}:{quoted(value)}" for name, value in _store().items()]
        words = [f'"tools":{quoted(self._tools)}', f'"project":{quoted(self._project)}']
        words += [f'"workspace":{quoted(self._workspace)}', f'"store":{{{",".join(store)}}}']
        made.sendall(f"{{{','.join(words)}}}\n".encode())
        line = b""
        while not line.endswith(b"\n"):
            if not (some := made.recv(1)):
                raise OSError("the server hung up")
            line += some
        said = read(line)
        if "error" in said:
            raise Refused(str(said["error"]), str(said.get("code")))
        self._workspace = str(said.get("workspace", ""))
        return made

    def _part_ways(self) -> None:
        if self._server is not None:
            self._server.shutdown(SHUT_WR)
            self._server.close()


def _input() -> bytes:
    try:
        return os.read(0, CHUNK)
    except OSError:  # there is none
        return b""


def _user(peer: socket) -> int:
    """Return whose the server is; where the system does not tell, the socket's own rights must do."""
    if SO_PEERCRED is None:
        return os.getuid()
    return int.from_bytes(peer.getsockopt(_socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8], sys.byteorder)


def _store() -> dict[str, str]:
    """Return what this environment says about the store, as it means the same elsewhere."""
    found = {name: os.environ.get(name, "") for name in ("ATHENA_DB_PATH", "ATHENA_DATABASE_URL")}
    if path := found["ATHENA_DB_PATH"]:
        found["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))
    return {name: value for name, value in found.items() if value}


def read(line: bytes) -> dict[str, object]:
    """Return a message, or nothing where it is none."""
    try:
        said = _scan(line.decode().strip(), 0)[0]
    except (ValueError, StopIteration, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _key(number: object) -> object:
    """Return what an answer to a request will have as its id: null, where the id is none that the protocol knows."""
    return number if isinstance(number, str | int) and not isinstance(number, bool) else None
