"""The files of a store: whether file and log belong together, are still those that were opened, and have room."""

import os
import struct
from collections.abc import Iterator

import apsw

LOG_HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
MAX_COMPARED_PAGES = 64
MIN_FREE_BYTES = 64 * 2**20  # with less than this, health warns


class StoreFiles:
    """The file and its log as they were opened. Somebody may delete or replace them, and SQLite would not notice."""

    def __init__(self, path: str, log_path: str) -> None:
        self._path, self._log_path = path, log_path
        self.remember()

    def remember(self) -> None:
        """Take the files that have these names now for those that are open."""
        self._inode, self._log_inode = os.stat(self._path).st_ino, _read_inode(self._log_path)

    def forget_log(self) -> None:
        """Accept another log from now on: the last connection that is closed deletes it."""
        self._log_inode = None

    def are_same(self) -> bool:
        try:
            if os.stat(self._path).st_ino != self._inode:
                return False
            if self._log_inode is None:
                self._log_inode = _read_inode(self._log_path)
                return True
            return os.stat(self._log_path).st_ino == self._log_inode
        except OSError:
            return False

    def is_other_file(self) -> bool:
        return _read_inode(self._path) != self._inode

    def describe_low_space(self) -> str:
        """Return a warning where the disk is almost full; else an empty text."""
        disk = os.statvfs(os.path.dirname(os.path.realpath(self._path)))
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes >= MIN_FREE_BYTES:
            return ""
        return f"the disk of {self._path} is almost full: {free_bytes / 2**20:.0f} MB are free"


def is_log_doubtful(path: str) -> bool:
    """Return whether the log may be of another file: the file has changed after it, and not by a checkpoint of it.

    So it is after a backup was copied over the file of a process that was killed. A checkpoint leaves the pages of the
    log in the file.
    """
    real_path = os.path.realpath(path)
    log_path = f"{real_path}-wal"
    try:
        log, file = os.stat(log_path), os.stat(real_path)
    except OSError:
        return False
    if log.st_size <= LOG_HEADER_BYTES or file.st_ctime_ns <= log.st_ctime_ns:
        return False
    try:
        # through SQLite: closing the file in any other way would release this process's locks on it
        database = apsw.VFSFile("", real_path, [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
        try:
            equal = [database.xRead(len(page), at) == page for at, page in _iter_last_pages(log_path)]
        finally:
            database.xClose()
    except (OSError, apsw.Error):
        return True
    return sum(equal) * 2 < len(equal)


def _iter_last_pages(log_path: str) -> Iterator[tuple[int, bytes]]:
    """Yield the last version of some pages in the log, with their place in the file."""
    with open(log_path, "rb") as log:
        header = log.read(LOG_HEADER_BYTES)
        _, _, page_bytes, _, *salts = struct.unpack(">6I", header[:24])
        if not 512 <= page_bytes <= 65_536:
            return
        last: dict[int, int] = {}  # page number to where its last version is
        at = LOG_HEADER_BYTES
        while len(frame := log.read(FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
            number, _, *frame_salts = struct.unpack(">4I", frame[:16])
            if frame_salts != salts:
                break  # of an earlier use of the log
            last[number] = at + FRAME_HEADER_BYTES
            at = log.seek(page_bytes, os.SEEK_CUR)
        for number in sorted(last)[:MAX_COMPARED_PAGES]:
            log.seek(last[number])
            yield (number - 1) * page_bytes, log.read(page_bytes)


def _read_inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
