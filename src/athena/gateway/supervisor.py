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

EXIT_GRACE_S = 0.5  # seconds, after its input was closed
TERM_GRACE_S = 2.0  # and after it was asked to end


def main() -> None:
    life, folder, words = 3, sys.argv[1], sys.argv[2:]
    os.set_inheritable(life, False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        exec_server(words, folder)
    for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)  # it is the pipe that ends us
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)  # the server's alone, so that their ends are seen
    while True:
        ready, _, _ = select.select([life, reading], [], [])
        if life in ready:
            end_server(child)
            os._exit(0)
        os.read(reading, 4096)
        if (left_with := poll_exit_code(child)) is not None:
            signal_group(child, signal.SIGKILL)  # what it left behind
            os._exit(left_with)


def exec_server(words: list[str], folder: str) -> None:
    os.setpgid(0, 0)
    for one in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(one, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(words[0], words)
    except OSError as error:
        os.write(2, f"{error.filename or words[0]}: {error.strerror}\n".encode())
    os._exit(127)


def end_server(child: int) -> None:
    """Let the server leave, ask it to, make it."""
    for patience, then in ((EXIT_GRACE_S, signal.SIGTERM), (TERM_GRACE_S, signal.SIGKILL)):
        until = time.monotonic() + patience
        while poll_exit_code(child) is None and time.monotonic() < until:
            time.sleep(0.01)
        signal_group(child, then)
    signal_group(child, signal.SIGKILL)


def poll_exit_code(child: int) -> "int | None":
    try:
        found, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return 0
    return None if found == 0 else abs(os.waitstatus_to_exitcode(status)) & 255


def signal_group(group: int, what: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, what)


if __name__ == "__main__":
    main()
