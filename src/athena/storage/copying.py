"""Copy a whole store into another, of either engine.

Rows are copied table by table in the order of their keys, each batch in one transaction. So a stopped run leaves the
beginning of each table: the next run compares it with the source's rows by a checksum, and goes on after it, or
copies a table anew whose source has changed. Until all is copied and compared, the target is marked as unfinished and
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
from athena.storage.database import IMPORT_COUNTER, UNFINISHED_COPY_COUNTER, CopiedTable, Database, Row, Transaction

# All but what each engine builds itself: the full-text index, `counts`, most of `counters`, and `scopes.passages`. A
# stamp only orders changes for vector caches, so all passages get the first; rows that `retire_passages` emptied are
# left out.
COPIED_TABLES = (
    CopiedTable("scopes", "id, name, kind", "id"),
    CopiedTable("models", "id, name", "id"),
    CopiedTable(
        "memories",
        """id, scope, digest, hash, content, label, tags, memory_type, metadata, session, happened, created, updated,
           deleted, importance, author, private, occurrences, strength, used""",
        "id",
    ),
    CopiedTable("tags", "scope, tag, memory, happened", "scope, tag, memory"),
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
        "id, scope, source, target, source_name, target_name, relation, began, ended, created, removed, private",
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
    CopiedTable("workspaces", "scope, name, owner, state, variables, updated, private", "scope, name"),
    CopiedTable("files", "scope, workspace, path, content, size, updated, private", "scope, workspace, path"),
    CopiedTable(
        "runs",
        """scope, id, workspace, status, process, started, elapsed_ms, calls, engine, error, fingerprint, waits_for,
           snapshot, answer, claimed, private""",
        "scope, id",
    ),
    CopiedTable("vault_keys", "id, created", "id"),
    CopiedTable(
        "vault",
        "scope, kind, number, name, allowed, key, lookup, spelling, value, created, private, said",
        "scope, kind, number",
    ),
    CopiedTable("disclosures", "scope, day, server, tool, kind, sent", "scope, day, server, tool, kind"),
    CopiedTable("learned_turns", "scope, turn", "scope, turn"),
    CopiedTable("injections", "id, scope, session, at, event, memory, reason, score, tokens, over, key, private", "id"),
)
SELF_FILLED_TABLES = frozenset({"calls", "usage"})  # as soon as somebody looks at a store; alone nothing to lose
COPIED_COUNTERS = (IMPORT_COUNTER, "announced %", "token %")  # no other row of `counters` says what happened
COPY_RUN_COUNTER = "copy run"  # a row of `counters` with the id of the run that copies: a later run takes over
BATCH_ROWS, BATCH_CHARS = 2_000, 4_000_000  # at most; whichever is reached first
MAX_PREFETCHED_BATCHES = 3
RESUME_HINT = "run the same athena migrate again, or the same athena import: it goes on where it was"
READER_EXIT_TIMEOUT_S = 5.0  # in which the reader may finish when a copy ends early

CopyProgress = Callable[[str, int, int], None]  # the step, rows done since the last report, rows in all


class TableChecksum:
    """The number of rows, and a checksum of their values."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.sha256()

    def add_rows(self, rows: list[Row]) -> None:
        self.count += len(rows)
        self._hash.update("\n".join([*map(_to_canonical_text, rows), ""]).encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableChecksum) and (self.count, self.checksum) == (other.count, other.checksum)

    __hash__ = None  # type: ignore[assignment]  # mutable

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def _to_canonical_text(row: Row) -> str:
    """Write a row as both engines would return it: SQLite does not keep the sign of a zero."""
    text = repr(row)
    return repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row)) if "-0.0" in text else text


class StoreSummary(NamedTuple):
    """Figures of a store, read before its rows."""

    row_count: int
    last_ids: dict[str, int]
    counters: dict[str, int]


