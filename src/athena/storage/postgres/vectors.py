"""Search by meaning on PostgreSQL, with pgvector.

A passage keeps its vector as half floats. A small project is scanned in full, so that nothing is missed; a large one
is searched with an HNSW graph, which goes on until it has met enough passages of this project.
"""

import random
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from athena.core import memory_limit
from athena.core.values import Kind, ModelNames
from athena.storage.arrays import (
    MAX_COMPARED_EACH,
    MAX_TOKEN_PASSAGES,
    build_token_sets,
    find_nearest_pairs,
    merge_unique,
    multiply_on_one_thread,
    select_best,
    split_speaker_flags,
)
from athena.storage.database import RankingFeatures, TextMatches, TokenSets, Transaction, VectorMatches
from athena.storage.filters import Filter, build_where_clause
from athena.storage.passages import (
    MEMORY_SCOPES_FIRST,
    PASSAGE_IDS_PER_SCOPE,
    fetch_model_id,
    fetch_model_ids,
    get_passage_scope_id,
    list_incomparable_conditions,
    list_scope_conditions,
)
from athena.storage.postgres.formats import (
    format_code,
    format_vector,
    pack_column,
    parse_vector,
    to_array_literal,
    unpack_cosines,
    unpack_numbers,
)
from athena.storage.postgres.selection import HnswIndex, PostgresSelection, estimate_passages, load_sample

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids

MAX_SCANNED_PASSAGES = 20_000  # of a project that is scanned and not searched with the graph
SAMPLE_LEASE_S = 60.0  # how long a sample is used
MAX_SAMPLES = 8  # kept, of 0.8 MB each
MAX_EF_SEARCH = 1_000  # pgvector's own limit
MAX_GRAPH_HITS = 200  # of a graph: those behind them are shown only for their words, which find them anyway
MIN_SHARE = 50  # nearest memories that each of several models contributes
MAX_SCAN_TUPLES = 40_000  # passages, also of other projects, that a search of the graph may visit
MAX_COMPARED_PASSAGES = 20_000  # of each scope, when duplicates are searched pair by pair
NO_COSINE = -2.0  # of a memory without a vector that can be compared; ranking guesses it
CLAIM_LEASE_S = 60.0  # after which another process may claim a passage that still has no vector


