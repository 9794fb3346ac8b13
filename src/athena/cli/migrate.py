"""`athena migrate`: copy a whole store to another database."""

import re
import shlex
from collections.abc import Generator
from contextlib import closing, contextmanager

import click

from athena.app import compose
from athena.cli import output
from athena.cli.invoke import json_option
from athena.cli.progress import explain_stop, show_progress
from athena.core.threads import run_sync
from athena.errors import AthenaError
from athena.storage import copying
from athena.storage.counts import count_kinds
from athena.storage.database import CopyRole, Database

SETTING_NAME_PATTERN = re.compile("ATHENA_(DATABASE_URL|DB_PATH|HOME)")


@click.command()
@click.option("--to", "target", metavar="URL", required=True, help="postgresql://..., sqlite:///path, or a file.")
@click.option("--from", "source", metavar="URL", help="What to copy; by default the store in use.")
@json_option
def migrate(target: str, source: str | None, json_output: bool) -> None:
    """Copy the whole store to PostgreSQL, or back to a file. The store itself is not changed.

    Can be stopped and run again: it goes on where it was. At the end each table is compared with what was read.

    Example: athena migrate --to postgresql://athena@db.example.com/athena
    """
    with closing(_open_database(source, "from")) as old, closing(_open_database(target, "to")) as new:
        rows = _copy_with_progress(old, new)
        kept = run_sync(new.read(count_kinds)) | {"relations": rows["relations"]}
        old_location, new_location, usage = old.describe_location(), new.describe_location(), _usage_hint(new)
        if json_output:
            return output.print_data(
                {"from": old_location, "to": new_location, "kept": kept, "rows": rows, "use": usage}
            )
        records = output.format_kinds(kept) or "an empty store"
        line = f"copied {records} from {old_location} to {new_location}, all compared; to use it: {usage}"
        return click.echo(output.escape_control_chars(line))


def _copy_with_progress(source: Database, target: Database) -> dict[str, int]:
    with (
        show_progress("Copying") as progress,
        explain_stop(lambda: f"{progress.done:,} rows copied or compared; run it again to go on"),
    ):
        return copying.copy_store(
            source, target, lambda table, rows, total: progress.advance(rows, total, f"Copying {table}")
        )


def _open_database(address: str | None, role: CopyRole) -> Database:
    with _name_option_in_errors(f"--{role}" if address else None):
        return compose.open_database_at(address, role)


@contextmanager
def _name_option_in_errors(option: str | None) -> Generator[None]:
    """Replace names of settings in errors by the option that the user gave."""
    try:
        yield
    except AthenaError as error:
        if option is None:
            raise
        hint = error.hint and SETTING_NAME_PATTERN.sub(option, error.hint)
        raise type(error)(SETTING_NAME_PATTERN.sub(option, str(error)), hint=hint, retry=error.retry) from None


def _usage_hint(database: Database) -> str:
    """Say how to use the copy, without its password."""
    if database.engine == "sqlite":
        return f"export ATHENA_DB_PATH={shlex.quote(database.describe_location())}; unset ATHENA_DATABASE_URL"
    return f"export ATHENA_DATABASE_URL={shlex.quote(database.describe_location())}, with your user and password"
