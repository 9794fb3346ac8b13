"""Open a SQLite file: readable by its owner alone, checked to be Athena's, set for durability; its errors and locks."""

import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import quote
from zlib import crc32

import apsw

from athena.core.files import create_private_folder
from athena.errors import Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.database import UNFINISHED_COPY_COUNTER, BoundedReads, CopyRole, Row, check_usable, require_row
from athena.storage.terms import add_word_spaces

IN_MEMORY_PATH = ":memory:"
APPLICATION_ID = 0x41746865  # "Athe", in the header of each of our files
BUSY_TIMEOUT_S = 15.0  # how long to wait while another process writes
SYNCHRONOUS_NORMAL, SYNCHRONOUS_FULL = 1, 2


class StoreBusyError(Unavailable):
    """Another process writes for longer than a caller waits."""


class SqliteTransaction(BoundedReads):
    """A transaction on one connection. Each statement is read to its end, because apsw runs them lazily."""

    add_up_sql = """ON CONFLICT (scope, facet, name) DO UPDATE SET memories = memories + excluded.memories,
        characters = characters + excluded.characters, occurrences = occurrences + excluded.occurrences,
        in_session = in_session + excluded.in_session"""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def execute(self, sql: str, **values: Any) -> int:
        self.connection.execute(sql, values).fetchall()
        return self.connection.changes()

    async def execute_many(self, sql: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.connection.executemany(sql, rows).fetchall()

    async def fetch(self, sql: str, **values: Any) -> list[Row]:
        cursor = self.connection.execute(sql, values)
        return cursor.fetchall() if self.chars_left == math.inf else self.take_rows(cursor)

    async def fetch_one(self, sql: str, **values: Any) -> Row | None:
        rows = self.connection.execute(sql, values).fetchall()
        return rows[0] if rows else None

    async def fetch_required(self, sql: str, **values: Any) -> Row:
        rows = self.connection.execute(sql, values).fetchall()
        return require_row(rows[0] if rows else None, sql)


def connect(path: str, *, create: bool, read_only: bool = False) -> apsw.Connection:
    """Open a connection; `create` makes the file if it is missing, and checks whose it is."""
    if create and path != IN_MEMORY_PATH and not read_only:
        _create_private_file(path)
    if read_only:  # immutable: on such a disk nobody changes the file, and no log or lock can be created beside it
        flags, name = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, f"file:{quote(path)}?immutable=1"
    else:
        flags, name = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0), path
    connection = apsw.Connection(name, flags=flags, statementcachesize=200)
    try:
        _set_up(connection, path, check=create)
        if not read_only:
            _set_up_for_writes(connection, path)
    except BaseException:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # its log may be of another file
        connection.close()
        raise
    return connection


def _set_up(connection: apsw.Connection, path: str, *, check: bool) -> None:
    connection.set_busy_handler(_create_busy_handler())
    if check:
        _check_application(connection, path)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)  # we have none: one in a backup would be a stranger's
    create_functions(connection)
    for name, value in (("cell_size_check", 1), ("temp_store", 2)):
        connection.pragma(name, value)


def create_functions(connection: apsw.Connection) -> None:
    """Add the functions that views and indexes of the schema use."""
    functions = (("spaced", lambda *text: add_word_spaces(str(text[0])), 1), ("checksum", compute_checksum, -1))
    for name, function, count in functions:
        connection.create_scalar_function(name, function, count, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)


def compute_checksum(*values: str | float | bytes | None) -> int:
    """Return a checksum of values: it differs where a bit of one of them does."""
    checksum = 0
    for value in values:
        checksum = crc32(value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogatepass"), checksum)
    return checksum


def _set_up_for_writes(connection: apsw.Connection, path: str) -> None:
    connection.pragma("secure_delete", 1)
    connection.wal_autocheckpoint(0)  # the log's owner does it: log.py
    set_sync_on_commit(connection, True)
    if path != IN_MEMORY_PATH and (mode := _enable_wal(connection)) != "wal":
        raise Misconfigured(
            f"{path} cannot use a write-ahead log (it is {mode})",
            hint="put ATHENA_HOME on a local disk: network file systems cannot share a log",
        )


def is_on_read_only_disk(path: str) -> bool:
    """Return whether a store is on a disk that nobody can write; a file without rights may be changed by its owner."""
    if not os.access(path, os.R_OK) or not hasattr(os, "statvfs"):
        return False
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY) and os.path.getsize(path) > 0


def check_readable_alone(path: str) -> None:
    """Refuse a file that cannot be read without its log: on a read-only disk the log cannot be applied."""
    log_path = f"{os.path.realpath(path)}-wal"
    if os.path.exists(log_path) and os.path.getsize(log_path):
        raise Unavailable(
            f"{path} is read-only here, and its log {log_path} has changes that are not in it",
            hint="copy both to a folder that can be written, and open them there",
            retry=False,
        )


