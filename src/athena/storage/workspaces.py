"""SQL of workspaces: the variables and files that programs keep between runs."""

import secrets
from typing import NamedTuple

from athena.core.attachments import HANDLES_PREFIX
from athena.core.values import Scope
from athena.storage import privacy
from athena.storage.database import Transaction

CONNECTION_PREFIX = "mcp-"  # of the names of connections' workspaces, which no later connection gets
CONNECTION_NAME_BYTES = 8


class WorkspaceRow(NamedTuple):
    owner: str  # an id that stays where the project or the workspace is renamed
    state: bytes | None  # sealed with a key, against forgery
    variables: str  # as JSON, for processes without the key or with another engine
    updated: float
    private: str = ""  # marks of the private sources that its programs have read


class FileRow(NamedTuple):
    """A file without its content."""

    path: str
    size: int
    updated: float


class WorkspaceSummary(NamedTuple):
    """A workspace without its state."""

    name: str
    updated: float
    variables: str
    files: int
    size: int


class FileUsage(NamedTuple):
    """The space in use, without one path."""

    files: int
    workspace_bytes: int
    workspaces: int  # other ones of the project
    project_bytes: int


def create_connection_name() -> str:
    return f"{CONNECTION_PREFIX}{secrets.token_hex(CONNECTION_NAME_BYTES)}"


def is_connection_name(name: str) -> bool:
    """Return whether a workspace has the name of one that was assigned to a connection."""
    digits = name.removeprefix(CONNECTION_PREFIX)
    return digits != name and len(digits) == 2 * CONNECTION_NAME_BYTES and not digits.strip("0123456789abcdef")


async def fetch_workspace(tx: Transaction, scope: Scope, name: str) -> WorkspaceRow | None:
    row = await tx.fetch_one(
        "SELECT owner, state, variables, updated, private FROM workspaces WHERE scope = :scope AND name = :name",
        scope=scope.project,
        name=name,
    )
    return None if row is None else WorkspaceRow(row[0], None if row[1] is None else bytes(row[1]), *row[2:])


async def list_workspaces(tx: Transaction, scope: Scope) -> list[WorkspaceSummary]:
    """Return the workspaces that have variables or files, the last used first."""
    rows = await tx.fetch(
        """SELECT name, max(updated), coalesce(max(variables), '{}'), sum(files), sum(size) FROM (
               SELECT name, updated, variables, 0 AS files, 0 AS size FROM workspaces WHERE scope = :scope
               UNION ALL
               SELECT workspace, updated, CAST(NULL AS TEXT), 1, size FROM files WHERE scope = :scope
           ) AS parts GROUP BY name ORDER BY max(updated) DESC, name""",
        scope=scope.project,
    )
    return [WorkspaceSummary(name, at, variables, int(files), int(size)) for name, at, variables, files, size in rows]


async def fetch_workspace_usage(tx: Transaction, scope: Scope, excluded_name: str) -> tuple[int, int]:
    """Return how many other workspaces have variables, and how many bytes those take."""
    row = await tx.fetch_required(
        """SELECT count(*), coalesce(sum(length(state) + length(variables)), 0) FROM workspaces
           WHERE scope = :scope AND name <> :name AND state IS NOT NULL""",
        scope=scope.project,
        name=excluded_name,
    )
    return int(row[0]), int(row[1])


async def upsert_workspace(
    tx: Transaction, scope: Scope, name: str, workspace: WorkspaceRow, expected_updated: float
) -> bool:
    """Write the variables; False, and nothing written, if the row was updated since `expected_updated`."""
    written = await tx.execute(
        """INSERT INTO workspaces (scope, name, owner, state, variables, updated)
           VALUES (:scope, :name, :owner, :state, :variables, :updated)
           ON CONFLICT (scope, name) DO UPDATE SET owner = excluded.owner, state = excluded.state,
               variables = excluded.variables, updated = excluded.updated
           WHERE workspaces.updated = :expected""",
        scope=scope.project,
        name=name,
        expected=expected_updated,
        **workspace._asdict(),
    )
    return written > 0


async def add_marks(tx: Transaction, scope: Scope, name: str, owner: str, marks: str) -> None:
    """Add private marks to a workspace; its variables and their time stay."""
    row = await tx.fetch_one(
        "SELECT private FROM workspaces WHERE scope = :scope AND name = :name", scope=scope.project, name=name
    )
    await tx.execute(
        """INSERT INTO workspaces (scope, name, owner, state, variables, updated, private)
           VALUES (:scope, :name, :owner, NULL, '{}', 0, :private)
           ON CONFLICT (scope, name) DO UPDATE SET private = excluded.private""",
        scope=scope.project,
        name=name,
        owner=owner,
        private=privacy.join_marks([*marks.split(), *(row[0].split() if row else ())]),
    )


async def delete_workspaces(tx: Transaction, scope: Scope) -> None:
    """Delete all variables of a project."""
    await tx.execute("DELETE FROM workspaces WHERE scope = :scope", scope=scope.project)


