"""The code API: plain functions that work in a script, a thread, or inside a running event loop.

>>> from athena import api
>>> api.remember("Deploys run on Fridays", tags="deploy")
>>> print(api.recall("when do we deploy"))
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from contextlib import asynccontextmanager
from functools import wraps

from athena.app import connect
from athena.app.compact import (
    CompactHealthInfo,
    CompactIngestResult,
    CompactMemory,
    CompactSearchResult,
    compact_memory,
)
from athena.app.connect import AppConnection, HomeConnection, OperationResult, close
from athena.core.threads import get_running_loop, run_sync
from athena.errors import InvalidInput

TYPE_CHECKING = False  # importing typing takes as long as Python's own start
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
    from datetime import date
    from typing import Any, ParamSpec, TypeAlias, TypedDict, TypeVar, Unpack

    from athena.memory.values import Memory
    from athena.results import AsyncCallOperation, CallOperation

    Tags: TypeAlias = str | Sequence[str] | None
    When: TypeAlias = str | float | date | None
    P = ParamSpec("P")
    R = TypeVar("R")

    class Filters(TypedDict, total=False):
        """The filters of a search."""

        tags: Tags
        memory_type: str | None
        since: When
        until: When
        min_score: float | None
        project: str | None


FILTER_NAMES = ("tags", "memory_type", "since", "until", "min_score", "project")
SEARCH_PAGE_SIZE = 1_000
PARAMETER_NAMES = {"memory_id": "hash", "memory_ids": "hashes"}  # operation's name to this API's


class SecretRemoved(UserWarning):
    """A secret in a text was replaced by `[SECRET:kind]` before the text was stored."""


class MemoryApi:
    """Memory operations on one store. `project` says whose memories; by default the caller's own."""

    def __init__(self, connection: AppConnection) -> None:
        self._connection = connection

    async def _call(
        self, operation: str, project: str | None, names: dict[str, str] | None = None, /, **arguments: Any
    ) -> OperationResult:
        """Call an operation; in its errors, parameters have the names of this API (`names` adds to them)."""
        plain = {name: _format_date(value) for name, value in arguments.items()}
        try:
            return await self._connection.call(operation, plain, project)
        except InvalidInput as error:
            text = str(error).removeprefix(f"{operation}: ")
            name = next((text[:end] for end in range(len(text)) if not _is_word_char(text[end])), text)
            rest = text[len(name) :]
            hint = None if error.hint and error.hint.startswith("memory.") else error.hint
            raise InvalidInput((PARAMETER_NAMES | (names or {})).get(name, name) + rest, hint=hint) from None

    async def search(
        self,
        query: str,
        limit: int = 5,
        tags: Tags = None,
        memory_type: str | None = None,
        since: When = None,
        until: When = None,
        min_score: float | None = None,
        *,
        k: int | None = None,
        project: str | None = None,
    ) -> CompactSearchResult:
        """Find memories by words and by meaning.

        A score is the probability that the memory answers. If even the best is improbable there are none, and
        `weaker` counts them; `min_score=0` shows everything. `k` is another name of `limit`.
        """
        filters = {"tags": tags, "memory_type": memory_type, "since": since, "until": until, "min_score": min_score}
        page = await self._call("recall", project, query=query, **_name_limit(limit, k), **filters)
        return _compact_result(page, query)

    async def search_batch(
        self, queries: Iterable[str], limit: int = 5, *, k: int | None = None, **filters: Unpack[Filters]
    ) -> list[CompactSearchResult]:
        """Answer several searches at once."""
        results = []
        for i, query in enumerate(_require_list(queries, "queries")):
            arguments, project = _merge_filters(filters, query=query, **_name_limit(limit, k))
            page = await self._call("recall", project, {"query": f"queries[{i}]"}, **arguments)
            results.append(_compact_result(page, query))
        return results

    async def search_by_tag(
        self, tags: Tags, limit: int = 10, match: str = "any", *, k: int | None = None, project: str | None = None
    ) -> CompactSearchResult:
        """List the memories that have any or all of some tags, the newest first."""
        page = await self._call("search_by_tag", project, tags=tags, match=match, **_name_limit(limit, k))
        return _compact_result(page, tags if isinstance(tags, str) else ", ".join(tags or ()))

    async def recall(
        self,
        query: str | None = None,
        limit: int = 5,
        tags: Tags = None,
        memory_type: str | None = None,
        since: When = None,
        until: When = None,
        min_score: float | None = None,
        *,
        phrase: str | None = None,
        k: int | None = None,
        project: str | None = None,
    ) -> CompactSearchResult:
        """Find memories as `search` does; time in plain words ("what we decided about auth last week") is a filter.

        `phrase` is another name of `query`, `k` of `limit`.
        """
        filters = {"tags": tags, "memory_type": memory_type, "since": since, "until": until, "min_score": min_score}
        question, names = (phrase, {"query": "phrase"}) if query is None else (query, {})
        arguments = filters | _name_limit(limit, k) | {"query": question, "understand_time": True}
        return _compact_result(await self._call("recall", project, names, **arguments), str(question))

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
        arguments, project = _merge_filters({"min_score": 0.0} | filters, query=query, limit=size, offset=offset)
        page = await self._call("recall", project, {"limit": "batch_size"}, **arguments)
        return [compact_memory(hit) for hit in page.data]

    async def remember(
        self,
        content: str,
        tags: Tags = None,
        memory_type: str = "note",
        metadata: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
    ) -> str:
        """Keep a text and return its hash. `store` is another name."""
        fields = {"content": content, "tags": tags, "memory_type": memory_type, "metadata": metadata}
        return _get_hash_and_warn((await self._call("remember", project, **fields)).data)

    async def remember_batch(
        self, items: Iterable[str | Mapping[str, Any]], *, project: str | None = None
    ) -> list[str]:
        """Keep many texts at once and return their hashes, in order. `store_batch` is another name."""
        hashes = []
        for stored in (await self._call("remember_batch", project, items=_require_list(items, "items"))).data:
            hashes.append(_get_hash_and_warn(stored))  # noqa: PERF401  # a comprehension has a frame of its own, and warnings count
        return hashes

    async def get(self, hash: str | int, *, project: str | None = None) -> Memory:  # noqa: A002  # the public name
        """Return one memory whole."""
        from athena.memory.values import Memory  # dataclasses are slow to import

        memory = (await self._call("get_memory", project, memory_id=hash)).data
        fields = {name: memory[name] for name in Memory.__dataclass_fields__}
        return Memory(**fields | {"tags": tuple(memory["tags"])})

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
        return _get_hash_and_warn((await self._call("update_memory", project, memory_id=hash, **changes)).data)

    async def forget(self, hash: str | int, *, project: str | None = None) -> bool:  # noqa: A002
        """Forget a memory; False if there was none. `restore` brings it back. `delete` is another name."""
        return bool((await self._call("forget", project, memory_id=hash)).data)

    async def forget_batch(self, hashes: Iterable[str | int], *, project: str | None = None) -> int:
        """Forget several memories and return how many there were. `delete_batch` is another name."""
        ids = _require_list(hashes, "hashes")
        return int((await self._call("forget_batch", project, memory_ids=ids)).data) if ids else 0

    async def forget_by_tag(self, tags: Tags, expect: int | None = None, *, project: str | None = None) -> int:
        """Forget all memories with any of some tags, if they are exactly `expect`. `delete_by_tag` is another name."""
        return int((await self._call("forget_by_tag", project, tags=tags, expect=expect)).data)

    async def restore(self, hash: str | int, *, project: str | None = None) -> bool:  # noqa: A002
        """Bring a forgotten memory back; False if it was not forgotten."""
        return bool((await self._call("restore_memory", project, memory_id=hash)).data)

    async def ingest(
        self, path: str | os.PathLike[str], tags: Tags = None, *, project: str | None = None
    ) -> CompactIngestResult:
        """Keep a text file, or every text file below a folder, as pieces that searches find."""
        plain_path = os.fsdecode(path) if isinstance(path, os.PathLike) else path
        result = (await self._call("ingest_document", project, path=plain_path, tags=tags)).data
        if result["redacted"]:
            _warn_secret_removed(f"secrets were taken out of what was ingested: {', '.join(result['redacted'])}")
        return CompactIngestResult(result["documents"], result["pieces"], tuple(result["skipped"]))

    async def consolidate(
        self, strategy: str = "balanced", days_back: float = 7, dry_run: bool = False, *, project: str | None = None
    ) -> dict[str, Any]:
        """Merge memories that say the same and name what recurs: `{"patterns": [...], "merged": n, ...}`."""
        arguments = {"strategy": strategy, "days_back": days_back, "dry_run": dry_run}
        return dict((await self._call("consolidate", project, **arguments)).data)

    if TYPE_CHECKING:
        call: AsyncCallOperation
    else:

        async def call(self, operation: str, /, *, project: str | None = None, **arguments: Any) -> Any:
            """Run any operation of the catalog by its name, and return plain values."""
            return (await self._call(operation, project, **arguments)).data

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
        options = {"timeout_s": timeout_s, "workspace": workspace, "engine": engine}
        result: dict[str, Any] = (await self._call("execute_code", project, code=code, **options)).data
        return result

    async def health(self) -> CompactHealthInfo:
        """Say whether the store works."""
        health = (await self._call("health", None)).data
        return CompactHealthInfo(health["status"], health["count"], health["backend"])

    store, store_batch = remember, remember_batch
    delete, delete_batch, delete_by_tag = forget, forget_batch, forget_by_tag

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_describe_unknown_name("this object", name))


