"""`athena run`, `athena shell` and `athena approve`: programs from a terminal."""

import code as incomplete
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.cli.invoke import invoke_operation, json_option, read_stdin
from athena.core.home.paths import home_folder
from athena.errors import ApprovalNeeded, InvalidInput

HISTORY_FILE = "shell_history"
MAX_HISTORY_LINES = 2_000  # of it
EXIT_COMMANDS = ("exit", "quit", "exit()", "quit()")
SHELL_HELP = (
    'Operations are functions, e.g. memory.recall(query="x"); tools.search(query="...") finds them, '
    "help(memory.recall) shows one; _ is the last value."
)
project_option = click.option("--project", help="Whose things; by default the git root of this folder, else 'default'.")


def _describe_extent(done: dict[str, Any]) -> str:
    """Say how much there is of a value that was cut."""
    part = isinstance(done["result"], str) and " are kept, " in done["result"].partition("\n")[0]
    return "what was kept, in pages" if part else "all of it (limit and offset give pages)"


def _page_arguments(done: dict[str, Any], workspace: str | None) -> str:
    named = {"workspace": workspace} if workspace else {}
    return json.dumps({"path": done["handle"], **named, "offset": 0, "limit": 1_000})


def print_result(done: dict[str, Any], workspace: str | None = None, *, quiet: bool = False) -> int:
    """Print what came of a program: its output and value, what went wrong to standard error; return the exit code."""
    if done["output"]:
        click.echo(output.escape_control_chars(done["output"]), nl=not done["output"].endswith("\n"))
    if done["result"] is not None:
        if isinstance(done["result"], str) and not quiet:
            click.echo(output.escape_control_chars(done["result"]))
        else:
            output.print_json(done["result"])
    if done["handle"]:
        click.echo(
            f"{_describe_extent(done)}: athena call read_file --json '{_page_arguments(done, workspace)}'", err=True
        )
    if (error := done["error"]) is None:
        return 0
    where = "" if error["line"] is None else f" (line {error['line']})"
    head = click.style(f"{error['type']}:", fg="red")
    click.echo(f"{head} {output.escape_control_chars(error['message'])}{where}", err=True)
    if error["hint"]:
        click.echo(f"{click.style('hint:', fg='cyan')} {output.escape_control_chars(error['hint'])}", err=True)
    return ApprovalNeeded.exit if done["status"] == "needs_approval" else 1


@click.command()
@click.argument("file")
@click.option(
    "--timeout",
    type=click.FloatRange(0.05, 60.0),
    default=30.0,
    show_default=True,
    help="Seconds until it is stopped, at most 60.",
)
@click.option("--workspace", help="Whose variables and files; 'default' by default.")
@click.option("--engine", type=click.Choice(["auto", "monty", "python"]), default="auto", help="What runs it.")
@project_option
@json_option
def run(file: str, timeout: float, workspace: str | None, engine: str, project: str | None, json_output: bool) -> None:
    """Run a program in the sandbox; '-' reads it from standard input.

    Example: echo 'len(memory.list_memories(k=100))' | athena run -
    """
    done = invoke_operation(
        "execute_code", project, code=read_source(file), timeout_s=timeout, workspace=workspace, engine=engine
    )
    if json_output:
        output.print_json(done)
        code = 0 if done["success"] else 1
    else:
        code = print_result(done, workspace)
    if code:
        raise click.exceptions.Exit(code)


def read_source(file: str) -> str:
    if file == "-":
        return read_stdin()
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None


@click.command()
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--refuse", is_flag=True, help="Say no: the program is told so and goes on.")
@click.option("--reason", default="", help="Why not.")
@project_option
@json_option
def approve(run_id: str | None, refuse: bool, reason: str, project: str | None, json_output: bool) -> None:
    """Let a program go on that waits for a person; without an ID, list those that wait.

    Example: athena approve 0123456789abcdef --refuse --reason "not before the release"
    """
    if run_id is None:
        return _list_waiting(invoke_operation("list_runs", project, status="needs_approval"), json_output)
    if waits := invoke_operation("get_run", project, run_id=run_id)["waiting"]:
        click.echo(f"{'refused' if refuse else 'approved'}: {_format_call(waits)}", err=True)
    done = invoke_operation("approve_run", project, run_id=run_id, refuse=refuse, reason=reason)
    if json_output:
        output.print_json(done)
        code = 0 if done["success"] else 1
    else:
        code = print_result(done)
    if code:
        raise click.exceptions.Exit(code)
    return None


def _format_call(waiting: dict[str, Any]) -> str:
    """Write the call that waits, as a program writes it."""
    asked = ", ".join(f"{name}={value!r}" for name, value in waiting["arguments"].items())
    return output.escape_control_chars(f"{waiting['operation']}({asked})")


def _list_waiting(found: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.print_json(found)
    for one in found:
        click.echo(f"{one['run_id']}  {_format_call(one['waiting'])}")
    if not found:
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
    """Do what a person typed; return the run whose value `_` is from now on."""
    if asked := re.fullmatch(r"help(?:\(\s*(?:\w+\.)*(\w*)\s*\))?", source.strip()):
        click.echo(invoke_operation("describe_tool", project, name=asked[1]) if asked[1] else SHELL_HELP)
        return last
    if last is not None and re.search(r"(?<![\w.])_(?!\w)", source):
        value = f"workspace.read(path={last['handle']!r})" if last["handle"] else repr(last["result"])
        invoke_operation("execute_code", project, code=f"_ = {value}", workspace=workspace)
    done = invoke_operation("execute_code", project, code=source, timeout_s=60.0, workspace=workspace)
    print_result(done, workspace, quiet=True)
    return last if done["result"] is None else done


def _read_programs() -> Iterator[str]:
    """Read what is typed, until a program is whole."""
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
        return incomplete.compile_command(source, symbol="single" if "\n" in source else "exec") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # the sandbox says what is wrong with it, or knows it: `return` stands alone there


class _ReadlineHistory:  # read as `with _remembered()`
    """Lets the arrow keys bring back earlier lines, also those of the last session, and Tab complete names."""

    def __enter__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):
            import readline  # not on every platform

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
                os.makedirs(home_folder(), mode=0o700, exist_ok=True)
                self._readline.write_history_file(self._file)
                os.chmod(self._file, 0o600)


def create_completer() -> Any:
    """Complete names of the catalog: categories, operations, and parameters behind a bracket."""
    catalog = connect.shared_app().catalog
    catalog.refresh()
    names = sorted(
        {f"{one.category}." for one in catalog}
        | {
            f"{one.category}.{name}("
            for one in catalog
            if one.programs
            for name in (one.bare_name, one.short_name)
            if name
        }
        | {f"{p.name}=" for one in catalog for p in one.parameters}
        | {"parallel(", "print(", "return "}
    )

    def complete_name(text: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(text)]
        if "." not in text:
            found = [name for name in found if "." not in name[:-1]]
        return found[state] if state < len(found) else None

    return complete_name
