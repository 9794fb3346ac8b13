"""Relations between entities: making and removing them, and taking either back."""

from collections.abc import Sequence

from athena.core import redaction
from athena.core.values import Call
from athena.errors import InvalidInput
from athena.memory import history_rows
from athena.memory.graph import mentions as graph_mentions
from athena.memory.graph import rows
from athena.memory.graph.entities import change_graph, get_triple, normalize_text, to_entity_key, to_relation
from athena.memory.graph.rows import EntityRow, RelationRow
from athena.memory.graph.values import (
    Named,
    NewRelation,
    Relation,
    clean_graph_type,
    clean_label,
    entity_key,
)
from athena.memory.inputs import check_time_range, parse_time
from athena.memory.store import Store
from athena.storage import scopes
from athena.storage.database import Transaction

LINKED, UNLINKED = "linked", "unlinked"  # in history, with the relation's number as `before`
ALIASED = "aliased"  # in history, with the keys that an entity is also found by as `before`


async def create_relations(store: Store, given: Sequence[NewRelation], call: Call) -> list[Relation]:
    """Relate entities by name and return what is new; a known relation may be told anew when it held true."""
    now = store.clock()
    wanted = [_create_edge(one, position, now) for position, one in enumerate(given)]

    async def write_relations(tx: Transaction, number: int) -> list[int]:
        scope = await scopes.ensure_scope(tx, call.scope)
        made: dict[int, None] = {}
        for edge in wanted:
            known = await rows.find_relations(tx, [scope], *get_triple(edge))
            times = {(None, None), *((one.began, one.ended) for one in known)}
            if known and (edge.began, edge.ended) in times:
                continue
            told_anew = _find_restated(edge, known)  # what held at another time stays beside it
            for one in told_anew:
                await unlink_edge(tx, one, number, now)
                made.pop(one.id, None)
            made[await link_edge(tx, scope, _fill_period(edge, told_anew), number, now)] = None
        return list(made)

    async def fetch_relations(tx: Transaction, made: list[int]) -> list[Relation]:
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        found = [await rows.fetch_relation(tx, scope, one) for one in made for scope in numbers]
        return [to_relation(one[0]) for one in found if one is not None]

    result: list[Relation] = await change_graph(store, call, write_relations, fetch_relations)
    return result


def _find_restated(edge: RelationRow, known: Sequence[RelationRow]) -> list[RelationRow]:
    """Return the known relations that one speaks of: those of its time, of which an end alone ends the last."""
    found = sorted(
        (one for one in known if one.overlaps(edge)), key=lambda one: (one.began is not None, one.began or 0)
    )
    return found[-1:] if edge.began is None else found


def _fill_period(edge: RelationRow, known: Sequence[RelationRow]) -> RelationRow:
    """Return a relation with what it does not say of its time as it was known."""
    begins = [one.began for one in known if one.began is not None]
    ends = [one.ended for one in known if one.ended is not None]
    if edge.began is None and len(begins) == len(known):
        edge = edge._replace(began=min(begins, default=None))
    if edge.ended is None and len(ends) == len(known):
        edge = edge._replace(ended=max(ends, default=None))
    return edge


async def delete_relations(store: Store, given: Sequence[Named], call: Call) -> None:
    """Delete relations of the project."""
    now = store.clock()

    async def remove_relations(tx: Transaction, number: int) -> None:
        numbers = await scopes.fetch_own_ids(tx, call.scope)
        for one in given:
            wanted = to_entity_key(one["from"]), to_entity_key(one["to"]), normalize_text(one["relationType"])
            for edge in await rows.find_relations(tx, numbers, *wanted):
                await unlink_edge(tx, edge, number, now)

    await change_graph(store, call, remove_relations, None)


async def link_edge(tx: Transaction, scope: int, edge: RelationRow, call: int, now: float) -> int:
    number = await rows.insert_relation(tx, scope, edge, now)
    await history_rows.insert_change(tx, scope, 0, call, now, LINKED, {"relation": number})
    return number


async def unlink_edge(tx: Transaction, edge: RelationRow, call: int, now: float) -> None:
    await rows.set_relation_removed(tx, edge.scope, edge.id, now)
    await history_rows.insert_change(tx, edge.scope, 0, call, now, UNLINKED, {"relation": edge.id})


async def add_aliases(tx: Transaction, one: EntityRow, other: EntityRow, call: int, now: float) -> None:
    """Let an entity be found by the names of another that becomes a part of it."""
    theirs = {
        *await rows.list_mention_keys(tx, one.scope, one.id),
        *graph_mentions.list_alias_keys(one.name, one.key),
    }
    new = theirs - {*await rows.list_mention_keys(tx, other.scope, other.id)}
    await rows.insert_mentions(tx, other.scope, other.id, new)
    await history_rows.insert_change(tx, other.scope, other.id, call, now, ALIASED, {"keys": sorted(new)})


def format_edge(edge: RelationRow) -> str:
    return f"{edge.source_name} {edge.relation} {edge.target_name}"


def clean_entity_name(text: str, what: str) -> str:
    return redaction.redact(clean_label(text, what)).text


def _create_edge(one: NewRelation, position: int, now: float) -> RelationRow:
    where = f"relations[{position}]."
    source, target = (
        clean_entity_name(text, f"{where}{end}") for end, text in (("from", one["from"]), ("to", one["to"]))
    )
    relation = redaction.redact(clean_graph_type(one["relationType"], f"{where}relationType")).text
    began = check_time_range(parse_time(one.get("since"), f"{where}since", now, end=False), f"{where}since")
    ended = check_time_range(parse_time(one.get("until"), f"{where}until", now, end=True), f"{where}until")
    if began is not None and ended is not None and ended <= began:
        raise InvalidInput(f"{where}until must be after since")
    return RelationRow(0, 0, entity_key(source), entity_key(target), source, target, relation, began, ended)