def check_writes_allowed(path: str, read_only: bool) -> None:
    if read_only:
        raise create_read_only_error(path)


def create_read_only_error(path: str) -> Unavailable:
    return Unavailable(
        f"{path} is read-only here", hint="check the disk, and the file's and the folder's rights", retry=False
    )


def set_sync_on_commit(connection: apsw.Connection, enabled: bool) -> None:
    """Make each commit wait until the log is on disk; otherwise only a checkpoint syncs, before it writes the file."""
    mode = SYNCHRONOUS_FULL if enabled else SYNCHRONOUS_NORMAL
    connection.pragma("synchronous", mode)
    if connection.pragma("synchronous") != mode:
        raise Misconfigured("SQLite does not take another synchronous mode", hint="is another library setting it?")


def is_disk_error(error: BaseException) -> bool:
    """Return whether the disk failed to read or write, as opposed to e.g. a full disk or a lock."""
    return isinstance(error, apsw.IOError) or isinstance(error.__cause__, apsw.IOError)


def leaves_bad_state(error: BaseException) -> bool:
    """Return whether a connection must not be used after an error: what it has cached may be wrong."""
    kinds = (apsw.IOError, apsw.CorruptError, apsw.NotADBError, apsw.NoMemError)
    return any(isinstance(one, kinds) for one in (error, error.__cause__, error.__context__))


def can_begin_write(connection: apsw.Connection, timeout_s: float) -> bool:
    """Return whether the file's write lock can be had within the timeout."""
    connection.set_busy_handler(_create_busy_handler(timeout_s))
    try:
        connection.execute("BEGIN IMMEDIATE").fetchall()
        connection.execute("ROLLBACK").fetchall()
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_handler(_create_busy_handler())
    return True


def check_exists(path: str, copying: CopyRole) -> None:
    check_usable(copying, path, exists=os.path.exists(path) and os.path.getsize(path) > 0, complete=True)


def check_copy_complete(connection: apsw.Connection, path: str, copying: CopyRole) -> None:
    unfinished = connection.execute("SELECT 1 FROM counters WHERE name = ?", (UNFINISHED_COPY_COUNTER,)).get
    check_usable(copying, path, exists=True, complete=unfinished is None)


def check_log_fits(path: str) -> None:
    """Refuse a file that is damaged as soon as its log is applied; the log may be of another file."""
    try:
        connection = connect(path, create=False)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # nothing may be written into the file
            is_sound = connection.execute("PRAGMA integrity_check(1)").get == "ok"
        finally:
            connection.close()
    except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
        is_sound = False
    if not is_sound:
        raise Misconfigured(
            f"{path} and its log {path}-wal do not belong together",
            hint="if you have copied a backup there, run `athena restore BACKUP`, which moves both away; "
            "else move the log away",
        )


