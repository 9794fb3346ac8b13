"""The files of an open store: whether they are still those that were opened, and whether the disk has room for more."""

import os

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


def _read_inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None
