"""Sessions: what belongs together by the session it was recorded in."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, memory_from_row
from athena.memory.sessions.values import BriefingTurn, Told
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.filters import Filter, build_where_clause, tag_key

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
    condition, values = build_where_clause(only, numbers)
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
    condition, values = build_where_clause(only, numbers)
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
    condition, values = build_where_clause(only, await scopes.fetch_visible_ids(tx, only.scope))
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


SUMMARY_EVENT_TYPES = ("episode", "work")  # types of events that sum up others


async def list_episodes(tx: Any, scope: Scope, limit: int, offset: int = 0) -> list[tuple[float, Memory]]:
    """Return the last events that sum up a session or a part of one, the newest first."""
    numbers = await scopes.fetch_own_ids(tx, scope.with_kind("event"))
    if not numbers:
        return []
    # Said in the words of the index, so that all other events cost nothing.
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS}, m.happened {FROM_MEMORIES} WHERE m.scope = :scope AND m.deleted IS NULL
            AND m.memory_type IN {SUMMARY_EVENT_TYPES!r} ORDER BY m.happened DESC, m.id DESC
            LIMIT :limit OFFSET :offset""",
        scope=numbers[0],
        limit=limit,
        offset=offset,
    )
    return [(row[10], memory_from_row(row)) for row in rows]


async def list_tagged_memories(tx: Any, scope: Scope, tags: Iterable[str], limit: int) -> list[Memory]:
    """Return the last memories with one of some tags, read from the end of each tag's list."""
    numbers = await scopes.fetch_visible_ids(tx, scope)
    found: set[int] = set()
    for number in numbers:
        for tag in tags:
            rows = await tx.fetch(
                "SELECT memory FROM tags WHERE scope = :scope AND tag = :tag ORDER BY memory DESC LIMIT :limit",
                scope=number,
                tag=tag_key(tag),
                limit=limit,
            )
            found |= {row[0] for row in rows}
    kept = await memory_rows.fetch_memories(tx, numbers, sorted(found, reverse=True))
    return [kept[number] for number in sorted(kept, reverse=True)][:limit]


BRIEFING_LOG_TTL_S = 90 * 86_400.0  # seconds


async def insert_briefing_items(scope: Scope, turn: BriefingTurn, told: Sequence[Told], at: float, tx: Any) -> bool:
    """Note what a session is told; `afresh`, what it was told before is out of its sight. False: another was first."""
    where = {"scope": scope.project, "session": turn.session}
    if turn.key is not None:
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND session = :session AND key = :key", key=turn.key, **where
        )
    rows = await tx.fetch(
        "SELECT event, memory FROM injections WHERE scope = :scope AND session = :session AND id > :after",
        after=turn.after,
        **where,
    )
    ours = {one.id for one in told}
    if any(event == turn.event or int(memory) in ours for event, memory in rows):
        return False
    if turn.afresh:
        await tx.execute(
            "UPDATE injections SET over = 1 WHERE scope = :scope AND session = :session AND over = 0", **where
        )
    if int(at * 1000) % 50 == 0:  # now and then
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND at < :old",
            scope=scope.project,
            old=at - BRIEFING_LOG_TTL_S,
        )
    for one in told:
        await tx.execute(
            """INSERT INTO injections (scope, session, at, event, memory, reason, score, tokens, key)
               VALUES (:scope, :session, :at, :event, :memory, :reason, :score, :tokens, :key)""",
            key=turn.key,
            at=at,
            event=turn.event,
            memory=one.id,
            reason=one.reason,
            score=one.score,
            tokens=one.tokens,
            **where,
        )
    return True


async def fetch_last_briefing_id(tx: Any, scope: Scope, session: str) -> int:
    """Return the number of the last thing that a session was told."""
    row = await tx.fetch_one(
        "SELECT max(id) FROM injections WHERE scope = :scope AND session = :session",
        scope=scope.project,
        session=session,
    )
    return int(row[0] or 0)


async def fetch_briefed_memories(tx: Any, scope: Scope, session: str, key: str | None) -> dict[int, float]:
    """Return what a session still has in sight, and since when; what was found for this very key was not heard."""
    others = "" if key is None else "AND (key IS NULL OR key <> :key)"
    rows = await tx.fetch(
        f"""SELECT memory, max(at) FROM injections WHERE scope = :scope AND session = :session AND over = 0
           {others} GROUP BY memory""",
        scope=scope.project,
        session=session,
        **({} if key is None else {"key": key}),
    )
    return {int(number): at for number, at in rows}


async def list_briefing_log(
    tx: Any, scope: Scope, session: str | None, limit: int, offset: int
) -> list[tuple[tuple[Any, ...], Memory | None]]:
    """Return what was told, the last first, each with the thing itself where it is still there."""
    only = "" if session is None else "AND session = :session"
    rows = await tx.fetch(
        f"""SELECT at, session, event, memory, reason, score, tokens FROM injections WHERE scope = :scope {only}
            ORDER BY id DESC LIMIT :limit OFFSET :offset""",
        scope=scope.project,
        limit=limit,
        offset=offset,
        **({} if session is None else {"session": session}),
    )
    found = await memory_rows.fetch_memories(
        tx, await scopes.fetch_all_visible_ids(tx, scope), {row[3] for row in rows}
    )
    return [(row, found.get(row[3])) for row in rows]


async def count_briefing_log(tx: Any, scope: Scope, session: str | None) -> int:
    only = "" if session is None else "AND session = :session"
    bound = {} if session is None else {"session": session}
    row = await tx.fetch_one(
        f"SELECT count(*) FROM injections WHERE scope = :scope {only}", scope=scope.project, **bound
    )
    return int(row[0])
