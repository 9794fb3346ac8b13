"""Call operations from a command, and the options and arguments that many commands share."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from athena.app import connect
from athena.core.threads import run_sync

if TYPE_CHECKING:
    from athena.core.approval import Approval

json_option = click.option("--json", "json_output", is_flag=True, help="Print JSON.")
project_option = click.option(
    "--project", help="Whose memories; by default the git root of this folder, else 'default'."
)


def invoke_operation(operation: str, project: str | None = None, /, **arguments: Any) -> Any:
    """Call an operation and return its result as plain JSON values; warn if the model does not work."""
    result = call_operation(operation, project, **arguments)
    if connect.shared_app().store.encoder.last_error is not None:
        click.echo("search by meaning is off, words still work: see athena doctor", err=True)
    return result


def call_operation(operation: str, project: str | None = None, /, **arguments: Any) -> Any:
    """Call an operation and return its result as plain JSON values."""
    return call_approved(operation, project, arguments, None)


def call_approved(operation: str, project: str | None, arguments: dict[str, Any], approval: "Approval | None") -> Any:
    """Call an operation with a person's approval and return its result as plain JSON values."""
    connection = connect.AppConnection(connect.shared_app, project, "cli")
    return run_sync(connection.call(operation, arguments, approval=approval)).data


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
