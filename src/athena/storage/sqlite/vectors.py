"""Search by meaning on SQLite, with vectors in memory.

Each passage keeps its vector as signed bytes in its row; a vector cache holds those of a project. The token signs are
in a table of their own, because they are read only for the few memories that are ranked to the end.
"""

import random
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from athena.core import memory_limit
from athena.core.values import Kind, ModelNames
from athena.storage.arrays import (
    MAX_COMPARED_EACH,
    MAX_TOKEN_PASSAGES,
    build_token_sets,
    find_nearest_pairs,
    merge_unique,
    select_best,
    sort_unique,
    split_speaker_flags,
)
from athena.storage.database import RankingFeatures, TextMatches, TokenSets, Transaction, VectorMatches, Work
from athena.storage.filters import Filter, bind_list, build_where_clause, split_batches
from athena.storage.passages import (
    MEMORY_SCOPES_FIRST,
    PASSAGE_IDS_PER_SCOPE,
    fetch_model_id,
    fetch_model_ids,
    list_incomparable_conditions,
    list_scope_conditions,
)
from athena.storage.sqlite import vector_blocks
from athena.storage.sqlite.vector_cache import PassageChanges, VectorCache

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from athena.storage.database import Floats, Ids

SPREAD_SAMPLE_PASSAGES = 512  # from which the spread of all cosines is estimated
MIN_RESCORED_MEMORIES = 600  # how many of those with the best signs are scored exactly, at least
MAX_PICK_OFFSET = 10_000  # up to which outdated passages are picked by chance, so that processes pick different ones
MAX_COMPARED_PASSAGES = 20_000  # of each scope, when duplicates are searched pair by pair
MAX_KEPT_TOKEN_BYTES = 8 << 20
KEPT_TOKENS_BYTES = 250  # of an entry, besides its signs
SELECTION_SQL = """SELECT (SELECT value FROM counters WHERE name = 'purges'),
        (SELECT value FROM counters WHERE name = 'stamp'), (SELECT coalesce(sum(passages), 0) FROM scopes)"""
WRONG_SIZE_SQL = """SELECT p.id FROM passages p JOIN (SELECT model, max(length(code)) AS size FROM passages
        WHERE code IS NOT NULL GROUP BY model) d ON d.model = p.model
    WHERE p.live = 1 AND length(p.code) <> d.size LIMIT 20"""


class SqliteSelection(NamedTuple):
    """The vector caches that a search may use, and the rows of each that pass its filter (None: all live ones)."""

    scopes: list[int]
    caches: list[VectorCache]
    allowed: "list[NDArray[numpy.bool_] | None]"
    total: int
    stamp: int  # of the last write that this transaction sees
    everywhere: int  # passages of all projects, with those that a purge has removed


