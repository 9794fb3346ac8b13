"""Ask the person at the controlling terminal: show what is to be approved, read the answer and the passphrase."""

import os
import shlex
import termios
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import click

from athena.app import connect
from athena.cli import output
from athena.cli.command_group import TYPED_WORDS_KEY, CommandGroup
from athena.cli.invoke import json_option
from athena.core.approval import Approval, WrongPassphrase
from athena.errors import ApprovalNeeded, InvalidInput
from athena.gateway.sanitize import escape_hidden, format_line

UNATTENDED_VARIABLE = "ATHENA_UNATTENDED"  # "1": somebody has decided beforehand, and nobody is at a terminal
TERMINAL_PATH = "/dev/tty"  # the controlling terminal, wherever standard input and output lead
PASSPHRASE_PROMPTS = 3
MAX_ANSWER_BYTES = 8_192
WRAP_MARK = "   ... "  # before a row that goes on with the line before
MIN_WRAPPED_COLUMNS = 2 * len(WRAP_MARK)
RUN_AGAIN = "programs that wait for an approval have to run again"


class Terminal:
    """The controlling terminal of this process, for `with`; hidden characters are shown as escapes."""

    def __init__(self, command: str, *, assume_yes: bool = False) -> None:
        """Open the terminal; raise ApprovalNeeded where there is none."""
        self._assume_yes = assume_yes
        try:
            self._descriptor = os.open(TERMINAL_PATH, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            context = click.get_current_context(silent=True)
            typed = context.meta.get(TYPED_WORDS_KEY) if context else None
            hint = f"a person does it at a terminal: athena {shlex.join(typed) if typed else command}"
            raise ApprovalNeeded("a person has to agree", hint=hint) from None

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def show(self, lines: Iterable[str]) -> None:
        """Print lines, a screen at a time; raise Abort if the person does not want to go on."""
        columns, rows = self._get_size()
        rows_left = rows - 1
        for row in (row for line in lines for row in wrap_line(format_line(line), columns)):
            if rows > 2 and rows_left == 0 and not self._assume_yes:
                if self._ask_line("-- Enter shows more, q stops -- ").strip().lower() == "q":
                    raise click.Abort
                rows_left = rows - 1
            self._write(f"{row}\n")
            rows_left -= 1

    def confirm(self, question: str) -> None:
        """Ask a question; raise Abort unless the answer is yes."""
        if not self._assume_yes and not self.ask(question):
            raise click.Abort

    def ask(self, question: str, *, default: bool = False) -> bool:
        """Ask a question; return whether the answer is yes."""
        answer = self._ask_line(f"{escape_hidden(question)} [{'Y/n' if default else 'y/N'}] ").strip().lower()
        return answer in ("y", "yes") or (default and not answer)

    def read_secret(self, prompt: str) -> str:
        """Read a line without showing it."""
        settings = termios.tcgetattr(self._descriptor)
        hidden = [*settings]
        hidden[3] &= ~termios.ECHO
        try:
            return self._ask_line(prompt, hidden)
        finally:
            termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, settings)
            self._write("\n")

    def _ask_line(self, prompt: str, settings: list[object] | None = None) -> str:
        """Print a prompt and read a line; what was typed before the prompt does not count."""
        if settings is None:
            termios.tcflush(self._descriptor, termios.TCIFLUSH)
        else:
            termios.tcsetattr(self._descriptor, termios.TCSAFLUSH, settings)  # type: ignore[arg-type]
        self._write(prompt)
        answer = b""
        while not answer.endswith(b"\n") and len(answer) <= MAX_ANSWER_BYTES:
            try:
                piece = os.read(self._descriptor, 1_024)
            except OSError:  # the terminal is gone
                piece = b""
            if not piece:
                raise click.Abort
            answer += piece
        return answer.decode("utf-8", "replace").rstrip("\r\n")

    def _write(self, text: str) -> None:
        rest = text.encode("utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _get_size(self) -> tuple[int, int]:
        try:
            return os.get_terminal_size(self._descriptor)
        except OSError:
            return 0, 0


class Unattended(Terminal):
    """Stands for the terminal where somebody has decided beforehand; a passphrase cannot be given here."""

    def __init__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, lines: Iterable[str]) -> None:
        for line in map(format_line, lines):
            click.echo(line, err=True)

    def confirm(self, question: str) -> None:
        pass

    def ask(self, question: str, *, default: bool = False) -> bool:
        return False

    def read_secret(self, prompt: str) -> str:
        raise ApprovalNeeded("approvals need the passphrase", hint="a person gives it at a terminal")


