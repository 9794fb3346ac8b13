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

from athena.core.threads import run_sync, start_in_thread
from athena.errors import Conflict, InvalidInput, Unavailable
from athena.storage.database import UNFINISHED_COPY_COUNTER, CopiedTable, Database, Row, Transaction

# All but what each engine makes itself: the full-text index, `counters`, and how many passages a scope has numbered.
# A stamp only tells shelves what is new, so all passages get the first; the empty rows of removed ones stay behind.
COPIED_TABLES = (
    CopiedTable("scopes", "id, name, kind", "id"),
    CopiedTable("models", "id, name", "id"),
    CopiedTable(
        "memories",
        """id, scope, digest, hash, content, label, tags, memory_type, metadata, session, happened, created, updated,
           deleted, importance, occurrences, strength, used""",
        "id",
    ),
    CopiedTable("tags", "scope, tag, memory", "scope, tag, memory"),
    CopiedTable(
        "passages",
        "id, scope, memory, start, length, words, session, voice, live, windowed, 1 AS stamp, model, code",
        "id",
        condition="memory <> 0",
    ),
    CopiedTable("tokens", "passage, scope, signs", "passage"),
    CopiedTable("history", "id, scope, memory, call, at, action, digest, before, undone", "id"),
    CopiedTable("links", "scope, memory, other, relation, at", "scope, memory, other, relation"),
    CopiedTable(
        "relations",
        "id, scope, source, target, source_name, target_name, relation, began, ended, created, removed",
        "id",
    ),
    CopiedTable("waiting", "scope, memory", "scope, memory"),
    CopiedTable("mentions", "scope, key, memory", "scope, key, memory"),
    CopiedTable("calls", "id, scope, operation, surface, at, elapsed_ms, outcome, run", "id"),
    CopiedTable(
        "usage",
        "scope, day, operation, surface, calls, given, returned, shown",
        "scope, day, operation, surface",
    ),
    CopiedTable(
        "consolidations",
        "scope, strategy, days, began, seen, ended, stage, fingerprint, newest, progress, result",
        "scope, strategy, days",
    ),
    CopiedTable("receipts", "scope, key, operation, fingerprint, result, at", "scope, key"),
    CopiedTable("workspaces", "scope, name, owner, state, variables, updated", "scope, name"),
    CopiedTable("files", "scope, workspace, path, content, size, updated", "scope, workspace, path"),
    CopiedTable(
        "runs",
        """scope, id, workspace, status, process, started, elapsed_ms, calls, engine, error, fingerprint, waits_for,
           snapshot, answer, claimed""",
        "scope, id",
    ),
    CopiedTable("injections", "id, scope, session, at, event, memory, reason, score, tokens, over, key", "id"),
)
COPY_RUN_COUNTER = "copy run"  # a counter with the number of the run that copies: a later one takes over
BATCH_ROWS, BATCH_CHARS = 2_000, 4_000_000  # rows of a batch, and about how many characters, at most
MAX_PREFETCHED_BATCHES = 3  # batches that are read before they are written
RESUME_HINT = "run the same athena migrate again: it goes on where it was"
READER_EXIT_TIMEOUT_S = 5.0  # seconds in which the reader may finish when a copy ends early

CopyProgress = Callable[
    [str, int, int], None
]  # what is being done, how many rows since the last time, of how many in all


