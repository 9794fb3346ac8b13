"""Find memories that say nearly the same."""

from dataclasses import dataclass

from athena.core.values import Scope
from athena.memory import rows
from athena.memory.store import Store
from athena.memory.values import Memory
from athena.storage import scopes
from athena.storage.database import Transaction
from athena.storage.filters import Filter


@dataclass(frozen=True, slots=True)
class Group:
    """Memories that are alike, the newest first, and how alike the least alike pair that joins them is."""

    likeness: float
    memories: tuple[Memory, ...]


async def find_groups(store: Store, scope: Scope, threshold: float, limit: int) -> list[Group]:
    """Join pairs that are at least this alike into groups."""

    async def group_pairs(tx: Transaction) -> list[Group]:
        encoder, vectors = store.encoder, store.database.vectors
        scope_ids = await scopes.fetch_visible_ids(tx, scope)
        candidates = await vectors.select_candidates(tx, Filter(scope), scope_ids, encoder.models, encoder.dimensions)
        pairs = sorted(await vectors.find_similar_pairs(tx, candidates, threshold), key=lambda pair: -pair[2])
        parents: dict[int, int] = {}
        likeness: dict[int, float] = {}
        for memory_id, other_id, cosine in pairs:
            root, other_root = _find_root(parents, memory_id), _find_root(parents, other_id)
            if root != other_root:
                parents[other_root] = root
            likeness[root] = min(cosine, likeness.get(root, 1.0), likeness.get(other_root, 1.0))
        groups: dict[int, list[int]] = {}
        for memory_id in parents:
            groups.setdefault(_find_root(parents, memory_id), []).append(memory_id)
        best = sorted(groups, key=lambda root: -likeness[root])[:limit]
        ids = [memory_id for root in best for memory_id in groups[root]]
        memories = await rows.fetch_memories(tx, candidates.scopes, ids)
        return [
            Group(
                round(likeness[root], 4),
                tuple(memories[i] for i in sorted(groups[root], reverse=True) if i in memories),
            )
            for root in best
        ]

    return await store.database.read(group_pairs)


def _find_root(parents: dict[int, int], memory_id: int) -> int:
    """Return the root of a memory's group, and shorten the path to it (union-find)."""
    parents.setdefault(memory_id, memory_id)
    while parents[memory_id] != memory_id:
        parents[memory_id] = parents[parents[memory_id]]
        memory_id = parents[memory_id]
    return memory_id
