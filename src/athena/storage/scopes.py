"""Projects, by name and number."""

from typing import Any

from athena.core.values import Scope
from athena.storage.filters import bind_list


async def fetch_visible_ids(tx: Any, scope: Scope) -> list[int]:
    """Return the numbers of the scopes that a read sees, the project first; one never written to has none."""
    names, bound = bind_list("name", scope.visible_projects)
    rows = await tx.fetch(
        f"SELECT name, id FROM scopes WHERE kind = :kind AND name IN ({names})", kind=scope.kind, **bound
    )
    return [number for _, number in sorted(rows, key=lambda row: scope.visible_projects.index(row[0]))]


async def fetch_own_ids(tx: Any, scope: Scope) -> list[int]:
    """Return the number of the project alone, if it has one."""
    rows = await tx.fetch("SELECT id FROM scopes WHERE name = :project AND kind = :kind", **scope._asdict())
    return [row[0] for row in rows]


async def fetch_project_ids(tx: Any, scope: Scope) -> list[int]:
    """Return the numbers of the project alone, whatever the kind."""
    return [row[0] for row in await tx.fetch("SELECT id FROM scopes WHERE name = :name", name=scope.project)]


async def fetch_all_visible_ids(tx: Any, scope: Scope) -> list[int]:
    """Return the numbers of the scopes that reads see, whatever the kind."""
    names, bound = bind_list("name", scope.visible_projects)
    return [row[0] for row in await tx.fetch(f"SELECT id FROM scopes WHERE name IN ({names})", **bound)]


async def fetch_scope_kind(tx: Any, number: int) -> str:
    row = await tx.fetch_one("SELECT kind FROM scopes WHERE id = :id", id=number)
    return str(row[0])


async def ensure_scope(tx: Any, scope: Scope) -> int:
    """Return the number of the project, giving it one if it has none."""
    row = await tx.fetch_one("SELECT id FROM scopes WHERE name = :project AND kind = :kind", **scope._asdict())
    if row is None:
        row = await tx.fetch_one(
            "INSERT INTO scopes (name, kind) VALUES (:project, :kind) RETURNING id", **scope._asdict()
        )
    return int(row[0])


async def list_projects(tx: Any) -> list[tuple[str, int, float | None]]:
    """Return every project with how many memories it has and when the last one changed."""
    rows = await tx.fetch(
        """SELECT s.name, count(m.id), max(m.updated) FROM scopes s
           LEFT JOIN memories m ON m.scope = s.id AND m.deleted IS NULL AND s.kind = 'memory'
           WHERE EXISTS (SELECT 1 FROM memories k WHERE k.scope = s.id)
           GROUP BY s.name ORDER BY s.name"""
    )
    return [(name, int(count), updated) for name, count, updated in rows]


async def rename_project(tx: Any, name: str, to: str) -> bool:
    """Give a project another name, with its calls and receipts; False if there is none of that name."""
    await tx.execute(  # an emptied project is none, but its number stays
        """UPDATE scopes SET name = 'emptied ' || CAST(id AS TEXT) WHERE name = :new
           AND NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = scopes.id)""",
        new=to,
    )
    changed: int = await tx.execute("UPDATE scopes SET name = :new WHERE name = :name", name=name, new=to)
    names = {"name": name, "new": to}
    # Under the new name there may have been questions, and calls with the same keys, though there was no project.
    await tx.execute(
        """DELETE FROM receipts WHERE scope = :new AND key IN (SELECT key FROM receipts WHERE scope = :name)""", **names
    )
    await tx.execute(
        """INSERT INTO usage (scope, day, operation, surface, calls, given, returned, shown)
           SELECT CAST(:new AS TEXT), day, operation, surface, calls, given, returned, shown FROM usage
           WHERE scope = :name
           ON CONFLICT (scope, day, operation, surface) DO UPDATE SET calls = usage.calls + excluded.calls,
               given = usage.given + excluded.given, returned = usage.returned + excluded.returned,
               shown = usage.shown + excluded.shown""",
        **names,
    )
    await tx.execute("DELETE FROM usage WHERE scope = :name", name=name)
    await tx.execute("DELETE FROM consolidations WHERE scope = :new", new=to)
    # A project of the new name that keeps no memory may still have files; the renamed one's come before them.
    await tx.execute(
        """DELETE FROM files WHERE scope = :new AND EXISTS (SELECT 1 FROM files o WHERE o.scope = :name
           AND o.workspace = files.workspace AND o.path = files.path)""",
        **names,
    )
    await tx.execute(
        "DELETE FROM workspaces WHERE scope = :new AND name IN (SELECT o.name FROM workspaces o WHERE o.scope = :name)",
        **names,
    )
    await tx.execute(
        "DELETE FROM runs WHERE scope = :new AND id IN (SELECT o.id FROM runs o WHERE o.scope = :name)", **names
    )
    await tx.execute("UPDATE injections SET over = 1 WHERE scope = :new AND over = 0", new=to)
    for table in ("calls", "receipts", "consolidations", "workspaces", "files", "runs", "injections"):
        await tx.execute(f"UPDATE {table} SET scope = :new WHERE scope = :name", **names)
    return changed > 0
