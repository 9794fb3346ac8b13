"""The right to serve a home, and who has it. Standard library only: every client asks."""

import contextlib
import fcntl
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from athena.core.home import sockets
from athena.core.home.paths import socket_path
from athena.errors import Conflict

LOCK = "server.json"
KNOCK = 1.0  # seconds in which a server that lives takes a connection
SILENT = 1.0  # seconds that somebody waits without being told
LOOK = 0.02  # seconds between two looks


class Held:
    """The right to serve a home, for as long as this process lives."""

    def __init__(self, home: str) -> None:
        os.makedirs(home, mode=0o700, exist_ok=True)
        self.path = os.path.join(home, LOCK)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _facts(self.path)
            os.close(self._file)
            raise Conflict(f"this home is served already: {_who(holder)}", hint="stop that server first") from None
        os.ftruncate(self._file, 0)  # what a process that was killed said of itself

    def say(self, **facts: Any) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), **facts}).encode(), 0)

    def is_ours(self) -> bool:
        """Tell whether the home is still there, with our lock in it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except OSError:
            return False

    def let_go(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def take(home: str, patience: float, told: Callable[[int], None] = lambda _: None) -> Held:
    """Take the right to serve a home, from its daemon if that has it; any other server keeps it.

    `told` is given the process that is waited for, where that takes a while.
    """
    while True:
        try:
            return Held(home)
        except Conflict:
            found = served(home)
            if found is None:  # it starts or ends just now
                if (patience := patience - LOOK) < 0:
                    raise
                time.sleep(LOOK)
            elif not found.get("daemon") or not end(home, found, patience, told):
                raise


def end(home: str, facts: dict[str, Any], patience: float, told: Callable[[int], None] = lambda _: None) -> bool:
    """End a server: it answers what it has begun, but not for ever. Tell whether it is gone."""
    for how, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, KNOCK)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["pid"], how)
        began, silent = time.monotonic(), True
        while time.monotonic() < began + seconds:
            if silent and how is signal.SIGTERM and time.monotonic() > began + SILENT:
                told(facts["pid"])
                silent = False
            if is_free(home) or ((now := served(home)) and now["pid"] != facts["pid"]):
                return True
            time.sleep(LOOK)
    return False


def is_free(home: str) -> bool:
    """Tell whether no process has the right to serve a home: one that waits for its parent has lost it."""
    if not os.path.exists(os.path.join(home, LOCK)):
        return True
    try:
        Held(home).let_go()
    except Conflict:
        return False
    return True


def holder(home: str) -> dict[str, Any] | None:
    """Return what the last server of a home said of itself; it may be gone."""
    return _facts(os.path.join(home, LOCK))


def served(home: str) -> dict[str, Any] | None:
    """Return what the server of a home says of itself, if one of this user's answers there."""
    facts = holder(home)
    if facts is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.settimeout(KNOCK)
            knocking.connect(facts.get("socket") or socket_path(home))
            if sockets.user(knocking) != os.getuid() or sockets.process(knocking) not in (0, facts["pid"]):
                return None
    except OSError:
        return None
    return facts


def _facts(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            facts = json.loads(file.read(65_536))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("pid"), int) else None


def _who(facts: dict[str, Any] | None) -> str:
    return "another process" if facts is None else f"process {facts['pid']} at {facts.get('url', 'a socket')}"
