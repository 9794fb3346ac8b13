"""`athena run`, `athena shell` and `athena approve`: programs from a terminal."""

import json
import os
import re
import sys
from codeop import compile_command
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.cli.approval import Terminal, ask_approvals, ask_refusal
from athena.cli.invoke import call_approved, invoke_operation, json_option, read_stdin
from athena.core.catalog import AnyOperation
from athena.core.files import create_private_folder
from athena.core.home.paths import current_project, home_folder
from athena.core.operation import CallerKind
from athena.core.threads import run_sync
from athena.core.types import to_json
from athena.errors import ApprovalNeeded, Conflict, InvalidInput, NotFound
from athena.programs.values import Removal, RunReview

HISTORY_FILE = "shell_history"
MAX_HISTORY_LINES = 2_000
MAX_PROGRAM_S = 600.0
MAX_VARIABLE_CHARS = 300
MAX_PURGED_SHOWN = 50
EXIT_COMMANDS = ("exit", "quit", "exit()", "quit()")
SHELL_HELP = (
    'Operations are functions, e.g. memory.recall(query="x"); tools.search(query="...") finds them, '
    "help(memory.recall) shows one; _ is the last value."
)
project_option = click.option("--project", help="Whose things; by default the git root of this folder, else 'default'.")


def print_result(result: dict[str, Any], workspace: str | None = None, *, quiet: bool = False) -> int:
    """Print a program's output and value, and its error to standard error; return the exit code."""
    if result["output"]:
        click.echo(output.escape_control_chars(result["output"]), nl=not result["output"].endswith("\n"))
    if result["result"] is not None:
        if isinstance(result["result"], str) and not quiet:
            click.echo(output.escape_control_chars(result["result"]))
        else:
            output.print_data(result["result"])
    if result["handle"]:
        arguments = _page_arguments(result, workspace)
        click.echo(f"{_describe_extent(result)}: athena call read_file --json '{arguments}'", err=True)
    if (error := result["error"]) is None:
        return 0
    line = "" if error["line"] is None else f" (line {error['line']})"
    error_type = output.style(f"{error['type']}:", fg="red")
    click.echo(f"{error_type} {output.escape_control_chars(error['message'])}{line}", err=True)
    if error["hint"]:
        click.echo(f"{output.style('hint:', fg='cyan')} {output.escape_control_chars(error['hint'])}", err=True)
    return ApprovalNeeded.exit if result["status"] == "needs_approval" else 1


def _describe_extent(result: dict[str, Any]) -> str:
    """Say whether the workspace has a truncated value whole or in part."""
    is_part = isinstance(result["result"], str) and " are kept, " in result["result"].partition("\n")[0]
    return "what was kept, in pages" if is_part else "all of it (limit and offset give pages)"


def _page_arguments(result: dict[str, Any], workspace: str | None) -> str:
    named = {"workspace": workspace} if workspace else {}
    return json.dumps({"path": result["handle"], **named, "offset": 0, "limit": 1_000})


@click.command()
@click.argument("file")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, MAX_PROGRAM_S),
    default=30.0,
    show_default=True,
    help="Seconds until it is stopped, at most 600.",
)
@click.option("--workspace", help="Whose variables and files; 'default' by default.")
@click.option("--engine", type=click.Choice(["auto", "monty", "python"]), default="auto", help="What runs it.")
@project_option
@json_option
def run(file: str, timeout: float, workspace: str | None, engine: str, project: str | None, json_output: bool) -> None:
    """Run a program in the sandbox; '-' reads it.

    Example: echo 'len(memory.list_memories(k=100))' | athena run -
    """
    result = invoke_operation(
        "execute_code", project, code=read_source(file), timeout_s=timeout, workspace=workspace, engine=engine
    )
    if json_output:
        output.print_data(result)
        code = 0 if result["success"] else 1
    else:
        code = print_result(result, workspace)
    if code:
        raise click.exceptions.Exit(code)


