"""The code API: plain functions that work in a script, a thread, or inside a running event loop.

>>> from athena import api
>>> api.store("Deploys run on Fridays", tags="deploy")
>>> print(api.search("when do we deploy"))
"""

import json as json  # clients of the daemon need these; importing them here keeps their cost in one place
import os as os
import socket as socket
import threading as threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar, Unpack

from athena.api.compact import CompactHealthInfo, CompactIngestResult, CompactMemory, CompactSearchResult
from athena.api.memory import Filters, MemoryApi, SecretRemoved
from athena.app import connect
from athena.app.connect import close
from athena.core.threads import run_sync

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
    "get",
    "health",
    "ingest",
    "recall",
    "restore",
    "search",
    "search_batch",
    "search_by_tag",
    "search_iter",
    "store",
    "store_batch",
    "update",
]

P = ParamSpec("P")
R = TypeVar("R")
_default_api = MemoryApi(connect.AppConnection(connect.shared_app, None, "python"))


def _make_blocking(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return a function that runs a coroutine to its end on the caller's thread."""

    @wraps(method)
    def run_blocking(*args: P.args, **kwargs: P.kwargs) -> R:
        return run_sync(method(*args, **kwargs))

    return run_blocking


call = _make_blocking(_default_api.call)
search = _make_blocking(_default_api.search)
search_batch = _make_blocking(_default_api.search_batch)
search_by_tag = _make_blocking(_default_api.search_by_tag)
recall = _make_blocking(_default_api.recall)
store = _make_blocking(_default_api.store)
store_batch = _make_blocking(_default_api.store_batch)
get = _make_blocking(_default_api.get)
update = _make_blocking(_default_api.update)
delete = _make_blocking(_default_api.delete)
delete_batch = _make_blocking(_default_api.delete_batch)
delete_by_tag = _make_blocking(_default_api.delete_by_tag)
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
