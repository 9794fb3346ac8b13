"""SQL of passages, the pieces of a memory that searches find, and of the models that embed them."""

import json
from typing import Any, NamedTuple

from athena.core.values import Kind, ModelNames
from athena.storage.database import IndexedPassage, PendingRows, Row, Transaction
from athena.storage.filters import bind_list, split_batches

PASSAGE_IDS_PER_SCOPE = 1 << 32  # the ids of a scope's passages are one range, so that an index on them splits by scope
# The order in which passages get their vectors: people search for memories, and events are many.
IN_MEMORY_SCOPES = "IN (SELECT id FROM scopes WHERE kind = 'memory')"
MEMORY_SCOPES_FIRST = (IN_MEMORY_SCOPES, f"NOT {IN_MEMORY_SCOPES}")


class PassageInSession(NamedTuple):
    """A passage with its neighbours in its session."""

    id: int
    text: str
    metadata: dict[str, Any]
    created: float
    before: str
    after: str
    has_tokens: bool  # the table `tokens` has those of the model in use


def list_scope_conditions(kind: Kind | None) -> tuple[str, ...]:
    """Return SQL conditions on `scope`, in the order in which passages are claimed: of one kind, or of all."""
    return MEMORY_SCOPES_FIRST if kind is None else (f"IN (SELECT id FROM scopes WHERE kind = '{kind}')",)


def get_passage_scope_id(passage: int) -> int:
    return passage // PASSAGE_IDS_PER_SCOPE


class ModelIds(NamedTuple):
    """The models that the store knows, seen from the one in use."""

    current: int  # the one in use; 0 if it has stored nothing yet
    compatible: tuple[int, ...]  # earlier ones whose vectors can be compared with those of the current one
    others: tuple[int, ...]

    @property
    def comparable(self) -> tuple[int, ...]:
        return (self.current, *self.compatible)


async def fetch_model_ids(tx: Transaction, models: ModelNames) -> ModelIds:
    ids: dict[str, int] = dict(await tx.fetch("SELECT name, id FROM models ORDER BY id"))
    current = ids.pop(models.current, 0)
    compatible = tuple(number for name, number in ids.items() if name in models.earlier)
    return ModelIds(current, compatible, tuple(number for name, number in ids.items() if name not in models.earlier))


def list_incomparable_conditions(models: ModelIds) -> list[str]:
    """Return SQL conditions, each with an index, of passages whose vectors cannot be compared with the current ones."""
    return ["model IS NULL", *(f"model = {number}" for number in models.others)]


async def count_pending(tx: Transaction, models: ModelNames, *, memories: bool = False) -> int:
    """Count the passages without a vector that can be compared: all, or only those of memories."""
    shared = f"live = 1 AND scope {IN_MEMORY_SCOPES}" if memories else "live = 1"
    needs = list_incomparable_conditions(await fetch_model_ids(tx, models))
    counts = " + ".join(f"(SELECT count(*) FROM passages WHERE {shared} AND {need})" for need in needs)
    return int((await tx.fetch_required(f"SELECT {counts}"))[0])


def begin_missing(tx: Transaction) -> PendingRows:
    """Ask whether any passage has no vector or a stale one; cheap enough for every write."""
    exists = "EXISTS (SELECT 1 FROM passages WHERE live = 1 AND {})"
    return tx.begin_fetch(f"SELECT {exists.format('model IS NULL')} OR {exists.format('windowed = 0')}")


async def has_missing(tx: Transaction) -> bool:
    return bool((await begin_missing(tx))[0][0])


async def count_stale(tx: Transaction) -> int:
    """Count the passages whose vectors do not include their neighbours yet."""
    return int((await tx.fetch_required("SELECT count(*) FROM passages WHERE live = 1 AND windowed = 0"))[0])


async def count_replaced(tx: Transaction, models: ModelNames) -> tuple[int, int]:
    """Count the passages with vectors of the current model, and of earlier ones; 0 and 0 if there are none of these."""
    ids = await fetch_model_ids(tx, models)
    query = "SELECT count(*) FROM passages WHERE live = 1 AND model IN ({})"
    (outdated,) = await tx.fetch_required(query.format(", ".join(map(str, ids.compatible)) or "NULL"))
    (current,) = await tx.fetch_required(query.format(ids.current if outdated else "NULL"))
    return current, outdated


async def fetch_model_id(tx: Transaction, name: str) -> int | None:
    row = await tx.fetch_one("SELECT id FROM models WHERE name = :name", name=name)
    return int(row[0]) if row else None


async def fetch_passage_session(tx: Transaction, scope: int, memory: int, name: str | None) -> tuple[int, int | None]:
    """Return a session's id, which is that of its first memory, and its last passage if it has any."""
    if name is None:
        return memory, None
    row = await tx.fetch_one(
        """SELECT p.session FROM memories m JOIN passages p ON p.scope = m.scope AND p.memory = m.id
           WHERE m.scope = :scope AND m.session = :name AND m.id <> :memory LIMIT 1""",
        scope=scope,
        name=name,
        memory=memory,
    )
    if row is None:
        return memory, None
    last = await tx.fetch_required(
        "SELECT max(id) FROM passages WHERE scope = :scope AND session = :session AND live = 1",
        scope=scope,
        session=row[0],
    )
    return int(row[0]), last[0]


