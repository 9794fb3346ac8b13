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
from athena.core.home.paths import home_folder
from athena.core.threads import drive
from athena.errors import ApprovalNeeded, InvalidInput

HISTORY = "shell_history"
LINES = 2_000  # of it
LEAVE = ("exit", "quit", "exit()", "quit()")
HELP = (
    'Operations are functions, e.g. memory.recall(query="x"); tools.search(query="...") finds them, '
    "help(memory.recall) shows one; _ is the last value."
)
in_project = click.option("--project", help="Whose things; by default the git root of this folder, else 'default'.")
as_json = click.option("--json", "json_output", is_flag=True, help="Print JSON.")


def call(operation: str, whose: str | None, **arguments: Any) -> Any:
    return drive(connect.Connection(connect.shared_app, whose, "cli").call(operation, arguments)).data


def _whole(done: dict[str, Any]) -> str:
    """Say how much there is of a value that was cut."""
    part = isinstance(done["result"], str) and " are kept, " in done["result"].partition("\n")[0]
    return "what was kept, in pages" if part else "all of it (limit and offset give pages)"


def _page(done: dict[str, Any], workspace: str | None) -> str:
    named = {"workspace": workspace} if workspace else {}
    return json.dumps({"path": done["handle"], **named, "offset": 0, "limit": 1_000})


