"""Workspaces: what the programs of one remember between runs."""

from typing import Any, NamedTuple

from athena.core.scope import Scope


class WorkspaceRow(NamedTuple):
    owner: str  # whose state it is, whatever the project and the workspace are called
    state: bytes | None  # sealed: only whoever has the key makes one that is accepted
    variables: str  # those that JSON can hold, for whoever lacks the key or has another engine
    updated: float


async def fetch_workspace(tx: Any, scope: Scope, name: str) -> WorkspaceRow | None:
    row = await tx.fetch_one(
        "SELECT owner, state, variables, updated FROM workspaces WHERE scope = :scope AND name = :name",
        scope=scope.project,
        name=name,
    )
    return None if row is None else WorkspaceRow(row[0], None if row[1] is None else bytes(row[1]), row[2], row[3])


async def fetch_workspace_usage(tx: Any, scope: Scope, besides: str) -> tuple[int, int]:
    """Return how many other workspaces have variables, and how many bytes those take."""
    row = await tx.fetch_one(
        """SELECT count(*), coalesce(sum(length(state) + length(variables)), 0) FROM workspaces
           WHERE scope = :scope AND name <> :name""",
        scope=scope.project,
        name=besides,
    )
    return int(row[0]), int(row[1])


async def upsert_workspace(tx: Any, scope: Scope, name: str, one: WorkspaceRow, was: float) -> bool:
    """Write the variables, unless somebody else has since `was`: then nothing is written."""
    written: int = await tx.execute(
        """INSERT INTO workspaces (scope, name, owner, state, variables, updated)
           VALUES (:scope, :name, :owner, :state, :variables, :updated)
           ON CONFLICT (scope, name) DO UPDATE SET owner = excluded.owner, state = excluded.state,
               variables = excluded.variables, updated = excluded.updated
           WHERE workspaces.updated = :was""",
        scope=scope.project,
        name=name,
        was=was,
        **one._asdict(),
    )
    return written > 0


async def delete_workspaces(tx: Any, scope: Scope) -> None:
    """Let go of all variables of a project."""
    await tx.execute("DELETE FROM workspaces WHERE scope = :scope", scope=scope.project)
