"""The commands. Each turns words into a call of an operation and prints what comes back."""

import os
import re
import sys
import time
import traceback
from difflib import get_close_matches
from typing import Any

import click

from athena.app import connect
from athena.cli import output
from athena.cli.consolidate import consolidate
from athena.cli.daemon import daemon
from athena.cli.doctor import doctor
from athena.cli.evaluate import evaluate
from athena.cli.hook import hook
from athena.cli.import_export import import_file
from athena.cli.init import init
from athena.cli.mcp import mcp
from athena.cli.migrate import migrate
from athena.cli.programs import approve, parse_json_object, run, shell
from athena.cli.projects import projects
from athena.cli.savings import savings
from athena.cli.serve import serve, token
from athena.cli.servers import servers
from athena.cli.skills import skills
from athena.cli.tools import tools
from athena.core.home.paths import USER_PROJECT
from athena.core.threads import run_sync
from athena.core.version import __version__
from athena.errors import AthenaError, InvalidInput
from athena.operations import CATALOG

json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
project_option = click.option(
    "--project", help="Whose memories; by default the git root of this folder, else 'default'."
)


def invoke_operation(operation: str, whose: str | None = None, /, **arguments: Any) -> Any:
    """Call an operation and return its result as plain values."""
    connection = connect.AppConnection(connect.shared_app, whose, "cli")
    answer = run_sync(connection.call(operation, arguments)).data
    if connect.shared_app().store.encoder.last_error is not None:
        click.echo("search by meaning is off, words still work: see athena doctor", err=True)
    return answer


CALL_PATTERN = re.compile(r"\w+\.\w+\(")  # how a program writes the call: no help to a person at a terminal
COMMAND_SYNONYMS = {"search": "recall", "find": "recall", "delete": "forget", "remove": "forget", "add": "remember"}
COMMAND_SYNONYMS |= {"store": "remember", "update": "edit", "get": "show", "help": "--help"}


