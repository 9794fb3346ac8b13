"""Groups of commands and their help: no line is cut, and a mistyped command gets the one that was meant."""

import re
from collections.abc import Iterable
from typing import Any

import click

from athena.core.words import find_similar_names

TYPED_WORDS_KEY = "athena.words"  # of a context's `meta`: the whole command line
TEXT_ARGUMENTS = ("content", "description", "query", "text", "title")
EXTRA_ARGUMENTS_PATTERN = re.compile(r"unexpected extra arguments? \((.*)\)", re.DOTALL)

# Other names under which people look for a command of a group; one counts where the group has its command.
COMMAND_SYNONYMS = {
    "complete": "done",
    "create": "add",
    "delete": "forget",
    "del": "forget",
    "find": "search",
    "finish": "done",
    "get": "show",
    "ls": "list",
    "new": "add",
    "open": "show",
    "record": "add",
    "remove": "forget",
    "rm": "forget",
    "update": "edit",
    "view": "show",
}

# Other names under which people look for an option; one counts where the command has its option.
OPTION_SYNONYMS = {
    "--count": "--limit",
    "--max": "--limit",
    "--tag": "--tags",
    "--text": "--content",
    "--top-k": "--limit",
    "-n": "--limit",
    "-t": "--tags",
}


class ExplainedCommand(click.Command):
    """A command whose help explains its arguments."""

    argument_help: list[tuple[str, str]] = []  # noqa: RUF012  # set for each command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.argument_help:
            with formatter.section("Arguments"):
                formatter.write_dl(self.argument_help)
        super().format_options(ctx, formatter)


class CommandGroup(click.Group):
    """A group that lists its commands with whole sentences; without a command's name it runs the default one."""

    def __init__(self, *args: Any, default: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_unnamed = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        is_unnamed = is_unnamed and not ctx.resilient_parsing  # a shell completes the command's name
        return super().parse_args(ctx, [self.default, *args] if self.default and is_unnamed else args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        write_commands(
            formatter, "Commands", [(name, get_summary(command)) for name, command in commands if command is not None]
        )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in the order in which people need them

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if (command := super().get_command(ctx, cmd_name)) is not None:
            return command
        return super().get_command(ctx, COMMAND_SYNONYMS.get(cmd_name, cmd_name))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command, or suggest the one that may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            suggestion = suggest_command(args[0], self.list_commands(ctx)) if args else None
            known = f"Did you mean '{ctx.command_path} {suggestion}'?" if suggestion else ""
            listed = f"The commands are: {', '.join(self.list_commands(ctx))}."
            raise click.UsageError(f"{error.message.partition('.')[0]}. {known or listed}", ctx) from None


def suggest_command(name: str, names: Iterable[str]) -> str | None:
    """Return the command that a person may mean."""
    known = list(names)
    close = find_similar_names(name, [*known, *(word for word, meant in COMMAND_SYNONYMS.items() if meant in known)])
    return COMMAND_SYNONYMS.get(close[0], close[0]) if close else None


def explain_usage(error: click.ClickException) -> click.ClickException:
    """Return the error; that of a mistake that people often make says what to write."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error
    if isinstance(error, click.NoSuchOption):
        return _explain_option(error, error.ctx)
    match = EXTRA_ARGUMENTS_PATTERN.search(error.message)
    advice = _explain_extra_words(error.ctx, match[1].split()) if match else ""
    return click.UsageError(f"{error.format_message().rstrip('.')}. {advice}", error.ctx) if advice else error


def _explain_option(error: click.NoSuchOption, context: click.Context) -> click.UsageError:
    """Return the error with the option that may be meant: a synonym, else those alike without their dashes, too."""
    message = f"No such option {error.option_name!r}."
    if any(parameter.type is click.UNPROCESSED for parameter in context.command.params):
        advice = "Put -- before the command and its options, as in: -- npx -y some-server."
        return click.UsageError(f"{message} {advice}", context)
    meant = OPTION_SYNONYMS.get(error.option_name, "")
    if any(meant in parameter.opts for parameter in context.command.params):
        return click.UsageError(f"{message} Did you mean {meant!r}?", context)
    names = {name.lstrip("-"): name for name in error.possibilities or ()}
    close = find_similar_names(error.option_name.lstrip("-"), names, 3)
    return click.NoSuchOption(error.option_name, possibilities=[names[name] for name in close], ctx=context)


def _explain_extra_words(context: click.Context, words: list[str]) -> str:
    """Say how tags, or a text of several words, are written."""
    import shlex  # only after a mistake

    if tags := context.params.get("tags"):
        return f"Tags go between commas: --tags {shlex.quote(','.join([tags, *words]))}."
    for parameter in context.command.params:
        if parameter.name in TEXT_ARGUMENTS and isinstance(text := context.params.get(parameter.name), str):
            return f"Put several words in quotes: {context.command_path} {shlex.quote(' '.join([text, *words]))}."
    return ""


def get_summary(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    return command.get_short_help_str(10_000)


def write_commands(formatter: click.HelpFormatter, title: str, rows: list[tuple[str, str]]) -> None:
    """Write a section of a help page, its texts whole."""
    with formatter.section(title):
        formatter.write_dl(rows)
