"""Purge of the copies that programs keep of memories (long values, variables, results), and restored skills."""

from collections.abc import Callable

from athena.memory.edit_hooks import EditHooks, Purge
from athena.memory.rows import MemoryRow
from athena.programs import rows as skill_rows
from athena.storage import runs, scopes, workspaces
from athena.storage.database import Transaction


class ProgramEditHooks(EditHooks):
    """`forget_runs` drops what this process remembers of the runs of a project."""

    def __init__(self, forget_runs: Callable[[str], None] = lambda project: None) -> None:
        self._forget_runs = forget_runs

    async def check_restore(self, tx: Transaction, row: MemoryRow) -> None:
        if await scopes.fetch_scope_kind(tx, row.scope) == "skill":
            name: str = row.memory.metadata["session_id"]
            await skill_rows.check_room(tx, row.scope, name, row.memory.content, row.memory.metadata)

    async def purge_project(self, tx: Transaction, purge: Purge) -> None:
        if not purge.memory_ids:
            return
        await workspaces.delete_handles(tx, purge.scope)
        await workspaces.delete_workspaces(tx, purge.scope)
        await runs.clear_run_contents(tx, purge.scope)
        self._forget_runs(purge.scope.project)
