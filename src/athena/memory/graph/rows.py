"""Entities and their observations: rows of the kind entity. An observation's session is the number of its entity."""

from typing import Any, NamedTuple

from athena.storage.database import bind_list, split_batches

ENTITY_COLUMNS = "id, scope, content, memory_type, digest"


class EntityRow(NamedTuple):
    """An entity's row."""

    id: int
    scope: int
    name: str
    type: str
    key: str


async def fetch_entities_by_key(tx: Any, numbers: list[int], keys: list[str]) -> list[EntityRow]:
    """Return the live entities of these names, in the order they were made."""
    found: list[EntityRow] = []
    for piece in split_batches(keys):
        names, bound = bind_list("key", piece)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND digest IN ({names})
                AND deleted IS NULL""",
            **bound,
        )
        found += [EntityRow(*row) for row in rows]
    return sorted(found)


async def fetch_entities_by_id(tx: Any, numbers: list[int], ids: list[int]) -> list[EntityRow]:
    """Return the live entities of these numbers, in the order they were made."""
    found: list[EntityRow] = []
    for piece in split_batches(ids):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"""SELECT {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND id IN ({names})
                AND session IS NULL AND deleted IS NULL""",
            **bound,
        )
        found += [EntityRow(*row) for row in rows]
    return sorted(found)


async def lock_entity(tx: Any, node: EntityRow) -> bool:
    """Let nobody delete an entity until this transaction ends; only for engines where several write at once."""
    row = await tx.fetch_one(
        "SELECT 1 FROM memories WHERE scope = :scope AND id = :id AND deleted IS NULL FOR SHARE",
        scope=node.scope,
        id=node.id,
    )
    return row is not None


async def fetch_observations(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, list[str]]:
    """Return what was observed of entities, in the order it was."""
    found: dict[int, list[str]] = {number: [] for number in ids}
    for piece in split_batches(ids):
        names, bound = bind_list("session", map(str, piece))
        rows = await tx.fetch(
            f"""SELECT session, content FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND session IN ({names})
                AND deleted IS NULL ORDER BY id""",
            **bound,
        )
        for session, content in rows:
            found[int(session)].append(content)
    return found


async def list_observation_ids(tx: Any, scope: int, entity: int) -> list[int]:
    """Return the numbers of all that was ever observed of an entity."""
    rows = await tx.fetch(
        "SELECT id FROM memories WHERE scope = :scope AND session = :session ORDER BY id",
        scope=scope,
        session=str(entity),
    )
    return [row[0] for row in rows]


async def fetch_all_entities(tx: Any, numbers: list[int]) -> tuple[list[EntityRow], dict[int, list[str]]]:
    """Return all entities and all observations, in the order they were made."""
    rows = await tx.fetch(
        f"""SELECT session, {ENTITY_COLUMNS} FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND deleted IS NULL
            ORDER BY id"""
    )
    nodes = [EntityRow(*row[1:]) for row in rows if row[0] is None]
    seen: dict[int, list[str]] = {node.id: [] for node in nodes}
    for session, _, _, content, *_ in rows:
        if session is not None and int(session) in seen:
            seen[int(session)].append(content)
    return nodes, seen


async def find_entities_containing(tx: Any, numbers: list[int], text: str) -> set[int]:
    """Return the entities whose name, type or observations hold a text, whatever its case."""
    wanted = text.lower()
    condition, values = "", {}
    if wanted.isascii():  # the engines agree on the case of these letters only
        escaped = wanted.replace("!", "!!").replace("%", "!%").replace("_", "!_")
        condition = "AND (lower(content) LIKE :text ESCAPE '!' OR lower(memory_type) LIKE :text ESCAPE '!')"
        values["text"] = f"%{escaped}%"
    rows = await tx.fetch(
        f"""SELECT id, session, content, memory_type FROM memories
            WHERE scope IN ({_format_scope_ids(numbers)}) AND deleted IS NULL {condition}""",
        **values,
    )
    return {
        number if session is None else int(session)
        for number, session, content, kind in rows
        if wanted in content.lower() or (session is None and wanted in kind.lower())
    }


async def fetch_owner_ids(tx: Any, numbers: list[int], ids: list[int]) -> dict[int, int]:
    """Return the entity that each row belongs to: itself, or that of which it is an observation."""
    found: dict[int, int] = {}
    for piece in split_batches(ids):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(
            f"SELECT id, session FROM memories WHERE scope IN ({_format_scope_ids(numbers)}) AND id IN ({names})",
            **bound,
        )
        found |= {number: number if session is None else int(session) for number, session in rows}
    return found


def _format_scope_ids(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"