async def delete_oldest_variables(tx: Transaction, scope: Scope, kept_name: str) -> bool:
    """Delete the variables of the connection's workspace that was not used for longest; False if there is none."""
    deleted = await tx.execute(
        """DELETE FROM workspaces WHERE scope = :scope AND name = (
               SELECT name FROM workspaces
               WHERE scope = :scope AND substr(name, 1, :length) = :prefix AND name <> :kept
               ORDER BY updated, name LIMIT 1)""",
        scope=scope.project,
        prefix=CONNECTION_PREFIX,
        length=len(CONNECTION_PREFIX),
        kept=kept_name,
    )
    return deleted > 0


async def delete_oldest_handles(tx: Transaction, scope: Scope, kept_name: str) -> bool:
    """Delete the long values of the oldest connection's workspace that has no other files; False if there is none."""
    deleted = await tx.execute(
        """DELETE FROM files WHERE scope = :scope AND workspace = (
               SELECT workspace FROM files
               WHERE scope = :scope AND substr(workspace, 1, :length) = :prefix AND workspace <> :kept
               GROUP BY workspace
               HAVING min(CASE WHEN substr(path, 1, :handles_length) = :handles THEN 1 ELSE 0 END) = 1
               ORDER BY max(updated), workspace LIMIT 1)""",
        scope=scope.project,
        prefix=CONNECTION_PREFIX,
        length=len(CONNECTION_PREFIX),
        kept=kept_name,
        handles=HANDLES_PREFIX,
        handles_length=len(HANDLES_PREFIX),
    )
    return deleted > 0


async def fetch_file(tx: Transaction, scope: Scope, workspace: str, path: str) -> str | None:
    row = await tx.fetch_one(
        "SELECT content, private FROM files WHERE scope = :scope AND workspace = :workspace AND path = :path",
        scope=scope.project,
        workspace=workspace,
        path=path,
    )
    if row is None:
        return None
    privacy.note_read(row[1])
    return str(row[0])


async def note_file(tx: Transaction, scope: Scope, workspace: str, path: str) -> None:
    """Mark the run that deletes a file and learns whether there was one: a program may have left it as a sign."""
    row = await tx.fetch_one(
        "SELECT private FROM files WHERE scope = :scope AND workspace = :workspace AND path = :path",
        scope=scope.project,
        workspace=workspace,
        path=path,
    )
    if row is not None:
        privacy.note_read(row[0])
        privacy.note_change(row[0], "file", workspace, path)


async def fetch_file_usage(tx: Transaction, scope: Scope, workspace: str, excluded_path: str) -> FileUsage:
    row = await tx.fetch_required(
        """SELECT coalesce(sum(CASE WHEN workspace = :workspace THEN 1 ELSE 0 END), 0),
                  coalesce(sum(CASE WHEN workspace = :workspace THEN size ELSE 0 END), 0),
                  count(DISTINCT CASE WHEN workspace = :workspace THEN NULL ELSE workspace END),
                  coalesce(sum(size), 0)
           FROM files WHERE scope = :scope AND NOT (workspace = :workspace AND path = :path)""",
        scope=scope.project,
        workspace=workspace,
        path=excluded_path,
    )
    return FileUsage(*map(int, row))


async def upsert_file(
    tx: Transaction, scope: Scope, workspace: str, path: str, content: str, size: int, now: float, private: str = ""
) -> None:
    """Write a file, or overwrite it."""
    await tx.execute(
        """INSERT INTO files (scope, workspace, path, content, size, updated, private)
           VALUES (:scope, :workspace, :path, :content, :size, :now, :private)
           ON CONFLICT (scope, workspace, path) DO UPDATE SET
               content = excluded.content, size = excluded.size, updated = excluded.updated,
               private = excluded.private""",
        scope=scope.project,
        workspace=workspace,
        path=path,
        content=content,
        size=size,
        now=now,
        private=privacy.add_current_marks(private),
    )


async def list_files(tx: Transaction, scope: Scope, workspace: str, *, is_upkeep: bool = False) -> list[FileRow]:
    """Return the files of a workspace in the order of their paths; for upkeep the caller shows nothing of them."""
    rows = await tx.fetch(
        "SELECT path, size, updated, private FROM files WHERE scope = :scope AND workspace = :workspace",
        scope=scope.project,
        workspace=workspace,
    )
    for *_, private in () if is_upkeep else rows:
        privacy.note_read(private)
    return sorted(FileRow(path, int(size), updated) for path, size, updated, _ in rows)


async def delete_file(tx: Transaction, scope: Scope, workspace: str, path: str) -> bool:
    """Delete a file; False if there was none."""
    deleted = await tx.execute(
        "DELETE FROM files WHERE scope = :scope AND workspace = :workspace AND path = :path",
        scope=scope.project,
        workspace=workspace,
        path=path,
    )
    return deleted > 0


async def delete_handles(tx: Transaction, scope: Scope) -> None:
    """Delete the values that were too long to show; files that programs wrote stay."""
    await tx.execute(
        "DELETE FROM files WHERE scope = :scope AND substr(path, 1, :length) = :prefix",
        scope=scope.project,
        prefix=HANDLES_PREFIX,
        length=len(HANDLES_PREFIX),
    )
