"""The Unix sockets of a data folder: bind them, identify the peer. Standard library only."""

import contextlib
import os
import socket
import stat
import sys

from athena.core.files import create_private_folder
from athena.core.home.paths import HTTP_SOCKET, socket_path
from athena.errors import Misconfigured

MACOS_PEER_PID_OPTION = (0, 2)  # SOL_LOCAL, LOCAL_PEERPID: Python has no names for them


def bind_socket(home: str, name: str = HTTP_SOCKET) -> socket.socket:
    """Bind a socket that only its owner can use; the caller must hold the server lock."""
    path = socket_path(home, name)
    folder = os.path.dirname(path)
    create_private_folder(folder)
    if folder != os.path.normpath(home):
        facts = os.lstat(folder)
        if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o022:
            raise Misconfigured(f"others can write to {folder}", hint="set ATHENA_HOME to a shorter path")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # we hold the lock, so no process listens there
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    return listener


def get_peer_uid(peer: socket.socket) -> int:
    """Return the user id of the process at the other end of a Unix socket."""
    return _get_peer_credentials(peer)[1]


def get_peer_pid(peer: socket.socket) -> int:
    """Return the id of the process at the other end of a Unix socket; 0 if this system does not tell."""
    return _get_peer_credentials(peer)[0]


def _get_peer_credentials(peer: socket.socket) -> tuple[int, int]:
    if hasattr(socket, "SO_PEERCRED"):
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(raw[:4], sys.byteorder), int.from_bytes(raw[4:8], sys.byteorder)
    try:
        pid = peer.getsockopt(*MACOS_PEER_PID_OPTION)
    except OSError:
        pid = 0
    return pid, os.getuid()  # macOS: the mode of the socket, 0600, admits no other user
