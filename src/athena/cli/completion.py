"""`athena completion`: scripts by which shells complete commands, options and values."""

from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from athena.cli.calls import call_operation
from athena.errors import AthenaError

SHELLS = ("bash", "zsh", "fish")
COMPLETE_VARIABLE = "_ATHENA_COMPLETE"
PROGRAM = "athena"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
def completion(shell: str) -> None:
    """Print the completion script of a shell. It completes commands, options, projects, tags and tools.

    \b
    bash, in ~/.bashrc:  eval "$(athena completion bash)"
    zsh, in ~/.zshrc:    eval "$(athena completion zsh)"
    fish:                athena completion fish > ~/.config/fish/completions/athena.fish

    Example: athena completion bash
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    program = click.get_current_context().find_root().command
    click.echo(kind(program, {}, PROGRAM, COMPLETE_VARIABLE).source())


def complete_projects(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the projects whose names begin so."""
    return _complete(incomplete, "list_projects", "name", None)


def complete_tags(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the tags that begin so; of several between commas, the last is completed."""
    before, comma, last = incomplete.rpartition(",")
    items = _complete(last, "list_tags", "tag", context.params.get("project"))
    return [CompletionItem(f"{before}{comma}{item.value}") for item in items]


def _complete(incomplete: str, operation: str, field: str, project: Any) -> list[CompletionItem]:
    try:
        rows = call_operation(operation, project)
    except AthenaError:  # no store, or none that can be read: nothing to complete
        return []
    return [CompletionItem(row[field]) for row in rows if row[field].casefold().startswith(incomplete.casefold())]
