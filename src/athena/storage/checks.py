"""Looking at the whole store: figures about it, and whether its tables agree."""

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from athena.model.scope import Scope
from athena.storage import memories, scopes

# What must never be found, each with the words for it; a query returns the names of the offenders.
RULES = {
    "memory {} has no passages, so nothing finds it": """
        SELECT m.hash FROM memories m WHERE m.deleted IS NULL
        AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)""",
    "passage {} belongs to no live memory": """
        SELECT p.id FROM passages p WHERE p.live = 1
        AND NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = p.scope AND m.id = p.memory AND m.deleted IS NULL)""",
    "passage {} lies outside of its memory's text": """
        SELECT p.id FROM passages p JOIN memories m ON m.scope = p.scope AND m.id = p.memory
        WHERE p.start < 0 OR p.length < 1 OR p.start + p.length > length(m.content)""",
    "passage {} names a model but has no vector": """
        SELECT p.id FROM passages p WHERE p.live = 1 AND p.model IS NOT NULL AND p.code IS NULL""",
    "tag {} is kept for a memory that is gone": """
        SELECT t.tag FROM tags t
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = t.scope AND m.id = t.memory)""",
    "hash {} is shared by two memories": """
        SELECT hash FROM memories WHERE deleted IS NULL GROUP BY scope, hash HAVING count(*) > 1""",
}


async def tables_agree(tx: Any) -> list[str]:
    return [words.format(row[0]) for words, rule in RULES.items() for row in await tx.fetch(f"{rule} LIMIT 20")]


class Text(NamedTuple):
    """A memory's text with what must agree with it."""

    hash: str
    content: str
    metadata: dict[str, Any]
    digest: str
    tags: int  # in its own list
    indexed_tags: int


async def texts(tx: Any) -> AsyncIterator[Text]:
    """Yield each memory's text, a few at a time."""
    last = 0
    while rows := await tx.fetch(
        """SELECT m.id, m.hash, m.content, m.metadata, m.digest, m.tags,
                  (SELECT count(*) FROM tags t WHERE t.scope = m.scope AND t.memory = m.id)
           FROM memories m WHERE m.id > :last ORDER BY m.id LIMIT 200""",
        last=last,
    ):
        for _, short, content, metadata, digest, tags, indexed in rows:
            yield Text(short, content, json.loads(metadata), digest, len(json.loads(tags)), indexed)
        last = rows[-1][0]


async def passage_count(tx: Any) -> int:
    return int((await tx.fetch_one("SELECT count(*) FROM passages WHERE live = 1"))[0])


async def figures(tx: Any, scope: Scope) -> dict[str, Any]:
    """Count what a project can see."""
    numbers = ", ".join(map(str, await scopes.visible(tx, scope))) or "NULL"
    live = f"FROM memories WHERE scope IN ({numbers}) AND deleted IS NULL"
    total, oldest, newest, characters, occurrences = await tx.fetch_one(
        f"SELECT count(*), min(happened), max(happened), sum(length(content)), sum(occurrences) {live}"
    )
    forgotten = await memories.forgotten(tx, await scopes.every(tx, scope))
    kinds = await tx.fetch(f"SELECT memory_type, count(*) {live} GROUP BY memory_type ORDER BY 2 DESC, 1")
    tags = await tx.fetch_one(
        f"SELECT count(DISTINCT tag) FROM tags WHERE scope IN ({numbers}) AND memory IN (SELECT id {live})"
    )
    projects = await tx.fetch_one("SELECT count(DISTINCT name) FROM scopes")
    return {
        "memories": int(total),
        "forgotten": len(forgotten),
        "by_type": {row[0]: int(row[1]) for row in kinds},
        "tags": int(tags[0]),
        "projects": int(projects[0]),
        "characters": int(characters or 0),
        "occurrences": int(occurrences or 0),
        "oldest": oldest,
        "newest": newest,
    }
