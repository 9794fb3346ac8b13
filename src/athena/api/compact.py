"""Results that cost an agent few tokens to read."""

import time
from typing import Any, NamedTuple

MAX_PREVIEW_CHARS = 200
MAX_LINE_CHARS = 120


class CompactMemory(NamedTuple):
    hash: str
    preview: str
    tags: tuple[str, ...]
    created: float
    score: float

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d", time.localtime(self.created))
        tags = f" [{', '.join(self.tags)}]" if self.tags else ""
        text = (
            self.preview if len(self.preview) <= MAX_LINE_CHARS else self.preview[: MAX_LINE_CHARS - 1].rstrip() + "…"
        )
        return f"{self.hash} {self.score:.2f} {day}{tags} {text}"


class CompactSearchResult(NamedTuple):
    memories: tuple[CompactMemory, ...]
    total: int
    query: str

    def __bool__(self) -> bool:
        return bool(self.memories)

    def __str__(self) -> str:
        return "\n".join(map(str, self.memories)) or "nothing found"


class CompactHealthInfo(NamedTuple):
    status: str
    count: int  # type: ignore[assignment]  # a field of the contract; it hides tuple.count
    backend: str

    @property
    def ready(self) -> bool:
        return self.status != "error"

    def __str__(self) -> str:
        return f"{self.status}, {self.count} memories, {self.backend}"


class CompactIngestResult(NamedTuple):
    documents: int
    pieces: int
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"{self.documents} documents, {self.pieces} pieces{skipped}"


def compact_memory(found: dict[str, Any]) -> CompactMemory:
    """Shorten a memory to what a list of results needs."""
    line = " ".join(found["content"].lstrip()[: MAX_PREVIEW_CHARS * 4].split())
    preview = line if len(line) <= MAX_PREVIEW_CHARS else line[: MAX_PREVIEW_CHARS - 1].rstrip() + "…"
    return CompactMemory(found["hash"], preview, tuple(found["tags"]), found["created"], found.get("score", 1.0))
