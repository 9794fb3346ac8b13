"""Write files atomically and lock them across processes. Standard library only and quick to import: hooks use it."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing costs `athena mcp` more than this module
if TYPE_CHECKING:
    from collections.abc import Callable

LOCK_POLL_INTERVAL_S = 0.01


def write_file_atomically(
    path: str | os.PathLike[str],
    data: bytes | memoryview,
    mode: int = 0o600,
    *,
    exact_mode: bool = False,
    skip_same: bool = False,
    sync: bool = True,
    before_replace: Callable[[], None] | None = None,
) -> bool:
    """Replace a file's content atomically, and return whether it was written.

    Readers see the old content or the new, never a part. A symbolic link at `path` is replaced, not followed: resolve
    the path first to keep a link. The folder must exist.
    `mode` is subject to the umask unless `exact_mode` is set. With `skip_same` a regular file that has this content
    and mode already is left alone. `sync=False` leaves out the fsync, for files that can be regenerated.
    `before_replace` runs when the data is on disk; if it raises, the file stays as it was.
    """
    path = os.fspath(path)
    if skip_same and _has_content(path, data, mode):
        return False
    temp_path = _write_temp_file(path, data, mode, exact_mode, sync)
    try:
        if before_replace is not None:
            before_replace()
        os.replace(temp_path, path)
    except BaseException:
        os.unlink(temp_path)
        raise
    return True


def create_file_atomically(path: str | os.PathLike[str], data: bytes | memoryview, mode: int = 0o600) -> bool:
    """Create a file with this content in one step; return False, and change nothing, where something exists already."""
    path = os.fspath(path)
    temp_path = _write_temp_file(path, data, mode, exact_mode=False, sync=True)
    try:
        os.link(temp_path, path)  # unlike a rename this fails if the name is taken, so that the first process wins
    except FileExistsError:
        return False
    finally:
        os.unlink(temp_path)
    return True


def _write_temp_file(path: str, data: bytes | memoryview, mode: int, exact_mode: bool, sync: bool) -> str:
    """Write a temporary file beside `path` and return its path."""
    # not derived from the name, which may be as long as the file system allows
    temp_path = os.path.join(os.path.dirname(path), f".athena-{os.urandom(8).hex()}.part")
    descriptor = os.open(temp_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            rest = memoryview(data)
            while rest:  # a disk that is nearly full takes only a part
                rest = rest[os.write(descriptor, rest) :]
            if exact_mode:
                os.fchmod(descriptor, mode)
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        os.unlink(temp_path)
        raise
    return temp_path


def _has_content(path: str, data: bytes | memoryview, mode: int) -> bool:
    """Return whether a regular file holds exactly this content with this mode."""
    try:
        # a pipe of that name must not block us
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        if status.st_mode != 0o100000 | mode or status.st_size != len(data):
            return False
        with os.fdopen(descriptor, "rb", closefd=False) as reader:
            return reader.read(len(data) + 1) == data
    except OSError:
        return False
    finally:
        os.close(descriptor)


class FileLock:
    """An exclusive lock across processes, by flock: the system releases it when the process ends, however it ends."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the lock file, creating it and its folder for the owner alone if they are missing."""
        self.path = os.fspath(path)
        if folder := os.path.dirname(self.path):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def acquire(self, timeout_s: float | None = None) -> bool:
        """Take the lock; return False if another holder keeps it longer than `timeout_s` (None waits for ever)."""
        import fcntl  # few callers of this module lock
        import time

        if timeout_s is None:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            return True
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                time.sleep(min(LOCK_POLL_INTERVAL_S, remaining))

    def close(self) -> None:
        """Release the lock and close the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock_file(path: str | os.PathLike[str], timeout_s: float | None = None) -> FileLock:
    """Take the lock of a lock file, for `with`; raise TimeoutError if another holder keeps it longer.

    Lock a file of its own (`x.json.lock`), not the data file: an atomic write replaces that one, and its lock with it.
    """
    lock = FileLock(path)
    try:
        acquired = lock.acquire(timeout_s)
    except BaseException:
        lock.close()
        raise
    if not acquired:
        lock.close()
        raise TimeoutError(f"{lock.path} is locked by another process")
    return lock