def _compact_result(page: OperationResult, query: str) -> CompactSearchResult:
    memories = tuple(map(compact_memory, page.data))
    return CompactSearchResult(memories, len(memories) if page.total is None else page.total, query, page.weaker)


def _get_hash_and_warn(stored: Mapping[str, Any]) -> str:
    """Return the hash of a stored memory, and warn of secrets that were removed from it."""
    if stored["redacted"]:
        _warn_secret_removed(f"secrets were taken out before storing {stored['hash']}: {', '.join(stored['redacted'])}")
    return str(stored["hash"])


def _warn_secret_removed(message: str) -> None:
    """Warn at the line of our caller: a blocking function has two frames more, `run_blocking` and `run_sync`."""
    warnings.warn(message, SecretRemoved, stacklevel=6 if get_running_loop() is None else 4)


def _name_limit(limit: int, k: int | None) -> dict[str, int]:
    """Return the number of hits under the name that the caller used, which errors repeat."""
    return {"limit": limit} if k is None else {"k": k}


def _describe_unknown_name(owner: str, name: str) -> str:
    """Say that there is no such function, and which one was meant."""
    from athena.core.unknown_names import suggest_function  # imports all methods; only after an error

    return f"{owner} has no attribute {name!r}{suggest_function(name, __all__)}"