class KeptTokens:
    """The token signs that searches have read, kept for the next ones.

    Whatever writes signs leaves a stamp on their passage: what is kept counts as of the last change of the passage.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # By passage, with the stamp of its last change. Once half of the space is full, what was read before it goes.
        self._kept: dict[int, tuple[int, bytes]] = {}
        self._earlier: dict[int, tuple[int, bytes]] = {}
        self._size = 0

    async def load(self, tx: Transaction, passages: dict[int, int], stamp: int) -> dict[int, bytes]:
        """Return the signs of passages that have any, given the stamps of their last changes and of the transaction."""
        kept, earlier = self._kept, self._earlier
        signs = {passage: kept.get(passage) or earlier.get(passage, (-1, b"")) for passage in passages}
        for batch in split_batches([passage for passage, change in passages.items() if signs[passage][0] != change]):
            read = await _read_tokens(tx, batch)
            signs |= (entries := {passage: (passages[passage], read.get(passage, b"")) for passage in batch})
            with self._guard:
                for passage, (change, blob) in entries.items():
                    if change <= stamp:  # else it was made after this transaction began, which does not see it
                        self._kept[passage] = change, blob
                        self._size += KEPT_TOKENS_BYTES + len(blob)
                if self._size > MAX_KEPT_TOKEN_BYTES // 2:
                    self._kept, self._earlier, self._size = {}, self._kept, 0
        return {passage: blob for passage, (_, blob) in signs.items() if blob}


async def _read_tokens(tx: Transaction, passages: list[int]) -> dict[int, bytes]:
    names, bound = bind_list("id", passages)
    # As one row: the driver lets other threads run at each, which costs more than the row if they wait for it.
    ids, sizes, joined = await tx.fetch_required(
        f"""SELECT group_concat(passage), group_concat(length(signs)), CAST(group_concat(signs, '') AS BLOB)
            FROM tokens WHERE passage IN ({names}) AND length(signs) > 0""",
        **bound,
    )
    signs: dict[int, bytes] = {}
    end = 0
    for passage, size in zip(ids.split(","), sizes.split(","), strict=True) if ids else ():
        start, end = end, end + int(size)
        signs[int(passage)] = joined[start:end]
    return signs


class SqliteVectorIndex:
    def __init__(self) -> None:
        self._caches: dict[tuple[int, ModelNames, int], VectorCache] = {}
        self._changed_rows: dict[tuple[int, ModelNames, int], int] = {}  # since blocks were written or due
        self._due_blocks: dict[int, Work[None]] = {}  # by scope: writes the blocks that a later process begins with
        self._guard = threading.Lock()
        self.kept_tokens = KeptTokens()

    # --- writes -------------------------------------------------------------------------------------------------------

    async def reserve_ids(self, tx: Transaction, scope: int, count: int) -> Sequence[int]:
        await tx.execute("UPDATE scopes SET passages = passages + :count WHERE id = :id", id=scope, count=count)
        (used,) = await tx.fetch_required("SELECT passages FROM scopes WHERE id = :id", id=scope)
        return range(scope * PASSAGE_IDS_PER_SCOPE + used - count, scope * PASSAGE_IDS_PER_SCOPE + used)

    async def add_passages(self, tx: Transaction, passages: Iterable[dict[str, Any]]) -> None:
        stamp = await _next_stamp(tx)
        await tx.execute_many(
            """INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                     stamp, model, code)
               VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                       :stamp, :model, :code)""",
            ({"stamp": stamp, **passage} for passage in passages),
        )

    async def retire_passages(self, tx: Transaction, scope: int, memory: int) -> None:
        """Empty the rows of a memory's passages; the vector caches of all processes then drop them too."""
        values = {"scope": scope, "memory": memory}
        ids = "SELECT id FROM passages WHERE scope = :scope AND memory = :memory"
        await tx.execute(f"DELETE FROM tokens WHERE passage IN ({ids})", **values)
        await tx.execute(
            """UPDATE passages SET memory = 0, live = 0, code = NULL, model = NULL, stamp = :stamp
               WHERE scope = :scope AND memory = :memory""",
            stamp=await _next_stamp(tx),
            **values,
        )

    async def delete_retired(self, tx: Transaction) -> None:
        """Delete the emptied rows, and make all vector caches start anew."""
        await tx.execute("DELETE FROM passages WHERE memory = 0")
        await tx.execute("DELETE FROM vector_blocks")  # they may repeat vectors of removed texts
        await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'purges'")

    async def set_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        await self._update_vectors(tx, passages, model, "windowed = 1 WHERE id = :id")

    async def replace_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], models: ModelNames) -> None:
        ids = ", ".join(map(str, (await fetch_model_ids(tx, models)).compatible)) or "NULL"
        condition = f"windowed = windowed WHERE id = :id AND model IN ({ids})"
        await self._update_vectors(tx, passages, models.current, condition)

    async def _update_vectors(
        self, tx: Transaction, passages: Iterable[tuple[int, bytes]], model: str, rest_of_sql: str
    ) -> None:
        model_id = await self.register_model(tx, model)
        stamp = await _next_stamp(tx)
        await tx.execute_many(
            f"UPDATE passages SET model = :model, code = :code, stamp = :stamp, {rest_of_sql}",
            ({"model": model_id, "code": code, "stamp": stamp, "id": passage} for passage, code in passages),
        )

    async def mark_stale(self, tx: Transaction, passage: int) -> None:
        await tx.execute("UPDATE passages SET windowed = 0 WHERE id = :id", id=passage)

    async def set_tokens(self, tx: Transaction, passages: Iterable[tuple[int, bytes]]) -> None:
        await tx.execute_many(  # SELECT: not for a passage that was removed while the model read it
            """INSERT INTO tokens (passage, scope, signs) SELECT id, scope, :signs FROM passages
               WHERE id = :passage AND memory <> 0
               ON CONFLICT (passage) DO UPDATE SET signs = excluded.signs""",
            ({"passage": passage, "signs": signs} for passage, signs in passages),
        )

    async def register_model(self, tx: Transaction, name: str) -> int:
        if (known := await fetch_model_id(tx, name)) is not None:
            return known
        await tx.execute("INSERT INTO models (name) VALUES (:name)", name=name)
        return await fetch_model_id(tx, name) or 0

    async def set_visible(self, tx: Transaction, scope: int, memories: list[int], live: bool) -> None:
        names, bound = bind_list("memory", memories)
        stamp = await _next_stamp(tx)
        await tx.execute(
            f"UPDATE passages SET live = :live, stamp = :stamp WHERE scope = :scope AND memory IN ({names})",
            live=int(live),
            scope=scope,
            stamp=stamp,
            **bound,
        )

    async def claim_passages(
        self, tx: Transaction, models: ModelNames, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        """Return passages without a comparable vector, then stale ones; SQLite has no claims."""
        needs = (*list_incomparable_conditions(await fetch_model_ids(tx, models)), "windowed = 0 AND model IS NOT NULL")
        ids: dict[int, None] = {}
        for condition in (f"{need} AND scope {scope}" for scope in list_scope_conditions(kind) for need in needs):
            rows = await tx.fetch(f"SELECT id FROM passages WHERE live = 1 AND {condition} LIMIT :limit", limit=limit)
            ids |= {row[0]: None for row in rows}
            if len(ids) >= limit:
                break
        return list(ids)[:limit]

    async def pick_outdated(self, tx: Transaction, models: ModelNames, limit: int) -> list[int]:
        outdated = [f"model = {number}" for number in (await fetch_model_ids(tx, models)).compatible]
        for condition in (f"{which} AND scope {scope}" for scope in MEMORY_SCOPES_FIRST for which in outdated):
            offset = random.randrange(MAX_PICK_OFFSET)
            while True:
                rows = await tx.fetch(
                    f"SELECT id FROM passages WHERE live = 1 AND {condition} LIMIT :limit OFFSET :offset",
                    limit=limit,
                    offset=offset,
                )
                if rows:
                    return [row[0] for row in rows]
                if not offset:
                    break
                offset //= 2
        return []

    def take_due_blocks(self) -> dict[int, Work[None]]:
        """Return for each scope whose blocks are due the work that writes them, once."""
        if not self._due_blocks:
            return {}
        with self._guard:
            due, self._due_blocks = self._due_blocks, {}
        return due

    # --- counts and checks --------------------------------------------------------------------------------------------

    async def find_problems(self, tx: Transaction) -> list[str]:
        rows = await tx.fetch(WRONG_SIZE_SQL)
        problems = [f"passage {row[0]} has a vector of the wrong size" for row in rows]
        return problems or await vector_blocks.find_problems(tx)

    # --- searches -----------------------------------------------------------------------------------------------------

    async def select_candidates(
        self, tx: Transaction, memory_filter: Filter, scope_ids: list[int], models: ModelNames, dimensions: int
    ) -> SqliteSelection:
        memory_limit.check_room("numpy", memory_limit.NUMPY_BYTES, "search")
        import numpy as np  # slow to load

        purges, stamp, everywhere = await tx.fetch_required(SELECTION_SQL)
        caches = [await self._load_cache(tx, one, models, dimensions, purges, stamp) for one in scope_ids]
        if memory_filter.is_unrestricted:
            allowed = [None if cache.live_rows == cache.rows else cache.live for cache in caches]
            return SqliteSelection(scope_ids, caches, allowed, sum(c.live_memories for c in caches), stamp, everywhere)
        condition, values = build_where_clause(memory_filter, scope_ids)
        row = await tx.fetch_required(f"SELECT group_concat(m.id) FROM memories m WHERE {condition}", **values)
        chosen = np.fromstring(row[0] or "", np.int64, sep=",")
        last = max((int(cache.memories.max(initial=0)) for cache in caches), default=0)
        passes = np.zeros(last + 1, bool)
        passes[chosen[chosen <= last]] = True
        return SqliteSelection(
            scope_ids, caches, [passes[c.memories] & c.live for c in caches], len(chosen), stamp, everywhere
        )

    async def search_nearest(
        self,
        tx: Transaction,
        selection: SqliteSelection,
        vector: "Floats",
        limit: int,
        text_matches: TextMatches | None,
    ) -> VectorMatches:
        import numpy as np  # slow to load

        hits: list[tuple[Ids, Floats]] = []
        samples = []
        text_groups = text_matches.engine_groups if text_matches else [np.zeros(0, np.int64)] * len(selection.caches)
        for cache, allowed, found_by_text in zip(selection.caches, selection.allowed, text_groups, strict=True):
            samples.append(await _sample_cosines(tx, cache, vector))
            usable = cache.ready if allowed is None else cache.ready & allowed
            nearest = cache.find_nearest_groups(usable, vector, max(limit, MIN_RESCORED_MEMORIES))
            groups = merge_unique(nearest, found_by_text)
            best = await cache.best_cosines(tx, groups, usable, vector)
            chosen = best > -1
            if chosen.sum() > limit:
                is_found = np.zeros(len(cache.owners), bool)
                is_found[found_by_text] = True
                chosen &= (best >= np.partition(best, -limit)[-limit]) | is_found[groups]
            hits.append((cache.owners[groups[chosen]], best[chosen]))
        spread = np.concatenate(samples)
        mean, deviation = (float(spread.mean()), float(spread.std())) if len(spread) else (0.0, 1.0)
        memories, cosines = (np.concatenate(part) for part in zip(*hits, strict=True))
        return VectorMatches(memories, cosines, mean, deviation or 1.0)

    async def load_features(self, tx: Transaction, selection: SqliteSelection, memories: "Ids") -> RankingFeatures:
        import numpy as np  # slow to load

        sizes, voices, sessions = np.ones(len(memories), np.float32), np.zeros(len(memories), np.int64), memories.copy()
        for cache in selection.caches:
            if not cache.rows:
                continue
            groups = cache.find_groups(memories)
            known = groups >= 0
            sizes[known] = cache.sizes[groups[known]]
            first = cache.starts[groups[known]]
            voices[known], sessions[known] = cache.voices[first], cache.sessions[first]
        return RankingFeatures(sizes, *split_speaker_flags(voices), sessions)

    async def score_feedback(
        self, tx: Transaction, selection: SqliteSelection, memories: "Ids", first: int
    ) -> "Floats":
        import numpy as np  # slow to load

        groups_by_cache = [
            cache.find_groups(memories) if cache.rows else np.full(len(memories), -1) for cache in selection.caches
        ]
        first_rows = [
            (cache, cache.starts[groups[:first][groups[:first] >= 0]])
            for cache, groups in zip(selection.caches, groups_by_cache, strict=True)
        ]
        codes = [await cache.load_codes(tx, rows[cache.ready[rows]]) for cache, rows in first_rows]
        leaders = np.concatenate(codes).astype(np.float32)
        leaders = leaders[leaders.any(axis=1)]
        if not len(leaders):
            return np.zeros(len(memories), np.float32)
        centre = (leaders / np.linalg.norm(leaders, axis=1, keepdims=True)).mean(axis=0)
        centre /= np.linalg.norm(centre)
        cosines = np.full(len(memories), -1, np.float32)
        for cache, groups in zip(selection.caches, groups_by_cache, strict=True):
            cosines[groups >= 0] = await cache.best_cosines(tx, groups[groups >= 0], cache.ready, centre)
        spread = np.concatenate([await _sample_cosines(tx, cache, centre) for cache in selection.caches])
        scores: Floats = np.where(cosines > -1, (cosines - spread.mean()) / (spread.std() or 1.0), 0).astype(np.float32)
        return scores

    async def load_tokens(
        self, tx: Transaction, selection: SqliteSelection, memories: "Ids", vector: "Floats", matches: TextMatches
    ) -> TokenSets:
        import numpy as np  # slow to load

        owners, neighbours, passages = [], [], dict[int, int]()
        for cache in selection.caches:
            if not cache.rows:
                continue
            groups = cache.find_groups(memories)
            rows, positions = cache.list_group_rows(groups[groups >= 0])
            live = cache.live[rows]
            rows, positions = rows[live], np.flatnonzero(groups >= 0)[positions[live]]
            if len(rows) > MAX_TOKEN_PASSAGES:
                nearness = cache.count_equal_signs(vector, rows) / len(vector)
                best = select_best(
                    positions, nearness + matches.score_passages(cache.passages[rows]), MAX_TOKEN_PASSAGES
                )
                rows, positions = rows[best], positions[best]
            windows = _find_neighbours(cache, rows)
            owners.append(positions)
            neighbours.append(np.where(windows >= 0, cache.passages[np.maximum(windows, 0)], -1))
            unique = sort_unique(windows[windows >= 0])
            unique = unique[cache.ready[unique]]  # the rest has signs of another model
            passages |= dict(zip(cache.passages[unique].tolist(), cache.changes[unique].tolist(), strict=True))
        if not owners:
            return TokenSets.empty()
        signs = await self.kept_tokens.load(tx, passages, selection.stamp)
        return build_token_sets(signs, np.concatenate(neighbours), np.concatenate(owners))

    async def find_similar_pairs(
        self, tx: Transaction, selection: SqliteSelection, threshold: float
    ) -> list[tuple[int, int, float]]:
        import numpy as np  # slow to load

        pairs: list[tuple[int, int, float]] = []
        for cache in selection.caches:
            position_in_memory = np.arange(cache.rows) - np.repeat(cache.starts, cache.sizes)
            rows = cache.ready_rows[position_in_memory[cache.ready_rows] < MAX_COMPARED_EACH][-MAX_COMPARED_PASSAGES:]
            pairs += find_nearest_pairs(cache.memories[rows], await cache.load_codes(tx, rows), threshold)
        return pairs

    async def _load_cache(
        self, tx: Transaction, scope: int, models: ModelNames, dimensions: int, purges: int, stamp: int
    ) -> VectorCache:
        """Return the scope's vector cache as of this transaction, or later."""
        key = scope, models, dimensions
        cache = self._caches.get(key)
        if cache is not None and (cache.purges, cache.stamp) == (purges, stamp):
            return cache
        comparable = (await fetch_model_ids(tx, models)).comparable
        block_format = vector_blocks.BlockFormat.create(comparable, dimensions)
        is_damaged = False
        if cache is None or cache.purges != purges:
            cache = VectorCache(scope, dimensions, purges)
            if blocks_stamp := await vector_blocks.fetch_stamp(tx, scope, purges, block_format):
                packed = await vector_blocks.read_cache(tx, scope, blocks_stamp, purges, dimensions)
                cache, is_damaged = packed or cache, packed is None
        changes = await _read_changes(tx, cache, scope) if cache.stamp != stamp else None
        if changes is not None:
            cache = cache.apply_changes(changes, comparable)
        with self._guard:
            self._changed_rows[key] = self._changed_rows.get(key, 0) + (0 if changes is None else len(changes.passages))
            if is_damaged or (self._changed_rows[key] >= vector_blocks.MIN_CHANGED_ROWS and dimensions):
                self._changed_rows[key] = 0
                self._due_blocks[scope] = partial(vector_blocks.write_blocks, cache, scope, block_format, is_damaged)
            current = self._caches.get(key)
            if current is None or (current.purges, current.stamp) < (cache.purges, cache.stamp):
                self._caches[key] = cache
        return cache


async def _next_stamp(tx: Transaction) -> int:
    # Not RETURNING: after it SQLite makes FTS5 flush, which costs fifteen times as much as a second statement.
    await tx.execute("UPDATE counters SET value = value + 1 WHERE name = 'stamp'")
    return int((await tx.fetch_required("SELECT value FROM counters WHERE name = 'stamp'"))[0])


async def _read_changes(tx: Transaction, cache: VectorCache, scope: int) -> PassageChanges | None:
    """Read the passages that changed since a cache was built, in columns: rows would cost five times as much."""
    import numpy as np  # slow to load

    where = "id BETWEEN :first AND :last" if not cache.stamp else "scope = :scope AND stamp > :stamp"
    values = {"first": cache.first, "last": cache.last, "scope": scope, "stamp": cache.stamp}
    names = ("id", "memory", "words", "live", "stamp", "coalesce(model, -1)", "session", "voice")
    columns = ", ".join(f"group_concat({name})" for name in names)
    row = await tx.fetch_required(f"SELECT {columns} FROM (SELECT * FROM passages WHERE {where} ORDER BY id)", **values)
    if row[0] is None:
        return None
    codes = await tx.fetch(f"SELECT code FROM passages WHERE {where} ORDER BY id", **values)
    columns_read = (np.fromstring(text, np.int64, sep=",") for text in row)
    passages, memories, word_counts, live, stamps, models, sessions, voices = columns_read
    return PassageChanges(
        passages, memories, word_counts, live, stamps, models, sessions, voices, [code for (code,) in codes]
    )


async def _sample_cosines(tx: Transaction, cache: VectorCache, vector: "Floats") -> "Floats":
    """Return the cosines of passages from all over a cache, as a sample of all."""
    rows = cache.ready_rows
    return await cache.compute_cosines(tx, rows[:: max(1, len(rows) // SPREAD_SAMPLE_PASSAGES)], vector)


def _find_neighbours(cache: VectorCache, rows: "Ids") -> "NDArray[Any]":
    """Return each row with those one and two before and after it: five columns, -1 for none."""
    import numpy as np  # slow to load

    none = np.full(len(rows), -1)
    if cache.neighbours is None:
        return np.stack([rows, none, none, none, none], axis=1)
    previous, following = cache.neighbours
    before, after = previous[rows], following[rows]
    two_before = np.where(before >= 0, previous[before], -1)
    two_after = np.where(after >= 0, following[after], -1)
    return np.stack([rows, before, after, two_before, two_after], axis=1)
