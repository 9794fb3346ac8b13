"""`athena restore`: put a backup in place of the store."""

import os

import click

from athena.app.settings import load_settings
from athena.cli import output
from athena.cli.invoke import json_option
from athena.errors import InvalidInput
from athena.storage.sqlite.restore import restore_backup


@click.command()
@click.argument("backup", metavar="FILE")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def restore(backup: str, yes: bool, json_output: bool) -> None:
    """Put a backup in place of the store; the store as it was stays beside it.

    The backup is checked first, and nothing is changed if it is damaged. Other processes may run meanwhile.

    Example: athena restore ~/backups/athena.db
    """
    settings = load_settings()
    if settings.database_url is not None:
        raise InvalidInput(
            "the store is on a PostgreSQL server", hint="use pg_restore there, or unset ATHENA_DATABASE_URL"
        )
    if not yes and os.path.exists(settings.db_path):
        click.confirm(f"Replace what is in {settings.db_path}?", abort=True, err=True)
    restored = restore_backup(os.path.abspath(os.path.expanduser(backup)), settings.db_path)
    if json_output:
        return output.print_json({"memories": restored.memories, "earlier": restored.earlier})
    kept = f"; the earlier store is {restored.earlier}" if restored.earlier else ""
    line = f"restored {output.format_count(restored.memories)} to {settings.db_path}{kept}"
    return click.echo(output.escape_control_chars(line))