def _require_list(values: Iterable[Any], name: str) -> list[Any]:
    """Return the values as a list; refuse a text, which is no list of characters here."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(f"{name} must be a list, not {type(values).__name__}")
    return list(values)


def _merge_filters(filters: Filters, **arguments: Any) -> tuple[dict[str, Any], str | None]:
    """Return the arguments with the filters, and the project of the filters."""
    if unknown := filters.keys() - set(FILTER_NAMES):
        raise InvalidInput(
            f"there is no filter {min(unknown)!r}{_suggest_name(min(unknown), FILTER_NAMES)}",
            hint=f"there are {', '.join(FILTER_NAMES)}",
        )
    others = {name: value for name, value in filters.items() if name != "project"}
    return arguments | others, filters.get("project")


def _is_word_char(char: str) -> bool:
    return char.isalnum() or char == "_"


def _suggest_name(name: str, names: Iterable[str]) -> str:
    from athena.core.unknown_names import suggest_name  # imports all methods; only after an error

    return suggest_name(name, names)


def _format_date(value: Any) -> Any:
    """Return a date or datetime as ISO 8601, and any other value as it is."""
    return value.isoformat() if hasattr(value, "isoformat") else value


__all__ = [
    "CompactHealthInfo",
    "CompactIngestResult",
    "CompactMemory",
    "CompactSearchResult",
    "SecretRemoved",
    "call",
    "close",
    "consolidate",
    "delete",
    "delete_batch",
    "delete_by_tag",
    "execute_code",
    "forget",
    "forget_batch",
    "forget_by_tag",
    "get",
    "health",
    "ingest",
    "recall",
    "remember",
    "remember_batch",
    "restore",
    "search",
    "search_batch",
    "search_by_tag",
    "search_iter",
    "store",
    "store_batch",
    "update",
]

_default_api = MemoryApi(HomeConnection(None, "python"))


def _make_blocking(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return a function that runs a coroutine to its end on the caller's thread."""

    @wraps(method)
    def run_blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            work = method(*args, **kwargs)
        except TypeError as error:  # the arguments do not fit, nothing has run
            raise TypeError(_explain_arguments(method, kwargs, error)) from None
        return run_sync(work)

    return run_blocking


def _explain_arguments(method: Callable[..., Any], kwargs: Mapping[str, Any], error: TypeError) -> str:
    """Say which parameter an unknown argument was meant for; of other errors return the text."""
    from athena.core.unknown_names import describe_unknown_argument  # imports all methods; only after an error

    return describe_unknown_argument(method, kwargs) or str(error).removeprefix(f"{MemoryApi.__name__}.")


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise AttributeError(_describe_unknown_name("module 'athena.api'", name))


call: CallOperation = _make_blocking(_default_api.call)  # type: ignore[assignment]  # overloads, not one signature
search = _make_blocking(_default_api.search)
search_batch = _make_blocking(_default_api.search_batch)
search_by_tag = _make_blocking(_default_api.search_by_tag)
recall = _make_blocking(_default_api.recall)
remember = _make_blocking(_default_api.remember)
store = remember
remember_batch = _make_blocking(_default_api.remember_batch)
store_batch = remember_batch
get = _make_blocking(_default_api.get)
update = _make_blocking(_default_api.update)
forget = _make_blocking(_default_api.forget)
delete = forget
forget_batch = _make_blocking(_default_api.forget_batch)
delete_batch = forget_batch
forget_by_tag = _make_blocking(_default_api.forget_by_tag)
delete_by_tag = forget_by_tag
restore = _make_blocking(_default_api.restore)
ingest = _make_blocking(_default_api.ingest)
consolidate = _make_blocking(_default_api.consolidate)
execute_code = _make_blocking(_default_api.execute_code)
health = _make_blocking(_default_api.health)


def search_iter(query: str, batch_size: int = 100, **filters: Unpack[Filters]) -> Iterator[CompactMemory]:
    """Go through the whole store, best first, `batch_size` at a time."""
    offset = 0
    while batch := run_sync(_default_api.search_page(query, batch_size, offset, **filters)):
        yield from batch
        offset += len(batch)


@asynccontextmanager
async def open(  # noqa: A001  # read as `athena.open`
    project: str | None = None,
) -> AsyncGenerator[MemoryApi]:
    """Open the store for asynchronous code: `async with athena.open() as memory: await memory.search(...)`."""
    yield MemoryApi(await connect.open_connection(project, "python"))
