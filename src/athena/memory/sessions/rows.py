"""SQL of sessions: their events, the summaries of them, and the log of what briefings told them."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.memory import link_rows, topic_rows
from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMN_COUNT, MEMORY_COLUMNS, memory_from_row
from athena.memory.sessions.learning_rows import AUTO_TAG, fetch_last_times
from athena.memory.sessions.values import WORK_EVENT_TYPE, BriefingTurn, Told
from athena.memory.values import Memory
from athena.storage import privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter, build_where_clause, tag_key

SESSION_SCAN_ROWS = 2_000
SUMMARY_EVENT_TYPES = ("episode", WORK_EVENT_TYPE)
BRIEFING_LOG_TTL_S = 90 * 86_400.0


class SessionExtent(NamedTuple):
    """When a session started and ended, its size and its outcomes."""

    name: str
    started: float
    ended: float
    row_count: int
    outcomes: dict[str, int]
    first_text: str


async def list_sessions(tx: Transaction, row_filter: Filter, limit: int) -> list[str]:
    """Return the names of the sessions with matching rows, the latest first."""
    condition, values = build_where_clause(row_filter, await scopes.fetch_visible_ids(tx, row_filter.scope))
    names: dict[str, None] = {}
    offset, reached = 0, row_filter.until
    # Pages by time: the rows of a session are neighbours there, and older rows are not read.
    while len(names) < limit:
        before = "" if reached is None else "AND m.happened <= :reached"
        rows = await tx.fetch(
            f"""SELECT m.session, m.happened, m.private FROM memories m WHERE {condition} {before}
                ORDER BY m.happened DESC, m.id DESC LIMIT {SESSION_SCAN_ROWS} OFFSET :offset""",
            offset=offset,
            **values | ({} if reached is None else {"reached": reached}),
        )
        for name, _, private in rows:
            if name is not None and name not in names:
                privacy.note_read(private)
                names[name] = None
        if len(rows) < SESSION_SCAN_ROWS:
            break
        last = rows[-1][1]
        offset = sum(happened == last for _, happened, _ in rows) + (offset if last == reached else 0)
        reached = last
    return list(names)[:limit]


async def session_exists(tx: Transaction, scope: Scope, name: str) -> bool:
    """Return whether a session of this name has rows."""
    scope_ids = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope))) or "NULL"
    rows = await tx.fetch(
        f"SELECT DISTINCT private FROM memories WHERE scope IN ({scope_ids}) AND session = :name AND deleted IS NULL",
        name=name,
    )
    for (private,) in rows:
        privacy.note_read(private)
    return bool(rows)


async def list_work_events(
    tx: Transaction, scope: Scope, session: str, types: tuple[str, ...], limit: int, longest: int
) -> list[Memory]:
    """Return the last events of a session that have one of these types, in order, with the beginning of each."""
    scope_ids = await scopes.fetch_own_ids(tx, scope)
    if not scope_ids:
        return []
    rows = await tx.fetch(
        f"""SELECT m.id FROM memories m WHERE m.scope = :scope AND m.session = :session
            AND m.deleted IS NULL AND m.memory_type IN {types!r} ORDER BY m.id DESC LIMIT :limit""",
        scope=scope_ids[0],
        session=session,
        limit=limit,
    )
    events = await memory_rows.fetch_memories(tx, scope_ids, [row[0] for row in rows], longest=longest)
    return [events[memory_id] for memory_id in sorted(events)]


async def fetch_session_project(tx: Transaction, name: str) -> str | None:
    """Return the project of a session's first event, or None."""
    row = await tx.fetch_one(
        """SELECT s.name FROM scopes s JOIN memories m ON m.scope = s.id AND m.session = :name AND m.deleted IS NULL
           WHERE s.kind = 'event' ORDER BY m.id LIMIT 1""",
        name=name,
    )
    return None if row is None else str(row[0])


async def fetch_session_extent(tx: Transaction, row_filter: Filter) -> SessionExtent | None:
    """Return the extent of the session that a filter names; None if it has no rows."""
    condition, values = build_where_clause(row_filter, await scopes.fetch_visible_ids(tx, row_filter.scope))
    rows = await tx.fetch(
        f"""SELECT m.tags, count(*), min(m.happened), max(m.happened), m.private FROM memories m WHERE {condition}
            GROUP BY m.tags, m.private""",
        **values,
    )
    first = await tx.fetch_one(
        f"SELECT m.content FROM memories m WHERE {condition} ORDER BY m.happened, m.id LIMIT 1", **values
    )
    if not rows or first is None:
        return None
    outcomes: Counter[str] = Counter()
    for tags, count, _, _, private in rows:
        privacy.note_read(private)
        outcomes.update(dict.fromkeys(json.loads(tags), int(count)))
    return SessionExtent(
        row_filter.session or "",
        min(row[2] for row in rows),
        max(row[3] for row in rows),
        sum(int(row[1]) for row in rows),
        dict(outcomes.most_common()),
        first[0],
    )


