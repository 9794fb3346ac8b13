"""SQL over the whole store: its statistics, and the checks that its tables agree."""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from athena.core.hashing import hash_text
from athena.core.values import Scope
from athena.memory.rows import join_ids, note_scope_marks
from athena.memory.values import compute_digest_salt
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import bind_list, tag_key

MAX_TOP_TAGS = 10
# Each message with a query for the rows that it is about; a sound store has none of them.
CONSISTENCY_RULES = {
    "memory {} has no passages, so nothing finds it": """
        SELECT m.hash FROM memories m WHERE m.deleted IS NULL
        AND NOT EXISTS (SELECT 1 FROM passages p WHERE p.scope = m.scope AND p.memory = m.id AND p.live = 1)
        AND NOT EXISTS (SELECT 1 FROM waiting w WHERE w.scope = m.scope AND w.memory = m.id)""",
    "memory {} is queued for indexing but is deleted or already indexed": """
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
    "tag {} refers to a memory that does not exist": """
        SELECT t.tag FROM tags t
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = t.scope AND m.id = t.memory)""",
    "a mention of {} refers to a memory that does not exist": """
        SELECT n.key FROM mentions n
        WHERE NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = n.scope AND m.id = n.memory)""",
    "hash {} is shared by two memories": """
        SELECT hash FROM memories WHERE deleted IS NULL GROUP BY scope, hash HAVING count(*) > 1""",
}


async def find_inconsistencies(tx: Transaction) -> list[str]:
    return [
        message.format(row[0])
        for message, query in CONSISTENCY_RULES.items()
        for row in await tx.fetch(f"{query} LIMIT 20")
    ]


async def check_memories(tx: Transaction) -> tuple[int, list[str]]:
    """Compare each memory's text with its digest and hash, and its tags with their index; return how many there are."""
    problems: list[str] = []
    count = last_id = 0
    while ids := await tx.fetch("SELECT id FROM memories WHERE id > :last ORDER BY id LIMIT 200", last=last_id):
        first_id, last_id = ids[0][0], ids[-1][0]
        count += len(ids)
        try:
            problems += await _check_memory_range(tx, first_id, last_id)
        except UnicodeDecodeError:  # a row of them is not text; the others are checked one by one
            for (memory_id,) in ids:
                try:
                    problems += await _check_memory_range(tx, memory_id, memory_id)
                except UnicodeDecodeError:
                    problems.append(f"the row of memory {memory_id} is not valid text")
    return count, problems


async def _check_memory_range(tx: Transaction, first_id: int, last_id: int) -> list[str]:
    bounds = {"first": first_id, "last": last_id}
    rows = await tx.fetch(
        "SELECT id, hash, content, metadata, digest, tags FROM memories WHERE id BETWEEN :first AND :last", **bounds
    )
    indexed_tags: dict[int, set[str]] = {}
    for memory_id, tag in await tx.fetch(
        """SELECT t.memory, t.tag FROM memories m JOIN tags t ON t.scope = m.scope AND t.memory = m.id
           WHERE m.id BETWEEN :first AND :last""",
        **bounds,
    ):
        indexed_tags.setdefault(memory_id, set()).add(tag)
    problems = []
    for memory_id, short_hash, content, metadata, digest, tags in rows:
        try:
            salt = compute_digest_salt(json.loads(metadata))
            keys = {tag_key(tag) for tag in json.loads(tags)}
        except (ValueError, TypeError, AttributeError):
            problems.append(f"the metadata or tags of memory {memory_id} cannot be read")
            continue
        if hash_text(content, salt) != digest:
            problems.append(f"the text of memory {short_hash} is not what was stored")
        elif not short_hash or not digest.startswith(short_hash):
            problems.append(f"the hash {short_hash} of memory {memory_id} is not that of its text")
        if keys != indexed_tags.get(memory_id, set()):
            problems.append(f"the tags of memory {short_hash} differ from the tag index")
    return problems


async def count_passages(tx: Transaction) -> int:
    [(count,)] = await tx.fetch("SELECT count(*) FROM passages WHERE live = 1")
    return int(count)


