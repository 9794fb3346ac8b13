"""Copying a whole store into another, of whichever engine.

Rows are copied table by table in the order of their keys, each batch in a transaction. So what a stopped run left is
the beginning of each table: the next run compares it with the source's rows by a checksum, and goes on after it, or
copies a table anew whose source was changed meanwhile. Until all is copied and compared, the target is marked and
does not open as a store.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, Queue, SimpleQueue
from typing import Any, NamedTuple

from athena.core.threads import drive, start
from athena.errors import Conflict, InvalidInput, Unavailable
from athena.storage.database import UNFINISHED, Database, Row, Table, Transaction

# All but what each engine makes itself: the full-text index, `counters`, and how many passages a scope has numbered.
# A stamp only tells shelves what is new, so all passages get the first; the empty rows of removed ones stay behind.
TABLES = (
    Table("scopes", "id, name, kind", "id"),
    Table("models", "id, name", "id"),
    Table(
        "memories",
        """id, scope, digest, hash, content, label, tags, memory_type, metadata, session, happened, created, updated,
           deleted, importance, occurrences, strength, used""",
        "id",
    ),
    Table("tags", "scope, tag, memory", "scope, tag, memory"),
    Table(
        "passages",
        "id, scope, memory, start, length, words, session, voice, live, windowed, 1 AS stamp, model, code",
        "id",
        only="memory <> 0",
    ),
    Table("tokens", "passage, scope, signs", "passage"),
    Table("history", "id, scope, memory, call, at, action, digest, before, undone", "id"),
    Table("links", "scope, memory, other, relation, at", "scope, memory, other, relation"),
    Table(
        "relations",
        "id, scope, source, target, source_name, target_name, relation, began, ended, created, removed",
        "id",
    ),
    Table("waiting", "scope, memory", "scope, memory"),
    Table("mentions", "scope, key, memory", "scope, key, memory"),
    Table("calls", "id, scope, operation, surface, at, elapsed_ms, outcome, run", "id"),
    Table(
        "usage",
        "scope, day, operation, surface, calls, given, returned, shown",
        "scope, day, operation, surface",
    ),
    Table(
        "consolidations",
        "scope, strategy, days, began, seen, ended, stage, fingerprint, newest, progress, result",
        "scope, strategy, days",
    ),
    Table("receipts", "scope, key, operation, fingerprint, result, at", "scope, key"),
    Table("workspaces", "scope, name, owner, state, variables, updated", "scope, name"),
    Table("files", "scope, workspace, path, content, size, updated", "scope, workspace, path"),
    Table(
        "runs",
        """scope, id, workspace, status, process, started, elapsed_ms, calls, engine, error, fingerprint, waits_for,
           snapshot, answer, claimed""",
        "scope, id",
    ),
    Table("injections", "id, scope, session, at, event, memory, reason, score, tokens, over, key", "id"),
)
RUN = "copy run"  # a counter with the number of the run that copies: a later one takes over
ROWS, SIZE = 2_000, 4_000_000  # rows of a batch, and about how many characters, at most
AHEAD = 3  # batches that are read before they are written
AGAIN = "run the same athena migrate again: it goes on where it was"
LEAVING = 5.0  # seconds in which the reader may finish when a copy ends early

Tell = Callable[[str, int, int], None]  # what is being done, how many rows since the last time, of how many in all


class Sum:
    """How many rows there are, and a checksum of all that is in them."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def add(self, rows: list[Row]) -> None:
        self.count += len(rows)
        self._hash.update("\n".join([*map(_canonical, rows), ""]).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sum) and (self.count, self.checksum) == (other.count, other.checksum)

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def _canonical(row: Row) -> str:
    """Write a row as every engine would give it: SQLite keeps no sign of a zero."""
    text = repr(row)
    return repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row)) if "-0.0" in text else text


class About(NamedTuple):
    """What is known of a store before its rows are read."""

    rows: int
    numbers: dict[str, int]


