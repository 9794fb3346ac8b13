"""What an engine must be able to do."""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from athena.core.values import Kind
from athena.errors import Conflict, Misconfigured, NotFound
from athena.storage.filters import Filter

if TYPE_CHECKING:  # numpy is loaded only when something is searched or embedded
    import numpy
    from numpy.typing import NDArray

    Ids = NDArray[numpy.int64]
    Floats = NDArray[numpy.float32]

Row = tuple[Any, ...]
CopyRole = Literal["", "from", "to"]  # what a store is opened for: to copy from it, to it, or neither
T = TypeVar("T")


class Transaction(Protocol):
    """A consistent view of the store. Values are bound by name, as in `WHERE id = :id`."""

    async def execute(self, sql: str, **values: Any) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    async def fetch(self, sql: str, **values: Any) -> list[Row]: ...

    async def fetch_one(self, sql: str, **values: Any) -> Row | None: ...


Work = Callable[[Transaction], Coroutine[Any, Any, T]]


class IndexedPassage(NamedTuple):
    """A passage as the indexes know it."""

    id: int
    text: str
    label: str


class TextMatches(NamedTuple):
    """Memories that share words with a question, each by its best passage, in parallel arrays."""

    memories: "Ids"
    scores: "Floats"
    coverage: "Floats"  # which part of the question's weight the passage holds, 0 to 1
    engine_groups: list["Ids"]  # where the engine found them, for its own use
    weights: list[tuple[int, int, float]]  # the question's words, from where to where, and what each weighs


class VectorMatches(NamedTuple):
    """Memories close in meaning to a question, each by its best passage, and how all passages lie to it."""

    memories: "Ids"
    cosines: "Floats"
    mean: float
    deviation: float


class RankingFeatures(NamedTuple):
    """What ranking knows of memories beyond the question, in parallel arrays."""

    passages: "Floats"  # how many each has
    by_assistant: "Floats"  # 1 where an assistant, a tool or the system speaks
    about_speaker: "Floats"  # 1 where somebody speaks of themselves
    sessions: "Ids"  # which session each belongs to; its own number where it belongs to none


class TokenSets(NamedTuple):
    """The tokens of some passages, as signs, and which passages stand around which."""

    signs: Any  # a row of bytes for each token
    starts: "Ids"  # where each passage's tokens begin
    neighbours: Any  # for each passage to be scored: itself, one and two before and after it; -1 for none
    owners: "Ids"  # the position of the memory that each passage to be scored belongs to

    @classmethod
    def empty(cls) -> "TokenSets":
        import numpy as np

        return cls(np.zeros((0, 16), np.uint8), *(np.zeros(shape, np.int64) for shape in (0, (0, 5), 0)))


class Selection(Protocol):
    """What a question may choose from; each engine knows more about it."""

    @property
    def scopes(self) -> list[int]: ...

    @property
    def total(self) -> int:
        """How many memories there are to choose from."""
        ...


class FullTextIndex(Protocol):
    """The full-text index. All passages of a memory are put and dropped together."""

    async def add_passages(self, tx: Any, passages: Sequence[IndexedPassage]) -> None: ...

    async def remove_passages(self, tx: Any, passages: Sequence[IndexedPassage]) -> None:
        """Remove passages; text and label must be what was put."""
        ...

    async def search_text(self, tx: Any, among: Any, question: str, limit: int) -> TextMatches: ...

    async def find_problems(self, tx: Any) -> list[str]: ...


class VectorIndex(Protocol):
    """The passages with their vectors."""

    async def reserve_ids(self, tx: Any, scope: int, count: int) -> Sequence[int]:
        """Set aside numbers for passages of a scope, in growing order."""
        ...

    async def add_passages(self, tx: Any, passages: Iterable[dict[str, Any]]) -> None: ...

    async def set_vectors(self, tx: Any, passages: Iterable[tuple[int, bytes]], model: str) -> None:
        """Give passages their vectors."""
        ...

    async def mark_stale(self, tx: Any, passage: int) -> None:
        """Note that a passage has a new neighbour, which its vector does not know."""
        ...

    async def set_tokens(self, tx: Any, passages: Iterable[tuple[int, bytes]]) -> None: ...

    async def register_model(self, tx: Any, name: str) -> int:
        """Return a model's number, giving it one if it has none."""
        ...

    async def set_visible(self, tx: Any, scope: int, memory: int, live: bool) -> None:
        """Let searches see a memory's passages, or not."""
        ...

    async def retire_passages(self, tx: Any, scope: int, memory: int) -> None:
        """Let go of a memory's passages."""
        ...

    async def delete_retired(self, tx: Any) -> None: ...

    async def claim_passages(
        self, tx: Any, model: str, limit: int, now: float, *, kind: Kind | None = None
    ) -> list[int]:
        """Take passages that need a vector, those of memories first, or those of one kind alone.

        What one process has taken, no other gets for a while.
        """
        ...

    async def count_stale(self, tx: Any) -> int: ...

    async def has_missing(self, tx: Any) -> bool: ...

    async def count_pending(self, tx: Any, model: str, *, memories: bool = False) -> int:
        """Count the passages without a vector of this model: all, or those of memories alone."""
        ...

    async def find_problems(self, tx: Any) -> list[str]: ...

    async def select_candidates(self, tx: Any, only: Filter, model: str, dimensions: int) -> Selection:
        """Return what `matches` and `nearest` may choose from."""
        ...

    async def search_nearest(
        self, tx: Any, among: Any, vector: "Floats", limit: int, also: TextMatches | None
    ) -> VectorMatches: ...

    async def load_features(self, tx: Any, among: Any, memories: "Ids") -> RankingFeatures: ...

    async def score_feedback(self, tx: Any, among: Any, memories: "Ids", first: int) -> "Floats": ...

    async def load_tokens(self, tx: Any, among: Any, memories: "Ids") -> TokenSets: ...

    async def find_similar_pairs(self, tx: Any, among: Any, threshold: float) -> list[tuple[int, int, float]]: ...


