"""Relations between entities: making and removing them, and taking either back."""

from collections.abc import Sequence

from athena import secrets
from athena.errors import Conflict, InvalidInput
from athena.memory.draft import moment
from athena.memory.graph import as_kept, change, key_of, shown, triple
from athena.memory.store import Store
from athena.model.call import Call
from athena.model.graph import Named, NewRelation, Relation, clean_label, clean_type, entity_key
from athena.storage import history, relations, scopes
from athena.storage.database import Transaction
from athena.storage.history import Step
from athena.storage.relations import Edge

LINKED, UNLINKED = "linked", "unlinked"  # in history, with the relation's number as `before`


async def relate(store: Store, given: Sequence[NewRelation], call: Call) -> list[Relation]:
    """Relate entities by name and return what is new; a known relation may be told anew when it held true."""
    now = store.clock()
    edges: dict[tuple[str, str, str], Edge] = {}
    for position, one in enumerate(given):
        edge = _edge(one, position, now)
        edges.setdefault(triple(edge), edge)
    wanted = list(edges.values())

    async def make(tx: Transaction, number: int) -> list[int]:
        scope = await scopes.ensure(tx, call.scope)
        made = []
        for edge in wanted:
            known = await relations.find(tx, [scope], *triple(edge))
            if known and (edge.began, edge.ended) in ((None, None), (known[0].began, known[0].ended)):
                continue
            if known:
                began = known[0].began if edge.began is None else edge.began
                edge = edge._replace(began=began, ended=known[0].ended if edge.ended is None else edge.ended)
                await unlink(tx, known[0], number, now)
            made.append(await link(tx, scope, edge, number, now))
        return made

    async def fetch(tx: Transaction, made: list[int]) -> list[Relation]:
        numbers = await scopes.own(tx, call.scope)
        found = [await relations.numbered(tx, scope, one) for one in made for scope in numbers]
        return [shown(one[0]) for one in found if one is not None]

    result: list[Relation] = await change(store, call, make, fetch)
    return result


async def unrelate(store: Store, given: Sequence[Named], call: Call) -> None:
    """Delete relations."""
    now = store.clock()

    async def remove(tx: Transaction, number: int) -> None:
        numbers = await scopes.visible(tx, call.scope)
        for one in given:
            wanted = key_of(one["from"]), key_of(one["to"]), as_kept(one["relationType"])
            for edge in await relations.find(tx, numbers, *wanted):
                await unlink(tx, edge, number, now)

    await change(store, call, remove, None)


async def link(tx: Transaction, scope: int, edge: Edge, call: int, now: float) -> int:
    number = await relations.add(tx, scope, edge, now)
    await history.add(tx, scope, 0, call, now, LINKED, {"relation": number})
    return number


async def unlink(tx: Transaction, edge: Edge, call: int, now: float) -> None:
    await relations.set_removed(tx, edge.scope, edge.id, now)
    await history.add(tx, edge.scope, 0, call, now, UNLINKED, {"relation": edge.id})


async def take_back(tx: Transaction, step: Step, now: float) -> str:
    """Undo the making or removing of a relation, and return it in words."""
    found = await relations.numbered(tx, step.scope, (step.before or {})["relation"])
    if found is None:
        return ""
    edge, removed = found
    if step.action == LINKED:
        await relations.set_removed(tx, step.scope, edge.id, now if removed is None else removed)
    else:
        if await relations.find(tx, [step.scope], *triple(edge)):
            raise Conflict(f"the relation is there again: {spoken(edge)}", hint="undo where it was made, or delete it")
        await relations.set_removed(tx, step.scope, edge.id, None)
    return spoken(edge)


def spoken(edge: Edge) -> str:
    return f"{edge.source_name} {edge.relation} {edge.target_name}"


def clean_entity_name(text: str, what: str) -> str:
    return secrets.redact(clean_label(text, what)).text


def _edge(one: NewRelation, position: int, now: float) -> Edge:
    where = f"relations[{position}]."
    source, target = (
        clean_entity_name(text, f"{where}{end}") for end, text in (("from", one["from"]), ("to", one["to"]))
    )
    relation = secrets.redact(clean_type(one["relationType"], f"{where}relationType")).text
    began = moment(one.get("since"), f"{where}since", now, end=False)
    ended = moment(one.get("until"), f"{where}until", now, end=True)
    if began is not None and ended is not None and ended <= began:
        raise InvalidInput(f"{where}until must be after since")
    return Edge(0, 0, entity_key(source), entity_key(target), source, target, relation, began, ended)