def read_source(file: str) -> str:
    """Read a program from a file, or from standard input if it is '-'."""
    if file == "-":
        return read_stdin()
    try:
        with open(file, encoding="utf-8") as stream:
            return stream.read()
    except OSError as error:
        raise NotFound(
            f"{file} cannot be read: {error.strerror}", hint="name a file with a program, or - to read it"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not text in UTF-8", hint="name a file with a program") from None


@click.command()
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--refuse", is_flag=True, help="Say no: the program is told so and goes on.")
@click.option("--reason", default="", help="Why not.")
@project_option
@json_option
def approve(run_id: str | None, refuse: bool, reason: str, project: str | None, json_output: bool) -> None:
    """Let a program go on that waits for a person. Without an ID, list those that wait.

    Shows the whole program and asks, at the terminal alone.

    Example: athena approve 0123456789abcdef --refuse --reason "not before the release"
    """
    if run_id is None:
        return _list_waiting(invoke_operation("list_runs", project, status="needs_approval"), json_output)
    try:
        with Terminal(f"approve {run_id}") as terminal:
            app = connect.shared_app()
            context = app.create_context(current_project() if project is None else project, "cli")
            review = run_sync(app.programs.review_run(context, run_id))
            if not refuse:
                app.approver.require_passphrase(review.passphrase, run_id)
            terminal.show(format_review(review))
            if review.removal is not None:
                terminal.show(_list_purged(app.catalog.get_operation("list_purgeable"), context, review.removal))
            if refuse:
                approval = ask_refusal(terminal, "Refuse this call?", review.subject)
            else:
                [approval] = ask_approvals(terminal, "Let the program make this call and go on?", [review.subject])
    except (click.Abort, KeyboardInterrupt):
        hint = f"athena approve {run_id} decides" if refuse else f"to refuse it: athena approve {run_id} --refuse"
        raise KeyboardInterrupt(f"the program still waits; {hint}") from None
    arguments = {"run_id": run_id, "refuse": refuse, "reason": reason}
    result = call_approved("approve_run", project, arguments, approval)
    call = format_call(review.operation, review.arguments)
    click.echo(f"{'refused' if refuse else 'approved'}: {output.escape_control_chars(call)}", err=True)
    if json_output:
        output.print_data(result)
        code = 0 if result["success"] else 1
    else:
        code = print_result(result)
    if code:
        raise click.exceptions.Exit(code)
    return None


def format_review(review: RunReview) -> Iterator[str]:
    """Yield the lines that a person must see before the program goes on."""
    yield f"run {review.run_id} waits in the workspace {review.workspace!r} with this call:"
    yield f"  {format_call(review.operation, review.arguments)}"
    if calls := ", ".join(f"{path} ({count})" for path, count in review.calls_made.items() if count):
        yield f"calls before it: {calls}"
    if review.private_reads:
        yield f"private data that it has read: {', '.join(review.private_reads)}"
    yield from _format_source("the whole program:", review.lines, review.call_lines)
    for name, lines in review.definitions.items():
        yield from _format_source(f"{name}, from an earlier program:", lines)
    for name, lines in review.skills.items():
        yield from _format_source(f"the skill {name}:", lines)
    if review.variables:
        yield "variables of earlier programs, or arguments:"
        for name, value in review.variables.items():
            text = json.dumps(value, ensure_ascii=False)
            is_cut = len(text) > MAX_VARIABLE_CHARS and not review.unforeseen  # else it may run as code
            more = f"... ({len(text):,} characters)" if is_cut else ""
            yield f"  {name} = {text[:MAX_VARIABLE_CHARS] if is_cut else text}{more}"
    for path, lines in review.files.items():
        yield from _format_source(f"the file {path} of the workspace:", lines)
    if review.unshown_files:
        sizes = ", ".join(f"{path} ({size:,} bytes)" for path, size in review.unshown_files.items())
        yield f"files of the workspace that are too long to show: {sizes}"
    if review.unknown_names:
        yield f"of earlier programs, with no source to show: {', '.join(review.unknown_names)}"
    if review.unforeseen:
        yield f"IT CAN RUN OTHER CODE THAN YOU SEE HERE ({'; '.join(review.unforeseen)}):"
        yield "it computes names, or runs texts as code. All definitions, skills, variables and files of the workspace"
        yield "are shown or named above. Texts that it reads elsewhere (other workspaces, memories, servers) are not,"
        yield "and what it makes of all this, nobody can say before it runs."
    yield _describe_rest(review)


def _list_purged(list_purgeable: AnyOperation, context: Any, removal: Removal) -> Iterator[str]:
    """Yield the memories that a purge would remove for good, the first of many."""
    if not removal.digest:
        yield "something that it names is not there any more: it removes nothing"
        return
    found = run_sync(list_purgeable(context, memory_ids=removal.refs, k=MAX_PURGED_SHOWN))
    if found.digest != removal.digest:
        raise Conflict("what it would remove for good has changed just now", hint="run this command again")
    yield from output.format_purgeable(to_json(found))


def _format_source(title: str, lines: list[str], marked: Sequence[int] = ()) -> Iterator[str]:
    yield title
    for number, line in enumerate(lines, 1):
        yield f"{'>' if number in marked else ' '} {number:>4} | {line}"


def _describe_rest(review: RunReview) -> str:
    """Say which lines follow the call."""
    name, last = review.operation, len(review.lines)
    if not review.call_lines:
        return f"no line of the program names {name}; any line may follow the call"
    if review.next_line is None:
        return f"> marks the lines that name {name}; any line may follow the call"
    if review.next_line > last:
        return f"> marks the call of {name}; no line follows it"
    if review.next_line not in review.call_lines:
        return f"> marks the call of {name}; lines {review.next_line} to {last} follow it"
    rest = f"the rest of line {review.next_line}"
    if review.next_line == last:
        return f"> marks the call of {name}; {rest} follows it"
    return f"> marks the call of {name}; {rest} and lines {review.next_line + 1} to {last} follow it"


def format_call(path: str, arguments: dict[str, Any]) -> str:
    """Format a call as a program writes it."""
    return f"{path}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _list_waiting(runs: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.print_data(runs)
    for run in runs:
        call = format_call(run["waiting"]["operation"], run["waiting"]["arguments"])
        click.echo(f"{run['run_id']}  {output.escape_control_chars(call)}")
    if not runs:
        click.echo("nothing waits", err=True)
    return None


@click.command()
@click.option("--workspace", default="shell", show_default=True, help="Whose variables and files.")
@project_option
def shell(workspace: str, project: str | None) -> None:
    """Write programs line by line; variables stay. Tab completes, Ctrl-D leaves.

    Example: athena shell
    """
    with _ReadlineHistory():
        if sys.stdin.isatty():
            click.echo(f"{SHELL_HELP} Ctrl-D leaves.")
        last: dict[str, Any] | None = None
        for source in _read_programs():
            if source.strip() in EXIT_COMMANDS:
                return
            try:
                last = _run_input(source, project, workspace, last)
            except KeyboardInterrupt:
                click.echo("\nstopped; variables are as before, and what was called is done", err=True)


def _run_input(source: str, project: str | None, workspace: str, last: dict[str, Any] | None) -> dict[str, Any] | None:
    """Run one input; return its result, the new value of `_`."""
    if help_call := re.fullmatch(r"help(?:\(\s*(?:\w+\.)*(\w*)\s*\))?", source.strip()):
        click.echo(invoke_operation("describe_tool", project, name=help_call[1]) if help_call[1] else SHELL_HELP)
        return last
    if last is not None and re.search(r"(?<![\w.])_(?!\w)", source):
        value = f"workspace.read(path={last['handle']!r})" if last["handle"] else repr(last["result"])
        invoke_operation("execute_code", project, code=f"_ = {value}", workspace=workspace)
    result = invoke_operation("execute_code", project, code=source, timeout_s=MAX_PROGRAM_S, workspace=workspace)
    print_result(result, workspace, quiet=True)
    return last if result["result"] is None else result


def _read_programs() -> Iterator[str]:
    """Read programs from standard input, each until it is complete."""
    lines: list[str] = []
    while True:
        prompt = ("... " if lines else ">>> ") if sys.stdin.isatty() else ""
        try:
            lines.append(input(prompt))
        except KeyboardInterrupt:
            click.echo()
            lines = []
            continue
        except EOFError:
            if lines:
                yield "\n".join(lines)
            click.echo()
            return
        source = "\n".join(lines)
        if not source.strip():
            lines = []
        elif _is_complete(source):
            lines = []
            yield source


def _is_complete(source: str) -> bool:
    try:
        return compile_command(source, symbol="single" if "\n" in source else "exec") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # the sandbox reports the error, or accepts it, as with `return` outside a function


class _ReadlineHistory:
    """Line editing for `with`: a history that is kept between sessions, and completion with Tab."""

    def __enter__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):
            import readline  # missing on some platforms

            self._readline = readline
            self._file = os.path.join(home_folder(), HISTORY_FILE)
            with suppress(OSError):
                readline.read_history_file(self._file)
            readline.set_history_length(MAX_HISTORY_LINES)
            readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")
            readline.set_completer(create_completer())
            readline.parse_and_bind("tab: complete")

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            with suppress(OSError):
                create_private_folder(home_folder())
                self._readline.write_history_file(self._file)
                os.chmod(self._file, 0o600)


def create_completer() -> Any:
    """Return a readline completer for the names of categories, operations and parameters."""
    catalog = connect.shared_app().catalog
    catalog.refresh()
    names = sorted(
        {f"{operation.category}." for operation in catalog}
        | {
            f"{operation.category}.{name}("
            for operation in catalog
            if CallerKind.PROGRAM in operation.callers
            for name in operation.names
        }
        | {f"{parameter.name}=" for operation in catalog for parameter in operation.parameters}
        | {"parallel(", "print(", "return "}
    )

    def complete_name(text: str, state: int) -> str | None:
        matches = [name for name in names if name.startswith(text)]
        if "." not in text:
            matches = [name for name in matches if "." not in name[:-1]]
        return matches[state] if state < len(matches) else None

    return complete_name
