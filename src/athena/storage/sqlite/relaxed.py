"""A store as programs are given it."""

from typing import TYPE_CHECKING, Any, TypeVar

from athena.storage.database import Work

if TYPE_CHECKING:
    from athena.storage.sqlite.store import Sqlite

T = TypeVar("T")


class DeferredSyncSqlite:
    """A store whose writes do not wait for the disk."""

    def __init__(self, store: "Sqlite") -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, work: Work[T]) -> T:
        return await self._store.write(work, relaxed=True)
