"""Opening a SQLite file: made for its owner alone, checked to be ours, set for durability."""

import os
import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import apsw

from athena.errors import Misconfigured, Unavailable
from athena.storage import migrations
from athena.storage.database import UNFINISHED_COPY_COUNTER, CopyRole, check_usable
from athena.storage.terms import add_word_spaces

IN_MEMORY_PATH = ":memory:"
APPLICATION_ID = 0x41746865  # "Athe", in the header of each of our files
BUSY_TIMEOUT_S = 15.0  # seconds to wait for another process that writes


def connect(path: str, *, create: bool) -> apsw.Connection:
    """Open a connection; the first one to a file creates it and looks whose it is."""
    if create and path != IN_MEMORY_PATH:
        _create_private_file(path)
    connection = apsw.Connection(path, statementcachesize=200)
    connection.set_busy_handler(_create_busy_handler())
    if create:
        _check_owner(connection, path)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    connection.create_scalar_function(
        "spaced", lambda *text: add_word_spaces(str(text[0])), 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS
    )
    for name, value in (("secure_delete", 1), ("cell_size_check", 1), ("temp_store", 2)):
        connection.pragma(name, value)
    set_durable(connection, True)
    if path != IN_MEMORY_PATH and (mode := _enable_wal(connection)) != "wal":
        raise Misconfigured(
            f"{path} cannot use a write-ahead log (it is {mode})",
            hint="put ATHENA_HOME on a local disk: network file systems cannot share a log",
        )
    return connection


def set_durable(connection: apsw.Connection, durable: bool) -> None:
    """Let commits wait until the disk has them; otherwise only a checkpoint does, before it touches the file."""
    wanted = 2 if durable else 1  # FULL or NORMAL
    connection.pragma("synchronous", wanted)
    if connection.pragma("synchronous") != wanted:
        raise Misconfigured("SQLite does not take another synchronous mode", hint="is another library setting it?")


def fsync_log(path: str) -> None:
    """Wait until the disk has a log; one that is gone is in the database's file."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}", hint="check the disk") from error


def _create_private_file(path: str) -> None:
    """Create the file for its owner alone; SQLite gives the log the same rights."""
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), mode=0o700, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except PermissionError:
        if not os.access(path, os.R_OK):
            raise Misconfigured(
                f"no right to use {path}", hint="check the folder's owner, or set ATHENA_HOME to one of yours"
            ) from None
        raise Unavailable(
            f"{path} is read-only here", hint="check the file's and the folder's rights", retry=False
        ) from None
    except OSError as error:
        raise Misconfigured(f"{path} cannot be opened: {error.strerror}", hint="set ATHENA_HOME elsewhere") from None


def _enable_wal(connection: apsw.Connection) -> str:
    """Switch to a write-ahead log; two processes that both create the file meet here."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return str(connection.pragma("journal_mode", "wal"))
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.01))


def can_begin_write(connection: apsw.Connection, patience: float) -> bool:
    """Tell whether nobody else writes, or stops doing so soon."""
    connection.set_busy_handler(_create_busy_handler(patience))
    try:
        connection.execute("BEGIN IMMEDIATE").fetchall()
        connection.execute("ROLLBACK").fetchall()
    except apsw.BusyError:
        return False
    finally:
        connection.set_busy_handler(_create_busy_handler())
    return True


def _create_busy_handler(patience: float = BUSY_TIMEOUT_S) -> Callable[[int], bool]:
    """Return a busy handler with short random pauses: SQLite's own grow to 100 ms, which shows in the tail."""
    began = 0.0

    def wait_briefly(tries: int) -> bool:
        nonlocal began
        if tries == 0:
            began = time.monotonic()
        elif time.monotonic() - began > patience:
            return False
        time.sleep(random.uniform(0.0002, 0.002 if tries < 50 else 0.01))
        return True

    return wait_briefly


def _check_owner(connection: apsw.Connection, path: str) -> None:
    """Refuse a file that is not ours, or is newer than we are, before anything in it is touched."""
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


def check_exists(path: str, copying: CopyRole) -> None:
    check_usable(copying, path, there=os.path.exists(path) and os.path.getsize(path) > 0, whole=True)


def check_copy_complete(connection: apsw.Connection, path: str, copying: CopyRole) -> None:
    found = connection.execute("SELECT 1 FROM counters WHERE name = ?", (UNFINISHED_COPY_COUNTER,)).get
    check_usable(copying, path, there=True, whole=found is None)


@contextmanager
def translate_errors(path: str) -> Generator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except apsw.NotADBError:
        raise Misconfigured(
            f"{path} is not an Athena database", hint="move it away, or set ATHENA_DB_PATH elsewhere"
        ) from None
    except apsw.CorruptError as error:
        raise Unavailable(
            f"{path} is damaged: {error}", hint="run `athena call verify`; restore a backup", retry=False
        ) from error
    except apsw.FullError:
        raise Unavailable("the disk is full; nothing was stored", hint="free some space and try again") from None
    except apsw.BusyError:
        raise Unavailable("another process holds the store", hint="try again; is a long job running?") from None
    except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError):
        raise Unavailable(f"{path} is read-only here", hint="check the file's rights", retry=False) from None
    except apsw.CantOpenError:
        raise Misconfigured(f"{path} cannot be opened", hint="check the folder's rights and free space") from None
    except (apsw.ProtocolError, apsw.LockedError, apsw.InterruptError, apsw.NoMemError) as error:
        raise Unavailable(f"{path} cannot be used now: {error}", hint="try again") from error
    except apsw.IOError as error:
        raise Unavailable(f"{path} cannot be read or written: {error}", hint="check the disk") from error
