"""The hook's own client: an event goes to the daemon as it came, and its answer back. Imports nothing of ours.

`python -I -S hookclient.py OWN ROOT HOME SOCKET MILLISECONDS EVENT`, as the launcher says it, which `install` wrote.
What comes in is data: it is handed on, and never looked at. Whatever happens, this ends in time and with 0.
"""

import _socket
import os
import sys
import time

EVENTS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "post-compact", "stop", "session-end")
HELLO = b"A"  # from a daemon that is at work; only then does it get the event
MAX_EVENT_BYTES = 32 << 20  # bytes of an event
READ_CHUNK_BYTES = 1 << 18
LOG_FILE = "hooks.log"
MAX_LOG_BYTES = 256 << 10  # bytes; the log before is kept beside it
GREETING_SHARE, ANSWER_SHARE, FALLBACK_SHARE, TOTAL_SHARE = (
    0.25,
    0.6,
    0.93,
    0.96,
)  # parts of the time, by whose end each has to be done
FALLBACK_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.fallback import main; main()"


def main(words: list[str]) -> None:
    """Answer one event."""
    began = time.monotonic()
    own, root, home, path, milliseconds, event = words
    if event not in EVENTS:
        return log_hook(home, event, "nothing", began, "there is no such event")
    wanted = os.environ.get("ATHENA_HOOKS_TIMEOUT_MS", "")
    if wanted.isdecimal() and 100 <= int(wanted[:6]) <= 60_000:
        milliseconds = wanted
    hook = HookDeadline(home, event, began, int(milliseconds) / 1000)
    given = read_input(0)
    said, reason = hook.ask_daemon(path, given)
    if said is None:
        hook.reason = f"{reason}; nobody else answered in time"
        code, said = _run_fallback([own, "-I", "-c", FALLBACK_CODE, root, event, reason], given, hook)
        told, _, said = said.partition(b"\n")
        link, _, why = told.decode("utf-8", "replace").partition(" ")
        if code or not why:
            link, why, said = "nothing", f"{reason}; the answer without it failed with {code}", b""
        hook.log_once(link, why)
    return write_output(said)


class HookDeadline:
    """One event on its way: it ends in time, whatever it waits for, and tells once how."""

    def __init__(self, home: str, event: str, began: float, whole: float) -> None:
        import _signal  # type: ignore[import-not-found]  # a part of the interpreter, so there is nothing to load

        self.home, self.event, self.started_at, self.timeout_s = home, event, began, whole
        self.reason = "the input did not end"
        self.children: list[int] = []
        os.environ["ATHENA_HOOK_ID"] = os.urandom(16).hex()  # what it writes is kept once, whoever does it
        self._is_logged = False
        _signal.signal(_signal.SIGALRM, self._exit_on_alarm)
        _signal.setitimer(_signal.ITIMER_REAL, max(0.001, self.deadline_at(TOTAL_SHARE) - time.monotonic()))

    def deadline_at(self, part: float) -> float:
        """Return the moment at which a part of the time is over."""
        return self.started_at + part * self.timeout_s

    def ask_daemon(self, path: str, given: bytes) -> tuple[bytes | None, str]:
        self.reason = "the daemon did not answer"
        return ask_daemon(path, self.event, given, self.deadline_at(GREETING_SHARE), self.deadline_at(ANSWER_SHARE))

    def log_once(self, link: str, why: str) -> None:
        if not self._is_logged:
            self._is_logged = True
            log_hook(self.home, self.event, link, self.started_at, why)

    def _exit_on_alarm(self, *_: object) -> None:
        for child in self.children:
            os.kill(child, 9)
        self.log_once("nothing", self.reason)
        os._exit(0)


def read_input(file: int) -> bytes:
    """Read what there is, but not more than anybody would want."""
    pieces, size = [], 0
    try:
        while size <= MAX_EVENT_BYTES and (piece := os.read(file, READ_CHUNK_BYTES)):
            pieces.append(piece)
            size += len(piece)
    except OSError:
        pass  # there is no input: an event without words
    return b"".join(pieces)


def write_output(said: bytes) -> None:
    try:
        while said:
            said = said[os.write(1, said) :]
    except OSError:
        pass  # nobody reads


