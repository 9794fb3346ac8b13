"""Open files beneath a folder, write them atomically, lock them. Standard library only: every hook imports it."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # importing typing costs `athena mcp` more than this module
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOCK_POLL_INTERVAL_S = 0.01
MAX_FOLDER_DEPTH = 100  # each folder on the way holds a descriptor open
FOLDER_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # O_PATH: search permission is enough
SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # neither a pipe nor a terminal has an effect


def create_private_folder(path: str | os.PathLike[str]) -> None:
    """Create a folder, and those above it that are missing, for the owner alone; leave one that exists as it is."""
    try:
        os.mkdir(path, 0o700)
        sync_folder(os.path.abspath(path))
    except FileNotFoundError:
        parent = os.path.dirname(os.path.abspath(path))
        if os.path.isdir(parent):  # where nobody can create a folder, such as /proc
            raise
        create_private_folder(parent)
        create_private_folder(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def open_beneath(root: str | os.PathLike[str], relative_path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a plain file, or with O_DIRECTORY a folder, beneath `root` and return its descriptor; follow no link.

    Each part of the path is opened in the descriptor of its folder, so nobody can exchange a part for a link between
    a check and its use. Raise OSError for a link, for a path that leads out, and for a device, pipe or socket.
    """
    folder, name = _open_parent(root, relative_path)
    try:
        return _open_plain(name, flags, mode, folder)
    finally:
        os.close(folder)


def open_folder_beneath(root: str | os.PathLike[str], relative_path: str, *, create_mode: int | None = None) -> int:
    """Open a folder beneath `root` and return its descriptor for `dir_fd`; follow no link.

    With `create_mode`, subject to the umask, create the folders that are missing.
    """
    folder = os.open(root, FOLDER_FLAGS)
    try:
        for name in _split_path(relative_path):
            folder = _enter_folder(folder, name, relative_path, create_mode)
    except BaseException:
        os.close(folder)
        raise
    return folder


