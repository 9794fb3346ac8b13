"""Undo, restore and purge of entities, observations and relations."""

from athena.errors import Conflict, InvalidInput
from athena.memory import history_rows
from athena.memory.edit_hooks import EditHooks, Purge, UndoResult
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import get_triple
from athena.memory.graph.mentions import list_alias_keys, to_exact_key
from athena.memory.graph.relations import ALIASED, LINKED, UNLINKED, format_edge
from athena.memory.graph.values import ENTITY_SERIAL, OBSERVATION_TYPE
from athena.memory.history_rows import ChangeRow
from athena.memory.rows import MemoryRow
from athena.memory.values import SERIAL_KEY, format_preview
from athena.storage import scopes
from athena.storage.database import Transaction


class GraphEditHooks(EditHooks):
    async def undo_change(self, tx: Transaction, change: ChangeRow, now: float) -> UndoResult | None:
        if change.action in (LINKED, UNLINKED):
            return await _undo_relation(tx, change, now)
        if change.action == ALIASED:
            await graph_rows.delete_mentions(tx, change.scope, change.memory, (change.before or {})["keys"])
            return UndoResult(True, change.memory)
        return None

    def check_forget(self, row: MemoryRow) -> None:
        _refuse_entity(row, "delete_entities deletes it with what was observed of it")

    async def check_restore(self, tx: Transaction, row: MemoryRow) -> None:
        _refuse_entity(row, "undo brings back what delete_entities deleted")
        if await self.is_orphaned(tx, row):
            raise Conflict("the entity of this observation was deleted", hint="make the entity first")

    async def is_orphaned(self, tx: Transaction, row: MemoryRow) -> bool:
        if row.memory.memory_type != OBSERVATION_TYPE or await scopes.fetch_scope_kind(tx, row.scope) != "entity":
            return False
        entity_id = int(row.memory.metadata["session_id"])
        return not await graph_rows.fetch_entities_by_id(tx, [row.scope], [entity_id])

    async def list_dependent_ids(self, tx: Transaction, row: MemoryRow) -> list[int]:
        return await graph_rows.list_observation_ids(tx, row.scope, row.memory.id) if _is_entity(row) else []

    async def purge_row(self, tx: Transaction, row: MemoryRow) -> None:
        await graph_rows.purge_relations(tx, [row.scope], row.digest)
        if _is_entity(row):
            await _purge_aliases(tx, row)

    async def purge_project(self, tx: Transaction, purge: Purge) -> None:
        if purge.all_forgotten:
            await graph_rows.purge_relations(tx, await scopes.fetch_project_ids(tx, purge.scope))


def _is_entity(row: MemoryRow) -> bool:
    return row.memory.metadata.get(SERIAL_KEY) == ENTITY_SERIAL


def _refuse_entity(row: MemoryRow, hint: str) -> None:
    """Refuse to separate an entity from its observations."""
    if _is_entity(row):
        raise InvalidInput(f"{row.memory.id} is the entity {format_preview(row.memory.content, 60)!r}", hint=hint)


async def _undo_relation(tx: Transaction, change: ChangeRow, now: float) -> UndoResult:
    """Undo the creation or removal of a relation, unless the same relation was created again since."""
    relation_id = (change.before or {})["relation"]
    row_id = -int(relation_id)
    stored = await graph_rows.fetch_relation(tx, change.scope, relation_id)
    if stored is None:
        return UndoResult(True, row_id, "")
    edge, removed = stored
    if change.action == LINKED:
        await graph_rows.set_relation_removed(tx, change.scope, edge, now if removed is None else removed)
    else:
        live = await graph_rows.find_relations(tx, [change.scope], *get_triple(edge))
        if any(other.overlaps(edge) for other in live):
            return UndoResult(False, row_id, format_edge(edge))
        await graph_rows.set_relation_removed(tx, change.scope, edge, None)
    return UndoResult(True, row_id, format_edge(edge))


async def _purge_aliases(tx: Transaction, row: MemoryRow) -> None:
    """Take the name of an entity away from every other entity that got it in a merge."""
    exact_key = to_exact_key(row.digest)
    keys = list_alias_keys(row.memory.content, row.digest)
    for (scope_id,) in await graph_rows.begin_entity_scope_ids(tx, row.scope):
        for other_id in await graph_rows.list_mentioning_ids(tx, [scope_id], [exact_key]):
            await graph_rows.delete_mentions(tx, scope_id, other_id, keys)
            await history_rows.delete_changes_with_word(tx, scope_id, other_id, ALIASED, exact_key)