class TableChecksum:
    """How many rows there are, and a checksum of all that is in them."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def add_rows(self, rows: list[Row]) -> None:
        self.count += len(rows)
        self._hash.update("\n".join([*map(_to_canonical_text, rows), ""]).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableChecksum) and (self.count, self.checksum) == (other.count, other.checksum)

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def _to_canonical_text(row: Row) -> str:
    """Write a row as every engine would give it: SQLite keeps no sign of a zero."""
    text = repr(row)
    return repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row)) if "-0.0" in text else text


class StoreSummary(NamedTuple):
    """What is known of a store before its rows are read."""

    row_count: int
    last_ids: dict[str, int]


class TableReader:
    """The tables of a store as of one moment, read on a thread of its own: a transaction can wait for nothing else."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._requested_tables: SimpleQueue[CopiedTable | None] = SimpleQueue()
        self._items: Queue[Any] = Queue(MAX_PREFETCHED_BATCHES)
        self._started = self._stopping = False

    def __enter__(self) -> "TableReader":
        self._finished = start_in_thread(self._run_reader)
        self.summary: StoreSummary = self._next_item()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._requested_tables.put(None)
        deadline = time.monotonic() + READER_EXIT_TIMEOUT_S
        while not self._finished.wait(0.01) and time.monotonic() < deadline:
            with suppress(Empty):
                self._items.get_nowait()  # it may wait for room

    def iter_batches(self, table: CopiedTable) -> Iterator[list[Row]]:
        """Read a table from its beginning; to be read to its end."""
        self._requested_tables.put(table)
        while (found := self._next_item()) is not None:
            yield found

    def _next_item(self) -> Any:
        found = self._items.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def _run_reader(self) -> None:
        try:
            run_sync(self._database.read(self._read_tables))
        except BaseException as error:  # noqa: BLE001  # raised where the rows are awaited
            self._items.put(error)

    async def _read_tables(self, tx: Transaction) -> None:
        if self._started:  # an engine may run work again, but then it sees another moment
            raise Unavailable("the connection to the source was lost", hint=RESUME_HINT, retry=False)
        self._started = True
        bulk = self._database.table_copy
        counts = [
            await tx.fetch_one(f"SELECT count(*) FROM {table.name} WHERE {table.condition}") for table in COPIED_TABLES
        ]
        self._items.put(StoreSummary(sum(row[0] for row in counts if row), await bulk.read_last_ids(tx)))
        while (table := self._requested_tables.get()) is not None:
            for rows in _batch_rows(bulk.scan_table(tx, table)):
                if self._stopping:
                    return
                self._items.put(rows)
            self._items.put(None)


def copy_store(source: Database, target: Database, tell: CopyProgress = lambda *_: None) -> dict[str, int]:
    """Copy a store into an empty one, or go on with a copy that was stopped; return how many rows each table has."""
    made = StoreCopy(source, target, tell)
    made.claim_target()
    with TableReader(source) as feed:
        made.total = 2 * feed.summary.row_count + 1
        read = {table.name: made.copy_table(feed, table) for table in COPIED_TABLES}
    made.verify_target(read)
    made.complete_target(feed.summary.last_ids)
    return {name: found.count for name, found in read.items()}


