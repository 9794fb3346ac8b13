"""Call operations from a command, and the options and arguments that many commands share."""

import json
import sys
from typing import Any

import click

from athena.cli.calls import call_approved as call_approved  # commands use them from here
from athena.cli.calls import call_operation as call_operation
from athena.cli.calls import invoke_operation as invoke_operation

json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
project_option = click.option(
    "--project", help="Whose memories; by default the git root of this folder, else 'default'."
)


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