class PostgresVectorIndex:
    schema = (
        "CREATE SEQUENCE passage_numbers",
        "ALTER TABLE passages ADD COLUMN claimed DOUBLE PRECISION",
        # The first few in this order are a fair sample of a scope, however large it is.
        "CREATE INDEX passages_sampled ON passages (scope, model, hashint8(id)) WHERE live = 1",
    )

    def __init__(self) -> None:
        self._samples: dict[tuple[object, ...], tuple[Floats, float]] = {}  # with the time until which they are used
        self.missing_index: HnswIndex | None = None  # that a search would have used
        self.mixed = False  # a model has vectors of two sizes; not checked before one is met, because that costs time

    # --- writes -------------------------------------------------------------------------------------------------------

    async def reserve_ids(self, tx: Transaction, scope: int, count: int) -> Sequence[int]:
        rows = await tx.fetch("SELECT nextval('passage_numbers') FROM generate_series(1, :count)", count=count)
        return [scope * PASSAGE_IDS_PER_SCOPE + row[0] for row in rows]

    async def add_passages(self, tx: Transaction, passages: Iterable[dict[str, Any]]) -> None:
        # Two transactions that begin one session at once do not see each other's memory. Both insert the same row into
        # `commits` here, so that one of them fails and is run again.
        await tx.execute_many(
            """WITH begun AS (
                   INSERT INTO commits (token)
                   SELECT left(encode(sha256(convert_to(m.scope || '/' || m.session, 'UTF8')), 'hex'), 32)::uuid
                   FROM memories m WHERE m.scope = :scope AND m.id = :memory AND :begins = 1
                   ON CONFLICT DO NOTHING)
               INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                     stamp, model, code)
               VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                       0, :model, :code::halfvec)""",
            ({**passage, "code": format_code(passage["code"])} for passage in passages),
        )

    async def set_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        model_id = await self.register_model(tx, model)
        await tx.execute_many(
            # A claim that is gone means that `mark_stale` met a new neighbour meanwhile: the vector stays stale.
            """UPDATE passages SET model = :model, code = :code::halfvec, claimed = NULL,
                   windowed = CASE WHEN claimed IS NULL THEN windowed ELSE 1 END
               WHERE scope = :scope AND id = :id""",
            (
                {"model": model_id, "code": format_code(code), "scope": get_passage_scope_id(passage), "id": passage}
                for passage, code in passages
            ),
        )

    async def replace_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], models: ModelNames) -> None:
        known = await fetch_model_ids(tx, models)
        model_id = known.current or await self.register_model(tx, models.current)
        await tx.execute_many(
            f"""UPDATE passages SET model = :model, code = :code::halfvec
                WHERE scope = :scope AND id = :id AND model IN ({", ".join(map(str, known.compatible)) or "NULL"})""",
            (
                {"model": model_id, "code": format_code(code), "scope": get_passage_scope_id(passage), "id": passage}
                for passage, code in passages
            ),
        )

    async def mark_stale(self, tx: Transaction, passage: int) -> None:
        await tx.execute(
            "UPDATE passages SET windowed = 0, claimed = NULL WHERE scope = :scope AND id = :id",
            scope=get_passage_scope_id(passage),
            id=passage,
        )

    async def set_tokens(self, tx: Transaction, passages: Iterable[tuple[int, bytes]]) -> None:
        await tx.execute_many(  # SELECT: not for a passage that was removed while the model read it
            """INSERT INTO tokens (passage, scope, signs) SELECT id, scope, :signs FROM passages
               WHERE scope = :scope AND id = :passage
               ON CONFLICT (scope, passage) DO UPDATE SET signs = excluded.signs""",
            (
                {"passage": passage, "scope": get_passage_scope_id(passage), "signs": signs}
                for passage, signs in passages
            ),
        )

    async def register_model(self, tx: Transaction, name: str) -> int:
        if (known := await fetch_model_id(tx, name)) is not None:
            return known
        return int((await tx.fetch_required("INSERT INTO models (name) VALUES (:name) RETURNING id", name=name))[0])

    async def set_visible(self, tx: Transaction, scope: int, memories: list[int], live: bool) -> None:
        await tx.execute(
            "UPDATE passages SET live = :live WHERE scope = :scope AND memory = ANY(:memories::bigint[])",
            live=int(live),
            scope=scope,
            memories=to_array_literal(memories),
        )

    async def retire_passages(self, tx: Transaction, scope: int, memory: int) -> None:
        await tx.execute(
            """WITH gone AS (DELETE FROM passages WHERE scope = :scope AND memory = :memory RETURNING id)
               DELETE FROM tokens WHERE scope = :scope AND passage IN (SELECT id FROM gone)""",
            scope=scope,
            memory=memory,
        )

    async def delete_retired(self, tx: Transaction) -> None:
        """Do nothing: `retire_passages` deletes the rows at once, because no process caches them."""

    async def claim_passages(
        self, tx: Transaction, models: ModelNames, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        ids: list[int] = []
        needs = (*list_incomparable_conditions(await fetch_model_ids(tx, models)), "windowed = 0")
        for condition in (f"{need} AND scope {scope}" for scope in list_scope_conditions(kind) for need in needs):
            rows = await tx.fetch(
                f"""UPDATE passages SET claimed = :now WHERE (scope, id) IN (
                        SELECT scope, id FROM passages
                        WHERE live = 1 AND {condition} AND (claimed IS NULL OR claimed < :ended)
                        LIMIT :limit FOR UPDATE SKIP LOCKED)
                    RETURNING id""",
                now=now,
                ended=now - CLAIM_LEASE_S,
                limit=limit - len(ids),
            )
            ids += [row[0] for row in rows]
            if len(ids) >= limit:
                break
        return sorted(ids)

    async def pick_outdated(self, tx: Transaction, models: ModelNames, limit: int) -> list[int]:
        # Not claimed: an update of each row would add it to the graph of the earlier model once more.
        outdated = [f"model = {number}" for number in (await fetch_model_ids(tx, models)).compatible]
        start = random.randrange(-(2**31), 2**31)
        for condition in (f"{which} AND scope {scope}" for scope in MEMORY_SCOPES_FIRST for which in outdated):
            first = await tx.fetch_one(f"SELECT scope, model FROM passages WHERE live = 1 AND {condition} LIMIT 1")
            if first is None:
                continue
            for side in (">=", "<"):
                rows = await tx.fetch(
                    f"""SELECT id FROM passages WHERE live = 1 AND scope = :scope AND model = :model
                            AND hashint8(id) {side} {start} ORDER BY hashint8(id) LIMIT :limit""",
                    scope=first[0],
                    model=first[1],
                    limit=limit,
                )
                if rows:
                    return sorted(row[0] for row in rows)
        return []

    # --- counts and checks --------------------------------------------------------------------------------------------

    async def find_problems(self, tx: Transaction) -> list[str]:
        rows = await tx.fetch(
            """SELECT p.id FROM passages p JOIN (SELECT model, max(vector_dims(code)) AS size FROM passages
                   WHERE code IS NOT NULL GROUP BY model) d ON d.model = p.model
               WHERE p.live = 1 AND vector_dims(p.code) <> d.size LIMIT 20"""
        )
        return [f"passage {row[0]} has a vector of the wrong size" for row in rows]

    # --- searches -----------------------------------------------------------------------------------------------------

    async def select_candidates(
        self, tx: Transaction, memory_filter: Filter, scope_ids: list[int], models: ModelNames, dimensions: int
    ) -> PostgresSelection:
        memory_limit.check_room("numpy", memory_limit.NUMPY_BYTES, "search")
        tallies = tx.begin_fetch(
            """SELECT coalesce(sum(memories), 0)::bigint, coalesce(sum(passages), 0)::bigint,
                      coalesce(sum(words), 0)::bigint FROM tallies WHERE scope = ANY(:scopes::bigint[])""",
            scopes=to_array_literal(scope_ids),
        )
        known = await fetch_model_ids(tx, models)
        earlier = [number for number in known.compatible if await _has_vectors(tx, scope_ids, number)]
        [(total, passages, words)] = await tallies
        query, values = "", dict[str, Any]()
        if not memory_filter.is_unrestricted:
            condition, values = build_where_clause(memory_filter, scope_ids)
            query = f"SELECT m.id FROM memories m WHERE {condition}"
            (total,) = await tx.fetch_required(f"SELECT count(*) FROM ({query}) AS chosen", **values)
        ids, has_others = (known.current, *earlier), bool(known.others)
        return PostgresSelection(
            scope_ids, total, passages, words, query, values, ids, has_others, dimensions, self.mixed
        )

    async def search_nearest(
        self,
        tx: Transaction,
        selection: PostgresSelection,
        vector: "Floats",
        limit: int,
        text_matches: TextMatches | None,
    ) -> VectorMatches:
        import numpy as np  # slow to load

        mean, deviation = await self._estimate_spread(tx, selection, vector)
        found_by_text = text_matches.memories if text_matches else np.zeros(0, np.int64)
        # A filtered project is scanned if its memories, with some passages each, are few enough.
        passages = selection.passages
        is_small = min(passages, selection.total * 4 if selection.memory_query else passages) <= MAX_SCANNED_PASSAGES
        is_full = limit > MAX_EF_SEARCH or limit == selection.total  # all memories are wanted, not the nearest
        if is_small or is_full:
            memories, _ = await _scan_passages(tx, selection, vector, limit)
        else:
            memories, _ = await self._search_models(tx, selection, vector, min(limit, MAX_GRAPH_HITS))
        candidates = merge_unique(memories, found_by_text)
        cosines, features = await _describe_memories(tx, selection, vector, candidates)
        return VectorMatches(candidates, cosines, mean, deviation, features)

    async def _estimate_spread(
        self, tx: Transaction, selection: PostgresSelection, vector: "Floats"
    ) -> tuple[float, float]:
        """Return the mean and the deviation of the cosines of all passages, from a sample read once a minute."""
        size = selection.passages if selection.passages < MAX_SCANNED_PASSAGES // 4 else selection.passages // 1000
        key = (*selection.scopes, size, selection.models, selection.dimensions)
        sample, until = self._samples.get(key, (None, 0.0))
        if sample is None or until < time.monotonic():
            if len(self._samples) >= MAX_SAMPLES:
                self._samples.clear()
            sample = await load_sample(tx, selection)
            self._samples[key] = sample, time.monotonic() + SAMPLE_LEASE_S
        cosines = multiply_on_one_thread(sample, vector / max(float((vector * vector).sum()) ** 0.5, 1e-9))
        return (float(cosines.mean()), float(cosines.std()) or 1.0) if len(cosines) else (0.0, 1.0)

    async def _search_models(
        self, tx: Transaction, selection: PostgresSelection, vector: "Floats", limit: int
    ) -> "tuple[Ids, Floats]":
        """Search the graph of each model for its share of the limit, so that two take no longer than one."""
        import numpy as np  # slow to load

        if len(selection.models) == 1:
            return await self._search_graph(tx, selection, vector, limit, is_current=True)
        parts = selection.split_models()
        counts = [await estimate_passages(tx, part) for part in parts]
        hits = []
        for part, count in zip(parts, counts, strict=True):
            share = max(MIN_SHARE, -(-limit * count // max(1, sum(counts))))
            if count <= MAX_SCANNED_PASSAGES // 4:  # the graph of an earlier model has mostly dead entries in the end
                hits.append(await _scan_passages(tx, part, vector, share))
            else:
                hits.append(await self._search_graph(tx, part, vector, share, is_current=part is parts[0]))
        return np.concatenate([memories for memories, _ in hits]), np.concatenate([cosines for _, cosines in hits])

    async def _search_graph(
        self, tx: Transaction, selection: PostgresSelection, vector: "Floats", limit: int, *, is_current: bool
    ) -> "tuple[Ids, Floats]":
        """Search the graph of one model; scan if it is not built, or did not find enough."""
        index = HnswIndex(selection.models[0], selection.dimensions)
        # Local to this transaction. Sorting is off so that the planner never prefers to read all rows.
        is_built = index.is_supported and await tx.fetch_one(
            f"""SELECT set_config('hnsw.ef_search', '{max(limit, 100)}', true),
                       set_config('hnsw.iterative_scan', 'relaxed_order', true),
                       set_config('hnsw.max_scan_tuples', '{MAX_SCAN_TUPLES}', true),
                       set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true)
                FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid""",
            name=index.name,
        )
        if not is_built:
            if is_current and index.model:  # that of an earlier model is not worth building
                self.missing_index = index if index.is_supported else None
            return await _scan_passages(tx, selection, vector, limit)
        passes = f" AND p.memory IN ({selection.memory_query})" if selection.memory_query else ""
        distance = f"p.code::halfvec({selection.dimensions}) <=> :vector::halfvec({selection.dimensions})"
        row = await tx.fetch_required(
            f"""SELECT {pack_column("memory")}, {pack_column("far", "float8")} FROM (
                    SELECT p.memory, {distance} AS far FROM passages p
                    WHERE {selection._replace(mixed=True).ready_condition}{passes}
                    ORDER BY {distance} LIMIT :limit) AS found""",
            vector=format_vector(vector),
            limit=limit,
            **selection.values,
        )
        await tx.execute("SELECT set_config('enable_sort', 'on', true), set_config('enable_seqscan', 'on', true)")
        hits = unpack_cosines(row)
        return await _scan_passages(tx, selection, vector, limit) if len(hits[0]) < limit else hits

    async def load_features(self, tx: Transaction, selection: PostgresSelection, memories: "Ids") -> RankingFeatures:
        return (await _describe_memories(tx, selection, None, memories))[1]

    async def score_feedback(
        self, tx: Transaction, selection: PostgresSelection, memories: "Ids", first: int
    ) -> "Floats":
        import numpy as np  # slow to load

        rows = await tx.fetch(
            f"""SELECT DISTINCT ON (p.memory) halfvec_send(p.code) FROM passages p
                WHERE {selection.ready_condition} AND p.memory = ANY(:memories::bigint[]) ORDER BY p.memory, p.id""",
            memories=to_array_literal(memories[:first].tolist()),
        )
        rows = [row for row in rows if selection.has_vector_size(row)]
        scores = np.zeros(len(memories), np.float32)
        if not rows:
            return scores
        leaders = np.stack([parse_vector(row[0]) for row in rows])
        centre = (leaders / np.linalg.norm(leaders, axis=1, keepdims=True)).mean(axis=0)
        mean, deviation = await self._estimate_spread(tx, selection, centre)
        order = np.argsort(memories)
        cosines, _ = await _describe_memories(tx, selection, centre, memories[order])
        scores[order] = np.where(cosines > NO_COSINE, (cosines - mean) / deviation, 0)
        return scores

    async def load_tokens(
        self, tx: Transaction, selection: PostgresSelection, memories: "Ids", vector: "Floats", matches: TextMatches
    ) -> TokenSets:
        import numpy as np  # slow to load

        sides = ", ".join(
            f"""ARRAY(SELECT n.id FROM passages n WHERE n.scope = p.scope AND n.session = p.session AND n.live = 1
                      AND n.id {side} p.id ORDER BY n.id {order} LIMIT 2)"""
            for side, order in (("<", "DESC"), (">", "ASC"))
        )
        fits = selection.model_condition if selection.has_others else "TRUE"
        query = f"""SELECT p.id, p.memory, {sides}, CASE WHEN {fits} THEN t.signs END
                    FROM passages p LEFT JOIN tokens t ON t.scope = p.scope AND t.passage = p.id
                    WHERE p.scope IN ({selection.scope_list}) AND p.live = 1"""
        listed = to_array_literal(memories.tolist())
        limit = MAX_TOKEN_PASSAGES + 1
        rows = await tx.fetch(f"{query} AND p.memory = ANY(:ids::bigint[]) LIMIT {limit}", ids=listed)
        if len(rows) == limit:
            best = await _select_token_passages(tx, selection, listed, vector, matches)
            rows = await tx.fetch(f"{query} AND p.id = ANY(:ids::bigint[])", ids=best)
        if not rows:
            return TokenSets.empty()
        neighbours = np.full((len(rows), 5), -1, np.int64)
        signs = {}
        for at, (passage, _, before, after, own) in enumerate(rows):
            signs[passage] = own
            neighbours[at, 0] = passage
            neighbours[at, [1, 3][: len(before)]] = before
            neighbours[at, [2, 4][: len(after)]] = after
        if others := sorted(set(neighbours[neighbours >= 0].tolist()) - signs.keys()):
            signs |= await tx.fetch(
                f"""SELECT t.passage, t.signs FROM tokens t JOIN passages p ON p.scope = t.scope AND p.id = t.passage
                    WHERE t.scope IN ({selection.scope_list}) AND t.passage = ANY(:passages::bigint[]) AND {fits}""",
                passages=to_array_literal(others),
            )
        positions = {memory: at for at, memory in enumerate(memories.tolist())}
        owners = np.array([positions[row[1]] for row in rows], np.int64)
        return build_token_sets({passage: bytes(own) for passage, own in signs.items() if own}, neighbours, owners)

    async def find_similar_pairs(
        self, tx: Transaction, selection: PostgresSelection, threshold: float
    ) -> list[tuple[int, int, float]]:
        import numpy as np  # slow to load

        pairs: list[tuple[int, int, float]] = []
        for scope in selection.scopes:
            rows = await tx.fetch(
                f"""SELECT memory, halfvec_send(code) FROM (
                        SELECT p.*, row_number() OVER (PARTITION BY p.memory ORDER BY p.id) AS number FROM passages p
                        WHERE p.scope = :scope AND p.live = 1 AND {selection.model_condition}) AS counted
                    WHERE number <= {MAX_COMPARED_EACH} ORDER BY id DESC LIMIT :limit""",
                scope=scope,
                limit=MAX_COMPARED_PASSAGES,
            )
            rows = [row for row in rows if selection.has_vector_size(row)]
            if rows:
                owners = np.array([row[0] for row in rows], np.int64)
                pairs += find_nearest_pairs(owners, np.stack([parse_vector(row[1]) for row in rows]), threshold)
        return pairs


async def _has_vectors(tx: Transaction, scope_ids: list[int], model: int) -> bool:
    return None is not await tx.fetch_one(
        "SELECT 1 FROM passages WHERE live = 1 AND model = :model AND scope = ANY(:scopes::bigint[]) LIMIT 1",
        model=model,
        scopes=to_array_literal(scope_ids),
    )


async def _select_token_passages(
    tx: Transaction, selection: PostgresSelection, memories: str, vector: "Floats", matches: TextMatches
) -> str:
    """Return the passages of memories that are nearest by vector and words; both as arrays of SQL."""
    distance = f"CASE WHEN {selection.model_condition} THEN p.code <=> :vector::halfvec ELSE 1 END"
    columns = pack_column("p.id"), pack_column(distance, "float8"), pack_column("p.memory")
    row = await tx.fetch_required(
        f"""SELECT {", ".join(columns)} FROM passages p
            WHERE p.scope IN ({selection.scope_list}) AND p.memory = ANY(:memories::bigint[]) AND p.live = 1""",
        memories=memories,
        vector=format_vector(vector),
    )
    passages, nearness = unpack_cosines(row)
    best = select_best(unpack_numbers(row[2]), nearness + matches.score_passages(passages), MAX_TOKEN_PASSAGES)
    return to_array_literal(passages[best].tolist())


async def _scan_passages(
    tx: Transaction, selection: PostgresSelection, vector: "Floats", limit: int
) -> "tuple[Ids, Floats]":
    """Compare all passages, and return the nearest memories."""
    passes = f" AND p.memory IN ({selection.memory_query})" if selection.memory_query else ""
    distances = (
        f"SELECT p.memory, p.code <=> :vector::halfvec AS far FROM passages p WHERE {selection.ready_condition}{passes}"
    )
    if selection.memory_query or selection.passages > selection.total:  # else each memory has one passage
        distances = f"SELECT memory, min(far) AS far FROM ({distances}) AS compared GROUP BY memory"
    row = await tx.fetch_required(
        f"""SELECT {pack_column("memory")}, {pack_column("far", "float8")} FROM (
                {distances} ORDER BY far LIMIT :limit) AS nearest""",
        vector=format_vector(vector),
        limit=limit,
        **selection.values,
    )
    return unpack_cosines(row)


async def _describe_memories(
    tx: Transaction, selection: PostgresSelection, vector: "Floats | None", memories: "Ids"
) -> "tuple[Floats, RankingFeatures]":
    """Return the cosines of sorted memories, each by its best passage (NO_COSINE without one), and their features."""
    import numpy as np  # slow to load

    far = f"CASE WHEN {selection.model_condition} THEN p.code <=> :vector::halfvec END"
    values = {} if vector is None else {"vector": format_vector(vector)}
    columns = ", ".join(pack_column(name) for name in ("memory", "n", "voice", "session"))
    row = await tx.fetch_required(
        f"""SELECT {columns}, {pack_column("far", "float8")} FROM (
                SELECT p.memory, count(*) AS n, max(p.voice) AS voice, max(p.session) AS session,
                       coalesce(min({far if values else "NULL::float8"}), {1 - NO_COSINE}) AS far FROM passages p
                WHERE p.scope IN ({selection.scope_list}) AND p.memory = ANY(:memories::bigint[]) AND p.live = 1
                GROUP BY p.memory) AS described""",
        memories=to_array_literal(memories.tolist()),
        **values,
    )
    owners, counts, owner_voices, owner_sessions = (unpack_numbers(value) for value in row[:4])
    at = np.searchsorted(memories, owners)
    sizes, voices, sessions = np.ones(len(memories), np.float32), np.zeros(len(memories), np.int64), memories.copy()
    sizes[at], voices[at], sessions[at] = counts, owner_voices, owner_sessions
    cosines = np.full(len(memories), NO_COSINE, np.float32)
    cosines[at] = 1 - unpack_numbers(row[4], ">f8")
    return cosines, RankingFeatures(sizes, *split_speaker_flags(voices), sessions)
