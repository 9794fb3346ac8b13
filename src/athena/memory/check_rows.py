"""Looking at the whole store: figures about it, and whether its tables agree."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from athena.core.values import Scope
from athena.storage import scopes
from athena.storage.filters import bind_list

MAX_TOP_TAGS = 10  # tags that are named as the most used
# What must never be found, each with the words for it; a query returns the names of the offenders.
CONSISTENCY_RULES = {
    "memory {} has no passages, so nothing finds it": """
        SELECT m.hash FROM memories m WHERE m.deleted IS NULL
        AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
        AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.scope = m.scope AND w.memory = m.id)""",
    "memory {} waits for passages that it has": """
        SELECT m.hash FROM waiting w JOIN memories m ON m.scope = w.scope AND m.id = w.memory
        WHERE m.deleted IS NOT NULL
        OR EXISTS (SELECT 1 FROM passages p WHERE p.scope = w.scope AND p.memory = w.memory)""",
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
    "a mention of {} is kept for a memory that is gone": """
        SELECT n.key FROM mentions n
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = n.scope AND m.id = n.memory)""",
    "hash {} is shared by two memories": """
        SELECT hash FROM memories WHERE deleted IS NULL GROUP BY scope, hash HAVING count(*) > 1""",
}


async def find_inconsistencies(tx: Any) -> list[str]:
    return [
        words.format(row[0]) for words, rule in CONSISTENCY_RULES.items() for row in await tx.fetch(f"{rule} LIMIT 20")
    ]


class MemoryTextCheck(NamedTuple):
    """A memory's text with what must agree with it."""

    hash: str
    content: str
    metadata: dict[str, Any]
    digest: str
    tag_count: int  # in its own list
    indexed_tag_count: int


async def iter_memory_texts(tx: Any) -> AsyncIterator[MemoryTextCheck]:
    """Yield each memory's text, a few at a time."""
    last = 0
    while rows := await tx.fetch(
        """SELECT m.id, m.hash, m.content, m.metadata, m.digest, m.tags,
                  (SELECT count(*) FROM tags t WHERE t.scope = m.scope AND t.memory = m.id)
           FROM memories m WHERE m.id > :last ORDER BY m.id LIMIT 200""",
        last=last,
    ):
        for _, short, content, metadata, digest, tags, indexed in rows:
            yield MemoryTextCheck(short, content, json.loads(metadata), digest, len(json.loads(tags)), indexed)
        last = rows[-1][0]


async def count_passages(tx: Any) -> int:
    return int((await tx.fetch_one("SELECT count(*) FROM passages WHERE live = 1"))[0])


async def compute_statistics(tx: Any, scope: Scope, ages: Mapping[str, float]) -> dict[str, Any]:
    """Count what a project can see; `ages` are names for times, each with when it begins."""
    numbers = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope))) or "NULL"
    live = f"FROM memories WHERE scope IN ({numbers}) AND deleted IS NULL"
    total, oldest, newest, characters, occurrences = await tx.fetch_one(
        f"SELECT count(*), min(happened), max(happened), sum(length(content)), sum(occurrences) {live}"
    )
    every = ", ".join(map(str, await scopes.fetch_project_ids(tx, scope))) or "NULL"
    kept = f"SELECT count(*) FROM memories WHERE scope IN ({every})"
    (gone,) = await tx.fetch_one(f"SELECT ({kept}) - ({kept} AND deleted IS NULL)")  # each from an index
    forgotten = await _count_forgotten(tx, every) if gone else 0
    kinds = await tx.fetch(f"SELECT memory_type, count(*) {live} GROUP BY memory_type ORDER BY 2 DESC, 1")
    tags = await tx.fetch(
        f"""SELECT t.tag, count(*) FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
            WHERE t.scope IN ({numbers}) AND m.deleted IS NULL GROUP BY t.tag ORDER BY 2 DESC, 1"""
    )
    aged = ", ".join(f"count(CASE WHEN happened >= :since{i} THEN 1 END)" for i in range(len(ages)))
    since = {f"since{i}": moment for i, moment in enumerate(ages.values())}
    reached = [*await tx.fetch_one(f"SELECT {aged} {live}", **since), total]
    by_age = [int(count) - int(before) for before, count in pairwise([0, *reached])]
    counts = await count_by_kind(tx, scope)
    projects = await tx.fetch_one("SELECT count(DISTINCT name) FROM scopes")
    return {
        "memories": int(total),
        "events": counts.get("event", 0),
        "tasks": counts.get("task", 0),
        "entities": counts.get("entity", 0),
        "observations": counts.get("observation", 0),
        "relations": await _count_relations(tx, scope),
        "patterns": counts.get("pattern", 0),
        "skills": counts.get("skill", 0),
        "by_kind": counts,
        "forgotten": forgotten,
        "by_type": {row[0]: int(row[1]) for row in kinds},
        "memories_by_age": dict(zip([*ages, "older"], by_age, strict=True)),
        "tags": len(tags),
        "most_used_tags": {tag: int(count) for tag, count in tags[:MAX_TOP_TAGS]},
        "projects": int(projects[0]),
        "characters": int(characters or 0),
        "occurrences": int(occurrences or 0),
        "oldest": oldest,
        "newest": newest,
    }


async def count_by_kind(tx: Any, scope: Scope) -> dict[str, int]:
    """Count the things of each kind that a project can see."""
    names, bound = bind_list("name", scope.visible_projects)
    rows = await tx.fetch(
        f"""SELECT s.kind, (SELECT count(*) FROM memories m WHERE m.scope = s.id AND m.deleted IS NULL)
            FROM scopes s WHERE s.name IN ({names}) ORDER BY s.kind""",
        **bound,
    )
    counts: Counter[str] = Counter()
    for kind, count in rows:
        counts[kind] += int(count)
    if counts["entity"]:
        numbers = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope.with_kind("entity")))) or "NULL"
        (seen,) = await tx.fetch_one(
            f"SELECT count(*) FROM memories WHERE scope IN ({numbers}) AND session IS NOT NULL AND deleted IS NULL"
        )
        counts["entity"] -= int(seen)
        counts["observation"] = int(seen)
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind] or kind in dict(rows)}


async def _count_forgotten(tx: Any, numbers: str) -> int:
    """Count what was forgotten or merged away and can come back; what was undone was never forgotten."""
    (count,) = await tx.fetch_one(
        f"""SELECT count(*) FROM memories m WHERE m.scope IN ({numbers}) AND m.deleted IS NOT NULL AND EXISTS
              (SELECT 1 FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND h.undone = 0
               AND h.action IN ('forgotten', 'merged away'))"""
    )
    return int(count)


async def _count_relations(tx: Any, scope: Scope) -> int:
    numbers = ", ".join(map(str, await scopes.fetch_visible_ids(tx, scope.with_kind("entity")))) or "NULL"
    (count,) = await tx.fetch_one(f"SELECT count(*) FROM relations WHERE scope IN ({numbers}) AND removed IS NULL")
    return int(count)
