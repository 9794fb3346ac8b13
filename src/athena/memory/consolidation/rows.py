"""SQL of consolidation: its runs, and patterns (memories of kind `pattern`, importance = confidence)."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, QUOTES_RELATION, memory_from_row
from athena.memory.values import Memory
from athena.storage import privacy, scopes
from athena.storage.database import Row, Transaction
from athena.storage.filters import bind_list, split_batches

# A pattern is hidden as soon as one of the memories that it quotes is deleted.
SOURCES_EXIST_SQL = f"""NOT EXISTS (SELECT 1 FROM links l
    WHERE l.scope = m.scope AND l.memory = m.id AND l.relation = '{QUOTES_RELATION}'
    AND NOT EXISTS (SELECT 1 FROM memories q WHERE q.id = l.other AND q.deleted IS NULL))"""


class ConsolidationRow(NamedTuple):
    strategy: str
    days: float
    began: float
    seen: float  # the last heartbeat of the run
    ended: float | None
    stage: str
    fingerprint: str  # of the events and memories that it reads
    newest: int  # id of the newest event that it read
    progress: str
    result: str


CONSOLIDATION_COLUMNS = ", ".join(ConsolidationRow._fields)


async def list_pattern_rows(
    tx: Transaction, scope_ids: list[int], kind: str | None, min_confidence: float, limit: int, offset: int
) -> tuple[list[Memory], int]:
    """Return one page of patterns, the most certain first, and the total."""
    inside = ", ".join(map(str, scope_ids)) or "NULL"
    condition = f"m.scope IN ({inside}) AND m.deleted IS NULL AND m.importance >= :least AND {SOURCES_EXIST_SQL}"
    values: dict[str, Any] = {"least": min_confidence}
    if kind is not None:
        condition += " AND m.memory_type = :kind"
        values["kind"] = kind
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition}
            ORDER BY m.importance DESC, m.id LIMIT :limit OFFSET :offset""",
        limit=limit,
        offset=offset,
        **values,
    )
    total = await tx.fetch_one(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return [memory_from_row(row) for row in rows], int(total[0]) if total else 0


async def has_all_sources(tx: Transaction, pattern_id: int) -> bool:
    """Return whether no memory that a pattern quotes was deleted."""
    sql = f"SELECT 1 FROM memories m WHERE m.id = :id AND {SOURCES_EXIST_SQL}"
    return await tx.fetch_one(sql, id=pattern_id) is not None


async def find_live_ids(tx: Transaction, scope_ids: list[int], memory_ids: Iterable[int]) -> set[int]:
    """Return those of the ids that are in these scopes and not deleted."""
    inside = ", ".join(map(str, scope_ids)) or "NULL"
    live_ids: set[int] = set()
    for batch in split_batches(list(memory_ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(
            f"SELECT id FROM memories WHERE scope IN ({inside}) AND id IN ({names}) AND deleted IS NULL", **bound
        )
        live_ids |= {row[0] for row in rows}
    return live_ids


async def fetch_marks(tx: Transaction, ids: Iterable[int]) -> str:
    """Return the private marks of these rows."""
    marks: list[str] = []
    for batch in split_batches(list(ids)):
        names, bound = bind_list("id", batch)
        rows = await tx.fetch(f"SELECT DISTINCT private FROM memories WHERE id IN ({names})", **bound)
        marks += [mark for (private,) in rows for mark in private.split()]
    return privacy.join_marks(marks)


async def list_consolidations(tx: Transaction, scope: Scope) -> list[ConsolidationRow]:
    """Return the last run of each strategy, the latest first."""
    rows = await tx.fetch(
        f"SELECT {CONSOLIDATION_COLUMNS} FROM consolidations WHERE scope = :scope ORDER BY seen DESC",
        scope=scope.project,
    )
    return [ConsolidationRow(*row) for row in rows]


async def fetch_consolidation(tx: Transaction, scope: Scope, strategy: str, days: float) -> ConsolidationRow | None:
    row = await tx.fetch_one(
        f"""SELECT {CONSOLIDATION_COLUMNS} FROM consolidations
            WHERE scope = :scope AND strategy = :strategy AND days = :days""",
        scope=scope.project,
        strategy=strategy,
        days=days,
    )
    return ConsolidationRow(*row) if row else None


async def upsert_consolidation(tx: Transaction, scope: Scope, run: ConsolidationRow) -> None:
    """Write the state of a run. The row lock makes concurrent runs wait until this transaction ends."""
    placeholders = ", ".join(f":{name}" for name in ConsolidationRow._fields)
    assignments = ", ".join(f"{name} = excluded.{name}" for name in ConsolidationRow._fields[2:])
    await tx.execute(
        f"""INSERT INTO consolidations (scope, {CONSOLIDATION_COLUMNS}) VALUES (:scope, {placeholders})
            ON CONFLICT (scope, strategy, days) DO UPDATE SET {assignments}""",
        scope=scope.project,
        **run._asdict(),
    )


async def clear_progress(tx: Transaction) -> None:
    """Delete the quoted texts of unfinished runs; a live run sees its fingerprint gone and starts over."""
    await tx.execute("UPDATE consolidations SET progress = '', fingerprint = '' WHERE ended IS NULL")


async def fetch_newest_event_id(tx: Transaction, scope: Scope) -> int:
    """Return the id of the newest event that a finished run has read."""
    row = await tx.fetch_one(
        "SELECT max(newest) FROM consolidations WHERE scope = :scope AND ended IS NOT NULL", scope=scope.project
    )
    return int((row and row[0]) or 0)


async def count_rows_after(tx: Transaction, scope: Scope, last_id: int, limit: int) -> int:
    """Count the rows of a scope with larger ids, up to `limit`."""
    count = 0
    for scope_id in await scopes.fetch_own_ids(tx, scope):
        row = await tx.fetch_one(
            """SELECT count(*) FROM (SELECT id FROM memories WHERE scope = :scope AND id > :number
                                     AND deleted IS NULL LIMIT :most) AS behind""",
            scope=scope_id,
            number=last_id,
            most=limit,
        )
        count += int(row[0]) if row else 0
    return count


async def fetch_change_figures(tx: Transaction, scope: Scope, since: float) -> tuple[int, ...]:
    """Return figures that change whenever a row since `since` is added, changed or deleted."""
    for scope_id in await scopes.fetch_own_ids(tx, scope):
        row = await tx.fetch_one(
            """SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0), coalesce(sum(id), 0),
                      coalesce(max(updated), 0)
               FROM memories WHERE scope = :scope AND deleted IS NULL AND happened >= :since""",
            scope=scope_id,
            since=since,
        )
        return tuple(int(value * 1_000) if isinstance(value, float) else int(value) for value in row or ())
    return ()


async def list_rows_since(
    tx: Transaction, scope_id: int, since: float, after: tuple[float, int], limit: int, max_chars: int
) -> list[Row]:
    """Return rows of a scope by time: id, time, type, text, metadata and tags. `after` is (time, id) of the last."""
    return await tx.fetch(
        """SELECT id, happened, memory_type, substr(content, 1, :longest), metadata, tags FROM memories
           WHERE scope = :scope AND deleted IS NULL AND happened >= :since
             AND happened >= :at AND (happened > :at OR id > :number)
           ORDER BY happened, id LIMIT :limit""",
        scope=scope_id,
        since=since,
        at=after[0],
        number=after[1],
        limit=limit,
        longest=max_chars,
    )
