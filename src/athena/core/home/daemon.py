"""The daemon, one warm server for each data folder: start it, find it, stop it. Standard library only."""

import os
import socket
import sys
import time
from typing import Any

from athena.core.home import lock, logs
from athena.core.home.paths import HOOK_GREETING, HOOK_SOCKET, is_home_writable, socket_path
from athena.core.version import __version__
from athena.errors import Conflict, Misconfigured, Unavailable

DAEMON_LOG_FILE = "daemon.log"
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 35.0  # longer than the server waits for calls in flight
HANDOVER_TIMEOUT_S = 3.0
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DAEMON_SCRIPT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.server.daemon_main import main; main()"
FAILED_MARKER_FILE = "daemon.failed"  # written by a daemon that could not start
RETRY_DELAY_S = 60.0
ALREADY_SERVED_EXIT_CODE = 3  # of a daemon that finds another one
SESSION_ENV_PREFIXES = ("ATHENA_PROJECT", "ATHENA_HOOKS_", "ATHENA_LLM_")  # settings of one session, not for all

ServerInfo = dict[str, Any]


def spawn_daemon(home: str) -> int:
    """Start the daemon without waiting; return the id of a child that ends once the daemon has the lock, or failed."""
    python = sys.executable
    # -I: neither the working directory nor the environment may add code
    argv = [python, "-I", "-c", DAEMON_SCRIPT, PACKAGE_ROOT, home]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(SESSION_ENV_PREFIXES)}
    environ["ATHENA_HOME"] = home
    if (path := environ.get("ATHENA_DB_PATH")) and path != ":memory:":
        environ["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # the daemon runs in another folder
    no_terminal = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    try:
        return os.posix_spawn(python, argv, environ, file_actions=no_terminal, setsid=True)
    except NotImplementedError:  # an old macOS; the daemon calls setsid itself
        return os.posix_spawn(python, argv, environ, file_actions=no_terminal)


def is_starting(home: str, child: int) -> bool:
    """Return whether the spawned daemon, or another server, holds the lock or may still get it."""
    try:
        ended = os.waitpid(child, os.WNOHANG)[0]
    except ChildProcessError:  # an earlier call has reaped it
        ended = child
    return not ended or not lock.is_home_free(home)


def start_daemon(home: str, timeout_s: float = START_TIMEOUT_S) -> ServerInfo:
    """Return the information of the running server; start a daemon if there is none or only an older one."""
    deadline = time.monotonic() + timeout_s
    server = lock.find_server(home)
    if server and not (is_older(server) and request_exit(home, server)):
        return server
    if not is_home_writable(home):  # so it could not even write a log
        hint = "check its owner and mode and the disk, or set ATHENA_HOME"
        raise Misconfigured(f"the daemon cannot start: the data folder {home} cannot be written", hint=hint)
    started = False
    while not (server := lock.find_server(home)):
        if time.monotonic() > deadline or (started and lock.is_home_free(home)):
            raise Unavailable(
                "the daemon did not start", hint=f"see {os.path.join(home, logs.LOG_FOLDER, DAEMON_LOG_FILE)}"
            )
        if not started:
            exit_code = os.waitstatus_to_exitcode(os.waitpid(spawn_daemon(home), 0)[1])
            started = exit_code != ALREADY_SERVED_EXIT_CODE  # else another server is just starting or ending
        time.sleep(lock.POLL_INTERVAL_S if started else 5 * lock.POLL_INTERVAL_S)
    return server


def may_start(home: str) -> bool:
    """Return whether to start a daemon: not for a minute after one that failed to start."""
    try:
        failed_at = os.stat(os.path.join(home, logs.LOG_FOLDER, FAILED_MARKER_FILE)).st_mtime
        return not 0 <= time.time() - failed_at < RETRY_DELAY_S
    except OSError:
        return True


def is_responding(home: str) -> bool:
    """Return whether the server greets clients, and does not only listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(lock.CONNECT_TIMEOUT_S)
        try:
            client.connect(socket_path(home, HOOK_SOCKET))
            return client.recv(1) == HOOK_GREETING
        except OSError:
            return False


def is_older(server: ServerInfo) -> bool:
    """Return whether a daemon has an older version than ours; a server that a person started counts as current."""
    return bool(server.get("daemon")) and _parse_version(str(server.get("version"))) < _parse_version(__version__)


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("."))


def request_exit(home: str, server: ServerInfo) -> bool:
    """Ask an old daemon to exit when it is idle; return whether it is gone already."""
    import signal  # only after an upgrade

    deadline = time.monotonic() + HANDOVER_TIMEOUT_S
    try:
        os.kill(server["pid"], signal.SIGHUP)
        while time.monotonic() < deadline:
            if (current := lock.find_server(home)) is None or current["pid"] != server["pid"]:
                return True
            time.sleep(lock.POLL_INTERVAL_S)
    except ProcessLookupError:
        return True
    return False


def stop_daemon(home: str, timeout_s: float = STOP_TIMEOUT_S) -> ServerInfo | None:
    """Stop the daemon and return its information; None if there was none."""
    server, deadline = lock.find_server(home), time.monotonic() + START_TIMEOUT_S
    while server is None and not lock.is_home_free(home) and time.monotonic() < deadline:  # it is starting
        time.sleep(lock.POLL_INTERVAL_S)
        server = lock.find_server(home)
    if server is None:
        return None
    if not server.get("daemon"):
        raise Conflict(
            f"this home is served by a server that somebody started: process {server['pid']}", hint="stop it there"
        )
    lock.stop_server(home, server, timeout_s)
    return server
