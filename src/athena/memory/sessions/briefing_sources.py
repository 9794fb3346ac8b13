"""What a project would be found by: its last episodes, and what is tagged as important."""

from collections.abc import Iterable
from typing import Any

from athena.core.scope import Scope
from athena.memory import rows as memory_rows
from athena.memory.rows import FROM_MEMORIES, MEMORY_COLUMNS, memory_from_row
from athena.memory.values import Memory, tag_key
from athena.storage import scopes

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
