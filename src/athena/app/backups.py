"""Back the configured store up: on demand and, in a server, as often as the settings say."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager

from athena.app.settings import Settings
from athena.core.files import lock_file
from athena.core.values import BackupFile
from athena.errors import Conflict, InvalidInput
from athena.storage import backups
from athena.storage.backups import Backup
from athena.storage.database import Database
from athena.storage.sqlite.connection import IN_MEMORY_PATH

BACKUPS_FOLDER = "backups"  # in the data folder, unless the settings name another
STAGING_NAME, LOCK_NAME = "backup.part", "backup.lock"  # in the data folder
HOUR_S = 3_600


def find_backups_folder(settings: Settings) -> str:
    return settings.backup_folder or os.path.join(settings.home, BACKUPS_FOLDER)


def create_backup(
    database: Database, settings: Settings, target: str, secret: bytes | None, *, replace: bool
) -> Backup:
    """Write a backup to a file."""
    with _lock_backups(settings) as staging:
        return backups.create_backup(database, target, staging, secret, replace=replace)


def create_next_backup(database: Database, settings: Settings, secret: bytes | None, keep: int | None = None) -> Backup:
    """Add a backup to the folder of backups, and delete the oldest ones."""
    folder = find_backups_folder(settings)
    with _lock_backups(settings) as staging:
        return backups.create_next_backup(database, folder, keep or settings.backup_keep, staging, secret)


def back_up_if_due(database: Database, settings: Settings) -> Backup | None:
    """Add a backup if the newest one is older than the settings allow; a store in memory has none."""
    if settings.database_url is None and settings.db_path == IN_MEMORY_PATH:
        return None
    if not backups.is_due(find_backups_folder(settings), settings.backup_every_hours * HOUR_S, time.time()):
        return None
    secret = backups.read_secret(settings.backup_key_file) if settings.backup_key_file else None
    return create_next_backup(database, settings, secret)


def list_files(settings: Settings) -> list[BackupFile]:
    """Return the backups in the folder of backups, the newest first."""
    return [_describe_file(path) for path in reversed(backups.list_backups(find_backups_folder(settings)))]


def add_file(database: Database, settings: Settings) -> BackupFile:
    """Add a backup to the folder of backups, encrypted if the settings name a key."""
    if settings.database_url is None and settings.db_path == IN_MEMORY_PATH:
        raise InvalidInput("a store in memory ends with its process", hint="unset ATHENA_DB_PATH")
    secret = backups.read_secret(settings.backup_key_file) if settings.backup_key_file else None
    return _describe_file(create_next_backup(database, settings, secret).path)


def _describe_file(path: str) -> BackupFile:
    facts = os.stat(path)
    return BackupFile(path, facts.st_mtime, facts.st_size, path.endswith(".enc"))


@contextmanager
def _lock_backups(settings: Settings) -> Generator[str]:
    """Let one process at a time write a backup, and yield where its copy is before it is encrypted."""
    try:
        lock = lock_file(os.path.join(settings.home, LOCK_NAME), 0)
    except TimeoutError:
        raise Conflict("another backup is being written", hint="wait for it") from None
    with lock:
        yield os.path.join(settings.home, STAGING_NAME)
