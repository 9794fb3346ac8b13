"""`athena migrate`: copy a whole store to another engine, or to another place."""

import re
import shlex
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager

import click

from athena.app import compose
from athena.cli import output
from athena.errors import AthenaError
from athena.storage import copying
from athena.storage.database import Copying, Database

SETTINGS = re.compile("ATHENA_(DATABASE_URL|DB_PATH|HOME)")


@click.command()
@click.option("--to", "target", metavar="URL", required=True, help="postgresql://..., sqlite:///path, or a file.")
@click.option("--from", "source", metavar="URL", help="What to copy; by default the store in use.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON.")
def migrate(target: str, source: str | None, json_output: bool) -> None:
    """Copy the whole store to PostgreSQL, or back to a file; the store itself is not changed.

    Can be stopped and run again: it goes on where it was. At the end each table is compared with what was read.

    Example: athena migrate --to postgresql://athena@db.example.com/athena
    """
    with closing(_opened(source, "from")) as one, closing(_opened(target, "to")) as other:
        rows = _copy(one, other)
        use = _use(other)
        if json_output:
            return output.as_json({"from": one.location(), "to": other.location(), "rows": rows, "use": use})
        memories = output.counted(rows["memories"])
        checked = output.counted(sum(rows.values()), "row", "rows")
        places = f"from {one.location()} to {other.location()}"
        return click.echo(output.safe(f"copied {memories} ({checked}, all compared) {places}; to use it: {use}"))


def _copy(source: Database, target: Database) -> dict[str, int]:
    def show(doing: str | None) -> str:
        return doing or ""

    with click.progressbar(
        length=1, label="Copying", file=sys.stderr, hidden=not sys.stderr.isatty(), item_show_func=show
    ) as bar:

        def tell(doing: str, rows: int, total: int) -> None:
            bar.length = total
            bar.update(rows, doing)

        return copying.copy(source, target, tell)


def _opened(address: str | None, why: Copying) -> Database:
    with _naming(f"--{why}" if address else None):
        return compose.database_at(address, why)


@contextmanager
def _naming(option: str | None) -> Generator[None]:
    """Let errors name the option that is wrong rather than a setting."""
    try:
        yield
    except AthenaError as error:
        if option is None:
            raise
        hint = error.hint and SETTINGS.sub(option, error.hint)
        raise type(error)(SETTINGS.sub(option, str(error)), hint=hint, retry=error.retry) from None


def _use(opened: Database) -> str:
    """Say how to use the copy, without its password."""
    if opened.kind == "sqlite":
        return f"export ATHENA_DB_PATH={shlex.quote(opened.location())}; unset ATHENA_DATABASE_URL"
    return f"export ATHENA_DATABASE_URL={shlex.quote(opened.location())}, with your user and password"
