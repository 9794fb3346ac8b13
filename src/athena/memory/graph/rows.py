"""Entities and their observations: rows of the kind entity. An observation's session is the number of its entity."""

from typing import Any, NamedTuple

from athena.storage.database import batched, listed

COLUMNS = "id, scope, content, memory_type, digest"


class Node(NamedTuple):
    """An entity's row."""

    id: int
    scope: int
    name: str
    type: str
    key: str


async def named(tx: Any, numbers: list[int], keys: list[str]) -> list[Node]:
    """Return the live entities of these names, in the order they were made."""
    found: list[Node] = []
    for piece in batched(keys):
        names, bound = listed("key", piece)
        rows = await tx.fetch(
            f"""SELECT {COLUMNS} FROM memories WHERE scope IN ({_inside(numbers)}) AND digest IN ({names})
                AND deleted IS NULL""",
            **bound,
        )
        found += [Node(*row) for row in rows]
    return sorted(found)


async def numbered(tx: Any, numbers: list[int], ids: list[int]) -> list[Node]:
    """Return the live entities of these numbers, in the order they were made."""
    found: list[Node] = []
    for piece in batched(ids):
        names, bound = listed("id", piece)
        rows = await tx.fetch(
            f"""SELECT {COLUMNS} FROM memories WHERE scope IN ({_inside(numbers)}) AND id IN ({names})
                AND session IS NULL AND deleted IS NULL""",
            **bound,
        )
        found += [Node(*row) for row in rows]
    return sorted(found)


async def hold(tx: Any, node: Node) -> bool:
    """Let nobody delete an entity until this transaction ends; only for engines where several write at once."""
    row = await tx.fetch_one(
        "SELECT 1 FROM memories WHERE scope = :scope AND id = :id AND deleted IS NULL FOR SHARE",
        scope=node.scope,
        id=node.id,
    )
    return row is not None


async def observations(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, list[str]]:
    """Return what was observed of entities, in the order it was."""
    found: dict[int, list[str]] = {number: [] for number in ids}
    for piece in batched(ids):
        names, bound = listed("session", map(str, piece))
        rows = await tx.fetch(
            f"""SELECT session, content FROM memories WHERE scope IN ({_inside(numbers)}) AND session IN ({names})
                AND deleted IS NULL ORDER BY id""",
            **bound,
        )
        for session, content in rows:
            found[int(session)].append(content)
    return found


async def observed(tx: Any, scope: int, entity: int) -> list[int]:
    """Return the numbers of all that was ever observed of an entity."""
    rows = await tx.fetch(
        "SELECT id FROM memories WHERE scope = :scope AND session = :session ORDER BY id",
        scope=scope,
        session=str(entity),
    )
    return [row[0] for row in rows]


async def whole(tx: Any, numbers: list[int]) -> tuple[list[Node], dict[int, list[str]]]:
    """Return all entities and all observations, in the order they were made."""
    rows = await tx.fetch(
        f"""SELECT session, {COLUMNS} FROM memories WHERE scope IN ({_inside(numbers)}) AND deleted IS NULL
            ORDER BY id"""
    )
    nodes = [Node(*row[1:]) for row in rows if row[0] is None]
    seen: dict[int, list[str]] = {node.id: [] for node in nodes}
    for session, _, _, content, *_ in rows:
        if session is not None and int(session) in seen:
            seen[int(session)].append(content)
    return nodes, seen


async def holding(tx: Any, numbers: list[int], text: str) -> set[int]:
    """Return the entities whose name, type or observations hold a text, whatever its case."""
    wanted = text.lower()
    condition, values = "", {}
    if wanted.isascii():  # the engines agree on the case of these letters only
        escaped = wanted.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        condition = "AND (lower(content) LIKE :text ESCAPE '!' OR lower(memory_type) LIKE :text ESCAPE '!')"
        values["text"] = f"%{escaped}%"
    rows = await tx.fetch(
        f"""SELECT id, session, content, memory_type FROM memories
            WHERE scope IN ({_inside(numbers)}) AND deleted IS NULL {condition}""",
        **values,
    )
    return {
        number if session is None else int(session)
        for number, session, content, kind in rows
        if wanted in content.lower() or (session is None and wanted in kind.lower())
    }


async def owners(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, int]:
    """Return the entity that each row belongs to: itself, or that of which it is an observation."""
    found: dict[int, int] = {}
    for piece in batched(ids):
        names, bound = listed("id", piece)
        rows = await tx.fetch(
            f"SELECT id, session FROM memories WHERE scope IN ({_inside(numbers)}) AND id IN ({names})", **bound
        )
        found |= {number: number if session is None else int(session) for number, session in rows}
    return found


def _inside(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"
