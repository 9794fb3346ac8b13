"""Files of workspaces, as rows: written whole or not at all, and no path leads out of them."""

from typing import Any, NamedTuple

from athena.core.scope import Scope

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
