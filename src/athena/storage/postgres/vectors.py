"""Finding passages by their meaning, on PostgreSQL with pgvector.

A passage keeps its vector in two bytes a number. A small project is scanned in full, so nothing is missed; a large
one is searched by an HNSW graph that goes on until enough passages of this project have come by.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from athena.core.values import Kind
from athena.storage import scopes
from athena.storage.arrays import build_token_sets, find_nearest_pairs
from athena.storage.database import RankingFeatures, Row, TextMatches, TokenSets, VectorMatches
from athena.storage.filters import Filter, build_where_clause
from athena.storage.passages import IN_MEMORY_SCOPES, PASSAGE_IDS_PER_SCOPE, get_passage_scope_id, list_scope_conditions

if TYPE_CHECKING:
    from athena.storage.database import Floats, Ids


def pack_column(column: str, kind: str = "int8") -> str:
    """Gather a column in one value."""
    return f"string_agg({kind}send({column}), '')"


def unpack_numbers(value: bytes | None, kind: str = ">i8") -> Any:
    import numpy as np

    made = np.frombuffer(value or b"", kind)
    return made.astype(made.dtype.newbyteorder("="))


def to_array_literal(numbers: Iterable[int]) -> str:
    """Write numbers as an array; the driver would look at each number of a list three times."""
    return f"{{{','.join(map(str, numbers))}}}"


MAX_INDEX_DIMENSIONS = 4_000  # dimensions that pgvector can index
TRY_LOCK_SQL = "SELECT pg_try_advisory_lock(1098147941, %s)"  # "Athe", and the model's number
BUILD_MEMORY_SETTING = "512MB"  # a graph that does not fit takes many times as long to draw


class Graph(NamedTuple):
    model: int
    dimensions: int

    @property
    def name(self) -> str:
        return f"passages_near_{self.model}_{self.dimensions}"

    @property
    def is_supported(self) -> bool:
        return self.dimensions <= MAX_INDEX_DIMENSIONS

    async def is_built(self, tx: Any) -> bool:
        row = await tx.fetch_one(
            "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid", name=self.name
        )
        return row is not None

    def try_lock(self, connection: psycopg.Connection[Any]) -> bool:
        """Tell whether it is ours to draw: nobody else does, until this connection ends."""
        row = connection.execute(TRY_LOCK_SQL, [self.model]).fetchone()
        return bool(row and row[0])

    def build_index(self, connection: psycopg.Connection[Any]) -> None:
        """Draw it beside the work of others; what a broken attempt left is removed first."""
        row = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [self.name]
        ).fetchone()
        if row is not None and row[0]:
            return
        connection.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY_SETTING}'".encode())
        connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        if row is not None:
            connection.execute(f"DROP INDEX CONCURRENTLY {self.name}".encode())
        connection.execute(
            f"""CREATE INDEX CONCURRENTLY {self.name} ON passages
                USING hnsw ((code::halfvec({self.dimensions})) halfvec_cosine_ops)
                WHERE live = 1 AND model = {self.model} AND vector_dims(code) = {self.dimensions}""".encode()
        )


MAX_SCANNED_PASSAGES = 20_000  # passages that are scanned rather than looked up in the graph
SPREAD_SAMPLE_PASSAGES = 512  # passages from which the spread of all cosines is estimated
MAX_EF_SEARCH = 1_000  # pgvector's own limit for ef_search
MAX_SCAN_TUPLES = 40_000  # passages of other projects that a search of the graph may come by
MAX_COMPARED_PASSAGES = 20_000  # passages that are compared pair by pair when duplicates are looked for
CLAIM_LEASE_S = 60.0  # seconds in which a passage that was taken must get its vector


class PostgresSelection(NamedTuple):
    """What a question may look at: all live passages of some scopes, or those whose memories pass a filter."""

    scopes: list[int]
    total: int  # memories
    passages: int  # of the scopes, whatever the filter
    words: int
    memory_query: str  # a query for the memories that pass; empty where all do
    values: dict[str, Any]
    model: int
    dimensions: int
    mixed: bool  # vectors of this model may have other sizes

    @property
    def is_unfiltered(self) -> bool:
        return not self.memory_query

    @property
    def scope_list(self) -> str:
        return ", ".join(map(str, self.scopes)) or "NULL"

    @property
    def ready_condition(self) -> str:
        """Write as a condition on `p` what can be compared at all."""
        return f"p.scope IN ({self.scope_list}) AND p.live = 1 AND {self.model_condition}"

    @property
    def model_condition(self) -> str:
        """Write as a condition on `p` that its vector is of this model, and of its size where that changed."""
        return f"p.model = {self.model}" + (f" AND vector_dims(p.code) = {self.dimensions}" if self.mixed else "")

    def has_vector_size(self, row: Row) -> bool:
        """Tell whether a row ends with a vector of this size, as the server sends it."""
        return len(row[-1]) == 4 + 2 * self.dimensions


class PostgresVectorIndex:
    schema = (
        "CREATE SEQUENCE passage_numbers",
        "ALTER TABLE passages ADD COLUMN claimed DOUBLE PRECISION",
        # The first few in this order are a fair sample of a scope, however large it is.
        "CREATE INDEX passages_sampled ON passages (scope, model, hashint8(id)) WHERE live = 1",
    )

    def __init__(self) -> None:
        self.missing_index: Graph | None = None  # a graph that a search would have used
        self.mixed = False  # a model was found to have changed its size under the same name; to look costs time

    async def reserve_ids(self, tx: Any, scope: int, count: int) -> Sequence[int]:
        rows = await tx.fetch("SELECT nextval('passage_numbers') FROM generate_series(1, :count)", count=count)
        return [scope * PASSAGE_IDS_PER_SCOPE + row[0] for row in rows]

    async def add_passages(self, tx: Any, passages: Iterable[dict[str, Any]]) -> None:
        # Two that begin a session at once do not see each other; by what they leave here one of them is run again.
        await tx.each(
            """WITH begun AS (
                   INSERT INTO commits (token)
                   SELECT left(encode(sha256(convert_to(m.scope || '/' || m.session, 'UTF8')), 'hex'), 32)::uuid
                   FROM memories m WHERE m.scope = :scope AND m.id = :memory AND :begins = 1
                   ON CONFLICT DO NOTHING)
               INSERT INTO passages (id, scope, memory, start, length, words, session, voice, live, windowed,
                                     stamp, model, code)
               VALUES (:id, :scope, :memory, :start, :length, :words, :session, :voice, 1, :windowed,
                       0, :model, :code::halfvec)""",
            [{**passage, "code": _format_code(passage["code"])} for passage in passages],
        )

    async def set_vectors(self, tx: Any, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        number = await self.register_model(tx, model)
        await tx.each(
            # No longer claimed: a neighbour came while it was being read, so it has to be read once more.
            """UPDATE passages SET model = :model, code = :code::halfvec, claimed = NULL,
                   windowed = CASE WHEN claimed IS NULL THEN windowed ELSE 1 END
               WHERE scope = :scope AND id = :id""",
            [
                {"model": number, "code": _format_code(code), "scope": get_passage_scope_id(p), "id": p}
                for p, code in passages
            ],
        )

    async def mark_stale(self, tx: Any, passage: int) -> None:
        await tx.execute(
            "UPDATE passages SET windowed = 0, claimed = NULL WHERE scope = :scope AND id = :id",
            scope=get_passage_scope_id(passage),
            id=passage,
        )

    async def set_tokens(self, tx: Any, passages: Iterable[tuple[int, bytes]]) -> None:
        await tx.each(  # not those of a text that was removed while it was being read
            """INSERT INTO tokens (passage, scope, signs) SELECT id, scope, :signs FROM passages
               WHERE scope = :scope AND id = :passage
               ON CONFLICT (scope, passage) DO UPDATE SET signs = excluded.signs""",
            [{"passage": p, "scope": get_passage_scope_id(p), "signs": signs} for p, signs in passages],
        )

    async def register_model(self, tx: Any, name: str) -> int:
        known = await _find_model(tx, name)
        if known is None:
            (known,) = await tx.fetch_one("INSERT INTO models (name) VALUES (:name) RETURNING id", name=name)
        return int(known)

    async def set_visible(self, tx: Any, scope: int, memory: int, live: bool) -> None:
        await tx.execute(
            "UPDATE passages SET live = :live WHERE scope = :scope AND memory = :memory",
            live=int(live),
            scope=scope,
            memory=memory,
        )

    async def retire_passages(self, tx: Any, scope: int, memory: int) -> None:
        await tx.execute(
            """WITH gone AS (DELETE FROM passages WHERE scope = :scope AND memory = :memory RETURNING id)
               DELETE FROM tokens WHERE scope = :scope AND passage IN (SELECT id FROM gone)""",
            scope=scope,
            memory=memory,
        )

    async def delete_retired(self, tx: Any) -> None:
        """Nothing is left to drop: rows go at once, since nobody holds a copy of them."""

    async def claim_passages(
        self, tx: Any, model: str, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        number = await _find_model(tx, model) or 0
        taken: list[int] = []
        needed = ("model IS NULL", f"model < {number}", f"model > {number}", "windowed = 0")  # each has an index
        for needs in (f"{one} AND scope {of}" for of in list_scope_conditions(kind) for one in needed):
            rows = await tx.fetch(
                f"""UPDATE passages SET claimed = :now WHERE (scope, id) IN (
                        SELECT scope, id FROM passages
                        WHERE live = 1 AND {needs} AND (claimed IS NULL OR claimed < :ended)
                        LIMIT :limit FOR UPDATE SKIP LOCKED)
                    RETURNING id""",
                now=now,
                ended=now - CLAIM_LEASE_S,
                limit=limit - len(taken),
            )
            taken += [row[0] for row in rows]
            if len(taken) >= limit:
                break
        return sorted(taken)

    async def count_stale(self, tx: Any) -> int:
        return int((await tx.fetch_one("SELECT count(*) FROM passages WHERE live = 1 AND windowed = 0"))[0])

    async def has_missing(self, tx: Any) -> bool:
        missing = "SELECT 1 FROM passages WHERE live = 1 AND model IS NULL LIMIT 1"
        behind = "SELECT 1 FROM passages WHERE live = 1 AND windowed = 0 LIMIT 1"
        return await tx.fetch_one(missing) is not None or await tx.fetch_one(behind) is not None

    async def count_pending(self, tx: Any, model: str, *, memories: bool = False) -> int:
        number = await _find_model(tx, model) or 0
        needs = ("model IS NULL", f"model < {number}", f"model > {number}")
        which = f"live = 1 AND scope {IN_MEMORY_SCOPES}" if memories else "live = 1"
        counts = " + ".join(f"(SELECT count(*) FROM passages WHERE {which} AND {one})" for one in needs)
        return int((await tx.fetch_one(f"SELECT {counts}"))[0])

    async def find_problems(self, tx: Any) -> list[str]:
        rows = await tx.fetch(
            """SELECT p.id FROM passages p JOIN (SELECT model, max(vector_dims(code)) AS size FROM passages
                   WHERE code IS NOT NULL GROUP BY model) d ON d.model = p.model
               WHERE p.live = 1 AND vector_dims(p.code) <> d.size LIMIT 20"""
        )
        return [f"passage {row[0]} has a vector of the wrong size" for row in rows]

    async def select_candidates(self, tx: Any, only: Filter, model: str, dimensions: int) -> PostgresSelection:
        numbers = await scopes.fetch_visible_ids(tx, only.scope)
        number = await _find_model(tx, model) or 0
        total, passages, words = await tx.fetch_one(
            """SELECT coalesce(sum(memories), 0)::bigint, coalesce(sum(passages), 0)::bigint,
                      coalesce(sum(words), 0)::bigint FROM tallies WHERE scope = ANY(:scopes::bigint[])""",
            scopes=to_array_literal(numbers),
        )
        if only.is_unrestricted:
            return PostgresSelection(numbers, total, passages, words, "", {}, number, dimensions, self.mixed)
        condition, values = build_where_clause(only, numbers)
        chosen = f"SELECT m.id FROM memories m WHERE {condition}"
        (total,) = await tx.fetch_one(f"SELECT count(*) FROM ({chosen}) AS chosen", **values)
        return PostgresSelection(numbers, total, passages, words, chosen, values, number, dimensions, self.mixed)

    async def search_nearest(
        self, tx: Any, among: PostgresSelection, vector: "Floats", limit: int, also: TextMatches | None
    ) -> VectorMatches:
        import numpy as np

        mean, deviation = await _estimate_spread(tx, among, vector)
        named = also.memories if also else np.zeros(0, np.int64)
        small = min(among.passages, among.total * 4 if among.memory_query else among.passages) <= MAX_SCANNED_PASSAGES
        every = limit > MAX_EF_SEARCH or limit == among.total  # all memories are asked for, not the nearest passages
        found = None if small or every else await self._search_graph(tx, among, vector, limit)
        owners, cosines = found or await _scan_passages(tx, among, vector, limit)
        more, exact = await _compute_cosines(tx, among, vector, np.setdiff1d(named, owners))
        return VectorMatches(np.concatenate([owners, more]), np.concatenate([cosines, exact]), mean, deviation)

    async def _search_graph(
        self, tx: Any, among: PostgresSelection, vector: "Floats", limit: int
    ) -> "tuple[Ids, Floats] | None":
        """Search the graph; None if there is none yet, or if it did not find as many as there are."""
        graph = Graph(among.model, among.dimensions)
        if not graph.is_supported or not await graph.is_built(tx):
            self.missing_index = graph if graph.is_supported else None
            return None
        # Local to this transaction. Sorting is off so that the planner never prefers to read all.
        await tx.execute(
            f"""SELECT set_config('hnsw.ef_search', '{max(limit, 100)}', true),
                       set_config('hnsw.iterative_scan', 'relaxed_order', true),
                       set_config('hnsw.max_scan_tuples', '{MAX_SCAN_TUPLES}', true),
                       set_config('enable_sort', 'off', true), set_config('enable_seqscan', 'off', true)"""
        )
        only = f" AND p.memory IN ({among.memory_query})" if among.memory_query else ""
        near = f"p.code::halfvec({among.dimensions}) <=> :vector::halfvec({among.dimensions})"
        row = await tx.fetch_one(
            f"""SELECT {pack_column("memory")}, {pack_column("far", "float8")} FROM (
                    SELECT p.memory, {near} AS far FROM passages p
                    WHERE {among._replace(mixed=True).ready_condition}{only} ORDER BY {near} LIMIT :limit) AS found""",
            vector=_format_vector(vector),
            limit=limit,
            **among.values,
        )
        await tx.execute("SELECT set_config('enable_sort', 'on', true), set_config('enable_seqscan', 'on', true)")
        owners = unpack_numbers(row[0])
        if len(owners) < limit:
            return None
        return owners, 1 - unpack_numbers(row[1], ">f8").astype("f4")

    async def load_features(self, tx: Any, among: PostgresSelection, memories: "Ids") -> RankingFeatures:
        import numpy as np

        row = await tx.fetch_one(
            f"""SELECT {pack_column("memory")}, {pack_column("n")}, {pack_column("voice")}, {pack_column("session")} FROM (
                    SELECT p.memory, count(*) AS n, max(p.voice) AS voice, max(p.session) AS session FROM passages p
                    WHERE p.scope IN ({among.scope_list}) AND p.memory = ANY(:memories::bigint[]) AND p.live = 1
                    GROUP BY p.memory) AS described""",
            memories=to_array_literal(memories.tolist()),
        )
        owners, counts, voice, session = (unpack_numbers(value) for value in row)
        at = np.searchsorted(memories, owners)
        sizes, voices, sessions = np.ones(len(memories), np.float32), np.zeros(len(memories), np.int64), memories.copy()
        sizes[at], voices[at], sessions[at] = counts, voice, session
        return RankingFeatures(sizes, (voices & 1).astype(np.float32), (voices >> 1 & 1).astype(np.float32), sessions)

    async def score_feedback(self, tx: Any, among: PostgresSelection, memories: "Ids", first: int) -> "Floats":
        import numpy as np

        rows = await tx.fetch(
            f"""SELECT DISTINCT ON (p.memory) halfvec_send(p.code) FROM passages p
                WHERE {among.ready_condition} AND p.memory = ANY(:memories::bigint[]) ORDER BY p.memory, p.id""",
            memories=to_array_literal(memories[:first].tolist()),
        )
        rows = [row for row in rows if among.has_vector_size(row)]
        near = np.zeros(len(memories), np.float32)
        if not rows:
            return near
        known = np.stack([_parse_vector(row[0]) for row in rows])
        middle = (known / np.linalg.norm(known, axis=1, keepdims=True)).mean(axis=0)
        mean, deviation = await _estimate_spread(tx, among, middle)
        owners, cosines = await _compute_cosines(tx, among, middle, memories)
        order = np.argsort(memories)
        near[order[np.searchsorted(memories[order], owners)]] = (cosines - mean) / deviation
        return near

    async def load_tokens(self, tx: Any, among: PostgresSelection, memories: "Ids") -> TokenSets:
        import numpy as np

        sides = ", ".join(
            f"""ARRAY(SELECT n.id FROM passages n WHERE n.scope = p.scope AND n.session = p.session AND n.live = 1
                      AND n.id {side} p.id ORDER BY n.id {order} LIMIT 2)"""
            for side, order in (("<", "DESC"), (">", "ASC"))
        )
        rows = await tx.fetch(
            f"""SELECT p.id, p.memory, {sides} FROM passages p
                WHERE p.scope IN ({among.scope_list}) AND p.memory = ANY(:memories::bigint[]) AND p.live = 1""",
            memories=to_array_literal(memories.tolist()),
        )
        if not rows:
            return TokenSets.empty()
        around = np.full((len(rows), 5), -1, np.int64)
        for place, (number, _, before, after) in enumerate(rows):
            around[place, 0] = number
            around[place, [1, 3][: len(before)]] = before
            around[place, [2, 4][: len(after)]] = after
        found = await tx.fetch(
            f"SELECT passage, signs FROM tokens WHERE scope IN ({among.scope_list}) AND passage = ANY(:passages::bigint[])",
            passages=to_array_literal(sorted(set(around[around >= 0].tolist()))),
        )
        places = {number: place for place, number in enumerate(memories.tolist())}
        owners = np.array([places[row[1]] for row in rows], np.int64)
        return build_token_sets({number: bytes(signs) for number, signs in found if signs}, around, owners)

    async def find_similar_pairs(
        self, tx: Any, among: PostgresSelection, threshold: float
    ) -> list[tuple[int, int, float]]:
        """Return each memory with the one most like it, if at least this much, among the newest of each scope."""
        import numpy as np

        pairs: list[tuple[int, int, float]] = []
        for scope in among.scopes:
            rows = await tx.fetch(
                f"""SELECT p.memory, halfvec_send(p.code) FROM passages p WHERE p.scope = :scope AND p.live = 1
                    AND {among.model_condition} ORDER BY p.id DESC LIMIT :limit""",
                scope=scope,
                limit=MAX_COMPARED_PASSAGES,
            )
            rows = [row for row in rows if among.has_vector_size(row)]
            if rows:
                owners = np.array([row[0] for row in rows], np.int64)
                pairs += find_nearest_pairs(owners, np.stack([_parse_vector(row[1]) for row in rows]), threshold)
        return pairs


async def _find_model(tx: Any, name: str) -> int | None:
    row = await tx.fetch_one("SELECT id FROM models WHERE name = :name", name=name)
    return row[0] if row else None


async def _estimate_spread(tx: Any, among: PostgresSelection, vector: "Floats") -> tuple[float, float]:
    """Return the mean and the deviation of the cosines of all passages, from a sample of each scope."""
    sampled = " UNION ALL ".join(
        f"""(SELECT 1 - (p.code <=> :vector::halfvec) AS cosine FROM passages p WHERE p.scope = {scope}
             AND {among.model_condition} AND p.live = 1 ORDER BY hashint8(p.id) LIMIT {SPREAD_SAMPLE_PASSAGES})"""
        for scope in among.scopes
    )
    if not sampled:
        return 0.0, 1.0
    row = await tx.fetch_one(
        f"SELECT avg(cosine), stddev_pop(cosine) FROM ({sampled}) AS sampled", vector=_format_vector(vector)
    )
    return row[0] or 0.0, row[1] or 1.0


async def _scan_passages(tx: Any, among: PostgresSelection, vector: "Floats", limit: int) -> "tuple[Ids, Floats]":
    """Compare all, and return the nearest."""
    only = f" AND p.memory IN ({among.memory_query})" if among.memory_query else ""
    compared = (
        f"SELECT p.memory, p.code <=> :vector::halfvec AS far FROM passages p WHERE {among.ready_condition}{only}"
    )
    if among.memory_query or among.passages > among.total:  # each memory counts once, by its best passage
        compared = f"SELECT memory, min(far) AS far FROM ({compared}) AS compared GROUP BY memory"
    row = await tx.fetch_one(
        f"""SELECT {pack_column("memory")}, {pack_column("far", "float8")} FROM (
                {compared} ORDER BY far LIMIT :limit) AS nearest""",
        vector=_format_vector(vector),
        limit=limit,
        **among.values,
    )
    return unpack_numbers(row[0]), 1 - unpack_numbers(row[1], ">f8").astype("f4")


async def _compute_cosines(
    tx: Any, among: PostgresSelection, vector: "Floats", memories: "Ids"
) -> "tuple[Ids, Floats]":
    """Return the cosines of memories, each by its best passage."""
    row = await tx.fetch_one(
        f"""SELECT {pack_column("memory")}, {pack_column("far", "float8")} FROM (
                SELECT p.memory, min(p.code <=> :vector::halfvec) AS far FROM passages p
                WHERE {among.ready_condition} AND p.memory = ANY(:memories::bigint[]) GROUP BY p.memory) AS compared""",
        vector=_format_vector(vector),
        memories=to_array_literal(memories.tolist()),
    )
    return unpack_numbers(row[0]), 1 - unpack_numbers(row[1], ">f8").astype("f4")


def _format_vector(vector: "Floats") -> str:
    return f"[{','.join(map(str, vector.tolist()))}]"


def _format_code(code: bytes | None) -> str | None:
    """Write signed bytes as a vector; only directions count, and whole numbers are short."""
    import numpy as np

    return None if code is None else _format_vector(np.frombuffer(code, np.int8))


def _parse_vector(sent: bytes) -> "Floats":
    """Read a vector as the server sends it: two numbers before it, then half floats."""
    import numpy as np

    return np.frombuffer(sent, ">f2", offset=4).astype(np.float32)
