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
from athena.core.threads import drive

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
_memory = MemoryApi(connect.Connection(connect.shared_app, None, "python"))


def _blocking(method: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Return a function that runs a coroutine to its end on the caller's thread."""

    @wraps(method)
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return drive(method(*args, **kwargs))

    return function


call = _blocking(_memory.call)
search = _blocking(_memory.search)
search_batch = _blocking(_memory.search_batch)
search_by_tag = _blocking(_memory.search_by_tag)
recall = _blocking(_memory.recall)
store = _blocking(_memory.store)
store_batch = _blocking(_memory.store_batch)
get = _blocking(_memory.get)
update = _blocking(_memory.update)
delete = _blocking(_memory.delete)
delete_batch = _blocking(_memory.delete_batch)
delete_by_tag = _blocking(_memory.delete_by_tag)
restore = _blocking(_memory.restore)
ingest = _blocking(_memory.ingest)
consolidate = _blocking(_memory.consolidate)
execute_code = _blocking(_memory.execute_code)
health = _blocking(_memory.health)


def search_iter(query: str, batch_size: int = 100, **filters: Unpack[Filters]) -> Iterator[CompactMemory]:
    """Go through the whole store, best first, `batch_size` at a time."""
    offset = 0
    while batch := drive(_memory.page(query, batch_size, offset, **filters)):
        yield from batch
        offset += len(batch)
