"""Passages: the pieces of a memory that searches find."""

import json
from typing import Any, NamedTuple

from athena.core.values import Kind
from athena.storage.database import IndexedPassage

PASSAGE_IDS_PER_SCOPE = 1 << 32  # passage ids of one scope: a range of their own, so that an index can be cut by scope

# In which order passages get their vectors: people ask for memories, and of events there are many.
IN_MEMORY_SCOPES = "IN (SELECT id FROM scopes WHERE kind = 'memory')"
MEMORY_SCOPES_FIRST = (IN_MEMORY_SCOPES, f"NOT {IN_MEMORY_SCOPES}")


def list_scope_conditions(kind: Kind | None) -> tuple[str, ...]:
    """Return the conditions on scopes by which passages are taken one after another: of one kind, or of all."""
    return MEMORY_SCOPES_FIRST if kind is None else (f"IN (SELECT id FROM scopes WHERE kind = '{kind}')",)


def get_passage_scope_id(passage: int) -> int:
    return passage // PASSAGE_IDS_PER_SCOPE


async def fetch_passage_session(tx: Any, scope: int, memory: int, name: str | None) -> tuple[int, int | None]:
    """Return the number of a session, which is that of its first memory, and its last passage if it has any."""
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
    last = await tx.fetch_one(
        "SELECT max(id) FROM passages WHERE scope = :scope AND session = :session AND live = 1",
        scope=scope,
        session=row[0],
    )
    return int(row[0]), last[0]


async def list_memory_passages(tx: Any, scope: int, memory: int) -> list[IndexedPassage]:
    """Return a memory's passages with the text and label they are indexed under."""
    content, label = await tx.fetch_one(
        "SELECT content, label FROM memories WHERE scope = :scope AND id = :memory", scope=scope, memory=memory
    )
    rows = await tx.fetch(
        "SELECT id, start, length FROM passages WHERE scope = :scope AND memory = :memory ORDER BY id",
        scope=scope,
        memory=memory,
    )
    return [IndexedPassage(number, content[start : start + length], label) for number, start, length in rows]


PASSAGE_TEXT_SQL = "substr(m.content, CAST(p.start + 1 AS INTEGER), CAST(p.length AS INTEGER))"


class PassageInSession(NamedTuple):
    """A passage with what stands around it in its session."""

    id: int
    text: str
    metadata: dict[str, Any]
    created: float
    before: str
    after: str
    has_tokens: bool  # its tokens are there already, read by the model in use


async def fetch_passages_in_session(tx: Any, numbers: list[int], model: str) -> list[PassageInSession]:
    """Return passages by number, each with its text, its memory's facts, and its neighbours' texts."""
    found: list[PassageInSession] = []
    for number in numbers:
        row = await tx.fetch_one(
            f"""SELECT {PASSAGE_TEXT_SQL}, m.metadata, m.created, p.scope, p.session,
                      EXISTS (SELECT 1 FROM tokens t JOIN models d ON d.name = :model
                              WHERE t.scope = p.scope AND t.passage = p.id AND d.id = p.model)
               FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
               WHERE p.scope = :scope AND p.id = :id""",
            scope=get_passage_scope_id(number),
            id=number,
            model=model,
        )
        if row is None:
            continue
        text, metadata, created, scope, session_number, known_tokens = row
        beside = [
            await tx.fetch_one(
                f"""SELECT {PASSAGE_TEXT_SQL}
                    FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
                    WHERE p.scope = :scope AND p.session = :session AND p.live = 1 AND p.id {side} LIMIT 1""",
                scope=scope,
                session=session_number,
                id=number,
            )
            for side in ("< :id ORDER BY p.id DESC", "> :id ORDER BY p.id")
        ]
        before, after = (one[0] if one else "" for one in beside)
        found.append(PassageInSession(number, text, json.loads(metadata), created, before, after, bool(known_tokens)))
    return found