async def list_session_rows(
    tx: Transaction, row_filter: Filter, limit: int, longest: int
) -> list[tuple[float, Memory]]:
    """Return the rows of a session in order, each cut; of more than `limit`, the first and the last half of it."""
    columns = MEMORY_COLUMNS.replace("m.content", "substr(m.content, 1, :longest)")
    condition, values = build_where_clause(row_filter, await scopes.fetch_visible_ids(tx, row_filter.scope))
    rows_by_id: dict[int, Any] = {}
    for order in ("m.happened, m.id", "m.happened DESC, m.id DESC"):
        rows = await tx.fetch(
            f"SELECT {columns}, m.happened {FROM_MEMORIES} WHERE {condition} ORDER BY {order} LIMIT :limit",
            limit=limit // 2,
            longest=longest,
            **values,
        )
        rows_by_id |= {row[0]: row for row in rows}
    timed = [(row[MEMORY_COLUMN_COUNT], memory_from_row(row)) for row in rows_by_id.values()]
    return sorted(timed, key=lambda pair: (pair[0], pair[1].id))


async def list_episodes(
    tx: Transaction, scope: Scope, until: float, limit: int, offset: int, longest: int
) -> list[tuple[float, Memory]]:
    """Return the events until a time that summarize a session or a part of one, the newest first, each cut."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("event"))
    if not scope_ids:
        return []
    # The condition repeats that of the partial index, so that other events are not read.
    rows = await tx.fetch(
        f"""SELECT m.happened, m.id FROM memories m WHERE m.scope = :scope AND m.deleted IS NULL
            AND m.memory_type IN {SUMMARY_EVENT_TYPES!r} AND m.happened <= :until
            ORDER BY m.happened DESC, m.id DESC LIMIT :limit OFFSET :offset""",
        scope=scope_ids[0],
        until=until,
        limit=limit,
        offset=offset,
    )
    memories = await memory_rows.fetch_memories(tx, scope_ids, [memory_id for _, memory_id in rows], longest=longest)
    return [(happened, memories[memory_id]) for happened, memory_id in rows]


async def list_tagged_memories(
    tx: Transaction, scope: Scope, tags: Iterable[str], limit: int, longest: int
) -> list[Memory]:
    """Return the newest memories that have one of the tags, up to `limit` of people and as many of others, each cut.

    They are counted apart: what others tag, however much, takes no place of what a person said.
    """
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    memories: dict[int, Memory] = {}
    for comparison in ("=", "<>"):
        memory_ids: set[int] = set()
        for scope_id in scope_ids:
            for tag in tags:
                rows = await tx.fetch(
                    f"""SELECT t.memory FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
                        WHERE t.scope = :scope AND t.tag = :tag AND m.author {comparison} 'person'
                        AND m.deleted IS NULL ORDER BY t.memory DESC LIMIT :limit""",
                    scope=scope_id,
                    tag=tag_key(tag),
                    limit=limit,
                )
                memory_ids |= {row[0] for row in rows}
        newest = sorted(memory_ids, reverse=True)[:limit]
        memories |= await memory_rows.fetch_memories(tx, scope_ids, newest, longest=longest)
    return [memories[memory_id] for memory_id in sorted(memories, reverse=True)]


async def insert_briefing_items(
    scope: Scope, turn: BriefingTurn, items: Sequence[Told], at: float, tx: Transaction
) -> bool:
    """Log the items of a briefing; return False if a concurrent briefing logged the same first.

    With `turn.afresh` the session has lost its context, so earlier items may appear again.
    """
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
    item_ids = {item.id for item in items}
    if any(event == turn.event or int(memory) in item_ids for event, memory in rows):
        return False
    if turn.afresh:
        await tx.execute(
            "UPDATE injections SET over = 1 WHERE scope = :scope AND session = :session AND over = 0", **where
        )
    if int(at * 1000) % 50 == 0:  # one briefing in fifty pays for the cleanup
        await tx.execute(
            "DELETE FROM injections WHERE scope = :scope AND at < :old",
            scope=scope.project,
            old=at - BRIEFING_LOG_TTL_S,
        )
    for item in items:
        await tx.execute(
            """INSERT INTO injections (scope, session, at, event, memory, reason, score, tokens, key, private)
               VALUES (:scope, :session, :at, :event, :memory, :reason, :score, :tokens, :key, :private)""",
            private=privacy.add_current_marks(""),
            key=turn.key,
            at=at,
            event=turn.event,
            memory=item.id,
            reason=item.reason,
            score=item.score,
            tokens=item.tokens,
            **where,
        )
    return True


async def fetch_last_briefing_id(tx: Transaction, scope: Scope, session: str) -> int:
    """Return the id of the last log entry of a session; 0 if it has none."""
    row = await tx.fetch_one(
        "SELECT max(id) FROM injections WHERE scope = :scope AND session = :session",
        scope=scope.project,
        session=session,
    )
    return int((row and row[0]) or 0)


async def fetch_briefed_memories(tx: Transaction, scope: Scope, session: str, key: str | None) -> dict[int, float]:
    """Return the ids that a session was told and still has in context, with the time of the last telling.

    Entries of the same idempotency key do not count: the caller retries because it never got them.
    """
    others = "" if key is None else "AND (key IS NULL OR key <> :key)"
    rows = await tx.fetch(
        f"""SELECT memory, max(at), max(private) FROM injections
            WHERE scope = :scope AND session = :session AND over = 0 {others} GROUP BY memory, private""",
        scope=scope.project,
        session=session,
        **({} if key is None else {"key": key}),
    )
    told: dict[int, float] = {}
    for memory_id, at, private in rows:
        privacy.note_read(private)
        told[int(memory_id)] = max(at, told.get(int(memory_id), at))
    return told


async def list_briefing_log(
    tx: Transaction, scope: Scope, session: str | None, limit: int, offset: int, longest: int
) -> list[tuple[tuple[Any, ...], Memory | None]]:
    """Return log entries, the newest first, each with its memory unless that was deleted."""
    condition, bound = _build_session_condition(session)
    rows = await tx.fetch(
        f"""SELECT at, session, event, memory, reason, score, tokens, private FROM injections
            WHERE scope = :scope {condition}
            ORDER BY id DESC LIMIT :limit OFFSET :offset""",
        scope=scope.project,
        limit=limit,
        offset=offset,
        **bound,
    )
    scope_ids = await scopes.fetch_all_visible_ids(tx, scope)
    memories = await memory_rows.fetch_memories(tx, scope_ids, {row[3] for row in rows}, longest=longest)
    for row in rows:
        privacy.note_read(row[-1])
    return [(row[:-1], memories.get(row[3])) for row in rows]


async def count_briefing_log(tx: Transaction, scope: Scope, session: str | None) -> int:
    condition, bound = _build_session_condition(session)
    row = await tx.fetch_one(
        f"SELECT count(*) FROM injections WHERE scope = :scope {condition}", scope=scope.project, **bound
    )
    return int(row[0]) if row else 0


def _build_session_condition(session: str | None) -> tuple[str, dict[str, str]]:
    return ("", {}) if session is None else ("AND session = :session", {"session": session})


async def record_changes(
    scope: Scope,
    links: Sequence[tuple[int, int, float]],
    restored: Sequence[tuple[int, float]],
    said_again: Collection[int],
    tx: Transaction,
) -> None:
    """Link memories to those that replace them, each from a time on: all stay, and only the last is briefed.

    A memory that was replaced and is said again (`restored`) replaces in turn those that replaced it; so does the new
    memory that says in other words what one of `said_again` says. What a person stored or confirmed meanwhile is
    asked about instead.
    """
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    for memory_id, at in restored:
        for other in await _list_newer(tx, scope_ids, memory_id):
            scope_id = await _fetch_scope_id(tx, scope_ids, memory_id)
            await link_rows.delete_link(tx, scope_id, memory_id, other.id, memory_rows.CONTRADICTED_BY)
            relation = memory_rows.CONTRADICTED_BY if AUTO_TAG in other.tags else memory_rows.UNDECIDED
            await link_rows.insert_link(tx, scope_id, other.id, memory_id, relation, at)
    links = list(links)
    for old, new, at in [link for link in links if link[0] in said_again]:
        links += [(other.id, new, at) for other in await _list_newer(tx, scope_ids, old) if AUTO_TAG in other.tags]
    memories = await memory_rows.fetch_memories(tx, scope_ids, {memory_id for link in links for memory_id in link[:2]})
    for old, new, at in links:
        if old in memories and new in memories and old != new:
            scope_id = await _fetch_scope_id(tx, scope_ids, new)
            await link_rows.insert_link(tx, scope_id, old, new, memory_rows.CONTRADICTED_BY, at)


async def list_replaced(tx: Transaction, scope: Scope, ids: list[int]) -> dict[int, float]:
    """Return those of the memories that were replaced, each with the time of the last act that did so."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    replaced = {}
    for memory_id in await topic_rows.fetch_contradictions(tx, scope_ids, ids):
        newer = await _list_newer(tx, scope_ids, memory_id)
        links = await topic_rows.list_contradictions(tx, scope_ids, [memory_id, *(memory.id for memory in newer)])
        times = await fetch_last_times(tx, scope, newer)
        replaced[memory_id] = max([*times.values(), *(at for _, _, at in links)])
    return replaced


async def _list_newer(tx: Transaction, scope_ids: list[int], memory_id: int) -> list[Memory]:
    """Return the memories that replaced one, those that replaced these, and so on."""
    newer: dict[int, None] = {memory_id: None}
    ids = [memory_id]
    while ids:
        contradictions = await topic_rows.fetch_contradictions(tx, scope_ids, ids)
        ids = [other for others in contradictions.values() for other in others if other not in newer]
        newer |= dict.fromkeys(ids)
    memories = await memory_rows.fetch_memories(tx, scope_ids, list(newer)[1:])
    return [memories[other] for other in list(newer)[1:] if other in memories]


async def _fetch_scope_id(tx: Transaction, scope_ids: list[int], memory_id: int) -> int:
    rows = await tx.fetch(
        f"SELECT scope FROM memories WHERE scope IN ({memory_rows.join_ids(scope_ids)}) AND id = :id", id=memory_id
    )
    return int(rows[0][0])
