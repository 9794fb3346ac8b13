"""Passages: the pieces of a memory that searches find."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from athena.storage.database import Indexed


async def session(tx: Any, scope: int, memory: int, name: str | None) -> tuple[int, int | None]:
    """Return the number of a session, which is that of its first memory, and its last passage if it has any."""
    if name is None:
        return memory, None
    row = await tx.fetch_one(
        """SELECT p.session FROM memories m JOIN passages p ON p.memory = m.id
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


async def add(tx: Any, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        await tx.execute(
            """INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                     stamp, model, code)
               VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                       :stamp, :model, :code)""",
            **row,
        )


async def of_memory(tx: Any, memory: int) -> list[Indexed]:
    """Return a memory's passages with the text and label they are indexed under."""
    content, label = await tx.fetch_one("SELECT content, label FROM memories WHERE id = :memory", memory=memory)
    rows = await tx.fetch("SELECT id, start, length FROM passages WHERE memory = :memory ORDER BY id", memory=memory)
    return [Indexed(number, content[start : start + length], label) for number, start, length in rows]


class Placed(NamedTuple):
    """A passage with what stands around it in its session."""

    id: int
    text: str
    metadata: dict[str, Any]
    created: float
    before: str
    after: str
    known: bool  # its tokens are there already, read by the model in use


async def placed(tx: Any, numbers: list[int], model: str) -> list[Placed]:
    """Return passages by number, each with its text, its memory's facts, and its neighbours' texts."""
    found: list[Placed] = []
    for number in numbers:
        row = await tx.fetch_one(
            """SELECT substr(m.content, p.start + 1, p.length), m.metadata, m.created, p.scope, p.session,
                      EXISTS (SELECT 1 FROM tokens t JOIN models d ON d.name = :model
                              WHERE t.passage = p.id AND d.id = p.model)
               FROM passages p JOIN memories m ON m.id = p.memory WHERE p.id = :id""",
            id=number,
            model=model,
        )
        if row is None:
            continue
        text, metadata, created, scope, session_number, known_tokens = row
        beside = [
            await tx.fetch_one(
                f"""SELECT substr(m.content, p.start + 1, p.length) FROM passages p JOIN memories m ON m.id = p.memory
                    WHERE p.scope = :scope AND p.session = :session AND p.live = 1 AND p.id {side} LIMIT 1""",
                scope=scope,
                session=session_number,
                id=number,
            )
            for side in ("< :id ORDER BY p.id DESC", "> :id ORDER BY p.id")
        ]
        before, after = (one[0] if one else "" for one in beside)
        found.append(Placed(number, text, json.loads(metadata), created, before, after, bool(known_tokens)))
    return found


async def retire(tx: Any, memory: int, stamp: int) -> None:
    """Let go of passages whose text changed; the empty rows tell every search in memory to drop them too."""
    await tx.execute(
        "DELETE FROM tokens WHERE passage IN (SELECT id FROM passages WHERE memory = :memory)", memory=memory
    )
    await tx.execute(
        "UPDATE passages SET memory = 0, live = 0, code = NULL, model = NULL, stamp = :stamp WHERE memory = :memory",
        memory=memory,
        stamp=stamp,
    )


async def drop_retired(tx: Any) -> None:
    """Delete the empty rows; searches read everything again after this."""
    await tx.execute("DELETE FROM passages WHERE memory = 0")
    await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'purges'")