class translate_errors:  # noqa: N801  # used as a function; a generator costs more, at each read and write
    """Turn the driver's errors into ours."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, apsw.Error):
            _raise_translated(self._path, error)


def _raise_translated(path: str, error: apsw.Error) -> None:
    try:
        raise error
    except apsw.NotADBError:
        if _has_own_header(path):
            raise _create_lost_log_error(path) from None
        raise Misconfigured(
            f"{path} is not an Athena database", hint="move it away, or set ATHENA_DB_PATH elsewhere"
        ) from None
    except apsw.CorruptError:
        if _get_extended_code(error) == apsw.SQLITE_CORRUPT_VTAB:  # FTS5 reports so, too, that the disk failed to read
            raise Unavailable(
                f"the full-text index of {path} could not be read", hint="try again; else run `athena call verify`"
            ) from error
        raise Unavailable(
            f"{path} is damaged{_describe_damage(error)}",
            hint="`athena restore` lists the backups; `athena call verify` says what is damaged",
            retry=False,
        ) from error
    except apsw.SQLError:
        if "fts5" not in str(error):
            raise
        raise Unavailable(
            f"the full-text index of {path} is damaged: {error}", hint="restore a backup", retry=False
        ) from error
    except apsw.FullError:
        raise Unavailable("the disk is full; nothing was stored", hint="free some space and try again") from None
    except apsw.BusyError:
        raise StoreBusyError("another process holds the store", hint="try again; is a long job running?") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError):
        raise create_read_only_error(path) from None
    except apsw.CantOpenError:
        raise Misconfigured(f"{path} cannot be opened", hint="check the folder's rights and free space") from None
    except (apsw.ProtocolError, apsw.LockedError, apsw.InterruptError, apsw.NoMemError):
        raise Unavailable(f"{path} cannot be used now: {error}", hint="try again") from error
    except apsw.IOError:
        if _get_extended_code(error) == apsw.SQLITE_IOERR_SHORT_READ:
            raise _create_lost_log_error(path) from error
        raise Unavailable(f"{path} cannot be read or written: {error}", hint="check the disk") from error


def _describe_damage(error: apsw.Error) -> str:
    return "" if "not an error" in str(error) else f": {error}"  # a copy of pages leaves no message


def _get_extended_code(error: apsw.Error) -> int:
    return int(getattr(error, "extendedresult", 0))


def _create_lost_log_error(path: str) -> Unavailable:
    return Unavailable(
        f"{path} cannot be read: its log was cut off or overwritten by something else",
        hint="stop every Athena process and start again; if that does not help, `athena restore` a backup",
        retry=False,
    )


def _has_own_header(path: str) -> bool:
    """Return whether the file begins as ours do, also before the first checkpoint.

    It is read through SQLite, so that this process keeps its locks on it.
    """
    try:
        file = apsw.VFSFile("", os.path.realpath(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        try:
            header = file.xRead(100, 0)
        finally:
            file.xClose()
    except apsw.Error:
        return False
    application = int.from_bytes(header[68:72])
    has_log = header[18:20] == b"\x02\x02" and os.path.exists(f"{os.path.realpath(path)}-wal")
    return header.startswith(b"SQLite format 3\0") and has_log and application in (0, APPLICATION_ID)


def _create_private_file(path: str) -> None:
    """Create the file for its owner alone; SQLite gives the log the same rights."""
    try:
        create_private_folder(os.path.dirname(os.path.abspath(path)))
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except PermissionError:
        if not os.access(path, os.R_OK):
            raise Misconfigured(
                f"no right to use {path}", hint="check the folder's owner, or set ATHENA_HOME to one of yours"
            ) from None
        raise create_read_only_error(path) from None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be opened: {error.strerror}", hint="set ATHENA_HOME elsewhere") from None


def _enable_wal(connection: apsw.Connection) -> str:
    """Switch to a write-ahead log and return the journal mode; two processes that create the file contend here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))


def _create_busy_handler(timeout_s: float = BUSY_TIMEOUT_S) -> Callable[[int], bool]:
    """Return a busy handler with short random pauses; SQLite's own pauses grow to 100 ms and show in the tail."""
    began = 0.0

    def wait_briefly(tries: int) -> bool:
        nonlocal began
        if tries == 0:
            began = time.monotonic()
        elif time.monotonic() - began > timeout_s:
            return False
        time.sleep(random.uniform(0.0002, 0.002 if tries < 50 else 0.01))
        return True

    return wait_briefly


def _check_application(connection: apsw.Connection, path: str) -> None:
    """Refuse a file of another program or of a newer Athena before changing anything in it."""
    if (
        connection.execute("SELECT count(*) FROM sqlite_schema").get
        and connection.pragma("application_id") != APPLICATION_ID
    ):
        raise Misconfigured(f"{path} is a database of another program", hint="set ATHENA_DB_PATH elsewhere")
    newest = len(migrations.STEPS)
    if (version := int(connection.pragma("user_version") or 0)) > newest:
        raise Misconfigured(
            f"{path} was written by a newer Athena (format {version}, this one knows {newest})",
            hint="upgrade with: pip install --upgrade athena-memory",
        )


class ConnectionPool:
    """Gives out the connection that was used last, so that those nobody needs any more stay at the start of the list.

    A connection costs memory and file descriptors. After a burst of readers most of them are of no use.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self.idle: list[apsw.Connection] = []
        self._fewest_idle = 0  # since the last call of `close_unused`: so many were not used in that time

    def take(self) -> apsw.Connection | None:
        """Return a connection, or None where all are in use."""
        with self._lock:
            connection = self.idle.pop() if self.idle else None
            self._fewest_idle = min(self._fewest_idle, len(self.idle))
            return connection

    def put(self, connection: apsw.Connection) -> None:
        with self._lock:
            if not self._is_closed:
                self.idle.append(connection)
                return
        connection.close()

    def close_unused(self) -> bool:
        """Close the connections that nobody has used since the last call, but for one; return whether there were any.

        One stays, because SQLite deletes the log when it closes the last connection to a file.
        """
        with self._lock:
            unused = self.idle[: min(self._fewest_idle, len(self.idle) - 1)] if self.idle else []
            del self.idle[: len(unused)]
            self._fewest_idle = len(self.idle)
        for connection in unused:
            connection.close()
        return bool(unused)

    def close_idle(self) -> None:
        """Close all connections that are not in use."""
        with self._lock:
            idle, self.idle = self.idle, []
            self._fewest_idle = 0
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close all connections; those in use when they are put back."""
        with self._lock:
            self._is_closed = True
        self.close_idle()
