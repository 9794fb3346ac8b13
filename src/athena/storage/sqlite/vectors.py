"""Finding passages by their meaning.

On SQLite each passage keeps its vector as signed bytes beside its text, and the signs of its tokens in a table of
their own: those are read only for the few memories that are ranked to the end.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core.values import Kind
from athena.storage import scopes
from athena.storage.arrays import build_token_sets, find_nearest_pairs, merge_unique, sort_unique
from athena.storage.database import RankingFeatures, TextMatches, TokenSets, VectorMatches
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches
from athena.storage.passages import IN_MEMORY_SCOPES, PASSAGE_IDS_PER_SCOPE, get_passage_scope_id, list_scope_conditions
from athena.storage.sqlite.vector_cache import PassageChanges, VectorCache

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

SPREAD_SAMPLE_PASSAGES = 512  # passages from which the spread of all cosines is estimated
MIN_RESCORED_MEMORIES = 600  # memories that are scored exactly, of those whose signs agree best
MAX_COMPARED_PASSAGES = 20_000  # passages that are compared pair by pair when duplicates are looked for


class SqliteSelection(NamedTuple):
    """The shelves a question may look at, and on each the rows that pass its filter (None: all live ones)."""

    scopes: list[int]
    caches: list[VectorCache]
    allowed: list[Any]
    total: int


class SqliteVectorIndex:
    schema = ()

    def __init__(self) -> None:
        self._caches: dict[tuple[int, str, int], VectorCache] = {}
        self._guard = threading.Lock()

    async def reserve_ids(self, tx: Any, scope: int, count: int) -> Sequence[int]:
        await tx.execute("UPDATE scopes SET passages = passages + :count WHERE id = :id", id=scope, count=count)
        (used,) = await tx.fetch_one("SELECT passages FROM scopes WHERE id = :id", id=scope)
        return range(scope * PASSAGE_IDS_PER_SCOPE + used - count, scope * PASSAGE_IDS_PER_SCOPE + used)

    async def add_passages(self, tx: Any, passages: Iterable[dict[str, Any]]) -> None:
        stamp = await next_stamp(tx)
        for passage in passages:
            await tx.execute(
                """INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                         stamp, model, code)
                   VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                           :stamp, :model, :code)""",
                stamp=stamp,
                **passage,
            )

    async def retire_passages(self, tx: Any, scope: int, memory: int) -> None:
        """Let go of a memory's passages; the empty rows tell every search in memory to drop them too."""
        values = {"scope": scope, "memory": memory}
        which = "SELECT id FROM passages WHERE scope = :scope AND memory = :memory"
        await tx.execute(f"DELETE FROM tokens WHERE passage IN ({which})", **values)
        await tx.execute(
            """UPDATE passages SET memory = 0, live = 0, code = NULL, model = NULL, stamp = :stamp
               WHERE scope = :scope AND memory = :memory""",
            stamp=await next_stamp(tx),
            **values,
        )

    async def delete_retired(self, tx: Any) -> None:
        """Delete the empty rows; searches read everything again after this."""
        await tx.execute("DELETE FROM passages WHERE memory = 0")
        await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'purges'")

    async def set_vectors(self, tx: Any, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        number = await self.register_model(tx, model)
        stamp = await next_stamp(tx)
        for passage, code in passages:
            await tx.execute(
                "UPDATE passages SET model = :model, code = :code, stamp = :stamp, windowed = 1 WHERE id = :id",
                model=number,
                code=code,
                stamp=stamp,
                id=passage,
            )

    async def mark_stale(self, tx: Any, passage: int) -> None:
        await tx.execute("UPDATE passages SET windowed = 0 WHERE id = :id", id=passage)

    async def set_tokens(self, tx: Any, passages: Iterable[tuple[int, bytes]]) -> None:
        for passage, signs in passages:
            await tx.execute(
                """INSERT INTO tokens (passage, scope, signs) VALUES (:passage, :scope, :signs)
                   ON CONFLICT (passage) DO UPDATE SET signs = excluded.signs""",
                passage=passage,
                scope=get_passage_scope_id(passage),
                signs=signs,
            )

    async def set_visible(self, tx: Any, scope: int, memory: int, live: bool) -> None:
        """Let searches see a memory's passages, or not."""
        stamp = await next_stamp(tx)
        await tx.execute(
            "UPDATE passages SET live = :live, stamp = :stamp WHERE scope = :scope AND memory = :memory",
            live=int(live),
            scope=scope,
            stamp=stamp,
            memory=memory,
        )

    async def claim_passages(
        self, tx: Any, model: str, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        """Return passages without a vector of this model, then those that were read without their neighbours."""
        number = await self._find_model(tx, model) or 0
        needed = ("model IS NULL", f"model < {number}", f"model > {number}", "windowed = 0 AND model IS NOT NULL")
        taken: dict[int, None] = {}
        for needs in (f"{one} AND scope {of}" for of in list_scope_conditions(kind) for one in needed):
            which = f"SELECT id FROM passages WHERE live = 1 AND {needs} LIMIT :limit"
            taken |= {row[0]: None for row in await tx.fetch(which, limit=limit)}
            if len(taken) >= limit:
                break
        return list(taken)[:limit]

    async def count_stale(self, tx: Any) -> int:
        """Count the passages whose vectors do not know their neighbours yet."""
        row = await tx.fetch_one("SELECT count(*) FROM passages WHERE live = 1 AND windowed = 0")
        return int(row[0])

    async def has_missing(self, tx: Any) -> bool:
        """Tell whether any passage has no vector, or one read without its neighbours; cheap after every write."""
        missing = "SELECT 1 FROM passages WHERE live = 1 AND model IS NULL LIMIT 1"
        behind = "SELECT 1 FROM passages WHERE live = 1 AND windowed = 0 LIMIT 1"
        return await tx.fetch_one(missing) is not None or await tx.fetch_one(behind) is not None

    async def count_pending(self, tx: Any, model: str, *, memories: bool = False) -> int:
        number = await self._find_model(tx, model) or 0
        needs = ("model IS NULL", f"model < {number}", f"model > {number}")  # each has an index
        which = f"live = 1 AND scope {IN_MEMORY_SCOPES}" if memories else "live = 1"
        row = await tx.fetch_one(
            "SELECT " + " + ".join(f"(SELECT count(*) FROM passages WHERE {which} AND {one})" for one in needs)
        )
        return int(row[0])

    async def select_candidates(self, tx: Any, only: Filter, model: str, dimensions: int) -> SqliteSelection:
        import numpy as np

        numbers = await scopes.fetch_visible_ids(tx, only.scope)
        shelves = [await self._load_cache(tx, i, model, dimensions) for i in numbers]
        if only.is_unrestricted:
            total = sum(shelf.live_memories for shelf in shelves)
            return SqliteSelection(
                numbers, shelves, [None if s.live_rows == s.rows else s.live for s in shelves], total
            )
        condition, values = build_where_clause(only, numbers)
        row = await tx.fetch_one(f"SELECT group_concat(m.id) FROM memories m WHERE {condition}", **values)
        chosen = np.fromstring(row[0] or "", np.int64, sep=",")
        last = max((int(s.memories.max(initial=0)) for s in shelves), default=0)
        passes = np.zeros(last + 1, bool)
        passes[chosen[chosen <= last]] = True
        return SqliteSelection(numbers, shelves, [passes[s.memories] & s.live for s in shelves], len(chosen))

    async def search_nearest(
        self, tx: Any, among: SqliteSelection, vector: "Floats", limit: int, also: TextMatches | None
    ) -> VectorMatches:
        import numpy as np

        found: list[tuple[Any, Any]] = []
        sampled = []
        named = also.engine_groups if also else [np.zeros(0, np.int64)] * len(among.caches)
        for shelf, allowed, places in zip(among.caches, among.allowed, named, strict=True):
            sampled.append(_sample_cosines(shelf, vector))
            usable = shelf.ready if allowed is None else shelf.ready & allowed
            groups = merge_unique(shelf.find_nearest_groups(usable, vector, max(limit, MIN_RESCORED_MEMORIES)), places)
            best = shelf.best_cosines(groups, usable, vector)
            kept = best > -1
            if kept.sum() > limit:
                kept &= (best >= np.partition(best, -limit)[-limit]) | np.isin(groups, places, kind="sort")
            found.append((shelf.owners[groups[kept]], best[kept]))
        spread = np.concatenate(sampled)
        mean, deviation = (float(spread.mean()), float(spread.std())) if len(spread) else (0.0, 1.0)
        numbers, cosines = (np.concatenate(part) for part in zip(*found, strict=True))
        return VectorMatches(numbers, cosines, mean, deviation or 1.0)

    async def load_features(self, tx: Any, among: SqliteSelection, memories: "Ids") -> RankingFeatures:
        """Return how long each memory is and who speaks, as far as the shelves know."""
        import numpy as np

        sizes, voices, sessions = np.ones(len(memories), np.float32), np.zeros(len(memories), np.int64), memories.copy()
        for shelf in among.caches:
            if not shelf.rows:
                continue
            groups = shelf.find_groups(memories)
            here = groups >= 0
            sizes[here] = shelf.sizes[groups[here]]
            first = shelf.starts[groups[here]]
            voices[here], sessions[here] = shelf.voices[first], shelf.sessions[first]
        return RankingFeatures(sizes, (voices & 1).astype(np.float32), (voices >> 1 & 1).astype(np.float32), sessions)

    async def score_feedback(self, tx: Any, among: SqliteSelection, memories: "Ids", first: int) -> "Floats":
        """Return how close memories are to the middle of the first few, in deviations from the mean of all."""
        import numpy as np

        places = [shelf.find_groups(memories) if shelf.rows else np.full(len(memories), -1) for shelf in among.caches]
        leaders = [
            shelf.codes[shelf.starts[groups[:first][groups[:first] >= 0]]].astype(np.float32)
            for shelf, groups in zip(among.caches, places, strict=True)
        ]
        known = np.concatenate(leaders)
        known = known[known.any(axis=1)]
        if not len(known):
            return np.zeros(len(memories), np.float32)
        middle = (known / np.linalg.norm(known, axis=1, keepdims=True)).mean(axis=0)
        middle /= np.linalg.norm(middle)
        near = np.full(len(memories), -1, np.float32)
        for shelf, groups in zip(among.caches, places, strict=True):
            near[groups >= 0] = shelf.best_cosines(groups[groups >= 0], shelf.ready, middle)
        spread = np.concatenate([_sample_cosines(shelf, middle) for shelf in among.caches])
        made: Floats = np.where(near > -1, (near - spread.mean()) / (spread.std() or 1.0), 0).astype(np.float32)
        return made

    async def load_tokens(self, tx: Any, among: SqliteSelection, memories: "Ids") -> TokenSets:
        """Return the tokens of these memories' passages and of up to two neighbours on each side."""
        import numpy as np

        owners, around, wanted = [], [], []
        for shelf in among.caches:
            if not shelf.rows:
                continue
            groups = shelf.find_groups(memories)
            rows, within = shelf.list_group_rows(groups[groups >= 0])
            shown = shelf.live[rows]
            rows, within = rows[shown], np.flatnonzero(groups >= 0)[within[shown]]
            places = _find_neighbours(shelf, rows)
            owners.append(within)
            around.append(np.where(places >= 0, shelf.passages[np.maximum(places, 0)], -1))
            wanted.append(shelf.passages[sort_unique(places[places >= 0])])
        if not owners:
            return TokenSets.empty()
        found = await _read_tokens(tx, [number for part in wanted for number in part.tolist()])
        return build_token_sets(found, np.concatenate(around), np.concatenate(owners))

    async def find_similar_pairs(
        self, tx: Any, among: SqliteSelection, threshold: float
    ) -> list[tuple[int, int, float]]:
        """Return each memory with the one most like it, if at least this much, among the newest of each scope."""
        pairs: list[tuple[int, int, float]] = []
        for shelf in among.caches:
            rows = shelf.ready_rows[-MAX_COMPARED_PASSAGES:]
            pairs += find_nearest_pairs(shelf.memories[rows], shelf.codes[rows], threshold)
        return pairs

    async def find_problems(self, tx: Any) -> list[str]:
        rows = await tx.fetch(WRONG_SIZE_SQL)
        return [f"passage {row[0]} has a vector of the wrong size" for row in rows]

    async def _load_cache(self, tx: Any, scope: int, model: str, dimensions: int) -> VectorCache:
        """Return the scope's shelf as of this transaction, or later."""
        key = scope, model, dimensions
        purges, stamp = [row[0] for row in await tx.fetch("SELECT value FROM counters ORDER BY name")]
        shelf = self._caches.get(key)
        if shelf is None or shelf.purges != purges:
            shelf = VectorCache(scope, dimensions, purges)
        if shelf.stamp == stamp:
            return shelf
        changed = await _read_changes(tx, shelf, scope)
        if changed is not None:
            shelf = shelf.apply_changes(changed, await self._find_model(tx, model))
        with self._guard:
            kept = self._caches.get(key)
            if kept is None or (kept.purges, kept.stamp) < (shelf.purges, shelf.stamp):
                self._caches[key] = shelf
        return shelf

    async def register_model(self, tx: Any, name: str) -> int:
        """Return a model's number, giving it one if it has none."""
        known = await self._find_model(tx, name)
        if known is None:
            await tx.execute("INSERT INTO models (name) VALUES (:name)", name=name)
            known = await self._find_model(tx, name)
        return int(known or 0)

    async def _find_model(self, tx: Any, name: str) -> int | None:
        row = await tx.fetch_one("SELECT id FROM models WHERE name = :name", name=name)
        return row[0] if row else None


async def _read_changes(tx: Any, shelf: VectorCache, scope: int) -> PassageChanges | None:
    """Read the passages that changed since a shelf was built, in columns: rows would cost five times as much."""
    import numpy as np

    where = "id BETWEEN :first AND :last" if not shelf.stamp else "scope = :scope AND stamp > :stamp"
    values = {"first": shelf.first, "last": shelf.last, "scope": scope, "stamp": shelf.stamp}
    names = ("id", "memory", "words", "live", "stamp", "coalesce(model, -1)", "session", "voice")
    columns = ", ".join(f"group_concat({name})" for name in names)
    row = await tx.fetch_one(f"SELECT {columns} FROM (SELECT * FROM passages WHERE {where} ORDER BY id)", **values)
    if row[0] is None:
        return None
    codes = await tx.fetch(f"SELECT code FROM passages WHERE {where} ORDER BY id", **values)
    ids, numbers, words, live, stamps, models, sessions, voices = (
        np.fromstring(text, np.int64, sep=",") for text in row
    )
    return PassageChanges(ids, numbers, words, live, stamps, models, sessions, voices, [code for (code,) in codes])


WRONG_SIZE_SQL = """SELECT p.id FROM passages p JOIN (SELECT model, max(length(code)) AS size FROM passages
        WHERE code IS NOT NULL GROUP BY model) d ON d.model = p.model
    WHERE p.live = 1 AND length(p.code) <> d.size LIMIT 20"""


async def next_stamp(tx: Any) -> int:
    # Not RETURNING: after it SQLite makes FTS5 flush, which costs fifteen times as much as asking.
    await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'stamp'")
    return int((await tx.fetch_one("SELECT value FROM counters WHERE name = 'stamp'"))[0])


def _sample_cosines(shelf: VectorCache, vector: "Floats") -> "Floats":
    """Return the cosines of passages all over a shelf, from which the spread of all is estimated."""
    every = shelf.ready_rows
    return shelf.compute_cosines(every[:: max(1, len(every) // SPREAD_SAMPLE_PASSAGES)], vector)


def _find_neighbours(shelf: VectorCache, rows: "Ids") -> "NDArray[Any]":
    """Return rows with those before and after them, one and two steps away: five columns, -1 for none."""
    import numpy as np

    none = np.full(len(rows), -1)
    if shelf.neighbours is None:
        return np.stack([rows, none, none, none, none], axis=1)
    before, after = shelf.neighbours
    one, other = before[rows], after[rows]
    two, others = np.where(one >= 0, before[one], -1), np.where(other >= 0, after[other], -1)
    return np.stack([rows, one, other, two, others], axis=1)


async def _read_tokens(tx: Any, passages: list[int]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for piece in split_batches(passages):
        names, bound = bind_list("id", piece)
        rows = await tx.fetch(f"SELECT passage, signs FROM tokens WHERE passage IN ({names})", **bound)
        found.update((number, signs) for number, signs in rows if signs)
    return found
