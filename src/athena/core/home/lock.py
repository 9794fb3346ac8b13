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

LOCK_FILE = "server.json"
CONNECT_TIMEOUT_S = 1.0  # seconds in which a server that lives takes a connection
NOTIFY_AFTER_S = 1.0  # seconds that somebody waits without being told
POLL_INTERVAL_S = 0.02  # seconds between two looks


class ServerLock:
    """The right to serve a home, for as long as this process lives."""

    def __init__(self, home: str) -> None:
        os.makedirs(home, mode=0o700, exist_ok=True)
        self.path = os.path.join(home, LOCK_FILE)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = _read_server_info(self.path)
            os.close(self._file)
            raise Conflict(
                f"this home is served already: {_format_holder(holder)}", hint="stop that server first"
            ) from None
        os.ftruncate(self._file, 0)  # what a process that was killed said of itself

    def write_info(self, **facts: Any) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), **facts}).encode(), 0)

    def is_still_held(self) -> bool:
        """Tell whether the home is still there, with our lock in it."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except OSError:
            return False

    def release(self) -> None:
        os.ftruncate(self._file, 0)
        os.close(self._file)


def acquire_server_lock(home: str, patience: float, told: Callable[[int], None] = lambda _: None) -> ServerLock:
    """Take the right to serve a home, from its daemon if that has it; any other server keeps it.

    `told` is given the process that is waited for, where that takes a while.
    """
    while True:
        try:
            return ServerLock(home)
        except Conflict:
            found = find_server(home)
            if found is None:  # it starts or ends just now
                if (patience := patience - POLL_INTERVAL_S) < 0:
                    raise
                time.sleep(POLL_INTERVAL_S)
            elif not found.get("daemon") or not stop_server(home, found, patience, told):
                raise


def stop_server(
    home: str, facts: dict[str, Any], patience: float, told: Callable[[int], None] = lambda _: None
) -> bool:
    """End a server: it answers what it has begun, but not for ever. Tell whether it is gone."""
    for how, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, CONNECT_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["pid"], how)
        began, silent = time.monotonic(), True
        while time.monotonic() < began + seconds:
            if silent and how is signal.SIGTERM and time.monotonic() > began + NOTIFY_AFTER_S:
                told(facts["pid"])
                silent = False
            if is_home_free(home) or ((now := find_server(home)) and now["pid"] != facts["pid"]):
                return True
            time.sleep(POLL_INTERVAL_S)
    return False


def is_home_free(home: str) -> bool:
    """Tell whether no process has the right to serve a home: one that waits for its parent has lost it."""
    if not os.path.exists(os.path.join(home, LOCK_FILE)):
        return True
    try:
        ServerLock(home).release()
    except Conflict:
        return False
    return True


def read_holder(home: str) -> dict[str, Any] | None:
    """Return what the last server of a home said of itself; it may be gone."""
    return _read_server_info(os.path.join(home, LOCK_FILE))


def find_server(home: str) -> dict[str, Any] | None:
    """Return what the server of a home says of itself, if one of this user's answers there."""
    facts = read_holder(home)
    if facts is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knocking:
            knocking.settimeout(CONNECT_TIMEOUT_S)
            knocking.connect(facts.get("socket") or socket_path(home))
            if sockets.get_peer_uid(knocking) != os.getuid() or sockets.get_peer_pid(knocking) not in (0, facts["pid"]):
                return None
    except OSError:
        return None
    return facts


def _read_server_info(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            facts = json.loads(file.read(65_536))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("pid"), int) else None


def _format_holder(facts: dict[str, Any] | None) -> str:
    return "another process" if facts is None else f"process {facts['pid']} at {facts.get('url', 'a socket')}"
