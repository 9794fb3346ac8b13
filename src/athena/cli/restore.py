"""`athena backup` and `athena restore`: copy the store while it is in use, and put a copy in its place."""

import os
from contextlib import closing

import click

from athena.app import compose
from athena.app.backups import create_backup, create_next_backup, find_backups_folder
from athena.app.settings import load_settings
from athena.cli import output
from athena.cli.invoke import json_option
from athena.cli.progress import explain_stop, show_progress
from athena.errors import InvalidInput
from athena.storage import backups
from athena.storage.sqlite.connection import IN_MEMORY_PATH
from athena.storage.sqlite.restore import check_is_database, remove_store_files, restore_backup

key_file_option = click.option("--key-file", metavar="PATH", help="A file with the secret, instead of a passphrase.")


@click.command()
@click.argument("file", required=False)
@click.option("--encrypt", is_flag=True, help="Ask for a passphrase; without it nobody can read the backup.")
@key_file_option
@click.option("--keep", type=click.IntRange(1, 10_000), help="Without FILE: how many to keep; by default backup.keep.")
@click.option("--force", is_flag=True, help="Replace a file that exists.")
@json_option
def backup(
    file: str | None, encrypt: bool, key_file: str | None, keep: int | None, force: bool, json_output: bool
) -> None:
    """Copy the whole store to a file, also while it is in use.

    The copy is opened, checked and counted. Without FILE it goes to the folder of backups, named after the time, and
    the oldest ones are deleted.

    \b
    athena backup
    athena backup ~/safe/athena.db --encrypt
    """
    settings = load_settings()
    if settings.database_url is None and settings.db_path == IN_MEMORY_PATH:
        raise InvalidInput("a store in memory ends with its process", hint="unset ATHENA_DB_PATH")
    if key_file is None and not encrypt and file is None:
        key_file = settings.backup_key_file
    secret = None
    if key_file is not None:
        secret = backups.read_secret(key_file)
    elif encrypt:
        secret = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True).encode()
    with (
        closing(compose.open_database_at(None, "from")) as database,
        show_progress("Backing up"),
        explain_stop(lambda: "no backup was written"),
    ):
        if file is None:
            written = create_next_backup(database, settings, secret, keep)
        else:
            target = os.path.abspath(os.path.expanduser(file))
            written = create_backup(database, settings, target, secret, replace=force)
    if json_output:
        return output.print_data(
            {"memories": written.kept["memories"], **written._asdict(), "encrypted": secret is not None}
        )
    removed = f"; deleted {len(written.removed)} older" if written.removed else ""
    line = f"backed up {output.format_kinds(written.kept) or 'an empty store'} to {written.path}, checked{removed}"
    return click.echo(output.escape_control_chars(line))


@click.command()
@click.argument("backup", metavar="[FILE]", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@key_file_option
@json_option
def restore(backup: str | None, yes: bool, key_file: str | None, json_output: bool) -> None:
    """Put a backup in place of the store, or list the backups. The store as it was stays beside it.

    The backup is checked first, and nothing is changed if it is damaged. Other processes may run meanwhile. For an
    encrypted one it asks for the passphrase.

    Example: athena restore ~/backups/athena.db
    """
    settings = load_settings()
    if backup is None:
        return _list_backups(find_backups_folder(settings), json_output)
    if settings.database_url is not None:
        raise InvalidInput(
            "the store is on a PostgreSQL server",
            hint="into an empty database: athena migrate --from FILE --to URL; or use pg_restore there",
        )
    path = os.path.abspath(os.path.expanduser(backup))
    if not (is_encrypted := backups.is_encrypted(path)):
        check_is_database(path)
    if not yes and os.path.exists(settings.db_path):
        click.confirm(f"Replace what is in {settings.db_path}?", abort=True, err=True)
    decrypted = f"{settings.db_path}.decrypting"
    try:
        if is_encrypted:
            if key_file is not None:
                secret = backups.read_secret(key_file)
            else:
                secret = click.prompt("Passphrase", hide_input=True, err=True).encode()
            backups.decrypt_backup(path, decrypted, secret)
            path = decrypted
        with show_progress("Restoring"):
            restored = restore_backup(path, settings.db_path)
    finally:
        remove_store_files(decrypted)
    if json_output:
        return output.print_data(
            {"memories": restored.kept["memories"], "kept": restored.kept, "earlier": restored.earlier}
        )
    kept = f"; the earlier store is {restored.earlier}" if restored.earlier else ""
    line = f"restored {output.format_kinds(restored.kept) or 'an empty store'} to {settings.db_path}{kept}"
    return click.echo(output.escape_control_chars(line))


def _list_backups(folder: str, json_output: bool) -> None:
    found = [(path, os.path.getsize(path), os.path.getmtime(path)) for path in backups.list_backups(folder)]
    if json_output:
        return output.print_data([{"path": path, "size": size, "written": at} for path, size, at in found])
    for path, size, _ in found:
        click.echo(output.escape_control_chars(f"{path}  {size / 1_000_000:,.1f} MB"))
    if not found:
        click.echo(f"no backups in {output.escape_control_chars(folder)}; athena backup writes one", err=True)
    return None