class TableReader:
    """Reads tables in one transaction, on its own thread, because a transaction's work must not wait for others."""

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
                self._items.get_nowait()  # the reader may wait for space in the queue

    def iter_batches(self, table: CopiedTable) -> Iterator[list[Row]]:
        """Yield all batches of a table; the caller must read them to the end."""
        self._requested_tables.put(table)
        while (rows := self._next_item()) is not None:
            yield rows

    def _next_item(self) -> Any:
        item = self._items.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def _run_reader(self) -> None:
        try:
            run_sync(self._database.read(self._read_tables))
        except BaseException as error:  # noqa: BLE001  # raised by _next_item
            self._items.put(error)

    async def _read_tables(self, tx: Transaction) -> None:
        if self._started:  # an engine may run work again, but in another snapshot
            raise Unavailable("the connection to the source was lost", hint=RESUME_HINT, retry=False)
        self._started = True
        table_copy = self._database.table_copy
        row_count = 0
        for table in COPIED_TABLES:
            row = await tx.fetch_required(f"SELECT count(*) FROM {table.name} WHERE {table.condition}")
            row_count += row[0]
        counters: dict[str, int] = {}
        for pattern in COPIED_COUNTERS:
            counters |= dict(await tx.fetch("SELECT name, value FROM counters WHERE name LIKE :name", name=pattern))
        self._items.put(StoreSummary(row_count, await table_copy.read_last_ids(tx), counters))
        while (requested := self._requested_tables.get()) is not None:
            for rows in _batch_rows(table_copy.scan_table(tx, requested)):
                if self._stopping:
                    return
                self._items.put(rows)
            self._items.put(None)


def copy_store(source: Database, target: Database, report: CopyProgress = lambda *_: None) -> dict[str, int]:
    """Copy a store into an empty one, or resume a copy that was stopped; return the number of rows of each table."""
    copy = StoreCopy(source, target, report)
    copy.claim_target()
    with TableReader(source) as reader:
        copy.total = 2 * reader.summary.row_count + 1
        checksums = {table.name: copy.copy_table(reader, table) for table in COPIED_TABLES}
    copy.verify_target(checksums)
    copy.complete_target(reader.summary)
    return {name: checksum.count for name, checksum in checksums.items()}