class StoreCopy:
    """One run that copies a store, from its beginning or from where another was stopped."""

    def __init__(self, source: Database, target: Database, tell: CopyProgress) -> None:
        self.source, self.target = source, target
        self.total = 0
        self._copied_sums: dict[str, TableChecksum] = {}  # of each table, what a run before has copied
        self._report = tell
        self._run_id = secrets.randbits(62)

    def claim_target(self) -> None:
        """Make the target ours: it must be empty, or an unfinished copy of the same source."""
        origin = run_sync(self.source.read(self.source.table_copy.identify_store))
        if origin == run_sync(self.target.read(self.target.table_copy.identify_store)):
            raise InvalidInput("source and target are the same store", hint="name another target")
        mark = int.from_bytes(hashlib.sha256(origin.encode()).digest()[:8]) >> 1
        where = self.target.describe_location()

        async def mark_target(tx: Transaction) -> None:
            row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=UNFINISHED_COPY_COUNTER)
            if row is not None and row[0] != mark:
                raise Conflict(
                    f"{where} holds an unfinished copy of another store",
                    hint="finish that one, or name an empty database or a new file",
                )
            if row is None:  # calls that found nothing may be recorded, and are dropped like any row that differs
                if await tx.fetch_one("SELECT 1 FROM scopes LIMIT 1") is not None:
                    raise Conflict(f"{where} is not empty", hint="name an empty database or a new file")
                await tx.execute(
                    "INSERT INTO counters (name, value) VALUES (:name, :mark)", name=UNFINISHED_COPY_COUNTER, mark=mark
                )
            await tx.execute("DELETE FROM counters WHERE name = :name", name=COPY_RUN_COUNTER)
            await tx.execute(
                "INSERT INTO counters (name, value) VALUES (:name, :n)", name=COPY_RUN_COUNTER, n=self._run_id
            )

        run_sync(self.target.write(mark_target))
        self._copied_sums = self._checksum_target(lambda _: None)

    def copy_table(self, feed: TableReader, table: CopiedTable) -> TableChecksum:
        """Copy a table, after the rows that are kept from a run before if those are still the source's first."""
        kept, read = self._copied_sums[table.name], TableChecksum()
        changed = False
        for rows in feed.iter_batches(table):
            known = rows[: max(0, kept.count - read.count)]
            new = rows[len(known) :]
            read.add_rows(known)
            changed = changed or (read.count == kept.count and read != kept)
            if new and not changed:
                self._write_rows(table, new)
            read.add_rows(new)
            self._report(table.name, len(rows), self.total)
        if not changed and read.count >= kept.count:
            return read
        # Everything hangs on the scopes: without them nothing else can stay.
        self._clear_tables(COPIED_TABLES if table.name == "scopes" else (table,))
        return self.copy_table(feed, table)

    def verify_target(self, read: dict[str, TableChecksum]) -> None:
        """Compare what was read with what is in the target now."""
        found = self._checksum_target(lambda rows: self._report("comparing", rows, self.total))
        wrong = [
            f"{name} ({found[name].count:,} rows of {one.count:,})" for name, one in read.items() if found[name] != one
        ]
        if wrong:
            raise Conflict(
                f"the copy is not what was read: {', '.join(wrong)}",
                hint="stop what else uses the target, then run the same athena migrate again",
            )

    def complete_target(self, numbers: dict[str, int]) -> None:
        self._report("full-text index", 1, self.total)

        async def complete_copy(tx: Transaction) -> None:
            await self._check_owner(tx)
            await self.target.table_copy.finish_copy(tx, numbers)
            await tx.execute(
                "DELETE FROM counters WHERE name IN (:mark, :run)", mark=UNFINISHED_COPY_COUNTER, run=COPY_RUN_COUNTER
            )

        run_sync(self.target.write(complete_copy))

    def _checksum_target(self, tell: Callable[[int], None]) -> dict[str, TableChecksum]:
        """Read all tables of the target and sum them up."""

        async def checksum_tables(tx: Transaction) -> dict[str, TableChecksum]:
            found = {table.name: TableChecksum() for table in COPIED_TABLES}
            for table in COPIED_TABLES:
                for rows in _batch_rows(self.target.table_copy.scan_table(tx, table)):
                    found[table.name].add_rows(rows)
                    tell(len(rows))
            return found

        return run_sync(self.target.read(checksum_tables))

    def _write_rows(self, table: CopiedTable, rows: list[Row]) -> None:
        async def load_rows(tx: Transaction) -> None:
            await self._check_owner(tx)
            await self.target.table_copy.load_rows(tx, table, rows)

        run_sync(self.target.write(load_rows))

    def _clear_tables(self, tables: tuple[CopiedTable, ...]) -> None:
        """Let go of what a run before has copied."""

        async def delete_rows(tx: Transaction) -> None:
            await self._check_owner(tx)
            for table in reversed(tables):
                await tx.execute(f"DELETE FROM {table.name}")

        run_sync(self.target.write(delete_rows))
        self._copied_sums |= {table.name: TableChecksum() for table in tables}

    async def _check_owner(self, tx: Transaction) -> None:
        """Let go if another run has begun; an update, so that of two transactions one must wait."""
        values = {"name": COPY_RUN_COUNTER, "number": self._run_id}
        if not await tx.execute("UPDATE counters SET value = :number WHERE name = :name AND value = :number", **values):
            raise Conflict("another run copies into this store", hint="let it finish")


def _batch_rows(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Put rows together, not too many and not too long ones."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) >= BATCH_ROWS or size >= BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
