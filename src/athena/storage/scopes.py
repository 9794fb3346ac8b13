"""SQL of scopes: a row for each project and kind, whose id is the `scope` of memories, passages and the graph.

Tables about calls and programs (calls, receipts, usage, runs, workspaces, files, ...) have the project's name instead.
"""

from collections.abc import Sequence

from athena.core.values import Call, Kind, Scope
from athena.storage.database import PendingRows, Transaction
from athena.storage.filters import bind_list, split_batches

TABLES_BY_PROJECT_NAME = ("calls", "receipts", "consolidations", "workspaces", "files", "runs", "injections")


async def fetch_visible_ids(tx: Transaction, scope: Scope) -> list[int]:
    """Return the ids of the scopes that a read may see, the project first; a scope without any write has none."""
    names, bound = bind_list("name", scope.visible_projects)
    rows = await tx.fetch(
        f"SELECT name, id FROM scopes WHERE kind = :kind AND name IN ({names})", kind=scope.kind, **bound
    )
    return [scope_id for _, scope_id in sorted(rows, key=lambda row: scope.visible_projects.index(row[0]))]


async def fetch_visible_kinds(tx: Transaction, scope: Scope, kinds: Sequence[Kind]) -> dict[int, Kind]:
    """Return the ids of the scopes of some kinds that a read may see, each with its kind, the project first."""
    names, bound = bind_list("name", scope.visible_projects)
    kind_names, bound_kinds = bind_list("kind", kinds)
    rows = await tx.fetch(
        f"SELECT kind, name, id FROM scopes WHERE kind IN ({kind_names}) AND name IN ({names})", **bound, **bound_kinds
    )
    rows.sort(key=lambda row: (kinds.index(row[0]), scope.visible_projects.index(row[1])))
    return {scope_id: kind for kind, _, scope_id in rows}


async def fetch_memory_scopes(tx: Transaction, scope_ids: list[int], ids: list[int]) -> dict[int, int]:
    """Return for each of these memories the id of its scope."""
    found: dict[int, int] = {}
    for batch in split_batches(ids):
        placeholders, bound = bind_list("id", batch)
        visible = ", ".join(map(str, scope_ids))
        sql = f"SELECT id, scope FROM memories WHERE scope IN ({visible}) AND id IN ({placeholders})"
        found |= {int(row[0]): int(row[1]) for row in await tx.fetch(sql, **bound)}
    return found


def begin_own_id(tx: Transaction, scope: Scope) -> PendingRows:
    return tx.begin_fetch("SELECT id FROM scopes WHERE name = :project AND kind = :kind", **scope._asdict())


async def fetch_own_ids(tx: Transaction, scope: Scope) -> list[int]:
    """Return the id of the project's own scope of this kind, if it exists, as a list."""
    return [row[0] for row in await begin_own_id(tx, scope)]


async def fetch_changeable_ids(tx: Transaction, call: Call) -> list[int]:
    """Return the ids of the scopes in which a call may change what is there."""
    return await (fetch_own_ids if call.is_confined else fetch_visible_ids)(tx, call.scope)


async def fetch_project_ids(tx: Transaction, scope: Scope) -> list[int]:
    """Return the ids of the project's own scopes of all kinds."""
    return [row[0] for row in await tx.fetch("SELECT id FROM scopes WHERE name = :name", name=scope.project)]


async def fetch_all_visible_ids(tx: Transaction, scope: Scope) -> list[int]:
    """Return the ids of the scopes that a read may see, of all kinds."""
    names, bound = bind_list("name", scope.visible_projects)
    return [row[0] for row in await tx.fetch(f"SELECT id FROM scopes WHERE name IN ({names})", **bound)]


async def fetch_scope_kind(tx: Transaction, scope_id: int) -> str:
    return str((await tx.fetch_required("SELECT kind FROM scopes WHERE id = :id", id=scope_id))[0])


async def ensure_scope(tx: Transaction, scope: Scope, own: PendingRows | None = None) -> int:
    """Return the id of the project's scope, which `own` may have begun to fetch; insert the scope if it is new."""
    rows = await (own or begin_own_id(tx, scope)) or await tx.fetch(
        "INSERT INTO scopes (name, kind) VALUES (:project, :kind) RETURNING id", **scope._asdict()
    )
    return int(rows[0][0])


async def list_projects(tx: Transaction) -> list[tuple[str, int, float | None]]:
    """Return every project with its number of memories and the time of its last change."""
    rows = await tx.fetch(
        """SELECT s.name, s.kind,
               (SELECT coalesce(sum(c.memories), 0) FROM counts c WHERE c.scope = s.id AND c.facet = 'type'),
               (SELECT max(m.updated) FROM memories m WHERE m.scope = s.id AND m.deleted IS NULL)
           FROM scopes s WHERE EXISTS (SELECT 1 FROM memories k WHERE k.scope = s.id) ORDER BY s.name"""
    )
    projects: dict[str, tuple[int, float | None]] = {}
    for name, kind, count, updated in rows:
        if kind == "memory":
            projects[name] = int(count), updated
        else:
            projects.setdefault(name, (0, None))
    return [(name, count, updated) for name, (count, updated) in projects.items()]


async def rename_project(tx: Transaction, name: str, to: str) -> bool:
    """Rename a project, with its calls and receipts; False if there is none of that name."""
    await tx.execute(  # an empty project may be replaced, but its scopes keep their ids
        """UPDATE scopes SET name = 'emptied ' || CAST(id AS TEXT) WHERE name = :new
           AND NOT EXISTS (SELECT 1 FROM memories m WHERE m.scope = scopes.id)""",
        new=to,
    )
    changed = await tx.execute("UPDATE scopes SET name = :new WHERE name = :name", name=name, new=to)
    names = {"name": name, "new": to}
    # A project without memories may still have calls, receipts and usage under the new name.
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
    # It may also have files, workspaces and runs: those of the renamed project replace them.
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
    for table in TABLES_BY_PROJECT_NAME:
        await tx.execute(f"UPDATE {table} SET scope = :new WHERE scope = :name", **names)
    return changed > 0