class StoreCopy:
    """One run that copies a store, from the beginning or from where another run stopped."""

    def __init__(self, source: Database, target: Database, report: CopyProgress) -> None:
        self.source, self.target = source, target
        self.total = 0
        self._copied_sums: dict[str, TableChecksum] = {}  # of the tables that an earlier run copied
        self._report = report
        self._run_id = secrets.randbits(62)

    def claim_target(self) -> None:
        """Mark the target as this run's; it must be empty, or an unfinished copy of the same source."""
        source_id = run_sync(self.source.read(self.source.table_copy.identify_store))
        if source_id == run_sync(self.target.read(self.target.table_copy.identify_store)):
            raise InvalidInput("source and target are the same store", hint="name another target")
        mark = int.from_bytes(hashlib.sha256(source_id.encode()).digest()[:8]) >> 1
        location = self.target.describe_location()

        async def mark_target(tx: Transaction) -> None:
            row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=UNFINISHED_COPY_COUNTER)
            if row is not None and row[0] != mark:
                raise Conflict(
                    f"{location} holds an unfinished copy of another store",
                    hint="finish that one, or name an empty database or a new file",
                )
            if row is None:  # recorded calls may exist, and are deleted later like any rows that differ
                if not await _is_empty(tx):
                    raise Conflict(f"{location} is not empty", hint="name an empty database or a new file")
                await tx.execute(
                    "INSERT INTO counters (name, value) VALUES (:name, :mark)", name=UNFINISHED_COPY_COUNTER, mark=mark
                )
            await tx.execute("DELETE FROM counters WHERE name = :name", name=COPY_RUN_COUNTER)
            await tx.execute(
                "INSERT INTO counters (name, value) VALUES (:name, :n)", name=COPY_RUN_COUNTER, n=self._run_id
            )

        run_sync(self.target.write(mark_target))
        self._copied_sums = self._checksum_target(lambda _: None)

    def copy_table(self, reader: TableReader, table: CopiedTable) -> TableChecksum:
        """Copy a table; skip the rows of an earlier run if they are still the source's first rows."""
        earlier, checksum = self._copied_sums[table.name], TableChecksum()
        changed = False
        for rows in reader.iter_batches(table):
            known = rows[: max(0, earlier.count - checksum.count)]
            new = rows[len(known) :]
            checksum.add_rows(known)
            changed = changed or (checksum.count == earlier.count and checksum != earlier)
            if new and not changed:
                self._write_rows(table, new)
            checksum.add_rows(new)
            self._report(table.name, len(rows), self.total)
        if not changed and checksum.count >= earlier.count:
            return checksum
        # Other tables reference the scopes, so without those no row can stay.
        self._clear_tables(COPIED_TABLES if table.name == "scopes" else (table,))
        return self.copy_table(reader, table)

    def verify_target(self, expected: dict[str, TableChecksum]) -> None:
        """Compare the rows that were read with those in the target."""
        actual = self._checksum_target(lambda rows: self._report("comparing", rows, self.total))
        wrong = [
            f"{name} ({actual[name].count:,} rows of {checksum.count:,})"
            for name, checksum in expected.items()
            if actual[name] != checksum
        ]
        if wrong:
            raise Conflict(
                f"the copy is not what was read: {', '.join(wrong)}",
                hint="stop what else uses the target, then run the same athena migrate again",
            )

    def complete_target(self, summary: StoreSummary) -> None:
        self._report("full-text index", 1, self.total)

        async def complete_copy(tx: Transaction) -> None:
            await self._check_owner(tx)
            await self.target.table_copy.finish_copy(tx, summary.last_ids)
            for name, value in summary.counters.items():
                await tx.execute("DELETE FROM counters WHERE name = :name", name=name)
                await tx.execute("INSERT INTO counters (name, value) VALUES (:name, :value)", name=name, value=value)
            await tx.execute(
                "DELETE FROM counters WHERE name IN (:mark, :run)", mark=UNFINISHED_COPY_COUNTER, run=COPY_RUN_COUNTER
            )

        run_sync(self.target.write(complete_copy))

    def _checksum_target(self, report: Callable[[int], None]) -> dict[str, TableChecksum]:
        """Read all tables of the target and return their checksums."""

        async def checksum_tables(tx: Transaction) -> dict[str, TableChecksum]:
            checksums = {table.name: TableChecksum() for table in COPIED_TABLES}
            for table in COPIED_TABLES:
                for rows in _batch_rows(self.target.table_copy.scan_table(tx, table)):
                    checksums[table.name].add_rows(rows)
                    report(len(rows))
            return checksums

        return run_sync(self.target.read(checksum_tables))

    def _write_rows(self, table: CopiedTable, rows: list[Row]) -> None:
        async def load_rows(tx: Transaction) -> None:
            await self._check_owner(tx)
            await self.target.table_copy.load_rows(tx, table, rows)

        run_sync(self.target.write(load_rows))

    def _clear_tables(self, tables: tuple[CopiedTable, ...]) -> None:
        """Delete the rows that an earlier run copied."""

        async def delete_rows(tx: Transaction) -> None:
            await self._check_owner(tx)
            for table in reversed(tables):
                await tx.execute(f"DELETE FROM {table.name}")

        run_sync(self.target.write(delete_rows))
        self._copied_sums |= {table.name: TableChecksum() for table in tables}

    async def _check_owner(self, tx: Transaction) -> None:
        """Raise Conflict if another run has begun; an update, so that of two transactions one must wait."""
        values = {"name": COPY_RUN_COUNTER, "run_id": self._run_id}
        if not await tx.execute("UPDATE counters SET value = :run_id WHERE name = :name AND value = :run_id", **values):
            raise Conflict("another run copies into this store", hint="let it finish")


async def is_empty_or_unfinished(tx: Transaction) -> bool:
    """Return whether a store has nothing to lose, or is a copy that was stopped."""
    unfinished = await tx.fetch_one("SELECT 1 FROM counters WHERE name = :name", name=UNFINISHED_COPY_COUNTER)
    return unfinished is not None or await _is_empty(tx)


async def _is_empty(tx: Transaction) -> bool:
    """Return whether no table has a row, but for those that a store fills by itself."""
    for table in COPIED_TABLES:
        if table.name not in SELF_FILLED_TABLES:
            query = f"SELECT 1 FROM {table.name} WHERE {table.condition} LIMIT 1"
            if await tx.fetch_one(query) is not None:
                return False
    return True


async def mark_import(tx: Transaction) -> None:
    """Keep which call of an imported store is its last: undo does not reach behind the import."""
    await tx.execute("DELETE FROM counters WHERE name = :name", name=IMPORT_COUNTER)
    statement = "INSERT INTO counters (name, value) SELECT CAST(:name AS TEXT), coalesce(max(id), 0) FROM calls"
    await tx.execute(statement, name=IMPORT_COUNTER)


def _batch_rows(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Group rows into batches of limited count and size."""
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
