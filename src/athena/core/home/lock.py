"""The server lock of a data folder: take it, release it, see who holds it. Standard library only."""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from athena.core.files import FileLock
from athena.core.home import sockets
from athena.core.home.paths import socket_path
from athena.errors import Conflict

LOCK_FILE = "server.json"
CONNECT_TIMEOUT_S = 1.0
NOTIFY_AFTER_S = 1.0
POLL_INTERVAL_S = 0.02


class ServerLock:
    """The exclusive right to serve a data folder; the system releases it when this process ends."""

    def __init__(self, home: str) -> None:
        self._lock = FileLock(os.path.join(home, LOCK_FILE))
        self.path, self._file = self._lock.path, self._lock.descriptor
        try:
            is_locked = self._lock.acquire(timeout_s=0)
        except OSError as error:  # a file system without locks
            self._lock.close()
            raise Conflict(f"{self.path} cannot be locked: {error}", hint="set ATHENA_HOME to a local disk") from None
        if not is_locked:
            holder = _read_server_info(self.path)
            self._lock.close()
            stop = "athena daemon stop" if holder and holder.get("daemon") else "Ctrl-C in its terminal"
            hint = f"open it: athena ui; stop it: {stop}"
            raise Conflict(f"Athena already runs: {_format_holder(holder)}", hint=hint)
        os.ftruncate(self._file, 0)  # a killed process leaves its information behind

    def write_info(self, **facts: Any) -> None:
        """Store in the lock file how clients reach this server."""
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, json.dumps({"pid": os.getpid(), **facts}).encode(), 0)

    def is_still_held(self) -> bool:
        """Return whether the data folder still exists and holds our lock file."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except OSError:
            return False

    def release(self) -> None:
        os.ftruncate(self._file, 0)
        self._lock.close()


def acquire_server_lock(home: str, timeout_s: float, on_wait: Callable[[int], None] = lambda _: None) -> ServerLock:
    """Take the lock of a data folder; stop its daemon if that holds it, but no server that a person started.

    `on_wait` gets the id of the process that we wait for, if that takes longer than NOTIFY_AFTER_S.
    """
    while True:
        try:
            return ServerLock(home)
        except Conflict:
            server = find_server(home)
            if server is None:  # the holder is starting or ending
                if (timeout_s := timeout_s - POLL_INTERVAL_S) < 0:
                    raise
                time.sleep(POLL_INTERVAL_S)
            elif not server.get("daemon") or not stop_server(home, server, timeout_s, on_wait):
                raise


def stop_server(
    home: str, server: dict[str, Any], timeout_s: float, on_wait: Callable[[int], None] = lambda _: None
) -> bool:
    """Ask a server to finish its calls and exit; kill it after the timeout. Return whether it is gone."""
    for signal_number, seconds in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, CONNECT_TIMEOUT_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(server["pid"], signal_number)
        began, notified = time.monotonic(), False
        while time.monotonic() < began + seconds:
            if not notified and signal_number is signal.SIGTERM and time.monotonic() > began + NOTIFY_AFTER_S:
                on_wait(server["pid"])
                notified = True
            if is_home_free(home) or ((current := find_server(home)) and current["pid"] != server["pid"]):
                return True
            time.sleep(POLL_INTERVAL_S)
    return False


def is_home_free(home: str) -> bool:
    """Return whether no process holds the lock; a zombie holds it no more."""
    if not os.path.exists(os.path.join(home, LOCK_FILE)):
        return True
    try:
        ServerLock(home).release()
    except Conflict:
        return False
    return True


def read_holder(home: str) -> dict[str, Any] | None:
    """Return the record that the last server of a data folder wrote; the server may have ended."""
    return _read_server_info(os.path.join(home, LOCK_FILE))


def find_server(home: str) -> dict[str, Any] | None:
    """Return the information of the running server, if it accepts connections and belongs to this user."""
    facts = read_holder(home)
    if facts is None:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(CONNECT_TIMEOUT_S)
            client.connect(facts.get("socket") or socket_path(home))
            if sockets.get_peer_uid(client) != os.getuid() or sockets.get_peer_pid(client) not in (0, facts["pid"]):
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