class CommandGroup(click.Group):
    """The group of commands: errors that a person can act on are printed, not raised."""

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """Find a command, or say which one may be meant."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            known = [*self.list_commands(context), *COMMAND_SYNONYMS]
            near = get_close_matches(args[0], known, 1) if args else []
            meant = (
                COMMAND_SYNONYMS.get(near[0], near[0])
                if near
                else f"call {args[0]}"
                if args[:1] and args[0] in CATALOG
                else ""
            )
            if not meant:
                raise
            raise click.UsageError(f"{error.message} Did you mean 'athena {meant}'?", context) from None

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        began = time.perf_counter()
        try:
            left_with = self.main(*args, **kwargs)  # click returns the code where a command leaves early
            if os.environ.get("DEBUG"):
                click.echo(f"{(time.perf_counter() - began) * 1000:.0f} ms", err=True)
            return left_with if isinstance(left_with, int) else 0
        except AthenaError as error:
            return _print_error(error)
        except click.exceptions.Exit as leave:
            return leave.exit_code
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("stopped", err=True)
            return 130
        except RecursionError as error:
            return _print_error(InvalidInput(f"nested too deeply: {error}"))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; do not complain at exit
            return 1


def _print_error(error: AthenaError) -> int:
    if os.environ.get("DEBUG"):
        traceback.print_exc()
    click.echo(f"{click.style('error:', fg='red')} {output.escape_control_chars(str(error))}", err=True)
    if error.hint and not CALL_PATTERN.match(error.hint):
        click.echo(f"{click.style('hint:', fg='cyan')}  {output.escape_control_chars(error.hint)}", err=True)
    return error.exit


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="athena %(version)s")
def athena() -> None:
    """Long-term memory for AI agents.

    \b
    athena remember "Deploys run on Fridays at 15:00" --tags deploy
    athena recall "when do we ship?"
    """


@athena.command()
@click.argument("text")
@click.option("--tags", help="Tags between commas.")
@click.option("--type", "memory_type", default="note", show_default=True, help="The kind of memory.")
@click.option("--everywhere", is_flag=True, help="Make it known in every project.")
@project_option
@json_option
def remember(
    text: str, tags: str | None, memory_type: str, everywhere: bool, project: str | None, json_output: bool
) -> None:
    """Keep a text; '-' reads it from standard input.

    Example: athena remember "The staging database is read-only" --tags db,staging
    """
    content = _read_stdin() if text == "-" else text
    scope = USER_PROJECT if everywhere else project
    stored = invoke_operation("remember", scope, content=content, tags=tags, memory_type=memory_type)
    _report_redactions(stored)
    if json_output:
        return output.print_json(stored)
    said = {"new": "kept", "known": "known already", "revived": "kept again"}[stored["outcome"]]
    return click.echo(f"{click.style(stored['hash'], fg='yellow')} {said}")


def _read_stdin() -> str:
    """Read all of it; bytes that are no text are replaced, whatever the locale."""
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _report_redactions(stored: dict[str, Any]) -> None:
    if stored["redacted"]:
        click.echo(f"taken out before storing: {', '.join(stored['redacted'])}", err=True)


@athena.command()
@click.argument("query")
@click.option("-k", default=5, show_default=True, help="How many.")
@click.option("--tags", help="Only with one of these tags.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@click.option("--min-score", default=0.0, help="Only those that fit at least this well, from 0 to 1.")
@project_option
@json_option
def recall(query: str, k: int, json_output: bool, project: str | None, **filters: Any) -> None:
    """Find memories; time in plain words is a filter.

    Example: athena recall "what we decided about auth last week" -k 3
    """
    _print_memories(invoke_operation("recall", project, query=query, k=k, understand_time=True, **filters), json_output)


@athena.command("list")
@click.option("-k", default=20, show_default=True, help="How many.")
@click.option("--offset", default=0, help="How many to pass over first.")
@click.option("--tags", help="Only with one of these tags.")
@click.option("--type", "memory_type", help="Only of this kind.")
@click.option("--since", help="Only from this time on, e.g. 'last week'.")
@click.option("--until", help="Only up to this time.")
@project_option
@json_option
def list_memories(json_output: bool, project: str | None, **filters: Any) -> None:
    """List memories, the newest first.

    Example: athena list --since "two days ago" --tags deploy
    """
    _print_memories(invoke_operation("list_memories", project, **filters), json_output)


def _print_memories(found: list[dict[str, Any]], json_output: bool) -> None:
    if json_output:
        return output.print_json(found)
    for memory in found:
        click.echo(output.format_memory_line(memory))
    if not found:
        click.echo("nothing found", err=True)
    return None


@athena.command()
@click.argument("memory_id", metavar="ID")
@click.option("--history", is_flag=True, help="Show its changes instead.")
@project_option
@json_option
def show(memory_id: str, history: bool, project: str | None, json_output: bool) -> None:
    """Show one memory whole, by its hash or id.

    Example: athena show 7d49c4b4 --history
    """
    found = invoke_operation("memory_history" if history else "get_memory", project, memory_id=memory_id)
    if json_output:
        return output.print_json(found)
    if not history:
        click.echo(output.format_memory(found))
        return None
    for change in found:
        text = (change["before"] or {}).get("content")
        before = f"  was: {output.escape_control_chars(text[:200])!r}" if text else ""
        click.echo(f"{output.format_day(change['at'])} {change['action']} ({change['operation']}){before}")
    return None


@athena.command()
@click.argument("memory_id", metavar="ID")
@click.option("--content", help="The new text; without any option an editor opens.")
@click.option("--tags", help="New tags between commas.")
@click.option("--type", "memory_type", help="A new kind.")
@project_option
@json_option
def edit(memory_id: str, project: str | None, json_output: bool, **changes: str | None) -> None:
    """Change a memory; what it said before stays in its history.

    Example: athena edit 7d49c4b4 --content "Deploys run on Mondays"
    """
    if not any(value is not None for value in changes.values()):
        if not sys.stdin.isatty() and not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
            raise InvalidInput("nothing to change", hint="give --content, --tags or --type")
        changes["content"] = click.edit(invoke_operation("get_memory", project, memory_id=memory_id)["content"])
        if changes["content"] is None:
            return click.echo("not changed", err=True)
        changes["content"] = changes["content"].rstrip("\n")
    updated = invoke_operation("update_memory", project, memory_id=memory_id, **changes)
    _report_redactions(updated)
    return output.print_json(updated) if json_output else click.echo(output.format_memory_line(updated))


@athena.command()
@click.argument("memory_ids", metavar="ID...", nargs=-1, required=True)
@project_option
@json_option
def forget(memory_ids: tuple[str, ...], project: str | None, json_output: bool) -> None:
    """Forget memories, by hash or id; `athena undo` brings them back.

    Example: athena forget 7d49c4b4
    """
    found = {
        m["id"]: m for m in (invoke_operation("get_memory", project, memory_id=memory_id) for memory_id in memory_ids)
    }
    count = invoke_operation("forget_batch", project, memory_ids=list(found))
    if json_output:
        return output.print_json(count)
    for memory in found.values():
        click.echo(f"forgotten: {output.format_memory_line(memory)}")
    return click.echo("to take that back: athena undo")


@athena.command()
@project_option
@json_option
def undo(project: str | None, json_output: bool) -> None:
    """Take back the last change in this project.

    Example: athena undo
    """
    changes = invoke_operation("undo", project)
    if json_output:
        return output.print_json(changes)
    for change in changes:
        about = f"{change['before']['hash']} {output.escape_control_chars(change['before']['content'][:100])}".strip()
        click.echo(f"{change['action']}: {about}" if about else change["action"])
    return None


@athena.command("call")
@click.argument("name")
@click.option("--json", "arguments", default="{}", help="The arguments, as a JSON object; '-' reads them.")
@project_option
def call_operation(name: str, arguments: str, project: str | None) -> None:
    """Call any operation; prints JSON.

    Example: athena call recall --json '{"query": "deploy", "k": 3}'
    """
    given = parse_json_object(_read_stdin() if arguments == "-" else arguments)
    try:
        output.print_json(invoke_operation(name, project, **given))
    except InvalidInput as error:
        if error.hint and CALL_PATTERN.match(error.hint):
            raise InvalidInput(str(error), hint=f"it is called as {error.hint}") from None
        raise


@athena.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option("--tags", help="Tags between commas.")
@project_option
@json_option
def ingest(paths: tuple[str, ...], tags: str | None, project: str | None, json_output: bool) -> None:
    """Keep text files, or all below a folder, as memories; again, it brings them up to date.

    Example: athena ingest docs README.md --tags docs
    """
    whole: dict[str, Any] = {"documents": 0, "pieces": 0, "skipped": [], "redacted": []}
    for path in paths:
        done = invoke_operation("ingest_document", project, path=path, tags=tags)
        whole = {name: whole[name] + done[name] for name in whole}
        if not json_output:
            click.echo(f"{output.escape_control_chars(path)}: {done['documents']} documents, {done['pieces']} pieces")
    for skipped in whole["skipped"]:
        click.echo(f"left out {output.escape_control_chars(skipped)}", err=True)
    _report_redactions(whole)
    if json_output:
        output.print_json(whole)


@athena.command()
@json_option
def reembed(json_output: bool) -> None:
    """Give every memory a vector of the model in use; can be stopped and run again.

    Example: athena reembed
    """
    first = invoke_operation("reembed", limit=1)
    total = first["remaining"]
    with click.progressbar(length=total, label="Embedding", file=sys.stderr) as bar:
        while total and (step := invoke_operation("reembed", limit=128))["done"]:
            bar.update(step["done"])
            if not step["remaining"]:
                break
    done = total + first["done"]
    if json_output:
        return output.print_json({"done": done})
    return click.echo(f"{output.format_count(done, 'passage', 'passages')} done" if done else "nothing to do")


@athena.command()
@click.argument("memory_ids", metavar="[ID...]", nargs=-1)
@click.option("--yes", is_flag=True, help="Do not ask.")
@project_option
@json_option
def purge(memory_ids: tuple[str, ...], yes: bool, project: str | None, json_output: bool) -> None:
    """Remove memories for good: those named, else all forgotten ones of this project.

    Example: athena purge 7d49c4b4
    """
    chosen = list(memory_ids) or None
    count = invoke_operation("purge", project, memory_ids=chosen, dry_run=True)
    if count and not yes:
        click.confirm(f"Remove {output.format_count(count)} for good? Nothing brings them back", abort=True, err=True)
    before = invoke_operation("stats", project)
    removed = invoke_operation("purge", project, memory_ids=chosen, expect=count) if count else 0
    spaces, waiting = (before["workspaces"], before["waiting_programs"]) if removed else (0, 0)
    if json_output:
        return output.print_json({"removed": removed, "workspaces": spaces, "waiting_programs": waiting})
    click.echo(f"{output.format_count(removed)} removed for good" if removed else "nothing to remove")
    if spaces or waiting:
        variables = f"variables of {output.format_count(spaces, 'workspace', 'workspaces')}"
        programs = output.format_count(waiting, "waiting program", "waiting programs")
        click.echo(f"{variables} and {programs} were removed too, since they may hold words of them")
    return None


athena.add_command(approve)
athena.add_command(consolidate)
athena.add_command(daemon)
athena.add_command(doctor)
athena.add_command(evaluate)
athena.add_command(hook)
athena.add_command(import_file)
athena.add_command(init)
athena.add_command(mcp)
athena.add_command(migrate)
athena.add_command(projects)
athena.add_command(run)
athena.add_command(savings)
athena.add_command(serve)
athena.add_command(servers)
athena.add_command(shell)
athena.add_command(skills)
athena.add_command(token)
athena.add_command(tools)
