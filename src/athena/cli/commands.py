"""The `athena` command: which module has which subcommand, and how errors are printed.

A subcommand's module is imported when the subcommand runs, so that `athena --help` stays cheap.
"""

import importlib
import os
import re
import sys
import time
from difflib import get_close_matches
from typing import Any, NamedTuple

import click

from athena.cli.streams import escape_text, style_text, use_safe_streams
from athena.core.version import __version__
from athena.errors import AthenaError, InvalidInput, Misconfigured

COMMAND_ALIASES = {"get": "show", "update": "edit", "store": "remember", "search": "recall", "delete": "forget"}
COMMAND_SYNONYMS = {"find": "recall", "remove": "forget", "add": "remember", "help": "--help"}
QUIET_SUBCOMMANDS = ("hook", "mcp", "doctor")  # programs read their output, or it has the warnings already
CALL_HINT_PATTERN = re.compile(r"\w+\.\w+\(")  # a call as programs write it, of no use at a terminal


class LazyCommand(NamedTuple):
    """A subcommand: its module and function below `athena.cli`, and the first sentence of its help."""

    module: str
    function: str
    summary: str


SUBCOMMANDS = {
    "approve": LazyCommand(
        "programs", "approve", "Let a program go on that waits for a person; without an ID, list those that wait."
    ),
    "backup": LazyCommand(
        "restore",
        "backup",
        "Copy the whole store to a file, also while it is in use; the copy is opened, checked and counted.",
    ),
    "call": LazyCommand("tools", "call", "Call any operation; prints JSON."),
    "consolidate": LazyCommand(
        "memory", "consolidate", "Find patterns in the last days, and merge, strengthen or fade memories accordingly."
    ),
    "daemon": LazyCommand("daemon", "daemon", "Start, stop or look at the warm server in the background."),
    "doctor": LazyCommand("doctor", "doctor", "Check this installation: versions, folders, the store, the model."),
    "edit": LazyCommand("memory", "edit", "Change a memory; what it said before stays in its history."),
    "eval": LazyCommand(
        "evaluate", "evaluate", "Measure search on collections with known answers; your own store is not touched."
    ),
    "export": LazyCommand(
        "import_export",
        "export_file",
        "Write everything that is kept to a file, or as a Markdown folder; '-' writes to standard output.",
    ),
    "forget": LazyCommand("memory", "forget", "Forget memories, by hash or id; `athena undo` brings them back."),
    "hook": LazyCommand(
        "hook",
        "hook",
        "Answer an event of a session: its JSON on standard input, what to tell on standard output; "
        "always exits with 0.",
    ),
    "import": LazyCommand(
        "import_export",
        "import_file",
        "Take an export of Athena, Markdown or a file of another program in; again, it adds only what is new.",
    ),
    "ingest": LazyCommand(
        "ingest", "ingest", "Keep files, or all below a folder, as memories; again, it brings them up to date."
    ),
    "init": LazyCommand(
        "init", "init", "Set up a coding agent's client: hooks, MCP server, skill, as far as it has them."
    ),
    "learn": LazyCommand(
        "learned", "learn", "Learn from past sessions of Claude Code and Codex; can be stopped and run again."
    ),
    "learned": LazyCommand(
        "learned", "learned", "List what was learned from sessions, and why; confirm, correct, drop or rule it out."
    ),
    "list": LazyCommand("memory", "list_memories", "List memories, the newest first."),
    "mcp": LazyCommand("mcp", "mcp", "Serve an MCP client over standard input and output."),
    "migrate": LazyCommand(
        "migrate", "migrate", "Copy the whole store to PostgreSQL, or back to a file; the store itself is not changed."
    ),
    "passphrase": LazyCommand(
        "approval", "passphrase", "Say whether approvals need a passphrase; set, change or remove it."
    ),
    "privacy": LazyCommand("privacy", "privacy", "Report what privacy does, and which tools received personal data."),
    "projects": LazyCommand("memory", "projects", "List the projects of the store."),
    "purge": LazyCommand(
        "memory", "purge", "Remove memories for good: those named, else all forgotten ones of this project."
    ),
    "recall": LazyCommand("memory", "recall", "Find memories; time in plain words is a filter."),
    "reembed": LazyCommand(
        "memory", "reembed", "Give every memory a vector of the model in use; can be stopped and run again."
    ),
    "remember": LazyCommand("memory", "remember", "Keep a text; '-' reads it from standard input."),
    "restore": LazyCommand(
        "restore", "restore", "Put a backup in place of the store; the store as it was stays beside it."
    ),
    "run": LazyCommand("programs", "run", "Run a program in the sandbox; '-' reads it from standard input."),
    "savings": LazyCommand(
        "memory", "savings", "Report tokens spent and saved by models; with --users, what that is in a year."
    ),
    "serve": LazyCommand("serve", "serve", "Offer all operations over HTTP, until interrupted."),
    "servers": LazyCommand("servers", "servers", "Connect other MCP servers."),
    "shell": LazyCommand("programs", "shell", "Write programs line by line; variables stay."),
    "show": LazyCommand("memory", "show", "Show one memory whole, by its hash or id."),
    "skills": LazyCommand("skills", "skills", "Save, look at and run skills."),
    "token": LazyCommand("serve", "token", "Print the token that the server asks for."),
    "tools": LazyCommand("tools", "tools", "Find out what can be done."),
    "ui": LazyCommand("ui", "ui", "Open the page: see, search, correct and approve what agents know and do."),
    "undo": LazyCommand("memory", "undo", "Take back your last change in this project."),
    "vault": LazyCommand("privacy", "vault", "List tokens; put a secret in, forget a value, renew the key."),
}


