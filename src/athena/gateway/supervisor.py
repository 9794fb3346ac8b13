"""Starts a server's program and ends it, with all that it has started, when we are gone, however that came about.

A script of the standard library alone. It holds the reading end of a pipe that only we can write to: when that closes,
the server has a moment to leave by itself.
"""

import contextlib
import os
import select
import signal
import sys
import time

MOMENT = 0.5  # seconds, after its input was closed
GRACE = 2.0  # and after it was asked to end


def main() -> None:
    life, folder, words = 3, sys.argv[1], sys.argv[2:]
    os.set_inheritable(life, False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        become(words, folder)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # it is the pipe that ends us
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)  # the server's alone, so that their ends are seen
    while True:
        ready, _, _ = select.select([life, reading], [], [])
        if life in ready:
            finish(child)
            os._exit(0)
        os.read(reading, 4096)
        if (left_with := ended(child)) is not None:
            send(child, signal.SIGKILL)  # what it left behind
            os._exit(left_with)


def become(words: list[str], folder: str) -> None:
    os.setpgid(0, 0)
    for one in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{error.filename or words[0]}: {error.strerror}\n".encode())
    os._exit(127)


def finish(child: int) -> None:
    """Let the server leave, ask it to, make it."""
    for patience, then in ((MOMENT, signal.SIGTERM), (GRACE, signal.SIGKILL)):
        until = time.monotonic() + patience
        while ended(child) is None and time.monotonic() < until:
            time.sleep(0.01)
        send(child, then)
    send(child, signal.SIGKILL)


def ended(child: int) -> "int | None":
    try:
        found, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return 0
    return None if found == 0 else abs(os.waitstatus_to_exitcode(status)) & 255


def send(group: int, what: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, what)


if __name__ == "__main__":
    main()
