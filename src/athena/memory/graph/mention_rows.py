"""What memories mention, by key; and the names of entities, which their own rows mention."""

from collections.abc import Iterable
from typing import Any

from athena.core.home.paths import USER_PROJECT
from athena.storage.database import bind_list, split_batches

PADDED_KEY_COUNTS = (16, 32, 64, 128, 256, 500)


async def insert_mentions(tx: Any, scope: int, memory: int, keys: Iterable[str], *, anew: bool = False) -> None:
    """Write down what a memory mentions, instead of what it did before where told."""
    if anew:
        await tx.execute("DELETE FROM mentions WHERE scope = :scope AND memory = :memory", scope=scope, memory=memory)
    for key in sorted(keys):
        await tx.execute(
            "INSERT INTO mentions (scope, key, memory) VALUES (:scope, :key, :memory)",
            scope=scope,
            key=key,
            memory=memory,
        )


async def delete_mentions(tx: Any, scope: int, memory: int, keys: Iterable[str]) -> None:
    """Let go of some of what a memory mentions."""
    for key in keys:
        await tx.execute(
            "DELETE FROM mentions WHERE scope = :scope AND key = :key AND memory = :memory",
            scope=scope,
            key=key,
            memory=memory,
        )


async def list_mention_keys(tx: Any, scope: int, memory: int) -> list[str]:
    """Return what a memory mentions; of an entity's row, the names it has."""
    rows = await tx.fetch(
        "SELECT key FROM mentions WHERE scope = :scope AND memory = :memory ORDER BY key", scope=scope, memory=memory
    )
    return [row[0] for row in rows]


async def list_entity_scope_ids(tx: Any, scope: int) -> list[int]:
    """Return the scopes with the entities that a memory of this scope may mention."""
    rows = await tx.fetch(
        """SELECT e.id FROM scopes m JOIN scopes e ON e.kind = 'entity' AND e.name IN (m.name, :everywhere)
           WHERE m.id = :scope""",
        scope=scope,
        everywhere=USER_PROJECT,
    )
    return [row[0] for row in rows]


async def find_entity_names(tx: Any, numbers: list[int], keys: list[str]) -> set[str]:
    """Return which of these are names of live entities."""
    found: set[str] = set()
    for piece in split_batches(keys):
        # Padded, so that the engine meets few lengths of this statement and has them all prepared.
        size = next(size for size in PADDED_KEY_COUNTS if size >= len(piece))
        names, bound = bind_list("key", piece + [""] * (size - len(piece)))
        rows = await tx.fetch(
            f"""SELECT n.key FROM mentions n JOIN memories m ON m.scope = n.scope AND m.id = n.memory
                WHERE n.scope IN ({", ".join(map(str, numbers))}) AND n.key IN ({names}) AND m.deleted IS NULL""",
            **bound,
        )
        found |= {row[0] for row in rows}
    return found


async def list_mentioning_ids(tx: Any, numbers: list[int], keys: list[str]) -> list[int]:
    names, bound = bind_list("key", keys)
    rows = await tx.fetch(
        f"""SELECT DISTINCT memory FROM mentions
            WHERE scope IN ({", ".join(map(str, numbers)) or "NULL"}) AND key IN ({names})""",
        **bound,
    )
    return [row[0] for row in rows]
