"""The graph by which the vectors of one model are searched, drawn once a project has grown large."""

from typing import Any, NamedTuple

import psycopg

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