def iter_files_beneath(
    root: str | os.PathLike[str], may_enter: Callable[[str], bool] = lambda _: True, *, start: str = ""
) -> Iterator[tuple[str, int | OSError]]:
    """Yield each file beneath a folder as its relative path and an open descriptor; follow no link.

    With `start`, a path beneath `root`, only those beneath that folder, with paths relative to it. In place of the
    descriptor comes the error of what is no plain file (a link, a pipe) or cannot be opened. The descriptor is closed
    at the next step. `may_enter` gets the relative path of a folder and decides about it.
    """
    folder = open_beneath(root, start, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield from _iter_folder(folder, "", may_enter, MAX_FOLDER_DEPTH)
    finally:
        os.close(folder)


def _iter_folder(
    folder: int, prefix: str, may_enter: Callable[[str], bool], depth_left: int
) -> Iterator[tuple[str, int | OSError]]:
    with os.scandir(folder) as entries:
        names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in names:  # the kind may change at any time: it decides the order and nothing else
        if not is_folder:
            yield from _iter_file(folder, name, prefix)
    for name, is_folder in names:
        path = prefix + name
        if not is_folder or not may_enter(path):
            continue
        try:
            if not depth_left:
                raise OSError(errno.ENAMETOOLONG, "too many folders inside each other", path)
            inner = _open_plain(name, os.O_RDONLY | os.O_DIRECTORY, 0, folder)
        except OSError as error:
            yield path, error
            continue
        try:
            yield from _iter_folder(inner, path + os.sep, may_enter, depth_left - 1)
        finally:
            os.close(inner)


def _iter_file(folder: int, name: str, prefix: str) -> Iterator[tuple[str, int | OSError]]:
    try:
        file = _open_plain(name, os.O_RDONLY, 0, folder)
    except OSError as error:
        yield prefix + name, error
        return
    try:
        yield prefix + name, file
    finally:
        os.close(file)


def _open_parent(root: str | os.PathLike[str], relative_path: str) -> tuple[int, str]:
    """Open the folder of a file beneath `root`, and return its descriptor and the file's name."""
    parts = _split_path(relative_path) or ["."]
    return open_folder_beneath(root, os.sep.join(parts[:-1])), parts[-1]


def _split_path(relative_path: str) -> list[str]:
    parts = [part for part in relative_path.split(os.sep) if part not in ("", os.curdir)]
    if os.path.isabs(relative_path) or os.pardir in parts:
        raise OSError(errno.EXDEV, "the path leads out of its folder", relative_path)
    return parts


def _enter_folder(folder: int, name: str, relative_path: str, create_mode: int | None) -> int:
    """Open a folder inside another one, which is closed then; create it if it is missing and may be created."""
    try:
        inner = os.open(name, FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        if create_mode is None:
            raise
        try:  # noqa: SIM105  # contextlib would double the time of importing this module
            os.mkdir(name, create_mode, dir_fd=folder)
        except FileExistsError:  # another process created it just now
            pass
        return _enter_folder(folder, name, relative_path, None)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise OSError(errno.ELOOP, f"{name} is a link or no folder", relative_path) from None
        raise
    os.close(folder)
    return inner


def _open_plain(name: str, flags: int, mode: int, folder: int) -> int:
    """Open a plain file or a folder inside a folder; raise OSError for a link and everything else."""
    try:
        file = os.open(name, (flags & ~os.O_TRUNC) | SAFE_FLAGS, mode, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link", name) from None
        raise
    try:
        kind = os.fstat(file).st_mode & 0o170000
        if kind == 0o040000 and not flags & os.O_DIRECTORY:
            raise IsADirectoryError(errno.EISDIR, "it is a folder", name)
        if kind not in (0o100000, 0o040000):
            raise OSError(errno.ENXIO, "it is no plain file", name)
        if flags & os.O_TRUNC:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def write_file_atomically(
    path: str | os.PathLike[str],
    data: bytes | memoryview,
    mode: int = 0o600,
    *,
    exact_mode: bool = False,
    skip_same: bool = False,
    sync: bool = True,
    before_replace: Callable[[], None] | None = None,
    dir_fd: int | None = None,
) -> bool:
    """Replace a file's content atomically, and return whether it was written.

    Readers see the old content or the new, never a part. A symbolic link at `path` is replaced, not followed: resolve
    the path first to keep a link. The folder must exist.
    `mode` is subject to the umask unless `exact_mode` is set. With `skip_same` a regular file that has this content
    and mode already is left alone. `sync=False` leaves out the syncs, for files that can be regenerated.
    `before_replace` runs when the data is on disk; if it raises, the file stays as it was.
    With `dir_fd` the path starts at that open folder.
    """
    path = os.fspath(path)
    if skip_same and _has_content(path, data, mode):
        return False
    with NewFile(path, mode, exact_mode=exact_mode, dir_fd=dir_fd) as file:
        file.write(data, sync=sync)
        if before_replace is not None:
            before_replace()
        file.replace(sync=sync)
    return True


def create_file_atomically(path: str | os.PathLike[str], data: bytes | memoryview, mode: int = 0o600) -> bool:
    """Create a file with this content in one step; return False, and change nothing, where something exists already."""
    path = os.fspath(path)
    with NewFile(path, mode) as file:
        file.write(data)
        try:
            os.link(file.temp_path, path)  # unlike a rename this fails if the name is taken: the first process wins
        except FileExistsError:
            return False
    sync_folder(path)
    return True


class NewFile:
    """A new file of a random name beside `path`, for `with`: `replace` puts it there, else the block deletes it.

    It is created, never opened, so that no other user can have made it before or hold it open.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: int = 0o600,
        *,
        exact_mode: bool = False,
        dir_fd: int | None = None,
        label: str = "",
    ) -> None:
        """Create the file; `mode` is subject to the umask unless `exact_mode` is set. Its name has the `label`."""
        self.path, self._dir_fd = os.fspath(path), dir_fd
        # not derived from the name, which may be as long as the file system allows
        self.temp_path = os.path.join(os.path.dirname(self.path), f".athena-{label}{os.urandom(8).hex()}.part")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.descriptor = os.open(self.temp_path, flags, mode, dir_fd=dir_fd)
        if exact_mode:
            os.fchmod(self.descriptor, mode)

    def write(self, data: bytes | memoryview, *, sync: bool = True) -> None:
        rest = memoryview(data)
        while rest:  # a disk that is nearly full takes only a part
            rest = rest[os.write(self.descriptor, rest) :]
        if sync:
            os.fsync(self.descriptor)

    def replace(self, *, sync: bool = True) -> None:
        """Put the file, whose content is on disk, in the place of `path`, and sync its name unless `sync` is off."""
        try:
            os.replace(self.temp_path, self.path, src_dir_fd=self._dir_fd, dst_dir_fd=self._dir_fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        if sync:
            sync_folder(self.path, self._dir_fd)

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        try:  # noqa: SIM105  # contextlib would double the time of importing this module
            os.unlink(self.temp_path, dir_fd=self._dir_fd)
        except FileNotFoundError:  # it has its place
            pass


def sync_folder(path: str | os.PathLike[str], dir_fd: int | None = None) -> None:
    """Make the name of a file durable that was created, replaced or deleted, where the file system can do that."""
    folder = os.path.dirname(path) or os.curdir
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    except PermissionError:  # a folder that we may write but not list
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems
            raise
    finally:
        os.close(descriptor)


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
            create_private_folder(folder)
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
