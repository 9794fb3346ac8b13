"""The protocols that a storage engine implements: transactions, full text, vectors, table copy, the database."""

import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self, TypeVar

from athena.core.values import Kind, ModelNames
from athena.errors import Conflict, LimitExceeded, Misconfigured, NotFound
from athena.storage.filters import Filter

if TYPE_CHECKING:  # numpy is loaded only when something is searched or embedded
    import numpy
    from numpy.typing import NDArray

    Ids = NDArray[numpy.int64]
    Floats = NDArray[numpy.float32]

Row = tuple[Any, ...]
CopyRole = Literal["", "from", "to"]  # whether a store is opened as the source or the target of a copy
T = TypeVar("T")

MAX_READ_CHARS = 100_000_000  # of the texts of one transaction together, each of which may have millions
MIN_ROWS_AT_ONCE, MAX_ROWS_AT_ONCE = 20, 10_000  # with and without texts
IMPORT_COUNTER = "whole import"  # a row of `counters` with the last call that an import of a whole store brought
UNFINISHED_COPY_COUNTER = "copy source"  # a row of `counters` that exists until a copy into this store is complete
TABLES_WITH_IDS = ("scopes", "models", "memories", "history", "relations", "calls", "injections")


class Transaction(Protocol):
    """A consistent view of the store. Values are bound by name, as in `WHERE id = :id`."""

    chars_left: float  # that `fetch` may still read; a write has no limit
    add_up_sql: str  # the end of an INSERT into `counts`: adds to the row of this name, where the engine has only one

    async def execute(self, sql: str, **values: Any) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    async def execute_many(self, sql: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run a statement once for each row of values, without waiting for a server's answers."""
        ...

    async def fetch(self, sql: str, **values: Any) -> list[Row]: ...

    def begin_fetch(self, sql: str, **values: Any) -> "PendingRows":
        """Let a server begin with a query whose rows are awaited later."""
        ...

    async def fetch_one(self, sql: str, **values: Any) -> Row | None: ...

    async def fetch_required(self, sql: str, **values: Any) -> Row:
        """Return the first row of a query that always has one, such as a count."""
        ...


Work = Callable[[Transaction], Coroutine[Any, Any, T]]


class PendingRows:
    """The rows of a query, which are read when they are awaited."""

    def __init__(self, fetch: Callable[[], Coroutine[Any, Any, list[Row]]]) -> None:
        self._fetch = fetch

    def __await__(self) -> Generator[Any, Any, list[Row]]:
        return self._fetch().__await__()


class BoundedReads:
    """What a transaction may still read of texts with `fetch`."""

    chars_left: float = math.inf

    def begin_fetch(self: Transaction, sql: str, **values: Any) -> PendingRows:
        return PendingRows(partial(self.fetch, sql, **values))

    def limit_reads(self) -> Self:
        """Return the transaction with a limit; work that drops what it has read sets `chars_left` back."""
        bounded = copy(self)
        bounded.chars_left = MAX_READ_CHARS
        return bounded

    def take_rows(self, cursor: Any) -> list[Row]:
        """Return the rows of a cursor, long ones few at a time; raise LimitExceeded where they are too much."""
        rows: list[Row] = []
        left, size = iter(cursor), MIN_ROWS_AT_ONCE
        while batch := list(islice(left, size)):
            chars = sum([len(value) for row in batch for value in row if type(value) is str])
            if len(batch) == size and not any(value is None or type(value) is str for value in batch[0]):
                size = MAX_ROWS_AT_ONCE
            rows += batch
            self.chars_left -= chars
            if self.chars_left < 0:
                del rows[:], batch[:]  # else the error's frames would keep the texts
                cursor.close()
                raise LimitExceeded(
                    f"what this call reads has more than {MAX_READ_CHARS:,} characters together",
                    hint="ask for fewer at once: a smaller k or limit, fewer names; or forget what is too long",
                )
        return rows


def require_row(row: Row | None, sql: str) -> Row:
    """Return the row, or raise where a query that must have one had none."""
    if row is None:
        raise LookupError(f"no row for: {sql}")
    return row


class IndexedPassage(NamedTuple):
    """A passage with the text and the label that the full-text index holds of it."""

    id: int
    text: str
    label: str


class TextMatches(NamedTuple):
    """Memories that share terms with a query, each by its best passage, in parallel arrays."""

    memories: "Ids"
    scores: "Floats"
    coverage: "Floats"  # the part of the query's weight that the passage holds, 0 to 1
    engine_groups: list["Ids"]  # where the engine found them, for its own use
    weights: list[tuple[int, int, float]]  # start, end and weight of each word of the query
    passages: "Ids"  # the passages that hold terms, of memories with several passages, in ascending order
    passage_scores: "Floats"

    def score_passages(self, passages: "Ids") -> "Floats":
        """Return the score of each passage, as a part of the highest score."""
        import numpy as np  # slow to load

        if not len(self.passages):
            return np.zeros(len(passages), np.float32)
        at = np.minimum(np.searchsorted(self.passages, passages), len(self.passages) - 1)
        highest = max(float(self.passage_scores.max()), 1e-6)
        return np.where(self.passages[at] == passages, self.passage_scores[at] / highest, 0).astype(np.float32)


class VectorMatches(NamedTuple):
    """Memories close in meaning to a query, each by its best passage, and the spread of all cosines."""

    memories: "Ids"
    cosines: "Floats"  # below -1 where a memory has no vector that can be compared
    mean: float
    deviation: float
    features: "RankingFeatures | None" = None  # where they came with them; the memories are sorted then


class RankingFeatures(NamedTuple):
    """Properties of memories that ranking uses besides the query, in parallel arrays."""

    passages: "Floats"  # passages of each memory
    by_assistant: "Floats"  # 1 where the speaker is an assistant, a tool or the system
    about_speaker: "Floats"  # 1 where the speaker talks about themselves
    sessions: "Ids"  # the session of each memory; the memory's own id where it has none


class TokenSets(NamedTuple):
    """The token signs of some passages, and the neighbours of each passage to be scored."""

    signs: Any  # a row of bytes for each token
    starts: "Ids"  # where each passage's tokens begin
    neighbours: Any  # for each passage to be scored: itself, then one and two before and after it; -1 for none
    owners: "Ids"  # the position of the memory that each passage to be scored belongs to

    @classmethod
    def empty(cls) -> "TokenSets":
        import numpy as np  # slow to load

        return cls(np.zeros((0, 16), np.uint8), *(np.zeros(shape, np.int64) for shape in (0, (0, 5), 0)))


class Selection(Protocol):
    """The memories that a search may return; each engine adds its own fields."""

    @property
    def scopes(self) -> list[int]: ...

    @property
    def total(self) -> int:
        """The number of candidate memories."""
        ...


S = TypeVar("S", bound=Selection)
S_contra = TypeVar("S_contra", bound=Selection, contravariant=True)


class FullTextIndex(Protocol[S_contra]):
    """The full-text index. All passages of a memory are added and removed together."""

    @property
    def check_needs_write_lock(self) -> bool:
        """Whether `find_problems` needs a transaction that may write."""
        ...

    async def add_passages(self, tx: Transaction, passages: Sequence[IndexedPassage]) -> None: ...

    async def remove_passages(self, tx: Transaction, passages: Sequence[IndexedPassage]) -> None:
        """Remove passages; text and label must be those they were added with."""
        ...

    async def erase_removed(self, tx: Transaction) -> None:
        """Leave no trace of removed passages in the index."""
        ...

    async def search_text(self, tx: Transaction, selection: S_contra, question: str, limit: int) -> TextMatches: ...

    async def find_problems(self, tx: Transaction) -> list[str]: ...


class VectorIndex(Protocol[S]):
    """The passages with their vectors."""

    async def reserve_ids(self, tx: Transaction, scope: int, count: int) -> Sequence[int]:
        """Reserve ids for new passages of a scope, in ascending order."""
        ...

    async def add_passages(self, tx: Transaction, passages: Iterable[dict[str, Any]]) -> None: ...

    async def set_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], model: str) -> None: ...

    async def replace_vectors(self, tx: Transaction, passages: Iterable[tuple[int, bytes]], models: ModelNames) -> None:
        """Write the vectors of passages that still have one of an earlier model."""
        ...

    async def mark_stale(self, tx: Transaction, passage: int) -> None:
        """Record that a passage has a new neighbour, which its vector does not include."""
        ...

    async def set_tokens(self, tx: Transaction, passages: Iterable[tuple[int, bytes]]) -> None: ...

    async def register_model(self, tx: Transaction, name: str) -> int:
        """Return a model's id; insert the model if it is new."""
        ...

    async def set_visible(self, tx: Transaction, scope: int, memories: list[int], live: bool) -> None:
        """Show the passages of memories to searches, or hide them."""
        ...

    async def retire_passages(self, tx: Transaction, scope: int, memory: int) -> None:
        """Remove a memory's passages."""
        ...

    async def delete_retired(self, tx: Transaction) -> None:
        """Delete rows that `retire_passages` only emptied."""
        ...

    async def claim_passages(
        self, tx: Transaction, models: ModelNames, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        """Return passages without a vector of this model or a compatible one, then stale ones.

        Those of memories come first, or only those of one kind.

        Where several processes share the store, no other process gets the same passages for a while.
        """
        ...

    async def pick_outdated(self, tx: Transaction, models: ModelNames, limit: int) -> list[int]:
        """Return some passages with vectors of earlier models, by chance, so that two processes seldom pick the same.

        Those of memories come first.
        """
        ...

    async def find_problems(self, tx: Transaction) -> list[str]: ...

    async def select_candidates(
        self, tx: Transaction, memory_filter: Filter, scope_ids: list[int], models: ModelNames, dimensions: int
    ) -> S:
        """Return the selection that the searches below take; `scope_ids` are those that the filter's scope may see."""
        ...

    async def search_nearest(
        self, tx: Transaction, selection: S, vector: "Floats", limit: int, text_matches: TextMatches | None
    ) -> VectorMatches:
        """Return the nearest memories, and the cosines of those that full text found."""
        ...

    async def load_features(self, tx: Transaction, selection: S, memories: "Ids") -> RankingFeatures: ...

    async def score_feedback(self, tx: Transaction, selection: S, memories: "Ids", first: int) -> "Floats":
        """Return how close memories are to the centre of the first few, in deviations from the mean of all."""
        ...

    async def load_tokens(
        self, tx: Transaction, selection: S, memories: "Ids", vector: "Floats", matches: TextMatches
    ) -> TokenSets:
        """Return the tokens of these memories' passages and of up to two neighbours on each side.

        Of memories with very many passages, only those that are nearest to the question by vector and words.
        """
        ...

    async def find_similar_pairs(self, tx: Transaction, selection: S, threshold: float) -> list[tuple[int, int, float]]:
        """Return each memory with its most similar one above the threshold, among the newest of each scope."""
        ...


class CopiedTable(NamedTuple):
    """A table as it is copied: the same rows in the same order on every engine."""

    name: str
    columns: str  # as they are selected
    key: str
    condition: str = "1 = 1"

    @property
    def column_names(self) -> list[str]:
        """Return the names under which the columns are inserted."""
        return [column.split()[-1] for column in self.columns.split(",")]


class TableCopy(Protocol):
    """Read and write whole tables, to copy a store."""

    async def identify_store(self, tx: Transaction) -> str:
        """Return a text that no other store has."""
        ...

    def scan_table(self, tx: Transaction, table: CopiedTable) -> Iterator[Row]:
        """Yield the rows of a table in the order of its key, without holding all of them."""
        ...

    async def load_rows(self, tx: Transaction, table: CopiedTable, rows: Sequence[Row]) -> None: ...

    async def read_last_ids(self, tx: Transaction) -> dict[str, int]:
        """Return the last id that each table has assigned; ids are never assigned twice."""
        ...

    async def finish_copy(self, tx: Transaction, last_ids: Mapping[str, int]) -> None:
        """Rebuild the derived tables: the full-text index, the counts, and the next ids."""
        ...


class Database(Protocol):
    """Durable storage. `work` may be run again, so it must not change anything but its transaction."""

    @property
    def engine(self) -> str: ...

    # The type of the selection is the engine's own: what one index returns, only the same engine's take.
    @property
    def fulltext(self) -> FullTextIndex[Any]: ...

    @property
    def vectors(self) -> VectorIndex[Any]: ...

    @property
    def table_copy(self) -> TableCopy: ...

    async def read(self, work: Work[T]) -> T: ...

    async def write(self, work: Work[T]) -> T:
        """Run `work` in a transaction, commit it, and return its value once it is durable."""
        ...

    @property
    def deferred_sync(self) -> "Database":
        """The same store without a sync for each commit: a write is durable once a later one is, or after `sync`."""
        ...

    async def sync(self) -> None:
        """Make all earlier writes durable."""
        ...

    async def can_write_now(self) -> bool:
        """Return whether a write could begin almost at once: no other process holds the store for long."""
        ...

    async def check_writable(self) -> str:
        """Raise the error that a write would get now; return a warning where it soon would get one, else nothing.

        Cheap, unless the last write failed.
        """
        ...

    def defer_write(self, work: Work[None], *, dedupe_key: str = "") -> None:
        """Commit soon, together with other writes, without a result. Of those with the same key only one is queued."""
        ...

    async def compact(self) -> bool:
        """Rewrite the store so that deleted data cannot be read from its files; False where that must wait."""
        ...

    def describe_location(self) -> str: ...

    @property
    def last_conflict_at(self) -> float:
        """When a write last had to be retried because of another one, by the monotonic clock."""
        ...

    @property
    def slowdown_reason(self) -> str:
        """Why the engine is slower than it could be; empty if it is not."""
        ...

    async def measure_size(self, tx: Transaction) -> int:
        """Return the bytes that the store takes."""
        ...

    async def find_problems(self, tx: Transaction) -> list[str]:
        """Return the problems of the files and indexes of the engine itself."""
        ...

    def release_unused(self) -> bool:
        """Close the connections that nobody has used since the last call; return whether there were any."""
        ...

    def close(self) -> None: ...


def check_usable(copying: CopyRole, location: str, *, exists: bool, complete: bool) -> None:
    """Refuse to create a store only to copy from it, and to open one that is an unfinished copy."""
    if copying == "from" and not exists:
        raise NotFound(f"there is no store at {location}", hint="copy from one that is there")
    if copying != "to" and not complete:
        raise Misconfigured(
            f"a copy into this store is not finished: {location}",
            hint="run the same athena migrate again, or the same athena import: it goes on where it was",
        )


def create_copy_conflict(location: str) -> Conflict:
    return Conflict(
        f"something else writes into {location} while it is copied to",
        hint="stop what uses it, then run the same athena migrate again",
    )
