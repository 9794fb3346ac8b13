"""SQL of what sessions taught: the memories, the rules of what may not be stored, and which of them were announced."""

from athena.core.values import Kind, Scope
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, join_ids, memory_from_row
from athena.memory.values import Memory
from athena.storage import privacy, scopes
from athena.storage.database import Transaction
from athena.storage.filters import tag_key

AUTO_TAG = "auto"  # marks memories that Athena stored without a request
RULE_KIND: Kind = "rule"  # type: ignore[assignment]  # callers can name the kinds of the type, and these rows not
EXAMPLE_KEY = "memory"  # of a rule's metadata: the id of the memory that it was made of
NOTICE_COUNTER_PREFIX = "announced "  # before a scope's id: a row of `counters` with the last memory that was announced


async def list_learned_memories(tx: Transaction, scope: Scope, limit: int, offset: int) -> list[Memory]:
    """Return the memories of a project that learning stored, the newest first."""
    scope_ids = join_ids(await scopes.fetch_own_ids(tx, scope.with_kind("memory")))
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} JOIN tags t ON t.scope = m.scope AND t.memory = m.id
            WHERE t.scope IN ({scope_ids}) AND t.tag = :tag AND m.deleted IS NULL
            ORDER BY m.created DESC, m.id DESC LIMIT :limit OFFSET :offset""",
        tag=tag_key(AUTO_TAG),
        limit=limit,
        offset=offset,
    )
    return [memory_from_row(row) for row in rows]


async def count_learned_memories(tx: Transaction, scope_id: int, after: int, since: float) -> tuple[int, int]:
    """Return how many memories learning stored with ids above `after` and times from `since` on, and the last id."""
    rows = await tx.fetch(
        """SELECT m.id, m.private FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
           WHERE t.scope = :scope AND t.tag = :tag AND t.memory > :after
           AND m.deleted IS NULL AND m.created >= :since""",
        scope=scope_id,
        tag=tag_key(AUTO_TAG),
        after=after,
        since=since,
    )
    for _, private in rows:
        privacy.note_read(private)
    return len(rows), max((int(row[0]) for row in rows), default=after)


async def list_rule_memories(tx: Transaction, scope: Scope, *, include_deleted: bool = False) -> list[Memory]:
    """Return the rows of what learning may not store, of the project and of the user, the oldest first."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope.with_kind(RULE_KIND))
    if not scope_ids:
        return []
    live_condition = "" if include_deleted else "AND m.deleted IS NULL"
    rows = await tx.fetch(
        f"""SELECT {MEMORY_COLUMNS} {FROM_MEMORIES} WHERE m.scope IN ({join_ids(scope_ids)}) {live_condition}
            ORDER BY m.id"""
    )
    return [memory_from_row(row) for row in rows]


async def fetch_last_episode_time(tx: Transaction, scope: Scope, session: str) -> float | None:
    """Return when the last episode of a session was, or None if it has none."""
    scope_ids = await scopes.fetch_own_ids(tx, scope.with_kind("event"))
    row = await tx.fetch_one(
        f"""SELECT max(happened) FROM memories WHERE scope IN ({join_ids(scope_ids)}) AND session = :session
            AND memory_type = 'episode'""",  # also of a deleted one: what somebody forgot is not learned again
        session=session,
    )
    return None if row is None or row[0] is None else float(row[0])


async def fetch_announced_id(tx: Transaction, scope_id: int) -> int:
    """Return the last memory that a session was told the number of."""
    row = await tx.fetch_one("SELECT value FROM counters WHERE name = :name", name=f"{NOTICE_COUNTER_PREFIX}{scope_id}")
    return 0 if row is None else int(row[0])


async def save_announced_id(tx: Transaction, scope_id: int, memory_id: int) -> None:
    await tx.execute(
        """INSERT INTO counters (name, value) VALUES (:name, :value)
           ON CONFLICT (name) DO UPDATE SET value = excluded.value""",
        name=f"{NOTICE_COUNTER_PREFIX}{scope_id}",
        value=memory_id,
    )
