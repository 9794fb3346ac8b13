"""The private sources that a run has read: they mark every row that it writes, and decide which servers it may call.

A mark is a word: `files` for ingested documents, `server:NAME` for the results of a server that is set private.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from athena.errors import InvalidInput, LimitExceeded
from athena.storage.database import Database, Transaction, Work

FILES_MARK = "files"
SERVER_MARK_PREFIX = "server:"
ALL_MARKS = "all"  # accepted by a server that may get everything
MAX_FOREIGN_CHANGES = 50  # rows without its marks that a marked run may change or remove: which ones is a message
KNOWN_MARK_PATTERN = re.compile(rf"{FILES_MARK}|{SERVER_MARK_PREFIX}[\w.-]{{1,100}}")
T = TypeVar("T")


class PrivateReads:
    """The marks of what one run has read so far. The calls of a run share it, also from several threads."""

    def __init__(self, marks: str = "") -> None:
        self.marks = set(marks.split())
        self.searched: set[str] = set()  # those of the marks that only searches went through
        self.changed_rows: set[tuple[str, ...]] = set()  # that had not all of these marks

    def __str__(self) -> str:
        return " ".join(sorted(self.marks))

    def add(self, marks: Iterable[str]) -> None:
        """Mark the run with what it was given."""
        marks = set(marks)
        self.marks |= marks
        self.searched -= marks


_current_reads: ContextVar[PrivateReads | None] = ContextVar("private_reads", default=None)


def note_read(marks: str) -> None:
    """Mark the run in whose transaction a row with these marks was read."""
    if marks and (reads := _current_reads.get()) is not None:
        reads.add(marks.split())


def note_search(marks: str) -> None:
    """Mark the run whose search went through rows with these marks, which it may not have been given."""
    if marks and (reads := _current_reads.get()) is not None:
        reads.searched |= set(marks.split()) - reads.marks
        reads.marks.update(marks.split())


def is_noted(marks: str) -> bool:
    """Return whether the run of this transaction has all of these marks; without a run, nothing is missing."""
    return (reads := _current_reads.get()) is None or reads.marks.issuperset(marks.split())


def is_watched() -> bool:
    """Return whether this transaction belongs to a run."""
    return _current_reads.get() is not None


def has_marks() -> bool:
    """Return whether this transaction belongs to a run that has read something private."""
    return (reads := _current_reads.get()) is not None and bool(reads.marks)


def note_change(marks: str, *row: object) -> None:
    """Count a row with these marks that the run changes or removes: another run can tell from which rows are left."""
    reads = _current_reads.get()
    if reads is None or reads.marks <= {*marks.split()}:
        return
    reads.changed_rows.add(tuple(map(str, row)))
    if len(reads.changed_rows) > MAX_FOREIGN_CHANGES:
        raise LimitExceeded(
            f"this run has read {reads}, so it may change or remove at most {MAX_FOREIGN_CHANGES} things that others"
            " can read who have not",
            hint="change the rest in a program, in another workspace, that reads nothing private",
        )


@contextmanager
def mark_copies() -> Iterator[None]:
    """In a transaction: let what is written from here on have the marks of what is read here, whoever calls."""
    outer = _current_reads.get()
    reads = PrivateReads("" if outer is None else str(outer))
    reads.changed_rows = reads.changed_rows if outer is None else outer.changed_rows
    token = _current_reads.set(reads)
    try:
        yield
    finally:
        _current_reads.reset(token)
        if outer is not None:
            outer.add(reads.marks)


def add_current_marks(marks: str) -> str:
    """Return the marks of a row that is written now: its own and those of the run that writes it."""
    reads = _current_reads.get()
    return marks if reads is None or not reads.marks else join_marks([*marks.split(), *reads.marks])


def check_marks(marks: str) -> str:
    """Return marks that a file brings; raise InvalidInput for one that no source has: no server could accept it."""
    for mark in marks.split():
        if not KNOWN_MARK_PATTERN.fullmatch(mark):
            raise InvalidInput(f"{mark[:40]} is no private mark", hint="files, or server:NAME")
    return join_marks(marks.split())


def join_marks(marks: Iterable[str]) -> str:
    return " ".join(sorted(set(marks)))


class WatchedDatabase:
    """A database whose transactions belong to one run: what they read marks the run, what they write gets its marks."""

    def __init__(self, database: Database, reads: PrivateReads) -> None:
        self._database, self._reads = database, reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @property
    def deferred_sync(self) -> "WatchedDatabase":
        return WatchedDatabase(self._database.deferred_sync, self._reads)

    async def read(self, work: Work[T]) -> T:
        return await self._database.read(self._watch(work))

    async def write(self, work: Work[T]) -> T:
        return await self._database.write(self._watch(work))

    def defer_write(self, work: Work[None], *, dedupe_key: str = "") -> None:
        # work with a key is upkeep that serves every caller, so it does not belong to the run
        self._database.defer_write(work if dedupe_key else self._watch(work), dedupe_key=dedupe_key)

    def _watch(self, work: Work[T]) -> Work[T]:
        # inside the transaction, because that may run on another thread
        async def run_watched(tx: Transaction) -> T:
            token = _current_reads.set(self._reads)
            try:
                return await work(tx)
            finally:
                _current_reads.reset(token)

        return run_watched