class Feed:
    """The tables of a store as of one moment, read on a thread of its own: a transaction can wait for nothing else."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted: SimpleQueue[Table | None] = SimpleQueue()
        self._read: Queue[Any] = Queue(AHEAD)
        self._began = self._leaving = False

    def __enter__(self) -> "Feed":
        self._ended = start(self._run)
        self.about: About = self._next()
        return self

    def __exit__(self, *_: object) -> None:
        self._leaving = True
        self._wanted.put(None)
        deadline = time.monotonic() + LEAVING
        while not self._ended.wait(0.01) and time.monotonic() < deadline:
            with suppress(Empty):
                self._read.get_nowait()  # it may wait for room

    def rows(self, table: Table) -> Iterator[list[Row]]:
        """Read a table from its beginning; to be read to its end."""
        self._wanted.put(table)
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Any:
        found = self._read.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self) -> None:
        try:
            drive(self._database.read(self._serve))
        except BaseException as error:  # noqa: BLE001  # raised where the rows are awaited
            self._read.put(error)

    async def _serve(self, tx: Transaction) -> None:
        if self._began:  # an engine may run work again, but then it sees another moment
            raise Unavailable("the connection to the source was lost", hint=AGAIN, retry=False)
        self._began = True
        bulk = self._database.bulk
        counts = [await tx.fetch_one(f"SELECT count(*) FROM {table.name} WHERE {table.only}") for table in TABLES]
        self._read.put(About(sum(row[0] for row in counts if row), await bulk.numbers(tx)))
        while (table := self._wanted.get()) is not None:
            for rows in _batches(bulk.scan(tx, table)):
                if self._leaving:
                    return
                self._read.put(rows)
            self._read.put(None)


def copy(source: Database, target: Database, tell: Tell = lambda *_: None) -> dict[str, int]:
    """Copy a store into an empty one, or go on with a copy that was stopped; return how many rows each table has."""
    made = Copy(source, target, tell)
    made.begin()
    with Feed(source) as feed:
        made.total = 2 * feed.about.rows + 1
        read = {table.name: made.copy(feed, table) for table in TABLES}
    made.check(read)
    made.finish(feed.about.numbers)
    return {name: found.count for name, found in read.items()}


class Copy:
    """One run that copies a store, from its beginning or from where another was stopped."""

    def __init__(self, source: Database, target: Database, tell: Tell) -> None:
        self.source, self.target = source, target
        self.total = 0
        self._kept: dict[str, Sum] = {}  # of each table, what a run before has copied
        self._tell = tell
        self._number = secrets.randbits(62)

    def begin(self) -> None:
        """Make the target ours: it must be empty, or an unfinished copy of the same source."""
        origin = drive(self.source.read(self.source.bulk.identity))
        if origin == drive(self.target.read(self.target.bulk.identity)):
            raise InvalidInput("source and target are the same store", hint="name another target")
        mark = int.from_bytes(hashlib.sha256(origin.encode()).digest()[:8]) >> 1
        where = self.target.location()

        async def work(tx: Transaction) -> None:
            row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=UNFINISHED)
            if row is not None and row[0] != mark:
                raise Conflict(
                    f"{where} holds an unfinished copy of another store",
                    hint="finish that one, or name an empty database or a new file",
                )
            if row is None:  # calls that found nothing may be recorded, and are dropped like any row that differs
                if await tx.fetch_one("SELECT 1 FROM scopes LIMIT 1") is not None:
                    raise Conflict(f"{where} is not empty", hint="name an empty database or a new file")
                await tx.execute("INSERT INTO counters (name, value) VALUES (:name, :mark)", name=UNFINISHED, mark=mark)
            await tx.execute("DELETE FROM counters WHERE name = :name", name=RUN)
            await tx.execute("INSERT INTO counters (name, value) VALUES (:name, :n)", name=RUN, n=self._number)

        drive(self.target.write(work))
        self._kept = self._sums(lambda _: None)

    def copy(self, feed: Feed, table: Table) -> Sum:
        """Copy a table, after the rows that are kept from a run before if those are still the source's first."""
        kept, read = self._kept[table.name], Sum()
        changed = False
        for rows in feed.rows(table):
            known = rows[: max(0, kept.count - read.count)]
            new = rows[len(known) :]
            read.add(known)
            changed = changed or (read.count == kept.count and read != kept)
            if new and not changed:
                self._write(table, new)
            read.add(new)
            self._tell(table.name, len(rows), self.total)
        if not changed and read.count >= kept.count:
            return read
        # Everything hangs on the scopes: without them nothing else can stay.
        self._drop(TABLES if table.name == "scopes" else (table,))
        return self.copy(feed, table)

    def check(self, read: dict[str, Sum]) -> None:
        """Compare what was read with what is in the target now."""
        found = self._sums(lambda rows: self._tell("comparing", rows, self.total))
        wrong = [
            f"{name} ({found[name].count:,} rows of {one.count:,})" for name, one in read.items() if found[name] != one
        ]
        if wrong:
            raise Conflict(
                f"the copy is not what was read: {', '.join(wrong)}",
                hint="stop what else uses the target, then run the same athena migrate again",
            )

    def finish(self, numbers: dict[str, int]) -> None:
        self._tell("full-text index", 1, self.total)

        async def work(tx: Transaction) -> None:
            await self._check_ours(tx)
            await self.target.bulk.complete(tx, numbers)
            await tx.execute("DELETE FROM counters WHERE name IN (:mark, :run)", mark=UNFINISHED, run=RUN)

        drive(self.target.write(work))

    def _sums(self, tell: Callable[[int], None]) -> dict[str, Sum]:
        """Read all tables of the target and sum them up."""

        async def work(tx: Transaction) -> dict[str, Sum]:
            found = {table.name: Sum() for table in TABLES}
            for table in TABLES:
                for rows in _batches(self.target.bulk.scan(tx, table)):
                    found[table.name].add(rows)
                    tell(len(rows))
            return found

        return drive(self.target.read(work))

    def _write(self, table: Table, rows: list[Row]) -> None:
        async def work(tx: Transaction) -> None:
            await self._check_ours(tx)
            await self.target.bulk.load(tx, table, rows)

        drive(self.target.write(work))

    def _drop(self, tables: tuple[Table, ...]) -> None:
        """Let go of what a run before has copied."""

        async def work(tx: Transaction) -> None:
            await self._check_ours(tx)
            for table in reversed(tables):
                await tx.execute(f"DELETE FROM {table.name}")

        drive(self.target.write(work))
        self._kept |= {table.name: Sum() for table in tables}

    async def _check_ours(self, tx: Transaction) -> None:
        """Let go if another run has begun; an update, so that of two transactions one must wait."""
        values = {"name": RUN, "number": self._number}
        if not await tx.execute("UPDATE counters SET value = :number WHERE name = :name AND value = :number", **values):
            raise Conflict("another run copies into this store", hint="let it finish")


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Put rows together, not too many and not too long ones."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) >= ROWS or size >= SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
