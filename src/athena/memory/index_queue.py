"""Rows whose passages are not written yet."""

from typing import Any

from athena.storage.database import bind_list, split_batches


async def enqueue_memory(tx: Any, scope: int, memory: int) -> None:
    await tx.execute("INSERT INTO waiting (scope, memory) VALUES (:scope, :memory)", scope=scope, memory=memory)


async def list_queued_memories(tx: Any, most: int) -> list[tuple[int, int]]:
    """Return some that wait, with their scopes, in the order they came."""
    rows = await tx.fetch("SELECT scope, memory FROM waiting ORDER BY scope, memory LIMIT :most", most=most)
    return [(scope, memory) for scope, memory in rows]


async def dequeue_memories(tx: Any, scope: int, numbers: list[int]) -> None:
    """Let these wait no more."""
    for piece in split_batches(numbers):
        names, bound = bind_list("id", piece)
        await tx.execute(f"DELETE FROM waiting WHERE scope = :scope AND memory IN ({names})", scope=scope, **bound)
