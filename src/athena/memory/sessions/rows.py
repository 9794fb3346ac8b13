"""Sessions: what belongs together by the session it was recorded in."""

import json
from collections import Counter
from typing import Any, NamedTuple

from athena.core.scope import Scope
from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS
from athena.memory.values import Filter, Memory
from athena.storage import scopes

SESSION_SCAN_ROWS = 2_000  # rows looked at in one go, on the way to the sessions before


class SessionExtent(NamedTuple):
    """How far a session goes."""

    name: str
    started: float
    ended: float
    row_count: int
    outcomes: dict[str, int]
    first: str


async def list_sessions(tx: Any, only: Filter, limit: int) -> list[str]:
    """Return the sessions that something happened in, the last one first."""
    numbers = await scopes.fetch_visible_ids(tx, only.scope)
    condition, values = memory_rows.build_where_clause(only, numbers)
    found: dict[str, None] = {}
    offset, reached = 0, only.until
    while len(found) < limit:  # by time, since a session's rows lie together there, and old ones are not touched
        before = "" if reached is None else "AND m.happened <= :reached"
        rows = await tx.fetch(
            f"""SELECT m.session, m.happened FROM memories m WHERE {condition} {before}
                ORDER BY m.happened DESC, m.id DESC LIMIT {SESSION_SCAN_ROWS} OFFSET :offset""",
            offset=offset,
            **values | ({} if reached is None else {"reached": reached}),
        )
        found |= {name: None for name, _ in rows if name is not None}
        if len(rows) < SESSION_SCAN_ROWS:
            break
        last = rows[-1][1]
        offset = sum(happened == last for _, happened in rows) + (offset if last == reached else 0)
        reached = last
    return list(found)[:limit]


async def session_exists(tx: Any, scope: Scope, name: str) -> bool:
    """Tell whether there is such a session."""
    inside = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope))) or "NULL"
    row = await tx.fetch_one(
        f"SELECT 1 FROM memories WHERE scope IN ({inside}) AND session = :name AND deleted IS NULL LIMIT 1", name=name
    )
    return row is not None


async def session_has_type(tx: Any, scope: Scope, name: str, types: tuple[str, ...]) -> bool:
    """Tell whether something of one of these types happened in a session of the project."""
    numbers = await scopes.fetch_own_ids(tx, scope)
    row = numbers and await tx.fetch_one(
        f"""SELECT 1 FROM memories WHERE scope = :scope AND session = :name AND deleted IS NULL
            AND memory_type IN {types!r} LIMIT 1""",
        scope=numbers[0],
        name=name,
    )
    return bool(row)


async def fetch_session_project(tx: Any, name: str) -> str | None:
    """Return the project in which something was recorded of a session last, by its name alone: looked up in each."""
    row = await tx.fetch_one(
        """SELECT s.name FROM scopes s JOIN memories m ON m.scope = s.id AND m.session = :name AND m.deleted IS NULL
           WHERE s.kind = 'event' ORDER BY m.id DESC LIMIT 1""",
        name=name,
    )
    return None if row is None else str(row[0])


async def fetch_session_extent(tx: Any, only: Filter) -> SessionExtent | None:
    """Return how far the session that a filter names goes, and how its parts ended."""
    numbers = await scopes.fetch_visible_ids(tx, only.scope)
    condition, values = memory_rows.build_where_clause(only, numbers)
    rows = await tx.fetch(
        f"""SELECT m.tags, count(*), min(m.happened), max(m.happened) FROM memories m WHERE {condition}
            GROUP BY m.tags""",
        **values,
    )
    if not rows:
        return None
    first = await tx.fetch_one(
        f"SELECT m.content FROM memories m WHERE {condition} ORDER BY m.happened, m.id LIMIT 1", **values
    )
    outcomes: Counter[str] = Counter()
    for tags, count, _, _ in rows:
        outcomes.update(dict.fromkeys(json.loads(tags), int(count)))
    return SessionExtent(
        only.session or "",
        min(row[2] for row in rows),
        max(row[3] for row in rows),
        sum(int(row[1]) for row in rows),
        dict(outcomes.most_common()),
        first[0],
    )


async def list_session_rows(tx: Any, only: Filter, limit: int) -> list[tuple[float, Memory]]:
    """Return what happened in a session in order: its beginning and its end, where it is too long."""
    condition, values = memory_rows.build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
    rows: dict[int, Any] = {}
    for order in ("m.happened, m.id", "m.happened DESC, m.id DESC"):
        found = await tx.fetch(
            f"SELECT {MEMORY_COLUMNS}, m.happened {FROM_MEMORIES} WHERE {condition} ORDER BY {order} LIMIT :limit",
            limit=limit // 2,
            **values,
        )
        rows |= {row[0]: row for row in found}
    return sorted(
        ((row[10], memory_rows.memory_from_row(row)) for row in rows.values()), key=lambda one: (one[0], one[1].id)
    )
