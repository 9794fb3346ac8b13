"""A person at a terminal: a pseudo-terminal whose questions are answered, and approvals as a person gives them."""

import fcntl
import os
import pty
import re
import select
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from athena.app.compose import App
from athena.core.threads import run_sync
from wait_tools import LONG, wait_until

ATHENA = (sys.executable, "-m", "athena")
QUESTION = re.compile(rb"(\[y/N\] |\[Y/n\] |-- )$")
SECRET = re.compile(rb"(assphrase[^\r\n]*|Again): $")


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str
    shown: str  # on the terminal


def decide_run(app: App, run_id: str, project: str = "p", *, refuse: bool = False, reason: str = "") -> Any:
    """Decide on a paused run as the command line does after a person's answer."""
    review = run_sync(app.programs.review_run(app.create_context(project, "cli"), run_id))
    leave = app.approver.grant_refusal(review.subject) if refuse else app.approver.grant([review.subject])[0]
    context = app.create_context(project, "cli", approval=leave)
    operation = app.catalog.get_operation("approve_run")
    return run_sync(operation(context, run_id=run_id, refuse=refuse, reason=reason))


def approve_tools(app: App, name: str, offered: Any, left_out: int = 0) -> None:
    """Approve the tools of a server as the command line does after a person's answer."""
    [leave] = app.approver.grant([app.gateway.format_subject(name, offered)])
    app.gateway.approve_tools(name, offered, left_out, leave)


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux raises EIO when the other side is closed
        return b""


def start_on_terminal(words: Sequence[str], **environment: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command with a controlling terminal of its own, and standard input, output and error elsewhere."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*ATHENA, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        pass_fds=[theirs],  # else the terminal would hang up before the command opens it
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    return process, ours


def run_on_terminal(*words: str, answers: Sequence[str] = (), typed: str = "", **environment: str) -> CommandResult:
    """Run a command at a terminal, and type one answer at each of its questions; `typed` comes before any."""
    process, ours = start_on_terminal(words, **environment)
    os.write(ours, typed.encode())
    shown, fresh, waiting, deadline = b"", b"", list(answers), time.monotonic() + LONG
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 0.1)[0]:
            continue
        if not (piece := read_terminal(ours)):
            break
        shown, fresh = shown + piece, fresh + piece
        if QUESTION.search(fresh) or SECRET.search(fresh):
            assert waiting, f"an unexpected question: {shown.decode()}"
            os.write(ours, waiting.pop(0).encode() + b"\n")
            fresh = b""
    out, err = process.communicate(timeout=LONG)
    os.close(ours)
    assert not waiting, f"it did not ask: {shown.decode()} {err.decode()}"
    return CommandResult(process.returncode, out.decode(), err.decode(), shown.decode().replace("\r\n", "\n"))


def run_without_terminal(*words: str, given: str = "", **environment: str) -> CommandResult:
    """Run a command in a session that has no terminal."""
    done = subprocess.run(
        [*ATHENA, *words],
        input=given.encode(),
        capture_output=True,
        timeout=LONG,
        env=os.environ | environment,
        start_new_session=True,
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode(), "")


class Person:
    """Answers what the commands of this process ask at the terminal."""

    def __init__(self) -> None:
        self.answer = "y"
        self.secrets: list[str] = []  # typed one after the other
        self._shown = b""
        self._ours, self._theirs = pty.openpty()
        self.path = os.ttyname(self._theirs)
        self._thread = threading.Thread(target=self._answer_all, daemon=True)
        self._thread.start()

    def _answer_all(self) -> None:
        fresh = b""
        while piece := read_terminal(self._ours):
            self._shown += piece
            fresh += piece
            if SECRET.search(fresh):
                os.write(self._ours, self.secrets.pop(0).encode() + b"\n")
                fresh = b""
            elif QUESTION.search(fresh):
                os.write(self._ours, self.answer.encode() + b"\n")
                fresh = b""

    def read(self) -> str:
        """Return what the terminal has shown since the last call."""
        mark = f"<{os.urandom(4).hex()}>".encode()
        os.write(self._theirs, mark)
        wait_until(lambda: mark in self._shown)
        shown, _, self._shown = self._shown.partition(mark)
        return shown.decode().replace("\r\n", "\n")

    def close(self) -> None:
        os.close(self._theirs)
        self._thread.join(LONG)
        os.close(self._ours)
