"""Workspaces: what the programs of one remember between runs."""

from typing import Any, NamedTuple

from athena.core.values import Scope


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


HANDLES_PREFIX = "handles/"  # where values that were too long to show are kept


class FileRow(NamedTuple):
    """A file without its content."""

    path: str
    size: int
    updated: float


class FileUsage(NamedTuple):
    """How much room is used, apart from one path."""

    files: int
    workspace_bytes: int
    workspaces: int  # other ones of the project
    project_bytes: int  # bytes of all


async def fetch_file(tx: Any, scope: Scope, workspace: str, path: str) -> str | None:
    row = await tx.fetch_one(
        "SELECT content FROM files WHERE scope = :scope AND workspace = :workspace AND path = :path",
        scope=scope.project,
        workspace=workspace,
        path=path,
    )
    return None if row is None else str(row[0])


async def fetch_file_usage(tx: Any, scope: Scope, workspace: str, besides: str) -> FileUsage:
    row = await tx.fetch_one(
        """SELECT coalesce(sum(CASE WHEN workspace = :workspace THEN 1 ELSE 0 END), 0),
                  coalesce(sum(CASE WHEN workspace = :workspace THEN size ELSE 0 END), 0),
                  count(DISTINCT CASE WHEN workspace = :workspace THEN NULL ELSE workspace END),
                  coalesce(sum(size), 0)
           FROM files WHERE scope = :scope AND NOT (workspace = :workspace AND path = :path)""",
        scope=scope.project,
        workspace=workspace,
        path=besides,
    )
    return FileUsage(*map(int, row))


async def upsert_file(tx: Any, scope: Scope, workspace: str, path: str, content: str, size: int, now: float) -> None:
    """Write a file, in place of what was there."""
    await tx.execute(
        """INSERT INTO files (scope, workspace, path, content, size, updated)
           VALUES (:scope, :workspace, :path, :content, :size, :now)
           ON CONFLICT (scope, workspace, path)
           DO UPDATE SET content = excluded.content, size = excluded.size, updated = excluded.updated""",
        scope=scope.project,
        workspace=workspace,
        path=path,
        content=content,
        size=size,
        now=now,
    )


async def list_files(tx: Any, scope: Scope, workspace: str) -> list[FileRow]:
    """Return the files of a workspace in the order of their paths."""
    rows = await tx.fetch(
        "SELECT path, size, updated FROM files WHERE scope = :scope AND workspace = :workspace",
        scope=scope.project,
        workspace=workspace,
    )
    return sorted(FileRow(path, int(size), updated) for path, size, updated in rows)


async def delete_file(tx: Any, scope: Scope, workspace: str, path: str) -> bool:
    """Remove a file; False if there was none."""
    gone: int = await tx.execute(
        "DELETE FROM files WHERE scope = :scope AND workspace = :workspace AND path = :path",
        scope=scope.project,
        workspace=workspace,
        path=path,
    )
    return gone > 0


async def delete_handles(tx: Any, scope: Scope) -> None:
    """Remove the copies of values that programs left; what was written on purpose stays."""
    await tx.execute(
        "DELETE FROM files WHERE scope = :scope AND substr(path, 1, :length) = :prefix",
        scope=scope.project,
        prefix=HANDLES_PREFIX,
        length=len(HANDLES_PREFIX),
    )