def json_object(text: str) -> dict[str, Any]:
    """Read arguments that are given as JSON."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--json") from None
    if not isinstance(given, dict):
        raise click.BadParameter("a JSON object is needed", param_hint="--json")
    return given


def show(done: dict[str, Any], workspace: str | None = None, *, quiet: bool = False) -> int:
    """Print what came of a program: its output and value, what went wrong to standard error; return the exit code."""
    if done["output"]:
        click.echo(output.safe(done["output"]), nl=not done["output"].endswith("\n"))
    if done["result"] is not None:
        if isinstance(done["result"], str) and not quiet:
            click.echo(output.safe(done["result"]))
        else:
            output.as_json(done["result"])
    if done["handle"]:
        click.echo(f"{_whole(done)}: athena call read_file --json '{_page(done, workspace)}'", err=True)
    if (error := done["error"]) is None:
        return 0
    where = "" if error["line"] is None else f" (line {error['line']})"
    head = click.style(f"{error['type']}:", fg="red")
    click.echo(f"{head} {output.safe(error['message'])}{where}", err=True)
    if error["hint"]:
        click.echo(f"{click.style('hint:', fg='cyan')} {output.safe(error['hint'])}", err=True)
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
@in_project
@as_json
def run(file: str, timeout: float, workspace: str | None, engine: str, project: str | None, json_output: bool) -> None:
    """Run a program in the sandbox; '-' reads it from standard input.

    Example: echo 'len(memory.list_memories(k=100))' | athena run -
    """
    done = call("execute_code", project, code=read_source(file), timeout_s=timeout, workspace=workspace, engine=engine)
    if json_output:
        output.as_json(done)
        code = 0 if done["success"] else 1
    else:
        code = show(done, workspace)
    if code:
        raise click.exceptions.Exit(code)


def read_source(file: str) -> str:
    if file == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None


@click.command()
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--refuse", is_flag=True, help="Say no: the program is told so and goes on.")
@click.option("--reason", default="", help="Why not.")
@in_project
@as_json
def approve(run_id: str | None, refuse: bool, reason: str, project: str | None, json_output: bool) -> None:
    """Let a program go on that waits for a person; without an ID, list those that wait.

    Example: athena approve 0123456789abcdef --refuse --reason "not before the release"
    """
    if run_id is None:
        return _list_waiting(call("list_runs", project, status="needs_approval"), json_output)
    if waits := call("get_run", project, run_id=run_id)["waiting"]:
        click.echo(f"{'refused' if refuse else 'approved'}: {_asked(waits)}", err=True)
    done = call("approve_run", project, run_id=run_id, refuse=refuse, reason=reason)
    if json_output:
        output.as_json(done)
        code = 0 if done["success"] else 1
    else:
        code = show(done)
    if code:
        raise click.exceptions.Exit(code)
    return None


def _asked(waiting: dict[str, Any]) -> str:
    """Write the call that waits, as a program writes it."""
    asked = ", ".join(f"{name}={value!r}" for name, value in waiting["arguments"].items())
    return output.safe(f"{waiting['operation']}({asked})")


def _list_waiting(found: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.as_json(found)
    for one in found:
        click.echo(f"{one['run_id']}  {_asked(one['waiting'])}")
    if not found:
        click.echo("nothing waits", err=True)
    return None


@click.command()
@click.option("--workspace", default="shell", show_default=True, help="Whose variables and files.")
@in_project
def shell(workspace: str, project: str | None) -> None:
    """Write programs line by line; variables stay. Tab completes, Ctrl-D leaves.

    Example: athena shell
    """
    with _remembered():
        if sys.stdin.isatty():
            click.echo(f"{HELP} Ctrl-D leaves.")
        last: dict[str, Any] | None = None
        for source in _programs():
            if source.strip() in LEAVE:
                return
            try:
                last = _typed(source, project, workspace, last)
            except KeyboardInterrupt:
                click.echo("\nstopped; variables are as before, and what was called is done", err=True)


def _typed(source: str, project: str | None, workspace: str, last: dict[str, Any] | None) -> dict[str, Any] | None:
    """Do what a person typed; return the run whose value `_` is from now on."""
    if asked := re.fullmatch(r"help(?:\(\s*(?:\w+\.)*(\w*)\s*\))?", source.strip()):
        click.echo(call("describe_tool", project, name=asked[1]) if asked[1] else HELP)
        return last
    if last is not None and re.search(r"(?<![\w.])_(?!\w)", source):
        value = f"workspace.read(path={last['handle']!r})" if last["handle"] else repr(last["result"])
        call("execute_code", project, code=f"_ = {value}", workspace=workspace)
    done = call("execute_code", project, code=source, timeout_s=60.0, workspace=workspace)
    show(done, workspace, quiet=True)
    return last if done["result"] is None else done


def _programs() -> Iterator[str]:
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
        elif _is_whole(source):
            lines = []
            yield source


def _is_whole(source: str) -> bool:
    try:
        return incomplete.compile_command(source, symbol="single" if "\n" in source else "exec") is not None
    except (SyntaxError, ValueError, OverflowError):
        return True  # the sandbox says what is wrong with it, or knows it: `return` stands alone there


class _remembered:  # noqa: N801  # read as `with _remembered()`
    """Lets the arrow keys bring back earlier lines, also those of the last session, and Tab complete names."""

    def __enter__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):
            import readline  # not on every platform

            self._readline = readline
            self._file = os.path.join(home_folder(), HISTORY)
            with suppress(OSError):
                readline.read_history_file(self._file)
            readline.set_history_length(LINES)
            readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")
            readline.set_completer(completer())
            readline.parse_and_bind("tab: complete")

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            with suppress(OSError):
                os.makedirs(home_folder(), mode=0o700, exist_ok=True)
                self._readline.write_history_file(self._file)
                os.chmod(self._file, 0o600)


def completer() -> Any:
    """Complete names of the catalog: categories, operations, and parameters behind a bracket."""
    catalog = connect.shared_app().catalog
    names = sorted(
        {f"{one.category}." for one in catalog}
        | {f"{one.category}.{name}(" for one in catalog if one.programs for name in (one.bare, one.short) if name}
        | {f"{p.name}=" for one in catalog for p in one.parameters}
        | {"parallel(", "print(", "return "}
    )

    def complete(text: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(text)]
        if "." not in text:
            found = [name for name in found if "." not in name[:-1]]
        return found[state] if state < len(found) else None

    return complete
