"""SQL of a project's statistics, from kept counts and the ends of indexes: they cost the same in any store."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from athena.core.values import Scope
from athena.memory.rows import join_ids, note_scope_marks
from athena.storage import counts, scopes
from athena.storage.database import Transaction
from athena.storage.filters import bind_list

MAX_TOP_TAGS = 10


async def compute_statistics(tx: Transaction, scope: Scope, ages: Mapping[str, float]) -> dict[str, Any]:
    """Count the rows that a project can see; `ages` maps names of periods to their start, the latest first."""
    scope_ids = await scopes.fetch_visible_ids(tx, scope)
    await note_scope_marks(tx, scope_ids)
    types, tags = await counts.fetch_types(tx, scope_ids), await counts.fetch_tags(tx, scope_ids)
    total = sum(count.memories for count in types)
    oldest, newest = await _fetch_period(tx, scope_ids)
    cumulative_counts = [await counts.count_since(tx, scope_ids, start) for start in ages.values()]
    by_age = [count - before for before, count in pairwise([0, *cumulative_counts, total])]
    by_kind = await count_by_kind(tx, scope)
    [(projects,)] = await tx.fetch("SELECT count(DISTINCT name) FROM scopes")
    return {
        "memories": total,
        "events": by_kind.get("event", 0),
        "tasks": by_kind.get("task", 0),
        "entities": by_kind.get("entity", 0),
        "observations": by_kind.get("observation", 0),
        "relations": await _count_relations(tx, scope),
        "patterns": by_kind.get("pattern", 0),
        "skills": by_kind.get("skill", 0),
        "by_kind": by_kind,
        "forgotten": await _count_forgotten(tx, scope),
        "by_type": {count.memory_type: count.memories for count in types},
        "memories_by_age": dict(zip([*ages, "older"], by_age, strict=True)),
        "tags": len(tags),
        "most_used_tags": dict(tags[:MAX_TOP_TAGS]),
        "projects": int(projects),
        "characters": sum(count.characters for count in types),
        "occurrences": sum(count.occurrences for count in types),
        "oldest": oldest,
        "newest": newest,
    }


async def _fetch_period(tx: Transaction, scope_ids: list[int]) -> tuple[float | None, float | None]:
    """Return when the oldest and the newest memory happened; each end of the index is one lookup."""
    ends = []
    for scope_id in scope_ids:
        for end in ("min", "max"):
            query = f"SELECT {end}(happened) FROM memories WHERE scope = :scope AND deleted IS NULL"
            ends.append((await tx.fetch_required(query, scope=scope_id))[0])
    times = [at for at in ends if at is not None]
    return min(times, default=None), max(times, default=None)


async def count_by_kind(tx: Transaction, scope: Scope) -> dict[str, int]:
    """Count the live rows of each kind that a project can see; observations count as a kind of their own."""
    names, bound = bind_list("name", scope.visible_projects)
    rows = await tx.fetch(f"SELECT kind, id FROM scopes WHERE name IN ({names}) ORDER BY kind", **bound)
    live = await counts.fetch_live_counts(tx, [scope_id for _, scope_id in rows])
    numbers: Counter[str] = Counter()
    for kind, scope_id in rows:
        memories, in_session = live.get(scope_id, (0, 0))
        numbers[kind] += memories
        if kind == "entity" and memories:  # an observation has its entity as its session
            numbers["entity"] -= in_session
            numbers["observation"] += in_session
    kinds = {kind for kind, _ in rows}
    return {kind: numbers[kind] for kind in sorted(numbers) if numbers[kind] or kind in kinds}


async def _count_forgotten(tx: Transaction, scope: Scope) -> int:
    """Count the rows that were forgotten or merged away and can come back; an undone creation does not count."""
    own_scopes = join_ids(await scopes.fetch_project_ids(tx, scope))
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
