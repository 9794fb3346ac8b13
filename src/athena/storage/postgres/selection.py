"""The candidates of a search on PostgreSQL, and the HNSW index of each model."""

from typing import Any, NamedTuple

import psycopg

from athena.storage.database import Row, Transaction
from athena.storage.postgres.connection import qualify_vectors

MAX_INDEX_DIMENSIONS = 4_000  # pgvector's own limit
TRY_LOCK_SQL = "SELECT pg_try_advisory_lock(1098147941, %s)"  # "Athe", and the model's id
BUILD_MEMORY_SETTING = "512MB"  # a graph that does not fit takes many times as long to build
COUNT_SAMPLE_PASSAGES = 64  # from which the number of all is estimated


class HnswIndex(NamedTuple):
    """The HNSW index of the vectors of one model and size."""

    model: int
    dimensions: int

    @property
    def name(self) -> str:
        return f"passages_near_{self.model}_{self.dimensions}"

    @property
    def is_supported(self) -> bool:
        return self.dimensions <= MAX_INDEX_DIMENSIONS

    async def is_built(self, tx: Transaction) -> bool:
        row = await tx.fetch_one(
            "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(:name) AND indisvalid", name=self.name
        )
        return row is not None

    def try_lock(self, connection: psycopg.Connection[Any]) -> bool:
        """Take the lock for building it, which this connection holds until it ends; False if another has it."""
        row = connection.execute(TRY_LOCK_SQL, [self.model]).fetchone()
        return bool(row and row[0])

    def build_index(self, connection: psycopg.Connection[Any], vector_schema: str) -> None:
        """Build it concurrently with other transactions, after dropping the rest of a failed build."""
        row = connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [self.name]
        ).fetchone()
        if row is not None and row[0]:
            return
        connection.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY_SETTING}'".encode())
        connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        if row is not None:
            connection.execute(f"DROP INDEX CONCURRENTLY {self.name}".encode())
        statement = f"""CREATE INDEX CONCURRENTLY {self.name} ON passages
                USING hnsw ((code::halfvec({self.dimensions})) halfvec_cosine_ops)
                WHERE live = 1 AND model = {self.model} AND vector_dims(code) = {self.dimensions}"""
        connection.execute(qualify_vectors(statement, vector_schema).encode())


class PostgresSelection(NamedTuple):
    """The candidates of a search: all live passages of some scopes, or those whose memories pass a filter."""

    scopes: list[int]
    total: int  # memories
    passages: int  # of the scopes, without the filter
    word_count: int  # of the scopes, without the filter
    memory_query: str  # a query for the memories that pass; empty where all do
    values: dict[str, Any]  # bound by `memory_query`
    models: tuple[int, ...]  # the current one, and compatible earlier ones that passages here still have vectors of
    has_others: bool  # the store knows more models, whose vectors and token signs cannot be compared
    dimensions: int
    mixed: bool  # vectors of one model may have several sizes

    @property
    def is_unfiltered(self) -> bool:
        return not self.memory_query

    @property
    def scope_list(self) -> str:
        return ", ".join(map(str, self.scopes)) or "NULL"

    @property
    def ready_condition(self) -> str:
        """Write the condition on `p` that a passage can be compared with a vector."""
        return f"p.scope IN ({self.scope_list}) AND p.live = 1 AND {self.model_condition}"

    @property
    def model_condition(self) -> str:
        """Write the condition on `p` that its vector is of these models, and of this size where sizes are mixed."""
        # Not IN for one: the planner then knows that a partial index on this model fits.
        only, listed = self.models[0], ", ".join(map(str, self.models))
        of_models = f"p.model = {only}" if len(self.models) == 1 else f"p.model IN ({listed})"
        return of_models + (f" AND vector_dims(p.code) = {self.dimensions}" if self.mixed else "")

    def split_models(self) -> "list[PostgresSelection]":
        """Return a selection for each model: each has an index of its own."""
        return [self._replace(models=(model,)) for model in self.models]

    def has_vector_size(self, row: Row) -> bool:
        """Return whether a row ends with a vector of this size, in the server's binary format."""
        return len(row[-1]) == 4 + 2 * self.dimensions


async def estimate_passages(tx: Transaction, selection: PostgresSelection) -> int:
    """Estimate how many passages have vectors of a selection's only model: counting all would take too long.

    The index has them in the order of their hashes, so the largest of the first few tells how many there are.
    """
    samples = [
        await tx.fetch_required(
            f"""SELECT count(*), max(hash) FROM (SELECT hashint8(p.id)::bigint AS hash FROM passages p
                    WHERE p.scope = {scope} AND p.model = {selection.models[0]} AND p.live = 1
                    ORDER BY hashint8(p.id) LIMIT {COUNT_SAMPLE_PASSAGES}) AS sampled"""
        )
        for scope in selection.scopes
    ]
    hashes = 1 << 32
    return sum(
        count if count < COUNT_SAMPLE_PASSAGES else count * hashes // max(1, largest + hashes // 2)
        for count, largest in samples
    )
