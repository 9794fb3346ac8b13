"""The hook client: send an event to the daemon and print its answer. Standard library only; copied into data folders.

The launcher runs `python -I -S hookclient.py PYTHON IMPORT_ROOT HOME SOCKET MILLISECONDS EVENT`. The input is data: the
client passes it on unread. It always ends in time, with exit code 0, so that it never breaks a session.
"""

import _socket
import os
import sys
import time

EVENTS = ("session-start", "user-prompt-submit", "post-tool-use", "pre-compact", "post-compact", "stop", "session-end")
HELLO = b"A"  # the first byte of a working daemon; the client sends the event only after it
MAX_EVENT_BYTES = 32 << 20
READ_CHUNK_BYTES = 1 << 18
LOG_FILE = "hooks.log"
DAEMON_LINK = "daemon"  # the first link of the chain of those that may answer
MAX_LOG_BYTES = 256 << 10  # then it is renamed to hooks.log.1
MAX_LOG_TEXT_CHARS = 300
# the part of the timeout after which each step must be done
GREETING_SHARE, ANSWER_SHARE, FALLBACK_SHARE, TOTAL_SHARE = 0.25, 0.6, 0.93, 0.96
FALLBACK_CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.fallback import main; main()"


def main(argv: list[str]) -> None:
    """Answer one event."""
    started_at = time.monotonic()
    python, import_root, home, socket_path, timeout_ms, event = argv
    if event not in EVENTS:
        return log_hook(home, event, "nothing", started_at, "there is no such event")
    configured_ms = os.environ.get("ATHENA_HOOKS_TIMEOUT_MS", "")
    if configured_ms.isdecimal() and 100 <= int(configured_ms[:6]) <= 60_000:
        timeout_ms = configured_ms
    hook = HookDeadline(home, event, started_at, int(timeout_ms) / 1000)
    payload = read_input(0)
    output, reason = hook.ask_daemon(socket_path, payload)
    if output is None:
        hook.reason = f"{reason}; nobody else answered in time"
        argv = [python, "-I", "-c", FALLBACK_CODE, import_root, event, reason]
        exit_code, output = _run_fallback(argv, payload, hook)
        first_line, _, output = output.partition(b"\n")
        link, _, why = first_line.decode("utf-8", "replace").partition(" ")
        if exit_code or not why:
            link, why, output = "nothing", f"{reason}; the answer without it failed with {exit_code}", b""
        hook.log_once(link, why)
    return write_output(output)


class HookDeadline:
    """The deadline of one event: an alarm that ends this process in time, and the one log line about it."""

    def __init__(self, home: str, event: str, started_at: float, timeout_s: float) -> None:
        import _signal  # type: ignore[import-not-found]  # built in; `signal` takes longer to import

        self.home, self.event, self.started_at, self.timeout_s = home, event, started_at, timeout_s
        self.reason = "the input did not end"
        self.children: list[int] = []
        os.environ["ATHENA_HOOK_ID"] = os.urandom(16).hex()  # daemon and fallback write an event once, by this key
        self._is_logged = False
        _signal.signal(_signal.SIGALRM, self._exit_on_alarm)
        _signal.setitimer(_signal.ITIMER_REAL, max(0.001, self.deadline_at(TOTAL_SHARE) - time.monotonic()))

    def deadline_at(self, share: float) -> float:
        """Return when this share of the timeout is over."""
        return self.started_at + share * self.timeout_s

    def ask_daemon(self, path: str, payload: bytes) -> tuple[bytes | None, str]:
        self.reason = "the daemon did not answer"
        return ask_daemon(path, self.event, payload, self.deadline_at(GREETING_SHARE), self.deadline_at(ANSWER_SHARE))

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
    """Read to the end, or until it is more than an event may have."""
    pieces, size = [], 0
    try:
        while size <= MAX_EVENT_BYTES and (piece := os.read(file, READ_CHUNK_BYTES)):
            pieces.append(piece)
            size += len(piece)
    except OSError:
        pass  # no input: an empty event
    return b"".join(pieces)


def write_output(output: bytes) -> None:
    try:
        while output:
            output = output[os.write(1, output) :]
    except OSError:
        pass  # the client closed the pipe


def ask_daemon(
    path: str, event: str, payload: bytes, greeting_deadline: float, answer_deadline: float
) -> tuple[bytes | None, str]:
    """Return the daemon's answer to an event; or None and the reason."""
    if len(payload) > MAX_EVENT_BYTES:
        return None, "the input is too long"
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(_seconds_until(greeting_deadline))
        connection.connect(path)
        if not is_own_peer(connection, path):
            return None, "somebody else listens at the socket"
        if connection.recv(1) != HELLO:
            return None, "the daemon is leaving"
        connection.settimeout(_seconds_until(answer_deadline))
        connection.sendall(_encode_head(event))
        connection.sendall(payload)
        connection.shutdown(_socket.SHUT_WR)
        return _read_answer(connection, answer_deadline)
    except TimeoutError:
        return None, "the daemon does not answer"
    except OSError as error:
        return None, f"no daemon: {error.strerror or error}"
    finally:
        connection.close()