class CopiedTable(NamedTuple):
    """A table as it is copied: the same rows in the same order on every engine."""

    name: str
    columns: str  # as they are read
    key: str
    condition: str = "1 = 1"

    @property
    def column_names(self) -> list[str]:
        """Return the columns' names, as rows are written."""
        return [column.split()[-1] for column in self.columns.split(",")]


class TableCopy(Protocol):
    """Whole tables, for copying a store."""

    async def identify_store(self, tx: Any) -> str:
        """Return what tells this store from all others."""
        ...

    def scan_table(self, tx: Any, table: CopiedTable) -> Iterator[Row]:
        """Read a table in the order of its key, without holding all of it."""
        ...

    async def load_rows(self, tx: Any, table: CopiedTable, rows: Sequence[Row]) -> None: ...

    async def read_last_ids(self, tx: Any) -> dict[str, int]:
        """Return the last number that each table has given to a row; none is given twice."""
        ...

    async def finish_copy(self, tx: Any, numbers: Mapping[str, int]) -> None:
        """Make of copied rows a store that works: its full-text index, its counts, the numbers to go on from."""
        ...


class Database(Protocol):
    """Durable storage. `work` may be run again, so it must not change anything but its transaction."""

    @property
    def engine(self) -> str: ...

    @property
    def fulltext(self) -> FullTextIndex: ...

    @property
    def vectors(self) -> VectorIndex: ...

    @property
    def table_copy(self) -> TableCopy: ...

    async def read(self, work: Work[T]) -> T: ...

    async def write(self, work: Work[T]) -> T:
        """Commit what `work` does and return its value once it is durable."""
        ...

    @property
    def deferred_sync(self) -> "Database":
        """The same store for a program's calls: their writes are durable once any write after them is, or `sync`."""
        ...

    async def sync(self) -> None:
        """Make durable what was written so far."""
        ...

    async def can_write_now(self) -> bool:
        """Tell whether a write could begin now, or nearly: nobody else holds the store for long."""
        ...

    def defer_write(self, work: Work[None], *, once: str = "") -> None:
        """Commit soon, together with other writes; nobody waits for it. Of those named `once` only one waits."""
        ...

    async def compact(self) -> bool:
        """Rewrite the store so that nothing removed can be read from its files; False where that must wait."""
        ...

    def describe_location(self) -> str: ...

    @property
    def last_conflict_at(self) -> float:
        """When a write last had to be tried again because of another one, by the monotonic clock."""
        ...

    @property
    def slowdown_reason(self) -> str:
        """What keeps the engine from being as fast as it could be; empty if nothing does."""
        ...

    async def measure_size(self, tx: Any) -> int: ...

    async def find_problems(self, tx: Any) -> list[str]:
        """Tell what is wrong with the files beneath."""
        ...

    def close(self) -> None: ...


UNFINISHED_COPY_COUNTER = "copy source"  # a counter that is there until a copy into this store is whole
# Tables that give each row a number.
TABLES_WITH_IDS = ("scopes", "models", "memories", "history", "relations", "calls", "injections")


def check_usable(copying: CopyRole, location: str, *, there: bool, whole: bool) -> None:
    """Refuse to make a store only to copy from it, and to use one that is in part a copy of another."""
    if copying == "from" and not there:
        raise NotFound(f"there is no store at {location}", hint="copy from one that is there")
    if copying != "to" and not whole:
        raise Misconfigured(
            f"a copy into this store is not finished: {location}",
            hint="run the same athena migrate again: it goes on where it was",
        )


def create_copy_conflict(location: str) -> Conflict:
    return Conflict(
        f"something else writes into {location} while it is copied to",
        hint="stop what uses it, then run the same athena migrate again",
    )
