"""Purge memories from the progress of an unfinished consolidation."""

from athena.memory.consolidation.rows import clear_progress
from athena.memory.edit_hooks import EditHooks, Purge
from athena.storage.database import Transaction


class ConsolidationEditHooks(EditHooks):
    async def purge_project(self, tx: Transaction, purge: Purge) -> None:
        await clear_progress(tx)
