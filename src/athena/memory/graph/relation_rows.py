"""Relations between entities, by name: what they relate need not be there yet."""

from typing import Any, NamedTuple

from athena.storage.database import bind_list, split_batches

RELATION_COLUMNS = "id, scope, source, target, source_name, target_name, relation, began, ended"


class RelationRow(NamedTuple):
    """A relation as it stands in the store; source and target are digests of the names."""

    id: int
    scope: int
    source: str
    target: str
    source_name: str
    target_name: str
    relation: str
    began: float | None
    ended: float | None

    def holds_at(self, at: float | None) -> bool:
        """Tell whether it held true at a moment; without one, it does not matter when."""
        if at is None:
            return True
        return (self.began is None or self.began <= at) and (self.ended is None or at < self.ended)

    def overlaps(self, other: "RelationRow") -> bool:
        """Tell whether there is a moment at which both held true."""
        begins = max((edge.began for edge in (self, other) if edge.began is not None), default=None)
        ends = min((edge.ended for edge in (self, other) if edge.ended is not None), default=None)
        return begins is None or ends is None or begins < ends


async def insert_relation(tx: Any, scope: int, edge: RelationRow, now: float) -> int:
    """Write a new relation and return its number."""
    row = await tx.fetch_one(
        """INSERT INTO relations (scope, source, target, source_name, target_name, relation, began, ended, created)
           VALUES (:scope, :source, :target, :source_name, :target_name, :relation, :began, :ended, :now)
           RETURNING id""",
        **{**edge._asdict(), "scope": scope},
        now=now,
    )
    return int(row[0])


async def find_relations(tx: Any, numbers: list[int], source: str, target: str, relation: str) -> list[RelationRow]:
    """Return the live relations of this kind from one name to another; in each scope, one for each time they held."""
    rows = await tx.fetch(
        f"""SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND source = :source
            AND target = :target AND relation = :relation AND removed IS NULL""",
        source=source,
        target=target,
        relation=relation,
    )
    return [RelationRow(*row) for row in rows]


async def list_relations_touching(
    tx: Any, numbers: list[int], keys: list[str], sides: tuple[str, ...] = ("source", "target")
) -> Any:
    """Return the live relations that begin or end at any of these names, in the order they were made."""
    found: dict[int, RelationRow] = {}
    for piece in split_batches(keys):
        names, bound = bind_list("key", piece)
        parts = [
            f"SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND {side} IN ({names}) "
            "AND removed IS NULL"
            for side in sides
        ]
        for row in await tx.fetch(" UNION ALL ".join(parts), **bound):
            found[row[0]] = RelationRow(*row)
    return [found[number] for number in sorted(found)]


async def list_relations(tx: Any, numbers: list[int]) -> list[RelationRow]:
    rows = await tx.fetch(
        f"SELECT {RELATION_COLUMNS} FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND removed IS NULL ORDER BY id"
    )
    return [RelationRow(*row) for row in rows]


async def fetch_relation(tx: Any, scope: int, number: int) -> tuple[RelationRow, float | None] | None:
    """Return a relation and when it was removed, whether or not it was."""
    row = await tx.fetch_one(
        f"SELECT {RELATION_COLUMNS}, removed FROM relations WHERE scope = :scope AND id = :id", scope=scope, id=number
    )
    return None if row is None else (RelationRow(*row[:-1]), row[-1])


async def set_relation_removed(tx: Any, scope: int, number: int, at: float | None) -> None:
    """Take a relation out of the graph, or put it back."""
    await tx.execute(
        "UPDATE relations SET removed = :at WHERE scope = :scope AND id = :id", scope=scope, id=number, at=at
    )


async def purge_relations(tx: Any, numbers: list[int], key: str | None = None) -> None:
    """Let go of removed relations for good: all, or those of one name."""
    only = "" if key is None else "AND (source = :key OR target = :key)"
    await tx.execute(
        f"DELETE FROM relations WHERE scope IN ({_format_relation_scope_ids(numbers)}) AND removed IS NOT NULL {only}",
        **({} if key is None else {"key": key}),
    )


def _format_relation_scope_ids(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "NULL"
