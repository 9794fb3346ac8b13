"""Looking at the whole store: figures about it, and whether its tables agree."""

from collections.abc import AsyncIterator
from typing import Any

from athena.model.scope import Scope
from athena.storage import memories, scopes

# What must never be found, each with the words for it; a query returns the names of the offenders.
RULES = {
    "memory {} has no passages, so nothing finds it": """
        SELECT m.hash FROM memories m WHERE m.deleted IS NULL
        AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.memory = m.id AND p.live = 1)""",
    "passage {} belongs to no live memory": """
        SELECT p.id FROM passages p WHERE p.live = 1
        AND NOT EXISTS (SELECT 1 FROM memories m WHERE m.id = p.memory AND m.deleted IS NULL AND m.scope = p.scope)""",
    "passage {} lies outside of its memory's text": """
        SELECT p.id FROM passages p JOIN memories m ON m.id = p.memory
        WHERE p.start < 0 OR p.length < 1 OR p.start + p.length > length(m.content)""",
    "passage {} has a vector of the wrong size": """
        SELECT p.id FROM passages p JOIN models d ON d.id = p.model
        WHERE p.live = 1 AND length(p.code) <> (SELECT max(length(code)) FROM passages q WHERE q.model = p.model)""",
    "passage {} names a model but has no vector": """
        SELECT p.id FROM passages p WHERE p.live = 1 AND p.model IS NOT NULL AND p.code IS NULL""",
    "the tags of memory {} differ from the tag index": """
        SELECT m.hash FROM memories m
        WHERE json_array_length(m.tags) <> (SELECT count(*) FROM tags t WHERE t.memory = m.id AND t.scope = m.scope)""",
    "tag {} is kept for a memory that is gone": """
        SELECT t.tag FROM tags t WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.id = t.memory)""",
    "hash {} is shared by two memories": """
        SELECT hash FROM memories WHERE deleted IS NULL GROUP BY scope, hash HAVING count(*) > 1""",
}


async def engine(tx: Any) -> list[str]:
    """Ask the engine whether its file is sound."""
    rows = await tx.fetch("PRAGMA integrity_check(20)")
    return [f"the file is damaged: {row[0]}" for row in rows if row[0] != "ok"]


async def tables_agree(tx: Any) -> list[str]:
    return [words.format(row[0]) for words, rule in RULES.items() for row in await tx.fetch(f"{rule} LIMIT 20")]


async def texts(tx: Any) -> AsyncIterator[tuple[str, str, str | None, str]]:
    """Yield each memory's hash, text, session and digest, a few at a time."""
    last = 0
    while rows := await tx.fetch(
        "SELECT id, hash, content, session, digest FROM memories WHERE id > :last ORDER BY id LIMIT 200", last=last
    ):
        for _, short, content, session, kept in rows:
            yield short, content, session, kept
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
    forgotten = await memories.forgotten(tx, await scopes.own(tx, scope))
    kinds = await tx.fetch(f"SELECT memory_type, count(*) {live} GROUP BY memory_type ORDER BY 2 DESC, 1")
    tags = await tx.fetch_one(f"SELECT count(DISTINCT tag) FROM tags WHERE memory IN (SELECT id {live})")
    projects = await tx.fetch_one("SELECT count(*) FROM scopes")
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
