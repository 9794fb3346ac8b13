"""The `athena` command: which module has which subcommand, and how errors are printed.

A subcommand's module is imported when the subcommand runs, so that `athena --help` stays cheap.
"""

import importlib
import os
import re
import sys
import time
from typing import Any, NamedTuple

import click

from athena.cli.command_group import TYPED_WORDS_KEY, explain_usage, write_commands
from athena.cli.streams import escape_text, style_text, use_safe_streams
from athena.core.version import __version__
from athena.core.words import find_similar_names
from athena.errors import AthenaError, InvalidInput, Misconfigured

COMMAND_ALIASES = {"get": "show", "update": "edit", "store": "remember", "search": "recall", "delete": "forget"}
COMMAND_SYNONYMS = {"find": "recall", "remove": "forget", "rm": "forget", "add": "remember", "version": "--version"}
COMMAND_SYNONYMS |= {"start": "daemon start", "status": "daemon status", "stop": "daemon stop"}
COMMAND_NOTES = {  # of words that are no command and stand for none
    "config": "Settings are lines of config.toml in the data folder; 'athena doctor' prints its path.",
    "redo": "What 'athena undo' took back stays in the history: 'athena show ID --history'.",
}
QUIET_SUBCOMMANDS = ("hook", "mcp", "doctor")  # programs read their output, or it has the warnings already
COMMAND_WIDTH = 11  # of the longest name, so that the sections of the help are in line
INTERRUPTED_EXIT = 130  # as shells count SIGINT
HINT_COMMANDS = {  # what hints call operations and parameters, in words of the command line
    "create_entities": "athena graph add",
    "delete_entities": "athena graph forget",
    "delete_observations": "athena graph unobserve",
    "expect=": "--expect ",
    "list_documents": "athena document",
    "list_patterns": "athena pattern",
    "list_projects": "athena projects",
    "list_runs": "athena call list_runs",
    "list_sessions": "athena session",
    "list_tasks": "athena task",
    "open_nodes": "athena graph show",
    "search_graph": "athena graph search",
}
HINT_PATTERN = re.compile("|".join(rf"\b{name}" for name in HINT_COMMANDS))
CALL_HINT_PATTERN = re.compile(r"\w+\.\w+\(")  # a call as programs write it, of no use at a terminal


class LazyCommand(NamedTuple):
    """A subcommand: its module and function below `athena.cli`, and the first sentence of its help."""

    module: str
    function: str
    summary: str


SECTIONS: dict[str, dict[str, LazyCommand]] = {
    "Memory": {
        "remember": LazyCommand("memory", "remember", "Keep a text; '-' reads it from standard input."),
        "recall": LazyCommand("memory", "recall", "Find memories, entities, events and documents."),
        "list": LazyCommand("memory", "list_memories", "List memories, the newest first."),
        "show": LazyCommand("memory", "show", "Show one memory whole, by its hash or id."),
        "edit": LazyCommand("memory", "edit", "Change a memory; its history keeps what it said before."),
        "forget": LazyCommand("memory", "forget", "Forget memories; `athena undo` brings them back."),
        "undo": LazyCommand("memory", "undo", "Take back your last change in this project."),
        "purge": LazyCommand("memory", "purge", "Remove memories for good, or all that were forgotten."),
        "tag": LazyCommand("groups", "tag", "List tags, and put them on memories."),
        "projects": LazyCommand("memory", "projects", "List the projects of the store, or rename one."),
        "stats": LazyCommand("groups", "stats", "Count what is kept, and see what is well covered."),
    },
    "Sessions and learning": {
        "session": LazyCommand("groups", "session", "See what happened in sessions, and what new ones are told."),
        "event": LazyCommand("groups", "event", "Record what happened, and look back at it."),
        "task": LazyCommand("groups", "task", "Plan, list and complete tasks, goals and reminders."),
        "learn": LazyCommand("learned", "learn", "Learn from past sessions of Claude Code and Codex."),
        "learned": LazyCommand("learned", "learned", "See what was learned from sessions; confirm or correct it."),
        "consolidate": LazyCommand("memory", "consolidate", "Find patterns, and merge, strengthen or fade memories."),
        "pattern": LazyCommand("groups", "pattern", "See which patterns `athena consolidate` found."),
    },
    "Documents and data": {
        "ingest": LazyCommand("ingest", "ingest", "Keep files and folders as memories that recall finds."),
        "document": LazyCommand("groups", "document", "List, read and forget ingested documents."),
        "graph": LazyCommand("groups", "graph", "See and change entities and how they relate."),
        "import": LazyCommand(
            "import_export", "import_file", "Take in an export, Markdown or files of other programs."
        ),
        "export": LazyCommand("import_export", "export_file", "Write everything to a file or a Markdown folder."),
        "backup": LazyCommand("restore", "backup", "Copy the whole store to a file, also while it is in use."),
        "restore": LazyCommand("restore", "restore", "Put a backup in place of the store, or list the backups."),
        "migrate": LazyCommand("migrate", "migrate", "Copy the whole store to PostgreSQL, or back to a file."),
        "reembed": LazyCommand("memory", "reembed", "Give every memory a vector of the model in use."),
    },
    "Programs and tools": {
        "run": LazyCommand("programs", "run", "Run a program in the sandbox; '-' reads it."),
        "shell": LazyCommand("programs", "shell", "Write programs line by line; variables stay."),
        "approve": LazyCommand("programs", "approve", "Let a program go on that waits for a person."),
        "skills": LazyCommand("skills", "skills", "Save, look at and run skills."),
        "tools": LazyCommand("tools", "tools", "List, search and show what can be called."),
        "call": LazyCommand("tools", "call", "Call any operation by its name; prints JSON."),
        "servers": LazyCommand("servers", "servers", "Connect other MCP servers, and approve their tools."),
    },
    "Server": {
        "serve": LazyCommand("serve", "serve", "Offer all operations over HTTP, until Ctrl-C."),
        "daemon": LazyCommand("daemon", "daemon", "Start, stop or look at the server in the background."),
        "worker": LazyCommand("migrate", "worker", "Compute vectors that are missing, until Ctrl-C."),
        "ui": LazyCommand("ui", "ui", "Open the page in a browser."),
        "token": LazyCommand("serve", "token", "Print the token that the server asks for."),
        "mcp": LazyCommand("mcp", "mcp", "Serve an MCP client over standard input and output."),
        "hook": LazyCommand("hook", "hook", "Answer an event of a session; coding agents call it."),
    },
    "Setup": {
        "init": LazyCommand("init", "init", "Set up a coding agent: hooks, MCP server, skill."),
        "completion": LazyCommand("completion", "completion", "Print the completion script of a shell."),
        "doctor": LazyCommand("doctor", "doctor", "Check this installation, and say what to do."),
        "savings": LazyCommand("memory", "savings", "Report tokens that models spent and saved."),
        "privacy": LazyCommand("privacy", "privacy", "Report what privacy does, and who received personal data."),
        "vault": LazyCommand("privacy", "vault", "Keep secrets and tokens; forget values, renew the key."),
        "passphrase": LazyCommand(
            "approval", "passphrase", "Say whether approvals need a passphrase; set or remove it."
        ),
        "eval": LazyCommand("evaluate", "evaluate", "Measure search on collections with known answers."),
    },
}
SUBCOMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


