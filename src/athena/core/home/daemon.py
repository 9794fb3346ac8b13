"""One warm server for each home: starting it, asking for it, stopping it. Standard library only."""

import os
import socket
import sys
import time
from typing import Any

from athena.core.home import lock, logs
from athena.core.home.paths import HOOK_SOCKET, socket_path
from athena.core.version import __version__
from athena.errors import Conflict, Unavailable
from athena.hooks.client import HELLO

LOG = "daemon.log"
WAIT = 15.0  # seconds in which a daemon is up
DRAIN = 35.0  # seconds that it may take to answer what it has begun
LEAVE = 3.0  # seconds that an old one gets, when it is asked to make room
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from athena.server.daemon_main import main; main()"
FAILED = "daemon.failed"  # there since the last one that could not start
PAUSE = 60.0  # seconds before hooks try that again
TAKEN = 3  # how a daemon ends that finds another
OWN = ("ATHENA_PROJECT", "ATHENA_HOOKS_", "ATHENA_LLM_")  # what is a session's own, and not for all: it may begin so

Facts = dict[str, Any]


def spawn(home: str) -> int:
    """Start the daemon of a home without waiting; return a process that ends when it has the home, or cannot."""
    python = sys.executable
    words = [python, "-I", "-c", RUN, ROOT, home]  # -I: neither the folder nor the environment brings code of its own
    around = {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | {"ATHENA_HOME": home}
    if (path := around.get("ATHENA_DB_PATH")) and path != ":memory:":
        around["ATHENA_DB_PATH"] = os.path.abspath(os.path.expanduser(path))  # it runs in another folder
    nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    try:
        return os.posix_spawn(python, words, around, file_actions=nothing, setsid=True)
    except NotImplementedError:  # an old macOS; the daemon does it a moment later
        return os.posix_spawn(python, words, around, file_actions=nothing)


def is_coming(home: str, child: int) -> bool:
    """Tell whether the daemon that was spawned, or another, has the home or may get it."""
    try:
        ended = os.waitpid(child, os.WNOHANG)[0]
    except ChildProcessError:  # it was asked about before
        ended = child
    return not ended or not lock.is_free(home)


def start(home: str, wait: float = WAIT) -> Facts:
    """Return what the server of a home says of itself, starting one if there is none or only an older one."""
    deadline = time.monotonic() + wait
    found = lock.served(home)
    if found and not (is_older(found) and make_room(home, found)):
        return found
    tried = False
    while not (found := lock.served(home)):
        if time.monotonic() > deadline or (tried and lock.is_free(home)):
            raise Unavailable("the daemon did not start", hint=f"see {os.path.join(home, logs.FOLDER, LOG)}")
        if not tried:
            tried = os.waitstatus_to_exitcode(os.waitpid(spawn(home), 0)[1]) != TAKEN  # else by one that comes or goes
        time.sleep(lock.LOOK if tried else 5 * lock.LOOK)
    return found


def may_work(home: str) -> bool:
    """Tell whether it makes sense to start one: not right after one that could not."""
    try:
        return not 0 <= time.time() - os.stat(os.path.join(home, logs.FOLDER, FAILED)).st_mtime < PAUSE
    except OSError:
        return True


def answers(home: str) -> bool:
    """Tell whether the server of a home does its work, and not only listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(lock.KNOCK)
        try:
            asking.connect(socket_path(home, HOOK_SOCKET))
            return asking.recv(1) == HELLO
        except OSError:
            return False


def is_older(facts: Facts) -> bool:
    """Tell whether a daemon is of a version before ours; a server that a person started is left alone."""
    return bool(facts.get("daemon")) and _order(str(facts.get("version"))) < _order(__version__)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split("."))


def make_room(home: str, facts: Facts) -> bool:
    """Ask an old daemon to leave as soon as nobody needs it; tell whether it is gone already."""
    import signal  # after an upgrade alone

    deadline = time.monotonic() + LEAVE
    try:
        os.kill(facts["pid"], signal.SIGHUP)
        while time.monotonic() < deadline:
            if (now := lock.served(home)) is None or now["pid"] != facts["pid"]:
                return True
            time.sleep(lock.LOOK)
    except ProcessLookupError:
        return True
    return False


def stop(home: str, wait: float = DRAIN) -> Facts | None:
    """Stop the daemon of a home, and return what it said of itself; None if there was none."""
    found, deadline = lock.served(home), time.monotonic() + WAIT
    while found is None and not lock.is_free(home) and time.monotonic() < deadline:  # it starts just now
        time.sleep(lock.LOOK)
        found = lock.served(home)
    if found is None:
        return None
    if not found.get("daemon"):
        raise Conflict(
            f"this home is served by a server that somebody started: process {found['pid']}", hint="stop it there"
        )
    lock.end(home, found, wait)
    return found