async def list_memory_passages(tx: Transaction, scope: int, *memories: int) -> list[IndexedPassage]:
    """Return the passages of memories with the text and the label that the full-text index holds."""
    names, bound = bind_list("memory", memories)
    texts = await tx.fetch(
        f"SELECT id, content, label FROM memories WHERE scope = :scope AND id IN ({names})", scope=scope, **bound
    )
    by_id = {memory: (content, label) for memory, content, label in texts}
    rows = await tx.fetch(
        f"""SELECT memory, id, start, length FROM passages WHERE scope = :scope AND memory IN ({names})
            ORDER BY memory, id""",
        scope=scope,
        **bound,
    )
    passages = []
    for memory, passage, start, length in rows:
        content, label = by_id[memory]
        passages.append(IndexedPassage(passage, content[start : start + length], label))
    return passages


class PassageSigns(NamedTuple):
    """Where a passage stands in its memory's text, and the signs of its tokens."""

    start: int
    length: int
    signs: bytes


async def list_signs_between(
    tx: Transaction, scope_ids: list[int], models: ModelNames, memory: int, start: int, end: int
) -> list[PassageSigns]:
    """Return the token signs of the passages in a part of a memory's text, if its model is comparable."""
    comparable = (await fetch_model_ids(tx, models)).comparable
    rows = await tx.fetch(
        f"""SELECT p.start, p.length, t.signs FROM passages p JOIN tokens t ON t.scope = p.scope AND t.passage = p.id
            WHERE p.scope IN ({", ".join(map(str, scope_ids))}) AND p.memory = :memory AND p.live = 1
            AND p.model IN ({", ".join(map(str, comparable))}) AND p.start < :end AND p.start + p.length > :start
            ORDER BY p.id""",
        memory=memory,
        start=start,
        end=end,
    )
    return [PassageSigns(row[0], row[1], bytes(row[2])) for row in rows]


class _MemoryTexts:
    """Reads parts of memories' texts; keeps the last text, since neighbours are mostly of the same memory.

    The database would read the whole text for each `substr` of it.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._key = (0, 0)
        self._text = ""

    async def read_part(self, scope: int, memory: int, start: int, length: int) -> str:
        if self._key != (scope, memory):
            row = await self._tx.fetch_one(
                "SELECT content FROM memories WHERE scope = :scope AND id = :id", scope=scope, id=memory
            )
            self._key, self._text = (scope, memory), row[0] if row else ""
        return self._text[start : start + length]


async def fetch_passages_in_session(tx: Transaction, ids: list[int], model: str) -> list[PassageInSession]:
    """Return passages by id, each with its text, its memory's metadata and its neighbours' texts."""
    passages: list[PassageInSession] = []
    texts = _MemoryTexts(tx)
    for batch in split_batches(sorted(ids)):
        rows = await _fetch_places(tx, batch, model)
        neighbours = {row[0]: row for row in rows}
        missing = {near for row in rows for near in row[8:] if near is not None} - neighbours.keys()
        neighbours |= {row[0]: row for row in await _fetch_places(tx, sorted(missing), model)}
        for passage, memory, start, length, metadata, created, scope, has_tokens, *sides in rows:
            parts = [neighbours[near][1:4] if near in neighbours else None for near in sides]
            before, text, after = [
                await texts.read_part(scope, *part) if part else ""
                for part in (parts[0], (memory, start, length), parts[1])
            ]
            passages.append(
                PassageInSession(passage, text, json.loads(metadata), created, before, after, bool(has_tokens))
            )
    return passages


async def _fetch_places(tx: Transaction, ids: list[int], model: str) -> list[Row]:
    """Return where passages stand, with the ids of their neighbours; those of one scope by one statement."""
    rows: list[Row] = []
    for scope in {get_passage_scope_id(passage): None for passage in ids}:
        names, bound = bind_list("id", [passage for passage in ids if get_passage_scope_id(passage) == scope])
        sides = ", ".join(
            f"""(SELECT {pick}(n.id) FROM passages n WHERE n.scope = p.scope AND n.session = p.session AND n.live = 1
                 AND n.id {side} p.id)"""
            for pick, side in (("max", "<"), ("min", ">"))
        )
        rows += await tx.fetch(
            f"""SELECT p.id, p.memory, p.start, p.length, m.metadata, m.created, p.scope,
                       EXISTS (SELECT 1 FROM tokens t JOIN models d ON d.name = :model
                               WHERE t.scope = p.scope AND t.passage = p.id AND d.id = p.model), {sides}
                FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
                WHERE p.scope = :scope AND p.id IN ({names}) ORDER BY p.id""",
            scope=scope,
            model=model,
            **bound,
        )
    return rows