class LazyGroup(click.Group):
    """The group of subcommands: import one when it is used; print errors that a person can act on."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = COMMAND_ALIASES.get(name, name)
        if name not in SUBCOMMANDS:
            return None
        module, function, _ = SUBCOMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"athena.cli.{module}"), function)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from the table, without importing their modules."""
        listing = click.Group(commands=[click.Command(name, help=SUBCOMMANDS[name].summary) for name in SUBCOMMANDS])
        listing.format_commands(context, formatter)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """Find a command, or suggest the one that may be meant."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            suggestion = _suggest_command(args[0]) if args else None
            if suggestion is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean 'athena {suggestion}'?", context) from None

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        """Run a command line and return the exit code."""
        with use_safe_streams():
            return self._run_command(*args, **kwargs)

    def _run_command(self, *args: Any, **kwargs: Any) -> int:
        start = time.perf_counter()
        try:
            exit_code = self.main(*args, **kwargs)  # click returns a number only where a command exits early
            if os.environ.get("DEBUG"):
                click.echo(f"{(time.perf_counter() - start) * 1000:.0f} ms", err=True)
            return exit_code if isinstance(exit_code, int) else 0
        except AthenaError as error:
            return _print_error(error)
        except click.exceptions.Exit as error:
            return error.exit_code
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("stopped", err=True)
            return 130
        except RecursionError as error:
            return _print_error(InvalidInput(f"nested too deeply: {error}"))
        except BrokenPipeError:
            # the reader of standard output has gone: the flush at exit must not fail
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except OSError as error:
            if error.errno is None:
                raise
            where = f"{error.filename} cannot be used: " if error.filename else ""
            hint = "check the path, its rights and the free space"
            return _print_error(Misconfigured(f"{where}{error.strerror}", hint=hint))


def _suggest_command(name: str) -> str | None:
    if close := get_close_matches(name, [*SUBCOMMANDS, *COMMAND_ALIASES, *COMMAND_SYNONYMS], 1):
        return COMMAND_SYNONYMS.get(close[0], close[0])
    from athena.operations import CATALOG  # imports all operations

    return f"call {name}" if name in CATALOG else None


def _print_error(error: AthenaError) -> int:
    if os.environ.get("DEBUG"):
        import traceback  # for people who debug

        traceback.print_exc()
    click.echo(f"{style_text('error:', 'red')} {escape_text(str(error))}", err=True)
    if error.hint and not CALL_HINT_PATTERN.match(error.hint):
        click.echo(f"{style_text('hint:', 'cyan')}  {escape_text(error.hint)}", err=True)
    return error.exit


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="athena %(version)s")
@click.pass_context
def athena(context: click.Context) -> None:
    """Long-term memory for AI agents.

    \b
    athena remember "Deploys run on Fridays at 15:00" --tags deploy
    athena recall "when do we ship?"
    """
    if context.invoked_subcommand not in QUIET_SUBCOMMANDS and any(name.startswith("ATHENA_") for name in os.environ):
        configuration = importlib.import_module("athena.app.settings")  # with the subcommand, as its own module
        for warning in configuration.list_unknown_variables():
            click.echo(f"{style_text('warning:', 'yellow')} {escape_text(warning)}", err=True)
