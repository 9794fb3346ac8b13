"""Call operations from a command, and the options and arguments that many commands share."""

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from athena.cli import formats
from athena.cli.calls import call_approved as call_approved  # commands use them from here
from athena.cli.calls import call_operation as call_operation
from athena.cli.calls import invoke_operation as invoke_operation
from athena.cli.calls import invoke_page as invoke_page
from athena.cli.completion import complete_projects, complete_tags

F = TypeVar("F", bound=Callable[..., Any])
FORMAT_KEY = "athena.format"


def json_option(command: F) -> F:
    """Add --json, --csv and --table; `json_output` is true if one of them is given, and `print_data` knows which."""
    for name in ("table", "csv"):
        command = click.option(
            f"--{name}",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_choose_format,
            help=formats.FORMATS[name],
        )(command)
    return click.option("--json", "json_output", is_flag=True, callback=_apply_format, help=formats.FORMATS["json"])(
        command
    )


def _choose_format(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value:
        if chosen := context.meta.get(FORMAT_KEY):
            raise click.UsageError(f"--{option.name} and --{chosen} are two formats: give one of them.", context)
        context.meta[FORMAT_KEY] = option.name


def _apply_format(context: click.Context, option: click.Parameter, value: bool) -> bool:
    chosen = context.meta.pop(FORMAT_KEY, None)
    if value and chosen:
        raise click.UsageError(f"--json and --{chosen} are two formats: give one of them.", context)
    formats.choose_format(chosen)
    return value or chosen is not None


project_option = click.option(
    "--project",
    shell_complete=complete_projects,
    help="Whose memories; by default the git root of this folder, else 'default'.",
)


def tags_option(help_text: str) -> Callable[[F], F]:
    """Return the option --tags; shells complete it."""
    return click.option("--tags", "--tag", "-t", shell_complete=complete_tags, help=help_text)


def parse_json_object(text: str) -> dict[str, Any]:
    """Parse the value of a `--json` option that holds arguments."""
    try:
        arguments = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--json") from None
    if not isinstance(arguments, dict):
        raise click.BadParameter("a JSON object is needed", param_hint="--json")
    return arguments


def read_stdin() -> str:
    """Read all of standard input as UTF-8 in every locale; invalid bytes are replaced."""
    return sys.stdin.buffer.read().decode("utf-8", "replace")
