"""Results of the code API: short lines for people and models, whole values for programs."""

from __future__ import annotations

import time
from collections import namedtuple

from athena.core.previews import format_preview

TYPE_CHECKING = False  # importing typing takes longer than all else here
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any, NamedTuple, Self

    class _MemoryFields(NamedTuple):
        hash: str
        preview: str
        tags: tuple[str, ...]
        created: float
        score: float

    class _HealthFields(NamedTuple):
        status: str
        count: int  # type: ignore[assignment]  # a field of the contract; it hides tuple.count
        backend: str

    class _IngestFields(NamedTuple):
        documents: int
        pieces: int
        skipped: tuple[str, ...]
else:
    _MemoryFields = namedtuple("_MemoryFields", "hash preview tags created score")
    _HealthFields = namedtuple("_HealthFields", "status count backend")
    _IngestFields = namedtuple("_IngestFields", "documents pieces skipped")

MEMORY_ATTRIBUTES = ("content", "hash", "tags", "created", "score", "preview", "place")
MAX_LINE_CHARS = 120
WEAK_SCORE = 0.1  # a hit below it is probably none
MAX_SHORT_DATE_AGE_S = 300 * 86_400  # a younger memory's line has no year, which costs four tokens


def split_hits(hits: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], int]:
    """Return the hits that people are shown, and how many are left out: beside likely ones, those that are not."""
    likely = [hit for hit in hits if hit["score"] >= WEAK_SCORE]
    return (likely, len(hits) - len(likely)) if likely else (hits, 0)


def format_weaker(count: int, option: str = "min_score=0") -> str:
    """Say how many hits a search left out, and what shows them."""
    return f"{count:,} weaker {'hit' if count == 1 else 'hits'}, {option} shows {'it' if count == 1 else 'them'}"


class CompactMemory(_MemoryFields):
    """A memory in a list of results: its hash, the beginning of its text, and how probably it answers."""

    __slots__ = ()

    @property
    def content(self) -> str:
        """The whole text."""
        return self.preview

    @property
    def place(self) -> str:
        """Where a piece of a document stands: `guide.pdf p. 12, Installing > macOS`; empty for other memories."""
        return ""

    def __str__(self) -> str:
        is_recent = time.time() - self.created < MAX_SHORT_DATE_AGE_S
        day = time.strftime("%b %d" if is_recent else "%Y-%m-%d", time.localtime(self.created))
        tags = f" [{', '.join(self.tags)}]" if self.tags else ""
        text = self.preview
        if len(text) > MAX_LINE_CHARS:
            text = (text[: MAX_LINE_CHARS - 1].rpartition(" ")[0] or text[: MAX_LINE_CHARS - 1]).rstrip() + "…"
        place = f" ({self.place})" if self.place else ""
        return f"{self.hash} {f'{self.score:.2f}'.removeprefix('0')} {day}{tags}{place} {text}"

    def __repr__(self) -> str:
        return f"<{self}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a memory has no attribute {name!r}; it has {', '.join(MEMORY_ATTRIBUTES)}")

        def __getitem__(self, index: Any) -> Any:
            if isinstance(index, str):
                name = index if index in MEMORY_ATTRIBUTES else MEMORY_ATTRIBUTES[0]
                raise TypeError(f"a memory has attributes, not keys: write memory.{name}, not memory[{index!r}]")
            return tuple.__getitem__(self, index)


class _CompactHit(CompactMemory):
    """A memory of a result, with its whole text beside the fields."""

    @property
    def content(self) -> str:
        return str(self.__dict__.get("_text", self.preview))

    @property
    def place(self) -> str:
        return str(self.__dict__.get("where", ""))


class CompactSearchResult(tuple[CompactMemory, ...]):
    """The memories that a search found, best first: a sequence of them, with what was searched."""

    total: int
    query: str
    weaker: int  # hits that were left out, since they answer too improbably; `min_score=0` shows them
    _fields = ("memories", "total", "query")

    def __new__(cls, memories: Iterable[CompactMemory], total: int, query: str, weaker: int = 0) -> Self:
        result = super().__new__(cls, memories)
        result.total, result.query, result.weaker = total, query, weaker
        return result

    @property
    def memories(self) -> tuple[CompactMemory, ...]:
        """The same memories as a plain tuple."""
        return tuple(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CompactSearchResult):
            return (self.memories, self.total, self.query) == (other.memories, other.total, other.query)
        return tuple.__eq__(self, other) if isinstance(other, tuple) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return tuple.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.memories, self.total, self.query, self.weaker)

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def _replace(self, **changes: Any) -> Self:
        return type(self)(**self._asdict() | {"weaker": self.weaker} | changes)

    def __str__(self) -> str:
        lines = [*map(str, self)] or ["nothing found"]
        return "\n".join([*lines, format_weaker(self.weaker)] if self.weaker else lines)

    __repr__ = __str__


class CompactHealthInfo(_HealthFields):
    """Whether the store works, and how many memories it has."""

    __slots__ = ()

    @property
    def ready(self) -> bool:
        return self.status != "error"

    def __str__(self) -> str:
        return f"{self.status}, {self.count} {'memory' if self.count == 1 else 'memories'}, {self.backend}"


class CompactIngestResult(_IngestFields):
    """How many documents and pieces were kept, and what was left out."""

    __slots__ = ()

    def __str__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        documents = f"{self.documents} document{'s' * (self.documents != 1)}"
        return f"{documents}, {self.pieces} piece{'s' * (self.pieces != 1)}{skipped}"


def compact_memory(memory: dict[str, Any]) -> CompactMemory:
    """Return a memory with a preview of its text, for a list of results."""
    preview = format_preview(memory["content"])
    hit = _CompactHit(memory["hash"], preview, tuple(memory["tags"]), memory["created"], memory.get("score", 1.0))
    if place := memory.get("place"):
        hit.__dict__["where"] = place
    if preview != memory["content"]:
        hit.__dict__["_text"] = memory["content"]
    return hit
