"""The candidates of a search on PostgreSQL, how common terms are in them, and the HNSW index of each model."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from athena.storage.database import Row, Transaction
from athena.storage.postgres.connection import qualify_vectors
from athena.storage.postgres.formats import parse_vector
from athena.storage.terms import Term

if TYPE_CHECKING:
    from athena.storage.database import Floats

MAX_INDEX_DIMENSIONS = 4_000  # pgvector's own limit
TRY_LOCK_SQL = "SELECT pg_try_advisory_lock(1098147941, %s)"  # "Athe", and the model's id
BUILD_MEMORY_SETTING = "512MB"  # a graph that does not fit takes many times as long to build
SPREAD_SAMPLE_PASSAGES = 512  # from which the spread of all cosines is estimated
MAX_TERM_PASSAGES = 5_000  # that a term may occur in and still be read in full
MAX_STEM_CHARS = 200
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

    def try_lock(self, connection: psycopg.Connection[Any]) -> bool:
        """Take the lock for building it, which this connection holds until it ends; False if another has it."""
        row = connection.execute(TRY_LOCK_SQL, [self.model]).fetchone()
        return bool(row and row[0])

    def build_index(self, connection: psycopg.Connection[Any], vector_schema: str) -> None:
        """Build it concurrently with other transactions, after dropping the rest of a failed build."""
        connection.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY_SETTING}'".encode())
        connection.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        definition = qualify_vectors(
            f"""USING hnsw ((code::halfvec({self.dimensions})) halfvec_cosine_ops)
                WHERE live = 1 AND model = {self.model} AND vector_dims(code) = {self.dimensions}""",
            vector_schema,
        )
        partitions = connection.execute(
            "SELECT relname FROM pg_inherits JOIN pg_class c ON c.oid = inhrelid WHERE inhparent = %s::regclass",
            ["passages"],
        ).fetchall()
        if partitions:  # the index of the whole table is valid once all of theirs are attached
            connection.execute(f"CREATE INDEX IF NOT EXISTS {self.name} ON ONLY passages {definition}".encode())
        for (table,) in partitions or [("passages",)]:
            name = self.name + table.removeprefix("passages")
            row = connection.execute(
                "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name]
            ).fetchone()
            if row is not None and not row[0]:
                connection.execute(f"DROP INDEX CONCURRENTLY {name}".encode())
            if row is None or not row[0]:
                connection.execute(f"CREATE INDEX CONCURRENTLY {name} ON {table} {definition}".encode())
            if partitions:
                connection.execute(f"ALTER INDEX {self.name} ATTACH PARTITION {name}".encode())


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


async def load_sample(tx: Transaction, selection: PostgresSelection) -> "Floats":
    """Return normal vectors of some passages of each scope, which stand for all of them."""
    import numpy as np  # slow to load

    size = SPREAD_SAMPLE_PASSAGES // len(selection.models)
    samples = " UNION ALL ".join(
        f"""(SELECT halfvec_send(p.code) FROM passages p WHERE p.scope = {scope}
             AND {part.model_condition} AND p.live = 1 ORDER BY hashint8(p.id) LIMIT {size})"""
        for scope in selection.scopes
        for part in selection.split_models()
    )
    rows = await tx.fetch(samples) if samples else []
    vectors = [parse_vector(row[0]) for row in rows if selection.has_vector_size(row)]
    matrix = np.stack(vectors) if vectors else np.zeros((0, selection.dimensions), np.float32)
    sample: Floats = matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)
    return sample


async def estimate_term_passages(tx: Transaction, selection: PostgresSelection, terms: list[Term]) -> list[int]:
    """Return about how many passages hold each term, from the server's statistics."""
    # LIMIT, so that partitions of one term are not mixed with those of the next.
    queries = " UNION ALL ".join(
        f"(SELECT 1 FROM words WHERE lexemes @@ :query{i}::tsquery LIMIT {1 << 40})" for i in range(len(terms))
    )
    values = {f"query{i}": build_tsquery(selection, term) for i, term in enumerate(terms)}
    row = await tx.fetch_required(f"EXPLAIN (FORMAT JSON) {queries}", **values)
    plan = (row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Plan"]
    parts = plan["Plans"] if plan["Node Type"] == "Append" else [plan]
    return [int(part["Plan Rows"]) for part in parts]


async def count_term_passages(tx: Transaction, selection: PostgresSelection, terms: list[Term]) -> list[int]:
    """Count the passages that hold each term, up to the number that is too many to read."""
    counts = ", ".join(
        f"""(SELECT count(*) FROM (
                SELECT 1 FROM words WHERE scope IN ({selection.scope_list}) AND lexemes @@ :query{i}::tsquery
                LIMIT {MAX_TERM_PASSAGES + 1}) AS found)"""
        for i in range(len(terms))
    )
    values = {f"query{i}": build_tsquery(selection, term) for i, term in enumerate(terms)}
    return list(await tx.fetch_required(f"SELECT {counts}", **values))


def build_tsquery(selection: PostgresSelection, term: Term, weight: str = "") -> str:
    suffix = f":{weight}" if weight else ""
    return " | ".join(quote_lexeme(scope, term.stem) + suffix for scope in selection.scopes)


def quote_lexeme(scope: int, stem: str) -> str:
    """Write a stem with its scope as a quoted lexeme."""
    text = stem[:MAX_STEM_CHARS].replace("\\", "\\\\").replace("'", "''")
    return f"'{scope}/{text}'"
