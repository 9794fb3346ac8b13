"""Put a backup in place of a SQLite store: checked first, safe against a crash, and also under running processes.

A copy of the file with other tools leaves the log of the earlier file beside it, which SQLite then replays into the
backup. Here a sound store gets the pages of the backup in one transaction, and its other processes go on with them. The
files of one that cannot be opened are moved away, together with its log.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import apsw

from athena.core.files import sync_folder
from athena.core.threads import run_sync
from athena.errors import AthenaError, InvalidInput, Misconfigured, NotFound, Unavailable
from athena.storage.counts import count_kinds
from athena.storage.database import Transaction
from athena.storage.sqlite import connection as sqlite_connection
from athena.storage.sqlite.connection import StoreBusyError, translate_errors
from athena.storage.sqlite.store import Sqlite

FILE_SUFFIXES = ("", "-wal", "-shm")
SQLITE_MARK = b"SQLite format 3\0"
OTHER_BACKUP_HINT = "name another backup"


class Restored(NamedTuple):
    kept: dict[str, int]  # how many memories it has, and of other kinds
    earlier: str | None  # where the earlier store is now


def restore_backup(backup: str, path: str) -> Restored:
    """Replace the store at `path` by a backup, and keep the earlier one beside it."""
    check_is_database(backup)
    if os.path.exists(path) and os.path.samefile(backup, path):
        raise InvalidInput("this file is the store itself", hint="name a copy of it")
    prepared = f"{path}.restoring"
    earlier = _find_free_name(f"{path}.before-{time.strftime('%Y%m%d-%H%M%S')}")
    remove_store_files(prepared)
    try:
        _copy_backup(backup, prepared)
        kept = check_store(prepared, backup)
        if not os.path.exists(path):
            _move_files(path, earlier)  # a log may be there alone
            earlier_path = None
        elif _is_sound(path):
            _write_into(prepared, path, earlier)
            return Restored(kept, earlier)
        else:
            _move_files(path, earlier)
            earlier_path = earlier
        os.replace(prepared, path)
        sync_folder(path)
        return Restored(kept, earlier_path)
    finally:
        remove_store_files(prepared)


def _find_free_name(path: str) -> str:
    """Return a name for a store that is moved away: a restore that was killed this second has left one."""
    names = (path, *(f"{path}-{number}" for number in range(2, 1_000)))
    return next(name for name in names if not any(os.path.exists(name + suffix) for suffix in FILE_SUFFIXES))


def check_is_database(backup: str) -> None:
    """Raise an error unless a file begins as a database does: an empty one would be taken for an empty store."""
    if not os.path.isfile(backup):
        raise NotFound(f"there is no file {backup}", hint="name a copy of the store's file")
    with open(backup, "rb") as file:
        head = file.read(len(SQLITE_MARK))
    if not head:
        raise Misconfigured(f"{backup} is empty", hint=OTHER_BACKUP_HINT)
    if head != SQLITE_MARK:
        raise Misconfigured(
            f"{backup} is not an Athena database", hint="athena import takes exports and other files in"
        )


def is_store_file(path: str, store_path: str) -> bool:
    """Return whether a path leads to a store's own file or log."""
    own = [store_path + suffix for suffix in FILE_SUFFIXES]
    return os.path.exists(path) and any(os.path.exists(file) and os.path.samefile(path, file) for file in own)


def _copy_backup(backup: str, target: str) -> None:
    try:
        copy_store_file(backup, target)
        with translate_errors(backup), contextlib.closing(apsw.Connection(target)) as copy:
            is_empty = not copy.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
    except Unavailable as error:
        if backup not in str(error):
            raise
        raise Unavailable(str(error), hint=OTHER_BACKUP_HINT, retry=False) from None
    if is_empty:
        raise Misconfigured(f"{backup} is empty", hint=OTHER_BACKUP_HINT)


def copy_store_file(source: str, target: str, *, create: bool = True) -> None:
    """Copy a store with what is in its log, into a file that only its owner can read: a new one, or an empty one."""
    if create:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with translate_errors(source):
        if os.path.exists(f"{source}-wal"):
            reading = apsw.Connection(source, flags=apsw.SQLITE_OPEN_READWRITE)
        else:  # leaves no files beside it, which may be on a disk that cannot be written
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            reading = apsw.Connection(f"file:{quote(source)}?immutable=1", flags=flags)
        reading.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        writing = apsw.Connection(target)
        try:
            _copy_pages(reading, writing)
        finally:
            writing.close()
            reading.close()


def _copy_pages(
    source: apsw.Connection, target: apsw.Connection, when_locked: Callable[[], None] = lambda: None
) -> None:
    """Replace all pages of the target; call a function when nobody else can write to it any more, before the first."""
    with target.backup("main", source, "main") as pages:
        _step(pages, 0)  # copies nothing, and begins the one transaction on the target
        when_locked()
        _step(pages, -1)


def _step(pages: apsw.Backup, count: int) -> None:
    deadline = time.monotonic() + sqlite_connection.BUSY_TIMEOUT_S
    while True:
        try:
            pages.step(count)
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def check_store(path: str, backup: str) -> dict[str, int]:
    """Migrate the copy and check it whole; return how many memories it has, and of other kinds."""

    async def check(tx: Transaction) -> tuple[list[str], dict[str, int]]:
        return await store.find_problems(tx), await count_kinds(tx)

    try:
        store = Sqlite(path)
        try:
            problems, kept = run_sync(store.read(check))
        finally:
            store.close()
    except AthenaError as error:
        raise type(error)(str(error).replace(path, backup), hint=OTHER_BACKUP_HINT) from None
    if problems:
        message = f"{backup} cannot be restored ({problems[0]}); nothing was changed"
        raise Misconfigured(message, hint=OTHER_BACKUP_HINT)
    return kept


def _is_sound(path: str) -> bool:
    """Return whether the store can be opened and written, if not at this moment: another process may write."""
    try:
        store = Sqlite(path)
    except StoreBusyError:
        raise
    except AthenaError:
        return False
    try:
        run_sync(store.check_writable())
        return not run_sync(store.read(store.find_problems))
    except StoreBusyError:
        raise
    except AthenaError:
        return False
    finally:
        store.close()


def _write_into(prepared: str, path: str, earlier: str) -> None:
    """Replace all pages of an open store in one transaction, which also keeps all that was written before it."""
    with translate_errors(path):
        source = sqlite_connection.connect(prepared, create=False)
        target = sqlite_connection.connect(path, create=False)
        try:
            counters: dict[Any, Any] = dict(target.execute("SELECT name, value FROM counters"))
            for name in ("purges", "stamp"):  # higher than before, so that other processes read their caches anew
                source.execute(
                    "UPDATE counters SET value = max(value, ?) + 1 WHERE name = ?", (counters.get(name, 0), name)
                ).fetchall()
            _copy_pages(source, target, lambda: copy_store_file(path, earlier))
        finally:
            target.close()
            source.close()


def _move_files(path: str, target: str) -> None:
    for suffix in FILE_SUFFIXES:
        if os.path.lexists(path + suffix):
            os.replace(path + suffix, target + suffix)


def remove_store_files(path: str) -> None:
    """Delete a store's file with its log."""
    for suffix in FILE_SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + suffix)
