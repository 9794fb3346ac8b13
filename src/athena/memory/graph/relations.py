"""Relations between entities: making and removing them, and taking either back."""

from collections.abc import Sequence

from athena.core import redaction
from athena.core.call import Call
from athena.errors import InvalidInput
from athena.memory import history
from athena.memory.graph import mention_rows, relation_rows
from athena.memory.graph import mentions as graph_mentions
from athena.memory.graph.entities import as_kept, change, key_of, shown, triple
from athena.memory.graph.relation_rows import Edge
from athena.memory.graph.rows import Node
from athena.memory.graph.values import ENTITY, Named, NewRelation, Relation, clean_label, clean_type, entity_key
from athena.memory.history import Step
from athena.memory.inputs import in_range, moment
from athena.memory.rows import Kept
from athena.memory.store import Store
from athena.memory.values import SERIAL
from athena.storage import scopes
from athena.storage.database import Transaction

LINKED, UNLINKED = "linked", "unlinked"  # in history, with the relation's number as `before`
ALIASED = "aliased"  # in history, with the keys that an entity is also found by as `before`


async def relate(store: Store, given: Sequence[NewRelation], call: Call) -> list[Relation]:
    """Relate entities by name and return what is new; a known relation may be told anew when it held true."""
    now = store.clock()
    wanted = [_edge(one, position, now) for position, one in enumerate(given)]

    async def make(tx: Transaction, number: int) -> list[int]:
        scope = await scopes.ensure(tx, call.scope)
        made: dict[int, None] = {}
        for edge in wanted:
            known = await relation_rows.find(tx, [scope], *triple(edge))
            times = {(None, None), *((one.began, one.ended) for one in known)}
            if known and (edge.began, edge.ended) in times:
                continue
            told_anew = _meant(edge, known)  # what held at another time stays beside it
            for one in told_anew:
                await unlink(tx, one, number, now)
                made.pop(one.id, None)
            made[await link(tx, scope, _completed(edge, told_anew), number, now)] = None
        return list(made)

    async def fetch(tx: Transaction, made: list[int]) -> list[Relation]:
        numbers = await scopes.own(tx, call.scope)
        found = [await relation_rows.numbered(tx, scope, one) for one in made for scope in numbers]
        return [shown(one[0]) for one in found if one is not None]

    result: list[Relation] = await change(store, call, make, fetch)
    return result


def _meant(edge: Edge, known: Sequence[Edge]) -> list[Edge]:
    """Return the known relations that one speaks of: those of its time, of which an end alone ends the last."""
    found = sorted(
        (one for one in known if one.overlaps(edge)), key=lambda one: (one.began is not None, one.began or 0)
    )
    return found[-1:] if edge.began is None else found


def _completed(edge: Edge, known: Sequence[Edge]) -> Edge:
    """Return a relation with what it does not say of its time as it was known."""
    begins = [one.began for one in known if one.began is not None]
    ends = [one.ended for one in known if one.ended is not None]
    if edge.began is None and len(begins) == len(known):
        edge = edge._replace(began=min(begins, default=None))
    if edge.ended is None and len(ends) == len(known):
        edge = edge._replace(ended=max(ends, default=None))
    return edge


async def unrelate(store: Store, given: Sequence[Named], call: Call) -> None:
    """Delete relations of the project."""
    now = store.clock()

    async def remove(tx: Transaction, number: int) -> None:
        numbers = await scopes.own(tx, call.scope)
        for one in given:
            wanted = key_of(one["from"]), key_of(one["to"]), as_kept(one["relationType"])
            for edge in await relation_rows.find(tx, numbers, *wanted):
                await unlink(tx, edge, number, now)

    await change(store, call, remove, None)


async def link(tx: Transaction, scope: int, edge: Edge, call: int, now: float) -> int:
    number = await relation_rows.add(tx, scope, edge, now)
    await history.add(tx, scope, 0, call, now, LINKED, {"relation": number})
    return number


async def unlink(tx: Transaction, edge: Edge, call: int, now: float) -> None:
    await relation_rows.set_removed(tx, edge.scope, edge.id, now)
    await history.add(tx, edge.scope, 0, call, now, UNLINKED, {"relation": edge.id})


async def take_back(tx: Transaction, step: Step, now: float) -> tuple[bool, str]:
    """Undo the making or removing of a relation unless it was made anew since, and return it in words."""
    found = await relation_rows.numbered(tx, step.scope, (step.before or {})["relation"])
    if found is None:
        return True, ""
    edge, removed = found
    if step.action == LINKED:
        await relation_rows.set_removed(tx, step.scope, edge.id, now if removed is None else removed)
    else:
        if any(one.overlaps(edge) for one in await relation_rows.find(tx, [step.scope], *triple(edge))):
            return False, spoken(edge)
        await relation_rows.set_removed(tx, step.scope, edge.id, None)
    return True, spoken(edge)


async def add_aliases(tx: Transaction, one: Node, other: Node, call: int, now: float) -> None:
    """Let an entity be found by the names of another that becomes a part of it."""
    theirs = {*await mention_rows.keys_of(tx, one.scope, one.id), *graph_mentions.aliases(one.name, one.key)}
    new = theirs - {*await mention_rows.keys_of(tx, other.scope, other.id)}
    await mention_rows.put(tx, other.scope, other.id, new)
    await history.add(tx, other.scope, other.id, call, now, ALIASED, {"keys": sorted(new)})


async def forget_aliases(tx: Transaction, kept: Kept) -> None:
    """Let no other entity keep the name of one that is removed for good."""
    if kept.memory.metadata.get(SERIAL) != ENTITY:
        return
    keys = graph_mentions.aliases(kept.memory.content, kept.digest)
    for scope in await mention_rows.graphs(tx, kept.scope):
        for other in await mention_rows.memories_of(tx, [scope], [graph_mentions.exact(kept.digest)]):
            await mention_rows.drop(tx, scope, other, keys)
            await history.forget_steps(tx, scope, other, ALIASED, graph_mentions.exact(kept.digest))


async def take_back_aliases(tx: Transaction, step: Step) -> None:
    await mention_rows.drop(tx, step.scope, step.memory, (step.before or {})["keys"])
    await history.mark_undone(tx, step)


def spoken(edge: Edge) -> str:
    return f"{edge.source_name} {edge.relation} {edge.target_name}"


def clean_entity_name(text: str, what: str) -> str:
    return redaction.redact(clean_label(text, what)).text


def _edge(one: NewRelation, position: int, now: float) -> Edge:
    where = f"relations[{position}]."
    source, target = (
        clean_entity_name(text, f"{where}{end}") for end, text in (("from", one["from"]), ("to", one["to"]))
    )
    relation = redaction.redact(clean_type(one["relationType"], f"{where}relationType")).text
    began = in_range(moment(one.get("since"), f"{where}since", now, end=False), f"{where}since")
    ended = in_range(moment(one.get("until"), f"{where}until", now, end=True), f"{where}until")
    if began is not None and ended is not None and ended <= began:
        raise InvalidInput(f"{where}until must be after since")
    return Edge(0, 0, entity_key(source), entity_key(target), source, target, relation, began, ended)
