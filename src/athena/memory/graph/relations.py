"""Create and delete relations between entities, and give an entity the names of another."""

from collections.abc import Sequence

from athena.core import redaction
from athena.core.values import Call
from athena.errors import InvalidInput
from athena.memory import history_rows
from athena.memory.graph import rows as graph_rows
from athena.memory.graph.entities import change_graph, get_triple, normalize_text, to_entity_key, to_relation
from athena.memory.graph.mentions import list_alias_keys
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import Named, NewRelation, Relation, clean_graph_type, clean_label, entity_key
from athena.memory.inputs import check_time_range, parse_time
from athena.memory.store import Store
from athena.storage import scopes
from athena.storage.database import Transaction

LINKED, UNLINKED = "linked", "unlinked"  # actions of history, whose `before` holds the relation's id
ALIASED = "aliased"  # an action of history, whose `before` holds the keys that an entity got


async def create_relations(store: Store, relations: Sequence[NewRelation], call: Call) -> list[Relation]:
    """Relate entities by name and return the new relations; a known one may get another period."""
    now = store.clock()
    edges = [_create_edge(relation, position, now) for position, relation in enumerate(relations)]

    async def write_relations(tx: Transaction, call_id: int) -> list[int]:
        scope = await scopes.ensure_scope(tx, call.scope)
        created: dict[int, None] = {}
        for edge in edges:
            known = await graph_rows.find_relations(tx, [scope], *get_triple(edge))
            periods = {(None, None), *((other.began, other.ended) for other in known)}
            if known and (edge.began, edge.ended) in periods:
                continue
            restated = _find_restated(edge, known)  # facts of another period stay
            for old in restated:
                await unlink_edge(tx, old, call_id, now)
                created.pop(old.id, None)
            created[await link_edge(tx, scope, _fill_period(edge, restated), call_id, now)] = None
        return list(created)

    async def fetch_relations(tx: Transaction, created: list[int]) -> list[Relation]:
        own = await scopes.fetch_own_ids(tx, call.scope)
        matches = [await graph_rows.fetch_relation(tx, scope, relation_id) for relation_id in created for scope in own]
        return [to_relation(match[0]) for match in matches if match is not None]

    result: list[Relation] = await change_graph(store, call, write_relations, fetch_relations)
    return result


def _create_edge(relation: NewRelation, position: int, now: float) -> RelationRow:
    where = f"relations[{position}]."
    source = clean_entity_name(relation["from"], f"{where}from")
    target = clean_entity_name(relation["to"], f"{where}to")
    relation_type = redaction.redact(clean_graph_type(relation["relationType"], f"{where}relationType")).text
    began = check_time_range(parse_time(relation.get("since"), f"{where}since", now, end=False), f"{where}since")
    ended = check_time_range(parse_time(relation.get("until"), f"{where}until", now, end=True), f"{where}until")
    if began is not None and ended is not None and ended <= began:
        raise InvalidInput(f"{where}until must be after since")
    return RelationRow(0, 0, entity_key(source), entity_key(target), source, target, relation_type, began, ended)


def clean_entity_name(text: str, field: str) -> str:
    return redaction.redact(clean_label(text, field)).text


def _find_restated(edge: RelationRow, known: Sequence[RelationRow]) -> list[RelationRow]:
    """Return the known relations that `edge` replaces: those that overlap, or without a start only the last of them."""
    overlapping = [other for other in known if other.overlaps(edge)]
    overlapping.sort(key=lambda other: (other.began is not None, other.began or 0))
    return overlapping[-1:] if edge.began is None else overlapping


def _fill_period(edge: RelationRow, replaced: Sequence[RelationRow]) -> RelationRow:
    """Return a relation whose missing start or end is taken from the relations that it replaces."""
    begins = [old.began for old in replaced if old.began is not None]
    ends = [old.ended for old in replaced if old.ended is not None]
    if edge.began is None and len(begins) == len(replaced):
        edge = edge._replace(began=min(begins, default=None))
    if edge.ended is None and len(ends) == len(replaced):
        edge = edge._replace(ended=max(ends, default=None))
    return edge


async def delete_relations(store: Store, relations: Sequence[Named], call: Call) -> None:
    """Delete relations of the project."""
    now = store.clock()

    async def remove_relations(tx: Transaction, call_id: int) -> None:
        own = await scopes.fetch_own_ids(tx, call.scope)
        for relation in relations:
            source, target = to_entity_key(relation["from"]), to_entity_key(relation["to"])
            relation_type = normalize_text(relation["relationType"])
            for edge in await graph_rows.find_relations(tx, own, source, target, relation_type):
                await unlink_edge(tx, edge, call_id, now)

    await change_graph(store, call, remove_relations, None)


async def link_edge(tx: Transaction, scope: int, edge: RelationRow, call_id: int, now: float) -> int:
    """Insert a relation, record it in history, and return its id."""
    relation_id = await graph_rows.insert_relation(tx, scope, edge, now)
    await history_rows.insert_change(tx, scope, 0, call_id, now, LINKED, {"relation": relation_id})
    return relation_id


async def unlink_edge(tx: Transaction, edge: RelationRow, call_id: int, now: float) -> None:
    """Mark a relation as removed and record that in history."""
    await graph_rows.set_relation_removed(tx, edge.scope, edge, now)
    await history_rows.insert_change(tx, edge.scope, 0, call_id, now, UNLINKED, {"relation": edge.id})


async def add_aliases(tx: Transaction, source: EntityRow, target: EntityRow, call_id: int, now: float) -> None:
    """Let the target of a merge also be found by the names of its source."""
    source_keys = await graph_rows.list_mention_keys(tx, source.scope, source.id)
    target_keys = await graph_rows.list_mention_keys(tx, target.scope, target.id)
    new_keys = {*source_keys, *list_alias_keys(source.name, source.key)} - {*target_keys}
    await graph_rows.insert_mentions(tx, target.scope, target.id, new_keys)
    await history_rows.insert_change(tx, target.scope, target.id, call_id, now, ALIASED, {"keys": sorted(new_keys)})


def format_edge(edge: RelationRow) -> str:
    return f"{edge.source_name} {edge.relation} {edge.target_name}"
