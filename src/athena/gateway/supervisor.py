"""Start a server's program, and end it with all its children when the gateway's process ends, however that happens.

A script that uses only the standard library: `supervisor.py FOLDER PROGRAM ARGUMENTS...`. It holds the reading end of a
pipe that only the gateway can write to. When that pipe closes, the server has a moment to exit.
"""

import contextlib
import os
import select
import signal
import sys
import time

LIFELINE_FD = 3
EXIT_GRACE_S = 0.5  # after its standard input was closed
TERM_GRACE_S = 2.0  # after SIGTERM
POLL_INTERVAL_S = 0.01


def main() -> None:
    folder, argv = sys.argv[1], sys.argv[2:]
    if os.getsid(0) != os.getpid():
        os.setsid()
    close_inherited_files()
    os.set_inheritable(LIFELINE_FD, False)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    child = os.fork()
    if child == 0:
        exec_server(argv, folder)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)  # only the pipe ends the supervisor
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)  # only the server holds the pipes, so that the gateway sees when it closes them
    while True:
        ready, _, _ = select.select([LIFELINE_FD, reading], [], [])
        if LIFELINE_FD in ready:
            end_server(child)
            os._exit(0)
        os.read(reading, 4096)
        if (exit_code := poll_exit_code(child)) is not None:
            signal_group(child, signal.SIGKILL)  # children that it left behind
            os._exit(exit_code)


def close_inherited_files() -> None:
    """Close all files but the four that the gateway means to pass on."""
    for name in os.listdir("/dev/fd"):
        if int(name) > LIFELINE_FD:
            with contextlib.suppress(OSError):  # the listing itself had one
                os.close(int(name))


def exec_server(argv: list[str], folder: str) -> None:
    os.setpgid(0, 0)  # a group, not a session: only the first process of a session can get a controlling terminal
    for signum in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.chdir(folder)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{error.filename or argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def end_server(child: int) -> None:
    """Wait for the server to exit, then send SIGTERM, then SIGKILL."""
    for grace_s, signum in ((EXIT_GRACE_S, signal.SIGTERM), (TERM_GRACE_S, signal.SIGKILL)):
        deadline = time.monotonic() + grace_s
        while poll_exit_code(child) is None and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        signal_group(child, signum)
    signal_group(child, signal.SIGKILL)


def poll_exit_code(child: int) -> "int | None":
    try:
        pid, status = os.waitpid(child, os.WNOHANG)
    except ChildProcessError:
        return 0
    return None if pid == 0 else abs(os.waitstatus_to_exitcode(status)) & 255


def signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(group, signum)


if __name__ == "__main__":
    main()
