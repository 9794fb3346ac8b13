"""A disk below SQLite that loses unsynced writes and fails on request; its images are what a power cut may leave.

The real file plays the page cache: the process reads back all that it wrote. Beside it the disk records what is
durable. A failed sync behaves as on Linux: the pages count as clean, but are not on the disk, and the next sync
succeeds without them.
"""

import os
import random
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import apsw

PAGE_BYTES = 4096  # what the kernel writes back at once
SECTOR_BYTES = 512  # what the device writes at once
Step = Literal["read", "write", "sync", "truncate", "delete"]
ERROR_CODES: dict[Step, int] = {
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}
_names = (f"faulty disk {number}" for number in count(1))


@dataclass
class Fault:
    """Fails some steps: those from the `first`-th on, `times` of them, on files whose name ends with `suffix`."""

    step: Step
    first: int = 1
    times: int = 1
    suffix: str = ""
    code: int | None = None
    seen: int = 0

    def strikes(self, step: Step, path: str) -> bool:
        if step != self.step or not path.endswith(self.suffix):
            return False
        self.seen += 1
        return self.first <= self.seen < self.first + self.times


@dataclass
class DiskFile:
    durable: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)  # pages that are written but not synced
    exists: bool = True  # as the process sees it; an image may have it still


class FaultyDisk:
    """Becomes SQLite's default disk until `close`; only for files in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = os.path.realpath(folder)
        self.files: dict[str, DiskFile] = {}
        self.faults: list[Fault] = []
        self.steps: list[tuple[Step, str]] = []  # every step, for tests that fail each of them in turn
        self.on_step: list[Any] = []  # called with the step and the path before each
        self._lock = threading.RLock()
        self._vfs = _Vfs(self)
        self._hook, sys.unraisablehook = sys.unraisablehook, self._report_unraisable

    def close(self) -> None:
        sys.unraisablehook = self._hook
        self._vfs.unregister()

    def _report_unraisable(self, report: Any) -> None:
        if not isinstance(report.exc_value, apsw.Error):  # a fault that SQLite tells nobody about, e.g. in a close
            self._hook(report)

    def fail(self, step: Step, first: int = 1, times: int = 1, suffix: str = "", code: int | None = None) -> Fault:
        """Let steps fail from now on, counted from now."""
        fault = Fault(step, first, times, suffix, code)
        self.faults.append(fault)
        return fault

    def pending(self, suffix: str) -> int:
        """Return how many pages of a file are not durable."""
        return sum(len(file.dirty) for path, file in self.files.items() if path.endswith(suffix))

    def cut_power(self, target: Path, rng: random.Random) -> Path:
        """Write what may be on the disk after a power cut now: what is synced, and any part of the rest."""
        target.mkdir(parents=True, exist_ok=True)
        with self._lock:
            for path, file in self.files.items():
                if not file.exists and rng.random() < 0.5:
                    continue  # the deletion reached the disk
                image = bytearray(file.durable)
                cached = Path(path).read_bytes() if file.exists and os.path.exists(path) else b""
                share = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
                for page in sorted(file.dirty):
                    if rng.random() < share:
                        _copy_page(image, cached, page, rng)
                (target / os.path.basename(path)).write_bytes(image)
        return target

    # --- what the files report ----------------------------------------------------------------------------------------

    def take_step(self, step: Step, path: str) -> None:
        with self._lock:
            self.steps.append((step, path))
            for watch in self.on_step:
                watch(step, path)
            for fault in self.faults:
                if fault.strikes(step, path):
                    if step == "sync":
                        self.files[path].dirty.clear()  # lost, though the process still reads it back
                    raise apsw.exception_for(fault.code or ERROR_CODES[step])

    def record_open(self, path: str) -> None:
        with self._lock:
            if path not in self.files or not self.files[path].exists:
                durable = Path(path).read_bytes() if os.path.exists(path) else b""
                self.files[path] = DiskFile(bytearray(durable))

    def record_write(self, path: str, offset: int, length: int) -> None:
        with self._lock:
            pages = range(offset // PAGE_BYTES, (offset + length - 1) // PAGE_BYTES + 1)
            self.files[path].dirty.update(pages)

    def record_sync(self, path: str, content: "_File") -> None:
        with self._lock:
            file = self.files[path]
            size = content.xFileSize()
            if len(file.durable) > size:
                del file.durable[size:]
            for page in sorted(file.dirty):
                start = page * PAGE_BYTES
                if start < size:
                    data = content.read_raw(min(PAGE_BYTES, size - start), start)
                    file.durable.extend(bytes(max(0, start - len(file.durable))))
                    file.durable[start : start + len(data)] = data
            file.dirty.clear()
            for gone in [other for other, state in self.files.items() if not state.exists]:
                del self.files[gone]  # a file system's journal has its changes in order, so this one has the deletion

    def record_delete(self, path: str, *, durable: bool) -> None:
        with self._lock:
            if durable:
                self.files.pop(path, None)
            elif path in self.files:
                self.files[path].exists = False


def _copy_page(image: bytearray, cached: bytes, page: int, rng: random.Random) -> None:
    """Copy a page that was written back; now and then only some of its sectors."""
    start = page * PAGE_BYTES
    data = cached[start : start + PAGE_BYTES]
    if not data:
        return
    image.extend(bytes(max(0, start + len(data) - len(image))))
    torn = rng.random() < 0.2
    for offset in range(0, len(data), SECTOR_BYTES):
        if not torn or rng.random() < 0.5:
            sector = data[offset : offset + SECTOR_BYTES]
            image[start + offset : start + offset + len(sector)] = sector


class _File(apsw.VFSFile):
    def __init__(self, disk: FaultyDisk, path: str, name: Any, flags: Any) -> None:
        super().__init__("unix", name, flags)
        self._disk, self._path = disk, path

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore a fault that SQLite tells nobody about, e.g. while it closes a file."""
        return True

    def read_raw(self, amount: int, offset: int) -> bytes:
        return super().xRead(amount, offset)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  # SQLite's names
        self._disk.take_step("read", self._path)
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._disk.take_step("write", self._path)
        super().xWrite(data, offset)
        self._disk.record_write(self._path, offset, len(data))

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._disk.take_step("sync", self._path)
        super().xSync(flags)
        self._disk.record_sync(self._path, self)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        self._disk.take_step("truncate", self._path)
        super().xTruncate(size)


class _Vfs(apsw.VFS):
    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        super().__init__(next(_names), "unix", makedefault=True)

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore a fault that SQLite tells nobody about."""
        return True

    def xFullPathname(self, name: str) -> str:  # noqa: N802
        return os.path.realpath(name)  # apsw takes a symbolic link for an error

    def xOpen(self, name: Any, flags: Any) -> apsw.VFSFile:  # noqa: N802
        path = os.path.realpath(str(name.filename() if isinstance(name, apsw.URIFilename) else name)) if name else ""
        if os.path.dirname(path) != self._disk.folder:
            return apsw.VFSFile("unix", name, flags)
        self._disk.record_open(path)  # before: what is there now is durable
        return _File(self._disk, path, name, flags)

    def xDelete(self, name: str, sync_folder: bool) -> None:  # noqa: N802
        path = os.path.realpath(name)
        if os.path.dirname(path) == self._disk.folder:
            self._disk.take_step("delete", path)
        super().xDelete(name, sync_folder)
        self._disk.record_delete(path, durable=sync_folder)


@contextmanager
def faulty_disk(folder: Path) -> Generator[FaultyDisk]:
    disk = FaultyDisk(folder)
    try:
        yield disk
    finally:
        disk.close()
