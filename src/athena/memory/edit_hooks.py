"""Hooks that let other features take part in forget, restore, undo and purge.

The graph, consolidation and programs each subclass EditHooks; the composition root hands one of each to the store, so
that memory/edit.py imports none of these features.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from athena.core.values import Scope
from athena.memory.history_rows import ChangeRow
from athena.memory.rows import MemoryRow
from athena.storage.database import Transaction


class UndoResult(NamedTuple):
    """The result of undoing one recorded change."""

    applied: bool  # False if the same thing was created again since, so that nothing was changed
    row_id: int  # the memory that was changed; negative for a row of another table
    text: str | None = None  # of the changed row, if it is not the memory's text


class Purge(NamedTuple):
    """The rows that a purge removes."""

    scope: Scope
    memory_ids: Sequence[int]
    all_forgotten: bool  # whether it removes everything forgotten, not memories that the caller named


class EditHooks:
    """A feature's part in edits of memories. Every method runs inside the transaction of the edit."""

    async def undo_change(self, tx: Transaction, change: ChangeRow, now: float) -> UndoResult | None:
        """Undo a change that this feature recorded; return None if another feature recorded it."""

    def check_forget(self, row: MemoryRow) -> None:
        """Raise if this row cannot be forgotten alone."""

    async def check_restore(self, tx: Transaction, row: MemoryRow) -> None:
        """Raise if this row cannot be restored alone."""

    async def is_orphaned(self, tx: Transaction, row: MemoryRow) -> bool:
        """Return whether a row belongs to another one that no longer exists."""
        return False

    async def list_dependent_ids(self, tx: Transaction, row: MemoryRow) -> list[int]:
        """Return the memories that a purge must remove together with this row."""
        return []

    async def purge_row(self, tx: Transaction, row: MemoryRow) -> None:
        """Remove what this feature stores about a memory, for good."""

    async def purge_project(self, tx: Transaction, purge: Purge) -> None:
        """Remove this feature's project data, after the memories are removed."""


class LateEditHooks:
    """The hooks of all features, created with the first edit: a process that only searches imports none of them."""

    def __init__(self, create: Callable[[], tuple[EditHooks, ...]]) -> None:
        self._create = create
        self._hooks: tuple[EditHooks, ...] = ()

    def __iter__(self) -> Iterator[EditHooks]:
        self._hooks = self._hooks or self._create()
        return iter(self._hooks)