class LazyGroup(click.Group):
    """The group of subcommands: import one when it is used; print errors that a person can act on."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        name = COMMAND_ALIASES.get(name, name)
        if name not in SUBCOMMANDS:
            return None
        module, function, _ = SUBCOMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"athena.cli.{module}"), function)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands from the table, without importing their modules."""
        for title, section in SECTIONS.items():
            write_commands(
                formatter, title, [(f"{name:<{COMMAND_WIDTH}}", command.summary) for name, command in section.items()]
            )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete the name of a subcommand from the table, without importing its module."""
        from click.shell_completion import CompletionItem  # only where a shell completes

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=command.summary)
            for name, command in SUBCOMMANDS.items()
            if name.startswith(incomplete)
        ]

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Keep what was typed for hints; `help X` is `X --help`."""
        context.meta[TYPED_WORDS_KEY] = list(args)
        return super().parse_args(context, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(self, context: click.Context, args: list[str]) -> Any:
        """Find a command, or suggest the one that may be meant."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            suggestion = _suggest_command(args[0]) if args else None
            if suggestion is None:
                raise
            raise click.UsageError(f"{error.message.partition('.')[0]}. {suggestion}", context) from None

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
            return _print_usage_error(error)
        except (click.Abort, KeyboardInterrupt) as error:
            reason = error if isinstance(error, KeyboardInterrupt) else error.__cause__
            done = escape_text(str(reason)) if isinstance(reason, KeyboardInterrupt) else ""
            click.echo(f"stopped: {done}" if done else "stopped", err=True)
            return INTERRUPTED_EXIT
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
    """Return a sentence that leads to the command that may be meant."""
    if name in COMMAND_NOTES:
        return COMMAND_NOTES[name]
    is_operation = "_" in name  # no command has one
    if not is_operation and (close := find_similar_names(name, [*SUBCOMMANDS, *COMMAND_ALIASES, *COMMAND_SYNONYMS])):
        return f"Did you mean 'athena {COMMAND_SYNONYMS.get(close[0], close[0])}'?"
    from athena.operations import CATALOG  # imports all operations

    return f"Did you mean 'athena call {name}'?" if name in CATALOG else None


def _print_error(error: AthenaError) -> int:
    if os.environ.get("DEBUG"):
        import traceback  # for people who debug

        traceback.print_exc()
    click.echo(f"{style_text('error:', 'red')} {escape_text(str(error))}", err=True)
    if error.hint and not CALL_HINT_PATTERN.match(error.hint):
        hint = HINT_PATTERN.sub(lambda match: HINT_COMMANDS[match[0]], error.hint)
        click.echo(f"{style_text('hint:', 'cyan')}  {escape_text(hint)}", err=True)
    return error.exit


def _print_usage_error(error: click.ClickException) -> int:
    """Print what is wrong with a command line, in the form of all other errors."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.message)
        return 0
    message = " ".join(explain_usage(error).format_message().split())
    click.echo(f"{style_text('error:', 'red')} {escape_text(message[:1].lower() + message[1:])}", err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"{style_text('hint:', 'cyan')}  {escape_text(error.ctx.command_path)} --help", err=True)
    return error.exit_code


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
