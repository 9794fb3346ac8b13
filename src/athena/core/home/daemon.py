"""One warm server for each home: starting it, asking for it, stopping it. Standard library only."""

import os
import socket
import sys
import time
from typing import Any

from athena.core.home import lock, logs
from athena.core.home.paths import HOOK_GREETING, HOOK_SOCKET, socket_path
from athena.core.version import __version__
from athena.errors import Conflict, Unavailable

DAEMON_LOG_FILE = "daemon.log"
START_TIMEOUT_S = 15.0  # seconds in which a daemon is up
STOP_TIMEOUT_S = 35.0  # seconds that it may take to answer what it has begun
HANDOVER_TIMEOUT_S = 3.0  # seconds that an old one gets, when it is asked to make room
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DAEMON_SCRIPT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.server.daemon_main import main; main()"
FAILED_MARKER_FILE = "daemon.failed"  # there since the last one that could not start
RETRY_DELAY_S = 60.0  # seconds before hooks try that again
ALREADY_SERVED_EXIT_CODE = 3  # how a daemon ends that finds another
SESSION_ENV_PREFIXES = (
    "ATHENA_PROJECT",
    "ATHENA_HOOKS_",
    "ATHENA_LLM_",
)  # what is a session's own, and not for all: it may begin so

ServerInfo = dict[str, Any]


def spawn_daemon(home: str) -> int:
    """Start the daemon of a home without waiting; return a process that ends when it has the home, or cannot."""
    python = sys.executable
    words = [
        python,
        "-I",
        "-c",
        DAEMON_SCRIPT,
        PACKAGE_ROOT,
        home,
    ]  # -I: neither the folder nor the environment brings code of its own
    around = {name: value for name, value in os.environ.items() if not name.startswith(SESSION_ENV_PREFIXES)} | {
        "ATHENA_HOME": home
    }
    if (path := around.get("ATHENA_DB_PATH")) and path != ":memory:":
        around["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # it runs in another folder
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    try:
        return os.posix_spawn(python, words, around, file_actions=nothing, setsid=True)
    except NotImplementedError:  # an old macOS; the daemon does it a moment later
        return os.posix_spawn(python, words, around, file_actions=nothing)


def is_starting(home: str, child: int) -> bool:
    """Tell whether the daemon that was spawned, or another, has the home or may get it."""
    try:
        ended = os.waitpid(child, os.WNOHANG)[0]
    except ChildProcessError:  # it was asked about before
        ended = child
    return not ended or not lock.is_home_free(home)


def start_daemon(home: str, wait: float = START_TIMEOUT_S) -> ServerInfo:
    """Return what the server of a home says of itself, starting one if there is none or only an older one."""
    deadline = time.monotonic() + wait
    found = lock.find_server(home)
    if found and not (is_older(found) and request_exit(home, found)):
        return found
    tried = False
    while not (found := lock.find_server(home)):
        if time.monotonic() > deadline or (tried and lock.is_home_free(home)):
            raise Unavailable(
                "the daemon did not start", hint=f"see {os.path.join(home, logs.LOG_FOLDER, DAEMON_LOG_FILE)}"
            )
        if not tried:
            tried = (
                os.waitstatus_to_exitcode(os.waitpid(spawn_daemon(home), 0)[1]) != ALREADY_SERVED_EXIT_CODE
            )  # else by one that comes or goes
        time.sleep(lock.POLL_INTERVAL_S if tried else 5 * lock.POLL_INTERVAL_S)
    return found


def may_start(home: str) -> bool:
    """Tell whether it makes sense to start one: not right after one that could not."""
    try:
        return (
            not 0
            <= time.time() - os.stat(os.path.join(home, logs.LOG_FOLDER, FAILED_MARKER_FILE)).st_mtime
            < RETRY_DELAY_S
        )
    except OSError:
        return True


def is_responding(home: str) -> bool:
    """Tell whether the server of a home does its work, and not only listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(lock.CONNECT_TIMEOUT_S)
        try:
            asking.connect(socket_path(home, HOOK_SOCKET))
            return asking.recv(1) == HOOK_GREETING
        except OSError:
            return False


def is_older(facts: ServerInfo) -> bool:
    """Tell whether a daemon is of a version before ours; a server that a person started is left alone."""
    return bool(facts.get("daemon")) and _parse_version(str(facts.get("version"))) < _parse_version(__version__)


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("."))


def request_exit(home: str, facts: ServerInfo) -> bool:
    """Ask an old daemon to leave as soon as nobody needs it; tell whether it is gone already."""
    import signal  # after an upgrade alone

    deadline = time.monotonic() + HANDOVER_TIMEOUT_S
    try:
        os.kill(facts["pid"], signal.SIGHUP)
        while time.monotonic() < deadline:
            if (now := lock.find_server(home)) is None or now["pid"] != facts["pid"]:
                return True
            time.sleep(lock.POLL_INTERVAL_S)
    except ProcessLookupError:
        return True
    return False


def stop_daemon(home: str, wait: float = STOP_TIMEOUT_S) -> ServerInfo | None:
    """Stop the daemon of a home, and return what it said of itself; None if there was none."""
    found, deadline = lock.find_server(home), time.monotonic() + START_TIMEOUT_S
    while found is None and not lock.is_home_free(home) and time.monotonic() < deadline:  # it starts just now
        time.sleep(lock.POLL_INTERVAL_S)
        found = lock.find_server(home)
    if found is None:
        return None
    if not found.get("daemon"):
        raise Conflict(
            f"this home is served by a server that somebody started: process {found['pid']}", hint="stop it there"
        )
    lock.stop_server(home, found, wait)
    return found
