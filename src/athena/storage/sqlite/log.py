"""The write-ahead log of a SQLite file: sync it, checkpoint it, and write it again after a failed sync.

After a failed sync the kernel treats the pages as clean, though the disk may not have them. The next sync succeeds
without them, and what it confirms stands behind a hole, where recovery stops. A checkpoint does not mend that: a power
cut during it leaves half a transaction in the file, and nothing in the log to complete it. So Athena acknowledges
nothing until all committed frames were compared with their checksums, written again and synced. A marker beside the
log tells the other processes, and the next one if this one is killed.
"""

import contextlib
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import apsw

from athena.errors import Unavailable

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

CHECKPOINT_PAGES = 1_000  # pages in the log after which they are copied into the file
MARKER_SUFFIX = "-unsynced"
REWRITE_FILE_MARK = b"file"  # in the marker: pages of the file itself were lost too
HEADER_BYTES, FRAME_HEADER_BYTES = 32, 24
MAGIC_NUMBERS = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # with the byte order of the checksums
MAX_READ_BYTES = 65_536  # SQLite's unix files read and write less than 128 KB at once
UINT32_MASK = 0xFFFFFFFF
_OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_WAL


class LogLostError(Exception):
    """Frames of the log that were committed are no longer in it."""


class WriteAheadLog:
    """The log of one open store; its callers hold the store's write lock."""

    def __init__(self, path: str, connect: Callable[[], apsw.Connection]) -> None:
        self.path = path
        self._connect = connect
        self._marker = path.removesuffix("-wal") + MARKER_SUFFIX
        self._file: apsw.VFSFile | None = None
        self._unsynced_commits = 0  # how many commits did not sync
        self._synced_commits = 0  # how many of those are durable by now, at least
        self._pages = 0  # in the log after the last commit
        self.has_failed = False  # whether a sync of this process has failed, and nothing was repaired since
        self._must_rewrite_file = False
        self._is_lost = False

    @property
    def is_suspect(self) -> bool:
        """Whether a sync has failed since the log was last known to be on the disk, here or in another process."""
        return self.has_failed or (self.path != "" and os.access(self._marker, os.F_OK))  # `exists` takes longer

    def watch(self, connection: apsw.Connection) -> None:
        """Learn from a connection's commits how long the log is."""
        connection.set_wal_hook(self._note_pages)

    @property
    def has_unsynced_commits(self) -> bool:
        return self._synced_commits < self._unsynced_commits

    def prepare_commit(self, connection: apsw.Connection, deferred_sync: bool) -> None:
        """Refuse a commit behind a hole in the log, and open the log before a commit that does not sync it."""
        if self.is_suspect:
            self.repair(connection)
        if deferred_sync:
            self.open()

    def count_commit(self, connection: apsw.Connection, deferred_sync: bool, *, has_written: bool) -> None:
        if deferred_sync:
            self._unsynced_commits += 1
        elif has_written:
            self._synced_commits = self._unsynced_commits
        else:  # a commit without pages syncs nothing by itself
            self.make_durable(connection)

    def make_durable(self, connection: apsw.Connection) -> None:
        """Sync all commits."""
        if self.is_suspect:
            self.repair(connection)
        elif self.has_unsynced_commits and self.path:
            try:
                self.sync()
            except apsw.Error:
                self.mark_failed()
                self.repair(connection)
        self._synced_commits = self._unsynced_commits

    def open(self) -> None:
        """Open the log before a commit that is not synced: the kernel reports lost pages only to who has it open."""
        if self._file is None and self.path:
            # with CREATE, the first sync includes the folder
            self._file = apsw.VFSFile("", self.path, [_OPEN_FLAGS, 0])

    def sync(self) -> None:
        self.open()
        assert self._file is not None
        self._file.xSync(apsw.SQLITE_SYNC_NORMAL)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.xClose()

    def mark_failed(self, *, file: bool = False) -> None:
        """Record that pages of the log may be lost; `file`: also pages of the file that a checkpoint has written."""
        self.has_failed = True
        self._must_rewrite_file = self._must_rewrite_file or file
        with contextlib.suppress(OSError):
            descriptor = os.open(self._marker, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, REWRITE_FILE_MARK if file else b"log")
            finally:
                os.close(descriptor)

    def checkpoint_if_due(self, connection: apsw.Connection) -> None:
        """Copy a long log into the file. SQLite's own checkpoints would do so too, but tell nobody of a failed sync."""
        if self._pages < CHECKPOINT_PAGES:
            return
        self._pages = 0
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            pass  # another process does it
        except apsw.Error:
            self.mark_failed_checkpoint(connection)

    def mark_failed_checkpoint(self, connection: apsw.Connection) -> None:
        # A checkpoint that a reader stops syncs no page of the file, and the next one skips what it has written.
        _, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        self.mark_failed(file=copied > 0)

    def repair(self, connection: apsw.Connection) -> None:
        """Write all committed frames again and sync them; raises where that fails, and then nothing is acknowledged."""
        if self._is_lost:
            raise self._create_lost_error()
        try:
            self._rewrite_committed(connection)
            if self._must_rewrite_file or self._is_file_marked():
                connection.execute("VACUUM").fetchall()  # all pages go through the log again
        except (LogLostError, apsw.CorruptError, apsw.NotADBError):
            self._is_lost = True
            raise self._create_lost_error() from None
        except apsw.BusyError:
            raise
        except (apsw.Error, OSError) as error:
            self.close()
            raise Unavailable(
                f"the disk does not confirm what is written to {self.path} ({str(error) or type(error).__name__}); "
                "nothing more is stored until it does",
                hint="check the disk; Athena tries again with every write",
            ) from error
        self.has_failed = self._must_rewrite_file = False
        self._synced_commits = self._unsynced_commits
        with contextlib.suppress(OSError):
            os.unlink(self._marker)

    def _create_lost_error(self) -> Unavailable:
        return Unavailable(
            f"the disk lost part of its log {self.path}; nothing more is stored",
            hint="check the disk, then stop every Athena process: the next start has all acknowledged writes",
            retry=False,
        )

    def _is_file_marked(self) -> bool:
        try:
            with open(self._marker, "rb") as marker:
                return REWRITE_FILE_MARK in marker.read()
        except OSError:
            return False

    def _note_pages(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._pages = pages
        return apsw.SQLITE_OK

    def _rewrite_committed(self, connection: apsw.Connection) -> None:
        """Rewrite the log while the file's write lock is held, so that no process appends to it or restarts it."""
        probe = self._connect()
        try:
            probe.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # opens the log
            connection.execute("BEGIN IMMEDIATE").fetchall()
            frames, _ = probe.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            self.close()  # a sync reports an error once for each open file
            self.open()
            assert self._file is not None
            end = _rewrite_frames(self._file, frames)
            if self._file.xFileSize() > end:
                self._file.xWrite(bytes(FRAME_HEADER_BYTES), end)  # a commit that failed must not come back
            self._file.xSync(apsw.SQLITE_SYNC_NORMAL)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK").fetchall()
            probe.close()


def _rewrite_frames(file: apsw.VFSFile, frames: int) -> int:
    """Check the header and the first frames and write the same bytes again; return where they end."""
    if frames <= 0:
        return HEADER_BYTES
    header = file.xRead(HEADER_BYTES, 0)
    if len(header) < HEADER_BYTES:
        raise LogLostError
    header_words: tuple[int, ...] = struct.unpack(">8I", header)
    magic, page_bytes = header_words[0], header_words[2]
    order = MAGIC_NUMBERS.get(magic)
    if order is None or _sum_blocks(header[:24], 24, order, (0, 0))[-1] != struct.unpack(">2I", header[24:]):
        raise LogLostError
    file.xWrite(header, 0)
    frame_bytes = FRAME_HEADER_BYTES + page_bytes
    checksum: tuple[int, int] = struct.unpack(">2I", header[24:])
    frames_per_read = max(1, MAX_READ_BYTES // frame_bytes)
    for first in range(0, frames, frames_per_read):
        count = min(frames_per_read, frames - first)
        offset = HEADER_BYTES + first * frame_bytes
        data = file.xRead(count * frame_bytes, offset)
        if len(data) < count * frame_bytes:
            raise LogLostError
        starts = range(0, len(data), frame_bytes)
        summed = b"".join(data[at : at + 8] + data[at + FRAME_HEADER_BYTES : at + frame_bytes] for at in starts)
        checksums = _sum_blocks(summed, 8 + page_bytes, order, checksum)
        for at, expected in zip(starts, checksums, strict=True):
            salts, stored = data[at + 8 : at + 16], struct.unpack(">2I", data[at + 16 : at + 24])
            if salts != header[16:24] or stored != expected:
                raise LogLostError
        checksum = checksums[-1]
        file.xWrite(data, offset)
    return HEADER_BYTES + frames * frame_bytes


def _sum_blocks(data: bytes, block_bytes: int, order: str, checksum: tuple[int, int]) -> list[tuple[int, int]]:
    """Return SQLite's checksum after each block: a(n) = a(n-1) + a(n-2) + word(n), so the factors are Fibonacci's."""
    import numpy as np  # slow to load

    words = np.frombuffer(data, order).astype(np.uint32).reshape(-1, block_bytes // 4)
    size = words.shape[1]
    factors = _compute_fibonacci(size + 2)
    # of the last word but one, which the last one does not enter, and of the last
    firsts = (words * factors[size - 1 :: -1]).sum(1, dtype=np.uint32).tolist()
    seconds = (words * factors[size:0:-1]).sum(1, dtype=np.uint32).tolist()
    before, middle, after = (int(factor) for factor in factors[size - 1 :])
    sums = []
    for first, second in zip(firsts, seconds, strict=True):
        checksum = (
            (before * checksum[0] + middle * checksum[1] + first) & UINT32_MASK,
            (middle * checksum[0] + after * checksum[1] + second) & UINT32_MASK,
        )
        sums.append(checksum)
    return sums


@cache
def _compute_fibonacci(size: int) -> "NDArray[numpy.uint32]":
    import numpy as np  # slow to load

    numbers = [0, 1]
    while len(numbers) < size:
        numbers.append((numbers[-1] + numbers[-2]) & UINT32_MASK)
    return np.array(numbers, np.uint32)
