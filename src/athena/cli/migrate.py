"""`athena migrate`: copy a whole store to another database; `athena worker`: compute vectors for all who share one."""

import re
import shlex
import signal
import threading
import time
from collections.abc import Generator
from contextlib import closing, contextmanager

import click

from athena.app import compose
from athena.cli import output
from athena.cli.invoke import json_option
from athena.cli.progress import explain_stop, show_progress
from athena.core.threads import run_sync
from athena.embedding.minilm import MiniLM
from athena.errors import AthenaError
from athena.memory import index
from athena.storage import copying
from athena.storage.counts import count_kinds
from athena.storage.database import CopyRole, Database

WORKER_BATCH_SIZE = 64  # claimed at once; well below what a slow processor encodes while a claim lasts
WORKER_PAUSE_S = 2.0  # between two looks for work
SETTING_NAME_PATTERN = re.compile("ATHENA_(DATABASE_URL|DB_PATH|HOME)")


@click.command()
@click.option("--to", "target", metavar="URL", required=True, help="postgresql://..., sqlite:///path, or a file.")
@click.option("--from", "source", metavar="URL", help="What to copy; by default the store in use.")
@click.option(
    "--partitions",
    type=click.IntRange(2, 256),
    metavar="N",
    help="Divide the large tables by project; PostgreSQL 17 or newer, for very many projects.",
)
@json_option
def migrate(target: str, source: str | None, partitions: int | None, json_output: bool) -> None:
    """Copy the whole store to PostgreSQL, or back to a file. The store itself is not changed.

    Can be stopped and run again: it goes on where it was. At the end each table is compared with what was read.

    Example: athena migrate --to postgresql://athena@db.example.com/athena
    """
    with closing(_open_database(source, "from")) as old, closing(_open_database(target, "to", partitions or 0)) as new:
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


def _open_database(address: str | None, role: CopyRole, partitions: int = 0) -> Database:
    with _name_option_in_errors(f"--{role}" if address else None):
        return compose.open_database_at(address, role, partitions)


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


@click.command()
@click.option("--once", is_flag=True, help="End when every passage has its vector.")
@click.option("--threads", type=click.IntRange(1, 64), help="Texts encoded at the same time; by default one a core.")
@json_option
def worker(once: bool, threads: int | None, json_output: bool) -> None:
    """Compute vectors that are missing, until Ctrl-C. Any number may run, on any machines with the same store.

    Example: athena worker --once
    """
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())  # the batch in progress is finished first
    app = compose.open_app(model=MiniLM(threads))
    done, seconds = 0, 0.0
    try:
        while not stopping.is_set():
            count, began = 0, time.monotonic()
            try:
                count = run_sync(index.encode_claimed(app.store, WORKER_BATCH_SIZE))
                if count:
                    done, seconds = done + count, seconds + time.monotonic() - began
                elif once and not run_sync(index.count_remaining(app.store)):
                    break
            except AthenaError as error:
                if once:
                    raise
                click.echo(f"waiting: {error}", err=True)
            if not count:
                stopping.wait(WORKER_PAUSE_S)
    finally:
        app.close()
    if json_output:
        return output.print_data({"done": done, "seconds": round(seconds, 3)})
    return click.echo(f"{output.format_count(done, 'passage', 'passages')} done" if done else "nothing to do")