async def compute_statistics(tx: Transaction, scope: Scope, ages: Mapping[str, float]) -> dict[str, Any]:
    """Count the rows that a project can see; `ages` maps names of periods to their start, the latest first."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    await note_scope_marks(tx, scope_ids)
    visible = join_ids(scope_ids)
    live_clause = f"FROM memories WHERE scope IN ({visible}) AND deleted IS NULL"
    [(total, oldest, newest, characters, occurrences)] = await tx.fetch(
        f"SELECT count(*), min(happened), max(happened), sum(length(content)), sum(occurrences) {live_clause}"
    )
    types = await tx.fetch(f"SELECT memory_type, count(*) {live_clause} GROUP BY memory_type ORDER BY 2 DESC, 1")
    tags = await tx.fetch(
        f"""SELECT t.tag, count(*) FROM tags t JOIN memories m ON m.scope = t.scope AND m.id = t.memory
            WHERE t.scope IN ({visible}) AND m.deleted IS NULL GROUP BY t.tag ORDER BY 2 DESC, 1"""
    )
    counters = ", ".join(f"count(CASE WHEN happened >= :since{i} THEN 1 END)" for i in range(len(ages)))
    starts = {f"since{i}": start for i, start in enumerate(ages.values())}
    [cumulative_counts] = await tx.fetch(f"SELECT {counters} {live_clause}", **starts)
    by_age = [int(count) - int(before) for before, count in pairwise([0, *cumulative_counts, total])]
    by_kind = await count_by_kind(tx, scope)
    [(projects,)] = await tx.fetch("SELECT count(DISTINCT name) FROM scopes")
    return {
        "memories": int(total),
        "events": by_kind.get("event", 0),
        "tasks": by_kind.get("task", 0),
        "entities": by_kind.get("entity", 0),
        "observations": by_kind.get("observation", 0),
        "relations": await _count_relations(tx, scope),
        "patterns": by_kind.get("pattern", 0),
        "skills": by_kind.get("skill", 0),
        "by_kind": by_kind,
        "forgotten": await _count_forgotten(tx, scope),
        "by_type": {memory_type: int(count) for memory_type, count in types},
        "memories_by_age": dict(zip([*ages, "older"], by_age, strict=True)),
        "tags": len(tags),
        "most_used_tags": {tag: int(count) for tag, count in tags[:MAX_TOP_TAGS]},
        "projects": int(projects),
        "characters": int(characters or 0),
        "occurrences": int(occurrences or 0),
        "oldest": oldest,
        "newest": newest,
    }


async def count_by_kind(tx: Transaction, scope: Scope) -> dict[str, int]:
    """Count the live rows of each kind that a project can see; observations count as a kind of their own."""
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
        visible = join_ids(await scopes.fetch_visible_ids(tx, scope.with_kind("entity")))
        [(observations,)] = await tx.fetch(
            f"SELECT count(*) FROM memories WHERE scope IN ({visible}) AND session IS NOT NULL AND deleted IS NULL"
        )
        counts["entity"] -= int(observations)
        counts["observation"] = int(observations)
    return {kind: counts[kind] for kind in sorted(counts) if counts[kind] or kind in dict(rows)}


async def _count_forgotten(tx: Transaction, scope: Scope) -> int:
    """Count the rows that were forgotten or merged away and can come back; an undone creation does not count."""
    own_scopes = join_ids(await scopes.fetch_project_ids(tx, scope))
    count_sql = f"SELECT count(*) FROM memories WHERE scope IN ({own_scopes})"
    # Two counts that an index answers tell cheaply whether there are deleted rows at all.
    [(deleted,)] = await tx.fetch(f"SELECT ({count_sql}) - ({count_sql} AND deleted IS NULL)")
    if not deleted:
        return 0
    [(count,)] = await tx.fetch(
        f"""SELECT count(*) FROM memories m WHERE m.scope IN ({own_scopes}) AND m.deleted IS NOT NULL AND EXISTS
              (SELECT 1 FROM history h WHERE h.scope = m.scope AND h.memory = m.id AND h.undone = 0
               AND h.action IN ('forgotten', 'merged away'))"""
    )
    return int(count)


async def _count_relations(tx: Transaction, scope: Scope) -> int:
    visible = join_ids(await scopes.fetch_visible_ids(tx, scope.with_kind("entity")))
    [(count,)] = await tx.fetch(f"SELECT count(*) FROM relations WHERE scope IN ({visible}) AND removed IS NULL")
    return int(count)
