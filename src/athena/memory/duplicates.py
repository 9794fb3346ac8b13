"""Finding memories that say nearly the same."""

from dataclasses import dataclass

from athena.core.values import Scope
from athena.memory import rows
from athena.memory.store import Store
from athena.memory.values import Memory
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
        among = await vectors.select_candidates(tx, Filter(scope), encoder.name, encoder.dimensions)
        pairs = sorted(await vectors.find_similar_pairs(tx, among, threshold), key=lambda pair: -pair[2])
        leader: dict[int, int] = {}
        likeness: dict[int, float] = {}
        for one, other, cosine in pairs:
            a, b = _find_root(leader, one), _find_root(leader, other)
            if a != b:
                leader[b] = a
            likeness[a] = min(cosine, likeness.get(a, 1.0), likeness.get(b, 1.0))
        groups: dict[int, list[int]] = {}
        for number in leader:
            groups.setdefault(_find_root(leader, number), []).append(number)
        best = sorted(groups, key=lambda head: -likeness[head])[:limit]
        found = await rows.fetch_memories(tx, among.scopes, [number for head in best for number in groups[head]])
        return [
            Group(round(likeness[head], 4), tuple(found[n] for n in sorted(groups[head], reverse=True) if n in found))
            for head in best
        ]

    return await store.database.read(group_pairs)


def _find_root(leader: dict[int, int], number: int) -> int:
    """Follow a memory to the head of its group, shortening the way."""
    leader.setdefault(number, number)
    while leader[number] != number:
        leader[number] = leader[leader[number]]
        number = leader[number]
    return number
