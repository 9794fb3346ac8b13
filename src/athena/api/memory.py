"""The code API, written once: awaited by asynchronous code, driven by the functions of `athena.api`."""

import os
import re
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from athena.api.compact import (
    CompactHealthInfo,
    CompactIngestResult,
    CompactMemory,
    CompactSearchResult,
    compact_memory,
)
from athena.app.connect import AppConnection, OperationResult
from athena.core.threads import get_running_loop
from athena.errors import InvalidInput

if TYPE_CHECKING:
    from datetime import date

    from athena.memory.values import Memory

Tags = str | Sequence[str] | None
When: TypeAlias = "str | float | date | None"
SEARCH_PAGE_SIZE = 1_000  # memories fetched at a time
PARAMETER_NAMES = {"k": "limit", "memory_id": "hash", "memory_ids": "hashes"}  # ours for theirs


class Filters(TypedDict, total=False):
    """What narrows a search."""

    tags: Tags
    memory_type: str | None
    since: When
    until: When
    min_score: float
    project: str | None


class SecretRemoved(UserWarning):
    """A text held a secret, which was replaced by `[SECRET:kind]` before the text was stored."""


class MemoryApi:
    """Memory operations on one store. `project` says whose memories; by default the caller's own."""

    def __init__(self, connection: AppConnection) -> None:
        self._connection = connection

    async def _call_operation(
        self, operation: str, arguments: Mapping[str, Any], project: str | None, /, **names: str
    ) -> OperationResult:
        """Call an operation; what it says about an argument is told under the name that this API gives it."""
        plain = {name: _format_date(value) for name, value in arguments.items()}
        try:
            return await self._connection.call(operation, plain, project)
        except InvalidInput as error:
            text = str(error).removeprefix(f"{operation}: ")
            name, rest = re.match(r"(\w*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]  # matches all
            hint = None if error.hint and error.hint.startswith("memory.") else error.hint
            raise InvalidInput((PARAMETER_NAMES | names).get(name, name) + rest, hint=hint) from None

    async def _call_for_data(self, operation: str, project: str | None = None, /, **arguments: Any) -> Any:
        return (await self._call_operation(operation, arguments, project)).data

    async def search(
        self,
        query: str,
        limit: int = 5,
        tags: Tags = None,
        memory_type: str | None = None,
        since: When = None,
        until: When = None,
        min_score: float = 0.0,
        *,
        project: str | None = None,
    ) -> CompactSearchResult:
        """Find memories by words and by meaning."""
        filters = {"tags": tags, "memory_type": memory_type, "since": since, "until": until, "min_score": min_score}
        return await self._search_memories(query, {"query": query, "k": limit, **filters}, project)

    async def _search_memories(
        self, query: str, arguments: dict[str, Any], project: str | None, /, **names: str
    ) -> CompactSearchResult:
        answer = await self._call_operation("recall", arguments, project, **names)
        found = tuple(map(compact_memory, answer.data))
        return CompactSearchResult(found, len(found) if answer.total is None else answer.total, query)

    async def search_batch(
        self, queries: Iterable[str], limit: int = 5, **filters: Unpack[Filters]
    ) -> list[CompactSearchResult]:
        """Answer several searches at once."""
        found = []
        for i, query in enumerate(_require_list(queries, "queries")):
            arguments, project = _merge_filters(filters, query=query, k=limit)
            found.append(await self._search_memories(query, arguments, project, query=f"queries[{i}]"))
        return found

    async def search_by_tag(
        self, tags: Tags, limit: int = 10, match: str = "any", *, project: str | None = None
    ) -> CompactSearchResult:
        """List the memories that have any or all of some tags, the newest first."""
        answer = await self._call_operation("search_by_tag", {"tags": tags, "k": limit, "match": match}, project)
        found = tuple(map(compact_memory, answer.data))
        shown = tags if isinstance(tags, str) else ", ".join(tags or ())
        return CompactSearchResult(found, len(found) if answer.total is None else answer.total, shown)

    async def recall(self, phrase: str, limit: int = 5, *, project: str | None = None) -> CompactSearchResult:
        """Find memories; time in plain words ("what we decided about auth last week") is a filter."""
        return await self._search_memories(
            phrase, {"query": phrase, "k": limit, "understand_time": True}, project, query="phrase"
        )

    async def search_iter(
        self, query: str, batch_size: int = 100, **filters: Unpack[Filters]
    ) -> AsyncIterator[CompactMemory]:
        """Go through the whole store, best first; at least `batch_size` are fetched at a time."""
        offset = 0
        while batch := await self.search_page(query, batch_size, offset, **filters):
            for memory in batch:
                yield memory
            offset += len(batch)

    async def search_page(
        self, query: str, batch_size: int, offset: int, **filters: Unpack[Filters]
    ) -> list[CompactMemory]:
        """Return one part of a search over the whole store; from a page of this size on, all of it is ranked."""
        size = max(batch_size, SEARCH_PAGE_SIZE) if type(batch_size) is int and batch_size > 0 else batch_size
        arguments, project = _merge_filters(filters, query=query, k=size, offset=offset)
        return [
            compact_memory(found)
            for found in (await self._call_operation("recall", arguments, project, k="batch_size")).data
        ]

    async def store(
        self,
        content: str,
        tags: Tags = None,
        memory_type: str = "note",
        metadata: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
    ) -> str:
        """Keep a text and return its hash."""
        stored = await self._call_for_data(
            "remember", project, content=content, tags=tags, memory_type=memory_type, metadata=metadata
        )
        return _get_hash_and_warn(stored)

    async def store_batch(self, items: Iterable[str | Mapping[str, Any]], *, project: str | None = None) -> list[str]:
        """Keep many texts at once and return their hashes, in order."""
        hashes = []
        for stored in await self._call_for_data("remember_batch", project, items=_require_list(items, "items")):
            hashes.append(_get_hash_and_warn(stored))  # noqa: PERF401  # a comprehension has a frame of its own, and warnings count
        return hashes

    async def get(self, hash: str | int, *, project: str | None = None) -> "Memory":  # noqa: A002  # the public name
        """Return one memory whole."""
        from athena.memory.values import Memory  # dataclasses are slow to import

        found = await self._call_for_data("get_memory", project, memory_id=hash)
        fields = {name: found[name] for name in Memory.__dataclass_fields__}
        return Memory(**fields | {"tags": tuple(found["tags"])})

    async def update(
        self,
        hash: str | int,  # noqa: A002
        content: str | None = None,
        tags: Tags = None,
        memory_type: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
    ) -> str:
        """Change a memory and return its hash, which follows its text."""
        changes = {"content": content, "tags": tags, "memory_type": memory_type, "metadata": metadata}
        return _get_hash_and_warn(await self._call_for_data("update_memory", project, memory_id=hash, **changes))

    async def delete(self, hash: str | int, *, project: str | None = None) -> bool:  # noqa: A002
        """Forget a memory; False if there was none. `restore` brings it back."""
        return bool(await self._call_for_data("forget", project, memory_id=hash))

    async def delete_batch(self, hashes: Iterable[str | int], *, project: str | None = None) -> int:
        """Forget several memories and return how many there were."""
        chosen = _require_list(hashes, "hashes")
        return int(await self._call_for_data("forget_batch", project, memory_ids=chosen)) if chosen else 0

    async def delete_by_tag(self, tags: Tags, expect: int | None = None, *, project: str | None = None) -> int:
        """Forget all memories that have any of some tags, if they are exactly `expect`."""
        return int(await self._call_for_data("forget_by_tag", project, tags=tags, expect=expect))

    async def restore(self, hash: str | int, *, project: str | None = None) -> bool:  # noqa: A002
        """Bring a forgotten memory back; False if it was not forgotten."""
        return bool(await self._call_for_data("restore_memory", project, memory_id=hash))

    async def ingest(
        self, path: str | os.PathLike[str], tags: Tags = None, *, project: str | None = None
    ) -> CompactIngestResult:
        """Keep a text file, or every text file below a folder, as pieces that searches find."""
        found = await self._call_for_data(
            "ingest_document", project, path=os.fsdecode(path) if isinstance(path, os.PathLike) else path, tags=tags
        )
        if found["redacted"]:
            _warn_secret_removed(f"secrets were taken out of what was ingested: {', '.join(found['redacted'])}")
        return CompactIngestResult(found["documents"], found["pieces"], tuple(found["skipped"]))

    async def consolidate(
        self, strategy: str = "balanced", days_back: float = 7, dry_run: bool = False, *, project: str | None = None
    ) -> dict[str, Any]:
        """Merge memories that say the same and name what recurs: `{"patterns": [...], "merged": n, ...}`."""
        arguments = {"strategy": strategy, "days_back": days_back, "dry_run": dry_run}
        return dict(await self._call_for_data("consolidate", project, **arguments))

    async def call(self, operation: str, /, *, project: str | None = None, **arguments: Any) -> Any:
        """Run any operation of the catalog by its name, and return plain values."""
        return await self._call_for_data(operation, project, **arguments)

    async def execute_code(
        self,
        code: str,
        timeout_s: float = 30.0,
        workspace: str | None = None,
        engine: str = "auto",
        *,
        project: str | None = None,
    ) -> dict[str, Any]:
        """Run a program in the sandbox; what went wrong in it is under `error`, not raised."""
        more = {"timeout_s": timeout_s, "workspace": workspace, "engine": engine}
        done: dict[str, Any] = await self._call_for_data("execute_code", project, code=code, **more)
        return done

    async def health(self) -> CompactHealthInfo:
        """Say whether the store works."""
        found = await self._call_for_data("health")
        return CompactHealthInfo(found["status"], found["count"], found["backend"])


def _get_hash_and_warn(stored: Mapping[str, Any]) -> str:
    """Return the hash of what was stored, and warn of secrets that were taken out of it."""
    if stored["redacted"]:
        _warn_secret_removed(f"secrets were taken out before storing {stored['hash']}: {', '.join(stored['redacted'])}")
    return str(stored["hash"])


def _warn_secret_removed(message: str) -> None:
    """Warn at the caller's own line: below it stand `drive` and its wrapper, or nothing in asynchronous code."""
    warnings.warn(message, SecretRemoved, stacklevel=6 if get_running_loop() is None else 4)


def _require_list(values: Iterable[Any], name: str) -> list[Any]:
    """Return a list of what was given; a text is one thing and not its characters."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must be a list, not {type(values).__name__}")
    return list(values)


def _merge_filters(filters: Filters, **arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Add filters to arguments and return the project that they name apart from them."""
    if unknown := filters.keys() - Filters.__annotations__.keys():
        raise InvalidInput(
            f"there is no filter {min(unknown)!r}", hint=f"there are {', '.join(Filters.__annotations__)}"
        )
    narrowing = {name: value for name, value in filters.items() if name != "project"}
    return arguments | narrowing, filters.get("project")


def _format_date(value: Any) -> Any:
    """Write a date or a time of Python's as the operations take it."""
    return value.isoformat() if hasattr(value, "isoformat") else value
