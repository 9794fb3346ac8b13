"""The Unix sockets of a home: where they are, and who is at the other end. Standard library only."""

import contextlib
import os
import socket
import stat
import sys

from athena.core.home.paths import HTTP_SOCKET, socket_path
from athena.errors import Misconfigured

MACOS_PEER_PID_OPTION = (0, 2)  # SOL_LOCAL, LOCAL_PEERPID: Python has no names for them


def bind_socket(home: str, name: str = HTTP_SOCKET) -> socket.socket:
    """Make a socket that only its owner can use; whoever calls holds the lock of the home."""
    path = socket_path(home, name)
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if folder != os.path.normpath(home):
        found = os.lstat(folder)
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o022:
            raise Misconfigured(f"others can write to {folder}", hint="set ATHENA_HOME to a shorter path")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # we hold the lock, so nobody listens there
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        made.bind(path)
    finally:
        os.umask(before)
    return made


def get_peer_uid(peer: socket.socket) -> int:
    """Return who is at the other end of a Unix socket."""
    return _get_peer_credentials(peer)[1]


def get_peer_pid(peer: socket.socket) -> int:
    """Return which process listens, or connected, at the other end; 0 where this system does not tell."""
    return _get_peer_credentials(peer)[0]


def _get_peer_credentials(peer: socket.socket) -> tuple[int, int]:
    if hasattr(socket, "SO_PEERCRED"):
        told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int.from_bytes(told[:4], sys.byteorder), int.from_bytes(told[4:8], sys.byteorder)
    try:
        number = peer.getsockopt(*MACOS_PEER_PID_OPTION)
    except OSError:
        number = 0
    return number, os.getuid()  # macOS: the socket's own rights, 0600, say the same