def open_terminal(command: str, *, assume_yes: bool = False) -> Terminal:
    """Return the terminal for a command that adds or approves servers, which a build may also do by itself."""
    is_unattended = os.environ.get(UNATTENDED_VARIABLE) == "1"
    return Unattended() if is_unattended else Terminal(command, assume_yes=assume_yes)


def wrap_line(line: str, columns: int) -> Iterator[str]:
    """Yield a line in rows that a terminal of so many columns shows as one row each; 0 columns: as it is.

    A row that goes on begins with a mark, so that the end of a long line cannot look like a line of ours.
    """
    width = columns - 1  # a row that fills the last column may take two
    if width < MIN_WRAPPED_COLUMNS:
        yield line
        return
    row, used = "", 0
    for char in line:
        char_width = 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used + char_width > width:
            yield row
            row, used = WRAP_MARK, len(WRAP_MARK)
        row, used = row + char, used + char_width
    yield row


def ask_approvals(terminal: Terminal, question: str, subjects: Sequence[str]) -> list[Approval]:
    """Ask for a yes, and for the passphrase if one is set; return an approval for each subject."""
    approver = connect.shared_app().approver
    needs_passphrase = approver.has_passphrase()  # before the question: a damaged file is an error
    terminal.confirm(question)
    if not needs_passphrase:
        return approver.grant(subjects)
    for prompts_left in reversed(range(PASSPHRASE_PROMPTS)):
        try:
            return approver.grant(subjects, terminal.read_secret("Passphrase for approvals: "))
        except WrongPassphrase as error:
            if not prompts_left:
                raise
            terminal.show([f"{error}; try again"])
    raise AssertionError("unreachable")


def ask_refusal(terminal: Terminal, question: str, subject: str) -> Approval:
    """Ask for a yes; return a refusal."""
    terminal.confirm(question)
    return connect.shared_app().approver.grant_refusal(subject)


@click.group(cls=CommandGroup, invoke_without_command=True)
@json_option
@click.pass_context
def passphrase(context: click.Context, json_output: bool) -> None:
    """Say whether approvals need a passphrase; set or remove it.

    Example: athena passphrase set
    """
    if context.invoked_subcommand is None:
        is_set = connect.shared_app().approver.has_passphrase()
        text = "approvals need the passphrase" if is_set else "no passphrase is set: athena passphrase set"
        _report(text, json_output, is_set=is_set)


def _report(text: str, json_output: bool, *, is_set: bool) -> None:
    output.print_data({"passphrase": is_set}) if json_output else click.echo(text)


@passphrase.command("set")
@json_option
def set_passphrase(json_output: bool) -> None:
    """Set or change the passphrase that every approval then needs; asks for the old one.

    Example: athena passphrase set
    """
    app = connect.shared_app()
    app.catalog.refresh()
    approver, before = app.approver, app.approver.identify_passphrase()
    with Terminal("passphrase set") as terminal:
        old = terminal.read_secret("Old passphrase: ") if approver.has_passphrase() else None
        new = terminal.read_secret("New passphrase: ")
        if terminal.read_secret("Again: ") != new:
            raise InvalidInput("the two are not the same", hint="nothing was changed")
        approver.set_passphrase(new, old)
    app.gateway.move_approvals(before)
    _report(f"every approval needs the passphrase now; {RUN_AGAIN}", json_output, is_set=True)


@passphrase.command("remove")
@json_option
def remove_passphrase(json_output: bool) -> None:
    """Remove the passphrase; asks for it.

    Example: athena passphrase remove
    """
    app = connect.shared_app()
    app.catalog.refresh()
    approver, before = app.approver, app.approver.identify_passphrase()
    with Terminal("passphrase remove") as terminal:
        old = terminal.read_secret("Passphrase: ") if approver.has_passphrase() else None
        approver.remove_passphrase(old)
    app.gateway.move_approvals(before)
    _report(f"approvals need no passphrase any more; {RUN_AGAIN}", json_output, is_set=False)
