"""Patterns, which are kept as memories of a kind of their own: how sure each is, is its importance."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, QUOTES_RELATION, memory_from_row
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.filters import bind_list as named
from athena.storage.filters import split_batches

# What a pattern repeats the words of is all there.
SOURCES_EXIST_SQL = f"""NOT EXISTS (SELECT 1 FROM links l WHERE l.scope = m.scope AND l.memory = m.id AND l.relation = '{QUOTES_RELATION}'
    AND NOT EXISTS (SELECT 1 FROM memories q WHERE q.id = l.other AND q.deleted IS NULL))"""


async def list_pattern_rows(
    tx: Any, scope_numbers: list[int], kind: str | None, least: float, limit: int, offset: int
) -> tuple[list[Memory], int]:
    """Return patterns, the surest first, and how many there are."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    condition = f"m.scope IN ({inside}) AND m.deleted IS NULL AND m.importance >= :least AND {SOURCES_EXIST_SQL}"
    values: dict[str, Any] = {"least": least}
    if kind is not None:
        condition += " AND m.memory_type = :kind"
        values["kind"] = kind
    rows = await tx.fetch(
        f"SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE {condition} ORDER BY m.importance DESC, m.id LIMIT :limit OFFSET :offset",
        limit=limit,
        offset=offset,
        **values,
    )
    total = await tx.fetch_one(f"SELECT count(*) FROM memories m WHERE {condition}", **values)
    return [memory_from_row(row) for row in rows], int(total[0])


async def has_all_sources(tx: Any, pattern: int) -> bool:
    """Tell whether all that a pattern repeats the words of is still there."""
    return (
        await tx.fetch_one(f"SELECT 1 FROM memories m WHERE m.id = :id AND {SOURCES_EXIST_SQL}", id=pattern) is not None
    )


async def find_live_ids(tx: Any, scope_numbers: list[int], numbers: Iterable[int]) -> set[int]:
    """Return which of these are still there."""
    inside = ", ".join(map(str, scope_numbers)) or "NULL"
    found: set[int] = set()
    for piece in split_batches(list(numbers)):
        names, bound = named("id", piece)
        rows = await tx.fetch(
            f"SELECT id FROM memories WHERE scope IN ({inside}) AND id IN ({names}) AND deleted IS NULL", **bound
        )
        found |= {row[0] for row in rows}
    return found


class ConsolidationRow(NamedTuple):
    strategy: str
    days: float
    began: float
    seen: float  # when it was last at work
    ended: float | None
    stage: str
    fingerprint: str  # of what it looked at
    newest: int  # the last event that it saw
    progress: str
    result: str


CONSOLIDATION_COLUMNS = ", ".join(ConsolidationRow._fields)


async def list_consolidations(tx: Any, scope: Scope) -> list[ConsolidationRow]:
    """Return the last run of each strategy, the latest first."""
    rows = await tx.fetch(
        f"SELECT {CONSOLIDATION_COLUMNS} FROM consolidations WHERE scope = :scope ORDER BY seen DESC",
        scope=scope.project,
    )
    return [ConsolidationRow(*row) for row in rows]


async def fetch_consolidation(tx: Any, scope: Scope, strategy: str, days: float) -> ConsolidationRow | None:
    row = await tx.fetch_one(
        f"SELECT {CONSOLIDATION_COLUMNS} FROM consolidations WHERE scope = :scope AND strategy = :strategy AND days = :days",
        scope=scope.project,
        strategy=strategy,
        days=days,
    )
    return ConsolidationRow(*row) if row else None


async def upsert_consolidation(tx: Any, scope: Scope, run: ConsolidationRow) -> None:
    """Write down how a run stands; whoever else writes the same waits until this transaction ends."""
    given = ", ".join(f":{name}" for name in ConsolidationRow._fields)
    changed = ", ".join(f"{name} = excluded.{name}" for name in ConsolidationRow._fields[2:])
    await tx.execute(
        f"""INSERT INTO consolidations (scope, {CONSOLIDATION_COLUMNS}) VALUES (:scope, {given})
            ON CONFLICT (scope, strategy, days) DO UPDATE SET {changed}""",
        scope=scope.project,
        **run._asdict(),
    )


async def clear_progress(tx: Any) -> None:
    """Let go of the words of unfinished runs; the one at work sees it by its fingerprint, and writes none again."""
    await tx.execute("UPDATE consolidations SET progress = '', fingerprint = '' WHERE ended IS NULL")


async def fetch_newest_event_id(tx: Any, scope: Scope) -> int:
    """Return the last event that any run saw."""
    row = await tx.fetch_one(
        "SELECT max(newest) FROM consolidations WHERE scope = :scope AND ended IS NOT NULL", scope=scope.project
    )
    return int(row[0] or 0)


async def count_rows_after(tx: Any, scope: Scope, number: int, most: int) -> int:
    """Count things of a scope behind a number, up to so many."""
    count = 0
    for own in await scopes.fetch_own_ids(tx, scope):
        row = await tx.fetch_one(
            """SELECT count(*) FROM (SELECT id FROM memories WHERE scope = :scope AND id > :number
                                     AND deleted IS NULL LIMIT :most) AS behind""",
            scope=own,
            number=number,
            most=most,
        )
        count += int(row[0])
    return count


async def fetch_change_figures(tx: Any, scope: Scope, since: float) -> tuple[int, ...]:
    """Return figures that change when anything does that happened since a moment."""
    for own in await scopes.fetch_own_ids(tx, scope):
        row = await tx.fetch_one(
            """SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0), coalesce(sum(id), 0),
                      coalesce(max(updated), 0)
               FROM memories WHERE scope = :scope AND deleted IS NULL AND happened >= :since""",
            scope=own,
            since=since,
        )
        return tuple(int(value * 1_000) if isinstance(value, float) else int(value) for value in row)
    return ()


async def list_rows_since(
    tx: Any, scope: int, since: float, behind: tuple[float, int], limit: int, longest: int
) -> list[tuple[Any, ...]]:
    """Return things of a scope in the order in which they happened: id, time, type, text, metadata and tags."""
    rows: list[tuple[Any, ...]] = await tx.fetch(
        """SELECT id, happened, memory_type, substr(content, 1, :longest), metadata, tags FROM memories
           WHERE scope = :scope AND deleted IS NULL AND happened >= :since
             AND happened >= :at AND (happened > :at OR id > :number)
           ORDER BY happened, id LIMIT :limit""",
        scope=scope,
        since=since,
        at=behind[0],
        number=behind[1],
        limit=limit,
        longest=longest,
    )
    return rows