def ask_daemon(path: str, event: str, given: bytes, greeting: float, answering: float) -> tuple[bytes | None, str]:
    """Return what the daemon says to an event; or None, and why."""
    if len(given) > MAX_EVENT_BYTES:
        return None, "the input is too long"
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_seconds_until(greeting))
        connection.connect(path)
        if not is_own_peer(connection, path):
            return None, "somebody else listens at the socket"
        if connection.recv(1) != HELLO:
            return None, "the daemon is leaving"
        connection.settimeout(_seconds_until(answering))
        connection.sendall(_encode_head(event))
        connection.sendall(given)
        connection.shutdown(_socket.SHUT_WR)
        return _read_answer(connection, answering)
    except TimeoutError:
        return None, "the daemon does not answer"
    except OSError as error:
        return None, f"no daemon: {error.strerror or error}"
    finally:
        connection.close()


def _seconds_until(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def is_own_peer(connection: _socket.socket, path: str) -> bool:
    """Tell whether the process at the other end is this user's own."""
    if hasattr(_socket, "SO_PEERCRED"):
        told = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return int.from_bytes(told[4:8], sys.byteorder) == os.getuid()
    return os.stat(path).st_uid == os.getuid()


def _encode_head(event: str) -> bytes:
    """Say which event it is, and what of the environment decides about it; its own length comes first."""
    if (path := os.environ.get("ATHENA_DB_PATH", ":memory:")) != ":memory:":
        os.environ["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # the daemon runs in another folder
    around = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("ATHENA_") and not name.endswith(("_KEY", "_TOKEN"))
    ]
    head = "\0".join([event, *around]).encode("utf-8", "surrogateescape")
    return b"%d\n" % len(head) + head


def _read_answer(connection: _socket.socket, deadline: float) -> tuple[bytes | None, str]:
    pieces = []
    while True:
        connection.settimeout(_seconds_until(deadline))
        piece = connection.recv(READ_CHUNK_BYTES)
        if not piece:
            break
        pieces.append(piece)
    first, _, said = b"".join(pieces).partition(b"\n")
    word, _, rest = first.partition(b" ")
    if word == b"ok" and rest == b"%d" % len(said):
        return said, ""
    if word == b"no":
        return None, rest.decode("utf-8", "replace")
    return None, "the daemon broke off"


def _run_fallback(words: list[str], given: bytes, hook: HookDeadline) -> tuple[int, bytes]:
    """Let a whole Python answer, without the daemon; return how it ended and what it said."""
    os.environ["ATHENA_HOME"] = hook.home
    os.environ["ATHENA_HOOK_UNTIL"] = f"{hook.deadline_at(FALLBACK_SHARE):.3f}"  # all processes have the same clock
    kept = _buffer_input(given, hook.home)
    out, into = os.pipe()
    closed = [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
    pass_on = [(os.POSIX_SPAWN_DUP2, kept, 0), (os.POSIX_SPAWN_DUP2, into, 1)]
    try:
        hook.children.append(os.posix_spawn(words[0], words, os.environ, file_actions=pass_on + closed))
    except OSError as error:
        return error.errno or 1, b""
    os.close(into)
    said = read_input(out)
    code = os.waitstatus_to_exitcode(os.waitpid(hook.children[0], 0)[1])
    hook.children.clear()
    return code, b"" if code else said


def _buffer_input(given: bytes, home: str) -> int:
    """Put the input where a child can read it from its beginning; no pipe, which could fill."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("event")
    else:
        path = os.path.join(home, f"event.{os.getpid()}.{time.monotonic_ns()}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    while given:
        given = given[os.write(file, given) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def log_hook(home: str, event: str, link: str, began: float, why: str) -> None:
    """Write one line about a hook that the daemon did not answer."""
    took = round((time.monotonic() - began) * 1000)
    facts = (("event", event), ("link", link), ("why", why))
    said = ", ".join(f'"{name}": "{_strip_for_json(text)}"' for name, text in facts)
    line = f'{{"at": {time.time():.3f}, "ms": {took}, {said}}}\n'
    folder = os.path.join(home, "logs")
    path = os.path.join(folder, LOG_FILE)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.write(file, line.encode("utf-8", "replace"))
        if os.fstat(file).st_size > MAX_LOG_BYTES:
            os.lockf(file, os.F_TLOCK, 0)  # of many at once, one begins a new one
            if os.path.samestat(os.fstat(file), os.stat(path)):
                os.replace(path, f"{path}.1")
        os.close(file)
    except OSError:
        pass  # a disk that is full must not break the session


def _strip_for_json(text: str) -> str:
    """Leave out what would need an escape in JSON."""
    return "".join(one if one.isprintable() and one not in '"\\' else " " for one in text[:300])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001  # never break the session of whoever runs us
        if len(sys.argv) > 3:
            log_hook(sys.argv[3], sys.argv[-1], "nothing", time.monotonic(), f"{type(error).__name__}: {error}")
    os._exit(0)