def _seconds_until(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def is_own_peer(connection: _socket.socket, path: str) -> bool:
    """Return whether the process at the other end belongs to this user."""
    if hasattr(_socket, "SO_PEERCRED"):
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid()
    return os.stat(os.path.dirname(path)).st_uid in (os.getuid(), 0)  # only its owner creates a socket there


def _encode_head(event: str) -> bytes:
    """Return the event's name and our ATHENA_ variables except secrets, after their length."""
    if (path := os.environ.get("ATHENA_DB_PATH", ":memory:")) != ":memory:":
        os.environ["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # the daemon runs in another folder
    variables = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("ATHENA_") and not name.endswith(("_KEY", "_TOKEN"))
    ]
    head = "\0".join([event, *variables]).encode("utf-8", "surrogateescape")
    return b"%d\n" % len(head) + head


def _read_answer(connection: _socket.socket, deadline: float) -> tuple[bytes | None, str]:
    pieces = []
    while True:
        connection.settimeout(_seconds_until(deadline))
        piece = connection.recv(READ_CHUNK_BYTES)
        if not piece:
            break
        pieces.append(piece)
    first_line, _, output = b"".join(pieces).partition(b"\n")
    status, _, rest = first_line.partition(b" ")
    if status == b"ok" and rest == b"%d" % len(output):
        return output, ""
    if status == b"no":
        return None, rest.decode("utf-8", "replace")
    return None, "the daemon broke off"


def _run_fallback(argv: list[str], payload: bytes, hook: HookDeadline) -> tuple[int, bytes]:
    """Answer in a full Python process without the daemon; return its exit code and output."""
    os.environ["ATHENA_HOME"] = hook.home
    os.environ["ATHENA_HOOK_UNTIL"] = f"{hook.deadline_at(FALLBACK_SHARE):.3f}"  # processes share the monotonic clock
    stdin = _buffer_input(payload, hook.home)
    reading, writing = os.pipe()
    file_actions = [
        (os.POSIX_SPAWN_DUP2, stdin, 0),
        (os.POSIX_SPAWN_DUP2, writing, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        hook.children.append(os.posix_spawn(argv[0], argv, os.environ, file_actions=file_actions))
    except OSError as error:
        return error.errno or 1, b""
    os.close(writing)
    output = read_input(reading)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(hook.children[0], 0)[1])
    hook.children.clear()
    return exit_code, b"" if exit_code else output


def _buffer_input(payload: bytes, home: str) -> int:
    """Return a file with the input for the child; a pipe would block when it is full."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("event")
    else:
        path = os.path.join(home, f"event.{os.getpid()}.{time.monotonic_ns()}")
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    while payload:
        payload = payload[os.write(file, payload) :]
    os.lseek(file, 0, os.SEEK_SET)
    return file


def log_hook(home: str, event: str, link: str, started_at: float, why: str) -> None:
    """Log a hook that the daemon did not answer, as one line of JSON; importing `json` would take too long."""
    elapsed_ms = round((time.monotonic() - started_at) * 1000)
    texts = (("event", event), ("link", link), ("why", why))
    fields = ", ".join(f'"{name}": "{_strip_for_json(text)}"' for name, text in texts)
    line = f'{{"at": {time.time():.3f}, "ms": {elapsed_ms}, {fields}}}\n'
    folder = os.path.join(home, "logs")
    path = os.path.join(folder, LOG_FILE)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        os.write(file, line.encode("utf-8", "replace"))
        if os.fstat(file).st_size > MAX_LOG_BYTES:
            os.lockf(file, os.F_TLOCK, 0)  # of several processes only one renames it
            if os.path.samestat(os.fstat(file), os.stat(path)):
                os.replace(path, f"{path}.1")
        os.close(file)
    except OSError:
        pass  # a full disk must not break the session


def _strip_for_json(text: str) -> str:
    """Replace the characters that JSON would escape."""
    return "".join(char if char.isprintable() and char not in '"\\' else " " for char in text[:MAX_LOG_TEXT_CHARS])


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except BaseException as error:  # noqa: BLE001  # never break the session
        if len(sys.argv) > 3:
            why = f"{type(error).__name__} {getattr(error, 'strerror', None) or ''}"  # a message may quote the event
            log_hook(sys.argv[3], sys.argv[-1], "nothing", time.monotonic(), why)
    os._exit(0)
